"""Atomic output files: complete or absent, regular files only, with the mode of the file they replace."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from polyadic.errors import DataError, PolyadicError

if TYPE_CHECKING:
    import numpy as np


def harmless(text: str) -> str:
    """Escape a text so that no spreadsheet runs it as a formula: prefix an apostrophe if it begins like one.

    Examples
    --------
    >>> harmless("=1+1"), harmless("N2")
    ("'=1+1", 'N2')
    """
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r", "\n") else text


def digest(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_regular_file(path: str | os.PathLike[str], error: type[PolyadicError] = DataError) -> None:
    """Raise if a path exists but is not a regular file: opening a named pipe would block."""
    target = Path(path)
    if target.exists() and not target.is_file():
        raise error(f"{target.name or path} is {'a folder' if target.is_dir() else 'not a regular file'}")


def _output_path(path: str | os.PathLike[str]) -> Path:
    """Return the regular file that writing to `path` creates or replaces; symbolic links are followed."""
    check_regular_file(path, PolyadicError)
    return Path(os.path.realpath(path))


@contextmanager
def open_atomically(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a temporary file next to `path` for writing; rename it if the block succeeds, remove it otherwise.

    A file that replaces another gets its mode; for a new one, the system applies the umask.
    """
    target = _output_path(path)
    mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
    temporary = target.with_name(f".{target.name[:40]}.{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb", opener=partial(os.open, mode=0o666 if mode is None else 0o600)) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())  # before renaming, so that a power failure leaves no partial file
        if mode is not None:
            temporary.chmod(mode)
        temporary.replace(target)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = os.fspath(path)  # a full disk is reported without a name
        raise


def write_atomically(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file atomically: complete or not at all."""
    with open_atomically(path) as file:
        file.write(content)


def write_json(path: str | os.PathLike[str], content: Any) -> None:
    """Write a value as readable JSON, atomically."""
    write_atomically(path, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())


def check_output(path: str | os.PathLike[str]) -> None:
    """Raise before computing its content if a file cannot be written: no folder, no permission, a read-only disk."""
    try:
        tempfile.TemporaryFile(dir=_output_path(path).parent).close()
    except OSError as error:
        raise PolyadicError(f"{path} cannot be written: {error.strerror}") from error


def write_array(
    path: str | os.PathLike[str], shape: tuple[int, ...], dtype: np.dtype[Any], parts: Iterable[np.ndarray]
) -> None:
    """Write an array (N, …) to a `.npy` file, atomically, from parts (n, …) in order: it need not fit into memory."""
    import numpy as np

    with open_atomically(path) as file:
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for part in parts:
            file.write(np.ascontiguousarray(part, dtype).data.cast("B"))
