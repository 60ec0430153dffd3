"""The solver: sweeps of Algorithm 1 (all windows), Algorithm 2 (mini-batches) or second moments, to convergence.

A sweep updates the coefficients of all windows and every basis: once on all windows at the same time (Algorithm 1, or
`moments`, which need no pass over the data), or once for each mini-batch (Algorithm 2).
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyadic.core.algebra import squared_norms
from polyadic.core.step import TERMS, Objective, State, Statistics, Term, step

if TYPE_CHECKING:
    from polyadic.data.batches import WindowSource

__all__ = [
    "History",
    "Progress",
    "Settings",
    "Sweep",
    "average_components",
    "empty_history",
    "has_converged",
    "normalise_components",
    "pair_components",
    "plain_sweep",
    "solve",
    "warn_of_vanished",
]

_SWEEPS_PER_CHECK = 4
"""Number of sweeps on second moments between two checks of the loss: they cost much less than a pass over the data."""

History = dict[str, list[float]]
_Floats = NDArray[np.float64]

Sweep = Callable[[State, int], Tensor]
"""Runs the sweep of this number (from 0): modifies the state, and returns the terms of the objective, as `step`."""


def empty_history() -> History:
    """Return the history of a fit before its first sweep."""
    return {name: [] for name in ("loss", *TERMS, "seconds")}


@dataclass(frozen=True)
class Settings:
    """Settings of the minimisation, with the meaning of the estimators' parameters of the same names.

    solver : "moments", "blend" or "memory"
    batch_size : windows in a mini-batch; None for Algorithm 1
    """

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

    @property
    def sweeps_per_check(self) -> int:
        """Number of sweeps between two checks of the loss."""
        return _SWEEPS_PER_CHECK if self.solver == "moments" else 1

    def is_converged(self, losses: Sequence[float]) -> bool:
        """Return whether the loss is due for a check and `has_converged`."""
        every = self.sweeps_per_check
        return len(losses) % every == 0 and has_converged(losses[::every], self.tol, self.patience)


@dataclass
class Progress:
    """Progress of a fit: everything needed to resume it.

    state : the state of the current attempt
    history : for each sweep of this attempt the total `loss`, each term summed over the batches, and the `seconds`
    finished : final losses of the previous attempts
    best, best_history : state and history of the attempt with the lowest loss, or of the consensus
    bases_of : the bases of each previous attempt, for a consensus
    all_converged : whether the losses of all previous attempts converged
    spent : total seconds of the sweeps of previous attempts
    """

    state: State
    history: History = field(default_factory=empty_history)
    finished: list[float] = field(default_factory=list)
    best: State | None = None
    best_history: History = field(default_factory=empty_history)
    bases_of: list[list[Tensor]] = field(default_factory=list)
    all_converged: bool = True
    spent: float = 0.0

    @property
    def attempt(self) -> int:
        """Index of the current attempt, from 0."""
        return len(self.finished)


def solve(
    start: Callable[[int], list[Tensor]],
    sweep: Sweep,
    objective: Objective,
    settings: Settings,
    after_sweep: Callable[[Progress], None] | None = None,
    progress: Progress | None = None,
) -> Progress:
    """Minimise the objective by sweeps until the loss settles, from one or several starts.

    Of several attempts (`restarts`), that with the lowest loss is kept; or, with `consensus`, one more attempt, from
    the consensus of the others to the next check of the loss.

    Parameters
    ----------
    start : returns the initial bases of an attempt, by its index
    progress : the progress to resume from

    Returns
    -------
    the progress at the end; `best` has the bases, with components normalised, and `best_history` their history
    """
    progress = Progress(State(start(0))) if progress is None else progress
    while True:
        while True:
            losses = progress.history["loss"]
            if progress.attempt >= settings.restarts:  # the consensus
                if len(losses) >= settings.sweeps_per_check:
                    break
            elif len(losses) >= settings.max_sweeps or settings.is_converged(losses):
                break
            _run_sweep(progress, sweep, objective)
            if after_sweep is not None:
                after_sweep(progress)
        _finish_attempt(progress, settings)
        if progress.attempt >= settings.attempts:
            break
        is_restart = progress.attempt < settings.restarts
        progress.state = State(start(progress.attempt) if is_restart else _consensus(progress))
        progress.history = empty_history()
    assert progress.best is not None
    normalise_components(progress.best)
    return progress


def _run_sweep(progress: Progress, sweep: Sweep, objective: Objective) -> None:
    """Run one sweep and add it to the history."""
    state, history, begun = progress.state, progress.history, time.perf_counter()
    state.energy = None
    # All terms are evaluated before the bases are updated, so that the loss belongs to a single point.
    tikhonov_of_bases = objective.alpha * sum(float(factor.square().sum()) for factor in state.factors)
    terms = sweep(state, len(history["loss"])).tolist()
    terms[Term.TIKHONOV] += tikhonov_of_bases
    history["loss"].append(sum(terms))
    for name, term in zip(TERMS, terms, strict=True):
        history[name].append(term)
    history["seconds"].append(time.perf_counter() - begun)


def _finish_attempt(progress: Progress, settings: Settings) -> None:
    """Keep the result of this attempt if it has the lowest loss so far, or is the consensus."""
    loss = progress.history["loss"][-1]
    if settings.attempts > 1:
        progress.state.coefficients = None  # only needed for a next sweep, and large
    if progress.best is None or progress.attempt >= settings.restarts or loss < min(progress.finished):
        progress.best, progress.best_history = progress.state, progress.history
    if settings.consensus:
        progress.bases_of.append(progress.state.factors)
    if progress.attempt < settings.restarts:
        progress.all_converged &= settings.is_converged(progress.history["loss"])
    progress.finished.append(loss)
    progress.spent += sum(progress.history["seconds"])


def _consensus(progress: Progress) -> list[Tensor]:
    """Return the consensus of the attempts so far."""
    fits = [[basis.double().cpu().numpy() for basis in bases] for bases in progress.bases_of]
    averages = average_components(fits, progress.finished)
    return [torch.from_numpy(basis).to(like) for basis, like in zip(averages, progress.state.factors, strict=True)]


def has_converged(losses: Sequence[float], tol: float, patience: int) -> bool:
    """Return whether a fit has converged by the paper's stop rule.

    The relative change of the loss must be below `tol` in each of the last `patience` sweeps; with tol=0 it never is.

    Examples
    --------
    >>> has_converged([9.0, 5.0, 5.0, 5.0], tol=1e-3, patience=2), has_converged([9.0, 5.0, 5.0], tol=1e-3, patience=2)
    (True, False)
    >>> has_converged([5.0, 5.0, 5.0], tol=0.0, patience=2)
    False
    """
    recent = losses[-patience - 1 :]
    # A loss of exactly zero, as of silent windows, has no relative change.
    return len(recent) == patience + 1 and all(
        abs(after - before) < tol * abs(before) or (tol > 0 and after == before) for before, after in pairwise(recent)
    )


# ---------------------------------------------------------------------- sweeps


def plain_sweep(source: WindowSource, objective: Objective, settings: Settings) -> Sweep:
    """Return the function that runs one sweep over a source, by Algorithm 1 or by Algorithm 2."""
    if settings.batch_size is None:
        return _full_batch_sweep(source, objective)
    size, views, solver, rate = settings.batch_size, source.n_views, settings.solver, settings.learning_rate

    def sweep(state: State, number: int) -> Tensor:
        """Take a step on each of the shuffled batches; the last one may be smaller."""
        terms = torch.zeros(len(Term), dtype=torch.float64, device=state.factors[0].device)
        parts = torch.split(source.order(settings.seed, number), size)
        for index, (_, T) in enumerate(source.batches(parts, number)):
            terms += step(T, state, objective, views, solver=solver, learning_rate=rate, watch=index == 0)
        state.coefficients = None
        return terms

    return sweep


def _full_batch_sweep(source: WindowSource, objective: Objective) -> Sweep:
    """Return the sweep of Algorithm 1: a step on all windows, whose tensors and views are built once and kept."""
    views, kept = source.n_views, list[tuple[Tensor, Tensor]]()

    def sweep(state: State, number: int) -> Tensor:
        if not kept:
            ((_, T),) = source.batches([torch.arange(source.n_windows, device="cpu")], 0)
            kept.append((T, squared_norms(T).reshape(views, -1).sum(dim=1)))
        T, energy = kept[0]
        return step(T, state, objective, views, start=state.coefficients, energy=energy, watch=True)

    return sweep


# ------------------------------------------------------------------ at the end


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


# ------------------------------------------------------------------- consensus

_ALIKE = 0.7
"""Minimum similarity of components that are averaged. Components of noise rarely reach it."""
_MATCHINGS = 20


def pair_components(
    first: Sequence[_Floats], second: Sequence[_Floats]
) -> tuple[NDArray[np.intp], NDArray[np.intp], _Floats]:
    """Match the components of two models, whose ranks may differ, so that the sum of their similarities is maximal.

    The similarity is Tucker's congruence: the cosine between two columns, for a component the product over the modes.
    Returns the matched components of both models and the cosines between their columns: (n,), (n,), (modes, n).

    Examples
    --------
    >>> A = np.eye(3)[:, :2]
    >>> a, b, cosines = pair_components([A, A], [A[:, ::-1], -A[:, ::-1]])
    >>> a, b, cosines.tolist()
    (array([0, 1]), array([1, 0]), [[1.0, 1.0], [-1.0, -1.0]])
    """
    from scipy.optimize import linear_sum_assignment

    cosines = np.stack([_unit_columns(x).T @ _unit_columns(y) for x, y in zip(first, second, strict=True)])
    a, b = linear_sum_assignment(np.abs(cosines).prod(axis=0), maximize=True)
    return a, b, np.clip(cosines[:, a, b], -1.0, 1.0)


def average_components(fits: Sequence[Sequence[_Floats]], losses: Sequence[float]) -> list[_Floats]:
    """Average each component of the fit with the lowest loss with the similar components of the other fits.

    The other fits are then matched with the averages, and averaged again, until the matching no longer changes. A
    component without a match stays unchanged. Columns of the result have norm 1.

    Examples
    --------
    >>> A = np.eye(2)
    >>> fits = [[A, A], [A, -A[:, ::-1] @ A[:, ::-1]], [A[:, :1] @ np.ones((1, 2)), A]]
    >>> [basis.round(3).tolist() for basis in average_components(fits, [1.0, 2.0, 3.0])]
    [[[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 1.0]]]
    """
    average = [_unit_columns(basis) for basis in fits[int(np.argmin(losses))]]
    before: list[list[int]] = []
    for _ in range(_MATCHINGS):
        sums = [np.zeros_like(basis) for basis in average]
        pairs = []
        for bases in fits:
            a, b, cosines = pair_components(average, bases)
            alike = np.abs(cosines).prod(axis=0) >= _ALIKE
            a, b, signs = a[alike], b[alike], np.where(cosines < 0, -1.0, 1.0)[:, alike]
            for total, basis, sign in zip(sums, bases, signs, strict=True):
                total[:, a] += _unit_columns(basis)[:, b] * sign
            pairs.append([*a.tolist(), -1, *b.tolist()])
        if pairs == before:
            break
        before = pairs
        found = np.logical_or.reduce([total.any(axis=0) for total in sums])
        average = [_unit_columns(np.where(found, total, basis)) for total, basis in zip(sums, average, strict=True)]
    return average


def _unit_columns(basis: _Floats) -> _Floats:
    """Scale columns to norm 1; zero columns stay zero."""
    norms = np.linalg.norm(basis, axis=0)
    return basis / np.where(norms > 0, norms, 1.0)


def warn_of_vanished(factors: Sequence[Tensor]) -> None:
    """Warn about components with a profile that is all zero."""
    dead = torch.stack([~factor.any(dim=0) for factor in factors]).any(dim=0)
    if bool(dead.any()):
        from sklearn.exceptions import ConvergenceWarning

        warnings.warn(
            f"{int(dead.sum())} of {len(dead)} components vanished, because the data do not need them. A smaller rank "
            "gives the same fit.",
            ConvergenceWarning,
            stacklevel=5,  # the line that called `fit`
        )
