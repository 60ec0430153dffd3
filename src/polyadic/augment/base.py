"""The Augmentation seam: from a batch of windows to a second view of each.

Every random choice is a function of (seed, sweep, window id), see `draws`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from threading import RLock
from typing import Any, ClassVar

import torch
from torch import Tensor

from polyadic.draws import integer_seed, window_keys
from polyadic.errors import PolyadicError
from polyadic.immutable import Immutable
from polyadic.threads import one_torch_thread
from polyadic.torch_state import plain_torch

__all__ = ["Augmentation", "FunctionAugmentation", "as_augmentation"]

_DRAWING = RLock()


class Augmentation(Immutable, ABC):
    """The base of all augmentations: write `apply`, as a frozen dataclass, and draw only from the keys it is given.

    A subclass defined with `trusted=True` promises finite numbers of the batch's shape for every finite batch, and is
    not checked; one with `capturable=True` never waits for the device, so that a CUDA graph can hold it. Subclasses of
    such a class promise for themselves. `polyadic.testing.AugmentationContract` holds the tests that every augmentation
    should pass.
    """

    trusted: ClassVar[bool] = False
    per_window: ClassVar[bool] = True
    """Whether the view of a window depends on no other window of its batch."""
    _capturable: ClassVar[bool] = False

    def __init_subclass__(cls, trusted: bool = False, capturable: bool = False, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.trusted, cls._capturable = trusted, capturable

    @property
    def capturable(self) -> bool:
        """Whether a CUDA graph can hold it."""
        return self._capturable

    @abstractmethod
    def apply(self, X: Tensor, keys: Tensor) -> Tensor:
        """A new batch.

        Parameters
        ----------
        X : (b, channels, time), not to be changed
        keys : (b,), a key for each window, for `draws.uniform`

        Returns
        -------
        (b, channels, time)
        """

    @plain_torch()
    def __call__(self, X: Tensor, ids: Tensor | None = None, *, seed: int = 0, sweep: int = 0) -> Tensor:
        """Augment a batch.

        Parameters
        ----------
        X : (b, channels, time), floating point
        ids : (b,), the windows' numbers within the data set; by default 0 … b−1
        seed, sweep : with the ids, all that the outcome depends on

        Returns
        -------
        (b, channels, time)
        """
        self._check(X)
        ids = torch.arange(len(X), device="cpu") if ids is None else ids
        if ids.shape != X.shape[:1]:
            raise PolyadicError(f"ids must have shape ({len(X)},), one for each window, but has {tuple(ids.shape)}")
        keys = window_keys(seed, sweep, ids).to(X.device)
        if X.device.type != "cpu" or not self.per_window:
            return self.apply_checked(X, keys)
        # Torch's own threads would show in the last bits, and small calls stand in each other's way.
        with one_torch_thread():
            return self.apply_checked(X, keys)

    def _check(self, X: Tensor) -> None:
        """Refuse what is no batch of windows."""
        if X.ndim != 3 or not X.is_floating_point():
            raise PolyadicError(
                f"{type(self).__name__} needs a floating-point batch (windows, channels, time), but X has shape "
                f"{tuple(X.shape)} and type {X.dtype}"
            )

    def apply_checked(self, X: Tensor, keys: Tensor) -> Tensor:
        """What `apply` gives; checked for shape and finite numbers unless the class is trusted."""
        with torch.no_grad():
            result = self.apply(X, keys)
        if self.trusted:
            return result
        name = type(self).__name__
        if not isinstance(result, Tensor) or result.shape != X.shape:
            came = str(tuple(result.shape)) if isinstance(result, Tensor) else type(result).__name__
            raise PolyadicError(
                f"augment must return a tensor of the batch's shape {tuple(X.shape)}, but gave {came} (by {name})"
            )
        if result.is_complex() or not bool(torch.isfinite(result).all()):
            came = f"type {result.dtype}" if result.is_complex() else "NaN or infinity"
            raise PolyadicError(f"augment must return finite real numbers, but gave {came} (by {name})")
        return result.to(X)

    def describe(self) -> dict[str, Any] | None:
        """What a model file says of it if it cannot hold it: its kind and name; None if its fields say all."""
        return None


@dataclass(frozen=True, repr=False)
class FunctionAugmentation(Augmentation):
    """A function from batch to batch, with torch's generator seeded anew for each batch.

    Files hold no code, so it has to be given again to `polyadic.load`.
    """

    per_window: ClassVar[bool] = False

    function: Callable[[Tensor], Tensor]

    def _check(self, X: Tensor) -> None:
        """A function may take tensors of any shape."""

    def apply(self, X: Tensor, keys: Tensor) -> Tensor:
        # From the same seed for the same batch, so that a batch that is read twice is augmented alike both times. The
        # generator is that of all threads: one at a time, or fits side by side would disturb each other.
        with _DRAWING, torch.random.fork_rng(devices=[X.device] if X.is_cuda else []):
            seed = integer_seed(int(keys[0]))
            if X.device.type == "cpu":
                # Not torch.manual_seed, which turns to the generators of all GPUs too, for a millisecond each time.
                torch.default_generator.manual_seed(seed)
            else:
                torch.manual_seed(seed)
            return self.function(X.clone())

    def describe(self) -> dict[str, Any]:
        return {"type": "function", "name": getattr(self.function, "__qualname__", type(self.function).__qualname__)}

    def __repr__(self) -> str:
        return f"FunctionAugmentation({self.describe()['name']})"


def as_augmentation(augment: Any) -> Augmentation | None:
    """An augmentation of whatever an estimator accepts as one: an `Augmentation`, a function, or None.

    Examples
    --------
    >>> as_augmentation(abs)
    FunctionAugmentation(abs)
    """
    if augment is None or isinstance(augment, Augmentation):
        return augment
    if callable(augment) and not isinstance(augment, type):
        return FunctionAugmentation(augment)
    raise PolyadicError(f"augment must be None, an Augmentation or a function of a batch, but is {augment!r}")
