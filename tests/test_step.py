"""One step of the solver, its coefficients and its bases, against section 3.3 and appendix C of the paper in numpy."""

from __future__ import annotations

import numpy as np
import oracles
import pytest
import torch
from problems import arrays, assert_same, bases, draw, two_views

from polyadic.core.algebra import gram, initial_factors, project, reconstruct
from polyadic.core.step import (
    Objective,
    State,
    solve_coefficients,
    step,
)

SHAPES = [(6,), (4, 3), (4, 3, 2), (3, 2, 4, 2)]
OBJECTIVES = {
    "one view": (Objective(0.3), 1),
    "two views": (Objective(0.3), 2),
    "alignment": (Objective(0.3, beta=0.8), 2),
    "three rounds, given gamma": (Objective(0.3, beta=0.8, gamma=2.5, rounds=3), 2),
    "complete graph": (Objective(0.3, graph_weight=0.6), 1),
    "non-negative": (Objective(0.3, nonnegative=True), 1),
    "non-negative, alignment": (Objective(0.3, beta=0.8, nonnegative=True), 2),
}
each_objective = pytest.mark.parametrize(("objective", "n_views"), OBJECTIVES.values(), ids=OBJECTIVES)


# ------------------------------------------------------------------- whole steps


@each_objective
@pytest.mark.parametrize(("solver", "eta"), [("blend", 1.0), ("blend", 0.3), ("memory", 0.3)])
def test_steps_are_those_of_the_paper(objective, n_views, solver, eta):
    factors = [factor.abs() if objective.nonnegative else factor for factor in bases((4, 3, 2), 3)]
    state, literal, energy, earlier = State(factors), arrays(factors), np.zeros(3), []
    for batch in range(3):
        T = two_views(5, (4, 3, 2), seed=batch, scale=3.0)[: 5 * n_views]
        terms = step(T, state, objective, n_views, solver=solver, learning_rate=eta)

        X = oracles.coefficients(T.numpy(), literal, objective, n_views)
        expected = oracles.objective_terms(T.numpy(), X, literal, objective, n_views)
        expected[2] -= objective.alpha * sum((factor**2).sum() for factor in literal)
        energy += (X**2).sum(axis=0)
        # With memory, least squares over all batches, each weighted by its age.
        earlier.append((T.numpy(), X))
        ages = [(1 - eta) ** (age / 2) for age in reversed(range(len(earlier)))] if solver == "memory" else [1.0]
        kept = earlier[-len(ages) :]
        T_all, X_all = (np.concatenate([w * pair[of] for w, pair in zip(ages, kept, strict=True)]) for of in (0, 1))
        move = 1.0 if solver == "memory" else eta
        literal = oracles.updated_bases(T_all, X_all, literal, 0.3, move, objective.nonnegative)

        assert_same([terms, state.coefficients, *state.factors], [expected, X, *literal], rtol=1e-8)
        assert_same([state.energy], [energy])
    if solver == "memory":
        assert_same([state.memory.Y, state.memory.S], [oracles.collect(X_all, T_all), X_all.T @ X_all])


@pytest.mark.parametrize("shape", SHAPES)
def test_a_step_takes_tensors_of_any_order_and_may_start_from_given_coefficients(shape):
    objective, factors, start = Objective(0.3, beta=1.0, rounds=2), bases(shape, 3), draw(12, 3, seed=9)
    T, state = two_views(6, shape, scale=3.0), State(factors)
    step(T, state, objective, 2, learning_rate=0.4, start=start)
    X = oracles.aligned_coefficients(T.numpy(), arrays(factors), objective, start.numpy())
    literal = oracles.updated_bases(T.numpy(), X, arrays(factors), 0.3, 0.4)
    assert_same([state.coefficients, *state.factors], [X, *literal])


def test_initial_bases_have_unit_columns_and_are_equal_on_every_device_and_in_every_type(device):
    reference = initial_factors((5, 4), 3, 7, torch.float64, torch.device("cpu"))
    assert_same([factor.norm(dim=0) for factor in reference], [np.ones(3)] * 2)
    for dtype in (torch.float32, torch.float64):
        factors = initial_factors((5, 4), 3, 7, dtype, device)
        assert all(torch.equal(a.cpu(), b.to(dtype)) for a, b in zip(factors, reference, strict=True))


# ----------------------------------------------------------------- coefficients


def test_gamma_none_is_the_number_of_windows_in_the_batch():
    factors = bases((4, 3), 3)
    for count in (1, 3, 6):
        T = two_views(count, (4, 3))
        solved = [
            solve_coefficients(project(T, factors), gram(factors), Objective(0.1, beta=0.5, gamma=gamma), 2)
            for gamma in (None, float(count), count + 1.0)
        ]
        assert torch.equal(solved[0], solved[1])
        # A single window has no random pair for gamma to weigh.
        assert torch.equal(solved[0], solved[2]) == (count == 1)


def test_graph_coefficients_are_a_stationary_point_of_their_objective():
    T, factors, objective = draw(6, 4, 3), bases((4, 3), 3), Objective(0.2, graph_weight=0.7)
    X = solve_coefficients(project(T, factors), gram(factors), objective).requires_grad_()
    smoothness = (X[:, None] - X[None]).square().sum() / 6 / 2
    error = (T - reconstruct(X, factors)).square().sum()
    (error + 0.2 * X.square().sum() + 0.7 * smoothness).backward()
    assert X.grad.abs().max() < 1e-10 * T.square().sum()
