"""What the page of `polyadic label` shows: signals with context, the spectrum, the map, the timeline, and counts.

Each public method answers one request of the page, in JSON values. Arrays are base64 of little-endian numbers.
"""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.signal import welch
from sklearn.decomposition import PCA

from polyadic.data.channels import numbered_channels
from polyadic.errors import PolyadicError
from polyadic.label.session import Session

_COLUMNS = 1200
"""Maximum number of columns of a drawing; longer signals are drawn by the extremes of each column."""
_TYPICAL = 200
"""Number of windows that the scale of each channel comes from."""
_FRAME = 2.56
"""Length of the frames of spectra in seconds, at most a window."""
_MOST_ON_TIMELINE = 2000
"""Maximum number of windows of a timeline."""
_MOST_CONTEXT = 40
"""Maximum context before and after a window, in windows."""


def _encode(values: Any, dtype: str = "<f4") -> str:
    return base64.b64encode(np.ascontiguousarray(values, dtype).tobytes()).decode()


def _round_up(value: float) -> float:
    """Return the next of 1, 2, 5 times a power of ten."""
    if not 0 < value < np.inf:
        return 1.0
    power = 10.0 ** np.floor(np.log10(value))
    return float(next(step * power for step in (1.0, 2.0, 5.0, 10.0) if step * power >= value * (1 - 1e-9)))


class Views:
    """Views of a session; signals are read on demand."""

    def __init__(self, session: Session) -> None:
        self.session, self.windows = session, session.windows
        self.fs = self.windows.fs or 1.0
        index, Z = self.windows.index, session.Z
        self._order = np.lexsort((index.start, index.recording))
        some = np.sort(np.random.default_rng(0).permutation(len(Z))[:_TYPICAL])
        X = np.asarray(self.windows.read(some), np.float64)
        self._centres = np.nan_to_num(np.nanmedian(X, axis=(0, 2)))
        distance = np.abs(X - self._centres[:, None])
        self._scales = [_round_up(float(value)) for value in np.nanquantile(distance, 0.99, axis=(0, 2))]
        self._powers = np.maximum(np.nan_to_num(np.nanmean(np.square(distance), axis=(0, 2))), 1e-300)
        self._typical = self._spectra(X).mean(axis=0)
        places = PCA(2, svd_solver="covariance_eigh").fit_transform(Z)
        low, high = np.quantile(places, [0.002, 0.998], axis=0)
        self._map = np.clip((places - low) / np.maximum(high - low, 1e-12), 0.0, 1.0)

    def start(self) -> dict[str, Any]:
        """Return what never changes: channels, length of windows, and the map."""
        count, length = self.windows.shape[1:]
        names = self.windows.channels or numbered_channels(count)
        about = zip(names, self.windows.units or ("",) * count, self._centres.tolist(), self._scales, strict=True)
        sample = self.session.questions.sample
        return {
            "channels": [dict(zip(("name", "unit", "centre", "scale"), channel, strict=True)) for channel in about],
            "fs": self.fs,
            "length": length,
            "windows": len(self.windows),
            "subjects": len(np.unique(self.session.groups)),
            "file": self.session.journal.path.name,
            "rows": _encode(sample, "<i4"),
            "map": _encode(self._map[sample]),
            "typical": _encode(self._typical),
        }

    def question(self, tab: str, suggest: int = 0) -> dict[str, Any]:
        """Return the window that a tab is asked about, and, if wanted, the suggested label."""
        session = self.session
        row, asked = session.question(tab)
        index, predictions = self.windows.index, session.predictions
        suggestion = ""
        # Suggestions bias: never for windows of the estimate and repeated ones.
        if suggest and asked not in ("random", "again") and predictions.probabilities is not None:
            suggestion = str(predictions.classes[predictions.probabilities[row].argmax()])
        return {
            "row": row,
            "asked": "unsure" if asked == "again" else asked,
            "label": session.labels[row] if asked == "picked" else "",
            "stamp": session.stamp(row),
            "recording": str(index.names[index.recording[row]]),
            "subject": str(index.subjects[index.recording[row]]),
            "start": float(index.start[row]) / self.fs,
            "point": self._map[row].tolist(),
            "suggestion": suggestion,
        }

    def window(self, row: int, first: int, last: int) -> dict[str, Any]:
        """Return the signals from sample `first` to `last`, counted from a window's start, and the window's spectrum.

        Values are (channels, columns, 2), the lowest and highest of each column, NaN where the recording has none.
        """
        longest = _MOST_CONTEXT * self.windows.shape[2]
        if not (0 <= row < len(self.windows) and -longest <= first < last <= 2 * longest):
            raise PolyadicError("There is no such part of a recording.")
        X = self._read(row, first, last)
        width = max(1, -(-X.shape[1] // _COLUMNS))
        columns = np.pad(X, ((0, 0), (0, -X.shape[1] % width)), constant_values=np.nan).reshape(len(X), -1, width)
        # `fmin` and `fmax` ignore NaN unless there is nothing else.
        both = np.stack([np.fmin.reduce(columns, axis=2), np.fmax.reduce(columns, axis=2)], axis=2)
        spectrum = self._spectra(self.windows.read(np.array([row])))[0]
        drawing = {"values": _encode(both), "columns": both.shape[1], "width": width, "first": first, "last": last}
        return {**drawing, "spectrum": _encode(spectrum)}

    def state(self, row: int) -> dict[str, Any]:
        """Return what follows from the labels: counts, predictions on map and timeline, accuracy."""
        session = self.session
        predictions, sample = session.predictions, session.questions.sample
        names = [str(name) for name in predictions.classes.tolist()]
        rows, along = session.timeline(row)
        step = max(1, -(-len(rows) // _MOST_ON_TIMELINE))
        rows, along = rows[::step], along[::step]
        labelled = [place for place, label in enumerate(session.labels) if label and place != row]
        found = predictions.probabilities
        predicted = np.full(len(sample), -1) if found is None else found[sample].argmax(axis=1)
        return {
            **session.counts(),
            "version": session.version,
            "follows": predictions.version,
            "estimate": predictions.estimate,
            "names": names,
            "predicted": _encode(predicted, "<i2"),
            "marks": [[place, session.labels[place]] for place in labelled],
            "points": _encode(self._map[labelled]),
            "timeline": {
                "rows": _encode(rows, "<i4"),
                "starts": _encode(self.windows.start[rows] / self.fs),
                "codes": _encode([names.index(str(name)) if name in names else -1 for name in along], "<i2"),
                "along": predictions.chain is not None,
            },
        }

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
        U = np.nan_to_num((X - self._centres[:, None]) / np.sqrt(self._powers)[:, None])
        powers = welch(U, self.fs, nperseg=max(4, min(round(_FRAME * self.fs), U.shape[-1])))[1]
        return np.asarray(10 * np.log10(powers.mean(axis=1) + 1e-9))
