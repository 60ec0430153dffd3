"""The times of the rows of a table: seconds, sampling rate and segments, or resampling if they are uneven."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from polyadic.data.readers.table_files import is_number
from polyadic.data.recordings import Segment, clock_time, unix_time
from polyadic.errors import DataError

__all__ = ["at_even_times", "read_times", "row_segments", "segments_and_rate"]

_GAP = 5
"""Samples over which times are interpolated; longer gaps split a recording into segments."""

_ROUND = 5e-4
"""Maximum relative change when a rate is rounded; 29.97 Hz is not rounded to 30 Hz."""

_SCALES = {"ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_EPOCHS = ((1e17, 1e-9), (1e14, 1e-6), (1e11, 1e-3))
"""Unix times in seconds have ten digits; larger numbers are in ms, us or ns."""


def row_segments(rows: NDArray[np.intp]) -> tuple[Segment, ...]:
    """Return the segments of contiguous rows; onsets are filled in later."""
    breaks = np.flatnonzero(np.diff(rows) != 1) + 1
    return (Segment(0, 0.0), *(Segment(int(first), 0.0) for first in breaks))


def read_times(cells: list[str], column: str, file: str) -> tuple[NDArray[np.float64], str]:
    """Parse times into seconds, and return them with the first as a date, or "".

    Dates and times in ms, us or ns become relative to the first.
    """
    import pandas as pd

    wanted = f"{file}: the time column must have two or more times in seconds and none missing"
    if "" in cells or len(cells) < 2:
        raise DataError(wanted)
    if not all(map(is_number, numbers := [cell.replace(",", ".") for cell in cells])):
        dates = pd.to_datetime(pd.Series(cells), errors="coerce", format="ISO8601")
        if dates.isna().any():
            row = int(np.argmax(dates.isna()))
            raise DataError(
                f"{file}, line {row + 2}: times must be numbers or dates such as 2024-05-01 10:00:00.02, but there is "
                f"{cells[row]!r}"
            )
        return (dates - dates[0]).dt.total_seconds().to_numpy(), clock_time(dates[0])
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


def segments_and_rate(
    times: NDArray[np.float64], rows: NDArray[np.intp], fs: float | None, file: str
) -> tuple[float, tuple[Segment, ...]]:
    """Return the sampling rate of evenly spaced times, and the segments of contiguous rows."""
    edges = [segment.first for segment in row_segments(rows)]
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


def at_even_times(
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
