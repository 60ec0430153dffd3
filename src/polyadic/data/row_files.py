"""Read rows of arrays in files by position, without memory maps and with few files open at once.

Memory maps would need as much address space as the files have bytes, which clusters limit, and truncating a mapped file
kills the process.
"""

from __future__ import annotations

import errno
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyadic.errors import PolyadicError

__all__ = ["OpenFile", "OpenFiles", "RowFile", "row_runs"]

_MOST_OPEN = 64


class OpenFile:
    """A file that any thread can read at any offset; it is closed when the last reference to it is gone."""

    def __init__(self, path: str) -> None:
        self._descriptor = -1
        self._descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0))

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def read_into(self, buffer: NDArray[Any], offset: int) -> None:
        """Fill a contiguous array with the bytes of the file from `offset` on.

        Raises
        ------
        EOFError : if the file is too short
        """
        room = buffer.data.cast("B")
        missing = len(room)
        while count := _read_at(self._descriptor, room, offset):
            missing -= count
            if not missing:
                return
            room, offset = room[count:], offset + count
        if missing:
            raise EOFError(f"the file ends at byte {offset}")

    def prefetch(self) -> None:
        """Ask the operating system to prefetch the whole file, if it supports this."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_WILLNEED)


_SEEKING = threading.Lock()


def _read_at(descriptor: int, room: memoryview, offset: int) -> int:
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, [room], offset)
    with _SEEKING:  # without preadv, as on Windows, seek and read are two calls
        os.lseek(descriptor, offset, os.SEEK_SET)
        content = os.read(descriptor, len(room))
    room[: len(content)] = content
    return len(content)


class OpenFiles:
    """Cache of the files read most recently, with a maximum size, since systems limit the number of open files."""

    def __init__(self) -> None:
        self._files: OrderedDict[str, OpenFile] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._files)

    def __reduce__(self) -> tuple[type[OpenFiles], tuple[()]]:
        return OpenFiles, ()  # another process must open the files itself

    def open(self, path: str) -> OpenFile:
        """Return a file, opened if it is not in the cache."""
        with self._lock:
            file = self._files.get(path)
            if file is None:
                file = self._files[path] = self._open_new(path)
                while len(self._files) > _MOST_OPEN:
                    self._files.popitem(last=False)
            else:
                self._files.move_to_end(path)
            return file

    def _open_new(self, path: str) -> OpenFile:
        try:
            return OpenFile(path)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._files:
                raise
            self._files.clear()
            return OpenFile(path)


def row_runs(rows: NDArray[np.intp]) -> Iterator[tuple[slice, int]]:
    """Yield runs of consecutive rows: the position of each run in `rows`, and its first row.

    Examples
    --------
    >>> list(row_runs(np.array([4, 5, 6, 2])))
    [(slice(0, 3, None), 4), (slice(3, 4, None), 2)]
    """
    ends = [*(np.flatnonzero(np.diff(rows) != 1) + 1).tolist(), len(rows)]
    first = 0
    for end in ends if len(rows) else ():
        yield slice(first, end), int(rows[first])
        first = end


class RowFile:
    """An array in a file, from which any rows can be read; the file stays open, so that it may be deleted meanwhile.

    Parameters
    ----------
    path : path of the file
    shape, dtype : shape and dtype of the array, in C order
    offset : offset of the array in the file, in bytes
    """

    on_disk = True

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: np.dtype[Any], offset: int) -> None:
        self.path, self.shape, self._stored, self._offset = str(path.absolute()), shape, dtype, offset
        self._file: OpenFile | None = OpenFile(self.path)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the rows that `read` returns, in native byte order."""
        return self._stored.newbyteorder("=")

    def __len__(self) -> int:
        return self.shape[0]

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_file": None}

    def read(self, rows: NDArray[np.intp]) -> NDArray[Any]:
        """Read rows: (n, …)."""
        rows = np.asarray(rows, np.intp)
        if len(rows) and not (rows.min() >= 0 and rows.max() < len(self)):
            raise PolyadicError(
                f"rows must lie between 0 and {len(self) - 1}, but range from {rows.min()} to {rows.max()}"
            )
        file = self._file = self._file or OpenFile(self.path)
        result = np.empty((len(rows), *self.shape[1:]), self._stored)
        size = self._stored.itemsize * int(np.prod(self.shape[1:]))
        for places, first in row_runs(rows):
            file.read_into(result[places], self._offset + first * size)
        return result.astype(self.dtype, copy=False)
