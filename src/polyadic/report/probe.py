"""The probe of a report: its predictions, scores, their spread over subjects, and calibration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyadic.data.windows import Windows
from polyadic.evaluate import calibration, cross_validate
from polyadic.evaluate.probe import AUTO
from polyadic.evaluate.scoring import MEASURES
from polyadic.evaluate.validation import default_folds, unseen_rows

__all__ = ["ProbeResult", "headline", "interval", "score_probe", "thinned"]

_FEWEST_SUBJECTS = 4
"""Minimum number of subjects for an interval."""
_NO_WIDTH = 1e-9
_RESAMPLED = 2000
_FEW_TESTED = 100
"""Below this number of test windows, the headline is called uncertain."""


@dataclass
class ProbeResult:
    """The scores and predictions of a probe on windows that it was not trained on."""

    how: str  # description of how windows were left out
    kind: str  # kind of probe, as for `polyadic.evaluate.make_probe`
    reason: str  # how its settings were chosen; "" if they are fixed
    features: str  # one sentence on whether features were learned from the test windows
    seen: bool  # whether features may have been learned from the test windows
    n_train: int  # number of training windows, mean over folds
    rows: NDArray[np.intp]  # (n_test,)
    y: NDArray[Any]  # (n_test,), codes of the true classes
    predicted: NDArray[Any]  # (repeats, n_test), codes of the predicted classes
    probability: NDArray[np.float32] | None  # (n_test, classes), in the first repeat; None if the probe has none
    scores: dict[str, Any]  # over all windows, as from `polyadic.evaluate.scores`
    classes: list[dict[str, Any]]  # name, precision, recall, F1 and number of test windows
    guess: float  # accuracy of always predicting the most frequent class
    per_subject: dict[str, float] = field(default_factory=dict)  # balanced accuracy over the classes of each subject
    over_subjects: dict[str, float] = field(default_factory=dict)  # mean, SD, extremes of these, as by `evaluate`
    of_one_subject: tuple[str, ...] = ()  # classes of one tested subject only, on which no probe was trained
    by_people: bool = False  # whether the subjects of all test windows are known
    groups: int = 0  # number of tested subjects, or of windows if subjects are not known
    low: float | None = None  # 95 % interval of the balanced accuracy over all windows; None if it has no width
    high: float | None = None
    along: str = ""  # scores along the recording and by window, and which one predict uses; "" without an order
    path: NDArray[Any] | None = None  # (n_test,), codes along the recording, in the first repeat, if predict uses it
    path_probability: NDArray[np.float64] | None = None  # (n_test, classes), given the whole recording

    @property
    def n_test(self) -> int:
        """Number of tested windows."""
        return len(self.rows)

    @property
    def correct(self) -> NDArray[np.bool_]:
        """Which predictions of the first repeat are right: (n_test,)."""
        return np.asarray(self.predicted[0] == self.y)

    @property
    def calibration_error(self) -> float | None:
        """Expected calibration error of the first repeat; None if the probe has no probabilities."""
        return None if self.probability is None else calibration(self.probability.max(axis=1), self.correct).error

    @property
    def chance(self) -> float:
        """Balanced accuracy of guessing."""
        return 1 / len(np.unique(self.y))


def headline(probe: ProbeResult) -> str:
    """Return the interval of the balanced accuracy, how it was measured, and what makes it uncertain, in words."""
    few = f" Only {probe.n_test} windows were tested, so the score is uncertain." if probe.n_test < _FEW_TESTED else ""
    whom = f"{probe.groups} subjects" if probe.by_people else f"{probe.groups:,} windows"
    words = f"No interval: every resample of the {whom} gives the same score"
    if probe.low is not None and probe.high is not None:
        words = f"95 % interval {100 * probe.low:.1f} to {100 * probe.high:.1f} %, by resampling {whom}"
    return f"{words}; {probe.how}.{few}"


def thinned(rows: NDArray[np.intp], most: int) -> NDArray[np.intp]:
    """Return at most this many rows, evenly spaced."""
    return rows if len(rows) <= most else rows[np.linspace(0, len(rows) - 1, most).astype(np.intp)]


def score_probe(
    model: Any,
    windows: Windows,
    seed: int = 0,
    kind: str = AUTO,
    transductive: bool = False,
    on_fold: Callable[[int, int], None] | None = None,
) -> ProbeResult:
    """Train and test a probe on all labelled windows, as `polyadic evaluate` does.

    One subject is left out at a time; of more than 20, one of five groups, twice.

    Parameters
    ----------
    seed : random seed of the folds
    kind : kind of probe, as for `polyadic.evaluate.make_probe`
    transductive : keep the model's features even if they were learned from windows of test subjects
    on_fold : called with the number of folds done and the total

    Raises
    ------
    PolyadicError : if fewer than two subjects have labels
    """
    result = _by_subject(model, windows, seed, kind, transductive, on_fold)
    people = windows.subject[result.rows]
    result.by_people = bool((people != "").all()) and len(np.unique(people)) > 1
    result.groups = len(np.unique(people)) if result.by_people else result.n_test
    low, high = interval(result.y == result.predicted[0], people if result.by_people else None, result.y)
    # If all predictions are correct, every resample gives the same score.
    if high - low > _NO_WIDTH and result.groups >= _FEWEST_SUBJECTS:
        result.low, result.high = low, high
    return result


def _by_subject(
    model: Any,
    windows: Windows,
    seed: int,
    kind: str,
    transductive: bool,
    on_fold: Callable[[int, int], None] | None,
) -> ProbeResult:
    unseen = unseen_rows(model, windows)
    rows = np.flatnonzero((windows.label >= 0) & (windows.subject != "")) if unseen is None else unseen
    folds, repeats = default_folds(windows, unseen)
    codes = {name: code for code, name in enumerate(windows.classes)}
    result = cross_validate(model, windows, folds, repeats, kind, transductive, seed, rows, on_fold)
    columns = [codes[name] for name in result.classes]
    probability = np.zeros((len(rows), len(codes)), np.float32)
    probability[:, columns] = result.probability
    subject, label = windows.subject[rows], windows.label[rows]
    per_subject = {name: row["balanced_accuracy"] for name, row in result.per_subject.items()}
    holders = {code: len(np.unique(subject[label == code])) for code in np.unique(label).tolist()}
    path = path_probability = None
    if result.along is not None and result.along["used"] > 0.5:
        path = np.array([codes[str(name)] for name in result.along["predicted"][0]])
        path_probability = np.zeros((len(rows), len(codes)))
        path_probability[:, columns] = result.along["probability"]
    times = f", repeated {repeats} times" if repeats > 1 else ""
    return ProbeResult(
        how="leave-one-subject-out cross-validation"
        if result.folds == result.subjects
        else f"{result.folds}-fold cross-validation by subject{times}",
        kind=kind,
        reason=result.reasons[0] if result.reasons else "",
        features=result.features,
        seen=result.transductive,
        n_train=round(len(rows) * (1 - 1 / result.folds)),
        rows=rows,
        y=label,
        predicted=np.array([[codes[str(name)] for name in names] for names in result.predicted]),
        probability=None if np.isnan(probability).any() else probability,
        scores={name: getattr(result, name) for name in MEASURES},
        classes=[{"name": name, **result.per_class[name]} for name in windows.classes if name in result.per_class],
        guess=result.majority,
        per_subject=per_subject,
        over_subjects=result.over_subjects,
        of_one_subject=tuple(windows.classes[code] for code, count in holders.items() if count == 1),
        along=result.along_the_recording,
        path=path,
        path_probability=path_probability,
    )


def interval(
    right: NDArray[np.bool_], group: NDArray[Any] | None = None, y: NDArray[Any] | None = None, seed: int = 0
) -> tuple[float, float]:
    """Return a 95 % interval of an accuracy, by resampling subjects, or windows where subjects are not known.

    Windows of one subject are correlated: resampling single windows would give too narrow an interval.

    Parameters
    ----------
    right : (N,), which windows were classified correctly
    group : (N,), the subject of each window
    y : (N,), the class of each window; if given, the interval is for the balanced accuracy, over the classes in a
        resample

    Examples
    --------
    >>> interval(np.ones(5, bool))
    (1.0, 1.0)
    """
    _, member = np.unique(np.arange(len(right)) if group is None else group, return_inverse=True)
    _, code = np.unique(np.zeros(len(right)) if y is None else y, return_inverse=True)
    hits, sizes = np.zeros((2, member.max() + 1, code.max() + 1))
    np.add.at(hits, (member, code), right)
    np.add.at(sizes, (member, code), 1)
    rng = np.random.default_rng(seed)
    values = np.empty(_RESAMPLED)
    for number in range(_RESAMPLED):
        drawn = rng.integers(len(sizes), size=len(sizes))
        total = sizes[drawn].sum(axis=0)
        values[number] = (hits[drawn].sum(axis=0)[total > 0] / total[total > 0]).mean()
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)
