"""Windows from `.npz` and `.npy` files.

What a header claims is checked against the size of the file before memory is taken for it, and nothing that could run
code is read.
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
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from polyadic.data.recordings import UNLABELLED
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
"""What numpy and zipfile raise on files that are not what they claim to be."""

_INFLATION = 1032
"""No deflated byte stands for more bytes than this."""


def read_arrays(path: str | os.PathLike[str]) -> Windows:
    """Windows from a `.npz` file, or from a `.npy` file that holds nothing but X.

    A `.npz` file has `X` (N, channels, time) and, all optional, `y` or `label`, `subject`, `recording` and `start`,
    each (N,); or, where the data has a split of its own, `X_train` and `X_test` with `y_…`, `label_…`, `subject_…` and
    `exp_pos_…` (N, 2), the recording and the first sample. A column that only one part has is unknown in the other.
    `fs`, `channels`, `units` and `classes` are optional; labels may be texts. Arrays of other names are not read.

    Raises
    ------
    DataError : if the file is missing, damaged, holds objects, or its arrays do not fit each other
    PolyadicError : if the file is of another kind
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix == ".csv":
        raise PolyadicError(f"{path.name} holds one recording and not windows: read it by read_csv")
    if suffix not in (".npz", ".npy"):
        raise PolyadicError(f"path must end in .npz or .npy, but is {path.name}")
    if not path.is_file():
        raise DataError(f"{path} is not a file")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of old headers: they are read all the same, or refused
            arrays = _members(path) if suffix == ".npz" else _alone(path)
        return _windows(arrays)
    except PolyadicError as error:
        raise DataError(f"{path.name}: {error}") from error
    except OSError as error:
        # The system's own, such as a missing permission, pass; EINVAL is a damaged place to go to in the file.
        if error.errno not in (None, errno.EINVAL):
            raise
        raise DataError(f"{path.name} cannot be read: {error}") from error
    except _DAMAGE as error:
        raise DataError(f"{path.name} cannot be read: {error}") from error


def _alone(path: Path) -> dict[str, NDArray[Any]]:
    with path.open("rb") as file:
        return {"X": _array(file, path.stat().st_size)}


def _array(file: IO[bytes], size: int) -> NDArray[Any]:
    """The array of a `.npy` file of `size` bytes, in the machine's byte order."""
    version = np.lib.format.read_magic(file)
    read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(
        version
    )
    if read_header is None:  # (3, 0) is for records with named fields, which no window has
        raise DataError(f"the format must be of version 1.0 or 2.0, but is {version}")
    shape, _, dtype = read_header(file)
    if dtype.kind not in "fiuUS":
        raise DataError(f"arrays must hold numbers or texts, but hold {dtype}")
    count = 1
    for side in shape:
        count *= int(side)
    held = size - file.tell()
    if min(shape, default=0) < 0 or count * dtype.itemsize != held:
        raise DataError(f"the header claims {count * dtype.itemsize} bytes, but the file holds {held}")
    file.seek(0)
    array = np.lib.format.read_array(file, allow_pickle=False)
    array = np.asarray(array, dtype=array.dtype.newbyteorder("="))
    if dtype.kind == "U" and array.nbytes:
        signs = np.ascontiguousarray(array).reshape(-1).view(np.uint32)
        # numpy makes texts even of what Unicode has no sign for, and Python then ends with an error of its own.
        if ((signs > 0x10FFFF) | ((signs >= 0xD800) & (signs < 0xE000))).any():
            raise DataError("texts must be made of signs that Unicode has, but are not")
    return array


_COLUMNS = ("y", "label", "subject", "recording", "start", "exp_pos")
_KEYS = {"X", "fs", "channels", "units", "classes", *_COLUMNS}
_KEYS |= {f"{key}_{part}" for key in ("X", *_COLUMNS) for part in ("train", "test")}


