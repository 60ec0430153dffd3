"""One recording: signals in physical units with annotations and gaps, resampled to one rate; windows are cut from it.

Samples are float32, NaN where they are missing. They are in memory, or stay in the file until a part of them is needed
(`Unread`). Times are in seconds from the start of the recording; positions are sample numbers in its signal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, time, timedelta
from fractions import Fraction
from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from polyadic.data.windows import Index, Windows
from polyadic.errors import DataError, PolyadicError

LATEST = 1e10
"""Maximum time of an annotation in seconds, some 300 years: later times exceed the range of sample numbers."""

_FACTOR = 10_000
"""Maximum factor of resampling: a damaged sampling rate must not exhaust the memory."""

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

    `shape` is (channels, samples); `read` returns the samples from one position to another, (channels, n) float32.
    """

    shape: tuple[int, int]
    read: Callable[[int, int], _Signal]
    dtype = np.dtype(np.float32)
    ndim = 2

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise PolyadicError("the samples are still in the file: use in_memory() or read() of the recording")

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
    began : start date and time in ISO 8601, or only the time; "" if unknown
    subject_from : where the subject was found; see `polyadic.data.subjects`
    """

    name: str
    subject: str
    fs: float
    channels: tuple[str, ...]
    units: tuple[str, ...]
    signal: Any
    annotations: tuple[Annotation, ...] = ()
    segments: tuple[Segment, ...] = (Segment(0, 0.0),)
    began: str = ""
    subject_from: str = ""

    def __post_init__(self) -> None:
        shape, dtype = self.signal.shape, self.signal.dtype
        problem = ""
        if len(shape) != 2 or 0 in shape or dtype != np.float32:
            problem = f"signals must be float32 of shape (channels, samples), but are {dtype} of shape {shape}"
        elif not 0 < self.fs < np.inf:
            problem = f"the sampling rate must be a positive number in Hz, but is {self.fs!r}"
        elif not len(self.channels) == len(self.units) == shape[0]:
            problem = f"channels and units must have {shape[0]} entries, one per signal"
        elif len(set(self.channels)) != len(self.channels):
            problem = f"channel names must differ, but are {', '.join(self.channels)}"
        for onset, duration, text in self.annotations:
            if not (abs(onset) <= LATEST and 0 <= duration <= LATEST):
                problem = f"the annotation {text!r} has an impossible time: {onset:g} s, for {duration:g} s"
        if problem:
            raise DataError(f"{self.name}: {problem}")

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

    def apply(self, change: Callable[[_Signal], _Signal]) -> Recording:
        """Return the recording after a change to each sample, made when it is read."""
        if isinstance(self.signal, Unread):
            return replace(self, signal=Unread(self.signal.shape, lambda first, stop: change(self.read(first, stop))))
        return replace(self, signal=change(self.signal))

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
    """Return the first samples of all complete windows of `length`, each within one segment, `step` apart: (n,).

    `offset` is the start of the first window in seconds. `phase` is a time at which a window begins, all others a whole
    number of steps before or after it. By default windows begin at the start of each segment.
    """
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
    """Round a position to the nearest sample; positions that differ only by floating-point error give the same one."""
    return round(round(place, 6))


def cut_windows(signal: NDArray[Any], starts: NDArray[np.int64] | Sequence[int], length: int) -> NDArray[Any]:
    """Cut the windows that begin at `starts` from a signal (channels, samples): (n, channels, length)."""
    view = np.lib.stride_tricks.sliding_window_view(signal, length, axis=1)
    return np.ascontiguousarray(view[:, np.asarray(starts, np.int64)].swapaxes(0, 1))


class _CutSamples:
    """The windows of a recording, read on demand."""

    dtype, on_disk = np.dtype(np.float32), True

    def __init__(self, recording: Recording, starts: NDArray[np.int64], length: int) -> None:
        self.recording, self.starts = recording, starts
        self.shape = len(starts), len(recording.channels), length

    def read(self, rows: NDArray[np.intp]) -> _Signal:
        """Read some windows, block by block."""
        starts, (_, channels, length) = self.starts[rows], self.shape
        windows = np.empty((len(rows), channels, length), np.float32)
        blocks = np.maximum.accumulate(starts) // (max(1, len(rows)) * length)  # windows may be far apart
        for block in filter(len, np.split(np.arange(len(rows)), np.flatnonzero(np.diff(blocks)) + 1)):
            first, stop = int(starts[block].min()), int(starts[block].max()) + length
            windows[block] = cut_windows(self.recording.read(first, stop), starts[block] - first, length)
        return windows


def cut_recording(
    recording: Recording,
    starts: NDArray[Any],
    length: int,
    labels: NDArray[Any],
    classes: Sequence[str] = (),
    part: str = "",
) -> Windows:
    """Return the windows of `length` samples that begin at `starts`, whose samples are read when they are needed."""
    places, codes, last = np.asarray(starts, np.int64), np.asarray(labels, np.int32), recording.signal.shape[1] - length
    if (
        len(codes) != len(places)
        or not ((places >= 0) & (places <= last) & (codes >= -1) & (codes < len(classes))).all()
    ):
        raise DataError(
            f"{recording.name}: windows must begin at samples 0 to {last} and have a label of -1 to {len(classes) - 1} "
            f"each, but there are {len(codes)} labels up to {codes.max(initial=-1)} for {len(places)} windows up to "
            f"{places.max(initial=0)}"
        )
    index = Index(
        np.zeros(len(places), np.int32),
        recording.elapsed_samples(places),
        codes,
        *(np.array([text]) for text in (recording.name, recording.subject, part, recording.subject_from)),
    )
    samples = _CutSamples(recording, places, length)
    return Windows(
        samples, recording.fs, index=index, classes=classes, channels=recording.channels, units=recording.units
    )


def observed_windows(windows: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which windows have at least one sample that is not missing: (n,)."""
    observed: NDArray[np.bool_] = ~np.isnan(windows).all(axis=(1, 2))
    return observed


