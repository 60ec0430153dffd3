"""Consensus of several fits: components matched by similarity and averaged.

The similarity is Tucker's congruence, the cosine between two columns; for a component, the product over the modes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["average_components", "pair_components"]

_ALIKE = 0.7
"""Minimum similarity of components that are averaged. Components of noise rarely reach it."""
_ROUNDS = 20

_Floats = NDArray[np.float64]


def pair_components(
    first: Sequence[_Floats], second: Sequence[_Floats]
) -> tuple[NDArray[np.intp], NDArray[np.intp], _Floats]:
    """Match the components of two models so that the sum of their similarities is maximal.

    Parameters
    ----------
    first, second : bases (I, R), (J, R), … of the same sizes; the ranks may differ

    Returns
    -------
    indices of the matched components in both models, and the cosines between their columns: (n,), (n,), (modes, n)

    Examples
    --------
    >>> A = np.eye(3)[:, :2]
    >>> a, b, cosines = pair_components([A, A], [A[:, ::-1], -A[:, ::-1]])
    >>> a, b, cosines.tolist()
    (array([0, 1]), array([1, 0]), [[1.0, 1.0], [-1.0, -1.0]])
    """
    from scipy.optimize import linear_sum_assignment

    cosines = np.stack([_unit(x).T @ _unit(y) for x, y in zip(first, second, strict=True)])
    a, b = linear_sum_assignment(np.abs(cosines).prod(axis=0), maximize=True)
    return a, b, np.clip(cosines[:, a, b], -1.0, 1.0)


def average_components(fits: Sequence[Sequence[_Floats]], losses: Sequence[float]) -> list[_Floats]:
    """Average each component of the fit with the lowest loss with the similar components of the other fits.

    The other fits are then matched with the averages, and averaged again, until the matching no longer changes. A
    component without a match stays unchanged.

    Parameters
    ----------
    fits : the bases (I, R), (J, R), … of each fit
    losses : the loss of each fit

    Returns
    -------
    bases (I, R), (J, R), … with columns of norm 1

    Examples
    --------
    >>> A = np.eye(2)
    >>> fits = [[A, A], [A, -A[:, ::-1] @ A[:, ::-1]], [A[:, :1] @ np.ones((1, 2)), A]]
    >>> [basis.round(3).tolist() for basis in average_components(fits, [1.0, 2.0, 3.0])]
    [[[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 1.0]]]
    """
    average = [_unit(basis) for basis in fits[int(np.argmin(losses))]]
    before: list[list[int]] = []
    for _ in range(_ROUNDS):
        sums = [np.zeros_like(basis) for basis in average]
        pairs = []
        for bases in fits:
            a, b, cosines = pair_components(average, bases)
            alike = np.abs(cosines).prod(axis=0) >= _ALIKE
            a, b, signs = a[alike], b[alike], np.where(cosines < 0, -1.0, 1.0)[:, alike]
            for total, basis, sign in zip(sums, bases, signs, strict=True):
                total[:, a] += _unit(basis)[:, b] * sign
            pairs.append([*a.tolist(), -1, *b.tolist()])
        if pairs == before:
            break
        before = pairs
        found = np.logical_or.reduce([total.any(axis=0) for total in sums])
        average = [_unit(np.where(found, total, basis)) for total, basis in zip(sums, average, strict=True)]
    return average


def _unit(basis: _Floats) -> _Floats:
    """Scale columns to norm 1; zero columns stay zero."""
    norms = np.linalg.norm(basis, axis=0)
    return basis / np.where(norms > 0, norms, 1.0)
