"""One recording: signals with digital values, annotations and gaps; windows are cut from it.

Samples are in memory, or stay in the file until a part of them is needed (`Unread`). Times are in seconds from the
start of the recording; positions are sample numbers in its signal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
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
    "complete_windows",
    "cut_windows",
    "nearest_sample",
    "quality",
    "read_later",
    "window_starts",
]

_TINY = float(np.finfo(np.float64).tiny)
"""Smallest normal number; smaller ones are 0 to a processor that flushes them."""

LATEST = 1e10
"""Maximum time of an annotation in seconds, some 300 years: later times exceed the range of sample numbers."""


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
    dtype : int16 or float32
    read : function that reads the samples from one position to another
    """

    shape: tuple[int, int]
    dtype: np.dtype[Any]
    read: Callable[[int, int], Recording]
    ndim = 2

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise PolyadicError("the samples are still in the file: use in_memory(), part() or blocks() of the recording")

    __getitem__ = __array__


@dataclass(frozen=True, eq=False)
class Recording:
    """Signals recorded together at one sampling rate; physical value = digital value · scale + offset.

    Parameters
    ----------
    name : name of the recording, unique within a dataset
    subject : name of the subject
    fs : sampling rate in Hz
    channels, units : names, one per channel
    signal : (channels, samples), int16 digital values or float32 physical values; `Unread` if they are in the file
    scale, offset : (channels,) float64; 1 and 0 for float32
    annotations : annotations in order of onset
    segments : parts between gaps, in order; the first begins at sample 0
    missing : (channels, samples), True for missing samples; None if there are none
    limits : (channels, 2), minimum and maximum of the device, in the values of `signal`; None if unknown
    rates : sampling rates in Hz at which channels were recorded, if they were resampled to `fs`; otherwise empty
    began : start date and time in ISO 8601, or only the time; "" if unknown
    """

    name: str
    subject: str
    fs: float
    channels: tuple[str, ...]
    units: tuple[str, ...]
    signal: Any
    scale: NDArray[np.float64]
    offset: NDArray[np.float64]
    annotations: tuple[Annotation, ...] = ()
    segments: tuple[Segment, ...] = field(default=(Segment(0, 0.0),))
    missing: NDArray[np.bool_] | None = None
    limits: NDArray[Any] | None = None
    rates: tuple[float, ...] = ()
    began: str = ""

    def __repr__(self) -> str:
        channels, samples = self.signal.shape
        noted = f", {len(self.annotations):,} annotation{'s' * (len(self.annotations) != 1)}"
        return (
            f"<Recording {self.name!r} of subject {self.subject!r}: {channels} channel{'s' * (channels != 1)}, "
            f"{samples / self.fs:,.1f} s at {self.fs:g} Hz{noted if self.annotations else ''}>"
        )

    def __post_init__(self) -> None:
        if self.signal.ndim != 2 or 0 in self.signal.shape:
            raise DataError(
                f"{self.name}: a recording must have signals of shape (channels, samples), but has {self.signal.shape}"
            )
        if self.signal.dtype not in (np.int16, np.float32):
            raise DataError(f"{self.name}: signals must be int16 or float32, but are {self.signal.dtype}")
        if not 0 < self.fs < np.inf:
            raise DataError(f"{self.name}: the sampling rate must be a positive number in Hz, but is {self.fs!r}")
        for what, values in (
            ("channels", self.channels),
            ("units", self.units),
            ("scale", self.scale),
            ("offset", self.offset),
        ):
            if len(values) != self.signal.shape[0]:
                raise DataError(
                    f"{self.name}: {what} must have {self.signal.shape[0]} entries, one per signal, but has "
                    f"{len(values)}"
                )
        if len(set(self.channels)) != len(self.channels):
            raise DataError(f"{self.name}: channel names must differ, but are {', '.join(self.channels)}")
        if not (np.isfinite([self.scale, self.offset]).all() and (np.abs(self.scale) >= _TINY).all()):
            raise DataError(f"{self.name}: scale and offset must be finite and scale not 0")
        if self.missing is not None and self.missing.shape != self.signal.shape:
            raise DataError(f"{self.name}: missing must have shape {self.signal.shape}, but has {self.missing.shape}")
        for onset, duration, text in self.annotations:
            if not (abs(onset) <= LATEST and 0 <= duration <= LATEST):
                raise DataError(
                    f"{self.name}: the annotation {text!r} at {onset:g} s must have an onset and a duration of at most "
                    f"{LATEST:g} s, but lasts {duration:g} s"
                )
        firsts = [segment.first for segment in self.segments]
        if firsts != sorted(firsts) or firsts[:1] != [0] or firsts[-1] > self.signal.shape[1]:
            raise DataError(f"{self.name}: segments must be in order and begin at sample 0, but begin at {firsts}")

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

    def apply(self, change: Callable[[Recording], Recording]) -> Recording:
        """Return the recording after a change to each sample; samples in a file are changed when they are read."""
        if not isinstance(self.signal, Unread):
            return change(self)
        return read_later(self, change(self.part(0, 1)), lambda first, stop: change(self.part(first, stop)))

    def with_channels(self, places: Sequence[int]) -> Recording:
        """Return the recording with the channels at these places, in this order."""
        rows = list(places)
        changed = self.apply(lambda recording: recording._rows(rows))
        return replace(changed, rates=tuple(self.rates[row] for row in rows) if self.rates else ())

    def _rows(self, rows: list[int]) -> Recording:
        return replace(
            self,
            channels=tuple(self.channels[row] for row in rows),
            units=tuple(self.units[row] for row in rows),
            signal=np.ascontiguousarray(self.signal[rows]),
            scale=self.scale[rows],
            offset=self.offset[rows],
            missing=None if self.missing is None else self.missing[rows],
            limits=None if self.limits is None else self.limits[rows],
        )

    def part(self, first: int, stop: int) -> Recording:
        """Return the samples from `first` to `stop`, without annotations and gaps; in memory."""
        if isinstance(self.signal, Unread):
            part = self.signal.read(first, stop)  # names may have been replaced since
            return replace(part, name=self.name, subject=self.subject, channels=self.channels, units=self.units)
        return replace(
            self,
            signal=self.signal[:, first:stop],
            missing=None if self.missing is None else self.missing[:, first:stop],
            annotations=(),
            segments=(Segment(0, 0.0),),
        )

    def in_memory(self) -> Recording:
        """Return the recording with all its samples in memory."""
        if not isinstance(self.signal, Unread):
            return self
        whole = self.signal.read(0, self.signal.shape[1])
        return replace(self, signal=whole.signal, missing=whole.missing)

    def blocks(self, size: int = 1 << 18) -> Iterator[Recording]:
        """Yield parts of at most `size` samples."""
        count = self.signal.shape[1]
        return (self.part(first, min(first + size, count)) for first in range(0, count, size))

    @property
    def values(self) -> NDArray[np.float64]:
        """The signals in physical units, NaN for missing samples: (channels, samples)."""
        whole = self.in_memory()
        values: NDArray[np.float64] = whole.signal * self.scale[:, None] + self.offset[:, None]
        if whole.missing is not None:
            values[whole.missing] = np.nan
        return values

    def elapsed_samples(self, starts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Convert positions in the signal to samples elapsed since the start of the recording, including gaps: (n,).

        Without gaps, both are the same. Windows store the elapsed samples as their start, so that start / fs is the
        time at which a window was recorded.

        Parameters
        ----------
        starts : (n,), positions in the signal
        """
        firsts = np.array([segment.first for segment in self.segments], np.int64)
        onsets = np.array([nearest_sample(segment.onset * self.fs) for segment in self.segments], np.int64)
        owner = np.searchsorted(firsts, starts, side="right") - 1
        return np.asarray(starts, np.int64) + (onsets - firsts)[owner]


def read_later(
    recording: Recording,
    sample: Recording,
    read: Callable[[int, int], Recording],
    size: int | None = None,
    segments: tuple[Segment, ...] | None = None,
) -> Recording:
    """Return a recording whose samples are read when they are needed.

    Parameters
    ----------
    recording : the recording before it was changed, for its annotations and rates
    sample : some changed samples, for their type, scale, channels and units
    read : function that returns the changed samples from one position to another
    size, segments : number of samples and segments, if they have changed
    """
    size = recording.signal.shape[1] if size is None else size
    return replace(
        sample,
        signal=Unread((sample.signal.shape[0], size), sample.signal.dtype, read),
        missing=None,
        annotations=recording.annotations,
        segments=recording.segments if segments is None else segments,
        rates=recording.rates or sample.rates,
    )


def quality(recording: Recording) -> dict[str, dict[str, int]]:
    """Count the samples of each channel that are not finite, flat or clipped; see `SignalFaults`."""
    faults = SignalFaults(recording.channels, recording.limits)
    for part in recording.blocks():
        faults.update(part.signal, part.missing)
    return faults.counts()


class SignalFaults:
    """Counter of invalid, flat and clipped samples of each channel, over blocks of samples.

    Missing and infinite samples count as "nan". A channel is flat if it never changes; then all its valid samples
    count. Samples are clipped if three or more in a row are at a limit of the device: a signal may reach its extreme
    value once.

    Parameters
    ----------
    channels : names of the channels
    limits : (channels, 2), minimum and maximum of the device; None if unknown
    """

    def __init__(self, channels: Sequence[str], limits: NDArray[Any] | None = None) -> None:
        self.channels, self.limits = channels, limits
        self.invalid, self.valid, self.clipped = np.zeros((3, len(channels)), np.int64)
        self.low, self.high = np.full(len(channels), np.inf), np.full(len(channels), -np.inf)
        self.runs = np.zeros((len(channels), 2), np.int64)  # samples at a limit at the end of the last block

    def update(self, signal: NDArray[Any], missing: NDArray[np.bool_] | None = None) -> None:
        """Add a block of samples, (channels, samples), and which of them are missing."""
        for number, row in enumerate(signal):
            present = row[np.isfinite(row) if missing is None else np.isfinite(row) & ~missing[number]]
            self.invalid[number] += len(row) - len(present)
            if not len(present):
                continue
            self.valid[number] += len(present)
            self.low[number] = min(self.low[number], present.min())
            self.high[number] = max(self.high[number], present.max())
            if self.limits is not None:
                at_limits = present <= self.limits[number, 0], present >= self.limits[number, 1]
                for side, at_limit in enumerate(at_limits):
                    self._count_runs(number, side, at_limit)

    def _count_runs(self, number: int, side: int, at_limit: NDArray[np.bool_], least: int = 3) -> None:
        """Count samples in runs of at least `least`; a run at the end of the block may go on in the next one."""
        changes = np.flatnonzero(np.diff(at_limit, prepend=False, append=False))
        lengths = changes[1::2] - changes[::2]
        if not at_limit[0]:
            lengths = np.concatenate([[0], lengths])
        lengths[0] += self.runs[number, side]
        self.runs[number, side] = lengths[-1] if at_limit[-1] else 0
        done = lengths[:-1] if at_limit[-1] else lengths
        self.clipped[number] += done[done >= least].sum()

    def counts(self) -> dict[str, dict[str, int]]:
        """Return the number of invalid, flat and clipped samples by channel; kinds without any are left out."""
        flat = np.where((self.valid > 0) & (self.low == self.high), self.valid, 0)
        clipped = np.where(flat > 0, 0, self.clipped + np.where(self.runs >= 3, self.runs, 0).sum(axis=1))
        found = {
            kind: {channel: int(count) for channel, count in zip(self.channels, counts, strict=True) if count}
            for kind, counts in (("nan", self.invalid), ("flat", flat), ("clipped", clipped))
        }
        return {kind: counts for kind, counts in found.items() if counts}


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


def cut_windows(recording: Recording, starts: NDArray[np.int64] | Sequence[int], length: int) -> NDArray[Any]:
    """Cut the windows that begin at `starts` from the signal of a recording: (n, channels, length)."""
    view = np.lib.stride_tricks.sliding_window_view(recording.signal, length, axis=1)
    return np.ascontiguousarray(view[:, np.asarray(starts, np.int64)].swapaxes(0, 1))


def complete_windows(recording: Recording, starts: NDArray[np.int64], length: int) -> NDArray[np.bool_]:
    """Return which windows have no missing or infinite samples in any channel: (n,)."""
    invalid = ~np.isfinite(recording.signal).all(axis=0)
    if recording.missing is not None:
        invalid |= recording.missing.any(axis=0)
    total = np.concatenate([[0], np.cumsum(invalid)])
    complete: NDArray[np.bool_] = total[starts + length] == total[starts]
    return complete
