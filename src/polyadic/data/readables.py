"""Samples that are read row by row: arrays, selections of channels, and concatenations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyadic._util.checks import Readable, check_unmasked
from polyadic.errors import PolyadicError

__all__ = ["ArraySamples", "ChosenChannels", "Concatenated", "as_readable", "read_raw"]

_Rows = NDArray[np.intp]


def as_readable(X: Any) -> Readable:
    """Return samples that can be read row by row; arrays are wrapped, and readable samples returned unchanged."""
    if isinstance(X, Readable):
        return X
    check_unmasked(X, "X")
    plain = isinstance(X, np.ndarray) and not isinstance(X, np.ma.MaskedArray)
    return ArraySamples(X if plain else np.asarray(X))


def read_raw(samples: Readable, rows: _Rows) -> tuple[NDArray[Any], NDArray[Any] | None, NDArray[Any] | None]:
    """Read rows as stored, with the scale and offset that convert them to values, or None if they are values."""
    raw = getattr(samples, "raw", None)
    return (samples.read(rows), None, None) if raw is None else raw(rows)


@dataclass(frozen=True, eq=False)
class ArraySamples:
    """An array, or a memory map of one."""

    X: NDArray[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.X.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.X.dtype.newbyteorder("=")

    @property
    def on_disk(self) -> bool:
        return isinstance(self.X, np.memmap)

    def read(self, rows: _Rows) -> NDArray[Any]:
        return np.asarray(self.X[rows], self.dtype)


class ChosenChannels:
    """Samples with a selection of their channels, in any order."""

    def __init__(self, samples: Readable, places: _Rows) -> None:
        self.samples, self.places = samples, places

    @property
    def shape(self) -> tuple[int, ...]:
        count, _, *rest = self.samples.shape
        return (count, len(self.places), *rest)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.samples.dtype

    @property
    def on_disk(self) -> bool:
        return bool(getattr(self.samples, "on_disk", False))

    @property
    def fingerprint(self) -> dict[str, str]:
        known: dict[str, str] = getattr(self.samples, "fingerprint", {})
        return known | {"channels": ",".join(map(str, self.places.tolist()))} if known else {}

    def read(self, rows: _Rows) -> NDArray[Any]:
        return np.ascontiguousarray(self.samples.read(rows)[:, self.places])

    def raw(self, rows: _Rows) -> tuple[NDArray[Any], NDArray[Any] | None, NDArray[Any] | None]:
        digits, scale, offset = read_raw(self.samples, rows)
        digits = np.ascontiguousarray(digits[:, self.places])
        if scale is None or offset is None:
            return digits, None, None
        return digits, scale[:, self.places], offset[:, self.places]

    def order(self, seed: int, sweep: int) -> _Rows | None:
        order = getattr(self.samples, "order", None)
        return None if order is None else order(seed, sweep)


class Concatenated:
    """Concatenation of several samples."""

    def __init__(self, parts: Sequence[Readable]) -> None:
        self.parts = tuple(parts)
        self.ends = np.cumsum([part.shape[0] for part in parts])
        self.shape = (int(self.ends[-1]), *parts[0].shape[1:])
        self.dtype = np.result_type(*(part.dtype for part in parts))
        self.on_disk = any(getattr(part, "on_disk", False) for part in parts)

    def read(self, rows: _Rows) -> NDArray[Any]:
        """Read rows, counted over all parts: (n, …)."""
        rows = np.asarray(rows, np.intp)
        if len(rows) and not (rows.min() >= 0 and rows.max() < self.shape[0]):
            raise PolyadicError(
                f"rows must lie between 0 and {self.shape[0] - 1}, but range from {rows.min()} to {rows.max()}"
            )
        owner = np.searchsorted(self.ends, rows, side="right")
        result = np.empty((len(rows), *self.shape[1:]), self.dtype)
        for number in np.unique(owner):
            mine = owner == number
            before = self.ends[number - 1] if number else 0
            result[mine] = self.parts[number].read(rows[mine] - before)
        return result
