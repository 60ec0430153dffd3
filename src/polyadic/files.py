"""Files that are there whole or not at all, and their checksums."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

__all__ = ["LOCKED", "digest", "lock_folder", "open_atomically", "sync_folder", "write_atomically"]

LOCKED = -1
"""What `lock_folder` returns for a folder that another process has locked."""


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
