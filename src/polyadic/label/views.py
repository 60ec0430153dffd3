"""What the page draws: signals with their context, the spectrum of a window, and the map of all windows."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.signal import welch

from polyadic.data import Windows

__all__ = ["Views", "encode_array"]

_COLUMNS = 1200
"""Maximum number of columns of a drawing; longer signals are drawn by the extremes of each column."""
_TYPICAL = 200
"""Number of windows that the scale of each channel comes from."""
_FRAME = 2.56
"""Length of the frames of spectra in seconds, at most a window."""


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
        self._order = np.lexsort((index.start, index.recording))
        some = np.sort(np.random.default_rng(0).permutation(len(windows))[:_TYPICAL])
        X = np.asarray(windows.read(some), np.float64)
        self.centres = np.nan_to_num(np.nanmedian(X, axis=(0, 2)))
        distance = np.abs(X - self.centres[:, None])
        self.scales = [_round_up(float(value)) for value in np.nanquantile(distance, 0.99, axis=(0, 2))]
        self._powers = np.maximum(np.nan_to_num(np.nanmean(np.square(distance), axis=(0, 2))), 1e-300)
        self.typical = self._spectra(X).mean(axis=0)
        centred = Z - Z.mean(axis=0)
        _, axes = np.linalg.eigh(centred.T @ centred)
        places = centred @ axes[:, :-3:-1]  # the two axes of largest variance
        low, high = np.quantile(places, [0.002, 0.998], axis=0)
        self.map = np.clip((places - low) / np.maximum(high - low, 1e-12), 0.0, 1.0)

    def channels(self) -> list[dict[str, Any]]:
        """Return the name, unit, centre and scale of each channel."""
        count = self.windows.shape[1]
        names = self.windows.channels or tuple(f"channel {number + 1}" for number in range(count))
        units = self.windows.units or ("",) * count
        about = zip(names, units, self.centres.tolist(), self.scales, strict=True)
        return [{"name": name, "unit": unit, "centre": centre, "scale": scale} for name, unit, centre, scale in about]

    def signals(self, row: int, first: int, last: int) -> dict[str, Any]:
        """Return the signals from sample `first` to `last`, counted from a window's start, and the window's spectrum.

        Values are (channels, columns, 2), the lowest and highest of each column, NaN where the recording has none.
        """
        X = self._read(row, first, last)
        width = max(1, -(-X.shape[1] // _COLUMNS))
        columns = np.pad(X, ((0, 0), (0, -X.shape[1] % width)), constant_values=np.nan).reshape(len(X), -1, width)
        # `fmin` and `fmax` ignore NaN unless there is nothing else.
        both = np.stack([np.fmin.reduce(columns, axis=2), np.fmax.reduce(columns, axis=2)], axis=2)
        found = {"values": encode_array(both), "columns": both.shape[1], "width": width, "first": first, "last": last}
        return {**found, "spectrum": encode_array(self._spectra(self.windows.read(np.array([row])))[0])}

    def _read(self, row: int, first: int, last: int) -> NDArray[np.float32]:
        """Read a part of a window's recording from the windows that hold it: (channels, last − first)."""
        index, length, order = self.windows.index, self.windows.shape[2], self._order
        start = int(index.start[row])
        own = order[slice(*np.searchsorted(index.recording[order], index.recording[row] + np.arange(2)))]
        rows = own[slice(*np.searchsorted(index.start[own], [start + first - length + 1, start + last]))]
        X = np.full((self.windows.shape[1], last - first), np.nan, np.float32)
        for place, samples in zip((index.start[rows] - start - first).tolist(), self.windows.read(rows), strict=True):
            into = slice(max(0, place), min(last - first, place + length))
            X[:, into] = samples[:, into.start - place : into.stop - place]
        return X

    def _spectra(self, X: NDArray[Any]) -> NDArray[np.float64]:
        """Return power spectra of windows in dB, from 0 Hz to half the rate: (n, frequencies).

        They are means over channels, each relative to its typical power.
        """
        fs = self.windows.fs or 1.0
        U = np.nan_to_num((X - self.centres[:, None]) / np.sqrt(self._powers)[:, None])
        powers = welch(U, fs, nperseg=max(4, min(round(_FRAME * fs), U.shape[-1])))[1]
        return np.asarray(10 * np.log10(powers.mean(axis=1) + 1e-9))
