"""Whole fits: Algorithms 1 and 2 and second moments, the stop rule, restarts, consensus, resuming, and the order of
components at the end. What one step does is for `test_step`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
import oracles
import pytest
import torch
from problems import arrays, assert_same, bases, draw, moments_of
from scipy.optimize import linear_sum_assignment

from polyadic._util import random_streams
from polyadic.core import solve
from polyadic.core.algebra import gram, initial_factors, project, reconstruct
from polyadic.core.solve import (
    Progress,
    Settings,
    average_components,
    has_converged,
    normalise_components,
    plain_sweep,
)
from polyadic.core.step import TERMS, Objective, State, Statistics, solve_coefficients, step
from polyadic.explain import match

CPU = torch.device("cpu")
FULL = Settings(solver="blend", learning_rate=1.0, batch_size=None, max_sweeps=4, tol=0.0, patience=3, seed=0)
MINI = replace(FULL, learning_rate=0.3, batch_size=4)
MOMENTS = replace(FULL, solver="moments")


class Recorded:
    """Windows in memory that remember what was asked of them; the second view may depend on the sweep."""

    def __init__(self, T: torch.Tensor, view: Callable[[torch.Tensor, int], torch.Tensor] | None = None) -> None:
        self.T, self.view = T, view
        self.asked: list[tuple[list[int], int]] = []

    @property
    def n_windows(self) -> int:
        return len(self.T)

    @property
    def n_views(self) -> int:
        return 1 if self.view is None else 2

    def views(self, ids: torch.Tensor, sweep: int) -> torch.Tensor:
        self.asked.append((ids.tolist(), sweep))
        batch = self.T[ids]
        return batch if self.view is None else torch.cat([batch, self.view(batch, sweep)])

    def order(self, seed: int, sweep: int) -> torch.Tensor:
        return random_streams.permutation(self.n_windows, seed, sweep)

    def batches(self, parts: Sequence[torch.Tensor], sweep: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for ids in parts:
            yield ids, self.views(ids, sweep)

    def seen(self, sweep: int) -> list[list[int]]:
        return [ids for ids, of in self.asked if of == sweep]


def perturbed(batch: torch.Tensor, sweep: int) -> torch.Tensor:
    """A second view that is a function of each window alone, another one in every sweep."""
    return batch + 0.3 * torch.sin(7 * batch + sweep)


def windows(count: int = 10, shape: tuple[int, ...] = (4, 3, 2), seed: int = 0) -> torch.Tensor:
    return draw(count, *shape, seed=seed, scale=3.0)


def fit(source, factors, objective=Objective(0.1), settings=FULL, after_sweep=None, progress=None) -> Progress:  # noqa: B008
    """Solve from the given bases, or from those that a function returns for each attempt."""
    start = factors if callable(factors) else lambda attempt: list(factors)
    sweep = plain_sweep(source, objective, settings)
    if settings.solver == "moments":
        sweep = moments_of(source.views(torch.arange(source.n_windows), 0)).sweep_of(objective)
    return solve.solve(start, sweep, objective, settings, after_sweep, progress)


@pytest.fixture
def unarranged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bases as the last sweep left them."""
    monkeypatch.setattr(solve, "normalise_components", lambda state: None)


OBJECTIVES = {
    "one view": (Objective(0.1), None),
    "two views": (Objective(0.1), perturbed),
    "alignment": (Objective(0.1, beta=1.5, rounds=2), perturbed),
    "complete graph": (Objective(0.1, graph_weight=0.5), None),
}
each_objective = pytest.mark.parametrize(("objective", "view"), OBJECTIVES.values(), ids=OBJECTIVES)


# ------------------------------------------------------------------ Algorithm 1


@each_objective
@pytest.mark.usefixtures("unarranged")
def test_algorithm_1_is_that_of_the_paper(objective, view):
    source, factors = Recorded(windows(), view), bases((4, 3, 2), 3)
    T = source.views(torch.arange(10), 0)
    source.asked.clear()
    progress = fit(source, factors, objective)
    assert source.asked == [(list(range(10)), 0)], "Algorithm 1 augments once"
    expected, terms = oracles.algorithm_1(T.numpy(), arrays(factors), objective, source.n_views, 4)
    assert_same(progress.best.factors, expected, rtol=1e-7, atol=1e-8)
    assert_same([progress.best_history[name] for name in TERMS], terms, rtol=1e-8, atol=1e-8)
    assert_same([progress.best_history["loss"]], [terms.sum(axis=0)], rtol=1e-8)


