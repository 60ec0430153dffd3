"""Scores of predictions: accuracy, balanced accuracy, macro F1 and Cohen's kappa, over all windows and by subject.

All are fractions; 1 is best.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.metrics import accuracy_score, cohen_kappa_score, f1_score, recall_score

from polyadic.errors import PolyadicError

__all__ = ["scores"]


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
    if truth.ndim != 1 or not len(truth):
        raise PolyadicError(f"y must have shape (N,) with at least one label, but has shape {truth.shape}")
    _check_column("predicted", guess, len(truth))
    present = np.unique(truth)
    single = len(present) == 1 and bool((truth == guess).all())
    result: dict[str, Any] = {
        "accuracy": float(accuracy_score(truth, guess)),
        "balanced_accuracy": float(recall_score(truth, guess, labels=present, average="macro", zero_division=0)),
        "macro_f1": float(f1_score(truth, guess, average="macro", zero_division=0)),
        "kappa": float("nan") if single else float(cohen_kappa_score(truth, guess)),
    }
    if subject is None:
        return result
    people = np.asarray(subject)
    _check_column("subject", people, len(truth))
    accuracies = {
        person: float((truth == guess)[people == person].mean())
        for person in np.unique(people).tolist()
        if person != ""
    }
    if accuracies:
        result["per_subject"] = accuracies
        result["worst_subject"] = min(accuracies.values())
        result["mean_subject"] = float(np.mean(list(accuracies.values())))
    return result


def _check_column(name: str, column: NDArray[Any], count: int) -> None:
    if column.shape != (count,):
        raise PolyadicError(f"{name} must have shape ({count},) like y, but has shape {column.shape}")
