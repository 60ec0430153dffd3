"""The probe: logistic regression on features, as they are ("plain", the paper's) or standardised."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from polyadic.checks import check_integer
from polyadic.draws import permutation
from polyadic.errors import PolyadicError
from polyadic.logistic import unthreaded

__all__ = ["PROBES", "low_label_rows", "probe", "unthreaded"]

PROBES = ("plain", "standardised")


def probe(kind: str = "standardised") -> Any:
    """An unfitted classifier for features.

    Parameters
    ----------
    kind : "plain" for scikit-learn's LogisticRegression as the paper has it (with more iterations, for the scales of
        raw features differ), "standardised" for the same on features of mean 0 and variance 1

    Examples
    --------
    >>> probe("plain")
    LogisticRegression(max_iter=1000)
    """
    if kind not in PROBES:
        raise PolyadicError(f"kind must be one of {', '.join(PROBES)}, but is {kind!r}")
    regression = LogisticRegression(max_iter=1000)
    return regression if kind == "plain" else make_pipeline(StandardScaler(), regression)


def low_label_rows(y: ArrayLike, count: int, seed: int = 0) -> NDArray[np.intp]:
    """Some of the labelled windows, for a curve of accuracy over the number of labels.

    Classes have their shares, and each has at least one window if there are as many as classes (else the most frequent
    have). A smaller count gives a part of what a larger one gives with the same seed.

    Parameters
    ----------
    y : (N,), the labels of all
    count : how many to choose

    Returns
    -------
    (count,), row numbers in ascending order

    Examples
    --------
    >>> y = np.array([0] * 80 + [1] * 20)
    >>> np.bincount(y[low_label_rows(y, 10)])
    array([8, 2])
    """
    labels = np.asarray(y)
    if labels.ndim != 1:
        raise PolyadicError(f"y must have shape (N,), one label a window, but has shape {labels.shape}")
    check_integer("count", count, 1)
    if count > len(labels):
        raise PolyadicError(f"count must be at most the number of labelled windows, {len(labels)}, but is {count}")
    shuffled = permutation(len(labels), seed, 0).numpy()
    _, codes, sizes = np.unique(labels[shuffled], return_inverse=True, return_counts=True)
    # All windows in one order whose every beginning has the classes' shares: the k-th of a class of n comes at (k+½)/n,
    # but the first of each class before all others.
    turn = np.empty(len(labels))
    for code, size in enumerate(sizes):
        turn[codes == code] = [-size, *((np.arange(1, size) + 0.5) / size)]
    chosen: NDArray[np.intp] = np.sort(shuffled[np.argsort(turn, kind="stable")[: int(count)]])
    return chosen
