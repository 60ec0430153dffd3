"""Batches of a fit: checked samples of any input as torch tensors, and their augmented views.

Inputs are arrays, memory maps, stores, tensors, lists and data frames; those on disk are prefetched.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyadic._util.checks import Readable
from polyadic._util.random_streams import permutation
from polyadic._util.threads import for_each, in_pool, start, thread_pool
from polyadic.augment import Augmentation, split_neighbour
from polyadic.core.tensorizer import Tensorizer, tensor_shape, tensors
from polyadic.errors import PolyadicError

_AHEAD = 3
_BLOCK_BYTES = {"cpu": 2**25, "cuda": 2**30}
_KEPT_SHARE = 0.5
"""Share of the free GPU memory that raw windows may take between passes."""
_STAGED_BYTES = 2**22
"""Size of the page-locked pieces in which samples are copied to a GPU."""


class Samples:
    """The samples of one argument, read batch by batch.

    Parameters
    ----------
    X : (N, …), an array of any supported kind
    name : name of the argument, for error messages
    """

    def __init__(self, X: Any, name: str = "X") -> None:
        self.name = name
        self.data: np.ndarray | Tensor | Readable = _as_tensor(X, name) if isinstance(X, Tensor) else _as_array(X, name)
        shape = tuple(self.data.shape)
        if len(shape) < 2:
            raise PolyadicError(
                f"{name} must have at least two dimensions, (samples, features), but has shape {shape}. "
                f"Reshape your data: {name}.reshape(1, -1) if it is a single sample."
            )
        if 0 in shape:  # the wording of scikit-learn
            what = "sample(s)" if shape[0] == 0 else "feature(s)"
            raise PolyadicError(f"Found {name} with 0 {what} (shape={shape}) while a minimum of 1 is required.")

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

    def read(self, ids: Tensor | slice) -> Tensor:
        """Read samples (b, …) as they are stored; runs no torch kernels, which another thread can run meanwhile."""
        if isinstance(self.data, Tensor):
            return self.data[ids if isinstance(ids, slice) else ids.to(self.data.device)]
        rows = ids if isinstance(ids, slice) else ids.numpy()
        if isinstance(self.data, np.ndarray):
            return _to_tensor(self.data[rows])
        return _to_tensor(self.data.read(np.arange(len(self))[rows] if isinstance(rows, slice) else rows))

    def checked(
        self, batch: Tensor, ids: Tensor | slice, device: torch.device, dtype: torch.dtype, missing: bool = False
    ) -> Tensor:
        """Convert samples that were read to a floating-point batch on the device, finite or, with `missing`, NaN."""
        batch = to_device(batch, device).to(dtype)
        # A sum is finite only if all values are, but a sum of finite values may overflow: test the values then.
        if not math.isfinite(batch.sum().item()):
            invalid = torch.isinf(batch) if missing else ~torch.isfinite(batch)
            if bool(invalid.any()):
                row = int(invalid.flatten(1).any(dim=1).nonzero()[0, 0])
                number = (ids.start or 0) + row if isinstance(ids, slice) else int(ids[row])
                if missing:
                    place = invalid[row].nonzero()[0].tolist()
                    names = getattr(self.data, "channels", ())
                    named = f"in channel {names[place[0]]!r}, " if names else ""
                    raise PolyadicError(
                        f"{self.name} must be finite or NaN, but sample {number} contains infinity ({named}"
                        f"{self.name}{[number, *place]}): infinity is not taken as missing, so set it to NaN if it is"
                    )
                kind = "NaN" if bool(torch.isnan(batch[row]).any()) else "infinity"
                raise PolyadicError(
                    f"{self.name} must be finite, but sample {number} contains {kind} "
                    f"(Input {self.name} contains NaN or infinity; remove or repair such samples first, or use "
                    "CPD, which takes NaN as missing)"
                )
        return batch

    def take(self, ids: Tensor | slice, device: torch.device, dtype: torch.dtype, missing: bool = False) -> Tensor:
        """Read samples as a floating-point batch, checked as by `checked`: (b, …)."""
        return self.checked(self.read(ids), ids, device, dtype, missing)

    def like_input(self, result: Tensor) -> Any:
        """Convert a result to the kind of the input: a torch tensor on its device for torch, else a numpy array."""
        if isinstance(self.data, Tensor):
            return result.to(self.data.device)
        return result.cpu().numpy()


def _to_tensor(array: np.ndarray) -> Tensor:
    """Convert an array to a tensor, copied only if torch needs native byte order, other strides or writable memory."""
    return torch.from_numpy(np.require(array, array.dtype.newbyteorder("="), ["C", "W"]))


def _as_tensor(X: Tensor, name: str) -> Tensor:
    if X.layout != torch.strided:
        raise TypeError(f"{name} must be a dense tensor, but has layout {X.layout}. Use '.to_dense()'.")
    if X.is_complex():
        raise PolyadicError(f"Complex data not supported: {name} has type {X.dtype}, real numbers expected")
    # torch does not support indexing these on every device.
    unsigned = X.dtype in (torch.uint16, torch.uint32, torch.uint64)
    return X.detach().to(torch.float32) if unsigned else X.detach()


def _as_array(X: Any, name: str) -> np.ndarray | Readable:
    if isinstance(X, Readable):
        return X
    if hasattr(X, "toarray"):
        raise TypeError(f"Sparse data was passed for {name}, but dense data is required. Use '.toarray()' to convert.")
    if isinstance(X, np.ma.MaskedArray):  # masked values are missing
        X = np.ma.filled(X.astype(np.result_type(X.dtype, np.float32)), np.nan)
    try:
        array = X if isinstance(X, np.ndarray) else np.asarray(X)
    except ValueError as error:
        raise PolyadicError(f"{name} must be an array of samples of one shape, but is not: {error}") from error
    if array.dtype.kind == "c":
        raise PolyadicError(f"Complex data not supported: {name} has type {array.dtype}, real numbers expected")
    if array.dtype.kind == "O":
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{name} must hold numbers, but has type object: {error}") from error
    if array.dtype.kind not in "fiub":
        raise PolyadicError(f"{name} must hold numbers, but has type {array.dtype}")
    return array.astype(np.float64) if array.dtype.itemsize > 8 else array


@dataclass
class WindowSource:
    """Batches of a fit: samples, their augmentations, and both as tensors.

    `waited` accumulates the seconds of I/O wait; `on_batch` is called with the windows and bytes of each batch.
    """

    samples: Samples
    tensorize: Tensorizer | None
    augment: Augmentation | None
    seed: int
    device: torch.device
    dtype: torch.dtype
    first_id: int = 0
    waited: float = 0.0
    on_batch: Callable[[int, int], None] | None = None
    _on_device: list[tuple[Tensor, Tensor]] | None = field(default=None, init=False)

    @property
    def n_windows(self) -> int:
        return len(self.samples)

    @property
    def n_views(self) -> int:
        return 1 if self.augment is None else 2

    def order(self, seed: int, sweep: int) -> Tensor:
        """Return the order in which a sweep visits the windows: (N,)."""
        return permutation(self.n_windows, seed, sweep)

    def example(self) -> Tensor:
        """Return the first raw window, which may hold NaN: (1, …)."""
        return self.samples.take(slice(0, 1), self.device, self.dtype, missing=True)

    def raw_blocks(self, first: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield ids (b,) and raw windows (b, …) in order, in blocks of some MiB, from window `first`, where one begins.

        Windows may hold NaN. A GPU keeps the blocks for the next pass if they fit into its memory.
        """
        if self._on_device is not None:
            yield from (block for block in self._on_device if int(block[0][0]) >= first)
            return
        size = math.prod(self.samples.shape[1:]) * self.dtype.itemsize
        rows = max(1, _BLOCK_BYTES.get(self.device.type, _BLOCK_BYTES["cuda"]) // size)
        parts = torch.split(torch.arange(self.n_windows), rows)[-(-first // rows) :]
        kept: list[tuple[Tensor, Tensor]] = []
        keeps = self.device.type == "cuda" and first == 0
        if keeps:  # torch gives back what it has reserved, but does not use
            unused = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
            free = torch.cuda.mem_get_info(self.device)[0] + unused
            keeps = size * self.n_windows <= _KEPT_SHARE * free
        for ids, batch, waited in prefetch(self.samples, parts):
            self.waited += waited
            X = self.samples.checked(batch, ids, self.device, self.dtype, missing=True)
            if keeps:
                kept.append((ids, X))
            yield ids, X
            if self.on_batch is not None:
                self.on_batch(len(ids), batch.nbytes)
        if keeps:
            self._on_device = kept

    def batches(self, parts: Sequence[Tensor], sweep: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the windows and views of each part; data on disk are prefetched while the last part is processed.

        Later parts may reuse the memory of this one: allocating it anew would take as long as the step itself.
        """
        # In a thread pool, one thread builds the tensors of the next part while another processes this one.
        buffers: list[Tensor | None] = [None] * (2 if in_pool() else 1)
        coming: list[tuple[Tensor, int, Callable[[], Tensor]]] = []
        read = enumerate(prefetch(self.samples, parts))
        while True:
            for number, (ids, batch, waited) in islice(read, len(buffers) - len(coming)):
                self.waited += waited
                build = partial(self._build, ids, batch, sweep, buffers, number % len(buffers))
                coming.append((ids, batch.nbytes, start(build)))
            if not coming:
                return
            ids, size, built = coming.pop(0)
            yield ids, built()
            if self.on_batch is not None:
                self.on_batch(len(ids), size)

    def _build(self, ids: Tensor, batch: Tensor, sweep: int, buffers: list[Tensor | None], number: int) -> Tensor:
        """Build the tensors of the windows and their views, in the buffer of an earlier part if there is one."""
        X = self.samples.checked(batch, ids, self.device, self.dtype)
        layout = None
        if self.tensorize is not None and X.ndim == 3 and self.tensorize.is_calibrated:
            layout = self.tensorize.layout(X.shape[-1], self.device)
        if self.tensorize is None or layout is None:
            return tensors(self.tensorize, self._both(X, ids, sweep))
        count, buffer = self.n_views * len(X), buffers[number]
        if buffer is None or len(buffer) < count:
            # In the tensorizer's memory order; the products of a step accept any order.
            shape, order = tensor_shape(self.tensorize, X[:1]), layout.order
            buffer = buffers[number] = in_mode_order(X.new_empty(count, *(shape[mode] for mode in order)), order)
        augmented = None if self.augment is None else self.augmented(X, ids, sweep)
        self.tensorize.into(X, buffer[: len(X)])
        if augmented is not None:
            self.tensorize.into(augmented, buffer[len(X) : count])
        return buffer[:count]

    def views(self, ids: Tensor, sweep: int) -> Tensor:
        """Return the windows `ids` and, with an augmentation, their augmented views: (n_views · b, I, J, …)."""
        return tensors(self.tensorize, self._both(self.samples.take(ids, self.device, self.dtype), ids, sweep))

    def _both(self, batch: Tensor, ids: Tensor, sweep: int) -> Tensor:
        return batch if self.augment is None else torch.cat([batch, self.augmented(batch, ids, sweep)])

    def augmented(self, batch: Tensor, ids: Tensor, sweep: int) -> Tensor:
        """Return the augmented views of windows `ids` in this sweep, (b, …); without a partner, the window itself."""
        neighbour, rest = split_neighbour(self.augment)
        if neighbour is not None:
            partners, batch = self._partners[ids.cpu()], batch.clone()
            batch[partners >= 0] = self.samples.take(partners[partners >= 0], self.device, self.dtype)
        return batch if rest is None else rest(batch, ids + self.first_id, seed=self.seed, sweep=sweep)

    @cached_property
    def _partners(self) -> Tensor:
        """The window that is the view of each window, −1 for none: (N,)."""
        neighbour, _ = split_neighbour(self.augment)
        assert neighbour is not None
        return neighbour.partners(self.samples.data)


def to_device(batch: Tensor, device: torch.device) -> Tensor:
    """Copy samples (b, …) to the device, large batches to a GPU in page-locked pieces: several times as fast."""
    if device.type != "cuda" or batch.is_cuda or batch.nbytes < 8 * _STAGED_BYTES:
        return batch.to(device)
    target = torch.empty_like(batch, device=device)
    rows = max(1, len(batch) * _STAGED_BYTES // batch.nbytes)
    with thread_pool():
        for_each(
            lambda piece: piece[0].copy_(piece[1].pin_memory()),
            list(zip(torch.split(target, rows), torch.split(batch, rows), strict=True)),
        )
    return target


def in_mode_order(buffer: Tensor, order: Sequence[int]) -> Tensor:
    """View a buffer whose modes are stored in another order as (b, I, J, …)."""
    return buffer.permute(0, *(1 + order.index(mode) for mode in range(len(order))))


def prefetch(samples: Samples, parts: Sequence[Tensor], always: bool = False) -> Iterator[tuple[Tensor, Tensor, float]]:
    """Yield the indices of each part, its samples as they are stored, and the seconds of I/O wait.

    Samples on disk (or with `always`) are read by a background thread, up to three parts ahead; others on demand.
    Consecutive samples in memory are not copied.
    """
    if not samples.on_disk and not always:
        for ids in parts:
            first, stop = int(ids[0]), int(ids[-1]) + 1
            consecutive = stop - first == len(ids) and bool((ids.diff() == 1).all())
            yield ids, samples.read(slice(first, stop) if consecutive else ids), 0.0
        return
    with ThreadPoolExecutor(1, "polyadic-read") as reader:
        try:
            coming: list[Future[Tensor]] = [reader.submit(samples.read, ids) for ids in parts[:_AHEAD]]
            for number, ids in enumerate(parts):
                begun = time.perf_counter()
                batch = coming.pop(0).result()
                waited = time.perf_counter() - begun
                if number + _AHEAD < len(parts):
                    coming.append(reader.submit(samples.read, parts[number + _AHEAD]))
                yield ids, batch, waited
        finally:
            reader.shutdown(wait=False, cancel_futures=True)


def check_modes(T: Tensor, factors: list[Tensor]) -> None:
    """Raise if the tensors do not match the shape of the bases, for example with a different tensorizer."""
    expected = tuple(len(factor) for factor in factors)
    if T.shape[1:] != expected:
        given = tuple(T.shape[1:])
        raise PolyadicError(f"tensorize must return tensors of shape {expected} as in fit, but returned {given}")


def choose_device(device: str | torch.device, X: Any = None) -> torch.device:
    """Resolve `device`; "auto" is the device of `X` if that is an accelerator, else CUDA if available, else the CPU."""
    if str(device) != "auto":
        try:
            chosen = torch.device(device)
            torch.zeros(1, device=chosen).item()
        except (RuntimeError, TypeError, ValueError, OverflowError, AssertionError) as error:
            reason = str(error).partition("\n")[0]
            raise PolyadicError(
                f"device must be 'auto', 'cpu' or an available torch device, but is {device!r}: {reason}"
            ) from error
        return chosen
    if isinstance(X, Tensor) and X.device.type != "cpu":
        return X.device
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def integer_random_state(random_state: Any) -> int:
    """Convert a scikit-learn `random_state` to an integer seed."""
    if isinstance(random_state, int | np.integer) and not isinstance(random_state, bool):
        return int(random_state)
    from sklearn.utils import check_random_state

    try:
        return int(check_random_state(random_state).randint(2**31 - 1))
    except ValueError as error:
        raise PolyadicError(
            f"random_state must be an integer, a numpy RandomState or None, but is {random_state!r}"
        ) from error
