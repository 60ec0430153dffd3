"""The window store is exact, verified, and complete or clearly unfinished; fits from a store."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from problems import paper

from polyadic import ATD, SALS
from polyadic._util.files import digest
from polyadic._util.random_streams import block_permutation
from polyadic.augment import Jitter
from polyadic.data import Header, Recording, StoreWriter, Windows, WindowStore
from polyadic.data import store as store_module
from polyadic.data.batches import WindowSource, prefetch
from polyadic.data.samples import Samples
from polyadic.data.store_files import INDEX, npy_header, sealed
from polyadic.errors import DataError, PolyadicError

LENGTH = 6
HEADER = Header(
    fs=100.0,
    channels=("C3", "C4", "EOG"),
    units=("uV", "uV", "mV"),
    length=LENGTH,
    dtype="int16",
    classes=("wake", "sleep"),
    dataset="made",
    settings={"seconds": 0.06, "trim": (1, 2)},
)
FLOATS = replace(HEADER, dtype="float32")


def recording(number: int, samples: int = 40, dtype: str = "int16", **changes: Any) -> Recording:
    """Return a recording with its own digits, scales and offsets."""
    rng = np.random.default_rng(number)
    plain = dtype == "float32"
    signal = rng.normal(size=(3, samples)) if plain else rng.integers(-(2**15), 2**15, (3, samples))
    return Recording(
        name=changes.pop("name", f"r{number:02d}"),
        subject=changes.pop("subject", f"s{number // 2}"),
        fs=changes.pop("fs", 100.0),
        channels=changes.pop("channels", HEADER.channels),
        units=changes.pop("units", HEADER.units),
        signal=changes.pop("signal", signal.astype(dtype)),
        scale=changes.pop("scale", np.ones(3) if plain else rng.uniform(0.01, 2, 3)),
        offset=changes.pop("offset", np.zeros(3) if plain else rng.normal(size=3)),
        **changes,
    )


def places(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Starts and labels of a recording's windows: some overlap, and some have no label."""
    starts = np.array([0, 3, 11, 34, 20, 28][: 3 + number % 4])
    return starts, (starts + number) % 3 - 1


def write(path: Path, numbers: Any = range(7), header: Header = HEADER, **options: Any) -> WindowStore:
    options.setdefault("shard_bytes", 200)
    with StoreWriter(path, header, **options) as writer:
        for number in numbers:
            if f"r{number:02d}" not in writer.done:
                writer.add(recording(number, dtype=header.dtype), *places(number), part="train" if number else "test")
    return WindowStore(path)


def stop(path: Path, count: int, **options: Any) -> None:
    """Start writing a store, and stop after some recordings."""
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012, SIM117
        with StoreWriter(path, HEADER, **options) as writer:
            for number in range(7, 7 + count) if options.get("append") else range(count):
                writer.add(recording(number), *places(number), part="train" if number else "test")
            raise KeyboardInterrupt


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def rows(store: WindowStore) -> np.ndarray:
    return np.arange(len(store))


@pytest.fixture
def store(tmp_path: Path) -> WindowStore:
    return write(tmp_path / "store")


# ------------------------------------------------------------------------------------------------ what is in a store


@pytest.mark.parametrize("header", [HEADER, FLOATS])
@pytest.mark.parametrize("shard_bytes", [1, 300, 10**6])
def test_digits_and_values_are_read_back_sample_by_sample(tmp_path: Path, header: Header, shard_bytes: int) -> None:
    store = write(tmp_path / "s", header=header, shard_bytes=shard_bytes)
    assert len(store.shards) == (7 if shard_bytes == 1 else 1 if shard_bytes > 10**5 else len(store.shards))
    digits, values = store.digits(rows(store)), store.read(rows(store))
    assert digits.dtype == (np.int16 if header is HEADER else np.float32)
    assert values.dtype == np.float32
    raw, scale, offset = store.raw(rows(store))
    np.testing.assert_array_equal(raw, digits)
    assert (scale is None) == (offset is None) == (header is FLOATS)
    row = 0
    for number in range(7):
        source = recording(number, dtype=header.dtype)
        for start, label in zip(*places(number), strict=True):
            for channel in range(3):
                for time_ in range(LENGTH):
                    digit = source.signal[channel, start + time_]
                    assert digits[row, channel, time_] == digit
                    value = float(digit) * source.scale[channel] + source.offset[channel]
                    assert values[row, channel, time_] == pytest.approx(value, rel=1e-6, abs=1e-2)
                    if scale is not None and offset is not None:
                        assert digit * scale[row, channel, 0] + offset[row, channel, 0] == pytest.approx(value, abs=0.1)
            windows = store.windows
            assert (windows.recording[row], windows.subject[row]) == (source.name, source.subject)
            assert (windows.start[row], windows.label[row]) == (start, label)
            assert windows.part[row] == ("train" if number else "test")
            row += 1
    assert row == len(store) == store.shape[0]
    assert store.shape[1:] == (3, LENGTH)


def test_rows_are_read_in_the_requested_order_even_if_repeated(store: WindowStore) -> None:
    everything = store.read(rows(store))
    asked = np.random.default_rng(0).integers(0, len(store), 200)
    np.testing.assert_array_equal(store.read(asked), everything[asked])
    np.testing.assert_array_equal(store.digits(asked), store.digits(rows(store))[asked])
    assert store.read(np.array([], int)).shape == (0, 3, LENGTH)
    assert store.raw([3])[0].shape == (1, 3, LENGTH)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [[-1], [10**6], [True, False], [0.5], [[0, 1]], np.array([0.0])])
def test_invalid_rows_are_refused(store: WindowStore, bad: Any) -> None:
    for read in (store.read, store.digits, store.raw):
        with pytest.raises(PolyadicError, match="rows must"):
            read(bad)


def test_the_description_of_a_store_equals_what_was_written(store: WindowStore) -> None:
    assert (store.fs, store.channels, store.units) == (HEADER.fs, HEADER.channels, HEADER.units)
    assert (store.classes, store.dataset) == (HEADER.classes, "made")
    assert store.settings == {"seconds": 0.06, "trim": [1, 2]}
    assert store.header == HEADER
    assert [entry["name"] for entry in store.recordings] == [f"r{number:02d}" for number in range(7)]
    assert [entry["scale"] for entry in store.recordings] == [recording(n).scale.tolist() for n in range(7)]
    assert store.skipped == []
    assert "store: " in repr(store)
    assert "100 Hz" in repr(store)


def test_all_arrays_are_npy_files_that_numpy_reads(store: WindowStore) -> None:
    data = [np.load(shard.data) for shard in store.shards]
    np.testing.assert_array_equal(np.concatenate(data), store.digits(rows(store)))
    index = np.concatenate([np.load(shard.index) for shard in store.shards])
    assert index.dtype == INDEX
    np.testing.assert_array_equal(index["start"], store.index.start)
    np.testing.assert_array_equal(index["label"], store.index.label)
    assert len(store.shards) > 3


