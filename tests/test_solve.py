"""Whole fits: Algorithm 1 in memory and out of it, the sweeps of Algorithm 2, the stop rule, the history, recovery,
and what is settled at the end. What one step does is for `test_als`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
import oracles
import pytest
import torch
from problems import arrays, assert_same, bases, draw, graph_weights, paper
from scipy.optimize import linear_sum_assignment
from sklearn.exceptions import ConvergenceWarning

from polyadic import ATD, SALS
from polyadic._util import random_streams as draws
from polyadic.core import step as als
from polyadic.core.algebra import gram, project, reconstruct
from polyadic.core.step import Objective, State, Statistics
from polyadic.core.terms import TERMS
from polyadic.engine import loop
from polyadic.engine.loop import Fit, FitSettings, has_converged, normalise_components
from polyadic.errors import PolyadicError

CPU = torch.device("cpu")
FULL = FitSettings(solver="blend", learning_rate=1.0, batch_size=None, max_sweeps=4, tol=0.0, patience=3, seed=0)
MINI = replace(FULL, learning_rate=0.3, batch_size=4)


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
        return draws.permutation(self.n_windows, seed, sweep)

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


@pytest.fixture
def unarranged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bases as the last sweep left them."""
    monkeypatch.setattr(loop, "normalise_components", lambda state: None)


GIVEN = graph_weights(10)
OBJECTIVES = {
    "one view": (Objective(0.1), None),
    "two views": (Objective(0.1), perturbed),
    "alignment": (Objective(0.1, beta=1.5, rounds=2), perturbed),
    "complete graph": (Objective(0.1, graph_weight=0.5), None),
    "given graph": (Objective(0.1, graph_weight=0.5, graph=lambda ids: GIVEN[ids][:, ids]), None),
}


def literal_algorithm_1(source: Recorded, factors: list[torch.Tensor], objective: Objective, sweeps: int):
    """The bases and the terms of the objective that the paper's Algorithm 1 has, as the oracles have it."""
    T = source.views(torch.arange(10), 0).numpy()
    weights = None if objective.graph is None else GIVEN.numpy()
    return oracles.algorithm_1(T, arrays(factors), objective, source.n_views, sweeps, weights)


each_objective = pytest.mark.parametrize(("objective", "view"), OBJECTIVES.values(), ids=OBJECTIVES)


# ------------------------------------------------------------------ Algorithm 1


@each_objective
@pytest.mark.parametrize("chunk", [None, 3, 1])
@pytest.mark.usefixtures("unarranged")
def test_algorithm_1_is_literally_the_papers_in_memory_and_accumulated(objective, view, chunk, monkeypatch):
    source, factors = Recorded(windows(), view), bases((4, 3, 2), 3)
    T = source.views(torch.arange(10), 0)
    if chunk is not None:
        monkeypatch.setattr(loop, "_CHUNK_BYTES", chunk * T[: source.n_views].nbytes)
        monkeypatch.setattr(loop, "_KEPT_BYTES", 0)
    source.asked.clear()
    state = State(factors)
    history = Fit(source, state, objective, FULL).run()
    assert max(len(ids) for ids, _ in source.asked) == (chunk or 10)
    expected, terms = literal_algorithm_1(source, factors, objective, 4)
    assert_same(state.factors, expected, rtol=1e-7, atol=1e-8)
    assert_same([history[name] for name in TERMS], terms, rtol=1e-8, atol=1e-8)
    assert_same([history["loss"]], [terms.sum(axis=0)], rtol=1e-8)


@each_objective
def test_algorithm_1_accumulated_equals_algorithm_1_in_memory_to_rounding(objective, view, monkeypatch):
    fits = []
    for bytes_at_once, kept in ((loop._CHUNK_BYTES, loop._KEPT_BYTES), (1000, 0), (1000, loop._KEPT_BYTES)):
        monkeypatch.setattr(loop, "_CHUNK_BYTES", bytes_at_once)
        monkeypatch.setattr(loop, "_KEPT_BYTES", kept)
        source, state = Recorded(windows(), view), State(bases((4, 3, 2), 3))
        history = Fit(source, state, objective, FULL).run()
        fits.append((source, [*state.factors, state.energy, *(history[name] for name in TERMS)]))
    assert len(fits[0][0].asked) == 2
    assert len(fits[1][0].asked) > 8
    assert 2 < len(fits[2][0].asked) <= 6  # the pieces are made once
    assert_same(fits[1][1], fits[0][1], rtol=1e-8, atol=1e-10)
    assert_same(fits[2][1], fits[1][1], rtol=0, atol=0)