@pytest.mark.parametrize("view", [None, perturbed])
@pytest.mark.parametrize("alpha", [1e-6, 5.0])
@pytest.mark.parametrize("nonnegative", [False, True])
def test_full_batch_als_never_increases_its_loss_without_alignment(alpha, view, nonnegative):
    factors = [factor.abs() if nonnegative else factor for factor in bases((4, 3, 2), 3)]
    objective, settings = Objective(alpha, nonnegative=nonnegative), replace(FULL, max_sweeps=25)
    losses = fit(Recorded(windows(12), view), factors, objective, settings).best_history["loss"]
    assert (np.diff(losses) <= 1e-10 * losses[0]).all()
    assert losses[-1] < 0.999 * losses[0]


# ------------------------------------------------------------------ Algorithm 2


@pytest.mark.parametrize(("count", "sizes"), [(1, [1]), (8, [4, 4]), (9, [4, 4, 1])])
def test_a_mini_batch_sweep_visits_every_window_once_and_drops_no_short_batch(count, sizes):
    source = Recorded(windows(count), perturbed)
    progress = fit(source, bases((4, 3, 2), 3), Objective(0.1, beta=0.2), MINI)
    for sweep in range(4):
        batches = source.seen(sweep)
        assert [len(ids) for ids in batches] == sizes
        assert sorted(chain(*batches)) == list(range(count))
    assert all(torch.isfinite(factor).all() for factor in progress.best.factors)


@pytest.mark.parametrize("solver", ["blend", "memory"])
@each_objective
def test_a_mini_batch_fit_is_its_steps_one_after_another(objective, view, solver):
    source, factors, settings = Recorded(windows(), view), bases((4, 3, 2), 3), replace(MINI, solver=solver)
    progress, state = fit(source, factors, objective, settings), State(factors)
    history = progress.best_history
    for sweep in range(4):
        before = sum(float(factor.square().sum()) for factor in state.factors)
        total, state.energy = torch.zeros(5, dtype=torch.float64), None
        for batch in source.seen(sweep):
            ids = torch.tensor(batch)
            T = source.T[ids] if view is None else torch.cat([source.T[ids], view(source.T[ids], sweep)])
            total += step(T, state, objective, source.n_views, solver=solver, learning_rate=0.3)
        total[2] += objective.alpha * before
        assert_same([[history[name][sweep] for name in TERMS], history["loss"][sweep]], [total, total.sum()])
    normalise_components(state)
    assert all(torch.equal(a, b) for a, b in zip(progress.best.factors, state.factors, strict=True))
    assert torch.equal(progress.best.energy, state.energy)


# -------------------------------------------------------------------- stop rule


@pytest.mark.parametrize(
    ("losses", "patience", "stop"),
    [
        ([], 3, False),
        ([5.0, 5.0], 1, True),
        ([9.0, 5.0, 5.0, 5.0], 3, False),
        ([9.0, 5.0, 5.004, 5.0, 5.004], 3, True),
        ([5.0, 5.0, 5.006, 5.006], 3, False),
        ([5.0, 5.006, 5.006, 5.006, 5.006], 3, True),
        ([-5.0, -5.004, -5.0, -5.004], 3, True),
        ([-5.0, -5.006, -5.006, -5.006], 3, False),
        ([4.0, 5.0], 1, False),
        ([5.0, float("nan"), float("nan"), float("nan")], 3, False),
    ],
)
def test_the_loss_has_converged_when_each_of_the_last_changes_is_below_the_tolerance(losses, patience, stop):
    assert has_converged(losses, 1e-3, patience) is stop


@pytest.mark.parametrize("settings", [FULL, MOMENTS])
@pytest.mark.parametrize("loss", [5.0, 0.0])
def test_with_tol_0_even_a_constant_loss_is_swept_max_sweeps_times(settings, loss):
    def sweeps(tol: float) -> int:
        asked = replace(settings, max_sweeps=23, tol=tol, patience=2)
        terms = torch.tensor([loss, 0, 0, 0, 0], dtype=torch.float64)
        progress = solve.solve(lambda attempt: bases((4, 3), 2), lambda state, number: terms, Objective(0.0), asked)
        assert progress.all_converged is (tol > 0)
        return len(progress.best_history["loss"])

    assert sweeps(tol=0.0) == 23
    assert sweeps(tol=1e-12) == 3 * settings.sweeps_per_check


