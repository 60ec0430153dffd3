"""The Tensorizer seam: from raw windows (b, channels, time) to tensors (b, I, J, …), and what the tensors' axes mean.

A new tensorizer is one subclass that passes `polyadic.testing.TensorizerContract`. A plain function or a torch module
will do, too: `as_tensorizer` wraps it.
"""

from __future__ import annotations

import copy
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from polyadic.algebra import squared_norms
from polyadic.errors import PolyadicError
from polyadic.immutable import Immutable
from polyadic.torch_state import plain_torch

__all__ = [
    "Axis",
    "CForm",
    "FunctionTensorizer",
    "Layout",
    "ModuleTensorizer",
    "OnnxGraph",
    "Scale",
    "Tensorizer",
    "as_tensorizer",
    "channel_axis",
    "numbered_axes",
    "tensor_shape",
    "tensors",
    "tensors_into",
    "time_axis",
]


# ------------------------------------------------------------------------ axes


@dataclass(frozen=True, eq=False)
class Axis:
    """One axis of the tensors, as a reader wants to see it.

    Parameters
    ----------
    kind : "channel", "frequency", "time", or "other" where nothing is known
    name : for headings
    positions : (n,), where each entry lies along the axis, in `unit`; the number of a channel
    unit : "Hz", "s", or what is left where the sampling rate is not known
    labels : names of the channels, else empty
    parts : names of the parts that are stacked along the channels, one after the other
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
        """The weights of one component by part: (parts, n)."""
        return weights.reshape(len(self.parts), -1)

    def peak(self, weights: NDArray[Any]) -> int:
        """The position (or channel) of the largest absolute weight, whatever its part."""
        return int(np.abs(self.by_part(weights)).max(axis=0).argmax())

    def describe(self, place: int) -> str:
        """A position in words.

        Examples
        --------
        >>> Axis("frequency", "frequency", np.array([0.0, 12.5]), "Hz").describe(1)
        '12.5 Hz'
        """
        if self.kind == "channel":
            return self.labels[place]
        number = f"{self.positions[place]:.3g}" if self.unit else f"{self.positions[place]:g}"
        return f"{number} {self.unit}".strip()


def channel_axis(labels: Sequence[str], parts: tuple[str, ...] = ("",)) -> Axis:
    """An axis of channels, each with one or several parts."""
    return Axis("channel", "channel", np.arange(1.0, len(labels) + 1), labels=tuple(labels), parts=parts)


def time_axis(samples: NDArray[Any], fs: float | None) -> Axis:
    """An axis of times, given in samples."""
    return Axis("time", "time", np.asarray(samples) / (fs or 1.0), "samples" if fs is None else "s")


def numbered_axes(shape: Sequence[int]) -> list[Axis]:
    """Axes of which nothing is known but their sizes.

    Examples
    --------
    >>> [axis.title for axis in numbered_axes((3, 4))]
    ['mode 1', 'mode 2']
    """
    return [Axis("other", f"mode {number}", np.arange(1.0, size + 1)) for number, size in enumerate(shape, start=1)]


# ---------------------------------------------------------------- the seam


class Layout(NamedTuple):
    """How tensors best lie in memory, for the fast paths of a fit.

    order : the modes from the outermost to the one whose entries lie next to each other
    half : whether half precision loses nothing that counts, where a GPU keeps many batches
    capturable : whether `into` never waits for the device, so that a CUDA graph can hold it
    row_step : samples from one channel of a raw window to the next
    """

    order: tuple[int, ...]
    half: bool
    capturable: bool
    row_step: int


class Scale(NamedTuple):
    """How the numbers of a tensor read in a unit: factor · number + offset.

    A difference of two numbers, as what a component adds, reads factor · difference, in `unit` without its reference.
    """

    factor: float
    offset: float
    unit: str

    @property
    def difference_unit(self) -> str:
        """The unit of differences.

        Examples
        --------
        >>> Scale(8.7, 0.0, "dB re 1 µV").difference_unit
        'dB'
        """
        return self.unit.partition(" re ")[0]


class OnnxGraph(Protocol):
    """What a tensorizer writes its ONNX form to; nodes and constants are called by name."""

    def constant(self, values: ArrayLike, dtype: Any = None) -> str: ...

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str: ...

    def pair(self, operator: str, *inputs: str, **attributes: Any) -> tuple[str, str]: ...


@dataclass(frozen=True, eq=False)
class CForm:
    """A tensorizer in C99: one slice of a window's tensor (I, J, K) at a time, so that memory stays small.

    The code defines one function, which fills `tensor` (I, J) with slice `frame` of the last mode::

        static void polyadic_frame(const float (*window)[POLYADIC_SAMPLES], int start, int frame,
                                   float (*tensor)[POLYADIC_COLUMNS], float *work)

    Rows of `window` are rings: the first sample of a channel is at `start`, and place 0 follows the last one.
    ``POLYADIC_CHANNELS``, ``POLYADIC_SAMPLES`` and ``POLYADIC_COLUMNS``, which is J, are defined. All names must begin
    with ``polyadic_`` or ``POLYADIC_``.

    Parameters
    ----------
    shape : (I, J, K) of the tensors
    code : the C code
    defines : whole numbers that the code needs, by name without ``POLYADIC_``
    tables : arrays that the code needs, by name without ``polyadic_``: float if they are floating point, else int
    work : how many floats `work` must have
    mean : (I, J), what is subtracted from every slice; the code does not, or None
    scale : (channels,), a typical standard deviation of each channel, for test signals
    """

    shape: tuple[int, int, int]
    code: str
    defines: Mapping[str, int] = field(default_factory=dict)
    tables: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    work: int = 0
    mean: NDArray[np.float64] | None = None
    scale: NDArray[np.float64] | None = None


class Tensorizer(Immutable, ABC):
    """The base of all tensorizers: write `transform`, as a frozen dataclass of its settings.

    What a window becomes must not depend on the other windows of its batch. All else has a default:

    - `calibrated`: fix what depends on the data, by unlabelled windows; `uncentred` undoes a mean found there;
    - `shape`: the shape of a window's tensor, by default found by transforming one;
    - `axes`: names, values and units of the axes, by default numbers; `part_scale`: their numbers' unit;
    - `into`, `layout`, `constants`: filling memory that is there already, for the fast paths;
    - `onnx` and `c_form`: the same as ONNX nodes and in C, by default an error.

    A subclass defined with `trusted=True` promises finite numbers of the right shape for every finite batch, which it
    does not change, and is not checked; one with `threaded=True` makes use of `polyadic.threads`.
    `polyadic.testing.TensorizerContract` holds the tests that every tensorizer should pass.
    """

    trusted: ClassVar[bool] = False
    threaded: ClassVar[bool] = False
    per_window: ClassVar[bool] = True
    """Whether the tensor of a window depends on no other window of its batch."""

    def __init_subclass__(cls, trusted: bool = False, threaded: bool = False, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.trusted, cls.threaded = trusted, threaded

    @abstractmethod
    def transform(self, X: Tensor) -> Tensor:
        """Tensors of raw windows.

        Parameters
        ----------
        X : (b, channels, time), floating point

        Returns
        -------
        (b, I, J, …), real and finite
        """

    @plain_torch()
    def __call__(self, X: Tensor) -> Tensor:
        """Tensors (b, I, J, …) of raw windows (b, channels, time); one that is not calibrated is calibrated on X."""
        return (self if self.is_calibrated else self.calibrated(X)).transform(X)

    @property
    def is_calibrated(self) -> bool:
        """Whether nothing is left to be learned from the data."""
        return True

    def calibrated(self, X: Tensor, units: Sequence[str] = ()) -> Self:
        """The same with all that depends on the data fixed.

        Parameters
        ----------
        X : (N, channels, time), unlabelled windows that are typical of the data
        units : of the channels, if they are known
        """
        return self

    def uncentred(self, T: Tensor) -> Tensor:
        """Tensors (b, I, J, …) with what calibration found as their mean added again, if it is subtracted."""
        return T

    @property
    def suits_nonnegative(self) -> bool:
        """Whether tensors are best taken apart into non-negative profiles, with coefficients of either sign."""
        return False

    @property
    def n_parameters(self) -> int:
        """Numbers learned from the data that count as parameters of a model."""
        return 0

    def check(self, sample_shape: Sequence[int]) -> None:
        """Refuse to be loaded for windows of another shape than it was calibrated for, by a PolyadicError."""

    def shape(self, *sample_shape: int) -> tuple[int, ...] | None:
        """The shape (I, J, …) of one window's tensor, for windows (channels, time); None if only trying tells."""
        return None

    def axes(self, sample_shape: Sequence[int], labels: Sequence[str], fs: float | None) -> list[Axis] | None:
        """The axes of the tensors, in their order; None if they have no more than numbers.

        Parameters
        ----------
        sample_shape : (channels, time)
        labels : names of the channels
        fs : sampling rate in Hz, or None
        """
        return None

    def part_scale(self, part: int, unit: str) -> Scale | None:
        """How a part's numbers read as signal levels; None if they have no unit.

        Parameters
        ----------
        part : number of the part, as in the parts of the first axis
        unit : of the channel, "" if it is not known
        """
        return None

    def into(self, X: Tensor, T: Tensor) -> Tensor | None:
        """Fill T, shaped as `transform` returns it; where it costs nothing, return each tensor's squared norm (b,)."""
        T.copy_(tensors(self, X))
        return None

    def layout(self, length: int, device: torch.device) -> Layout | None:
        """How tensors of windows of this length best lie in memory; None where `into` has no advantage."""
        return None

    def constants(self, channels: int, device: torch.device, dtype: torch.dtype) -> object:
        """What `into` reads from the device; who captures it in a graph holds on to this."""
        return None

    def onnx(self, graph: OnnxGraph, window: str, sample_shape: tuple[int, ...]) -> tuple[str, NDArray[np.intp]]:
        """Write the ONNX form.

        Parameters
        ----------
        window : the input (N, channels, time) float32

        Returns
        -------
        the node with the tensors (N, I, J, …), and (I,): the entry of the first mode that each of the node's has
        """
        raise PolyadicError(f"{self._what()} has no ONNX form: give tensorize a Tensorizer whose class defines `onnx`")

    def c_form(self, sample_shape: tuple[int, ...]) -> CForm:
        """The same in C, for windows (channels, time)."""
        raise PolyadicError(f"{self._what()} has no C form: give tensorize a Tensorizer whose class defines `c_form`")

    def _what(self) -> str:
        return "a function or module of your own" if self.describe() is not None else type(self).__name__

    def describe(self) -> dict[str, Any] | None:
        """What a model file says of it if it cannot hold it: its kind and name; None if its fields say all."""
        return None


