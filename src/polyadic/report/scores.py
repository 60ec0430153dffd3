"""The scores of a probe in a report: predictions, their spread over subjects, and a learning curve."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import precision_recall_fscore_support

from polyadic.data.splits import Protocol, split
from polyadic.data.windows import Windows
from polyadic.errors import PolyadicError
from polyadic.evaluate import cross_validate, low_label_rows, scores
from polyadic.evaluate.predictor import groups_of
from polyadic.evaluate.probe import AUTO, level_columns, train_probe, unthreaded
from polyadic.evaluate.scoring import default_protocol, features_of
from polyadic.evaluate.validation import (
    MEASURES,
    CrossValidation,
    Fold,
    default_folds,
    spread,
    subjects_to_test,
    unseen_rows,
)

__all__ = ["ProbeResult", "interval", "score_probe", "thinned"]

_MOST_WINDOWS = 4000
_FEWEST_SUBJECTS = 4
_DRAWS = 5
_NO_WIDTH = 1e-9
_RESAMPLED = 2000
_STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 500)

_OnFold = Callable[[int, int], None]


@dataclass(frozen=True)
class ProbeResult:
    """The scores and predictions of a probe on windows that it was not trained on.

    protocol : "subject" for cross-validation by subject, "paper" for one random split
    how : description of how windows were left out
    kind : kind of probe, as for `polyadic.evaluate.probe.make_probe`
    reason : how its settings were chosen; "" if they are fixed
    features : one sentence on whether features were learned from the test windows
    seen : whether features may have been learned from the test windows
    n_train, n_test : number of training windows (mean over folds), and of all test windows
    rows : (n_test,), rows of the test windows
    y, predicted : (n_test,), true and predicted classes, in the first repeat
    probability : (n_test, classes), probability of every class of the windows; None if the probe has no probabilities
    scores : scores over all windows, as from `polyadic.evaluate.scores`
    per_subject : balanced accuracy of each subject, over its classes; empty if subjects are not known
    over_subjects : mean, standard deviation, minimum and maximum of `per_subject` over subjects with two classes or
        more; empty if there are fewer than four
    low, high : limits of a 95 % interval of the balanced accuracy over all windows; None if it would have no width
    groups : number of tested subjects, or of windows if subjects are not known
    by_people : whether `groups` counts subjects
    guess : accuracy of always predicting the most frequent class
    chance : balanced accuracy of guessing
    classes : for each class, its name, precision, recall, F1 and number of test windows
    curve : for each number of labels, the accuracies of random draws, in percent
    curve_of : the folds or draws of the curve, such as "5 of the 6 folds"
    spread_over : the number of subjects in `over_subjects`
    classes_differ : whether some tested subjects lack a class that others have
    of_one_subject : classes that only one of the tested subjects has, so that no probe was trained on them when they
        were tested; empty unless the protocol is "subject"
    """

    protocol: str
    how: str
    kind: str
    reason: str
    features: str
    seen: bool
    n_train: int
    n_test: int
    rows: NDArray[np.intp]
    y: NDArray[Any]
    predicted: NDArray[Any]
    probability: NDArray[np.float32] | None
    scores: dict[str, Any]
    per_subject: dict[str, float]
    over_subjects: dict[str, float]
    low: float | None
    high: float | None
    groups: int
    by_people: bool
    guess: float
    chance: float
    classes: list[dict[str, Any]]
    curve: dict[int, list[float]]
    curve_of: str = ""
    spread_over: int = 0
    classes_differ: bool = False
    of_one_subject: tuple[str, ...] = ()


def thinned(rows: NDArray[np.intp], most: int) -> NDArray[np.intp]:
    """Return at most this many rows, evenly spaced."""
    if len(rows) <= most:
        return rows
    return rows[np.linspace(0, len(rows) - 1, most).astype(np.intp)]


def score_probe(
    model: Any,
    windows: Windows,
    protocol: Protocol | None,
    seed: int,
    kind: str = AUTO,
    transductive: bool = False,
    on_fold: _OnFold | None = None,
) -> ProbeResult:
    """Train and test a probe on labelled windows, by subject or on one random split.

    By subject means `polyadic.evaluate.cross_validate`: leave-one-subject-out for up to 20 subjects, otherwise five
    folds of subjects, repeated twice. All labelled windows are used, as in `polyadic evaluate`.

    Parameters
    ----------
    protocol : "subject" for `polyadic.evaluate.cross_validate`, "paper" for one random split; None for "subject" if
        subjects are known, else "paper"
    seed : random seed of the split or of the folds
    kind : kind of probe, as for `polyadic.evaluate.probe.make_probe`
    transductive : keep the model's features even if they were learned from windows of test subjects
    on_fold : called with the number of folds done and the total

    Raises
    ------
    PolyadicError : if fewer than four subjects have labels, too few for a useful accuracy
    """
    chosen = protocol or default_protocol(windows)
    if chosen == "subject":
        return _by_subject(model, windows, seed, kind, transductive, on_fold)
    return _by_split(model, windows, chosen, seed, kind)


def _by_subject(
    model: Any, windows: Windows, seed: int, kind: str, transductive: bool, on_fold: _OnFold | None
) -> ProbeResult:
    unseen = unseen_rows(model, windows)
    rows = np.flatnonzero(windows.label >= 0) if unseen is None else unseen
    people = subjects_to_test(windows, rows)
    if people < _FEWEST_SUBJECTS:
        raise PolyadicError(
            f"an accuracy on unseen subjects needs at least {_FEWEST_SUBJECTS} subjects with labels, but the data has "
            f"{people}"
        )
    folds, repeats = default_folds(people)
    seen_folds = _SeenFolds(kind, windows, on_fold)
    found = cross_validate(
        model,
        windows,
        folds,
        repeats=repeats,
        probe=kind,
        transductive=transductive,
        seed=seed,
        rows=rows,
        on_fold=seen_folds,
    )
    codes = {name: code for code, name in enumerate(windows.classes)}
    over, counted = _over_subjects(found, windows)
    holders = _subjects_by_class(found, windows)
    return _result(
        windows,
        found.rows,
        np.array([codes[str(name)] for name in found.predicted[0]]),
        protocol="subject",
        how=_way(found),
        kind=kind,
        reason=found.reasons[0] if found.reasons else "",
        features=found.features,
        seen=found.transductive,
        n_train=round(float(np.mean(seen_folds.trained))),
        probability=seen_folds.probability,
        scores={name: getattr(found, name) for name in MEASURES},
        per_subject={name: row["balanced_accuracy"] for name, row in found.per_subject.items()},
        over_subjects=over,
        spread_over=counted,
        classes=[{"name": name, **found.per_class[name]} for name in windows.classes if name in found.per_class],
        guess=found.majority,
        curve=seen_folds.curve.values,
        curve_of=seen_folds.curve_of,
        classes_differ=min(holders.values()) < len(found.per_subject),
        of_one_subject=tuple(name for name, count in holders.items() if count == 1),
    )


def _way(found: CrossValidation) -> str:
    if found.folds == found.subjects:
        return "leave-one-subject-out cross-validation"
    times = f", repeated {found.repeats} times" if found.repeats > 1 else ""
    return f"{found.folds}-fold cross-validation by subject{times}"


def _over_subjects(found: CrossValidation, windows: Windows) -> tuple[dict[str, float], int]:
    """Return statistics over the subjects with two classes or more, and their number; empty for fewer than four."""
    subject, label = windows.subject[found.rows], windows.label[found.rows]
    several = [name for name in found.per_subject if len(np.unique(label[subject == name])) > 1]
    if len(several) < _FEWEST_SUBJECTS:
        return {}, 0
    return spread([found.per_subject[name]["balanced_accuracy"] for name in several]), len(several)


def _subjects_by_class(found: CrossValidation, windows: Windows) -> dict[str, int]:
    """Return the number of tested subjects that have each class."""
    subject, label = windows.subject[found.rows], windows.label[found.rows]
    return {windows.classes[code]: len(np.unique(subject[label == code])) for code in np.unique(label).tolist()}


class _SeenFolds:
    """Collects probabilities, training sizes and a learning curve from the folds of a cross-validation."""

    def __init__(self, kind: str, windows: Windows, on_fold: _OnFold | None) -> None:
        self.curve, self.trained, self._on_fold = _Curve(kind), list[int](), on_fold
        self._codes = {name: code for code, name in enumerate(windows.classes)}
        self.curve_of = ""
        self.probability: NDArray[np.float32] | None = None
        self._tested: NDArray[np.bool_] | None = None

    def __call__(self, fold: Fold) -> None:
        train = ~fold.test
        parts = fold.Z[train], fold.y[train], fold.Z[fold.test], fold.y[fold.test]
        drawn = thinned(np.arange(1, fold.count + 1), _DRAWS)
        self.curve_of = f"{len(drawn)} of the {fold.count} folds" if fold.count > len(drawn) else f"{fold.count} folds"
        if fold.number in drawn:
            self.curve.add(*parts, fold.subject[train], fold.level_columns, fold.number, fold.probe)
        self.trained.append(int(train.sum()))
        self._keep_probabilities(fold)
        if self._on_fold is not None:
            self._on_fold(fold.number, fold.count)

    def _keep_probabilities(self, fold: Fold) -> None:
        """Store the probabilities of the first repeat."""
        if self._tested is None:
            self._tested = np.zeros(len(fold.y), bool)
            if hasattr(fold.probe, "predict_proba"):
                self.probability = np.zeros((len(fold.y), len(self._codes)), np.float32)
        if self.probability is not None and not self._tested.all():
            columns = np.array([self._codes[str(name)] for name in fold.probe.classes_])
            self.probability[np.flatnonzero(fold.test)[:, None], columns] = fold.probe.predict_proba(fold.Z[fold.test])
        self._tested |= fold.test


def _by_split(model: Any, windows: Windows, protocol: Protocol, seed: int, kind: str) -> ProbeResult:
    part = split(windows, protocol, seed=seed)
    train, test = (thinned(rows, _MOST_WINDOWS) for rows in (part.train, part.test))
    Z_train, Z_test = (features_of(model, windows[rows]) for rows in (train, test))
    y_train, y_test = windows.label[train], windows.label[test]
    groups, levels = groups_of(windows[train]), level_columns(model)
    with unthreaded():
        fitted = train_probe(kind, Z_train, y_train, groups, levels)
    curve = _Curve(kind)
    for draw in range(_DRAWS):
        curve.add(Z_train, y_train, Z_test, y_test, groups, levels, draw, fitted)
    held_out = model.split_ == f"{part.hash}:unlabelled"
    predicted = np.asarray(fitted.predict(Z_test))
    probability = np.zeros((len(test), len(windows.classes)), np.float32)
    probability[:, fitted.classes_] = fitted.predict_proba(Z_test)
    return _result(
        windows,
        test,
        predicted,
        protocol=protocol,
        how=f"one random split, hash {part.hash}",
        kind=kind,
        reason=getattr(fitted, "reason_", ""),
        features=_told_of_split(model.split_, held_out),
        seen=not held_out,
        n_train=len(train),
        probability=probability,
        scores=scores(y_test, predicted),
        per_subject={},
        over_subjects={},
        classes=_scores_by_class(y_test, predicted, windows.classes),
        guess=float((y_test == np.bincount(y_train).argmax()).mean()),
        curve=curve.values,
        curve_of=f"{_DRAWS} random draws",
    )


def _told_of_split(own: str, held_out: bool) -> str:
    if held_out:
        return "The windows tested were held out when the model was fitted."
    if own:
        return (
            f"The model was fitted on a part of another split ({own}): it may have seen test windows, though not their "
            "labels."
        )
    return (
        "The model does not record which windows it was fitted on: it may have seen test windows, though not their "
        "labels."
    )


def _result(windows: Windows, test: NDArray[np.intp], predicted: NDArray[Any], **told: Any) -> ProbeResult:
    """Build the result from predictions, with an interval of their balanced accuracy."""
    y, people = windows.label[test], windows.subject[test]
    by_people = bool((people != "").all()) and len(np.unique(people)) > 1
    low, high = interval(y == predicted, people if by_people else None, y)
    # If all predictions are correct, or there is one subject, every resample gives the same score.
    known = high - low > _NO_WIDTH
    return ProbeResult(
        n_test=len(test),
        rows=test,
        y=y,
        predicted=predicted,
        low=low if known else None,
        high=high if known else None,
        groups=len(np.unique(people)) if by_people else len(test),
        by_people=by_people,
        chance=1 / len(np.unique(y)),
        **told,
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


def _scores_by_class(y: NDArray[Any], predicted: NDArray[Any], names: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return name, precision, recall, F1 and number of windows of every class that occurs or was predicted."""
    present = np.union1d(y, predicted)
    columns = precision_recall_fscore_support(y, predicted, labels=present, zero_division=0)
    keys = ("precision", "recall", "f1", "windows")
    return [
        {"name": names[code], **dict(zip(keys, (float(value) for value in row), strict=True))}
        for code, row in zip(present.tolist(), zip(*columns, strict=True), strict=True)
    ]


