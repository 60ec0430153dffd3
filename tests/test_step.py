"""One step of the solver, its coefficients and its bases, against section 3.3 and appendix C of the paper in numpy."""

from __future__ import annotations

import numpy as np
import oracles
import pytest
import torch
from problems import arrays, assert_same, bases, draw, graph_weights, paper, two_views
from sklearn.exceptions import ConvergenceWarning

from polyadic import ATD
from polyadic.core import step as als
from polyadic.core.algebra import gram, project, reconstruct
from polyadic.core.step import Objective, State, Statistics
from polyadic.engine.loop import normalise_components

SHAPES = [(6,), (4, 3), (4, 3, 5), (3, 2, 4, 2)]


# ------------------------------------------------------------------------ bases


@pytest.mark.parametrize("eta", [1.0, 0.3])
@pytest.mark.parametrize("rank", [2, 5])
@pytest.mark.parametrize("shape", SHAPES)
def test_each_base_update_is_ridge_least_squares_on_the_unfolding_with_the_bases_already_updated(shape, rank, eta):
    T, X, factors = two_views(7, shape), draw(14, rank, seed=3), bases(shape, rank)
    came = als.update_bases(factors, Statistics.of(X, T), 0.4, eta)
    assert_same(came, oracles.updated_bases(T.numpy(), X.numpy(), arrays(factors), 0.4, eta))


def test_the_base_update_does_not_change_its_input():
    shape = (4, 3)
    T, X, factors = draw(7, *shape), draw(7, 2, seed=3), bases(shape, 2)
    kept, statistics = [f.clone() for f in factors], Statistics.of(X, T)
    Y, S = statistics.Y.clone(), statistics.S.clone()
    als.update_bases(factors, statistics, 0.1, 0.5)
    assert all(torch.equal(f, k) for f, k in zip(factors, kept, strict=True))
    assert torch.equal(statistics.Y, Y)
    assert torch.equal(statistics.S, S)


def test_statistics_of_parts_add_up_to_those_of_the_whole():
    T, X = draw(9, 4, 3), draw(9, 2, seed=1)
    whole, summed = Statistics.of(X, T), None
    for part in (slice(0, 4), slice(4, 5), slice(5, 9)):
        summed = Statistics.of(X[part], T[part]).added_to(summed)
    assert_same([summed.Y, summed.S], [whole.Y, whole.S])


# ----------------------------------------------------------------- coefficients


@pytest.mark.parametrize("gamma", [None, 0.7])
@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("warm", [False, True])
def test_coefficients_are_the_row_by_row_rule_of_the_paper_from_a_cold_or_a_warm_start(warm, rounds, gamma):
    shape, objective = (4, 3, 2), Objective(0.1, beta=1.5, gamma=gamma, rounds=rounds)
    T, factors = two_views(5, shape, scale=2.0), bases(shape, 3)
    start = draw(10, 3, seed=9) if warm else None
    came = als.solve_coefficients(project(T, factors), gram(factors), objective, 2, start)
    expected = oracles.aligned_coefficients(
        T.numpy(), arrays(factors), objective, start if start is None else start.numpy()
    )
    assert_same([came], [expected])


def test_without_alignment_coefficients_are_ridge_least_squares_whatever_the_start():
    T, factors = two_views(5, (4, 3)), bases((4, 3), 3)
    M, G = project(T, factors), gram(factors)
    expected = oracles.least_squares(T.numpy(), arrays(factors), 0.2)
    assert_same([als.solve_coefficients(M, G, Objective(0.2), 2, draw(10, 3))], [expected])
    assert_same([als.solve_coefficients(M, G, Objective(0.2, beta=1.0), 1)], [expected])


def test_gamma_none_is_the_number_of_windows_at_hand():
    factors = bases((4, 3), 3)
    for count in (1, 3, 6):
        T = two_views(count, (4, 3))
        solved = [
            als.solve_coefficients(project(T, factors), gram(factors), Objective(0.1, beta=0.5, gamma=gamma), 2)
            for gamma in (None, float(count), count + 1.0)
        ]
        assert torch.equal(solved[0], solved[1])
        # A single window has no random pair, so that gamma has nothing to weigh.
        assert torch.equal(solved[0], solved[2]) == (count == 1)


@pytest.mark.parametrize("beta", [1.0, 10.0, 1e3, 1e5])
def test_a_rule_that_does_not_converge_is_warned_of_when_watched(beta):
    T, factors = two_views(5, (4, 3)), bases((4, 3), 3)
    M, G, objective = project(T, factors), gram(factors), Objective(0.1, beta=beta)
    assert torch.isfinite(als.solve_coefficients(M, G, objective, 2)).all()
    with pytest.warns(ConvergenceWarning, match=rf"does not converge at beta={beta:g}: .* Use a smaller beta"):
        als.solve_coefficients(M, G, objective, 2, watch=True)