@dataclass(frozen=True, repr=False)
class FunctionTensorizer(Tensorizer):
    """A function from batches to tensors; files hold no code, so it has to be given again to `polyadic.load`."""

    per_window: ClassVar[bool] = False

    function: Callable[[Tensor], Tensor]

    def transform(self, X: Tensor) -> Tensor:
        return self.function(X)

    def describe(self) -> dict[str, Any]:
        return {"type": "function", "name": getattr(self.function, "__qualname__", type(self.function).__qualname__)}

    def __repr__(self) -> str:
        return f"FunctionTensorizer({self.describe()['name']})"


class ModuleTensorizer(Tensorizer):
    """The output of a torch module with its weights as they are now; files hold a hash of the weights alone."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module
        self._frozen = copy.deepcopy(module).eval().requires_grad_(False)

    def transform(self, X: Tensor) -> Tensor:
        weight = next(self._frozen.parameters(), None)
        if weight is not None and weight.device != X.device:
            self._frozen.to(X.device)
        result = self._frozen(X if weight is None else X.to(weight.dtype))
        return result.to(X.dtype) if isinstance(result, Tensor) and not result.is_complex() else result

    def describe(self) -> dict[str, Any]:
        state = hashlib.sha256()
        for name, value in sorted(self._frozen.state_dict().items()):
            state.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            state.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return {"type": "module", "name": type(self.module).__qualname__, "sha256": state.hexdigest()}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ModuleTensorizer) and self.describe() == other.describe()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"ModuleTensorizer({type(self.module).__qualname__})"


def as_tensorizer(tensorize: Any) -> Tensorizer | None:
    """A tensorizer of whatever an estimator accepts as one: a `Tensorizer`, a torch module, a function, or None.

    Examples
    --------
    >>> as_tensorizer(abs)
    FunctionTensorizer(abs)
    """
    if tensorize is None or isinstance(tensorize, Tensorizer):
        return tensorize
    if isinstance(tensorize, torch.nn.Module):
        return ModuleTensorizer(tensorize)
    if callable(tensorize) and not isinstance(tensorize, type):
        return FunctionTensorizer(tensorize)
    raise PolyadicError(
        f"tensorize must be None, a Tensorizer such as STFT, a torch module or a function of a batch, but is "
        f"{tensorize!r}"
    )


# ------------------------------------------------------------- checked use


def tensors(tensorizer: Tensorizer | None, batch: Tensor) -> Tensor:
    """A batch as tensors (b, I, J, …), checked unless the tensorizer is trusted; None leaves it as it is."""
    if tensorizer is None:
        return batch
    with torch.no_grad():
        if tensorizer.trusted:
            return tensorizer(batch)
        # The batch may be a view of the user's array, which a tensorizer of the user's might write to.
        T = tensorizer(batch.clone())
    if not isinstance(T, Tensor) or T.ndim < 2 or len(T) != len(batch) or T.numel() == 0:
        came = str(tuple(T.shape)) if isinstance(T, Tensor) else type(T).__name__
        raise PolyadicError(f"tensorize must return a tensor of {len(batch)} samples, but gave {came}")
    if T.is_complex() or not bool(torch.isfinite(T).all()):
        came = f"type {T.dtype}" if T.is_complex() else "NaN or infinity"
        raise PolyadicError(f"tensorize must return finite real numbers, but gave {came}")
    return T.to(batch).contiguous()


def tensors_into(tensorizer: Tensorizer | None, batch: Tensor, T: Tensor) -> Tensor:
    """Fill T (b, I, J, …) with what `tensors` gives, and return the squared norm of each: (b,) float64."""
    squares = None
    if tensorizer is None:
        T.copy_(batch)
    else:
        squares = tensorizer.into(batch, T)
    return squared_norms(T) if squares is None else squares


def tensor_shape(tensorizer: Tensorizer | None, example: Tensor) -> tuple[int, ...]:
    """The shape (I, J, …) of the tensor of one sample.

    Parameters
    ----------
    example : (1, …), a sample

    Examples
    --------
    >>> tensor_shape(None, torch.zeros(1, 4, 6))
    (4, 6)
    """
    known = None
    if tensorizer is not None and example.ndim == 3:
        known = tensorizer.shape(*example.shape[1:])
    return tuple(tensors(tensorizer, example).shape[1:]) if known is None else known
