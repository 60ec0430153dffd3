"""The speed measurements: what they count, and that all of them run."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from problems import paper
from typer.testing import CliRunner

from paper.__main__ import app
from paper.results import encode_result
from paper.speed import comparisons, measure, race, runner, scaling, tables
from polyadic import ATD
from polyadic.augment import Jitter
from polyadic.data import synthetic
from polyadic.errors import PolyadicError
from polyadic.spectral import STFT

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
    assert {"commit", "machine", "versions", "load", "growth", "textbook", "tensorly", "mttkrp"} <= saved.keys()
    (row,) = saved["rows"]
    assert row["sweep"]["sweep_seconds"] == pytest.approx(row["sweep"]["seconds"]["median"] * 7352 / 24)
    assert [fit["method"] for fit in row["fits"]] == ["CPD()", "ATD()"]
    assert all(fit["seconds"]["median"] > 0 for fit in row["fits"])
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


def test_the_sizes_of_a_scaling_differ_in_one_dimension_only():
    for name, sizes in scaling.SIZES.items():
        assert len(sizes) >= 3
        for other, numbers in zip(
            sizes[0].dimensions(), zip(*(s.dimensions().values() for s in sizes), strict=True), strict=True
        ):
            assert (len(set(numbers)) == len(sizes)) == (other == name)
        for size in sizes:
            shape = STFT(size.n_fft, 4).shape(size.channels, size.length)
            assert shape == tuple(size.dimensions()[dim] for dim in ("I (channels)", "J (frequencies)", "K (frames)"))


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


def row(candidate, seed, seconds, accuracy, stop=None):
    return {"candidate": candidate, "seed": seed, "seconds": seconds, "accuracy": accuracy, "sweeps_to_stop": stop}


def test_the_summary_of_a_race_equals_a_count_by_hand():
    rows = [
        row(race.REFERENCE, 0, [10.0, 20.0, 30.0, 40.0], [50.0, 80.0, 80.0, 80.0], stop=4),
        row("quick", 0, [1.0, 2.0, 3.0, 4.0], [79.5, 70.0, 90.0, 90.0]),
        row(race.REFERENCE, 1, [10.0, 20.0, 30.0, 40.0], [50.0, 60.0, 80.0, 80.0]),
        row("quick", 1, [1.0, 2.0, 3.0, 4.0], [90.0, 90.0, 90.0, 90.0]),
    ]
    theirs, ours = race.summary(rows)
    assert theirs["converged"] == pytest.approx([80, 220 / 3])
    # 99 % of 80 is 79.2, once and not again in the sweep after it: that does not count.
    assert ours["seconds_to_paper"] == [3.0, 1.0]
    assert theirs["seconds_to_paper"] == [20.0, 30.0]
    assert ours["sooner_to_paper"] == pytest.approx([20 / 3, 30])
    assert (ours["best"], theirs["best"]) == (True, False)
    assert theirs["seconds_to_best"] == [None, None]
    assert ours["sooner_to_best"] == [None, None]
    assert theirs["seconds_at_stop"] == [40.0, None]
    assert theirs["accuracy_at_stop"] == [80.0, None]


def test_the_clock_of_the_race_excludes_work_between_sweeps(monkeypatch):
    X = torch.from_numpy(synthetic(20, n_channels=2, length=64).X).float()
    real = torch.as_tensor

    def slow(*words, **more):
        if isinstance(words[0], np.ndarray):
            time.sleep(0.05)
        return real(*words, **more)

    model = paper(ATD, 2, tensorize=STFT(16, 8), augment=Jitter(0.1), max_sweeps=3, tol=0.0, device="cpu")
    monkeypatch.setattr(torch, "as_tensor", slow)
    begun = time.perf_counter()
    _, seconds, bases = race._fit_with_clock(model, X)
    wall = time.perf_counter() - begun
    assert len(bases) == 3
    # Three bases after each of three sweeps, the last of them after the last look at the clock.
    assert seconds[-1] <= wall - 3 * 3 * 0.05


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