@pytest.mark.parametrize("settings", [FULL, MINI])
@pytest.mark.parametrize("patience", [1, 4])
def test_a_fit_stops_at_the_first_sweep_at_which_its_loss_has_converged(settings, patience):
    settings = replace(settings, max_sweeps=300, tol=1e-2, patience=patience)
    losses = fit(Recorded(windows(40)), bases((4, 3, 2), 3), settings=settings).best_history["loss"]
    assert patience < len(losses) < 300
    converged = [has_converged(losses[:sweeps], 1e-2, patience) for sweeps in range(1, len(losses) + 1)]
    assert converged == [False] * (len(losses) - 1) + [True]


# ---------------------------------------------------------- restarts and resuming


def starts(attempt: int) -> list[torch.Tensor]:
    return initial_factors((4, 3, 2), 3, 2 + attempt, torch.float64, CPU)


def noted(into: list[Progress]) -> Callable[[Progress], None]:
    """An observer that keeps a copy of the progress after every sweep."""
    return lambda progress: into.append(copy.deepcopy(progress))


EACH = {"Algorithm 1": FULL, "Algorithm 2": MINI, "memory": replace(MINI, solver="memory"), "moments": MOMENTS}


@pytest.mark.parametrize("settings", EACH.values(), ids=EACH)
def test_restarts_keep_the_lowest_loss(settings):
    source, sweeps = Recorded(windows(20)), []
    progress = fit(source, starts, settings=replace(settings, restarts=4), after_sweep=noted(sweeps))
    assert [(each.attempt, len(each.history["loss"])) for each in sweeps] == [
        (attempt, sweep) for attempt in range(4) for sweep in range(1, 5)
    ]
    alone = [fit(source, starts(attempt), settings=settings) for attempt in range(4)]
    losses = [each.best_history["loss"][-1] for each in alone]
    assert len(set(losses)) == 4
    assert progress.finished == losses
    best = int(np.argmin(losses))
    assert best > 0, "another than the first, or the test could not notice"
    assert progress.best_history["loss"] == alone[best].best_history["loss"]
    assert all(torch.equal(a, b) for a, b in zip(progress.best.factors, alone[best].best.factors, strict=True))


@pytest.mark.parametrize(("settings", "sweeps"), [(FULL, 1), (MOMENTS, 4)])
def test_the_consensus_is_swept_to_the_next_check_from_the_average_of_the_attempts_and_kept(settings, sweeps):
    ends: dict[int, Progress] = {}
    settings = replace(settings, max_sweeps=40, restarts=3, consensus=True)
    progress = fit(
        Recorded(windows(20)), starts, settings=settings, after_sweep=lambda p: ends.update({p.attempt: copy.copy(p)})
    )
    assert list(ends) == [0, 1, 2, 3]
    averages = average_components([arrays(ends[n].state.factors) for n in range(3)], progress.finished[:3])
    alone = fit(
        Recorded(windows(20)),
        [torch.from_numpy(basis) for basis in averages],
        settings=replace(settings, restarts=1, consensus=False, max_sweeps=sweeps),
    )
    assert len(progress.best_history["loss"]) == sweeps
    assert_same(progress.best.factors, alone.best.factors)
    assert progress.best_history["loss"][-1] > min(progress.finished[:3]), "kept although a restart fits better"


@pytest.mark.parametrize("settings", EACH.values(), ids=EACH)
def test_a_fit_resumed_from_any_sweep_ends_with_the_same_bits(settings):
    settings = replace(settings, restarts=2, consensus=True)
    aligned = settings.solver == "blend"
    source, objective = Recorded(windows(), perturbed if aligned else None), Objective(0.1, beta=0.5 * aligned)
    sweeps: list[Progress] = []
    whole = fit(source, starts, objective, settings, noted(sweeps))
    assert len(sweeps) == 2 * 4 + settings.sweeps_per_check
    for position, progress in enumerate(sweeps):
        later: list[Progress] = []
        resumed = fit(source, starts, objective, settings, noted(later), progress)
        assert len(later) == len(sweeps) - position - 1
        assert [resumed.best_history[name] for name in TERMS] == [whole.best_history[name] for name in TERMS]
        for first, second in zip(resumed.best.factors, whole.best.factors, strict=True):
            assert torch.equal(first, second)


# ------------------------------------------------------- recovery and determinism


