"""Components in physical units: levels in dB, the effect of a component, shares that add up, flat profiles."""

from __future__ import annotations

import numpy as np
import pytest

from polyadic import ATD
from polyadic.data import Windows
from polyadic.explain.spectra import effect_sizes, greedy_shares, where_strongest
from polyadic.spectral import STFT

FS = 64.0


# --------------------------------------------------------------------- profiles


def test_components_are_found_in_the_stretch_where_they_are():
    X = 0.05 * np.random.default_rng(0).normal(size=(40, 2, 256))
    first = np.random.default_rng(1).integers(0, 192, 40)
    for window, begin in zip(X, first, strict=True):
        window[0, begin : begin + 64] += 10 * np.sin(2 * np.pi * 8 * np.arange(64) / FS)
    windows = Windows(X, FS)
    model = ATD(rank=1, tensorize=STFT(32, 16, parts="log_amplitude", mean="auto")).fit(windows)
    assert np.abs(where_strongest(model, windows, 0) - (first + 32)).max() < 33


# ----------------------------------------------------------------------- shares


def test_shares_are_the_additional_variation_explained_by_each_component():
    rng = np.random.default_rng(0)
    K, x = np.abs(rng.normal(size=(50, 6))), rng.normal(size=(500, 6)) @ rng.normal(size=(6, 6))
    T = x @ K.T
    T -= T.mean(axis=0)
    left, chosen, before, expected = list(range(6)), [], 0.0, np.zeros(6)
    while left:
        explained = []
        for r in left:
            part = K[:, [*chosen, r]]
            explained.append(float(np.sum((T @ part @ np.linalg.pinv(part)) ** 2)))
        best = left[int(np.argmax(explained))]
        expected[best], before = max(explained) - before, max(explained)
        chosen.append(best)
        left.remove(best)
    shares = greedy_shares(K.T @ K, np.cov(x.T, bias=True))
    assert shares == pytest.approx(100 * expected / expected.sum(), rel=1e-6)
    assert shares.sum() == pytest.approx(100)


def test_effect_sizes_are_cohens():
    rng = np.random.default_rng(0)
    a, b = rng.normal(0, 1, 30), rng.normal(1, 2, 50)
    pooled = np.sqrt((29 * a.var(ddof=1) + 49 * b.var(ddof=1)) / 78)
    found = effect_sizes(np.concatenate([a, b, [99.0]]), np.repeat([0, 1, -1], [30, 50, 1]))
    assert found == pytest.approx([(a.mean() - b.mean()) / pooled, (b.mean() - a.mean()) / pooled])
