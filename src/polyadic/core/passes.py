"""The default fit's passes over the data: floors, then axes of the modes and mean, then moments of compressed windows.

Each pass is a sum over windows. Sums are computed in blocks of a fixed size and added in float64 in the order of the
windows. So they do not depend on the number of threads, an interrupted pass resumes with bit-identical results, and
sums of several files, processes or institutions are merged to those of all windows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from polyadic._util.threads import for_each
from polyadic.core import persist
from polyadic.core.algebra import squared_norms
from polyadic.core.completion import Solver
from polyadic.core.compression import (
    Compression,
    Sums,
    centred_scatter,
    check_ranks,
    largest_core,
    mean_of,
    mode_sums,
    mode_sums_with_gaps,
    unseen_modes,
)
from polyadic.core.missing import Seen, look, without_gaps
from polyadic.core.moments import Block, Moments
from polyadic.core.tensorizer import Tensorizer, tensor_shape

if TYPE_CHECKING:
    from polyadic.data.batches import WindowSource

Name = Literal["floor", "axes", "core"]
STAGES: tuple[Name, ...] = ("floor", "axes", "core")
"""The passes, in their order."""
Setting = Literal["auto"] | Sequence[int] | None
"""The parameter `compression` of `CPD`."""

_PIECE_BYTES = 2**21
_KEPT_BYTES = 2**28
_LARGEST_CORE = 2**14
"""Maximum number of entries of a window that is not compressed: second moments in float64 take 2 GiB."""


@dataclass(frozen=True)
class Stage:
    """One pass over the windows: what is summed, with which tensorizer and which axes. It can be sent to a worker.

    Parameters
    ----------
    name : "floor", "axes" or "core"
    tensorize : the tensorizer, as far as earlier passes determine it; None if windows are tensors
    units : units of the channels, if known
    fs : sampling rate in Hz, if known
    keep_flat : whether dead channels count as present
    compression : the axes of the modes, for "core"
    n_windows : number of windows of the fit, of which "core" keeps a sample; 0 to keep none
    statistics : function of raw windows (b, channels, time), and of the samples that are present, that returns their
        statistics (b, S), for "core"; None if there are none
    fill : the solver that fills missing entries, for "core"; by default they are 0
    apart : whether windows with missing entries are kept apart, to be filled later
    """

    name: Name
    tensorize: Tensorizer | None
    units: Sequence[str] = ()
    fs: float | None = None
    keep_flat: bool = False
    compression: Compression | None = None
    n_windows: int = 0
    statistics: Callable[..., Tensor] | None = None
    fill: Solver | None = None
    apart: bool = False

    @property
    def finds_mean(self) -> bool:
        """Whether the mean of the tensors follows from the sums of this pass."""
        return self._front is not self.tensorize

    @cached_property
    def _front(self) -> Tensorizer | None:
        """The tensorizer that windows go through: in the pass that computes their mean, it subtracts none."""
        plain = self.tensorize.without_mean() if self.name == "axes" and self.tensorize is not None else None
        return plain or self.tensorize

    def start(self, example: Tensor, device: torch.device | str = "cpu", ids: tuple[int, int] | None = None) -> Any:
        """Return empty `Sums` or `Moments` for windows like this example (1, …); `device`, `ids` as for `Moments`."""
        if self.name != "core":
            return Sums()
        assert self.compression is not None
        count = 0 if self.statistics is None else self.statistics(example).shape[1]
        return Moments(self.compression, self.n_windows, count, example.dtype, device, ids)

    def summarise(self, ids: Tensor, X: Tensor, kept: Kept | None = None) -> Sums | Block:
        """Return what is added to the sums for raw windows (b, …) with these ids (b,)."""
        if self.name == "floor":
            return self._floors(X)
        first = int(ids[0])
        if kept is not None and first in kept.tensors:
            seen = Seen(X, kept.tensors.pop(first).sub_(kept.centre))
        else:
            seen = look(X, self._front, self.fs, keep_flat=self.keep_flat)
            if kept is not None and self.name == "axes" and seen.windows is X:  # complete
                kept.tensors[first] = seen.T
        return self._mode_sums(seen) if self.name == "axes" else self._block(ids, seen)

    def _floors(self, X: Tensor) -> Sums:
        assert self.tensorize is not None
        filled, rows, present, _ = without_gaps(X, self.fs, None, self.keep_flat)
        if rows is None or present is None:
            floors, counts = self.tensorize.measure(filled, self.units)
        else:
            floors, counts = self.tensorize.measure(filled[rows], self.units, present)
            complete = torch.ones(len(X), dtype=torch.bool, device=X.device)
            complete[rows] = False
            if bool(complete.any()):
                others = self.tensorize.measure(filled[complete], self.units)
                floors, counts = floors + others[0], counts + others[1]
        return Sums(windows=torch.tensor([len(X)]), floors=floors, counts=counts)

    def _mode_sums(self, seen: Seen) -> Sums:
        baseline = (lambda T: None) if self._front is None else self._front.baseline_sums
        if seen.gaps is None:
            return mode_sums(seen.T, baseline(seen.T))
        return mode_sums_with_gaps(seen.T, seen.gaps.rows, seen.gaps.observed, baseline)

    def _block(self, ids: Tensor, seen: Seen) -> Block:
        X, T, gaps, _ = seen
        assert self.compression is not None
        statistics = T.new_zeros(len(T), 0, dtype=torch.float64) if self.statistics is None else self.statistics(X)
        if gaps is None:
            return Block(ids, self.compression.compress(T), squared_norms(T), statistics)
        T, lacking = T.clone(), T[gaps.rows]
        T[gaps.rows] = lacking * gaps.observed if self.fill is None else self.fill.filled(lacking, gaps.observed)
        if self.statistics is not None and gaps.present is not None:
            statistics[gaps.rows] = self.statistics(X[gaps.rows], gaps.present)
        apart = (gaps.observed, gaps.rows) if self.apart else ()
        return Block(ids, self.compression.compress(T), squared_norms(T), statistics, *apart)

    def piece_rows(self, X: Tensor) -> int:
        """Return the number of windows of a piece: one fits the cache of a CPU core; a GPU takes whole blocks."""
        if self.name == "floor" or X.is_cuda or (self.tensorize is not None and not self.tensorize.trusted):
            return len(X)
        known = self.tensorize.shape(*X.shape[1:]) if self.tensorize is not None and X.ndim == 3 else None
        size = math.prod(known or X.shape[1:]) * X.element_size()
        return max(1, _PIECE_BYTES // size)

    def following(self, sums: Sums, setting: Setting, count: int, dtype: torch.dtype) -> Stage:
        """Return the stage after this one, as it follows from the sums over all windows.

        setting : the parameter `compression` of `CPD`
        count, dtype : number and floating-point type of the windows of the fit
        """
        tensorize = self.tensorize
        if self.name == "floor":
            if tensorize is not None and not tensorize.is_measured:
                tensorize = tensorize.measured(sums["floors"], sums["counts"], self.units)
            return replace(self, name="axes", tensorize=tensorize)
        shape, limit = tuple(sums["total"].shape), core_limit(setting, count)
        ranks = check_ranks(setting, shape, limit)
        centre = torch.zeros(shape, dtype=torch.float64)
        if tensorize is not None and self.finds_mean:
            tensorize = tensorize.centred(mean_of(sums))
            centre = tensorize.uncentred(centre[None])[0]
        if tensorize is not None and "baseline" in sums:
            tensorize = tensorize.with_baseline(sums["baseline"] / sums["windows"])
        compression = Compression.none(shape)
        if setting is not None:
            scatter = centred_scatter(sums, centre)
            compression = Compression.from_scatter(scatter, limit, ranks, dtype, unseen_modes(sums))
        return replace(self, name="core", tensorize=tensorize, compression=compression)

    # ----------------------------------------------------------------- files

    def described(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return what earlier passes determined, as arrays and a JSON header."""
        header = {"stage": self.name, "tensorize": persist.encode(self.tensorize)}
        if self.compression is None:
            return {}, header
        return self.compression.arrays(), header | {"shape": list(self.compression.shape)}

    def restored(self, arrays: Mapping[str, np.ndarray], header: Mapping[str, Any]) -> Stage:
        """Return this stage with what `described` returned."""
        compression = Compression.from_arrays(arrays, header["shape"]) if "shape" in header else None
        tensorize = persist.decode_tensorizer(header["tensorize"])
        return replace(self, name=header["stage"], tensorize=tensorize, compression=compression)