@each_objective
def test_algorithm_1_reads_each_window_once_a_sweep_or_twice_where_windows_depend_on_each_other(
    objective, view, monkeypatch
):
    monkeypatch.setattr(loop, "_CHUNK_BYTES", 1)
    monkeypatch.setattr(loop, "_KEPT_BYTES", 0)
    source = Recorded(windows(), view)
    Fit(source, State(bases((4, 3, 2), 3)), objective, FULL).run()
    reads = 4 * (2 if objective.beta > 0 or objective.graph_weight > 0 else 1)
    assert [ids for ids, _ in source.asked] == [[0]] + reads * [[n] for n in range(10)]


@pytest.mark.parametrize("chunk_bytes", [loop._CHUNK_BYTES, 1000])
def test_algorithm_1_augments_once_and_sees_sweep_0_in_every_sweep(chunk_bytes, monkeypatch):
    monkeypatch.setattr(loop, "_CHUNK_BYTES", chunk_bytes)
    monkeypatch.setattr(loop, "_KEPT_BYTES", 0)
    source = Recorded(windows(), perturbed)
    Fit(source, State(bases((4, 3, 2), 3)), Objective(0.1, beta=1.5), FULL).run()
    assert {sweep for _, sweep in source.asked} == {0}


@pytest.mark.usefixtures("unarranged")
def test_algorithm_1_carries_its_coefficients_over_from_sweep_to_sweep():
    objective, factors = Objective(0.1, beta=1.5), bases((4, 3, 2), 3)
    source, state = Recorded(windows(), perturbed), State(factors)
    Fit(source, state, objective, FULL).run()
    T, literal, cold = source.views(torch.arange(10), 0).numpy(), arrays(factors), arrays(factors)
    X = None
    for _ in range(4):
        X = oracles.aligned_coefficients(T, literal, objective, X)
        literal = oracles.updated_bases(T, X, literal, 0.1)
        cold = oracles.updated_bases(T, oracles.aligned_coefficients(T, cold, objective), cold, 0.1)
    assert_same([state.coefficients, *state.factors], [X, *literal], rtol=1e-7, atol=1e-8)
    # A cold start in each sweep would have led elsewhere.
    assert np.abs(cold[0] - literal[0]).max() > 1e-4


def test_algorithm_1_asks_no_learning_rate_and_no_solver():
    states = [State(bases((4, 3, 2), 3)) for _ in range(2)]
    for state, settings in zip(states, (FULL, replace(FULL, solver="memory", learning_rate=0.1)), strict=True):
        Fit(Recorded(windows()), state, Objective(0.1), settings).run()
    assert all(torch.equal(a, b) for a, b in zip(states[0].factors, states[1].factors, strict=True))


@pytest.mark.parametrize("shape", [(6,), (4, 3), (4, 3, 2)])
@pytest.mark.parametrize("view", [None, perturbed])
@pytest.mark.parametrize("alpha", [1e-6, 0.1, 5.0])
@pytest.mark.usefixtures("unarranged")
def test_full_batch_als_never_increases_its_loss_without_alignment(alpha, view, shape):
    source, objective, state = Recorded(windows(12, shape), view), Objective(alpha), State(bases(shape, 3))
    T, losses, reported = source.views(torch.arange(12), 0).numpy(), [], []
    for _ in range(25):
        F = arrays(state.factors)
        X = oracles.least_squares(T, F, alpha)
        losses.append(sum(oracles.objective_terms(T, X, F, objective, source.n_views)))
        reported += Fit(source, state, objective, replace(FULL, max_sweeps=1)).run()["loss"]
        losses.append(sum(oracles.objective_terms(T, X, arrays(state.factors), objective, source.n_views)))
    assert (np.diff(losses) <= 1e-10 * losses[0]).all()
    assert losses[-1] < 0.999 * losses[0]
    history = Fit(source, State(bases(shape, 3)), objective, replace(FULL, max_sweeps=25)).run()["loss"]
    assert_same([reported, history], [losses[::2], losses[::2]], rtol=1e-6)
    assert (np.diff(history) <= 1e-10 * history[0]).all()


# ------------------------------------------------------------------ Algorithm 2


