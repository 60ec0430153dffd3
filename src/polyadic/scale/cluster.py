"""Fits and features of windows in chunks, computed where the chunks are: Dask arrays, or lists of stores.

Each pass of a default fit is a sum over chunks. Sums of a fixed number of consecutive chunks are merged on the workers,
and these in the order of the windows, so that the result does not depend on the workers. Features of chunks are lazy
Dask arrays. This module is imported by everyone, Dask only if it is used.
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from itertools import accumulate, pairwise
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyadic._util.torch_state import plain_torch
from polyadic.core.moments import Moments
from polyadic.core.passes import Stage, Sums, add_windows
from polyadic.data.batches import Samples, WindowSource, choose_device
from polyadic.data.windows import Windows
from polyadic.errors import PolyadicError

__all__ = ["ChunkSource", "Chunks", "chunks_of", "connected", "lazily"]

_GROUP = 16
"""Number of chunks whose sums are merged on the workers; four are merged at a time, which bounds a worker's memory."""
_FAN_IN = 4
_CHUNK_BYTES = 2**26
"""Size of the chunks of a store, in samples as float32."""

_Method = TypeVar("_Method", bound=Callable[..., Any])


# ---------------------------------------------------------------------- chunks


@dataclass(frozen=True)
class _Part:
    """Consecutive windows of a store or a file of arrays."""

    path: str
    begin: int
    end: int

    def open(self) -> Windows:
        from polyadic.data.readers.arrays import open_windows

        return open_windows(self.path)[self.begin : self.end]


