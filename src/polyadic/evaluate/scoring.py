"""Scores of predictions, as fractions (1 is best), and the calibration of confidence."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.metrics import accuracy_score, cohen_kappa_score, f1_score, recall_score

from polyadic.errors import PolyadicError

__all__ = ["MEASURES", "balanced_weights", "calibration", "gain_over_subjects", "scores"]

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


def balanced_weights(y: NDArray[Any]) -> NDArray[np.float64]:
    """Return weights of windows (n,) with the sum 1 and the same sum in each class, for a balanced accuracy."""
    _, code, counts = np.unique(y, return_inverse=True, return_counts=True)
    weight = 1 / counts[code]
    return np.asarray(weight / weight.sum())


def gain_over_subjects(
    y: NDArray[Any], before: NDArray[Any], after: NDArray[Any], subject: NDArray[Any]
) -> tuple[float, float]:
    """Return the gain in balanced accuracy from one prediction (n,) to another, and its standard error over subjects.

    Each subject contributes the sum over its windows.
    """
    difference = balanced_weights(y) * ((after == y).astype(float) - (before == y))
    share = np.bincount(np.unique(subject, return_inverse=True)[1], difference)
    return float(share.sum()), float(np.sqrt(len(share) * share.var(ddof=1)))


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