@pytest.mark.parametrize(("count", "sizes"), [(1, [1]), (3, [3]), (8, [4, 4]), (10, [4, 4, 2]), (9, [4, 4, 1])])
def test_a_mini_batch_sweep_visits_every_window_once_and_drops_no_short_batch(count, sizes):
    source = Recorded(windows(count), perturbed)
    state = State(bases((4, 3, 2), 3))
    history = Fit(source, state, Objective(0.1, beta=0.2), MINI).run()
    assert len(history["loss"]) == 4
    for sweep in range(4):
        batches = source.seen(sweep)
        assert [len(ids) for ids in batches] == sizes
        assert sorted(chain(*batches)) == list(range(count))
    assert all(torch.isfinite(factor).all() for factor in state.factors)
    assert np.isfinite([history[name] for name in ("loss", *TERMS)]).all()


def test_every_sweep_and_every_seed_shuffles_anew():
    orders = []
    for seed in (0, 1):
        source = Recorded(windows(40))
        Fit(source, State(bases((4, 3, 2), 3)), Objective(0.1), replace(MINI, seed=seed)).run()
        orders += [tuple(chain(*source.seen(sweep))) for sweep in range(4)]
    assert len(set(orders)) == 8
    assert tuple(range(40)) not in orders


@pytest.mark.parametrize("solver", ["blend", "memory"])
@each_objective
def test_a_mini_batch_fit_is_its_steps_one_after_another_arranged_by_the_energy_of_the_last_sweep(
    objective, view, solver
):
    source, factors, settings = Recorded(windows(), view), bases((4, 3, 2), 3), replace(MINI, solver=solver)
    state, steps = State(factors), State(factors)
    history = Fit(source, state, objective, settings).run()
    for sweep in range(4):
        before = sum(float(f.square().sum()) for f in steps.factors)
        total, steps.energy = torch.zeros(5, dtype=torch.float64), None
        for batch in source.seen(sweep):
            ids = torch.tensor(batch)
            T = source.T[ids] if view is None else torch.cat([source.T[ids], view(source.T[ids], sweep)])
            total += als.step(T, steps, objective, source.n_views, solver, 0.3, ids)
        total[2] += objective.alpha * before
        assert_same([[history[name][sweep] for name in TERMS], history["loss"][sweep]], [total, total.sum()])
    normalise_components(steps)
    assert torch.equal(state.energy, steps.energy)
    assert all(torch.equal(a, b) for a, b in zip(state.factors, steps.factors, strict=True))


@each_objective
def test_the_history_of_one_batch_is_the_dense_objective(objective, view):
    source, factors = Recorded(windows(), view), bases((4, 3, 2), 3)
    history = Fit(source, State(factors), objective, replace(MINI, batch_size=10, max_sweeps=1)).run()
    _, terms = literal_algorithm_1(source, factors, objective, 1)
    assert_same([history[name] for name in TERMS], terms, atol=1e-8)
    assert_same([history["loss"]], [terms.sum(axis=0)])


def test_a_single_window_has_no_random_pair():
    source, factors = Recorded(windows(1), perturbed), bases((4, 3, 2), 3)
    objective = Objective(0.1, beta=0.5, gamma=1e6)
    history = Fit(source, State(factors), objective, replace(MINI, max_sweeps=1)).run()
    x, y = oracles.aligned_coefficients(source.views(torch.arange(1), 0).numpy(), arrays(factors), objective)
    assert_same([history["self_supervised"]], [[-0.5 * x @ y / np.linalg.norm(x) / np.linalg.norm(y)]])


@pytest.mark.parametrize("settings", [FULL, MINI])
def test_a_fit_at_a_beta_at_which_the_rule_does_not_converge_warns(settings):
    with pytest.warns(ConvergenceWarning, match="does not converge at beta=10000"):
        Fit(Recorded(windows(), perturbed), State(bases((4, 3, 2), 3)), Objective(0.1, beta=1e4), settings).run()


@pytest.mark.parametrize("batch_size", [None, 4, 128])
@pytest.mark.parametrize("count", [1, 3, 10])
def test_the_estimator_fits_any_number_of_windows(count, batch_size):
    X = windows(count).numpy()
    model = paper(
        ATD, 2, augment=lambda batch: perturbed(batch, 0), beta=0.1, batch_size=batch_size, max_sweeps=3, device="cpu"
    )
    assert np.isfinite(model.fit_transform(X)).all()
    assert model.n_sweeps_ == len(model.history_["loss"]) == 3


