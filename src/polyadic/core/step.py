"""One step of alternating least squares for the paper's objective (appendix C): coefficients, statistics, bases.

The views of a batch are stacked in one tensor: first the b windows, then, with an augmentation, their b augmented
views, so that both go through the same two matrix products. `engine.loop` combines steps to sweeps and fits.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from polyadic._util import random_streams as draws
from polyadic._util.threads import start
from polyadic.core import alignment
from polyadic.core.algebra import collect, contract, gram, project, ridge_inverse, ridge_solve, squared_errors
from polyadic.core.alignment import Add
from polyadic.core.nonnegative import nonnegative_solve
from polyadic.core.terms import Term
from polyadic.errors import PolyadicError
from polyadic.team import ALONE, Team

__all__ = [
    "Add",
    "LossSums",
    "Objective",
    "State",
    "Statistics",
    "fixed_point",
    "grams_of",
    "hadamard",
    "initial_factors",
    "row_sums",
    "solve_coefficients",
    "step",
    "update_bases",
    "view_errors",
    "warn_if_diverging",
]


@dataclass(frozen=True)
class Objective:
    """The objective: Eqn. objective of the paper; for GR-SALS with the graph term w·Tr(XᵀLX) instead of the alignment.

    Parameters
    ----------
    alpha : Tikhonov weight, ≥ 0
    beta : weight of the self-supervised loss, ≥ 0; requires two views
    gamma : weight of the random pairs, or None for the number of windows in the batch
    rounds : number of fixed-point iterations for each view, ≥ 1
    graph_weight : weight w of the graph term; 0 for none
    graph : maps window ids (b,) to the graph's weights (b, b) among them; None for a complete graph of weights 1/b
    nonnegative : whether bases are constrained to be non-negative; coefficients never are
    """

    alpha: float
    beta: float = 0.0
    gamma: float | None = None
    rounds: int = 1
    graph_weight: float = 0.0
    graph: Callable[[Tensor], Tensor] | None = None
    nonnegative: bool = False

    def __post_init__(self) -> None:
        if self.beta > 0 and self.graph_weight > 0:
            raise PolyadicError(
                "an objective has either an alignment or a graph term, but "
                f"beta={self.beta:g} and graph_weight={self.graph_weight:g}"
            )

    def gamma_for(self, count: int) -> float:
        """Return γ for a batch of `count` windows."""
        return float(count) if self.gamma is None else self.gamma

    @property
    def separable(self) -> bool:
        """Whether the coefficients of a window depend only on that window."""
        return self.beta == 0 and self.graph_weight == 0


@dataclass(frozen=True)
class Statistics:
    """Sufficient statistics of a batch for the bases; their sums over batches or processes are exact.

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
        """Return weight·earlier + self."""
        if earlier is None:
            return self
        return Statistics(torch.add(self.Y, earlier.Y, alpha=weight), torch.add(self.S, earlier.S, alpha=weight))


@dataclass
class State:
    """State of a fit between steps.

    factors : bases of shapes (I, R), (J, R), …
    memory : statistics of earlier batches, for solver="memory"
    coefficients : (n_views · N, R), X and X̃ of the last sweep, for Algorithm 1
    energy : (R,), ‖x_r‖² over the current sweep, used to order components
    """

    factors: list[Tensor]
    memory: Statistics | None = None
    coefficients: Tensor | None = None
    energy: Tensor | None = None


def initial_factors(
    shape: Sequence[int],
    rank: int,
    seed: int,
    dtype: torch.dtype,
    device: torch.device,
    nonnegative: bool = False,
) -> list[Tensor]:
    """Sample random bases with unit-norm columns, on the CPU so that every device has the same start.

    Returns
    -------
    matrices of shapes (I, R), (J, R), … for `shape` (I, J, …)

    Examples
    --------
    >>> [tuple(f.shape) for f in initial_factors((3, 4), 2, 0, torch.float32, torch.device("cpu"))]
    [(3, 2), (4, 2)]
    """
    generator = torch.Generator().manual_seed(draws.integer_seed(seed, 0xFAC7))
    factors = [torch.randn(size, rank, dtype=torch.float64, generator=generator) for size in shape]
    factors = [factor.abs() for factor in factors] if nonnegative else factors
    return [(f / torch.linalg.vector_norm(f, dim=0)).to(device, dtype) for f in factors]


