"""Scores: of predictions, of probes trained on features of labelled windows, and of a model's own probe.

All scores are fractions; 1 is best.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.metrics import accuracy_score, cohen_kappa_score, f1_score, recall_score

from polyadic._util.checks import check_integer
from polyadic._util.random_streams import permutation
from polyadic.data.splits import PROTOCOLS, Protocol, Split, split
from polyadic.data.windows import Windows
from polyadic.errors import PolyadicError
from polyadic.estimators import CPD
from polyadic.evaluate.classifier import WindowClassifier, groups_of, labels_of
from polyadic.evaluate.probe import SCALES, features_of, own_prior, statistic_columns, train_probe

__all__ = ["default_protocol", "low_label_rows", "own_split", "score_features", "score_own_probe", "score_splits"]
__all__ += ["MEASURES", "calibration", "scores", "summarise"]

MEASURES = ("balanced_accuracy", "accuracy", "macro_f1", "kappa")
"""The scores over all windows."""

_OnRows = Callable[[int], None]


def scores(y: ArrayLike, predicted: ArrayLike, subject: ArrayLike | None = None) -> dict[str, Any]:
    """Score predictions, over all windows and for each subject.

    Parameters
    ----------
    y : (N,), the true classes
    predicted : (N,), the classes that were predicted
    subject : (N,), the subject of each window, as in `Windows.subject`; "" marks unknown subjects, which get no score

    Returns
    -------
    `accuracy`; `balanced_accuracy`, the mean recall of the classes in y; `macro_f1`, the mean F1 of the classes in y or
    among the predictions (0 for one that was only predicted); `kappa`, NaN if there is only one class, because all
    agreement is then expected by chance. If subjects are known, also `per_subject`, the accuracy of each subject, and
    the lowest and the mean of these, `worst_subject` and `mean_subject`, which weight all subjects equally.

    Examples
    --------
    >>> result = scores([0, 0, 1, 1], [0, 0, 1, 0], subject=["a", "a", "b", "b"])
    >>> result["accuracy"], result["kappa"], result["per_subject"]
    (0.75, 0.5, {'a': 1.0, 'b': 0.5})
    """
    truth, guess = np.asarray(y), np.asarray(predicted)
    people = np.full(len(truth), "") if subject is None else np.asarray(subject)
    if truth.ndim != 1 or not len(truth):
        raise PolyadicError(f"y must have shape (N,) with at least one label, but has shape {truth.shape}")
    for name, column in (("predicted", guess), ("subject", people)):
        if column.shape != truth.shape:
            raise PolyadicError(f"{name} must have shape {truth.shape} like y, but has shape {column.shape}")
    present = np.unique(truth)
    single = len(present) == 1 and bool((truth == guess).all())
    result: dict[str, Any] = {
        "accuracy": float(accuracy_score(truth, guess)),
        "balanced_accuracy": float(recall_score(truth, guess, labels=present, average="macro", zero_division=0)),
        "macro_f1": float(f1_score(truth, guess, average="macro", zero_division=0)),
        "kappa": float("nan") if single else float(cohen_kappa_score(truth, guess)),
    }
    known = [person for person in np.unique(people).tolist() if person != ""]
    if known:
        accuracies = {person: float((truth == guess)[people == person].mean()) for person in known}
        result["per_subject"] = accuracies
        result["worst_subject"] = min(accuracies.values())
        result["mean_subject"] = float(np.mean(list(accuracies.values())))
    return result


def score_features(
    kinds: Sequence[str],
    Z_train: NDArray[Any],
    y_train: NDArray[Any],
    Z_test: NDArray[Any],
    y_test: NDArray[Any],
    subject: NDArray[Any] | None = None,
    groups: NDArray[Any] | None = None,
    columns: Any = None,
    prior: str | None = None,
) -> dict[str, dict[str, Any]]:
    """Train every probe on features of training windows and score its predictions for test windows.

    Parameters
    ----------
    kinds : kinds of probes, as for `make_probe`
    Z_train, Z_test : (n, R), features
    y_train, y_test : (n,), labels
    subject : (n,), the subject of each test window, for the accuracy of each subject
    groups, columns : the subject of each training window and the columns of statistics, as for `Probe.fit`
    prior : as for `WindowClassifier`

    Returns
    -------
    for each kind of probe what `scores` returns, and the `reason` for its settings if it has one
    """
    results = {}
    for kind in kinds:
        fitted = train_probe(kind, Z_train, y_train, groups, columns, prior)
        results[kind] = scores(y_test, fitted.predict(Z_test), subject)
        if hasattr(fitted, "reason_"):
            results[kind]["reason"] = fitted.reason_
    return results


class Calibration(NamedTuple):
    """How often predictions of a given confidence are right: one entry per bin of confidence that has predictions.

    confidence : (b,), mean confidence
    accuracy : (b,), share of correct predictions
    windows : (b,), number of predictions, or sum of their weights
    """

    confidence: NDArray[np.float64]
    accuracy: NDArray[np.float64]
    windows: NDArray[np.float64]

    @property
    def error(self) -> float:
        """Expected calibration error: mean distance of confidence and accuracy, weighted by the predictions."""
        return float((np.abs(self.confidence - self.accuracy) * self.windows).sum() / self.windows.sum())


def calibration(
    confidence: ArrayLike, correct: ArrayLike, bins: int = 10, weight: ArrayLike | None = None
) -> Calibration:
    """Compare the confidence of predictions with the share that is correct, in bins of equal width.

    Parameters
    ----------
    confidence : (n,), probability of the predicted class
    correct : (n,), whether the prediction was right
    weight : (n,), weight of each prediction; by default 1

    Examples
    --------
    >>> calibration([0.9, 0.9, 0.9, 0.6], [True, True, False, True]).accuracy.round(2).tolist()
    [1.0, 0.67]
    """
    values, right = np.asarray(confidence, np.float64), np.asarray(correct, np.float64)
    each = np.ones(len(values)) if weight is None else np.asarray(weight, np.float64)
    place = np.minimum((values * bins).astype(np.intp), bins - 1)
    count = np.bincount(place, each, bins).astype(np.float64)
    used = count > 0
    mean, share = (np.bincount(place, each * column, bins)[used] / count[used] for column in (values, right))
    return Calibration(mean, share, count[used])


def default_protocol(windows: Windows) -> Protocol:
    """Return "subject" if the subject of every window is known, else "paper"."""
    return "paper" if (windows.subject == "").any() else "subject"


def own_split(model: CPD, windows: Windows, protocols: Sequence[Protocol] = PROTOCOLS) -> Split | None:
    """Find the split of these windows whose unlabelled part the model was fitted to; None if there is no such split."""
    if not getattr(model, "split_", "") or not hasattr(model, "seed_"):
        return None
    for protocol in protocols:
        try:
            part = split(windows, protocol, random_state=model.seed_)
        except PolyadicError:  # the windows do not allow this protocol
            continue
        if model.split_ == f"{part.hash}:unlabelled":
            return part
    return None


def score_splits(
    model: CPD,
    windows: Windows,
    protocol: Protocol,
    seeds: Sequence[int],
    on_rows: _OnRows | None = None,
    kinds: Sequence[str] = SCALES,
) -> list[dict[str, Any]]:
    """Train probes on the training part of the split of each seed, and score them on its test part.

    Parameters
    ----------
    model : fitted; it is not refitted
    on_rows : called with the number of windows done, while their features are computed
    kinds : kinds of probes, as for `make_probe`

    Returns
    -------
    for each seed and probe what `scores` returns, with `probe`, `seed`, `split` (its hash), `trained` and `tested`
    """
    parts = {seed: split(windows, protocol, random_state=seed) for seed in seeds}
    for part in parts.values():
        if len(np.unique(windows.label[part.train])) < 2 or not len(part.test):
            raise PolyadicError(
                "a split must have test windows, and training windows of at least two classes: add labels"
            )
    used = np.unique(np.concatenate([rows for part in parts.values() for rows in (part.train, part.test)]))
    Z = features_of(model, windows[used], on_rows)
    labels, columns = labels_of(windows), statistic_columns(model)
    results = []
    for seed, part in parts.items():
        train, test = ((Z[np.searchsorted(used, rows)], labels[rows]) for rows in (part.train, part.test))
        about = {"seed": seed, "split": part.hash, "trained": len(part.train), "tested": len(part.test)}
        subject, groups = windows.subject[part.test], groups_of(windows[part.train])
        by_probe = score_features(kinds, *train, *test, subject, groups, columns, own_prior(model))
        results += [{"probe": kind, **about, **result} for kind, result in by_probe.items()]
    return results


def score_own_probe(model: CPD, windows: Windows, on_rows: _OnRows | None = None) -> list[dict[str, Any]]:
    """Score a model's own probe on all labelled windows, or only on the test part of the split it was fitted to.

    Windows of a class that the probe does not know count as labelled wrongly. Returns one entry like those of
    `score_splits`, without a seed.
    """
    classifier = WindowClassifier.of(model)
    part = own_split(model, windows)
    rows = np.flatnonzero(windows.label >= 0) if part is None else part.test
    if not len(rows):
        raise PolyadicError("windows must have labels to be scored, but none has one")
    tested = windows[rows]
    Z = features_of(model, tested, on_rows)
    result = scores(labels_of(tested), classifier.probe_.predict(Z).astype(str), tested.subject)
    return [{"probe": "the model's", "split": "" if part is None else part.hash, "tested": len(rows), **result}]


def low_label_rows(y: ArrayLike, count: int, random_state: int = 0) -> NDArray[np.intp]:
    """Choose `count` of the labelled windows, for a learning curve over the number of labels: row numbers, ascending.

    The choice is stratified: classes keep their proportions, and each has at least one window if `count` allows it
    (else the most frequent ones do). With the same `random_state`, a smaller count gives a subset of a larger one.

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
    shuffled = permutation(len(labels), random_state, 0).numpy()
    _, codes, sizes = np.unique(labels[shuffled], return_inverse=True, return_counts=True)
    # An order of all windows whose every prefix is stratified: the k-th window of a class of n is placed at (k+½)/n,
    # except that the first window of each class precedes all others.
    turn = np.empty(len(labels))
    for code, size in enumerate(sizes):
        turn[codes == code] = [-size, *((np.arange(1, size) + 0.5) / size)]
    chosen: NDArray[np.intp] = np.sort(shuffled[np.argsort(turn, kind="stable")[: int(count)]])
    return chosen


def summarise(
    rows: Sequence[Mapping[str, Any]],
    by: Sequence[str] = ("probe",),
    measures: Sequence[str] = (*MEASURES, "worst_subject"),
) -> list[dict[str, Any]]:
    """Return the mean and, for several rows, the standard deviation of each measure, for each group of rows.

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
