"""Read continuous recordings from tables (CSV, TSV, Parquet, Feather, Excel): a row of names, one row per sample.

Besides signals, a table may have columns with times, labels and subjects.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from polyadic.data.channels import split_unit
from polyadic.data.labels import is_unknown
from polyadic.data.readers.common import choose_channels, stem_of
from polyadic.data.readers.table_files import is_number, read_frame, read_heads, read_texts
from polyadic.data.readers.table_times import at_even_times, read_times, row_segments, segments_and_rate
from polyadic.data.reading import close_match, listed, shell_word
from polyadic.data.recordings import Annotation, Recording, Segment
from polyadic.errors import DataError, PolyadicError

if TYPE_CHECKING:
    import os

    import pandas as pd

__all__ = ["TableColumns", "find_heads", "guess_columns", "read_csv", "read_csv_by_subject", "recording_of_rows"]

_TIMES = ("time", "timestamp", "datetime")
"""Names of a time column at any position; `t` is one only as the first column."""

_LABELS = ("label", "labels", "class", "activity", "stage", "y", "target")
_SUBJECTS = ("subject", "participant", "person", "user", "id", "subject_id", "participant_id", "person_id", "user_id")
_FEW, _RUN = 20, 3
"""A column of integers looks like a label if it has at most `_FEW` values, in runs of on average `_RUN` or more."""


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
    missing : value of missing samples, besides empty cells
    """

    channels: Sequence[str] | None = None
    label: str | None = None
    subject: str | None = None
    time: str | None = None
    refuse_labels: bool = False
    resample: str | None = None
    missing: float | None = None


def find_heads(channels: Sequence[str] | None, heads: Sequence[str]) -> list[str] | None:
    """Return the columns of channels, which are named with or without the unit: "ax" or "ax [m/s2]"; None if None."""
    named = {split_unit(head)[0]: head for head in heads}
    return None if channels is None else [name if name in heads else named.get(name, name) for name in channels]


def read_csv(path: str | os.PathLike[str], fs: float | None = None, columns: TableColumns | None = None) -> Recording:
    """Read a recording, named after its file, from a table: a row of channel names, then one row per sample.

    Without `fs`, a column of times gives the sampling rate, and must be evenly spaced within 1 %; with `fs`, it must
    agree. Empty cells are missing samples. A known unit in brackets, as in "ax [m/s2]", is the unit of the channel.
    Labels become annotations.

    Parameters
    ----------
    path : path of the table
    fs : sampling rate in Hz; computed from the times if None
    columns : roles of the columns

    Raises
    ------
    DataError : if the file is missing or not such a table, its times are uneven, or neither `fs` nor times are given
    PolyadicError : if `fs` is not positive
    """
    path = Path(path)
    name = stem_of(path)
    frame, columns = _read(path, fs, columns or TableColumns())
    return recording_of_rows(frame, np.arange(len(frame)), columns, fs, path.name, name, name)


def read_csv_by_subject(
    path: str | os.PathLike[str], fs: float | None, name: str, columns: TableColumns
) -> list[Recording]:
    """Read one recording per subject from a table with a subject column; parameters as for `read_csv`.

    The rows of a subject need not be contiguous; windows do not cross from one block of rows to the next.
    """
    path = Path(path)
    frame, columns = _read(path, fs, columns)
    subjects = frame[columns.subject].to_numpy(str)
    unknown = [row for row, text in enumerate(subjects.tolist()) if is_unknown(text)]
    if unknown:
        raise DataError(f"{path.name}, line {unknown[0] + 2}: the column {columns.subject!r} must name a subject")
    people = list(dict.fromkeys(subjects.tolist()))
    names = {who: name if len(people) == 1 else f"{name}/{who}" for who in people}
    return [
        recording_of_rows(frame, np.flatnonzero(subjects == who), columns, fs, path.name, names[who], who)
        for who in people
    ]


def _read(path: Path, fs: float | None, columns: TableColumns) -> tuple[pd.DataFrame, TableColumns]:
    """Read the table, and return it with the resolved roles of its columns; raise if a column does not exist."""
    if fs is not None and not 0 < fs < np.inf:
        raise PolyadicError(f"fs must be a positive sampling rate in Hz, but is {fs!r}")
    heads = read_heads(path)
    for option, column in (("--label", columns.label), ("--subject", columns.subject), ("--time", columns.time)):
        if column is not None and heads and column not in heads:
            raise DataError(
                f"{path.name}: there is no column {column!r} ({option}); there are {listed(heads)}"
                f"{close_match(column, heads)}"
            )
    if columns.channels is not None and heads:
        there = [heads[place] for place in choose_channels(path.name, heads, columns.channels)]
        columns = replace(columns, channels=there)
    time = columns.time or _time_column(heads)
    if columns.channels is not None and time in columns.channels:
        time = None
    columns = replace(columns, time=time)
    texts = {column for column in (columns.label, columns.subject, time) if column is not None}
    refuse = columns.refuse_labels and columns.channels is None
    if refuse:
        names = {split_unit(head)[0].lower() for head in heads}
        labels = [head for head in heads if head not in texts and _is_label_name(head.lower(), names)]
        subjects = [head for head in heads if head not in texts and head.lower() in _SUBJECTS]
        _refuse(
            path.name,
            *((label, "a label (by its name)", "--label") for label in labels[:1]),
            *((subject, "the name of a subject", "--subject") for subject in subjects[:1]),
        )
    frame = read_frame(path, texts, columns.channels)
    for name in frame.columns.difference(list(texts), sort=False) if refuse else ():
        if few := _few_numbers(frame[name].to_numpy()):
            _refuse(path.name, (name, f"a label (it has only {few} distinct values, all whole numbers)", "--label"))
    return frame, columns


