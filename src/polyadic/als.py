"""Alternating least squares for the objective of the paper: a step, a sweep, the stop rule (appendix C).

Algorithm 1 (full batch) and Algorithm 2 (mini-batch) share all their parts; the first sees all windows at once, starts
the fixed-point rule from the last sweep's coefficients and does not blend. The views of a batch lie stacked in one
tensor: first the b windows, then, where there is an augmentation, their b augmented views, so that both pass through
the same two matrix products.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import pairwise
from typing import Protocol, TypeVar

import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from polyadic import alignment, draws
from polyadic.algebra import (
    collect,
    contract,
    gram,
    project,
    ridge_inverse,
    ridge_solve,
    squared_errors,
)
from polyadic.alignment import Add
from polyadic.errors import PolyadicError
from polyadic.inputs import check_memory
from polyadic.threads import start

__all__ = [
    "ALONE",
    "TERMS",
    "History",
    "Objective",
    "Progress",
    "Settings",
    "Source",
    "State",
    "Statistics",
    "Team",
    "arrange",
    "fit",
    "fixed_point",
    "grams_of",
    "initial_factors",
    "settled",
    "solve_coefficients",
    "step",
    "update_bases",
    "warn_if_diverging",
]

TERMS = ("fit", "fit_augmented", "tikhonov", "self_supervised", "graph")
"""The terms of the objective, in the order in which a step returns them."""

_CHUNK_BYTES = 256 * 2**20
_Outcome = TypeVar("_Outcome")

History = dict[str, list[float]]


@dataclass(frozen=True)
class Objective:
    """What is minimised: Eqn. objective of the paper; for GR-SALS the graph term w·Tr(XᵀLX) instead of the alignment.

    Parameters
    ----------
    alpha : Tikhonov weight, ≥ 0
    beta : weight of the self-supervised loss, ≥ 0; it needs two views
    gamma : weight of the random pairs, or None for the number of windows at hand
    rounds : rounds of the fixed-point rule for each view, ≥ 1
    graph_weight : weight w of the graph term; 0 for none
    graph : from window ids (b,) to the graph's weights among them (b, b), or None for a complete graph of weights 1/b
    """

    alpha: float
    beta: float = 0.0
    gamma: float | None = None
    rounds: int = 1
    graph_weight: float = 0.0
    graph: Callable[[Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        if self.beta > 0 and self.graph_weight > 0:
            raise PolyadicError(
                f"an objective has an alignment or a graph, but beta={self.beta:g}, graph_weight={self.graph_weight:g}"
            )

    def gamma_for(self, count: int) -> float:
        """γ for a batch of `count` windows."""
        return float(count) if self.gamma is None else self.gamma

    @property
    def separable(self) -> bool:
        """Whether each window's coefficients depend on that window alone."""
        return self.beta == 0 and self.graph_weight == 0


@dataclass(frozen=True)
class Settings:
    """How it is minimised; the meaning of each is that of the estimator's argument of the same name."""

    solver: str
    learning_rate: float
    batch_size: int | None
    max_sweeps: int
    tol: float
    patience: int
    seed: int


class Source(Protocol):
    """Where batches come from: windows by id, already as tensors, with their augmented views for a given sweep."""

    @property
    def n_windows(self) -> int: ...

    @property
    def n_views(self) -> int: ...

    def order(self, seed: int, sweep: int) -> Tensor:
        """The order in which a sweep visits the windows: (N,)."""
        ...

    def batches(self, parts: Sequence[Tensor], sweep: int) -> Iterable[tuple[Tensor, Tensor]]:
        """Each of the parts, window ids (b,), with what `views` gives for it."""
        ...

    def views(self, ids: Tensor, sweep: int) -> Tensor:
        """Windows `ids` and, if `n_views` is 2, their augmentations: (n_views · b, I, J, …)."""
        ...


