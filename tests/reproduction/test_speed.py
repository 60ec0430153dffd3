"""The speed measurements: what they count, and that all of them run."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from paper.__main__ import app
from paper.results import encode_result
from paper.speed import comparisons, measure, race, runner, tables
from polyadic.data import synthetic
from polyadic.errors import PolyadicError

pytest.importorskip("matplotlib")

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


def test_an_unknown_dataset_is_refused(tmp_path):
    with pytest.raises(PolyadicError, match="--dataset must be one of sleep_edf"):
        runner.run(tmp_path, "cpu", dataset="cats")


# ------------------------------------------------------------------ the race


def test_the_race_runs_in_small_on_the_command_line(tmp_path):
    words = ["race", "--quick", "--quiet", "--device", "cpu", "--out", str(tmp_path), "--json"]
    answer = CliRunner().invoke(app, words)
    assert answer.exit_code == 0, answer.output
    saved = json.loads((tmp_path / "race-synthetic-cpu.json").read_text())
    assert {row["candidate"] for row in saved["rows"]} == set(race.CANDIDATES)
    for row in saved["rows"]:
        assert len(row["seconds"]) == len(row["accuracy"]) == len(row["loss"]) == 3
        assert row["seconds"] == sorted(row["seconds"])
        assert all(0 <= accuracy <= 100 for accuracy in row["accuracy"])
    assert "nan" not in (tmp_path / "race-synthetic-cpu.md").read_text().lower()
    assert (tmp_path / "race-synthetic-cpu.png").stat().st_size > 1000


def row(candidate, seed, seconds, accuracy):
    return {"candidate": candidate, "seed": seed, "seconds": seconds, "accuracy": accuracy}


def test_the_summary_of_a_race_equals_a_count_by_hand():
    rows = [
        row(race.REFERENCE, 0, [10.0, 20.0, 30.0, 40.0], [50.0, 80.0, 80.0, 80.0]),
        row("quick", 0, [1.0, 2.0, 3.0, 4.0], [79.5, 70.0, 90.0, 90.0]),
        row(race.REFERENCE, 1, [10.0, 20.0, 30.0, 40.0], [50.0, 60.0, 80.0, 80.0]),
        row("quick", 1, [1.0, 2.0, 3.0, 4.0], [40.0, 40.0, 40.0, 40.0]),
    ]
    theirs, ours = race.summary(rows)
    assert theirs["converged"] == pytest.approx([80, 220 / 3])
    # 99 % of 80 is 79.2, once and not again in the sweep after it: that does not count.
    assert ours["seconds_to_paper"] == [3.0, None]
    assert theirs["seconds_to_paper"] == [20.0, 30.0]
    assert ours["sooner_to_paper"] == [pytest.approx(20 / 3), None]


def test_a_race_uses_only_the_published_training_subjects(tmp_path):
    signals = synthetic(60, n_channels=9, length=128)
    half = np.arange(60) < 40
    arrays = {}
    for name, rows in (("train", half), ("test", ~half)):
        arrays |= {
            f"X_{name}": signals.X[rows],
            f"y_{name}": signals.label[rows],
            f"subject_{name}": np.arange(60)[rows],
        }
    np.savez(tmp_path / "w.npz", **arrays, fs=50)
    windows, _, _ = race.open_training_people(tmp_path / "w.npz", "har")
    assert len(windows) == 40
    assert set(windows.part) == {"train"}
    with pytest.raises(PolyadicError, match="--data is missing"):
        race.open_training_people(None, "har")
