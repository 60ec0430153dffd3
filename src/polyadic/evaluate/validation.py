"""Subject-wise cross-validation: how well a model's features and a probe generalise to unseen subjects."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support
from sklearn.utils.validation import check_is_fitted

from polyadic._util.checks import check_integer
from polyadic.data.reading import listed
from polyadic.data.splits import group_folds, refuse_copies
from polyadic.data.store import WindowStore
from polyadic.data.windows import Windows
from polyadic.errors import PolyadicError
from polyadic.estimators import CPD
from polyadic.evaluate.classifier import WindowClassifier, labels_of, learn_chain, make_probe, rows_to_transform
from polyadic.evaluate.probe import AUTO, features_of, statistic_columns
from polyadic.evaluate.scoring import MEASURES, calibration, scores

__all__ = ["CrossValidation", "Fold", "cross_validate", "score_own_probe"]

_Rows = NDArray[np.intp]
_MOST_LEFT_OUT_ALONE = 20
_FOLDS, _REPEATS = 5, 2
_NOTABLE = 0.02  # loss of recall of a class along the recording that is reported
_OF_WINDOWS = ("rows", "predicted", "correct", "confidence", "probability")  # not in JSON


class Fold(NamedTuple):
    """A fold that is done, and what was trained without its subjects."""

    number: int  # from 1
    total: int  # number of folds in all repeats
    repeats: int
    classifier: WindowClassifier
    rows: _Rows  # (n,), rows of the windows that are tested


@dataclass(frozen=True, eq=False)
class CrossValidation:
    """Scores of predictions for left-out subjects, as fractions; means over repeats.

    Every labelled window of a known subject is predicted once per repeat, by a probe that was trained without its
    subject.
    """

    balanced_accuracy: float  # mean recall of the classes
    accuracy: float  # this and the next two as returned by `polyadic.evaluate.scores`, over all windows
    macro_f1: float
    kappa: float
    per_class: dict[str, dict[str, float]]  # precision, recall, F1 and number of windows of each class, by name
    per_subject: dict[str, dict[str, float]]  # accuracy, balanced accuracy (of its classes) and number of windows
    over_subjects: dict[str, float]  # mean, std, min and max of the subjects' balanced accuracies
    classes: tuple[str, ...]  # in the order of `confusion`
    confusion: NDArray[np.float64]  # (K, K), windows by true (rows) and predicted class (columns), mean over repeats
    chance: float  # balanced accuracy of guessing, 1 / number of classes
    majority: float  # accuracy of always predicting the most frequent class
    transductive: bool  # whether features or probe may have seen windows of test subjects (but never their labels)
    folds: int  # a number also for "loso"
    repeats: int
    subjects: int  # number of tested subjects
    windows: int  # number of tested windows
    left_out: int  # number of labelled windows of unknown subjects, used neither to train nor to test
    reasons: tuple[str, ...]  # for each fold, how its probe selected its settings
    rows: _Rows  # (n,), rows of the tested windows
    predicted: NDArray[Any]  # (repeats, n), their predicted classes
    correct: NDArray[np.bool_]  # (repeats, n), whether these are right
    confidence: NDArray[np.float64]  # (repeats, n), the probabilities of these
    probability: NDArray[np.float64]  # (n, K), the probability of each class in the first repeat
    along: dict[str, Any] | None = None  # scores and predictions along the recording; None if the order is not known

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the rows of single windows, ready for JSON (an undefined kappa is None)."""
        plain = _without_single_windows(vars(self)) | {"calibration_error": self.calibration_error}
        plain |= {"classes": list(self.classes), "confusion": self.confusion.tolist(), "reasons": list(self.reasons)}
        return plain | {"along": None if self.along is None else _without_single_windows(self.along)}

    def summary(self) -> str:
        """Summarise the result in a few lines of text."""
        spread = {name: f"{100 * value:.1f} %" for name, value in self.over_subjects.items()}
        way = "leave-one-subject-out" if self.folds == self.subjects else f"{self.folds} subject-wise folds"
        times = f", {self.repeats} repeats" if self.repeats > 1 else ""
        unknown = f"Left out: {self.left_out} labelled windows of unknown subjects." if self.left_out else ""
        lines = [
            f"balanced accuracy {100 * self.balanced_accuracy:.1f} % (chance {100 * self.chance:.1f} %), accuracy "
            f"{100 * self.accuracy:.1f} % (most frequent class {100 * self.majority:.1f} %), macro F1 "
            f"{100 * self.macro_f1:.1f} %, kappa {self.kappa:.3f}",
            f"{self.subjects} subjects, {self.windows} windows, {way}{times}; subjects {spread['mean']} ± "
            f"{spread['std']}, from {spread['min']} to {spread['max']}",
            self.features,
            self.along_the_recording,
            f"Probe in the first of {len(self.reasons)} folds: {self.reasons[0]}.",
            f"Confidence and accuracy differ by {100 * self.calibration_error:.1f} points on average.",
            unknown,
        ]
        return "\n".join(filter(None, lines))

    __repr__ = summary

    @property
    def calibration_error(self) -> float:
        """Mean distance between confidence and share of correct predictions."""
        return calibration(self.confidence.ravel(), self.correct.ravel()).error

    @property
    def along_the_recording(self) -> str:
        """A few sentences on predictions along the recording; "" if the order of windows is not known."""
        if self.along is None:
            return ""
        after, folds = self.along["recall"], self.folds * self.repeats
        said = (
            f"Along the recording: balanced accuracy {100 * self.along['balanced_accuracy']:.1f} %, each window by "
            f"itself {100 * self.balanced_accuracy:.1f} %"
        )
        if self.along["used"] <= 0.5:
            return f"{said}: no clear gain for the training subjects."
        falls = {name: row["recall"] - after[name] for name, row in self.per_class.items()}
        lost = ", ".join(f"{name} by {100 * fall:.1f}" for name, fall in falls.items() if fall > _NOTABLE)
        return (
            f"{said}. In {round(self.along['used'] * folds)} of {folds} folds the training subjects show a gain beyond "
            "its standard error." + (f" Recall falls for {lost} points." if lost else "")
        )

    @property
    def features(self) -> str:
        """One sentence on what the features were learned from."""
        if self.transductive:
            return "Transductive: features were not refitted and, like probes, may have seen windows of test subjects."
        return "Features were refitted in every fold, without the test subjects."


