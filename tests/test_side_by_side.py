"""Parallel fits in threads and processes equal single fits; many fits take no more memory."""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import endurance
import joblib
import pytest
from command_line import python

HERE = Path(__file__).parent
ORDER = list(endurance.KINDS) * 2


@pytest.fixture(scope="module")
def alone() -> dict[str, list[bytes]]:
    return {kind: endurance.outcome(kind) for kind in endurance.KINDS}


def test_fits_in_parallel_threads_are_the_fits_alone(alone: dict[str, list[bytes]]) -> None:
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(endurance.outcome, ORDER))
    assert [alone[kind] for kind in ORDER] == found


@pytest.mark.parametrize("backend", ["loky", "threading"])
def test_fits_under_joblib_are_the_fits_alone(
    backend: str, alone: dict[str, list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]))
    with joblib.parallel_config(backend, n_jobs=2, inner_max_num_threads=1 if backend == "loky" else None):
        found = joblib.Parallel()(joblib.delayed(endurance.outcome)(kind) for kind in alone)
    assert list(alone.values()) == found


FORKED = """
import os, sys, torch
import endurance
torch.set_num_threads(1)
kinds = ("memory", "own function")
before = [endurance.outcome(kind) for kind in kinds]
child = os.fork()
if child == 0:
    os._exit(0 if before == [endurance.outcome(kind) for kind in kinds] else 7)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_fit_after_a_fork_is_the_fit_before_it() -> None:
    python(FORKED, cwd=HERE)


@pytest.mark.skipif(sys.platform != "linux", reason="memory is counted as Linux does")
@pytest.mark.parametrize(("fits", "seconds"), [(30, 2), pytest.param(200, 10, marks=pytest.mark.long)])
def test_memory_stays_flat_over_many_fits_and_long_ones(fits: int, seconds: int) -> None:
    found = json.loads(
        python("import endurance; endurance.main()", "--fits", fits, "--seconds", seconds, cwd=HERE).stdout
    )
    assert found["fits"]["fits"] == fits
    assert found["soak"]["sweeps"] > 2
    assert max(found[kind]["grew_bytes"] for kind in ("fits", "soak")) < found["allowed_bytes"], found
