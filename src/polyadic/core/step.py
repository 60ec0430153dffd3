"""One step of alternating least squares, as in Algorithms 1 and 2 of the paper (appendix C).

A step solves for the coefficients of a batch at fixed bases, X with X̃ fixed and then X̃ with the new X fixed
(Eqn. improved_x), and then for each basis in turn by ridge least squares. Algorithm 1 takes one step on all windows in
every sweep, Algorithm 2 one on each mini-batch; `partial_fit` takes a single one.

The views of a batch are stacked in one tensor: first the b windows, then, with an augmentation, their b augmented
views, so that both go through the same two matrix products.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import reduce

import torch
from torch import Tensor

from polyadic.core import alignment
from polyadic.core.algebra import (
    collect,
    contract,
    gram,
    nonnegative_solve,
    project,
    ridge_inverse,
    ridge_solve,
    squared_norms,
)

__all__ = [
    "TERMS",
    "Objective",
    "State",
    "Statistics",
    "Term",
    "feature_extractor",
    "fixed_point",
    "grams_of",
    "hadamard",
    "loss_terms",
    "solve_coefficients",
    "step",
    "update_bases",
    "warn_if_diverging",
]


_WATCHED = 1024
"""Maximum number of windows whose fixed-point iterations are checked for convergence."""


# ------------------------------------------------------------------- objective


class Term(IntEnum):
    """Index of each term of the objective (Eqn. objective of the paper) in a vector of all terms."""

    FIT = 0
    FIT_AUGMENTED = 1
    TIKHONOV = 2
    SELF_SUPERVISED = 3
    GRAPH = 4

    @property
    def key(self) -> str:
        """The key in a history."""
        return self.name.lower()


TERMS = tuple(term.key for term in Term)
"""The keys of the terms in a history, in order."""


@dataclass(frozen=True)
class Objective:
    """The objective: Eqn. objective of the paper; for GR-SALS with the graph term w·Tr(XᵀLX) instead of the alignment.

    Parameters
    ----------
    alpha : Tikhonov weight, ≥ 0
    beta : weight of the self-supervised loss, ≥ 0; requires two views
    gamma : weight of the random pairs, or None for the number of windows in the batch
    rounds : number of fixed-point iterations for each view, ≥ 1
    graph_weight : weight w of the graph term, for a complete graph of weights 1/b among the b windows of a batch
    nonnegative : whether bases are constrained to be non-negative; coefficients never are
    """

    alpha: float
    beta: float = 0.0
    gamma: float | None = None
    rounds: int = 1
    graph_weight: float = 0.0
    nonnegative: bool = False

    def gamma_for(self, count: int) -> float:
        """Return γ for a batch of `count` windows."""
        return float(count) if self.gamma is None else self.gamma


# ----------------------------------------------------------------------- state


@dataclass(frozen=True)
class Statistics:
    """Sufficient statistics of a batch for the bases.

    Y : (R, I, J, …), XᵀT + X̃ᵀT̃
    S : (R, R) float64, XᵀX + X̃ᵀX̃
    """

    Y: Tensor
    S: Tensor


@dataclass
class State:
    """State of a fit between steps.

    factors : bases of shapes (I, R), (J, R), …
    memory : discounted statistics of earlier batches, for solver="memory"
    coefficients : (n_views · N, R), X and X̃ of the last sweep, from which Algorithm 1 starts the next one
    energy : (R,), ‖x_r‖² over the current sweep, used to order components
    """

    factors: list[Tensor]
    memory: Statistics | None = None
    coefficients: Tensor | None = None
    energy: Tensor | None = None


# -------------------------------------------------------------------- the step


def step(
    T: Tensor,
    state: State,
    objective: Objective,
    n_views: int = 1,
    *,
    solver: str = "blend",
    learning_rate: float = 1.0,
    start: Tensor | None = None,
    energy: Tensor | None = None,
    watch: bool = False,
) -> Tensor:
    """Take one step on a batch: its coefficients at fixed bases, then each basis at fixed coefficients.

    Parameters
    ----------
    T : (n_views · b, I, J, …), the stacked views of the batch
    state : modified; its `coefficients` become those of the batch
    solver : "blend" moves the bases by η towards the batch's solution; "memory" discounts old statistics by 1 − η
        and solves
    learning_rate : η
    start : (n_views · b, R), initial guess of the fixed-point rule; by default the least-squares solution
    energy : (n_views,) float64, ‖T‖² of each view, if known
    watch : warn if the fixed-point rule does not converge

    Returns
    -------
    (5,) float64, by `Term`: the objective before the bases moved, without the Tikhonov term of the bases

    Examples
    --------
    >>> T, state = torch.rand(20, 3, 4), State([torch.rand(3, 2), torch.rand(4, 2)])
    >>> losses = [float(step(T, state, Objective(alpha=1e-3)).sum()) for _ in range(3)]
    >>> losses[0] > losses[1] > losses[2]
    True
    """
    grams = grams_of(state.factors)
    G = hadamard(grams)
    M = project(T, state.factors)
    X = state.coefficients = solve_coefficients(M, G, objective, n_views, start, watch)
    # ‖T − XKᵀ‖² = ‖T‖² − 2⟨M, X⟩ + ⟨XG, X⟩, without a dense reconstruction.
    exact = X.double()
    energy = squared_norms(T).reshape(n_views, -1).sum(dim=1) if energy is None else energy
    errors = energy + ((exact @ G - 2 * M) * exact).reshape(n_views, -1).sum(dim=1)
    statistics = Statistics(collect(X, T), exact.T @ exact)
    sizes = statistics.S.diagonal()
    state.energy = sizes if state.energy is None else state.energy + sizes
    if solver == "memory":
        if state.memory is not None:
            Y = torch.add(statistics.Y, state.memory.Y, alpha=1 - learning_rate)
            statistics = Statistics(Y, torch.add(statistics.S, state.memory.S, alpha=1 - learning_rate))
        state.memory = statistics
        learning_rate = 1.0
    state.factors = update_bases(
        state.factors, statistics, objective.alpha, learning_rate, grams, objective.nonnegative
    )
    return loss_terms(errors, X, objective)


# ---------------------------------------------------------------- coefficients


def grams_of(factors: Sequence[Tensor]) -> list[Tensor]:
    """Compute the Gram matrix (R, R) of each factor, in float64: nearly collinear ones would be singular in float32."""
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
    watch: bool = False,
) -> Tensor:
    """Solve for the coefficients (n_views · b, R) of a batch at fixed bases: X with X̃ fixed, then X̃ with the new X.

    Parameters
    ----------
    M : (n_views · b, R), `project` of the stacked views
    G : (R, R), `gram` of the factors
    start, watch : as for `step`

    Examples
    --------
    >>> solve_coefficients(torch.tensor([[2.0]]), torch.eye(1), Objective(alpha=1.0))
    tensor([[1.]])
    """
    if objective.graph_weight > 0:
        # X(G + αI) + wLX = M, where the Laplacian L = I − 11ᵀ/b does not affect the mean, and adds w to the ridge of
        # deviations from it.
        mean = (M.sum(dim=0) / len(M))[None]
        ridge = objective.alpha + objective.graph_weight
        return ridge_solve(G, mean, objective.alpha) + ridge_solve(G, M - mean, ridge)
    return fixed_point(M, ridge_inverse(G, objective.alpha), objective, n_views, start, watch)


def fixed_point(
    M: Tensor,
    inverse: Tensor,
    objective: Objective,
    n_views: int,
    start: Tensor | None = None,
    watch: bool = False,
) -> Tensor:
    """Solve as `solve_coefficients`, given the ridge inverse (R, R): for β > 0 by the rule of Eqn. improved_x."""
    V, least_squares = inverse.to(M.dtype), (M.to(inverse.dtype) @ inverse).to(M.dtype)
    if objective.beta == 0 or n_views == 1:
        return least_squares
    ls, ls_augmented = least_squares.chunk(2)
    gamma = objective.gamma_for(len(ls))
    guess = least_squares if start is None else start
    (init, init_augmented), (direction, augmented) = guess.chunk(2), alignment.normalise(guess).chunk(2)
    v2 = alignment.pull(init_augmented, gamma, augmented)
    if watch:
        changes = alignment.convergence(ls[:_WATCHED], V, v2[:_WATCHED], objective.beta)
        warn_if_diverging(changes, objective.beta)
    X = alignment.align(ls, V, init, v2, objective.beta, objective.rounds, direction)
    v2 = alignment.pull(X, gamma)
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


def feature_extractor(factors: Sequence[Tensor], alpha: float) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """Return the closed form of Eqn. feature_extractor for windows outside a fit.

    Parameters
    ----------
    factors : matrices of shapes (I, R), (J, R), …

    Returns
    -------
    a function that maps tensors (b, I, J, …) to coefficients (b, R) and squared residuals (b,)

    Examples
    --------
    >>> x, residuals = feature_extractor([torch.ones(2, 1), torch.ones(2, 1)], alpha=0.0)(torch.ones(1, 2, 2))
    >>> x, residuals
    (tensor([[1.]]), tensor([0.], dtype=torch.float64))
    """
    # Invert on the CPU: for a small matrix that is faster than loading the GPU's solver.
    exact = gram([factor.cpu().double() for factor in factors])
    G, inverse = exact.to(factors[0].device), ridge_inverse(exact, alpha).to(factors[0].device)

    def extract(T: Tensor) -> tuple[Tensor, Tensor]:
        M = project(T, factors)
        x = fixed_point(M, inverse, Objective(alpha), 1)
        exact = x.double()
        return x, squared_norms(T) + ((exact @ G - 2 * M) * exact).sum(dim=1)

    return extract


# ------------------------------------------------------------------------ loss


def loss_terms(errors: Tensor, X: Tensor, objective: Objective) -> Tensor:
    """Evaluate the terms of the objective without the Tikhonov term of the bases: (5,) float64, by `Term`.

    Parameters
    ----------
    errors : (n_views,) float64, squared error ‖T − XKᵀ‖² of each view
    X : (n_views · b, R), the coefficients
    """
    X, n_views = X.double(), len(errors)
    terms = X.new_zeros(len(Term))
    terms[:n_views] = errors.clamp_min(0.0)
    terms[Term.TIKHONOV] = objective.alpha * X.square().sum()
    if objective.beta > 0 and n_views == 2:
        first, second = X.chunk(2)
        terms[Term.SELF_SUPERVISED] = objective.beta * alignment.loss(first, second, objective.gamma_for(len(first)))
    if objective.graph_weight > 0:
        terms[Term.GRAPH] = objective.graph_weight * (X * (X - X.mean(dim=0))).sum()
    return terms


# ----------------------------------------------------------------------- bases


def update_bases(
    factors: Sequence[Tensor],
    statistics: Statistics,
    alpha: float,
    learning_rate: float = 1.0,
    grams: Sequence[Tensor] | None = None,
    nonnegative: bool = False,
) -> list[Tensor]:
    """Update each basis in turn by ridge least squares, using those already updated; then F ← (1 − η)F + ηF*.

    Algorithm 2 of the paper names a step size η and never uses it; moving the bases by η towards the batch's solution
    is our interpretation.

    All MTTKRPs are computed from `statistics.Y`: that of the first basis by contracting all other modes, that of the
    next one likewise, after contracting the first mode with its new basis. `grams` are `grams_of` the factors.
    """
    Y, updated = statistics.Y, list(factors)
    known = grams_of(factors) if grams is None else list(grams)
    for mode, factor in enumerate(factors):
        mttkrp = _mttkrp(Y, factors[mode:]).T
        G = hadamard([statistics.S, *known[:mode], *known[mode + 1 :]])
        target = nonnegative_solve(G, mttkrp, factor, alpha) if nonnegative else ridge_solve(G, mttkrp, alpha)
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
