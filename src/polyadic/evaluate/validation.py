"""Subject-wise cross-validation: how well a model's features and a probe generalise to unseen subjects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support
from sklearn.utils.validation import check_is_fitted

from polyadic._util.checks import check_integer
from polyadic.data.splits import group_folds, refuse_copies
from polyadic.data.store import WindowStore
from polyadic.data.windows import Windows
from polyadic.errors import PolyadicError
from polyadic.evaluate.classifier import labels_of, learn_chain, partly_labelled
from polyadic.evaluate.probe import (
    AUTO,
    Probe,
    features_of,
    make_probe,
    own_prior,
    statistic_columns,
    train_probe,
    uses_unlabelled,
)
from polyadic.evaluate.scoring import MEASURES, calibration, own_split, scores
from polyadic.evaluate.sequences import rows_along
from polyadic.evaluate.unlabelled import pool_rows

__all__ = ["CrossValidation", "cross_validate", "default_folds", "unseen_rows"]

_Rows = NDArray[np.intp]
_MOST_LEFT_OUT_ALONE = 20
_FOLDS, _REPEATS = 5, 2
_NOTABLE = 0.02
"""Loss of recall of a class along the recording that is reported."""


class Fold(NamedTuple):
    """A fold that is done: its number from 1, the total of all repeats, and what was trained without its test subjects.

    features : the model that computes the features
    probe : the probe trained on them
    test : (n,), boolean, which of the tested windows are those of the fold
    """

    number: int
    total: int
    features: Any
    probe: Any
    test: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class CrossValidation:
    """Scores of predictions for left-out subjects, as fractions; means over repeats.

    Every labelled window of a known subject is predicted once per repeat, by a probe that was trained without its
    subject.

    balanced_accuracy : mean recall of the classes
    accuracy, macro_f1, kappa : as returned by `polyadic.evaluate.scores`, over all windows
    over_repeats : the values of these four in each repeat
    per_class : precision, recall, F1 and number of windows of each class, by name
    per_subject : accuracy, balanced accuracy (over the classes present) and number of windows of each subject
    over_subjects : mean, standard deviation, minimum and maximum of the subjects' balanced accuracies
    classes : names of the classes, in the order of `confusion`
    confusion : (K, K), number of windows by true class (rows) and predicted class (columns), mean over repeats
    chance : balanced accuracy of guessing, 1 / number of classes
    majority : accuracy of always predicting the most frequent class
    refitted : whether features were refitted in every fold, without the test subjects
    transductive : whether features or the probe may have seen windows of test subjects (but never their labels)
    folds, repeats, random_state : how subjects were left out; `folds` is a number also for "loso"
    subjects, windows : number of tested subjects and windows
    left_out : number of labelled windows of unknown subjects, which were used neither to train nor to test
    reasons : for each fold, how its probe selected its settings, if it reports it
    rows : (n,), rows of the tested windows
    predicted : (repeats, n), their predicted classes
    correct : (repeats, n), whether these are right
    confidence : (repeats, n), the probabilities of these; NaN if the probe gives none
    probability : (n, K), the probability of each class in the first repeat; NaN if the probe gives none
    along : scores and predictions along the recording, by name; None if the order of windows is not known
    """

    balanced_accuracy: float
    accuracy: float
    macro_f1: float
    kappa: float
    over_repeats: dict[str, list[float]]
    per_class: dict[str, dict[str, float]]
    per_subject: dict[str, dict[str, float]]
    over_subjects: dict[str, float]
    classes: tuple[str, ...]
    confusion: NDArray[np.float64]
    chance: float
    majority: float
    refitted: bool
    transductive: bool
    folds: int
    repeats: int
    random_state: int
    subjects: int
    windows: int
    left_out: int
    reasons: tuple[str, ...]
    rows: _Rows
    predicted: NDArray[Any]
    correct: NDArray[np.bool_]
    confidence: NDArray[np.float64]
    probability: NDArray[np.float64]
    along: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the rows of single windows, ready for JSON (an undefined kappa is None)."""
        plain = _without_single_windows(asdict(self))
        plain |= {"classes": list(self.classes), "confusion": self.confusion.tolist(), "reasons": list(self.reasons)}
        plain["over_repeats"]["kappa"] = [None if np.isnan(value) else value for value in self.over_repeats["kappa"]]
        plain["calibration_error"] = self.calibration_error
        if self.along is not None:
            plain["along"] = _without_single_windows(self.along)
        return plain

    def summary(self) -> str:
        """Summarise the result in a few lines of text."""
        spread = self.over_subjects
        way = "leave-one-subject-out" if self.folds == self.subjects else f"{self.folds} subject-wise folds"
        times = f", {self.repeats} repeats" if self.repeats > 1 else ""
        lines = [
            f"balanced accuracy {_percent(self.balanced_accuracy)} (chance {_percent(self.chance)}), accuracy "
            f"{_percent(self.accuracy)} (most frequent class {_percent(self.majority)}), macro F1 "
            f"{_percent(self.macro_f1)}, kappa {self.kappa:.3f}",
            f"{self.subjects} subjects, {self.windows} windows, {way}{times}; subjects {_percent(spread['mean'])} ± "
            f"{_percent(spread['std'])}, from {_percent(spread['min'])} to {_percent(spread['max'])}",
            self.features,
        ]
        if self.along is not None:
            lines.append(self.along_the_recording)
        if self.reasons:
            lines.append(f"Probe in the first of {len(self.reasons)} folds: {self.reasons[0]}.")
        if self.calibration_error is not None:
            lines.append(f"Confidence and accuracy differ by {100 * self.calibration_error:.1f} points on average.")
        if self.left_out:
            lines.append(f"Left out: {self.left_out} labelled window{'s' * (self.left_out != 1)} of unknown subjects.")
        return "\n".join(lines)

    __repr__ = summary

    @property
    def calibration_error(self) -> float | None:
        """Mean distance between confidence and share of correct predictions; None if the probe has no probabilities."""
        if np.isnan(self.confidence).any():
            return None
        return calibration(self.confidence.ravel(), self.correct.ravel()).error

    @property
    def along_the_recording(self) -> str:
        """One or two sentences on predictions along the recording; "" if the order of windows is not known."""
        if self.along is None:
            return ""
        uses = "along the recording" if self.along["used"] > 0.5 else "each window by itself"
        falls = {
            name: row["recall"] - self.along["recall"][name]
            for name, row in self.per_class.items()
            if row["recall"] - self.along["recall"][name] > _NOTABLE
        }
        lost = ", ".join(f"{name} by {100 * fall:.1f}" for name, fall in falls.items())
        return (
            f"Along the recording: balanced accuracy {_percent(self.along['balanced_accuracy'])}, each window by "
            f"itself {_percent(self.balanced_accuracy)}. In {round(self.along['used'] * self.folds * self.repeats)} of "
            f"{self.folds * self.repeats} folds the training subjects show a gain beyond its standard error, so "
            f"predict would label {uses} there. For a fitted model, predict uses what was better when its probe "
            "was trained; --along and --no-along override it." + (f" Recall falls for {lost} points." if lost else "")
        )

    @property
    def features(self) -> str:
        """One sentence on what the features were learned from."""
        if self.refitted:
            return "Features were refitted in every fold, without the test subjects."
        if self.transductive:
            return (
                "Transductive: features were not refitted, and they and the probe may have been learned from the test "
                "subjects' windows, though not from their labels."
            )
        return "Features were learned once, from subjects other than the test subjects."


