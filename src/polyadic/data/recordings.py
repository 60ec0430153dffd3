"""One recording as readers give it: signals in the file's own digits, annotations, gaps; and windows cut out of it.

Times are seconds from the start of the recording, positions are samples of its signal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyadic.errors import DataError, PolyadicError

__all__ = [
    "UNLABELLED",
    "Annotation",
    "Recording",
    "Segment",
    "cut",
    "hold",
    "label_starts",
    "quality",
    "resampled",
    "whole",
    "window_starts",
]

UNLABELLED = -1
"""The label of a window of which no class is known."""


class Annotation(NamedTuple):
    """Something noted about a stretch of time; a duration of 0 is a moment."""

    onset: float
    duration: float
    text: str


class Segment(NamedTuple):
    """An unbroken stretch: from sample `first` on, which was recorded at `onset` seconds, up to the next segment."""

    first: int
    onset: float


@dataclass(frozen=True, eq=False)
class Recording:
    """Signals of one sitting at one sampling rate; value = digit · scale + offset.

    Parameters
    ----------
    name : of the recording, unique within a dataset
    subject : whose it is
    fs : sampling rate in Hz
    channels, units : names, one a channel
    signal : (channels, samples), int16 digits or float32 values
    scale, offset : (channels,) float64; 1 and 0 for float32
    annotations : in order of onset
    segments : unbroken stretches in order; the first begins at sample 0
    missing : (channels, samples), True where a digit stands for no value; None if there are none
    limits : (channels, 2), lowest and highest digit or value the device could give; None if unknown
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
                raise DataError(f"{self.name}: {len(self.signal)} signals need as many {what}, but got {len(values)}")
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
        """The signals in their units, NaN where values are missing: (channels, samples)."""
        values = self.signal * self.scale[:, None] + self.offset[:, None]
        if self.missing is not None:
            values[self.missing] = np.nan
        return values


def hold(signal: NDArray[Any], factor: int) -> NDArray[Any]:
    """A slow signal at `factor` times its rate, each digit repeated: (samples,) to (samples · factor,).

    Examples
    --------
    >>> hold(np.array([1, 2], np.int16), 3)
    array([1, 1, 1, 2, 2, 2], dtype=int16)
    """
    return np.repeat(signal, factor)


def resampled(values: NDArray[Any], fs: float, target: float) -> NDArray[np.float32]:
    """Values at another rate by a polyphase filter, ends prolonged by a line: (…, n) to (…, n · target / fs).

    Raises
    ------
    PolyadicError : if the ratio of the rates is not one of whole numbers up to 10,000
    """
    from fractions import Fraction

    from scipy.signal import resample_poly

    if not (0 < fs < np.inf and 0 < target < np.inf):
        raise PolyadicError(f"fs must be a positive sampling rate in Hz, but goes from {fs:g} to {target:g}")
    ratio = Fraction(target / fs).limit_denominator(10_000)
    if not 1 <= ratio.numerator <= 10_000 or abs(float(ratio) - target / fs) > 1e-9 * target / fs:
        raise PolyadicError(f"fs must be in a ratio of whole numbers to {fs:g} Hz, but is {target:g}")
    # The filter ripples with the level of the signal, so that is taken away and put back; one sample makes no line.
    level = np.where(np.isfinite(values), values, 0).mean(axis=-1, keepdims=True, dtype=np.float64)
    ends = "line" if values.shape[-1] > 1 else "constant"
    result = resample_poly(values - level, ratio.numerator, ratio.denominator, axis=-1, padtype=ends)
    return np.asarray(result + level, dtype=np.float32)


