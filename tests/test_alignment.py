"""The self-supervised loss, its row update and its bounds, against literal transcriptions of the paper."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import oracles
import pytest
import torch
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from polyadic.core import step as als
from polyadic.core.algebra import gram, khatri_rao, project, ridge_inverse
from polyadic.core.alignment import (
    align,
    bound_constants,
    class_similarity,
    contraction_factor,
    convergence,
    loss,
    loss_from_labels,
    loss_from_rates,
    normalise,
    pair_matrix,
    pull,
    row_update,
    theta_loss,
    trace_loss,
    two_sided_bound,
)

# The device fixture is the same for every example, so hypothesis need not worry about it.
steady = settings(
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
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

    def iterates(self, beta: float, rounds: int) -> list[Tensor]:
        """The guesses from the least-squares start on, `rounds` + 1 of them."""
        guesses = [self.X_ls]
        for _ in range(rounds):
            guesses.append(row_update(self.X_ls, self.V, guesses[-1], self.v2, beta))
        return guesses


def literal_update(problem: Subproblem, X_init: np.ndarray, beta: float) -> np.ndarray:
    """Eqn. improved_x for every row, literally."""
    factors, T, X_other = [array(factor) for factor in problem.factors], array(problem.T), array(problem.X_other)
    return oracles.improved_rows(T, factors, X_init, X_other, problem.alpha, beta, problem.gamma)


# The loss.


@steady
@example(1, 1, 3.0, 0)
@example(2, 1, 0.0, 0)
@given(st.integers(1, 8), st.integers(1, 6), st.floats(0, 200), st.integers(0, 2**31))
def test_the_loss_equals_its_trace_form_and_its_double_sum(device, count, rank, gamma, seed):
    X, other = (normal(count, rank, seed=seed + view, device=device) for view in (0, 1))
    expected = oracles.alignment_loss(array(X), array(other), gamma)
    tolerance = 1e-12 * (2 + gamma)
    assert float(loss(X, other, gamma)) == pytest.approx(expected, abs=tolerance)
    assert float(trace_loss(X, other, gamma)) == pytest.approx(expected, abs=tolerance)
    single = loss(X.float(), other.float(), gamma)
    assert single.dtype == torch.float32
    assert float(single) == pytest.approx(expected, abs=1e-5 * (2 + gamma))


@pytest.mark.parametrize("count", [2, 3, 7])
def test_pair_matrix_has_the_entries_of_the_paper(count):
    np.testing.assert_allclose(pair_matrix(count, 2.5).numpy(), oracles.pair_matrix(count, 2.5), rtol=1e-14)


@steady
@given(st.integers(1, 8), st.integers(1, 6), st.floats(0, 200), st.integers(0, 2**31))
def test_pull_equals_the_product_with_the_full_pair_matrix(device, count, rank, gamma, seed):
    X = normal(count, rank, seed=seed, device=device)
    D = np.diag(1 / np.linalg.norm(array(X), axis=1))
    G = oracles.pair_matrix(count, gamma)
    np.testing.assert_allclose(array(pull(X, gamma)), G @ D @ array(X), atol=1e-12 * (2 + gamma))


def test_loss_and_pull_never_build_the_pair_matrix():
    # In full it would take 320 GB.
    X = normal(200_000, 2, dtype=torch.float32)
    assert float(loss(X, X, gamma=0.0)) == pytest.approx(-1.0, abs=1e-2)
    assert pull(X, gamma=0.0).shape == X.shape


@dtypes
def test_a_batch_of_one_has_no_random_pair(device, dtype):
    X, other = normal(1, 4, dtype=dtype, device=device), normal(1, 4, seed=1, dtype=dtype, device=device)
    cosine = torch.nn.functional.cosine_similarity(X, other)[0]
    for gamma in (0.0, 1.0, 1e6):
        torch.testing.assert_close(loss(X, other, gamma), -cosine)
        torch.testing.assert_close(pull(other, gamma), -normalise(other))
    assert float(trace_loss(X, other, 7.0)) == pytest.approx(-float(cosine), abs=1e-6)
    assert pair_matrix(1, 7.0).tolist() == [[-1.0]]


@dtypes
def test_a_zero_row_adds_nothing_to_the_loss(device, dtype):
    X, other = normal(3, 4, dtype=dtype, device=device), normal(3, 4, seed=1, dtype=dtype, device=device)
    X[1] = 0
    units = array(X[[0, 2]]) / np.linalg.norm(array(X[[0, 2]]), axis=1, keepdims=True)
    others = array(other) / np.linalg.norm(array(other), axis=1, keepdims=True)
    expected = float(np.sum(oracles.pair_matrix(3, 2.0)[[0, 2]] * (units @ others.T)))
    assert float(loss(X, other, 2.0)) == pytest.approx(expected, abs=1e-6)
    assert torch.equal(normalise(X)[1], torch.zeros_like(X[1]))
    assert bool(torch.isfinite(pull(X, 2.0)).all())


@pytest.mark.parametrize("scale", [1e-42, 1e-30, 1e-20, 1.0, 1e20, 1e30, 1e38])
def test_normalise_keeps_the_direction_of_rows_of_any_size(device, scale):
    X = normal(5, 4, device=device).clamp(-2, 2)
    rows = normalise((scale * X).float())
    # Below 1e-38 float32 itself holds few digits.
    np.testing.assert_allclose(array(rows), array(normalise(X)), atol=1e-6 if scale > 1e-38 else 1e-2)


# The row update.


@steady
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
    improved = row_update(problem.X_ls, problem.V, X_init, problem.v2, beta)
    np.testing.assert_allclose(array(improved), expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())


@pytest.mark.parametrize("rounds", [1, 2, 3, 8])
def test_align_repeats_the_literal_rule(device, rounds):
    problem = Subproblem.draw(scale=5.0, device=device)
    guess = array(normal(6, 3, seed=5))
    start = torch.as_tensor(guess, device=device)
    for _ in range(rounds):
        guess = literal_update(problem, guess, beta=2.0)
    aligned = align(problem.X_ls, problem.V, start, problem.v2, 2.0, rounds)
    np.testing.assert_allclose(array(aligned), guess, rtol=1e-8, atol=1e-10)


def test_row_update_in_float32_agrees_with_float64(device):
    exact, single = (Subproblem.draw(scale=3.0, dtype=dtype, device=device) for dtype in (torch.float64, torch.float32))
    improved = row_update(single.X_ls, single.V, single.X_ls, single.v2, 2.0)
    assert improved.dtype == torch.float32
    expected = row_update(exact.X_ls, exact.V, exact.X_ls, exact.v2, 2.0)
    np.testing.assert_allclose(array(improved), array(expected), rtol=1e-4, atol=1e-4)


def row_objective(problem: Subproblem, X: Tensor, beta: float) -> Tensor:
    """Compute Eqn. non-convex_prob literally, with a dense reconstruction and the full G(γ)."""
    K = khatri_rao(problem.factors)
    residual = problem.T.reshape(len(X), -1) - X @ K.T
    G = torch.as_tensor(oracles.pair_matrix(len(X), problem.gamma))
    D = torch.diag(1 / X.norm(dim=1))
    D_other = torch.diag(1 / problem.X_other.norm(dim=1))
    alignment = torch.trace(X.T @ D @ G @ D_other @ problem.X_other)
    return residual.square().sum() + problem.alpha * X.square().sum() + beta * alignment


@pytest.mark.parametrize("sizes", [(7,), (4, 3), (4, 3, 5), (2, 3, 2, 3)])
@pytest.mark.parametrize("seed", range(3))
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


@pytest.mark.parametrize("seed", range(5))
def test_every_round_contracts_within_the_bound_of_the_theorem(seed):
    problem, beta = Subproblem.draw(scale=5.0, seed=seed), 2.0
    guesses = problem.iterates(beta, 200)
    errors = torch.stack([torch.linalg.vector_norm(X - guesses[-1], dim=1) for X in guesses[:12]])
    factor = contraction_factor(guesses, problem.v2, problem.V, beta)
    # The bound must say something in at least one row of every problem.
    assert float(factor.min()) < 1
    measurable = errors[:-1] > 1e-11
    assert bool(measurable[:3].any())
    assert bool((errors[1:] <= factor * errors[:-1])[measurable].all())


@pytest.mark.parametrize("seed", range(5))
def test_convergence_is_linear_at_the_rate_of_the_jacobian(seed):
    problem, beta = Subproblem.draw(scale=3.0, seed=seed), 2.0
    guesses = problem.iterates(beta, 300)
    fixed = guesses[-1]
    torch.testing.assert_close(guesses[-2], fixed, rtol=1e-13, atol=1e-13)
    errors = torch.stack([torch.linalg.vector_norm(X - fixed, dim=1) for X in guesses])
    measured = 0
    for row in range(len(fixed)):

        def one_round(x: Tensor, row: int = row) -> Tensor:
            return row_update(problem.X_ls[row : row + 1], problem.V, x[None], problem.v2[row : row + 1], beta)[0]

        rate = float(torch.linalg.eigvals(torch.autograd.functional.jacobian(one_round, fixed[row])).abs().max())
        assert 0 < rate < 1
        # Late rounds, in which the error has turned into the slowest direction but is not yet rounding.
        late = [t for t in range(len(errors)) if 1e-12 < float(errors[t, row]) < 1e-5]
        if len(late) > 3:
            rate_seen = (float(errors[late[-1], row]) / float(errors[late[0], row])) ** (1 / (late[-1] - late[0]))
            assert rate_seen == pytest.approx(rate, rel=0.1)
            measured += 1
    assert measured >= 2


def test_contraction_factor_is_the_formula_of_the_theorem(device):
    first, second, v2 = (normal(2, 3, seed=seed, device=device) for seed in range(3))
    V = normal(3, 3, seed=3, device=device)
    factor = array(contraction_factor([first, second], v2, V, beta=1.5))
    for row in range(2):
        norms = [np.linalg.norm(array(X)[row]) for X in (first, second)]
        m, M = min(norms), max(norms)
        expected = 1.5 * (2 * m + M) * np.linalg.norm(array(v2)[row]) * np.linalg.norm(array(V), "fro") / m**3
        assert factor[row] == pytest.approx(expected)


def test_the_rule_can_converge_where_the_theorem_promises_nothing():
    problem, beta = Subproblem.draw(scale=2.0), 2.0
    guesses = problem.iterates(beta, 200)
    assert float(contraction_factor(guesses, problem.v2, problem.V, beta).max()) > 3
    torch.testing.assert_close(guesses[-2], guesses[-1], rtol=1e-12, atol=1e-12)


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


def test_a_zero_guess_gives_the_least_squares_rows(device):
    problem = Subproblem.draw(device=device)
    assert torch.equal(
        row_update(problem.X_ls, problem.V, torch.zeros_like(problem.X_ls), problem.v2, 2.0), problem.X_ls
    )


@pytest.mark.parametrize("scale", [1e-44, 1e-30, 1e-18, 1e18, 1e30])
@pytest.mark.parametrize("beta", [2.0, 1e10])
def test_float32_rows_of_extreme_size_give_finite_results(device, scale, beta):
    problem = Subproblem.draw(dtype=torch.float32, device=device)
    # One row at its natural size, one of zeros, the others extreme; and all of them extreme.
    mixed = torch.full((6, 1), scale, device=device)
    mixed[0], mixed[1] = 1.0, 0.0
    for scales in (mixed, torch.full((6, 1), scale, device=device)):
        X, other = scales * problem.X_ls, scales * problem.X_other
        v2 = pull(other, 6.0)
        assert bool(torch.isfinite(v2).all())
        assert bool(torch.isfinite(loss(X, other, 6.0)))
        assert bool(torch.isfinite(align(X, problem.V, X, v2, beta, rounds=4)).all())
        assert all(math.isfinite(change) for change in convergence(X, problem.V, v2, beta))


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


@dtypes
@pytest.mark.parametrize("seed", range(3))
def test_convergence_shrinks_for_a_small_beta(device, dtype, seed):
    problem = Subproblem.draw(scale=6.0, seed=seed, dtype=dtype, device=device)
    changes = convergence(problem.X_ls, problem.V, problem.v2, beta=0.5, rounds=4)
    assert len(changes) == 4
    assert changes[0] > 1e-5
    assert all(after < 0.5 * before for before, after in pairwise(changes))


@dtypes
@pytest.mark.parametrize("beta", [1e3, 1e6, 1e9, 1e12, 1e15])
def test_convergence_does_not_shrink_to_nothing_for_a_huge_beta(device, dtype, beta):
    problem = Subproblem.draw(dtype=dtype, device=device)
    changes = convergence(problem.X_ls, problem.V, problem.v2, beta)
    assert max(changes[-2:]) > 0.5


def test_a_row_of_rounding_does_not_count_as_diverging():
    problem = Subproblem.draw(scale=6.0, dtype=torch.float32)
    X_ls = problem.X_ls.clone()
    X_ls[2] *= 1e-12
    assert convergence(X_ls, problem.V, problem.v2, beta=0.5)[-1] < 1e-4


def stacked(problem: Subproblem) -> tuple[Tensor, Tensor]:
    """M of both views, the second with its own data, and the Gram."""
    return project(torch.cat([problem.T, problem.T.flip(0)]), problem.factors), gram(problem.factors)


@dtypes
@pytest.mark.parametrize("beta", [30.0, 1e2, 1e3, 1e4, 1e6, 1e8, 1e10, 1e14])
@pytest.mark.parametrize("seed", range(3))
def test_a_huge_beta_is_warned_of(device, dtype, beta, seed):
    problem = Subproblem.draw(samples=16, seed=seed, dtype=dtype, device=device)
    M, G = stacked(problem)
    objective = als.Objective(alpha=problem.alpha, beta=beta)
    with pytest.warns(
        ConvergenceWarning, match=r"the fixed-point rule does not converge at beta=.* Use a smaller beta"
    ):
        X = als.solve_coefficients(M, G, objective, n_views=2, watch=True)
    assert bool(torch.isfinite(X).all())


@dtypes
@pytest.mark.parametrize("seed", range(3))
def test_a_beta_at_which_the_rule_converges_is_not_warned_of(device, dtype, seed):
    problem = Subproblem.draw(samples=16, scale=4.0, seed=seed, dtype=dtype, device=device)
    M, G = stacked(problem)
    objective = als.Objective(alpha=problem.alpha, beta=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        als.solve_coefficients(M, G, objective, n_views=2, watch=True)


@pytest.mark.parametrize(
    "changes", [[0.1, 0.2, 0.4, 0.8], [0.5, 0.5, 0.5, 0.5], [1e6, 1.0, 1e6, 1.0], [2.0, 30.0, 2.0, 30.0]]
)
def test_changes_that_grow_stay_or_alternate_are_warned_of(changes):
    with pytest.warns(ConvergenceWarning, match="does not converge at beta=3"):
        als.warn_if_diverging(changes, beta=3.0)


@pytest.mark.parametrize("changes", [[0.5, 0.1, 0.02, 0.004], [1e-6, 2e-6, 1e-6, 2e-6], [0.0, 0.0, 0.0]])
def test_changes_that_shrink_or_are_negligible_are_not_warned_of(changes):
    als.warn_if_diverging(changes, beta=3.0)


# The loss with labels and its bounds.


@dataclass
class Population:
    """Rows with labels, every row as likely as any other."""

    X: Tensor
    labels: Tensor

    @property
    def rates(self) -> Tensor:
        return torch.bincount(self.labels).double() / len(self.labels)

    def similarity(self) -> Tensor:
        return class_similarity(self.X, self.X, self.labels)


@st.composite
def populations(draw: st.DrawFn) -> Population:
    """Sample two to five classes of one to six rows, each scattered about a different direction."""
    counts = draw(st.lists(st.integers(1, 6), min_size=2, max_size=5))
    spread, seed = draw(st.floats(0, 2)), draw(st.integers(0, 2**31))
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    directions = normal(len(counts), 4, seed=seed)
    return Population(directions[labels] + spread * normal(len(labels), 4, seed=seed + 1), labels)


def random_pairs_are_less_similar(similarity: Tensor, rates: Tensor) -> bool:
    """The assumption of appendix E, for every class."""
    return bool((similarity @ rates <= similarity.diagonal() + 1e-12).all())


weights_lambda = st.floats(1, 10)


@st.composite
def assumed(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Similarities and rates that satisfy the assumption of appendix E: the diagonal is raised until it holds."""
    counts = draw(st.lists(st.integers(1, 20), min_size=2, max_size=5))
    classes = len(counts)
    rates = torch.tensor(counts, dtype=torch.float64) / sum(counts)
    upper = draw(st.lists(st.floats(-1, 1), min_size=classes**2, max_size=classes**2))
    slack = draw(st.lists(st.floats(0, 1), min_size=classes, max_size=classes))
    others = torch.tensor(upper, dtype=torch.float64).reshape(classes, classes).triu(1)
    others = others + others.T
    # The mean over all partners is at most s where the mean over the others is.
    diagonal = (others @ rates) / (1 - rates) + torch.tensor(slack, dtype=torch.float64)
    return others + torch.diag(diagonal), rates