def test_the_head_of_an_array_has_the_same_size_for_every_shape() -> None:
    for shape in ((1, 1, 1), (10**9, 64, 10**6)):
        assert len(npy_header(shape, np.dtype("<i2"))) == len(npy_header(shape[:1], INDEX)) == 128


def test_a_window_is_read_without_its_shard(tmp_path: Path) -> None:
    """A shard of 4 GiB of which hardly anything is on the disk: two windows of it need little memory and time."""
    header = replace(HEADER, length=5000)
    source = recording(0, samples=5000)
    with StoreWriter(tmp_path / "s", header) as writer:
        writer.add(source, np.array([0]), np.array([0]))
    count = 4 * 2**30 // header.window_bytes
    data, column, description = (tmp_path / "s" / f"00000{end}" for end in (".npy", ".index.npy", ".json"))
    window = data.read_bytes()[128:]
    with data.open("r+b") as file:
        file.write(npy_header((count, 3, 5000), header.stored))
        file.truncate(128 + count * header.window_bytes)
        file.seek(128 + (count - 1) * header.window_bytes)
        file.write(window)
    column.write_bytes(npy_header((count,), INDEX) + np.zeros(count, INDEX).tobytes())
    content = json.loads(description.read_bytes())
    content["rows"] = content["recordings"][0]["windows"] = count
    content["sha256"]["00000.index.npy"] = digest(column)
    description.write_text(json.dumps(sealed(content)))
    manifest = json.loads((tmp_path / "s" / "manifest.json").read_bytes())
    manifest["shards"][0]["sha256"] = digest(description)
    (tmp_path / "s" / "manifest.json").write_text(json.dumps(sealed(manifest)))

    store = WindowStore(tmp_path / "s")
    before = resident()
    tracemalloc.start()
    got = store.digits(np.array([count - 1, 7]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.testing.assert_array_equal(got[0], source.signal)
    assert not got[1].any()
    assert peak < 10 * header.window_bytes
    assert resident() - before < 64 * 2**20


def resident() -> int:
    """Return the resident memory of this process in bytes, including mapped files."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    except FileNotFoundError:
        return 0


def open_files() -> int:
    """Return the number of open files of this process, or 0 if it is not known."""
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.exists() else 0


def test_only_so_many_shards_are_open_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyadic.data.row_files._MOST_OPEN", 3)
    store = write(tmp_path / "s", range(12), shard_bytes=1)
    before = open_files()
    order = np.random.default_rng(0).permutation(np.tile(rows(store), 3))
    np.testing.assert_array_equal(store.digits(order), np.concatenate([np.load(s.data) for s in store.shards])[order])
    if before:
        assert open_files() <= before + 3


def test_a_store_travels_to_another_process_without_its_samples(store: WindowStore) -> None:
    everything = store.read(rows(store))
    again = pickle.loads(pickle.dumps(store))
    assert not len(again._files)
    np.testing.assert_array_equal(again.read(rows(again)), everything)


# ------------------------------------------------------------------------------------------- what is left out and why


@pytest.mark.parametrize("kind", ["missing", "nan", "inf"])
def test_windows_with_missing_values_are_left_out_and_counted(tmp_path: Path, kind: str) -> None:
    signal = np.arange(120, dtype=np.float32).reshape(3, 40)
    missing = np.zeros((3, 40), bool)
    missing[1, 13] = True
    if kind != "missing":
        signal[1, 13] = np.nan if kind == "nan" else -np.inf
    source = recording(
        0, signal=signal, dtype="float32", missing=missing if kind == "missing" else None, scale=np.ones(3)
    )
    with StoreWriter(tmp_path / "s", FLOATS) as writer:
        assert writer.add(source, np.array([0, 7, 8, 13, 14, 30]), np.array([0, 1, 0, 0, 1, -1])) == 4
    store = WindowStore(tmp_path / "s")
    assert store.windows.start.tolist() == [0, 7, 14, 30]
    assert store.windows.label.tolist() == [0, 1, 1, -1]
    assert store.recordings[0]["incomplete"] == 2
    if kind == "missing":
        assert store.recordings[0]["quality"] == {"nan": {"C4": 1}}
        assert store.quality() == {"nan": {"C4": 1}}


def test_quality_is_recorded_and_summed_over_recordings(tmp_path: Path) -> None:
    flat = recording(0).signal.copy()
    flat[2] = 5
    clipped = recording(1).signal.copy()
    clipped[0] = np.clip(np.arange(40), 3, 39)  # touches its highest value once, stays at its lowest for four samples
    limits = np.array([[3, 39], [-(2**15) - 1, 2**15], [-(2**15) - 1, 2**15]])
    with StoreWriter(tmp_path / "s", HEADER) as writer:
        writer.add(recording(0, signal=flat), *places(0))
        writer.add(recording(1, signal=clipped, limits=limits), *places(1))
        writer.add(recording(2, signal=flat), *places(2))
    store = WindowStore(tmp_path / "s")
    assert [entry["quality"] for entry in store.recordings] == [
        {"flat": {"EOG": 40}},
        {"clipped": {"C3": 4}},
        {"flat": {"EOG": 40}},
    ]
    assert store.quality() == {"flat": {"EOG": 2}, "clipped": {"C3": 1}}


def test_a_recording_without_whole_windows_is_skipped_and_noted(tmp_path: Path) -> None:
    missing = np.zeros((3, 40), bool)
    missing[0] = True
    with StoreWriter(tmp_path / "s", HEADER, shard_bytes=1) as writer:
        assert writer.add(recording(0), np.array([], int), np.array([], int)) == 0
        assert writer.add(recording(1, samples=4), np.array([], int), np.array([], int)) == 0
        assert writer.add(recording(2, missing=missing), *places(2)) == 0
        writer.add(recording(3), *places(3))
        writer.skip("r09", "its file is damaged")
    store = WindowStore(tmp_path / "s")
    assert [entry["name"] for entry in store.skipped] == ["r00", "r01", "r02", "r09"]
    assert store.skipped[2]["reason"] == "it has no complete window"
    assert store.skipped[3]["reason"] == "its file is damaged"
    assert len(store.shards) == 1


def test_a_recording_that_is_added_after_all_is_not_listed_as_skipped(tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "s", HEADER) as writer:
        writer.add(recording(0), *places(0))
        writer.skip("r01", "its file is damaged")
        writer.skip("r02", "first reason")
        writer.skip("r02", "second reason")
    store = write(tmp_path / "s", range(2), append=True)
    assert store.skipped == [{"name": "r02", "reason": "second reason"}]


def test_a_store_without_any_window_is_refused_and_may_be_begun_otherwise(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="would be empty"):
        write(tmp_path / "s", ())
    assert len(write(tmp_path / "s", header=replace(HEADER, settings={}))) > 0


# ----------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fs": 200.0}, "is sampled at 200 Hz, but the recordings before it at 100 Hz"),
        ({"channels": ("C4", "C3", "EOG")}, "has the channels 'C4', 'C3', 'EOG' in another order"),
        ({"units": ("mV", "uV", "mV")}, "units must be"),
        ({"dtype": "float32"}, "type must be 'int16' as in the store, but is 'float32'"),
        ({"name": "r00"}, "different names, but 'r00' occurs twice"),
        ({"scale": np.array([1, 1e39, 1])}, "scale and offset must be at most"),
        ({"offset": np.array([1, -1e300, 1])}, "scale and offset must be at most"),
    ],
)
def test_a_recording_that_does_not_fit_is_refused_and_spoils_nothing(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with StoreWriter(tmp_path / "s", HEADER) as writer:
        writer.add(recording(0), *places(0))
        with pytest.raises(DataError, match=message):
            writer.add(recording(1, **changes), *places(1))
        writer.add(recording(2), *places(2))
    store = WindowStore(tmp_path / "s")
    store.verify()
    assert [entry["name"] for entry in store.recordings] == ["r00", "r02"]
    assert files(tmp_path / "s") == files(write(tmp_path / "same", (0, 2), shard_bytes=10**6).path) | {
        name: content for name, content in files(tmp_path / "s").items() if name.endswith("json")
    }


@pytest.mark.parametrize(
    ("starts", "labels", "message"),
    [
        ([0], [2], "labels must lie between -1 and 1"),
        ([0], [-2], "labels must lie between -1 and 1"),
        ([0, 1], [0], "number of labels must be 2"),
        ([0], [0.5], "whole numbers"),
        ([0.0], [0], "whole numbers"),
        ([[0]], [[0]], "whole numbers"),
        ([-1], [0], "begin between samples 0 and 34"),
        ([35], [0], "begin between samples 0 and 34"),
    ],
)
def test_starts_and_labels_that_make_no_sense_are_refused(
    tmp_path: Path, starts: list[Any], labels: list[Any], message: str
) -> None:
    with StoreWriter(tmp_path / "s", HEADER) as writer:
        with pytest.raises(DataError, match=message):
            writer.add(recording(0), np.array(starts), np.array(labels))
        writer.add(recording(0), *places(0))
    assert len(WindowStore(tmp_path / "s")) == len(places(0)[0])


@pytest.mark.parametrize(
    "changes",
    [
        {"fs": 0.0},
        {"fs": float("nan")},
        {"length": 0},
        {"channels": (), "units": ()},
        {"units": ("uV",)},
        {"dtype": "int32"},
        {"settings": {"path": Path("x")}},
        {"settings": {"level": float("nan")}},
    ],
)
def test_a_header_that_describes_no_store_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(PolyadicError):
        replace(HEADER, **changes)


def test_settings_with_keys_of_any_kind_survive(tmp_path: Path) -> None:
    header = replace(HEADER, settings={10: 1, 9: (1, 2), "ä": None})
    assert write(tmp_path / "s", header=header).settings == {"10": 1, "9": [1, 2], "ä": None}
    write(tmp_path / "s", range(8), header=header, append=True).verify()


def test_every_difference_is_reported_when_a_store_is_resumed(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "fs": 50.0,
        "channels": ("a", "b", "c"),
        "units": ("", "", ""),
        "length": 7,
        "dtype": "float32",
        "classes": ("wake",),
        "dataset": "",
        "settings": {"seconds": 1},
    }
    stop(tmp_path / "s", 1, shard_bytes=1)
    for complete in (False, True):
        for name, value in changes.items():
            with pytest.raises(PolyadicError, match=f"created with other settings: {name} was ") as caught:
                StoreWriter(tmp_path / "s", replace(HEADER, **{name: value}), append=complete)
            assert "; " not in str(caught.value)
        with pytest.raises(PolyadicError) as caught:
            StoreWriter(tmp_path / "s", replace(HEADER, **changes), append=complete)
        assert all(f"{name} was " in str(caught.value) for name in changes)
        write(tmp_path / "s", append=complete).verify()


@pytest.mark.parametrize("shuffle", ["", "rows", None])
def test_shuffle_is_one_of_two(store: WindowStore, shuffle: Any) -> None:
    with pytest.raises(PolyadicError, match="shuffle must be"):
        WindowStore(store.path, shuffle=shuffle)


# ---------------------------------------------------------------------------------------------------- beginning, adding


def test_a_complete_store_is_refused_unless_it_is_to_be_added_to(store: WindowStore) -> None:
    before = files(store.path)
    with pytest.raises(PolyadicError, match="already exists and is complete"):
        StoreWriter(store.path, HEADER)
    assert files(store.path) == before


def test_appending_keeps_existing_windows(store: WindowStore) -> None:
    before, digits = files(store.path), store.digits(rows(store))
    more = write(store.path, range(12), append=True)
    more.verify()
    after = files(store.path)
    assert {name: after[name] for name in before if name != "manifest.json"} == {
        name: content for name, content in before.items() if name != "manifest.json"
    }
    np.testing.assert_array_equal(more.digits(rows(store)), digits)
    assert [entry["name"] for entry in more.recordings] == [f"r{number:02d}" for number in range(12)]
    np.testing.assert_array_equal(more.digits(np.array([len(more) - 1]))[0], cut_of(11))
    np.testing.assert_array_equal(store.digits(rows(store)), digits)  # one that was open all the while


def cut_of(number: int) -> np.ndarray:
    """The last window of a recording."""
    start = places(number)[0][-1]
    return recording(number).signal[:, start : start + LENGTH]


def test_only_a_complete_store_can_be_added_to(tmp_path: Path) -> None:
    with pytest.raises(PolyadicError, match="append needs a complete store"):
        StoreWriter(tmp_path / "s", HEADER, append=True)
    assert not (tmp_path / "s").exists()


def test_files_and_folders_with_other_files_are_refused_and_unchanged(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("important")
    for path, message in ((tmp_path, "new or empty folder"), (tmp_path / "thesis.tex", "is a file")):
        with pytest.raises(PolyadicError, match=message):
            StoreWriter(path, HEADER)
    assert files(tmp_path) == {"thesis.tex": b"important"}
    (tmp_path / "empty").mkdir()
    write(tmp_path / "empty").verify()


def test_an_append_that_fails_leaves_the_store_readable_and_can_be_resumed(store: WindowStore) -> None:
    digits = store.digits(rows(store))
    stop(store.path, 2, shard_bytes=1, append=True)
    again = WindowStore(store.path)
    again.verify()
    np.testing.assert_array_equal(again.digits(rows(again)), digits)
    with StoreWriter(store.path, HEADER) as writer:
        assert {"r07", "r08"} <= writer.done
        writer.add(recording(9), *places(9))
    assert [entry["name"] for entry in WindowStore(store.path).recordings][-3:] == ["r07", "r08", "r09"]


def test_adding_to_a_damaged_store_is_refused_and_nothing_is_written_over(store: WindowStore) -> None:
    store.shards[2].description.unlink()
    before = files(store.path)
    with pytest.raises(DataError, match=r"00002\.json of the store is missing or damaged"):
        StoreWriter(store.path, HEADER, append=True)
    assert files(store.path) == before


@pytest.mark.parametrize("pause", [0, 3])
def test_an_exception_leaves_an_unfinished_store_without_temporary_files(tmp_path: Path, pause: int) -> None:
    stop(tmp_path / "s", pause, shard_bytes=400)
    assert {path.suffix for path in (tmp_path / "s").iterdir()} <= {".json", ".npy"}
    assert not (tmp_path / "s" / "manifest.json").exists()
    with pytest.raises(DataError, match="is unfinished"):
        WindowStore(tmp_path / "s")
    assert files(write(tmp_path / "s", shard_bytes=400).path) == files(write(tmp_path / "t", shard_bytes=400).path)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="what is synchronised cannot be told")
def test_the_manifest_is_synced_to_disk_after_the_files_it_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    sync, move = os.fsync, os.replace

    def noting_sync(descriptor: int) -> None:
        steps.append(f"sync {Path(f'/proc/self/fd/{descriptor}').readlink().name}")
        sync(descriptor)

    def noting_move(path: str | Path, target: str | Path) -> None:
        steps.extend([f"sync {Path(target).name}"] * (f"sync {Path(path).name}" == steps[-1]))
        steps.append(f"name {Path(target).name}")
        move(path, target)

    monkeypatch.setattr("os.fsync", noting_sync)
    monkeypatch.setattr("os.replace", noting_move)
    write(tmp_path / "s", range(2), shard_bytes=1)
    for name in ("writing.json", "00000.npy", "00000.index.npy", "00001.json", "manifest.json"):
        assert steps[steps.index(f"name {name}") - 1] == f"sync {name}"
    for earlier, later in (
        ("00000.npy", "00000.json"),
        ("00000.index.npy", "00000.json"),
        ("00001.index.npy", "00001.json"),
        ("00001.json", "manifest.json"),
    ):
        assert "sync s" in steps[steps.index(f"name {earlier}") : steps.index(f"name {later}")]
    assert "sync s" in steps[steps.index("name manifest.json") :]


def test_temporary_files_of_a_killed_writer_are_removed_at_once(tmp_path: Path) -> None:
    stop(tmp_path / "s", 2, shard_bytes=1)
    before = files(tmp_path / "s")
    for name in ("00002.npy.partial", ".00002.json.abc.tmp", "00002.npy", "00002.index.npy"):
        (tmp_path / "s" / name).write_bytes(b"scrap")
    with StoreWriter(tmp_path / "s", HEADER):
        assert files(tmp_path / "s") == before


def test_half_a_recording_never_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller who catches the error of a write in the middle cannot complete the store with what was written."""

    def halves(*_: Any) -> np.ndarray:
        raise OSError(28, "No space left on device")

    with pytest.raises(PolyadicError, match="an earlier write"), StoreWriter(tmp_path / "s", HEADER) as writer:  # noqa: PT012
        writer.add(recording(0), *places(0))
        with monkeypatch.context() as patch:
            patch.setattr("polyadic.data.writer.cut_windows", halves)
            with pytest.raises(OSError, match="No space"):
                writer.add(recording(1), *places(1))
        with pytest.raises(PolyadicError, match="an earlier write"):
            writer.add(recording(2), *places(2))
    assert list(files(tmp_path / "s")) == ["writing.json"]
    write(tmp_path / "s").verify()


def test_windows_already_cut_are_written_unchanged(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(5, 3, LENGTH))
    X[1, 0, 0], X[3, 2, 5] = np.nan, 1e300
    windows = Windows(X, 100, recording=["a"] * 5, subject=["p"] * 5, label=[0, 1, 1, 0, -1], classes=HEADER.classes)
    with StoreWriter(tmp_path / "s", FLOATS) as writer:
        assert writer.add_windows(windows) == 3
    store = WindowStore(tmp_path / "s")
    np.testing.assert_array_equal(store.read(rows(store)), X[[0, 2, 4]].astype(np.float32))
    assert store.windows.label.tolist() == [0, 1, -1]
    assert (store.windows.subject.tolist(), store.recordings[0]["incomplete"]) == (["p"] * 3, 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"X": np.zeros((2, 3, 7), np.int16)}, "shape must be"),
        ({"X": np.zeros((2, 3, LENGTH))}, "type must be 'int16'"),
        ({"X": np.zeros((2, 3, LENGTH), np.int32)}, "type must be 'int16'"),
        ({"fs": 50}, "sampling rate must be"),
        ({"channels": ("a", "b", "c")}, "channels must be"),
        ({"units": ("V", "V", "V")}, "units must be"),
        ({"recording": ["a", "b"]}, "must have the same recording"),
    ],
)
def test_cut_windows_that_do_not_fit_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    arguments = {"X": np.zeros((2, 3, LENGTH), np.int16), "fs": 100, "recording": ["a", "a"]} | changes
    with StoreWriter(tmp_path / "s", HEADER) as writer:
        with pytest.raises(DataError, match=message):
            writer.add_windows(Windows(arguments.pop("X"), arguments.pop("fs"), **arguments))
        with pytest.raises(DataError, match="at least one"):
            writer.add_windows(Windows(np.zeros((2, 3, LENGTH), np.int16), 100)[:0])
        writer.add(recording(0), *places(0))