def cross_validate(
    model: Any,
    windows: Windows | WindowStore,
    folds: Literal["loso"] | int = "loso",
    repeats: int = 1,
    probe: Any = AUTO,
    transductive: bool = False,
    random_state: int = 0,
    rows: ArrayLike | None = None,
    on_fold: Callable[[Fold], None] | None = None,
    prior: str | None = None,
) -> CrossValidation:
    """Cross-validate features and a probe across subjects: every labelled window is tested once per repeat.

    In every fold, a clone of the model is refitted to all windows of the training subjects, labelled or not. It is not
    refitted if it is known, from the split it was fitted to, that the model has not seen any test subject.

    Parameters
    ----------
    model : a feature extractor with `fit` and `transform`, such as `ATD` or a baseline, fitted or not
    windows : with labels and subjects; windows without a label are used to learn features and by a `Probe`, windows
        of unknown subjects are not used
    folds : "loso" leaves out one subject at a time; a number is the number of subject-wise folds
    repeats : number of random assignments of subjects to folds; requires a number of folds
    probe : as for `WindowClassifier`; by default a `Probe`. Subjects are passed if its `fit` takes `groups`
    transductive : keep the features of a fitted model even if it may have seen the test subjects' windows, and let
        the probe use unlabelled windows of test subjects
    random_state : random seed of the fold assignments
    rows : rows of the labelled windows to train and test the probe on; by default all. The others are only used to
        refit features
    on_fold : called after each fold with its number, the number of folds and what was trained, a `Fold`
    prior : as for `WindowClassifier`; by default that of the model's own probe, if one was set

    Examples
    --------
    >>> from polyadic import SALS
    >>> from polyadic.data import synthetic
    >>> from polyadic.spectral import STFT
    >>> model = SALS(rank=4, tensorize=STFT(n_fft=32, hop=16), max_sweeps=3, device="cpu")
    >>> result = cross_validate(model, synthetic(120, n_channels=2), folds=3)
    >>> result.refitted, result.balanced_accuracy > result.chance
    (True, True)
    """
    make_probe(probe)  # raises before the features are learned
    whole = windows.windows if isinstance(windows, WindowStore) else windows
    refuse_copies(whole)
    tested = _tested(whole, rows)
    tests = _tests(whole, tested, folds, repeats, random_state)
    refit, seen = _must_refit(model, whole, tested, transductive)
    labels, subject = labels_of(whole)[tested], whole.subject[tested]
    # Unlabelled windows for the probe; those of test subjects are left out, fold by fold.
    usable = (whole.label < 0) & (whole.subject != "") & uses_unlabelled(probe)
    spare = pool_rows(~usable, whole.subject)
    # Whole recordings with labels; predictions along a recording need the windows between labels, too.
    ordered = rows_along(whole, np.isin(np.arange(len(whole)), tested))
    needed = np.union1d(np.union1d(tested, spare), ordered)
    is_tested, is_spare, along = (np.isin(needed, part) for part in (tested, spare, ordered))
    these, y, classes = whole[needed], partly_labelled(labels, is_tested), np.unique(labels)
    predicted = np.empty((int(repeats), len(tested)), labels.dtype)
    confidence, path = np.full(predicted.shape, np.nan), predicted.copy()
    probability, smoothed = (np.full((len(tested), len(classes)), np.nan) for _ in range(2))
    reasons, used = list[str](), list[bool]()
    fitted, Z = model, None if refit else features_of(model, these)
    for number, (repeat, test) in enumerate(tests, start=1):
        if refit:
            # All windows, labelled or not, that are known to be of other subjects.
            others = ~np.isin(whole.subject, subject[test]) & (whole.subject != "")
            fitted = clone(model).fit(whole[np.flatnonzero(others)])
            Z = features_of(fitted, these)
        assert Z is not None
        left = np.isin(these.subject, subject[test])
        block, train = statistic_columns(fitted), (is_tested & ~left) | (is_spare & (transductive | ~left))
        trained = train_probe(probe, Z[train], y[train], these.subject[train], block, prior or own_prior(model))
        reasons += [trained.reason_] if hasattr(trained, "reason_") else []
        columns, places = np.searchsorted(classes, trained.classes_), np.flatnonzero(test)
        predicted[repeat, places] = path[repeat, places] = trained.predict(Z[is_tested & left])
        if hasattr(trained, "predict_proba"):
            found = trained.predict_proba(Z[is_tested & left])
            confidence[repeat, places] = found.max(axis=1)
            if repeat == 0:
                probability[places] = 0.0
                probability[places[:, None], columns] = found
        # The chain is learned from windows of other subjects alone.
        words = Z[~left], y[~left], these.subject[~left], (is_tested | is_spare)[~left], block
        chain = None
        if along.any():
            chain = learn_chain(trained, *words, these[np.flatnonzero(along & ~left)], along[~left])
        if chain is not None:
            recordings = these[np.flatnonzero(along & left)]
            likelihoods = Probe.of(trained).log_likelihoods(Z[along & left])
            places, own = np.flatnonzero((along & left)[is_tested]), is_tested[along & left]
            path[repeat, places] = trained.classes_[chain.path(likelihoods, recordings)[own]]
            if repeat == 0:
                smoothed[places] = 0.0
                smoothed[places[:, None], columns] = chain.smooth(likelihoods, recordings)[own]
            used.append(chain.is_default)
        if on_fold is not None:
            on_fold(Fold(number, len(tests), fitted, trained, test))
    return _result(
        labels,
        predicted,
        subject,
        rows=tested,
        refitted=refit,
        transductive=(seen and not refit) or (transductive and len(spare) > 0),
        folds=len(tests) // int(repeats),
        repeats=int(repeats),
        random_state=int(random_state),
        left_out=int(((whole.label >= 0) & (whole.subject == "")).sum()),
        reasons=tuple(reasons),
        confidence=confidence,
        probability=probability,
        along={**_along(labels, path, used), "probability": smoothed} if used else None,
    )


