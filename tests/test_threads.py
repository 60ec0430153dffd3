"""Threads that share a batch start and end with a fit, and give the result of one thread, to the bit."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from problems import paper

from polyadic import ATD, spectral
from polyadic._util.threads import for_each, row_slices, thread_pool
from polyadic.presets import preset


@pytest.fixture(params=[3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def of_a_new_thread() -> int:
    found: list[int] = []
    one = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    one.start()
    one.join()
    return found[0]


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


def test_a_pool_has_torchs_threads_and_gives_them_back(threads: int) -> None:
    alive = threading.active_count()
    together = threading.Barrier(threads, timeout=20)
    seen: set[int] = set()

    def work(_: int) -> None:
        together.wait()  # only so many threads at once get past this
        assert torch.get_num_threads() == 1
        seen.add(threading.get_ident())

    with thread_pool():
        for_each(work, range(threads))
        assert len(seen) == threads
        assert threading.get_ident() in seen
        assert torch.get_num_threads() == 1
        with thread_pool():
            for_each(work, range(threads))
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == of_a_new_thread() == threads
    assert threading.active_count() == alive
    assert row_slices(8, 2**20) == [slice(0, 8)]


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