def test_a_rule_that_converges_is_not_warned_of():
    T, factors = two_views(5, (4, 3)), bases((4, 3), 3)
    for beta in (1e-3, 0.1, 0.3):
        als.solve_coefficients(project(T, factors), gram(factors), Objective(0.1, beta=beta), 2, watch=True)


# ------------------------------------------------------------------------ graph


@pytest.mark.parametrize("given", [False, True])
def test_graph_coefficients_solve_their_normal_equations(given):
    T, factors, objective = draw(6, 4, 3), bases((4, 3), 3), Objective(0.2, graph_weight=0.7)
    weights = graph_weights(6) if given else torch.full((6, 6), 1 / 6, dtype=torch.float64)
    M, G = project(T, factors), gram(factors)
    X = als.solve_coefficients(M, G, objective, adjacency=weights if given else None)
    L = torch.diag(weights.sum(0)) - weights
    assert_same([X @ (G + 0.2 * torch.eye(3, dtype=torch.float64)) + 0.7 * L @ X], [M])


@pytest.mark.parametrize("given", [False, True])
def test_graph_coefficients_are_a_stationary_point_of_their_objective(given):
    T, factors = draw(6, 4, 3), bases((4, 3), 3)
    weights = graph_weights(6) if given else None
    objective = Objective(0.2, graph_weight=0.7)
    X = als.solve_coefficients(project(T, factors), gram(factors), objective, adjacency=weights).requires_grad_()
    distances = (X[:, None] - X[None]).square().sum(-1)
    smoothness = ((weights if given else 1 / 6) * distances).sum() / 2
    error = (T - reconstruct(X, factors)).square().sum()
    (error + 0.2 * X.square().sum() + 0.7 * smoothness).backward()
    assert X.grad.abs().max() < 1e-10 * T.square().sum()


@pytest.mark.parametrize("count", [1, 2, 7])
def test_the_complete_graph_is_the_same_as_that_graph_given(count):
    T, factors = draw(count, 4, 3), bases((4, 3), 3)
    weights = torch.full((count, count), 1 / count, dtype=torch.float64)
    given = Objective(0.1, graph_weight=0.5, graph=lambda ids: weights[ids][:, ids])
    states, terms = [State(factors), State(factors)], []
    for state, objective in zip(states, (Objective(0.1, graph_weight=0.5), given), strict=True):
        terms.append(als.step(T, state, objective, ids=torch.arange(count)))
    assert_same([terms[0], *states[0].factors], [terms[1], *states[1].factors])


def test_a_batch_takes_its_own_part_of_a_given_graph():
    weights, ids, factors, T = graph_weights(9), torch.tensor([7, 2, 5]), bases((4, 3), 2), draw(3, 4, 3)
    states = [State(factors), State(factors)]
    whole = Objective(0.1, graph_weight=0.5, graph=lambda rows: weights[rows][:, rows])
    part = Objective(0.1, graph_weight=0.5, graph=lambda rows: weights[[7, 2, 5]][:, [7, 2, 5]])
    terms = [als.step(T, state, o, ids=ids) for state, o in zip(states, (whole, part), strict=True)]
    assert_same([terms[0], *states[0].factors], [terms[1], *states[1].factors], rtol=0, atol=0)
    assert als.step(T, State(factors), whole, ids=torch.tensor([0, 1, 2]))[4] != terms[0][4]


# ------------------------------------------------------------------------- step


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("eta", "rounds", "gamma"), [(1.0, 1, None), (0.2, 1, None), (0.2, 2, 1.5)])
def test_steps_are_algorithm_2_literally(shape, eta, rounds, gamma):
    objective = Objective(0.3, beta=1.0, gamma=gamma, rounds=rounds)
    factors = bases(shape, 3)
    state, literal = State(factors), arrays(factors)
    for batch, count in enumerate((6, 4, 5)):
        T = two_views(count, shape, seed=batch, scale=3.0)
        als.step(T, state, objective, 2, "blend", eta)
        X = oracles.aligned_coefficients(T.numpy(), literal, objective)
        literal = oracles.updated_bases(T.numpy(), X, literal, 0.3, eta)
        assert_same(state.factors, literal)


def test_partial_fit_is_algorithm_2_literally_on_exactly_that_batch():
    shape, objective = (4, 3, 2), Objective(0.3, beta=1.0)
    model = paper(ATD, 3, augment=lambda batch: 1.1 * batch + 0.2, alpha=0.3, beta=1.0, learning_rate=0.4, device="cpu")
    literal = arrays(als.initial_factors(shape, 3, 0, torch.float64, torch.device("cpu")))
    for batch, count in enumerate((6, 4, 5)):
        T = draw(count, *shape, seed=batch, scale=3.0).numpy()
        model.partial_fit(T)
        both = np.concatenate([T, 1.1 * T + 0.2])
        literal = oracles.updated_bases(both, oracles.aligned_coefficients(both, literal, objective), literal, 0.3, 0.4)
        assert_same(model.factors_, literal)


