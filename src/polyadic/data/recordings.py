"""One recording: signals in physical units with annotations and gaps; windows are cut from it.

Samples are float32, NaN where they are missing. They are in memory, or stay in the file until a part of them is needed
(`Unread`). Times are in seconds from the start of the recording; positions are sample numbers in its signal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, time, timedelta
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from polyadic.errors import DataError, PolyadicError

__all__ = [
    "LATEST",
    "Annotation",
    "Recording",
    "Segment",
    "SignalFaults",
    "Unread",
    "clock_time",
    "cut_windows",
    "mark_missing",
    "nearest_sample",
    "observed_windows",
    "quality",
    "window_starts",
]

LATEST = 1e10
"""Maximum time of an annotation in seconds, some 300 years: later times exceed the range of sample numbers."""

_Signal = NDArray[np.float32]


class Annotation(NamedTuple):
    """A text for an interval of time in seconds; a duration of 0 marks a moment."""

    onset: float
    duration: float
    text: str


class Segment(NamedTuple):
    """Samples without a gap: from sample `first`, recorded at `onset` seconds, up to the next segment."""

    first: int
    onset: float


@dataclass(frozen=True, eq=False)
class Unread:
    """Samples that are still in a file, in place of the signal of a recording; using them as an array is an error.

    Parameters
    ----------
    shape : (channels, samples)
    read : function that reads the samples from one position to another, (channels, n) float32
    """

    shape: tuple[int, int]
    read: Callable[[int, int], _Signal]
    dtype = np.dtype(np.float32)
    ndim = 2

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise PolyadicError("the samples are still in the file: use in_memory(), read() or blocks() of the recording")

    __getitem__ = __array__


@dataclass(frozen=True, eq=False)
class Recording:
    """Signals recorded together at one sampling rate.

    Parameters
    ----------
    name : name of the recording, unique within a dataset
    subject : name of the subject
    fs : sampling rate in Hz
    channels, units : names, one per channel
    signal : (channels, samples) float32, NaN where samples are missing; `Unread` if they are in the file
    annotations : annotations in order of onset
    segments : parts between gaps, in order; the first begins at sample 0
    limits : (channels, 2), minimum and maximum of the device, NaN if unknown; None if unknown for all channels
    rates : sampling rates in Hz at which channels were recorded, if they were resampled to `fs`; otherwise empty
    began : start date and time in ISO 8601, or only the time; "" if unknown
    """

    name: str
    subject: str
    fs: float
    channels: tuple[str, ...]
    units: tuple[str, ...]
    signal: Any
    annotations: tuple[Annotation, ...] = ()
    segments: tuple[Segment, ...] = (Segment(0, 0.0),)
    limits: NDArray[np.float32] | None = None
    rates: tuple[float, ...] = ()
    began: str = ""

    def __post_init__(self) -> None:
        if self.signal.ndim != 2 or 0 in self.signal.shape or self.signal.dtype != np.float32:
            raise DataError(
                f"{self.name}: a recording must have float32 signals of shape (channels, samples), but has "
                f"{self.signal.dtype} signals of shape {self.signal.shape}"
            )
        if not 0 < self.fs < np.inf:
            raise DataError(f"{self.name}: the sampling rate must be a positive number in Hz, but is {self.fs!r}")
        if not len(self.channels) == len(self.units) == self.signal.shape[0]:
            raise DataError(f"{self.name}: channels and units must have {self.signal.shape[0]} entries, one per signal")
        if len(set(self.channels)) != len(self.channels):
            raise DataError(f"{self.name}: channel names must differ, but are {', '.join(self.channels)}")
        for onset, duration, text in self.annotations:
            if not (abs(onset) <= LATEST and 0 <= duration <= LATEST):
                raise DataError(
                    f"{self.name}: the annotation {text!r} at {onset:g} s must have an onset and a duration of at most "
                    f"{LATEST:g} s, but lasts {duration:g} s"
                )
        firsts = [segment.first for segment in self.segments]
        if firsts != sorted(firsts) or firsts[:1] != [0] or firsts[-1] > self.signal.shape[1]:
            raise DataError(f"{self.name}: segments must be in order and begin at sample 0, but begin at {firsts}")

    def __repr__(self) -> str:
        channels, samples = self.signal.shape
        noted = f", {len(self.annotations):,} annotation{'s' * (len(self.annotations) != 1)}"
        return (
            f"<Recording {self.name!r} of subject {self.subject!r}: {channels} channel{'s' * (channels != 1)}, "
            f"{samples / self.fs:,.1f} s at {self.fs:g} Hz{noted if self.annotations else ''}>"
        )

    @property
    def spans(self) -> Iterator[tuple[int, int, float]]:
        """First sample, end and onset in seconds of each segment."""
        ends = [*(segment.first for segment in self.segments[1:]), self.signal.shape[1]]
        return ((segment.first, end, segment.onset) for segment, end in zip(self.segments, ends, strict=True))

    @property
    def duration(self) -> float:
        """Seconds from the start to the end, including gaps."""
        last = self.segments[-1]
        return float(last.onset + (self.signal.shape[1] - last.first) / self.fs)

    def read(self, first: int, stop: int) -> _Signal:
        """Read the samples from `first` to `stop`: (channels, stop - first) float32."""
        part: _Signal = self.signal.read(first, stop) if isinstance(self.signal, Unread) else self.signal[:, first:stop]
        return part

    def in_memory(self) -> Recording:
        """Return the recording with all its samples in memory."""
        return replace(self, signal=self.read(0, self.signal.shape[1])) if isinstance(self.signal, Unread) else self

    def blocks(self, size: int = 1 << 18) -> Iterator[_Signal]:
        """Yield the samples in blocks of at most `size`, (channels, n) each."""
        count = self.signal.shape[1]
        return (self.read(first, min(first + size, count)) for first in range(0, count, size))

    def apply(
        self,
        change: Callable[[_Signal], _Signal],
        channels: Sequence[str] | None = None,
        units: Sequence[str] | None = None,
    ) -> Recording:
        """Return the recording after a change to each sample, with other channels if these are given.

        Samples in a file are changed when they are read.
        """
        names = self.channels if channels is None else tuple(channels)
        signal: Any = Unread((len(names), self.signal.shape[1]), lambda first, stop: change(self.read(first, stop)))
        if not isinstance(self.signal, Unread):
            signal = change(self.signal)
        return replace(self, channels=names, units=self.units if units is None else tuple(units), signal=signal)

    def with_channels(self, places: Sequence[int]) -> Recording:
        """Return the recording with the channels at these places, in this order."""
        rows = list(places)
        names, units = ([given[row] for row in rows] for given in (self.channels, self.units))
        return replace(
            self.apply(lambda signal: np.ascontiguousarray(signal[rows]), names, units),
            limits=None if self.limits is None else self.limits[rows],
            rates=tuple(self.rates[row] for row in rows) if self.rates else (),
        )

    def elapsed_samples(self, starts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Convert positions in the signal, (n,), to samples elapsed since the start of the recording, with gaps: (n,).

        Windows store the elapsed samples as their start, so that start / fs is the time at which one was recorded.
        """
        firsts = np.array([segment.first for segment in self.segments], np.int64)
        onsets = np.array([nearest_sample(segment.onset * self.fs) for segment in self.segments], np.int64)
        owner = np.searchsorted(firsts, starts, side="right") - 1
        return np.asarray(starts, np.int64) + (onsets - firsts)[owner]


