"""Faults of reading recordings that users would meet, each with the folder or table that shows it."""

from __future__ import annotations

import numpy as np
import people
import pytest
from command_line import polyadic

from polyadic.data import datasets
from polyadic.data.readers.scoring import find_scoring
from polyadic.errors import DataError

QUICK = ("--rank", 3, "--sweeps", 2)


def test_a_model_of_windows_with_a_share_of_labels_predicts_recordings(tmp_path):
    people.wearables(tmp_path / "in", 3)
    options = ("--seconds", 2, "--label", "activity", "--min-share", 0.5)
    polyadic("fit", "in", "-o", "m.safetensors", "--probe", *options, *QUICK, cwd=tmp_path)
    polyadic("predict", "m.safetensors", "in", "-o", "labels.csv", cwd=tmp_path)
    assert len((tmp_path / "labels.csv").read_text().splitlines()) == 1 + 3 * 12


def test_labels_stay_where_the_times_of_a_subject_begin_anew(tmp_path):
    """Rows of trials of 100 samples, each from 0 s on."""
    rows = [
        f"{n / 25:.2f},{np.sin(n):.4f},{who},{label}\n"
        for label in ("walk", "run", "rest")
        for who in ("anna", "ben")
        for n in range(100)
    ]
    (tmp_path / "all.csv").write_text("time,x,who,label\n" + "".join(rows))
    store = datasets.folder(tmp_path / "all.csv", tmp_path / "s", seconds=2, label="label", subject="who")
    assert store.classes == ("rest", "run", "walk")
    assert np.bincount(store.index.label).tolist() == [4, 4, 4]
    anna = store.windows.start[store.windows.subject == "anna"]
    assert (anna / store.fs).tolist() == [0, 2, 4, 6, 8, 10]


@pytest.mark.parametrize(
    ("stem", "scoring", "fits"),
    [
        ("S1", "S1-scoring.csv", True),
        ("S1-night", "S1-scoring.csv", True),
        ("S1_2", "S1-scoring.csv", True),
        ("S10", "S1-scoring.csv", False),
        ("S1b", "S1-scoring.csv", False),
        ("nightB", "nightA-scoring.csv", False),
        ("nightB", "nightA-scoring.edf", False),
        ("SC4001E0-PSG", "SC4001EC-scoring.edf", True),
        ("SC4001E0-PSG", "SC4001EC-scoring.csv", False),
        ("SC4002E0-PSG", "SC4001EC-scoring.edf", False),
    ],
)
def test_a_scoring_is_that_of_the_recording_of_its_name(stem, scoring, fits, tmp_path):
    pattern = f"*-scoring{scoring[-4:]}"
    found = find_scoring(tmp_path / f"{stem}.edf", tmp_path, stem, pattern, [tmp_path / scoring])
    assert found == (tmp_path / scoring if fits else None)


def test_a_scoring_of_two_recordings_is_refused(tmp_path):
    for name in ("S1_1.csv", "S1_2.csv"):
        people.table(tmp_path / name, ["walk"], 0)
    (tmp_path / "S1.txt").write_text("W\n" * 2)
    with pytest.raises(DataError, match=r"S1\.txt would score both S1_1\.csv and S1_2\.csv: .*--scoring"):
        datasets.folder(tmp_path, tmp_path / "s", seconds=2, scoring="*.txt", channels=["x"])