@steady
@given(populations())
def test_class_similarity_equals_the_mean_over_all_pairs_of_rows(population):
    X, labels = population.X.numpy(), population.labels.tolist()
    similarity = population.similarity()
    for p in set(labels):
        for q in set(labels):
            cosines = [
                X[n] @ X[m] / (np.linalg.norm(X[n]) * np.linalg.norm(X[m]))
                for n in range(len(X))
                for m in range(len(X))
                if labels[n] == p and labels[m] == q
            ]
            assert float(similarity[p, q]) == pytest.approx(sum(cosines) / len(cosines), abs=1e-12)


@steady
@given(populations(), weights_lambda)
def test_the_law_of_total_probability_replaces_negative_pairs_by_random_and_positive_ones(population, lam):
    similarity, rates = population.similarity(), population.rates
    X, labels = population.X.numpy(), population.labels.tolist()
    count = len(X)
    units = X / np.linalg.norm(X, axis=1, keepdims=True)
    positive = negative = 0.0
    # Every anchor is equally likely, and so is every partner of the same class, or of all the other classes.
    for n in range(count):
        same = [m for m in range(count) if labels[m] == labels[n]]
        different = [m for m in range(count) if labels[m] != labels[n]]
        positive += sum(units[n] @ units[m] for m in same) / len(same) / count
        negative += sum(units[n] @ units[m] for m in different) / len(different) / count
    expected = pytest.approx(lam * negative - positive, abs=1e-10)
    assert float(loss_from_labels(similarity, rates, lam)) == expected
    assert float(loss_from_rates(similarity, rates, lam)) == expected


