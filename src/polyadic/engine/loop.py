"""The fit driver: sweeps of Algorithm 1 (full batch) and Algorithm 2 (mini-batch), and the stop rule (appendix C).

Both algorithms are built from the functions of `als`. Algorithm 1 uses all windows at once, starts the fixed-point rule
from the coefficients of the last sweep, and does not blend.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from polyadic.core import step as als
from polyadic.core.algebra import project
from polyadic.core.consensus import average_components
from polyadic.core.step import LossSums, Objective, State, Statistics
from polyadic.core.terms import TERMS, Term
from polyadic.engine.second_moments import SecondMoments, keep_shared, shared
from polyadic.errors import PolyadicError
from polyadic.team import ALONE, Team

__all__ = [
    "BatchSource",
    "Fit",
    "FitProgress",
    "FitSettings",
    "History",
    "empty_history",
    "has_converged",
    "normalise_components",
]

_CHUNK_BYTES = 256 * 2**20
_KEPT_BYTES = 2**30
_MOMENT_BYTES = 16 * 2**20
_GPU_BATCHES = 32

History = dict[str, list[float]]


def empty_history() -> History:
    """Return the history of a fit before its first sweep."""
    return {name: [] for name in ("loss", *TERMS, "seconds")}


@dataclass(frozen=True)
class FitSettings:
    """Settings of the minimisation, with the meaning of the estimator's parameters of the same names."""

    solver: str
    learning_rate: float
    batch_size: int | None
    max_sweeps: int
    tol: float
    patience: int
    seed: int
    restarts: int = 1
    consensus: bool = False

    @property
    def attempts(self) -> int:
        """Number of attempts: one per restart, and one for the consensus."""
        return self.restarts + int(self.consensus)


class BatchSource(Protocol):
    """Source of batches: windows by id, as tensors, with their augmented views for a given sweep."""

    @property
    def n_windows(self) -> int: ...

    @property
    def n_views(self) -> int: ...

    def order(self, seed: int, sweep: int) -> Tensor:
        """Return the order in which a sweep visits the windows: (N,)."""
        ...

    def batches(self, parts: Sequence[Tensor], sweep: int) -> Iterable[tuple[Tensor, Tensor]]:
        """Yield each part, window ids (b,), with its `views`."""
        ...

    def views(self, ids: Tensor, sweep: int) -> Tensor:
        """Return the windows `ids` and, if `n_views` is 2, their augmented views: (n_views · b, I, J, …)."""
        ...


@dataclass
class FitProgress:
    """Progress of a fit; together with its `State`, it contains everything needed to resume.

    history : for each sweep of this attempt the total `loss`, each term summed over the batches, and the `seconds`
    batch : number of batches done in the current sweep
    total : (5,) float64, terms by `Term`, summed over those batches
    bases : Tikhonov term of the bases at the start of the sweep
    seconds : time spent on the sweep
    done : whether this attempt is complete
    finished : final losses of the previous attempts
    best, best_history : state, without coefficients, and history of the attempt with the lowest loss, in every process
    bases_of : the bases of each previous attempt, for a consensus
    spent : total seconds of the sweeps of previous attempts
    """

    history: History = field(default_factory=empty_history)
    batch: int = 0
    total: Tensor = field(default_factory=lambda: torch.zeros(len(Term), dtype=torch.float64, device="cpu"))
    bases: float = 0.0
    seconds: float = 0.0
    done: bool = False
    finished: list[float] = field(default_factory=list)
    best: State | None = None
    best_history: History = field(default_factory=empty_history)
    bases_of: list[list[Tensor]] = field(default_factory=list)
    spent: float = 0.0

    @property
    def attempt(self) -> int:
        """Index of the current attempt, from 0."""
        return len(self.finished)


OnStep = Callable[[FitProgress, State], None]


