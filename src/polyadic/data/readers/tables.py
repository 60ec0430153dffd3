"""One continuous recording from a `.csv` file: a row of channel names, then one row per sample."""

from __future__ import annotations

import csv
import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from polyadic.data.recordings import Recording
from polyadic.errors import DataError, PolyadicError
from polyadic.files import check_regular_file

__all__ = ["read_csv"]

_BLOCK = 1 << 16
"""Rows that are parsed at once, which bounds the memory that their texts take."""


def read_csv(
    path: str | os.PathLike[str], fs: float | None = None, name: str | None = None, subject: str | None = None
) -> Recording:
    """One continuous recording from a text table: a row of channel names, then one row per sample.

    Columns are separated by commas, semicolons or tabs. A first column named `time` or `t` has seconds; without `fs` it
    gives the sampling rate and must be evenly spaced within 1 %, with `fs` it must agree with it and have no gaps.
    Empty cells and NaN are missing values. Units are not known and stay empty.

    Parameters
    ----------
    fs : sampling rate in Hz; None takes it from the times
    name : of the recording; by default that of the file
    subject : by default the name of the recording

    Raises
    ------
    DataError : if the file is missing, is not such a table or its times are uneven
    PolyadicError : if `fs` is not positive, or neither `fs` nor times are given
    """
    path = Path(path)
    if fs is not None and not 0 < fs < np.inf:
        raise PolyadicError(f"fs must be a positive sampling rate in Hz, but is {fs!r}")
    check_regular_file(path)
    if not path.is_file():
        raise DataError(f"{path} does not exist")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            channels, values = _parse_table(file)
    except DataError as error:
        raise DataError(f"{path.name}{error}") from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{path.name} cannot be read as a table: {error}") from error
    timed = channels[0].lower() in ("time", "t")
    if timed:
        fs = _sampling_rate(values[:, 0], fs, path.name)
        channels, values = channels[1:], values[:, 1:]
    if fs is None:
        raise PolyadicError(
            f"{path.name} does not give its sampling rate: add a first column named time, in seconds, or give the rate "
            "in Hz (--fs, or fs=)"
        )
    with np.errstate(over="ignore"):
        signal = np.ascontiguousarray(values.T.astype(np.float32))
    if np.isinf(signal).any():
        row = int(np.flatnonzero(np.isinf(signal).any(axis=0))[0])
        raise DataError(f"{path.name}: sample {row} must be a number that fits float32, but is infinite")
    count = len(channels)
    name = path.stem if name is None else name
    return Recording(
        name,
        name if subject is None else subject,
        float(fs),
        channels,
        ("",) * count,
        signal,
        np.ones(count),
        np.zeros(count),
    )


def _parse_table(file: IO[str]) -> tuple[tuple[str, ...], NDArray[np.float64]]:
    """Channel names and values (samples, channels) of a text table; errors begin with the line they are about."""
    first = file.readline()
    delimiter = max(",;\t", key=re.sub('"[^"]*"', "", first).count)
    header = tuple(cell.strip() for cell in next(csv.reader([first], delimiter=delimiter), []))
    if "" in header or not header:
        raise DataError(", line 1: the first row must name every channel, but has an empty name or none")
    if all(_is_number(cell) for cell in header):
        raise DataError(", line 1: the first row must name the channels, but holds numbers")
    reader = csv.reader(file, delimiter=delimiter, strict=True)
    blocks = list(_parse_blocks(reader, len(header)))
    if not blocks:
        raise DataError(": there must be at least one sample below the names, but there is none")
    return header, np.concatenate(blocks)


def _parse_blocks(reader: Iterator[list[str]], width: int) -> Iterator[NDArray[np.float64]]:
    """Numbers from rows of texts, (rows, width) at a time; rows may be blank only at the very end."""
    line, ended = 1, 0
    while rows := list(itertools.islice(reader, _BLOCK)):
        full = len(rows)
        while full and not rows[full - 1]:
            full -= 1
        if ended and full:
            raise DataError(f", line {ended}: there must be {width} cells in the row, but it is blank")
        for number, row in enumerate(rows[:full], start=line + 1):
            if len(row) != width:
                hint = "; numbers must have decimal points, not commas" if len(row) == 2 * width else ""
                raise DataError(f", line {number}: there must be {width} cells in the row, but are {len(row)}{hint}")
        if full < len(rows):
            ended = ended or line + 1 + full
        if full:
            yield _parse_numbers(rows[:full], line + 1)
        line += len(rows)


def _parse_numbers(rows: list[list[str]], line: int) -> NDArray[np.float64]:
    cells = [cell or "nan" for row in rows for cell in row]
    try:
        if any("_" in cell for cell in cells):  # Python would read 1_000 as a number
            raise ValueError
        values = np.array(cells, dtype=np.float64)
    except ValueError:
        at, cell = next((at, cell) for at, cell in enumerate(cells) if not _is_number(cell))
        hint = "; numbers must have decimal points, not commas" if _is_number(cell.replace(",", ".", 1)) else ""
        raise DataError(
            f", line {line + at // len(rows[0])}: cells must be numbers, but there is {cell!r}{hint}"
        ) from None
    return values.reshape(len(rows), -1)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell


def _sampling_rate(times: NDArray[np.float64], fs: float | None, name: str) -> float:
    """The sampling rate of evenly spaced times, or `fs` if they agree with it."""
    if len(times) < 2 or not np.isfinite(times).all():
        raise DataError(f"{name}: the time column must have two or more times in seconds and none missing")
    with np.errstate(all="ignore"):  # times that overflow here are not evenly spaced either
        steps = np.diff(times)
        mean = float(times[-1] - times[0]) / len(steps)
    if not 0 < mean < np.inf:
        raise DataError(f"{name}: the time column must rise, but goes from {times[0]:g} to {times[-1]:g}")
    # Of a few gaps the median takes no notice, while they change the mean and so make every step look wrong.
    median = float(np.median(steps))
    expected = 1 / fs if fs is not None else median if 0 < median < np.inf else mean
    # With a rate from outside times may be coarsely rounded, but a step of two samples is a gap.
    slack = 0.01 if fs is None else 0.999
    off = np.flatnonzero(~(np.abs(steps - expected) <= slack * expected))
    if off.size:
        raise DataError(
            f"{name}, line {off[0] + 3}: times must be evenly spaced by {expected:.6g} s, but this one comes "
            f"{steps[off[0]]:.6g} s after the line before; split the file at gaps"
        )
    if fs is not None and abs(mean - expected) > 0.01 * expected:
        raise DataError(f"{name}: the times give a rate of {1 / mean:.6g} Hz, but fs is {fs:g} Hz")
    # Nine digits: the rounding of decimal fractions to binary ones is no part of the rate.
    return float(f"{1 / mean:.9g}") if fs is None else fs
