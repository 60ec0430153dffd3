"""Read continuous recordings from tables (CSV, TSV, Parquet, Feather, Excel): a row of names, one row per sample.

pandas reads the files. Besides signals, a table may have columns with times, labels and subjects.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import warnings
import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from polyadic._util.files import check_regular_file
from polyadic.data.channels import split_unit
from polyadic.data.clock import clock_time, unix_time
from polyadic.data.labels import as_text, is_unknown
from polyadic.data.readers.common import check_inflation, choose_channels, ending_of
from polyadic.data.reading import close_match, listed, shell_word
from polyadic.data.recordings import Annotation, Recording, Segment
from polyadic.errors import DataError, MissingExtraError, PolyadicError

if TYPE_CHECKING:
    import os

    import pandas as pd

__all__ = [
    "TableColumns",
    "find_heads",
    "guess_columns",
    "read_csv",
    "read_csv_by_subject",
    "read_heads",
    "read_texts",
    "recording_of_rows",
    "typed_frame",
]

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

_NOTHING = ["", "nan", "NaN", "NAN", "NA", "N/A", "n/a", "null"]
_SAMPLE = 1 << 16
"""Bytes at the start of a table from which separator and decimal sign are detected."""

_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+(?:[eE][+-]?\d+)?")
_DECIMAL_POINT = re.compile(r"[+-]?\d+\.\d+(?:[eE][+-]?\d+)?")
_COMMA = "; numbers must have decimal points, not commas"
_FORMATS = {
    ".parquet": ("read_parquet", "pyarrow"),
    ".feather": ("read_feather", "pyarrow"),
    ".xlsx": ("read_excel", "openpyxl"),
}
"""Function of pandas and package that read a format."""


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


def find_heads(channels: Sequence[str] | None, heads: Sequence[str]) -> list[str] | None:
    """Return the columns of channels, which are named with or without the unit: "ax" or "ax [m/s2]"; None if None."""
    named = {split_unit(head)[0]: head for head in heads}
    return None if channels is None else [name if name in heads else named.get(name, name) for name in channels]


# ------------------------------------------------------------------------------------------------------------ files


def read_heads(path: Path) -> tuple[str, ...]:
    """Return the column names of a table, without an unnamed first column; () if the file is not a table."""
    try:
        state = path.stat()
        return _heads_of(path, state.st_mtime_ns, state.st_size)
    except (DataError, csv.Error, OSError):
        return ()


@lru_cache(maxsize=4096)
def _heads_of(path: Path, changed: int, size: int) -> tuple[str, ...]:
    """Return the column names of a table; they are needed often, and some formats must be read as a whole for them."""
    if ending_of(path) in _FORMATS:
        return tuple(map(str, _read_binary(path).columns))
    heads = _split_heads(_decoded(path, _SAMPLE))[1]
    return heads[1:] if _has_index(heads) else heads


def read_texts(path: Path) -> pd.DataFrame:
    """Read all columns of a table as text, "" for empty cells."""
    return _read_frame(path, read_heads(path))


def _read_frame(path: Path, texts: Collection[str], channels: Sequence[str] | None = None) -> pd.DataFrame:
    """Read a table: the columns `texts` as strings, the channels (or all others) as numbers.

    Raises
    ------
    DataError : if the file is not such a table; the message gives the file and the line
    """
    frame = _read_binary(path) if ending_of(path) in _FORMATS else _read_text(path, texts)
    return typed_frame(frame, path.name, texts, channels)


def typed_frame(
    frame: pd.DataFrame, file: str, texts: Collection[str], channels: Sequence[str] | None = None
) -> pd.DataFrame:
    """Return a table with the columns `texts` as strings, and the channels (or all others) as numbers."""
    heads = tuple(map(str, frame.columns))
    _check_heads(file, heads)
    if not len(frame):
        raise DataError(f"{file}: the table must have at least one sample below the names, but has none")
    columns: dict[str, Any] = {}
    for name, (_, column) in zip(heads, frame.items(), strict=True):
        if name in texts:
            columns[name] = [as_text(value).strip() for value in column]
        elif channels is None or name in channels:
            columns[name] = _numbers(column, name, file)
    return type(frame)(columns)


def _read_binary(path: Path) -> pd.DataFrame:
    import pandas as pd

    check_regular_file(path)
    function, package = _FORMATS[ending_of(path)]
    try:
        frame: pd.DataFrame = getattr(pd, function)(path, **({"engine": package} if function == "read_excel" else {}))
        return frame
    except ImportError as error:
        raise MissingExtraError(f"{path.name} needs the package {package}: pip install {package}") from error
    except Exception as error:  # the engines raise many types
        raise DataError(f"{path.name} cannot be read as a table: {error}") from error


def _decoded(path: Path, most: int | None = None) -> str:
    """Return the text of a table, or at most its first bytes; raise if a compressed one becomes far too large."""
    check_regular_file(path)
    if not path.is_file():
        raise DataError(f"{path} does not exist")
    content = bytearray()
    packed = path.suffix.lower() == ".gz"
    try:
        with gzip.open(path) if packed else path.open("rb") as file:
            while (most is None or len(content) < most) and (chunk := file.read(most or 1 << 20)):
                content += chunk
                if packed:
                    check_inflation(f"{path.name} unpacked", len(content), path.stat().st_size, "unpack it first")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path.name} cannot be unpacked: {error}") from error
    if most is not None and len(content) >= most:
        del content[content.rfind(b"\n") + 1 :]
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:  # spreadsheets in Europe often write cp1252
        return content.decode("cp1252", "replace")


def _split_heads(text: str) -> tuple[str, tuple[str, ...]]:
    """Return the separator of a table and its column names, from the first line of its text."""
    first = re.split("[\r\n]", text, maxsplit=1)[0]
    delimiter = max(",;\t", key=re.sub('"[^"]*"', "", first).count)
    return delimiter, tuple(cell.strip() for cell in next(csv.reader([first], delimiter=delimiter), []))


def _has_index(heads: tuple[str, ...]) -> bool:
    """Whether only the first column has no name, like the index column that pandas writes."""
    return len(heads) > 1 and heads[0] == "" and "" not in heads[1:]


def _check_heads(file: str, heads: tuple[str, ...]) -> None:
    if not heads or "" in heads:
        raise DataError(f"{file}, line 1: the first row must name every channel, but is empty or has an empty name")
    if all(map(_is_number, heads)):
        raise DataError(f"{file}, line 1: the first row must name the channels, but holds numbers")
    if len(set(heads)) != len(heads):
        raise DataError(f"{file}: channel names must differ, but are {', '.join(heads)}")


def _read_text(path: Path, texts: Collection[str]) -> pd.DataFrame:
    """Read a text table: separator, encoding and decimal sign are detected; blank rows at the end are ignored."""
    import pandas as pd

    text = _decoded(path)
    delimiter, heads = _split_heads(text)
    index = _has_index(heads)
    _check_heads(path.name, heads[index:])
    _check_widths(path.name, text, delimiter, len(heads))
    cells = re.split(rf"[\r\n{delimiter}]", text[:_SAMPLE])[len(heads) :]
    comma = any(map(_DECIMAL_COMMA.fullmatch, cells)) and not any(map(_DECIMAL_POINT.fullmatch, cells))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # rows that are longer than the names
            frame = pd.read_csv(
                io.StringIO(text),
                sep=delimiter,
                header=0,
                names=list(heads),
                index_col=False,
                decimal="," if comma else ".",
                dtype={name: str for name in heads if name in texts},
                keep_default_na=False,
                na_values=dict.fromkeys((name for name in heads if name not in texts), _NOTHING),
                skip_blank_lines=False,
                low_memory=False,
            )
    except (ValueError, pd.errors.ParserWarning) as error:
        raise DataError(f"{path.name} cannot be read as a table: {str(error).strip()}") from error
    filled = np.flatnonzero(~(frame.isna() | (frame == "")).all(axis=1))
    frame = frame.iloc[: filled[-1] + 1 if filled.size else 0]
    if not index:
        return frame
    counted = frame.iloc[:, 0].to_numpy()
    if len(counted) and not np.array_equal(counted, np.arange(len(counted)) + counted[0]):
        _check_heads(path.name, heads)  # an unnamed column that does not count rows
    return frame.iloc[:, 1:]


def _check_widths(file: str, text: str, delimiter: str, width: int) -> None:
    """Raise if a row of a table without quotes has too few cells, which pandas would fill with missing values."""
    lines = text.count("\n") + (not text.endswith("\n"))
    if '"' in text or width == 1 or text.count(delimiter) == lines * (width - 1):
        return
    for number, line in enumerate(text.rstrip().splitlines(), start=1):
        cells = line.count(delimiter) + 1
        if cells != width:
            hint = _COMMA if cells == 2 * width and delimiter == "," else ""
            raise DataError(f"{file}, line {number}: the row must have {width} cells, but has {cells}{hint}")


def _is_number(cell: str) -> bool:
    """Whether a cell is a number; underscores, which Python allows, are not."""
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell


def _numbers(column: pd.Series, name: str, file: str) -> NDArray[np.float64]:
    """Return a column of numbers; raise an error with the line of the first cell that is none."""
    import pandas as pd

    numbers: NDArray[np.float64] = pd.to_numeric(column, errors="coerce").to_numpy(np.float64)
    wrong = np.flatnonzero(np.isnan(numbers) & column.notna().to_numpy())
    if wrong.size:
        row, cell = int(wrong[0]), str(column.iloc[int(wrong[0])])
        hint = _COMMA if _DECIMAL_COMMA.fullmatch(cell) else ""
        if row == 0 and not hint:
            hint = f"; if the column {name!r} has labels, use --label {shell_word(name)}; --channel selects the signals"
        raise DataError(f"{file}, line {row + 2}: cells must be numbers, but there is {cell[:40]!r}{hint}")
    return numbers


# ------------------------------------------------------------------------------------------------------- recordings


def read_csv(path: str | os.PathLike[str], fs: float | None = None, columns: TableColumns | None = None) -> Recording:
    """Read a recording, named after its file, from a table: a row of channel names, then one row per sample.

    Columns are separated by commas, semicolons or tabs. Decimal commas, a byte order mark and gzip are supported. A
    column named `time`, `timestamp` or `datetime`, or a first column named `t`, contains times: seconds, dates, or
    numbers of ms, us or ns, according to its name or the size of its values. Without `fs`, the times give the sampling
    rate and must be evenly spaced within 1 %; with `fs`, they must agree with it and have no gaps. Empty cells and NaN
    are missing values. A known unit in brackets at the end of a name, as in "ax [m/s2]", is the unit of the channel.
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
    name = path.name[: len(path.name) - len(ending_of(path))]
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
        choose_channels(path.name, heads, columns.channels)
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
    frame = _read_frame(path, texts, columns.channels)
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
    labels = None if columns.label is None else frame[columns.label].to_numpy(str)[rows]
    segments, began = _row_segments(rows), ""
    if columns.time is not None:
        times, began = _seconds(frame[columns.time].to_numpy(str)[rows].tolist(), columns.time, file)
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
    scale, offset = np.ones(len(channels)), np.zeros(len(channels))
    split = [split_unit(head) for head in channels]
    names, units = tuple(name for name, _ in split), tuple(unit for _, unit in split)
    names = names if len(set(names)) == len(names) else channels
    recording = Recording(name, who, float(fs), names, units, signal, scale, offset, segments=segments, began=began)
    return recording if labels is None else _labelled(recording, labels)


