"""Probes by name, and the training of any classifier as a probe.

"auto" is a `Probe`; "plain" (the paper's) and "standardised" are one logistic regression on raw or scaled features.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn import config_context
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import has_fit_parameter

from polyadic._util.checks import check_integer
from polyadic._util.random_streams import permutation
from polyadic.errors import PolyadicError
from polyadic.evaluate.logistic import unthreaded
from polyadic.evaluate.validated_probe import Probe

__all__ = ["AUTO", "PROBES", "low_label_rows", "probe", "quiet_training", "takes_groups", "train_probe", "unthreaded"]

AUTO = "auto"
"""The name of `Probe`, which selects its own settings."""

PROBES = ("plain", "standardised")
"""The probes of the paper's tables: each is one logistic regression with fixed settings."""


def probe(kind: Any = AUTO) -> Any:
    """Return an unfitted classifier for features.

    Parameters
    ----------
    kind : "auto" for a `Probe`; "plain" for scikit-learn's LogisticRegression as in the paper (with more iterations,
        because the scales of raw features differ); "standardised" for the same on features of mean 0 and variance 1;
        or any classifier, which is cloned

    Examples
    --------
    >>> probe("plain")
    LogisticRegression(max_iter=1000)
    """
    if hasattr(kind, "fit") and not isinstance(kind, type):
        return clone(kind)
    if not isinstance(kind, str) or kind not in (AUTO, *PROBES):
        raise PolyadicError(
            f"probe must be one of {', '.join((AUTO, *PROBES))}, or a scikit-learn classifier, but is {kind!r}"
        )
    if kind == AUTO:
        return Probe()
    regression = LogisticRegression(max_iter=1000)
    return regression if kind == "plain" else make_pipeline(StandardScaler(), regression)


def takes_groups(classifier: Any) -> bool:
    """Return whether the `fit` of a classifier, or of the last step of a pipeline, takes `groups`."""
    return bool(has_fit_parameter(_last_step(classifier), "groups"))


def train_probe(
    classifier: Any, Z: NDArray[Any], y: NDArray[Any], groups: Any = None, level_columns: Any = None
) -> Any:
    """Train a clone of a classifier; groups and the level block are passed on if its `fit` takes them.

    Parameters
    ----------
    classifier : unfitted, or a pipeline whose last step is one
    Z : (n, F), features
    y : (n,), classes
    groups : (n,), the subject of each row, or None
    level_columns : as for `Probe.fit`; not passed to pipelines, whose steps may change the columns

    Examples
    --------
    >>> Z, y = np.arange(200.0)[:, None], np.arange(200) // 100
    >>> train_probe(Probe(), Z, y, groups=np.arange(200) % 5).score(Z, y)
    1.0
    """
    own = clone(classifier)
    words = {}
    if takes_groups(own):
        prefix = f"{own.steps[-1][0]}__" if isinstance(own, Pipeline) else ""
        words[f"{prefix}groups"] = groups
    if has_fit_parameter(own, "level_columns"):
        words["level_columns"] = level_columns
    # The arguments are passed directly; metadata routing is for the estimators around the probe.
    with config_context(enable_metadata_routing=False):
        return own.fit(Z, y, **words)


def quiet_training(kind: Any) -> AbstractContextManager[None]:
    """Return a context for training: one thread and no warnings for the library's probes, no change for others.

    Parameters
    ----------
    kind : None or the name of a probe, or a classifier
    """
    return unthreaded() if kind is None or isinstance(kind, str) else nullcontext()


def _last_step(classifier: Any) -> Any:
    return classifier.steps[-1][1] if isinstance(classifier, Pipeline) else classifier


def low_label_rows(y: ArrayLike, count: int, seed: int = 0) -> NDArray[np.intp]:
    """Choose some of the labelled windows, for a learning curve over the number of labels.

    The choice is stratified: classes keep their proportions, and each has at least one window if `count` allows it
    (else the most frequent ones do). With the same seed, a smaller count gives a subset of a larger one.

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
        raise PolyadicError(f"y must have shape (N,), one label per window, but has shape {labels.shape}")
    check_integer("count", count, 1)
    if count > len(labels):
        raise PolyadicError(f"count must be at most the number of labelled windows, {len(labels)}, but is {count}")
    shuffled = permutation(len(labels), seed, 0).numpy()
    _, codes, sizes = np.unique(labels[shuffled], return_inverse=True, return_counts=True)
    # An order of all windows whose every prefix is stratified: the k-th window of a class of n is placed at (k+½)/n,
    # except that the first window of each class precedes all others.
    turn = np.empty(len(labels))
    for code, size in enumerate(sizes):
        turn[codes == code] = [-size, *((np.arange(1, size) + 0.5) / size)]
    chosen: NDArray[np.intp] = np.sort(shuffled[np.argsort(turn, kind="stable")[: int(count)]])
    return chosen
