"""Fits and features of windows in chunks, computed where the chunks are: Dask arrays, stores, folders of recordings.

Each pass of a default fit is a sum over chunks. Sums of a fixed number of consecutive chunks are merged on the workers,
and these in the order of the windows, so that the result does not depend on the workers. Features of chunks are lazy
Dask arrays. This module is imported by everyone, Dask only if it is used.
"""

from __future__ import annotations

import copy
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, wraps
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyadic._util.torch_state import plain_torch
from polyadic.core.missing import MissingWarning
from polyadic.core.moments import Moments
from polyadic.core.passes import Stage, add_windows
from polyadic.data.batches import Samples, WindowSource, choose_device
from polyadic.data.channels import match_signals
from polyadic.data.readers.arrays import ARRAYS, open_windows
from polyadic.data.reading import Reading, takes_reading_options
from polyadic.data.store import is_store
from polyadic.data.windows import Windows
from polyadic.errors import PolyadicError

__all__ = ["ChunkSource", "Chunks", "chunks_of", "lazily", "on_cluster", "recordings"]

_GROUP = 16
"""Number of chunks whose sums are merged on the workers; four are merged at a time, which bounds a worker's memory."""
_FAN_IN = 4
_CHUNK_BYTES = 2**26
"""Size of the chunks of a store, in samples as float32."""

_Method = TypeVar("_Method", bound=Callable[..., Any])


# ---------------------------------------------------------------------- chunks


@dataclass(frozen=True)
class _Part:
    """Consecutive windows of a store, a file of arrays or, with a `Reading` as JSON, a recording.

    `signals` are the sampling rate, channels and units that they are converted to.
    """

    path: str
    begin: int
    end: int
    reading: str
    signals: tuple[float | None, tuple[str, ...], tuple[str, ...]]

    def open(self) -> Windows:
        fs, channels, units = self.signals
        windows: Windows = match_signals(_opened(self.path, self.reading), fs, channels, self.path, units=units)
        return windows[self.begin : self.end]

    def samples(self) -> NDArray[Any]:
        return np.asarray(self.open())


def _opened(path: str, reading: str) -> Windows:
    """Open windows, or cut a recording into windows, once in each process."""
    if not reading:
        return open_windows(path)
    windows, _ = _cut_recording(path, reading, Path(path).stat().st_mtime_ns)
    return windows


@cache
def _cut_recording(path: str, reading: str, changed: int) -> tuple[Windows, tempfile.TemporaryDirectory[str]]:
    """Return the windows of a recording in a temporary store, and its folder, which is removed with this process."""
    from polyadic.data.cutting import write_store

    worker = _current("get_worker")
    folder = tempfile.TemporaryDirectory(prefix="polyadic-", dir=None if worker is None else worker.local_directory)
    options = Reading.from_json(json.loads(reading))
    return write_store(path, Path(folder.name) / "windows.store", options, labels=False).windows, folder


def _current(getter: str) -> Any:
    """Return the client of `dask.distributed` that is in use, or the worker that runs this task; None without one."""
    distributed = sys.modules.get("distributed")
    try:
        return None if distributed is None else getattr(distributed, getter)()
    except ValueError:
        return None


def _described(path: str, reading: str) -> dict[str, Any]:
    """Describe the windows of a path; computed on a worker."""
    windows = _opened(path, reading)
    return {name: getattr(windows, name) for name in ("shape", "fs", "channels", "units", "dtype", "reading")}


class Chunks:
    """Windows in chunks along the first axis: (N, …).

    Parameters
    ----------
    array : a Dask array
    parts : what a worker opens in place of each chunk, if anything
    """

    chunked = True

    def __init__(self, array: Any, parts: Sequence[_Part] = ()) -> None:
        if np.isnan(array.shape[0]):
            raise PolyadicError("X has chunks of unknown size: call X.compute_chunk_sizes() first")
        self.array = array.rechunk(dict.fromkeys(range(1, array.ndim), -1))
        self.blocks = list(parts) or self.array.to_delayed().ravel().tolist()
        self.bounds = [0, *accumulate(self.array.chunks[0])]
        self.shape, self.dtype = self.array.shape, np.dtype(array.dtype)

    def read(self, rows: NDArray[np.intp]) -> NDArray[Any]:
        """Compute the samples of some windows: (n, …)."""
        samples: NDArray[Any] = self.array[rows].compute()
        return samples


def _files(path: Path, reading: Reading) -> list[tuple[str, str]]:
    """Return a store or file of arrays, or all recordings of a folder, each with how it is read, as JSON."""
    if is_store(path) or path.suffix.lower() in ARRAYS:
        if reading != Reading():
            raise PolyadicError(f"options are for recordings, but {path.name} already contains windows: leave them out")
        return [(str(path), "")]
    from polyadic.data.folders import find_recordings

    how = json.dumps(reading.to_json())
    return [(str(file), how) for file in find_recordings(path, reading.pattern, reading.scoring).files]