def _row_segments(rows: NDArray[np.intp]) -> tuple[Segment, ...]:
    """Return the segments of contiguous rows; onsets are filled in later."""
    breaks = np.flatnonzero(np.diff(rows) != 1) + 1
    return (Segment(0, 0.0), *(Segment(int(first), 0.0) for first in breaks))


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
    if _is_number(cell) and np.isfinite(float(cell)):
        number = float(cell)
        cell = str(int(number)) if number.is_integer() else cell
    return "" if is_unknown(cell) or cell.lower() in ("nan", "na", "n/a", "none", "null") else cell


# --------------------------------------------------------------------------------------------------------------- times


def _seconds(cells: list[str], column: str, file: str) -> tuple[NDArray[np.float64], str]:
    """Parse times into seconds, and return them with the first as a date, or "".

    Dates and times in ms, us or ns become relative to the first.
    """
    import pandas as pd

    wanted = f"{file}: the time column must have two or more times in seconds and none missing"
    if "" in cells or len(cells) < 2:
        raise DataError(wanted)
    if not all(map(_is_number, numbers := [cell.replace(",", ".") for cell in cells])):
        dates = pd.to_datetime(pd.Series(cells), errors="coerce", format="ISO8601")
        if dates.isna().any():
            row = int(np.argmax(dates.isna()))
            raise DataError(
                f"{file}, line {row + 2}: times must be numbers or dates such as 2024-05-01 10:00:00.02, but there is "
                f"{cells[row]!r}"
            )
        return (dates - dates[0]).dt.total_seconds().to_numpy(), clock_time(dates[0].isoformat(), 0.0)
    times = np.array(numbers, np.float64)
    if not np.isfinite(times).all():
        raise DataError(wanted)
    unit = re.search(r"(?:^|[\s_(\[])(ms|us|µs|ns)[)\]]?$", column.lower())
    scale = _SCALES[unit[1]] if unit else 1.0
    for size, smaller in () if unit else _EPOCHS:
        if size <= abs(times[0]) < size * 1e3 and size <= abs(times[-1]) < size * 1e3:
            scale = smaller
    began = unix_time(float(times[0]) * scale)
    return times if scale == 1 else np.asarray((times - times[0]) * scale), began


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
    other_rate = DataError(
        f"{name}: the times give a rate of {1 / mean:.6g} Hz, but fs is {fs or 0:g} Hz: --resample polyphase resamples "
        "to fs"
    )
    if fs is not None and abs(mean * fs - 1) > 0.01 and (np.abs(steps - mean) <= 0.01 * mean).all():
        raise other_rate
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
        raise other_rate
    return _round_rate(1 / mean, len(times)) if fs is None else fs


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
    labels: NDArray[np.str_] | None,
    how: str,
    file: str,
) -> tuple[float, NDArray[np.float64], NDArray[np.str_] | None, tuple[Segment, ...]]:
    """Resample uneven signals, (channels, samples), and their labels to a constant rate: one over the median step."""
    steps = np.diff(times)
    step = float(np.median(steps[steps > 0])) if (steps > 0).any() else 0.0
    if not 0 < step < np.inf or (steps < 0).any():
        row = int(np.flatnonzero(steps <= 0)[0])
        raise DataError(f"{file}, line {row + 3}: times must increase, but this one does not")
    rate = float(f"{1 / step:.6g}")
    edges = np.flatnonzero(steps > _GAP * step) + 1
    signals, sources, segments, count = [], [], [], 0
    for part in np.split(np.arange(len(times)), edges):
        grid = times[part[0]] + np.arange(int((times[part[-1]] - times[part[0]]) * rate + 1e-6) + 1) / rate
        before = part[0] + np.searchsorted(times[part], grid + 1e-9 / rate, side="right") - 1
        if how == "hold":
            signals.append(values[:, before])
        else:
            signals.append(np.array([np.interp(grid, times[part], row[part]) for row in values]))
        sources.append(before)
        segments.append(Segment(count, float(times[part[0]] - times[0])))
        count += len(grid)
    texts = None if labels is None else labels[np.concatenate(sources)]
    return rate, np.concatenate(signals, axis=1), texts, tuple(segments)
