"""Pairings: augmentations whose view of a window is another window of the data set."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyadic._util.checks import check_number
from polyadic.augment.base import Augmentation
from polyadic.errors import PolyadicError

__all__ = ["Neighbour", "Pairing", "WindowIndex"]


@dataclass(frozen=True, eq=False)
class WindowIndex:
    """Recording and start of each window of a data set, which a `Pairing` uses to find partners.

    Parameters
    ----------
    recording : (N,) integers, equal for windows of the same recording; negative if unknown
    start : (N,), first sample of the window within its recording; negative if unknown
    length : number of samples in a window
    fs : sampling rate in Hz, or None if unknown

    Examples
    --------
    >>> index = WindowIndex([0, 0, 0, 1], start=[0, 50, 100, 0], length=100, fs=50)
    >>> Neighbour().partners(index, torch.arange(4))
    tensor([ 2, -1, -1, -1])
    """

    recording: NDArray[np.int64]
    start: NDArray[np.int64]
    length: int
    fs: float | None = None

    def __post_init__(self) -> None:
        for name in ("recording", "start"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), np.int64))
        if len(self.recording) != len(self.start):
            raise PolyadicError(
                f"recording and start must have one entry per window, but have {len(self.recording)} and "
                f"{len(self.start)}"
            )

    @classmethod
    def of(cls, X: Any) -> WindowIndex:
        """Return the index of `Windows` or of a store.

        Raises
        ------
        PolyadicError : if recordings and starts are unknown, as for plain arrays
        """
        columns = getattr(X, "index", None)
        if not (hasattr(columns, "recording") and hasattr(columns, "start") and hasattr(columns, "names")):
            raise PolyadicError(
                "partner windows are found by recording and start, which plain arrays do not have, but X is of type "
                f"{type(X).__name__}: use polyadic.data.Windows(X, fs, recording=..., start=...) or a store"
            )
        assert columns is not None
        named = np.asarray(columns.names) != ""
        recording = np.where(named[columns.recording], columns.recording, -1)
        if not ((recording >= 0) & (columns.start >= 0)).any():
            raise PolyadicError(
                "partner windows are found by recording and start, but no window of X has both: use "
                "polyadic.data.Windows(X, fs, recording=..., start=...)"
            )
        return cls(recording, columns.start, int(X.shape[-1]), X.fs)

    def __len__(self) -> int:
        return len(self.recording)

    @cached_property
    def _timeline(self) -> _Timeline:
        """All recordings on one time axis, so that one sorted array serves searches in any of them."""
        known = np.flatnonzero((self.recording >= 0) & (self.start >= 0))
        # The sort is stable: windows with the same start keep their order.
        rows = known[np.lexsort((self.start[known], self.recording[known]))]
        recording, start = self.recording[rows], self.start[rows]
        first = np.flatnonzero(np.diff(recording, prepend=-1))
        last = np.append(first[1:], len(rows))[: len(first)] - 1
        spans = start[last] - start[first] + 1
        shift = np.cumsum(spans) - spans - start[first]
        times = start + np.repeat(shift, last - first + 1)
        of_window = np.full(len(self), -1)
        of_window[rows] = times
        return _Timeline(rows, times, of_window)


class _Timeline(NamedTuple):
    """Windows in order of time (n,), their times (n,), and the time of every window or -1 if unknown (N,)."""

    rows: NDArray[np.intp]
    times: NDArray[np.int64]
    of_window: NDArray[np.int64]


class Pairing(Augmentation):
    """Base class of augmentations whose view of a window is another window; subclasses implement `partners`.

    The code that reads the windows also reads their partners; see `split_pairing`. Because views are other rows of the
    data, a CUDA graph cannot capture this step. `polyadic.testing.PairingContract` contains the tests that every
    pairing should pass.
    """

    @abstractmethod
    def partners(self, index: WindowIndex, ids: Tensor) -> Tensor:
        """Find the partners of some windows.

        Parameters
        ----------
        index : the index of all windows
        ids : (b,), integers from 0 to N − 1

        Returns
        -------
        (b,) int64, indices of the partners; −1 for a window without one
        """

    def apply(self, X: Tensor, keys: Tensor) -> Tensor:
        raise PolyadicError(
            f"{type(self).__name__} selects partner windows and cannot transform a batch: pass it as "
            "augment, with windows whose recording and start are known"
        )


@dataclass(frozen=True)
class Neighbour(Pairing):
    """Pair each window with the next window of the same recording that does not overlap it.

    The partner is the first window that starts at least one window length plus `gap` seconds after this one, and at
    most one window length later than that. Windows at the end of a recording, before an interruption, or with unknown
    recording or start have no partner.

    Parameters
    ----------
    gap : minimum number of seconds between the end of a window and the start of its partner
    """

    gap: float = 0.0

    def __post_init__(self) -> None:
        check_number("gap", self.gap, 0)

    def partners(self, index: WindowIndex, ids: Tensor) -> Tensor:
        chosen = ids.cpu().numpy()
        if self.gap > 0 and index.fs is None:
            raise PolyadicError(f"gap={self.gap:g} is in seconds, but the windows have no sampling rate: set fs")
        # Rounded, because in floating point 0.3 s at 10 Hz would be slightly more than three samples.
        pause = round(self.gap * (index.fs or 0.0), 6)
        least, most = index.length + math.ceil(pause), 2 * index.length + math.floor(pause)
        rows, times, of_window = index._timeline
        if not len(rows):
            return torch.full((len(chosen),), -1)
        place = np.searchsorted(times, of_window[chosen] + least)
        found = rows[np.minimum(place, len(rows) - 1)]
        valid = (
            (of_window[chosen] >= 0)
            & (place < len(rows))
            & (index.recording[found] == index.recording[chosen])
            & (index.start[found] - index.start[chosen] <= most)
        )
        return torch.from_numpy(np.where(valid, found, -1).astype(np.int64))