@steady
@given(populations(), st.floats(0, 10))
def test_theta_loss_equals_the_mean_over_random_and_positive_pairs(population, gamma):
    X, labels = population.X.numpy(), population.labels.tolist()
    units = X / np.linalg.norm(X, axis=1, keepdims=True)
    count = len(X)
    random_pairs = float(np.mean(units @ units.T))
    positive = np.mean(
        [np.mean([units[n] @ units[m] for m in range(count) if labels[m] == labels[n]]) for n in range(count)]
    )
    actual = float(theta_loss(population.similarity(), population.rates, gamma))
    assert actual == pytest.approx((gamma + 1) * random_pairs - positive, abs=1e-10)


def test_bound_constants_are_those_of_the_paper():
    C1, C2 = bound_constants(torch.tensor([0.1, 0.3, 0.6], dtype=torch.float64), lam=2.0)
    assert pytest.approx(1 + 2 * 0.6 / 0.4) == C1
    assert pytest.approx(1 + 2 * 0.1 / 0.9) == C2


@steady
@given(assumed(), weights_lambda)
def test_the_two_sided_bound_holds_where_random_pairs_are_less_similar_than_positive_ones(case, lam):
    similarity, rates = case
    assert random_pairs_are_less_similar(similarity, rates)
    lower, upper = two_sided_bound(similarity, rates, lam)
    value = float(loss_from_labels(similarity, rates, lam))
    rounding = 1e-10 * (1 + bound_constants(rates, lam)[0])
    assert float(lower) <= value + rounding
    assert value <= float(upper) + rounding