def _along(y: NDArray[Any], predicted: NDArray[Any], used: list[bool]) -> dict[str, Any]:
    """Return the scores of predictions along the recording (repeats, n), and the share of folds that use them."""
    means: dict[str, Any] = {name: float(np.mean(values)) for name, values in _over_repeats(y, predicted).items()}
    recall = {str(name): float(np.mean(predicted[:, y == name] == name)) for name in np.unique(y)}
    return {**means, "recall": recall, "used": float(np.mean(used)), "predicted": predicted}


def unseen_rows(model: Any, windows: Windows) -> _Rows | None:
    """Return the rows of labelled windows of subjects that the model has not learned from, or None if unknown.

    They are known if the model was fitted to the unlabelled part of a split of these windows.
    """
    part = own_split(model, windows)
    if part is None:
        return None
    learned = np.unique(windows.subject[part.unlabelled])
    rows = np.flatnonzero((windows.label >= 0) & (windows.subject != "") & ~np.isin(windows.subject, learned))
    several = len(np.unique(windows.subject[rows])) > 1 and len(np.unique(windows.label[rows])) > 1
    return rows if several and "" not in learned else None


def default_folds(
    windows: Windows, rows: ArrayLike | None = None, repeats: int | None = None
) -> tuple[Literal["loso"] | int, int]:
    """Return the default folds and repeats: leave-one-subject-out for up to 20 subjects, else five folds, twice.

    Windows that `cross_validate` cannot test raise the same errors.
    """
    subjects = len(np.unique(windows.subject[_tested(windows, rows)]))
    if repeats is not None:
        return min(_FOLDS, subjects), repeats
    return ("loso", 1) if subjects <= _MOST_LEFT_OUT_ALONE else (_FOLDS, _REPEATS)


