"""The probe of a report: its predictions, scores, their spread over subjects, and a learning curve."""

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
from polyadic.evaluate.classifier import groups_of
from polyadic.evaluate.probe import AUTO, features_of, level_columns, train_probe
from polyadic.evaluate.scoring import MEASURES, default_protocol
from polyadic.evaluate.validation import CrossValidation, Fold, default_folds, spread, subjects_to_test, unseen_rows

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
    records = _FoldRecords(kind, windows, on_fold)
    found = cross_validate(
        model,
        windows,
        folds,
        repeats=repeats,
        probe=kind,
        transductive=transductive,
        random_state=seed,
        rows=rows,
        on_fold=records,
    )
    codes = {name: code for code, name in enumerate(windows.classes)}
    subject, label = windows.subject[found.rows], windows.label[found.rows]
    several = [name for name in found.per_subject if len(np.unique(label[subject == name])) > 1]
    holders = {code: len(np.unique(subject[label == code])) for code in np.unique(label).tolist()}
    enough = len(several) >= _FEWEST_SUBJECTS
    over = spread([found.per_subject[name]["balanced_accuracy"] for name in several]) if enough else {}
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
        n_train=round(float(np.mean(records.trained))),
        probability=records.probability,
        scores={name: getattr(found, name) for name in MEASURES},
        per_subject={name: row["balanced_accuracy"] for name, row in found.per_subject.items()},
        over_subjects=over,
        spread_over=len(several) if enough else 0,
        classes=[{"name": name, **found.per_class[name]} for name in windows.classes if name in found.per_class],
        guess=found.majority,
        curve=records.curve.values,
        curve_of=records.curve_of,
        classes_differ=min(holders.values()) < len(found.per_subject),
        of_one_subject=tuple(windows.classes[code] for code, count in holders.items() if count == 1),
    )


def _way(found: CrossValidation) -> str:
    if found.folds == found.subjects:
        return "leave-one-subject-out cross-validation"
    times = f", repeated {found.repeats} times" if found.repeats > 1 else ""
    return f"{found.folds}-fold cross-validation by subject{times}"


class _FoldRecords:
    """Collects probabilities, training sizes and a learning curve from the folds of a cross-validation."""

    def __init__(self, kind: str, windows: Windows, on_fold: _OnFold | None) -> None:
        self.curve, self.curve_of, self.trained, self._on_fold = _Curve(kind), "", list[int](), on_fold
        self._codes = {name: code for code, name in enumerate(windows.classes)}
        self.probability: NDArray[np.float32] | None = None
        self._tested = np.zeros(0, bool)

    def __call__(self, fold: Fold) -> None:
        train, test = ~fold.test, fold.test
        drawn = thinned(np.arange(1, fold.count + 1), _DRAWS)
        self.curve_of = f"{len(drawn)} of the {fold.count} folds" if fold.count > len(drawn) else f"{fold.count} folds"
        if fold.number in drawn:
            parts = fold.Z[train], fold.y[train], fold.Z[test], fold.y[test], fold.subject[train]
            self.curve.add(*parts, fold.level_columns, fold.number, fold.probe)
        self.trained.append(int(train.sum()))
        if not len(self._tested):
            self._tested = np.zeros(len(test), bool)
            if hasattr(fold.probe, "predict_proba"):
                self.probability = np.zeros((len(test), len(self._codes)), np.float32)
        if self.probability is not None and not self._tested.all():  # in the first repeat
            columns = np.array([self._codes[str(name)] for name in fold.probe.classes_])
            self.probability[np.flatnonzero(test)[:, None], columns] = fold.probe.predict_proba(fold.Z[test])
        self._tested |= test
        if self._on_fold is not None:
            self._on_fold(fold.number, fold.count)


def _by_split(model: Any, windows: Windows, protocol: Protocol, seed: int, kind: str) -> ProbeResult:
    part = split(windows, protocol, random_state=seed)
    train, test = (thinned(rows, _MOST_WINDOWS) for rows in (part.train, part.test))
    Z_train, Z_test = (features_of(model, windows[rows]) for rows in (train, test))
    y_train, y_test = windows.label[train], windows.label[test]
    groups, levels = groups_of(windows[train]), level_columns(model)
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
        features=_seen_sentence(model.split_, held_out),
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


def _seen_sentence(own_split: str, held_out: bool) -> str:
    """Return one sentence on whether the model was fitted to the test windows of a random split."""
    if held_out:
        return "The windows tested were held out when the model was fitted."
    origin = f"was fitted on a part of another split ({own_split})"
    if not own_split:
        origin = "does not record which windows it was fitted on"
    return f"The model {origin}: it may have seen test windows, though not their labels."


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
    table = np.array(precision_recall_fscore_support(y, predicted, labels=present, zero_division=0), float).T
    return [
        {"name": names[code], "precision": p, "recall": r, "f1": f, "windows": count}
        for code, (p, r, f, count) in zip(present.tolist(), table.tolist(), strict=True)
    ]


class _Curve:
    """A learning curve: accuracies in percent of probes trained on some of the labels, by number of labels."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._accuracies: dict[int, list[float]] = {}
        self._counts: list[int] = []

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
        # Folds differ in size: the score with all labels is shown at the number of labels of the first fold.
        self._counts = self._counts or [*(classes * n for n in _STEPS if classes * n < 0.7 * len(y)), len(y)]
        for count in self._counts:
            fitted = whole
            if count != self._counts[-1]:
                rows = low_label_rows(y, min(count, len(y)), seed)
                some = None if groups is None else groups[rows]
                fitted = train_probe(self._kind, Z[rows], y[rows], some, levels)
            right = fitted.predict(Z_test) == y_test
            self._accuracies.setdefault(count, []).append(100 * float(np.mean(right)))

    @property
    def values(self) -> dict[int, list[float]]:
        """The accuracies by number of labels, in ascending order; a single value if all draws give the same one."""
        return {
            count: draws[:1] if len(set(draws)) == 1 else draws for count, draws in sorted(self._accuracies.items())
        }
