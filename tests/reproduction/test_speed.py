"""The speed measurements: what they count, and that all of them run."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from paper.results import encode_result
from paper.speed import measure, runner

CPU = torch.device("cpu")


@pytest.mark.long
def test_everything_about_speed_runs_in_small_and_is_written(tmp_path):
    (result,) = runner.run(tmp_path, "cpu", quick=True, quiet=True)
    written = (tmp_path / "speed-cpu.json").read_text()
    saved = json.loads(written)
    assert written == encode_result(saved)
    assert saved == json.loads(json.dumps(result))
    assert {"commit", "machine", "versions", "load", "fits", "store", "growth", "pca", "tensorly"} <= saved.keys()
    (row,) = saved["rows"]
    assert row["sweep"]["sweep_seconds"] == pytest.approx(row["sweep"]["seconds"]["median"] * 7352 / 24)
    assert [fit["dataset"] for fit in saved["fits"]] == ["har", "ptb_xl", "sleep_edf", "mgh"]
    assert all(fit["ratio"] > 0 and fit["passes"] == 3 for fit in saved["fits"])
    assert saved["failed"] == {}
    text = (tmp_path / "speed-cpu.md").read_text()
    assert "the figures are not representative" in text
    assert "nan" not in text.lower()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc to look at the memory")
def test_the_peak_sees_memory_that_is_gone_again():
    with measure.Peak(CPU) as peak:
        array = np.ones(2**24)
        time.sleep(0.1)
        del array
    assert peak.own > 0.9 * 8 * 2**24
