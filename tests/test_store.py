"""The window store is exact, verified, and complete or absent; fits from a store."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from problems import paper

from polyadic import ATD, SALS
from polyadic.augment import Jitter
from polyadic.data import Header, Recording, StoreWriter, Windows, WindowStore, recordings
from polyadic.data import store as store_module
from polyadic.data.batches import Samples, prefetch
from polyadic.errors import DataError, PolyadicError

LENGTH = 6
HEADER = Header(
    fs=100.0,
    channels=("C3", "C4", "EOG"),
    units=("uV", "µV", "mV"),
    length=LENGTH,
    classes=("wach", "schläft"),
    dataset="made",
    settings={"seconds": 0.06, "trim": [1, 2]},
)


def recording(number: int, samples: int = 40, **changes: Any) -> Recording:
    """Return a recording with its own samples."""
    signal = np.random.default_rng(number).normal(size=(3, samples)).astype(np.float32)
    return Recording(
        name=changes.pop("name", f"r{number:02d}"),
        subject=changes.pop("subject", f"Subjekt {number // 2} ✓"),
        fs=changes.pop("fs", 100.0),
        channels=changes.pop("channels", HEADER.channels),
        units=changes.pop("units", HEADER.units),
        signal=changes.pop("signal", signal),
        **changes,
    )


def places(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Starts and labels of a recording's windows: some overlap, and some have no label."""
    starts = np.array([0, 3, 11, 34, 20, 28][: 3 + number % 4])
    return starts, (starts + number) % 3 - 1


def write(path: Path, numbers: Any = range(7), **options: Any) -> WindowStore:
    with StoreWriter(path, HEADER, **options) as writer:
        for number in numbers:
            writer.add(recording(number), *places(number), part="train" if number else "test")
    return WindowStore(path)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def rows(store: WindowStore) -> np.ndarray:
    return np.arange(len(store))


@pytest.fixture
def store(tmp_path: Path) -> WindowStore:
    return write(tmp_path / "store")


# ------------------------------------------------------------------------------------------------ what is in a store


def test_samples_and_index_are_read_back_window_by_window(tmp_path: Path) -> None:
    store = write(tmp_path / "s")
    values, windows = store.read(rows(store)), store.windows
    assert values.dtype == np.float32
    row = 0
    for number in range(7):
        source = recording(number)
        for start, label in zip(*places(number), strict=True):
            np.testing.assert_array_equal(values[row], source.signal[:, start : start + LENGTH])
            assert (windows.recording[row], windows.subject[row]) == (source.name, source.subject)
            assert (windows.start[row], windows.label[row]) == (start, label)
            assert windows.part[row] == ("train" if number else "test")
            row += 1
    assert store.shape == (row, 3, LENGTH)
    some = windows.select(recording="r03", label="schläft")[::-1]
    assert some.on_disk
    np.testing.assert_array_equal(some.X, values[(windows.recording == "r03") & (windows.label == 1)][::-1])
    assert (store.header, store.settings, store.skipped) == (HEADER, HEADER.settings, [])


def test_a_store_consists_of_files_that_numpy_and_json_read(store: WindowStore) -> None:
    assert sorted(files(store.path)) == ["index.npz", "samples.npy", "store.json"]
    np.testing.assert_array_equal(np.load(store.path / "samples.npy"), store.samples)
    with np.load(store.path / "index.npz") as index:
        np.testing.assert_array_equal(index["start"], store.windows.start)
    assert json.loads((store.path / "store.json").read_bytes())["channels"] == ["C3", "C4", "EOG"]


def test_writing_and_reading_take_the_memory_of_a_batch(tmp_path: Path) -> None:
    header = Header(100.0, ("a",), ("",), 2**16)
    windows, before = Windows(np.zeros((4, 1, 2**16), np.float32), 100), anonymous_memory()
    with StoreWriter(tmp_path / "s", header) as writer:
        for number in range(128):
            writer.add_windows(windows, f"r{number}")
    store = WindowStore(tmp_path / "s")
    for first in range(0, len(store), 16):
        store.read(np.arange(first, first + 16))
    assert anonymous_memory() - before < 32 * 2**20 < 64 * 2**20 <= store.samples.nbytes


