"""From recordings to a store: the policy for damaged recordings, and windows that are already cut."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyadic.data import Recording, Windows, WindowStore
from polyadic.data.store_writer import CutRecording, PlannedRecording, write_recordings, write_windows
from polyadic.errors import DataError, PolyadicError

Load = Callable[[], CutRecording]


def piece(number: int, dtype: str = "int16", name: str = "", windows: int = 3, **changes: Any) -> CutRecording:
    rng = np.random.default_rng(number)
    given = {"fs": 50.0, "channels": ("a", "b"), "units": ("V", "V"), "scale": rng.uniform(1, 2, 2)} | changes
    signal = rng.integers(-99, 99, (len(given["channels"]), 40)).astype(dtype)
    recording = Recording(
        name=name or f"r{number}", subject=f"s{number}", signal=signal, offset=np.zeros(len(signal)), **given
    )
    starts = np.arange(windows) * 10
    return CutRecording(recording, starts, np.full(windows, number % 2, np.int32))


def failing(error: Exception) -> Load:
    def load() -> CutRecording:
        raise error

    return load


def prepare(loads: dict[str, Load], path: Path, **changes: Any) -> WindowStore:
    options: dict[str, Any] = {"length": lambda fs: round(fs / 5), "classes": ("w", "s"), "settings": {"seconds": 0.2}}
    planned = [PlannedRecording(name, load, 100) for name, load in loads.items()]
    return write_recordings(planned, path, **(options | changes))


def good(*numbers: int) -> dict[str, Load]:
    return {f"r{number}": lambda number=number: piece(number) for number in numbers}  # type: ignore[misc]


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def names(store: WindowStore) -> list[str]:
    return [entry["name"] for entry in store.recordings]


BAD = {
    "b1": failing(DataError("b1.edf is cut short")),
    "b2": failing(FileNotFoundError(errno.ENOENT, "No such file", "data/b2.hyp")),
    "b3": failing(OSError(errno.EIO, "Input/output error")),
    "b4": lambda: piece(4, fs=25.0),
    "b5": lambda: piece(5, channels=("b", "c")),
    "b6": lambda: piece(6, units=("V", "bpm")),
    "b7": lambda: piece(7, dtype="float32"),
    "b8": lambda: piece(8)._replace(labels=np.array([0, 1, 2])),
    "b9": lambda: piece(9)._replace(starts=np.array([0, 1, 31])),
    "b10": lambda: piece(10, windows=0),
}
REASONS = {
    "b1": "b1.edf is cut short",
    "b2": "b2.hyp: No such file",
    "b3": "[Errno 5] Input/output error",
    "b4": "b4 is sampled at 25 Hz, but the recordings before it at 50 Hz: --fs 25 --resample polyphase resamples all "
    "to one rate, or select files with --pattern",
    "b5": "b5 has the channels 'b', 'c', but the recordings before it have 'a', 'b': --channel b selects the common "
    "ones, --rename OLD=NEW gives a channel another name, or select files with --pattern",
    "b6": "b6: units must be ('V', 'V') as in the store, but is ('V', 'bpm')",
    "b7": "b7: type must be 'int16' as in the store, but is 'float32'",
    "b8": "b8: labels must lie between -1 and 1",
    "b9": "b9: windows must begin between samples 0 and 30, but begin at 0 to 31",
    "b10": "it has no complete window",
}


def test_recordings_are_written_to_a_store_with_progress(tmp_path: Path) -> None:
    told: list[Any] = []
    store = prepare(good(1, 2, 3), tmp_path / "s", progress=lambda *step: told.append(step))
    store.verify()
    assert (names(store), store.fs, store.channels, store.units) == (["r1", "r2", "r3"], 50, ("a", "b"), ("V", "V"))
    assert (store.shape, store.header.dtype, store.classes) == ((9, 2, 10), "int16", ("w", "s"))
    assert store.settings == {"seconds": 0.2}
    assert store.windows.label.tolist() == [1, 1, 1, 0, 0, 0, 1, 1, 1]
    assert told == [("r1", 1, 3, 3, 100), ("r2", 2, 3, 6, 200), ("r3", 3, 3, 9, 300)]
    for row, (number, start) in enumerate((number, start) for number in (1, 2, 3) for start in (0, 10, 20)):
        expected = piece(number).recording.signal[:, start : start + 10]
        np.testing.assert_array_equal(store.samples[row], expected)


@pytest.mark.parametrize("name", BAD)
def test_a_bad_recording_raises_or_is_noted_with_its_reason(tmp_path: Path, name: str) -> None:
    loads = {**good(1), name: BAD[name], **good(2)}
    store = prepare(loads, tmp_path / "skipped", on_error="skip")
    store.verify()
    assert names(store) == ["r1", "r2"]
    assert store.skipped == [{"name": name, "reason": REASONS[name]}]
    if name == "b10":
        return
    with pytest.raises((DataError, OSError)):
        prepare(loads, tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_nothing_to_prepare_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no recordings to prepare"):
        prepare({}, tmp_path / "s")
    unreadable = {name: BAD[name] for name in ("b1", "b2", "b3")}
    with pytest.raises(DataError, match="none of the 3 recordings can be read; the first, b1: b1"):
        prepare(unreadable, tmp_path / "s", on_error="skip")
    with pytest.raises(DataError, match="would be empty"):
        prepare({"b10": BAD["b10"]}, tmp_path / "s", on_error="skip")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_recordings_of_one_name_are_refused_before_anything_is_read(tmp_path: Path, on_error: Any) -> None:
    entries = [PlannedRecording("r1", failing(AssertionError("read"))) for _ in range(2)]
    with pytest.raises(DataError, match="different names, but 'r1' occurs twice"):
        write_recordings(entries, tmp_path / "s", length=lambda fs: 10, on_error=on_error)


def test_an_existing_store_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    prepare(good(1), tmp_path / "s")
    before = files(tmp_path / "s")
    with pytest.raises(PolyadicError, match="already exists"):
        prepare({"r2": failing(AssertionError("read"))}, tmp_path / "s")
    assert files(tmp_path / "s") == before
    assert names(prepare(good(2), tmp_path / "s", force=True)) == ["r2"]


def test_a_full_disk_is_never_mistaken_for_a_bad_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("polyadic.data.store_writer.cut_windows", full)
    with pytest.raises(OSError, match="No space left"):
        prepare(good(1, 2), tmp_path / "s", on_error="skip")
    assert not list(tmp_path.iterdir())


# ------------------------------------------------------------------------------------------------ windows that are cut


def cut(names_: list[str], dtype: str = "float32", **options: Any) -> Windows:
    X = np.random.default_rng(0).normal(size=(len(names_), 2, 5)) * 100
    return Windows(X.astype(dtype), 10, recording=names_, subject=[name[0] for name in names_], **options)


@pytest.mark.parametrize("dtype", ["int16", "float64", "uint8"])
def test_cut_windows_are_written_recording_by_recording(tmp_path: Path, dtype: str) -> None:
    windows = cut(["b1", "a1", "b1", "a2"], dtype, label=["x", "y", "y", ""], part=["train", "test", "train", "test"])
    told: list[Any] = []
    store = write_windows(windows, tmp_path / "s", settings={"a": 1}, progress=lambda *step: told.append(step))
    store.verify()
    assert store.header.dtype == ("int16" if dtype == "int16" else "float32")
    order = [1, 3, 0, 2]
    np.testing.assert_array_equal(store.read(np.arange(4)), windows.X[order].astype(np.float32))
    for column in ("recording", "subject", "part", "label", "start"):
        assert getattr(store.windows, column).tolist() == getattr(windows, column)[order].tolist()
    assert (store.classes, store.settings, store.fs) == (("x", "y"), {"a": 1}, 10)
    assert store.channels == ("channel 1", "channel 2")
    assert [step[:4] for step in told] == [("a1", 1, 3, 1), ("a2", 2, 3, 2), ("b1", 3, 3, 4)]


def test_windows_put_together_of_one_recording_are_all_written(tmp_path: Path) -> None:
    windows = cut(["a", "a", "b", "b"])
    both = Windows.concatenate([windows[[0, 2]], windows[[1, 3]]])
    store = write_windows(both, tmp_path / "s")
    assert len(store) == 4
    np.testing.assert_array_equal(store.read(np.arange(4)), windows.X)
    parts = Windows.concatenate([cut(["a", "a"], part=["train"] * 2), cut(["a"], part=["test"])])
    with pytest.raises(DataError, match="must have the same part"):
        write_windows(parts, tmp_path / "t")


def test_a_store_can_be_written_from_a_selection_of_another(tmp_path: Path) -> None:
    store = prepare(good(1, 2, 3), tmp_path / "s")
    some = store.windows.select(recording=["r3", "r1"])
    copy = write_windows(some, tmp_path / "t")
    assert (copy.header.dtype, copy.channels, copy.classes) == ("float32", store.channels, store.classes)
    np.testing.assert_array_equal(copy.read(np.arange(6)), some.X)


def test_cut_windows_that_make_no_store_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PolyadicError, match="fs must be known"):
        write_windows(Windows(np.zeros((3, 2, 5))), tmp_path / "s")
    with pytest.raises(PolyadicError, match="windows must have shape"):
        write_windows(Windows(np.zeros((3, 2, 5)), 10)[:0], tmp_path / "s")
    with pytest.raises(DataError, match="would be empty"):
        write_windows(Windows(np.full((3, 2, 5), np.nan), 10), tmp_path / "s")
    assert not list(tmp_path.iterdir())
    write_windows(Windows(np.zeros((3, 2, 5)), 10), tmp_path / "s")
    with pytest.raises(PolyadicError, match="already exists"):
        write_windows(Windows(np.zeros((3, 2, 5)), 10), tmp_path / "s")