# -------------------------------------------------------------------------------------------- two writers, kills, disks


def test_two_writers_at_once_are_refused_whoever_they_are(tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "s", HEADER, shard_bytes=1) as writer:
        writer.add(recording(0), *places(0))
        with pytest.raises(PolyadicError, match="is being written by another process"):
            StoreWriter(tmp_path / "s", HEADER)
        before = files(tmp_path / "s")
        code = (
            "import sys\nfrom polyadic.data import Header, StoreWriter\n"
            "try:\n    StoreWriter(sys.argv[1], Header(100.0, ('a',), ('',), 4, 'int16'))\n"
            "except ValueError as error:\n    print(error)\n"
        )
        told = subprocess.run([sys.executable, "-c", code, tmp_path / "s"], capture_output=True, text=True, check=True)
        assert "is being written by another process" in told.stdout
        assert files(tmp_path / "s") == before
        writer.add(recording(1), *places(1))
    WindowStore(tmp_path / "s").verify()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files cannot be counted")
def test_no_file_stays_open(tmp_path: Path) -> None:
    write(tmp_path / "s")
    before = open_files()
    for header, append in ((HEADER, False), (FLOATS, True)):
        with pytest.raises(PolyadicError):
            StoreWriter(tmp_path / "s", header, append=append)
    write(tmp_path / "t", range(3))
    stop(tmp_path / "t", 2, append=True)
    WindowStore(tmp_path / "t").verify()
    assert open_files() == before


