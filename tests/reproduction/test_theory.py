"""The paper's statements about its self-supervised loss: contraction (appendix B), bounds with labels (appendix E)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from polyadic.core.algebra import gram, project, ridge_inverse
from polyadic.core.alignment import normalise, pull, row_update


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def contraction_factor(iterates: Sequence[Tensor], v2: Tensor, V: Tensor, beta: float) -> Tensor:
    """The factor of the Theorem, β(2m + M)‖v₂‖‖V₃‖_F / m³, for every row; m and M are its least and largest norm."""
    norms = torch.stack([torch.linalg.vector_norm(X, dim=1) for X in iterates])
    m, M = norms.amin(dim=0), norms.amax(dim=0)
    size: Tensor = torch.linalg.vector_norm(v2, dim=1) * torch.linalg.matrix_norm(V)
    return beta * (2 * m + M) * size / m**3


def class_similarity(X: Tensor, X_other: Tensor, labels: Tensor) -> Tensor:
    """Mean cosine similarity between every two classes, E_{p,q}[sim], over all pairs of rows: (P, P)."""
    members = torch.nn.functional.one_hot(labels).to(X.dtype)
    shares = members / members.sum(dim=0)
    return (shares.T @ normalise(X)) @ (shares.T @ normalise(X_other)).T


def loss_from_labels(similarity: Tensor, rates: Tensor, lam: float) -> Tensor:
    """L_pos + λ·L_neg with the negative pairs sampled by label, Eqn. ss_before_plug."""
    others = similarity - torch.diag(similarity.diagonal())
    negative = (rates / (1 - rates)) @ others @ rates
    return lam * negative - rates @ similarity.diagonal()


def loss_from_rates(similarity: Tensor, rates: Tensor, lam: float) -> Tensor:
    """The same loss from random and positive pairs and the label rates alone, Eqn. ss_after_plug."""
    random_pairs = (rates * lam / (1 - rates)) @ similarity @ rates
    positive_pairs = (rates * (lam * rates / (1 - rates) + 1)) @ similarity.diagonal()
    return random_pairs - positive_pairs


def theta_loss(similarity: Tensor, rates: Tensor, gamma: float) -> Tensor:
    """L^Θ_ss(γ), the loss without label rates in its weights, Eqn. L_ss_theta, for a known population."""
    return (gamma + 1) * (rates @ similarity @ rates) - rates @ similarity.diagonal()


def bound_constants(rates: Tensor, lam: float) -> tuple[float, float]:
    """Return C₁ and C₂ of Eqn. tightbound; equal when the classes are balanced."""
    odds = lam * rates / (1 - rates)
    return 1 + float(odds.max()), 1 + float(odds.min())


def two_sided_bound(similarity: Tensor, rates: Tensor, lam: float) -> tuple[Tensor, Tensor]:
    """The lower and the upper bound of Eqn. tightbound on the loss with labels."""
    C1, C2 = bound_constants(rates, lam)
    lower = C1 * theta_loss(similarity, rates, (lam - 1) / C1)
    upper = C2 * theta_loss(similarity, rates, (lam - 1) / C2)
    return lower, upper


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


@given(assumed(), st.floats(1, 10))
def test_the_two_sided_bound_holds_where_random_pairs_are_less_similar_than_positive_ones(case, lam):
    similarity, rates = case
    assert random_pairs_are_less_similar(similarity, rates)
    lower, upper = two_sided_bound(similarity, rates, lam)
    value = float(loss_from_labels(similarity, rates, lam))
    rounding = 1e-10 * (1 + bound_constants(rates, lam)[0])
    assert float(lower) <= value + rounding
    assert value <= float(upper) + rounding


@given(st.integers(2, 6), st.floats(1, 10), st.integers(0, 2**31))
def test_the_two_sided_bound_is_an_equality_for_balanced_classes(classes, lam, seed):
    similarity = normal(classes, classes, seed=seed)
    similarity = similarity + similarity.T
    rates = torch.full((classes,), 1 / classes, dtype=torch.float64)
    for bound in two_sided_bound(similarity, rates, lam):
        assert float(bound) == pytest.approx(float(loss_from_labels(similarity, rates, lam)), abs=1e-9)
