"""Read continuous recordings from text tables: a row of channel names, then one row per sample.

Besides signals, a table may have columns with times, labels and subjects.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyadic._util.files import check_regular_file
from polyadic.data.clock import clock_time, unix_time
from polyadic.data.labels import is_unknown
from polyadic.data.readers.cells import Table, is_number, read_heads, read_table
from polyadic.data.reading import close_match, listed, shell_word
from polyadic.data.recordings import Annotation, Recording, Segment
from polyadic.errors import DataError, PolyadicError

__all__ = ["TableColumns", "guess_columns", "read_csv", "read_csv_by_subject", "table_ending"]

_TIMES = ("time", "timestamp", "datetime")
"""Names of a time column at any position; `t` is one only as the first column."""

_LABELS = ("label", "labels", "class", "activity", "stage", "y", "target")
_SUBJECTS = ("subject", "participant", "person", "user", "id", "subject_id", "participant_id", "person_id", "user_id")
_FEW, _RUN = 20, 3
"""A column of integers looks like a label if it has at most `_FEW` values, in runs of on average `_RUN` or more."""

_GAP = 5
"""Samples over which times are interpolated; longer gaps split a recording into segments."""

_ROUND = 5e-4
"""Maximum relative change when a rate is rounded; 29.97 Hz is not rounded to 30 Hz."""

_SCALES = {"ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_EPOCHS = ((1e17, 1e-9), (1e14, 1e-6), (1e11, 1e-3))
"""Unix times in seconds have ten digits; larger numbers are in ms, us or ns."""


@dataclass(frozen=True)
class TableColumns:
    """The roles of the columns of a table.

    Parameters
    ----------
    channels : signal columns, in this order; all columns without another role if None
    label, subject : label column and subject column; None if there is none
    time : time column; if None, a column with a usual name such as `time`
    refuse_labels : raise an error if a signal looks like a label
    resample : "hold" or "polyphase": how to resample uneven times to a constant rate; None raises an error
    """

    channels: Sequence[str] | None = None
    label: str | None = None
    subject: str | None = None
    time: str | None = None
    refuse_labels: bool = False
    resample: str | None = None


def table_ending(path: Path) -> str:
    """Return the extension of a table including compression, such as ".csv.gz"; "" if the file is not a table."""
    found = re.search(r"\.(?:csv|tsv)(?:\.gz)?$", path.name.lower())
    return found[0] if found else ""


def read_csv(
    path: str | os.PathLike[str],
    fs: float | None = None,
    name: str | None = None,
    subject: str | None = None,
    columns: TableColumns | None = None,
) -> Recording:
    """Read a continuous recording from a text table: a row of channel names, then one row per sample.

    Columns are separated by commas, semicolons or tabs. Decimal commas, a byte order mark and gzip are supported. A
    column named `time`, `timestamp` or `datetime`, or a first column named `t`, contains times: seconds, dates, or
    numbers of ms, us or ns, according to its name or the size of its values. Without `fs`, the times give the sampling
    rate and must be evenly spaced within 1 %; with `fs`, they must agree with it and have no gaps. Empty cells and NaN
    are missing values. Units are unknown and stay empty. Labels become annotations.

    Parameters
    ----------
    path : path of the table
    fs : sampling rate in Hz; computed from the times if None
    name : name of the recording; by default the file name without its extension
    subject : name of the subject; by default the name of the recording
    columns : roles of the columns

    Raises
    ------
    DataError : if the file is missing or not such a table, its times are uneven, or neither `fs` nor times are given
    PolyadicError : if `fs` is not positive
    """
    path = Path(path)
    name = path.name.removesuffix(table_ending(path) or path.suffix) if name is None else name
    table, columns = _read(path, fs, columns or TableColumns())
    everything = np.arange(len(next(iter(table.numbers.values()), table.texts.get(columns.time or "", ()))))
    return _recording(table, everything, columns, fs, path.name, name, name if subject is None else subject)


def read_csv_by_subject(
    path: str | os.PathLike[str], fs: float | None, name: str, columns: TableColumns
) -> list[Recording]:
    """Read one recording per subject from a table with a subject column; parameters as for `read_csv`.

    The rows of a subject need not be contiguous; windows do not cross from one block of rows to the next.
    """
    path = Path(path)
    table, columns = _read(path, fs, columns)
    who = table.texts[str(columns.subject)]
    unknown = [row for row, text in enumerate(who) if is_unknown(text)]
    if unknown:
        raise DataError(f"{path.name}, line {unknown[0] + 2}: the column {columns.subject!r} must name a subject")
    subjects = np.array(who)
    found = list(dict.fromkeys(who))
    return [
        _recording(
            table,
            np.flatnonzero(subjects == one),
            columns,
            fs,
            path.name,
            name if len(found) == 1 else f"{name}/{one}",
            one,
        )
        for one in found
    ]


def _read(path: Path, fs: float | None, columns: TableColumns) -> tuple[Table, TableColumns]:
    """Read the table, and return it with the resolved roles of its columns; raise if a column does not exist."""
    if fs is not None and not 0 < fs < np.inf:
        raise PolyadicError(f"fs must be a positive sampling rate in Hz, but is {fs!r}")
    check_regular_file(path)
    if not path.is_file():
        raise DataError(f"{path} does not exist")
    heads = read_heads(path)
    for option, column in (("--label", columns.label), ("--subject", columns.subject), ("--time", columns.time)):
        if column is not None and heads and column not in heads:
            raise DataError(
                f"{path.name}: there is no column {column!r} ({option}); there are {listed(heads)}"
                f"{close_match(column, heads)}"
            )
    missing = [channel for channel in columns.channels or () if channel not in heads]
    if missing and heads:
        raise DataError(
            f"{path.name}: must have the channels {listed(missing)}, but has {listed(heads)}"
            f"{close_match(missing[0], heads)}"
        )
    time = columns.time or _time_column(heads)
    if columns.channels is not None and time in columns.channels:
        time = None
    columns = TableColumns(
        columns.channels, columns.label, columns.subject, time, columns.refuse_labels, columns.resample
    )
    texts = {column for column in (columns.label, columns.subject, time) if column is not None}
    if columns.refuse_labels and columns.channels is None:
        _refuse_names(heads, texts, path.name)
    table = read_table(path, texts, columns.channels)
    if columns.refuse_labels and columns.channels is None:
        _refuse_labels(table, path.name)
    return table, columns


def _time_column(heads: Sequence[str]) -> str | None:
    if heads and heads[0].lower() == "t":
        return heads[0]
    unit = re.compile(r"(?:[\s_]+[(\[]?|[(\[])(?:s|sec|seconds|ms|us|µs|ns)[)\]]?$")
    bare = {unit.sub("", head.lower()): head for head in heads}
    return next((bare[name] for name in _TIMES if name in bare), None)


def _refuse_names(heads: Sequence[str], known: set[str], file: str) -> None:
    """Raise if a column is named like a label or a subject; `y` next to an `x` is an axis."""
    names = {head.lower() for head in heads}
    labels = [head for head in heads if head not in known and _is_label_name(head.lower(), names)]
    subjects = [head for head in heads if head not in known and head.lower() in _SUBJECTS]
    if labels and subjects:
        raise DataError(
            f"{file}: the column {labels[0]!r} looks like a label, and {subjects[0]!r} like the name of a subject; "
            f"both would be read as signals: use --label {shell_word(labels[0])} --subject {shell_word(subjects[0])} "
            "if they are, or select the signals with --channel"
        )
    if labels:
        raise _looks_like_label(file, labels[0], "by its name")
    if subjects:
        raise DataError(
            f"{file}: the column {subjects[0]!r} looks like the name of a subject, and would be read as a signal: use "
            f"--subject {shell_word(subjects[0])} if it is one, or select the signals with --channel"
        )


def _is_label_name(name: str, names: Collection[str]) -> bool:
    return name in _LABELS and not (name == "y" and "x" in names)


def _refuse_labels(table: Table, file: str) -> None:
    for name, values in table.numbers.items():
        found = _few_numbers(values)
        if found:
            raise _looks_like_label(file, name, f"it has only {found} distinct values, all whole numbers")


def _few_numbers(values: NDArray[np.float64]) -> int:
    """Return the number of distinct integers in a column that looks like a label; 0 if it does not."""
    values = values[np.isfinite(values)]
    if not len(values) or (values != np.rint(values)).any():
        return 0
    found, runs = len(np.unique(values)), 1 + int((np.diff(values) != 0).sum())
    return found if 2 <= found <= _FEW and len(values) >= _RUN * max(runs, found) else 0


def guess_columns(path: Path) -> TableColumns:
    """Guess the roles of columns from their names and content; the first that looks like a label is the label."""
    heads = read_heads(path)
    names = {head.lower() for head in heads}
    time = _time_column(heads)
    subjects = [head for head in heads if head.lower() in _SUBJECTS]
    signals, labels = [], []
    for head, cells in read_table(path, heads).texts.items():
        if head == time or head in subjects:
            continue
        values = [cell.replace(",", ".") or "nan" for cell in cells]
        numbers = all(map(is_number, values))
        if _is_label_name(head.lower(), names) or not numbers or _few_numbers(np.array(values, np.float64)):
            labels.append(head)
        else:
            signals.append(head)
    return TableColumns(signals, next(iter(labels), None), next(iter(subjects), None), time)


def _looks_like_label(file: str, column: str, reason: str) -> DataError:
    return DataError(
        f"{file}: the column {column!r} looks like a label ({reason}), and would be read as a signal: use --label "
        f"{shell_word(column)} if it is one, or select the signals with --channel"
    )


def _recording(
    table: Table, rows: NDArray[np.intp], columns: TableColumns, fs: float | None, file: str, name: str, subject: str
) -> Recording:
    """Build a recording from some rows of a table."""
    channels = tuple(columns.channels) if columns.channels is not None else tuple(table.numbers)
    values = np.array([table.numbers[channel][rows] for channel in channels]).reshape(len(channels), len(rows))
    labels = None if columns.label is None else [table.texts[columns.label][row] for row in rows.tolist()]
    segments, began = _row_segments(rows), ""
    if columns.time is not None:
        times, began = _seconds([table.texts[columns.time][row] for row in rows.tolist()], columns.time, file)
        try:
            fs, segments = _timed(times, rows, fs if columns.resample is None else None, file)
        except DataError:
            if columns.resample is None:
                raise
            fs, values, labels, segments = _evened(times, values, labels, columns.resample, file)
    if fs is None:
        raise DataError(
            f"{file} does not give its sampling rate: add a first column named time, in seconds, name the column of "
            "times (--time), or give the rate in Hz (--fs, or fs=)"
        )
    if columns.time is None:
        segments = tuple(Segment(first, first / fs) for first, _ in segments)
    with np.errstate(over="ignore"):
        signal = np.ascontiguousarray(values.astype(np.float32))
    if np.isinf(signal).any():
        row = int(np.flatnonzero(np.isinf(signal).any(axis=0))[0])
        raise DataError(f"{file}: sample {row} must be a number that fits float32, but is infinite")
    count = len(channels)
    recording = Recording(
        name,
        subject,
        float(fs),
        channels,
        ("",) * count,
        signal,
        np.ones(count),
        np.zeros(count),
        segments=segments,
        began=began,
    )
    return recording if labels is None else _labelled(recording, labels)


def _row_segments(rows: NDArray[np.intp]) -> tuple[Segment, ...]:
    """Return the segments of contiguous rows; onsets are filled in later."""
    breaks = np.flatnonzero(np.diff(rows) != 1) + 1
    return (Segment(0, 0.0), *(Segment(int(first), 0.0) for first in breaks))


def _labelled(recording: Recording, labels: list[str]) -> Recording:
    """Add an annotation for each run of samples with the same label."""
    firsts = [segment.first for segment in recording.segments]
    texts = np.array([_label_text(label) for label in labels])
    edges = sorted({0, *(np.flatnonzero(texts[1:] != texts[:-1]) + 1).tolist(), *firsts})
    onsets = recording.elapsed_samples(np.array(edges, np.int64)) / recording.fs
    lengths = np.diff([*edges, len(texts)]) / recording.fs
    found = tuple(
        Annotation(float(onset), float(length), str(texts[edge]))
        for edge, onset, length in zip(edges, onsets, lengths, strict=True)
        if texts[edge]
    )
    return replace(recording, annotations=found)


def _label_text(cell: str) -> str:
    """Return a label as text, "" if it is unknown; 3 and 3.0 are equal."""
    if is_number(cell) and np.isfinite(float(cell)):
        number = float(cell)
        cell = str(int(number)) if number.is_integer() else cell
    return "" if is_unknown(cell) or cell.lower() in ("nan", "na", "n/a", "none", "null") else cell


# --------------------------------------------------------------------------------------------------------------- times


def _seconds(cells: list[str], column: str, file: str) -> tuple[NDArray[np.float64], str]:
    """Parse times into seconds, and return them with the first as a date, or "".

    Dates and times in ms, us or ns become relative to the first.
    """
    wanted = f"{file}: the time column must have two or more times in seconds and none missing"
    if "" in cells or len(cells) < 2:
        raise DataError(wanted)
    try:
        if any("_" in cell for cell in cells):
            raise ValueError
        times = np.array([cell.replace(",", ".") for cell in cells], np.float64)
    except ValueError:
        return _dates(cells, file)
    if not np.isfinite(times).all():
        raise DataError(wanted)
    unit = re.search(r"(?:^|[\s_(\[])(ms|us|µs|ns)[)\]]?$", column.lower())
    scale = _SCALES[unit[1]] if unit else 1.0
    for size, smaller in () if unit else _EPOCHS:
        if size <= abs(times[0]) < size * 1e3 and size <= abs(times[-1]) < size * 1e3:
            scale = smaller
    began = unix_time(float(times[0]) * scale)
    return times if scale == 1 else np.asarray((times - times[0]) * scale), began


def _dates(cells: list[str], file: str) -> tuple[NDArray[np.float64], str]:
    """Parse dates into seconds from the first; also return the first."""
    found: list[float] = []
    first: Any = None
    for row, cell in enumerate(cells):
        try:
            moment = datetime.fromisoformat(cell)
            first = moment if first is None else first
            found.append((moment - first).total_seconds())
        except (ValueError, TypeError) as error:
            raise DataError(
                f"{file}, line {row + 2}: times must be numbers or dates such as 2024-05-01 10:00:00.02, but there is "
                f"{cell!r}"
            ) from error
    return np.array(found), clock_time(first.isoformat(), 0.0)


def _timed(
    times: NDArray[np.float64], rows: NDArray[np.intp], fs: float | None, file: str
) -> tuple[float, tuple[Segment, ...]]:
    """Return the sampling rate of evenly spaced times, and the segments of contiguous rows."""
    edges = [segment.first for segment in _row_segments(rows)]
    parts = [part for part in np.split(np.arange(len(times)), edges[1:]) if len(part) > 1] or [np.arange(len(times))]
    longest = max(parts, key=len)
    rate = _sampling_rate(times[longest], fs, file, int(rows[longest[0]]))
    for part in parts:
        _sampling_rate(times[part], rate, file, int(rows[part[0]]))
    onsets = times[edges] - times[0]
    ended = 0.0
    segments = []
    for first, end, onset in zip(edges, [*edges[1:], len(times)], onsets.tolist(), strict=True):
        onset = max(onset, ended)  # if times restart, the segment follows the previous one
        segments.append(Segment(first, float(onset)))
        ended = onset + (end - first) / rate
    return rate, tuple(segments)


def _sampling_rate(times: NDArray[np.float64], fs: float | None, name: str, row: int = 0) -> float:
    """Return the sampling rate of evenly spaced times, or `fs` if they agree with it."""
    with np.errstate(all="ignore"):  # times that overflow here are not evenly spaced either
        steps = np.diff(times)
        mean = float(times[-1] - times[0]) / len(steps)
    if not 0 < mean < np.inf:
        raise DataError(f"{name}: times must increase, but go from {times[0]:g} to {times[-1]:g}")
    if fs is not None and abs(mean * fs - 1) > 0.01 and (np.abs(steps - mean) <= 0.01 * mean).all():
        raise _other_rate(name, 1 / mean, fs)
    # A few gaps do not affect the median, but they change the mean and would make every step look wrong.
    median = float(np.median(steps))
    expected = 1 / fs if fs is not None else median if 0 < median < np.inf else mean
    # If the rate is given, times may be coarsely rounded, but a step of two samples is a gap.
    slack = 0.01 if fs is None else 0.999
    off = np.flatnonzero(~(np.abs(steps - expected) <= slack * expected))
    if off.size:
        raise DataError(
            f"{name}, line {row + off[0] + 3}: times must be evenly spaced by {expected:.6g} s, but this one is "
            f"{steps[off[0]]:.6g} s after the previous line: interpolate with --resample polyphase, or split the file "
            "at gaps"
        )
    if fs is not None and abs(mean - expected) > 0.01 * expected:
        raise _other_rate(name, 1 / mean, fs)
    return _round_rate(1 / mean, len(times)) if fs is None else fs


def _other_rate(name: str, rate: float, fs: float) -> DataError:
    return DataError(
        f"{name}: the times give a rate of {rate:.6g} Hz, but fs is {fs:g} Hz: --resample polyphase resamples to fs"
    )


def _round_rate(rate: float, samples: int) -> float:
    """Round a rate if that changes the duration of the recording by less than half a sample."""
    for digits in range(3):
        near = round(rate, digits)
        if abs(near - rate) <= min(_ROUND, 0.5 / samples) * rate:
            return near
    # Nine digits remove the floating-point error of times such as 0.1.
    return float(f"{rate:.9g}")


def _evened(
    times: NDArray[np.float64],
    values: NDArray[np.float64],
    labels: list[str] | None,
    how: str,
    file: str,
) -> tuple[float, NDArray[np.float64], list[str] | None, tuple[Segment, ...]]:
    """Resample uneven signals, (channels, samples), and their labels to a constant rate: one over the median step."""
    steps = np.diff(times)
    step = float(np.median(steps[steps > 0])) if (steps > 0).any() else 0.0
    if not 0 < step < np.inf or (steps < 0).any():
        row = int(np.flatnonzero(steps <= 0)[0])
        raise DataError(f"{file}, line {row + 3}: times must increase, but this one does not")
    rate = float(f"{1 / step:.6g}")
    edges = np.flatnonzero(steps > _GAP * step) + 1
    signals, texts, segments, count = [], [], [], 0
    for part in np.split(np.arange(len(times)), edges):
        grid = times[part[0]] + np.arange(int((times[part[-1]] - times[part[0]]) * rate + 1e-6) + 1) / rate
        before = part[0] + np.searchsorted(times[part], grid + 1e-9 / rate, side="right") - 1
        if how == "hold":
            signals.append(values[:, before])
        else:
            signals.append(np.array([np.interp(grid, times[part], row[part]) for row in values]))
        texts += [] if labels is None else [labels[place] for place in before.tolist()]
        segments.append(Segment(count, float(times[part[0]] - times[0])))
        count += len(grid)
    return rate, np.concatenate(signals, axis=1), None if labels is None else texts, tuple(segments)