FORKS = """
import errno, json, os, random, resource, shutil, signal, sys, time
from pathlib import Path

import numpy as np

from polyadic.data import Header, Recording, StoreWriter, WindowStore

HEADER = Header(100.0, ("a", "b"), ("uV", "uV"), 8, "int16", ("w", "s"))


def write(path, append=False, count=9, pause=0.0):
    with StoreWriter(path, HEADER, append=append, shard_bytes=600) as writer:
        for number in range(count):
            rng = np.random.default_rng(number)
            signal = rng.integers(-99, 99, (2, 100)).astype(np.int16)
            recording = Recording(f"r{number}", "s", 100.0, HEADER.channels, HEADER.units, signal, rng.uniform(1, 2, 2),
                                  np.zeros(2))
            starts = np.arange(0, 10 * (number % 4), 10)
            if recording.name not in writer.done:
                writer.add(recording, starts, starts % 3 - 1)
                time.sleep(pause)


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def state(path):
    try:
        store = WindowStore(path)
        store.verify()
        return f"complete {len(store)}"
    except ValueError as error:
        for text in ("is unfinished", "does not exist", "has no manifest.json"):
            if text in str(error):
                return text
        return f"{type(error).__name__}: {error}"


def watched(folder, number, act):
    # Count what is done to the files of the store, and act before the number-th time.
    left = [number]

    def count(event, args):
        if event == "fsync" or (event in ("open", "os.rename", "os.remove", "os.mkdir") and
                                str(args[0]).startswith(str(folder))):
            left[0] -= 1
            if left[0] == 0:
                fired.append(True)
                act()

    sync = os.fsync
    os.fsync = lambda descriptor: (count("fsync", ()), sync(descriptor))
    sys.addaudithook(count)


fired = []


def child(function):
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    try:
        function()
    except OSError as error:
        os._exit(3 if error.errno in (errno.ENOSPC, errno.EFBIG) else 4)
    except BaseException as error:
        print(repr(error), file=sys.stderr, flush=True)
        os._exit(5)
    os._exit(0 if fired else 6)


def ended(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def no_space():
    raise OSError(errno.ENOSPC, "No space left on device")


def trial(base, append, run):
    # A store that someone stopped: what it looks like, and whether it becomes what it should.
    path = base / "trial"
    shutil.rmtree(path, ignore_errors=True)
    if append:
        shutil.copytree(base / "begun", path)
    code = run(path)
    left = sorted(name for name in files(path) if ".partial" in name or ".tmp" in name) if path.exists() else []
    found = state(path)
    write(path, append=(path / "manifest.json").exists())
    same = files(path) == files(base / ("more" if append else "whole"))
    return {"code": code, "left": left, "state": found, "same": same}


def kill_after(path, append, seconds):
    pid = child(lambda: write(path, append, pause=0.003))
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)
    return ended(pid)


def small_files(path, append):
    def run():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        write(path, append)
    return ended(child(run))


base, job = Path(sys.argv[1]), sys.argv[2]
write(base / "whole")
write(base / "begun", count=4)
shutil.copytree(base / "begun", base / "more")
write(base / "more", append=True)
results = []
for append in (False, True):
    if job == "moments":
        begun = time.perf_counter()
        write(base / f"timed{append}", pause=0.003)
        took = time.perf_counter() - begun
        draw = random.Random(7)
        for moment in [draw.uniform(0, took) for _ in range(13)]:
            results.append(trial(base, append, lambda path: kill_after(path, append, moment)))
    elif job == "limit":
        for limit in (0, 100, 200, 400, 600):
            results.append(trial(base, append, lambda path: small_files(path, append)))
    else:
        act = no_space if job == "full" else lambda: os.kill(os.getpid(), signal.SIGKILL)
        number = 0
        while number == 0 or results[-1]["code"] != 6:
            number += 1
            def run(path):
                def work():
                    watched(path, number, act)
                    write(path, append)
                return ended(child(work))
            results.append(trial(base, append, run))
print(json.dumps(results))
"""


