"""What the page draws: signals with their context, the spectrogram of a window, and the map of all windows."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.signal import stft

from polyadic.data import Windows

__all__ = ["Views", "encode_array"]

_COLUMNS = 1200
"""Maximum number of columns of a drawing; longer signals are drawn by the extremes of each column."""
_TYPICAL = 200
"""Number of windows that the scale of each channel comes from."""
_FRAME = 1.28
"""Length of the spectrogram's frames in seconds, at most a quarter of a window."""
_RANGE = 15.0
"""Smallest range of the spectrogram's colours in dB."""


def encode_array(values: Any, dtype: str = "<f4") -> str:
    """Return an array as base64 of little-endian numbers, as the page reads it."""
    return base64.b64encode(np.ascontiguousarray(values, dtype).tobytes()).decode()


def _round_up(value: float) -> float:
    """Return the next of 1, 2, 5 times a power of ten."""
    if not 0 < value < np.inf:
        return 1.0
    power = 10.0 ** np.floor(np.log10(value))
    return float(next(step * power for step in (1.0, 2.0, 5.0, 10.0) if step * power >= value * (1 - 1e-9)))


class Views:
    """Views of windows; signals are read on demand.

    Parameters
    ----------
    windows : with recording and start
    Z : (N, F), features for the map
    """

    def __init__(self, windows: Windows, Z: NDArray[np.float64]) -> None:
        self.windows, index = windows, windows.index
        order = np.lexsort((index.start, index.recording))
        self._order, self._recording = order, index.recording[order]
        some = np.sort(np.random.default_rng(0).permutation(len(windows))[:_TYPICAL])
        X = np.asarray(windows.read(some), np.float64)
        self.centres = np.nan_to_num(np.nanmedian(X, axis=(0, 2)))
        distance = np.abs(X - self.centres[:, None])
        self.scales = np.array([_round_up(float(value)) for value in np.nanquantile(distance, 0.99, axis=(0, 2))])
        self._powers = np.maximum(np.nan_to_num(np.nanmean(np.square(distance), axis=(0, 2))), 1e-300)
        centred = Z - Z.mean(axis=0)
        _, axes = np.linalg.eigh(centred.T @ centred)
        self.map = centred @ axes[:, :-3:-1]  # the two axes of largest variance
        low, high = np.quantile(self.map, [0.002, 0.998], axis=0)
        self.map = np.clip((self.map - low) / np.maximum(high - low, 1e-12), 0.0, 1.0)

    def channels(self) -> list[dict[str, Any]]:
        """Return the name, unit, centre and scale of each channel."""
        count = self.windows.shape[1]
        names = self.windows.channels or tuple(f"channel {number + 1}" for number in range(count))
        units = self.windows.units or ("",) * count
        about = zip(names, units, self.centres.tolist(), self.scales.tolist(), strict=True)
        return [{"name": name, "unit": unit, "centre": centre, "scale": scale} for name, unit, centre, scale in about]

    def signals(self, row: int, first: int, last: int, channel: int | None = None) -> dict[str, Any]:
        """Return the signals from sample `first` to `last`, counted from the start of a window, and their spectrogram.

        Values are (channels, columns, 2), the lowest and highest of each column, NaN where the recording has none.
        """
        X = self._read(row, first, last)
        width = max(1, -(-X.shape[1] // _COLUMNS))
        columns = np.pad(X, ((0, 0), (0, -X.shape[1] % width)), constant_values=np.nan).reshape(len(X), -1, width)
        low = np.where(np.isnan(columns), np.inf, columns).min(axis=2)
        high = np.where(np.isnan(columns), -np.inf, columns).max(axis=2)
        both = np.stack([np.where(low <= high, low, np.nan), np.where(low <= high, high, np.nan)], axis=2)
        found = {"values": encode_array(both), "columns": both.shape[1], "width": width, "first": first, "last": last}
        return {**found, "spectrogram": self._spectrogram(X, channel)}

    def _read(self, row: int, first: int, last: int) -> NDArray[np.float32]:
        """Read a part of a window's recording from the windows that hold it: (channels, last − first)."""
        index, length = self.windows.index, self.windows.shape[2]
        code, start = int(index.recording[row]), int(index.start[row])
        begin, end = np.searchsorted(self._recording, [code, code + 1])
        starts = index.start[self._order[begin:end]]
        low, high = np.searchsorted(starts, [start + first - length + 1, start + last])
        rows = self._order[begin + low : begin + high]
        X = np.full((self.windows.shape[1], last - first), np.nan, np.float32)
        for place, samples in zip((index.start[rows] - start - first).tolist(), self.windows.read(rows), strict=True):
            into = slice(max(0, place), min(last - first, place + length))
            X[:, into] = samples[:, into.start - place : into.stop - place]
        return X

    def _spectrogram(self, X: NDArray[np.float32], channel: int | None) -> dict[str, Any]:
        """Return power over frequencies and time in dB, as bytes from 0 to 255, 0 where the recording has none.

        That of one channel, or the mean over channels, each relative to its typical power.
        """
        fs, length = self.windows.fs or 1.0, self.windows.shape[2]
        some = slice(None) if channel is None else slice(channel, channel + 1)
        U = ((X - self.centres[:, None]) / np.sqrt(self._powers)[:, None])[some]
        frame = max(4, min(round(_FRAME * fs), length // 4))
        hop = max(1, frame // 8, (U.shape[1] - frame) // 400)
        frequencies, times, found = stft(
            np.nan_to_num(U), fs, nperseg=frame, noverlap=frame - hop, boundary=None, padded=False
        )
        decibels = 10 * np.log10(np.square(np.abs(found)).mean(axis=0) + 1e-9)
        there = np.isfinite(U).all(axis=0)[np.minimum(np.rint(times * fs).astype(int), U.shape[1] - 1)]
        low, high = np.quantile(decibels[:, there] if there.any() else decibels, [0.2, 0.998])
        low = min(low, high - _RANGE)
        levels = np.rint(1 + 254 * np.clip((decibels - low) / (high - low), 0, 1)) * there
        return {
            "levels": encode_array(levels, "u1"),
            "rows": len(frequencies),
            "columns": len(times),
            "highest": float(frequencies[-1]),
            "range": float(high - low),
            "edge": frame / 2,
        }
