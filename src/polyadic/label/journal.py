"""The labels on disk: a CSV file that is only ever appended to, in which the last row of a window counts."""

from __future__ import annotations

import csv
import fcntl
import io
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from polyadic._util.files import harmless, sync_folder
from polyadic.errors import DataError, PolyadicError

if TYPE_CHECKING:
    from polyadic.data import Windows

__all__ = ["COLUMNS", "Journal", "Row", "apply_labels", "place_rows", "read_rows"]

_NAMED = 3


class Row(NamedTuple):
    """One line of the file.

    recording : name of the recording, as polyadic writes names to tables
    start, duration : of the window, in seconds from the start of the recording
    label : the class; "" if the window was skipped, or its label was taken back
    who, time : who answered, and when (UTC, ISO 8601)
    asked : why it was shown: "cover", "unsure", "random", "again" or "picked"; "undo" and "rename" are corrections
    """

    recording: str
    start: float
    duration: float
    label: str
    who: str = ""
    time: str = ""
    asked: str = ""


COLUMNS = Row._fields
_NEEDED = COLUMNS[:4]


def _encode(rows: Iterable[Sequence[Any]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode("utf-8", "backslashreplace")


def read_rows(path: Path) -> list[Row]:
    """Read a table of labels: the columns recording, start, duration and label, and others, which may be missing.

    A last line without an end, which a killed process leaves, is left out.
    """
    content = path.read_bytes()
    content = content[: content.rfind(b"\n") + 1]
    try:
        lines = list(csv.DictReader(io.StringIO(content.decode("utf-8-sig"), newline="")))
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path.name} is not a CSV file in UTF-8: {error}") from error
    rows = []
    for number, line in enumerate(lines, 2):
        missing = [name for name in _NEEDED if line.get(name) is None]
        if missing:
            raise DataError(
                f"{path.name}, line {number}, has no column {missing[0]!r}: needed are {', '.join(_NEEDED)}"
            )
        values: dict[str, Any] = {name: line.get(name) or "" for name in COLUMNS}
        try:
            values |= {name: float(values[name]) for name in ("start", "duration")}
        except ValueError as error:
            raise DataError(f"{path.name}, line {number}: start and duration must be seconds: {error}") from error
        rows.append(Row(**values))
    return rows


def place_rows(rows: Sequence[Row], windows: Windows) -> list[int]:
    """Return the window of each row, by recording, start and duration, or -1 if there is none."""
    fs = windows.fs or 1.0
    known = (windows.recording != "") & (windows.start >= 0)
    if not known.all():
        raise PolyadicError(
            "labels are matched by recording and start, but "
            f"{int((~known).sum()):,} of {len(windows):,} windows have none: use recordings or a store of them"
        )
    keys = zip(windows.recording.tolist(), windows.start.tolist(), strict=True)
    places = {(harmless(name), start): row for row, (name, start) in enumerate(keys)}
    length = windows.shape[2]
    return [
        places.get((row.recording, round(row.start * fs)), -1) if round(row.duration * fs) == length else -1
        for row in rows
    ]


def apply_labels(path: Path, windows: Windows) -> tuple[Windows, str]:
    """Return the same windows with the labels of a table, and a note on rows that match no window, or "".

    The last row of a window counts; windows without a row, or with an empty label, have no label.

    Parameters
    ----------
    path : a file that `polyadic label` writes, or another CSV file with recording, start, duration and label
    windows : with the recording and the start of each
    """
    rows = read_rows(path)
    places = place_rows(rows, windows)
    labels = np.full(len(windows), "", object)
    for row, place in zip(rows, places, strict=True):
        if place >= 0:
            labels[place] = row.label
    lost = [row for row, place in zip(rows, places, strict=True) if place < 0]
    if rows and len(lost) == len(rows):
        raise PolyadicError(
            f"{path.name}: none of its {len(rows):,} rows matches a window by recording, start and duration; the first "
            f"is {rows[0].recording!r} at {rows[0].start:g} s, {rows[0].duration:g} s long: cut windows as for "
            "polyadic label (--seconds)"
        )
    some = ", ".join(f"{row.recording} at {row.start:g} s" for row in lost[:_NAMED])
    note = f"{path.name}: {len(lost):,} of {len(rows):,} rows match no window, such as {some}" if lost else ""
    return windows.with_labels(labels), note


class Journal:
    """A file of labels, open to append; other processes cannot open it meanwhile.

    Parameters
    ----------
    path : the file; it is created if it does not exist, and a last line that was cut off is removed

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     journal = Journal(Path(folder) / "labels.csv")
    ...     journal.append([Row("night.edf", 30.0, 30.0, "N2")])
    ...     journal.close()
    ...     [row.label for row in read_rows(journal.path)]
    ['N2']
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("ab+", buffering=0)
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise
        self.rows = read_rows(path)

    def _prepare(self) -> None:
        """Lock the file, remove an incomplete last line, and write the header of a new file."""
        path = self.path
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise PolyadicError(f"{path.name} is open in another polyadic label: close that first") from error
        self._file.seek(0)
        content = self._file.read()
        head = _encode([COLUMNS])
        if content and not content.startswith(head[:-1]):
            raise PolyadicError(f"{path.name} was not written by polyadic label: choose another name with -o")
        end = content.rfind(b"\n") + 1
        if end != len(content):
            self._file.truncate(end)
        if not end:
            self._write(head)
            sync_folder(path.absolute().parent)

    def append(self, rows: Sequence[Row]) -> None:
        """Write rows to the disk, all of them or, if that fails, none; when this returns they are safe."""
        cells = [(*row[:1], f"{row.start:.10g}", f"{row.duration:.10g}", *row[3:]) for row in rows]
        self._write(_encode(cells))
        self.rows += rows

    def _write(self, content: bytes) -> None:
        before = self._file.seek(0, os.SEEK_END)
        try:
            if self._file.write(content) != len(content):
                raise OSError(f"{self.path.name}: the disk is full")
            os.fsync(self._file.fileno())
        except OSError:
            self._file.truncate(before)
            raise

    def close(self) -> None:
        """Close the file, so that another process can open it."""
        self._file.close()
