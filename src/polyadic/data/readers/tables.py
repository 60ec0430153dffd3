"""Read continuous recordings from tables (CSV, TSV, Parquet, Feather, Excel): a row of names, one row per sample.

Besides signals, a table may have columns with times, labels and subjects. pandas parses the files.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import shlex
import warnings
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from polyadic.data.channels import split_unit
from polyadic.data.labels import as_text, is_unknown
from polyadic.data.readers.common import check_file, choose_channels, ending_of
from polyadic.data.reading import Reading, close_match, listed
from polyadic.data.recordings import Annotation, Recording, Segment, clock_time, resample_recording
from polyadic.data.subjects import COLUMN
from polyadic.errors import DataError, MissingExtraError

if TYPE_CHECKING:
    import pandas as pd

_FORMATS = {".parquet": "pyarrow", ".feather": "pyarrow", ".xlsx": "openpyxl"}
"""Package that pandas needs for a format; all others are text."""
_SAMPLE = 1 << 16
"""Bytes at the start of a text table from which its names and decimal sign are detected."""
_NOTHING = ["", "nan", "NaN", "NAN", "NA", "N/A", "n/a", "null"]
_NUMBER = re.compile(r"[+-]?\d+[.,]\d+(?:[eE][+-]?\d+)?")

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
_TIME_UNIT = re.compile(r"(?:[\s_]+[(\[]?|[(\[])(s|sec|seconds|ms|us|µs|ns)[)\]]?$")
_SCALES = {"ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_EPOCHS = ((1e17, 1e-9), (1e14, 1e-6), (1e11, 1e-3))
"""Unix times in seconds have ten digits; larger numbers are in ms, us or ns."""


# --------------------------------------------------------------------------------------------------------------- files


def read_heads(path: Path) -> tuple[str, ...]:
    """Return the column names of a table, without an unnamed first column; () if the file is not a table."""
    try:
        return _heads_of(path, path.stat().st_mtime_ns)
    except (DataError, csv.Error, OSError):
        return ()


@lru_cache(maxsize=4096)  # names are needed often, and some formats must be read as a whole for them
def _heads_of(path: Path, changed: int) -> tuple[str, ...]:
    if ending_of(path) in _FORMATS:
        return tuple(map(str, _read(path, ()).columns))
    heads = _split_heads(_decoded(path, _SAMPLE))[1]
    return heads[_has_index(heads) :]


def read_texts(path: Path) -> pd.DataFrame:
    """Read all columns of a table as text, "" for empty cells."""
    import pandas as pd

    frame = _read(path, read_heads(path))
    return pd.DataFrame({head: [as_text(cell).strip() for cell in frame[head]] for head in frame.columns}, dtype=str)


def _read(path: Path, texts: Collection[str]) -> pd.DataFrame:
    """Read a table, with the columns `texts` as strings if the file is text."""
    import pandas as pd

    check_file(path)
    ending, hint = ending_of(path), ""
    try:
        if ending == ".xlsx":
            return pd.read_excel(path, engine="openpyxl")
        if ending in _FORMATS:
            return pd.read_parquet(path) if ending == ".parquet" else pd.read_feather(path)
        text = _decoded(path)
        delimiter, heads = _split_heads(text)
        hint = "; are decimal commas also the separators?" if delimiter == "," else ""
        index = _has_index(heads)
        _check_heads(path.name, heads[index:])
        cells = re.split(rf"[\r\n{delimiter}]", text[:_SAMPLE])[len(heads) :]
        signs = {"," if "," in cell else "." for cell in cells if _NUMBER.fullmatch(cell)}
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # rows that are longer than the names
            frame = pd.read_csv(
                io.StringIO(text),
                sep=delimiter,
                header=0,
                names=list(heads),
                index_col=False,
                decimal="," if signs == {","} else ".",
                dtype={name: str for name in heads if name in texts},
                keep_default_na=False,
                na_values=dict.fromkeys((name for name in heads if name not in texts), _NOTHING),
                skip_blank_lines=False,
                low_memory=False,
            )
    except ImportError as error:
        package = _FORMATS[ending]
        raise MissingExtraError(f"{path.name} needs the package {package}: pip install {package}") from error
    except DataError:
        raise
    except Exception as error:  # the engines raise many types
        raise DataError(f"{path.name} cannot be read as a table: {str(error).strip()}{hint}") from error
    filled = np.flatnonzero(~(frame.isna() | (frame == "")).all(axis=1))
    frame = frame.iloc[: filled[-1] + 1 if filled.size else 0]  # without blank rows at the end
    if index and not np.array_equal(frame.iloc[:, 0], np.arange(len(frame)) + frame.iloc[:1, 0].sum()):
        _check_heads(path.name, heads)  # an unnamed column that does not count rows
    return frame.iloc[:, int(index) :]


def _decoded(path: Path, size: int = -1) -> str:
    """Return the text of a table, or at most the lines in its first bytes."""
    check_file(path)
    try:
        with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
            content = file.read(size)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path.name} cannot be unpacked: {error}") from error
    content = content[: content.rfind(b"\n") + 1] if len(content) == size else content
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


def typed_frame(
    frame: pd.DataFrame, file: str, texts: Collection[str], channels: Sequence[str] | None = None
) -> pd.DataFrame:
    """Return a table with the columns `texts` as strings, and the channels (or all others) as numbers.

    A missing or wrong name, or a cell that is no number, is an error with the file and the line.
    """
    import pandas as pd

    heads = tuple(map(str, frame.columns))
    _check_heads(file, heads)
    if not len(frame):
        raise DataError(f"{file}: the table must have at least one sample below the names, but has none")
    columns: dict[str, Any] = {}
    for name, (_, column) in zip(heads, frame.items(), strict=True):
        if name in texts:
            codes, values = pd.factorize(column, use_na_sentinel=False)  # most texts occur many times
            columns[name] = np.array([as_text(value).strip() for value in values], object)[codes]
        elif channels is None or name in channels:
            columns[name] = numbers = pd.to_numeric(column, errors="coerce").to_numpy(np.float64)
            wrong = np.flatnonzero(np.isnan(numbers) & column.notna().to_numpy())
            if wrong.size:
                row, cell = int(wrong[0]), str(column.iloc[int(wrong[0])])
                hint = (
                    "; numbers must have decimal points, not commas" if "," in cell and _NUMBER.fullmatch(cell) else ""
                )
                if row == 0 and not hint:
                    hint = f"; if the column {name!r} has labels, use --label {shlex.quote(name)} (label=, subject=); "
                    hint += "--channel (channels=) selects the signals"
                raise DataError(f"{file}, line {row + 2}: cells must be numbers, but there is {cell[:40]!r}{hint}")
    return pd.DataFrame(columns)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell  # which Python allows


# ------------------------------------------------------------------------------------------------------------- columns


def choose_columns(
    file: str, heads: Sequence[str], channels: Sequence[str] | None, named: Mapping[str, str | None]
) -> tuple[str, ...] | None:
    """Return the columns of channels, named with or without the unit as in "ax [m/s2]"; `named` columns must exist."""
    for what, column in named.items():
        if column is not None and column not in heads:
            raise DataError(
                f"{file}: there is no column {column!r} ({what}); there are {listed(heads)}{close_match(column, heads)}"
            )
    bare = {split_unit(head)[0]: head for head in heads}
    wanted = None if channels is None else [name if name in heads else bare.get(name, name) for name in channels]
    return None if wanted is None else tuple(heads[place] for place in choose_channels(file, heads, wanted))


def read_table(path: Path, reading: Reading, name: str, guess: bool = False) -> tuple[list[Recording], Reading]:
    """Read the recordings of a table, and return them with a description that has its columns of signals and times.

    `channels`, `label`, `subject` and `time` of `reading` name columns. By default, a column with a usual name such as
    `time` has the times, and all others are signals. A column that looks like a label or a subject is an error, or is
    taken as such with `guess`. A recording has the `name`, followed by its subject if there are several.
    """
    heads, channels = read_heads(path), reading.channels
    if heads:  # else reading the table says what is wrong
        named = {"--label": reading.label, "--subject": reading.subject_column, "--time": reading.time}
        channels = choose_columns(path.name, heads, channels, named)
    time = reading.time or time_column(heads)
    reading = replace(reading, channels=channels, time=None if time in (channels or ()) else time)
    texts = {column for column in (reading.label, reading.subject_column, reading.time) if column is not None}
    frame = _read(path, texts)
    looks = {} if channels is not None else unlike_signals(frame, texts)
    if not guess:
        check_signals(looks, path.name)
    if guess and channels is None:
        found = _first_of_each(looks)
        reading = replace(
            reading,
            label=reading.label or found.get("--label"),
            subject=reading.subject_column or found.get("--subject"),
            channels=tuple(head for head in frame.columns if head not in {*texts, *looks}) or None,
        )
        texts |= {column for column in (reading.label, reading.subject_column) if column is not None}
    table = typed_frame(frame, path.name, texts, reading.channels)
    return recordings_in(table, reading, path.name, name, reading.subject_column), reading


def time_column(heads: Sequence[str]) -> str | None:
    """Return the column with a usual name of times, or None."""
    bare = {_TIME_UNIT.sub("", head.lower()): head for head in heads}
    first = [head for head in heads[:1] if head in ("t", "T")]
    return next(iter([*first, *(bare[name] for name in _TIMES if name in bare)]), None)


def check_signals(looks: Mapping[str, tuple[str, str]], file: str, python: bool = False) -> None:
    """Raise if columns look like labels or subjects, as `unlike_signals` found; say what to use, options or Python."""
    found = _first_of_each(looks)
    if not found:
        return
    what = ", and ".join(f"the column {column!r} looks like {looks[column][1]}" for column in found.values())
    uses = [
        f"{option[2:]}={column!r}" if python else f"{option} {shlex.quote(column)}" for option, column in found.items()
    ]
    raise DataError(
        f"{file}: {what}, and would be read as a signal: use {', '.join(uses) if python else ' '.join(uses)} if "
        f"{'it is one' if len(found) == 1 else 'they are'}, or select the signals with "
        f"{'channels=' if python else '--channel'}"
    )


def _first_of_each(looks: Mapping[str, tuple[str, str]]) -> dict[str, str]:
    """Return the first column for each option."""
    return dict(sorted({option: column for column, (option, _) in reversed(list(looks.items()))}.items()))


def unlike_signals(frame: pd.DataFrame, texts: Collection[str]) -> dict[str, tuple[str, str]]:
    """Return the columns that look like labels or subjects, each with the option for them and what it looks like."""
    names = {split_unit(str(head))[0].lower() for head in frame.columns}
    looks: dict[str, tuple[str, str]] = {}
    for head, column in frame.items():
        if head in texts or not len(column):
            continue
        name = str(head).lower()
        if name in _SUBJECTS:
            looks[str(head)] = "--subject", "the name of a subject"
        elif name in _LABELS and not (name == "y" and "x" in names):  # y next to x is an axis
            looks[str(head)] = "--label", "a label (by its name)"
        elif column.dtype.kind not in "fiub":
            first = str(column.iloc[0])
            if not _is_number(first) and not _NUMBER.fullmatch(first):
                looks[str(head)] = "--label", "a label (it has words)"
        else:
            values = column.to_numpy(np.float64)
            values = values[np.isfinite(values)]
            distinct, runs = len(np.unique(values)), 1 + int((np.diff(values) != 0).sum())
            whole = np.array_equal(values, np.rint(values))
            if whole and 2 <= distinct <= _FEW and len(values) >= _RUN * max(runs, distinct):
                looks[str(head)] = "--label", f"a label (it has only {distinct} distinct values, all whole numbers)"
    return looks


# ---------------------------------------------------------------------------------------------------------- recordings


def recordings_in(
    frame: pd.DataFrame, reading: Reading, file: str, name: str, by: str | None = None
) -> list[Recording]:
    """Return the recording of a table or, with a column `by` such as the subject, one per value.

    Without `fs`, the times give the sampling rate, and must be evenly spaced within 1 %; with `fs`, they must agree. A
    known unit in brackets, as in "ax [m/s2]", is the unit of the channel. Labels become annotations. The rows of a
    subject need not be contiguous; windows do not cross from one block of rows to the next.
    """
    if by is None:
        return [_recording(frame, reading, None, file, name, name)]
    people = {str(who): rows for who, rows in frame.groupby(by, sort=False)}
    for who in filter(is_unknown, people):
        raise DataError(f"{file}, line {people[who].index[0] + 2}: the column {by!r} must name a subject")
    names = {who: name if len(people) == 1 else f"{name}/{who}" for who in people}
    found = [_recording(rows, reading, by, file, names[who], who) for who, rows in people.items()]
    return [replace(recording, subject_from=COLUMN) for recording in found]


def _recording(frame: pd.DataFrame, reading: Reading, by: str | None, file: str, name: str, who: str) -> Recording:
    """Return a recording of some rows of a table, by whose index they are contiguous or not."""
    fs, time, resample, rows = reading.fs, reading.time, reading.resample, frame.index.to_numpy()
    channels = tuple(reading.channels or (head for head in frame.columns if head not in {reading.label, time, by}))
    values = frame[list(channels)].to_numpy(np.float64).T
    if reading.missing is not None:
        values = np.where(np.isclose(values, reading.missing, rtol=1e-6, atol=0), np.nan, values)
    labels = None if reading.label is None else frame[reading.label].to_numpy(str)
    edges, began = [0, *(np.flatnonzero(np.diff(rows) != 1) + 1).tolist()], ""
    if time is not None:
        times, began = _read_times(frame[time], file)
        try:
            fs, segments = _rate_and_segments(times, rows, edges, fs if resample is None else None, file)
        except DataError:
            if resample is None:
                raise
            fs, values, labels, segments = _at_even_times(times, values, labels, resample, file)
    elif fs is None:
        raise DataError(
            f"{file} does not give its sampling rate: add a first column named time, in seconds, name the column of "
            "times (--time), or give the rate in Hz (--fs, or fs=)"
        )
    else:
        segments = tuple(Segment(first, first / fs) for first in edges)
    with np.errstate(over="ignore"):
        signal = np.ascontiguousarray(values.astype(np.float32))
    if np.isinf(signal).any():
        row = int(np.flatnonzero(np.isinf(signal).any(axis=0))[0])
        raise DataError(f"{file}: sample {row} must be a number that fits float32, but is infinite")
    names, units = zip(*map(split_unit, channels), strict=True) if channels else ((), ())
    names = names if len(set(names)) == len(names) else channels
    recording = Recording(name, who, float(fs), names, units, signal, segments=segments, began=began)
    recording = recording if labels is None else _labelled(recording, labels)
    return recording if reading.fs is None else resample_recording(recording, reading.fs, resample, file)


def _labelled(recording: Recording, labels: NDArray[np.str_]) -> Recording:
    """Add an annotation for each run of samples with the same label; 3 and 3.0 are equal, and "" is unknown."""
    meaning: dict[str, str] = {}
    for cell in set(labels.tolist()):
        text = str(int(float(cell))) if _is_number(cell) and float(cell).is_integer() else cell
        meaning[cell] = "" if is_unknown(text) or text.lower() in ("nan", "na", "n/a", "none", "null") else text
    texts = np.array([meaning[cell] for cell in labels.tolist()])
    firsts = [segment.first for segment in recording.segments]
    edges = sorted({0, *(np.flatnonzero(texts[1:] != texts[:-1]) + 1).tolist(), *firsts})
    onsets = recording.elapsed_samples(np.array(edges, np.int64)) / recording.fs
    lengths = np.diff([*edges, len(texts)]) / recording.fs
    rows = zip(onsets.tolist(), lengths.tolist(), texts[edges].tolist(), strict=True)
    return replace(recording, annotations=tuple(Annotation(*row) for row in rows if row[2]))


# --------------------------------------------------------------------------------------------------------------- times


def _read_times(cells: pd.Series[str], file: str) -> tuple[NDArray[np.float64], str]:
    """Parse a column of times into seconds, and return them with the first as a date, or "".

    Dates and times in ms, us or ns become relative to the first.
    """
    import pandas as pd

    times = pd.to_numeric(cells.str.replace(",", "."), errors="coerce").to_numpy(np.float64)
    if len(cells) < 2 or (cells == "").any() or np.isinf(times).any():
        raise DataError(f"{file}: the time column must have two or more times in seconds and none missing")
    if np.isnan(times).any():
        dates = pd.to_datetime(cells, errors="coerce", format="ISO8601")
        for row in dates.index[dates.isna()]:
            raise DataError(
                f"{file}, line {row + 2}: times must be numbers or dates such as 2024-05-01 10:00:00.02, but there is "
                f"{cells[row]!r}"
            )
        return (dates - dates.iloc[0]).dt.total_seconds().to_numpy(), clock_time(dates.iloc[0])
    unit = _TIME_UNIT.search(f" {cells.name}".lower())
    scale = _SCALES.get(unit[1], 1.0) if unit else 1.0
    for size, smaller in () if scale != 1 else _EPOCHS:
        if size <= abs(times[0]) < size * 1e3 and size <= abs(times[-1]) < size * 1e3:
            scale = smaller
    first = float(times[0]) * scale
    # Unix times between 1985 and 2128 are dates.
    began = clock_time("1970-01-01T00:00:00+00:00", first) if 5e8 <= first < 5e9 else ""
    return times if scale == 1 else np.asarray((times - times[0]) * scale), began


def _rate_and_segments(
    times: NDArray[np.float64], rows: NDArray[np.intp], edges: list[int], fs: float | None, file: str
) -> tuple[float, tuple[Segment, ...]]:
    """Return the sampling rate of evenly spaced times, and the segments of contiguous rows, which begin at `edges`."""
    parts = [part for part in np.split(np.arange(len(times)), edges[1:]) if len(part) > 1] or [np.arange(len(times))]
    rate = fs
    for part in sorted(parts, key=len, reverse=True):  # the longest gives the rate of all
        rate = _sampling_rate(times[part], rate, file, int(rows[part[0]]))
    assert rate is not None
    ended = 0.0
    segments = []
    for first, end in zip(edges, [*edges[1:], len(times)], strict=True):
        onset = max(float(times[first] - times[0]), ended)  # if times restart, the segment follows the previous one
        segments.append(Segment(first, onset))
        ended = onset + (end - first) / rate
    return rate, tuple(segments)


def _sampling_rate(times: NDArray[np.float64], fs: float | None, file: str, row: int) -> float:
    """Return the sampling rate of evenly spaced times, or `fs` if they agree with it."""
    with np.errstate(all="ignore"):  # times that overflow here are not evenly spaced either
        steps = np.diff(times)
        mean = float(times[-1] - times[0]) / len(steps)
        if not 0 < mean < np.inf:
            raise DataError(f"{file}: times must increase, but go from {times[0]:g} to {times[-1]:g}")
        # A few gaps do not affect the median, but they change the mean and would make every step look wrong.
        median = float(np.median(steps))
        expected = 1 / fs if fs is not None else median if 0 < median < np.inf else mean
        # If the rate is given, times may be coarsely rounded, but a step of two samples is a gap.
        off = np.flatnonzero(~(np.abs(steps - expected) <= (0.01 if fs is None else 0.999) * expected))
        even = bool((np.abs(steps - mean) <= 0.01 * mean).all())
    if fs is not None and abs(mean * fs - 1) > 0.01 and (even or not off.size):
        raise DataError(
            f"{file}: the times give a rate of {1 / mean:.6g} Hz, not {fs:g} Hz: if they are in seconds, "
            "--resample polyphase resamples"
        )
    if off.size and steps[off[0]] < 0:
        raise DataError(
            f"{file}, line {row + off[0] + 3}: times must increase, but go back by {-steps[off[0]]:.6g} s: if another "
            "recording begins there, name the column of subjects (--subject, or subject=)"
        )
    if off.size:
        raise DataError(
            f"{file}, line {row + off[0] + 3}: times must be evenly spaced by {expected:.6g} s, but this one is "
            f"{steps[off[0]]:.6g} s after the previous line: interpolate with --resample polyphase, or split the file "
            "at gaps"
        )
    if fs is not None:
        return fs
    # Round a rate if that changes the duration by less than half a sample; else remove the floating-point error.
    rounded = (round(1 / mean, digits) for digits in range(3))
    close = (near for near in rounded if abs(near * mean - 1) <= min(_ROUND, 0.5 / len(times)))
    return next(close, float(f"{1 / mean:.9g}"))


def _at_even_times(
    times: NDArray[np.float64], values: NDArray[np.float64], labels: NDArray[np.str_] | None, how: str, file: str
) -> tuple[float, NDArray[np.float64], NDArray[np.str_] | None, tuple[Segment, ...]]:
    """Resample uneven signals, (channels, samples), and their labels to a constant rate: one over the median step."""
    steps = np.diff(times)
    step = float(np.median(steps[steps > 0])) if (steps > 0).any() else 0.0
    if not 0 < step < np.inf or (steps < 0).any():
        row = int(np.flatnonzero(steps <= 0)[0])
        raise DataError(f"{file}, line {row + 3}: times must increase, but this one does not")
    rate = float(f"{1 / step:.6g}")
    signals, sources, segments, count = [], [], [], 0
    for part in np.split(np.arange(len(times)), np.flatnonzero(steps > _GAP * step) + 1):
        grid = times[part[0]] + np.arange(int((times[part[-1]] - times[part[0]]) * rate + 1e-6) + 1) / rate
        before = part[0] + np.searchsorted(times[part], grid + 1e-9 / rate, side="right") - 1
        linear = [np.interp(grid, times[part], row[part]) for row in values]
        signals.append(values[:, before] if how == "hold" else np.array(linear))
        sources.append(before)
        segments.append(Segment(count, float(times[part[0]] - times[0])))
        count += len(grid)
    texts = None if labels is None else labels[np.concatenate(sources)]
    return rate, np.concatenate(signals, axis=1), texts, tuple(segments)