@dataclass(frozen=True)
class Statistics:
    """What a batch says about the bases; adding them up over batches or machines is exact.

    Y : (R, I, J, …), XᵀT + X̃ᵀT̃
    S : (R, R) float64, XᵀX + X̃ᵀX̃
    """

    Y: Tensor
    S: Tensor

    @classmethod
    def of(cls, X: Tensor, T: Tensor) -> Statistics:
        exact = X.double()
        return cls(collect(X, T), exact.T @ exact)

    def added_to(self, earlier: Statistics | None, weight: float = 1.0) -> Statistics:
        """weight·earlier + self."""
        if earlier is None:
            return self
        return Statistics(torch.add(self.Y, earlier.Y, alpha=weight), torch.add(self.S, earlier.S, alpha=weight))


@dataclass
class State:
    """Everything a fit carries from step to step.

    factors : bases of shapes (I, R), (J, R), …
    memory : statistics of earlier batches, for solver="memory"
    coefficients : (n_views · N, R), X and X̃ of the last sweep, for Algorithm 1
    energy : (R,), ‖x_r‖² over the current sweep, by which components are ordered
    """

    factors: list[Tensor]
    memory: Statistics | None = None
    coefficients: Tensor | None = None
    energy: Tensor | None = None


@dataclass
class Progress:
    """How far a fit has come: with its `State`, all it needs to go on.

    history : for each sweep that is done the total `loss`, each of `TERMS` summed over the batches, and the `seconds`
    batch : batches of the sweep at hand that are done
    total : (5,) float64, `TERMS` summed over those batches
    bases : Tikhonov term of the bases when that sweep began
    seconds : time spent on that sweep
    done : whether no sweep is left to do
    """

    history: History = field(default_factory=lambda: {name: [] for name in ("loss", *TERMS, "seconds")})
    batch: int = 0
    total: Tensor = field(default_factory=lambda: torch.zeros(len(TERMS), dtype=torch.float64))
    bases: float = 0.0
    seconds: float = 0.0
    done: bool = False


OnStep = Callable[[Progress, State], None]


class Team:
    """The processes that make one fit together, each with its share of every batch: here, one process alone.

    `polyadic.engine.processes` has one of several processes. What is said below to be the same is so in all of them.
    """

    rank, size = 0, 1

    def share(self, ids: Tensor) -> Tensor:
        """This process's share of some windows: (b,)."""
        return ids

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum of the processes' tensors, the same."""
        return tensor

    def agree(self, tensor: Tensor) -> Tensor:
        """The first process's tensor, the same."""
        return tensor

    def once(self, work: Callable[[], _Outcome]) -> _Outcome:
        """Do something in the first process only; its outcome or its error, the same."""
        return work()

    def send(self, statistics: Statistics) -> Callable[[Tensor], tuple[Statistics, Tensor]]:
        """Begin to add up what the processes found; the function it returns ends it, and adds up a vector, too.

        Of the statistics that come back, Y may still be this process's alone: `modes` says so.
        """
        return lambda sums: (statistics, sums)

    def modes(self, Y: Tensor) -> Add | None:
        """What adds up the MTTKRP of a mode, where that travels instead of Y."""
        return None

    def whole(self, state: State, n_views: int) -> State:
        """A state with all that the processes hold, in the first; `parted` undoes it."""
        return state

    def parted(self, state: State, n_views: int) -> State:
        """What this process holds of a whole state."""
        return state


ALONE = Team()


def initial_factors(
    shape: Sequence[int], rank: int, seed: int, dtype: torch.dtype, device: torch.device
) -> list[Tensor]:
    """Random bases with columns of norm 1, drawn on the CPU so that every device starts alike.

    Returns
    -------
    matrices of shapes (I, R), (J, R), … for `shape` (I, J, …)

    Examples
    --------
    >>> [tuple(f.shape) for f in initial_factors((3, 4), 2, 0, torch.float32, torch.device("cpu"))]
    [(3, 2), (4, 2)]
    """
    # The bases and one Gram matrix in float64: no fit does with less.
    check_memory(f"rank={rank:,}", 8 * rank * (sum(shape) + rank))
    generator = torch.Generator().manual_seed(draws.integer_seed(seed, 0xFAC7))
    factors = [torch.randn(size, rank, dtype=torch.float64, generator=generator) for size in shape]
    return [(f / torch.linalg.vector_norm(f, dim=0)).to(device, dtype) for f in factors]