@takes_reading_options
def recordings(paths: Sequence[str | os.PathLike[str]], **options: Any) -> Windows:
    """Return the windows of stores, files of arrays and folders of recordings, which Dask workers read in chunks.

    Each worker cuts the recordings that it reads into windows once, in its local directory. Labels are not read. The
    first path sets sampling rate, channels and units; channels are matched by name.

    Parameters
    ----------
    paths : folders and files, which must have the same path on every worker
    """
    import dask
    from dask import array

    files = [file for path in paths for file in _files(Path(path).absolute(), Reading(**options))]
    descriptions = dask.compute(*(dask.delayed(_described)(*file) for file in files))
    first, parts = descriptions[0], []
    shape, signals = first["shape"][1:], (first["fs"], first["channels"], first["units"])
    rows = max(1, _CHUNK_BYTES // (4 * int(np.prod(shape))))
    for (path, how), other in zip(files, descriptions, strict=True):
        kinds = [(own["shape"][1:], own["fs"], sorted(own["channels"])) for own in (other, first)]
        if kinds[0] != kinds[1]:
            raise PolyadicError(
                f"windows must have the same shape, rate and channels, but {path} differs from {files[0][0]}: "
                f"{kinds[0]} and {kinds[1]}"
            )
        bounds = [*range(0, other["shape"][0], rows), other["shape"][0]]
        parts += [_Part(path, *pair, how, signals) for pair in pairwise(bounds)]
    dtype = np.result_type(*(other["dtype"] for other in descriptions))
    blocks = [
        array.from_delayed(dask.delayed(part).samples(), (part.end - part.begin, *shape), dtype) for part in parts
    ]
    chunks = Chunks(array.concatenate(blocks), parts)
    windows = Windows(chunks, fs=first["fs"], channels=first["channels"], units=first["units"])
    windows.reading = first["reading"]
    return windows


def chunks_of(X: Any) -> Any:
    """Return a Dask array, a list of paths, or the result of `recordings`, in chunks; None for any other input."""
    dask = sys.modules.get("dask.array")
    if dask is not None and isinstance(X, dask.Array):
        return Chunks(X)
    if isinstance(X, list | tuple) and X and all(isinstance(path, str | os.PathLike) for path in X):
        return recordings(X)
    # Some of the windows in chunks are read like those of a store.
    whole = isinstance(X, Windows) and X._rows is None and X._places is None and X._gains is None
    return X if whole and isinstance(X._samples, Chunks) else None


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

    def add_sums(self, stage: Stage, sums: Any, first: int) -> Iterator[int]:
        """Add the chunks from window `first`, in order, and yield the number of windows of several at a time."""
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
        for count, part in zip(counts, _computed(tasks), strict=True):
            sums.merge(part)
            yield count
            if self.on_batch is not None:
                self.on_batch(count, count * int(np.prod(self.samples.shape[1:])) * self.chunks.dtype.itemsize)


@plain_torch()
def _sums_of_chunk(stage: Stage, block: Any, first: int, device: str, dtype: torch.dtype) -> Any:
    """Return the sums of one chunk; computed on a worker."""
    samples = Samples(block.open() if isinstance(block, _Part) else block)
    source = WindowSource(samples, None, None, 0, choose_device(device, samples.data), dtype)
    sums = stage.start(source.example(), source.device, (first, first + len(samples)))
    try:
        for _ in add_windows(stage, source, sums, first=first):
            pass
    except PolyadicError as error:
        raise PolyadicError(f"in the chunk of {len(samples):,} windows from window {first:,}: {error}") from None
    if isinstance(sums, Moments):
        sums.to_cpu()
    return sums


def _merged(parts: Sequence[Any]) -> Any:
    """Return the sum of consecutive sums; inputs stay as they are, because a task may run again."""
    total = copy.deepcopy(parts[0])
    for other in parts[1:]:
        total.merge(other)
    return total


def _computed(tasks: Sequence[Any]) -> Iterator[Any]:
    """Yield the results of tasks in order; with a client, all are submitted at once."""
    client = _current("get_client")
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


@contextmanager
def on_cluster(
    address: str, path: str | os.PathLike[str], options: Mapping[str, Any], timeout: float = 10.0
) -> Iterator[Windows]:
    """Connect to a Dask scheduler, and open the windows of a path on its workers, with the options of `Reading`.

    Parameters
    ----------
    address : such as "tcp://10.0.0.1:8786"
    timeout : seconds to wait for the scheduler
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
        yield recordings([path], **options)


# -------------------------------------------------------------------- features


def lazily(method: _Method) -> _Method:
    """Let a method of windows (N, …) return a lazy Dask array if its windows are in chunks."""

    @wraps(method)
    def apply(self: Any, X: Any, *arguments: Any, **options: Any) -> Any:
        chunks = chunks_of(X)
        if chunks is None:
            return method(self, X, *arguments, **options)
        if any(value is not None for value in (*arguments, *options.values())):
            raise PolyadicError(f"{method.__name__} of windows in chunks has no further arguments: compute it first")
        like = None if isinstance(chunks, Chunks) else (chunks.fs, chunks.channels, chunks.units)
        x = (chunks if like is None else chunks._samples).array
        with warnings.catch_warnings():  # the result for one window of zeros tells shape and type
            warnings.simplefilter("ignore", MissingWarning)
            example = _applied(np.zeros((1, *x.shape[1:]), x.dtype), method.__name__, self, like)
        return x.map_blocks(
            _applied,
            method=method.__name__,
            model=self,
            like=like,
            drop_axis=list(range(1, x.ndim)),
            new_axis=list(range(1, example.ndim)),
            chunks=(x.chunks[0], *((size,) for size in example.shape[1:])),
            dtype=example.dtype,
            meta=example[:0],
        )

    return apply  # type: ignore[return-value]


def _applied(block: NDArray[Any], method: str, model: Any, like: Any) -> Any:
    """Apply a method to a chunk; `like` has the sampling rate, channels and units, so that channels are matched."""
    if like is not None:
        fs, channels, units = like
        block = Windows(block, fs, channels=channels, units=units)  # type: ignore[assignment]
    return getattr(model, method)(block)
