"""Logistic regression along a path of regularisation strengths: scikit-learn's solver, warm-started.

Features may be standardised, or wider than there are rows; coefficients come out in terms of the features as given.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import qr
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

__all__ = ["STANDARDISED", "decisions", "left_out", "named", "regressions", "unthreaded"]

STANDARDISED = "standardised"
"""The scaling that brings each feature to mean 0 and variance 1; any other leaves features as they are."""

_MOST_ITERATIONS = 1000


@contextmanager
def unthreaded() -> Iterator[None]:
    """Fit a probe in here: on one thread, and without a word if it stops short of its optimum."""
    # Problems as small as this one only lose by threads: in BLAS they can take a hundred times as long.
    with threadpool_limits(limits=1), warnings.catch_warnings():
        # A regression that is not quite at its optimum after 1000 iterations is still a fair judge.
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield


def regressions(
    Z: NDArray[np.float64], y: NDArray[Any], scale: str, Cs: Sequence[float], class_weight: Any, tolerance: float
) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Fit one regression for each C, each from the solution of the one before; ascending values are fastest.

    The intercept is not penalised, so features may be centred first. The penalty does not change under rotation and
    its solution lies in the span of the centred rows, so wider features are replaced by coordinates within that span.

    Parameters
    ----------
    Z : (n, F), features
    y : (n,), at least two classes
    scale : "standardised", or anything else for features as they are
    Cs, class_weight : as of scikit-learn's LogisticRegression
    tolerance : on the gradient of the mean loss, for features of mean variance 1

    Returns
    -------
    for each C the coefficients (K, F) and the intercepts (K,) in terms of Z, with K = 1 for two classes

    Examples
    --------
    >>> (coef, intercept), = regressions(np.array([[0.0], [2.0]]), np.array([0, 1]), "plain", [1.0], None, 1e-6)
    >>> bool(abs(coef[0, 0] + intercept[0]) < 1e-6)
    True
    """
    centre = Z.mean(axis=0)
    # One divisor for plain features, made up for by C, only sets the scale that the solver's tolerance refers to.
    divisor = StandardScaler().fit(Z).scale_ if scale == STANDARDISED else np.sqrt(Z.var(axis=0).mean() or 1.0)
    F, basis = (Z - centre) / divisor, None
    if F.shape[1] > F.shape[0]:
        basis = qr(F.T, mode="economic", check_finite=False)[0]
        F = F @ basis
    solver = LogisticRegression(warm_start=True, tol=tolerance, max_iter=_MOST_ITERATIONS, class_weight=class_weight)
    lines = []
    for C in Cs:
        solver.set_params(C=C if scale == STANDARDISED else C * divisor**2).fit(F, y)
        coef = (solver.coef_ if basis is None else solver.coef_ @ basis.T) / divisor
        lines.append((coef, solver.intercept_ - coef @ centre))
    return lines


def left_out(
    Z: NDArray[np.float64],
    y: NDArray[Any],
    fold: NDArray[np.intp],
    scale: str,
    Cs: Sequence[float],
    class_weight: Any,
    tolerance: float,
) -> NDArray[Any]:
    """Predict each row by regressions trained without its fold, one for each C: (len(Cs), n).

    Parameters
    ----------
    fold : (n,), from 0 on; a fold without which only one class is left is predicted to be of that class
    others : as for `regressions`
    """
    predicted = np.empty((len(Cs), len(y)), y.dtype)
    for number in range(fold.max() + 1):
        test, train = fold == number, fold != number
        classes = np.unique(y[train])
        if len(classes) == 1:
            predicted[:, test] = classes[0]
            continue
        weight = class_weight
        if isinstance(weight, dict):  # scikit-learn refuses weights of classes that are not there
            weight = {name: value for name, value in weight.items() if name in classes}
        lines = regressions(Z[train], y[train], scale, Cs, weight, tolerance)
        for row, line in zip(predicted, lines, strict=True):
            row[test] = named(decisions(Z[test], *line), classes)
    return predicted


def decisions(Z: NDArray[Any], coef: NDArray[np.float64], intercept: NDArray[np.float64]) -> NDArray[np.float64]:
    """The linear functions of a regression: log odds of the second of two classes (n,), else one per class (n, K)."""
    values: NDArray[np.float64] = Z @ coef.T + intercept
    return values[:, 0] if len(intercept) == 1 else values


def named(decision: NDArray[np.float64], classes: NDArray[Any]) -> NDArray[Any]:
    """The classes that decisions speak for: (n,)."""
    best = (decision > 0).astype(np.intp) if decision.ndim == 1 else decision.argmax(axis=1)
    found: NDArray[Any] = classes[best]
    return found
