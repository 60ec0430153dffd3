"""Windows on disk: a folder that is written once, recording by recording, and read batch by batch.

    samples.npy    (N, channels, time), int16 digits or float32 values; memory-mapped
    index.npz      recording (place in the list of recordings), first sample and label of each window, (N,) each
    store.json     sampling rate, channels, recordings with their scales, and the SHA-256 of the other two files

A store is written to a hidden folder next to its path, which is renamed once it is complete.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from polyadic._util.files import (
    LOCKED,
    check_regular_file,
    digest,
    lock_folder,
    open_atomically,
    sync_folder,
    write_atomically,
)
from polyadic._util.version import __version__
from polyadic.data.index import Index
from polyadic.data.reading import listed, shell_word
from polyadic.data.recordings import Recording, SignalFaults, complete_windows, cut_windows, quality
from polyadic.data.windows import Windows
from polyadic.errors import DataError, PolyadicError

__all__ = ["Header", "StoreWriter", "WindowStore", "check_new_store", "is_store"]

_VERSION = 2
_SAMPLES, _INDEX, _DESCRIPTION = "samples.npy", "index.npz", "store.json"
_TYPES: dict[str, np.dtype[Any]] = {"int16": np.dtype("<i2"), "float32": np.dtype("<f4")}
_LARGEST = float(np.finfo(np.float32).max)
_BLOCK_BYTES, _BUFFER_BYTES = 128 * 2**20, 256 * 2**20
"""With shuffle="block": minimum bytes of a block of recordings, and of the blocks that are shuffled together."""
_WRITTEN_BYTES = 8 * 2**20
"""Maximum bytes of windows to hold in memory while writing."""
_COMPARED_BYTES = 2**16
"""Bytes of every `_WRITTEN_BYTES` that are hashed to find identical recordings."""
_MOST_NAMED = 6

_Rows = NDArray[np.intp]
_Batch = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]
"""Complete windows (n, channels, time) of a recording, with their starts and labels, (n,) each."""


@dataclass(frozen=True)
class Header:
    """Properties that all windows of a store have in common.

    Parameters
    ----------
    fs : sampling rate in Hz
    channels, units : names, one per channel
    length : samples in a window
    dtype : "int16" for digital values, with a scale and an offset per channel and recording, or "float32" for values
    classes : names of the classes
    dataset : name of a published dataset, or ""
    settings : how the windows were created, for the record
    """

    fs: float
    channels: tuple[str, ...]
    units: tuple[str, ...]
    length: int
    dtype: Literal["int16", "float32"]
    classes: tuple[str, ...] = ()
    dataset: str = ""
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.dtype not in _TYPES:
            raise PolyadicError(f"dtype must be one of {', '.join(_TYPES)}, but is {self.dtype!r}")
        if len(self.units) != len(self.channels):
            raise PolyadicError(f"units must be one per channel ({len(self.channels)}), but are {len(self.units)}")

    @property
    def stored(self) -> np.dtype[Any]:
        """The little-endian dtype of the samples."""
        return _TYPES[self.dtype]

    @property
    def window_bytes(self) -> int:
        return len(self.channels) * self.length * self.stored.itemsize


class WindowStore:
    """Windows in a folder, read batch by batch; written by `polyadic prepare` or `polyadic.data.StoreWriter`.

    Parameters
    ----------
    path : folder of the store
    shuffle : "full" allows any order of the windows in a sweep; "block" goes from block to block of 128 MiB or more and
        shuffles within 256 MiB, for disks with slow random access

    Attributes
    ----------
    shape : (N, channels, time)
    samples : (N, channels, time), a memory map of the samples as stored
    index : recording, start, label of each window
    fs, channels, units, classes, dataset, settings : as for `polyadic.data.Header`
    recordings : name, subject, part, windows, scale, offset and quality of each recording
    skipped : files and recordings that were left out, each with the reason
    reading : how the recordings were read, as returned by `polyadic.data.reading.Reading.to_json`; empty if unknown
    notes : notes on how the recordings were read, from the call that wrote the store
    """

    on_disk = True
    dtype = np.dtype(np.float32)

    def __init__(self, path: str | os.PathLike[str], *, shuffle: Literal["full", "block"] = "full") -> None:
        if shuffle not in ("full", "block"):
            raise PolyadicError(f"shuffle must be 'full' or 'block', but is {shuffle!r}")
        self.path, self.shuffle = Path(path).absolute(), shuffle  # the working directory may change
        self.notes: tuple[str, ...] = ()
        content = _read_description(self.path)
        values: dict[str, Any] = {item.name: content[item.name] for item in fields(Header)}
        values |= {name: tuple(values[name]) for name in ("channels", "units", "classes")}
        self.header = header = Header(**values)
        self.fs, self.channels, self.units, self.classes = header.fs, header.channels, header.units, header.classes
        self.dataset, self.settings = header.dataset, header.settings
        self.reading: dict[str, Any] = header.settings.get("reading", {})
        self.recordings: list[dict[str, Any]] = content["recordings"]
        self.skipped: list[dict[str, str]] = content["skipped"]
        self.checksum: str = content["checksum"]
        self._files: dict[str, dict[str, Any]] = content["files"]
        self.shape = (int(content["windows"]), len(header.channels), header.length)
        self.index = self._read_index()
        self.samples = self._map_samples()
        self._scale = np.array([recording["scale"] for recording in self.recordings], np.float32)[:, :, None]
        self._offset = np.array([recording["offset"] for recording in self.recordings], np.float32)[:, :, None]
        self._prefetched: set[int] = set()

    def _read_index(self) -> Index:
        if not self._is_intact(_INDEX):
            raise DataError(f"{_INDEX} of the store {self.path.name} is missing or damaged: prepare the store again")
        tables = (
            np.array([str(recording[key]) for recording in self.recordings], np.str_)
            for key in ("name", "subject", "part", "subject_from")
        )
        with np.load(self.path / _INDEX) as columns:
            return Index(columns["recording"], columns["start"], columns["label"], *tables)

    def _map_samples(self) -> NDArray[Any]:
        path, size = self.path / _SAMPLES, int(self._files[_SAMPLES]["bytes"])
        check_regular_file(path)
        actual = f"has {path.stat().st_size:,}" if path.exists() else "is missing"
        if actual != f"has {size:,}":
            raise DataError(f"{_SAMPLES} of the store {self.path.name} must have {size:,} bytes, but {actual}")
        return np.memmap(path, self.header.stored, "r", size - len(self) * self.header.window_bytes, self.shape)

    def _is_intact(self, name: str) -> bool:
        path = self.path / name
        check_regular_file(path)
        return path.exists() and digest(path) == self._files[name]["sha256"]

    def verify(self) -> None:
        """Read all files and compare them with their checksums.

        Raises
        ------
        DataError : if files are damaged; the message names all of them
        """
        damaged = [name for name in self._files if not self._is_intact(name)]
        if damaged:
            raise DataError(
                f"the store {self.path.name} is damaged: the checksums of {', '.join(damaged)} do not match; "
                "prepare it again from the recordings"
            )

    def __len__(self) -> int:
        return self.shape[0]

    def __reduce__(self) -> tuple[Any, tuple[Path]]:
        return partial(WindowStore, shuffle=self.shuffle), (self.path,)  # another process maps the samples itself

    def __repr__(self) -> str:
        size = len(self) * self.header.window_bytes / 2**20
        return f"<WindowStore {self.path.name}: {self.shape} {self.header.dtype}, {self.fs:g} Hz, {size:,.0f} MiB>"

    @property
    def fingerprint(self) -> dict[str, str]:
        """Values that identify the windows and the order in which a fit visits them."""
        return {"store": self.checksum, "shuffle": self.shuffle}

    @property
    def windows(self) -> Windows:
        """All windows, for selecting and splitting; samples are read on demand."""
        return Windows.from_index(self, self.index, self)

    # ----------------------------------------------------------------- reading

    def raw(self, rows: _Rows) -> tuple[NDArray[Any], NDArray[np.float32] | None, NDArray[np.float32] | None]:
        """Read windows as stored, and the scale and offset in value = stored · scale + offset.

        Returns
        -------
        windows (n, channels, time); scale and offset (n, channels, 1), or None if the values themselves are stored
        """
        rows = np.asarray(rows, np.intp)
        if self.shuffle == "block":
            self._prefetch(rows)
        digits = np.asarray(self.samples[rows])
        if self.header.dtype == "float32":
            return digits, None, None
        recording = self.index.recording[rows]
        return digits, self._scale[recording], self._offset[recording]

    def read(self, rows: _Rows) -> NDArray[np.float32]:
        """Read windows in physical units: (n, channels, time) float32."""
        digits, scale, offset = self.raw(rows)
        values = digits.astype(np.float32, copy=False)
        if scale is not None and offset is not None:
            # One product and one sum, each rounded once, as in `polyadic.data.samples.Samples`, so that fits to the
            # store and to this array are bit-identical.
            values *= scale
            values += offset
        return values

    def order(self, seed: int, sweep: int) -> _Rows | None:
        """Return the order in which a sweep visits the windows if shuffle="block", or None if any order is allowed."""
        if self.shuffle == "full":
            return None
        from polyadic._util.random_streams import block_permutation  # imports torch, which reading does not need

        sizes = np.diff(self._block_ends, prepend=0).tolist()
        return block_permutation(sizes, max(1, _BUFFER_BYTES // self.header.window_bytes), seed, sweep).numpy()

    @cached_property
    def _block_ends(self) -> _Rows:
        """Return the row after the last of each block: recordings in sequence until they have `_BLOCK_BYTES`."""
        ends, end, first = [], 0, 0
        for recording in self.recordings:
            end += int(recording["windows"])
            if (end - first) * self.header.window_bytes >= _BLOCK_BYTES or end == len(self):
                ends.append(end)
                first = end
        return np.array(ends, np.intp)

    def _prefetch(self, rows: _Rows) -> None:
        """Ask the operating system to read the blocks of these rows, except those that the previous batch needed."""
        ends = self._block_ends
        blocks = set(np.searchsorted(ends, rows, side="right").tolist())
        if not blocks <= self._prefetched and hasattr(os, "posix_fadvise"):
            with (self.path / _SAMPLES).open("rb") as file:
                for block in blocks - self._prefetched:
                    first = int(ends[block - 1]) if block else 0
                    place, size = (count * self.header.window_bytes for count in (first, int(ends[block]) - first))
                    os.posix_fadvise(file.fileno(), place, size, os.POSIX_FADV_WILLNEED)
        self._prefetched = blocks

    # ------------------------------------------------------------ of the recordings

    def identical(self) -> list[list[str]]:
        """Return groups of recordings with the same samples, each as a list of names."""
        names: dict[str, list[str]] = {}
        for recording in self.recordings:
            names.setdefault(recording["content"], []).append(recording["name"])
        return [same for same in names.values() if len(same) > 1]

    def quality(self) -> dict[str, dict[str, int]]:
        """Return how many recordings have missing, flat or clipped samples, by kind and channel."""
        totals: dict[str, Counter[str]] = {}
        for recording in self.recordings:
            for kind, channels in recording["quality"].items():
                totals.setdefault(kind, Counter()).update(channels.keys())
        return {kind: dict(counts) for kind, counts in totals.items()}

    def recorded_rates(self) -> dict[str, dict[str, int]]:
        """Return the original sampling rates of resampled channels: by channel, the number of recordings per rate."""
        totals: dict[str, Counter[str]] = {}
        for recording in self.recordings:
            for channel, rate in zip(self.channels, recording.get("rates", []), strict=False):
                totals.setdefault(channel, Counter())[f"{rate:g} Hz"] += 1
        return {channel: dict(counts) for channel, counts in totals.items()}


# --------------------------------------------------------------------------------------------------------------- files


def is_store(folder: Path) -> bool:
    """Return whether a folder is a store, also one that was written by polyadic 0.2."""
    old = (folder / "manifest.json").exists() and (folder / "00000.npy").exists()
    return old or (folder / _DESCRIPTION).exists()


def check_new_store(path: Path, force: bool = False) -> None:
    """Raise if a store cannot be written to this path; `force` allows to replace a store, but nothing else."""
    if path.exists() and not path.is_dir():
        raise PolyadicError(f"path must be a folder for the store, but {path.name} is a file")
    if is_store(path):
        if not force:
            raise PolyadicError(f"the store {path.name} already exists: use --force to replace it, or another path")
    elif path.is_dir() and any(path.iterdir()):
        raise PolyadicError(f"path must be a new or empty folder, but {path.name} contains other files")


def _read_description(folder: Path) -> dict[str, Any]:
    path = folder / _DESCRIPTION
    check_regular_file(path)
    if not path.exists():
        if is_store(folder):
            raise DataError(f"the store {folder.name} was written by polyadic 0.2; prepare it again")
        reason = f"is not a window store: it has no {_DESCRIPTION}" if folder.is_dir() else "does not exist"
        raise DataError(f"the store {folder.name} {reason}")
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
        intact = content["checksum"] == _checksum(content)
    except (ValueError, TypeError, KeyError, RecursionError):
        intact = False
    if not intact:
        raise DataError(f"{_DESCRIPTION} of the store {folder.name} is damaged: prepare the store again")
    if content["version"] != _VERSION:
        raise DataError(f"the store {folder.name} was written by polyadic {content['polyadic']}: upgrade polyadic")
    return content


def _checksum(content: dict[str, Any]) -> str:
    plain = {key: value for key, value in content.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _npy_head(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    """Return the header of a `.npy` file; numpy leaves room for a larger first axis, so that its size is constant."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype.str, "fortran_order": False, "shape": shape})
    return file.getvalue()