def mark_missing(recording: Recording, value: float | None) -> Recording:
    """Return the recording with NaN in place of a value that marks missing samples; unchanged if it is None."""
    if value is None:
        return recording
    tolerance = 1e-6 * abs(value)  # of float32
    return recording.apply(
        lambda signal: np.where(np.abs(signal - np.float32(value)) <= tolerance, np.float32(np.nan), signal)
    )


# ------------------------------------------------------------------------------------------------------------- windows


def window_starts(
    recording: Recording, length: int, step: int | None = None, offset: float | None = None, phase: float | None = None
) -> NDArray[np.int64]:
    """Return the first samples of all complete windows, each within one segment: (n,).

    Parameters
    ----------
    length, step : samples in a window, and from one window to the next; `length` if None
    offset : seconds from the start of the recording to the first window
    phase : time in seconds at which a window begins; all others are a whole number of steps before or after it. If
        neither `offset` nor `phase` is given, windows begin at the start of each segment
    """
    if length < 1 or (step is not None and step < 1):
        raise PolyadicError(f"length and step of windows must be at least one sample, but are {length} and {step}")
    step = step or length
    clock = offset if offset is not None else phase
    pieces = []
    for first, end, onset in recording.spans:
        if clock is not None:
            away = nearest_sample((clock - onset) * recording.fs)
            first += away if offset is not None and away > 0 else away % step
        pieces.append(np.arange(min(first, end), end - length + 1, step))
    return np.concatenate(pieces).astype(np.int64)


