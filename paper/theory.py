"""The paper's statements about its self-supervised loss: contraction (appendix B), and bounds with labels (appendix E).

Nothing here is needed to fit a model; the tests check the statements by these formulas.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from polyadic.core.alignment import normalise


def contraction_factor(iterates: Sequence[Tensor], v2: Tensor, V: Tensor, beta: float) -> Tensor:
    """Compute the factor of the Theorem, β(2m + M)‖v₂‖‖V₃‖_F / m³, for every row.

    m and M are the smallest and largest norm of the row over the iterates, which should include the fixed point. A
    value below 1 is sufficient for convergence but not necessary: the rule converges for much larger β.

    Parameters
    ----------
    iterates : matrices of shape (N, R), one for each round
    v2 : (N, R)
    V : (R, R)

    Returns
    -------
    (N,)
    """
    norms = torch.stack([torch.linalg.vector_norm(X, dim=1) for X in iterates])
    m, M = norms.amin(dim=0), norms.amax(dim=0)
    size: Tensor = torch.linalg.vector_norm(v2, dim=1) * torch.linalg.matrix_norm(V)
    return beta * (2 * m + M) * size / m**3


def class_similarity(X: Tensor, X_other: Tensor, labels: Tensor) -> Tensor:
    """Compute the mean cosine similarity between every two classes, the paper's E_{p,q}[sim], over all pairs of rows.

    Parameters
    ----------
    X, X_other : (N, R), the two independent draws
    labels : (N,), classes 0 … P−1, none of them empty

    Returns
    -------
    (P, P)
    """
    members = torch.nn.functional.one_hot(labels).to(X.dtype)
    shares = members / members.sum(dim=0)
    return (shares.T @ normalise(X)) @ (shares.T @ normalise(X_other)).T


def loss_from_labels(similarity: Tensor, rates: Tensor, lam: float) -> Tensor:
    """Compute L_pos + λ·L_neg with the negative pairs sampled by label, Eqn. ss_before_plug.

    A class p is sampled by its rate, then a partner of the same class, or of another class q with rate r_q/(1 − r_p).

    Parameters
    ----------
    similarity : (P, P), `class_similarity`
    rates : (P,), label rates that sum to 1
    lam : weight λ ≥ 1 of the negative pairs
    """
    others = similarity - torch.diag(similarity.diagonal())
    negative = (rates / (1 - rates)) @ others @ rates
    return lam * negative - rates @ similarity.diagonal()


def loss_from_rates(similarity: Tensor, rates: Tensor, lam: float) -> Tensor:
    """Compute the same loss from random and positive pairs and the label rates alone, Eqn. ss_after_plug."""
    random_pairs = (rates * lam / (1 - rates)) @ similarity @ rates
    positive_pairs = (rates * (lam * rates / (1 - rates) + 1)) @ similarity.diagonal()
    return random_pairs - positive_pairs


def theta_loss(similarity: Tensor, rates: Tensor, gamma: float) -> Tensor:
    """Compute L^Θ_ss(γ), the loss without label rates in its weights (Eqn. L_ss_theta), for a known population."""
    return (gamma + 1) * (rates @ similarity @ rates) - rates @ similarity.diagonal()


def bound_constants(rates: Tensor, lam: float) -> tuple[float, float]:
    """Return C₁ and C₂ of Eqn. tightbound; equal when the classes are balanced."""
    odds = lam * rates / (1 - rates)
    return 1 + float(odds.max()), 1 + float(odds.min())


def two_sided_bound(similarity: Tensor, rates: Tensor, lam: float) -> tuple[Tensor, Tensor]:
    """Return the lower and the upper bound of Eqn. tightbound on the loss with labels.

    They hold if, for every class, random pairs are on average no more similar than positive pairs (the assumption
    of appendix E); without it they can fail.
    """
    C1, C2 = bound_constants(rates, lam)
    lower = C1 * theta_loss(similarity, rates, (lam - 1) / C1)
    upper = C2 * theta_loss(similarity, rates, (lam - 1) / C2)
    return lower, upper
