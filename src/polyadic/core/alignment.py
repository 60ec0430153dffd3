"""The self-supervised loss of the paper: its value and its row update (sections 3.1 to 3.3; appendices A and B).

Nothing here is larger than the coefficients: the N × N matrix G(γ) of the paper is never built. Names follow the paper:
`V` is V₃, `pull` gives v₂.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = [
    "align",
    "convergence",
    "loss",
    "normalise",
    "pull",
    "row_update",
]


def normalise(X: Tensor) -> Tensor:
    """Divide the rows of X (N, R) by their norms, D(X)·X; a zero row stays zero.

    Examples
    --------
    >>> normalise(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    # Dividing by the largest entry first keeps the squares of very small or large rows from under- and overflowing.
    tiny = torch.finfo(X.dtype).tiny
    scaled = X / X.abs().amax(dim=1, keepdim=True).clamp_min(tiny)
    norms: Tensor = torch.linalg.vector_norm(scaled, dim=1, keepdim=True)
    return scaled / norms.clamp_min(tiny)


def _weights(count: int, gamma: float) -> tuple[float, float]:
    """Return the off-diagonal and diagonal entries of G(γ); a batch of one has no random pair."""
    return ((gamma + 1) / (count * (count - 1)) if count > 1 else 0.0), -1.0 / count


def pull(X: Tensor, gamma: float, direction: Tensor | None = None) -> Tensor:
    """Compute G(γ)·D(X)·X without G(γ), in O(N·R): the paper's v₂ (N, R) for every row of the other view.

    Parameters
    ----------
    X : (N, R), the view that is held fixed
    gamma : weight of the random pairs, ≥ 0
    direction : `normalise(X)`, if known

    Examples
    --------
    >>> pull(torch.tensor([[2.0, 0.0], [0.0, 3.0]]), 1.0)
    tensor([[-0.5000,  1.0000],
            [ 1.0000, -0.5000]])
    """
    U = normalise(X) if direction is None else direction
    random_pair, positive_pair = _weights(len(X), gamma)
    return torch.add(random_pair * U.sum(dim=0), U, alpha=positive_pair - random_pair)


def loss(X: Tensor, X_augmented: Tensor, gamma: float) -> Tensor:
    """Compute the empirical self-supervised loss of two views (N, R), Eqn. empirical_ss_loss, in O(N·R).

    Examples
    --------
    >>> X = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> loss(X, X, gamma=1.0)
    tensor(-1.)
    """
    return (normalise(X) * pull(X_augmented, gamma)).sum()


def row_update(
    X_ls: Tensor, V: Tensor, X_init: Tensor, v2: Tensor, beta: float, direction: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Run one iteration of the fixed-point rule, Eqn. improved_x, for all rows at once in O(N·R + N·R²).

    A row whose direction is lost to rounding (its correction would be 1/eps times the row itself, as for an all-zero
    window) keeps its least-squares value. Returns the rows (N, R), and which of them (N, 1) were corrected.

    Parameters
    ----------
    X_ls : (N, R), the least-squares rows v₁V₃
    V : (R, R), the ridge inverse V₃
    X_init : (N, R), the current guess
    v2 : (N, R), `pull` of the other view
    beta : weight of the self-supervised loss
    direction : `normalise(X_init)`, if known

    Examples
    --------
    >>> x = torch.tensor([[1.0, 0.0]])
    >>> row_update(x, torch.eye(2), x, v2=torch.tensor([[1.0, 1.0]]), beta=2.0)[0]
    tensor([[ 1., -1.]])
    """
    norm = torch.linalg.vector_norm(X_init, dim=1, keepdim=True)
    direction = normalise(X_init) if direction is None else direction
    along = (v2 * direction).sum(dim=1, keepdim=True)
    tangent = torch.addcmul(v2, along, direction, value=-1)
    correction = (tangent / norm) @ (V * (beta / 2))
    # NaN compares false: a row of norm 0 is never meaningful.
    limit = norm / torch.finfo(X_init.dtype).eps
    meaningful = torch.linalg.vector_norm(correction, dim=1, keepdim=True) < limit
    return torch.where(meaningful, X_ls - correction, X_ls), meaningful


def align(
    X_ls: Tensor,
    V: Tensor,
    X_init: Tensor,
    v2: Tensor,
    beta: float,
    rounds: int = 1,
    direction: Tensor | None = None,
) -> Tensor:
    """Run `rounds` iterations of `row_update` from the initial guess X_init; `direction` is `normalise(X_init)`."""
    X, _ = row_update(X_ls, V, X_init, v2, beta, direction)
    for _ in range(rounds - 1):
        X, _ = row_update(X_ls, V, X, v2, beta)
    return X


def convergence(X_ls: Tensor, V: Tensor, v2: Tensor, beta: float, rounds: int = 8) -> list[float]:
    """Compute the mean relative difference of the rows after each round (appendix B), from the least-squares start.

    It shrinks by a constant factor if the rule converges; if it does not shrink, β is too large for these bases.

    Examples
    --------
    >>> x = torch.tensor([[1.0, 0.0]])
    >>> convergence(x, torch.eye(2), torch.tensor([[0.0, 0.1]]), beta=2.0, rounds=2)[0]
    0.10000000149011612
    """
    differences = []
    X = X_ls
    limits = torch.finfo(X.dtype)
    for _ in range(rounds):
        improved, meaningful = row_update(X_ls, V, X, v2, beta)
        size = torch.linalg.vector_norm(X, dim=1)
        change = torch.linalg.vector_norm(improved - X, dim=1) / size.clamp_min(limits.tiny)
        # A row whose correction was rejected as too large has not converged, unless it is almost zero.
        refused = ~meaningful[:, 0] & (size > limits.eps * size.amax())
        differences.append(torch.where(refused, 1 / limits.eps, change).mean())
        X = improved
    return [float(change) for change in torch.stack(differences).tolist()]
