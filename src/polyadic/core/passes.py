"""The default fit's two passes over the data: axes of the modes and mean first, then moments of compressed windows.

Before them, the tensorizer may read the raw windows (for the floors of an STFT, without transforming them). All sums
are computed in blocks of a fixed size and added in float64 in the order of the windows. So they do not depend on the
number of threads, and an interrupted pass can resume with bit-identical results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from polyadic._util.threads import for_each
from polyadic.core import persist
from polyadic.core.algebra import squared_norms
from polyadic.core.compression import Compression, ModeSums, check_ranks, largest_core
from polyadic.core.moments import Block, Moments
from polyadic.core.tensorizer import Tensorizer, tensor_shape, tensors
from polyadic.errors import PolyadicError

__all__ = ["Passes", "RawSource"]

_PIECE_BYTES = 2**21
_KEPT_BYTES = 2**28
LARGEST_CORE = 2**14
"""Maximum number of entries of a window that is not compressed: second moments in float64 take 2 GiB."""


class RawSource(Protocol):
    """Source of raw windows in blocks."""

    device: torch.device
    dtype: torch.dtype

    @property
    def n_windows(self) -> int: ...

    def example(self) -> Tensor:
        """Return the first raw window: (1, …)."""
        ...

    def raw_blocks(self, first: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield ids (b,) and raw windows (b, …) in order, in blocks of a fixed size, from window `first`."""
        ...


