"""Writing a window store: recording by recording, shard by shard; being killed loses little and spoils nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import numpy as np
from numpy.typing import NDArray

from polyadic.data.recordings import Recording, cut, quality, whole
from polyadic.data.store import (
    DATA_OFFSET,
    INDEX,
    MANIFEST,
    SCHEMA,
    WRITING,
    Header,
    Shard,
    names_of,
    npy_header,
    read_json,
    read_manifest,
    sealed,
    shards_written,
)
from polyadic.data.windows import Windows
from polyadic.errors import DataError, PolyadicError
from polyadic.files import digest, write_atomically

__all__ = ["StoreWriter"]

_SHARD_BYTES = 128 * 2**20
_PIECE = 256
_PARTIAL = ".partial"


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
        self._begin(append)
        self._lock = _locked(self.path)
        for leftover in self.path.glob(f"*{_PARTIAL}"):
            leftover.unlink()
        self.shards = shards_written(self.path, header)
        self.done = names_of(self.shards)
        self._file: IO[bytes] | None = None
        self._recordings: list[dict[str, Any]] = []
        self._index: list[NDArray[Any]] = []
        self.skipped: list[dict[str, str]] = [] if self._earlier is None else list(self._earlier["skipped"])

    def _begin(self, append: bool) -> None:
        """Make sure that the folder is new, or unfinished or to be added to with these very settings."""
        complete, unfinished = (self.path / MANIFEST).exists(), (self.path / WRITING).exists()
        if self.path.exists() and not self.path.is_dir():
            raise PolyadicError(f"path must be a folder for the store, but {self.path.name} is a file")
        if complete and not append and not unfinished:
            raise PolyadicError(
                f"the store {self.path.name} is there already and complete: append to it, or choose another path"
            )
        if append and not complete:
            raise PolyadicError(f"append needs a complete store, but {self.path.name} is none")
        if not complete and not unfinished and self.path.is_dir() and any(self.path.iterdir()):
            raise PolyadicError(f"path must be a new or empty folder, but {self.path.name} holds other files")
        self._earlier = read_manifest(self.path) if complete else None
        if complete or unfinished:
            before = self._earlier if complete else read_json(self.path / WRITING)
            assert before is not None
            _check_same(Header.from_json(before), self.header, self.path.name)
        self.path.mkdir(parents=True, exist_ok=True)
        if not unfinished:
            write_atomically(self.path / WRITING, _text(self.header.to_json()))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.finish()
        finally:
            self._abandon()
            os.close(self._lock)

    def add(self, recording: Recording, starts: NDArray[np.int64], labels: NDArray[np.int32], part: str = "") -> int:
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
        self._check(
            recording.name,
            labels,
            {
                "sampling rate": (recording.fs, self.header.fs),
                "channels": (recording.channels, self.header.channels),
                "units": (recording.units, self.header.units),
                "type": (str(recording.signal.dtype), self.header.dtype),
            },
        )
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
        name, subject, part = str(windows.recording[0]), str(windows.subject[0]), str(windows.part[0])
        shape = (len(self.header.channels), self.header.length)
        self._check(name, windows.label, {"shape": (windows.shape[1:], shape), "rate": (windows.fs, self.header.fs)})
        X = np.ascontiguousarray(windows.X, self.header.stored)
        complete = np.isfinite(X).all(axis=(1, 2))
        ones = np.ones(len(self.header.channels))
        entry = {
            "name": name,
            "subject": subject,
            "part": part,
            "windows": int(complete.sum()),
            "incomplete": int((~complete).sum()),
            "scale": ones.tolist(),
            "offset": (0 * ones).tolist(),
            "quality": {},
        }
        return self._write(entry, [X[complete]], windows.start[complete], windows.label[complete])

    def _write(
        self,
        entry: dict[str, Any],
        pieces: Iterable[NDArray[Any]],
        starts: NDArray[np.int64],
        labels: NDArray[np.int32],
    ) -> int:
        if not len(starts):
            self.skip(entry["name"], "it has no whole window")
            return 0
        file = self._opened()
        for windows in pieces:
            file.write(windows.astype(self.header.stored, copy=False).data.cast("B"))
        rows = np.zeros(len(starts), INDEX)
        rows["recording"], rows["start"], rows["label"] = len(self._recordings), starts, labels
        self._recordings.append(entry)
        self._index.append(rows)
        self.done.add(entry["name"])
        if file.tell() >= self._shard_bytes:
            self._close_shard()
        return len(starts)

    def skip(self, name: str, reason: str) -> None:
        """Note in the manifest that a recording was left out, and why."""
        self.skipped = [entry for entry in self.skipped if entry["name"] != name] + [{"name": name, "reason": reason}]

    def _check(self, name: str, labels: NDArray[np.int32], same: dict[str, tuple[Any, Any]]) -> None:
        if name in self.done:
            raise DataError(f"recordings must have different names, but {name!r} is there twice")
        for what, (came, expected) in same.items():
            if came != expected:
                raise DataError(f"{name}: {what} must be {expected!r} as in the store, but is {came!r}")
        if len(labels) and not (labels.min() >= -1 and labels.max() < len(self.header.classes)):
            raise DataError(f"{name}: labels must lie between -1 and {len(self.header.classes) - 1}")

    def _opened(self) -> IO[bytes]:
        if self._file is None:
            self._file = (self.path / f"{len(self.shards):05d}.npy{_PARTIAL}").open("wb")
            self._file.write(bytes(DATA_OFFSET))
        return self._file

    def _close_shard(self) -> None:
        """Give the shard its head, its index and its name, and at last the description by which it counts."""
        if self._file is None:
            return
        name, index = f"{len(self.shards):05d}", np.concatenate(self._index)
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
        write_atomically(self.path / f"{name}.json", _text(description))
        self.shards.append(Shard.read(self.path, name, self.header))
        self._file, self._recordings, self._index = None, [], []

    def finish(self) -> None:
        """Close the last shard and write the manifest, from which moment on the store is complete."""
        from polyadic import __version__

        self._close_shard()
        if not self.shards:
            raise DataError(f"the store {self.path.name} would be empty: no recording gave a whole window")
        manifest = {
            "schema": SCHEMA,
            "polyadic": __version__,
            **self.header.to_json(),
            "windows": sum(shard.rows for shard in self.shards),
            "shards": [{"name": s.name, "rows": s.rows, "sha256": digest(s.description)} for s in self.shards],
            "skipped": self.skipped,
        }
        write_atomically(self.path / MANIFEST, _text(sealed(manifest)))
        (self.path / WRITING).unlink(missing_ok=True)

    def _abandon(self) -> None:
        if self._file is not None:
            self._file.close()
            Path(self._file.name).unlink(missing_ok=True)
            self._file = None


def _text(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=1) + "\n").encode()


def _check_same(before: Header, now: Header, name: str) -> None:
    """Refuse to go on with other settings than the store was begun with."""
    was, asked = before.to_json(), json.loads(json.dumps(now.to_json()))
    was = json.loads(json.dumps(was))
    differences = [f"{key} was {was[key]!r} and is {asked[key]!r} now" for key in was if was[key] != asked[key]]
    if differences:
        raise PolyadicError(
            f"the store {name} was begun with other settings: {'; '.join(differences)}. "
            "Use the same again, or another path"
        )


def _locked(folder: Path) -> int:
    """A lock on the folder that ends with this process, however it ends."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:  # where there are no such locks, two writers are not kept apart
        pass
    except OSError as error:
        os.close(descriptor)
        raise PolyadicError(f"the store {folder.name} is being written by another process") from error
    return descriptor
