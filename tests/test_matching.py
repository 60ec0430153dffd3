"""Components are matched as an exhaustive search over all orders and signs would match them."""

from __future__ import annotations

from itertools import permutations, product

import numpy as np
import pytest
from problems import paper

import polyadic
from polyadic import SALS, match
from polyadic.errors import PolyadicError


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


@pytest.mark.parametrize("seed", range(8))
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
    found = match(first, second)
    assert found.a.tolist() == list(range(6))
    assert order[found.b].tolist() == list(range(6))
    assert np.array_equal(found.signs, signs)
    assert np.array_equal(found.feature_signs, signs.prod(axis=0))
    assert np.allclose(found.congruence, signs)
    assert np.allclose(found.similarity, 1)
    for factor, size, aligned in zip(first, sizes, found.aligned, strict=True):
        assert np.allclose(aligned, factor * size)


def test_aligned_bases_and_features_make_the_same_tensors():
    X = np.random.default_rng(0).normal(size=(40, 5, 6))
    first, second = (paper(SALS, rank=3, max_sweeps=5, random_state=seed).fit(X) for seed in (0, 1))
    found = match(first, second)
    Z = second.transform(X)[:, found.b] * found.feature_signs
    assert np.allclose(np.einsum("nr,ir,jr->nij", Z, *found.aligned), second.inverse_transform(second.transform(X)))
    for mine, theirs in zip(first.factors_, found.aligned, strict=True):
        assert (np.einsum("ir,ir->r", mine, theirs) >= 0).all()


def test_congruence_is_the_cosine_of_each_pair_in_each_mode():
    first, second = bases(3, 0), bases(3, 1)
    found = match(first, second)
    for mode, (a, b) in enumerate(zip(first, second, strict=True)):
        for pair, (r, s) in enumerate(zip(found.a, found.b, strict=True)):
            cosine = a[:, r] @ b[:, s] / np.linalg.norm(a[:, r]) / np.linalg.norm(b[:, s])
            assert found.congruence[mode, pair] == pytest.approx(cosine)


def test_the_table_has_a_line_for_each_pair():
    text = repr(match(bases(3), bases(3)))
    lines = text.splitlines()
    assert lines[0] == "3 pairs of components, factor match score 1.000"
    assert len(lines) == 5
    assert lines[2].split() == ["1", "1", "1.000", "1.000", "1.000", "1.000"]


def test_components_of_zeros_are_like_nothing():
    first = bases(2)
    empty = [factor.copy() for factor in first]
    empty[0][:, 1] = 0
    assert match(first, empty).similarity[1] == 0
    assert np.isfinite(match(empty, empty).score)


@pytest.mark.parametrize(
    "wrong", [np.zeros((3, 2)), paper(SALS), [], [np.zeros(3)], [np.zeros((3, 2)), np.zeros((4, 3))]]
)
def test_a_file_that_is_not_a_model_is_refused_by_name(wrong):
    with pytest.raises(PolyadicError, match="model_b must"):
        match(bases(2), wrong)


def test_models_of_different_windows_are_refused():
    with pytest.raises(PolyadicError, match=r"same sizes, but have \[4, 5, 3\] and \[4, 5, 2\]"):
        match(bases(2), bases(2, shape=(4, 5, 2)))


def test_match_and_suggest_rank_are_public_names():
    assert polyadic.match is match
    assert {"match", "suggest_rank"} <= set(dir(polyadic))
