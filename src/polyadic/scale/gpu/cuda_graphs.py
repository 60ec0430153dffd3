"""Sweeps of Algorithm 2 on a GPU, captured as CUDA graphs: `core.step` without synchronising with the host.

This computes the same as `step` in fewer launches, on tensors in half precision, and keeps the bases in float64 between
steps. A sweep in which a matrix is singular is left to the plain version, which handles that case.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from triton import next_power_of_2

from polyadic.core import alignment
from polyadic.core import step as als
from polyadic.core.algebra import gram, project
from polyadic.core.solve import Settings, Sweep
from polyadic.core.step import Term
from polyadic.data.batches import WindowSource
from polyadic.scale.gpu.device_batches import ORDER, BatchGroups
from polyadic.scale.gpu.kernels.steps import (
    LARGEST_PRODUCT,
    coefficients,
    collect,
    contract,
    halves,
    inverse,
    least_squares,
    project_halves,
    solve,
    tally,
)


def captured_sweep(
    source: WindowSource, objective: als.Objective, settings: Settings, shape: tuple[int, ...], rank: int, plain: Sweep
) -> Sweep:
    """Return a function that runs a captured sweep of tensors of this shape, or `plain` for what cannot be captured.

    What can: mini-batches of raw windows of which an STFT makes tensors of logarithms, in half precision.
    """
    sequential = objective.nonnegative or objective.graph_weight > 0  # the former are updated on the CPU
    if settings.batch_size is None or settings.solver != "blend" or sequential or source.tensorize is None:
        return plain
    layout = source.tensorize.layout(source.samples.shape[-1], source.device)
    suits = layout is not None and layout.capturable and layout.half and layout.order == ORDER and len(shape) == 3
    suits = suits and (source.augment is None or source.augment.capturable)
    batch, size = (max(next_power_of_2(n), 16) for n in (min(settings.batch_size, source.n_windows), rank))
    if not suits or batch * size**2 > LARGEST_PRODUCT:
        return plain
    return Sweeps(source, objective, settings, shape, plain)


class Steps:
    """The state of a fit in fixed device memory, and the steps that update it.

    Tensors are (views · b, I, J, K) in half precision, stored in the order of `ORDER`.

    Parameters
    ----------
    state : factors of shapes (I, R), (J, R), (K, R)
    """

    def __init__(self, objective: als.Objective, settings: Settings, views: int, state: als.State) -> None:
        self.objective, self.settings, self.views = objective, settings, views
        first = state.factors[0]
        self.device, self.rank = first.device, first.shape[1]
        self.sizes = [len(factor) for factor in state.factors]
        exact = torch.zeros(0, dtype=torch.float64, device=self.device)
        self.bases = [exact.new_empty(size, self.rank) for size in self.sizes]
        self.peaks = torch.empty(3, self.rank, dtype=torch.float32, device=self.device)
        self.narrow = [torch.empty(size, self.rank, dtype=torch.float32, device=self.device) for size in self.sizes]
        self.grams = exact.new_empty(3, self.rank, self.rank)
        self.Y = torch.zeros(math.prod(self.sizes), self.rank, dtype=torch.float32, device=self.device)
        self.S = exact.new_zeros(self.rank, self.rank)
        self.totals = exact.new_zeros(len(Term))
        self.energy = exact.new_zeros(self.rank)
        self.flag = torch.zeros(1, dtype=torch.int32, device=self.device)
        self.eta = exact.new_tensor(settings.learning_rate)
        self.ridge = exact.new_tensor(objective.alpha)
        tolerance = 4 * self.rank * torch.finfo(torch.float64).eps
        self.limits = exact.new_tensor([1 / tolerance, torch.finfo(torch.float64).max])
        self._weights: dict[int, Tensor] = {}
        self._side_stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]

    @contextmanager
    def _in_side_stream(self) -> Iterator[None]:
        """Run the block on the side stream, concurrently with later work until `_join_side_stream`."""
        self._side_stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._side_stream):
            yield

    def _join_side_stream(self) -> None:
        torch.cuda.current_stream(self.device).wait_stream(self._side_stream)

    def load(self, state: als.State) -> None:
        """Copy a state to the device buffers."""
        for mode, factor in enumerate(state.factors):
            self.bases[mode].copy_(factor)
            self.narrow[mode].copy_(factor)
            self.peaks[mode] = self.narrow[mode].abs().amax(dim=0)
            torch.mm(self.bases[mode].T, self.bases[mode], out=self.grams[mode])
        for number in (self.totals, self.energy, self.flag):
            number.zero_()

    def unload(self, state: als.State) -> None:
        """Copy the device buffers to a state."""
        state.factors = [factor.clone() for factor in self.narrow]
        state.energy = self.energy.clone()

    def weights(self, batch: int) -> Tensor:
        """Return β and the weights of pairs in a batch of this size: (3,)."""
        if batch not in self._weights:
            random, positive = alignment._weights(batch, self.objective.gamma_for(batch))
            values = [self.objective.beta, random, positive - random]
            self._weights[batch] = torch.tensor(values, dtype=torch.float64, device=self.device)
        return self._weights[batch]

    def step(self, T: Tensor) -> None:
        """Run `step` on one batch (views · b, I, J, K), in place; the totals do not include the energy of T."""
        flat = T.permute(0, *(1 + mode for mode in ORDER)).flatten(1)  # in the order of its memory
        align = self.objective.beta > 0 and self.views == 2
        with self._in_side_stream():
            V, product = inverse(self.grams, -1, self.ridge, self.limits, self.flag)
        partial = project_halves(flat, halves([self.narrow[mode] for mode in ORDER], self.peaks))
        self._join_side_stream()
        M, ls = least_squares(partial, V, self.peaks)
        weights = self.weights(len(T) // self.views)
        X, peak = coefficients(M, ls, V, weights, self.totals, self.views, align, self.objective.rounds)
        tally(X, self.views, product, self.S, self.totals, self.energy, self.ridge)
        with self._in_side_stream():
            first = self._inverse(0)
        collect(flat, X, peak, self.Y)
        self._update(first)

    def _update(self, first: Tensor) -> None:
        """Run `update_bases`: A from Y with the other modes contracted, B and C from Y contracted with the new A.

        `first` is the ridge inverse for A, which does not depend on Y.
        """
        (rows, J, K), R = self.sizes, self.rank
        without_last = contract(self.Y, self.narrow[1], rows * K, J * R, R, torch.float32)
        mttkrp = contract(without_last, self.narrow[2], rows, K * R, R, torch.float64)
        self._join_side_stream()
        self._solve(0, mttkrp, first)
        with self._in_side_stream():
            second = self._inverse(1)
        left = contract(self.Y, self.narrow[0], K * J, R, K * J * R, torch.float32)  # (K, J, R)
        mttkrp = contract(left, self.narrow[2], J, R, J * R, torch.float64)
        self._join_side_stream()
        self._solve(1, mttkrp, second)
        with self._in_side_stream():
            third = self._inverse(2)
        mttkrp = contract(left, self.narrow[1], K, J * R, R, torch.float64)
        self._join_side_stream()
        self._solve(2, mttkrp, third)

    def _inverse(self, mode: int) -> Tensor:
        return inverse(self.grams, mode, self.ridge, self.limits, self.flag, self.S)[0]

    def _solve(self, mode: int, mttkrp: Tensor, V: Tensor) -> None:
        solve(mttkrp, V, self.bases[mode], self.narrow[mode], self.grams[mode], self.peaks[mode], self.eta)


@dataclass
class Sweeps:
    """Captured sweeps of one fit, used instead of the plain mini-batch sweep."""

    source: WindowSource
    objective: als.Objective
    settings: Settings
    shape: tuple[int, ...]
    plain: Sweep

    def __post_init__(self) -> None:
        assert self.settings.batch_size is not None
        self._groups = BatchGroups(self.source, self.settings.batch_size, self.shape)
        self._steps: Steps | None = None
        # High priority: the many small kernels of the steps run before the large ones of the next group.
        self._stream = torch.cuda.Stream(self.source.device, priority=-1)  # type: ignore[no-untyped-call]
        self._graphs: dict[tuple[int, int, int], torch.cuda.CUDAGraph] = {}

    def __call__(self, state: als.State, sweep: int) -> Tensor:
        """Run one sweep: update `state` and return its terms (5,)."""
        self._stream.wait_stream(torch.cuda.current_stream(self.source.device))
        with torch.cuda.stream(self._stream):
            totals = self._captured(state, sweep)
        torch.cuda.current_stream(self.source.device).wait_stream(self._stream)
        return self.plain(state, sweep) if totals is None else totals

    def _captured(self, state: als.State, sweep: int) -> Tensor | None:
        """Run one sweep as CUDA graphs; return None, with `state` unchanged, if a matrix is singular."""
        views = self.source.n_views
        if self._steps is None:
            self._steps = Steps(self.objective, self.settings, views, state)
        steps = self._steps
        steps.load(state)
        order = self.source.order(self.settings.seed, sweep)
        parts = torch.split(order, self.settings.batch_size or len(order))
        watch = sweep == 0 and self.objective.beta > 0
        for slot, batches in self._groups(parts, sweep):
            if watch:  # once in a fit: this waits for the device
                M = project(batches[0].float(), state.factors)
                G = gram([factor.double() for factor in state.factors])
                als.solve_coefficients(M, G, self.objective, views, watch=True)
                watch = False
            key = (slot, len(batches), len(batches[0]))
            if key not in self._graphs:
                self._graphs[key] = self._capture(batches)
            self._graphs[key].replay()
        if int(steps.flag):
            return None
        steps.unload(state)
        totals = steps.totals.clone()
        totals[:views] += self._groups.energy
        totals[Term.FIT : Term.FIT_AUGMENTED + 1].clamp_(min=0.0)
        return totals

    def _capture(self, batches: Sequence[Tensor]) -> torch.cuda.CUDAGraph:
        """Capture the steps of these batches as a CUDA graph, after a trial step (undone) that compiles the kernels."""
        steps = self._steps
        assert steps is not None
        sums = (steps.peaks, steps.grams, steps.Y, steps.S, steps.totals, steps.energy, steps.flag)
        kept = [*steps.bases, *steps.narrow, *sums]
        before = [number.clone() for number in kept]
        steps.step(batches[0])
        torch.cuda.synchronize(self.source.device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream):
            for T in batches:
                steps.step(T)
        for number, old in zip(kept, before, strict=True):
            number.copy_(old)
        return graph
