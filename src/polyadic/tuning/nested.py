"""`tune`: search settings on all subjects, and evaluate the search by nested cross-validation."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyadic._util.checks import check_integer, check_number
from polyadic.data import Windows
from polyadic.data.folds import group_folds
from polyadic.data.store import WindowStore
from polyadic.errors import PolyadicError
from polyadic.evaluate.classifier import FEWEST_WINDOWS, WindowClassifier, labels_of
from polyadic.evaluate.scoring import scores
from polyadic.tuning.journal import Journal
from polyadic.tuning.search import Budget, Search, Try
from polyadic.tuning.space import Settings, Space

__all__ = ["Tuning", "tune"]

_FEWEST_SUBJECTS = 2
"""Minimum number of subjects per class: one for training and one to leave out."""
_FEWEST_WINDOWS = 20
"""Minimum number of labelled windows; with fewer, any difference is noise."""
_REFIT_SHARE = 0.1
"""Fraction of the time reserved for fitting the best settings to all windows."""
_DIGITS = 6
"""Digits of scores in files."""

OnTry = Callable[[int, int, Try], None]
_Fold = tuple[NDArray[np.intp], NDArray[np.intp]]


@dataclass(frozen=True, eq=False)
class Tuning:
    """Result of `tune`.

    Parameters
    ----------
    model : a `WindowClassifier` with the chosen settings, fitted to all windows
    settings : the chosen settings
    recommended : the library's recommended settings, which are always tried first
    tuned : whether the chosen settings differ from the recommended ones
    reason : one sentence on why they were chosen
    tries : all tries of the search on all subjects
    inner : balanced accuracy of the chosen settings within the search, which is optimistic
    nested : for each left-out subject, the balanced accuracy of the settings chosen without it and of the recommended
        settings; empty if no subject could be left out
    nested_score, recommended_score : the same over all windows of these subjects; NaN if there are none
    seconds : total time in seconds
    interrupted : whether the search was interrupted
    """

    model: WindowClassifier
    settings: Settings
    recommended: Settings
    tuned: bool
    reason: str
    tries: list[Try] = field(repr=False)
    inner: float
    nested: dict[str, dict[str, float]] = field(repr=False)
    nested_score: float
    recommended_score: float
    seconds: float
    interrupted: bool = False

    def summary(self) -> str:
        """Return the result in a few lines of text."""
        lines = [self.reason]
        if self.nested:
            lines += [
                f"Balanced accuracy on left-out subjects: {_percent(self.nested_score)} with the settings that a "
                f"search without them chose, {_percent(self.recommended_score)} with the recommended settings.",
                f"Balanced accuracy within the search, which is optimistic: {_percent(self.inner)}.",
            ]
        changes = self.settings.changed_from(self.recommended)
        what = ", ".join(f"{name}={value}" for name, value in changes.items()) or "recommended"
        lines.append(f"Settings: {what}.")
        if self.settings.recenter:
            lines.append(
                "Features are recentred by subject: predictions need at least "
                f"{FEWEST_WINDOWS} windows of each subject, and the classifier cannot be exported to C or ONNX."
            )
        if not self.tries:
            return "\n".join(lines)
        fits = sum(one.fitted for one in self.tries)
        count = len({one.settings for one in self.tries})
        work = f"{_count(count, 'try', 'tries')}, {_count(fits, 'fit', 'fits')}"
        if self.nested:
            work += " in the search on all subjects"
        lines.append(f"{work}; {self.seconds:.0f} s in all.")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the model, in types that JSON can store; a setting that was tried twice counts once."""
        tries = {one.settings: one for one in sorted(self.tries, key=lambda one: one.full)}
        fitted = {one.settings for one in self.tries if one.fitted}
        return {
            "settings": asdict(self.settings),
            "recommended": asdict(self.recommended),
            "tuned": self.tuned,
            "reason": self.reason,
            "inner": _plain(self.inner),
            "nested": _plain(self.nested_score),
            "nested_recommended": _plain(self.recommended_score),
            "subjects": self.nested,
            "seconds": self.seconds,
            "interrupted": self.interrupted,
            "tries": [
                {
                    **asdict(settings),
                    "score": round(tries[settings].judged.score, _DIGITS),
                    "full": tries[settings].full,
                    "fitted": settings in fitted,
                }
                for settings in dict.fromkeys(one.settings for one in self.tries)
            ],
        }

    def __repr__(self) -> str:
        return self.summary()