@steady
@given(populations(), weights_lambda)
def test_the_two_sided_bound_holds_for_rows_that_satisfy_the_assumption(population, lam):
    similarity, rates = population.similarity(), population.rates
    assume(random_pairs_are_less_similar(similarity, rates))
    lower, upper = two_sided_bound(similarity, rates, lam)
    value = float(loss_from_labels(similarity, rates, lam))
    assert float(lower) - 1e-9 <= value <= float(upper) + 1e-9


def scattered_beside_compact(scattered: int, compact: int) -> Population:
    """Class 0, of which three rows in four lie along the single direction of class 1, and the fourth against it."""
    rows = [[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]] * scattered + [[1.0, 0.0]] * compact
    labels = [0] * (4 * scattered) + [1] * compact
    return Population(torch.tensor(rows, dtype=torch.float64), torch.tensor(labels))


def test_without_the_assumption_the_upper_bound_can_fail():
    population = scattered_beside_compact(scattered=1, compact=1)
    similarity, rates = population.similarity(), population.rates
    assert similarity.tolist() == [[0.25, 0.5], [0.5, 1.0]]
    assert not random_pairs_are_less_similar(similarity, rates)
    lower, upper = two_sided_bound(similarity, rates, lam=1.0)
    # The loss is 0.5 − 0.4, and C₂ = 1.25 times the difference 0.36 − 0.4 is negative.
    assert float(loss_from_labels(similarity, rates, lam=1.0)) == pytest.approx(0.1)
    assert float(upper) == pytest.approx(-0.05)
    assert float(lower) < 0.1


