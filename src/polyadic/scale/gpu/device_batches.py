"""Data of a fit on a GPU: raw windows stay in GPU memory, and many batches are transformed to tensors at once.

Tensors do not depend on the bases, so augmentation and tensorizer run for a whole group of batches, on a separate
stream, while the steps of the previous group still run. Two groups alternate in the same memory, so that the steps can
be captured once and replayed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from polyadic._util.random_streams import window_keys
from polyadic.data.batches import Samples, WindowSource, in_mode_order, prefetch

ORDER = (0, 2, 1)
"""Memory order of the modes of tensors: channels, then frames, then frequencies."""
_GROUP_BYTES = 2**31
_FEWEST_GROUPS = 4
_RESIDENT_SHARE = 0.6
_LOAD_BYTES = 2**28


@dataclass
class BatchGroups:
    """The groups of batches of a source on a GPU, for windows with tensors of this shape (I, J, K)."""

    source: WindowSource
    batch_size: int
    shape: tuple[int, ...]
    energy: Tensor = field(init=False)

    def __post_init__(self) -> None:
        source, tensorize = self.source, self.source.tensorize
        assert tensorize is not None
        first = source.samples.read(slice(0, 1))
        sample, self._window_bytes = first.shape[1:], first.nbytes
        window = source.n_views * torch.float16.itemsize * int(torch.Size(self.shape).numel())
        budget = min(_GROUP_BYTES, torch.cuda.mem_get_info(source.device)[0] // 16)
        batches = max(source.n_windows // self.batch_size, 1)
        # At least a few groups, so that the next one is built while the steps of one run.
        self._count = min(max(1, budget // (window * self.batch_size)), -(-batches // _FEWEST_GROUPS))
        windows = min(self._count * self.batch_size, source.n_windows)
        slots, shape = 1 if source.n_windows <= self.batch_size else 2, [self.shape[mode] for mode in ORDER]
        self._slots = [
            torch.empty(source.n_views * windows, *shape, dtype=torch.float16, device=source.device)
            for _ in range(slots)
        ]
        layout = tensorize.layout(sample[-1], source.device)
        assert layout is not None
        room = torch.zeros(windows, *sample[:-1], layout.row_step, dtype=source.dtype, device=source.device)
        self._windows = room[..., : sample[-1]]
        self._keys = torch.empty(windows, dtype=torch.int32, device=source.device)
        self._graphs: dict[tuple[int, int, int], torch.cuda.CUDAGraph] = {}
        # The graphs run in sequence and can share memory.
        self._pool = torch.cuda.graph_pool_handle()
        self.energy = torch.zeros(source.n_views, dtype=torch.float64, device=source.device)
        self._stream = torch.cuda.Stream(source.device)  # type: ignore[no-untyped-call]
        self._resident = _keep_on_device(source.samples, source.device)
        # Keep a reference: the graphs read it, and a cache might drop it.
        self._constants = tensorize.constants(sample[0], source.device, source.dtype)

    def __call__(self, parts: Sequence[Tensor], sweep: int) -> Iterator[tuple[int, Sequence[Tensor]]]:
        """Yield the groups of one sweep: the number of a slot, and the batches in it, (views · b, I, J, K) each.

        Afterwards, `energy` has the squared norm of each view over all tensors.
        """
        groups = _group_batches(parts, self._count)
        main = torch.cuda.current_stream(self.source.device)
        done: list[torch.cuda.Event | None] = [None] * len(self._slots)
        self._stream.wait_stream(main)
        with torch.cuda.stream(self._stream):
            self.energy.zero_()
        wholes = [torch.cat(list(group)) for group in groups]
        for number, (ids, batch) in enumerate(self._read_groups(wholes)):
            slot = number % len(self._slots)
            with torch.cuda.stream(self._stream):
                before = done[slot]
                if before is not None:
                    self._stream.wait_event(before)
                count, size = len(groups[number]), len(groups[number][0])
                T = self._fill((slot, count, size), ids, batch, sweep)
            main.wait_stream(self._stream)
            yield slot, T.chunk(count)
            done[slot] = main.record_event()
            if self.source.on_batch is not None:
                self.source.on_batch(len(ids), len(ids) * self._window_bytes)

    def _read_groups(self, parts: list[Tensor]) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Yield the window ids of each part, and the windows unless they are resident on the GPU."""
        if self._resident is not None:
            # One copy from pinned memory: a blocking copy would wait for all earlier work.
            with torch.cuda.stream(self._stream):
                order = torch.cat(parts).pin_memory().to(self.source.device, non_blocking=True)
            yield from ((rows, None) for rows in torch.split(order, [len(ids) for ids in parts]))
            return
        for ids, batch, waited in prefetch(self.source.samples, parts, always=True):
            self.source.waited += waited
            yield ids, batch

    def _fill(self, key: tuple[int, int, int], ids: Tensor, batch: Tensor | None, sweep: int) -> Tensor:
        """Write the tensors of windows and their views to a slot, and accumulate their squared norms.

        `key` is the number of the slot, of the batches, and of the windows in each.
        """
        source, (slot, count, size), X = self.source, key, self._windows[: len(ids)]
        T = in_mode_order(self._slots[slot][: count * source.n_views * size], ORDER)
        if batch is not None:
            X.copy_(source.samples.checked(batch.pin_memory(), ids, source.device, source.dtype))
        else:
            assert self._resident is not None
            X.copy_(self._resident[ids])
        keys = window_keys(source.seed, sweep, ids + source.first_id)
        self._keys[: len(keys)].copy_(keys, non_blocking=True)
        if key not in self._graphs:
            self._graphs[key] = self._capture(X, T, count)
        self._graphs[key].replay()
        return T

    def _transform(self, X: Tensor, T: Tensor, count: int) -> None:
        """Compute the tensors of windows and their views, and accumulate their squared norms."""
        augment, tensorize = self.source.augment, self.source.tensorize
        assert tensorize is not None
        views = [X] if augment is None else [X, augment.apply(X, self._keys[: len(X)])]
        parts = [part for batch in zip(*(view.chunk(count) for view in views), strict=True) for part in batch]
        targets = zip(parts, T.chunk(len(parts)), strict=True)
        squares: list[Any] = [tensorize.into(part, target) for part, target in targets]  # a kernel returns them
        self.energy += torch.stack(squares).reshape(count, len(views), -1).sum(dim=(0, 2))

    def _capture(self, X: Tensor, T: Tensor, count: int) -> torch.cuda.CUDAGraph:
        """Capture augmentation and transform of these windows as a CUDA graph, to avoid the cost of many launches."""
        before = self.energy.clone()
        self._transform(X, T, count)
        torch.cuda.synchronize(self.source.device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            self._transform(X, T, count)
        self.energy.copy_(before)
        return graph


def _group_batches(parts: Sequence[Tensor], count: int) -> list[Sequence[Tensor]]:
    """Group up to `count` parts of equal size; a shorter last part forms its own group."""
    whole = len(parts) - (len(parts) > 1 and len(parts[-1]) != len(parts[0]))
    groups = [parts[first : min(first + count, whole)] for first in range(0, whole, count)]
    return groups if whole == len(parts) else [*groups, parts[whole:]]


def _keep_on_device(samples: Samples, device: torch.device) -> Tensor | None:
    """Copy all samples to the GPU as they are stored, checked to be finite; None if they do not fit."""
    first = samples.read(slice(0, 1))
    data = samples.data if isinstance(samples.data, Tensor) and samples.data.device == device else None
    if data is None and first.nbytes * len(samples) > _RESIDENT_SHARE * torch.cuda.mem_get_info(device)[0]:
        return None
    rows = max(1, _LOAD_BYTES // first.nbytes)
    parts = torch.split(torch.arange(len(samples)), rows)
    if data is not None:
        for ids in parts if data.is_floating_point() else ():
            samples.take(slice(int(ids[0]), int(ids[-1]) + 1), device, samples.dtype)
        return data.contiguous()
    resident = torch.empty(len(samples), *first.shape[1:], dtype=first.dtype, device=device)
    for ids, batch, _ in prefetch(samples, parts, always=True):
        moved = batch.to(device)
        samples.checked(moved, ids, device, samples.dtype)
        resident[ids[0] : ids[-1] + 1] = moved
    return resident