def nearest_sample(place: float) -> int:
    """Return the sample nearest to a position.

    Positions that differ only by floating-point error, such as the end of one annotation and the start of the next,
    give the same sample.
    """
    return round(round(place, 6))


def cut_windows(signal: NDArray[Any], starts: NDArray[np.int64] | Sequence[int], length: int) -> NDArray[Any]:
    """Cut the windows that begin at `starts` from a signal (channels, samples): (n, channels, length)."""
    view = np.lib.stride_tricks.sliding_window_view(signal, length, axis=1)
    return np.ascontiguousarray(view[:, np.asarray(starts, np.int64)].swapaxes(0, 1))


def observed_windows(windows: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which windows have at least one sample that is not missing: (n,)."""
    observed: NDArray[np.bool_] = ~np.isnan(windows).all(axis=(1, 2))
    return observed


# ------------------------------------------------------------------------------------------------------------- quality


def quality(recording: Recording) -> dict[str, dict[str, int]]:
    """Count the samples of each channel that are missing, flat or clipped; see `SignalFaults`."""
    faults = SignalFaults(recording.channels, recording.limits)
    for block in recording.blocks():
        faults.update(block)
    return faults.counts()


class SignalFaults:
    """Counter of missing, flat and clipped samples of each channel, over blocks of samples.

    Missing samples count as "nan". A channel is flat if it never changes; then all its samples count. Samples are
    clipped if three or more in a row, within a block, are at a limit of the device: a signal may reach it once.

    Parameters
    ----------
    channels : names of the channels
    limits : (channels, 2), minimum and maximum of the device; None if unknown
    """

    def __init__(self, channels: Sequence[str], limits: NDArray[Any] | None = None) -> None:
        self.channels, self.limits = channels, limits
        self.missing, self.present, self.clipped = np.zeros((3, len(channels)), np.int64)
        self.low, self.high = np.full(len(channels), np.inf), np.full(len(channels), -np.inf)

    def update(self, signal: NDArray[Any]) -> None:
        """Add a block of samples, (channels, samples)."""
        for number, row in enumerate(signal):
            present = row[np.isfinite(row)]
            self.missing[number] += len(row) - len(present)
            self.present[number] += len(present)
            self.low[number] = min(self.low[number], present.min(initial=np.inf))
            self.high[number] = max(self.high[number], present.max(initial=-np.inf))
            if self.limits is not None:
                low, high = self.limits[number]
                for at_limit in (present <= low, present >= high):
                    changes = np.flatnonzero(np.diff(at_limit, prepend=False, append=False))
                    runs = changes[1::2] - changes[::2]
                    self.clipped[number] += runs[runs >= 3].sum()

    def counts(self) -> dict[str, dict[str, int]]:
        """Return the number of missing, flat and clipped samples by channel; kinds without any are left out."""
        flat = np.where(self.low == self.high, self.present, 0)
        kinds = (("nan", self.missing), ("flat", flat), ("clipped", np.where(flat > 0, 0, self.clipped)))
        found = {kind: dict(zip(self.channels, counts.tolist(), strict=True)) for kind, counts in kinds}
        positive = {kind: {name: count for name, count in each.items() if count} for kind, each in found.items()}
        return {kind: counts for kind, counts in positive.items() if counts}


# --------------------------------------------------------------------------------------------------------- start times


def clock_time(start: str | datetime | time, seconds: float = 0.0) -> str:
    """Return the time `seconds` after `start` in ISO 8601, to the millisecond; "" if `start` is unknown or invalid.

    Examples
    --------
    >>> clock_time("2024-05-01T23:59:50.000", 30), clock_time("23:59:50", 30), clock_time("", 30)
    ('2024-05-02T00:00:20.000', '00:00:20.000', '')
    """
    text = start if isinstance(start, str) else start.isoformat()
    alone = "T" not in text
    try:
        day = datetime.combine(date(2000, 1, 1), time.fromisoformat(text)) if alone else datetime.fromisoformat(text)
        day += timedelta(seconds=seconds, microseconds=500)  # isoformat truncates, so this rounds
    except (ValueError, OverflowError):
        return ""
    return (day.timetz() if alone else day).isoformat(timespec="milliseconds")