# ---------------------------------------------------------- stop rule and history


@pytest.mark.parametrize(
    ("losses", "patience", "stop"),
    [
        ([], 3, False),
        ([5.0], 1, False),
        ([5.0, 5.0], 1, True),
        ([9.0, 5.0, 5.0, 5.0], 3, False),
        ([5.0, 5.0, 5.0, 5.0], 3, True),
        ([9.0, 5.0, 5.004, 5.0, 5.004], 3, True),
        ([5.0, 5.0, 5.006, 5.006], 3, False),
        ([5.0, 5.006, 5.006, 5.006, 5.006], 3, True),
        ([5.0, 4.994, 4.994, 4.994], 3, False),
        ([-5.0, -5.004, -5.0, -5.004], 3, True),
        ([-5.0, -5.006, -5.006, -5.006], 3, False),
        ([5.0, float("nan"), float("nan"), float("nan")], 3, False),
    ],
)
def test_the_loss_has_settled_when_each_of_the_last_sweeps_changed_it_by_less_than_the_tolerance(
    losses, patience, stop
):
    assert has_converged(losses, 1e-3, patience) is stop


@pytest.mark.parametrize("settings", [FULL, MINI])
def test_a_fit_stops_at_the_first_sweep_at_which_its_loss_has_settled(settings):
    settings = replace(settings, max_sweeps=300, tol=1e-2, patience=2)
    losses = Fit(Recorded(windows(40)), State(bases((4, 3, 2), 3)), Objective(0.1), settings).run()["loss"]
    assert 3 <= len(losses) < 300
    settled = [has_converged(losses[:sweeps], 1e-2, 2) for sweeps in range(1, len(losses) + 1)]
    assert settled == [False] * (len(losses) - 1) + [True]


@pytest.mark.parametrize("settings", [FULL, MINI])
def test_a_fit_stops_after_max_sweeps_and_tells_of_each(settings):
    told = []
    settings = replace(settings, max_sweeps=7)
    history = Fit(
        Recorded(windows()),
        State(bases((4, 3, 2), 3)),
        Objective(0.1),
        settings,
        on_sweep=lambda so_far: told.append({name: list(values) for name, values in so_far.items()}),
    ).run()
    assert [len(so_far["loss"]) for so_far in told] == [1, 2, 3, 4, 5, 6, 7]
    assert told[-1] == history
    assert list(history) == ["loss", *TERMS, "seconds"]
    assert {len(values) for values in history.values()} == {7}
    assert min(history["seconds"]) >= 0
    assert_same([history["loss"]], [np.sum([history[name] for name in TERMS], axis=0)])


# ------------------------------------------------------- recovery and determinism


def factor_match_score(came: list[np.ndarray], planted: list[np.ndarray]) -> float:
    """Mean product of the cosines of matched components, over all modes, by the best matching."""
    cosines = np.ones((came[0].shape[1],) * 2)
    for a, b in zip(came, planted, strict=True):
        cosines = cosines * np.abs((a / np.linalg.norm(a, axis=0)).T @ (b / np.linalg.norm(b, axis=0)))
    return float(cosines[linear_sum_assignment(-cosines)].mean())


def test_the_factor_match_score_knows_permuted_scaled_factors_from_others():
    planted = arrays(bases((5, 4), 3))
    permuted = [planted[0][:, [2, 0, 1]] * 3, planted[1][:, [2, 0, 1]] * [-1, 2, 5]]
    assert factor_match_score(permuted, planted) == pytest.approx(1)
    assert factor_match_score([permuted[0], planted[1]], planted) < 0.9


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("shape", [(6, 5), (5, 4, 6), (4, 3, 3, 4)])
def test_planted_factors_are_recovered_exactly_from_noiseless_data(shape, seed):
    planted, X = bases(shape, 3, seed), draw(30, 3, seed=seed)
    T = reconstruct(X, planted)
    state = State(als.initial_factors(shape, 3, seed, torch.float64, CPU))
    settings = replace(FULL, max_sweeps=500, tol=1e-6)
    Fit(Recorded(T), state, Objective(1e-10), settings).run()
    coefficients = als.solve_coefficients(project(T, state.factors), gram(state.factors), Objective(1e-10))
    assert factor_match_score(arrays([coefficients, *state.factors]), arrays([X, *planted])) > 0.999


