"""Files that are there whole or not at all, and their checksums."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from polyadic.errors import DataError, PolyadicError

__all__ = [
    "LOCKED",
    "check_regular_file",
    "digest",
    "lock_folder",
    "open_atomically",
    "sync_folder",
    "write_atomically",
]

LOCKED = -1
"""What `lock_folder` returns for a folder that another process has locked."""

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
"""What a path may lead to instead of a regular file."""


def digest(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def open_atomically(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A file to write to that takes its name when the block ends well, and leaves nothing behind when it does not."""
    target = Path(path)
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        Path(temporary).chmod(0o666 & ~umask)
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Bring the names of files onto the disk, so that what is written next is not there without them."""
    if os.name == "nt":  # folders cannot be opened there
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network disks know no such thing
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file so that it is there whole or not at all, whatever happens meanwhile."""
    with open_atomically(path) as file:
        file.write(content)


def lock_folder(folder: str | os.PathLike[str]) -> int | None:
    """Lock a folder until the descriptor is closed or this process ends, however it ends.

    Returns
    -------
    the descriptor to close; `LOCKED` if another process has the lock; None where there are no such locks (Windows)
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
    except OSError:  # some network disks know no locks
        pass
    return descriptor


def check_regular_file(path: str | os.PathLike[str], error: type[PolyadicError] = DataError) -> None:
    """Refuse to read what is not a regular file; a path that does not exist at all is left to the caller.

    Opening a named pipe waits for somebody to write to it, in some libraries without a way to interrupt it.

    Parameters
    ----------
    path : the file; links are followed
    error : the class of the error to raise

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
        raise error(f"{name} is {_KINDS.get(stat.S_IFMT(mode), 'something else')}, but must be a regular file")
