"""Tensorizers, which map raw windows (b, channels, time) to tensors (b, I, J, …), and the axes of the tensors.

To add one, subclass `Tensorizer` and pass `polyadic.testing.TensorizerContract`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyadic._util.immutable import Immutable
from polyadic._util.torch_state import plain_torch
from polyadic.errors import PolyadicError

__all__ = [
    "Axis",
    "Layout",
    "Tensorizer",
    "as_tensorizer",
    "channel_axis",
    "numbered_axes",
    "tensor_shape",
    "tensors",
    "time_axis",
]


# ------------------------------------------------------------------------ axes


@dataclass(frozen=True, eq=False)
class Axis:
    """One axis of the tensors.

    Parameters
    ----------
    kind : "channel", "frequency", "time", or "other" if unknown
    name : name for headings
    positions : (n,), position of each entry along the axis, in `unit`; for channels their number, from 1
    unit : "Hz" or "s"; "cycles per sample" or "samples" if the sampling rate is unknown
    labels : names of the channels, else empty
    parts : names of the parts that are stacked along the channel axis
    """

    kind: Literal["channel", "frequency", "time", "other"]
    name: str
    positions: NDArray[np.float64]
    unit: str = ""
    labels: tuple[str, ...] = ()
    parts: tuple[str, ...] = ("",)

    @property
    def title(self) -> str:
        """The name with its unit."""
        return f"{self.name} ({self.unit})" if self.unit else self.name

    def by_part(self, weights: NDArray[Any]) -> NDArray[Any]:
        """Reshape the weights of one component by part: (parts, n)."""
        return weights.reshape(len(self.parts), -1)

    def peak(self, weights: NDArray[Any]) -> int:
        """Return the index of the position (or channel) with the largest absolute weight over all parts."""
        return int(np.abs(self.by_part(weights)).max(axis=0).argmax())


def channel_axis(labels: Sequence[str], parts: tuple[str, ...] = ("",)) -> Axis:
    """Create a channel axis with one or several parts."""
    return Axis("channel", "channel", np.arange(1.0, len(labels) + 1), labels=tuple(labels), parts=parts)


def time_axis(samples: NDArray[Any], fs: float | None) -> Axis:
    """Create a time axis from positions in samples."""
    return Axis("time", "time", np.asarray(samples) / (fs or 1.0), "samples" if fs is None else "s")


def numbered_axes(shape: Sequence[int]) -> list[Axis]:
    """Create axes of which only the sizes are known."""
    return [Axis("other", f"mode {number}", np.arange(1.0, size + 1)) for number, size in enumerate(shape, start=1)]


# ---------------------------------------------------------- base class


class Layout(NamedTuple):
    """Preferred memory layout of tensors, for the fast paths of a fit.

    order : the modes from the outermost to the contiguous one
    half : whether half precision is sufficient where a GPU caches many batches
    capturable : whether `into` never synchronises with the device, so that a CUDA graph can capture it
    row_step : stride in samples from one channel of a raw window to the next
    """

    order: tuple[int, ...]
    half: bool
    capturable: bool
    row_step: int


class Tensorizer(Immutable, ABC):
    """Base class of all tensorizers: a frozen dataclass of settings that implements `transform`.

    The tensor of a window must not depend on the other windows of its batch. All other methods have defaults. What
    depends on the data is set by `calibrated`, from some windows, or for `CPD` by `measured`, `centred` and
    `with_baseline`, from sums over all windows.

    A subclass defined with `trusted=True` guarantees finite values of the right shape for every finite batch, does not
    modify its input, and uses `polyadic._util.threads` instead of torch's; its output is not checked.
    `polyadic.testing.TensorizerContract` contains the tests that every tensorizer should pass.
    """

    trusted: ClassVar[bool] = False

    def __init_subclass__(cls, trusted: bool = False, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.trusted = trusted

    @abstractmethod
    def transform(self, X: Tensor) -> Tensor:
        """Transform raw windows (b, channels, time) to real, finite tensors (b, I, J, …)."""

    @plain_torch()
    def __call__(self, X: Tensor) -> Tensor:
        """Transform raw windows (b, channels, time) to tensors (b, I, J, …), calibrating on X if necessary."""
        return (self if self.is_calibrated else self.calibrated(X)).transform(X)

    @property
    def is_calibrated(self) -> bool:
        """Whether everything that depends on the data is set."""
        return True

    def calibrated(self, X: Tensor, units: Sequence[str] = ()) -> Self:
        """Return a copy with everything that depends on the data set from X.

        Parameters
        ----------
        X : (N, channels, time), unlabelled windows that are representative of the data
        units : units of the channels, if known
        """
        return self

    @property
    def is_measured(self) -> bool:
        """Whether everything is set that must be known before tensors can be computed."""
        return True

    @property
    def redundancy(self) -> float:
        """Number of entries of a tensor that say what one independent entry would; residuals are that dependent."""
        return 1.0

    def measure(self, X: Tensor, units: Sequence[str] = (), present: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the sums over a batch (b, channels, time) that `measured` needs, and their windows: (n,) each.

        Samples that are not `present` (b, channels, time) have any finite values. Results are on the CPU.
        """
        raise NotImplementedError

    def measured(self, sums: Tensor, counts: Tensor, units: Sequence[str] = ()) -> Self:
        """Return a copy with what must be known before tensors can be computed set from the sums over all windows."""
        return self

    def without_mean(self) -> Self | None:
        """Return a copy that subtracts no mean, if only the mean of its tensors is left to be set; else None."""
        return None

    def centred(self, mean: Tensor) -> Self:
        """Return a copy that subtracts the mean of the tensors of `without_mean`: (I, J, …) float64."""
        raise NotImplementedError

    def baseline_sums(self, T: Tensor) -> Tensor | None:
        """Return the sums over tensors (b, I, J, …) that `with_baseline` needs of all windows, if any."""
        return None

    def with_baseline(self, baseline: Tensor) -> Self:
        """Return a copy that knows the mean over windows of `baseline_sums`, for `polyadic.explain.expression`."""
        return self

    def uncentred(self, T: Tensor) -> Tensor:
        """Add the mean that `transform` subtracts, if any, back to tensors (b, I, J, …)."""
        return T

    @property
    def suits_nonnegative(self) -> bool:
        """Whether non-negative bases, with coefficients of either sign, suit the tensors."""
        return False

    @property
    def n_parameters(self) -> int:
        """Number of values learned from the data that count as parameters of a model."""
        return 0

    def check(self, sample_shape: Sequence[int]) -> None:
        """Raise a PolyadicError if the calibration does not fit windows of this shape."""

    def shape(self, *sample_shape: int) -> tuple[int, ...] | None:
        """Return the shape (I, J, …) of the tensor of a window (channels, time), or None if unknown in advance."""
        return None

    def axes(self, sample_shape: Sequence[int], labels: Sequence[str], fs: float | None) -> list[Axis] | None:
        """Return the axes of the tensors of windows (channels, time), in order, or None if they are only numbered."""
        return None

    def observed(self, present: Tensor) -> Tensor | None:
        """Return which entries of the tensors depend on present samples (b, channels, time) alone: (b, I, J, …) bool.

        Modes whose entries are observed together have size 1. By default None: a tensorizer that lets NaN through shows
        it by the NaN in its tensors.
        """
        return None

    def into(self, X: Tensor, T: Tensor) -> Tensor | None:
        """Write the tensors of X into T; return their squared norms (b,) where these cost nothing, else None."""
        T.copy_(tensors(self, X))
        return None

    def layout(self, length: int, device: torch.device) -> Layout | None:
        """Return the preferred memory layout for windows of this length, or None if `into` has no advantage."""
        return None

    def constants(self, channels: int, device: torch.device, dtype: torch.dtype) -> object:
        """Return the device tensors that `into` reads; a CUDA graph that captures it must keep them alive."""
        return None


