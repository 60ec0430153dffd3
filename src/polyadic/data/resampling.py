"""Bring the channels of a recording to one sampling rate."""

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

from polyadic.data.recordings import Recording, Segment, Unread
from polyadic.errors import DataError, PolyadicError

_FACTOR = 10_000
"""Maximum factor of resampling: a damaged record duration must not exhaust the memory."""


def resample_polyphase(values: NDArray[Any], fs: float, target: float) -> NDArray[np.float32]:
    """Resample values with a polyphase filter, extending the ends linearly: (channels, n) to (channels, n · target/fs).

    Missing samples (NaN) are interpolated before filtering. A resampled value is missing if a sample beside it is.

    Raises
    ------
    PolyadicError : if the ratio of the rates is not a ratio of whole numbers up to 10,000
    """
    from scipy.signal import resample_poly

    ratio = Fraction(target / fs).limit_denominator(_FACTOR)
    if not 1 <= ratio.numerator <= _FACTOR or abs(float(ratio) - target / fs) > 1e-9 * target / fs:
        raise PolyadicError(f"fs must be in a ratio of whole numbers up to 10,000 to {fs:g} Hz, but is {target:g} Hz")
    missing = np.isnan(values)
    filled = _interpolated(values, missing) if missing.any() else values
    # The filter ripple grows with the mean of the signal, so the mean is removed first. A line needs two samples.
    level = filled.mean(axis=-1, keepdims=True, dtype=np.float64)
    ends = "line" if values.shape[-1] > 1 else "constant"
    result = resample_poly(filled - level, ratio.numerator, ratio.denominator, axis=-1, padtype=ends)
    resampled = np.asarray(result + level, dtype=np.float32)
    if missing.any():
        places = np.arange(resampled.shape[-1]) / float(ratio)
        before = np.minimum(np.floor(places + 1e-9).astype(np.int64), values.shape[-1] - 1)
        after = np.minimum(np.ceil(places - 1e-9).astype(np.int64), values.shape[-1] - 1)
        resampled[missing[..., before] | missing[..., after]] = np.nan
    return resampled


def _interpolated(values: NDArray[Any], missing: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Fill missing samples of each row by linear interpolation; rows without any sample by 0."""
    filled = values.astype(np.float64)
    for row, absent in zip(filled, missing, strict=True):
        present = np.flatnonzero(~absent)
        row[absent] = np.interp(np.flatnonzero(absent), present, row[present]) if len(present) else 0.0
    return filled


def resample_recording(recording: Recording, fs: float, how: str | None, owner: str) -> Recording:
    """Resample a recording: "hold" repeats each sample by a whole factor, "polyphase" filters each segment.

    Samples in a file are repeated when they are read, and filtered all at once. `owner` is what is resampled, for error
    messages.

    Raises
    ------
    DataError : if the rate differs and `how` is None, or is "hold" and `fs` is not a whole multiple of the rate
    """
    factor = fs / recording.fs
    if math.isclose(factor, 1, rel_tol=1e-6):
        return recording
    times, whole = round(factor), _is_whole(factor)
    if how is None or (how == "hold" and not whole):
        held = "--resample hold repeats samples, " if whole else ""
        raise DataError(
            f"{owner} is sampled at {recording.fs:g} Hz, not at {fs:g} Hz: {held}--resample polyphase "
            "filters, to any rate"
        )
    if factor > _FACTOR:
        raise DataError(f"{owner}: the sampling rate must be at least {fs / _FACTOR:g} Hz, but is {recording.fs:g} Hz")
    sizes = [math.ceil((end - first) * factor - 1e-6) for first, end, _ in recording.spans]
    firsts = [0, *accumulate(sizes)]

    def held_samples(first: int, stop: int) -> NDArray[np.float32]:
        part = np.repeat(recording.read(first // times, -(-stop // times)), times, axis=1)
        return part[:, first % times : first % times + stop - first]

    @cache
    def filtered() -> NDArray[np.float32]:
        parts = [resample_polyphase(recording.read(first, end), recording.fs, fs) for first, end, _ in recording.spans]
        return np.concatenate([part[:, :size] for part, size in zip(parts, sizes, strict=True)], axis=1)

    read = held_samples if how == "hold" else lambda first, stop: filtered()[:, first:stop]
    changed = replace(
        recording,
        fs=float(fs),
        signal=Unread((len(recording.channels), firsts[-1]), read),
        segments=tuple(Segment(first, one.onset) for first, one in zip(firsts, recording.segments, strict=False)),
        rates=recording.rates or (recording.fs,) * len(recording.channels),
    )
    return changed if isinstance(recording.signal, Unread) else changed.in_memory()


def _is_whole(factor: float) -> bool:
    return round(factor) >= 1 and math.isclose(factor, round(factor), rel_tol=1e-9)


def at_one_rate(
    file: str, channels: Sequence[Recording], fs: float | None, how: str | Mapping[str, str | None] | None
) -> Recording:
    """Join recordings of one channel each, which may have several rates, to a recording at one rate.

    Parameters
    ----------
    file : file name, for error messages
    fs : target rate in Hz; the highest rate of the channels if None
    how : "hold" or "polyphase", or one of them by channel name; None raises an error if rates differ
    """
    target = float(max(one.fs for one in channels) if fs is None else fs)
    ways = [how.get(one.channels[0]) if isinstance(how, Mapping) else how for one in channels]
    rates = [f"{one.channels[0]} {one.fs:g} Hz" for one in channels]
    owner = f"{file} ({', '.join(rates)}) has a channel that"
    rows = [resample_recording(one, target, way, owner) for one, way in zip(channels, ways, strict=True)]
    size = min(row.signal.shape[1] for row in rows)  # rates in odd ratios may differ by a sample at the end
    unknown = np.full((1, 2), np.nan, np.float32)
    return replace(
        rows[0],
        channels=tuple(row.channels[0] for row in rows),
        units=tuple(row.units[0] for row in rows),
        signal=Unread((len(rows), size), lambda first, stop: np.concatenate([row.read(first, stop) for row in rows])),
        limits=np.concatenate([unknown if row.limits is None else row.limits for row in rows]),
        rates=tuple(one.fs for one in channels) if any(row.rates for row in rows) else (),
    )
