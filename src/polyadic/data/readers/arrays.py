"""Read windows from `.npz` and `.npy` files. Large arrays stay on disk and are read on demand.

The sizes in a header are checked against the size of the file before memory is allocated. Pickled objects, which could
run code, are never loaded.
"""

from __future__ import annotations

import errno
import lzma
import os
import struct
import tokenize
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyadic._util.files import check_regular_file
from polyadic.data.readables import Concatenated, as_readable
from polyadic.data.readers.compression import check_inflation
from polyadic.data.windows import Windows
from polyadic.errors import DataError, PolyadicError

__all__ = ["read_arrays"]

_DAMAGE = (
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    EOFError,
    MemoryError,
    OverflowError,
    RecursionError,
    RuntimeError,
    SyntaxError,
    NotImplementedError,
    tokenize.TokenError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
)
"""Exceptions that numpy and zipfile raise on damaged files and on files of another format."""

_DEFLATE_LIMIT = 1032
"""Maximum compression ratio of deflate."""

_IN_MEMORY = 64 * 2**20
"""Size in bytes above which X stays on disk."""

_CHUNK = 2**20

_Samples = NDArray[Any] | Concatenated


def read_arrays(path: str | os.PathLike[str]) -> Windows:
    """Read windows from a `.npz` file, or from a `.npy` file that contains only X.

    A `.npz` file contains `X` (N, channels, time) and optionally `y` or `label`, `subject`, `recording` and `start`,
    each (N,). Data with a predefined split contains `X_train` and `X_test` instead, with optional `y_…`, `label_…`,
    `subject_…` and `exp_pos_…` (N, 2), the recording and the first sample. A column that is present in one part only
    is unknown in the other. `fs`, `channels`, `units` and `classes` are optional; labels may be strings. Arrays with
    other names are ignored.

    An uncompressed X of more than 64 MiB is not loaded: the file is memory-mapped.

    Raises
    ------
    DataError : if the file is missing or damaged, contains Python objects, would take far more memory than its size,
        or its arrays are inconsistent
    PolyadicError : if the file is not a `.npz` or `.npy` file
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix == ".csv":
        raise PolyadicError(f"{path.name} is a recording, not a file of windows: read it with read_csv")
    if suffix not in (".npz", ".npy"):
        raise PolyadicError(f"path must end in .npz or .npy, but is {path.name}")
    check_regular_file(path)
    if not path.is_file():
        raise DataError(f"{path} does not exist")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about headers of old versions, which are either read or rejected
            arrays = _read_npz(path) if suffix == ".npz" else _read_npy(path)
        return _build_windows(arrays)
    except PolyadicError as error:
        raise DataError(f"{path.name}: {error}") from error
    except OSError as error:
        # Errors of the operating system, such as a missing permission, propagate. EINVAL means a damaged file offset.
        if error.errno not in (None, errno.EINVAL):
            raise
        raise DataError(f"{path.name} cannot be read: {error}") from error
    except _DAMAGE as error:
        raise DataError(f"{path.name} cannot be read: {error}") from error


# ----------------------------------------------------------------------------------------------- files


class _ArrayHeader(NamedTuple):
    """The header of a `.npy` file; the data begin at byte `offset`."""

    shape: tuple[int, ...]
    fortran_order: bool
    dtype: np.dtype[Any]
    offset: int

    @property
    def stays_on_disk(self) -> bool:
        """Whether the array is large and in a layout from which single rows can be read."""
        size = self.dtype.itemsize
        for side in self.shape:
            size *= side
        return len(self.shape) == 3 and not self.fortran_order and self.dtype.kind in "fiu" and size > _IN_MEMORY


def _read_header(file: IO[bytes], size: int) -> _ArrayHeader:
    """Read the header of a `.npy` file of `size` bytes, and check that the data have the declared size."""
    version = np.lib.format.read_magic(file)
    read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(
        version
    )
    if read_header is None:  # (3, 0) is for structured arrays with Unicode field names
        raise DataError(f"the .npy format version must be 1.0 or 2.0, but is {version[0]}.{version[1]}")
    shape, fortran_order, dtype = read_header(file)
    if dtype.kind not in "fiuUS":
        raise DataError(f"arrays must hold numbers or strings, but hold {dtype}")
    count = 1
    for side in shape:
        count *= int(side)
    held = size - file.tell()
    if min(shape, default=0) < 0 or count * dtype.itemsize != held:
        raise DataError(f"the header claims {count * dtype.itemsize} bytes, but the file holds {held}")
    return _ArrayHeader(tuple(int(side) for side in shape), fortran_order, dtype, file.tell())


def _load_array(file: IO[bytes]) -> NDArray[Any]:
    """Load the array of a `.npy` file whose header has been checked, in native byte order."""
    file.seek(0)
    array = np.lib.format.read_array(file, allow_pickle=False)
    array = np.asarray(array, dtype=array.dtype.newbyteorder("="))
    if array.dtype.kind == "U" and array.nbytes:
        signs = np.ascontiguousarray(array).reshape(-1).view(np.uint32)
        # numpy accepts code points that are not valid Unicode characters; Python would fail on them later.
        if ((signs > 0x10FFFF) | ((signs >= 0xD800) & (signs < 0xE000))).any():
            raise DataError("strings must consist of valid Unicode characters, but do not")
    return array


def _read_npy(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        header = _read_header(file, path.stat().st_size)
        if header.stays_on_disk:
            return {"X": np.memmap(path, header.dtype, "r", header.offset, header.shape)}
        return {"X": _load_array(file)}


_COLUMNS = ("y", "label", "subject", "recording", "start", "exp_pos")
_KEYS = {"X", "fs", "channels", "units", "classes", *_COLUMNS}
_KEYS |= {f"{key}_{part}" for key in ("X", *_COLUMNS) for part in ("train", "test")}


def _read_npz(path: Path) -> dict[str, Any]:
    """Return the arrays of a `.npz` file that have a known name, by name."""
    arrays: dict[str, Any] = {}
    with zipfile.ZipFile(path) as archive:
        _check_count(path, len(archive.infolist()))
        for info in archive.infolist():
            key = info.filename.removesuffix(".npy")
            if key not in _KEYS:
                # Opening fails if directory and local header have different names, one of which may be known.
                archive.open(info).close()
                continue
            if key in arrays:
                raise DataError(f"the file has two arrays named {key}")
            _check_member(info, key, path.stat().st_size)
            try:
                arrays[key] = _read_member(archive, info, path)
            except DataError as error:
                raise DataError(f"{key}: {error}") from error
    return arrays


def _check_member(info: zipfile.ZipInfo, key: str, size: int) -> None:
    """Raise if an archive member declares more bytes than it can hold, or far more than the `size` of the archive."""
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise DataError(f"{key} must be stored or deflated, but has compression method {info.compress_type}")
    packed = min(info.compress_size, size)
    most = packed if info.compress_type == zipfile.ZIP_STORED else packed * _DEFLATE_LIMIT
    if info.file_size > most:
        raise DataError(f"{key} claims {info.file_size} bytes, but its part of the file cannot hold them")
    check_inflation(key, info.file_size, size)


def _read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> NDArray[Any]:
    with archive.open(info) as file:
        header = _read_header(file, info.file_size)
        if info.compress_type != zipfile.ZIP_STORED or not header.stays_on_disk:
            return _load_array(file)
        while file.read(_CHUNK):  # zipfile compares the checksum at the end of the member
            pass
    return np.memmap(path, header.dtype, "r", _member_offset(path, info) + header.offset, header.shape)


def _member_offset(path: Path, info: zipfile.ZipInfo) -> int:
    """Return the offset in the archive at which the content of an uncompressed member begins."""
    with path.open("rb") as file:
        file.seek(info.header_offset)
        name, extra = struct.unpack("<26x2H", file.read(30))
    return info.header_offset + 30 + int(name) + int(extra)


def _check_count(path: Path, count: int) -> None:
    """Raise if the directory of a zip file does not list as many files as its end record declares.

    zipfile does not compare them.
    """
    with path.open("rb") as file:
        file.seek(-22, os.SEEK_END)
        end = file.read()
    claimed = int.from_bytes(end[10:12], "little")
    if end.startswith(b"PK\5\6") and claimed not in (count, 0xFFFF):
        raise DataError(f"the archive declares {claimed} arrays, but lists {count}")


# --------------------------------------------------------------------------------------------- windows


def _build_windows(arrays: dict[str, Any]) -> Windows:
    """Build windows from the arrays of a file."""
    part = None
    if "X" not in arrays:
        if not {"X_train", "X_test"} <= arrays.keys():
            raise DataError("the file must contain X, or X_train and X_test, but contains neither")
        part = np.repeat(["train", "test"], [_window_count(arrays[f"X_{name}"]) for name in ("train", "test")])
        arrays = {**arrays, **_join_parts(arrays)}
    if "y" in arrays and "label" in arrays:
        raise DataError("labels must be named y or label, but the file has both")
    if "exp_pos" in arrays:
        position = arrays["exp_pos"]
        if position.ndim != 2 or position.shape[1] != 2 or {"recording", "start"} & arrays.keys():
            raise DataError(f"exp_pos must have shape (N, 2), without recording or start, but has {position.shape}")
        arrays = {**arrays, "recording": position[:, 0], "start": position[:, 1]}
    start = arrays.get("start")
    X = arrays["X"]
    if len(X.shape) != 3 or 0 in X.shape:
        raise DataError(f"X must have shape (N, channels, time), but has {X.shape}")
    if X.dtype.kind not in "fiu" or X.dtype.itemsize > 8:
        raise DataError(f"X must hold real numbers of at most 64 bits, but holds {X.dtype}")
    return Windows(
        X,
        _sampling_rate(arrays.get("fs")),
        subject=_identities(arrays, "subject"),
        recording=_identities(arrays, "recording"),
        start=None if start is None else _as_integers(start, "start"),
        label=arrays.get("y", arrays.get("label")),
        part=part,
        classes=_names(arrays, "classes"),
        channels=_names(arrays, "channels"),
        units=_names(arrays, "units"),
    )


def _window_count(X: _Samples) -> int:
    if len(X.shape) != 3:
        raise DataError(f"X must have shape (N, channels, time), but has {X.shape}")
    return int(X.shape[0])


def _join_parts(arrays: dict[str, Any]) -> dict[str, _Samples]:
    """Concatenate the columns of both parts, train first; a column missing in one part is filled with −1 or ""."""
    X = arrays["X_train"], arrays["X_test"]
    if X[0].shape[1:] != X[1].shape[1:] or X[0].dtype != X[1].dtype:
        what = " and ".join(f"{one.shape} {one.dtype}" for one in X)
        raise DataError(f"X_train and X_test must have windows of the same shape and type, but are {what}")
    on_disk = any(isinstance(one, np.memmap) for one in X)
    joined: dict[str, _Samples] = {"X": Concatenated([as_readable(one) for one in X]) if on_disk else np.concatenate(X)}
    for key in _COLUMNS:
        pair = [arrays.get(f"{key}_train"), arrays.get(f"{key}_test")]
        known = [column for column in pair if column is not None]
        if not known:
            continue
        empty: Any = "" if known[0].dtype.kind in "US" else -1
        filled = []
        for column, windows in zip(pair, X, strict=True):
            shape = (len(windows), *known[0].shape[1:])
            column = np.full(shape, empty, np.int64 if empty == -1 else known[0].dtype) if column is None else column
            if column.shape != shape or (column.dtype.kind in "US") != (known[0].dtype.kind in "US"):
                raise DataError(
                    f"{key} must have shape {shape} and the same type in both parts, "
                    f"but has {column.shape} {column.dtype}"
                )
            filled.append(column)
        joined[key] = np.concatenate(filled)
    return joined


def _as_integers(values: NDArray[Any], key: str) -> NDArray[np.int64]:
    """Convert values to integers; floating-point numbers are accepted if they are whole."""
    if values.dtype.kind not in "fiu" or not values.size:
        raise DataError(f"{key} must hold whole numbers, but holds {values.dtype}")
    limits = np.iinfo(np.int64)
    # 2^63 − 1 is not representable in float64, hence the strict inequality.
    fits = np.isfinite(values).all() and values.min() >= limits.min and values.max() < float(limits.max)
    if not fits or (values != np.trunc(values)).any():
        raise DataError(f"{key} must hold whole numbers that fit int64, but holds other values")
    return values.astype(np.int64)


def _identities(arrays: dict[str, Any], key: str) -> NDArray[Any] | None:
    """Return subjects or recordings as integers or strings: (N,)."""
    if key not in arrays:
        return None
    values = arrays[key]
    if values.dtype.kind in "US":
        return np.asarray(values.astype(str))
    if values.dtype.kind == "f":
        values = np.where(np.isnan(values), -1, values)  # unknown
    return _as_integers(values, key)


def _names(arrays: dict[str, Any], key: str) -> tuple[str, ...]:
    if key not in arrays:
        return ()
    values = arrays[key]
    if values.ndim != 1 or values.dtype.kind not in "US":
        raise DataError(f"{key} must be a list of names, but is an array of shape {values.shape} and {values.dtype}")
    return tuple(values.astype(str).tolist())


def _sampling_rate(value: NDArray[Any] | None) -> float | None:
    if value is None:
        return None
    if value.size != 1 or value.dtype.kind not in "fiu":
        raise DataError(f"fs must be one positive number in Hz, but is an array of shape {value.shape}")
    return float(value.ravel()[0])