def stopped(folder: Path, job: str) -> list[dict[str, Any]]:
    """Return stores whose writer was stopped in a separate process and then resumed."""
    if not hasattr(os, "fork"):
        pytest.skip("processes cannot be forked here")
    done = subprocess.run([sys.executable, "-c", FORKS, folder, job], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    for trial in found:
        assert trial["same"], trial
        assert trial["state"] in {
            "is unfinished",
            "does not exist",
            "has no manifest.json",
            *(f"complete {count}" for count in (6, 12)),
        }, trial
    return found


@pytest.mark.long  # the next kills before every operation
def test_a_writer_killed_at_any_moment_leaves_a_store_that_can_be_resumed(tmp_path: Path) -> None:
    found = stopped(tmp_path, "moments")
    assert len(found) == 26
    assert sum(trial["code"] == -9 for trial in found) > 15


def test_a_writer_killed_before_any_of_its_operations_leaves_a_store_that_can_be_resumed(tmp_path: Path) -> None:
    found = stopped(tmp_path, "kill")
    assert sum(trial["code"] == -9 for trial in found) == len(found) - 2 > 40
    assert {trial["state"] for trial in found} >= {"is unfinished", "complete 6", "complete 12"}
    assert any(trial["left"] for trial in found)


@pytest.mark.long
def test_a_disk_that_fails_any_of_the_writes_is_an_error_and_leaves_no_temporary_files(tmp_path: Path) -> None:
    found = stopped(tmp_path, "full")
    assert {trial["code"] for trial in found} == {0, 3, 6}  # 0: a folder that cannot be synchronised is no fault
    assert sum(trial["code"] == 3 for trial in found) > 40
    assert not any(trial["left"] for trial in found)


@pytest.mark.long
def test_a_file_size_limit_is_an_error_and_leaves_no_temporary_files(tmp_path: Path) -> None:
    found = stopped(tmp_path, "limit")
    assert {trial["code"] for trial in found} == {3}
    assert not any(trial["left"] for trial in found)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True, capture_output=True)


def test_a_full_disk_is_an_error_and_the_store_can_be_resumed(small_disk: Path, tmp_path: Path) -> None:
    def long(path: Path) -> WindowStore:
        with StoreWriter(path, HEADER, shard_bytes=10**5) as writer:
            for number in range(12):
                starts = np.arange(0, 30_000 - LENGTH, LENGTH)
                if f"r{number:02d}" not in writer.done:
                    writer.add(recording(number, samples=30_000), starts, starts % 2)
        return WindowStore(path)

    ballast = small_disk / "ballast"
    for size in (900_000, 500_000):
        ballast.write_bytes(bytes(size))
        with pytest.raises(OSError, match="No space left"):
            long(small_disk / "s")
        assert not [name for name in files(small_disk / "s") if "tmp" in name or "partial" in name]
        with pytest.raises(DataError, match="unfinished"):
            WindowStore(small_disk / "s")
    ballast.unlink()
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True, capture_output=True)
    assert files(long(small_disk / "s").path) == files(long(tmp_path / "t").path)