def grams_of(factors: Sequence[Tensor]) -> list[Tensor]:
    """Compute the Gram matrix (R, R) of each factor, in float64; their Hadamard product is `gram` of all factors.

    Components of real data are nearly collinear, so that the matrices would be singular in float32.

    Examples
    --------
    >>> grams_of([torch.ones(2, 1), torch.ones(3, 1)])
    [tensor([[2.]], dtype=torch.float64), tensor([[3.]], dtype=torch.float64)]
    """
    return [gram([factor.double()]) for factor in factors]


def hadamard(matrices: Sequence[Tensor]) -> Tensor:
    """Compute the Hadamard (entrywise) product of matrices."""
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
    """Solve for the coefficients of a batch at fixed bases: X with X̃ fixed, then X̃ with the new X fixed.

    Parameters
    ----------
    M : (n_views · b, R), `project` of the stacked views
    G : (R, R), `gram` of the factors
    start : (n_views · b, R), initial guess of the fixed-point rule; by default the least-squares solution
    adjacency : (b, b), weights of the graph among the windows, for the graph term
    watch : check whether the fixed-point rule converges, and warn if not
    count, add : as for `alignment.pull`, if b is only this process's share of a batch

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
    """Solve by least squares and, for β > 0, the fixed-point rule, given the ridge inverse (R, R).

    Parameters and result as for `solve_coefficients`.
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
    """Warn if the mean changes of the rows over the rounds of the fixed-point rule do not tend to zero."""
    # If β is far too large, the first change (from least squares) is the largest, and large and small changes
    # alternate after it: rows that still change by a quarter in the last two rounds do not converge either.
    still = (differences[-2] + differences[-1]) / 2
    if (differences[-1] < differences[0] and still < 0.25) or differences[-1] < 1e-4:
        return
    from sklearn.exceptions import ConvergenceWarning

    # Without numbers (see `alignment.convergence`), so that Python shows the same warning only once.
    warnings.warn(
        f"the fixed-point rule does not converge at beta={beta:g}: rows still change after {len(differences)} rounds. "
        "Use a smaller beta.",
        ConvergenceWarning,
        stacklevel=2,
    )


def _mean(X: Tensor, count: int, add: Add | None) -> Tensor:
    """Compute the mean over the rows of all processes: (R,)."""
    return (X.sum(dim=0) if add is None else add(X.sum(dim=0))) / count


def _graph_coefficients(
    M: Tensor, G: Tensor, objective: Objective, adjacency: Tensor | None, count: int, add: Add | None
) -> Tensor:
    """Minimise ‖T − XKᵀ‖² + α‖X‖² + w·Tr(XᵀLX), by solving X(G + αI) + wLX = M."""
    alpha, weight = objective.alpha, objective.graph_weight
    if adjacency is None:
        # L = I − 11ᵀ/b of the complete graph does not affect the mean and adds w to the ridge of deviations from it.
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


@dataclass(frozen=True)
class LossSums:
    """Sums over windows that determine the terms of the loss; they add up exactly over chunks or processes.

    values : (4 + n_views · R,) float64: squared errors of both views (0 for a missing one), ‖X‖², inner products of
        windows with their partners (augmented views, or neighbours in the graph), and for each view the sum of its
        rows, normalised if there is an alignment
    """

    values: Tensor

    @classmethod
    def zeros(cls, n_views: int, rank: int, device: torch.device) -> LossSums:
        return cls(torch.zeros(4 + n_views * rank, dtype=torch.float64, device=device))

    @classmethod
    def of(cls, errors: Tensor, rows: Tensor) -> LossSums:
        """Combine `view_errors` (2,) and `row_sums` (2 + n_views · R,)."""
        return cls(torch.cat([errors, rows]))

    def add(self, errors: Tensor | None = None, rows: Tensor | None = None) -> None:
        """Add the sums of further windows."""
        if errors is not None:
            self.values[:2] += errors
        if rows is not None:
            self.values[2:] += rows

    def terms(self, objective: Objective, n_views: int, count: int) -> Tensor:
        """Return the terms of the objective by `Term`, without the Tikhonov term of the bases: (5,) float64.

        Parameters
        ----------
        count : number of windows in these sums
        """
        squares, partners, rows = self.values[2], self.values[3], self.values[4:].chunk(n_views)
        terms = self.values.new_zeros(len(Term))
        terms[Term.FIT], terms[Term.FIT_AUGMENTED] = self.values[0], self.values[1]
        terms[Term.TIKHONOV] = objective.alpha * squares
        if objective.beta > 0 and n_views == 2:
            gamma = objective.gamma_for(count)
            loss = alignment.loss_from_sums(rows[0], rows[1], partners, gamma, count)
            terms[Term.SELF_SUPERVISED] = objective.beta * loss
        if objective.graph_weight > 0:
            mean = rows[0] @ rows[0] / count if objective.graph is None else 0.0
            terms[Term.GRAPH] = objective.graph_weight * (partners - mean)
        return terms


