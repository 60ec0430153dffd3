"""The labels on disk: a CSV file that is only ever appended to, in which the last row of a window counts."""

from __future__ import annotations

import csv
import io
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from polyadic._util.files import harmless
from polyadic.data.reading import listed
from polyadic.errors import DataError, PolyadicError

if TYPE_CHECKING:
    from polyadic.data import Windows

__all__ = ["COLUMNS", "Journal", "Row", "apply_labels", "place_rows", "read_rows"]


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
    rows, heads = list[Row](), list[str]()
    try:
        reader = csv.DictReader(io.StringIO(content.decode("utf-8-sig"), newline=""))
        heads = list(reader.fieldnames or _NEEDED)  # an empty file is a table without rows
        for line in reader if set(_NEEDED) <= set(heads) else ():
            values: dict[str, Any] = {name: line.get(name) or "" for name in COLUMNS}
            rows.append(Row(**values | {name: float(values[name]) for name in ("start", "duration")}))
    except (ValueError, csv.Error) as error:
        raise DataError(
            f"{path.name}, line {len(rows) + 2}: start and duration must be seconds, and the file CSV in UTF-8: {error}"
        ) from error
    for name in _NEEDED:
        if name not in heads:
            needed = f"needed are {', '.join(_NEEDED)}, separated by commas"
            raise DataError(f"{path.name} has no column {name!r}, but {listed(heads)}: {needed}")
    return rows


def place_rows(rows: Sequence[Row], windows: Windows) -> list[int]:
    """Return the window of each row, by recording, start and duration, or -1 if there is none."""
    if (windows.recording == "").any() or (windows.start < 0).any():
        raise PolyadicError(
            "labels are matched by recording and start, but some windows have none: use recordings or a store of them"
        )
    fs, length = windows.fs or 1.0, windows.shape[2]
    keys = zip(windows.recording.tolist(), windows.start.tolist(), strict=True)
    places = {(harmless(name), start): row for row, (name, start) in enumerate(keys)}
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
    if not rows:
        raise PolyadicError(f"{path.name} has no labels: rows of {', '.join(_NEEDED)}")
    labels, lost = np.full(len(windows), "", object), list[Row]()
    for row, place in zip(rows, place_rows(rows, windows), strict=True):
        if place < 0:
            lost.append(row)
        else:
            labels[place] = row.label.strip()
    if not lost:
        return windows.with_labels(labels), ""
    first = f"{lost[0].recording} at {lost[0].start:g} s, {lost[0].duration:g} s long"
    note = f"{path.name}: {len(lost):,} of {len(rows):,} rows match no window, such as {first}"
    known = np.unique(windows.recording).tolist()
    if {row.recording for row in lost} - set(map(harmless, known)):
        note += f": recordings are called {listed(known, 3)}"
    else:
        note += ": rows must be whole windows, cut by the same --seconds, --offset and --stride"
    if len(lost) == len(rows):
        raise PolyadicError(note)
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
            self.rows = read_rows(path)
        except BaseException:
            self.close()
            raise

    def _prepare(self) -> None:
        """Lock the file, remove an incomplete last line, and write the header of a new file."""
        if sys.platform != "win32":
            import fcntl

            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise PolyadicError(f"{self.path.name} is open in another polyadic label: close that first") from error
        content, head = self.path.read_bytes(), _encode([COLUMNS])
        if content and not content.startswith(head[:-1]):
            raise PolyadicError(f"{self.path.name} was not written by polyadic label: choose another name with -o")
        end = content.rfind(b"\n") + 1
        self._file.truncate(end)
        if not end:
            self._write(head)

    def append(self, rows: Sequence[Row]) -> None:
        """Write rows to the disk, all of them or, if that fails, none; when this returns they are safe."""
        self._write(_encode((*row[:1], f"{row.start:.10g}", f"{row.duration:.10g}", *row[3:]) for row in rows))
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