def test_a_store_on_a_disk_that_is_read_only_can_be_read_but_not_written(small_disk: Path) -> None:
    store = write(small_disk / "s")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True, capture_output=True)
    again = WindowStore(small_disk / "s")
    again.verify()
    np.testing.assert_array_equal(again.read(rows(again)), store.read(rows(store)))
    for path, append in ((small_disk / "s", True), (small_disk / "t", False)):
        with pytest.raises(OSError, match="Read-only"):
            StoreWriter(path, HEADER, append=append)


# ------------------------------------------------------------------------------------------------------------- damage


def test_every_flipped_byte_is_noticed(tmp_path: Path) -> None:
    store = write(tmp_path / "s", shard_bytes=400)
    store.verify()
    paths = sorted(store.path.iterdir())
    assert {path.name[5:] for path in paths if path.name[0] == "0"} == {".npy", ".index.npy", ".json"}
    rng = np.random.default_rng(0)
    noticed = {"opening": 0, "verifying": 0}
    for _ in range(500):
        path = paths[rng.integers(len(paths))]
        whole = path.read_bytes()
        flipped = bytearray(whole)
        flipped[rng.integers(len(whole))] ^= 1 << int(rng.integers(8))
        path.write_bytes(flipped)
        try:
            opened = WindowStore(store.path)
        except DataError:
            noticed["opening"] += 1
        else:
            with pytest.raises(DataError):
                opened.verify()
            noticed["verifying"] += 1
        path.write_bytes(whole)
    assert sum(noticed.values()) == 500
    assert noticed["verifying"] > 50
    WindowStore(store.path).verify()


def test_verify_names_every_damaged_file_and_tells_how_far_it_is(store: WindowStore) -> None:
    told: list[tuple[int, int]] = []
    store.verify(lambda done, size: told.append((done, size)))
    assert told == [(number + 1, shard.data.stat().st_size) for number, shard in enumerate(store.shards)]
    for number in (1, 3):
        flip(store.shards[number].data, 200)
    store.shards[2].data.unlink()
    with pytest.raises(DataError, match=r"checksums of 00001\.npy, 00002\.npy, 00003\.npy do not match"):
        store.verify()


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("kind", [".npy", ".index.npy", ".json"])
@pytest.mark.parametrize("damage", ["missing", "cut", "longer", "empty"])
def test_files_that_are_missing_or_of_another_size_are_noticed_at_once(
    store: WindowStore, kind: str, damage: str
) -> None:
    path = store.path / f"00001{kind}"
    content = path.read_bytes()
    path.unlink()
    if damage != "missing":
        path.write_bytes({"cut": content[:-1], "longer": content + b"\n", "empty": b""}[damage])
    with pytest.raises(DataError, match=rf"00001{kind} of the store"):
        WindowStore(store.path)


def test_a_shard_that_disappears_while_the_store_is_open_is_an_error(store: WindowStore) -> None:
    store.shards[0].data.unlink()
    store.shards[1].data.write_bytes(b"")
    for row in (0, store.shards[0].rows):
        with pytest.raises(DataError, match="removed or truncated"):
            store.read(np.array([row]))


def resealed(store: WindowStore, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest and give it the checksum that fits."""
    manifest = json.loads((store.path / "manifest.json").read_bytes())
    change(manifest)
    (store.path / "manifest.json").write_text(json.dumps(sealed(manifest)))


def redescribed(store: WindowStore, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the first shard's description and all checksums that depend on it."""
    path = store.shards[0].description
    content = json.loads(path.read_bytes())
    change(content)
    path.write_text(json.dumps(sealed(content)))
    resealed(store, lambda manifest: manifest["shards"][0].update(sha256=digest(path)))


def test_the_error_for_a_newer_schema_says_so(store: WindowStore) -> None:
    (store.path / "manifest.json").write_text(json.dumps({"schema": 2, "something": "else"}))
    with pytest.raises(DataError, match="has schema 2, but this version of polyadic reads up to 1: upgrade"):
        WindowStore(store.path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"{}",
        b'{"schema": 1}',
        b'{"schema": "1"}',
        b"\xff\xfe\x00",
        b"\x00" * 1000,
        *(b'{"schema": 1, "a":' + b"[" * depth + b"]" * depth + b"}" for depth in (500, 990, 995, 10**5)),
        b'{"a":' * 10**5,
        b'{"schema": ' + b"9" * 10_000 + b"}",
    ],
    ids=range(15),
)
def test_an_invalid_manifest_is_a_data_error(store: WindowStore, content: bytes) -> None:
    (store.path / "manifest.json").write_bytes(content)
    with pytest.raises(DataError, match=r"manifest\.json of the store"):
        WindowStore(store.path)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m["shards"][0].update(name="../other/00000"),
        lambda m: m["shards"][0].update(name=str(Path("/") / "00000")),
        lambda m: m["shards"].append(m["shards"][0]),
        lambda m: m["shards"].reverse(),
        lambda m: m["shards"].clear(),
        lambda m: m.update(shards=5),
        lambda m: m.update(shards=[5]),
        lambda m: m.update(schema=0),
        lambda m: m.update(fs="fast"),
        lambda m: m.update(fs=-1),
        lambda m: m.update(length="6"),
        lambda m: m.update(channels="C34"),
        lambda m: m.update(channels=[1, 2, 3]),
        lambda m: m.update(dtype="object"),
        lambda m: m.update(settings=[]),
        lambda m: m.update(skipped=None),
        lambda m: m.pop("classes"),
        lambda m: m.update(classes=["wake"]),
        lambda m: m.update(length=5),
        lambda m: m.update(length=10**9),
    ],
)
def test_a_manifest_with_a_checksum_that_fits_but_content_that_does_not_is_refused(
    store: WindowStore, change: Callable[[dict[str, Any]], object]
) -> None:
    shutil.copytree(store.path, store.path.parent / "other")
    resealed(store, change)
    with pytest.raises(DataError):
        WindowStore(store.path)


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c.update(rows=1),
        lambda c: c.update(rows=float("inf")),
        lambda c: c.update(recordings=[]),
        lambda c: c.update(recordings=["a"]),
        lambda c: c.update(recordings=3),
        lambda c: c["recordings"][0].pop("scale"),
        lambda c: c["recordings"][0].update(scale=[1.0]),
        lambda c: c["recordings"][0].update(offset=[1.0, float("nan"), 1.0]),
        lambda c: c["recordings"][0].update(scale=[1.0, 1e200, 1.0]),
        lambda c: c["recordings"][0].update(windows=-1),
        lambda c: c.update(sha256={}),
        lambda c: c["sha256"].update({"00000.index.npy": "0"}),
        lambda c: c.update(sha256=[]),
    ],
)
def test_a_description_with_checksums_that_fit_but_content_that_does_not_is_refused(
    store: WindowStore, change: Callable[[dict[str, Any]], object]
) -> None:
    redescribed(store, change)
    with pytest.raises(DataError):
        WindowStore(store.path)


