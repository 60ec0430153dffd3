"""Regression tests of reading recordings, each with the folder or table that caused a fault."""

from __future__ import annotations

import numpy as np
import pandas as pd
import people
import pytest
from command_line import polyadic
from people import read_csv

from polyadic.data import folder
from polyadic.data.readers.scoring import find_scorings, read_scoring
from polyadic.data.recordings import Annotation, Recording
from polyadic.errors import DataError


def test_labels_stay_where_the_times_of_a_subject_begin_anew(tmp_path):
    """Rows of trials of 100 samples, each from 0 s on."""
    rows = [
        f"{n / 25:.2f},{np.sin(n):.4f},{who},{label}\n"
        for label in ("walk", "run", "rest")
        for who in ("anna", "ben")
        for n in range(100)
    ]
    (tmp_path / "all.csv").write_text("time,x,who,label\n" + "".join(rows))
    store = folder(tmp_path / "all.csv", tmp_path / "s", seconds=2, label="label", subject="who")
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
    found = find_scorings(tmp_path / f"{stem}.edf", tmp_path, pattern, [tmp_path / scoring])
    assert found == [tmp_path / scoring] * fits


def test_a_scoring_of_two_recordings_is_refused(tmp_path):
    for name in ("S1_1.csv", "S1_2.csv"):
        people.table(tmp_path / name, ["walk"], 0)
    (tmp_path / "S1.txt").write_text("W\n" * 2)
    with pytest.raises(DataError, match=r"S1\.txt matches both S1_1\.csv and S1_2\.csv: .*--scoring"):
        folder(tmp_path, tmp_path / "s", seconds=2, scoring="*.txt", channels=["x"])


@pytest.mark.parametrize("times", ["inf\t30", "1e300\t30", "0\tinf", "0\t1e300", "-1e300\t0", "nan\t30"])
def test_impossible_times_of_a_scoring_are_an_error_of_its_recording_alone(times, tmp_path):
    for name in ("S1", "S2"):
        people.table(tmp_path / f"{name}.csv", ["walk", "rest"], 0)
        (tmp_path / f"{name}_events.tsv").write_text("onset\tduration\tlabel\n0\t4\twalk\n4\t4\trest\n")
    with (tmp_path / "S2_events.tsv").open("a") as file:
        file.write(f"{times}\twalk\n")
    options = {"seconds": 2, "scoring": "*_events.tsv", "channels": ["x"]}
    with pytest.raises(DataError, match=r"S2_events\.tsv, line 4: onset and duration must be numbers of seconds"):
        folder(tmp_path, tmp_path / "s", **options)
    store = folder(tmp_path, tmp_path / "s", on_error="skip", **options)
    assert set(store.windows.recording) == {"S1"}
    assert [one["name"] for one in store.skipped] == ["S2"]


def staged(path, lines, seconds, window=10.0):
    """The annotations of a recording of some seconds from a file of one stage per line."""
    path.write_text("\n".join(lines) + "\n")
    signal = np.zeros((1, round(seconds * 10)), np.float32)
    night = Recording("night", "s", 10.0, ("a",), ("",), signal.astype(np.float32))
    return read_scoring(path, night, path.with_suffix(".edf"), window)


@pytest.mark.parametrize(
    ("lines", "seconds", "window", "epoch"),
    [
        (10, 320, 10.0, 30),
        (10, 320, 32.0, 32),
        (10, 300, 2.0, 30),
        (8, 320, 10.0, 40),
        (25, 100, 4.0, 4),
        (6, 15, 2.5, 2.5),
    ],
)
def test_epochs_have_a_length_that_is_common_or_that_fills_the_recording(lines, seconds, window, epoch, tmp_path):
    found = staged(tmp_path / "n.txt", ["W"] * lines, seconds, window)
    assert found[-1] == Annotation((lines - 1) * epoch, epoch, "W")


@pytest.mark.parametrize(
    ("lines", "seconds", "which"),
    [(3, 98, "25 or of 30"), (2, 101, "fit no usual"), (500, 98, ""), (0, 98, "")],
)
def test_epochs_of_an_unclear_length_are_refused(lines, seconds, which, tmp_path):
    with pytest.raises(DataError, match=rf"n\.txt has {lines} lines, which .*{which}.*: give a table of onset"):
        staged(tmp_path / "n.txt", ["W"] * lines, seconds, window=25.0 if which == "25 or of 30" else 10.0)


@pytest.mark.parametrize("subject", [None, "folder"])
def test_folders_of_classes_inside_folders_of_subjects_are_not_subjects(subject, tmp_path):
    for who in ("p01", "p02"):
        for activity in ("walk", "rest"):
            people.table(tmp_path / "in" / who / activity / "rec.csv", [activity], 0)
    options = {"seconds": 2, "channels": ["x"], "label_from": "folder", "subject": subject}
    store = folder(tmp_path / "in", tmp_path / "s", **options)
    assert store.classes == ("rest", "walk")
    assert set(store.windows.subject) == {"p01", "p02"}
    assert store.index.subjects_from == "folder names"


@pytest.mark.parametrize("head", ["Participant", "id"])
def test_a_subject_that_would_become_a_signal_is_refused_with_the_option(head, tmp_path):
    rows = "".join(f"{n / 10},{np.sin(n):.4f},7\n" for n in range(100))
    (tmp_path / "a.csv").write_text(f"time,x,{head}\n{rows}")
    with pytest.raises(DataError, match=f"--subject {head}"):
        folder(tmp_path / "a.csv", tmp_path / "s", seconds=1)
    store = folder(tmp_path / "a.csv", tmp_path / "s", seconds=1, subject=head)
    assert store.channels == ("x",)
    assert set(store.windows.subject) == {"7"}


