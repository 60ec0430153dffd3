"""Output of predict: tables, events, annotations of EDF+, and marks of unusual windows."""

from __future__ import annotations

import csv
import datetime
import json
import shutil
from pathlib import Path

import edfio
import numpy as np
import pandas as pd
import people
import pytest
from command_line import polyadic

from polyadic._util.files import harmless
from polyadic.cli.label_files import check_label_texts, write_labels
from polyadic.data.folders import find_recordings
from polyadic.data.readers.edf import EdfFile
from polyadic.data.readers.scoring import read_events
from polyadic.errors import PolyadicError

QUICK = ("--rank", 4, "--sweeps", 5, "--probe")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sleep, and a model of it."""
    folder = tmp_path_factory.mktemp("made")
    people.sleep(folder / "sleep", 3)
    polyadic("fit", "sleep", "--seconds", 5, *QUICK, "-o", "sleep.safetensors", cwd=folder)
    return folder


def test_labels_are_written_as_events_and_as_annotations_of_a_copy(made: Path, tmp_path: Path) -> None:
    night = made / "sleep" / "S01" / "night.edf"
    model = made / "sleep.safetensors"
    polyadic("predict", model, night, "-o", "a.csv", cwd=tmp_path)
    polyadic("predict", model, night, "-o", "e.tsv", cwd=tmp_path)
    polyadic("predict", model, night, "-o", "n.edf", cwd=tmp_path)
    with (tmp_path / "a.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    with (tmp_path / "e.tsv").open(newline="") as file:
        events = list(csv.DictReader(file, delimiter="\t"))
    assert [row["label"] for row in rows] == [event["trial_type"] for event in events]
    assert [float(row["start"]) for row in rows] == [float(event["onset"]) for event in events]
    assert {float(event["duration"]) for event in events} == {5.0}
    assert all(float(row["confidence"]) == max(float(v) for k, v in row.items() if k.startswith("p(")) for row in rows)
    before, after = EdfFile(night).annotations, EdfFile(tmp_path / "n.edf").annotations
    classes = {row["label"] for row in rows}
    assert [one.text for one in after if one.text in classes] == [row["label"] for row in rows]
    assert [one for one in after if one.text not in classes] == [one for one in before if one.text not in classes]
    channels = ["EEG Fpz-Cz", "EEG Pz-Oz"]
    assert np.array_equal(
        EdfFile(night).read(channels).in_memory().signal,
        EdfFile(tmp_path / "n.edf").read(channels).in_memory().signal,
    )


@pytest.mark.parametrize("ending", [".tsv", ".edf"])
def test_labels_are_read_back_from_every_format_or_refused_with_one_that_can_hold_them(
    made: Path, tmp_path: Path, ending: str
) -> None:
    out = tmp_path / f"r{ending}"
    texts = ["=1+1", "+2", "a,b", "'quoted'", "Schläft – 睡眠", "x" * 300]
    check_label_texts(out, texts)
    for refused in ["a\tb", "a\nb", "a\x00b", "a\x14b", "a\x15b", "a\u2028b"]:
        with pytest.raises(PolyadicError, match=r"cannot hold the label .*: use \.csv"):
            check_label_texts(out, [refused])
    check_label_texts(out.with_suffix(".csv"), ["a\tb"])
    night = made / "sleep" / "S01" / "night.edf"
    onsets = 2.0 * np.arange(len(texts))
    write_labels(out, night, pd.DataFrame({"onset": onsets, "duration": 2.0, "trial_type": texts}))
    if ending == ".tsv":
        found = read_events(out, None)
        texts = [harmless(text) for text in texts]
    else:
        found = EdfFile(out).annotations
    assert [(one.onset, one.text) for one in found if one.text in texts] == [(2.0 * n, t) for n, t in enumerate(texts)]


def test_a_labelled_copy_is_not_a_recording_if_its_original_exists(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "sleep", tmp_path / "new")
    words = ("predict", made / "sleep.safetensors", "new/S01/night.edf", "-o", "new/S01/scored.edf")
    for more in ((), ("--force",)):
        polyadic(*words, *more, cwd=tmp_path)
    found = find_recordings(tmp_path / "new")
    assert [path.parent.name for path in found.files] == ["S01", "S02", "S03"]
    assert found.left_out == {"S01/scored.edf": "a copy with labels, written by polyadic"}
    (tmp_path / "new" / "S01" / "night.edf").unlink()
    assert len(find_recordings(tmp_path / "new").files) == 3  # the copy may be all that is left


def test_labels_have_the_date_and_time_where_the_recording_says_when_it_began(made: Path, tmp_path: Path) -> None:
    night = made / "sleep" / "S01" / "night.edf"
    late = edfio.read_edf(night)
    late.startdate, late.starttime = datetime.date(2024, 5, 1), datetime.time(23, 59, 50, 500_000)
    late.write(tmp_path / "late.edf")
    found = {}
    for path in (night, tmp_path / "late.edf"):
        polyadic("predict", made / "sleep.safetensors", path, "-o", f"{path.stem}.csv", cwd=tmp_path)
        with (tmp_path / f"{path.stem}.csv").open(newline="") as file:
            found[path.stem] = [(row["start"], row["time"]) for row in csv.DictReader(file)]
    assert found["night"][:2] == [("2", ""), ("7", "")]
    assert found["late"][1:3] == [("7", "2024-05-01T23:59:57.500"), ("12", "2024-05-02T00:00:02.500")]


def test_a_copy_of_a_recording_with_gaps_is_refused_for_it_would_lose_its_times(made: Path, tmp_path: Path) -> None:
    content = bytearray((made / "sleep" / "S01" / "night.edf").read_bytes())
    content[192:197] = b"EDF+D"
    (tmp_path / "gaps.edf").write_bytes(content)
    failed = polyadic("predict", made / "sleep.safetensors", "gaps.edf", "-o", "copy.edf", cwd=tmp_path, code=1)
    assert "has gaps (EDF+D)" in " ".join(failed.stderr.split())
    assert not (tmp_path / "copy.edf").exists()


def test_flat_and_noisy_windows_are_unusual_and_keep_label_and_probability(made: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(9)
    parts = [np.zeros(250), 1.0 * rng.normal(size=250), 8.0 * rng.normal(size=250)]
    signals = [
        edfio.EdfSignal(np.concatenate(parts), 50, label=label, physical_range=(-40, 40))
        for label in ("EEG Fpz-Cz", "EEG Pz-Oz")
    ]
    edfio.Edf(signals).write(tmp_path / "odd.edf")
    said = polyadic("predict", made / "sleep.safetensors", "odd.edf", "-o", "odd.csv", cwd=tmp_path).stderr
    assert "predictions may be wrong" not in said  # of so few windows
    with (tmp_path / "odd.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["unusual"] for row in rows] == ["1", "1", "1"]
    assert all(row["label"] and 0 < float(row["confidence"]) <= 1 for row in rows)
    edfio.Edf([edfio.EdfSignal(np.tile(signal.data, 4), 50, label=signal.label) for signal in signals]).write(
        tmp_path / "odd.edf"
    )
    said = polyadic("predict", made / "sleep.safetensors", "odd.edf", "-o", "more.csv", cwd=tmp_path).stderr
    assert "warning: 12 of 12 windows are unlike those of the fit (unusual), so predictions may be wrong." in said
    found = json.loads(polyadic("predict", made / "sleep.safetensors", made / "sleep", "--json", cwd=tmp_path).stdout)
    assert found["unusual"] <= 0.03 * found["windows"]
