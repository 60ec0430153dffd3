"""Significance of differences between methods: t-tests over seeds, and Holm's correction, which scipy does not have.

The paper reports t-tests (appendix D.7) but not which kind, so all three are here; every p is two-sided.
"""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from polyadic.errors import PolyadicError

__all__ = ["corrected_resampled", "holm", "paired", "unpaired"]

_DECIMALS = 12
"""Scores are fractions or percentages: further decimals are rounding, and equal scores may differ in them."""


def unpaired(a: ArrayLike, b: ArrayLike, *, equal_variances: bool = True) -> tuple[float, float]:
    """Compare two independent sets of scores by Student's t-test.

    Parameters
    ----------
    a, b : (n,), (m,), one score per seed
    equal_variances : False for Welch's test, which does not assume equal variances

    Returns
    -------
    t, positive where a is better, and p; both NaN with fewer than two seeds of either

    Examples
    --------
    >>> t, p = unpaired([0.92, 0.93, 0.94], [0.90, 0.91, 0.92])
    >>> round(t, 3), round(p, 3)
    (2.449, 0.07)
    """
    x, y = _check_scores("a", a), _check_scores("b", b)
    if min(len(x), len(y)) < 2:
        return np.nan, np.nan
    if np.ptp(x) == np.ptp(y) == 0:
        return _without_variance(x[0] - y[0])
    with warnings.catch_warnings():
        # Scores of one method may be equal up to rounding; the other method's variance then decides.
        warnings.filterwarnings("ignore", "Precision loss", RuntimeWarning)
        result = stats.ttest_ind(x, y, equal_var=equal_variances)
    return float(result.statistic), float(result.pvalue)


def paired(a: ArrayLike, b: ArrayLike) -> tuple[float, float]:
    """Compare scores (n,) of two methods on the same seeds, and thus the same splits, by a paired t-test.

    Returns
    -------
    t, positive where a is better, and p; both NaN with fewer than two seeds

    Examples
    --------
    >>> t, p = paired([0.92, 0.94, 0.95], [0.91, 0.92, 0.92])
    >>> round(t, 3), round(p, 3)
    (3.464, 0.074)
    """
    x, y = _check_scores("a", a), _check_scores("b", b)
    if x.shape != y.shape:
        raise PolyadicError(f"a and b must have a score for each of the same seeds, but have {len(x)} and {len(y)}")
    return corrected_resampled(x - y, test_share=0.0)


def corrected_resampled(differences: ArrayLike, test_share: float) -> tuple[float, float]:
    """Compare two methods on random splits of the same windows, whose training parts overlap, by a paired t-test.

    Scores over such splits are not independent, so an uncorrected test has too many false positives. Nadeau and Bengio
    (2003) raise the variance of the mean from s²/n to (1/n + tests/trainings) · s².

    Parameters
    ----------
    differences : (n,), score of one method minus that of the other on each split
    test_share : tests / (trainings + tests), at least 0 and less than 1

    Returns
    -------
    t and p; both NaN with fewer than two splits

    Examples
    --------
    >>> t, p = corrected_resampled([0.01, 0.02, 0.03], test_share=0.5)
    >>> round(t, 3), round(p, 3)
    (1.732, 0.225)
    """
    if not 0 <= test_share < 1:
        raise PolyadicError(f"test_share must be at least 0 and less than 1, but is {test_share!r}")
    gaps = _check_scores("differences", differences)
    n = len(gaps)
    if n < 2:
        return np.nan, np.nan
    if np.ptp(gaps) == 0:
        return _without_variance(gaps[0])
    t = float(gaps.mean() / np.sqrt((1 / n + test_share / (1 - test_share)) * gaps.var(ddof=1)))
    return t, float(2 * stats.t.sf(abs(t), n - 1))


def holm(p_values: ArrayLike) -> NDArray[np.float64]:
    """Adjust p-values by Holm's method: rejecting those below 0.05 keeps the family-wise error rate at 5 %.

    Parameters
    ----------
    p_values : (n,), one for each comparison; NaN for a comparison that was not possible, which does not count

    Returns
    -------
    (n,), adjusted, in the same order

    Examples
    --------
    >>> holm([0.01, 0.04, 0.03])
    array([0.03, 0.06, 0.06])
    """
    given = np.asarray(p_values, dtype=np.float64)
    if given.ndim != 1 or (given < 0).any() or (given > 1).any():
        raise PolyadicError(f"p_values must be a list of numbers between 0 and 1, but are {p_values!r}")
    adjusted = np.full(len(given), np.nan)
    order = np.argsort(given)[: int(np.isfinite(given).sum())]  # NaN comes last
    factors = np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(factors * given[order]), 1.0)
    return adjusted


def _check_scores(name: str, values: ArrayLike) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not np.isfinite(array).all():
        raise PolyadicError(f"{name} must be a list of finite numbers, one for each seed, but is {values!r}")
    return array.round(_DECIMALS)


def _without_variance(gap: float) -> tuple[float, float]:
    """Return t and p of a difference that is the same for all seeds: p is 0 for a difference and 1 for none."""
    return (float(np.copysign(np.inf, gap)), 0.0) if round(gap, _DECIMALS) else (0.0, 1.0)
