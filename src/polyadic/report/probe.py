"""The probe of a report: its predictions, scores, their spread over subjects, and a learning curve."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import precision_recall_fscore_support

from polyadic.data.splits import Protocol, split
from polyadic.data.windows import Windows
from polyadic.errors import PolyadicError
from polyadic.evaluate import calibration, cross_validate, low_label_rows, scores
from polyadic.evaluate.classifier import groups_of, partly_labelled
from polyadic.evaluate.probe import AUTO, features_of, own_prior, statistic_columns, train_probe
from polyadic.evaluate.scoring import MEASURES, default_protocol
from polyadic.evaluate.unlabelled import pool_rows
from polyadic.evaluate.validation import Fold, default_folds, subjects_to_test, unseen_rows

__all__ = ["ProbeResult", "headline", "interval", "score_probe", "thinned"]

_MOST_WINDOWS = 4000
_MOST_UNLABELLED = 1000
_FEWEST_SUBJECTS = 4
_DRAWS = 5
_NO_WIDTH = 1e-9
_RESAMPLED = 2000
_FEW_TESTED = 100
"""Below this number of test windows, the headline is called uncertain."""
_STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 500)


@dataclass
class ProbeResult:
    """The scores and predictions of a probe on windows that it was not trained on."""

    protocol: str  # "subject" for cross-validation by subject, "paper" for one random split
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
    curve: dict[int, list[float]]  # for each number of labels, the accuracies of random draws, in percent
    curve_of: str  # the folds or draws of the curve, such as "5 of the 6 folds"
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
    protocol: Protocol | None,
    seed: int,
    kind: str = AUTO,
    transductive: bool = False,
    on_fold: Callable[[int, int], None] | None = None,
) -> ProbeResult:
    """Train and test a probe on labelled windows, by subject or on one random split.

    By subject means `polyadic.evaluate.cross_validate`: leave-one-subject-out for up to 20 subjects, otherwise five
    folds of subjects, repeated twice. All labelled windows are used, as in `polyadic evaluate`.

    Parameters
    ----------
    protocol : "subject" for `polyadic.evaluate.cross_validate`, "paper" for one random split; None for "subject" if
        subjects are known, else "paper"
    seed : random seed of the split or of the folds
    kind : kind of probe, as for `polyadic.evaluate.make_probe`
    transductive : keep the model's features even if they were learned from windows of test subjects
    on_fold : called with the number of folds done and the total

    Raises
    ------
    PolyadicError : if fewer than four subjects have labels, too few for a useful accuracy
    """
    chosen = protocol or default_protocol(windows)
    if chosen == "subject":
        result = _by_subject(model, windows, seed, kind, transductive, on_fold)
    else:
        result = _by_split(model, windows, chosen, seed, kind)
    people = windows.subject[result.rows]
    result.by_people = bool((people != "").all()) and len(np.unique(people)) > 1
    result.groups = len(np.unique(people)) if result.by_people else result.n_test
    low, high = interval(result.y == result.predicted[0], people if result.by_people else None, result.y)
    # If all predictions are correct, or there is one subject, every resample gives the same score.
    if high - low > _NO_WIDTH:
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
    people = subjects_to_test(windows, unseen)
    if people < _FEWEST_SUBJECTS:
        raise PolyadicError(
            f"an accuracy on unseen subjects needs at least {_FEWEST_SUBJECTS} subjects with labels, but the data has "
            f"{people}"
        )
    rows = np.flatnonzero((windows.label >= 0) & (windows.subject != "")) if unseen is None else unseen
    folds, repeats = default_folds(people)
    codes = {name: code for code, name in enumerate(windows.classes)}
    probability = np.zeros((len(rows), len(codes)), np.float32)
    trained: list[int] = []
    curve: dict[int, list[float]] = {}
    curve_of, has_probability = "", True

    def record(fold: Fold) -> None:
        nonlocal curve_of, has_probability
        train, test = ~fold.test, fold.test
        trained.append(int(train.sum()))
        drawn = thinned(np.arange(1, fold.count + 1), _DRAWS)
        curve_of = f"{len(drawn)} of the {fold.count} folds" if fold.count > len(drawn) else f"{fold.count} folds"
        if fold.number in drawn:
            parts = *fold.training(), int(train.sum()), fold.Z[test], fold.y[test]
            _extend_curve(curve, kind, *parts, fold.statistic_columns, fold.number, fold.probe)
        has_probability = hasattr(fold.probe, "predict_proba")
        if has_probability and fold.number <= fold.count // repeats:  # in the first repeat
            columns = np.array([codes[str(name)] for name in fold.probe.classes_])
            probability[np.flatnonzero(test)[:, None], columns] = fold.probe.predict_proba(fold.Z[test])
        if on_fold is not None:
            on_fold(fold.number, fold.count)

    result = cross_validate(model, windows, folds, repeats, kind, transductive, seed, rows, record)
    subject, label = windows.subject[rows], windows.label[rows]
    per_subject = {name: row["balanced_accuracy"] for name, row in result.per_subject.items()}
    holders = {code: len(np.unique(subject[label == code])) for code in np.unique(label).tolist()}
    path = path_probability = None
    if result.along is not None and result.along["used"] > 0.5:
        path = np.array([codes[str(name)] for name in result.along["predicted"][0]])
        path_probability = np.zeros((len(rows), len(codes)))
        path_probability[:, [codes[name] for name in result.classes]] = result.along["probability"]
    times = f", repeated {repeats} times" if repeats > 1 else ""
    return ProbeResult(
        protocol="subject",
        how="leave-one-subject-out cross-validation"
        if result.folds == result.subjects
        else f"{result.folds}-fold cross-validation by subject{times}",
        kind=kind,
        reason=result.reasons[0] if result.reasons else "",
        features=result.features,
        seen=result.transductive,
        n_train=round(float(np.mean(trained))),
        rows=rows,
        y=label,
        predicted=np.array([[codes[str(name)] for name in names] for names in result.predicted]),
        probability=probability if has_probability else None,
        scores={name: getattr(result, name) for name in MEASURES},
        classes=[{"name": name, **result.per_class[name]} for name in windows.classes if name in result.per_class],
        guess=result.majority,
        curve=curve,
        curve_of=curve_of,
        per_subject=per_subject,
        over_subjects=result.over_subjects,
        of_one_subject=tuple(windows.classes[code] for code, count in holders.items() if count == 1),
        along=result.along_the_recording,
        path=path,
        path_probability=path_probability,
    )


def _by_split(model: Any, windows: Windows, protocol: Protocol, seed: int, kind: str) -> ProbeResult:
    part = split(windows, protocol, random_state=seed)
    train, test = (thinned(rows, _MOST_WINDOWS) for rows in (part.train, part.test))
    Z_train, Z_test = (features_of(model, windows[rows]) for rows in (train, test))
    y_train, y_test = windows.label[train], windows.label[test]
    groups, columns = groups_of(windows[train]), statistic_columns(model)
    fitted = train_probe(kind, Z_train, y_train, groups, columns, own_prior(model))
    curve: dict[int, list[float]] = {}
    for draw in range(_DRAWS):
        _extend_curve(curve, kind, Z_train, y_train, groups, len(y_train), Z_test, y_test, columns, draw, fitted)
    held_out = model.split_ == f"{part.hash}:unlabelled"
    origin = f"was fitted on a part of another split ({model.split_})"
    if not model.split_:
        origin = "does not record which windows it was fitted on"
    features = f"The model {origin}: it may have seen test windows, though not their labels."
    if held_out:
        features = "The windows tested were held out when the model was fitted."
    predicted = np.asarray(fitted.predict(Z_test))
    probability = np.zeros((len(test), len(windows.classes)), np.float32)
    probability[:, fitted.classes_] = fitted.predict_proba(Z_test)
    present = np.union1d(y_test, predicted)
    table = precision_recall_fscore_support(y_test, predicted, labels=present, zero_division=0)
    names = [windows.classes[code] for code in present]
    keys = ("name", "precision", "recall", "f1", "windows")
    return ProbeResult(
        protocol=protocol,
        how=f"one random split, hash {part.hash}",
        kind=kind,
        reason=getattr(fitted, "reason_", ""),
        features=features,
        seen=not held_out,
        n_train=len(train),
        rows=test,
        y=y_test,
        predicted=predicted[None],
        probability=probability,
        scores=scores(y_test, predicted),
        classes=[dict(zip(keys, row, strict=True)) for row in zip(names, *table, strict=True)],
        guess=float((y_test == np.bincount(y_train).argmax()).mean()),
        curve=curve,
        curve_of=f"{_DRAWS} random draws",
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


def _extend_curve(
    curve: dict[int, list[float]],
    kind: str,
    Z: NDArray[Any],
    y: NDArray[Any],
    groups: NDArray[Any] | None,
    n_labelled: int,
    Z_test: NDArray[Any],
    y_test: NDArray[Any],
    columns: Any,
    seed: int,
    whole: Any,
) -> None:
    """Add one random draw for each number of labels to a learning curve; `whole` is the probe trained on all labels.

    The first `n_labelled` rows have labels. Rows that are not drawn, and a sample of those without a label, take part
    as unlabelled ones.
    """
    labels = y[:n_labelled]
    classes = len(np.unique(labels))
    # Folds differ in size: the score with all labels is shown at the number of labels of the first fold.
    counts = list(curve) or [*(classes * n for n in _STEPS if classes * n < 0.7 * n_labelled), n_labelled]
    for count in counts:
        fitted = whole
        if count != counts[-1]:
            drawn = low_label_rows(labels, min(count, n_labelled), seed)
            known = np.isin(np.arange(len(Z)), drawn)
            rows = np.concatenate([drawn, pool_rows(known, groups, _MOST_UNLABELLED)])
            some = None if groups is None else groups[rows]
            marked = partly_labelled(y[drawn], known[rows])
            fitted = train_probe(kind, Z[rows], marked, some, columns, getattr(whole, "prior_", None))
        curve.setdefault(count, []).append(100 * float(np.mean(fitted.predict(Z_test) == y_test)))
