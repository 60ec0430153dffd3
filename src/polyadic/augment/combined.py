"""Combinations of augmentations, and `Neighbour`, whose view of a window is another window of the data set."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyadic._util.checks import check_number
from polyadic._util.random_streams import derive, uniform
from polyadic.augment.base import Augmentation
from polyadic.errors import PolyadicError

__all__ = ["Compose", "Neighbour", "OneOf", "split_neighbour"]


@dataclass(frozen=True)
class Neighbour(Augmentation):
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

    def partners(self, X: Any) -> Tensor:
        """Return the number of each window's partner, −1 for none, in `Windows` or a store: (N,) int64."""
        table: Any = getattr(X, "index", None)
        known = np.zeros(0, np.intp)
        if hasattr(table, "recording") and hasattr(table, "names"):
            known = np.flatnonzero((table.names != "")[table.recording] & (table.start >= 0))
        if not len(known):
            raise PolyadicError(
                "partner windows are found by recording and start, but no window of X has both: use "
                "polyadic.data.Windows(X, fs, recording=..., start=...) or a store"
            )
        if self.gap > 0 and X.fs is None:
            raise PolyadicError(f"gap={self.gap:g} is in seconds, but the windows have no sampling rate: set fs")
        import pandas as pd

        # Rounded, because in floating point 0.3 s at 10 Hz would be slightly more than three samples.
        length, pause = int(X.shape[-1]), round(self.gap * (X.fs or 0.0), 6)
        least, most = length + math.ceil(pause), 2 * length + math.floor(pause)
        windows = pd.DataFrame({"recording": table.recording[known], "start": table.start[known], "partner": known})
        windows = windows.sort_values("start", kind="stable")
        earlier = windows[["recording"]].assign(start=windows["start"] + least)
        near = {"direction": "forward", "tolerance": most - least}
        pairs = pd.merge_asof(earlier, windows, on="start", by="recording", **near)
        partners = np.full(len(X), -1)
        partners[windows["partner"]] = pairs["partner"].fillna(-1)
        return torch.from_numpy(partners)

    def apply(self, X: Tensor, keys: Tensor) -> Tensor:
        raise PolyadicError(
            "Neighbour selects partner windows and cannot transform a batch: pass it as augment, with windows whose "
            "recording and start are known"
        )


@dataclass(frozen=True)
class Compose(Augmentation, trusted=True):
    """Apply several augmentations in sequence, as the paper does.

    Parameters
    ----------
    steps : the augmentations, in order; only the first may be `Neighbour`

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
class OneOf(Augmentation):
    """Apply one of several augmentations to each window, chosen with equal probability.

    Parameters
    ----------
    choices : the augmentations, none of them `Neighbour`

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
    """Return one or more augmentations, of which only the first `paired` may have a `Neighbour`."""
    members = tuple(augmentations)
    wrong = [member for member in members if not isinstance(member, Augmentation)]
    if wrong or not members:
        raise PolyadicError(f"expected one or more augmentations, but got {wrong[0] if wrong else 'none'!r}")
    if any(split_neighbour(member)[0] for member in members[paired:]):
        raise PolyadicError(f"Neighbour selects partner windows and {where}")
    return members


def split_neighbour(augment: Any) -> tuple[Neighbour | None, Any]:
    """Split an augmentation into its `Neighbour` and the augmentation of the partners; None for a missing part.

    Examples
    --------
    >>> from polyadic.augment import Jitter
    >>> split_neighbour(Compose([Neighbour(), Jitter(0.05)]))
    (Neighbour(), Compose(steps=(Jitter(degree=0.05),)))
    """
    if isinstance(augment, Neighbour):
        return augment, None
    if not isinstance(augment, Compose):
        return None, augment
    neighbour, rest = split_neighbour(augment.steps[0])
    if neighbour is None:
        return None, augment
    remaining = (*(() if rest is None else (rest,)), *augment.steps[1:])
    return neighbour, Compose(remaining) if remaining else None