def view_errors(T: Tensor, X: Tensor, M: Tensor, G: Tensor, n_views: int) -> Tensor:
    """Compute the squared error of each view, 0 for a missing second one: (2,) float64."""
    errors = squared_errors(T, X, M, G).reshape(n_views, len(T) // n_views).sum(dim=1).clamp_min(0.0)
    return torch.nn.functional.pad(errors, (0, 2 - n_views))


def row_sums(X: Tensor, objective: Objective, n_views: int, adjacency: Tensor | None) -> Tensor:
    """Compute the part of `LossSums` that depends on the coefficients: (2 + n_views · R,) float64."""
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


def update_bases(
    factors: Sequence[Tensor],
    statistics: Statistics,
    alpha: float,
    learning_rate: float = 1.0,
    add: Add | None = None,
    grams: Sequence[Tensor] | None = None,
    nonnegative: bool = False,
) -> list[Tensor]:
    """Update each basis in turn by ridge least squares, using those already updated; then F ← (1 − η)F + ηF*.

    All MTTKRPs are computed from `statistics.Y`: that of the first basis by contracting all other modes, that of the
    next one likewise, after contracting the first mode with its new basis.

    Parameters
    ----------
    factors : matrices of shapes (I, R), (J, R), …
    statistics : the statistics of the fixed coefficients
    learning_rate : η, 1 for the plain least-squares update
    add : sums a tensor over the processes, if each has only its part of `statistics.Y`
    grams : `grams_of` the factors, if known
    nonnegative : whether to constrain entries to be non-negative, starting from the current bases

    Returns
    -------
    new matrices of the same shapes
    """
    Y, updated = statistics.Y, list(factors)
    known = grams_of(factors) if grams is None else list(grams)
    for mode, factor in enumerate(factors):
        mttkrp = _mttkrp(Y, factors[mode:])
        mttkrp = mttkrp if add is None else add(mttkrp)
        G = hadamard([statistics.S, *known[:mode], *known[mode + 1 :]])
        right = mttkrp.T
        target = nonnegative_solve(G, right, factor, alpha) if nonnegative else ridge_solve(G, right, alpha)
        updated[mode] = torch.lerp(factor, target, learning_rate)
        if Y.ndim > 2:
            Y, known[mode] = contract(Y, 0, updated[mode]), grams_of([updated[mode]])[0]
    return updated


def _mttkrp(Y: Tensor, factors: Sequence[Tensor]) -> Tensor:
    """Contract all modes but the first, in order of increasing stride: (R, I)."""
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
    """Take one step of Algorithm 2 on this batch, modifying `state`.

    Parameters
    ----------
    T : (n_views · b, I, J, …), the views stacked
    solver : "blend" moves the bases by η towards the batch's solution; "memory" discounts old statistics by 1 − η
        and solves
    ids : (b,), indices of the windows, for a given graph; by default the first of the graph
    watch : see `solve_coefficients`
    team, count : the processes that share the batch, if b is only this one's share, and its total number of windows

    Returns
    -------
    (5,) float64, by `Term`: the objective before the bases moved
    """
    adjacency = None
    if objective.graph is not None:
        adjacency = objective.graph(torch.arange(len(T) // n_views) if ids is None else ids)
    count = len(T) // n_views if count is None else count
    grams, M = grams_of(state.factors), project(T, state.factors)
    G = hadamard(grams)
    X = solve_coefficients(M, G, objective, n_views, None, adjacency, watch, count, team.sum)
    # Compute the sums of the loss while the statistics are collected and, with several processes, sent.
    sums = start(lambda: LossSums.of(view_errors(T, X, M, G, n_views), row_sums(X, objective, n_views, adjacency)))
    arriving = team.start_sum(Statistics.of(X, T))
    statistics, values = arriving(sums().values)
    energy = statistics.S.diagonal()
    state.energy = energy if state.energy is None else state.energy + energy
    if solver == "memory":
        state.memory = statistics = statistics.added_to(state.memory, 1 - learning_rate)
        learning_rate = 1.0
    add = team.sum_by_mode(statistics.Y)
    state.factors = update_bases(
        state.factors, statistics, objective.alpha, learning_rate, add, grams, objective.nonnegative
    )
    return LossSums(values).terms(objective, n_views, count)
