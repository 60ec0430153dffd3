"""Logistic regressions along a path of C, and the settings that `Probe` searches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from sklearn.preprocessing import StandardScaler

__all__ = ["FEWEST_LABELS", "FIXED_C", "FIXED_WEIGHT", "FOLDS", "GRID", "SCALES", "WEIGHTS"]
__all__ += ["Setting", "gains", "logits", "regressions", "settings_of"]

SCALES = ("plain", "standardised")
"""Unscaled features, or features scaled to mean 0 and variance 1; also the names of the paper's two probes."""
GRID = tuple(10.0**power for power in range(-3, 3))
"""Candidate values of C, for features of unit variance."""
FIXED_C = 1.0
"""C without validation, for features of unit variance; features are then unscaled."""
FIXED_WEIGHT = 0.7
"""Weight of the statistics without validation, and the most likely one before; better than ½ on four of five sets."""
WEIGHTS = (0.25, 0.5, FIXED_WEIGHT, 1.0, 2.0)
"""Candidate weights of the statistics, relative to the components."""
FOLDS = 5
"""Maximum number of folds."""
FEWEST_LABELS = 100
"""Minimum number of labels for validation; with fewer, a fixed C was better on development subjects."""

_MOST_ITERATIONS = 1000

_Floats = NDArray[np.float64]
_Mask = NDArray[np.bool_]


class Setting(NamedTuple):
    """One candidate of `Probe`: C, the scale of the features, and the weight of the statistics."""

    C: float
    scale: str
    weight: float


def gains(is_statistic: _Mask, weight: float) -> _Floats:
    """Return the factor of each feature: the weight for statistics, 1 for the others: (F,)."""
    return np.where(is_statistic, weight, 1.0)


def settings_of(
    Z: _Floats, is_statistic: _Mask, grid: Sequence[float], scales: Sequence[str], weights: Sequence[float]
) -> list[Setting]:
    """Return all combinations of C, scale and weight.

    Values of C are those of the grid divided by the variance of the features, summed and divided by the number of
    components, so that the choice depends neither on their unit nor on the number of statistics.
    """
    settings = list[Setting]()
    columns = max(int((~is_statistic).sum()), 1)
    for scale in scales:
        for weight in weights:
            variance = float((Z * gains(is_statistic, weight)).var(axis=0).sum()) / columns or 1.0
            unit = 1.0 if scale == "standardised" else variance
            settings += [Setting(C / unit, scale, weight) for C in grid]
    return settings


def logits(Z: NDArray[Any], coef: _Floats, intercept: _Floats) -> _Floats:
    """Return one score per class (n, K); of two classes, the first has score 0."""
    scores: _Floats = Z @ coef.T + intercept
    return scores if len(intercept) > 1 else np.hstack([np.zeros_like(scores), scores])


def regressions(
    Z: _Floats,
    y: NDArray[Any],
    scale: str,
    Cs: Sequence[float],
    class_weight: Any,
    tolerance: float,
    gain: _Floats | float = 1.0,
    sample_weight: _Floats | None = None,
) -> list[tuple[_Floats, _Floats]]:
    """Fit one regression per C to features (n, F): coefficients (K, F) and intercepts (K,), K = 1 for two classes.

    Each is warm-started from the previous one; ascending values are fastest. The intercept is not penalised, so
    features can be centred first. The penalty is invariant to rotation and the solution lies in the span of the centred
    rows, so with more features than rows, coordinates in that span are used. `tolerance` is on the gradient of the mean
    loss, for features of mean variance 1. Features are multiplied by `gain` (F,), standardised ones afterwards. With
    `sample_weight` (n,), balanced classes have equal total weight.
    """
    centre = Z.mean(axis=0)
    # For plain features a common factor, compensated by C, only sets the scale for the solver's tolerance.
    spread = float((Z * gain).var(axis=0).mean()) or 1.0
    factor = gain / (StandardScaler().fit(Z).scale_ if scale == "standardised" else np.sqrt(spread))
    F, basis = (Z - centre) * factor, None
    if F.shape[1] > F.shape[0]:
        basis, coordinates = np.linalg.qr(F.T)  # F = coordinatesᵀ basisᵀ
        F = coordinates.T
    codes, weight = np.unique(y, return_inverse=True)[1], np.ones(len(y)) if sample_weight is None else sample_weight
    if class_weight == "balanced":
        totals = np.bincount(codes, weight)
        weight = weight * (weight.sum() / (len(totals) * totals[codes]))
    total, fits = weight.sum(), list[tuple[_Floats, _Floats]]()
    loss, solution = _loss(F, codes, weight / total)
    for C in Cs:
        penalty = 1 / (total * (C if scale == "standardised" else C * spread))
        # The same method and tolerances as scikit-learn's LogisticRegression, whose overhead is several times as long.
        options = {"maxiter": _MOST_ITERATIONS, "maxls": 50, "gtol": tolerance, "ftol": 64 * np.finfo(float).eps}
        solution = minimize(loss, solution, penalty, jac=True, method="L-BFGS-B", options=options).x
        *slopes, intercept = solution.reshape(F.shape[1] + 1, -1)
        coef = (np.transpose(slopes) if basis is None else np.transpose(slopes) @ basis.T) * factor
        fits.append((coef, intercept - coef @ centre))
    return fits


def _loss(F: _Floats, codes: NDArray[np.intp], share: _Floats) -> tuple[Callable[..., tuple[float, _Floats]], _Floats]:
    """Return the logistic loss and its gradient as a function of (F + 1)·K parameters and the penalty, and a start.

    For two classes K = 1, the score of the second; the weights `share` (n,) have the sum 1.
    """
    rows, classes = np.column_stack([F, np.ones(len(F))]), int(codes.max()) + 1
    columns = np.ascontiguousarray(rows.T)
    scored = 1 if classes == 2 else classes
    truth = np.eye(classes)[codes, classes - scored :]

    def loss(solution: _Floats, penalty: float) -> tuple[float, _Floats]:
        matrix = solution.reshape(-1, scored)
        scores = rows @ matrix
        highest = scores.max(axis=1, initial=0.0 if scored == 1 else -np.inf, keepdims=True)
        powers = np.exp(scores - highest)
        norm = powers.sum(axis=1, keepdims=True) + (np.exp(-highest) if scored == 1 else 0.0)
        misfit = (highest + np.log(norm))[:, 0] - (truth * scores).sum(axis=1)
        gradient = columns @ ((powers / norm - truth) * share[:, None])
        gradient[:-1] += penalty * matrix[:-1]
        return float(share @ misfit + penalty / 2 * (matrix[:-1] ** 2).sum()), gradient.ravel()

    return loss, np.zeros(rows.shape[1] * scored)
