"""Further augmentations of raw windows: dropped channels, shifts in time, changes of amplitude."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from polyadic._util.checks import check_number
from polyadic._util.random_streams import uniform
from polyadic.augment.base import Augmentation
from polyadic.errors import PolyadicError

__all__ = ["DropChannels", "Scale", "Shift"]


@dataclass(frozen=True)
class DropChannels(Augmentation, trusted=True, capturable=True):
    """Replace random channels by their mean within the window.

    Parameters
    ----------
    share : probability of dropping each channel, from 0 to 1

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
    """Shift all channels of a window in time by the same random number of samples, circularly.

    Parameters
    ----------
    share : largest shift as a fraction of the window length, from 0 to 1

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
    """Multiply channels by random factors between 1/factor and factor, log-uniformly distributed.

    Parameters
    ----------
    factor : largest factor, from 1 to 1e6
    independent : whether each channel gets its own factor; by default all channels of a window share one

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
            raise PolyadicError(f"factor must be at least 1, but is {self.factor!r}")

    def apply(self, X: Tensor, keys: Tensor) -> Tensor:
        count = X.shape[1] if self.independent else 1
        powers = uniform(keys, (count, 1), torch.float64).mul_(2).sub_(1)
        return X * powers.mul_(math.log(self.factor)).exp_().to(X.dtype)
