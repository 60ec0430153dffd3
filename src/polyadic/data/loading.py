"""Open windows from a path: a store, or a file of arrays."""

from __future__ import annotations

import os
from pathlib import Path

from polyadic.data.readers.arrays import read_arrays
from polyadic.data.store import WindowStore
from polyadic.data.windows import Windows
from polyadic.errors import PolyadicError

__all__ = ["open_windows"]


def open_windows(path: str | os.PathLike[str], *, fs: float | None = None) -> Windows:
    """Open the windows of a store (a folder), or of a `.npz` or `.npy` file.

    Parameters
    ----------
    path : folder or file
    fs : sampling rate in Hz, in place of the one in the file; not for a store, which knows its sampling rate
    """
    if Path(path).is_dir():
        if fs is not None:
            raise PolyadicError(f"fs is only for .npz and .npy files: the store {Path(path).name} has a sampling rate")
        return WindowStore(path).windows
    windows = read_arrays(path)
    windows.fs = windows.fs if fs is None else fs
    return windows
