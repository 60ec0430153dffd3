"""Robustness to augmentations: scores on perturbed test windows, and of a probe trained on augmented copies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paper.scoring import PROBES, level_columns, train_probe, unthreaded
from polyadic._util.random_streams import integer_seed
from polyadic.augment import as_augmentation
from polyadic.data import Split, Windows
from polyadic.evaluate import make_probe, scores

_BATCH = 256
_TESTS = 0x7E57
_VIEWS = 4


def logistic_probes(Z_train: Any = None, y_train: Any = None) -> dict[str, Any]:
    """Return an unfitted probe of every kind in `PROBES`, by name; features and labels are not used."""
    return {kind: make_probe(kind) for kind in PROBES}


def score_split(
    model: Any,
    part: Split,
    choose_probes: Callable[[NDArray[Any], NDArray[Any]], Mapping[str, Any]] = logistic_probes,
    augment: Any = None,
    seed: int = 0,
) -> dict[str, dict[str, Any]]:
    """Train probes on a model's features of a split's training windows, and score them on its test windows.

    Parameters
    ----------
    model : a fitted feature extractor, with `transform`
    choose_probes : a function from features and labels of the training windows to unfitted classifiers by name
    augment : an augmentation to also test robustness: each probe is scored on augmented test windows, too, and a copy
        of the probe "standardised" is trained on the training windows and four augmented copies of each
    seed : seed of these augmentations

    Returns
    -------
    for each probe, by name, what `polyadic.evaluate.scores` returns, and the `reason` for its settings if it has one;
    with `augment` also an entry "augmented", and for every NAME an entry "NAME perturbed"
    """
    _, train, test = part
    tests = _test_sets(test, augment, seed)
    Z_train, Z_tests = model.transform(train), [model.transform(windows) for windows in tests.values()]
    with unthreaded():
        probes = choose_probes(Z_train, train.label)
    groups = None if (train.subject == "").any() else train.subject
    levels = level_columns(model)
    trainings: dict[str, tuple[Any, ...]] = {
        name: (classifier, Z_train, train.label, groups, levels) for name, classifier in probes.items()
    }
    if augment is not None:
        copies = [augmented_features(model, train, augment, view, seed) for view in range(_VIEWS)]
        labels = np.tile(train.label, 1 + _VIEWS)
        trainings["augmented"] = (probes["standardised"], np.concatenate([Z_train, *copies]), labels, None, None)
    results: dict[str, dict[str, Any]] = {}
    for name, training in trainings.items():
        with unthreaded():
            fitted = train_probe(*training)
            predicted = dict(zip(tests, [np.asarray(fitted.predict(Z)) for Z in Z_tests], strict=True))
        results |= _scores_by_test(name, test, predicted)
        if hasattr(fitted, "reason_"):
            results[name]["reason"] = fitted.reason_
    return results


def score_classifier(model: Any, part: Split, augment: Any = None, seed: int = 0) -> dict[str, dict[str, Any]]:
    """Score a model that is a classifier itself, with `predict`, on a split's test windows.

    Returns
    -------
    the same scores for each of `PROBES`, as `score_split` returns them
    """
    _, _, test = part
    predicted = {suffix: model.predict(windows) for suffix, windows in _test_sets(test, augment, seed).items()}
    return {name: result for kind in PROBES for name, result in _scores_by_test(kind, test, predicted).items()}


def _test_sets(test: Windows, augment: Any, seed: int) -> dict[str, Any]:
    """Return the clean test windows and, with an augmentation, the perturbed ones, by suffix of the probe's name."""
    return {"": test} if augment is None else {"": test, " perturbed": perturbed(test, augment, seed)}


def _scores_by_test(name: str, test: Windows, predicted: Mapping[str, NDArray[Any]]) -> dict[str, dict[str, Any]]:
    """Score predictions for each of the test sets; by subject only for the clean one."""
    return {
        name + suffix: scores(test.label, guess, None if suffix else test.subject)
        for suffix, guess in predicted.items()
    }


def perturbed(X: Any, augment: Any, seed: int = 0) -> NDArray[Any]:
    """Augment every window once, for a robustness test.

    The random draws differ from those of `augmented_features` and of a fit with the same seed.

    Parameters
    ----------
    X : (N, channels, time), an array, a tensor or `Windows`
    augment : an augmentation of `polyadic.augment`, or any function from a batch to its augmented view. A function is
        called with one window at a time and should draw from torch's generator, which is seeded for each window

    Returns
    -------
    (N, channels, time), numpy
    """
    copies = _augmented_batches(X, augment, integer_seed(seed, _TESTS), 0)
    return np.concatenate([batch.cpu().numpy() for batch in copies])


def augmented_features(features: Any, X: Any, augment: Any, sweep: int = 0, seed: int = 0) -> NDArray[Any]:
    """Compute features of an augmented copy of each window, batch by batch.

    Parameters
    ----------
    features : fitted, with a method `transform`
    X, augment : as for `perturbed`
    sweep, seed : together with the row of a window in X, they determine its copy

    Returns
    -------
    (N, R), numpy
    """
    copies = _augmented_batches(X, augment, seed, sweep)
    return np.concatenate([np.asarray(features.transform(batch.cpu().numpy())) for batch in copies])


def _augmented_batches(X: Any, augment: Any, seed: int, sweep: int) -> Iterator[Tensor]:
    """Yield all windows in order, each with its own random augmentation: (b, …)."""
    augmentation = as_augmentation(augment)
    assert augmentation is not None
    windows = torch.from_numpy(np.array(getattr(X, "X", X)))
    for ids in torch.split(torch.arange(len(windows)), _BATCH):
        batch = windows[ids] if windows.dtype == torch.float64 else windows[ids].float()
        # A plain function is seeded once per call: calling it with one window makes draws independent of the batch.
        step = len(batch) if augmentation.per_window else 1
        parts = zip(torch.split(batch, step), torch.split(ids, step), strict=True)
        yield torch.cat([augmentation(part, which, seed=seed, sweep=sweep) for part, which in parts])