def tune(
    windows: Windows | WindowStore,
    *,
    minutes: float = 10.0,
    tries: int | None = None,
    folds: int = 3,
    seed: int = 0,
    device: Any = "auto",
    journal: Any = None,
    on_try: OnTry | None = None,
) -> Tuning:
    """Search for the best settings for your windows, and fit a classifier with them.

    The search varies frames, rank, non-negativity, views in the fit, levels, whitening and recentring. Each try is
    scored by cross-validation over labelled subjects; windows without labels always take part in the fit. Nested
    cross-validation evaluates the search itself: it is repeated without some of the subjects and tested on those.

    Parameters
    ----------
    windows : windows of which some have labels and subjects
    minutes : total time limit: searches, nested cross-validation and the final fit
    tries : number of settings to try per search, instead of the time limit; makes the result reproducible from the seed
    folds : number of outer folds, groups of subjects that are left out in turn to evaluate the search
    seed : random seed
    device : device to compute on
    journal : file that records every try; an interrupted call resumes from it
    on_try : called after every try with the index of the search, the number of searches, and the try

    Returns
    -------
    the fitted classifier, the chosen settings, and all tries with their scores

    Examples
    --------
    >>> from polyadic.data import synthetic
    >>> found = tune(synthetic(80, n_channels=2, length=64), tries=1, folds=2)
    >>> found.model.predict(synthetic(5, n_channels=2, length=64)).shape, len(found.tries)
    ((5,), 1)
    """
    check_number("minutes", minutes, 0)
    check_integer("tries", tries, 1, none=True)
    check_integer("folds", folds, 2)
    if not isinstance(windows, Windows | WindowStore):
        raise PolyadicError(
            f"windows must be Windows or a WindowStore, but is a {type(windows).__name__}: use "
            "Windows(X, fs, label=..., subject=...)"
        )
    whole = windows.windows if isinstance(windows, WindowStore) else windows
    begun, space = time.monotonic(), Space.of(whole)
    cause = _why_not(whole)
    if cause:
        return _recommended(whole, space, f"others cannot be compared, because {cause}", seed, device, begun)
    outer, cause = _outer_folds(whole, folds)
    if not outer:
        why = f"a search could not be validated, because without some of the subjects {cause}"
        return _recommended(whole, space, why, seed, device, begun)
    run = _Run(whole, space, outer, seed, device, begun + 60 * minutes, tries, Journal.at(journal, whole, seed), on_try)
    return run.result(begun)


@dataclass
class _Run:
    """The searches of one call: one per outer fold, and one on all windows."""

    windows: Windows
    space: Space
    folds: list[_Fold]
    seed: int
    device: Any
    until: float
    tries: int | None
    journal: Journal
    on_try: OnTry | None

    def result(self, begun: float) -> Tuning:
        """Search on all windows, then without each group of subjects in turn, and choose."""
        whole = self._search(self.windows, 0)
        best = whole.run()
        guesses: dict[str, list[NDArray[Any]]] = {"tuned": [], "recommended": []}
        rows: list[NDArray[np.intp]] = []
        interrupted = whole.interrupted
        for number, (train, test) in enumerate([] if interrupted else self.folds):
            search = self._search(self.windows[train], 1 + number)
            chosen = search.run()
            if search.interrupted:
                interrupted = True
                break
            # All windows of the left-out subjects, because recentring needs their means.
            left = np.setdiff1d(np.arange(len(self.windows)), train)
            for name, settings in (("tuned", chosen.settings), ("recommended", self.space.recommended)):
                predicted = _classifier(search, settings).predict(self.windows[left])
                guesses[name].append(predicted[np.searchsorted(left, test)])
            rows.append(test)
        if interrupted:
            rows, guesses = [], {}
        tested = np.concatenate(rows) if rows else np.empty(0, np.intp)
        together = {name: np.concatenate(own) for name, own in guesses.items()}
        return self._decided(whole, best, tested, together, begun, interrupted)

    def _search(self, windows: Windows, number: int) -> Search:
        count = len(self.folds) + 1
        left = (self.until - time.monotonic()) * (1 - _REFIT_SHARE)
        budget = Budget(time.monotonic() + left / (count - number), self.tries)
        if self.tries is not None:
            budget.until = math.inf

        def note(one: Try) -> None:
            self.journal.note(number, one)
            if self.on_try is not None:
                self.on_try(number, count, one)

        return Search(windows, self.space, self.seed, self.device, budget, self.journal.known(number), note)

    def _decided(
        self,
        search: Search,
        best: Try,
        tested: NDArray[np.intp],
        predicted: dict[str, NDArray[Any]],
        begun: float,
        interrupted: bool,
    ) -> Tuning:
        nested, gap, error = _compare(self.windows, tested, predicted)
        first, settings = self.space.recommended, best.settings
        points = round(100 * gap, 1) + 0.0  # never "-0.0"
        measured = f"on subjects left out of the search, its choice scored {points:+.1f} ± {100 * error:.1f} points"
        reason = f"Changed the settings: {measured} against the recommended ones."
        if len({one.settings for one in search.tries}) == 1:
            reason = (
                f"Kept the recommended settings: {'stopped' if interrupted else 'ended'} before any other was tried."
            )
        elif interrupted:
            reason = (
                "Stopped before the search could be validated on left-out subjects; these are the best settings so far."
            )
        elif settings == first:
            reason = "Kept the recommended settings: in the search on all subjects, no other promised a gain."
        elif not gap > error:
            settings = first
            noise = ", which is within noise" if gap > 0 else ""
            reason = f"Kept the recommended settings: {measured} against them{noise}."
        truth = labels_of(self.windows)[tested]
        total = {name: float(scores(truth, guess)["balanced_accuracy"]) for name, guess in predicted.items()}
        return Tuning(
            model=_classifier(search, settings),
            settings=settings,
            recommended=first,
            tuned=settings != first,
            reason=reason,
            tries=search.tries,
            inner=max(one.judged.score for one in search.tries if one.settings == settings),
            nested=nested,
            nested_score=total.get("tuned", math.nan),
            recommended_score=total.get("recommended", math.nan),
            seconds=time.monotonic() - begun,
            interrupted=interrupted,
        )