class _Curve:
    """A learning curve: accuracies in percent of probes trained on some of the labels, by number of labels."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._found: dict[int, list[float]] = {}
        self._counts: list[int] = []
        self._most = 0

    def add(
        self,
        Z: NDArray[Any],
        y: NDArray[Any],
        Z_test: NDArray[Any],
        y_test: NDArray[Any],
        groups: NDArray[Any] | None,
        levels: Any,
        seed: int,
        whole: Any,
    ) -> None:
        """Train on one random draw for each number of labels; `whole` is the probe trained on all labels."""
        classes = len(np.unique(y))
        self._counts = self._counts or [classes * step for step in _STEPS if classes * step < 0.7 * len(y)]
        for count in self._counts:
            rows = low_label_rows(y, min(count, len(y)), seed)
            theirs = None if groups is None else groups[rows]
            with unthreaded():
                self._note(count, train_probe(self.kind, Z[rows], y[rows], theirs, levels), Z_test, y_test)
        # Folds differ in size: the score with all labels is shown at the number of labels of the first fold.
        self._most = self._most or len(y)
        self._note(self._most, whole, Z_test, y_test)

    def _note(self, count: int, fitted: Any, Z_test: NDArray[Any], y_test: NDArray[Any]) -> None:
        self._found.setdefault(count, []).append(100 * float(np.mean(fitted.predict(Z_test) == y_test)))

    @property
    def values(self) -> dict[int, list[float]]:
        """The accuracies by number of labels, in ascending order; a single value if all draws give the same one."""
        return {count: found[:1] if len(set(found)) == 1 else found for count, found in sorted(self._found.items())}