@pytest.mark.parametrize(
    ("objective", "n_views"),
    [
        (Objective(0.3), 1),
        (Objective(0.3), 2),
        (Objective(0.3, beta=0.8), 2),
        (Objective(0.3, beta=0.8, gamma=2.5, rounds=2), 2),
        (Objective(0.3, graph_weight=0.6), 1),
        (Objective(0.3, graph_weight=0.6, graph=lambda ids: graph_weights(9)[ids][:, ids]), 1),
    ],
)
def test_the_terms_of_a_step_are_those_of_the_dense_objective_before_the_bases_move(objective, n_views):
    T, factors, ids = two_views(5, (4, 3, 2), scale=2.0)[: 5 * n_views], bases((4, 3, 2), 3), torch.arange(4, 9)
    weights = None if objective.graph is None else objective.graph(ids)
    G, M = gram(factors), project(T, factors)
    X = als.solve_coefficients(M, G, objective, n_views, adjacency=weights).numpy()
    came = als.step(T, State(factors), objective, n_views, ids=ids).numpy()
    F = arrays(factors)
    expected = oracles.objective_terms(
        T.numpy(), X, F, objective, n_views, None if weights is None else weights.numpy()
    )
    expected[2] -= objective.alpha * sum((f**2).sum() for f in F)  # the bases' share is added once a sweep
    assert_same([came], [expected])


def test_steps_add_up_the_energy_of_every_component():
    state, energy = State(bases((4, 3), 3)), np.zeros(3)
    for batch in range(3):
        T = two_views(5, (4, 3), seed=batch, scale=3.0)
        X = oracles.aligned_coefficients(T.numpy(), arrays(state.factors), Objective(0.2, beta=0.5))
        als.step(T, state, Objective(0.2, beta=0.5), 2, "blend", 0.3)
        energy += (X**2).sum(axis=0)
    assert_same([state.energy], [energy])


def test_a_step_keeps_the_type_of_its_input():
    state = State([f.float() for f in bases((4, 3), 2)])
    terms = als.step(two_views(5, (4, 3)).float(), state, Objective(0.1, beta=0.1), 2, "memory", 0.5)
    kinds = {tensor.dtype for tensor in (*state.factors, state.memory.Y)}
    assert kinds == {torch.float32}
    assert (state.memory.S.dtype, terms.dtype) == (torch.float64, torch.float64)


# ----------------------------------------------------------------------- memory


def test_memory_that_forgets_everything_is_the_same_as_blending_all_the_way():
    objective, states = Objective(0.2, beta=0.5), [State(bases((4, 3), 3)), State(bases((4, 3), 3))]
    for batch in range(3):
        T = two_views(5, (4, 3), seed=batch, scale=3.0)
        for state, solver in zip(states, ("memory", "blend"), strict=True):
            als.step(T, state, objective, 2, solver, 1.0)
    assert all(torch.equal(a, b) for a, b in zip(states[0].factors, states[1].factors, strict=True))


def test_memory_is_the_weighted_sum_of_all_statistics_and_the_bases_are_solved_for_it():
    objective, eta, state, seen = Objective(0.2, beta=0.5), 0.3, State(bases((4, 3), 3)), []
    for batch in range(4):
        T, before = two_views(5, (4, 3), seed=batch, scale=3.0), arrays(state.factors)
        als.step(T, state, objective, 2, "memory", eta)
        seen.append((oracles.aligned_coefficients(T.numpy(), before, objective), T.numpy()))
        weights = [(1 - eta) ** age for age in reversed(range(len(seen)))]
        Y = sum(w * np.einsum("nr,nij->rij", X, T) for w, (X, T) in zip(weights, seen, strict=True))
        S = sum(w * X.T @ X for w, (X, _) in zip(weights, seen, strict=True))
        assert_same([state.memory.Y, state.memory.S], [Y, S])
        # Least squares over all batches, each weighted by its age.
        X = np.concatenate([np.sqrt(w) * X for w, (X, _) in zip(weights, seen, strict=True)])
        T = np.concatenate([np.sqrt(w) * T for w, (_, T) in zip(weights, seen, strict=True)])
        assert_same(state.factors, oracles.updated_bases(T, X, before, 0.2))


@pytest.mark.parametrize(("energy", "order"), [(None, [2, 0, 1]), ([1.0, 9.0, 0.1], [1, 0, 2])])
def test_components_are_arranged_by_the_energy_they_carry(energy, order):
    # The third is the longest, but its coefficients are small.
    factors = [torch.tensor([[1.0, 1.0, 2.0], [0.0, 1.0, 0.0]]), torch.tensor([[2.0, 1.0, 2.0]])]
    carried = None if energy is None else torch.tensor(energy, dtype=torch.float64)
    state = State(list(factors), energy=carried)
    normalise_components(state)
    each = torch.eye(3)
    assert torch.allclose(reconstruct(each, state.factors), reconstruct(each[order], factors))
    assert carried is None or torch.equal(state.energy, carried[order])
