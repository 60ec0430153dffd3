"""A fit from a store takes as much memory for a large store as for a small one, and large windows take little."""

from __future__ import annotations

import json
from pathlib import Path

import large_fits
import pytest
from command_line import python

ROOT = Path(__file__).parents[1]
# Batches, and the windows that floors are calibrated on, are so small that the small store has many.
PROGRAM = """
import runpy
from polyadic.estimators import base as estimators
from polyadic.data import batches
estimators._CALIBRATION_WINDOWS, estimators._BATCH_BYTES, batches._BLOCK_BYTES["cpu"] = 64, 2**21, 2**21
runpy.run_path("tests/large_fits.py", run_name="__main__")
"""


LARGE_WINDOWS = """
import sys
import numpy as np, torch
sys.path.insert(0, ".")
from paper.speed.measure import Peak
from polyadic import CPD
X = np.random.default_rng(0).normal(size=[int(size) for size in sys.argv[1:]]).astype(np.float32)
CPD(max_sweeps=1).fit(X[:5, :4, :500])
with Peak(torch.device("cpu")) as peak:
    CPD(max_sweeps=2).fit(X)
print(peak.own)
"""
needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc to look at the memory")


@needs_proc
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("shape", [(40, 12, 10000), (200, 128, 256)])
def test_few_windows_that_are_long_or_have_many_channels_take_little_memory(shape):
    assert int(python(LARGE_WINDOWS, *map(str, shape), cwd=ROOT).stdout) < 2**30


@needs_proc
@pytest.mark.parametrize("large", [0.125, pytest.param(0.5, marks=pytest.mark.long)])
def test_a_fit_from_a_store_takes_no_more_memory_than_from_a_quarter_of_it(large, tmp_path, monkeypatch):
    monkeypatch.setattr(large_fits, "NIGHT", 150)  # nights of 12 MiB, so that the small store is small
    own = {}
    for gib in (large / 4, large):
        store = large_fits.generate(tmp_path / f"{gib}.store", gib)
        found = json.loads(python(PROGRAM, "--store", store.path, "--hop", "1024", "--flip", cwd=ROOT).stdout)
        assert 0.8 * gib * 2**30 < found["stored_bytes"] < 1.2 * gib * 2**30
        own[gib] = found["own_bytes"]
    assert own[large] < 2**30
    # The data grow by 96 MiB or more; the memory varies by some 30 MiB from one fit to the next.
    assert own[large] - own[large / 4] < 64 * 2**20