def _tested(windows: Windows, rows: ArrayLike | None) -> _Rows:
    """Return the rows of the labelled windows of known subjects, among `rows`."""
    if not isinstance(windows, Windows):
        raise PolyadicError(f"windows must be Windows with labels and subjects, but are {type(windows).__name__}")
    labelled = windows.label >= 0
    if rows is not None:
        chosen = np.zeros(len(windows), bool)
        chosen[np.asarray(rows, np.intp)] = True
        labelled &= chosen
    if not labelled.any():
        raise PolyadicError("windows must have labels to be cross-validated, but none has one")
    known = labelled & (windows.subject != "")
    if not known.any():
        raise PolyadicError("windows must have subjects, so that test subjects can be left out, but none has one")
    if len(np.unique(windows.subject[known])) < 2:
        raise PolyadicError(
            f"at least two subjects must have labels, but only {str(windows.subject[known][0])!r} has any: no subject "
            "would be left to test on"
        )
    if len(np.unique(windows.label[known])) < 2:
        name = windows.classes[int(windows.label[known][0])]
        raise PolyadicError(f"labels must have at least two classes, but all are {name!r}")
    return np.flatnonzero(known)


def _tests(windows: Windows, tested: _Rows, folds: Any, repeats: int, seed: int) -> list[tuple[int, NDArray[np.bool_]]]:
    """Return for each fold the number of its repeat, from 0, and which of the tested windows it leaves out."""
    check_integer("repeats", repeats, 1)
    check_integer("random_state", seed, 0)
    subject = windows.subject[tested]
    count = len(np.unique(subject))
    if isinstance(folds, str) and folds != "loso":
        raise PolyadicError(f"folds must be 'loso' or a number of folds, but is {folds!r}")
    if isinstance(folds, str):
        if repeats > 1:
            raise PolyadicError("repeats must be 1 with folds='loso', which leaves out the same subjects every time")
        assignments = [np.unique(subject, return_inverse=True)[1]]
    else:
        check_integer("folds", folds, 2)
        if folds > count:
            raise PolyadicError(f"folds must be at most the number of subjects with labels, {count}, but is {folds}")
        assignments = [group_folds(windows.label[tested], subject, folds, (seed, repeat)) for repeat in range(repeats)]
    tests = [(repeat, fold == number) for repeat, fold in enumerate(assignments) for number in range(fold.max() + 1)]
    for _, test in tests:
        if len(np.unique(windows.label[tested[~test]])) < 2:
            names = np.unique(subject[test]).tolist()
            raise PolyadicError(
                f"without subject{'s' * (len(names) > 1)} {', '.join(names[:3])}{', …' * (len(names) > 3)} only one "
                "class is left to train on: use other folds, or label more windows"
            )
    return tests


