"""`tune`: search settings on all subjects, and evaluate the search by nested cross-validation."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import joblib
import numpy as np
from numpy.typing import NDArray

from polyadic._util.checks import check_integer, check_number
from polyadic._util.files import write_atomically
from polyadic._util.version import __version__
from polyadic.data import Windows
from polyadic.data.batches import choose_device
from polyadic.data.splits import group_folds, refuse_copies
from polyadic.data.store import WindowStore
from polyadic.errors import PolyadicError
from polyadic.evaluate.classifier import WindowClassifier, labels_of
from polyadic.evaluate.scoring import scores
from polyadic.scale.checkpoints import differences
from polyadic.tuning.search import Search, Settings, Try

__all__ = ["Tuning", "tune"]

_FEWEST_SUBJECTS = 2
"""Minimum number of subjects per class: one for training and one to leave out."""
_FEWEST_WINDOWS = 20
"""Minimum number of labelled windows; with fewer, any difference is noise."""
_REFIT_SHARE = 0.1
"""Fraction of the time reserved for fitting the best settings to all windows."""
_ROWS = 1024

_Fold = tuple[NDArray[np.intp], NDArray[np.intp]]


@dataclass(frozen=True, eq=False)
class Tuning:
    """Result of `tune`.

    Parameters
    ----------
    model : a `WindowClassifier` with the chosen settings, fitted to all windows
    settings : the chosen settings
    recommended : the library's recommended settings, which are always tried first
    reason : one sentence on why they were chosen
    seconds : total time in seconds
    tries : all tries of the search on all subjects, whose scores are optimistic
    nested : for each left-out subject, the balanced accuracy of the settings chosen without it and of the recommended
        settings; empty if no subject could be left out
    nested_score, recommended_score : the same over all windows of these subjects; NaN if there are none
    along_score : the same for predictions along the recording, of the settings in use; NaN if the order is not known
    """

    model: WindowClassifier
    settings: Settings
    recommended: Settings
    reason: str
    seconds: float
    tries: list[Try] = field(default_factory=list, repr=False)
    nested: dict[str, dict[str, float]] = field(default_factory=dict, repr=False)
    nested_score: float = math.nan
    recommended_score: float = math.nan
    along_score: float = math.nan

    @property
    def tuned(self) -> bool:
        """Whether the chosen settings differ from the recommended ones."""
        return self.settings != self.recommended

    def summary(self) -> str:
        """Return the result in a few lines of text."""
        lines = [self.reason]
        if self.nested:
            lines.append(
                f"Balanced accuracy on left-out subjects: {100 * self.nested_score:.1f} % with the settings that a "
                f"search without them chose, {100 * self.recommended_score:.1f} % with the recommended settings."
            )
        if not math.isnan(self.along_score):
            alone = self.nested_score if self.tuned else self.recommended_score
            chain = self.model.chain_
            uses = "along the recording" if chain is not None and chain.is_default else "each window by itself"
            lines.append(
                f"Along the recording {100 * self.along_score:.1f} %, each window by itself {100 * alone:.1f} %; "
                f"predict labels {uses}."
            )
        changes = self.settings.changed_from(self.recommended)
        lines.append(f"Settings: {', '.join(f'{name}={value}' for name, value in changes.items()) or 'recommended'}.")
        if self.tries:
            lines.append(f"Tries in the search on all subjects: {len(self.tries)}; {self.seconds:.0f} s in all.")
        return "\n".join(lines)

    __repr__ = summary

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the model, in types that JSON can store."""
        found = {"nested": self.nested_score, "nested_recommended": self.recommended_score}
        found["nested_along"] = self.along_score
        return {
            "settings": asdict(self.settings),
            "recommended": asdict(self.recommended),
            "tuned": self.tuned,
            "reason": self.reason,
            **{name: None if math.isnan(score) else round(score, 6) for name, score in found.items()},
            "subjects": self.nested,
            "seconds": self.seconds,
            "tries": [{**asdict(tried.settings), "score": round(tried.score, 6)} for tried in self.tries],
        }