def _classifier(search: Search, settings: Settings) -> WindowClassifier:
    """Train a classifier with these settings on all labelled windows of a search."""
    return WindowClassifier(search.model(settings), recenter=settings.recenter).fit(search.windows)


def _compare(
    windows: Windows, tested: NDArray[np.intp], predicted: dict[str, NDArray[Any]]
) -> tuple[dict[str, dict[str, float]], float, float]:
    """Return the scores of each tested subject, and the mean difference with its standard error."""
    if not predicted:
        return {}, math.nan, math.nan
    truth, subject = labels_of(windows)[tested], windows.subject[tested]
    found: dict[str, dict[str, float]] = {}
    for name in np.unique(subject).tolist():
        own = subject == name
        found[name] = {
            kind: float(scores(truth[own], guess[own])["balanced_accuracy"]) for kind, guess in predicted.items()
        }
    gaps = np.array([one["tuned"] - one["recommended"] for one in found.values()])
    error = float(gaps.std(ddof=1) / math.sqrt(len(gaps))) if len(gaps) > 1 else math.inf
    return found, float(gaps.mean()), error


def _outer_folds(windows: Windows, count: int) -> tuple[list[_Fold], str]:
    """Split subjects into groups to leave out in turn, skipping groups that the search cannot do without.

    Returns
    -------
    for each group, the rows of all other windows, and the labelled rows of its subjects; and why a group was skipped
    """
    labelled = np.flatnonzero((windows.label >= 0) & (windows.subject != ""))
    fold = group_folds(windows.label[labelled], windows.subject[labelled], count)
    found, skipped = [], ""
    for number in range(int(fold.max()) + 1):
        test = labelled[fold == number]
        train = np.flatnonzero(~np.isin(windows.subject, np.unique(windows.subject[test])))
        cause = _why_not(windows[train])
        if cause:
            skipped = cause
        else:
            found.append((train, test))
    return found, skipped


def _why_not(windows: Windows) -> str:
    """Return why settings cannot be compared on these windows, or "" if they can."""
    known = (windows.label >= 0) & (windows.subject != "")
    label, subject = windows.label[known], windows.subject[known]
    classes = np.unique(label)
    if len(classes) < 2:
        return "no window has both a label and a subject" if not len(classes) else "all labels are of one class"
    for code in classes.tolist():
        if len(np.unique(subject[label == code])) < _FEWEST_SUBJECTS:
            return f"class {windows.classes[code]!r} has labels from one subject only"
    if len(label) < _FEWEST_WINDOWS:
        return f"only {len(label)} windows have a label, and at least {_FEWEST_WINDOWS} are needed"
    return ""


def _recommended(windows: Windows, space: Space, why: str, seed: int, device: Any, begun: float) -> Tuning:
    """Fit the recommended settings, if settings cannot be compared."""
    if len(np.unique(windows.label[windows.label >= 0])) < 2:
        raise PolyadicError(
            f"{why.partition('because ')[2]}; a classifier needs labels of at least two classes. Without labels, use "
            "polyadic fit"
        )
    reason = f"Kept the recommended settings: {why}."
    features = space.recommended.estimator(space.views, seed, device).fit(windows)
    model = WindowClassifier(features).fit(windows)
    nothing: list[Try] = []
    return Tuning(
        model,
        space.recommended,
        space.recommended,
        False,
        reason,
        nothing,
        math.nan,
        {},
        math.nan,
        math.nan,
        time.monotonic() - begun,
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _count(number: int, one: str, several: str) -> str:
    return f"{number} {one if number == 1 else several}"


def _plain(value: float) -> float | None:
    return None if math.isnan(value) else round(value, _DIGITS)
