"""Input data as checked torch batches: arrays, memory maps, stores, torch tensors, lists and data frames."""

from __future__ import annotations

import math
import numbers
import os
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from scipy import sparse
from sklearn.utils import check_random_state
from torch import Tensor

from polyadic import kernels
from polyadic.errors import PolyadicError

__all__ = [
    "Raw",
    "Readable",
    "Samples",
    "check_integer",
    "check_memory",
    "check_number",
    "check_unmasked",
    "choose_device",
    "integer_random_state",
]

_LARGEST_INTEGER = 2**63 - 1
_SHOWN = 60


@runtime_checkable
class Readable(Protocol):
    """Samples that are read on demand, such as those of a store."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    def read(self, rows: np.ndarray) -> np.ndarray:
        """The samples of some rows: (n, …)."""
        ...


class Raw(NamedTuple):
    """Samples as they are stored: value = digit · scale + offset, or the values themselves without a scale."""

    digits: Tensor
    scale: Tensor | None = None
    offset: Tensor | None = None


class Samples:
    """The samples of one argument, read batch by batch.

    Parameters
    ----------
    X : (N, …), an array of any of the supported kinds
    name : the argument's name, for messages
    """

    def __init__(self, X: Any, name: str = "X") -> None:
        self.name = name
        self.data: np.ndarray | Tensor | Readable = X.detach() if isinstance(X, Tensor) else _as_array(X, name)
        if isinstance(self.data, Tensor) and self.data.layout != torch.strided:
            raise TypeError(f"{name} must be a dense tensor, but has layout {self.data.layout}. Use '.to_dense()'.")
        if isinstance(self.data, Tensor) and self.data.dtype in (torch.uint16, torch.uint32, torch.uint64):
            self.data = self.data.to(torch.float32)  # torch cannot take rows of these on every device
        shape = tuple(self.data.shape)
        if len(shape) < 2:
            raise PolyadicError(
                f"{name} must have at least two dimensions, (samples, features), but has shape {shape}. "
                f"Reshape your data: {name}.reshape(1, -1) if it is a single sample."
            )
        if 0 in shape:
            # The wording that scikit-learn's users know.
            what = "sample(s)" if shape[0] == 0 else "feature(s)"
            raise PolyadicError(f"Found {name} with 0 {what} (shape={shape}) while a minimum of 1 is required.")
        if isinstance(self.data, Tensor) and self.data.is_complex():
            raise PolyadicError(f"Complex data not supported: {name} has type {self.data.dtype}, real numbers expected")

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.data.shape)

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def dtype(self) -> torch.dtype:
        """The type to compute in: float64 for float64, float32 for all else."""
        if isinstance(self.data, Tensor):
            return torch.float64 if self.data.dtype == torch.float64 else torch.float32
        return torch.float64 if self.data.dtype.newbyteorder("=") == np.float64 else torch.float32

    @property
    def on_disk(self) -> bool:
        """Whether samples are read from files, so that prefetching pays."""
        return bool(getattr(self.data, "on_disk", isinstance(self.data, np.memmap)))

    def read(self, ids: Tensor | slice) -> Raw:
        """Some samples as they are stored: (b, …). Runs no torch kernel, so that another thread may run them meanwhile.

        Parameters
        ----------
        ids : (b,), or a slice
        """
        if isinstance(self.data, Tensor):
            return Raw(self.data[ids if isinstance(ids, slice) else ids.to(self.data.device)])
        if isinstance(self.data, np.ndarray):
            return Raw(_to_tensor(self.data[ids if isinstance(ids, slice) else ids.numpy()]))
        rows = np.arange(len(self))[ids] if isinstance(ids, slice) else ids.numpy()
        raw = getattr(self.data, "raw", None)
        parts = (self.data.read(rows),) if raw is None else raw(rows)
        return Raw(*(None if part is None else _to_tensor(part) for part in parts))  # type: ignore[arg-type]

    def checked(self, raw: Raw, ids: Tensor | slice, device: torch.device, dtype: torch.dtype) -> Tensor:
        """Samples that were read, as a floating-point batch on the device, checked to be finite: (b, …)."""
        batch = raw.digits.to(device).to(dtype)
        if raw.scale is not None and raw.offset is not None:
            # Two operations, each rounded once, as in `WindowStore.read`: a fused one would differ in the last bit.
            batch = (batch * raw.scale.to(device, dtype)).add_(raw.offset.to(device, dtype))
        # The sum of numbers that are not finite is not either; the other way round it need not be so.
        if not math.isfinite(batch.sum().item()) and not bool(torch.isfinite(batch).all()):
            finite = torch.isfinite(batch.flatten(1)).all(dim=1)
            row = int((~finite).nonzero()[0, 0])
            number = (ids.start or 0) + row if isinstance(ids, slice) else int(ids[row])
            kind = "NaN" if bool(torch.isnan(batch[row]).any()) else "infinity"
            raise PolyadicError(
                f"{self.name} must be finite, but sample {number} contains {kind} "
                f"(Input {self.name} contains NaN or infinity; remove or repair such samples first)"
            )
        return batch

    def take(self, ids: Tensor | slice, device: torch.device, dtype: torch.dtype) -> Tensor:
        """Some samples, read and converted to a floating-point batch, checked to be finite: (b, …)."""
        return self.checked(self.read(ids), ids, device, dtype)

    def like_input(self, result: Tensor) -> Any:
        """A result as the kind of array of the input: torch on its device for torch, numpy for all else."""
        if isinstance(self.data, Tensor):
            return result.to(self.data.device)
        return result.cpu().numpy()


def _to_tensor(array: np.ndarray) -> Tensor:
    """An array as a tensor, copied where torch needs it: native byte order, positive strides, writable memory."""
    return torch.from_numpy(np.require(array, array.dtype.newbyteorder("="), ["C", "W"]))


def _as_array(X: Any, name: str) -> np.ndarray | Readable:
    if isinstance(X, Readable):
        return X
    if sparse.issparse(X):
        raise TypeError(f"Sparse data was passed for {name}, but dense data is required. Use '.toarray()' to convert.")
    check_unmasked(X, name)
    try:
        array = X if isinstance(X, np.ndarray) and not isinstance(X, np.ma.MaskedArray) else np.asarray(X)
    except ValueError as error:
        raise PolyadicError(f"{name} must be an array of samples of one shape, but is not: {error}") from error
    if array.dtype.kind == "c":
        raise PolyadicError(f"Complex data not supported: {name} has type {array.dtype}, real numbers expected")
    if array.dtype.kind == "O":
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise type(error)(
                f"{name} must hold numbers, but has type object and holds something else: {error}"
            ) from error
    if array.dtype.kind not in "fiub" or array.dtype.itemsize > 8:
        if array.dtype.kind == "f":
            return array.astype(np.float64)
        raise PolyadicError(f"{name} must hold numbers, but has type {array.dtype}")
    return array


def check_unmasked(X: Any, name: str) -> None:
    """Refuse masked values: numpy computes with what lies under a mask as if it were data.

    Examples
    --------
    >>> check_unmasked(np.ma.array([1.0, 2.0], mask=[False, True]), "X")
    Traceback (most recent call last):
    polyadic.errors.PolyadicError: X has 1 masked value: fill them, as by X.filled(0.0), or leave out their windows
    """
    parts = X if isinstance(X, list | tuple) else [X]
    masked = sum(int(np.ma.getmaskarray(part).sum()) for part in parts if isinstance(part, np.ma.MaskedArray))
    if masked:
        raise PolyadicError(
            f"{name} has {masked:,} masked value{'s' * (masked != 1)}: fill them, as by {name}.filled(0.0), or leave "
            "out their windows"
        )


def choose_device(device: str | torch.device, X: Any = None) -> torch.device:
    """The device to compute on; "auto" is that of `X` if it is an accelerator, else CUDA if it is available.

    Examples
    --------
    >>> choose_device("cpu")
    device(type='cpu')
    """
    if str(device) != "auto":
        try:
            chosen = torch.device(device)
            if chosen.type != "cpu":
                _compile_kernels(chosen)
                torch.zeros(1, device=chosen).item()
        except (RuntimeError, TypeError, ValueError, OverflowError, AssertionError) as error:
            reason = str(error).partition("\n")[0]
            raise PolyadicError(
                f"device must be 'auto', 'cpu' or a torch device that is there, but is {device!r}: {reason}"
            ) from error
        return chosen
    if isinstance(X, Tensor) and X.device.type != "cpu":
        return _compile_kernels(X.device)
    return _compile_kernels(torch.device("cuda" if torch.cuda.is_available() else "cpu"))


def _compile_kernels(device: torch.device) -> torch.device:
    """Start to compile the kernels of a device in the background."""
    if kernels.available(device, torch.float32):
        kernels.prepare()
    return device


def check_integer(name: str, value: Any, least: int, none: bool = False) -> None:
    """Refuse what is not a whole number of at least `least` (or None, if `none` allows it)."""
    if none and value is None:
        return
    is_integer = isinstance(value, numbers.Integral) and not isinstance(value, bool | np.bool_)
    if is_integer and least <= value <= _LARGEST_INTEGER:
        return
    most = f" and below 2**63{' or None' if none else ''}" if is_integer and value > 0 else " or None" if none else ""
    raise PolyadicError(f"{name} must be a whole number >= {least}{most}, but is {_shown(value)}")


def check_number(name: str, value: Any, least: float, most: float = float("inf"), none: bool = False) -> None:
    """Refuse what is not a finite number between `least` and `most` (or None, if `none` allows it)."""
    if none and value is None:
        return
    is_real = isinstance(value, numbers.Real) and not isinstance(value, bool | np.bool_)
    if is_real and _is_finite(value) and least <= value <= most:
        return
    upper = "" if most == float("inf") else f" and at most {most:g}"
    raise PolyadicError(
        f"{name} must be a number of at least {least:g}{upper}{' or None' if none else ''}, but is {_shown(value)}"
    )


def _is_finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond all floating-point numbers
        return False


def integer_random_state(random_state: Any) -> int:
    """The seed that a scikit-learn `random_state` stands for.

    Examples
    --------
    >>> integer_random_state(7)
    7
    """
    if isinstance(random_state, int | np.integer) and not isinstance(random_state, bool):
        return int(random_state)
    try:
        return int(check_random_state(random_state).randint(2**31 - 1))
    except ValueError as error:
        raise PolyadicError(
            f"random_state must be an integer, a numpy RandomState or None, but is {random_state!r}"
        ) from error


def _shown(value: Any) -> str:
    """A value for a message, cut short."""
    try:
        text = repr(value)
    except ValueError:  # Python refuses to write down integers of more than 4,300 digits
        text = "an integer of thousands of digits"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def check_memory(setting: str, needed: int) -> None:
    """Refuse a setting whose arrays alone are larger than the memory of this machine.

    The system may promise memory that it does not have, and end the process when it is used.

    Parameters
    ----------
    setting : for the message, as "rank=8"
    needed : bytes
    """
    try:
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not on this system
        return
    if needed > there:
        sizes = [f"{size / 2**30:,.0f} GiB" for size in (needed, there)]
        raise PolyadicError(f"{setting} needs at least {sizes[0]} of memory, but this machine has {sizes[1]}")