class Kept:
    """Small tensors of the second pass, by the id of their first window, for the third, which subtracts `centre`."""

    def __init__(self) -> None:
        self.tensors: dict[int, Tensor] = {}
        self.centre = torch.zeros(())


class Parts:
    """Moments of several parts of the windows, masks (N,) that may overlap, collected in one pass."""

    def __init__(self, moments: Sequence[Moments], parts: Sequence[Tensor]) -> None:
        self.moments, self.parts = list(moments), list(parts)
        self._positions = [torch.cumsum(part, dim=0) - 1 for part in self.parts]

    def add(self, block: Block) -> None:
        """Add windows to the parts that they belong to.

        A part of a block takes incomplete windows with their missing entries at the mean.
        """
        for part, position, moments in zip(self.parts, self._positions, self.moments, strict=True):
            inside = part[block.ids]
            some = block if bool(inside.all()) else block.part(inside)
            moments.add(some._replace(ids=position[some.ids]))


def add_windows(
    stage: Stage, source: WindowSource, sums: Any, begin: int = 0, first: int = 0, kept: Kept | None = None
) -> Iterator[int]:
    """Add the windows of a source to sums of `stage.start`, in order, and yield the number of windows of each block.

    `begin` is the window of the source to begin with, where a block begins; `first` is the id of the source's first
    window among all windows of the fit.
    """
    for ids, X in source.raw_blocks(begin):
        rows = stage.piece_rows(X)
        pieces = list(zip(torch.split(ids + first, rows), torch.split(X, rows), strict=True))
        for result in for_each(lambda piece: stage.summarise(*piece, kept), pieces):
            if isinstance(result, Sums):
                sums.merge(result)
            else:
                sums.add(result)
        yield len(ids)


