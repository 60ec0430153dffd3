"""Logistic regression along a path of regularisation strengths, with scikit-learn's solver and warm starts.

Features may be standardised, and may outnumber the rows; coefficients are in terms of the features as given.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from scipy.linalg.lapack import dpstrf
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from polyadic._util.threads import for_each
from polyadic.evaluate.stored_probe import STANDARDISED, decisions, named

__all__ = ["left_out", "regressions", "unthreaded"]

_MOST_ITERATIONS = 1000


@contextmanager
def unthreaded() -> Iterator[None]:
    """Limit the fitting of probes to one thread, and suppress ConvergenceWarning."""
    # Threads slow down such small problems: in BLAS up to a hundredfold.
    with threadpool_limits(limits=1), warnings.catch_warnings():
        # A regression that is not quite at its optimum after 1000 iterations is good enough for evaluation.
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield


def regressions(
    Z: NDArray[np.float64], y: NDArray[Any], scale: str, Cs: Sequence[float], class_weight: Any, tolerance: float
) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Fit one regression per C, each warm-started from the previous one; ascending values are fastest.

    The intercept is not penalised, so features can be centred first. The penalty is invariant to rotation and the
    solution lies in the span of the centred rows, so with more features than rows, coordinates in that span are used.

    Parameters
    ----------
    Z : (n, F), features
    y : (n,), at least two classes
    scale : "standardised", or anything else for unscaled features
    Cs, class_weight : as for scikit-learn's LogisticRegression
    tolerance : tolerance on the gradient of the mean loss, for features of mean variance 1

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
    # For plain features a common divisor, compensated by C, only sets the scale for the solver's tolerance.
    divisor = StandardScaler().fit(Z).scale_ if scale == STANDARDISED else np.sqrt(Z.var(axis=0).mean() or 1.0)
    F = (Z - centre) / divisor
    wide = F.shape[1] > F.shape[0] and F.any()
    rows, back = _within_span(F) if wide else (F, None)
    solver = LogisticRegression(warm_start=True, tol=tolerance, max_iter=_MOST_ITERATIONS, class_weight=class_weight)
    lines = []
    for C in Cs:
        solver.set_params(C=C if scale == STANDARDISED else C * divisor**2).fit(rows, y)
        coef = (solver.coef_ if back is None else back(solver.coef_)) / divisor
        lines.append((coef, solver.intercept_ - coef @ centre))
    return lines


def _within_span(
    F: NDArray[np.float64],
) -> tuple[NDArray[np.float64], Callable[[NDArray[np.float64]], NDArray[np.float64]]]:
    """Return coordinates (n, r) of rows in an orthonormal basis of their span, and a map from (K, r) to (K, F).

    Uses a pivoted Cholesky decomposition of the rows' inner products, at a fifth of the cost of a QR decomposition.
    """
    lower, pivots, rank, _ = dpstrf(F @ F.T, lower=1)
    order = pivots - 1  # LAPACK counts from 1
    lower = np.tril(lower)[:, :rank]
    coordinates = np.empty_like(lower)
    coordinates[order] = lower
    spanning = F[order[:rank]]  # lower[:rank] @ basis.T

    def back(coef: NDArray[np.float64]) -> NDArray[np.float64]:
        weights = solve_triangular(lower[:rank], coef.T, lower=True, trans="T").T
        return np.asarray(weights @ spanning)

    return coordinates, back


def left_out(
    Z: NDArray[np.float64],
    y: NDArray[Any],
    fold: NDArray[np.intp],
    scale: str,
    Cs: Sequence[float],
    class_weight: Any,
    tolerance: float,
) -> NDArray[Any]:
    """Predict each row with regressions trained without its fold, one per C: (len(Cs), n).

    Within `polyadic._util.threads.thread_pool`, folds run in parallel.

    Parameters
    ----------
    fold : (n,), from 0; if the other folds have only one class, that class is predicted
    others : as for `regressions`
    """
    predicted = np.empty((len(Cs), len(y)), y.dtype)

    def leave_out(number: int) -> None:
        test, train = fold == number, fold != number
        classes = np.unique(y[train])
        if len(classes) == 1:
            predicted[:, test] = classes[0]
            return
        weight = class_weight
        if isinstance(weight, dict):  # scikit-learn rejects weights of missing classes
            weight = {name: value for name, value in weight.items() if name in classes}
        lines = regressions(Z[train], y[train], scale, Cs, weight, tolerance)
        for row, line in zip(predicted, lines, strict=True):
            row[test] = named(decisions(Z[test], *line), classes)

    for_each(leave_out, range(fold.max() + 1))
    return predicted