def anonymous_memory() -> int:
    """Return the memory of this process without mapped files, which the system can reclaim, in bytes."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except FileNotFoundError:
        pytest.skip("needs /proc to look at the memory")
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


# ------------------------------------------------------------------------------------------- what is left out and why


def test_missing_samples_are_kept_as_nan_and_windows_without_any_sample_are_left_out(tmp_path: Path) -> None:
    signal = np.arange(120, dtype=np.float32).reshape(3, 40)
    signal[1, 13] = np.nan
    signal[:, 20:30] = np.nan
    with StoreWriter(tmp_path / "s", HEADER) as writer:
        assert writer.add(recording(0, signal=signal), np.array([8, 16, 22, 30]), np.array([0, 1, 0, -1])) == 3
    store = WindowStore(tmp_path / "s")
    assert store.windows.start.tolist() == [8, 16, 30]
    assert store.windows.label.tolist() == [0, 1, -1]
    assert np.isnan(store.windows.X).sum(axis=(1, 2)).tolist() == [1, 6, 0]
    assert store.recordings[0]["empty"] == 1
    assert store.quality() == {"nan": {"C3": 1, "C4": 1, "EOG": 1}}


def test_infinite_samples_are_an_error(tmp_path: Path) -> None:
    signal = np.full((3, 40), np.inf, np.float32)
    with StoreWriter(tmp_path / "s", HEADER) as writer:
        with pytest.raises(DataError, match="r01: samples must be finite or NaN"):
            writer.add(recording(1, signal=signal), *places(1))
        writer.add(recording(0), *places(0))


def test_a_channel_that_a_recording_lacks_is_missing_by_name(tmp_path: Path) -> None:
    part = recording(1, channels=("EOG", "C3"), units=("mV", "uV"), signal=recording(1).signal[[2, 0]])
    with StoreWriter(tmp_path / "s", HEADER) as writer:
        writer.add(recording(0), np.array([0]), np.array([0]))
        writer.add(part, np.array([3]), np.array([0]))
        with pytest.raises(DataError, match="r02 has the channels 'Fz', 'Cz', 'Pz', but the recordings before it have"):
            writer.add(recording(2, channels=("Fz", "Cz", "Pz")), np.array([0]), np.array([0]))
    second = WindowStore(tmp_path / "s").read(np.array([1]))[0]
    assert np.isnan(second[1]).all()
    np.testing.assert_array_equal(second[[0, 2]], recording(1).signal[[0, 2], 3:9])
    assert writer.notes == {"channels missing: 'C4'; if a channel only has another name: --rename OLD=NEW": ["r01"]}


def test_quality_is_recorded_and_summed_over_recordings(tmp_path: Path) -> None:
    flat, holed = recording(0).signal.copy(), recording(1).signal.copy()
    flat[2] = 5
    holed[0, 3:7] = np.nan
    with StoreWriter(tmp_path / "s", HEADER) as writer:
        writer.add(recording(0, signal=flat), *places(0))
        writer.add(recording(1, signal=holed), *places(1))
        writer.add(recording(2, signal=flat), *places(2))
    store = WindowStore(tmp_path / "s")
    assert [entry["quality"] for entry in store.recordings] == [
        {"flat": {"EOG": 18}},  # the samples of its windows, which overlap
        {"nan": {"C3": 7}},
        {"flat": {"EOG": 30}},
    ]
    assert store.quality() == {"flat": {"EOG": 2}, "nan": {"C3": 1}}


def test_a_recording_without_windows_is_skipped_and_noted(tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "s", HEADER) as writer:
        assert writer.add(recording(1, samples=4), np.array([], int), np.array([], int)) == 0
        assert writer.add(recording(2, signal=np.full((3, 40), np.nan, np.float32)), *places(2)) == 0
        writer.add(recording(3), *places(3))
        writer.skip("r09", "its file is damaged")
    reasons = {entry["name"]: entry["reason"] for entry in WindowStore(tmp_path / "s").skipped}
    assert reasons == {
        "r01": "it is shorter than a window",
        "r02": "all its samples are missing",
        "r09": "its file is damaged",
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fs": 200.0}, "is sampled at 200 Hz, but the recordings before it at 100 Hz"),
        ({"units": ("bpm", "uV", "mV")}, "in bpm, but the recordings before it have it in uV"),
        ({"name": "r00"}, "different names, but 'r00' occurs twice"),
    ],
)
def test_a_recording_that_does_not_fit_is_refused_and_nothing_of_it_stays(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with StoreWriter(tmp_path / "s", HEADER) as writer:
        writer.add(recording(0), *places(0), part="test")
        with pytest.raises(DataError, match=message):
            writer.add(recording(1, **changes), *places(1))
        writer.add(recording(2), *places(2), part="train")
    assert files(tmp_path / "s") == files(write(tmp_path / "same", (0, 2)).path)


def test_batches_of_any_size_give_the_same_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = files(write(tmp_path / "whole").path)
    monkeypatch.setattr(store_module, "_WRITTEN_BYTES", 2 * HEADER.window_bytes)
    batched = files(write(tmp_path / "batched").path)
    assert [batched[name] for name in ("samples.npy", "index.npz")] == [
        whole[name] for name in ("samples.npy", "index.npz")
    ]


# -------------------------------------------------------------------------------------------------- complete or absent


def test_a_store_is_replaced_only_with_force(store: WindowStore) -> None:
    before = files(store.path)
    with pytest.raises(PolyadicError, match="already exists: use --force to replace it"):
        StoreWriter(store.path, HEADER)
    assert files(store.path) == before
    with pytest.raises(KeyboardInterrupt), StoreWriter(store.path, HEADER, force=True) as writer:  # noqa: PT012
        writer.add(recording(8), *places(8))
        raise KeyboardInterrupt
    assert files(store.path) == before
    values = store.read(rows(store))
    assert len(write(store.path, (8,), force=True)) == len(places(8)[0])
    np.testing.assert_array_equal(store.read(rows(store)), values)  # one that was open all the while
    assert [path.name for path in store.path.parent.iterdir()] == ["store"]


def test_files_and_folders_with_other_files_are_refused_and_unchanged(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("important")
    for path, message in ((tmp_path, "new or empty folder"), (tmp_path / "thesis.tex", "is a file")):
        with pytest.raises(PolyadicError, match=message):
            StoreWriter(path, HEADER, force=True)
    assert files(tmp_path) == {"thesis.tex": b"important"}
    (tmp_path / "empty").mkdir()
    write(tmp_path / "empty").verify()


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no recording has a window of .* s: choose shorter windows"):
        write(tmp_path / "s", ())
    with pytest.raises(KeyboardInterrupt), StoreWriter(tmp_path / "s", HEADER) as writer:  # noqa: PT012
        writer.add(recording(0), *places(0))
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())


def test_a_recording_that_fails_in_the_middle_is_left_out_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "_WRITTEN_BYTES", HEADER.window_bytes)

    def failing(*given: Any) -> np.ndarray:
        if next(calls) == 2:
            raise OSError(errno.EIO, "Input/output error")
        return cut(*given)

    with StoreWriter(tmp_path / "s", HEADER) as writer:
        writer.add(recording(0), *places(0), part="test")
        with monkeypatch.context() as patch:
            cut, calls = recordings.cut_windows, iter(range(9))
            patch.setattr(recordings, "cut_windows", failing)
            with pytest.raises(OSError, match="Input/output"):
                writer.add(recording(3), *places(3))
    assert files(tmp_path / "s") == files(write(tmp_path / "same", (0,)).path)


KILLED = """
import json, os, shutil, signal, sys
from pathlib import Path

