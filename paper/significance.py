"""Significance of differences between methods: Nadeau and Bengio's corrected t-test, and Holm's correction.

scipy has neither of the two.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats


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
    t and the two-sided p; both NaN with fewer than two splits

    Examples
    --------
    >>> t, p = corrected_resampled([0.01, 0.02, 0.03], test_share=0.5)
    >>> round(t, 3), round(p, 3)
    (1.732, 0.225)
    """
    gaps = np.asarray(differences, np.float64).round(12)  # equal scores may differ in further decimals
    n = len(gaps)
    if n < 2:
        return np.nan, np.nan
    if np.ptp(gaps) == 0:
        return (float(np.copysign(np.inf, gaps[0])), 0.0) if gaps[0] else (0.0, 1.0)
    t = float(gaps.mean() / np.sqrt((1 / n + test_share / (1 - test_share)) * gaps.var(ddof=1)))
    return t, float(2 * stats.t.sf(abs(t), n - 1))


def holm(p_values: ArrayLike) -> NDArray[np.float64]:
    """Adjust p-values by Holm's method, for a family-wise error rate: (n,); NaN is a comparison that does not count.

    Examples
    --------
    >>> holm([0.01, 0.04, 0.03])
    array([0.03, 0.06, 0.06])
    """
    given = np.asarray(p_values, dtype=np.float64)
    adjusted = np.full(len(given), np.nan)
    order = np.argsort(given)[: int(np.isfinite(given).sum())]  # NaN comes last
    factors = np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(factors * given[order]), 1.0)
    return adjusted
