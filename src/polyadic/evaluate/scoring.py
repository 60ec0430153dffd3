"""Train probes on features of labelled windows, and score their predictions for other windows.

`score_features` takes features, `score_split` a fitted model and a split, `score_splits` a fitted model and the seeds
of several splits. Every command and experiment computes its scores here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyadic.data.splits import PROTOCOLS, Protocol, Split, split
from polyadic.data.windows import Windows
from polyadic.errors import PolyadicError
from polyadic.estimators import CPD
from polyadic.evaluate.augmented import augmented_features, perturbed
from polyadic.evaluate.classifier import WindowClassifier, labels_of
from polyadic.evaluate.metrics import scores
from polyadic.evaluate.probes import PROBES, probe, train_probe, unthreaded
from polyadic.evaluate.recentring import group_names, means_by_group, recentred
from polyadic.evaluate.validated_probe import level_columns

__all__ = [
    "default_protocol",
    "features_of",
    "logistic_probes",
    "own_split",
    "probe_accuracy",
    "score_classifier",
    "score_features",
    "score_own_probe",
    "score_split",
    "score_splits",
    "subjects_of",
    "summarise",
]

Scores = dict[str, Any]
"""Output of `polyadic.evaluate.scores`."""

_OnRows = Callable[[int], None]

_MEASURES = ("accuracy", "balanced_accuracy", "macro_f1", "kappa", "worst_subject")
_VIEWS = 4
_PERTURBED = " perturbed"


# --------------------------------------------------------------- from features


def score_features(
    probes: Mapping[str, Any],
    Z_train: NDArray[Any],
    y_train: NDArray[Any],
    Z_test: NDArray[Any],
    y_test: NDArray[Any],
    subject: NDArray[Any] | None = None,
    groups: NDArray[Any] | None = None,
    levels: Any = None,
) -> dict[str, Scores]:
    """Train every probe on features of training windows and score its predictions for test windows.

    Parameters
    ----------
    probes : unfitted classifiers by name
    Z_train, Z_test : (n, R), features
    y_train, y_test : (n,), labels
    subject : (n,), the subject of each test window, for the accuracy of each subject
    groups : (n,), the subject of each training window, for probes that are selected by leaving groups out
    levels : columns of the level block, as for `Probe.fit`

    Returns
    -------
    for each probe, by name, what `polyadic.evaluate.scores` returns, and the `reason` for its settings if it has one

    Examples
    --------
    >>> Z, y = np.array([[0.0], [0.1], [1.0], [1.1]]), np.array([0, 0, 1, 1])
    >>> score_features({"plain": probe("plain")}, Z, y, Z, y)["plain"]["accuracy"]
    1.0
    """
    found = {}
    for name, classifier in probes.items():
        with unthreaded():
            fitted = train_probe(classifier, Z_train, y_train, groups, levels)
            found[name] = scores(y_test, fitted.predict(Z_test), subject) | _reason(fitted)
    return found


def _reason(fitted: Any) -> dict[str, str]:
    """Return the sentence on how a probe selected its settings, if it has one."""
    return {"reason": fitted.reason_} if hasattr(fitted, "reason_") else {}


def probe_accuracy(
    kind: str, Z_train: NDArray[Any], y_train: NDArray[Any], Z_test: NDArray[Any], y_test: NDArray[Any]
) -> float:
    """Return the share of test windows that a probe labels correctly.

    Parameters
    ----------
    kind : as for `polyadic.evaluate.probes`
    Z_train, Z_test : (n, R), features
    y_train, y_test : (n,), labels
    """
    return float(score_features({kind: probe(kind)}, Z_train, y_train, Z_test, y_test)[kind]["accuracy"])


def logistic_probes(Z_train: Any = None, y_train: Any = None) -> dict[str, Any]:
    """Return an unfitted probe of every kind in `PROBES`, by name; features and labels are not used."""
    return {kind: probe(kind) for kind in PROBES}


# ----------------------------------------------------------------- from splits


def subjects_of(windows: Windows) -> NDArray[Any] | None:
    """Return the subjects of windows as groups to leave out, or None if no subject is known."""
    return windows.subject if (windows.subject != "").any() else None


def default_protocol(windows: Windows) -> Protocol:
    """Return "subject" if the subject of every window is known, else "paper"."""
    return "paper" if (windows.subject == "").any() else "subject"


def own_split(model: CPD, windows: Windows, protocols: Sequence[Protocol] = PROTOCOLS) -> Split | None:
    """Find the split of these windows whose unlabelled part the model was fitted to; None if there is no such split.

    Parameters
    ----------
    model : fitted; its `split_` and its seed identify the split
    """
    for protocol in protocols if model.split_ else ():
        try:
            found = split(windows, protocol, seed=model.seed_)
        except PolyadicError:  # the windows do not allow this protocol
            continue
        if model.split_ == f"{found.hash}:unlabelled":
            return found
    return None


def score_split(
    model: Any,
    part: Split,
    choose_probes: Callable[[NDArray[Any], NDArray[Any]], Mapping[str, Any]] = logistic_probes,
    augment: Any = None,
    seed: int = 0,
) -> dict[str, Scores]:
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
    groups, levels = subjects_of(train), level_columns(model)
    trainings: dict[str, tuple[Any, ...]] = {
        name: (classifier, Z_train, train.label, groups, levels) for name, classifier in probes.items()
    }
    if augment is not None:
        copies = [augmented_features(model, train, augment, view, seed) for view in range(_VIEWS)]
        labels = np.tile(train.label, 1 + _VIEWS)
        trainings["augmented"] = (probes["standardised"], np.concatenate([Z_train, *copies]), labels, None, None)
    found: dict[str, Scores] = {}
    for name, training in trainings.items():
        with unthreaded():
            fitted = train_probe(*training)
            predicted = dict(zip(tests, [np.asarray(fitted.predict(Z)) for Z in Z_tests], strict=True))
        found |= _scores_by_test(name, test, predicted)
        found[name] |= _reason(fitted)
    return found


def score_classifier(model: Any, part: Split, augment: Any = None, seed: int = 0) -> dict[str, Scores]:
    """Score a model that is a classifier itself, with `predict`, on a split's test windows.

    Returns
    -------
    the same scores for each of `PROBES`, as `score_split` returns them
    """
    _, _, test = part
    predicted = {suffix: model.predict(windows) for suffix, windows in _test_sets(test, augment, seed).items()}
    return {name: found for kind in PROBES for name, found in _scores_by_test(kind, test, predicted).items()}


def _test_sets(test: Windows, augment: Any, seed: int) -> dict[str, Any]:
    """Return the clean test windows and, with an augmentation, the perturbed ones, by suffix of the probe's name."""
    return {"": test} if augment is None else {"": test, _PERTURBED: perturbed(test, augment, seed)}


