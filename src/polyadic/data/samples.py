"""Conversion of input data to checked torch batches: arrays, memory maps, stores, tensors, lists, data frames."""

from __future__ import annotations

import math
import sys
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from polyadic._util.checks import Readable, check_unmasked
from polyadic.errors import PolyadicError
from polyadic.scale.gpu import kernels

__all__ = ["Raw", "Samples", "choose_device", "integer_random_state"]


class Raw(NamedTuple):
    """Samples in stored form: value = digit · scale + offset, or the values themselves if scale is None."""

    digits: Tensor
    scale: Tensor | None = None
    offset: Tensor | None = None


class Samples:
    """The samples of one argument, read batch by batch.

    Parameters
    ----------
    X : (N, …), an array of any supported kind
    name : name of the argument, for error messages
    """

    def __init__(self, X: Any, name: str = "X") -> None:
        self.name = name
        self.data: np.ndarray | Tensor | Readable = X.detach() if isinstance(X, Tensor) else _as_array(X, name)
        if isinstance(self.data, Tensor) and self.data.layout != torch.strided:
            raise TypeError(f"{name} must be a dense tensor, but has layout {self.data.layout}. Use '.to_dense()'.")
        if isinstance(self.data, Tensor) and self.data.dtype in (torch.uint16, torch.uint32, torch.uint64):
            self.data = self.data.to(torch.float32)  # torch does not support indexing these on every device
        shape = tuple(self.data.shape)
        if len(shape) < 2:
            raise PolyadicError(
                f"{name} must have at least two dimensions, (samples, features), but has shape {shape}. "
                f"Reshape your data: {name}.reshape(1, -1) if it is a single sample."
            )
        if 0 in shape:
            # The wording of scikit-learn.
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
        """The floating-point type for computations: float64 for float64 input, float32 otherwise."""
        if isinstance(self.data, Tensor):
            return torch.float64 if self.data.dtype == torch.float64 else torch.float32
        return torch.float64 if self.data.dtype.newbyteorder("=") == np.float64 else torch.float32

    @property
    def on_disk(self) -> bool:
        """Whether samples are read from files, so that prefetching pays."""
        return bool(getattr(self.data, "on_disk", isinstance(self.data, np.memmap)))

    def read(self, ids: Tensor | slice) -> Raw:
        """Read samples in stored form: (b, …). Runs no torch kernels, so that another thread can run them meanwhile.

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
        """Convert samples that were read to a floating-point batch on the device, checked to be finite: (b, …)."""
        batch = raw.digits.to(device).to(dtype)
        if raw.scale is not None and raw.offset is not None:
            # Two operations, each rounded, as in `WindowStore.read`: a fused operation would differ in the last bit.
            batch = (batch * raw.scale.to(device, dtype)).add_(raw.offset.to(device, dtype))
        # A sum is finite only if all values are, but a sum of finite values may overflow: test the values then.
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
        """Read samples as a floating-point batch, checked to be finite: (b, …)."""
        return self.checked(self.read(ids), ids, device, dtype)

    def like_input(self, result: Tensor) -> Any:
        """Convert a result to the kind of the input: a torch tensor on its device for torch, else a numpy array."""
        if isinstance(self.data, Tensor):
            return result.to(self.data.device)
        return result.cpu().numpy()


def _to_tensor(array: np.ndarray) -> Tensor:
    """Convert an array to a tensor, copied only if torch needs native byte order, other strides or writable memory."""
    return torch.from_numpy(np.require(array, array.dtype.newbyteorder("="), ["C", "W"]))


def _as_array(X: Any, name: str) -> np.ndarray | Readable:
    if isinstance(X, Readable):
        return X
    if _is_sparse(X):
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


def _is_sparse(X: Any) -> bool:
    sparse = sys.modules.get("scipy.sparse")  # if X is sparse, scipy.sparse is already imported
    return sparse is not None and bool(sparse.issparse(X))


def choose_device(device: str | torch.device, X: Any = None) -> torch.device:
    """Resolve `device`; "auto" is the device of `X` if that is an accelerator, else CUDA if available, else the CPU.

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
                f"device must be 'auto', 'cpu' or an available torch device, but is {device!r}: {reason}"
            ) from error
        return chosen
    if isinstance(X, Tensor) and X.device.type != "cpu":
        return _compile_kernels(X.device)
    return _compile_kernels(torch.device("cuda" if torch.cuda.is_available() else "cpu"))


def _compile_kernels(device: torch.device) -> torch.device:
    """Start compiling the kernels of a device in the background."""
    if device.type != "cpu" and kernels.available(device, torch.float32):
        kernels.prepare()
    return device


def integer_random_state(random_state: Any) -> int:
    """Convert a scikit-learn `random_state` to an integer seed.

    Examples
    --------
    >>> integer_random_state(7)
    7
    """
    if isinstance(random_state, int | np.integer) and not isinstance(random_state, bool):
        return int(random_state)
    from sklearn.utils import check_random_state

    try:
        return int(check_random_state(random_state).randint(2**31 - 1))
    except ValueError as error:
        raise PolyadicError(
            f"random_state must be an integer, a numpy RandomState or None, but is {random_state!r}"
        ) from error
