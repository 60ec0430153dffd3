"""The textbook method, the reference for speed, computes the same as the library."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

from paper.speed import textbook
from polyadic.core import step as als
from polyadic.presets import preset
from polyadic.spectral import STFT


@pytest.mark.parametrize("shape", [(5, 3, 4, 6), (12, 2, 7, 5)])
@pytest.mark.parametrize("beta", [0.5, 20.0])
def test_its_step_is_the_librarys_step(shape, beta):
    generator = torch.Generator().manual_seed(1)
    views = [torch.rand(*shape, dtype=torch.float64, generator=generator) + 0.1 for _ in range(2)]
    factors = als.initial_factors(shape[1:], 3, 0, torch.float64, torch.device("cpu"))
    state = als.State(list(factors))
    objective = als.Objective(alpha=1e-2, beta=beta)
    bases = list(factors)
    for _ in range(3):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            als.step(torch.cat(views), state, objective, n_views=2, learning_rate=0.3)
        bases = textbook.step(*views, bases, alpha=1e-2, beta=beta, learning_rate=0.3)
    for ours, theirs in zip(state.factors, bases, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-10)


def test_its_spectra_are_the_librarys():
    X = torch.randn(4, 3, 200, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    settings = STFT(32, 5, window="rectangular").calibrated(X)
    torch.testing.assert_close(textbook.spectra(X, settings), settings(X))


def test_a_sweep_visits_every_window_once_and_moves_the_bases(monkeypatch):
    har = replace(preset("har"), parameters={**preset("har").parameters, "batch_size": 8})
    X = np.random.default_rng(0).normal(size=(20, 9, 128)).astype(np.float32)
    tensorize = har.tensorize.calibrated(torch.from_numpy(X))
    bases = als.initial_factors((18, 33, 33), 2, 0, torch.float32, torch.device("cpu"))
    sweeper = textbook.TextbookSweeps(X, har, tensorize, bases, workers=0)
    sizes = []
    real = textbook.step
    monkeypatch.setattr(textbook, "step", lambda T, *rest, **more: sizes.append(len(T)) or real(T, *rest, **more))
    sweeper.sweep()
    assert sizes == [8, 8, 4]
    assert not torch.equal(bases[0], sweeper.bases[0])
