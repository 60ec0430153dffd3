"""Combinations of augmentations: in sequence, or one chosen at random for each window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from polyadic._util.random_streams import derive, uniform
from polyadic.augment.base import Augmentation
from polyadic.augment.pairing import Pairing
from polyadic.errors import PolyadicError

__all__ = ["Compose", "OneOf", "split_pairing"]


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
        object.__setattr__(self, "steps", _check_members(self.steps))
        _refuse_pairing(self.steps[1:], "may only come first in Compose")

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
        object.__setattr__(self, "choices", _check_members(self.choices))
        _refuse_pairing(self.choices, "cannot be a choice of OneOf")

    def apply(self, X: Tensor, keys: Tensor) -> Tensor:
        chosen = (uniform(derive(keys, -1), ()) * len(self.choices)).long()
        result = torch.empty_like(X)
        for number, augmentation in enumerate(self.choices):
            rows = chosen == number
            if rows.any():
                result[rows] = augmentation.apply_checked(X[rows], derive(keys, number)[rows])
        return result


def _check_members(augmentations: Sequence[Augmentation]) -> tuple[Augmentation, ...]:
    members = tuple(augmentations)
    wrong = [member for member in members if not isinstance(member, Augmentation)]
    if wrong or not members:
        raise PolyadicError(f"expected one or more augmentations, but got {wrong[0] if wrong else 'none'!r}")
    return members


# ------------------------------------------------------------ other windows as views


def split_pairing(augment: Any) -> tuple[Pairing | None, Any]:
    """Split an augmentation into its `Pairing` and the augmentation of the partners; None for a missing part.

    Parameters
    ----------
    augment : an augmentation, any other function of a batch, or None

    Examples
    --------
    >>> from polyadic.augment import Jitter, Neighbour
    >>> split_pairing(Compose([Neighbour(), Jitter(0.05)]))
    (Neighbour(), Compose(steps=(Jitter(degree=0.05),)))
    >>> split_pairing(Jitter(0.05))
    (None, Jitter(degree=0.05))
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


def _refuse_pairing(augmentations: Sequence[Augmentation], where: str) -> None:
    for augmentation in augmentations:
        pairing, _ = split_pairing(augmentation)
        if pairing is not None:
            raise PolyadicError(f"{type(pairing).__name__} selects partner windows and {where}")