def test_tables_in_the_encoding_of_old_spreadsheets_are_read(tmp_path):
    rows = "".join(f"{n / 10:.1f};{np.sin(n):.4f};{'gehen' if n < 50 else 'müßig'}\n" for n in range(100))
    (tmp_path / "a.csv").write_bytes(f"time;x;Aktivität\n{rows}".replace(".", ",").encode("cp1252"))
    store = folder(tmp_path / "a.csv", tmp_path / "s", seconds=1, label="Aktivität")
    assert store.classes == ("gehen", "müßig")


def test_a_rate_that_contradicts_the_time_column_is_named_in_the_error(tmp_path):
    (tmp_path / "a.csv").write_text("time,x\n" + "".join(f"{n / 25:.2f},{n % 7}\n" for n in range(100)))
    with pytest.raises(
        DataError, match=r"a\.csv: the times give a rate of 25 Hz, not 50 Hz: if they are in seconds, --resample"
    ):
        folder(tmp_path / "a.csv", tmp_path / "s", seconds=1, fs=50)


@pytest.mark.parametrize(("head", "scale"), [("time_s", 1), ("timestamp_us", 10**6), ("Time (ms)", 1000)])
def test_a_column_of_times_may_name_their_unit(head, scale, tmp_path):
    (tmp_path / "a.csv").write_text(f"x,{head}\n" + "".join(f"{n},{n * scale / 50:g}\n" for n in range(50)))
    found = read_csv(tmp_path / "a.csv")
    assert found.channels == ("x",)
    assert found.fs == pytest.approx(50)


def test_missing_values_stay_in_the_windows_and_windows_without_any_sample_are_counted(tmp_path):
    rows = [f"{n / 25},{'' if 25 <= n < 100 else n},{-9 if 50 <= n < 100 else n}\n" for n in range(200)]
    (tmp_path / "a.csv").write_text("time,x,y\n" + "".join(rows))
    store = folder(tmp_path / "a.csv", tmp_path / "s", seconds=2, missing=-9)
    assert store.windows.start.tolist() == [0, 100, 150]
    assert np.isnan(store.windows.X).sum(axis=(1, 2)).tolist() == [25, 0, 0]
    assert store.recordings[0]["empty"] == 1
    said = polyadic("prepare", "folder", "a.csv", "t", "--seconds", 2, "--missing", -9, cwd=tmp_path).stdout
    assert "windows without any sample 1 " in " ".join(said.split())


def test_a_channel_that_some_recordings_lack_is_missing_there_with_one_line(tmp_path):
    for name, heads in (("a", "time,x,w"), ("b", "time,w"), ("c", "time,x,w,z")):
        rows = [",".join([str(n / 25), *[str(n)] * heads.count(",")]) for n in range(100)]
        (tmp_path / f"{name}.csv").write_text("\n".join([heads, *rows]) + "\n")
    store = folder(tmp_path, tmp_path / "s", seconds=2)
    assert store.channels == ("x", "w")
    assert np.isnan(store.windows.X).all(axis=2).tolist() == [[False] * 2] * 2 + [[True, False]] * 2 + [[False] * 2] * 2
    assert "b: channels missing: 'x'; if a channel only has another name: --rename OLD=NEW" in store.notes
    assert "left out: channels that most recordings lack: 'z' (1 of 3)" in store.notes
    chosen = folder(tmp_path, tmp_path / "t", seconds=2, channels=["z", "w"])
    assert np.isnan(chosen.windows.X).all(axis=2)[:, 0].tolist() == [True] * 4 + [False] * 2
    with pytest.raises(
        DataError, match=r"no recording has the channel 'Z'; there are 'time', 'x', 'w', 'z'; did you mean 'z'"
    ):
        folder(tmp_path, tmp_path / "u", seconds=2, channels=["Z", "w"])


@pytest.mark.parametrize(
    ("rate", "count", "read"),
    [
        (50.0001, 3000, 50.0),
        (31.25, 500, 31.25),
        (29.97, 100, 29.97),
        (50.0044, 20_000, 50.0044),
    ],
)
def test_the_rate_of_real_times_is_a_round_one_unless_they_drift_from_it(rate, count, read, tmp_path):
    (tmp_path / "a.csv").write_text("time,x\n" + "".join(f"{n / rate:.6f},{n}\n" for n in range(count)))
    assert read_csv(tmp_path / "a.csv").fs == pytest.approx(read, rel=1e-9)


def test_a_table_of_pandas_with_its_index_is_read(tmp_path):
    frame = pd.DataFrame({"time": np.arange(100) / 10, "x": np.sin(np.arange(100)), "label": ["a"] * 50 + ["b"] * 50})
    frame.to_csv(tmp_path / "a.csv")
    frame[50:].to_csv(tmp_path / "b.csv")
    store = folder(tmp_path, tmp_path / "s", seconds=1, label="label")
    assert store.channels == ("x",)
    assert np.bincount(store.index.label).tolist() == [5, 10]
    frame[::2].to_csv(tmp_path / "c.csv")
    with pytest.raises(DataError, match=r"c\.csv, line 1: the first row must name every channel"):
        read_csv(tmp_path / "c.csv")
