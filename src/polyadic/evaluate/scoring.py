"""Scores of predictions and of a model's own probe, as fractions (1 is best), and the calibration of confidence."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.metrics import accuracy_score, cohen_kappa_score, f1_score, recall_score

from polyadic.data.splits import PROTOCOLS, Split, split
from polyadic.data.windows import Windows
from polyadic.errors import PolyadicError
from polyadic.estimators import CPD
from polyadic.evaluate.classifier import WindowClassifier, labels_of
from polyadic.evaluate.probe import features_of

__all__ = ["MEASURES", "calibration", "own_split", "score_own_probe", "scores"]

MEASURES = ("balanced_accuracy", "accuracy", "macro_f1", "kappa")
"""The scores over all windows."""


def scores(y: ArrayLike, predicted: ArrayLike, subject: ArrayLike | None = None) -> dict[str, Any]:
    """Score predictions (N,) of the classes y (N,), over all windows and for each subject (N,).

    Returns `accuracy`; `balanced_accuracy`, the mean recall of the classes in y; `macro_f1`, the mean F1 of the classes
    in y or among the predictions (0 for one that was only predicted); `kappa`, NaN if there is only one class, because
    all agreement is then expected by chance. If subjects are known (not ""), also `per_subject`, the accuracy of each,
    and the lowest and the mean of these, `worst_subject` and `mean_subject`.

    Examples
    --------
    >>> result = scores([0, 0, 1, 1], [0, 0, 1, 0], subject=["a", "a", "b", "b"])
    >>> result["accuracy"], result["kappa"], result["per_subject"]
    (0.75, 0.5, {'a': 1.0, 'b': 0.5})
    """
    truth, guess = np.asarray(y), np.asarray(predicted)
    people = np.full(len(truth), "") if subject is None else np.asarray(subject)
    if not len(truth) or not truth.shape == guess.shape == people.shape:
        shapes = ", ".join(str(column.shape) for column in (truth, guess, people))
        raise PolyadicError(f"y, predicted and subject must have one entry per window, but have shapes {shapes}")
    present = np.unique(truth)
    single = len(present) == 1 and bool((truth == guess).all())
    result: dict[str, Any] = {
        "accuracy": float(accuracy_score(truth, guess)),
        "balanced_accuracy": float(recall_score(truth, guess, labels=present, average="macro", zero_division=0)),
        "macro_f1": float(f1_score(truth, guess, average="macro", zero_division=0)),
        "kappa": float("nan") if single else float(cohen_kappa_score(truth, guess)),
    }
    names = [name for name in np.unique(people).tolist() if name != ""]
    if names:
        accuracies = {name: float((truth == guess)[people == name].mean()) for name in names}
        values = list(accuracies.values())
        result |= {"per_subject": accuracies, "worst_subject": min(values), "mean_subject": float(np.mean(values))}
    return result


class Calibration(NamedTuple):
    """How often predictions of a given confidence are right: one entry per bin of confidence that has predictions."""

    confidence: NDArray[np.float64]  # (b,), mean
    accuracy: NDArray[np.float64]  # (b,), share of correct predictions
    windows: NDArray[np.float64]  # (b,), number of predictions, or sum of their weights

    @property
    def error(self) -> float:
        """Expected calibration error: mean distance of confidence and accuracy, weighted by the predictions."""
        return float((np.abs(self.confidence - self.accuracy) * self.windows).sum() / self.windows.sum())


def calibration(
    confidence: ArrayLike, correct: ArrayLike, bins: int = 10, weight: ArrayLike | None = None
) -> Calibration:
    """Compare the confidence of predictions (n,) with the share that is correct (n,), in bins of equal width.

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


def own_split(model: CPD, windows: Windows) -> Split | None:
    """Find the split of these windows whose unlabelled part the model was fitted to; None if there is no such split."""
    if not getattr(model, "split_", "") or not hasattr(model, "seed_"):
        return None
    for protocol in PROTOCOLS:
        try:
            part = split(windows, protocol, random_state=model.seed_)
        except PolyadicError:  # the windows do not allow this protocol
            continue
        if model.split_ == f"{part.hash}:unlabelled":
            return part
    return None


def score_own_probe(model: CPD, windows: Windows) -> dict[str, Any]:
    """Score a model's own probe on all labelled windows, or only on the test part of the split it was fitted to.

    Returns what `scores` does, the number of windows `tested`, and whether they were `held_out` when the model was
    fitted. Windows of a class that the probe does not know count as labelled wrongly.
    """
    classifier, part = WindowClassifier.of(model), own_split(model, windows)
    rows = np.flatnonzero(windows.label >= 0) if part is None else part.test
    if not len(rows):
        raise PolyadicError("windows must have labels to be scored, but none has one")
    tested = windows[rows]
    predicted = classifier.probe_.predict(features_of(model, tested)).astype(str)
    return {"tested": len(rows), "held_out": part is not None, **scores(labels_of(tested), predicted, tested.subject)}