def fitted(seed: int, settings: FitSettings, device: torch.device = CPU, dtype=torch.float64, objective=None) -> list:
    T = windows(30).to(device, dtype)
    state = State(als.initial_factors((4, 3, 2), 3, seed, dtype, device))
    objective = objective or Objective(0.1, beta=0.5)
    history = Fit(Recorded(T, perturbed), state, objective, replace(settings, seed=seed)).run()
    return [*state.factors, torch.tensor([history[name] for name in TERMS])]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("settings", [FULL, MINI, replace(MINI, solver="memory")])
def test_the_same_seed_gives_the_same_bits_and_another_seed_others(settings, dtype):
    first, second, other = (fitted(seed, settings, dtype=dtype) for seed in (5, 5, 6))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("batch_size", [None, 8])
def test_the_estimators_random_state_decides_every_bit(batch_size):
    X = windows(30).numpy()
    models = [
        paper(SALS, 3, batch_size=batch_size, max_sweeps=3, random_state=s, device="cpu").fit(X) for s in (5, 5, 6)
    ]
    assert all(np.array_equal(a, b) for a, b in zip(models[0].factors_, models[1].factors_, strict=True))
    assert not any(np.array_equal(a, b) for a, b in zip(models[0].factors_, models[2].factors_, strict=True))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-3), (torch.float64, 1e-9)])
@pytest.mark.parametrize("settings", [FULL, MINI, replace(MINI, solver="memory")], ids=["full", "mini", "memory"])
def test_every_device_agrees_with_the_cpu(device, settings, dtype, tolerance):
    objectives = (Objective(0.1, beta=0.5), Objective(0.1, graph_weight=0.5))
    for objective in objectives:
        came, expected = (fitted(0, settings, where, dtype, objective) for where in (device, CPU))
        assert all(factor.device.type == device.type for factor in came[:3])
        assert_same([t.cpu() for t in came], expected, rtol=tolerance, atol=tolerance)


def test_initial_bases_have_unit_columns_and_are_equal_on_every_device_and_in_every_type(device):
    reference = als.initial_factors((5, 4), 3, 7, torch.float64, CPU)
    assert_same([f.norm(dim=0) for f in reference], [np.ones(3)] * 2)
    for dtype in (torch.float32, torch.float64):
        came = als.initial_factors((5, 4), 3, 7, dtype, device)
        assert all(torch.equal(a.cpu(), b.to(dtype)) for a, b in zip(came, reference, strict=True))


# ---------------------------------------------------------------------- arrange


@pytest.mark.parametrize("settings", [FULL, MINI, replace(MINI, solver="memory")])
def test_every_fit_ends_arranged(settings):
    *factors, _ = fitted(0, settings)
    norms = torch.stack([factor.norm(dim=0) for factor in factors])
    assert_same(norms, [norms[0]] * 3)
    assert all((factor.amax(dim=0) >= -factor.amin(dim=0)).all() for factor in factors)


def arranged(seed: int = 0) -> tuple[list[torch.Tensor], torch.Tensor, State]:
    """Bases of very different scales, the energies of their coefficients, and both arranged."""
    scales = torch.tensor([0.01, 20.0, 1.0, 0.3])
    factors = [f * scales.roll(mode) for mode, f in enumerate(bases((5, 4, 3), 4, seed))]
    # The larger a component's bases, the smaller its coefficients, but not by so much that they make up for it.
    energy = torch.stack([f.norm(dim=0) for f in factors]).prod(dim=0) ** -1.5
    state = State(list(factors), energy=energy.clone())
    normalise_components(state)
    return factors, energy, state


def test_arranged_columns_have_equal_norms_among_the_modes_and_a_positive_largest_entry():
    for seed in range(5):
        _, _, state = arranged(seed)
        norms = torch.stack([f.norm(dim=0) for f in state.factors])
        assert_same(norms, [norms[0]] * 3)
        for factor in state.factors:
            assert (factor.amax(dim=0) >= -factor.amin(dim=0)).all()


def test_arranged_components_come_by_falling_energy():
    factors, energy, state = arranged()
    energies = energy * torch.stack([f.norm(dim=0) for f in factors]).prod(dim=0) ** 2
    order = energies.argsort(descending=True)
    assert order.tolist() != [0, 1, 2, 3]
    assert_same([state.energy * state.factors[0].norm(dim=0) ** 6], [energies[order]])
    for factor, came in zip(factors, state.factors, strict=True):
        cosines = torch.cosine_similarity(factor[:, order], came, dim=0)
        assert_same([cosines.abs()], [np.ones(4)])


