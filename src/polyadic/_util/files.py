"""Atomic output files: complete or absent, regular files only, with the mode of the file they replace."""

from __future__ import annotations

import hashlib
import math
import os
import secrets
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from polyadic.errors import DataError, PolyadicError

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "LOCKED",
    "check_output",
    "check_regular_file",
    "digest",
    "harmless",
    "lock_folder",
    "open_atomically",
    "output_path",
    "sync_folder",
    "write_array",
    "write_atomically",
]


_KINDS = {
    stat.S_IFBLK: "device",
    stat.S_IFCHR: "device",
    stat.S_IFDIR: "folder",
    stat.S_IFIFO: "named pipe",
    stat.S_IFSOCK: "socket",
}
LOCKED = -1
"""Return value of `lock_folder` for a folder that another process has locked."""
_NAME_START = 40
"""Number of characters of a file's name used in the name of its temporary file, to keep that short."""


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


def output_path(path: str | os.PathLike[str]) -> Path:
    """Return the regular file that writing to `path` creates or replaces; symbolic links are followed.

    Raises
    ------
    PolyadicError : if `path` is a device, a pipe, a socket or a folder, which must not be replaced
    """
    try:
        mode = Path(path).stat().st_mode
    except FileNotFoundError:
        return Path(os.path.realpath(path))
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "special file")
        raise PolyadicError(f"{path} cannot be written: it is a {kind}, not a regular file")
    return Path(os.path.realpath(path))


@contextmanager
def open_atomically(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a temporary file next to `path` for writing; rename it if the block succeeds, remove it otherwise.

    A file that replaces another gets its mode; for a new one, the system applies the umask.
    """
    target = output_path(path)
    mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
    temporary = target.with_name(f".{target.name[:_NAME_START]}.{secrets.token_hex(8)}.tmp")
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    descriptor = os.open(temporary, flags, 0o666 if mode is None else 0o600)
    try:
        # With an opener, so that the file object knows its path.
        with open(temporary, "wb", opener=lambda *_: descriptor) as file:
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


def check_output(path: str | os.PathLike[str]) -> None:
    """Check that a file can be written, before computing its content.

    Raises
    ------
    PolyadicError : if not: not a regular file, no such folder, no permission, or a read-only disk
    """
    try:
        tempfile.TemporaryFile(dir=output_path(path).parent).close()
    except OSError as error:
        raise PolyadicError(f"{path} cannot be written: {error.strerror}") from error


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Sync a folder's entries to disk, so that later writes cannot survive a crash without them."""
    if os.name == "nt":  # folders cannot be opened on Windows
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems do not support it
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_array(
    path: str | os.PathLike[str], shape: tuple[int, ...], dtype: np.dtype[Any], parts: Iterable[np.ndarray]
) -> None:
    """Write an array to a `.npy` file, atomically and part by part, so that it need not fit into memory.

    Parameters
    ----------
    shape, dtype : of the whole array (N, …)
    parts : arrays (n, …) in order, N rows in all

    Examples
    --------
    >>> import numpy as np
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_array(f"{folder}/a.npy", (2, 3), np.dtype("<f4"), [np.ones((1, 3)), np.zeros((1, 3))])
    ...     np.load(f"{folder}/a.npy").sum()
    np.float32(3.0)
    """
    import numpy as np

    with open_atomically(path) as file:
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        size = file.tell() + math.prod(shape) * dtype.itemsize
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)  # fail now if the disk is full
        for part in parts:
            file.write(np.ascontiguousarray(part, dtype).data.cast("B"))


def write_atomically(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file atomically: complete or not at all."""
    with open_atomically(path) as file:
        file.write(content)


def lock_folder(folder: str | os.PathLike[str]) -> int | None:
    """Lock a folder until the descriptor is closed or this process ends.

    Returns
    -------
    the descriptor to close; `LOCKED` if another process has the lock; None if locks are not supported (Windows)
    """
    if os.name == "nt":
        return None
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return LOCKED
    except OSError:  # some network disks do not support locks
        pass
    return descriptor


def check_regular_file(path: str | os.PathLike[str], error: type[PolyadicError] = DataError) -> None:
    """Raise if a path exists but is not a regular file; a missing file is left to the caller.

    Opening a named pipe would block until another process writes to it, in some libraries uninterruptibly.

    Examples
    --------
    >>> check_regular_file(os.curdir)
    Traceback (most recent call last):
    polyadic.errors.DataError: . is a folder, but must be a regular file
    """
    target = Path(path)
    name = target.name or str(path)
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        if target.is_symlink():
            raise error(f"{name} is a link to a file that does not exist") from None
        return
    except OSError as reason:
        raise error(f"{name} cannot be opened: {reason.strerror}") from reason
    if not stat.S_ISREG(mode):
        raise error(f"{name} is a {_KINDS.get(stat.S_IFMT(mode), 'special file')}, but must be a regular file")