def cross_validate(
    model: Any,
    windows: Windows | WindowStore,
    folds: Literal["auto", "loso"] | int = "auto",
    repeats: int | None = None,
    probe: Any = AUTO,
    transductive: bool = False,
    random_state: int = 0,
    on_fold: Callable[[Fold], None] = lambda fold: None,
) -> CrossValidation:
    """Cross-validate features and a probe across subjects: every labelled window is tested once per repeat.

    In every fold, a clone of the model is refitted to all windows of the training subjects, labelled or not. A
    prior that was set for the model's own probe also applies to the probes of the folds.

    Parameters
    ----------
    model : a feature extractor with `fit` and `transform`, such as `CPD` or a baseline, fitted or not
    windows : with labels and subjects; windows without a label are used to learn features and by a `Probe`, windows
        of unknown subjects are not used
    folds : "loso" leaves out one subject at a time; a number is the number of subject-wise folds; "auto" is "loso" for
        up to 20 subjects, and above, or with `repeats`, five folds
    repeats : number of random assignments of subjects to folds; by default two if "auto" chose five folds, else one
    probe : as for `WindowClassifier`
    transductive : keep the features of a fitted model even if it may have seen the test subjects' windows, and let
        the probe use unlabelled windows of test subjects
    random_state : random seed of the fold assignments
    on_fold : called after each fold with a `Fold`

    Examples
    --------
    >>> from polyadic import SALS
    >>> from polyadic.data import synthetic
    >>> from polyadic.spectral import STFT
    >>> model = SALS(rank=4, tensorize=STFT(n_fft=32, hop=16), max_sweeps=3, device="cpu")
    >>> result = cross_validate(model, synthetic(120, n_channels=2), folds=3)
    >>> result.transductive, result.balanced_accuracy > result.chance
    (False, True)
    """
    unfitted = make_probe(probe)  # raises before the features are learned
    whole = windows.windows if isinstance(windows, WindowStore) else windows
    refuse_copies(whole)
    tested = _tested(model, whole, transductive)
    tests = _tests(whole, tested, folds, repeats, random_state)
    known = np.isin(np.arange(len(whole)), tested)
    # Unlabelled windows for the probe; those of test subjects are left out, fold by fold.
    spare = (whole.label < 0) & (whole.subject != "") & (unfitted.unlabelled == AUTO)
    needed, in_probe, in_order = rows_to_transform(whole, known, spare, whole.subject)
    these, is_tested = whole[needed], known[needed]
    is_pool = in_probe & ~is_tested
    labels, subject = labels_of(whole)[tested], whole.subject[tested]
    classes, y = np.unique(labels), np.where(is_tested, labels_of(these), "")
    repeats = tests[-1][0] + 1  # one with "loso"
    probability = np.zeros((repeats, len(tested), len(classes)))
    smoothed, path = probability.copy(), np.full((repeats, len(tested)), -1)
    reasons, used = list[str](), list[bool]()
    fitted, Z = model, features_of(model, these) if transductive else None
    prior = getattr(getattr(model, "probe_", None), "prior_", None)
    for number, (repeat, test) in enumerate(tests, start=1):
        left = np.isin(these.subject, subject[test])
        if not transductive:
            # All windows, labelled or not, that are known to be of other subjects.
            others = ~np.isin(whole.subject, subject[test]) & (whole.subject != "")
            fitted = clone(model).fit(whole[np.flatnonzero(others)])
            Z = features_of(fitted, these)
        assert Z is not None
        train, along = in_probe & (~left | (is_pool & transductive)), in_order & ~left
        people = these.subject
        trained = clone(unfitted).fit(Z[train], y[train], people[train], statistic_columns(fitted)).with_prior(prior)
        trained.chain_ = learn_chain(trained, Z[along], y[along], people[along], these[along])
        classifier, chosen = WindowClassifier.of(fitted, trained), np.flatnonzero((is_tested | in_order) & left)
        found, ordered = classifier.predict_proba(these[chosen]), in_order[chosen]
        columns = np.searchsorted(classes, trained.classes_)
        cells = repeat, np.flatnonzero(test)[:, None], columns
        probability[cells] = smoothed[cells] = found[is_tested[chosen]]
        if trained.chain_ is not None:
            rows, places = chosen[ordered], np.flatnonzero((in_order & left)[is_tested])
            sequence, given_all = classifier.predict_sequence(these[rows], found[ordered])
            path[repeat, places] = np.searchsorted(classes, sequence[is_tested[rows]])
            smoothed[repeat, places[:, None], columns] = given_all[is_tested[rows]]
            used.append(trained.chain_.is_default)
        reasons.append(trained.reason_)
        on_fold(Fold(number, len(tests), repeats, classifier, tested[test]))
    codes, order = probability.argmax(axis=2), None
    predicted, path = classes[codes], classes[np.where(path < 0, codes, path)]
    if used:
        recall = {str(name): float(np.mean(path[:, labels == name] == name)) for name in classes}
        order = {"recall": recall, "used": float(np.mean(used)), "predicted": path, "probability": smoothed[0]}
        order = _means(labels, path) | order
    return CrossValidation(
        **_means(labels, predicted),
        **_by_class_and_subject(labels, predicted, subject),
        transductive=transductive,
        folds=len(tests) // repeats,
        repeats=repeats,
        windows=len(labels),
        left_out=int(((whole.label >= 0) & (whole.subject == "")).sum()),
        reasons=tuple(reasons),
        rows=tested,
        predicted=predicted,
        correct=predicted == labels,
        confidence=probability.max(axis=2),
        probability=probability[0],
        along=order,
    )