# ----------------------------------------------------------------------- passes


def core_limit(setting: Setting, count: int) -> int:
    """Return the maximum number of entries of a compressed window, for `count` windows."""
    return largest_core(count) if isinstance(setting, str) else _LARGEST_CORE


@dataclass
class Passes:
    """The passes of one fit, from the first or resumed.

    Parameters
    ----------
    source : the raw windows. If it has a method `add_sums(stage, sums, first)`, this adds the windows from `first` and
        yields their numbers, block by block; otherwise they are read here
    stage : the first of the passes, and later the current one
    compression : "auto", None or the rank of each mode, as for `CPD`
    after_block : called after each block of each pass
    masks_of : function of the number of entries of a mean that returns masks (N,) of parts of the windows, whose
        moments the last pass collects, too, as `parts`
    """

    source: WindowSource
    stage: Stage
    compression: Setting = "auto"
    after_block: Callable[[Passes], None] | None = None
    masks_of: Callable[[int], Sequence[Tensor]] | None = None
    parts: list[Moments] = field(default_factory=list, init=False)
    done: int = field(default=0, init=False)
    sums: Any = field(default=None, init=False)
    _kept: Kept | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._begin(self.stage)

    def run(self) -> Moments:
        """Run the passes that are left, and return the moments; the tensorizer of `stage` is calibrated afterwards."""
        self._reach_core()
        both = None
        if self.masks_of is not None:
            if self.done:  # a checkpoint has no parts: repeat the pass
                self._begin(self.stage)
            masks = self.masks_of(len(self.sums.mean))
            self.parts = self._start_parts([0] * len(masks))
            everything = torch.ones(self.source.n_windows, dtype=torch.bool)
            both = Parts([self.sums, *self.parts], [everything, *masks])
        self._add(both)
        moments: Moments = self.sums
        moments.finish()
        for part in self.parts:
            part.to_cpu()
        return moments

    def filled_by(self, solver: Solver | None) -> Moments:
        """Read the windows again, and return their moments with missing entries filled by a solver, or 0."""
        return Passes(self.source, replace(self.stage, fill=solver, apart=False)).run()

    def of_parts(self, parts: Sequence[Tensor]) -> list[Moments]:
        """Return the moments of several parts of the windows, masks (N,), collected in the same pass."""
        self._reach_core()
        collected = self._start_parts([int(part.sum()) for part in parts])
        self._add(Parts(collected, parts))
        for moments in collected:
            moments.finish()
        return collected

    def arrays(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return the sums after a block, as arrays and a JSON header, to resume from them."""
        arrays, header = self.stage.described()
        return arrays | self.sums.arrays(), header | {"done": self.done}

    def restore(self, arrays: dict[str, np.ndarray], header: dict[str, Any]) -> None:
        """Continue after the block at which `arrays` was called."""
        self._begin(self.stage.restored(arrays, header))
        self.done = int(header["done"])
        if self.done == self.source.n_windows and isinstance(self.sums, Moments):
            self.sums = self.stage.start(self.source.example())  # finished ones are on the CPU
        self.sums.restore(arrays)

    def _start_parts(self, counts: Sequence[int]) -> list[Moments]:
        """Return empty moments of parts of so many windows; 0 to keep none of them."""
        stages = [replace(self.stage, n_windows=count) for count in counts]
        return [stage.start(self.source.example(), self.source.device) for stage in stages]

    def _reach_core(self) -> None:
        """Run the passes before the last, and begin the last one, unless it has begun."""
        source, setting = self.source, self.compression
        of_fit = setting, source.n_windows, source.dtype
        if self.stage.name == "floor":
            if self.stage.tensorize is not None and not self.stage.tensorize.is_measured:
                self._add()
            axes = self.stage.following(self.sums, *of_fit)
            shape = tensor_shape(axes.tensorize, source.example())
            check_ranks(setting, shape, core_limit(setting, source.n_windows))
            if setting is None and not axes.finds_mean:
                self._begin(replace(axes, name="core", compression=Compression.none(shape)))
                return
            self._begin(axes)
            size = source.n_windows * math.prod(shape) * source.dtype.itemsize
            on_cpu = source.device.type == "cpu" and not hasattr(source, "add_sums")
            self._kept = Kept() if self.stage.tensorize is not None and on_cpu and size <= _KEPT_BYTES else None
        if self.stage.name == "axes":
            self._add()
            finds_mean, shape = self.stage.finds_mean, self.sums["total"].shape
            self._begin(self.stage.following(self.sums, *of_fit))
            if self._kept is not None and finds_mean and self.stage.tensorize is not None:
                centre = self.stage.tensorize.uncentred(torch.zeros(1, *shape, dtype=torch.float64))
                self._kept.centre = centre[0].to(source.dtype)

    def _begin(self, stage: Stage) -> None:
        """Begin a pass with empty sums."""
        ids = (0, 0) if hasattr(self.source, "add_sums") else None
        self.stage, self.done = stage, 0
        self.sums = stage.start(self.source.example(), self.source.device, ids)

    def _add(self, sums: Any = None) -> None:
        """Add the windows that are left to the sums of this pass."""
        sums = self.sums if sums is None else sums
        if hasattr(self.source, "add_sums"):
            counts: Iterator[int] = self.source.add_sums(self.stage, sums, self.done)
        else:
            counts = add_windows(self.stage, self.source, sums, self.done, kept=self._kept)
        for count in counts:
            self.done += count
            if self.after_block is not None:
                self.after_block(self)
