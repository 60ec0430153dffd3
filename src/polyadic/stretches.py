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
from polyadic.spectral import STFT

__all__ = ["Stretch", "Stretches"]

_STRETCH_BYTES = 2**31
_FEWEST = 4
_RESIDENT_SHARE = 0.6
_LOAD_BYTES = 2**28


@dataclass(frozen=True)
class Stretch:
    """`count` batches of `size` windows, their views one after the other in memory that is used again.

    T : (count · views · size, I, J, …)
    """

    count: int
    size: int
    slot: int
    T: Tensor

    def batches(self) -> Sequence[Tensor]:
        """The stacked views of each batch: (views · b, I, J, …)."""
        return self.T.chunk(self.count)


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
        batches = max(source.n_windows // self.batch_size, 1)
        # Some stretches at least, so that the next can be made while the steps of one run.
        self._count = min(self._count, -(-batches // _FEWEST))
        rows = source.n_views * min(self._count * self.batch_size, source.n_windows)
        slots = 1 if source.n_windows <= self.batch_size else 2
        self._slots = [torch.empty(rows, *self.shape, device=source.device) for _ in range(slots)]
        self.energy = torch.zeros(source.n_views, dtype=torch.float64, device=source.device)
        self._stream = torch.cuda.Stream(source.device)  # type: ignore[no-untyped-call]
        self._resident = _resident(source.samples, source.device)

    def __call__(self, parts: Sequence[Tensor], sweep: int) -> Iterator[Stretch]:
        """The stretches of one sweep; `energy` then holds the squared norm of each view of all its tensors."""
        groups = _grouped(parts, self._count)
        main = torch.cuda.current_stream(self.source.device)
        done: list[torch.cuda.Event | None] = [None] * len(self._slots)
        self._stream.wait_stream(main)
        with torch.cuda.stream(self._stream):
            self.energy.zero_()
        wholes = [torch.cat(list(group)) for group in groups]
        for number, (ids, raw) in enumerate(self._read(wholes)):
            slot = number % len(self._slots)
            with torch.cuda.stream(self._stream):
                before = done[slot]
                if before is not None:
                    self._stream.wait_event(before)
                count, size = len(groups[number]), len(groups[number][0])
                T = self._fill(self._slots[slot], count, size, ids, raw, sweep)
            main.wait_stream(self._stream)
            yield Stretch(count, size, slot, T)
            done[slot] = main.record_event()
            if self.source.on_batch is not None:
                self.source.on_batch(len(ids), raw.digits.nbytes)

    def _read(self, parts: list[Tensor]) -> Iterator[tuple[Tensor, Raw]]:
        """The raw windows of each part, gathered on the GPU, or read ahead where they do not fit there."""
        if self._resident is not None:
            # All numbers at once and from pinned memory: a copy that the host waits for would also wait for all before.
            with torch.cuda.stream(self._stream):
                order = torch.cat(parts).pin_memory().to(self.source.device, non_blocking=True)
            for rows in torch.split(order, [len(ids) for ids in parts]):
                with torch.cuda.stream(self._stream):
                    raw = Raw(*(None if part is None else part[rows] for part in self._resident))  # type: ignore[arg-type]
                yield rows, raw
            return
        for ids, raw, waited in read_ahead(self.source.samples, parts, always=True):
            self.source.waited += waited
            yield ids, raw

    def _fill(self, slot: Tensor, count: int, size: int, ids: Tensor, raw: Raw, sweep: int) -> Tensor:
        """Windows and their augmentations as tensors in the slot, batch after batch; adds up their squared norms."""
        source, views = self.source, self.source.n_views
        if self._resident is not None:
            X = _values(raw, source.dtype)
        else:
            pinned = Raw(*(None if part is None else part.pin_memory() for part in raw))  # type: ignore[arg-type]
            X = source.samples.checked(pinned, ids, source.device, source.dtype)
        if source.augment is not None:
            both = self._room(count * views * size, X)
            shape = (count, size, *X.shape[1:])
            first, second = both.view(count, views, *shape[1:]).unbind(dim=1)
            first.copy_(X.reshape(shape))
            second.copy_(source.augmented(X, ids, sweep).reshape(shape))
            X = both
        T = slot[: len(X)]
        squares = tensors_into(source.tensorize, X, T)
        self.energy += squares.reshape(count, views, size).sum(dim=(0, 2))
        return T

    def _room(self, rows: int, X: Tensor) -> Tensor:
        """Memory for so many windows like those of X, laid out as the STFT likes it: (rows, …)."""
        tensorize = self.source.tensorize
        if not isinstance(tensorize, STFT):
            return X.new_empty(rows, *X.shape[1:])
        return X.new_zeros(rows, X.shape[1], tensorize.row_step(X.shape[2]))[..., : X.shape[2]]


def _grouped(parts: Sequence[Tensor], count: int) -> list[Sequence[Tensor]]:
    """Up to `count` parts of equal size together; a last part that is shorter stands alone."""
    whole = len(parts) - (len(parts) > 1 and len(parts[-1]) != len(parts[0]))
    groups = [parts[first : min(first + count, whole)] for first in range(0, whole, count)]
    return groups if whole == len(parts) else [*groups, parts[whole:]]


def _values(raw: Raw, dtype: torch.dtype) -> Tensor:
    """Values of digits that are on the GPU already and were checked when they came."""
    values = raw.digits.to(dtype)
    if raw.scale is None or raw.offset is None:
        return values
    return torch.addcmul(raw.offset, values, raw.scale)


def _resident(samples: Samples, device: torch.device) -> Raw | None:
    """All samples on the GPU as they are stored, checked to be finite; None where they would fill it."""
    first = samples.read(slice(0, 1))
    data = samples.data if isinstance(samples.data, Tensor) and samples.data.device == device else None
    if data is None and first.digits.nbytes * len(samples) > _RESIDENT_SHARE * torch.cuda.mem_get_info(device)[0]:
        return None
    rows = max(1, _LOAD_BYTES // first.digits.nbytes)
    parts = torch.split(torch.arange(len(samples)), rows)
    if data is not None:
        for ids in parts if data.is_floating_point() else ():
            samples.take(slice(int(ids[0]), int(ids[-1]) + 1), device, samples.dtype)
        return Raw(data)
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
