"""Base class of augmentations, which map a batch of windows to a second view of each.

Every random choice is a function of (seed, sweep, window id); see `polyadic._util.random_streams`.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor

from polyadic._util.immutable import Immutable
from polyadic._util.random_streams import integer_seed, window_keys
from polyadic._util.threads import one_torch_thread
from polyadic._util.torch_state import plain_torch
from polyadic.errors import PolyadicError

__all__ = ["Augmentation", "as_augmentation"]

_GENERATOR = threading.RLock()


class Augmentation(Immutable, ABC):
    """Base class of all augmentations: a frozen dataclass that implements `apply`.

    Random numbers must come only from the keys passed to `apply`. A subclass defined with `trusted=True` guarantees
    finite values of the batch's shape for every finite batch, and never synchronises with the device: its output is not
    checked, and a CUDA graph can capture it. Subclasses of it do not inherit this.
    `polyadic.testing.AugmentationContract` contains the tests that every augmentation should pass.
    """

    trusted: ClassVar[bool] = False

    def __init_subclass__(cls, trusted: bool = False, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.trusted = trusted

    @property
    def capturable(self) -> bool:
        """Whether a CUDA graph can capture the augmentation."""
        return self.trusted

    @abstractmethod
    def apply(self, X: Tensor, keys: Tensor) -> Tensor:
        """Return the augmented batch, (b, channels, time), of X, which must not be modified.

        `keys` (b,) has one key per window, for `random_streams.uniform`.
        """

    @plain_torch()
    def __call__(self, X: Tensor, ids: Tensor | None = None, *, seed: int = 0, sweep: int = 0) -> Tensor:
        """Augment a floating-point batch (b, channels, time); the result depends only on X, ids, seed and sweep.

        `ids` (b,) are the indices of the windows in the data set, by default 0 … b−1.
        """
        self.check(X)
        ids = torch.arange(len(X), device="cpu") if ids is None else ids
        if ids.shape != X.shape[:1]:
            raise PolyadicError(f"ids must have shape ({len(X)},), one for each window, but has {tuple(ids.shape)}")
        keys = window_keys(seed, sweep, ids).to(X.device)
        # Torch's own threads would change the last bits, and they slow down small operations.
        with one_torch_thread() if X.device.type == "cpu" else nullcontext():
            return self.apply_checked(X, keys)

    def check(self, X: Tensor) -> None:
        """Raise unless X is a floating-point batch of windows; override it to augment other tensors."""
        if X.ndim != 3 or not X.is_floating_point():
            raise PolyadicError(
                f"{type(self).__name__} needs a floating-point batch (windows, channels, time), but X has shape "
                f"{tuple(X.shape)} and type {X.dtype}"
            )

    def apply_checked(self, X: Tensor, keys: Tensor) -> Tensor:
        """Call `apply`, and check the shape and finiteness of the result unless the class is trusted."""
        with torch.no_grad():
            result = self.apply(X, keys)
        if self.trusted:
            return result
        name = type(self).__name__
        if not isinstance(result, Tensor) or result.shape != X.shape:
            given = str(tuple(result.shape)) if isinstance(result, Tensor) else type(result).__name__
            raise PolyadicError(
                f"augment must return a tensor of the batch's shape {tuple(X.shape)}, but {name} returned {given}"
            )
        if result.is_complex() or not bool(torch.isfinite(result).all()):
            given = f"type {result.dtype}" if result.is_complex() else "NaN or infinity"
            raise PolyadicError(f"augment must return finite real numbers, but {name} returned {given}")
        return result.to(X)


class FunctionAugmentation(Augmentation):
    """A function of a batch, which may use torch's random generator. It cannot be stored: files contain no code."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self._function = function

    def check(self, X: Tensor) -> None:
        """Accept tensors of any shape."""

    def apply(self, X: Tensor, keys: Tensor) -> Tensor:
        # There is one generator for all threads.
        with _GENERATOR, torch.random.fork_rng([X.device] if X.is_cuda else []):
            # On a CPU not torch.manual_seed, which also seeds all GPUs.
            set_seed = torch.manual_seed if X.is_cuda else torch.default_generator.manual_seed
            set_seed(integer_seed(int(keys[0])))
            return self._function(X.clone())


def as_augmentation(augment: Any) -> Augmentation:
    """Return an augmentation for the parameter `augment`, which may be a function."""
    if isinstance(augment, Augmentation):
        return augment
    if callable(augment) and not isinstance(augment, type):
        return FunctionAugmentation(augment)
    raise PolyadicError(
        f"augment must be None, an Augmentation such as Jitter(0.05) or a function of a batch, but is {augment!r}"
    )
