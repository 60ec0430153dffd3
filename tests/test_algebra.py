"""The multilinear kernels against slow oracles: explicit loops in numpy."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import oracles
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from polyadic.core.algebra import (
    collect,
    components,
    contract,
    gram,
    khatri_rao,
    project,
    reconstruct,
    ridge_inverse,
    ridge_solve,
)
from polyadic.errors import PolyadicError

DTYPES = [torch.float32, torch.float64]
dtypes = pytest.mark.parametrize("dtype", DTYPES)


@dataclass(frozen=True)
class Shape:
    """A random tensor problem: N samples of the given sizes, a rank, a type and a seed."""

    samples: int
    sizes: tuple[int, ...]
    rank: int
    dtype: torch.dtype = torch.float64
    seed: int = 0
    reversed: bool = False

    def draw(self, device: torch.device) -> tuple[Tensor, Tensor, list[Tensor]]:
        """T (N, I, …), its modes in memory in their order or the other way round, X (N, R) and the factors."""
        generator = torch.Generator().manual_seed(self.seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64).to(device, self.dtype)

        factors = [normal(size, self.rank) for size in self.sizes]
        T = normal(self.samples, *self.sizes)
        if self.reversed:
            back = [0, *range(T.ndim - 1, 0, -1)]
            T = T.permute(back).contiguous().permute(back)
        return T, normal(self.samples, self.rank), factors


# Sizes end at 4 and ranks at 6: every problem may have a rank above, among or below its dimensions.
shapes = st.builds(
    Shape,
    samples=st.integers(1, 4),
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple),
    rank=st.integers(1, 6),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**31),
    reversed=st.booleans(),
)

LOW_RANK = Shape(3, (2, 4, 3), 1, torch.float32)
HIGH_RANK = Shape(2, (3, 2), 7, torch.float32)
ORDER_TWO = Shape(4, (3,), 2, torch.float32)
ORDER_FIVE = Shape(2, (2, 3, 1, 4), 5, reversed=True)
ONLY_ONES = Shape(1, (1, 1, 1, 1), 3)


def over_shapes(test):
    """Run a test on random shapes and on those that must never be left out."""
    for shape in (LOW_RANK, HIGH_RANK, ORDER_TWO, ORDER_FIVE, ONLY_ONES):
        test = example(shape)(test)
    return given(shape=shapes)(test)


def array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().double().numpy()


def assert_agrees(actual: Tensor, expected: np.ndarray, like: Tensor) -> None:
    """Equal in shape, to the rounding of the type of `like`, and of that type and on that device."""
    assert actual.dtype == like.dtype
    assert actual.device == like.device
    tolerance = 300 * torch.finfo(like.dtype).eps
    np.testing.assert_allclose(
        array(actual), expected, rtol=tolerance, atol=tolerance * max(1.0, float(np.abs(expected).max()))
    )


@over_shapes
def test_khatri_rao_equals_explicit_loops(device, shape):
    _, _, factors = shape.draw(device)
    assert_agrees(khatri_rao(factors), oracles.khatri_rao([array(f) for f in factors]), like=factors[0])


@over_shapes
def test_gram_equals_the_inner_products_of_the_khatri_rao_columns(device, shape):
    _, _, factors = shape.draw(device)
    assert_agrees(gram(factors), oracles.gram([array(f) for f in factors]), like=factors[0])


@over_shapes
def test_project_equals_explicit_loops(device, shape):
    T, _, factors = shape.draw(device)
    assert_agrees(project(T, factors), oracles.project(array(T), [array(f) for f in factors]), like=T)


@over_shapes
def test_collect_equals_explicit_loops(device, shape):
    T, X, _ = shape.draw(device)
    assert_agrees(collect(X, T), oracles.collect(array(X), array(T)), like=T)


@over_shapes
def test_reconstruct_equals_the_sum_of_the_outer_products(device, shape):
    _, X, factors = shape.draw(device)
    assert_agrees(reconstruct(X, factors), oracles.reconstruct(array(X), [array(f) for f in factors]), like=X)


@over_shapes
def test_contract_equals_explicit_loops(device, shape):
    T, X, factors = shape.draw(device)
    Y = collect(X, T)
    for mode, factor in enumerate(factors):
        slow = np.zeros((len(Y), *T.shape[1 : 1 + mode], *T.shape[2 + mode :]))
        for r, *index in np.ndindex(*Y.shape):
            rest = (*index[:mode], *index[mode + 1 :])
            slow[(r, *rest)] += array(Y)[(r, *index)] * array(factor)[index[mode], r]
        assert_agrees(contract(Y, mode, factor), slow, like=Y)


@example(LOW_RANK, 1e-3)
@example(HIGH_RANK, 0.1)
@example(ONLY_ONES, 5.0)
@given(shape=shapes, alpha=st.floats(0.01, 10.0))
def test_ridge_solve_equals_least_squares_on_the_stacked_system(device, shape, alpha):
    T, _, factors = shape.draw(device)
    # Columns of one norm keep the system's condition in the hands of alpha.
    factors = [f / torch.linalg.vector_norm(f, dim=0) for f in factors]
    design = np.vstack([oracles.khatri_rao([array(f) for f in factors]), math.sqrt(alpha) * np.eye(shape.rank)])
    target = np.hstack([array(T).reshape(len(T), -1), np.zeros((len(T), shape.rank))])
    expected = np.linalg.lstsq(design, target.T)[0].T
    solved = ridge_solve(gram(factors), project(T, factors), alpha)
    assert solved.dtype == T.dtype
    tolerance = 1e3 * torch.finfo(T.dtype).eps * max(1.0, shape.rank / alpha)
    np.testing.assert_allclose(array(solved), expected, atol=tolerance * max(1.0, float(np.abs(expected).max())))


@dtypes
@pytest.mark.parametrize("alpha", [0.0, 0.3, 100.0])
def test_ridge_inverse_is_the_inverse(device, dtype, alpha):
    A = torch.randn(9, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    G = (A.T @ A).to(device, dtype)
    expected = np.linalg.inv(array(G) + alpha * np.eye(4))
    assert_agrees(ridge_inverse(G, alpha), expected, like=G)


@dtypes
def test_ridge_inverse_of_columns_of_very_different_sizes_is_exact_and_silent(device, dtype):
    # In float32 these pivots span 24 orders of magnitude, yet no column follows from another.
    sizes = torch.tensor([1e-6, 1.0, 1e6], dtype=torch.float64)
    shared = torch.full((3, 3), 0.5, dtype=torch.float64) + 0.5 * torch.eye(3, dtype=torch.float64)
    G = (sizes[:, None] * shared * sizes).to(device, dtype)
    unscaled = array(ridge_inverse(G, 0.0)) * sizes.numpy()[:, None] * sizes.numpy()
    np.testing.assert_allclose(unscaled, np.linalg.inv(shared.numpy()), rtol=1e-5)


def fit_error(X: Tensor, T: Tensor, K: Tensor) -> float:
    """How far the fit XKᵀ is from the best one, relative to that."""
    best = array(T) @ np.linalg.pinv(array(K)).T @ array(K).T
    return float(np.linalg.norm(array(X) @ array(K).T - best) / np.linalg.norm(best))


@dtypes
@pytest.mark.parametrize("scale", [1e-4, 1e4])
def test_two_equal_columns_are_solved_by_jitter_with_a_warning(device, dtype, scale):
    T, _, (A,) = Shape(20, (5,), 3, dtype).draw(device)
    A = scale * A
    A[:, 2] = A[:, 0]
    with pytest.warns(RuntimeWarning, match=r"3 x 3 Gram matrix is singular at alpha=0; .* added to its diagonal"):
        X = ridge_solve(gram([A]), project(T, [A]), 0.0)
    assert bool(torch.isfinite(X).all())
    assert fit_error(X, T, A) < (2e-2 if dtype == torch.float32 else 1e-4)


@dtypes
@pytest.mark.parametrize(("size", "rank"), [(1, 2), (7, 8), (4, 12)])
def test_a_rank_above_the_dimension_is_never_treated_as_regular(dtype, size, rank):
    # Whether rounding leaves the last pivot small depends on the order of the columns, so many draws are needed.
    for seed in range(15):
        T, _, (A,) = Shape(6, (size,), rank, dtype, seed).draw(torch.device("cpu"))
        with pytest.warns(RuntimeWarning, match="Gram matrix is singular at alpha=0"):
            X = ridge_solve(gram([A]), project(T, [A]), 0.0)
        assert bool(torch.isfinite(X).all())
        assert fit_error(X, T, A) < 0.5


@dtypes
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_gram_that_is_not_finite_is_an_error(device, dtype, value):
    G = torch.eye(3, dtype=dtype, device=device)
    G[2, 1] = G[1, 2] = value
    with pytest.raises(PolyadicError, match=r"G must be finite, but holds NaN or infinity \(shape \(3, 3\)"):
        ridge_solve(G, torch.ones(2, 3, dtype=dtype, device=device), 1.0)


@pytest.mark.parametrize("shape", [(7, 5), (4, 3, 6), (3, 2, 4, 5)])
def test_samples_correlated_with_components_are_the_plain_product(shape, monkeypatch):
    torch.manual_seed(0)
    T, factors = torch.randn(shape), [torch.randn(size, 5) for size in shape[1:]]
    expected = T.double().flatten(1) @ khatri_rao([factor.double() for factor in factors])
    monkeypatch.setattr("polyadic.core.algebra._LARGE", 0)
    assert torch.allclose(project(T, factors).double(), expected, atol=1e-5)
    assert torch.equal(components(factors).flatten(1).T, khatri_rao(factors))