def _means(y: NDArray[Any], predicted: NDArray[Any]) -> dict[str, Any]:
    """Return each measure of the predictions (repeats, n), the mean over repeats."""
    repeats = [scores(y, guess) for guess in predicted]
    return {name: float(np.mean([result[name] for result in repeats])) for name in MEASURES}


def _by_class_and_subject(y: NDArray[Any], predicted: NDArray[Any], subject: NDArray[Any]) -> dict[str, Any]:
    """Return what `CrossValidation` has by class and by subject, from predictions (repeats, n)."""
    classes, counts = np.unique(y, return_counts=True)
    truth, guesses = np.tile(y, len(predicted)), predicted.reshape(-1)
    measured = precision_recall_fscore_support(truth, guesses, labels=classes, zero_division=0)[:3]
    columns = dict(zip(("precision", "recall", "f1", "windows"), (*measured, counts), strict=True))
    per_class = {
        name: {measure: values[place].item() for measure, values in columns.items()}
        for place, name in enumerate(classes.tolist())
    }
    per_subject = {}
    for name in np.unique(subject).tolist():
        rows = subject == name
        means = _means(y[rows], predicted[:, rows])
        per_subject[name] = {measure: means[measure] for measure in MEASURES[:2]} | {"windows": int(rows.sum())}
    each = np.array([row["balanced_accuracy"] for row in per_subject.values()])
    spread = {"mean": each.mean(), "std": each.std(ddof=1), "min": each.min(), "max": each.max()}
    return {
        "per_class": per_class,
        "per_subject": per_subject,
        "over_subjects": {name: float(value) for name, value in spread.items()},
        "classes": tuple(classes.tolist()),
        "confusion": confusion_matrix(truth, guesses, labels=classes) / len(predicted),
        "chance": 1 / len(classes),
        "majority": float(counts.max() / counts.sum()),
        "subjects": len(per_subject),
    }