def _must_refit(model: Any, windows: Windows, tested: _Rows, transductive: bool) -> tuple[bool, bool]:
    """Return whether features must be refitted in every fold, and whether the model may have seen test subjects."""
    if not hasattr(model, "fit") or not hasattr(model, "transform"):
        raise PolyadicError(
            f"model must be a feature extractor with fit and transform, but is {type(model).__name__}: pass a "
            "classifier as probe"
        )
    try:
        check_is_fitted(model)
    except NotFittedError:
        if transductive:
            raise PolyadicError(
                "transductive=True keeps the features of a fitted model, but this one is not fitted"
            ) from None
        return True, False
    part = own_split(model, windows)
    # A window of an unknown subject may belong to a test subject.
    learned = {""} if part is None else set(windows.subject[part.unlabelled].tolist())
    seen = "" in learned or not learned.isdisjoint(windows.subject[tested].tolist())
    return seen and not transductive, seen


def _result(y: NDArray[Any], predicted: NDArray[Any], subject: NDArray[Any], **settings: Any) -> CrossValidation:
    """Compute all scores of the predictions (repeats, n)."""
    over_repeats = _over_repeats(y, predicted)
    means: dict[str, Any] = {name: float(np.mean(values)) for name, values in over_repeats.items()}
    classes, counts = np.unique(y, return_counts=True)
    truth, guesses = np.tile(y, len(predicted)), predicted.reshape(-1)
    measured = precision_recall_fscore_support(truth, guesses, labels=classes, zero_division=0)[:3]
    per_class = {
        name: dict(zip(("precision", "recall", "f1", "windows"), values, strict=True))
        for name, *values in zip(*(column.tolist() for column in (classes, *measured, counts)), strict=True)
    }
    per_subject = {}
    for name in np.unique(subject).tolist():
        rows = subject == name
        repeats = _over_repeats(y[rows], predicted[:, rows])
        per_subject[name] = {
            "accuracy": float(np.mean(repeats["accuracy"])),
            "balanced_accuracy": float(np.mean(repeats["balanced_accuracy"])),
            "windows": int(rows.sum()),
        }
    each = np.array([row["balanced_accuracy"] for row in per_subject.values()])
    spread = {"mean": each.mean(), "std": each.std(ddof=1), "min": each.min(), "max": each.max()}
    return CrossValidation(
        **means,
        over_repeats=over_repeats,
        per_class=per_class,
        per_subject=per_subject,
        over_subjects={name: float(value) for name, value in spread.items()},
        classes=tuple(classes.tolist()),
        confusion=confusion_matrix(truth, guesses, labels=classes) / len(predicted),
        chance=1 / len(classes),
        majority=float(counts.max() / counts.sum()),
        subjects=len(per_subject),
        windows=len(y),
        predicted=predicted,
        correct=predicted == y,
        **settings,
    )


def _over_repeats(y: NDArray[Any], predicted: NDArray[Any]) -> dict[str, list[float]]:
    """Return each measure of the predictions (repeats, n), by repeat."""
    repeats = [scores(y, guess) for guess in predicted]
    return {name: [result[name] for result in repeats] for name in MEASURES}


def _without_single_windows(scores: dict[str, Any]) -> dict[str, Any]:
    """Return scores without arrays of single windows, and an undefined kappa as None."""
    single = ("rows", "predicted", "correct", "confidence", "probability")
    kept = {name: value for name, value in scores.items() if name not in single}
    return {**kept, "kappa": None if np.isnan(kept["kappa"]) else kept["kappa"]}


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