def tune(
    windows: Windows | WindowStore,
    *,
    minutes: float = 10.0,
    tries: int | None = None,
    folds: int = 3,
    random_state: int = 0,
    device: Any = "auto",
    journal: Any = None,
    on_try: Callable[[int, int, Try], None] | None = None,
) -> Tuning:
    """Search for the best settings for your windows, and fit a classifier with them.

    The search varies frames, rank and non-negativity. Each try is scored by cross-validation over labelled subjects;
    windows without labels always take part in the fit. Nested
    cross-validation evaluates the search itself: it is repeated without some of the subjects and tested on those.

    Parameters
    ----------
    windows : windows of which some have labels and subjects
    minutes : total time limit: searches, nested cross-validation and the final fit
    tries : number of settings to try per search, instead of the time limit; makes the result reproducible from the seed
    folds : number of outer folds, groups of subjects that are left out in turn to evaluate the search
    random_state : random seed
    device : device to compute on
    journal : file that records every try; an interrupted call with the same windows and options resumes from it
    on_try : called after every try with the index of the search, the number of searches, and the try

    Returns
    -------
    the fitted classifier, the chosen settings, and all tries with their scores

    Examples
    --------
    >>> from polyadic.data import synthetic
    >>> tuning = tune(synthetic(80, n_channels=2, length=64), tries=1, folds=2)
    >>> tuning.model.predict(synthetic(5, n_channels=2, length=64)).shape, len(tuning.tries)
    ((5,), 1)
    """
    begun = time.monotonic()
    check_number("minutes", minutes, 0)
    check_integer("tries", tries, 1, none=True)
    check_integer("folds", folds, 2)
    check_integer("random_state", random_state, 0)
    windows = windows.windows if isinstance(windows, WindowStore) else windows
    if not isinstance(windows, Windows):
        raise PolyadicError(
            f"windows must be Windows or a WindowStore, but is a {type(windows).__name__}: use "
            "Windows(X, fs, label=..., subject=...)"
        )
    refuse_copies(windows)
    recommended = Settings.recommended(windows)
    outer, cause = _outer_folds(windows, folds)
    if not outer:
        if len(np.unique(windows.label[windows.label >= 0])) < 2:
            raise PolyadicError(
                f"{cause}; a classifier needs labels of at least two classes. Without labels, use polyadic fit"
            )
        model = WindowClassifier(recommended.estimator(random_state, device)).fit(windows)
        reason = f"Kept the recommended settings: a search cannot be validated, because {cause}."
        return Tuning(model, recommended, recommended, reason, time.monotonic() - begun)
    written = None
    if journal is not None:
        options = {"folds": int(folds), "random_state": int(random_state), "device": choose_device(device).type}
        written = _Journal(Path(journal), windows, options)

    def new_search(number: int, part: Windows) -> Search:
        def on_each(tried: Try) -> None:
            if written:
                written.record(number, tried)
            if on_try is not None:
                on_try(number, len(outer) + 1, tried)

        now = time.monotonic()
        until = now + (begun + 60 * minutes - now) * (1 - _REFIT_SHARE) / (len(outer) + 1 - number)
        deadline, known = until if tries is None else math.inf, written.known.get(number, {}) if written else {}
        return Search(part, recommended, random_state, device, deadline, tries, dict(known), on_each)

    search = new_search(0, windows)
    best = search.run().settings
    nested, total = _validate(windows, outer, new_search)
    settings, reason = _choose(search, best, nested)
    return Tuning(
        model=search.classifier(settings),
        settings=settings,
        recommended=recommended,
        reason=reason,
        seconds=time.monotonic() - begun,
        tries=search.tries,
        nested=nested,
        nested_score=total.get("tuned", math.nan),
        recommended_score=total.get("recommended", math.nan),
        along_score=total.get("recommended along" if settings == recommended else "tuned along", math.nan),
    )


def _validate(
    windows: Windows, folds: list[_Fold], new_search: Callable[[int, Windows], Search]
) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    """Search without each group of subjects in turn, and classify the windows of the group.

    Returns the balanced accuracy of the tuned and of the recommended settings for each subject, and in all, there also
    along the recording if the order of windows is known.
    """
    truth = labels_of(windows)
    alone = {"tuned": truth.copy(), "recommended": truth.copy()}
    along = {name: guess.copy() for name, guess in alone.items()}
    is_ordered = True
    for number, (train, test) in enumerate(folds, start=1):
        search = new_search(number, windows[train])
        tuned = search.run().settings
        # All windows of the left-out subjects, for predictions along their recordings.
        rows = np.setdiff1d(np.arange(len(windows)), train)
        for name, settings in (("tuned", tuned), ("recommended", search.recommended)):
            classifier, places = search.classifier(settings), np.searchsorted(rows, test)
            probabilities = classifier.predict_proba(windows[rows])
            alone[name][test] = classifier.classes_[probabilities.argmax(axis=1)][places]
            is_ordered = is_ordered and classifier.chain_ is not None
            if is_ordered:
                along[name][test] = classifier.label_sequence(probabilities, windows[rows])[0][places]

    def accuracy(rows: NDArray[np.intp], predicted: dict[str, NDArray[Any]] = alone) -> dict[str, float]:
        return {name: scores(truth[rows], y[rows])["balanced_accuracy"] for name, y in predicted.items()}

    tested = np.concatenate([test for _, test in folds])
    subject, total = windows.subject[tested], accuracy(tested)
    if is_ordered:
        total |= {f"{name} along": score for name, score in accuracy(tested, along).items()}
    return {name: accuracy(tested[subject == name]) for name in np.unique(subject).tolist()}, total