@pytest.mark.parametrize(("column", "value"), [("label", 2), ("label", -2), ("recording", 5), ("recording", -1)])
def test_an_index_beyond_its_tables_is_refused(store: WindowStore, column: str, value: int) -> None:
    path = store.shards[0].index
    index = np.load(path)
    index[column][0] = value
    path.write_bytes(npy_header(index.shape, INDEX) + index.tobytes())
    redescribed(store, lambda content: content["sha256"].update({path.name: digest(path)}))
    with pytest.raises(DataError, match="index"):
        WindowStore(store.path)


def test_damage_to_an_unfinished_store_is_reported_when_it_is_resumed(tmp_path: Path) -> None:
    stop(tmp_path / "s", 2, shard_bytes=1)
    for name, content in files(tmp_path / "s").items():
        for damaged in (content[:-3], b"{}", content.replace(b"0", b"1"), content.replace(b"s0", b"s1")):
            if damaged != content and (name.endswith("json") or len(damaged) != len(content)):
                (tmp_path / "s" / name).write_bytes(damaged)
                with pytest.raises(PolyadicError):
                    StoreWriter(tmp_path / "s", HEADER)
        (tmp_path / "s" / name).write_bytes(content)
    write(tmp_path / "s").verify()


def test_folders_that_are_not_stores_are_errors(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        WindowStore(tmp_path / "s")
    with pytest.raises(DataError, match="is not a window store"):
        WindowStore(tmp_path)


# ------------------------------------------------------------------------------------------------------------- orders


SIZES = [5, 1, 7, 3, 3, 9, 2, 4, 6]


@pytest.mark.parametrize("buffer", [1, 80, 1000])
def test_a_block_order_is_a_permutation_that_keeps_the_rows_of_a_buffer_together(buffer: int) -> None:
    sizes = [10 * size for size in SIZES]
    owner = np.repeat(np.arange(len(sizes)), sizes)
    for sweep in range(5):
        order = block_permutation(sizes, buffer, 3, sweep).numpy()
        assert sorted(order) == list(range(sum(sizes)))
        held: list[int] = []
        groups = []
        for row in order:
            held.append(int(row))
            shards = sorted({int(owner[one]) for one in held})
            if len(held) == sum(sizes[shard] for shard in shards):
                groups.append([sizes[shard] for shard in shards])
                assert held != sorted(held)
                held = []
        # Each buffer holds whole shards, enough to fill it and not one more.
        assert all(sum(group) >= buffer and sum(group) - max(group) < buffer for group in groups[:-1])
        assert len(groups) == {1: len(sizes), 80: len(groups), 1000: 1}[buffer]
        assert buffer != 80 or 2 < len(groups) < len(sizes)


def test_a_block_order_is_a_function_of_seed_and_sweep() -> None:
    orders = {
        (seed, sweep): block_permutation(SIZES, 8, seed, sweep).tolist() for seed in range(4) for sweep in range(4)
    }
    torch.manual_seed(5)
    assert all(block_permutation(SIZES, 8, *key).tolist() == order for key, order in orders.items())
    assert len({tuple(order) for order in orders.values()}) == 16
    first_shards = {int(np.searchsorted(np.cumsum(SIZES), order[0], side="right")) for order in orders.values()}
    assert len(first_shards) > 3
    within = [block_permutation([6, 6], 1, 0, sweep).tolist() for sweep in range(6)]
    assert all(sorted(order[:6]) != order[:6] for order in within)
    assert [row % 6 for row in within[0][:6]] != [row % 6 for row in within[0][6:]]
    assert block_permutation([], 8, 0, 0).tolist() == []


def test_a_store_asks_for_its_order_and_prefetches_its_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = write(tmp_path / "s", shard_bytes=1)
    assert full.order(0, 0) is None
    assert full.windows.order(0, 0) is None
    monkeypatch.setattr(store_module, "_BUFFER_BYTES", 6 * HEADER.window_bytes)
    block = WindowStore(tmp_path / "s", shuffle="block")
    expected = block_permutation([shard.rows for shard in block.shards], 6, 4, 2).tolist()
    assert block.order(4, 2).tolist() == expected  # type: ignore[union-attr]
    assert block.windows.order(4, 2).tolist() == expected  # type: ignore[union-attr]
    some = block.windows.select(part="train")[::2]
    chosen = some.order(4, 2)
    assert sorted(chosen) == list(range(len(some)))  # type: ignore[arg-type]
    np.testing.assert_array_equal(block.read(rows(block)), full.read(rows(full)))
    assert block._prefetched == set(range(7))
    block.read(np.array([0, 1]))
    assert block._prefetched == {0}
    assert full._prefetched == set()


# --------------------------------------------------------------------------------------------------- fits from a store


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> WindowStore:
    """Ten recordings of 9 windows of 3 × 16 samples, in shards of two, with structure to learn."""
    folder = tmp_path_factory.mktemp("made") / "store"
    header = replace(HEADER, length=16)
    rng = np.random.default_rng(0)
    basis = rng.normal(size=(3, 4)) @ rng.normal(size=(4, 16))
    with StoreWriter(folder, header, shard_bytes=2 * 9 * header.window_bytes) as writer:
        for number in range(10):
            tiles = np.concatenate([basis * rng.uniform(0.5, 2) + 0.3 * rng.normal(size=(3, 16)) for _ in range(9)], 1)
            digits = np.rint(tiles * 1000).astype(np.int16)
            source = recording(number, signal=digits, scale=np.array([1e-3, 2e-3, 1e-3]), offset=np.full(3, 0.01))
            writer.add(source, np.arange(0, 144, 16), np.arange(9) % 2)
    return WindowStore(folder)


MODELS = {
    "SALS": paper(SALS, rank=3, max_sweeps=4, tol=0.0, batch_size=16, device="cpu"),
    "SALS full": paper(SALS, rank=3, max_sweeps=4, tol=0.0, batch_size=None, device="cpu"),
    "SALS memory": paper(SALS, rank=3, max_sweeps=4, tol=0.0, batch_size=16, solver="memory", device="cpu"),
    "ATD": paper(ATD, rank=3, augment=Jitter(0.05), max_sweeps=3, tol=0.0, batch_size=16, device="cpu"),
    "ATD full": paper(ATD, rank=3, augment=Jitter(0.05), max_sweeps=3, tol=0.0, batch_size=None, device="cpu"),
}


@pytest.mark.parametrize("kind", MODELS)
def test_a_fit_from_a_store_is_the_fit_from_the_array(made: WindowStore, kind: str) -> None:
    from sklearn.base import clone

    X = made.read(rows(made))
    known = clone(MODELS[kind]).fit(X)
    for source in (made, made.windows):
        model = clone(MODELS[kind]).fit(source)
        assert model.history_["loss"] == known.history_["loss"]
        for factor, expected in zip(model.factors_, known.factors_, strict=True):
            np.testing.assert_array_equal(factor, expected)
        np.testing.assert_array_equal(model.transform(source), known.transform(X))
    assert threads() == []


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("polyadic-read")]


