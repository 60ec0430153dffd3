"""The probe of a report: its predictions on left-out subjects, their spread, and what missing channels cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyadic.data.windows import Windows
from polyadic.evaluate import cross_validate, scores
from polyadic.evaluate.validation import CrossValidation, Fold

_FEWEST_SUBJECTS = 4
"""Minimum number of subjects for an interval."""
_RESAMPLED = 2000
_FEW_TESTED = 100
"""Below this number of test windows, the headline is called uncertain."""
_MOST_WITHOUT = 500
"""Number of windows, over all folds, that are predicted again without some of their channels."""


@dataclass
class ProbeResult:
    """The scores and predictions of a probe on windows of subjects that it was not trained on."""

    result: CrossValidation  # as from `polyadic evaluate`
    interval: tuple[float, float] | None  # of the balanced accuracy, 95 %; None if it has no width
    without: dict[int, float]  # balanced accuracy by number of missing channels; {} if features need all of them
    n_without: int  # number of windows of these

    @property
    def how(self) -> str:
        """How subjects were left out."""
        if self.result.folds == self.result.subjects:
            return "leave-one-subject-out cross-validation"
        times = f", repeated {self.result.repeats} times" if self.result.repeats > 1 else ""
        return f"{self.result.folds}-fold cross-validation by subject{times}"

    @property
    def is_along(self) -> bool:
        """Whether `predict` would label along the recording after training on the other subjects."""
        return self.result.along is not None and self.result.along["used"] > 0.5

    @property
    def headline(self) -> str:
        """The interval of the balanced accuracy, how it was measured, and what makes it uncertain."""
        few = f" Only {self.result.windows} windows were tested, so the score is uncertain."
        words = "No interval"
        if self.interval is not None:
            low, high = (100 * end for end in self.interval)
            words = f"95 % interval {low:.1f} to {high:.1f} %, by resampling {self.result.subjects} subjects"
        return f"{words}; {self.how}.{few if self.result.windows < _FEW_TESTED else ''}"


def thinned(rows: NDArray[np.intp], most: int) -> NDArray[np.intp]:
    """Return at most this many rows, evenly spaced."""
    return rows if len(rows) <= most else rows[np.linspace(0, len(rows) - 1, most).astype(np.intp)]


def score_probe(
    model: Any,
    windows: Windows,
    seed: int = 0,
    transductive: bool = False,
    on_fold: Callable[[int, int], None] = lambda done, count: None,
) -> ProbeResult:
    """Train and test a probe on all labelled windows, as `polyadic evaluate` does; raises if subjects are too few.

    One subject is left out at a time; of more than 20, one of five groups, twice. `on_fold` is called with the number
    of folds done and the total; other parameters are those of `polyadic.report.render`.
    """
    names = np.array(windows.classes)
    truth, without = list[NDArray[Any]](), dict[int, list[NDArray[Any]]]()

    def record(fold: Fold) -> None:
        if fold.number <= fold.total // fold.repeats:  # in the first repeat
            some = thinned(fold.rows, max(1, _MOST_WITHOUT * fold.repeats // fold.total))
            truth.append(names[windows.label[some]])
            for count, guesses in _predict_without_channels(fold, windows.read(some)).items():
                without.setdefault(count, []).append(guesses)
        on_fold(fold.number, fold.total)

    result = cross_validate(model, windows, transductive=transductive, random_state=seed, on_fold=record)
    low, high = interval(result.correct[0], windows.subject[result.rows], windows.label[result.rows])
    return ProbeResult(
        result=result,
        # If all predictions are correct, every resample gives the same score.
        interval=(low, high) if high - low > 1e-9 and result.subjects >= _FEWEST_SUBJECTS else None,
        without={
            count: float(scores(np.concatenate(truth), np.concatenate(guesses))["balanced_accuracy"])
            for count, guesses in without.items()
        },
        n_without=sum(map(len, truth)),
    )


def _predict_without_channels(fold: Fold, X: NDArray[Any]) -> dict[int, NDArray[Any]]:
    """Predict windows (n, C, T) of left-out subjects without 0, 1, 2, a quarter and a half of their channels.

    The channels are random in each window, from a fixed seed; those missing first are also missing later.
    """
    channels = X.shape[1]
    if not hasattr(fold.classifier.features_, "prior_") or channels < 2:
        return {}
    random = np.random.default_rng(fold.number)
    place = random.permuted(np.tile(np.arange(channels), (len(X), 1)), axis=1)
    found = {}
    for count in sorted({0, 1, 2, -(-channels // 4), -(-channels // 2)} - {channels}):
        lacking = np.where((place < count)[:, :, None], np.nan, X)
        found[count] = fold.classifier.predict(lacking)
    return found


def interval(right: NDArray[np.bool_], subject: NDArray[Any], y: NDArray[Any], seed: int = 0) -> tuple[float, float]:
    """Return a 95 % interval of the balanced accuracy over the classes in a resample, by resampling subjects.

    Windows of one subject are correlated: resampling single windows would give too narrow an interval. `right` tells
    which were classified correctly; all arguments are (N,).
    """
    _, member = np.unique(subject, return_inverse=True)
    _, code = np.unique(y, return_inverse=True)
    hits, sizes = np.zeros((2, member.max() + 1, code.max() + 1))
    np.add.at(hits, (member, code), right)
    np.add.at(sizes, (member, code), 1)
    drawn = np.random.default_rng(seed).integers(len(sizes), size=(_RESAMPLED, len(sizes)))
    times = np.stack([np.bincount(row, minlength=len(sizes)) for row in drawn])
    with np.errstate(invalid="ignore"):  # of classes that a resample lacks
        recalls = (times @ hits) / (times @ sizes)
    low, high = np.quantile(np.nanmean(recalls, axis=1), [0.025, 0.975])
    return float(low), float(high)