def grams_of(factors: Sequence[Tensor]) -> list[Tensor]:
    """Of each factor (R, R), in float64: components of real data come close to collinear, and float32 would call that
    singular. Their Hadamard product is `gram` of all.

    Examples
    --------
    >>> grams_of([torch.ones(2, 1), torch.ones(3, 1)])
    [tensor([[2.]], dtype=torch.float64), tensor([[3.]], dtype=torch.float64)]
    """
    return [gram([factor.double()]) for factor in factors]


def _product(matrices: Sequence[Tensor]) -> Tensor:
    """Entry by entry."""
    return reduce(torch.mul, matrices)


def solve_coefficients(
    M: Tensor,
    G: Tensor,
    objective: Objective,
    n_views: int = 1,
    start: Tensor | None = None,
    adjacency: Tensor | None = None,
    watch: bool = False,
    count: int | None = None,
    add: Add | None = None,
) -> Tensor:
    """Coefficients of a batch at fixed bases: X with X̃ fixed, then X̃ with the new X fixed.

    Parameters
    ----------
    M : (n_views · b, R), `project` of the stacked views
    G : (R, R), `gram` of the factors
    start : (n_views · b, R), the guess from which the fixed-point rule starts; by default the least-squares solution
    adjacency : (b, b), weights of the graph among the windows, for the graph term
    watch : look whether the fixed-point rule converges here, and warn if not
    count, add : as for `alignment.pull`, where b is only this process's share of a batch

    Returns
    -------
    (n_views · b, R)

    Examples
    --------
    >>> solve_coefficients(torch.tensor([[2.0]]), torch.eye(1), Objective(alpha=1.0))
    tensor([[1.]])
    """
    count = len(M) // n_views if count is None else count
    if objective.graph_weight > 0:
        return _graph_coefficients(M, G, objective, adjacency, count, add)
    return fixed_point(M, ridge_inverse(G, objective.alpha), objective, n_views, start, watch, count, add)


def fixed_point(
    M: Tensor,
    inverse: Tensor,
    objective: Objective,
    n_views: int,
    start: Tensor | None = None,
    watch: bool = False,
    count: int | None = None,
    add: Add | None = None,
) -> Tensor:
    """Least squares, and for β > 0 the fixed-point rule, once the ridge inverse (R, R) is known.

    Parameters and result are those of `solve_coefficients`.
    """
    count = len(M) // n_views if count is None else count
    V, least_squares = inverse.to(M.dtype), (M.to(inverse.dtype) @ inverse).to(M.dtype)
    if objective.beta == 0 or n_views == 1:
        return least_squares
    gamma = objective.gamma_for(count)
    ls, ls_augmented = least_squares.chunk(2)
    guess = least_squares if start is None else start
    (init, init_augmented), (direction, augmented) = guess.chunk(2), alignment.normalise(guess).chunk(2)
    v2 = alignment.pull(init_augmented, gamma, count, add, augmented)
    if watch and len(ls):
        warn_if_diverging(alignment.convergence(ls, V, v2, objective.beta), objective.beta)
    X = alignment.align(ls, V, init, v2, objective.beta, objective.rounds, direction)
    v2 = alignment.pull(X, gamma, count, add)
    X_augmented = alignment.align(ls_augmented, V, init_augmented, v2, objective.beta, objective.rounds, augmented)
    return torch.cat([X, X_augmented])


def warn_if_diverging(differences: Sequence[float], beta: float) -> None:
    """Warn if the mean changes of the rows in some rounds of the fixed-point rule do not tend to zero."""
    # From a hopeless β the first change, that from least squares, is the largest, and large and small ones alternate
    # after it: rows that in the last two rounds still change by a quarter do not settle either.
    still = (differences[-2] + differences[-1]) / 2
    if (differences[-1] < differences[0] and still < 0.25) or differences[-1] < 1e-4:
        return
    # Without its numbers (`alignment.convergence` has them) Python shows the same warning only once.
    warnings.warn(
        f"the fixed-point rule does not converge at beta={beta:g}: rows still change after {len(differences)} rounds. "
        "Use a smaller beta.",
        ConvergenceWarning,
        stacklevel=2,
    )


