"""A fit from a store takes as much memory for a large store as for a small one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[1] / "benchmarks" / "memory.py"


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc to look at the memory")
def test_a_fit_from_a_store_of_a_gibibyte_takes_no_more_memory_than_from_a_quarter(tmp_path):
    own = {}
    for gib in (0.25, 1.0):
        options = ["--gib", str(gib), "--hop", "1024", "--flip", "--folder", str(tmp_path)]
        command = [sys.executable, str(BENCHMARK), *options]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        assert found["stored_bytes"] > 0.9 * gib * 2**30
        own[gib] = found["own_bytes"]
    assert own[1.0] < 2**30
    # A quarter of the growth of the data would be 192 MiB.
    assert own[1.0] - own[0.25] < 96 * 2**20
