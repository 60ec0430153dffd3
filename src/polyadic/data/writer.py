"""Write a window store recording by recording and shard by shard, so that a killed writer can be resumed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from polyadic._util.files import digest, sync_folder, write_atomically
from polyadic._util.version import __version__
from polyadic.data.reading import listed, shell_word
from polyadic.data.recordings import Recording, SignalFaults, complete_windows, cut_windows, quality
from polyadic.data.store import WindowStore
from polyadic.data.store_files import (
    DATA_OFFSET,
    INDEX,
    LARGEST,
    MANIFEST,
    SCHEMA,
    WRITING,
    Header,
    Shard,
    npy_header,
    read_shards,
    read_unfinished_header,
    sealed,
    shard_name,
)
from polyadic.data.windows import Windows
from polyadic.errors import DataError, PolyadicError

__all__ = ["StoreWriter"]

_SHARD_BYTES = 128 * 2**20
_BLOCK_WINDOWS = 256
_BLOCK_BYTES = 8 * 2**20
_COMPARED_BYTES = 2**16
"""Bytes of each block of windows that are hashed to find identical recordings."""
_MOST_NAMED = 6
_PARTIAL = ".partial"
_TEMPORARY = ".*.tmp"


class _Block(NamedTuple):
    """Complete windows (n, channels, time) of a recording, with their starts and labels, (n,) each."""

    windows: NDArray[Any]
    starts: NDArray[np.int64]
    labels: NDArray[Any]


def _compared(name: str, what: str, actual: Any, expected: Any) -> str:
    """Return how a recording differs from those before it and what to do, or "" if there is no specific advice."""
    if what == "sampling rate":
        return (
            f"{name} is sampled at {actual:g} Hz, but the recordings before it at {expected:g} Hz: --fs "
            f"{min(actual, expected):g} --resample polyphase resamples all to one rate, or select files with --pattern"
        )
    if what != "channels":
        return ""
    common = [channel for channel in expected if channel in actual]
    options = " ".join(f"--channel {shell_word(channel)}" for channel in common[:_MOST_NAMED])
    more = " …" if len(common) > _MOST_NAMED else ""
    helps = f"{options}{more} selects the common ones" if common else "they have no channel in common"
    order = " in another order" if set(actual) == set(expected) else ""
    return (
        f"{name} has the channels {listed(actual)}{order}, but the recordings before it have {listed(expected)}: "
        f"{helps}, or select files with --pattern"
    )


class StoreWriter:
    """Writer of recordings to a new store, which can also resume an unfinished store or append to a complete one.

    Use it in a `with` block; leaving the block without an error completes the store. After an error, or if the process
    is killed, the store is unfinished (or unchanged, when appending), and a writer with the same arguments resumes.
    `done` has the names of the recordings that need not be added again.

    Parameters
    ----------
    path : folder of the store; created if it does not exist
    header : properties that all windows have in common
    append : whether to append to a complete store
    shard_bytes : size in bytes from which a shard is closed
    """

    def __init__(
        self, path: str | os.PathLike[str], header: Header, *, append: bool = False, shard_bytes: int = _SHARD_BYTES
    ) -> None:
        self.path, self.header, self._shard_bytes = Path(path).absolute(), header, shard_bytes
        self.shards: list[Shard] = []
        self.skipped: list[dict[str, str]] = []
        self._file: IO[bytes] | None = None
        self._recordings: list[dict[str, Any]] = []
        self._index: list[NDArray[Any]] = []
        self._failed = False
        if self.path.exists() and not self.path.is_dir():
            raise PolyadicError(f"path must be a folder for the store, but {self.path.name} is a file")
        if append and not (self.path / MANIFEST).exists():
            raise PolyadicError(f"append needs a complete store, but {self.path.name} is not one")
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = _lock_folder(self.path)
        try:
            self._begin(append)
        except BaseException:
            self._unlock()
            raise
        self.done = {str(entry["name"]) for shard in self.shards for entry in shard.recordings}

    def _begin(self, append: bool) -> None:
        """Check that the folder is new, or has a store with the same settings to resume or append to."""
        complete, unfinished = (self.path / MANIFEST).exists(), (self.path / WRITING).exists()
        if complete and not append and not unfinished:
            raise PolyadicError(
                f"the store {self.path.name} already exists and is complete: append to it, or choose another path"
            )
        if complete:
            earlier = WindowStore(self.path)
            _check_same(earlier.header, self.header, self.path.name)
            self.skipped = earlier.skipped
        elif unfinished:
            _check_same(read_unfinished_header(self.path), self.header, self.path.name)
        elif any(not path.match(_TEMPORARY) for path in self.path.iterdir()):
            raise PolyadicError(f"path must be a new or empty folder, but {self.path.name} contains other files")
        if not unfinished:
            write_atomically(self.path / WRITING, _text(self.header.to_json()))
        if complete or unfinished:
            self.shards = read_shards(self.path, self.header)
        self._remove_leftovers()

    def _remove_leftovers(self) -> None:
        """Remove the files of an incomplete shard that a stopped writer has left behind."""
        name = shard_name(len(self.shards))
        leftovers = [f"*{_PARTIAL}", _TEMPORARY]
        if not (self.path / f"{name}.json").exists():
            leftovers += [f"{name}.npy", f"{name}.index.npy"]
        for path in [path for pattern in leftovers for path in self.path.glob(pattern)]:
            path.unlink()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.finish()
        finally:
            try:
                self._close_unfinished()
            finally:
                self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
        self._lock = None

    def add(
        self,
        recording: Recording,
        starts: NDArray[Any],
        labels: NDArray[Any],
        part: str = "",
        *,
        subject_from: str = "",
        source: str = "",
    ) -> int:
        """Write the windows of one recording that begin at `starts`; windows with missing values are left out.

        Parameters
        ----------
        starts, labels : (n,), first samples and classes (-1 where unknown)
        part : part of a published split that the recording belongs to
        subject_from : where the subject was found; see `polyadic.data.subjects`
        source : fingerprint of the files of the recording, to recognise them when the store is appended to

        Returns
        -------
        the number of windows written
        """
        length = self.header.length
        starts, labels = _as_integers(recording.name, starts), _as_integers(recording.name, labels)
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
            _compared,
        )
        last = recording.signal.shape[1] - length
        if len(starts) and not (starts.min() >= 0 and starts.max() <= last):
            raise DataError(
                f"{recording.name}: windows must begin between samples 0 and {last}, but begin at {starts.min()} to "
                f"{starts.max()}"
            )
        if not (np.abs([recording.scale, recording.offset]) <= LARGEST).all():
            raise DataError(f"{recording.name}: scale and offset must be at most {LARGEST:g}")
        complete = complete_windows(recording, starts, length)
        starts, labels = starts[complete], labels[complete]
        recorded = recording.elapsed_samples(starts)
        blocks = (slice(first, first + _BLOCK_WINDOWS) for first in range(0, len(starts), _BLOCK_WINDOWS))
        entry = {
            "name": recording.name,
            "subject": recording.subject,
            "subject_from": subject_from,
            "part": part,
            "source": source,
            "incomplete": int((~complete).sum()),
            "scale": recording.scale.tolist(),
            "offset": recording.offset.tolist(),
            "quality": {kind: counts for kind, counts in quality(recording).items() if counts},
            **({"rates": list(recording.rates)} if recording.rates else {}),
            **({"began": recording.began} if recording.began else {}),
        }
        windows = (
            _Block(cut_windows(recording, starts[rows], length), recorded[rows], labels[rows]) for rows in blocks
        )
        return self._write(entry, windows)

    def add_windows(self, windows: Windows, name: str | None = None, *, source: str = "") -> int:
        """Write the windows of one recording, already cut, block by block; windows with missing values are left out.

        Parameters
        ----------
        name : name of the recording, in place of the name in the windows
        source : as for `add`

        Returns
        -------
        the number of windows written
        """
        if not len(windows):
            raise DataError("windows of a recording must have at least one window, but are empty")
        own, subject, part = str(windows.recording[0]), str(windows.subject[0]), str(windows.part[0])
        name = own if name is None else name
        for what in ("recording", "subject", "part"):
            if len(set(getattr(windows, what).tolist())) > 1:
                raise DataError(f"{name}: windows added in one call must have the same {what}")
        self._check(
            name,
            windows.label,
            {
                "shape": (windows.shape[1:], (len(self.header.channels), self.header.length)),
                "sampling rate": (windows.fs, self.header.fs),
                "channels": (windows.channels or self.header.channels, self.header.channels),
                "units": (windows.units or self.header.units, self.header.units),
                "type": ("int16" if windows.dtype == np.int16 else "float32", self.header.dtype),
            },
        )
        channels = len(self.header.channels)
        entry: dict[str, Any] = {
            "name": name,
            "subject": subject,
            "subject_from": str(windows.index.subject_sources[windows.index.recording[0]]),
            "part": part,
            "source": source,
            "incomplete": 0,
            "scale": [1.0] * channels,
            "offset": [0.0] * channels,
            "quality": {},
        }
        return self._write(entry, self._checked_blocks(windows, entry))

    def _checked_blocks(self, windows: Windows, entry: dict[str, Any]) -> Iterator[_Block]:
        """Yield blocks of windows without missing values, and count incomplete windows and faults in `entry`."""
        faults = SignalFaults(self.header.channels)
        size = max(1, _BLOCK_BYTES // self.header.window_bytes)
        for first in range(0, len(windows), size):
            rows = np.arange(first, min(first + size, len(windows)))
            with np.errstate(over="ignore"):
                X = np.ascontiguousarray(windows.read(rows), self.header.stored)
            faults.update(X)
            complete = np.isfinite(X).all(axis=(1, 2))
            entry["incomplete"] += int((~complete).sum())
            yield _Block(X[complete], windows.start[rows][complete], windows.label[rows][complete])
        entry["quality"] = faults.counts()

    def _write(self, entry: dict[str, Any], blocks: Iterable[_Block]) -> int:
        """Write a recording; if a block cannot be read or written, the whole recording is discarded."""
        index = []
        content = hashlib.sha256(np.array([entry["scale"], entry["offset"]], "<f8").tobytes())
        self._failed = True  # until everything is written: a partial recording is not valid
        for block in blocks:
            if not len(block.windows):
                continue
            samples = block.windows.astype(self.header.stored, copy=False).data.cast("B")
            self._open_shard().write(samples)
            content.update(samples[:_COMPARED_BYTES])
            rows = np.zeros(len(block.windows), INDEX)
            rows["recording"], rows["start"], rows["label"] = len(self._recordings), block.starts, block.labels
            index.append(rows)
        count = sum(map(len, index))
        if not count:
            self._failed = False
            self.skip(entry["name"], "it has no complete window")
            return 0
        content.update(count.to_bytes(8, "little"))
        self._recordings.append({**entry, "windows": count, "content": content.hexdigest()})
        self._index += index
        self.done.add(entry["name"])
        self.skipped = [left_out for left_out in self.skipped if left_out["name"] != entry["name"]]
        if self._open_shard().tell() >= self._shard_bytes:
            self._close_shard()
        self._failed = False
        return count

    def skip(self, name: str, reason: str) -> None:
        """List a file or recording as skipped in the manifest, with the reason."""
        self.skipped = [entry for entry in self.skipped if entry["name"] != name] + [{"name": name, "reason": reason}]

    def _check(
        self,
        name: str,
        labels: NDArray[Any],
        same: dict[str, tuple[Any, Any]],
        worded: Callable[[str, str, Any, Any], str] | None = None,
    ) -> None:
        self._check_unfailed()
        if name in self.done:
            raise DataError(f"recordings must have different names, but {name!r} occurs twice")
        for what, (actual, expected) in same.items():
            if actual != expected:
                words = worded(name, what, actual, expected) if worded is not None else ""
                raise DataError(words or f"{name}: {what} must be {expected!r} as in the store, but is {actual!r}")
        if len(labels) and not (labels.min() >= -1 and labels.max() < len(self.header.classes)):
            raise DataError(f"{name}: labels must lie between -1 and {len(self.header.classes) - 1}")

    def _check_unfailed(self) -> None:
        if self._failed:
            raise PolyadicError(f"an earlier write to the store {self.path.name} failed: resume with a new StoreWriter")

    def _open_shard(self) -> IO[bytes]:
        if self._file is None:
            self._file = (self.path / f"{shard_name(len(self.shards))}.npy{_PARTIAL}").open("wb")
            self._file.write(bytes(DATA_OFFSET))
        return self._file

    def _close_shard(self) -> None:
        """Write the header and the index of the shard, rename it, and write the description that makes it valid."""
        if self._file is None:
            return
        self._failed = True
        name, index = shard_name(len(self.shards)), np.concatenate(self._index)
        shape = (len(index), len(self.header.channels), self.header.length)
        self._file.seek(0)
        self._file.write(npy_header(shape, self.header.stored))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        data, column = self.path / f"{name}.npy", self.path / f"{name}.index.npy"
        Path(self._file.name).replace(data)
        write_atomically(column, npy_header(index.shape, INDEX) + index.tobytes())
        description = {
            "rows": len(index),
            "recordings": self._recordings,
            "sha256": {path.name: digest(path) for path in (data, column)},
        }
        sync_folder(self.path)
        write_atomically(self.path / f"{name}.json", _text(sealed(description)))
        self.shards.append(Shard.read(self.path, name, self.header))
        self._file, self._recordings, self._index = None, [], []
        self._failed = False

    def finish(self) -> None:
        """Close the last shard and write the manifest, which makes the store complete."""
        self._check_unfailed()
        self._close_shard()
        if not self.shards:
            (self.path / WRITING).unlink(missing_ok=True)  # nothing to resume: allow other settings next time
            seconds = self.header.length / self.header.fs
            raise DataError(
                f"no recording has a complete window of {seconds:g} s, so the store would be empty: choose shorter "
                "windows (--seconds)"
            )
        manifest = {
            "schema": SCHEMA,
            "polyadic": __version__,
            **self.header.to_json(),
            "windows": sum(shard.rows for shard in self.shards),
            "shards": [{"name": s.name, "rows": s.rows, "sha256": digest(s.description)} for s in self.shards],
            "skipped": self.skipped,
        }
        sync_folder(self.path)
        write_atomically(self.path / MANIFEST, _text(sealed(manifest)))
        sync_folder(self.path)
        (self.path / WRITING).unlink(missing_ok=True)

    def _close_unfinished(self) -> None:
        if self._file is not None:
            with suppress(OSError):  # on a full disk, the buffer cannot be flushed
                self._file.close()
            self._file = None
        self._remove_leftovers()


def _text(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=1) + "\n").encode()


def _check_same(before: Header, now: Header, name: str) -> None:
    """Raise an error if the settings differ from those of the store."""
    was, asked = before.to_json(), now.to_json()
    differences = [f"{key} was {was[key]!r} and is {asked[key]!r} now" for key in was if was[key] != asked[key]]
    if differences:
        raise PolyadicError(
            f"the store {name} was created with other settings: {'; '.join(differences)}. "
            "Use the same settings again, or another path"
        )


def _lock_folder(folder: Path) -> int | None:
    """Lock the folder and return the descriptor that holds the lock; the lock is released when the process ends."""
    if os.name == "nt":  # no such locks: a second writer is not detected
        return None
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise PolyadicError(f"the store {folder.name} is being written by another process") from error
    except OSError:  # some network file systems have no locks
        pass
    return descriptor


def _as_integers(name: str, column: NDArray[Any]) -> NDArray[np.int64]:
    column = np.asarray(column)
    if column.ndim != 1 or (column.dtype.kind not in "iu" and len(column)):
        raise DataError(f"{name}: starts and labels must be lists of whole numbers, but are {column.dtype}")
    return column.astype(np.int64)