@pytest.mark.parametrize("settings", [FULL, MOMENTS], ids=["Algorithm 1", "moments"])
@pytest.mark.parametrize("shape", [(6, 5), (4, 3, 3, 4)])
def test_planted_factors_are_recovered_exactly_from_noiseless_data(shape, settings):
    planted, X = bases(shape, 3), draw(30, 3)
    T, objective = reconstruct(X, planted), Objective(1e-10)
    factors = initial_factors(shape, 3, 0, torch.float64, CPU)
    F = fit(Recorded(T), factors, objective, replace(settings, max_sweeps=800, tol=1e-6)).best.factors
    coefficients = solve_coefficients(project(T, F), gram(F), objective)
    cosines = np.ones((3, 3))
    for a, b in zip(arrays([coefficients, *F]), arrays([X, *planted]), strict=True):
        cosines = cosines * np.abs((a / np.linalg.norm(a, axis=0)).T @ (b / np.linalg.norm(b, axis=0)))
    assert cosines[linear_sum_assignment(-cosines)].min() > 0.999
    assert match(arrays(F), arrays(planted)).score > 0.999


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-3), (torch.float64, 1e-9)])
@pytest.mark.parametrize("settings", EACH.values(), ids=EACH)
def test_every_device_agrees_with_the_cpu_which_repeats_its_bits(device, settings, dtype, tolerance):
    objectives = [Objective(0.1)] if settings.solver == "moments" else [Objective(0.1, beta=0.5), Objective(0.1)]
    for objective in objectives:
        view, results = perturbed if objective.beta else None, []
        for where in (device, CPU, CPU):
            factors = initial_factors((4, 3, 2), 3, 0, dtype, where)
            progress = fit(Recorded(windows(30).to(where, dtype), view), factors, objective, settings)
            assert progress.best.factors[0].device.type == where.type
            results.append([*(f.cpu() for f in progress.best.factors), [progress.best_history[n] for n in TERMS]])
        assert_same(results[2], results[1], rtol=0, atol=0)
        assert_same(results[0], results[1], rtol=tolerance, atol=tolerance)


# --------------------------------------------------------- order of components


def arranged() -> tuple[list[torch.Tensor], torch.Tensor, State]:
    """Bases of very different scales, the energies of their coefficients, and both normalised."""
    scales = torch.tensor([0.01, 20.0, 1.0, 0.3])
    factors = [factor * scales.roll(mode) for mode, factor in enumerate(bases((5, 4, 3), 4))]
    # The larger a component's bases, the smaller its coefficients, but not by so much that they make up for it.
    energy = torch.stack([factor.norm(dim=0) for factor in factors]).prod(dim=0) ** -1.5
    state = State(list(factors), coefficients=draw(6, 4), energy=energy.clone())
    normalise_components(state)
    return factors, energy, state


def test_components_have_equal_norms_positive_largest_entries_and_falling_energy():
    factors, energy, state = arranged()
    norms = torch.stack([factor.norm(dim=0) for factor in state.factors])
    assert_same(norms, [norms[0]] * 3)
    assert all((factor.amax(dim=0) >= -factor.amin(dim=0)).all() for factor in state.factors)
    energies = energy * torch.stack([factor.norm(dim=0) for factor in factors]).prod(dim=0) ** 2
    order = energies.argsort(descending=True)
    assert order.tolist() != [0, 1, 2, 3]
    assert_same([state.energy * norms[0] ** 6], [energies[order]])
    for before, after in zip(factors, state.factors, strict=True):
        assert_same([torch.cosine_similarity(before[:, order], after, dim=0).abs()], [np.ones(4)])
    assert state.coefficients is None
    once = [factor.clone() for factor in state.factors]
    normalise_components(state)
    assert_same(state.factors, once)


@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_normalising_keeps_the_reconstruction_by_refitted_coefficients(alpha):
    factors, _, state = arranged()
    T, results = draw(6, 5, 4, 3), []
    for F in (factors, state.factors):
        X = solve_coefficients(project(T, F), gram(F), Objective(alpha))
        results.append((reconstruct(X, F), X.norm()))
    assert_same(results[1], results[0], rtol=1e-6, atol=1e-8)


def test_zero_columns_come_last_and_give_no_nan():
    factors = bases((5, 4, 3), 3)
    factors[1][:, 0] = 0
    zero = State([torch.zeros(5, 2), torch.zeros(4, 2)])
    state = State(factors, memory=Statistics(draw(3, 5, 4, 3), draw(3, 3)), energy=torch.ones(3).double())
    normalise_components(state)
    normalise_components(zero)
    tensors = (*state.factors, state.memory.Y, state.memory.S, state.energy, *zero.factors)
    assert all(torch.isfinite(tensor).all() for tensor in tensors)
    assert all(not factor[:, 2].any() and factor[:, :2].all() for factor in state.factors)
