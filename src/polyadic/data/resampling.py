"""Bring the channels of a recording to physical values and to one sampling rate."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyadic.data.recordings import Recording, Segment, Unread, read_later
from polyadic.errors import DataError, PolyadicError

__all__ = ["as_values", "at_one_rate", "join_masks", "resample_polyphase", "resample_recording"]

_FACTOR = 10_000
"""Maximum factor of resampling: a damaged record duration must not exhaust the memory."""


def resample_polyphase(values: NDArray[Any], fs: float, target: float) -> NDArray[np.float32]:
    """Resample values with a polyphase filter, extending the ends linearly: (…, n) to (…, n · target / fs).

    Raises
    ------
    PolyadicError : if the ratio of the rates is not a ratio of whole numbers up to 10,000
    """
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
    if isinstance(recording.signal, Unread):
        return recording.apply(as_values)
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
    sizes = [math.ceil((end - first) * factor - 1e-6) for first, end, _ in recording.spans]
    firsts = [0, *accumulate(sizes)]
    segments = [Segment(first, segment.onset) for first, segment in zip(firsts, recording.segments, strict=False)]
    if isinstance(recording.signal, Unread):
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
    target = float(max(one.fs for one in channels) if fs is None else fs)
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
    if isinstance(rows[0].signal, Unread):
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
