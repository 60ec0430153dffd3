"""Components are matched as an exhaustive search over all orders and signs would match them."""

from __future__ import annotations

from itertools import permutations, product

import numpy as np
import pytest
from problems import paper

from polyadic import SALS, match


def bases(rank, seed=0, shape=(4, 5, 3)):
    random = np.random.default_rng(seed)
    return [random.normal(size=(size, rank)) for size in shape]


def exhaustive(first, second):
    """The best mean over pairs of the product over modes of signed cosines, over all orders and all signs."""
    rank, n = first[0].shape[1], second[0].shape[1]
    best = -np.inf
    for order in permutations(range(n), rank):
        total = 0.0
        for r, s in enumerate(order):
            cosines = [
                a[:, r] @ b[:, s] / np.linalg.norm(a[:, r]) / np.linalg.norm(b[:, s])
                for a, b in zip(first, second, strict=True)
            ]
            total += max(
                np.prod([sign * c for sign, c in zip(signs, cosines, strict=True)])
                for signs in product((1, -1), repeat=len(first))
            )
        best = max(best, total / rank)
    return best


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("rank", "other"), [(4, 4), (3, 5), (1, 3)])
def test_no_order_and_no_signs_are_better(seed, rank, other):
    first, second = bases(rank, seed), bases(other, seed + 100)
    assert match(first, second).score == pytest.approx(exhaustive(first, second), rel=1e-12)
    assert match(second, first).score == pytest.approx(match(first, second).score, rel=1e-12)


def test_a_shuffled_flipped_and_scaled_copy_is_found_again():
    random = np.random.default_rng(1)
    first = bases(6, shape=(7, 8, 9))
    order = random.permutation(6)
    signs = random.choice([-1.0, 1.0], size=(3, 6))
    sizes = random.uniform(0.1, 10, size=(3, 6))
    second = [(factor * sign * size)[:, order] for factor, sign, size in zip(first, signs, sizes, strict=True)]
    pairs = match(first, second)
    assert pairs.a.tolist() == list(range(6))
    assert order[pairs.b].tolist() == list(range(6))
    assert np.array_equal(pairs.feature_signs, signs.prod(axis=0))
    assert np.allclose(pairs.congruence, signs)
    assert np.allclose(pairs.similarity, 1)
    for factor, size, aligned in zip(first, sizes, pairs.aligned, strict=True):
        assert np.allclose(aligned, factor * size)


def test_aligned_bases_and_features_make_the_same_tensors():
    X = np.random.default_rng(0).normal(size=(40, 5, 6))
    first, second = (paper(SALS, rank=3, max_sweeps=5, random_state=seed).fit(X) for seed in (0, 1))
    pairs = match(first, second)
    Z = second.transform(X)[:, pairs.b] * pairs.feature_signs
    assert np.allclose(np.einsum("nr,ir,jr->nij", Z, *pairs.aligned), second.inverse_transform(second.transform(X)))
    for factor, aligned in zip(first.factors_, pairs.aligned, strict=True):
        assert (np.einsum("ir,ir->r", factor, aligned) >= 0).all()