def _mean(X: Tensor, count: int, add: Add | None) -> Tensor:
    """Mean over the rows of all processes: (R,)."""
    return (X.sum(dim=0) if add is None else add(X.sum(dim=0))) / count


def _graph_coefficients(
    M: Tensor, G: Tensor, objective: Objective, adjacency: Tensor | None, count: int, add: Add | None
) -> Tensor:
    """The rows that minimise ‖T − XKᵀ‖² + α‖X‖² + w·Tr(XᵀLX), from X(G + αI) + wLX = M."""
    alpha, weight = objective.alpha, objective.graph_weight
    if adjacency is None:
        # L = I − 11ᵀ/b of the complete graph leaves the mean alone and adds w to the ridge of all deviations from it.
        mean = _mean(M, count, add)[None]
        return ridge_solve(G, mean, alpha) + ridge_solve(G, M - mean, alpha + weight)
    roots, Q = torch.linalg.eigh(_laplacian(adjacency).to(M.device, torch.float64))
    values, P = torch.linalg.eigh(G.double())
    denominator = values.clamp_min(0) + alpha + weight * roots.clamp_min(0)[:, None]
    rotated = Q.T @ M.double() @ P
    solved = torch.where(denominator > 0, rotated / denominator, torch.zeros_like(rotated))
    smoothed: Tensor = Q @ solved @ P.T
    return smoothed.to(M.dtype)


def _laplacian(adjacency: Tensor) -> Tensor:
    return torch.diag(adjacency.sum(dim=1)) - adjacency


