"""Scores beyond `polyadic.evaluate`: classifiers without a probe, probes with groups and levels, recentred features."""

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

from polyadic.data import Split
from polyadic.evaluate import scores
from polyadic.evaluate.probe import PROBES
from polyadic.evaluate.robustness import perturbed

__all__ = ["FEWEST_WINDOWS", "level_columns", "recentred", "score_classifier", "train_probe", "unthreaded"]

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


def score_classifier(model: Any, part: Split, augment: Any = None, seed: int = 0) -> dict[str, dict[str, Any]]:
    """Score a model that is a classifier itself on a split's test windows, clean and, with `augment`, perturbed.

    Returns
    -------
    the same scores for each of `PROBES`, under the names that `polyadic.evaluate.score_split` gives them
    """
    _, _, test = part
    clean = scores(test.label, model.predict(test), test.subject)
    found = dict.fromkeys(PROBES, clean)
    if augment is not None:
        rough = scores(test.label, model.predict(perturbed(test, augment, seed)))
        found |= {f"{kind} perturbed": rough for kind in PROBES}
    return found


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
