"""Batches of a fit: samples and their augmented views as tensors, prefetched if they are on disk."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from polyadic._util.random_streams import permutation
from polyadic._util.threads import in_pool, start
from polyadic.augment import Augmentation, WindowIndex, split_pairing
from polyadic.core.tensorizer import Layout, Tensorizer, tensor_shape, tensors
from polyadic.data.samples import Raw, Samples
from polyadic.errors import PolyadicError

__all__ = ["WindowSource", "check_modes", "empty_tensors", "in_mode_order", "prefetch"]

_AHEAD = 3


@dataclass
class WindowSource:
    """Batches of a fit: samples, their augmentations, and both as tensors."""

    samples: Samples
    tensorize: Tensorizer | None
    augment: Augmentation | None
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
        """Return the order in which a sweep visits the windows: (N,)."""
        wanted = getattr(self.samples.data, "order", None)
        order = None if wanted is None else wanted(seed, sweep)
        return permutation(self.n_windows, seed, sweep) if order is None else torch.as_tensor(order)

    def batches(self, parts: Sequence[Tensor], sweep: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the windows and views of each part; data on disk are prefetched while the last part is processed.

        `waited` accumulates the seconds of I/O wait; `on_batch` is called after each part with its number of windows
        and bytes. Later parts may reuse the memory of this one: allocating new memory for every part would take as
        long as the step itself.
        """
        # In a thread pool, one thread builds the tensors of the next part while another processes this one.
        ahead = 1 if in_pool() else 0
        buffers: list[Tensor | None] = [None] * (1 + ahead)
        coming: list[tuple[Tensor, int, Callable[[], Tensor]]] = []
        for number, (ids, batch, waited) in enumerate(prefetch(self.samples, parts)):
            self.waited += waited
            build = partial(self._build, ids, batch, sweep, buffers, number % len(buffers))
            coming.append((ids, batch.digits.nbytes, start(build)))
            if len(coming) > ahead:
                yield from self._deliver(*coming.pop(0))
        for last in coming:
            yield from self._deliver(*last)

    def _deliver(self, ids: Tensor, size: int, tensors: Callable[[], Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        yield ids, tensors()
        if self.on_batch is not None:
            self.on_batch(len(ids), size)

    def _build(self, ids: Tensor, batch: Raw, sweep: int, buffers: list[Tensor | None], number: int) -> Tensor:
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
            buffer = buffers[number] = empty_tensors(self.tensorize, X, count, layout)
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
        pairing, rest = split_pairing(self.augment)
        if pairing is not None:
            partners, batch = self.partners(ids), batch.clone()
            batch[partners >= 0] = self.samples.take(partners[partners >= 0], self.device, self.dtype)
        return batch if rest is None else rest(batch, ids + self.first_id, seed=self.seed, sweep=sweep)

    def partners(self, ids: Tensor) -> Tensor:
        """Return the indices of the partners of the windows `ids`, −1 for none: (b,); requires a `Pairing`."""
        pairing, _ = split_pairing(self.augment)
        assert pairing is not None
        return pairing.partners(self._index, ids)

    @cached_property
    def _index(self) -> WindowIndex:
        return WindowIndex.of(self.samples.data)


def empty_tensors(tensorize: Tensorizer, X: Tensor, count: int, layout: Layout) -> Tensor:
    """Allocate tensors for `count` windows like X, with the modes in the layout's order: (count, I, J, …)."""
    shape = tensor_shape(tensorize, X[:1])
    buffer = X.new_empty(count, *(shape[mode] for mode in layout.order))
    return in_mode_order(buffer, layout.order)


def in_mode_order(buffer: Tensor, order: Sequence[int]) -> Tensor:
    """View a buffer whose modes are stored in another order as (b, I, J, …)."""
    return buffer.permute(0, *(1 + order.index(mode) for mode in range(len(order))))


def prefetch(samples: Samples, parts: Sequence[Tensor], always: bool = False) -> Iterator[tuple[Tensor, Raw, float]]:
    """Yield the indices of each part, its raw samples, and the seconds of I/O wait.

    Samples on disk (or with `always`) are read by a background thread, up to three parts ahead; others on demand.
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


def check_modes(T: Tensor, factors: list[Tensor]) -> None:
    """Raise if the tensors do not match the shape of the bases, for example with a different tensorizer."""
    expected = tuple(len(factor) for factor in factors)
    if T.shape[1:] != expected:
        given = tuple(T.shape[1:])
        raise PolyadicError(f"tensorize must return tensors of shape {expected} as in fit, but returned {given}")
