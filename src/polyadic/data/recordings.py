"""Recordings as readers return them, with digital values, annotations and gaps, and the windows cut from them.

Times are in seconds from the start of the recording; positions are sample numbers in its signal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyadic.data.labels import UNLABELLED
from polyadic.errors import DataError, PolyadicError

__all__ = [
    "Annotation",
    "Recording",
    "Segment",
    "SignalFaults",
    "as_values",
    "complete_windows",
    "cut_windows",
    "label_windows",
    "labelled_share",
    "quality",
    "repeat_samples",
    "resample_polyphase",
    "resample_recording",
    "scored_phase",
    "window_starts",
]

_REGULAR = 0.9
"""Minimum share of annotations that last a whole number of epochs."""


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
        if not (np.isfinite(self.scale).all() and np.isfinite(self.offset).all() and (self.scale != 0).all()):
            raise DataError(f"{self.name}: scale and offset must be finite and scale not 0")
        if self.missing is not None and self.missing.shape != self.signal.shape:
            raise DataError(f"{self.name}: missing must have shape {self.signal.shape}, but has {self.missing.shape}")
        firsts = [segment.first for segment in self.segments]
        if firsts != sorted(firsts) or firsts[:1] != [0] or firsts[-1] > self.signal.shape[1]:
            raise DataError(f"{self.name}: segments must be in order and begin at sample 0, but begin at {firsts}")

    @property
    def values(self) -> NDArray[np.float64]:
        """The signals in physical units, NaN for missing samples: (channels, samples)."""
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
        onsets = np.array([_nearest_sample(segment.onset * self.fs) for segment in self.segments], np.int64)
        owner = np.searchsorted(firsts, starts, side="right") - 1
        return np.asarray(starts, np.int64) + (onsets - firsts)[owner]


def repeat_samples(signal: NDArray[Any], factor: int) -> NDArray[Any]:
    """Resample a signal to `factor` times its rate by repeating each sample: (samples,) to (samples · factor,).

    Examples
    --------
    >>> repeat_samples(np.array([1, 2], np.int16), 3)
    array([1, 1, 1, 2, 2, 2], dtype=int16)
    """
    return np.repeat(signal, factor)


def resample_polyphase(values: NDArray[Any], fs: float, target: float) -> NDArray[np.float32]:
    """Resample values with a polyphase filter, extending the ends linearly: (…, n) to (…, n · target / fs).

    Raises
    ------
    PolyadicError : if the ratio of the rates is not a ratio of whole numbers up to 10,000
    """
    from fractions import Fraction

    from scipy.signal import resample_poly

    if not (0 < fs < np.inf and 0 < target < np.inf):
        raise PolyadicError(f"fs must be a positive sampling rate in Hz, but resampling is from {fs:g} to {target:g}")
    ratio = Fraction(target / fs).limit_denominator(10_000)
    if not 1 <= ratio.numerator <= 10_000 or abs(float(ratio) - target / fs) > 1e-9 * target / fs:
        raise PolyadicError(f"fs must be in a ratio of whole numbers up to 10,000 to {fs:g} Hz, but is {target:g} Hz")
    # The filter ripple grows with the mean of the signal, so the mean is removed first. A line needs two samples.
    level = np.where(np.isfinite(values), values, 0).mean(axis=-1, keepdims=True, dtype=np.float64)
    ends = "line" if values.shape[-1] > 1 else "constant"
    result = resample_poly(values - level, ratio.numerator, ratio.denominator, axis=-1, padtype=ends)
    return np.asarray(result + level, dtype=np.float32)


def quality(recording: Recording) -> dict[str, dict[str, int]]:
    """Count the samples of each channel that are not finite, flat or clipped.

    Missing and infinite samples count as "nan". A channel is flat if it never changes; then all its valid samples
    count. Samples are clipped if three or more in a row are at a limit of the device: a signal may reach its extreme
    value once. Channels without faults are not listed.
    """
    found: dict[str, dict[str, int]] = {"nan": {}, "flat": {}, "clipped": {}}
    for number, channel in enumerate(recording.channels):
        signal = recording.signal[number]
        invalid = ~np.isfinite(signal)
        if recording.missing is not None:
            invalid |= recording.missing[number]
        present = signal[~invalid]
        counts = {"nan": int(invalid.sum()), "flat": 0, "clipped": 0}
        if len(present) and present.min() == present.max():
            counts["flat"] = len(present)
        elif len(present) and recording.limits is not None:
            low, high = recording.limits[number]
            counts["clipped"] = _samples_in_runs(present <= low) + _samples_in_runs(present >= high)
        for kind, count in counts.items():
            if count:
                found[kind][channel] = count
    return found


def _samples_in_runs(at_limit: NDArray[np.bool_], least: int = 3) -> int:
    """Return the number of samples that are True in runs of at least `least` samples."""
    changes = np.flatnonzero(np.diff(at_limit, prepend=False, append=False))
    lengths = changes[1::2] - changes[::2]
    return int(lengths[lengths >= least].sum())


class SignalFaults:
    """Counter of invalid and flat samples of each channel over blocks of windows, like `quality` for a recording."""

    def __init__(self, channels: Sequence[str]) -> None:
        self.channels = channels
        self.invalid, self.valid = np.zeros(len(channels), np.int64), np.zeros(len(channels), np.int64)
        self.low, self.high = np.full(len(channels), np.inf), np.full(len(channels), -np.inf)

    def update(self, X: NDArray[Any]) -> None:
        """Add a block of windows: (n, channels, time)."""
        finite = np.isfinite(X)
        count = X.shape[0] * X.shape[2]
        valid = finite.sum(axis=(0, 2))
        self.invalid += count - valid
        self.valid += valid
        self.low = np.minimum(self.low, np.where(finite, X, np.inf).min(axis=(0, 2)))
        self.high = np.maximum(self.high, np.where(finite, X, -np.inf).max(axis=(0, 2)))

    def counts(self) -> dict[str, dict[str, int]]:
        """Return the number of invalid and of flat samples by channel; kinds without any are left out."""
        flat = np.where((self.valid > 0) & (self.low == self.high), self.valid, 0)
        found = {
            kind: {channel: int(count) for channel, count in zip(self.channels, counts, strict=True) if count}
            for kind, counts in (("nan", self.invalid), ("flat", flat))
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
    firsts = [segment.first for segment in recording.segments]
    ends = [*firsts[1:], recording.signal.shape[1]]
    pieces = []
    for segment, end in zip(recording.segments, ends, strict=True):
        first = segment.first
        clock = offset if offset is not None else phase
        if clock is not None:
            away = _nearest_sample((clock - segment.onset) * recording.fs)
            first += away if offset is not None and away > 0 else away % step
        pieces.append(np.arange(min(first, end), end - length + 1, step))
    return np.concatenate(pieces).astype(np.int64)


def scored_phase(recording: Recording, length: int, step: int | None = None) -> float | None:
    """Return the time in seconds of a scored epoch at which windows can begin, or None if annotations are irregular.

    Annotations are regular if at least 90 % last a whole number of epochs, and windows fit into epochs or vice versa.

    Parameters
    ----------
    length, step : samples in a window, and from one window to the next
    """
    lasting = [one for one in recording.annotations if one.duration * recording.fs > 1]
    if not lasting:
        return None
    step = step or length
    durations = np.array([_nearest_sample(one.duration * recording.fs) for one in lasting], np.int64)
    epochs = sorted({*(size for size in durations.tolist() if 10 * size >= length), length})
    regular = (size for size in epochs if size % length == 0 or length % size == 0)
    if not any((durations % size == 0).mean() >= _REGULAR for size in regular):
        return None
    places = np.array([_nearest_sample(one.onset * recording.fs) % step for one in lasting], np.int64)
    found, counts = np.unique(places, return_counts=True)
    return float(found[counts.argmax()] / recording.fs)


def label_windows(
    recording: Recording,
    starts: NDArray[np.int64],
    length: int,
    classes: Mapping[str, int],
    min_share: float | None = None,
) -> NDArray[np.int32]:
    """Return the class of the annotations that cover each window, if they agree; otherwise `UNLABELLED`.

    Parameters
    ----------
    starts : (n,), first samples
    length : samples in a window
    classes : class number of each annotation text; other texts are ignored
    min_share : minimum share of a window that its class must cover, and more than any other; the whole window if None

    Returns
    -------
    (n,) int32
    """
    if not classes:
        return np.full(len(starts), UNLABELLED, np.int32)
    sample_labels = _sample_labels(recording, classes)
    ends = starts + length - 1
    if min_share is None or min_share == 1 or not len(starts):
        changes = np.concatenate([[0], np.cumsum(sample_labels[1:] != sample_labels[:-1])])
        return np.where(changes[starts] == changes[ends], sample_labels[starts], UNLABELLED).astype(np.int32)
    numbers = sorted(set(classes.values()))
    covered = np.empty((len(numbers), len(starts)), np.int64)
    for row, number in enumerate(numbers):
        total = np.concatenate([[0], np.cumsum(sample_labels == number)])
        covered[row] = total[starts + length] - total[starts]
    best = covered.argmax(axis=0)
    most = covered.max(axis=0)
    clear = (covered == most).sum(axis=0) == 1
    enough = clear & (most >= min_share * length - 1e-9)
    return np.where(enough, np.array(numbers, np.int32)[best], UNLABELLED).astype(np.int32)


def labelled_share(
    recording: Recording, starts: NDArray[np.int64], labels: NDArray[np.int32], length: int, classes: Mapping[str, int]
) -> tuple[int, int]:
    """Return how many samples have a class, and how many of these are in labelled windows."""
    inside = np.zeros(recording.signal.shape[1], bool)
    for start in starts[labels != UNLABELLED].tolist():
        inside[start : start + length] = True
    labelled = _sample_labels(recording, classes) != UNLABELLED
    return int(labelled.sum()), int((labelled & inside).sum())


def _sample_labels(recording: Recording, classes: Mapping[str, int]) -> NDArray[np.int32]:
    """Return the class of each sample; samples without an annotation, or with conflicting ones, are unlabelled."""
    size = recording.signal.shape[1]
    sample_labels = np.full(size, UNLABELLED, np.int32)
    conflicting = np.zeros(size, bool)
    for annotation in recording.annotations:
        label = classes.get(annotation.text)
        if label is None:
            continue
        for first, last in _covered_samples(recording, annotation):
            part = sample_labels[first:last]
            conflicting[first:last] |= (part != UNLABELLED) & (part != label)
            part[:] = label
    sample_labels[conflicting] = UNLABELLED
    return sample_labels


def as_values(recording: Recording) -> Recording:
    """Convert a recording from digital to physical values, with NaN for missing samples."""
    if recording.signal.dtype == np.float32 and recording.missing is None:
        return recording
    count = len(recording.channels)
    limits = recording.limits
    if limits is not None:
        limits = np.sort(limits * recording.scale[:, None] + recording.offset[:, None], axis=1).astype(np.float32)
    return replace(
        recording,
        signal=recording.values.astype(np.float32),
        scale=np.ones(count),
        offset=np.zeros(count),
        missing=None,
        limits=limits,
    )


def resample_recording(recording: Recording, fs: float, how: str) -> Recording:
    """Resample a recording: "hold" repeats each sample by a whole factor, "polyphase" filters each segment.

    Raises
    ------
    DataError : if `how` is "hold" and `fs` is not a whole multiple of the sampling rate
    """
    if abs(recording.fs - fs) <= 1e-9 * fs:
        return recording
    recording = replace(recording, rates=recording.rates or (recording.fs,) * len(recording.signal))
    factor = fs / recording.fs
    if how == "hold" and (factor < 1 or abs(factor - round(factor)) > 1e-9 * factor):
        raise DataError(
            f"{recording.name}: --resample hold repeats samples, from {recording.fs:g} Hz to a whole multiple of it, "
            f"but --fs is {fs:g} Hz: use --resample polyphase for any rate"
        )
    firsts = [segment.first for segment in recording.segments]
    ends = [*firsts[1:], recording.signal.shape[1]]
    values = recording.signal if how == "hold" else recording.values
    outline = recording.signal.strides[-1] == 0 and recording.signal.shape[-1] > 1
    pieces, missing, segments, count = [], [], [], 0
    for segment, end in zip(recording.segments, ends, strict=True):
        part = values[:, segment.first : end]
        size = round(part.shape[1] * factor)
        if outline:
            pieces.append(np.broadcast_to(np.zeros((), part.dtype), (len(part), size)))
        elif how == "hold":
            pieces.append(np.repeat(part, round(factor), axis=1))
        else:
            pieces.append(resample_polyphase(part, recording.fs, fs)[:, :size])
        if recording.missing is not None and how == "hold":
            missing.append(np.repeat(recording.missing[:, segment.first : end], round(factor), axis=1))
        segments.append(Segment(count, segment.onset))
        count += pieces[-1].shape[1]
    signal = pieces[0] if len(pieces) == 1 else np.concatenate(pieces, axis=1)
    if how == "hold":
        return replace(
            recording,
            fs=fs,
            signal=signal,
            segments=tuple(segments),
            missing=np.concatenate(missing, axis=1) if missing else None,
        )
    channels = len(signal)
    return replace(
        recording,
        fs=fs,
        signal=signal.astype(np.float32, copy=False),
        scale=np.ones(channels),
        offset=np.zeros(channels),
        segments=tuple(segments),
        missing=None,
        limits=None,
    )


def _covered_samples(recording: Recording, annotation: Annotation) -> list[tuple[int, int]]:
    """Return the first sample and the end of the interval that an annotation covers in each segment."""
    found = []
    firsts = [segment.first for segment in recording.segments]
    for segment, end in zip(recording.segments, [*firsts[1:], recording.signal.shape[1]], strict=True):
        begin = segment.first + _nearest_sample((annotation.onset - segment.onset) * recording.fs)
        stop = segment.first + _nearest_sample((annotation.onset + annotation.duration - segment.onset) * recording.fs)
        begin, stop = max(begin, segment.first), min(stop, end)
        if begin < stop:
            found.append((begin, stop))
    return found


def _nearest_sample(place: float) -> int:
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
