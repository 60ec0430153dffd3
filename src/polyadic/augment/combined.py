"""Combinations of augmentations, and pairings, whose view of a window is another window of the data set."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyadic._util.checks import check_number
from polyadic._util.random_streams import derive, uniform
from polyadic.augment.base import Augmentation
from polyadic.errors import PolyadicError

__all__ = ["Compose", "Neighbour", "OneOf", "Pairing", "WindowIndex", "split_pairing"]


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
    _found: dict[tuple[int, int], NDArray[np.int64]] = field(default_factory=dict, init=False, repr=False)

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
        """Return the index of `Windows` or of a store, with recordings and starts, which plain arrays do not have."""
        columns: Any = getattr(X, "index", None)
        found = None
        if hasattr(columns, "recording") and hasattr(columns, "names"):
            recording = np.where((columns.names != "")[columns.recording], columns.recording, -1)
            found = cls(recording, columns.start, int(X.shape[-1]), X.fs)
        if found is None or not ((found.recording >= 0) & (found.start >= 0)).any():
            raise PolyadicError(
                "partner windows are found by recording and start, but no window of X has both: use "
                "polyadic.data.Windows(X, fs, recording=..., start=...) or a store"
            )
        return found

    def __len__(self) -> int:
        return len(self.recording)

    def followers(self, least: int, most: int) -> NDArray[np.int64]:
        """Return for each window the first one of its recording that starts `least` to `most` samples later, or −1."""
        if (least, most) not in self._found:
            import pandas as pd

            known = np.flatnonzero((self.recording >= 0) & (self.start >= 0))
            windows = pd.DataFrame({"recording": self.recording, "start": self.start}).iloc[known]
            windows = windows.sort_values("start", kind="stable").assign(follower=lambda frame: frame.index)
            earlier = windows[["recording"]].assign(start=windows["start"] + least)
            near = {"direction": "forward", "tolerance": most - least}
            pairs = pd.merge_asof(earlier, windows, on="start", by="recording", **near)
            followers = np.full(len(self), -1)
            followers[windows.index] = pairs["follower"].fillna(-1)
            self._found[least, most] = followers  # complete: other threads may look
        return self._found[least, most]


class Pairing(Augmentation):
    """Base class of augmentations whose view of a window is another window; subclasses implement `partners`.

    The code that reads the windows also reads their partners; see `split_pairing`. Because views are other rows of the
    data, a CUDA graph cannot capture this step.
    """

    @abstractmethod
    def partners(self, index: WindowIndex, ids: Tensor) -> Tensor:
        """Return the indices of the partners of the windows `ids` (b,) in the index of all: (b,) int64, −1 for none."""

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
        if self.gap > 0 and index.fs is None:
            raise PolyadicError(f"gap={self.gap:g} is in seconds, but the windows have no sampling rate: set fs")
        # Rounded, because in floating point 0.3 s at 10 Hz would be slightly more than three samples.
        pause = round(self.gap * (index.fs or 0.0), 6)
        partners = index.followers(index.length + math.ceil(pause), 2 * index.length + math.floor(pause))
        return torch.from_numpy(partners[ids.cpu().numpy()])


@dataclass(frozen=True)
class Compose(Augmentation, trusted=True):
    """Apply several augmentations in sequence, as the paper does.

    Parameters
    ----------
    steps : the augmentations, in order; only the first may be a `Pairing`

    Examples
    --------
    >>> from polyadic.augment import Bandpass, Jitter
    >>> Compose([Jitter(0.01), Bandpass([(1, 20), (5, 24)], fs=50)])(torch.randn(4, 9, 128)).shape
    torch.Size([4, 9, 128])
    """

    steps: Sequence[Augmentation]

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", _check_members(self.steps, 1, "may only come first in Compose"))

    @property
    def capturable(self) -> bool:
        return all(step.capturable for step in self.steps)

    def apply(self, X: Tensor, keys: Tensor) -> Tensor:
        for number, augmentation in enumerate(self.steps):
            X = augmentation.apply_checked(X, derive(keys, number))
        return X


@dataclass(frozen=True)
class OneOf(Augmentation, trusted=True):
    """Apply one of several augmentations to each window, chosen with equal probability.

    Parameters
    ----------
    choices : the augmentations, none of them a `Pairing`

    Examples
    --------
    >>> from polyadic.augment import Jitter, Rotate3D
    >>> OneOf([Jitter(0.01), Rotate3D([(0, 1, 2)])])(torch.randn(4, 3, 128)).shape
    torch.Size([4, 3, 128])
    """

    choices: Sequence[Augmentation]

    def __post_init__(self) -> None:
        object.__setattr__(self, "choices", _check_members(self.choices, 0, "cannot be a choice of OneOf"))

    def apply(self, X: Tensor, keys: Tensor) -> Tensor:
        chosen = (uniform(derive(keys, -1), ()) * len(self.choices)).long()
        result = torch.empty_like(X)
        for number, augmentation in enumerate(self.choices):
            rows = chosen == number
            if rows.any():
                result[rows] = augmentation.apply_checked(X[rows], derive(keys, number)[rows])
        return result


def _check_members(augmentations: Sequence[Augmentation], paired: int, where: str) -> tuple[Augmentation, ...]:
    """Return one or more augmentations, of which only the first `paired` may have a `Pairing`."""
    members = tuple(augmentations)
    wrong = [member for member in members if not isinstance(member, Augmentation)]
    if wrong or not members:
        raise PolyadicError(f"expected one or more augmentations, but got {wrong[0] if wrong else 'none'!r}")
    for member in members[paired:]:
        if (pairing := split_pairing(member)[0]) is not None:
            raise PolyadicError(f"{type(pairing).__name__} selects partner windows and {where}")
    return members


def split_pairing(augment: Any) -> tuple[Pairing | None, Any]:
    """Split an augmentation into its `Pairing` and the augmentation of the partners; None for a missing part.

    Examples
    --------
    >>> from polyadic.augment import Jitter, Neighbour
    >>> split_pairing(Compose([Neighbour(), Jitter(0.05)]))
    (Neighbour(), Compose(steps=(Jitter(degree=0.05),)))
    """
    if isinstance(augment, Pairing):
        return augment, None
    if not isinstance(augment, Compose):
        return None, augment
    pairing, rest = split_pairing(augment.steps[0])
    if pairing is None:
        return None, augment
    remaining = (*(() if rest is None else (rest,)), *augment.steps[1:])
    return pairing, Compose(remaining) if remaining else None