def _choose(search: Search, best: Settings, nested: dict[str, dict[str, float]]) -> tuple[Settings, str]:
    """Return the settings to use, and why."""
    if len(search.tries) == 1:
        return best, "Kept the recommended settings: the search ended before any other was tried."
    if best == search.recommended:
        return best, "Kept the recommended settings: in the search on all subjects, no other promised a gain."
    gains = np.array([accuracy["tuned"] - accuracy["recommended"] for accuracy in nested.values()])
    gain = float(gains.mean())
    error = float(gains.std(ddof=1) / math.sqrt(len(gains))) if len(gains) > 1 else math.inf
    measured = (
        f"on subjects left out of the search, its choice scored {round(100 * gain, 1) + 0.0:+.1f} ± {100 * error:.1f} "
        "points against them"
    )
    if gain > error:
        return best, f"Changed the recommended settings: {measured}."
    return search.recommended, f"Kept the recommended settings: {measured}{', within noise' if gain > 0 else ''}."


def _outer_folds(windows: Windows, count: int) -> tuple[list[_Fold], str]:
    """Split subjects into groups to leave out in turn, skipping groups that the search cannot do without.

    Returns for each group the rows of all other windows and the labelled rows of its subjects; and why there is none.
    """
    cause, folds = _why_not(windows), []
    if cause:
        return [], cause
    labelled = np.flatnonzero((windows.label >= 0) & (windows.subject != ""))
    fold = group_folds(windows.label[labelled], windows.subject[labelled], count)
    for number in range(int(fold.max()) + 1):
        test = labelled[fold == number]
        train = np.flatnonzero(~np.isin(windows.subject, windows.subject[test]))
        if lack := _why_not(windows[train]):
            cause = f"without some of the subjects {lack}"
        else:
            folds.append((train, test))
    return folds, cause


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


def _short(value: Any) -> str:
    return str(joblib.hash(value))[:12]


class _Journal:
    """The tries of all searches of a call of `tune`, in a file with one line of JSON per try.

    Its first line describes everything that a score depends on; a journal of other data or options is refused.
    """

    def __init__(self, path: Path, windows: Windows, options: dict[str, Any]) -> None:
        self.path, self.known = path, dict[int, dict[Settings, Try]]()
        parts = (np.arange(first, min(first + _ROWS, len(windows))) for first in range(0, len(windows), _ROWS))
        now = {
            "version": __version__,
            "shape": list(windows.shape),
            "fs": windows.fs,
            "channels": list(windows.channels),
            "samples": _short([_short(windows.read(rows)) for rows in parts]),
            "labels": _short([list(windows.classes), windows.label.tolist()]),
            "subjects": _short(windows.subject.tolist()),
            "recordings": _short([windows.recording.tolist(), windows.start.tolist()]),
            **options,
        }
        self._lines = [json.dumps(now)]
        if not path.exists():
            return
        try:
            self._lines = path.read_text("utf-8").splitlines()
            then, *entries = map(json.loads, self._lines)
            changed = [f"{name} was {old} and is {new} now" for name, old, new in differences(dict(then), now)]
            for search, settings, shares, seconds in entries:
                tried = Try(Settings(**settings), np.array(shares), seconds)
                self.known.setdefault(search, {})[tried.settings] = tried
        except (ValueError, TypeError) as error:
            raise PolyadicError(f"{path.name} is not a journal of polyadic tune: choose another name") from error
        if changed:
            raise PolyadicError(
                f"{path.name} is the journal of another search ({'; '.join(changed)}): use the same data and options "
                "to resume it, choose another name, or remove it"
            )

    def record(self, search: int, tried: Try) -> None:
        """Add a try of one of the searches, unless it is known, and write the file."""
        if tried.settings not in self.known.setdefault(search, {}):
            self.known[search][tried.settings] = tried
            self._lines.append(json.dumps([search, asdict(tried.settings), tried.shares.tolist(), tried.seconds]))
            write_atomically(self.path, "".join(f"{line}\n" for line in self._lines).encode())