# ------------------------------------------------------------------------------------------------------------- writing


class StoreWriter:
    """Writer of recordings to a new store.

    Use it in a `with` block; leaving the block without an error completes the store. After an error nothing is left; a
    process that is killed leaves a hidden folder, which the next writer of the same path removes.

    Parameters
    ----------
    path : folder of the store
    header : properties that all windows have in common
    force : whether to replace an existing store, once the new one is complete
    """

    def __init__(self, path: str | os.PathLike[str], header: Header, *, force: bool = False) -> None:
        self.path, self.header = Path(path).absolute(), header
        check_new_store(self.path, force)
        self._recordings: dict[str, dict[str, Any]] = {}
        self._skipped: dict[str, str] = {}
        self._index: list[_Batch] = []
        self._head = _npy_head(self._shape, header.stored)
        self._folder = self.path.with_name(f".{self.path.name}.writing")
        self._folder.mkdir(parents=True, exist_ok=True)
        self._lock = lock_folder(self._folder)
        if self._lock == LOCKED:
            raise PolyadicError(f"the store {self.path.name} is being written by another process")
        for leftover in self._folder.iterdir():  # from a writer that was killed
            leftover.unlink()
        self._file = (self._folder / _SAMPLES).open("wb")

    @property
    def _shape(self) -> tuple[int, int, int]:
        count = sum(recording["windows"] for recording in self._recordings.values())
        return (count, len(self.header.channels), self.header.length)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        complete = False
        try:
            if kind is None:
                self._finish()
                self._publish()
                complete = True
        finally:
            with suppress(OSError):  # on a full disk, the buffer cannot be flushed
                self._file.close()
            if not complete:
                shutil.rmtree(self._folder, ignore_errors=True)
            if self._lock is not None:
                os.close(self._lock)

    def add(
        self,
        recording: Recording,
        starts: NDArray[Any],
        labels: NDArray[Any],
        part: str = "",
        *,
        subject_from: str = "",
    ) -> int:
        """Write the windows of one recording that begin at `starts`; windows with missing values are left out.

        Parameters
        ----------
        starts, labels : (n,), first samples and classes (-1 where unknown)
        part : part of a published split that the recording belongs to
        subject_from : where the subject was found; see `polyadic.data.subjects`

        Returns
        -------
        the number of windows written
        """
        length = self.header.length
        self._check(
            recording.name,
            labels,
            {
                "number of labels": (len(labels), len(starts)),
                "sampling rate": (recording.fs, self.header.fs),
                "channels": (recording.channels, self.header.channels),
                "units": (recording.units, self.header.units),
                "type": (str(recording.signal.dtype), self.header.dtype),
            },
        )
        last = recording.signal.shape[1] - length
        if len(starts) and not (starts.min() >= 0 and starts.max() <= last):
            raise DataError(
                f"{recording.name}: windows must begin between samples 0 and {last}, but begin at {starts.min()} to "
                f"{starts.max()}"
            )
        if not (np.abs([recording.scale, recording.offset]) <= _LARGEST).all():
            raise DataError(f"{recording.name}: scale and offset must be at most {_LARGEST:g}")
        complete = complete_windows(recording, starts, length)
        starts, labels = starts[complete], labels[complete]
        elapsed = recording.elapsed_samples(starts)
        entry = {
            "name": recording.name,
            "subject": recording.subject,
            "subject_from": subject_from,
            "part": part,
            "incomplete": int((~complete).sum()),
            "scale": recording.scale.tolist(),
            "offset": recording.offset.tolist(),
            "quality": {kind: counts for kind, counts in quality(recording).items() if counts},
            **({"rates": list(recording.rates)} if recording.rates else {}),
            **({"began": recording.began} if recording.began else {}),
        }
        batches = (
            (cut_windows(recording, starts[rows], length), elapsed[rows], labels[rows])
            for rows in self._row_batches(len(starts))
        )
        return self._write(entry, batches)

    def add_windows(self, windows: Windows, name: str | None = None) -> int:
        """Write the windows of one recording, already cut, batch by batch; windows with missing values are left out.

        Parameters
        ----------
        name : name of the recording, in place of the name in the windows

        Returns
        -------
        the number of windows written
        """
        if not len(windows):
            raise DataError("windows of a recording must have at least one window, but are empty")
        name = str(windows.recording[0]) if name is None else name
        for what in ("recording", "subject", "part"):
            if len(set(getattr(windows, what).tolist())) > 1:
                raise DataError(f"{name}: windows added in one call must have the same {what}")
        self._check(
            name,
            windows.label,
            {
                "shape": (windows.shape[1:], self._shape[1:]),
                "sampling rate": (windows.fs, self.header.fs),
                "channels": (windows.channels or self.header.channels, self.header.channels),
                "units": (windows.units or self.header.units, self.header.units),
                "type": ("int16" if windows.dtype == np.int16 else "float32", self.header.dtype),
            },
        )
        entry: dict[str, Any] = {
            "name": name,
            "subject": str(windows.subject[0]),
            "subject_from": str(windows.index.subject_sources[windows.index.recording[0]]),
            "part": str(windows.part[0]),
            "incomplete": 0,
            "scale": [1.0] * len(self.header.channels),
            "offset": [0.0] * len(self.header.channels),
            "quality": {},
        }
        return self._write(entry, self._complete_batches(windows, entry))

    def skip(self, name: str, reason: str) -> None:
        """List a file or recording as skipped in the store, with the reason."""
        self._skipped[name] = reason

    def _row_batches(self, count: int) -> Iterator[slice]:
        size = max(1, _WRITTEN_BYTES // self.header.window_bytes)
        return (slice(first, min(first + size, count)) for first in range(0, count, size))

    def _complete_batches(self, windows: Windows, entry: dict[str, Any]) -> Iterator[_Batch]:
        """Yield batches of windows without missing values, and count incomplete windows and faults in `entry`."""
        faults = SignalFaults(self.header.channels)
        for rows in self._row_batches(len(windows)):
            with np.errstate(over="ignore"):
                X = np.ascontiguousarray(windows.read(np.arange(rows.start, rows.stop)), self.header.stored)
            faults.update(X)
            complete = np.isfinite(X).all(axis=(1, 2))
            entry["incomplete"] += int((~complete).sum())
            yield X[complete], windows.start[rows][complete], windows.label[rows][complete]
        entry["quality"] = faults.counts()

    def _write(self, entry: dict[str, Any], batches: Iterable[_Batch]) -> int:
        """Write a recording; if a batch cannot be read, the next recording overwrites what was written."""
        self._file.seek(len(self._head) + self._shape[0] * self.header.window_bytes)
        content = hashlib.sha256(np.array([entry["scale"], entry["offset"]], "<f8").tobytes())
        columns, count = [], 0
        for windows, starts, labels in batches:
            samples = windows.astype(self.header.stored, copy=False).tobytes()
            self._file.write(samples)
            content.update(samples[:_COMPARED_BYTES])
            columns.append((np.full(len(windows), len(self._recordings), np.int32), starts, labels))
            count += len(windows)
        if not count:
            self.skip(entry["name"], "it has no complete window")
            return 0
        content.update(count.to_bytes(8, "little"))
        self._index += columns
        self._recordings[entry["name"]] = {**entry, "windows": count, "content": content.hexdigest()}
        return count

    def _check(self, name: str, labels: NDArray[Any], same: dict[str, tuple[Any, Any]]) -> None:
        if name in self._recordings:
            raise DataError(f"recordings must have different names, but {name!r} occurs twice")
        for what, (actual, expected) in same.items():
            if actual != expected:
                raise DataError(_difference(name, what, actual, expected))
        if len(labels) and not (labels.min() >= -1 and labels.max() < len(self.header.classes)):
            raise DataError(f"{name}: labels must lie between -1 and {len(self.header.classes) - 1}")

    def _finish(self) -> None:
        """Write the header of the samples, the index and the description."""
        if not self._recordings:
            seconds = self.header.length / self.header.fs
            raise DataError(
                f"no recording has a complete window of {seconds:g} s, so the store would be empty: choose shorter "
                "windows (--seconds)"
            )
        self._file.truncate(len(self._head) + self._shape[0] * self.header.window_bytes)
        self._file.seek(0)
        self._file.write(_npy_head(self._shape, self.header.stored))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        recording, start, label = (np.concatenate(column) for column in zip(*self._index, strict=True))
        with open_atomically(self._folder / _INDEX) as file:
            np.savez(file, recording=recording, start=start.astype(np.int64), label=label.astype(np.int32))
        paths = (self._folder / _SAMPLES, self._folder / _INDEX)
        content = {
            "version": _VERSION,
            "polyadic": __version__,
            **asdict(self.header),
            "windows": len(recording),
            "recordings": list(self._recordings.values()),
            "skipped": [{"name": name, "reason": reason} for name, reason in self._skipped.items()],
            "files": {path.name: {"bytes": path.stat().st_size, "sha256": digest(path)} for path in paths},
        }
        text = json.dumps(content | {"checksum": _checksum(content)}, indent=1) + "\n"
        write_atomically(self._folder / _DESCRIPTION, text.encode())
        sync_folder(self._folder)

    def _publish(self) -> None:
        """Rename the complete folder, after moving aside a store that it replaces: folders cannot be swapped."""
        replaced = self.path.with_name(f".{self.path.name}.replaced")
        if self.path.exists():
            shutil.rmtree(replaced, ignore_errors=True)
            self.path.rename(replaced)
        self._folder.rename(self.path)
        sync_folder(self.path.parent)
        shutil.rmtree(replaced, ignore_errors=True)


def _difference(name: str, what: str, actual: Any, expected: Any) -> str:
    """Return how a recording differs from those before it, and what to do."""
    if what == "sampling rate" and actual is not None:
        return (
            f"{name} is sampled at {actual:g} Hz, but the recordings before it at {expected:g} Hz: --fs "
            f"{min(actual, expected):g} --resample polyphase resamples all to one rate, or select files with --pattern"
        )
    if what != "channels":
        return f"{name}: {what} must be {expected!r} as in the store, but is {actual!r}"
    common = [channel for channel in expected if channel in actual]
    options = " ".join(f"--channel {shell_word(channel)}" for channel in common[:_MOST_NAMED])
    more = " …" if len(common) > _MOST_NAMED else ""
    remedy = f"{options}{more} selects the common ones" if common else "they have no channel in common"
    order = " in another order" if set(actual) == set(expected) else ""
    return (
        f"{name} has the channels {listed(actual)}{order}, but the recordings before it have {listed(expected)}: "
        f"{remedy}, or select files with --pattern"
    )
