"""Evaluation of a try: balanced accuracy of a logistic regression on left-out subjects."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyadic.data.folds import group_folds
from polyadic.evaluate.probe import FEWEST_LABELS, FIXED_C, FOLDS, GRID, SCALES, left_out, mean_variance

__all__ = ["Judged", "difference", "judge"]

_COARSE = (0.01, 1.0)
_TOLERANCE = 1e-3


@dataclass(frozen=True, eq=False)
class Judged:
    """The score of a try.

    score : balanced accuracy on left-out subjects
    shares : contribution of each subject to the score: the sum over its correctly classified windows of
        1 / (number of windows of the class · number of classes)
    """

    score: float
    shares: NDArray[np.float64] = field(repr=False)


def judge(
    Z: NDArray[np.float64],
    y: NDArray[Any],
    subject: NDArray[Any],
    levels: NDArray[np.intp],
    full: bool,
) -> Judged:
    """Evaluate features by cross-validation over subjects.

    With fewer labels than `Probe` needs for validation, its fixed settings are used. Otherwise the score is the best
    over settings of the probe: all settings if `full`, two otherwise.

    Parameters
    ----------
    Z : (n, F), features of labelled windows
    y, subject : (n,), classes and subjects of the windows
    levels : indices of the level columns
    full : whether to try all settings of the regression
    """
    fold = group_folds(y, subject, FOLDS)
    few = len(y) < FEWEST_LABELS
    scales = SCALES if full and not few else SCALES[:1]
    grid = (FIXED_C,) if few else GRID if full else _COARSE
    every = np.arange(Z.shape[1])
    blocks = [every] if few or not len(levels) or not full else [every, np.setdiff1d(every, levels)]
    best: Judged | None = None
    for scale in scales:
        for columns in blocks:
            F = Z[:, columns]
            unit = mean_variance(F, scale)
            for guess in left_out(F, y, fold, scale, [C / unit for C in grid], "balanced", _TOLERANCE):
                found = _judged(y, guess, subject)
                best = found if best is None or found.score > best.score else best
    assert best is not None
    return best


def _judged(y: NDArray[Any], guess: NDArray[Any], subject: NDArray[Any]) -> Judged:
    _, code, counts = np.unique(y, return_inverse=True, return_counts=True)
    worth = (guess == y) / (counts[code] * len(counts))
    _, member = np.unique(subject, return_inverse=True)
    shares = np.bincount(member, weights=worth).astype(np.float64)
    return Judged(float(shares.sum()), shares)


def difference(one: Judged, other: Judged) -> tuple[float, float]:
    """Return the difference of two scores and its standard error over subjects.

    Examples
    --------
    >>> one, other = Judged(0.9, np.array([0.5, 0.4])), Judged(0.8, np.array([0.4, 0.4]))
    >>> [round(value, 3) for value in difference(one, other)]
    [0.1, 0.1]
    """
    gaps = one.shares - other.shares
    if len(gaps) < 2:
        return float(gaps.sum()), float("inf")
    return float(gaps.sum()), float(np.sqrt(len(gaps)) * gaps.std(ddof=1))
