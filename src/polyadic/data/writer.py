"""Writing a window store: recording by recording, shard by shard; being killed loses little and spoils nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import numpy as np
from numpy.typing import NDArray

from polyadic.data.recordings import Recording, cut, quality, whole
from polyadic.data.store import (
    DATA_OFFSET,
    INDEX,
    LARGEST,
    MANIFEST,
    SCHEMA,
    WRITING,
    Header,
    Shard,
    WindowStore,
    names_of,
    npy_header,
    read_json,
    sealed,
    shard_name,
    shards_written,
)
from polyadic.data.windows import Windows
from polyadic.errors import DataError, PolyadicError
from polyadic.files import digest, sync_folder, write_atomically
from polyadic.version import __version__

__all__ = ["StoreWriter"]

_SHARD_BYTES = 128 * 2**20
_PIECE = 256
_PARTIAL = ".partial"
_TEMPORARY = ".*.tmp"


class StoreWriter:
    """Writes recordings into a new store, goes on with an unfinished one, or appends to a complete one.

    Used in a `with` block; leaving it without an error completes the store. After an error, or a kill, the store is
    unfinished (or, when appending, as it was), and a writer with the same arguments goes on: `done` has the names of
    the recordings that need not be added again.

    Parameters
    ----------
    path : the folder; it is made if it is not there
    header : what all windows have in common
    append : whether to add to a store that is complete
    shard_bytes : a shard is closed when it has at least that many bytes
    """

    def __init__(
        self, path: str | os.PathLike[str], header: Header, *, append: bool = False, shard_bytes: int = _SHARD_BYTES
    ) -> None:
        self.path, self.header, self._shard_bytes = Path(path), header, shard_bytes
        self.shards: list[Shard] = []
        self.skipped: list[dict[str, str]] = []
        self._file: IO[bytes] | None = None
        self._recordings: list[dict[str, Any]] = []
        self._index: list[NDArray[Any]] = []
        self._failed = False
        if self.path.exists() and not self.path.is_dir():
            raise PolyadicError(f"path must be a folder for the store, but {self.path.name} is a file")
        if append and not (self.path / MANIFEST).exists():
            raise PolyadicError(f"append needs a complete store, but {self.path.name} is none")
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = _locked(self.path)
        try:
            self._begin(append)
        except BaseException:
            self._unlock()
            raise
        self.done = names_of(self.shards)

    def _begin(self, append: bool) -> None:
        """Make sure that the folder is new, or unfinished or to be added to with these very settings."""
        complete, unfinished = (self.path / MANIFEST).exists(), (self.path / WRITING).exists()
        if complete and not append and not unfinished:
            raise PolyadicError(
                f"the store {self.path.name} is there already and complete: append to it, or choose another path"
            )
        if complete:
            earlier = WindowStore(self.path)
            _check_same(earlier.header, self.header, self.path.name)
            self.skipped = earlier.skipped
        elif unfinished:
            _check_same(_begun_with(self.path), self.header, self.path.name)
        elif any(not path.match(_TEMPORARY) for path in self.path.iterdir()):
            raise PolyadicError(f"path must be a new or empty folder, but {self.path.name} holds other files")
        if not unfinished:
            write_atomically(self.path / WRITING, _text(self.header.to_json()))
        if complete or unfinished:
            self.shards = shards_written(self.path, self.header)
        self._remove_leftovers()

    def _remove_leftovers(self) -> None:
        """Take away what belongs to no shard that counts, as a writer that was stopped leaves it."""
        name = shard_name(len(self.shards))
        scraps = [f"*{_PARTIAL}", _TEMPORARY]
        if not (self.path / f"{name}.json").exists():
            scraps += [f"{name}.npy", f"{name}.index.npy"]
        for path in [path for pattern in scraps for path in self.path.glob(pattern)]:
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
                self._abandon()
            finally:
                self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
        self._lock = None

    def add(self, recording: Recording, starts: NDArray[Any], labels: NDArray[Any], part: str = "") -> int:
        """Write the windows of one recording that begin at `starts`; those with missing values are left out.

        Parameters
        ----------
        starts, labels : (n,), first samples and classes (-1 where unknown)
        part : the part of the data its publisher put the recording in

        Returns
        -------
        how many windows were written
        """
        length = self.header.length
        starts, labels = _whole_numbers(recording.name, starts), _whole_numbers(recording.name, labels)
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
        if not (np.abs([recording.scale, recording.offset]) <= LARGEST).all():
            raise DataError(f"{recording.name}: scale and offset must be at most {LARGEST:g}")
        complete = whole(recording, starts, length)
        starts, labels = starts[complete], labels[complete]
        entry = {
            "name": recording.name,
            "subject": recording.subject,
            "part": part,
            "windows": len(starts),
            "incomplete": int((~complete).sum()),
            "scale": recording.scale.tolist(),
            "offset": recording.offset.tolist(),
            "quality": {kind: counts for kind, counts in quality(recording).items() if counts},
        }
        pieces = (cut(recording, starts[first : first + _PIECE], length) for first in range(0, len(starts), _PIECE))
        return self._write(entry, pieces, starts, labels)

    def add_windows(self, windows: Windows) -> int:
        """Write windows of one recording that are cut already.

        Returns
        -------
        how many windows were written
        """
        if not len(windows):
            raise DataError("windows of a recording must be at least one, but are none")
        name, subject, part = str(windows.recording[0]), str(windows.subject[0]), str(windows.part[0])
        for what in ("recording", "subject", "part"):
            if len(set(getattr(windows, what).tolist())) > 1:
                raise DataError(f"{name}: windows that are added at once must be of one {what}")
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
        with np.errstate(over="ignore"):
            X = np.ascontiguousarray(windows.X, self.header.stored)
        complete = np.isfinite(X).all(axis=(1, 2))
        ones = np.ones(len(self.header.channels))
        joined = X.swapaxes(0, 1).reshape(len(ones), -1).astype(X.dtype.newbyteorder("="), copy=False)
        looked_at = Recording(
            name, subject, self.header.fs, self.header.channels, self.header.units, joined, ones, 0 * ones
        )
        entry = {
            "name": name,
            "subject": subject,
            "part": part,
            "windows": int(complete.sum()),
            "incomplete": int((~complete).sum()),
            "scale": ones.tolist(),
            "offset": (0 * ones).tolist(),
            "quality": {kind: counts for kind, counts in quality(looked_at).items() if counts},
        }
        return self._write(entry, [X[complete]], windows.start[complete], windows.label[complete])

    def _write(
        self,
        entry: dict[str, Any],
        pieces: Iterable[NDArray[Any]],
        starts: NDArray[np.int64],
        labels: NDArray[Any],
    ) -> int:
        if not len(starts):
            self.skip(entry["name"], "it has no whole window")
            return 0
        self._failed = True  # until all is written: half a recording must not count
        file = self._opened()
        for windows in pieces:
            file.write(windows.astype(self.header.stored, copy=False).data.cast("B"))
        rows = np.zeros(len(starts), INDEX)
        rows["recording"], rows["start"], rows["label"] = len(self._recordings), starts, labels
        self._recordings.append(entry)
        self._index.append(rows)
        self.done.add(entry["name"])
        self.skipped = [left_out for left_out in self.skipped if left_out["name"] != entry["name"]]
        if file.tell() >= self._shard_bytes:
            self._close_shard()
        self._failed = False
        return len(starts)

    def skip(self, name: str, reason: str) -> None:
        """Note in the manifest that a recording was left out, and why."""
        self.skipped = [entry for entry in self.skipped if entry["name"] != name] + [{"name": name, "reason": reason}]

    def _check(self, name: str, labels: NDArray[Any], same: dict[str, tuple[Any, Any]]) -> None:
        self._check_unfailed()
        if name in self.done:
            raise DataError(f"recordings must have different names, but {name!r} is there twice")
        for what, (came, expected) in same.items():
            if came != expected:
                raise DataError(f"{name}: {what} must be {expected!r} as in the store, but is {came!r}")
        if len(labels) and not (labels.min() >= -1 and labels.max() < len(self.header.classes)):
            raise DataError(f"{name}: labels must lie between -1 and {len(self.header.classes) - 1}")

    def _check_unfailed(self) -> None:
        if self._failed:
            raise PolyadicError(f"writing to the store {self.path.name} failed before: go on with a new writer")

    def _opened(self) -> IO[bytes]:
        if self._file is None:
            self._file = (self.path / f"{shard_name(len(self.shards))}.npy{_PARTIAL}").open("wb")
            self._file.write(bytes(DATA_OFFSET))
        return self._file

    def _close_shard(self) -> None:
        """Give the shard its head, its index and its name, and at last the description by which it counts."""
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
        """Close the last shard and write the manifest, from which moment on the store is complete."""
        self._check_unfailed()
        self._close_shard()
        if not self.shards:
            (self.path / WRITING).unlink(missing_ok=True)  # nothing to go on with: other settings may do better
            raise DataError(f"the store {self.path.name} would be empty: no recording gave a whole window")
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

    def _abandon(self) -> None:
        if self._file is not None:
            with suppress(OSError):  # a full disk has no room for what is still in the buffer
                self._file.close()
            self._file = None
        self._remove_leftovers()


def _text(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=1) + "\n").encode()


def _check_same(before: Header, now: Header, name: str) -> None:
    """Refuse to go on with other settings than the store was begun with."""
    was, asked = before.to_json(), now.to_json()
    differences = [f"{key} was {was[key]!r} and is {asked[key]!r} now" for key in was if was[key] != asked[key]]
    if differences:
        raise PolyadicError(
            f"the store {name} was begun with other settings: {'; '.join(differences)}. "
            "Use the same again, or another path"
        )


def _begun_with(folder: Path) -> Header:
    try:
        return Header.from_json(read_json(folder / WRITING))
    except (KeyError, TypeError, PolyadicError) as error:
        raise DataError(
            f"{WRITING} of the store {folder.name} is damaged: {error}. Remove the folder, and prepare it again"
        ) from error


def _locked(folder: Path) -> int | None:
    """A lock on the folder that ends with this process, however it ends."""
    if os.name == "nt":  # there are no such locks there: two writers are not kept apart
        return None
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise PolyadicError(f"the store {folder.name} is being written by another process") from error
    except OSError:  # nor on some network disks
        pass
    return descriptor


def _whole_numbers(name: str, column: NDArray[Any]) -> NDArray[np.int64]:
    column = np.asarray(column)
    if column.ndim != 1 or (column.dtype.kind not in "iu" and len(column)):
        raise DataError(f"{name}: starts and labels must be lists of whole numbers, but are {column.dtype}")
    return column.astype(np.int64)