import numpy as np

from polyadic.data import Header, StoreWriter, Windows, WindowStore


def write(path, seed, force):
    X = np.random.default_rng(seed).normal(size=(4, 1, 8)).astype(np.float32)
    with StoreWriter(path, Header(100.0, ("a",), ("uV",), 8), force=force) as writer:
        for number in range(3):
            writer.add_windows(Windows(X, 100), f"r{number}")


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else "absent"


def kill_before(number):
    # Kill this process before its number-th operation on files.
    left = [number]

    def count(event, args):
        if event in ("open", "fsync", "os.rename", "os.remove", "os.mkdir", "os.rmdir"):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sync = os.fsync
    os.fsync = lambda descriptor: (count("fsync", ()), sync(descriptor))
    sys.addaudithook(count)


base = Path(sys.argv[1])
for seed in (0, 1):
    write(base / f"{seed}", seed, False)
known = {"old": files(base / "0"), "new": files(base / "1"), "absent": "absent"}
trials = []
for replace in (False, True):
    for number in range(1, 1000):
        folder = base / "trial"
        folder.mkdir()
        if replace:
            shutil.copytree(base / "0", folder / "s")
        pid = os.fork()
        if not pid:
            kill_before(number)
            write(folder / "s", 1, replace)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        state = next((name for name, content in known.items() if files(folder / "s") == content), "half")
        left = len(list(folder.iterdir())) - (state != "absent")
        write(folder / "s", 1, True)
        clean = files(folder / "s") == known["new"] and [path.name for path in folder.iterdir()] == ["s"]
        trials.append({"replace": replace, "code": code, "state": state, "left": left, "clean": clean})
        shutil.rmtree(folder)
        if code == 0:
            break
