"""The self-supervised loss and its row update, against literal transcriptions of the paper."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import oracles
import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from polyadic.core import step as als
from polyadic.core.algebra import gram, khatri_rao, project, ridge_inverse
from polyadic.core.alignment import (
    align,
    convergence,
    loss,
    pull,
    row_update,
)

DTYPES = [torch.float32, torch.float64]
dtypes = pytest.mark.parametrize("dtype", DTYPES)
CPU = torch.device("cpu")


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64, device: torch.device = CPU) -> Tensor:
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return values.to(device, dtype)


def array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().double().numpy()


@dataclass
class Subproblem:
    """The subproblem of X at fixed bases and fixed X̃, Eqn. non-convex_prob."""

    T: Tensor
    factors: list[Tensor]
    X_other: Tensor
    alpha: float
    gamma: float

    @classmethod
    def draw(
        cls,
        samples: int = 6,
        sizes: tuple[int, ...] = (4, 3, 5),
        rank: int = 3,
        alpha: float = 0.1,
        gamma: float | None = None,
        scale: float = 1.0,
        seed: int = 0,
        dtype: torch.dtype = torch.float64,
        device: torch.device = CPU,
    ) -> Subproblem:
        factors = [normal(size, rank, seed=seed + 10 * mode + 1) for mode, size in enumerate(sizes)]
        return cls(
            T=(scale * normal(samples, *sizes, seed=seed)).to(device, dtype),
            factors=[(f / torch.linalg.vector_norm(f, dim=0)).to(device, dtype) for f in factors],
            X_other=normal(samples, rank, seed=seed + 99, dtype=dtype, device=device),
            alpha=alpha,
            gamma=float(samples) if gamma is None else gamma,
        )

    def __post_init__(self) -> None:
        self.V = ridge_inverse(gram(self.factors), self.alpha)
        self.X_ls = project(self.T, self.factors) @ self.V
        self.v2 = pull(self.X_other, self.gamma)


def literal_update(problem: Subproblem, X_init: np.ndarray, beta: float) -> np.ndarray:
    """Eqn. improved_x for every row, literally."""
    factors, T, X_other = [array(factor) for factor in problem.factors], array(problem.T), array(problem.X_other)
    return oracles.improved_rows(T, factors, X_init, X_other, problem.alpha, beta, problem.gamma)


# The loss.


@example(1, 1, 3.0, 0)
@example(2, 1, 0.0, 0)
@given(st.integers(1, 8), st.integers(1, 6), st.floats(0, 200), st.integers(0, 2**31))
def test_the_loss_equals_its_double_sum(device, count, rank, gamma, seed):
    X, other = (normal(count, rank, seed=seed + view, device=device) for view in (0, 1))
    expected = oracles.alignment_loss(array(X), array(other), gamma)
    tolerance = 1e-12 * (2 + gamma)
    assert float(loss(X, other, gamma)) == pytest.approx(expected, abs=tolerance)
    single = loss(X.float(), other.float(), gamma)
    assert single.dtype == torch.float32
    assert float(single) == pytest.approx(expected, abs=1e-5 * (2 + gamma))


@given(st.integers(1, 8), st.integers(1, 6), st.floats(0, 200), st.integers(0, 2**31))
def test_pull_equals_the_product_with_the_full_pair_matrix(device, count, rank, gamma, seed):
    X = normal(count, rank, seed=seed, device=device)
    D = np.diag(1 / np.linalg.norm(array(X), axis=1))
    G = oracles.pair_matrix(count, gamma)
    np.testing.assert_allclose(array(pull(X, gamma)), G @ D @ array(X), atol=1e-12 * (2 + gamma))


# The row update.


@example(1, [1], 1, 2.0, 1.0, 0)
@example(3, [2, 2, 1, 3], 5, 0.0, 5.0, 0)
@given(
    samples=st.integers(1, 5),
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    rank=st.integers(1, 5),
    beta=st.floats(0, 20),
    gamma=st.floats(0, 20),
    seed=st.integers(0, 2**31),
)
def test_row_update_equals_the_literal_rule_row_by_row(device, samples, sizes, rank, beta, gamma, seed):
    problem = Subproblem.draw(samples, tuple(sizes), rank, alpha=0.5, gamma=gamma, seed=seed, device=device)
    X_init = normal(samples, rank, seed=seed + 7, device=device)
    # A nearly vanishing guess has a huge correction, and with it huge rounding.
    assume(float(torch.linalg.vector_norm(X_init, dim=1).amin()) > 1e-2)
    expected = literal_update(problem, array(X_init), beta)
    improved, _ = row_update(problem.X_ls, problem.V, X_init, problem.v2, beta)
    np.testing.assert_allclose(array(improved), expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())


@pytest.mark.parametrize("rounds", [1, 3])
def test_align_repeats_the_literal_rule(device, rounds):
    problem = Subproblem.draw(scale=5.0, device=device)
    guess = array(normal(6, 3, seed=5))
    start = torch.as_tensor(guess, device=device)
    for _ in range(rounds):
        guess = literal_update(problem, guess, beta=2.0)
    aligned = align(problem.X_ls, problem.V, start, problem.v2, 2.0, rounds)
    np.testing.assert_allclose(array(aligned), guess, rtol=1e-8, atol=1e-10)


def row_objective(problem: Subproblem, X: Tensor, beta: float) -> Tensor:
    """Compute Eqn. non-convex_prob literally, with a dense reconstruction and the full G(γ)."""
    K = khatri_rao(problem.factors)
    residual = problem.T.reshape(len(X), -1) - X @ K.T
    G = torch.as_tensor(oracles.pair_matrix(len(X), problem.gamma))
    D = torch.diag(1 / X.norm(dim=1))
    D_other = torch.diag(1 / problem.X_other.norm(dim=1))
    alignment = torch.trace(X.T @ D @ G @ D_other @ problem.X_other)
    return residual.square().sum() + problem.alpha * X.square().sum() + beta * alignment


@pytest.mark.parametrize("sizes", [(7,), (4, 3, 5)])
@pytest.mark.parametrize("seed", range(2))
def test_row_update_is_a_stationary_point_of_its_objective(sizes, seed):
    problem, beta = Subproblem.draw(sizes=sizes, rank=3, scale=10.0, seed=seed), 2.0

    def gradient(X: Tensor) -> Tensor:
        X = X.detach().requires_grad_()
        (slope,) = torch.autograd.grad(row_objective(problem, X, beta), X)
        return torch.linalg.vector_norm(slope, dim=1)

    fixed = align(problem.X_ls, problem.V, problem.X_ls, problem.v2, beta, rounds=300)
    assert float(gradient(fixed).max()) < 1e-9
    # Least squares alone is no such point, so the rule has something to do in every row.
    assert float(gradient(problem.X_ls).min()) > 1e-3
    assert float(row_objective(problem, fixed, beta)) < float(row_objective(problem, problem.X_ls, beta))


@dtypes
def test_zero_rows_keep_their_least_squares_value_and_leave_the_others_alone(device, dtype):
    problem = Subproblem.draw(samples=4, scale=3.0, dtype=dtype, device=device)
    X_ls, v2 = problem.X_ls.clone(), problem.v2
    X_ls[1] = 0
    improved = align(X_ls, problem.V, X_ls, v2, 2.0, rounds=3)
    assert torch.equal(improved[1], torch.zeros_like(improved[1]))
    rest = [0, 2, 3]
    torch.testing.assert_close(improved[rest], align(X_ls[rest], problem.V, X_ls[rest], v2[rest], 2.0, rounds=3))
    assert bool((improved[rest] != X_ls[rest]).any(dim=1).all())
    assert convergence(torch.zeros_like(X_ls), problem.V, v2, beta=2.0) == [0.0] * 8


# Convergence as it is observed.


def test_convergence_is_the_measure_of_appendix_b(device):
    problem, beta = Subproblem.draw(scale=3.0, device=device), 2.0
    guess, expected = array(problem.X_ls), []
    for _ in range(5):
        improved = literal_update(problem, guess, beta)
        ratios = [np.linalg.norm(improved[k] - guess[k]) / np.linalg.norm(guess[k]) for k in range(len(guess))]
        expected.append(sum(ratios) / len(ratios))
        guess = improved
    np.testing.assert_allclose(convergence(problem.X_ls, problem.V, problem.v2, beta, rounds=5), expected, rtol=1e-8)


def stacked(problem: Subproblem) -> tuple[Tensor, Tensor]:
    """M of both views, the second with its own data, and the Gram."""
    return project(torch.cat([problem.T, problem.T.flip(0)]), problem.factors), gram(problem.factors)


@dtypes
@pytest.mark.parametrize("beta", [30.0, 1e14])
def test_a_huge_beta_is_warned_of_and_a_small_one_is_not(device, dtype, beta):
    problem = Subproblem.draw(samples=16, dtype=dtype, device=device)
    M, G = stacked(problem)
    objective = als.Objective(alpha=problem.alpha, beta=beta)
    with pytest.warns(
        ConvergenceWarning, match=r"the fixed-point rule does not converge at beta=.* Use a smaller beta"
    ):
        X = als.solve_coefficients(M, G, objective, n_views=2, watch=True)
    assert bool(torch.isfinite(X).all())
    als.solve_coefficients(M, G, als.Objective(alpha=problem.alpha, beta=1e-3), n_views=2, watch=True)