def quality(recording: Recording) -> dict[str, dict[str, int]]:
    """What is wrong with the signals: samples that are not numbers, flat or at the device's limit, by channel.

    What is missing or infinite counts as "nan". A channel is flat if it never changes; it counts with all its samples
    that are there. Channels without a fault are not named.
    """
    found: dict[str, dict[str, int]] = {"nan": {}, "flat": {}, "clipped": {}}
    for number, channel in enumerate(recording.channels):
        signal = recording.signal[number]
        gone = ~np.isfinite(signal)
        if recording.missing is not None:
            gone |= recording.missing[number]
        present = signal[~gone]
        counts = {"nan": int(gone.sum()), "flat": 0, "clipped": 0}
        if len(present) and present.min() == present.max():
            counts["flat"] = len(present)
        elif len(present) and recording.limits is not None:
            low, high = recording.limits[number]
            counts["clipped"] = int(((present <= low) | (present >= high)).sum())
        for kind, count in counts.items():
            if count:
                found[kind][channel] = count
    return found


def window_starts(recording: Recording, length: int, step: int | None = None) -> NDArray[np.int64]:
    """First samples of all whole windows; none crosses a gap, and each segment starts anew: (n,)."""
    if length < 1 or (step is not None and step < 1):
        raise PolyadicError(f"length and step of windows must be at least one sample, but are {length} and {step}")
    firsts = [segment.first for segment in recording.segments]
    ends = [*firsts[1:], recording.signal.shape[1]]
    pieces = [np.arange(a, b - length + 1, step or length) for a, b in zip(firsts, ends, strict=True)]
    return np.concatenate(pieces).astype(np.int64)


def label_starts(
    recording: Recording, starts: NDArray[np.int64], length: int, classes: Mapping[str, int]
) -> NDArray[np.int32]:
    """The class of each window: that of the annotations which cover all of it, if they agree; else `UNLABELLED`.

    Parameters
    ----------
    starts : (n,), first samples
    length : samples in a window
    classes : from an annotation's text to its class; texts it does not name are ignored

    Returns
    -------
    (n,) int32
    """
    # Painted onto a grid of samples: what no annotation or two different ones claim stays unlabelled.
    size = recording.signal.shape[1]
    painted = np.full(size, UNLABELLED, np.int32)
    twice = np.zeros(size, bool)
    for annotation in recording.annotations:
        label = classes.get(annotation.text)
        if label is None:
            continue
        for first, last in _samples(recording, annotation):
            part = painted[first:last]
            twice[first:last] |= (part != UNLABELLED) & (part != label)
            part[:] = label
    painted[twice] = UNLABELLED
    changes = np.concatenate([[0], np.cumsum(painted[1:] != painted[:-1])])
    ends = starts + length - 1
    return np.where(changes[starts] == changes[ends], painted[starts], UNLABELLED).astype(np.int32)


def _samples(recording: Recording, annotation: Annotation) -> list[tuple[int, int]]:
    """The stretches of samples that an annotation covers, in each segment."""
    found = []
    firsts = [segment.first for segment in recording.segments]
    for segment, end in zip(recording.segments, [*firsts[1:], recording.signal.shape[1]], strict=True):
        begin = segment.first + _nearest((annotation.onset - segment.onset) * recording.fs)
        stop = segment.first + _nearest((annotation.onset + annotation.duration - segment.onset) * recording.fs)
        begin, stop = max(begin, segment.first), min(stop, end)
        if begin < stop:
            found.append((begin, stop))
    return found


def _nearest(place: float) -> int:
    """The sample nearest to a place; the end of one annotation and the start of the next, equal but for the last bits
    of a float, are the same.
    """
    return round(round(place, 6))


def cut(recording: Recording, starts: NDArray[np.int64] | Sequence[int], length: int) -> NDArray[Any]:
    """Windows of a recording in its digits or values: (n, channels, length)."""
    view = np.lib.stride_tricks.sliding_window_view(recording.signal, length, axis=1)
    return np.ascontiguousarray(view[:, np.asarray(starts, np.int64)].swapaxes(0, 1))


def whole(recording: Recording, starts: NDArray[np.int64], length: int) -> NDArray[np.bool_]:
    """Which windows have a value at every sample of every channel: (n,)."""
    gone = ~np.isfinite(recording.signal).all(axis=0)
    if recording.missing is not None:
        gone |= recording.missing.any(axis=0)
    total = np.concatenate([[0], np.cumsum(gone)])
    complete: NDArray[np.bool_] = total[starts + length] == total[starts]
    return complete
