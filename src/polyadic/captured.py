"""Sweeps of Algorithm 2 on a GPU, captured as CUDA graphs: the steps of `als.step` without a word to the host.

The plain version is `als.step`; this one computes the same in fewer launches, keeps the bases in float64 between them,
and leaves a sweep in which a matrix turned out singular to the plain one, which knows what to do about it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from polyadic import alignment, als, kernels
from polyadic.algebra import khatri_rao
from polyadic.sources import WindowSource
from polyadic.stretches import Stretches

__all__ = ["Steps", "Sweeps", "sweeps"]

_LARGEST_RANK = 128


def sweeps(
    source: WindowSource, objective: als.Objective, settings: als.Settings, shape: tuple[int, ...]
) -> Sweeps | None:
    """Captured sweeps of this fit, or None where the plain ones have to do.

    Parameters
    ----------
    shape : (I, J, …) of one window's tensor
    """
    suits = (
        kernels.available(source.device, source.dtype)
        and settings.batch_size is not None
        and len(shape) == 3
        and objective.graph_weight == 0
    )
    return Sweeps(source, objective, settings, shape) if suits else None


class Steps:
    """The state of a fit in fixed places on the device, and the steps that change it.

    Parameters
    ----------
    factors : matrices of shapes (I, R), (J, R), (K, R)
    memory : statistics of earlier batches
    """

    def __init__(self, objective: als.Objective, settings: als.Settings, views: int, state: als.State) -> None:
        self.objective, self.settings, self.views = objective, settings, views
        first = state.factors[0]
        self.device, self.rank = first.device, first.shape[1]
        self.sizes = [len(factor) for factor in state.factors]
        exact = torch.zeros(0, dtype=torch.float64, device=self.device)
        self.bases = [exact.new_empty(size, self.rank) for size in self.sizes]
        self.narrow = [torch.empty(size, self.rank, device=self.device) for size in self.sizes]
        self.grams = exact.new_empty(3, self.rank, self.rank)
        self.Y = torch.zeros(math.prod(self.sizes), self.rank, device=self.device)
        self.S = exact.new_zeros(self.rank, self.rank)
        self.totals = exact.new_zeros(len(als.TERMS))
        self.energy = exact.new_zeros(self.rank)
        self.flag = torch.zeros(1, dtype=torch.int32, device=self.device)
        self.remembers = settings.solver == "memory"
        self.forgotten = 1 - settings.learning_rate if self.remembers else 0.0
        self.eta = 1.0 if self.remembers else settings.learning_rate
        self.ridge = exact.new_tensor([objective.alpha, self.forgotten])
        tolerance = 4 * self.rank * torch.finfo(torch.float64).eps
        self.limits = exact.new_tensor([1 / tolerance, torch.finfo(torch.float64).max])
        self._weights: dict[int, Tensor] = {}
        self._beside = None
        if self.device.type == "cuda":
            self._beside = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """What is done in here may run beside what comes after it, until `_rejoin`."""
        if self._beside is None:
            yield
            return
        self._beside.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._beside):
            yield

    def _rejoin(self) -> None:
        if self._beside is not None:
            torch.cuda.current_stream(self.device).wait_stream(self._beside)

    def load(self, state: als.State) -> None:
        """Take over a state."""
        for mode, factor in enumerate(state.factors):
            self.bases[mode].copy_(factor)
            self._narrowed(mode)
        for number in (self.Y, self.S, self.totals, self.energy, self.flag):
            number.zero_()
        if state.memory is not None:
            self.Y.copy_(state.memory.Y.movedim(0, -1).reshape(-1, self.rank))
            self.S.copy_(state.memory.S)

    def unload(self, state: als.State) -> None:
        """Give the state back."""
        state.factors = [factor.clone() for factor in self.narrow]
        state.energy = self.energy.clone()
        if self.remembers:
            state.memory = als.Statistics(self.Y.clone().reshape(*self.sizes, self.rank).movedim(-1, 0), self.S.clone())

    def weights(self, batch: int) -> Tensor:
        """β and the weights of pairs in a batch of this size: (3,)."""
        if batch not in self._weights:
            random, positive = alignment._weights(batch, self.objective.gamma_for(batch))
            values = [self.objective.beta, random, positive - random]
            self._weights[batch] = torch.tensor(values, dtype=torch.float64, device=self.device)
        return self._weights[batch]

    def watched(self, T: Tensor) -> Tensor:
        """How rows of a batch would change in rounds of the fixed-point rule: (rounds,), see `alignment.changes`."""
        from polyadic.kernels.steps import inverse, project

        V, _ = inverse(self.grams, -1, self.ridge, self.limits, self.flag)
        least_squares = (project(T.flatten(1), khatri_rao(self.narrow)) @ V).float()
        ls, augmented = least_squares.chunk(2)
        v2 = alignment.pull(augmented, self.objective.gamma_for(len(ls)))
        return alignment.changes(ls, V.float(), v2, self.objective.beta)

    def step(self, T: Tensor) -> None:
        """`als.step` on one batch (views · b, I, J, K), all of it in place; the energy of T is not in the totals."""
        from polyadic.kernels.steps import inverse, project, tally

        batch, flat = len(T) // self.views, T.flatten(1)
        with self._aside():
            V, product = inverse(self.grams, -1, self.ridge, self.limits, self.flag)
        M = project(flat, khatri_rao(self.narrow))
        self._rejoin()
        X, exact = self._coefficients(M, V, batch)
        rows = exact.reshape(self.views, batch, self.rank)
        tally(rows.mT @ rows, product, self.S, self.totals, self.energy, self.ridge)
        with self._aside():
            first = self._inverse(0)
        torch.addmm(self.Y, flat.T, X, beta=self.forgotten, out=self.Y)
        self._update(first)

    def _coefficients(self, M: Tensor, V: Tensor, batch: int) -> tuple[Tensor, Tensor]:
        from polyadic.kernels.steps import LARGEST_TILE, coefficients

        align = self.objective.beta > 0 and self.views == 2
        if kernels.power_of_two(batch, 16) * kernels.power_of_two(self.rank, 16) <= LARGEST_TILE:
            weights = self.weights(batch)
            return coefficients(M, V, weights, self.totals, self.views, align, self.objective.rounds)
        X = als.fixed_point(M.float(), V, self.objective, self.views)
        exact = X.double()
        self.totals[: self.views] -= 2 * (exact * M).reshape(self.views, -1).sum(dim=1)
        if align:
            first, second = exact.chunk(2)
            self.totals[3] += self.objective.beta * alignment.loss(first, second, self.objective.gamma_for(batch))
        return X, exact

    def _update(self, first: Tensor) -> None:
        """`als.update_bases`: A and B from Y with C contracted, C from Y with the new A and B contracted.

        Parameters
        ----------
        first : the ridge inverse for A, which needs nothing of Y
        """
        from polyadic.kernels.steps import contract

        (rows, J, K), R = self.sizes, self.rank
        A, B, C = self.narrow
        without_last = contract(self.Y, C, rows * J, K * R, R, torch.float32)
        mttkrp = contract(without_last, B, rows, J * R, R, torch.float64)
        self._rejoin()
        self._solve(0, mttkrp, first)
        with self._aside():
            without_first = contract(self.Y, A, J * K, R, J * K * R, torch.float32)
        self._solve(1, contract(without_last, A, J, R, J * R, torch.float64), self._inverse(1))
        self._rejoin()
        self._solve(2, contract(without_first, B, K, R, K * R, torch.float64), self._inverse(2))

    def _inverse(self, mode: int) -> Tensor:
        from polyadic.kernels.steps import inverse

        return inverse(self.grams, mode, self.ridge, self.limits, self.flag, self.S)[0]

    def _solve(self, mode: int, mttkrp: Tensor, V: Tensor) -> None:
        self.bases[mode].lerp_(mttkrp @ V, self.eta)
        self._narrowed(mode)

    def _narrowed(self, mode: int) -> None:
        self.narrow[mode].copy_(self.bases[mode])
        torch.mm(self.bases[mode].T, self.bases[mode], out=self.grams[mode])


@dataclass
class Sweeps:
    """Sweeps of one fit; call it in place of `als`' own mini-batch sweep."""

    source: WindowSource
    objective: als.Objective
    settings: als.Settings
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        assert self.settings.batch_size is not None
        self._stretches = Stretches(self.source, self.settings.batch_size, self.shape)
        self._steps: Steps | None = None
        # Steps are many small kernels in a row: they go first wherever the large ones of the next stretch run as well.
        self._stream = torch.cuda.Stream(self.source.device, priority=-1)  # type: ignore[no-untyped-call]
        self._graphs: dict[tuple[int, int, int], torch.cuda.CUDAGraph] = {}

    def __call__(self, state: als.State, sweep: int) -> Tensor | None:
        """One sweep; changes `state` and returns its `als.TERMS`, or None with `state` untouched if that did not work.

        Returns
        -------
        (5,) float64
        """
        if state.factors[0].shape[1] > _LARGEST_RANK:
            return None
        self._stream.wait_stream(torch.cuda.current_stream(self.source.device))
        with torch.cuda.stream(self._stream):
            totals = self._sweep(state, sweep)
        torch.cuda.current_stream(self.source.device).wait_stream(self._stream)
        return totals

    def _sweep(self, state: als.State, sweep: int) -> Tensor | None:
        views = self.source.n_views
        if self._steps is None:
            self._steps = Steps(self.objective, self.settings, views, state)
        steps = self._steps
        steps.load(state)
        order = self.source.order(self.settings.seed, sweep)
        parts = torch.split(order, self.settings.batch_size or len(order))
        changes: Tensor | None = None
        for number, stretch in enumerate(self._stretches(parts, sweep)):
            if number == 0 and self.objective.beta > 0:
                changes = steps.watched(stretch.batches()[0])
            key = (stretch.slot, stretch.count, stretch.size)
            if key not in self._graphs:
                self._graphs[key] = self._captured(stretch.batches())
            self._graphs[key].replay()
        if changes is not None:
            als.warn_if_diverging(changes.tolist(), self.objective.beta)
        if int(steps.flag):
            return None
        steps.unload(state)
        totals = steps.totals.clone()
        totals[:views] += self._stretches.energy
        totals[:2].clamp_(min=0.0)
        return totals

    def _captured(self, batches: Sequence[Tensor]) -> torch.cuda.CUDAGraph:
        """The steps of these batches as a graph; they are tried first, which compiles what they need, and undone."""
        steps = self._steps
        assert steps is not None
        kept = [*steps.bases, *steps.narrow, steps.grams, steps.Y, steps.S, steps.totals, steps.energy, steps.flag]
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
