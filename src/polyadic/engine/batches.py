"""Where a fit gets its batches: samples with their augmented views as tensors, and graphs among the samples.

What functions of the user's give back is checked here, so that errors name the function and not what came of it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from polyadic.algebra import squared_norms
from polyadic.augment import Augmentation
from polyadic.draws import integer_seed, permutation
from polyadic.errors import PolyadicError
from polyadic.inputs import Raw, Samples
from polyadic.spectral import STFT
from polyadic.threads import in_pool, start

__all__ = ["Augment", "Graph", "Transform", "WindowSource", "check_modes", "read_ahead", "tensors", "tensors_into"]

_AHEAD = 3
_DRAWING = threading.RLock()

Transform = Callable[[Tensor], Tensor]
Augment = Augmentation | Transform


@dataclass
class WindowSource:
    """Batches of a fit: samples, their augmentations, and both as tensors."""

    samples: Samples
    tensorize: Transform | None
    augment: Augment | None
    seed: int
    device: torch.device
    dtype: torch.dtype
    first_id: int = 0
    waited: float = 0.0
    on_batch: Callable[[int, int], None] | None = None

    @property
    def n_windows(self) -> int:
        return len(self.samples)

    @property
    def n_views(self) -> int:
        return 1 if self.augment is None else 2

    def order(self, seed: int, sweep: int) -> Tensor:
        """The order in which a sweep visits the windows: (N,)."""
        wanted = getattr(self.samples.data, "order", None)
        order = None if wanted is None else wanted(seed, sweep)
        return permutation(self.n_windows, seed, sweep) if order is None else torch.as_tensor(order)

    def batches(self, parts: Sequence[Tensor], sweep: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The windows and views of each part in turn; what lies on a disk is read while the last part is worked on.

        `waited` counts the seconds in which nothing could be done but wait for the disk; `on_batch` is called after
        each part with its windows and their bytes. Tensors of a later part may lie where those of this one do: fresh
        memory for every part would cost as much as the step that is made with it.
        """
        # With a crew one thread makes the tensors of the next part while another makes a step with these.
        ahead = 1 if in_pool() else 0
        rooms: list[Tensor | None] = [None] * (1 + ahead)
        coming: list[tuple[Tensor, int, Callable[[], Tensor]]] = []
        for number, (ids, batch, waited) in enumerate(read_ahead(self.samples, parts)):
            self.waited += waited
            work = partial(self._made, ids, batch, sweep, rooms, number % len(rooms))
            coming.append((ids, batch.digits.nbytes, start(work)))
            if len(coming) > ahead:
                yield from self._handed(*coming.pop(0))
        for last in coming:
            yield from self._handed(*last)

    def _handed(self, ids: Tensor, size: int, tensors: Callable[[], Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        yield ids, tensors()
        if self.on_batch is not None:
            self.on_batch(len(ids), size)

    def _made(self, ids: Tensor, batch: Raw, sweep: int, rooms: list[Tensor | None], number: int) -> Tensor:
        """The views of windows as tensors, where there may be room for them from an earlier part."""
        X = self.samples.checked(batch, ids, self.device, self.dtype)
        if not (isinstance(self.tensorize, STFT) and X.ndim == 3 and self.tensorize.floor != "auto"):
            return tensors(self.tensorize, self._both(X, ids, sweep))
        count, room = self.n_views * len(X), rooms[number]
        if room is None or len(room) < count:
            channels, frequencies, frames = self.tensorize.shape(X.shape[1], X.shape[2])
            # In the order in which the transform leaves its numbers; the products of a step take them in any.
            room = rooms[number] = X.new_empty(count, channels, frames, frequencies).transpose(2, 3)
        augmented = None if self.augment is None else self.augmented(X, ids, sweep)
        self.tensorize.into(X, room[: len(X)])
        if augmented is not None:
            self.tensorize.into(augmented, room[len(X) : count])
        return room[:count]

    def views(self, ids: Tensor, sweep: int) -> Tensor:
        """Windows `ids` and, where there is an augmentation, their augmented views: (n_views · b, I, J, …)."""
        return tensors(self.tensorize, self._both(self.samples.take(ids, self.device, self.dtype), ids, sweep))

    def _both(self, batch: Tensor, ids: Tensor, sweep: int) -> Tensor:
        return batch if self.augment is None else torch.cat([batch, self.augmented(batch, ids, sweep)])

    def augmented(self, batch: Tensor, ids: Tensor, sweep: int) -> Tensor:
        """The augmentations of the windows `ids` in this sweep: (b, …)."""
        assert self.augment is not None
        ids = ids + self.first_id
        with torch.no_grad():
            if isinstance(self.augment, Augmentation):
                result = self.augment(batch, ids, seed=self.seed, sweep=sweep)
                if type(self.augment).__module__ == Augmentation.__module__:
                    return result  # ours: finite if the batch is, and a GPU need not be asked
            else:
                # A function draws from torch's generator: from the same seed for the same batch, so that a batch that
                # is read twice is augmented alike both times.
                # The generator is that of all threads: one at a time, or fits side by side would disturb each other.
                with _DRAWING, torch.random.fork_rng(devices=[batch.device] if batch.is_cuda else []):
                    torch.manual_seed(integer_seed(self.seed, sweep, int(ids[0])))
                    result = self.augment(batch.clone())
        if not isinstance(result, Tensor) or result.shape != batch.shape:
            came = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
            raise PolyadicError(
                f"augment must return a tensor of the batch's shape {tuple(batch.shape)}, but gave {came}"
            )
        return _real("augment", result).to(batch)


def read_ahead(samples: Samples, parts: Sequence[Tensor], always: bool = False) -> Iterator[tuple[Tensor, Raw, float]]:
    """Each part's numbers, its samples as they are, and the seconds it had to be waited for.

    Samples on disk (or `always`) are read by a thread, up to three parts ahead; others when they are asked for.
    """
    if not samples.on_disk and not always:
        for ids in parts:
            yield ids, samples.read(ids), 0.0
        return
    with ThreadPoolExecutor(1, "polyadic-read") as reader:
        try:
            coming: list[Future[Raw]] = [reader.submit(samples.read, ids) for ids in parts[:_AHEAD]]
            for number, ids in enumerate(parts):
                begun = time.perf_counter()
                batch = coming.pop(0).result()
                waited = time.perf_counter() - begun
                if number + _AHEAD < len(parts):
                    coming.append(reader.submit(samples.read, parts[number + _AHEAD]))
                yield ids, batch, waited
        finally:
            reader.shutdown(wait=False, cancel_futures=True)


def tensors(tensorize: Transform | None, batch: Tensor) -> Tensor:
    """A batch as tensors (b, I, J, …), contiguous."""
    if tensorize is None:
        return batch
    with torch.no_grad():
        # The batch may be a view of the user's array, which a function of the user's might write to.
        T = tensorize(batch if isinstance(tensorize, STFT) else batch.clone())
    if not isinstance(T, Tensor) or T.ndim < 2 or len(T) != len(batch) or T.numel() == 0:
        came = tuple(T.shape) if isinstance(T, Tensor) else type(T).__name__
        raise PolyadicError(f"tensorize must return a tensor of {len(batch)} samples, but gave {came}")
    return T if isinstance(tensorize, STFT) else _real("tensorize", T).to(batch).contiguous()


def tensors_into(tensorize: Transform | None, batch: Tensor, T: Tensor) -> Tensor:
    """Fill T (b, I, J, …) with what `tensors` gives, and return the squared norm of each: (b,) float64."""
    squares = None
    if isinstance(tensorize, STFT):
        squares = tensorize.into(batch, T)
    else:
        T.copy_(tensors(tensorize, batch))
    return squared_norms(T) if squares is None else squares


def _real(name: str, result: Tensor) -> Tensor:
    if result.is_complex() or not bool(torch.isfinite(result).all()):
        came = f"type {result.dtype}" if result.is_complex() else "NaN or infinity"
        raise PolyadicError(f"{name} must return finite real numbers, but gave {came}")
    return result


def check_modes(T: Tensor, factors: list[Tensor]) -> None:
    """Refuse tensors the bases were not made for, as a function other than that of the fit gives."""
    expected = tuple(len(factor) for factor in factors)
    if T.shape[1:] != expected:
        raise PolyadicError(f"tensorize must give tensors of shape {expected} as in fit, but gave {tuple(T.shape[1:])}")


@dataclass(frozen=True)
class Graph:
    """Weights among the windows of a fit, from which each batch takes its part."""

    weights: Any

    @classmethod
    def of(cls, graph: Any, count: int) -> Graph:
        given = graph if sparse.issparse(graph) else np.asarray(graph)
        if given.dtype.kind not in "fiub":
            raise PolyadicError(f"graph must hold real numbers, but has type {given.dtype}")
        weights = sparse.csr_array(given, dtype=np.float64) if sparse.issparse(given) else given.astype(np.float64)
        if weights.shape != (count, count):
            raise PolyadicError(
                f"graph must have shape ({count}, {count}) for {count} windows, but has {weights.shape}"
            )
        lowest, highest = weights.min(), weights.max()
        if not (lowest >= 0 and highest < np.inf):
            raise PolyadicError(f"graph must have finite weights >= 0, but they reach from {lowest:g} to {highest:g}")
        gap = abs(weights - weights.T).max()
        if gap > 1e-9 * highest:
            raise PolyadicError(f"graph must be symmetric, but weights differ by up to {gap:g} from their mirror image")
        return cls(weights)

    def __call__(self, ids: Tensor) -> Tensor:
        """Weights among the windows `ids`: (b, b) float64."""
        rows = ids.numpy()
        part = self.weights[rows][:, rows]
        return torch.as_tensor(part.toarray() if sparse.issparse(part) else part)
