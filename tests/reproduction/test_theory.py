"""The paper's statements on contraction and on the bounds of the loss with labels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paper.theory import (
    bound_constants,
    class_similarity,
    contraction_factor,
    loss_from_labels,
    loss_from_rates,
    two_sided_bound,
)
from polyadic.core.algebra import gram, project, ridge_inverse
from polyadic.core.alignment import pull, row_update

steady = settings(derandomize=True, deadline=None, database=None, max_examples=40)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("seed", range(3))
def test_every_round_contracts_within_the_bound_of_the_theorem(seed):
    beta, bases = 2.0, [normal(size, 3, seed=seed + mode + 1) for mode, size in enumerate((4, 3, 5))]
    bases = [basis / basis.norm(dim=0) for basis in bases]
    V = ridge_inverse(gram(bases), 0.1)
    X_ls = project(5 * normal(6, 4, 3, 5, seed=seed), bases) @ V
    v2 = pull(normal(6, 3, seed=seed + 99), 6.0)
    guesses = [X_ls]
    for _ in range(200):
        guesses.append(row_update(X_ls, V, guesses[-1], v2, beta))
    errors = torch.stack([torch.linalg.vector_norm(X - guesses[-1], dim=1) for X in guesses[:12]])
    factor = contraction_factor(guesses, v2, V, beta)
    # The bound must say something in at least one row of every problem.
    assert float(factor.min()) < 1
    measurable = errors[:-1] > 1e-11
    assert bool(measurable[:3].any())
    assert bool((errors[1:] <= factor * errors[:-1])[measurable].all())


# The loss with labels and its bounds.


@steady
@given(st.lists(st.integers(1, 6), min_size=2, max_size=5), st.floats(0, 2), st.floats(1, 10), st.integers(0, 2**31))
def test_the_law_of_total_probability_replaces_negative_pairs_by_random_and_positive_ones(counts, spread, lam, seed):
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    X = normal(len(counts), 4, seed=seed)[labels] + spread * normal(len(labels), 4, seed=seed + 1)
    similarity, rates = class_similarity(X, X, labels), torch.tensor(counts).double() / len(labels)
    units = (X / X.norm(dim=1, keepdim=True)).numpy()
    positive = negative = 0.0
    # Every anchor is equally likely, and so is every partner of the same class, or of all the other classes.
    for anchor, label in zip(units, labels.numpy(), strict=True):
        same = labels.numpy() == label
        positive += float(np.mean(units[same] @ anchor)) / len(units)
        negative += float(np.mean(units[~same] @ anchor)) / len(units)
    expected = pytest.approx(lam * negative - positive, abs=1e-10)
    assert float(loss_from_labels(similarity, rates, lam)) == expected
    assert float(loss_from_rates(similarity, rates, lam)) == expected


def random_pairs_are_less_similar(similarity: Tensor, rates: Tensor) -> bool:
    """The assumption of appendix E, for every class."""
    return bool((similarity @ rates <= similarity.diagonal() + 1e-12).all())


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
@given(assumed(), st.floats(1, 10))
def test_the_two_sided_bound_holds_where_random_pairs_are_less_similar_than_positive_ones(case, lam):
    similarity, rates = case
    assert random_pairs_are_less_similar(similarity, rates)
    lower, upper = two_sided_bound(similarity, rates, lam)
    value = float(loss_from_labels(similarity, rates, lam))
    rounding = 1e-10 * (1 + bound_constants(rates, lam)[0])
    assert float(lower) <= value + rounding
    assert value <= float(upper) + rounding


@pytest.mark.parametrize(
    ("compact", "value", "bound", "side"), [(1, 0.1, -0.05, 1), (16, -0.35, -0.2, 0)], ids=["upper", "lower"]
)
def test_without_the_assumption_a_bound_can_fail(compact, value, bound, side):
    # Class 0: three rows in four lie along the single direction of class 1, and the fourth against it.
    X = torch.tensor([[1.0, 0.0]] * 3 + [[-1.0, 0.0]] + [[1.0, 0.0]] * compact, dtype=torch.float64)
    labels = torch.tensor([0] * 4 + [1] * compact)
    similarity, rates = class_similarity(X, X, labels), torch.bincount(labels).double() / len(labels)
    assert not random_pairs_are_less_similar(similarity, rates)
    assert float(loss_from_labels(similarity, rates, lam=1.0)) == pytest.approx(value)
    assert float(two_sided_bound(similarity, rates, lam=1.0)[side]) == pytest.approx(bound)


@steady
@given(st.integers(2, 6), st.floats(1, 10), st.integers(0, 2**31))
def test_the_two_sided_bound_is_an_equality_for_balanced_classes(classes, lam, seed):
    similarity = normal(classes, classes, seed=seed)
    similarity = similarity + similarity.T
    rates = torch.full((classes,), 1 / classes, dtype=torch.float64)
    for bound in two_sided_bound(similarity, rates, lam):
        assert float(bound) == pytest.approx(float(loss_from_labels(similarity, rates, lam)), abs=1e-9)
