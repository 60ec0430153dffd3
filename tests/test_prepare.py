"""From recordings to a store: the policy for damaged recordings, and windows that are already cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import edfio
import numpy as np
import pytest

from polyadic.data import Windows, WindowStore, folder
from polyadic.data.store import write_windows
from polyadic.errors import DataError, PolyadicError


def write(root: Path, name: str, *, fs: float = 50, channels: str = "ab", unit: str = "uV", seconds: int = 6) -> None:
    """An EDF file of two classes, 2 s each."""
    rng = np.random.default_rng(sum(name.encode()))
    signals = [
        edfio.EdfSignal(rng.normal(size=round(fs * seconds)), fs, label=label, physical_dimension=unit)
        for label in channels
    ]
    notes = [edfio.EdfAnnotation(2 * place, 2, "ws"[place % 2]) for place in range(seconds // 2)]
    root.mkdir(exist_ok=True)
    edfio.Edf(signals, annotations=notes).write(root / f"{name}.edf")


def good(root: Path) -> Path:
    for name in ("r1", "r3"):
        write(root, name)
    return root


def names(store: WindowStore) -> list[str]:
    return [entry["name"] for entry in store.recordings]


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "rate": ({"fs": 25}, "r2 is sampled at 25 Hz, but the recordings before it at 50 Hz: --fs 25 --resample polyphase"),
    "channels": (
        {"channels": "cd"},
        "r2 has the channels 'c', 'd', but the recordings before it have 'a', 'b': --rename OLD=NEW gives a channel",
    ),
    "case": ({"channels": "AB"}, "--rename A=a --rename B=b gives a channel another name"),
    "units": ({"unit": "bpm"}, "r2 has channel 'a' in bpm, but the recordings before it have it in uV"),
    "short": ({"seconds": 1}, "it is shorter than a window"),
    "damaged": ({}, "r2.edf: the file is damaged or incomplete"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_recording_raises_or_is_noted_with_its_reason(tmp_path: Path, kind: str) -> None:
    root, (changes, reason) = good(tmp_path / "in"), BAD[kind]
    write(root, "r2", **changes)
    if kind == "damaged":
        (root / "r2.edf").write_bytes((root / "r2.edf").read_bytes()[:-100])
    store = folder(root, tmp_path / "skipped", seconds=2, on_error="skip")
    store.verify()
    assert names(store) == ["r1", "r3"]
    ((name, said),) = ((entry["name"], entry["reason"]) for entry in store.skipped)
    assert name == "r2"
    assert reason in said
    if kind != "short":
        with pytest.raises(DataError, match="r2"):
            folder(root, tmp_path / "s", seconds=2)
        assert not (tmp_path / "s").exists()


def test_recordings_are_written_to_a_store_with_progress(tmp_path: Path) -> None:
    root, told = good(tmp_path / "in"), []
    store = folder(root, tmp_path / "s", seconds=2, progress=lambda *step: told.append(step))
    store.verify()
    assert (names(store), store.fs, store.channels, store.units) == (["r1", "r3"], 50, ("a", "b"), ("uV", "uV"))
    assert (store.shape, store.classes) == ((6, 2, 100), ("s", "w"))
    assert store.windows.label.tolist() == [1, 0, 1] * 2
    assert told == [("r1", 1, 2), ("r3", 2, 2)]


def test_nothing_to_prepare_is_an_error(tmp_path: Path) -> None:
    root = good(tmp_path / "in")
    for path in root.iterdir():
        path.write_bytes(b"?")
    with pytest.raises(DataError, match=r"none of the 2 recordings can be read; the first, r1: r1\.edf"):
        folder(root, tmp_path / "s", seconds=2, on_error="skip")
    with pytest.raises(DataError, match="no recording has a window of 60 s: choose shorter"):
        folder(good(root), tmp_path / "s", seconds=60, on_error="skip")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_an_existing_store_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    folder(good(tmp_path / "in"), tmp_path / "s", seconds=2)
    (tmp_path / "in" / "r1.edf").write_bytes(b"")
    with pytest.raises(PolyadicError, match="already exists"):
        folder(tmp_path / "in", tmp_path / "s", seconds=2)
    assert len(folder(tmp_path / "in" / "r3.edf", tmp_path / "s", seconds=2, force=True)) == 3


def test_unknown_units_are_taken_to_be_those_of_the_other_recordings_with_one_line(tmp_path: Path) -> None:
    write(tmp_path / "in", "r1")
    for name in ("r2", "r3"):
        write(tmp_path / "in", name, unit="")
    store = folder(tmp_path / "in", tmp_path / "s", seconds=2)
    assert (store.units, len(store)) == (("uV", "uV"), 9)
    note = "unknown units: a is taken to be in uV, as in the recordings before it, b is taken to be in uV"
    assert sum(note in line for line in store.notes) == 1
    assert any(line.startswith("r2 and 1 other file: unknown units") for line in store.notes)


# ------------------------------------------------------------------------------------------------ windows that are cut


def cut(names_: list[str], dtype: str = "float32", **options: Any) -> Windows:
    X = np.random.default_rng(0).normal(size=(len(names_), 2, 5)) * 100
    return Windows(X.astype(dtype), 10, recording=names_, subject=[name[0] for name in names_], **options)


@pytest.mark.parametrize("dtype", ["int16", "float64", "uint8"])
def test_cut_windows_are_written_recording_by_recording(tmp_path: Path, dtype: str) -> None:
    windows = cut(["b1", "a1", "b1", "a2"], dtype, label=["x", "y", "y", ""], part=["train", "test", "train", "test"])
    store = write_windows(windows, tmp_path / "s")
    store.verify()
    order = [1, 3, 0, 2]
    np.testing.assert_array_equal(store.read(np.arange(4)), windows.X[order].astype(np.float32))
    for column in ("recording", "subject", "part", "label", "start"):
        assert getattr(store.windows, column).tolist() == getattr(windows, column)[order].tolist()
    assert (store.classes, store.fs) == (("x", "y"), 10)
    assert store.channels == ("channel 1", "channel 2")