@pytest.mark.parametrize("batch_size", [16, 7, 200])
def test_a_block_shuffled_fit_visits_every_window_once_a_sweep(
    made: WindowStore, batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    visits: list[int] = []
    raw = WindowStore.raw

    def noting(self: WindowStore, asked: np.ndarray) -> Any:
        if threading.current_thread().name.startswith("polyadic-read"):
            visits.extend(asked.tolist())
        return raw(self, asked)

    monkeypatch.setattr(WindowStore, "raw", noting)
    monkeypatch.setattr(store_module, "_BUFFER_BYTES", 20 * made.header.window_bytes)
    store = WindowStore(made.path, shuffle="block")
    paper(SALS, rank=2, max_sweeps=3, tol=0.0, batch_size=batch_size, device="cpu", random_state=5).fit(store)
    assert len(visits) == 3 * len(store)
    sweeps = np.array(visits).reshape(3, -1)
    for sweep, order in enumerate(sweeps):
        assert order.tolist() == store.order(5, sweep).tolist()  # type: ignore[union-attr]
    assert len({tuple(order) for order in sweeps.tolist()}) == 3


def test_features_on_disk_are_those_in_memory(made: WindowStore, tmp_path: Path) -> None:
    model = paper(SALS, rank=3, max_sweeps=2, device="cpu").fit(made)
    done: list[int] = []
    out = model.transform(made, out=tmp_path / "z.npy", on_rows=done.append)
    assert isinstance(out, np.memmap)
    np.testing.assert_allclose(out, model.transform(made.read(rows(made))), rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(np.load(tmp_path / "z.npy"), model.transform(made))
    assert out.dtype == np.float32
    assert done[-1] == len(made)


def test_features_that_fail_in_the_middle_leave_nothing_behind(
    made: WindowStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = paper(SALS, rank=3, max_sweeps=1, device="cpu").fit(made)
    monkeypatch.setattr("polyadic.engine.window_model._BATCH_BYTES", 10 * 3 * 16 * 4)
    X = made.read(rows(made))
    X[57, 0, 0] = np.nan
    np.save(tmp_path / "x.npy", X)
    done: list[int] = []
    for source in (X, np.load(tmp_path / "x.npy", mmap_mode="r")):
        with pytest.raises(PolyadicError, match="sample 57 contains NaN"):
            model.transform(source, out=tmp_path / "z.npy", on_rows=done.append)
        assert done
        assert [path.name for path in tmp_path.iterdir()] == ["x.npy"]
    assert threads() == []


def test_selections_of_a_store_read_the_right_rows(store: WindowStore) -> None:
    everything, windows = store.read(rows(store)), store.windows
    assert windows.on_disk
    for mask in (windows.subject == "s1", windows.label == 1, (windows.part == "train") & (windows.start > 3)):
        some = windows[mask]
        assert some.on_disk
        np.testing.assert_array_equal(some.X, everything[mask])
        np.testing.assert_array_equal(some[1:][::-1].X, everything[mask][1:][::-1])
        np.testing.assert_array_equal(some.start, windows.start[mask])
        digits, scale, offset = some.raw(np.arange(len(some)))
        assert scale is not None
        np.testing.assert_allclose(digits * scale + offset, everything[mask], rtol=1e-5, atol=1e-2)
    np.testing.assert_array_equal(windows.select(recording="r03").X, everything[windows.recording == "r03"])
    np.testing.assert_array_equal(windows.select(label="sleep").X, everything[windows.label == 1])


# -------------------------------------------------------------------------------------------------------- reading ahead


class Disk:
    """Samples on a disk that is slow, or fails at a row."""

    on_disk = True
    shape = (40, 2, 3)
    dtype = np.dtype(np.float32)

    def __init__(self, fails: int = -1, pause: float = 0.0) -> None:
        self.fails, self.pause, self.asked = fails, pause, 0

    def read(self, asked: np.ndarray) -> np.ndarray:
        self.asked += 1
        assert threading.current_thread() is not threading.main_thread()
        time.sleep(self.pause)
        if self.fails in asked:
            raise OSError(5, "Input/output error")
        return np.broadcast_to(asked[:, None, None], (len(asked), 2, 3)).astype(np.float32)


PARTS = torch.split(torch.arange(40), 4)


def test_parts_come_in_order_and_at_most_three_ahead() -> None:
    disk = Disk()
    for number, (ids, batch, waited) in enumerate(prefetch(Samples(disk), PARTS)):
        assert ids.tolist() == PARTS[number].tolist()
        assert batch.digits[:, 1, 2].tolist() == PARTS[number].tolist()
        assert waited >= 0
        time.sleep(0.005)
        assert number + 1 <= disk.asked <= number + 1 + 3
    assert disk.asked == 10
    assert threads() == []
    assert list(prefetch(Samples(disk), ())) == []


def test_reading_continues_while_a_part_is_processed() -> None:
    disk = Disk(pause=0.02)
    parts = prefetch(Samples(disk), PARTS)
    _, _, waited = next(parts)
    assert waited > 0
    until = time.monotonic() + 20
    while disk.asked < 3:  # nobody asks for the next part, and yet it is read
        assert time.monotonic() < until
        time.sleep(0.001)
    assert len(list(parts)) == len(PARTS) - 1


@pytest.mark.parametrize("row", [0, 17, 39])
def test_an_error_of_the_reading_thread_comes_at_its_part_and_leaves_no_thread(row: int) -> None:
    disk, got = Disk(fails=row), []
    begun = time.perf_counter()
    with pytest.raises(OSError, match="Input/output error"):
        got.extend(ids for ids, _, _ in prefetch(Samples(disk), PARTS))
    assert len(got) == row // 4
    assert disk.asked <= row // 4 + 4
    assert time.perf_counter() - begun < 2
    assert threads() == []


def test_a_reader_that_is_left_early_stops() -> None:
    disk = Disk(pause=0.1)
    parts = prefetch(Samples(disk), PARTS)
    next(parts)
    parts.close()
    assert threads() == []
    assert disk.asked <= 3


def test_a_fit_whose_disk_fails_raises_and_leaves_no_thread() -> None:
    source = WindowSource(Samples(Disk(fails=30)), None, None, 0, torch.device("cpu"), torch.float32)
    with pytest.raises(OSError, match="Input/output"):
        list(source.batches(PARTS, 0))
    assert threads() == []


def test_samples_in_memory_are_not_prefetched() -> None:
    X = np.zeros((40, 2, 3), np.float32)
    for ids, batch, waited in prefetch(Samples(X), PARTS):
        assert not batch.digits.any()
        assert waited == 0
        X[ids[-1] + 1 : ids[-1] + 5] = 0
    assert threads() == []


def test_windows_that_are_not_finite_are_reported_by_index(tmp_path: Path) -> None:
    X = np.zeros((40, 2, 3), np.float32)
    X[21, 1, 1] = np.inf
    samples = Samples(X)
    for ids in (PARTS[5], slice(20, 24)):
        with pytest.raises(PolyadicError, match="sample 21 contains infinity"):
            samples.checked(samples.read(ids), ids, torch.device("cpu"), torch.float32)
