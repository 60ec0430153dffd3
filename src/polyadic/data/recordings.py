"""Recordings as readers return them: signals with digital values, annotations and gaps.

Samples are in memory, or stay in the file until a part of them is needed. Times are in seconds from the start of the
recording; positions are sample numbers in its signal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyadic.errors import DataError, PolyadicError

__all__ = [
    "LATEST",
    "Annotation",
    "Recording",
    "Segment",
    "SignalFaults",
    "as_values",
    "at_one_rate",
    "complete_windows",
    "cut_windows",
    "nearest_sample",
    "quality",
    "read_later",
    "resample_polyphase",
    "resample_recording",
    "window_starts",
]

_TINY = float(np.finfo(np.float64).tiny)
"""Smallest normal number; smaller ones are 0 to a processor that flushes them."""

LATEST = 1e10
"""Maximum time of an annotation in seconds, some 300 years: later times exceed the range of sample numbers."""

_FACTOR = 10_000
"""Maximum factor of resampling: a damaged record duration must not exhaust the memory."""


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
class Recording:
    """Signals recorded together at one sampling rate; physical value = digital value · scale + offset.

    Parameters
    ----------
    name : name of the recording, unique within a dataset
    subject : name of the subject
    fs : sampling rate in Hz
    channels, units : names, one per channel
    signal : (channels, samples), int16 digital values or float32 physical values
    scale, offset : (channels,) float64; 1 and 0 for float32
    annotations : annotations in order of onset
    segments : parts between gaps, in order; the first begins at sample 0
    missing : (channels, samples), True for missing samples; None if there are none
    limits : (channels, 2), minimum and maximum of the device, in the values of `signal`; None if unknown
    rates : sampling rates in Hz at which channels were recorded, if they were resampled to `fs`; otherwise empty
    began : start date and time in ISO 8601, or only the time; "" if unknown
    read : function that reads the samples from one position to another, if they are still in the file; then `signal` is
        an array of zeros that takes no memory, and `missing` is None
    """

    name: str
    subject: str
    fs: float
    channels: tuple[str, ...]
    units: tuple[str, ...]
    signal: NDArray[Any]
    scale: NDArray[np.float64]
    offset: NDArray[np.float64]
    annotations: tuple[Annotation, ...] = ()
    segments: tuple[Segment, ...] = field(default=(Segment(0, 0.0),))
    missing: NDArray[np.bool_] | None = None
    limits: NDArray[Any] | None = None
    rates: tuple[float, ...] = ()
    began: str = ""
    read: Callable[[int, int], Recording] | None = None

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
            if len(values) != len(self.signal):
                raise DataError(
                    f"{self.name}: {what} must have {len(self.signal)} entries, one per signal, but has {len(values)}"
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

    def with_channels(self, places: Sequence[int]) -> Recording:
        """Return the recording with the channels at these places, in this order."""
        rows = list(places)
        if self.read is not None:
            sample = self.part(0, 1).with_channels(rows)
            later = read_later(self, sample, lambda a, b: self.part(a, b).with_channels(rows))
            return replace(later, rates=tuple(self.rates[row] for row in rows) if self.rates else ())
        return replace(
            self,
            channels=tuple(self.channels[row] for row in rows),
            units=tuple(self.units[row] for row in rows),
            signal=np.ascontiguousarray(self.signal[rows]),
            scale=self.scale[rows],
            offset=self.offset[rows],
            missing=None if self.missing is None else self.missing[rows],
            limits=None if self.limits is None else self.limits[rows],
            rates=tuple(self.rates[row] for row in rows) if self.rates else (),
        )

    def part(self, first: int, stop: int) -> Recording:
        """Return the samples from `first` to `stop`, without annotations and gaps; in memory."""
        if self.read is not None:  # names may have been replaced since
            return replace(
                self.read(first, stop), name=self.name, subject=self.subject, channels=self.channels, units=self.units
            )
        return replace(
            self,
            signal=self.signal[:, first:stop],
            missing=None if self.missing is None else self.missing[:, first:stop],
            annotations=(),
            segments=(Segment(0, 0.0),),
        )

    def in_memory(self) -> Recording:
        """Return the recording with all its samples in memory."""
        if self.read is None:
            return self
        whole = self.read(0, self.signal.shape[1])
        return replace(self, signal=whole.signal, missing=whole.missing, read=None)

    def blocks(self, size: int = 1 << 18) -> Iterator[Recording]:
        """Yield parts of at most `size` samples."""
        count = self.signal.shape[1]
        return (self.part(first, min(first + size, count)) for first in range(0, count, size))

    @property
    def values(self) -> NDArray[np.float64]:
        """The signals in physical units, NaN for missing samples: (channels, samples)."""
        if self.read is not None:
            return self.in_memory().values
        values = self.signal * self.scale[:, None] + self.offset[:, None]
        if self.missing is not None:
            values[self.missing] = np.nan
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
        signal=np.broadcast_to(np.zeros((), sample.signal.dtype), (len(sample.signal), size)),
        missing=None,
        annotations=recording.annotations,
        segments=recording.segments if segments is None else segments,
        rates=recording.rates or sample.rates,
        read=read,
    )


def resample_polyphase(values: NDArray[Any], fs: float, target: float) -> NDArray[np.float32]:
    """Resample values with a polyphase filter, extending the ends linearly: (…, n) to (…, n · target / fs).

    Raises
    ------
    PolyadicError : if the ratio of the rates is not a ratio of whole numbers up to 10,000
    """
    from fractions import Fraction

    from scipy.signal import resample_poly

    ratio = Fraction(target / fs).limit_denominator(_FACTOR)
    if not 1 <= ratio.numerator <= _FACTOR or abs(float(ratio) - target / fs) > 1e-9 * target / fs:
        raise PolyadicError(f"fs must be in a ratio of whole numbers up to 10,000 to {fs:g} Hz, but is {target:g} Hz")
    # The filter ripple grows with the mean of the signal, so the mean is removed first. A line needs two samples.
    level = np.where(np.isfinite(values), values, 0).mean(axis=-1, keepdims=True, dtype=np.float64)
    ends = "line" if values.shape[-1] > 1 else "constant"
    result = resample_poly(values - level, ratio.numerator, ratio.denominator, axis=-1, padtype=ends)
    return np.asarray(result + level, dtype=np.float32)


def as_values(recording: Recording, digits: NDArray[Any] | None = None) -> Recording:
    """Convert a recording from digital to physical values, with NaN for missing samples.

    Parameters
    ----------
    digits : (channels, samples), digital values that do not fit int16, in place of `recording.signal`
    """
    if digits is None and recording.signal.dtype == np.float32 and recording.missing is None:
        return recording
    if recording.read is not None:
        return read_later(recording, as_values(recording.part(0, 1)), lambda a, b: as_values(recording.part(a, b)))
    digits = recording.signal if digits is None else digits
    scale, offset = recording.scale[:, None], recording.offset[:, None]
    with np.errstate(over="ignore", invalid="ignore"):
        signal = (digits * scale + offset).astype(np.float32)
    if np.isinf(signal).any():
        raise DataError(f"{recording.name}: values exceed the range of float32")
    if recording.missing is not None:
        signal[recording.missing] = np.nan
    count, limits = len(recording.channels), recording.limits
    return replace(
        recording,
        signal=signal,
        scale=np.ones(count),
        offset=np.zeros(count),
        missing=None,
        limits=None if limits is None else np.sort(limits * scale + offset, axis=1).astype(np.float32),
    )


def resample_recording(recording: Recording, fs: float, how: str) -> Recording:
    """Resample a recording: "hold" repeats each sample by a whole factor, "polyphase" filters each segment.

    Raises
    ------
    DataError : if `how` is "hold" and `fs` is not a whole multiple of the sampling rate
    """
    factor = fs / recording.fs
    if math.isclose(factor, 1, rel_tol=1e-9):
        return recording
    hold = how == "hold"
    if hold and not _is_whole(factor):
        raise DataError(
            f"{recording.name}: --resample hold repeats samples, from {recording.fs:g} Hz to a whole multiple of it, "
            f"but --fs is {fs:g} Hz: use --resample polyphase for any rate"
        )
    rates = recording.rates or (recording.fs,) * len(recording.channels)
    if not hold:
        recording = as_values(recording)
    sizes = [math.floor((end - first) * factor + 1e-6) for first, end, _ in recording.spans]
    firsts = [0, *accumulate(sizes)]
    segments = [Segment(first, segment.onset) for first, segment in zip(firsts, recording.segments, strict=False)]
    if recording.read is not None:
        return _resample_later(recording, fs, how, firsts[-1], tuple(segments))
    pieces = []
    for (first, end, _), size in zip(recording.spans, sizes, strict=True):
        part = recording.signal[:, first:end]
        repeated = np.repeat(part, round(factor), axis=1) if hold else resample_polyphase(part, recording.fs, fs)
        pieces.append(repeated[:, :size])
    return replace(
        recording,
        fs=float(fs),
        signal=pieces[0] if len(pieces) == 1 else np.concatenate(pieces, axis=1),
        segments=tuple(segments),
        missing=None if recording.missing is None else np.repeat(recording.missing, round(factor), axis=1),
        rates=rates,
    )


def _resample_later(recording: Recording, fs: float, how: str, size: int, segments: tuple[Segment, ...]) -> Recording:
    """Resample a recording when its samples are needed: held samples part by part, filtered ones all at once."""
    factor = fs / recording.fs
    whole = cache(lambda: resample_recording(recording.in_memory(), fs, how))

    def read(first: int, stop: int) -> Recording:
        if how != "hold":
            return whole().part(first, stop)
        times = round(factor)
        part = resample_recording(recording.part(first // times, -(-stop // times)), fs, how)
        return part.part(first % times, first % times + stop - first)

    some = recording.part(0, min(recording.signal.shape[1], math.ceil(1 / factor) + 1))
    return read_later(recording, resample_recording(some, fs, how), read, size, segments)


def _is_whole(factor: float) -> bool:
    return round(factor) >= 1 and math.isclose(factor, round(factor), rel_tol=1e-9)


def at_one_rate(
    file: str, channels: Sequence[Recording], fs: float | None, how: str | Mapping[str, str | None] | None
) -> Recording:
    """Join recordings of one channel each, which may have several rates, to a recording at one rate.

    Digital values are kept if all channels have them and none is filtered.

    Parameters
    ----------
    file : file name, for error messages
    fs : target rate in Hz; the highest rate of the channels if None
    how : "hold" or "polyphase", or one of them by channel name; None raises an error if rates differ

    Raises
    ------
    DataError : if a channel has another rate and no method, or cannot be brought to the target rate
    """
    ways = [how.get(one.channels[0]) if isinstance(how, Mapping) else how for one in channels]
    if any(way not in (None, "hold", "polyphase") for way in ways):
        raise PolyadicError(f"resample must be 'hold', 'polyphase' or None, but is {how!r}")
    target = float(max(one.fs for one in channels) if fs is None else fs)
    if not 0 < target < math.inf:
        raise PolyadicError(f"fs must be a positive number in Hz, but is {fs!r}")
    factors = [target / one.fs for one in channels]
    other = [not math.isclose(factor, 1, rel_tol=1e-9) for factor in factors]
    rates = ", ".join(f"{one.channels[0]} {one.fs:g} Hz" for one in channels)
    refused = [factor for factor, way, off in zip(factors, ways, other, strict=True) if off and way is None]
    if refused:
        held = "--resample hold repeats the samples of slow channels, " if all(map(_is_whole, refused)) else ""
        raise DataError(
            f"{file}: without resample all channels must have {target:g} Hz, but have {rates}: {held}--resample "
            "polyphase filters"
        )
    if max(factors) > _FACTOR:
        raise DataError(f"{file}: all sampling rates must be at least {target / _FACTOR:g} Hz, but are {rates}")
    if not all(_is_whole(factor) for factor, way in zip(factors, ways, strict=True) if way == "hold"):
        raise DataError(
            f"{file}: resample='hold' needs integer factors to {target:g} Hz, but rates are {rates}: "
            "use --resample polyphase for any rate"
        )
    if "polyphase" in ways or len({one.signal.dtype for one in channels}) > 1:
        channels = [as_values(one) for one in channels]
    rows = [resample_recording(one, target, way or "hold") for one, way in zip(channels, ways, strict=True)]
    return replace(_stacked(rows), rates=tuple(one.fs for one in channels) if any(other) else ())


def _stacked(rows: Sequence[Recording]) -> Recording:
    """Join recordings of one channel each."""
    size = min(row.signal.shape[1] for row in rows)  # rates in odd ratios may differ by a sample at the end
    if rows[0].read is not None:
        sample = _stacked([row.part(0, 1) for row in rows])
        return read_later(rows[0], sample, lambda a, b: _stacked([row.part(a, b) for row in rows]), size)
    signals = [row.signal[:, :size] for row in rows]
    masks = [None if row.missing is None else row.missing[:, :size] for row in rows]
    limits = [row.limits for row in rows if row.limits is not None]
    return replace(
        rows[0],
        channels=tuple(row.channels[0] for row in rows),
        units=tuple(row.units[0] for row in rows),
        signal=np.concatenate(signals),
        scale=np.concatenate([row.scale for row in rows]),
        offset=np.concatenate([row.offset for row in rows]),
        missing=join_masks(masks, signals, axis=0),
        limits=np.concatenate(limits) if len(limits) == len(rows) else None,
    )


def join_masks(
    masks: Sequence[NDArray[np.bool_] | None], signals: Sequence[NDArray[Any]], axis: int
) -> NDArray[np.bool_] | None:
    """Concatenate masks of missing samples; None if nothing is missing."""
    if all(mask is None for mask in masks):
        return None
    pairs = zip(masks, signals, strict=True)
    return np.concatenate([np.zeros(each.shape, bool) if mask is None else mask for mask, each in pairs], axis=axis)


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
