"""Least squares with non-negative factors, by hierarchical alternating least squares (Cichocki and Phan, 2009).

Each row in turn is set to its minimum with all others fixed, so no pass can increase the objective.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

__all__ = ["PASSES", "nonnegative_solve", "warn_of_vanished"]

PASSES = 5
"""Number of passes over all rows in a solve; the next solve starts from its result."""


def nonnegative_solve(G: Tensor, M: Tensor, start: Tensor, alpha: float, passes: int = PASSES) -> Tensor:
    """Find a non-negative F that decreases ½·tr(F(G + αI)Fᵀ) − tr(FMᵀ), from a start.

    Parameters
    ----------
    G : (R, R), positive semidefinite
    M : (I, R), right-hand sides as rows
    start : (I, R), at least 0
    alpha : weight of the identity, ≥ 0
    passes : number of passes over all columns of F

    Returns
    -------
    (I, R), in the type and on the device of `M`; a column without weight in G and α keeps its starting value

    Examples
    --------
    >>> nonnegative_solve(torch.eye(2), torch.tensor([[2.0, -4.0]]), torch.zeros(1, 2), 1.0)
    tensor([[1., 0.]])
    """
    # Sequential work on small matrices is faster in numpy on the CPU than in torch or on a GPU.
    H = G.cpu().double().numpy() + alpha * np.eye(len(G))
    weight = H.diagonal().copy()
    live = np.flatnonzero(weight > 0)
    scale = np.divide(1.0, weight, out=np.zeros_like(weight), where=weight > 0)[:, None]
    # With the right-hand sides below F, one product gives the minimum of a row: (−others, identity)(F, right).
    others, size = -H * scale, len(H)
    np.fill_diagonal(others, 0.0)
    weights = np.concatenate([others, np.eye(size)], axis=1)
    both = np.concatenate([start.cpu().double().numpy().T, M.cpu().double().numpy().T * scale])
    rows = [(weights[row], both[row]) for row in live]
    product, zero = np.empty(both.shape[1]), np.zeros(both.shape[1])
    for _ in range(passes):
        for weight_row, row in rows:
            np.dot(weight_row, both, out=product)
            np.maximum(product, zero, out=row)
    return torch.from_numpy(np.ascontiguousarray(both[:size].T)).to(M)


def warn_of_vanished(factors: Sequence[Tensor]) -> None:
    """Warn about components with a profile that is all zero."""
    dead = torch.stack([~factor.any(dim=0) for factor in factors]).any(dim=0)
    if bool(dead.any()):
        from sklearn.exceptions import ConvergenceWarning

        warnings.warn(
            f"{int(dead.sum())} of {len(dead)} components vanished, because the data do not need them. A smaller rank "
            "gives the same fit.",
            ConvergenceWarning,
            stacklevel=5,  # the line that called `fit`
        )
