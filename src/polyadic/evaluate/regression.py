"""Logistic regressions along a path of C, and predictions for left-out folds: what `Probe` and `tune` search with."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby, product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from polyadic._util.threads import for_each

__all__ = ["FEWEST_LABELS", "FIXED_C", "FOLDS", "GRID", "MOST_ITERATIONS", "SCALES", "Setting"]
__all__ += ["candidates", "left_out", "logits", "regressions", "unthreaded"]

SCALES = ("plain", "standardised")
"""Unscaled features, or features scaled to mean 0 and variance 1; also the names of the paper's two probes."""
GRID = tuple(10.0**power for power in range(-4, 3))
"""Candidate values of C, for features of mean variance 1."""
FIXED_C = 1.0
"""C without validation, for features of mean variance 1; features are then unscaled and the level block is used."""
FOLDS = 5
"""Maximum number of folds."""
FEWEST_LABELS = 100
"""Minimum number of labels for validation; with fewer, the fixed settings were better on development subjects."""
MOST_ITERATIONS = 1000

_SEARCH_TOLERANCE = 1e-3

_Floats = NDArray[np.float64]
_Mask = NDArray[np.bool_]


class Setting(NamedTuple):
    """One candidate of `Probe`; `levels` says whether the level block is used."""

    C: float
    scale: str
    levels: bool


@contextmanager
def unthreaded() -> Iterator[None]:
    """Limit the fitting of probes to one thread, and suppress ConvergenceWarning."""
    # Threads slow down such small problems: in BLAS up to a hundredfold.
    with threadpool_limits(limits=1), warnings.catch_warnings():
        # A regression that is not quite at its optimum after 1000 iterations is good enough for evaluation.
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield


def _mean_variance(Z: _Floats, scale: str) -> float:
    """Return the mean variance of features (n, F) after scaling, the unit of 1 / C; 1 if they are constant."""
    return 1.0 if scale == "standardised" else float(Z.var(axis=0).mean()) or 1.0


def candidates(
    Z: _Floats, is_level: _Mask, grid: Sequence[float], scales: Sequence[str], levels: Sequence[bool]
) -> list[Setting]:
    """Return all combinations of C from a grid (for features of mean variance 1), scales, and levels used or not."""
    settings = []
    for scale, with_levels in product(scales, levels):
        unit = _mean_variance(Z[:, with_levels | ~is_level], scale)
        settings += [Setting(C / unit, scale, with_levels) for C in grid]
    return settings


def logits(Z: NDArray[Any], coef: _Floats, intercept: _Floats) -> _Floats:
    """Return one score per class (n, K); of two classes, the first has score 0."""
    scores: _Floats = Z @ coef.T + intercept
    return scores if len(intercept) > 1 else np.hstack([np.zeros_like(scores), scores])


def regressions(
    Z: _Floats, y: NDArray[Any], scale: str, Cs: Sequence[float], class_weight: Any, tolerance: float
) -> list[tuple[_Floats, _Floats]]:
    """Fit one regression per C to features (n, F): coefficients (K, F) and intercepts (K,), K = 1 for two classes.

    Each is warm-started from the previous one; ascending values are fastest. The intercept is not penalised, so
    features can be centred first. The penalty is invariant to rotation and the solution lies in the span of the centred
    rows, so with more features than rows, coordinates in that span are used. `tolerance` is on the gradient of the mean
    loss, for features of mean variance 1.
    """
    centre = Z.mean(axis=0)
    # For plain features a common divisor, compensated by C, only sets the scale for the solver's tolerance.
    divisor = StandardScaler().fit(Z).scale_ if scale == "standardised" else np.sqrt(_mean_variance(Z, scale))
    F, basis = (Z - centre) / divisor, None
    if F.shape[1] > F.shape[0]:
        basis, coordinates = np.linalg.qr(F.T)  # F = coordinatesᵀ basisᵀ
        F = coordinates.T
    solver = LogisticRegression(warm_start=True, tol=tolerance, max_iter=MOST_ITERATIONS, class_weight=class_weight)
    fits = []
    for C in Cs:
        solver.set_params(C=C if scale == "standardised" else C * divisor**2).fit(F, y)
        coef = (solver.coef_ if basis is None else solver.coef_ @ basis.T) / divisor
        fits.append((coef, solver.intercept_ - coef @ centre))
    return fits


def left_out(
    Z: _Floats,
    y: NDArray[Any],
    fold: NDArray[np.intp],
    settings: Sequence[Setting],
    is_level: _Mask,
    class_weight: Any = "balanced",
) -> dict[Setting, NDArray[Any]]:
    """Predict each row (n,) with regressions trained without its fold; folds run in parallel in a `thread_pool`.

    If the other folds have only one class, that class is predicted.
    """
    predicted = {setting: np.empty_like(y) for setting in settings}

    def leave_out(number: int) -> None:
        test, train = fold == number, fold != number
        classes = np.unique(y[train])
        weight = class_weight
        if isinstance(weight, dict):  # scikit-learn rejects weights of missing classes
            weight = {name: value for name, value in weight.items() if name in classes}
        for (scale, with_levels), group in groupby(settings, key=lambda setting: setting[1:]):
            path, F = list(group), Z[:, with_levels | ~is_level]
            if len(classes) == 1:
                for setting in path:
                    predicted[setting][test] = classes[0]
                continue
            fits = regressions(F[train], y[train], scale, [setting.C for setting in path], weight, _SEARCH_TOLERANCE)
            for setting, fit in zip(path, fits, strict=True):
                predicted[setting][test] = classes[logits(F[test], *fit).argmax(axis=1)]

    for_each(leave_out, range(fold.max() + 1))
    return predicted