def _without_single_windows(result: dict[str, Any]) -> dict[str, Any]:
    """Return scores without arrays of single windows, and an undefined kappa as None."""
    kept = {name: value for name, value in result.items() if name not in _OF_WINDOWS}
    return {**kept, "kappa": None if np.isnan(kept["kappa"]) else kept["kappa"]}


def _tested(model: Any, windows: Windows, transductive: bool) -> _Rows:
    """Return the rows of the labelled windows to test."""
    if not isinstance(windows, Windows):
        raise PolyadicError(f"windows must be Windows with labels and subjects, but are {type(windows).__name__}")
    if not hasattr(model, "transform"):
        raise PolyadicError(f"model must be a feature extractor with transform, but is a {type(model).__name__}")
    labelled = np.flatnonzero(windows.label >= 0)
    known: _Rows = labelled[windows.subject[labelled] != ""]
    people = np.unique(windows.subject[known]).tolist()
    classes = [windows.classes[code] for code in np.unique(windows.label[known])]
    why = ""
    if not len(labelled):
        why = "windows must have labels to be cross-validated, but none has one"
    elif not len(known):
        why = "windows must have subjects, so that test subjects can be left out, but none has one"
    elif len(people) < 2:
        why = f"at least two subjects must have labels, so that one can be left out, but only {people[0]!r} has any"
    elif len(classes) < 2:
        why = f"labels must have at least two classes, but all are {classes[0]!r}"
    if why:
        raise PolyadicError(why)
    if transductive:
        check_is_fitted(model, msg="transductive=True keeps the features of a fitted model, but %(name)s is not fitted")
    return known


def _tests(
    windows: Windows, tested: _Rows, folds: Any, repeats: int | None, seed: int
) -> list[tuple[int, NDArray[np.bool_]]]:
    """Return for each fold the number of its repeat, from 0, and which of the tested windows it leaves out."""
    check_integer("repeats", repeats, 1, none=True)
    check_integer("random_state", seed, 0)
    subject, label = windows.subject[tested], windows.label[tested]
    people, member = np.unique(subject, return_inverse=True)
    if folds == "auto":
        folds = "loso" if repeats is None and len(people) <= _MOST_LEFT_OUT_ALONE else min(_FOLDS, len(people))
        repeats = repeats or _REPEATS
    if folds == "loso":
        assignments = [member]
    else:
        check_integer("folds", folds, 2)
        if folds > len(people):
            raise PolyadicError(f"folds must be at most the number of labelled subjects, {len(people)}, but is {folds}")
        assignments = [group_folds(label, subject, folds, (seed, repeat)) for repeat in range(repeats or 1)]
    tests = [(repeat, fold == number) for repeat, fold in enumerate(assignments) for number in range(fold.max() + 1)]
    for _, test in tests:
        if len(np.unique(label[~test])) < 2:
            names = ", ".join(np.unique(subject[test])[:3])
            raise PolyadicError(f"without {names} only one class is left to train on: use other folds, or more labels")
    return tests


def score_own_probe(model: CPD, windows: Windows) -> dict[str, Any]:
    """Score a model's own probe on all labelled windows.

    Returns what `scores` does, for each window by itself, the number of windows `tested` and, if the order of windows
    is known, `along`: the same along the recording. Windows of a class that the probe does not know count as labelled
    wrongly.
    """
    rows = np.flatnonzero(windows.label >= 0)
    if not len(rows):
        raise PolyadicError("windows must have labels to be scored, but none has one")
    classifier, names, subjects = WindowClassifier.of(model), labels_of(windows)[rows], windows.subject[rows]
    known = classifier.classes_.astype(str)
    if not np.isin(names, known).any():
        classes = listed(known.tolist()), listed(sorted(set(names.tolist())))
        raise PolyadicError(f"the model knows the classes {classes[0]}, but the windows have {classes[1]}")
    probabilities = classifier.predict_proba(windows)
    found = {"tested": len(rows), **scores(names, known[probabilities.argmax(axis=1)[rows]], subjects)}
    with suppress(PolyadicError):  # of windows without an order
        path = classifier.predict_sequence(windows, probabilities)[0].astype(str)[rows]
        found["along"] = scores(names, path, subjects)
    return found
