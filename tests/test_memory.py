"""A fit from a store takes as much memory for a large store as for a small one."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from polyadic.data import WindowStore

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def generator() -> Callable[[Path, float], WindowStore]:
    """`generate` of `benchmarks/store.py`."""
    found = importlib.util.spec_from_file_location("benchmark_of_stores", BENCHMARKS / "store.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module.generate


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc to look at the memory")
@pytest.mark.parametrize("large", [0.25, pytest.param(0.5, marks=pytest.mark.long)])
def test_a_fit_from_a_store_takes_no_more_memory_than_from_a_quarter_of_it(large, tmp_path):
    own = {}
    for gib in (large / 4, large):
        store = generator()(tmp_path / f"{gib}.store", gib)
        options = ["--store", str(store.path), "--hop", "1024", "--flip"]
        command = [sys.executable, str(BENCHMARKS / "memory.py"), *options]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        assert found["stored_bytes"] > 0.9 * gib * 2**30
        own[gib] = found["own_bytes"]
    assert own[large] < 2**30
    # The data grow by 192 MiB or more; the memory varies by some 30 MiB from one fit to the next.
    assert own[large] - own[large / 4] < 96 * 2**20
