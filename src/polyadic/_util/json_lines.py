"""Journals of long work: files with one JSON value per line, from which an interrupted command resumes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from polyadic._util.files import check_regular_file, output_path
from polyadic.errors import PolyadicError

__all__ = ["append_line", "read_lines"]


def read_lines(path: Path) -> list[Any]:
    """Return the values of a journal in order, or an empty list if there is no such file.

    Lines that are not JSON are skipped: a process that is killed while it writes leaves one.

    Parameters
    ----------
    path : the file
    """
    check_regular_file(path, PolyadicError)
    found = []
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def append_line(path: Path, value: Any) -> None:
    """Append a value as one line, and wait until it is on disk; a truncated last line is ended first.

    Parameters
    ----------
    path : the file, which is created if necessary
    value : anything that JSON can represent
    """
    with output_path(path).open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write((json.dumps(value) + "\n").encode())
        file.flush()
        os.fsync(file.fileno())
