"""Scores of the paper's tables: probes on clean and on perturbed windows, and a probe trained on augmented copies."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import has_fit_parameter
from threadpoolctl import threadpool_limits

from polyadic._util.random_streams import integer_seed
from polyadic.augment import Augmentation
from polyadic.data import Split, Windows
from polyadic.evaluate import scores

PROBES = ("plain", "standardised")
"""The probes of the paper's tables."""

_BATCH = 256
_TESTS = 0x7E57
_VIEWS = 4

Scores = dict[str, dict[str, Any]]


@contextmanager
def unthreaded() -> Iterator[None]:
    """Limit BLAS to one thread, which is faster for small problems, and suppress ConvergenceWarning."""
    with threadpool_limits(limits=1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield


def statistic_columns(model: Any) -> NDArray[np.intp]:
    """Return the indices of the columns of a feature extractor that are statistics of the raw window."""
    readout = getattr(model, "readout_", None)
    return np.arange(0) if readout is None else np.arange(readout.rank, readout.n_features)


def make_probe(kind: str) -> Any:
    """Return an unfitted regression of `PROBES`, with more iterations, because the scales of raw features differ."""
    regression = LogisticRegression(max_iter=1000)
    return regression if kind == "plain" else make_pipeline(StandardScaler(), regression)


def train_probe(classifier: Any, Z: NDArray[Any], y: NDArray[Any], groups: Any = None, columns: Any = None) -> Any:
    """Train a clone of a classifier on features (n, F); subjects and statistic columns are passed if it takes them."""
    given = {"groups": groups, "statistic_columns": columns}
    return clone(classifier).fit(Z, y, **{k: v for k, v in given.items() if has_fit_parameter(classifier, k)})


def score_split(
    model: Any,
    part: Split,
    augment: Augmentation,
    seed: int = 0,
    choose_probes: Callable[[NDArray[Any], NDArray[Any]], Mapping[str, Any]] | None = None,
) -> Scores:
    """Train probes on a model's features of a split's training windows, and score them on its test windows.

    Parameters
    ----------
    model : a fitted feature extractor, with `transform`
    augment : each probe is also scored on augmented test windows, and a copy of the probe "standardised" is trained on
        the training windows and four augmented copies of each
    seed : seed of these augmentations
    choose_probes : a function from features and labels of the training windows to unfitted classifiers by name; by
        default `PROBES`

    Returns
    -------
    for each probe, by name, and for "augmented", what `polyadic.evaluate.scores` returns; for every NAME also an entry
    "NAME perturbed"
    """
    _, train, test = part
    tests = _test_sets(test, augment, seed)
    Z_train, Z_tests = model.transform(train), [model.transform(windows) for windows in tests.values()]
    with unthreaded():
        probes = choose_probes(Z_train, train.label) if choose_probes else {kind: make_probe(kind) for kind in PROBES}
    groups = None if (train.subject == "").any() else train.subject
    columns = statistic_columns(model)
    trainings: dict[str, tuple[Any, ...]] = {
        name: (classifier, Z_train, train.label, groups, columns) for name, classifier in probes.items()
    }
    copies = [model.transform(augmented(train, augment, seed, view)) for view in range(_VIEWS)]
    labels = np.tile(train.label, 1 + _VIEWS)
    trainings["augmented"] = (probes["standardised"], np.concatenate([Z_train, *copies]), labels, None, None)
    results: Scores = {}
    for name, training in trainings.items():
        with unthreaded():
            fitted = train_probe(*training)
            predicted = dict(zip(tests, [np.asarray(fitted.predict(Z)) for Z in Z_tests], strict=True))
        results |= _scores_by_test(name, test, predicted)
    return results


def score_classifier(model: Any, part: Split, augment: Augmentation, seed: int = 0) -> Scores:
    """Score a model that is a classifier itself, with `predict`: the same scores for each of `PROBES`."""
    _, _, test = part
    predicted = {suffix: model.predict(windows) for suffix, windows in _test_sets(test, augment, seed).items()}
    return {name: result for kind in PROBES for name, result in _scores_by_test(kind, test, predicted).items()}


def _test_sets(test: Windows, augment: Augmentation, seed: int) -> dict[str, Any]:
    """Return the clean and the perturbed test windows, by suffix of the probe's name."""
    # The draws differ from those of the training copies and of a fit with the same seed.
    return {"": test, " perturbed": augmented(test, augment, integer_seed(seed, _TESTS))}


def _scores_by_test(name: str, test: Windows, predicted: Mapping[str, NDArray[Any]]) -> Scores:
    """Score predictions for each of the test sets; by subject only for the clean one."""
    return {
        name + suffix: scores(test.label, guess, None if suffix else test.subject)
        for suffix, guess in predicted.items()
    }


def augmented(windows: Windows, augment: Augmentation, seed: int, sweep: int = 0) -> NDArray[Any]:
    """Return an augmented copy of each window, (N, channels, time), determined by its row, seed and sweep."""
    X = torch.from_numpy(np.array(windows.X))
    X = X if X.dtype == torch.float64 else X.float()
    batches = torch.split(torch.arange(len(X)), _BATCH)
    copies = torch.cat([augment(X[ids], ids, seed=seed, sweep=sweep) for ids in batches])
    return np.asarray(copies.numpy())