@dataclass
class Fit:
    """One fit: its data, objective, settings and callbacks. Call `run` once.

    With `settings.restarts` there are several attempts from different initial bases, and the one with the lowest loss
    is kept. With `settings.consensus` there is one more attempt, a single sweep from the consensus of the others, and
    that one is kept.

    Parameters
    ----------
    source : source of batches
    state : the initial bases; modified by every sweep, with components normalised at the end, and complete in every
        process
    objective, settings : the objective, and how to minimise it
    progress : the progress to resume from, if `state` is that of an interrupted fit
    on_sweep : called after every sweep with the history so far
    on_step : called with the progress and the state between batches (of Algorithm 2) and after every sweep
    on_pause : called likewise during work that can be interrupted, but is repeated on resume
    team : the processes of the fit; all run the same fit and end with the same bases
    start : returns the initial bases of each further attempt, by its index
    on_attempt : called with the index of each attempt but the first when it starts
    fast_sweep : runs a whole sweep of Algorithm 2, or returns None and leaves the state unchanged
    share_key : identifies the tensors of the data, for `second_moments.sharing`
    """

    source: BatchSource
    state: State
    objective: Objective
    settings: FitSettings
    progress: FitProgress = field(default_factory=FitProgress)
    on_sweep: Callable[[History], None] | None = None
    on_step: OnStep | None = None
    on_pause: OnStep | None = None
    team: Team = ALONE
    start: Callable[[int], list[Tensor]] | None = None
    on_attempt: Callable[[int], None] | None = None
    fast_sweep: Callable[[State, int], Tensor | None] | None = None
    share_key: Hashable | None = None
    all_converged: bool = field(default=True, init=False)

    @property
    def converged(self) -> bool:
        """Whether the loss of the kept attempt converged; with a consensus, the losses of all its attempts."""
        losses, settings = self.progress.best_history["loss"], self.settings
        return self.all_converged if settings.consensus else has_converged(losses, settings.tol, settings.patience)

    def run(self) -> History:
        """Sweep until the loss has converged or `max_sweeps` are done, in each attempt.

        Returns
        -------
        the history of the best attempt: for each sweep the total `loss`, each term summed over the batches, and the
        `seconds`
        """
        if self.team.size > 1 and self.objective.graph is not None:
            raise PolyadicError("a given graph connects windows of all processes: use one process, or graph='complete'")
        # Second moments are computed once and shared by all attempts.
        full_batch = None if self._is_last() and self._is_done() else self._full_batch()
        while True:
            while not self._is_done():
                self._sweep(full_batch)
            self._finish_attempt()
            if self.progress.attempt >= self.settings.attempts:
                break
            self._begin_attempt()
        assert self.progress.best is not None
        self.state = self.progress.best
        normalise_components(self.state)
        return self.progress.best_history

    def _finish_attempt(self) -> None:
        """Keep the result of this attempt if it has the lowest loss so far, or is the consensus."""
        progress, settings, loss = self.progress, self.settings, self.progress.history["loss"][-1]
        if self.team.size > 1 or settings.attempts > 1:
            self.state.coefficients = None  # only needed for a next sweep, and too large to send and keep
        if progress.best is None or progress.attempt >= settings.restarts or loss < min(progress.finished):
            progress.best, progress.best_history = self.team.gather(self.state, self.source.n_views), progress.history
        if settings.consensus:
            progress.bases_of.append(self.state.factors)
            converged = has_converged(progress.history["loss"], settings.tol, settings.patience)
            self.all_converged &= converged or progress.attempt >= settings.restarts
        progress.finished.append(loss)
        progress.spent += sum(progress.history["seconds"])

    def _begin_attempt(self) -> None:
        assert self.start is not None
        attempt = self.progress.attempt
        bases = self.start(attempt) if attempt < self.settings.restarts else self._consensus()
        self.state, self.progress.history = State(bases), empty_history()
        if self.on_attempt is not None:
            self.on_attempt(attempt)

    def _consensus(self) -> list[Tensor]:
        """Return the consensus of the attempts so far, from the first process, because others may round differently."""
        fits = [[basis.double().cpu().numpy() for basis in bases] for bases in self.progress.bases_of]
        found = average_components(fits, self.progress.finished)
        return [
            self.team.broadcast(torch.from_numpy(basis).to(like))
            for basis, like in zip(found, self.state.factors, strict=True)
        ]

    def _full_batch(self) -> Callable[[], Tensor] | None:
        """Return a function that runs a sweep of Algorithm 1 and returns its terms, or None for Algorithm 2."""
        count = self.source.n_windows
        if self.settings.solver == "moments":
            moments = self._second_moments()
            return lambda: moments.sweep(self.state, self.objective, count)
        if self.settings.batch_size is None:
            chunks = _Chunks(self.source, self.state, self.team)
            return lambda: _full_batch_sweep(chunks, self.state, self.objective)
        return None

    def _second_moments(self) -> SecondMoments:
        """Compute second moments in one interruptible pass over the data; its time counts towards the first sweep."""
        begun, source, state = time.perf_counter(), self.source, self.state
        kept = None if self.share_key is None else shared(self.share_key)
        if kept is not None:
            return kept
        first = state.factors[0]
        moments = SecondMoments([len(factor) for factor in state.factors], first.dtype, first.device)
        room = _MOMENT_BYTES * (_GPU_BATCHES if first.is_cuda else 1)
        rows = max(1, room // (len(moments.C) * first.element_size()))
        parts = torch.split(torch.arange(source.n_windows, device="cpu"), rows)
        for _, T in _batches(source, [self.team.share(part) for part in parts], 0, state):
            moments.add(T)
            if self.on_pause is not None:
                self.on_pause(self.progress, state)
        moments.finish(self.team.sum)
        if self.share_key is not None:
            keep_shared(self.share_key, moments)
        self.progress.seconds += time.perf_counter() - begun
        return moments

    def _sweep(self, full_batch: Callable[[], Tensor] | None) -> None:
        """Run one sweep, or the rest of one, and record it in the history."""
        progress, state, team = self.progress, self.state, self.team
        begun = time.perf_counter() - progress.seconds
        fast = self._begin_sweep() if progress.batch == 0 else None
        if fast is not None:
            progress.total = fast
        elif full_batch is not None:
            progress.total = full_batch()
        else:
            self._mini_batch_sweep()
        # Different machines round differently: after each sweep all take the first one's values, so all stop together.
        state.factors = [team.broadcast(factor) for factor in state.factors]
        progress.total[Term.TIKHONOV] += progress.bases
        values = team.broadcast(progress.total).tolist()
        progress.history["loss"].append(sum(values))
        for term in Term:
            progress.history[term.key].append(values[term])
        progress.history["seconds"].append(time.perf_counter() - begun)
        progress.batch, progress.seconds, progress.done = 0, 0.0, self._is_done()
        if self.on_sweep is not None:
            self.on_sweep(progress.history)
        if self.on_step is not None:
            self.on_step(progress, state)

    def _begin_sweep(self) -> Tensor | None:
        """Reset the sums of a sweep; return the terms if the fast path has run the whole sweep, else None."""
        progress, state = self.progress, self.state
        state.energy = None
        # All terms are evaluated before the bases are updated, so that the loss belongs to a single point.
        progress.bases = self.objective.alpha * sum(float(f.square().sum()) for f in state.factors)
        progress.total = torch.zeros(len(Term), dtype=torch.float64, device=state.factors[0].device)
        return None if self.fast_sweep is None else self.fast_sweep(state, len(progress.history["loss"]))

    def _mini_batch_sweep(self) -> None:
        """Run the shuffled batches of one sweep of Algorithm 2, from `progress.batch`; the last one may be smaller."""
        source, settings, progress, team = self.source, self.settings, self.progress, self.team
        sweep = len(progress.history["loss"])
        order = source.order(settings.seed, sweep)
        parts = torch.split(order, settings.batch_size or len(order))
        if progress.batch > len(parts):
            raise PolyadicError(
                f"the fit cannot resume after batch {progress.batch}: a sweep has only {len(parts)} "
                f"batch{'es' * (len(parts) != 1)}"
            )
        begun = time.perf_counter() - progress.seconds
        own = [team.share(part) for part in parts[progress.batch :]]
        for ids, T in _batches(source, own, sweep, self.state):
            progress.total = progress.total + als.step(
                T,
                self.state,
                self.objective,
                source.n_views,
                settings.solver,
                settings.learning_rate,
                ids,
                watch=progress.batch == 0,
                team=team,
                count=len(parts[progress.batch]),
            )
            progress.batch += 1
            if self.on_step is not None and progress.batch < len(parts):
                progress.seconds = time.perf_counter() - begun
                self.on_step(progress, self.state)

    def _is_last(self) -> bool:
        return self.progress.attempt + 1 >= self.settings.attempts

    def _is_done(self) -> bool:
        """Return whether this attempt is complete."""
        losses, settings = self.progress.history["loss"], self.settings
        if self.progress.attempt >= settings.restarts:
            return len(losses) > 0
        return len(losses) >= settings.max_sweeps or has_converged(losses, settings.tol, settings.patience)


def has_converged(losses: Sequence[float], tol: float, patience: int) -> bool:
    """Return whether a fit has converged by the paper's stop rule.

    The relative change of the loss must be below `tol` in each of the last `patience` sweeps.

    Examples
    --------
    >>> has_converged([9.0, 5.0, 5.0, 5.0], tol=1e-3, patience=2), has_converged([9.0, 5.0, 5.0], tol=1e-3, patience=2)
    (True, False)
    """
    recent = losses[-patience - 1 :]
    return len(recent) == patience + 1 and all(
        abs(after - before) <= tol * abs(before) for before, after in pairwise(recent)
    )


def _batches(source: BatchSource, parts: Sequence[Tensor], sweep: int, state: State) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the source's batches of these parts; an empty part, which a process may have, bypasses the source."""
    batches = iter(source.batches([part for part in parts if len(part)], sweep))
    shape = [len(factor) for factor in state.factors]
    for part in parts:
        yield next(batches) if len(part) else (part, state.factors[0].new_zeros(0, *shape))
    next(batches, None)  # run the code after its last yield


# -------------------------------------------------------------- Algorithm 1


class _Chunks(Iterable[tuple[Tensor, Tensor]]):
    """This process's share of the data in chunks of about 256 MiB; if all fit into 1 GiB, they are built once.

    Algorithm 1 augments once: every sweep uses the augmented views of sweep 0.
    """

    def __init__(self, source: BatchSource, state: State, team: Team) -> None:
        self.source, self.state, self.team = source, state, team
        window = source.views(torch.arange(1, device="cpu"), 0)
        self.windows = team.share(torch.arange(source.n_windows, device="cpu"))
        self.parts = torch.split(self.windows, max(1, _CHUNK_BYTES // window.nbytes))
        self.keeps = len(self.windows) * window.nbytes <= _KEPT_BYTES
        self.kept: list[tuple[Tensor, Tensor]] = []

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        if self.kept:
            yield from self.kept
            return
        built = []
        for ids, T in _batches(self.source, self.parts, 0, self.state):
            if self.keeps:
                # The source reuses its memory for the next batches.
                built.append((ids, T if len(self.parts) == 1 else T.clone()))
            yield ids, T
        self.kept = built


def _full_batch_sweep(chunks: _Chunks, state: State, objective: Objective) -> Tensor:
    """Run one sweep of Algorithm 1: coefficients of all windows, then the bases, with one chunk in memory at a time.

    If coefficients depend on each other (alignment, graph), the data are read twice: for the projections of all windows
    and, once the coefficients are known, for the statistics.
    """
    G = als.hadamard(als.grams_of(state.factors))
    team, n_views, count = chunks.team, chunks.source.n_views, chunks.source.n_windows
    sums = LossSums.zeros(n_views, len(G), G.device)
    statistics: Statistics | None = None
    coefficients = None if objective.separable else _all_coefficients(chunks, state, objective, G, sums)
    for ids, T in chunks:
        M = project(T, state.factors)
        if coefficients is None:
            X = als.solve_coefficients(M, G, objective, n_views)
            sums.add(rows=als.row_sums(X, objective, n_views, None))
        else:
            rows = (ids - chunks.windows[:1]).to(coefficients.device)
            X = torch.cat([view[rows] for view in coefficients.chunk(n_views)])
        sums.add(errors=als.view_errors(T, X, M, G, n_views))
        statistics = Statistics.of(X, T).added_to(statistics)
    assert statistics is not None
    statistics, values = team.start_sum(statistics)(sums.values)
    state.coefficients = coefficients
    state.energy = statistics.S.diagonal()
    add = team.sum_by_mode(statistics.Y)
    state.factors = als.update_bases(
        state.factors, statistics, objective.alpha, add=add, nonnegative=objective.nonnegative
    )
    return LossSums(values).terms(objective, n_views, count)


def _all_coefficients(chunks: _Chunks, state: State, objective: Objective, G: Tensor, sums: LossSums) -> Tensor:
    """Solve for X and X̃ of all windows, starting from those of the last sweep; adds their part to `sums`."""
    n_views, count, add = chunks.source.n_views, chunks.source.n_windows, chunks.team.sum
    M = _stack((project(T, state.factors) for _, T in chunks), n_views)
    adjacency = None if objective.graph is None else objective.graph(torch.arange(count, device="cpu"))
    X = als.solve_coefficients(M, G, objective, n_views, state.coefficients, adjacency, True, count, add)
    sums.add(rows=als.row_sums(X, objective, n_views, adjacency))
    return X


def _stack(pieces: Iterable[Tensor], n_views: int) -> Tensor:
    """Combine chunks of stacked views into one stack of views."""
    views = zip(*(piece.chunk(n_views) for piece in pieces), strict=True)
    return torch.cat([row for view in views for row in view])


# -------------------------------------------------------------- at the end


def normalise_components(state: State) -> None:
    """Remove the indeterminacies of the model: equal norms of the bases, order by energy, largest entries positive.

    The product of the bases is unchanged up to order and sign, so coefficients keep their size.
    """
    device = state.factors[0].device
    # On the CPU: faster than loading the kernels on a GPU.
    factors, energy = [factor.cpu() for factor in state.factors], None if state.energy is None else state.energy.cpu()
    norms = torch.stack([torch.linalg.vector_norm(factor.double(), dim=0) for factor in factors])
    weights = norms.prod(dim=0).square()
    order = torch.argsort(weights if energy is None else energy * weights, descending=True, stable=True)
    common = norms.log().mean(dim=0).exp()
    scales = torch.where(norms > 0, common / norms, torch.zeros_like(norms))
    flips = torch.ones_like(weights)
    for mode, factor in enumerate(factors):
        largest = factor.gather(0, factor.abs().argmax(dim=0, keepdim=True))[0]
        sign = torch.where(largest < 0, -1.0, 1.0).to(factor.dtype)
        flips = flips * sign
        state.factors[mode] = (factor * (scales[mode].to(factor.dtype) * sign))[:, order].contiguous().to(device)
    state.coefficients = None
    state.energy = None if energy is None else energy[order].to(device)
    if state.memory is not None:
        order, signs = order.to(device), flips[order].to(device)
        Y, S = state.memory.Y[order], state.memory.S[order][:, order]
        Y = Y * signs.to(Y.dtype).reshape(-1, *[1] * (Y.ndim - 1))
        state.memory = Statistics(Y, S * signs[:, None] * signs)