def _members(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of a `.npz` file that have a meaning here, by name."""
    arrays: dict[str, NDArray[Any]] = {}
    with zipfile.ZipFile(path) as archive:
        _check_count(path, len(archive.infolist()))
        for info in archive.infolist():
            key = info.filename.removesuffix(".npy")
            if key not in _KEYS:
                archive.open(info).close()  # fails if the two places that have its name differ: it may be one of ours
                continue
            if key in arrays:
                raise DataError(f"there are two arrays named {key}")
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise DataError(f"{key} must be stored or deflated, but is packed by method {info.compress_type}")
            packed = min(info.compress_size, path.stat().st_size)
            most = packed if info.compress_type == zipfile.ZIP_STORED else packed * _INFLATION
            if info.file_size > most:
                raise DataError(f"{key} claims {info.file_size} bytes, but its part of the file cannot hold them")
            try:
                with archive.open(info) as file:
                    arrays[key] = _array(file, info.file_size)
            except DataError as error:
                raise DataError(f"{key}: {error}") from error
    return arrays


def _check_count(path: Path, count: int) -> None:
    """That the directory of a zip file lists as many files as its last 22 bytes say: zipfile itself does not look."""
    with path.open("rb") as file:
        file.seek(-22, os.SEEK_END)
        end = file.read()
    claimed = int.from_bytes(end[10:12], "little")
    if end.startswith(b"PK\5\6") and claimed not in (count, 0xFFFF):
        raise DataError(f"the archive must list {claimed} arrays, but lists {count}")


def _windows(arrays: dict[str, NDArray[Any]]) -> Windows:
    """Windows from the arrays of a `.npz` file."""
    part = None
    if "X" not in arrays:
        if not {"X_train", "X_test"} <= arrays.keys():
            raise DataError("there must be X, or X_train and X_test, but there is neither")
        part = np.repeat(["train", "test"], [_length(arrays[f"X_{name}"]) for name in ("train", "test")])
        arrays = {**arrays, **_joined(arrays)}
    if "y" in arrays and "label" in arrays:
        raise DataError("labels must be named y or label, but both are there")
    if "exp_pos" in arrays:
        position = arrays["exp_pos"]
        if position.ndim != 2 or position.shape[1] != 2 or {"recording", "start"} & arrays.keys():
            raise DataError(f"exp_pos must have shape (N, 2) and stand alone, but has {position.shape}")
        arrays = {**arrays, "recording": position[:, 0], "start": position[:, 1]}
    classes = _names(arrays, "classes")
    label, classes = _labels(arrays.get("y", arrays.get("label")), classes)
    start = arrays.get("start")
    X = arrays["X"]
    if X.ndim != 3 or 0 in X.shape:
        raise DataError(f"X must have shape (N, channels, time), but has {X.shape}")
    if X.dtype.kind not in "fiu" or X.dtype.itemsize > 8:
        raise DataError(f"X must hold real numbers of at most 64 bits, but holds {X.dtype}")
    return Windows(
        X,
        _rate(arrays.get("fs")),
        subject=_identities(arrays, "subject"),
        recording=_identities(arrays, "recording"),
        start=None if start is None else _whole(start, "start", np.int64),
        label=label,
        part=part,
        classes=classes or (),
        channels=_names(arrays, "channels") or (),
        units=_names(arrays, "units") or (),
    )


def _length(X: NDArray[Any]) -> int:
    if X.ndim != 3:
        raise DataError(f"X must have shape (N, channels, time), but has {X.shape}")
    return len(X)


def _joined(arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The columns of both parts, train first; what one part lacks is −1 or an empty text there."""
    X = arrays["X_train"], arrays["X_test"]
    if X[0].shape[1:] != X[1].shape[1:] or X[0].dtype != X[1].dtype:
        what = " and ".join(f"{one.shape} {one.dtype}" for one in X)
        raise DataError(f"X_train and X_test must have windows of one shape and type, but are {what}")
    joined: dict[str, NDArray[Any]] = {"X": np.concatenate(X)}
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
                raise DataError(f"{key} must have shape {shape} and one type, but has {column.shape} {column.dtype}")
            filled.append(column)
        joined[key] = np.concatenate(filled)
    return joined


def _labels(
    values: NDArray[Any] | None, classes: tuple[str, ...] | None
) -> tuple[NDArray[np.int32] | None, tuple[str, ...] | None]:
    """Labels as numbers, and the names they stand for; texts get their place among the classes, "" is unlabelled."""
    if values is None:
        return None, classes
    if values.dtype.kind not in "US":
        return _whole(values, "label", np.int32), classes
    texts = values.astype(str).ravel().tolist()
    classes = tuple(sorted(set(texts) - {""})) if classes is None else classes
    place = {"": UNLABELLED, **{name: number for number, name in enumerate(classes)}}
    unknown = sorted(set(texts) - place.keys())
    if unknown:
        raise DataError(f"labels must be among the classes {', '.join(classes)}, but there is {unknown[0]!r}")
    return np.array([place[text] for text in texts], np.int32).reshape(values.shape), classes


def _whole(values: NDArray[Any], key: str, dtype: type[Any]) -> NDArray[Any]:
    """Values as whole numbers; floating ones are taken if they are whole."""
    if values.dtype.kind not in "fiu" or not values.size:
        raise DataError(f"{key} must hold whole numbers, but holds {values.dtype}")
    limits = np.iinfo(dtype)
    # 2^63 − 1 has no float64, hence the strict bound below.
    fits = np.isfinite(values).all() and values.min() >= limits.min and values.max() < float(limits.max)
    if not fits or (values != np.trunc(values)).any():
        raise DataError(f"{key} must hold whole numbers that fit {np.dtype(dtype)}, but holds others")
    return values.astype(dtype)


def _identities(arrays: dict[str, NDArray[Any]], key: str) -> NDArray[Any] | None:
    """Whose or which: whole numbers or texts, (N,)."""
    if key not in arrays:
        return None
    values = arrays[key]
    return values.astype(str) if values.dtype.kind in "US" else _whole(values, key, np.int64)


def _names(arrays: dict[str, NDArray[Any]], key: str) -> tuple[str, ...] | None:
    if key not in arrays:
        return None
    values = arrays[key]
    if values.ndim != 1 or values.dtype.kind not in "US":
        raise DataError(f"{key} must be a list of names, but is an array of shape {values.shape} and {values.dtype}")
    return tuple(values.astype(str).tolist())


def _rate(value: NDArray[Any] | None) -> float | None:
    if value is None:
        return None
    if value.size != 1 or value.dtype.kind not in "fiu":
        raise DataError(f"fs must be one positive number in Hz, but is an array of shape {value.shape}")
    return float(value.ravel()[0])