def _refuse(file: str, *columns: tuple[str, str, str]) -> None:
    """Raise if columns look like something other than a signal: each with what it looks like and its option."""
    if columns:
        looks = ", and ".join(f"the column {column!r} looks like {what}" for column, what, _ in columns)
        use = " ".join(f"{option} {shell_word(column)}" for column, _, option in columns)
        raise DataError(
            f"{file}: {looks}, and would be read as a signal: use {use} if "
            f"{'it is one' if len(columns) == 1 else 'they are'}, or select the signals with --channel"
        )


def _time_column(heads: Sequence[str]) -> str | None:
    if heads and heads[0].lower() == "t":
        return heads[0]
    unit = re.compile(r"(?:[\s_]+[(\[]?|[(\[])(?:s|sec|seconds|ms|us|µs|ns)[)\]]?$")
    bare = {unit.sub("", head.lower()): head for head in heads}
    return next((bare[name] for name in _TIMES if name in bare), None)


def _is_label_name(name: str, names: Collection[str]) -> bool:
    return name in _LABELS and not (name == "y" and "x" in names)  # y next to x is an axis


def _few_numbers(values: NDArray[np.float64]) -> int:
    """Return the number of distinct integers in a column that looks like a label; 0 if it does not."""
    values = values[np.isfinite(values)]
    if not len(values) or (values != np.rint(values)).any():
        return 0
    distinct, runs = len(np.unique(values)), 1 + int((np.diff(values) != 0).sum())
    return distinct if 2 <= distinct <= _FEW and len(values) >= _RUN * max(runs, distinct) else 0


def guess_columns(path: Path) -> TableColumns:
    """Guess the roles of columns from their names and content; the first that looks like a label is the label."""
    import pandas as pd

    frame = read_texts(path)
    heads = tuple(frame.columns)
    names = {split_unit(head)[0].lower() for head in heads}
    time = _time_column(heads)
    subjects = [head for head in heads if head.lower() in _SUBJECTS]
    signals: list[str] = []
    labels: list[str] = []
    for head in heads:
        if head == time or head in subjects:
            continue
        cells = frame[head].str.replace(",", ".")
        values = pd.to_numeric(cells, errors="coerce").to_numpy(np.float64)
        is_text = bool((np.isnan(values) & (cells != "").to_numpy()).any())
        (labels if _is_label_name(head.lower(), names) or is_text or _few_numbers(values) else signals).append(head)
    return TableColumns(signals, next(iter(labels), None), next(iter(subjects), None), time)


def recording_of_rows(
    frame: pd.DataFrame, rows: NDArray[np.intp], columns: TableColumns, fs: float | None, file: str, name: str, who: str
) -> Recording:
    """Build a recording of the subject `who` from some rows of a table."""
    texts = {columns.label, columns.subject, columns.time}
    channels = tuple(columns.channels or (head for head in frame.columns if head not in texts))
    values = frame[list(channels)].to_numpy(np.float64)[rows].T
    if columns.missing is not None:
        values = np.where(np.isclose(values, columns.missing, rtol=1e-6, atol=0), np.nan, values)
    labels = None if columns.label is None else frame[columns.label].to_numpy(str)[rows]
    segments, began = row_segments(rows), ""
    if columns.time is not None:
        times, began = read_times(frame[columns.time].to_numpy(str)[rows].tolist(), columns.time, file)
        try:
            fs, segments = segments_and_rate(times, rows, fs if columns.resample is None else None, file)
        except DataError:
            if columns.resample is None:
                raise
            fs, values, labels, segments = at_even_times(times, values, labels, columns.resample, file)
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
    split = [split_unit(head) for head in channels]
    names, units = tuple(name for name, _ in split), tuple(unit for _, unit in split)
    names = names if len(set(names)) == len(names) else channels
    recording = Recording(name, who, float(fs), names, units, signal, segments=segments, began=began)
    return recording if labels is None else _labelled(recording, labels)


def _labelled(recording: Recording, labels: NDArray[np.str_]) -> Recording:
    """Add an annotation for each run of samples with the same label."""
    meaning = {cell: _label_text(cell) for cell in set(labels.tolist())}
    texts = np.array([meaning[cell] for cell in labels.tolist()])
    firsts = [segment.first for segment in recording.segments]
    edges = sorted({0, *(np.flatnonzero(texts[1:] != texts[:-1]) + 1).tolist(), *firsts})
    onsets = recording.elapsed_samples(np.array(edges, np.int64)) / recording.fs
    lengths = np.diff([*edges, len(texts)]) / recording.fs
    annotations = tuple(
        Annotation(float(onset), float(length), str(texts[edge]))
        for edge, onset, length in zip(edges, onsets, lengths, strict=True)
        if texts[edge]
    )
    return replace(recording, annotations=annotations)


def _label_text(cell: str) -> str:
    """Return a label as text, "" if it is unknown; 3 and 3.0 are equal."""
    if is_number(cell) and np.isfinite(float(cell)):
        number = float(cell)
        cell = str(int(number)) if number.is_integer() else cell
    return "" if is_unknown(cell) or cell.lower() in ("nan", "na", "n/a", "none", "null") else cell
