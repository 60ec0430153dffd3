"""Further augmentations of raw windows: channels that fail, windows that start earlier or later, other amplitudes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from polyadic.augment.base import Augmentation
from polyadic.checks import check_number
from polyadic.draws import uniform
from polyadic.errors import PolyadicError

__all__ = ["DropChannels", "Scale", "Shift"]


@dataclass(frozen=True)
class DropChannels(Augmentation, trusted=True, capturable=True):
    """Make some channels flat, each by chance: they keep their mean within the window and lose everything else.

    Parameters
    ----------
    share : chance of each channel to be dropped, at least 0 and at most 1

    Examples
    --------
    >>> bool((DropChannels(1.0)(torch.randn(4, 3, 200)).std(dim=2) < 1e-6).all())
    True
    """

    share: float = 0.2

    def __post_init__(self) -> None:
        check_number("share", self.share, 0, 1)

    def apply(self, X: Tensor, keys: Tensor) -> Tensor:
        dropped = uniform(keys, (X.shape[1], 1)) < self.share
        return torch.where(dropped, X.mean(dim=2, keepdim=True), X)


@dataclass(frozen=True)
class Shift(Augmentation, trusted=True, capturable=True):
    """Begin a window earlier or later: all channels move by the same number of samples, and what leaves one end
    comes in at the other.

    Parameters
    ----------
    share : how far at most, as a share of the window's length; at least 0 and at most 1

    Examples
    --------
    >>> X = torch.randn(4, 3, 200)
    >>> torch.equal(Shift(0.1)(X).sort(dim=2).values, X.sort(dim=2).values)
    True
    """

    share: float = 0.1

    def __post_init__(self) -> None:
        check_number("share", self.share, 0, 1)

    def apply(self, X: Tensor, keys: Tensor) -> Tensor:
        length = X.shape[2]
        most = int(self.share * length)
        steps = (uniform(keys, (1, 1), torch.float64) * (2 * most + 1)).long() - most
        places = (torch.arange(length, device=X.device) - steps) % length
        return X.gather(2, places.expand(X.shape))


@dataclass(frozen=True)
class Scale(Augmentation, trusted=True, capturable=True):
    """Multiply channels by factors between 1/factor and factor, drawn uniformly on a logarithmic scale.

    Parameters
    ----------
    factor : the largest, at least 1 and at most 1e6
    independent : whether each channel has a factor of its own; by default all channels of a window have the same

    Examples
    --------
    >>> X = torch.randn(4, 3, 200)
    >>> bool((Scale(2.0)(X).abs() <= 2.001 * X.abs()).all())
    True
    """

    factor: float = 1.25
    independent: bool = False

    def __post_init__(self) -> None:
        check_number("factor", self.factor, 0, 1e6)
        if self.factor < 1:
            raise PolyadicError(f"factor must be at least 1, for it is the largest, but is {self.factor!r}")

    def apply(self, X: Tensor, keys: Tensor) -> Tensor:
        count = X.shape[1] if self.independent else 1
        powers = uniform(keys, (count, 1), torch.float64).mul_(2).sub_(1)
        return X * powers.mul_(math.log(self.factor)).exp_().to(X.dtype)
