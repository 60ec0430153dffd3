"""Formats beyond EDF, WFDB and CSV, data frames, and the one declaration of the options for reading."""

from __future__ import annotations

import inspect
import warnings
from dataclasses import fields
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.io
from command_line import polyadic

from polyadic.data import Windows, folder, open_windows, read_recording
from polyadic.data.reading import Reading, option_name
from polyadic.errors import DataError, PolyadicError

RNG = np.random.default_rng(0)


def long_frame(seconds: int = 8, fs: int = 10) -> pd.DataFrame:
    """Two subjects, one row per sample: the first half is walk, the second rest."""
    count = seconds * fs
    parts = [
        pd.DataFrame(
            {
                "x": RNG.normal(size=count),
                "y": RNG.normal(size=count),
                "who": who,
                "move": ["walk"] * (count // 2) + ["rest"] * (count // 2),
            }
        )
        for who in ("anna", "ben")
    ]
    return pd.concat(parts, ignore_index=True)


# ------------------------------------------------------------------------------------------------------- data frames


def test_windows_of_a_data_frame_have_its_labels_subjects_and_samples():
    frame = long_frame()
    windows = Windows.from_dataframe(frame, fs=10, seconds=2, label="move", subject="who")
    assert (windows.shape, windows.fs, windows.channels) == ((8, 2, 20), 10.0, ("x", "y"))
    assert windows.classes == ("rest", "walk")
    assert windows.label.tolist() == [1, 1, 0, 0] * 2
    assert windows.subject.tolist() == ["anna"] * 4 + ["ben"] * 4
    assert windows.start.tolist() == [0, 20, 40, 60] * 2
    np.testing.assert_allclose(windows.X[5, 1], frame["y"][100:120], rtol=1e-6)


def test_windows_of_a_data_frame_never_cross_recordings_and_follow_its_times():
    frame = long_frame().drop(columns="move")
    frame["session"] = np.arange(160) // 30
    frame["time"] = np.tile(np.arange(80) / 10, 2)
    windows = Windows.from_dataframe(
        frame[frame.who == "anna"], fs=10, seconds=2, recording="session", subject="who", channels=["x", "y"]
    )
    assert windows.recording.tolist() == ["0", "1", "2"]
    timed = Windows.from_dataframe(frame, seconds=2, time="time", channels=["x"], subject="who", stride=1)
    assert (timed.fs, timed.shape) == (10.0, (14, 1, 20))


def test_a_data_frame_with_a_wrong_column_or_two_subjects_in_a_recording_is_refused():
    for given, message in (
        ({"subject": "whom"}, r"there is no column 'whom' \(subject\).*did you mean 'who'\?"),
        ({"channels": ["x", "z"]}, "the data frame must have the channels 'x', 'z', but has 'x', 'y', 'who', 'move'"),
        ({"seconds": 9, "channels": ["x"]}, "no recording has a window of 9 s"),
    ):
        with pytest.raises(DataError, match=message):
            Windows.from_dataframe(long_frame(), **{"fs": 10, "seconds": 2, "subject": "who", **given})
    with pytest.raises(PolyadicError, match="one subject, but '1' has 'anna', 'ben'"):
        Windows.from_dataframe(long_frame().assign(r=1), fs=10, seconds=2, label="move", subject="who", recording="r")
    with pytest.raises(DataError, match=r"'move' looks like a label .* use label='move' .* signals with channels="):
        Windows.from_dataframe(long_frame(), fs=10, seconds=2, subject="who")


def test_a_data_frame_of_several_people_needs_their_names():
    frame = long_frame().drop(columns="move")
    with pytest.raises(DataError, match="use subject='who'"):
        Windows.from_dataframe(frame.assign(move="walk"), fs=10, seconds=2, label="move")
    frame["time"] = np.tile(np.arange(80) / 10, 2)
    with pytest.raises(DataError, match=r"go back by 7\.9 s: if another recording begins there, .* subject="):
        Windows.from_dataframe(frame.drop(columns="who"), seconds=2)


@pytest.mark.parametrize(
    "kind", ["seconds", "milliseconds", "dates", "durations", "index of dates", "index of durations"]
)
def test_the_times_of_a_data_frame_are_no_signal_and_give_the_rate(kind):
    frame, seconds = long_frame()[["x", "y"]], np.arange(160) / 10
    dates, durations = pd.Timestamp("2024-05-01 10:00") + pd.to_timedelta(seconds, "s"), pd.to_timedelta(seconds, "s")
    match kind:
        case "seconds":
            frame.insert(1, "time", seconds)
        case "milliseconds":
            frame.insert(0, "Time [ms]", 1000 * seconds)
        case "dates" | "durations":
            frame.insert(0, "timestamp", dates if kind == "dates" else durations)
        case _:
            frame.index = dates if kind == "index of dates" else durations
    windows = Windows.from_dataframe(frame, seconds=2)
    assert (windows.fs, windows.channels, windows.shape) == (10.0, ("x", "y"), (8, 2, 20))
    np.testing.assert_allclose(windows.X[5, 1], frame["y"][100:120], rtol=1e-6)
    with pytest.raises(DataError, match="the times give a rate of 10 Hz, not 20 Hz"):
        Windows.from_dataframe(frame, seconds=2, fs=20)


# ------------------------------------------------------------------------------------------------------------- files


def test_matlab_files_hold_windows_by_the_names_of_their_arrays(tmp_path: Path) -> None:
    X = RNG.normal(size=(6, 2, 5)).astype(np.float32)
    content = {"X": X, "y": np.array([0, 1] * 3), "fs": 50.0, "channels": np.array(["Fz", "Cz"], object)}
    scipy.io.savemat(tmp_path / "w.mat", {**content, "subject": ["a", "a", "b", "b", "c", "c"], "other": {"n": 1}})
    windows = open_windows(tmp_path / "w.mat")
    np.testing.assert_array_equal(windows.X, X)
    assert (windows.fs, windows.channels, windows.label.tolist()) == (50.0, ("Fz", "Cz"), [0, 1] * 3)
    assert windows.subject.tolist() == ["a", "a", "b", "b", "c", "c"]
    (tmp_path / "w.mat").write_bytes((tmp_path / "w.mat").read_bytes()[:300])
    with pytest.raises(DataError, match=r"^w\.mat"):
        open_windows(tmp_path / "w.mat")


def test_a_compressed_matlab_file_that_claims_gigabytes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polyadic.data.readers.common._HARMLESS_BYTES", 2**20)
    scipy.io.savemat(tmp_path / "w.mat", {"X": np.zeros((60, 100, 60))}, do_compression=True)
    with pytest.raises(DataError, match=r"w\.mat: X would take 3 MB"):
        open_windows(tmp_path / "w.mat")


def test_fif_files_are_recordings_in_microvolts(tmp_path: Path) -> None:
    mne = pytest.importorskip("mne")
    values = RNG.normal(size=(2, 400)) * 1e-5
    raw = mne.io.RawArray(values, mne.create_info(["Fz", "Cz"], 100.0, "eeg"), verbose="ERROR")
    raw.set_annotations(mne.Annotations([0.0, 2.0], [2.0, 2.0], ["rest", "task"]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        raw.save(tmp_path / "S1_raw.fif", verbose="ERROR")
    store = folder(tmp_path, tmp_path / "s", seconds=1, channels=["Cz"])
    assert (store.classes, store.windows.units) == (("rest", "task"), ("uV",))
    np.testing.assert_allclose(store.windows.X[:, 0].ravel(), values[1] * 1e6, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("ending", ["parquet", "feather", "xlsx"])
def test_tables_of_pandas_are_recordings_of_a_folder(tmp_path: Path, ending: str) -> None:
    (tmp_path / "in").mkdir()
    frame = long_frame().rename(columns={"x": "x (mV)"})
    write = {"parquet": frame.to_parquet, "feather": frame.to_feather, "xlsx": frame.to_excel}[ending]
    path = tmp_path / "in" / f"a.{ending}"
    write(path, index=False) if ending == "xlsx" else write(path)
    store = folder(tmp_path / "in", tmp_path / "s", seconds=2, fs=10, label="move", subject="who")
    assert (store.channels, store.units, store.classes) == (("x", "y"), ("mV", ""), ("rest", "walk"))
    assert [entry["name"] for entry in store.recordings] == ["a/anna", "a/ben"]
    expected = Windows.from_dataframe(frame, fs=10, seconds=2, label="move", subject="who")
    np.testing.assert_array_equal(store.windows.X, expected.X)
    assert store.windows.label.tolist() == expected.label.tolist()
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(DataError, match=rf"a\.{ending} cannot be read as a table"):
        read_recording(path, fs=10)


@pytest.mark.parametrize(
    ("head", "name", "unit"),
    [
        ("ax [m/s2]", "ax", "m/s2"),
        ("EEG Fpz-Cz (uV)", "EEG Fpz-Cz", "uV"),
        ("gyro_x(deg/s)", "gyro_x", "deg/s"),
        ("temperature [°C]", "temperature", "°C"),
        ("EEG (left)", "EEG (left)", ""),
        ("ax", "ax", ""),
        ("[uV]", "[uV]", ""),
    ],
)
def test_a_known_unit_in_brackets_is_the_unit_of_the_channel(tmp_path: Path, head: str, name: str, unit: str) -> None:
    path, rows = tmp_path / "a.csv", "\n".join(f"{row / 10},{row % 7 + 0.5}" for row in range(50))
    path.write_text(f"time,{head}\n{rows}\n")
    recording = read_recording(path)
    assert (recording.channels, recording.units) == ((name,), (unit,))
    for wanted in (name, head):
        assert read_recording(path, channels=[wanted]).channels == (name,)


def test_channels_that_differ_in_their_unit_only_keep_their_heads(tmp_path: Path) -> None:
    rows = "\n".join(f"{row / 10},{row + 0.5},{row + 0.25}" for row in range(50))
    (tmp_path / "a.csv").write_text(f"time,acc [g],acc [m/s2]\n{rows}\n")
    recording = read_recording(tmp_path / "a.csv")
    assert (recording.channels, recording.units) == (("acc [g]", "acc [m/s2]"), ("g", "m/s2"))


def test_files_of_other_formats_are_named_in_one_line(tmp_path: Path) -> None:
    for name in ("b.rec", "c.rec", "d.rec", "e.txt", "a.txt"):
        (tmp_path / "in" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "in" / name).write_bytes(b"?")
    pd.DataFrame({"time": np.arange(50) / 10, "x": RNG.normal(size=50)}).to_csv(tmp_path / "in" / "a.csv", index=False)
    done = polyadic("prepare", "folder", "in", "s.store", "--seconds", 1, cwd=tmp_path)
    assert "not in a format that polyadic reads as recordings: b.rec, c.rec, d.rec and 1 more" in done.stdout


# ----------------------------------------------------------------------------------------------------------- options


def test_every_field_of_reading_is_an_option_of_the_function_and_of_the_command_line(tmp_path: Path) -> None:
    names = [item.name for item in fields(Reading)]
    parameters = inspect.signature(folder).parameters
    assert [name for name in parameters if name in names] == names
    assert all(f"    {name} : " in str(folder.__doc__) for name in names)
    helped = polyadic("prepare", "folder", "--help", cwd=tmp_path).stdout
    assert all(option_name(name) in helped for name in names)
