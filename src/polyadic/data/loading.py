"""Windows from a path: a store, or a file of arrays."""

from __future__ import annotations

import os
from pathlib import Path

from polyadic.data.readers.arrays import read_arrays
from polyadic.data.store import WindowStore
from polyadic.data.windows import Windows
from polyadic.errors import PolyadicError

__all__ = ["open_windows"]


def open_windows(path: str | os.PathLike[str], *, fs: float | None = None) -> Windows:
    """The windows of a store (a folder), or of a `.npz` or `.npy` file.

    Parameters
    ----------
    path : the folder or file
    fs : sampling rate in Hz, if the file does not give it or gives it wrongly; a store has its own
    """
    if Path(path).is_dir():
        if fs is not None:
            raise PolyadicError(f"fs is for files of arrays, but {Path(path).name} is a store and has its own rate")
        return WindowStore(path).windows
    windows = read_arrays(path)
    windows.fs = windows.fs if fs is None else fs
    return windows
