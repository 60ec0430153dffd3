"""Scores beyond `polyadic.evaluate`: the paper's probes, probes with groups and levels, recentred features."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import has_fit_parameter
from threadpoolctl import threadpool_limits

from polyadic.evaluate import make_probe

PROBES = ("plain", "standardised")
"""The probes of the paper's tables."""

FEWEST_WINDOWS = 20
"""Minimum number of windows of a subject for a reliable mean."""


@contextmanager
def unthreaded() -> Iterator[None]:
    """Limit BLAS to one thread, which is faster for small problems, and suppress ConvergenceWarning."""
    with threadpool_limits(limits=1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield


def level_columns(model: Any) -> NDArray[np.intp]:
    """Return the indices of a feature extractor's level columns, whose names begin with "level "."""
    names = model.get_feature_names_out() if hasattr(model, "get_feature_names_out") else []
    return np.flatnonzero([str(name).startswith("level ") for name in names])


def train_probe(classifier: Any, Z: NDArray[Any], y: NDArray[Any], groups: Any = None, levels: Any = None) -> Any:
    """Train a clone of a classifier; subjects and level columns are passed on if its `fit` takes them.

    Parameters
    ----------
    Z : (n, F), features
    y, groups : (n,), classes and subjects
    levels : indices of the level columns
    """
    given = {"groups": groups, "level_columns": levels}
    return clone(classifier).fit(Z, y, **{k: v for k, v in given.items() if has_fit_parameter(classifier, k)})


def probe_accuracy(
    kind: str, Z_train: NDArray[Any], y_train: NDArray[Any], Z_test: NDArray[Any], y_test: NDArray[Any]
) -> float:
    """Return the share of test windows that a probe, as for `polyadic.evaluate.make_probe`, labels correctly."""
    with unthreaded():
        return float(np.mean(make_probe(kind).fit(Z_train, y_train).predict(Z_test) == y_test))


def recentred(Z: NDArray[np.float64], subject: NDArray[Any]) -> NDArray[np.float64]:
    """Subtract from features (n, F) the mean over all windows of the same subject.

    Examples
    --------
    >>> recentred(np.array([[1.0], [3.0], [5.0]]), np.array(["a", "a", "b"])).ravel().tolist()
    [-1.0, 1.0, 0.0]
    """
    centred = Z.copy()
    for name in np.unique(subject):
        centred[subject == name] -= Z[subject == name].mean(axis=0)
    return centred