def _scores_by_test(name: str, test: Windows, predicted: Mapping[str, NDArray[Any]]) -> dict[str, Scores]:
    """Score predictions for each of the test sets; by subject only for the clean one."""
    return {
        name + suffix: scores(test.label, one, None if suffix else test.subject) for suffix, one in predicted.items()
    }


def score_splits(
    model: CPD,
    windows: Windows,
    protocol: Protocol,
    seeds: Sequence[int],
    on_rows: _OnRows | None = None,
    kinds: Sequence[str] = PROBES,
) -> list[dict[str, Any]]:
    """Train probes on the training part of several splits, and score them on the test part of each.

    Parameters
    ----------
    model : fitted; it is not refitted
    windows : with labels
    protocol, seeds : protocol and seeds of the splits
    on_rows : called with the number of windows done, while their features are computed
    kinds : kinds of probes, as for `polyadic.evaluate.probes`

    Returns
    -------
    for each seed and probe what `scores` returns, with `probe`, `seed`, `split` (its hash), `trained` and `tested`
    """
    parts = {seed: split(windows, protocol, seed=seed) for seed in seeds}
    for part in parts.values():
        if len(np.unique(windows.label[part.train])) < 2 or not len(part.test):
            raise PolyadicError(
                "a split must have test windows, and training windows of at least two classes: add labels"
            )
    used = np.unique(np.concatenate([rows for part in parts.values() for rows in (part.train, part.test)]))
    Z = features_of(model, windows[used], on_rows)
    labels, probes, levels = labels_of(windows), {kind: probe(kind) for kind in kinds}, level_columns(model)
    found = []
    for seed, part in parts.items():
        train, test = ((Z[np.searchsorted(used, rows)], labels[rows]) for rows in (part.train, part.test))
        about = {"seed": seed, "split": part.hash, "trained": len(part.train), "tested": len(part.test)}
        groups = subjects_of(windows[part.train])
        own = score_features(probes, *train, *test, windows.subject[part.test], groups, levels)
        found += [{"probe": kind, **about, **one} for kind, one in own.items()]
    return found


def score_own_probe(model: CPD, windows: Windows, on_rows: _OnRows | None = None) -> list[dict[str, Any]]:
    """Score a model's own probe on all labelled windows, or only on the test part of the split it was fitted to.

    Parameters
    ----------
    model : fitted, with a probe
    windows : with labels; those of a class that the probe does not know count as labelled wrongly
    on_rows : as for `score_splits`

    Returns
    -------
    one entry like those of `score_splits`, without a seed
    """
    classifier = WindowClassifier.of(model)
    part = own_split(model, windows)
    rows = np.flatnonzero(windows.label >= 0) if part is None else part.test
    if not len(rows):
        raise PolyadicError("windows must have labels to be scored, but none has one")
    tested = windows[rows]
    Z = features_of(model, tested, on_rows)
    if classifier.recenter:
        names = group_names(tested.subject, len(tested))
        Z = recentred(Z, names, means_by_group([(Z, names)]))
    predicted = classifier.probe_.predict(Z).astype(str)
    found = scores(labels_of(tested), predicted, tested.subject)
    return [{"probe": "the model's", "split": "" if part is None else part.hash, "tested": len(rows), **found}]


def features_of(model: Any, windows: Windows, on_rows: _OnRows | None = None) -> NDArray[np.float64]:
    """Compute features in float64."""
    words = {} if on_rows is None else {"on_rows": on_rows}
    return np.asarray(model.transform(windows, **words), np.float64)


# --------------------------------------------------------------------- summary


def summarise(
    rows: Sequence[Mapping[str, Any]], by: Sequence[str] = ("probe",), measures: Sequence[str] = _MEASURES
) -> list[dict[str, Any]]:
    """Return the mean and, for several rows, the standard deviation of each measure, for each group of rows.

    Parameters
    ----------
    rows : as returned by `score_splits`
    by : the keys to group rows by; groups are in the order of their first rows
    measures : the keys to average, if rows have them

    Examples
    --------
    >>> summarise([{"probe": "plain", "accuracy": 0.25}, {"probe": "plain", "accuracy": 0.25}])
    [{'probe': 'plain', 'accuracy': 0.25, 'accuracy_std': 0.0}]
    """
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in by), []).append(row)
    entries = []
    for key, members in groups.items():
        entry: dict[str, Any] = dict(zip(by, key, strict=True))
        for name in measures:
            values = [row[name] for row in members if name in row]
            if values:
                entry[name] = float(np.mean(values))
            if len(values) > 1:
                entry[f"{name}_std"] = float(np.std(values, ddof=1))
        entries.append(entry)
    return entries