# ------------------------------------------------------------------------------------------------------ sampling rates


def resample_polyphase(values: NDArray[Any], fs: float, target: float) -> NDArray[np.float32]:
    """Resample values with a polyphase filter, extending the ends linearly: (channels, n) to (channels, n · target/fs).

    Missing samples (NaN) are interpolated before filtering. A resampled value is missing if a sample beside it is.
    """
    from scipy.signal import resample_poly

    ratio = Fraction(target / fs).limit_denominator(_FACTOR)
    if not 1 <= ratio.numerator <= _FACTOR or abs(float(ratio) - target / fs) > 1e-9 * target / fs:
        raise PolyadicError(f"fs must be in a ratio of whole numbers up to 10,000 to {fs:g} Hz, but is {target:g} Hz")
    missing, last = np.isnan(values), values.shape[-1] - 1
    if missing.any():
        values = values.astype(np.float64)
        for row, absent in zip(values, missing, strict=True):
            present = np.flatnonzero(~absent)
            row[absent] = np.interp(np.flatnonzero(absent), present, row[present]) if len(present) else 0.0
    # The filter ripple grows with the mean of the signal, so the mean is removed first. A line needs two samples.
    level = values.mean(axis=-1, keepdims=True, dtype=np.float64)
    result = resample_poly(
        values - level, ratio.numerator, ratio.denominator, axis=-1, padtype="line" if last else "constant"
    )
    resampled = np.asarray(result + level, dtype=np.float32)
    if missing.any():
        places = np.arange(resampled.shape[-1]) / float(ratio)
        before, after = (
            np.minimum(near.astype(np.int64), last) for near in (np.floor(places + 1e-9), np.ceil(places - 1e-9))
        )
        resampled[missing[..., before] | missing[..., after]] = np.nan
    return resampled


def resample_recording(recording: Recording, fs: float, how: str | None, owner: str) -> Recording:
    """Resample a recording: "hold" repeats each sample by a whole factor, "polyphase" filters each segment.

    Samples in a file are repeated when they are read, and filtered all at once. `owner` is named in error messages.
    """
    factor = fs / recording.fs
    if math.isclose(factor, 1, rel_tol=1e-6):
        return recording
    times = round(factor)
    whole = times >= 1 and math.isclose(factor, times, rel_tol=1e-9)
    if how is None or (how == "hold" and not whole):
        held = "--resample hold repeats samples, " if whole else ""
        raise DataError(
            f"{owner} is sampled at {recording.fs:g} Hz, not at {fs:g} Hz: {held}--resample polyphase "
            "filters, to any rate"
        )
    if factor > _FACTOR:
        raise DataError(f"{owner}: the sampling rate must be at least {fs / _FACTOR:g} Hz, but is {recording.fs:g} Hz")
    sizes = [math.ceil((end - first) * factor - 1e-6) for first, end, _ in recording.spans]
    *firsts, count = accumulate(sizes, initial=0)

    def hold(first: int, stop: int) -> _Signal:
        part = np.repeat(recording.read(first // times, -(-stop // times)), times, axis=1)
        return part[:, first % times : first % times + stop - first]

    @cache
    def filtered() -> _Signal:
        result = np.empty((len(recording.channels), count), np.float32)
        for (first, end, _), begin, size in zip(recording.spans, firsts, sizes, strict=True):
            for row, samples in zip(result, recording.read(first, end), strict=True):
                # One channel at a time: filters take several times its memory.
                row[begin : begin + size] = resample_polyphase(samples[None], recording.fs, fs)[0, :size]
        return result

    changed = replace(
        recording,
        fs=float(fs),
        signal=Unread(
            (len(recording.channels), count), hold if how == "hold" else lambda *span: filtered()[:, slice(*span)]
        ),
        segments=tuple(Segment(first, one.onset) for first, one in zip(firsts, recording.segments, strict=True)),
    )
    return changed if isinstance(recording.signal, Unread) else changed.in_memory()


def join_channels(parts: Sequence[Recording], channels: Sequence[str]) -> Recording:
    """Join recordings of the same time and rate to one with their channels in this order."""
    names = [name for part in parts for name in part.channels]
    units = [unit for part in parts for unit in part.units]
    size = min(part.signal.shape[1] for part in parts)  # rates in odd ratios may differ by a sample at the end
    order = [names.index(channel) for channel in channels]

    def read(first: int, stop: int) -> _Signal:
        return np.concatenate([part.read(first, stop) for part in parts])[order]

    if len(parts) == 1:
        return parts[0]
    return replace(
        parts[0],
        channels=tuple(channels),
        units=tuple(units[place] for place in order),
        signal=Unread((len(names), size), read),
    )


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
        day = datetime.fromisoformat(f"2000-01-01T{text}" if alone else text)
        day += timedelta(seconds=seconds, microseconds=500)  # isoformat truncates, so this rounds
    except (ValueError, OverflowError):
        return ""
    return (day.timetz() if alone else day).isoformat(timespec="milliseconds")