@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_arranging_leaves_the_reconstruction_by_refitted_coefficients_as_it_was(alpha):
    factors, _, state = arranged()
    T, results = draw(6, 5, 4, 3), []
    for F in (factors, state.factors):
        X = als.solve_coefficients(project(T, F), gram(F), Objective(alpha))
        results.append((reconstruct(X, F), X.norm()))
    assert_same(results[1], results[0], rtol=1e-6, atol=1e-8)


def test_normalising_components_does_not_change_later_steps_of_the_memory_solver():
    # Without a ridge, for the Tikhonov term alone tells one scale of the bases from another.
    objective, states = Objective(0.0), [State(bases((5, 4), 3)), State(bases((5, 4), 3))]
    for batch in range(6):
        T = draw(9, 5, 4, seed=batch)
        for state in states:
            als.step(T, state, objective, 1, "memory", 0.2)
        if batch == 2:
            before = states[1].factors[0]
            normalise_components(states[1])
            assert not torch.allclose(before, states[1].factors[0])
            assert states[1].memory.Y.shape == (3, 5, 4)
    T = draw(9, 5, 4, seed=50)
    without, after = (
        reconstruct(als.solve_coefficients(project(T, F), gram(F), objective), F)
        for F in (states[0].factors, states[1].factors)
    )
    assert_same([after], [without], rtol=1e-7, atol=1e-8)


def test_arranging_twice_changes_nothing_more():
    _, _, state = arranged()
    once = [f.clone() for f in state.factors]
    normalise_components(state)
    assert_same(state.factors, once)


def test_zero_columns_are_arranged_last_without_nan():
    factors = bases((5, 4, 3), 3)
    factors[1][:, 0] = 0
    everything_zero = State([torch.zeros(5, 2), torch.zeros(4, 2)])
    state = State(factors, memory=Statistics(draw(3, 5, 4, 3), draw(3, 3)), energy=torch.ones(3).double())
    normalise_components(state)
    normalise_components(everything_zero)
    tensors = (*state.factors, state.memory.Y, state.memory.S, state.energy, *everything_zero.factors)
    assert all(torch.isfinite(tensor).all() for tensor in tensors)
    assert all(not factor[:, 2].any() and factor[:, :2].all() for factor in state.factors)


def test_arranging_forgets_the_coefficients_of_the_order_before():
    state = State(bases((5, 4), 3), coefficients=draw(6, 3))
    normalise_components(state)
    assert state.coefficients is None


def test_a_random_function_augments_a_window_equally_in_every_pass_over_the_data(monkeypatch):
    from polyadic import ATD

    def noisy(batch):
        return batch + 0.3 * torch.randn_like(batch)

    monkeypatch.setattr(loop, "_CHUNK_BYTES", 800)

    monkeypatch.setattr(loop, "_KEPT_BYTES", 0)
    X = torch.randn(20, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).numpy()
    model = paper(ATD, 3, augment=noisy, beta=1e-6, batch_size=None, max_sweeps=12, tol=0.0).fit(X)
    assert np.all(np.diff(model.history_["loss"]) <= 1e-9)


def test_a_random_function_depends_on_the_models_seed_alone_and_leaves_the_global_generator_as_it_was():
    from polyadic import ATD

    drawn = []

    def noisy(batch):
        drawn.append(torch.randn(3))
        return batch + 0.1 * torch.randn_like(batch)

    X = torch.randn(20, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).numpy()
    factors, states = [], []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        factors.append(paper(ATD, 2, augment=noisy, beta=0.0, batch_size=5, max_sweeps=2).fit(X).factors_[0])
        states.append(torch.equal(before, torch.get_rng_state()))
    assert np.array_equal(*factors)
    assert states == [True, True]
    first_fit = drawn[: len(drawn) // 2]
    assert len({tuple(noise.tolist()) for noise in first_fit}) == len(first_fit) == 8


def test_an_objective_with_both_alignment_and_graph_is_refused():
    with pytest.raises(PolyadicError, match="either an alignment or a graph term"):
        Objective(0.1, beta=1.0, graph_weight=1.0)
