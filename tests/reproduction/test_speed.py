"""The speed measurements: what they count, and that all of them run."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from paper.results import encode_result
from paper.speed import comparisons, measure, runner, tables

CPU = torch.device("cpu")
MACHINE = {"processor": "a processor", "threads": 2}
ORIGIN = {"command": "python -m paper speed", "date": "2026-11-16", "commit": "0"}


@pytest.mark.long
def test_everything_about_speed_runs_in_small_and_is_written(tmp_path):
    (result,) = runner.run(tmp_path, "cpu", quick=True, quiet=True)
    written = (tmp_path / "speed-cpu.json").read_text()
    saved = json.loads(written)
    assert written == encode_result(saved)
    assert saved == json.loads(json.dumps(result))
    assert {
        "commit",
        "machine",
        "versions",
        "load",
        "fits",
        "store",
        "growth",
        "pca",
        "textbook",
        "tensorly",
        "mttkrp",
    } <= saved.keys()
    (row,) = saved["rows"]
    assert row["sweep"]["sweep_seconds"] == pytest.approx(row["sweep"]["seconds"]["median"] * 7352 / 24)
    assert [fit["dataset"] for fit in saved["fits"]] == ["har", "ptb_xl", "sleep_edf", "mgh"]
    assert all(fit["ratio"] > 0 and fit["passes"] == 3 for fit in saved["fits"])
    assert saved["failed"] == {}
    text = (tmp_path / "speed-cpu.md").read_text()
    assert "the figures are not representative" in text
    assert "nan" not in text.lower()


def test_measurements_are_taken_in_turn_and_the_first_rounds_do_not_count():
    order = []

    def one(name):
        return lambda: order.append(name) or {name: float(len(order))}

    found = measure.repeat_in_turn([one("a"), one("b")], repeats=2, warm_up=1)
    assert order == ["a", "b"] * 3
    assert found == {"a": [3.0, 5.0], "b": [4.0, 6.0]}


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc to look at the memory")
def test_the_peak_sees_memory_that_is_gone_again():
    with measure.Peak(CPU) as peak:
        array = np.ones(2**24)
        time.sleep(0.1)
        del array
    assert peak.own > 0.9 * 8 * 2**24


def test_a_step_is_compared_with_products_that_are_equal():
    pytest.importorskip("tensorly")
    import tensorly

    before = tensorly.get_backend()
    (row,) = comparisons.against_mttkrp(quick=True)
    assert tensorly.get_backend() == before
    assert (row["dataset"], row["tensor"], row["rank"]) == ("har", [8, 18, 33, 33], 32)
    assert 0 < row["largest_relative_difference"] < 1e-5
    for name in ("step", "products"):
        expected = row["numpy_seconds"]["median"] / row[f"{name}_seconds"]["median"]
        assert row[f"{name}_ratio_to_numpy"]["median"] == pytest.approx(expected)
    assert "| HAR |" in tables.markdown({"rows": [], "mttkrp": [row], "machine": MACHINE, **ORIGIN})
