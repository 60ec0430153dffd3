"""Threads that share a batch start and end with a fit, and give the result of one thread, to the bit."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from problems import paper

from polyadic import ATD, spectral
from polyadic.presets import preset


@pytest.fixture(params=[3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def test_the_library_leaves_its_process_alone() -> None:
    program = (
        "import os, sys, numpy as np, torch, scipy.signal, sklearn.linear_model; torch.set_num_threads(2)\n"
        "before = dict(os.environ)\n"
        "from polyadic import SALS; import polyadic.baselines, polyadic.evaluate\n"
        "SALS(rank=2, tensorize=None, max_sweeps=1).fit(np.eye(12))\n"
        "print(dict(os.environ) == before, 'polyadic._util.memory' in sys.modules)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "THP_MEM_ALLOC_ENABLE"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.strip() == "True False"


def test_a_fit_has_the_same_bits_with_any_number_of_threads(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Share even little work, so that products, norms, spectra and views are those of several threads.
    monkeypatch.setattr("polyadic.core.algebra._LARGE", 0)
    monkeypatch.setattr("polyadic._util.threads._SMALLEST_SLICE", 1)
    monkeypatch.setitem(spectral._PIECE_BYTES, "cpu", 2**14)
    har = preset("har")
    X = np.random.default_rng(0).standard_normal((300, *har.shape), np.float32)
    settings = {**har.parameters, "max_sweeps": 2, "tol": 0.0, "device": "cpu"}

    def outcome() -> list[bytes]:
        model = paper(ATD, tensorize=har.tensorize, augment=har.augment, **settings).fit(X)
        return [*(factor.tobytes() for factor in model.factors_), model.transform(X).tobytes()]

    together = outcome()
    torch.set_num_threads(1)
    assert outcome() == together