def test_without_the_assumption_the_lower_bound_can_fail():
    population = scattered_beside_compact(scattered=1, compact=16)
    similarity, rates = population.similarity(), population.rates
    assert not random_pairs_are_less_similar(similarity, rates)
    lower, _ = two_sided_bound(similarity, rates, lam=1.0)
    # The loss is 0.5 − 0.85, and C₁ = 5 times the difference 0.81 − 0.85 is above it.
    assert float(loss_from_labels(similarity, rates, lam=1.0)) == pytest.approx(-0.35)
    assert float(lower) == pytest.approx(-0.2)


@steady
@given(st.integers(2, 6), weights_lambda, st.integers(0, 2**31))
def test_the_two_sided_bound_is_an_equality_for_balanced_classes(classes, lam, seed):
    similarity = normal(classes, classes, seed=seed)
    similarity = similarity + similarity.T
    rates = torch.full((classes,), 1 / classes, dtype=torch.float64)
    value = float(loss_from_labels(similarity, rates, lam))
    C1, C2 = bound_constants(rates, lam)
    assert pytest.approx(C2) == C1
    for bound in two_sided_bound(similarity, rates, lam):
        assert float(bound) == pytest.approx(value, abs=1e-9)


def test_the_two_sided_bound_is_strict_for_unbalanced_classes():
    similarity, rates = torch.eye(2, dtype=torch.float64), torch.tensor([0.2, 0.8], dtype=torch.float64)
    lower, upper = two_sided_bound(similarity, rates, lam=2.0)
    assert float(lower) < float(loss_from_labels(similarity, rates, lam=2.0)) - 0.1
    assert float(upper) > float(loss_from_labels(similarity, rates, lam=2.0)) + 0.1
