"""Read windows from files of arrays: `.npz`, `.npy` and MATLAB's `.mat`. Large arrays are memory-mapped.

The sizes in a header are checked against the size of the file before memory is allocated. Pickled objects, which could
run code, are never loaded.
"""

from __future__ import annotations

import os
import struct
import warnings
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from polyadic.data.labels import as_text
from polyadic.data.readers.common import check_file, check_inflation
from polyadic.data.store import WindowStore
from polyadic.data.windows import Windows
from polyadic.errors import DataError, PolyadicError

ARRAYS = (".npz", ".npy", ".mat")
"""Extensions of files of windows."""

_IN_MEMORY = 64 * 2**20
"""Size in bytes above which X stays on disk."""

_COLUMNS = ("y", "label", "subject", "recording", "start", "exp_pos")
_NAMES = ("channels", "units", "classes")
_KEYS = {"X", "fs", *_NAMES, *_COLUMNS}
_KEYS |= {f"{key}_{part}" for key in ("X", *_COLUMNS) for part in ("train", "test")}


def open_windows(path: str | os.PathLike[str], *, fs: float | None = None) -> Windows:
    """Open the windows of a store (a folder), of a `.npz` or `.mat` file, or of a `.npy` file that contains only X.

    `fs` is the sampling rate in Hz, in place of the one in the file; not for a store, which knows its sampling rate.

    A file contains `X` (N, channels, time), NaN for missing samples, and optionally `y` or `label`, `subject`,
    `recording` and `start`, each (N,). Data with a predefined split contains `X_train` and `X_test` instead, with
    optional `y_…`, `label_…`, `subject_…` and `exp_pos_…` (N, 2), the recording and the first sample. A column that is
    present in one part only is unknown in the other. `fs`, `channels`, `units` and `classes` are optional; labels may
    be strings. Arrays with other names are ignored.

    An uncompressed X of more than 64 MiB in a `.npz` or `.npy` file is memory-mapped, not loaded. A file that is
    damaged, contains Python objects, or would take far more memory than its size is an error.
    """
    path = Path(path)
    if path.is_dir():
        if fs is not None:
            raise PolyadicError(f"fs is only for files of arrays: the store {path.name} has a sampling rate")
        return WindowStore(path).windows
    suffix = path.suffix.lower()
    if suffix not in ARRAYS:
        raise PolyadicError(f"path must end in {', '.join(ARRAYS[:-1])} or {ARRAYS[-1]}, but is {path.name}")
    size = check_file(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about headers of old versions, which are either read or rejected
            if suffix == ".npy":
                with path.open("rb") as file:
                    arrays = {"X": _load(file, path, size, 0)}
            else:
                arrays = _read_npz(path, size) if suffix == ".npz" else _read_mat(path, size)
            return _build_windows(arrays if fs is None else {**arrays, "fs": np.array(fs)})
    except PolyadicError as error:
        raise DataError(f"{path.name}: {error}") from error
    except PermissionError:
        raise
    except Exception as error:  # numpy, zipfile and scipy raise many types on damaged files
        raise DataError(f"{path.name} cannot be read: {error}") from error


def _read_npz(path: Path, size: int) -> dict[str, Any]:
    """Return the arrays of a `.npz` file that have a known name, by name."""
    arrays: dict[str, Any] = {}
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            key = info.filename.removesuffix(".npy")
            if key in _KEYS:
                check_inflation(key, info.file_size, size)
                offset = None
                if info.compress_type == zipfile.ZIP_STORED:
                    with path.open("rb") as raw:  # the content follows the local header of the member
                        raw.seek(info.header_offset)
                        offset = info.header_offset + 30 + sum(struct.unpack("<26x2H", raw.read(30)))
                with archive.open(info) as file:
                    arrays[key] = _load(file, path, info.file_size, offset)
    return arrays


def _load(file: IO[bytes], path: Path, size: int, offset: int | None) -> NDArray[Any]:
    """Load an array in the `.npy` format after checking its size; map it if it is large and has an offset in `path`."""
    version = np.lib.format.read_magic(file)
    headers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    shape, fortran_order, dtype = headers[version](file)
    if dtype.kind not in "fiuUS":
        raise DataError(f"arrays must hold numbers or strings, but hold {dtype}")
    declared, held = dtype.itemsize * int(np.prod(shape, dtype=object)), size - file.tell()
    if min(shape, default=1) < 0 or declared != held:
        raise DataError(f"the header claims {declared} bytes, but the file holds {held}")
    if offset is not None and len(shape) == 3 and declared > _IN_MEMORY and dtype.isnative and not fortran_order:
        return np.memmap(path, dtype, "r", offset + file.tell(), shape)
    array = np.frombuffer(file.read(), dtype).reshape(shape, order="F" if fortran_order else "C")
    return np.array(array, dtype.newbyteorder("="))


def _read_mat(path: Path, size: int) -> dict[str, Any]:
    """Return the arrays of a MATLAB file (up to version 7) that have a known name, as numpy would have written them."""
    from scipy.io import loadmat, whosmat

    try:
        shapes = {name: shape for name, shape, _ in whosmat(path)}
    except NotImplementedError as error:
        raise DataError("MATLAB 7.3 files are not read: save it with save(..., '-v7')") from error
    for name, shape in shapes.items():
        check_inflation(name, 8 * int(np.prod(shape, dtype=object)), size, "save it without compression")
    arrays = {}
    for key, array in loadmat(path, variable_names=sorted(_KEYS & shapes.keys())).items():
        if key in _KEYS:
            if array.dtype.kind == "O":  # cells of text
                array = np.array([str(np.squeeze(cell)) if np.size(cell) else "" for cell in array.ravel()])
            column = array if key.startswith(("X", "exp_pos")) else array.ravel()
            arrays[key] = np.char.rstrip(column) if column.dtype.kind == "U" else column
    return arrays


def _build_windows(arrays: dict[str, Any]) -> Windows:
    """Build windows from the arrays of a file, by name; `Windows` checks their shapes and values."""
    part = None
    if "X" not in arrays:
        if not {"X_train", "X_test"} <= arrays.keys():
            raise DataError("the file must contain X, or X_train and X_test, but contains neither")
        part = np.repeat(["train", "test"], [len(arrays["X_train"]), len(arrays["X_test"])])
        arrays = {**arrays, **_join_parts(arrays)}
    if "y" in arrays and "label" in arrays:
        raise DataError("labels must be named y or label, but the file has both")
    if "exp_pos" in arrays:
        position = arrays["exp_pos"]
        if position.ndim != 2 or position.shape[1] != 2 or {"recording", "start"} & arrays.keys():
            raise DataError(f"exp_pos must have shape (N, 2), without recording or start, but has {position.shape}")
        arrays = {**arrays, "recording": position[:, 0], "start": position[:, 1]}
    X, start, fs = arrays["X"], arrays.get("start"), arrays.get("fs")
    if len(X.shape) != 3 or 0 in X.shape:
        raise DataError(f"X must have shape (N, channels, time), but has {X.shape}")
    if X.dtype.kind not in "fiu" or X.dtype.itemsize > 8:
        raise DataError(f"X must hold real numbers of at most 64 bits, but holds {X.dtype}")
    if start is not None and start.dtype.kind == "f" and np.array_equal(start, np.rint(start)):
        start = start.astype(np.int64)  # MATLAB has no integers by default
    if fs is not None and (fs.size != 1 or fs.dtype.kind not in "fiu"):
        raise DataError(f"fs must be one positive number in Hz, but is an array of shape {fs.shape}")
    # A single string is one name, or one unit for all channels.
    names: dict[str, Any] = {
        key: tuple(map(as_text, np.atleast_1d(arrays[key]).tolist())) for key in _NAMES if key in arrays
    }
    if len(names.get("units", ())) == 1:
        names["units"] *= X.shape[1]
    return Windows(
        X,
        None if fs is None else float(fs.ravel()[0]),
        subject=arrays.get("subject"),
        recording=arrays.get("recording"),
        start=start,
        label=arrays.get("y", arrays.get("label")),
        part=part,
        **names,
    )


def _join_parts(arrays: dict[str, Any]) -> dict[str, Any]:
    """Concatenate the columns of both parts, train first; a column missing in one part is filled with -1 or ""."""
    sizes = [len(arrays["X_train"]), len(arrays["X_test"])]
    joined: dict[str, Any] = {}
    for key in ("X", *_COLUMNS):
        pair = [arrays.get(f"{key}_train"), arrays.get(f"{key}_test")]
        known = [column for column in pair if column is not None]
        if known:
            fill: Any = "" if known[0].dtype.kind in "US" else -1
            unknown = (np.full((size, *known[0].shape[1:]), fill) for size in sizes)
            parts = [other if column is None else column for column, other in zip(pair, unknown, strict=True)]
            if parts[0].shape[1:] != parts[1].shape[1:]:
                both = f"{parts[0].shape} and {parts[1].shape}"
                raise DataError(f"{key}_train and {key}_test must have rows of the same shape, but are {both}")
            joined[key] = np.concatenate(parts)
    return joined