class Chunks:
    """Windows in chunks along the first axis: (N, …).

    Parameters
    ----------
    blocks : what a worker opens or receives: a `_Part`, or a delayed array (n, …)
    counts : number of windows of each
    shape : shape of one window
    dtype : type of the samples
    """

    chunked = True

    def __init__(self, blocks: Sequence[Any], counts: Sequence[int], shape: Sequence[int], dtype: Any) -> None:
        self.blocks, self.bounds = list(blocks), [0, *accumulate(counts)]
        self.shape, self.dtype = (self.bounds[-1], *shape), np.dtype(dtype)

    @classmethod
    def of_array(cls, x: Any) -> Chunks:
        """Return the chunks of a Dask array (N, …)."""
        if np.isnan(x.shape[0]):
            raise PolyadicError("X has chunks of unknown size: call X.compute_chunk_sizes() first")
        whole = x.rechunk(dict.fromkeys(range(1, x.ndim), -1))
        return cls(whole.to_delayed().ravel().tolist(), whole.chunks[0], x.shape[1:], x.dtype)

    @classmethod
    def of_stores(cls, paths: Sequence[str | os.PathLike[str]]) -> Windows:
        """Return the windows of several stores or files of arrays, whose channels and rates must be the same."""
        from polyadic.data.readers.arrays import open_windows

        parts: list[_Part] = []
        opened = [open_windows(path) for path in paths]
        first = opened[0]
        for path, windows in zip(paths, opened, strict=True):
            for what in ("fs", "channels", "units"):
                if getattr(windows, what) != getattr(first, what) or windows.shape[1:] != first.shape[1:]:
                    raise PolyadicError(
                        f"stores must have windows of the same shape, rate, channels and units, but {path} differs "
                        f"from {paths[0]}: {windows.shape[1:]} and {first.shape[1:]}, {what} {getattr(windows, what)} "
                        f"and {getattr(first, what)}"
                    )
            rows = max(1, _CHUNK_BYTES // (4 * int(np.prod(windows.shape[1:]))))
            bounds = [*range(0, len(windows), rows), len(windows)]
            parts += [_Part(os.path.abspath(path), *pair) for pair in pairwise(bounds)]  # noqa: PTH100
        chunks = cls(parts, [part.end - part.begin for part in parts], first.shape[1:], first.dtype)
        windows = Windows(chunks, fs=first.fs, channels=first.channels, units=first.units)
        windows.reading = first.reading
        return windows

    def read(self, rows: NDArray[np.intp]) -> NDArray[Any]:
        """Compute the samples of some windows: (n, …)."""
        import dask

        numbers = np.searchsorted(self.bounds, rows, side="right") - 1
        result = np.empty((len(rows), *self.shape[1:]), self.dtype)
        for number in np.unique(numbers).tolist():
            inside = np.flatnonzero(numbers == number)
            taken = dask.delayed(_rows)(self.blocks[number], rows[inside] - self.bounds[number])
            result[inside] = taken.compute()
        return result

    def array(self) -> Any:
        """Return the windows as a Dask array, in the same chunks."""
        import dask
        from dask import array

        sizes = [end - begin for begin, end in pairwise(self.bounds)]
        blocks = [
            array.from_delayed(dask.delayed(_values)(block), (size, *self.shape[1:]), self.dtype)
            for block, size in zip(self.blocks, sizes, strict=True)
        ]
        return array.concatenate(blocks)


def chunks_of(X: Any) -> Any:
    """Return a Dask array, or a list of paths of stores, as windows in chunks; None for any other input."""
    if _is_dask_array(X):
        return Chunks.of_array(X)
    if isinstance(X, list | tuple) and X and all(isinstance(path, str | os.PathLike) for path in X):
        return Chunks.of_stores(X)
    return None


def _is_dask_array(X: Any) -> bool:
    dask = sys.modules.get("dask.array")
    return dask is not None and isinstance(X, dask.Array)


def _values(block: Any) -> Any:
    return np.asarray(block.open() if isinstance(block, _Part) else block)


def _rows(block: Any, rows: NDArray[np.intp]) -> NDArray[Any]:
    return np.asarray((block.open() if isinstance(block, _Part) else block)[rows])


# ------------------------------------------------------------------------ sums


class ChunkSource(WindowSource):
    """Windows in chunks as the source of a fit, whose sums are computed by Dask.

    Use `of` to build one from the source of an estimator.
    """

    chunks: Chunks
    worker_device: str

    @classmethod
    def of(cls, source: WindowSource, device: str | torch.device) -> ChunkSource:
        """Return the source of a fit, to be computed by workers, each on its own device."""
        data = source.samples.data
        chunked = cls(source.samples, source.tensorize, source.augment, source.seed, torch.device("cpu"), source.dtype)
        chunked.chunks = data if isinstance(data, Chunks) else data._samples  # type: ignore[union-attr]
        chunked.worker_device = str(device)
        return chunked

    def example(self) -> Tensor:
        """Return a window of the right shape, without reading one: (1, …)."""
        return torch.zeros(1, *self.samples.shape[1:], dtype=self.dtype)

    def partial_sums(self, stage: Stage, first: int) -> Iterator[tuple[int, Sums]]:
        """Yield the number of windows of consecutive chunks, and their sums, in order from window `first`."""
        import dask

        bounds = self.chunks.bounds
        tasks, counts = [], []
        for group in range(bounds.index(first), len(self.chunks.blocks), _GROUP):
            numbers = range(group, min(group + _GROUP, len(self.chunks.blocks)))
            parts = [
                dask.delayed(_sums_of_chunk, pure=False)(
                    stage, self.chunks.blocks[number], bounds[number], self.worker_device, self.dtype
                )
                for number in numbers
            ]
            while len(parts) > 1:
                merged = dask.delayed(_merged, pure=False)
                parts = [merged(parts[begin : begin + _FAN_IN]) for begin in range(0, len(parts), _FAN_IN)]
            tasks.append(parts[0])
            counts.append(bounds[numbers[-1] + 1] - bounds[group])
        for count, sums in zip(counts, _computed(tasks), strict=True):
            yield count, sums
            if self.on_batch is not None:
                self.on_batch(count, count * int(np.prod(self.samples.shape[1:])) * self.chunks.dtype.itemsize)


@plain_torch()
def _sums_of_chunk(stage: Stage, block: Any, first: int, device: str, dtype: torch.dtype) -> Sums:
    """Return the sums of one chunk; computed on a worker."""
    samples = Samples(block.open() if isinstance(block, _Part) else block)
    source = WindowSource(samples, None, None, 0, choose_device(device, samples.data), dtype)
    sums: Sums = stage.start(source.example(), source.device, (first, first + len(samples)))
    try:
        for _ in add_windows(stage, source, sums, first=first):
            pass
    except PolyadicError as error:
        raise PolyadicError(f"in the chunk of {len(samples):,} windows from window {first:,}: {error}") from None
    if isinstance(sums, Moments):
        sums.settle()
        sums.to_cpu()
    return sums


def _merged(parts: Sequence[Sums]) -> Sums:
    """Return the sum of consecutive sums; inputs stay as they are, because a task may run again."""
    total = copy.deepcopy(parts[0])
    for other in parts[1:]:
        total.merge(other)  # type: ignore[arg-type]
    return total


def _computed(tasks: Sequence[Any]) -> Iterator[Sums]:
    """Yield the results of tasks in order; with a client, all are submitted at once."""
    client = _client()
    if client is None:
        yield from (task.compute() for task in tasks)
        return
    from distributed import CancelledError, KilledWorker
    from distributed.comm import CommClosedError

    try:
        futures = client.compute(list(tasks))
        while futures:
            # Without another reference, workers forget a result that has arrived.
            yield futures.pop(0).result()
    except (CancelledError, KilledWorker, TimeoutError, CommClosedError) as error:
        raise PolyadicError(
            f"the Dask scheduler or its workers were lost ({type(error).__name__}: {error}). With a checkpoint, the "
            "fit resumes from the sums that had arrived: start a scheduler and repeat the fit with resume=True "
            "(--resume)"
        ) from error


def _client() -> Any:
    """Return the client of `dask.distributed` that is in use, or None."""
    distributed = sys.modules.get("distributed")
    if distributed is None:
        return None
    try:
        return distributed.get_client()
    except ValueError:
        return None


@contextmanager
def connected(address: str, timeout: float = 10.0) -> Iterator[Any]:
    """Connect to a Dask scheduler within this context.

    Parameters
    ----------
    address : such as "tcp://10.0.0.1:8786"
    timeout : seconds to wait for it
    """
    try:
        from distributed import Client
    except ImportError as error:
        raise PolyadicError('a Dask scheduler needs the extra: pip install "polyadic[dask]"') from error
    try:
        client = Client(address, timeout=timeout)
    except (OSError, ValueError) as error:
        raise PolyadicError(f"no Dask scheduler answers at {address}: {error}") from error
    with client:
        yield client


# -------------------------------------------------------------------- features


def lazily(method: _Method) -> _Method:
    """Let a method of windows (N, …) return a lazy Dask array if its windows are one, or are a list of stores."""

    @wraps(method)
    def apply(self: Any, X: Any, *arguments: Any, **options: Any) -> Any:
        chunks = chunks_of(X)
        if chunks is None:
            return method(self, X, *arguments, **options)
        if any(value is not None for value in (*arguments, *options.values())):
            raise PolyadicError(f"{method.__name__} of windows in chunks has no further arguments: compute it first")
        x = (chunks if isinstance(chunks, Chunks) else chunks._samples).array()
        # The result for one window tells shape and type.
        example = method(self, np.zeros((1, *x.shape[1:]), x.dtype))
        return x.map_blocks(
            _applied,
            method=method.__name__,
            model=self,
            drop_axis=list(range(1, x.ndim)),
            new_axis=list(range(1, example.ndim)),
            chunks=(x.chunks[0], *((size,) for size in example.shape[1:])),
            dtype=example.dtype,
            meta=example[:0],
        )

    return apply  # type: ignore[return-value]


def _applied(block: NDArray[Any], method: str, model: Any) -> Any:
    return getattr(model, method)(block)
