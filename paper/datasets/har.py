"""Read the UCI dataset "Human Activity Recognition Using Smartphones", which is published as windows.

It is read from a folder, or from the zip file without unpacking it, even if that is inside another zip file.
"""

from __future__ import annotations

import errno
import io
import lzma
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyadic._util.files import check_regular_file
from polyadic.data.windows import Windows
from polyadic.errors import DataError

__all__ = ["CHANNELS", "FS", "LENGTH", "UNITS", "read_har"]

CHANNELS = tuple(f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz")
UNITS = ("g", "g", "g", "rad/s", "rad/s", "rad/s", "g", "g", "g")
FS = 50.0
LENGTH = 128
"""Samples per window."""

_CLASSES = 6
_FOLDER = "UCI HAR Dataset"
_LEGEND = "activity_labels.txt"
_LARGEST = 256 * 1024**2
"""Maximum size of a file in bytes; the published files have up to 15 MB, the zip file has 61 MB."""

_NUMBER_BYTES = b"0123456789+-.eE \t\r\n\v\f"
_LONGEST = 64 * LENGTH
"""Maximum length of a line in bytes: 128 numbers never take more."""

_DAMAGE = (
    ValueError,
    KeyError,
    IndexError,
    EOFError,
    OverflowError,
    RuntimeError,
    NotImplementedError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
)
"""Exceptions that zipfile raises on files that are damaged, encrypted or not zip files."""

Read = Callable[[str], bytes]
"""Function that takes a path within the dataset and returns the content of that file."""


def read_har(root: str | os.PathLike[str]) -> Windows:
    """Read all windows, the part "train" first: X (N, 9, 128) float32 in g and rad/s at 50 Hz.

    The dataset does not say which recording a window is from. All windows of a subject are treated as one recording
    with 50 % overlap between consecutive windows, which is right for most of them.

    Parameters
    ----------
    root : the folder `UCI HAR Dataset`, its parent folder, its zip file, or a zip file that contains that zip file

    Raises
    ------
    DataError : if a file is missing or damaged; the message gives the file and the line
    """
    root = Path(root)
    if root.is_dir():
        return _read_windows(_read_from_folder(root))
    check_regular_file(root)
    if not root.is_file():
        raise DataError(f"{root} does not exist")
    try:
        with zipfile.ZipFile(root) as archive:
            return _read_windows(_read_from_archive(archive, root.name))
    except DataError:
        raise
    except OSError as error:
        # Errors of the operating system, such as a missing permission, propagate. EINVAL means a damaged file offset.
        if error.errno not in (None, errno.EINVAL):
            raise
        raise DataError(f"{root.name} cannot be read as a zip file: {error}") from error
    except _DAMAGE as error:
        raise DataError(f"{root.name} cannot be read as a zip file: {error}") from error


def _read_from_folder(root: Path) -> Read:
    folder = next((each for each in (root, root / _FOLDER) if (each / _LEGEND).is_file()), None)
    if folder is None:
        raise DataError(f"{root} must contain {_LEGEND}, or the folder {_FOLDER} with it, but does not")

    def read(name: str) -> bytes:
        path = folder / name
        check_regular_file(path)
        if not path.is_file():
            raise DataError(f"{name} is missing in {folder}")
        _check_size(path.stat().st_size, name)
        return path.read_bytes()

    return read


def _read_from_archive(archive: zipfile.ZipFile, name: str, depth: int = 0) -> Read:
    """Return a function that reads files from a zip file, or from the zip file inside it."""
    entries = {
        info.filename: info
        for info in archive.infolist()
        # macOS adds metadata files under the names of the real ones.
        if not info.filename.startswith("__MACOSX/") and not PurePosixPath(info.filename).name.startswith("._")
    }
    legends = sorted((each for each in entries if PurePosixPath(each).name == _LEGEND), key=len)
    if not legends:
        nested = [info for each, info in entries.items() if PurePosixPath(each).name == f"{_FOLDER}.zip"]
        if not nested or depth:
            raise DataError(f"{name} must contain {_LEGEND} or {_FOLDER}.zip, but does not")
        inner = zipfile.ZipFile(io.BytesIO(_read_member(archive, nested[0])))
        return _read_from_archive(inner, nested[0].filename, depth + 1)
    prefix = legends[0].removesuffix(_LEGEND)

    def read(path: str) -> bytes:
        info = entries.get(prefix + path)
        if info is None:
            raise DataError(f"{path} is missing in {name}")
        return _read_member(archive, info)

    return read


def _read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """Read a file from an archive, up to the number of bytes that the archive declares."""
    _check_size(info.file_size, info.filename)
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise DataError(f"{info.filename} must be stored or deflated, but has compression method {info.compress_type}")
    with archive.open(info) as file:
        # Without a limit, zipfile would unpack everything before it compares the size.
        return file.read(info.file_size)


def _check_size(size: int, name: str) -> None:
    if size > _LARGEST:
        raise DataError(f"{name} must have at most {_LARGEST} bytes, but claims {size}")


def _read_windows(read: Read) -> Windows:
    classes = _parse_classes(read(_LEGEND))
    columns: dict[str, list[NDArray[Any]]] = {"X": [], "label": [], "subject": [], "part": []}
    for part in ("train", "test"):
        label = _parse_integers(read, f"{part}/y_{part}.txt", _CLASSES)
        subject = _parse_integers(read, f"{part}/subject_{part}.txt", None)
        if len(subject) != len(label):
            raise DataError(f"{part}/subject_{part}.txt must have {len(label)} lines, but has {len(subject)}")
        X = np.empty((len(label), len(CHANNELS), LENGTH), np.float32)
        for number, channel in enumerate(CHANNELS):
            path = f"{part}/Inertial Signals/{channel}_{part}.txt"
            X[:, number] = _parse_signal(read(path), path, len(label))
        for key, column in (("X", X), ("label", label - 1), ("subject", subject), ("part", np.full(len(X), part))):
            columns[key].append(column)
    joined = {key: np.concatenate(pieces) for key, pieces in columns.items()}
    person = np.char.zfill(joined["subject"].astype(str), 2)
    recording = np.char.add(np.char.add(joined["part"], "-"), person)
    return Windows(
        joined["X"],
        FS,
        subject=joined["subject"],
        recording=recording,
        start=_counts_within(recording) * (LENGTH // 2),
        label=joined["label"],
        part=joined["part"],
        classes=classes,
        channels=CHANNELS,
        units=UNITS,
        dataset="har",
    )


def _counts_within(group: NDArray[Any]) -> NDArray[np.int64]:
    """Return for each entry the number of earlier entries of the same group: (N,)."""
    order = np.argsort(group, kind="stable")
    places = np.empty(len(group), np.int64)
    places[order] = np.concatenate([np.arange(size) for size in np.unique(group, return_counts=True)[1]])
    return places


def _lines(content: bytes) -> list[bytes]:
    """Return the lines of a file, without blank lines at the end."""
    return content.rstrip().splitlines()


def _parse_classes(content: bytes) -> tuple[str, ...]:
    """Parse the names of the activities, ordered by number."""
    names = []
    for number, line in enumerate(_lines(content), start=1):
        found = re.fullmatch(rb"\s*(\d+)\s+([!-~]+)\s*", line)
        if not found or found[1] != str(number).encode():
            raise DataError(f"{_LEGEND}, line {number}: must be the number {number} and a name, but is {line[:40]!r}")
        names.append(found[2].decode("ascii"))
    if len(names) != _CLASSES or len(set(names)) != _CLASSES:
        raise DataError(f"{_LEGEND} must name {_CLASSES} different activities, but names {', '.join(names)}")
    return tuple(names)


def _parse_integers(read: Read, path: str, most: int | None) -> NDArray[np.int64]:
    """Parse one whole number per line, from 1 to `most`: (lines,)."""
    lines = _lines(read(path))
    if not lines:
        raise DataError(f"{path} must have one line per window, but is empty")
    numbers = np.empty(len(lines), np.int64)
    for at, line in enumerate(lines):
        word = line.strip()
        number = int(word) if re.fullmatch(rb"[0-9]{1,9}", word) else 0
        if number < 1 or (most is not None and number > most):
            wanted = "a positive whole number" if most is None else f"a whole number in 1 … {most}"
            raise DataError(f"{path}, line {at + 1}: must be {wanted}, but is {line[:40]!r}")
        numbers[at] = number
    return numbers


def _parse_signal(content: bytes, path: str, count: int) -> NDArray[np.float32]:
    """Parse the windows of one channel: (count, 128)."""
    lines = _lines(content)
    if len(lines) != count:
        raise DataError(f"{path} must have {count} lines, one per window, but has {len(lines)}")
    rows = []
    for number, line in enumerate(lines, start=1):
        row = line.split() if len(line) <= _LONGEST else []
        if len(row) != LENGTH:
            raise DataError(f"{path}, line {number}: must have {LENGTH} numbers, but has {len(row) or 'others'}")
        rows.append(row)
    # Check the characters first: float() also accepts nan, inf and 1_000, which are not valid samples.
    if not content.translate(None, _NUMBER_BYTES):
        try:
            with np.errstate(over="ignore"):
                values = np.array(rows, dtype=np.float32)
            if np.isfinite(values).all():
                return values
        except ValueError:
            pass
    number = next(number for number, row in enumerate(rows, start=1) if not all(map(_is_number, row)))
    raise DataError(f"{path}, line {number}: must have {LENGTH} finite numbers, but has something else")


def _is_number(word: bytes) -> bool:
    try:
        return not word.translate(None, _NUMBER_BYTES) and abs(float(word)) <= float(np.finfo(np.float32).max)
    except ValueError:
        return False