print(json.dumps(trials))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked here")
def test_a_writer_killed_before_any_of_its_operations_leaves_no_half_written_store(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    trials = json.loads(done.stdout)
    killed = [trial for trial in trials if trial["code"] == -9]
    assert len(trials) - 2 == len(killed) > 20
    assert all(trial["clean"] for trial in trials)
    assert {trial["state"] for trial in killed if not trial["replace"]} <= {"absent", "new"}
    replacing = [trial["state"] for trial in killed if trial["replace"]]
    assert set(replacing) == {"old", "absent", "new"}
    assert replacing.count("absent") == 1  # between the two renamings
    assert any(trial["left"] for trial in killed)


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


def test_a_full_disk_is_an_error_and_leaves_nothing(small_disk: Path) -> None:
    starts = np.arange(0, 300_000 - LENGTH, LENGTH)
    with pytest.raises(OSError, match="No space left"), StoreWriter(small_disk / "s", HEADER) as writer:
        writer.add(recording(0, samples=300_000), starts, starts % 2)
    assert not list(small_disk.iterdir())


# ------------------------------------------------------------------------------------------------------------- damage


def test_every_flipped_byte_is_noticed(store: WindowStore) -> None:
    store.verify()
    rng = np.random.default_rng(0)
    for path in sorted(store.path.iterdir()):
        whole = path.read_bytes()
        for place in rng.integers(0, len(whole), 40):
            flipped = bytearray(whole)
            flipped[place] ^= 1 << int(rng.integers(8))
            path.write_bytes(flipped)
            if path.name == "samples.npy":
                with pytest.raises(DataError, match=r"the checksums of samples\.npy do not match"):
                    WindowStore(store.path).verify()
            else:
                with pytest.raises(DataError, match=f"{path.name} of the store store is"):
                    WindowStore(store.path)
        path.write_bytes(whole)
    WindowStore(store.path).verify()


@pytest.mark.parametrize("name", ["samples.npy", "index.npz", "store.json"])
def test_a_file_that_is_missing_or_of_another_size_is_named_at_once(store: WindowStore, name: str) -> None:
    path = store.path / name
    content = path.read_bytes()
    for damaged in (content[:-2], content + b"}", b"", None):
        path.unlink() if damaged is None else path.write_bytes(damaged)
        with pytest.raises(DataError, match=name):
            WindowStore(store.path)


def test_stores_of_other_versions_are_refused_in_one_sentence(store: WindowStore) -> None:
    content = json.loads((store.path / "store.json").read_bytes()) | {"version": 9, "polyadic": "9.0"}
    content["checksum"] = store_module._checksum(content)
    (store.path / "store.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"the store store was written by polyadic 9\.0 in another format"):
        WindowStore(store.path)


def test_folders_that_are_not_stores_are_errors(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        WindowStore(tmp_path / "s")
    with pytest.raises(DataError, match="is not a window store"):
        WindowStore(tmp_path)


# --------------------------------------------------------------------------------------------------- fits from a store


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> WindowStore:
    """Ten recordings of 9 windows of 3 × 16 samples, with structure to learn."""
    folder = tmp_path_factory.mktemp("made") / "store"
    header = replace(HEADER, length=16)
    rng = np.random.default_rng(0)
    basis = rng.normal(size=(3, 4)) @ rng.normal(size=(4, 16))
    with StoreWriter(folder, header) as writer:
        for number in range(10):
            tiles = np.concatenate([basis * rng.uniform(0.5, 2) + 0.3 * rng.normal(size=(3, 16)) for _ in range(9)], 1)
            writer.add(recording(number, signal=tiles.astype(np.float32)), np.arange(0, 144, 16), np.arange(9) % 2)
    return WindowStore(folder)


MODELS = {
    "SALS": paper(SALS, rank=3, max_sweeps=4, tol=0.0, batch_size=16, device="cpu"),
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
    monkeypatch.setattr("polyadic.estimators.base._BATCH_BYTES", 10 * 3 * 16 * 4)
    X = made.read(rows(made))
    X[57, 0, 0] = np.inf
    np.save(tmp_path / "x.npy", X)
    done: list[int] = []
    for source in (X, np.load(tmp_path / "x.npy", mmap_mode="r")):
        with pytest.raises(PolyadicError, match="sample 57 contains infinity"):
            model.transform(source, out=tmp_path / "z.npy", on_rows=done.append)
        assert done
        assert [path.name for path in tmp_path.iterdir()] == ["x.npy"]
    assert threads() == []


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
        assert batch[:, 1, 2].tolist() == PARTS[number].tolist()
        assert waited >= 0
        time.sleep(0.005)
        assert number + 1 <= disk.asked <= number + 1 + 3
    assert disk.asked == 10
    assert threads() == []
    assert list(prefetch(Samples(disk), ())) == []


def test_an_error_of_the_reading_thread_comes_at_its_part_and_leaves_no_thread() -> None:
    disk, got = Disk(fails=17), []
    with pytest.raises(OSError, match="Input/output error"):
        got.extend(ids for ids, _, _ in prefetch(Samples(disk), PARTS))
    assert len(got) == 4
    assert disk.asked <= 8
    assert threads() == []


def test_a_reader_that_is_left_early_stops() -> None:
    disk = Disk(pause=0.1)
    parts = prefetch(Samples(disk), PARTS)
    next(parts)
    parts.close()
    assert threads() == []
    assert disk.asked <= 3
