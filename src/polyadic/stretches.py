"""The data of a fit on a GPU: raw windows that stay there, and stretches of many batches made into tensors at once.

What a window becomes does not depend on the bases, so augmentation and STFT run for many batches together, on a stream
of their own, while the steps of the stretch before are still under way. Two stretches take turns in the same memory,
which lets the steps be captured once and replayed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from polyadic.inputs import Raw, Samples
from polyadic.sources import WindowSource, read_ahead, tensors_into

__all__ = ["Stretch", "Stretches"]

_STRETCH_BYTES = 2**31
_RESIDENT_SHARE = 0.6
_LOAD_BYTES = 2**28


@dataclass(frozen=True)
class Stretch:
    """Some batches, whose views lie one after the other in memory that is used again: (Σ views · b, I, J, …)."""

    sizes: tuple[int, ...]
    slot: int
    T: Tensor

    def batches(self, views: int) -> Iterator[Tensor]:
        """The stacked views of each batch: (views · b, I, J, …)."""
        yield from torch.split(self.T, [views * size for size in self.sizes])


@dataclass
class Stretches:
    """Stretches of a source.

    Parameters
    ----------
    source : on a GPU
    batch_size : windows in a batch
    shape : (I, J, …) of one window's tensor
    """

    source: WindowSource
    batch_size: int
    shape: tuple[int, ...]
    energy: Tensor = field(init=False)
    _slots: list[Tensor] = field(init=False)

    def __post_init__(self) -> None:
        source = self.source
        window = source.n_views * 4 * int(torch.Size(self.shape).numel())
        free = torch.cuda.mem_get_info(source.device)[0]
        budget = min(_STRETCH_BYTES, free // 16)
        self._count = max(1, budget // (window * self.batch_size))
        batches = -(-source.n_windows // self.batch_size)
        if self._count >= batches:
            self._count = batches
        rows = source.n_views * min(self._count * self.batch_size, source.n_windows)
        slots = 1 if self._count == batches else 2
        self._slots = [torch.empty(rows, *self.shape, device=source.device) for _ in range(slots)]
        self.energy = torch.zeros(source.n_views, dtype=torch.float64, device=source.device)
        self._stream = torch.cuda.Stream(source.device)
        self._resident = _resident(source.samples, source.device)
        self._layouts: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}

    def __call__(self, parts: Sequence[Tensor], sweep: int) -> Iterator[Stretch]:
        """The stretches of one sweep; `energy` then holds the squared norm of each view of all its tensors."""
        groups = [parts[first : first + self._count] for first in range(0, len(parts), self._count)]
        main = torch.cuda.current_stream(self.source.device)
        done: list[torch.cuda.Event | None] = [None] * len(self._slots)
        self._stream.wait_stream(main)
        with torch.cuda.stream(self._stream):
            self.energy.zero_()
        for number, (ids, raw) in enumerate(self._read([torch.cat(list(group)) for group in groups])):
            slot = number % len(self._slots)
            with torch.cuda.stream(self._stream):
                before = done[slot]
                if before is not None:
                    self._stream.wait_event(before)
                sizes = tuple(len(part) for part in groups[number])
                T = self._fill(self._slots[slot], sizes, ids, raw, sweep)
            main.wait_stream(self._stream)
            yield Stretch(sizes, slot, T)
            done[slot] = torch.cuda.Event()
            done[slot].record(main)  # type: ignore[union-attr]
            if self.source.on_batch is not None:
                self.source.on_batch(len(ids), raw.digits.nbytes)

    def _read(self, parts: list[Tensor]) -> Iterator[tuple[Tensor, Raw]]:
        """The raw windows of each part, gathered on the GPU, or read ahead where they do not fit there."""
        if self._resident is not None:
            for ids in parts:
                with torch.cuda.stream(self._stream):
                    rows = ids.to(self.source.device)
                    raw = Raw(*(None if part is None else part[rows] for part in self._resident))  # type: ignore[arg-type]
                yield ids, raw
            return
        for ids, raw, waited in read_ahead(self.source.samples, parts, always=True):
            self.source.waited += waited
            yield ids, raw

    def _fill(self, slot: Tensor, sizes: tuple[int, ...], ids: Tensor, raw: Raw, sweep: int) -> Tensor:
        """Windows and their augmentations as tensors in the slot, batch after batch; adds up their squared norms."""
        source = self.source
        if self._resident is not None:
            X = _values(raw, source.dtype)
        else:
            pinned = Raw(*(None if part is None else part.pin_memory() for part in raw))  # type: ignore[arg-type]
            X = source.samples.checked(pinned, ids, source.device, source.dtype)
        if source.augment is not None:
            X = torch.cat([X, source.augmented(X, ids, sweep)])
        rows, views = self._layout(sizes)
        T = slot[: len(rows)]
        squares = tensors_into(source.tensorize, X[rows], T)
        self.energy += views @ squares
        return T

    def _layout(self, sizes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Where each row of a stretch comes from among all windows and then all augmentations, and its view (one-hot)."""
        if sizes not in self._layouts:
            count = sum(sizes)
            starts = torch.split(torch.arange(count), list(sizes))
            offsets = range(0, count * self.source.n_views, count)
            rows = torch.cat([part + offset for part in starts for offset in offsets]).to(self.source.device)
            views = torch.stack([(rows // count == view).double() for view in range(self.source.n_views)])
            self._layouts[sizes] = (rows, views)
        return self._layouts[sizes]


def _values(raw: Raw, dtype: torch.dtype) -> Tensor:
    """Values of digits that are on the GPU already and were checked when they came."""
    values = raw.digits.to(dtype)
    if raw.scale is None or raw.offset is None:
        return values
    return torch.addcmul(raw.offset, values, raw.scale)


def _resident(samples: Samples, device: torch.device) -> Raw | None:
    """All samples on the GPU as they are stored, checked to be finite; None where they would fill it."""
    first = samples.read(slice(0, 1))
    there = isinstance(samples.data, Tensor) and samples.data.device == device
    if not there and first.digits.nbytes * len(samples) > _RESIDENT_SHARE * torch.cuda.mem_get_info(device)[0]:
        return None
    rows = max(1, _LOAD_BYTES // first.digits.nbytes)
    parts = torch.split(torch.arange(len(samples)), rows)
    if there:
        for ids in parts if samples.data.is_floating_point() else ():
            samples.take(slice(int(ids[0]), int(ids[-1]) + 1), device, samples.dtype)
        return Raw(samples.data)
    digits = torch.empty(len(samples), *first.digits.shape[1:], dtype=first.digits.dtype, device=device)
    scales, offsets = [], []
    for ids, raw, _ in read_ahead(samples, parts, always=True):
        moved = Raw(*(None if part is None else part.to(device) for part in raw))  # type: ignore[arg-type]
        samples.checked(moved, ids, device, samples.dtype)
        digits[ids[0] : ids[-1] + 1] = moved.digits
        scales.append(moved.scale)
        offsets.append(moved.offset)
    return Raw(digits, _joined(scales, samples.dtype), _joined(offsets, samples.dtype))


def _joined(parts: list[Tensor | None], dtype: torch.dtype) -> Tensor | None:
    there = [part.to(dtype) for part in parts if part is not None]
    return torch.cat(there) if there else None
