"""Probes by name: `Probe` ("auto"), or one logistic regression on features as they are ("plain", the paper's) or
standardised; and how any classifier is trained as a probe.
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

from polyadic.checks import check_integer
from polyadic.draws import permutation
from polyadic.errors import PolyadicError
from polyadic.logistic import unthreaded
from polyadic.validated_probe import Probe

__all__ = ["AUTO", "PROBES", "low_label_rows", "probe", "quiet_training", "takes_groups", "train_probe", "unthreaded"]

AUTO = "auto"
"""The name of `Probe`, which chooses its own settings."""

PROBES = ("plain", "standardised")
"""The probes of the paper's tables: one logistic regression with fixed settings each."""


def probe(kind: Any = AUTO) -> Any:
    """An unfitted classifier for features.

    Parameters
    ----------
    kind : "auto" for a `Probe`; "plain" for scikit-learn's LogisticRegression as the paper has it (with more
        iterations, for the scales of raw features differ), "standardised" for the same on features of mean 0 and
        variance 1; or a classifier of your own, of which a clone is returned

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
    """Whether a classifier, or the last step of a pipeline, is told in `fit` whose rows they are."""
    return bool(has_fit_parameter(_last_step(classifier), "groups"))


def train_probe(
    classifier: Any, Z: NDArray[Any], y: NDArray[Any], groups: Any = None, level_columns: Any = None
) -> Any:
    """Train a clone of a classifier; it is told of groups and of the level block if its `fit` takes them.

    Parameters
    ----------
    classifier : unfitted, or a pipeline whose last step is one
    Z : (n, F), features
    y : (n,), classes
    groups : (n,), whose rows they are, or None
    level_columns : as for `Probe.fit`; pipelines are not told, for their steps may change the columns

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
    # Its own arguments are given to it here; routing is for what stands around the probe.
    with config_context(enable_metadata_routing=False):
        return own.fit(Z, y, **words)


def quiet_training(kind: Any) -> AbstractContextManager[None]:
    """Train one of the library's probes in here, on one thread and in silence; a user's own classifier is left alone.

    Parameters
    ----------
    kind : None or the name of a probe, or a classifier
    """
    return unthreaded() if kind is None or isinstance(kind, str) else nullcontext()


def _last_step(classifier: Any) -> Any:
    return classifier.steps[-1][1] if isinstance(classifier, Pipeline) else classifier


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