class FunctionTensorizer(Tensorizer):
    """A function of a batch. It cannot be stored, because files contain no code: a `Tensorizer` of your own can."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self._function = function

    def transform(self, X: Tensor) -> Tensor:
        return self._function(X)


def as_tensorizer(tensorize: Any) -> Tensorizer | None:
    """Return a tensorizer for the parameter `tensorize`, which may be a function."""
    if tensorize is None or isinstance(tensorize, Tensorizer):
        return tensorize
    if callable(tensorize) and not isinstance(tensorize, type):
        return FunctionTensorizer(tensorize)
    raise PolyadicError(
        f"tensorize must be None, a Tensorizer such as STFT or a function of a batch, but is {tensorize!r}"
    )


# --------------------------------------------------------- checked output


def tensors(tensorizer: Tensorizer | None, batch: Tensor) -> Tensor:
    """Transform a batch to tensors (b, I, J, …), checked unless the tensorizer is trusted; None returns the batch."""
    if tensorizer is None:
        return batch
    with torch.no_grad():
        if tensorizer.trusted:
            return tensorizer(batch)
        # The batch may be a view of the user's array, and a user's tensorizer might modify it.
        T = tensorizer(batch.clone())
    if not isinstance(T, Tensor) or T.ndim < 2 or len(T) != len(batch) or T.numel() == 0:
        given = str(tuple(T.shape)) if isinstance(T, Tensor) else type(T).__name__
        raise PolyadicError(f"tensorize must return a tensor of {len(batch)} samples, but returned {given}")
    if T.is_complex() or not bool(torch.isfinite(T).all()):
        given = f"type {T.dtype}" if T.is_complex() else "NaN or infinity"
        raise PolyadicError(f"tensorize must return finite real numbers, but returned {given}")
    return T.to(batch).contiguous()


def tensor_shape(tensorizer: Tensorizer | None, example: Tensor) -> tuple[int, ...]:
    """Return the shape (I, J, …) of the tensor of one sample, `example` (1, …)."""
    known = None
    if tensorizer is not None and example.ndim == 3:
        known = tensorizer.shape(*example.shape[1:])
    return tuple(tensors(tensorizer, example).shape[1:]) if known is None else known