@dataclass
class Passes:
    """The passes of one fit, from the first or resumed.

    Parameters
    ----------
    source : the raw windows
    tensorize : the tensorizer, calibrated or not; None if windows are tensors
    units : units of the channels, if known
    compression : "auto", None or the rank of each mode, as for `CPD`
    after_block : called after each block of each pass
    """

    source: RawSource
    tensorize: Tensorizer | None
    units: Sequence[str] = ()
    compression: Literal["auto"] | Sequence[int] | None = "auto"
    after_block: Callable[[Passes], None] | None = None
    done: int = field(default=0, init=False)
    sums: ModeSums | None = field(default=None, init=False)
    moments: Moments | None = field(default=None, init=False)
    _kept: dict[int, Tensor] = field(default_factory=dict, init=False)
    _centre: Tensor = field(default_factory=lambda: torch.zeros(()), init=False)

    def of_parts(self, parts: Sequence[Tensor]) -> list[Moments]:
        """Return the moments of several parts of the windows, masks (N,), collected in the same pass."""
        compression, counts = self._start_moments().compression, [int(part.sum()) for part in parts]
        dtype, device = self.source.dtype, self.source.device
        collected = [Moments(compression, count, dtype=dtype, device=device) for count in counts]
        positions = [torch.cumsum(part, dim=0) - 1 for part in parts]

        def summarise(X: Tensor, first: int) -> Block:
            T = tensors(self.tensorize, X)
            return Block(compression.compress(T), squared_norms(T))

        for ids, block in self._blocks(summarise):
            for part, position, moments in zip(parts, positions, collected, strict=True):
                inside = part[ids]
                moments.add(position[ids][inside], block[inside.to(device)])
        for moments in collected:
            moments.finish()
        return collected

    def run(self) -> Moments:
        """Run the passes that are left, and return the moments; `tensorize` is calibrated afterwards."""
        if self.moments is None:
            if self.sums is None:
                self._measure()
            self.moments = self._start_moments()
        moments, compression = self.moments, self.moments.compression

        def summarise(X: Tensor, first: int) -> Block:
            kept = self._kept.pop(first, None)
            T = tensors(self.tensorize, X) if kept is None else kept.sub_(self._centre)
            return Block(compression.compress(T), squared_norms(T), X if moments.n_channels else None)

        for ids, block in self._blocks(summarise):
            moments.add(ids, block)
        moments.finish()
        return moments

    def arrays(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return the sums after a block, as arrays and a JSON header, to resume from them."""
        header: dict[str, Any] = {"done": self.done, "tensorize": persist.encode(self.tensorize)}
        if self.moments is None:
            assert self.sums is not None
            scatter = {f"scatter.{mode}": matrix.numpy() for mode, matrix in enumerate(self.sums.scatter)}
            return {"count": np.array(self.sums.count), "total": self.sums.total.numpy(), **scatter}, header
        header["shape"], axes = list(self.moments.compression.shape), self.moments.compression.axes
        kept = {f"axes.{mode}": matrix.numpy() for mode, matrix in enumerate(axes) if matrix is not None}
        return {**self.moments.arrays(), **kept}, header

    def restore(self, arrays: dict[str, np.ndarray], header: dict[str, Any]) -> None:
        """Continue after the block at which `arrays` was called."""
        self.done = int(header["done"])
        self.tensorize = persist.decode_tensorizer(header["tensorize"], self.tensorize)
        tensors = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
        if "shape" not in header:
            self.sums = ModeSums(tensors["total"].shape)
            self.sums.count, self.sums.total = int(tensors["count"]), tensors["total"]
            self.sums.scatter = [tensors[f"scatter.{mode}"] for mode in range(tensors["total"].ndim)]
            return
        shape = tuple(header["shape"])
        compression = Compression([tensors.get(f"axes.{mode}") for mode in range(len(shape))], shape)
        channels = arrays["details"].shape[1] - 1
        device = "cpu" if self.done == self.source.n_windows else self.source.device  # finished moments are on the CPU
        self.moments = Moments(compression, self.source.n_windows, channels, self.source.dtype, device)
        self.moments.restore(arrays)

    def _measure(self) -> None:
        """Let the tensorizer read the raw windows if it needs to."""
        if self.tensorize is not None and not self.tensorize.is_calibrated:
            self.tensorize = self.tensorize.measured((X for _, X in self.source.raw_blocks()), self.units)

    def _start_moments(self) -> Moments:
        """Run the first pass, if the mean or the axes are needed, and return empty moments for the second."""
        first = self.source.example()
        shape, channels = tensor_shape(self.tensorize, first), self._n_channels(first)
        count, full = self.source.n_windows, math.prod(shape)
        plain = None if self.tensorize is None else self.tensorize.without_mean()
        limit = largest_core(count) if self.compression == "auto" else LARGEST_CORE
        if self.compression is None and full > limit:
            raise PolyadicError(
                f"compression=None keeps all {full:,} entries of a window's tensor, but second moments of at most "
                f"{limit:,} entries fit into memory: use compression='auto'"
            )
        ranks = None
        if self.compression is not None and not isinstance(self.compression, str):
            ranks = check_ranks(self.compression, shape, limit)
        centre = torch.zeros(shape, dtype=torch.float64)
        if plain is not None or self.compression is not None:
            sums = self._sum_modes(plain or self.tensorize, shape)
            if plain is not None:
                assert self.tensorize is not None
                self.tensorize = self.tensorize.centred(sums.mean)
                centre = self.tensorize.uncentred(centre[None])[0]
                self._centre = centre.to(self.source.dtype)
        compression = Compression.none(shape)
        if self.compression is not None:
            compression = Compression.from_scatter(sums.centred(centre), limit, ranks, self.source.dtype)
        self.done, self.sums = 0, None
        return Moments(compression, count, channels, self.source.dtype, self.source.device)

    def _n_channels(self, X: Tensor) -> int:
        """Return the number of levels of a window: none if windows are tensors."""
        return X.shape[1] if self.tensorize is not None and X.ndim == 3 else 0

    def _sum_modes(self, tensorize: Tensorizer | None, shape: tuple[int, ...]) -> ModeSums:
        """Run the first pass; tensors are kept for the second if they are small."""
        sums = self.sums = ModeSums(shape) if self.sums is None else self.sums
        size = self.source.n_windows * math.prod(shape) * self.source.dtype.itemsize
        keeps = tensorize is not None and self.source.device.type == "cpu" and self.done == 0 and size <= _KEPT_BYTES

        def summarise(X: Tensor, first: int) -> ModeSums:
            T = tensors(tensorize, X)
            if keeps:
                self._kept[first] = T
            return ModeSums.of(T)

        for _, block in self._blocks(summarise):
            sums.add(block)
        return sums

    def _blocks(self, summarise: Callable[[Tensor, int], Any]) -> Iterator[tuple[Tensor, Any]]:
        """Yield ids and summary of each piece, in order; pieces of a block are summarised in parallel."""
        for ids, X in self.source.raw_blocks(self.done):
            rows = self._piece_rows(X)
            pieces, results = torch.split(X, rows), [None] * -(-len(X) // rows)

            def work(number: int, first: int = int(ids[0]), pieces: Any = pieces, results: Any = results) -> None:
                results[number] = summarise(pieces[number], first + number * len(pieces[0]))

            for_each(work, range(len(pieces)))
            yield from zip(torch.split(ids, rows), results, strict=True)
            self.done += len(ids)
            if self.after_block is not None:
                self.after_block(self)

    def _piece_rows(self, X: Tensor) -> int:
        """Return the number of windows of a piece: one fits the cache of a CPU core; a GPU takes whole blocks."""
        if X.is_cuda or (self.tensorize is not None and not self.tensorize.threaded):
            return len(X)
        known = self.tensorize.shape(*X.shape[1:]) if self.tensorize is not None and X.ndim == 3 else None
        size = math.prod(known or X.shape[1:]) * X.element_size()
        return max(1, _PIECE_BYTES // size)