def _fit_terms(T: Tensor, X: Tensor, M: Tensor, G: Tensor, n_views: int) -> Tensor:
    """The squared error of each view, 0 for the second where there is none: (2,) float64."""
    errors = squared_errors(T, X, M, G).reshape(n_views, len(T) // n_views).sum(dim=1).clamp_min(0.0)
    return torch.nn.functional.pad(errors, (0, 2 - n_views))


def _row_sums(X: Tensor, objective: Objective, n_views: int, adjacency: Tensor | None) -> Tensor:
    """What the penalties follow from, for some of the windows; adding it up over chunks or processes is exact.

    Returns
    -------
    (2 + n_views · R,) float64: ‖X‖², what windows have with their partners (their augmentations, or neighbours in the
    graph), and for each view the sum of its rows, normalised where there is an alignment
    """
    X = rows = X.double()
    partners = X.new_zeros(())
    if objective.beta > 0 and n_views == 2:
        rows = alignment.normalise(X)
        first, second = rows.chunk(2)
        partners = (first * second).sum()
    elif objective.graph_weight > 0:
        partners = (X * (X if adjacency is None else _laplacian(adjacency).to(X) @ X)).sum()
    totals = [view.sum(dim=0) for view in rows.chunk(n_views)]
    return torch.cat([torch.stack([X.square().sum(), partners]), *totals])


def _penalties(sums: Tensor, objective: Objective, n_views: int, count: int) -> Tensor:
    """Tikhonov term of the coefficients, self-supervised term, graph term, from `_row_sums` of all: (3,) float64."""
    squares, partners, totals = sums[0], sums[1], sums[2:].chunk(n_views)
    self_supervised = graph = sums.new_zeros(())
    if objective.beta > 0 and n_views == 2:
        gamma = objective.gamma_for(count)
        self_supervised = objective.beta * alignment.loss_from_sums(totals[0], totals[1], partners, gamma, count)
    if objective.graph_weight > 0:
        mean = totals[0] @ totals[0] / count if objective.graph is None else 0.0
        graph = objective.graph_weight * (partners - mean)
    return torch.stack([objective.alpha * squares, self_supervised, graph])


def update_bases(
    factors: Sequence[Tensor],
    statistics: Statistics,
    alpha: float,
    learning_rate: float = 1.0,
    add: Add | None = None,
    grams: Sequence[Tensor] | None = None,
) -> list[Tensor]:
    """Each basis in turn by ridge least squares, using those already updated; then F ← (1 − η)F + ηF*.

    All MTTKRPs come from `statistics.Y`: that of the first basis by contracting all other modes, that of the next one
    likewise, once the first mode is contracted with its new basis.

    Parameters
    ----------
    factors : matrices of shapes (I, R), (J, R), …
    statistics : of the coefficients held fixed
    learning_rate : η, 1 for the plain least-squares update
    add : adds a tensor up over the processes, where each has only its part of `statistics.Y`
    grams : `grams_of` the factors, where they are known

    Returns
    -------
    new matrices of the same shapes
    """
    Y, updated = statistics.Y, list(factors)
    known = grams_of(factors) if grams is None else list(grams)
    for mode, factor in enumerate(factors):
        mttkrp = _mttkrp(Y, factors[mode:])
        mttkrp = mttkrp if add is None else add(mttkrp)
        G = _product([statistics.S, *known[:mode], *known[mode + 1 :]])
        target = ridge_solve(G, mttkrp.T, alpha)
        updated[mode] = torch.lerp(factor, target, learning_rate)
        if Y.ndim > 2:
            Y, known[mode] = contract(Y, 0, updated[mode]), grams_of([updated[mode]])[0]
    return updated


def _mttkrp(Y: Tensor, factors: Sequence[Tensor]) -> Tensor:
    """All modes but the first contracted, those that lie last in memory before others: (R, I)."""
    left = list(factors)
    while Y.ndim > 2:
        mode = min(range(1, len(left)), key=lambda other: Y.stride(1 + other))
        Y = contract(Y, mode, left.pop(mode))
    return Y


def step(
    T: Tensor,
    state: State,
    objective: Objective,
    n_views: int = 1,
    solver: str = "blend",
    learning_rate: float = 1.0,
    ids: Tensor | None = None,
    watch: bool = False,
    team: Team = ALONE,
    count: int | None = None,
) -> Tensor:
    """One step of Algorithm 2 on exactly this batch; changes `state`.

    Parameters
    ----------
    T : (n_views · b, I, J, …), the views stacked
    solver : "blend" moves the bases by η towards the batch's solution; "memory" forgets the statistics by η and solves
    ids : (b,), the windows, for a given graph; by default the graph's first
    watch : see `solve_coefficients`
    team, count : the processes that share the batch, if b is only this one's share, and its windows in all of them

    Returns
    -------
    (5,) float64, the `TERMS` of the objective before the bases moved
    """
    adjacency = None
    if objective.graph is not None:
        adjacency = objective.graph(torch.arange(len(T) // n_views) if ids is None else ids)
    count = len(T) // n_views if count is None else count
    grams, M = grams_of(state.factors), project(T, state.factors)
    G = _product(grams)
    X = solve_coefficients(M, G, objective, n_views, None, adjacency, watch, count, team.sum)
    # What the terms follow from is worked out while the statistics are collected, and if need be sent.
    terms = start(lambda: torch.cat([_fit_terms(T, X, M, G, n_views), _row_sums(X, objective, n_views, adjacency)]))
    arriving = team.send(Statistics.of(X, T))
    statistics, sums = arriving(terms())
    energy = statistics.S.diagonal()
    state.energy = energy if state.energy is None else state.energy + energy
    if solver == "memory":
        state.memory = statistics = statistics.added_to(state.memory, 1 - learning_rate)
        learning_rate = 1.0
    add = team.modes(statistics.Y)
    state.factors = update_bases(state.factors, statistics, objective.alpha, learning_rate, add, grams)
    return torch.cat([sums[:2], _penalties(sums[2:], objective, n_views, count)])


def _mini_batch_sweep(
    source: Source,
    state: State,
    objective: Objective,
    settings: Settings,
    progress: Progress,
    on_step: OnStep | None,
    team: Team,
) -> None:
    """Algorithm 2: the shuffled batches of one sweep from `progress.batch` on, the last one short if it must be."""
    sweep = len(progress.history["loss"])
    order = source.order(settings.seed, sweep)
    parts = torch.split(order, settings.batch_size or len(order))
    begun = time.perf_counter() - progress.seconds
    shares = [team.share(part) for part in parts[progress.batch :]]
    for ids, T in _batches(source, shares, sweep, state):
        watch, count = progress.batch == 0, len(parts[progress.batch])
        progress.total = progress.total + step(
            T, state, objective, source.n_views, settings.solver, settings.learning_rate, ids, watch, team, count
        )
        progress.batch += 1
        if on_step is not None and progress.batch < len(parts):
            progress.seconds = time.perf_counter() - begun
            on_step(progress, state)


def _batches(source: Source, parts: Sequence[Tensor], sweep: int, state: State) -> Iterator[tuple[Tensor, Tensor]]:
    """The source's batches of these parts; those without a window, as a process may have, never reach the source."""
    batches = iter(source.batches([part for part in parts if len(part)], sweep))
    shape = [len(factor) for factor in state.factors]
    for part in parts:
        yield next(batches) if len(part) else (part, state.factors[0].new_zeros(0, *shape))
    next(batches, None)  # so that it does what it does after its last one


class _Chunks(Iterable[tuple[Tensor, Tensor]]):
    """This process's share of the data set in pieces of about 256 MiB; one piece that holds all is made only once.

    Algorithm 1 augments once: every sweep sees the augmentations of sweep 0.
    """

    def __init__(self, source: Source, state: State, team: Team) -> None:
        self.source, self.state, self.team = source, state, team
        window = source.views(torch.arange(1), 0)
        self.windows = team.share(torch.arange(source.n_windows))
        self.parts = torch.split(self.windows, max(1, _CHUNK_BYTES // window.nbytes))
        self.kept: Tensor | None = None

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        if self.kept is not None:
            yield self.parts[0], self.kept
            return
        for ids, T in _batches(self.source, self.parts, 0, self.state):
            if len(self.parts) == 1:
                self.kept = T
            yield ids, T


def _full_batch_sweep(chunks: _Chunks, state: State, objective: Objective) -> Tensor:
    """Algorithm 1: coefficients of all windows, then the bases, with no more than a chunk of the data in memory.

    Where coefficients depend on each other (alignment, graph) the data is read twice: for the projections of all
    windows, and, once their coefficients are known, for the statistics.
    """
    G, n_views, count = _product(grams_of(state.factors)), chunks.source.n_views, chunks.source.n_windows
    team = chunks.team
    sums = torch.zeros(4 + n_views * len(G), dtype=torch.float64, device=G.device)
    statistics: Statistics | None = None
    coefficients = None if objective.separable else _all_coefficients(chunks, state, objective, G, sums[2:])
    for ids, T in chunks:
        M = project(T, state.factors)
        if coefficients is None:
            X = solve_coefficients(M, G, objective, n_views)
            sums[2:] += _row_sums(X, objective, n_views, None)
        else:
            rows = (ids - chunks.windows[:1]).to(coefficients.device)
            X = torch.cat([view[rows] for view in coefficients.chunk(n_views)])
        sums[:2] += _fit_terms(T, X, M, G, n_views)
        statistics = Statistics.of(X, T).added_to(statistics)
    assert statistics is not None
    statistics, sums = team.send(statistics)(sums)
    state.coefficients = coefficients
    state.energy = statistics.S.diagonal()
    state.factors = update_bases(state.factors, statistics, objective.alpha, add=team.modes(statistics.Y))
    return torch.cat([sums[:2], _penalties(sums[2:], objective, n_views, count)])


def _all_coefficients(chunks: _Chunks, state: State, objective: Objective, G: Tensor, sums: Tensor) -> Tensor:
    """X and X̃ of all windows together, starting from those of the last sweep; adds their `_row_sums` to `sums`."""
    n_views, count, add = chunks.source.n_views, chunks.source.n_windows, chunks.team.sum
    M = _stack((project(T, state.factors) for _, T in chunks), n_views)
    adjacency = None if objective.graph is None else objective.graph(torch.arange(chunks.source.n_windows))
    X = solve_coefficients(M, G, objective, n_views, state.coefficients, adjacency, True, count, add)
    sums += _row_sums(X, objective, n_views, adjacency)
    return X


def _stack(pieces: Iterable[Tensor], n_views: int) -> Tensor:
    """Rows of stacked views, chunk by chunk, as one stack of views."""
    views = zip(*(piece.chunk(n_views) for piece in pieces), strict=True)
    return torch.cat([row for view in views for row in view])


def settled(losses: Sequence[float], tol: float, patience: int) -> bool:
    """The paper's stop rule: the relative change of the loss was below `tol` in each of the last `patience` sweeps.

    Examples
    --------
    >>> settled([9.0, 5.0, 5.0, 5.0], tol=1e-3, patience=2), settled([9.0, 5.0, 5.0], tol=1e-3, patience=2)
    (True, False)
    """
    recent = losses[-patience - 1 :]
    return len(recent) == patience + 1 and all(
        abs(after - before) <= tol * abs(before) for before, after in pairwise(recent)
    )


def fit(
    source: Source,
    state: State,
    objective: Objective,
    settings: Settings,
    on_sweep: Callable[[History], None] | None = None,
    progress: Progress | None = None,
    on_step: OnStep | None = None,
    team: Team = ALONE,
    fast_sweep: Callable[[State, int], Tensor | None] | None = None,
) -> History:
    """Sweeps until the loss settles or `max_sweeps` are done; changes `state`, and arranges it at the end.

    Parameters
    ----------
    on_sweep : called after every sweep with the history so far
    progress : where to go on, if `state` is that of a fit that was stopped; it is changed, too
    on_step : called with the progress and the state between batches (of Algorithm 2) and after every sweep
    team : the processes that do this together, each calling this function; they end with the same bases
    fast_sweep : does what a whole sweep of Algorithm 2 does, or returns None and leaves the state as it was

    Returns
    -------
    the history: for each sweep the total `loss`, each of `TERMS` summed over the batches, and the `seconds`
    """
    if team.size > 1 and objective.graph is not None:
        raise PolyadicError("a given graph joins windows of all processes, so it is for one; use graph='complete'")
    progress = Progress() if progress is None else progress
    history = progress.history
    chunks = _Chunks(source, state, team) if settings.batch_size is None else None
    device = state.factors[0].device
    while not _done(history, settings):
        begun = time.perf_counter() - progress.seconds
        fast = None
        if progress.batch == 0:
            state.energy = None
            # The terms of a step are those before its bases move; so is this one, or the loss is of no single point.
            progress.bases = objective.alpha * sum(float(f.square().sum()) for f in state.factors)
            progress.total = torch.zeros(len(TERMS), dtype=torch.float64, device=device)
            fast = None if fast_sweep is None else fast_sweep(state, len(history["loss"]))
        if fast is not None:
            progress.total = fast
        elif chunks is not None:
            progress.total = _full_batch_sweep(chunks, state, objective)
        else:
            _mini_batch_sweep(source, state, objective, settings, progress, on_step, team)
        # Unlike machines round unlike: once a sweep all take the first one's figures, and so they stop together.
        state.factors = [team.agree(factor) for factor in state.factors]
        progress.total[TERMS.index("tikhonov")] += progress.bases
        values = dict(zip(TERMS, team.agree(progress.total).tolist(), strict=True))
        history["loss"].append(sum(values.values()))
        for name, value in values.items():
            history[name].append(value)
        history["seconds"].append(time.perf_counter() - begun)
        progress.batch, progress.seconds, progress.done = 0, 0.0, _done(history, settings)
        if on_sweep is not None:
            on_sweep(history)
        if on_step is not None:
            on_step(progress, state)
    arrange(state)
    return history


def _done(history: History, settings: Settings) -> bool:
    losses = history["loss"]
    return len(losses) >= settings.max_sweeps or settled(losses, settings.tol, settings.patience)


def arrange(state: State) -> None:
    """Settle what the model leaves open: equal norms among the bases, components by energy, largest entries positive.

    The product of the bases stays as it was up to order and sign, so coefficients keep their size.
    """
    device = state.factors[0].device
    # The host is done with it before a GPU has loaded the kernels that this would take.
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
