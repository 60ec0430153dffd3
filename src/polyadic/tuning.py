"""`tune`: search settings on all subjects, and evaluate the search by nested cross-validation.

A search tries the recommended settings, then single changes of the best ones, until the budget is spent. It is repeated
without some of the subjects, and its choice is scored on these by `cross_validate`, as `polyadic evaluate` scores.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import ConvergenceWarning

from polyadic._util.checks import check_integer, check_number
from polyadic.data import Windows
from polyadic.data.splits import refuse_copies
from polyadic.data.store import WindowStore
from polyadic.errors import PolyadicError
from polyadic.estimators import CPD
from polyadic.evaluate.classifier import WindowClassifier, labels_of
from polyadic.evaluate.probe import Probe, features_of, statistic_columns
from polyadic.evaluate.scoring import balanced_weights, gain_over_subjects
from polyadic.evaluate.validation import CrossValidation, cross_validate
from polyadic.spectral import SHORTEST_FRAME, STFT, recommended_stft

__all__ = ["Settings", "Try", "Tuning", "best_try", "choices", "score_subjects", "search", "tune"]

_RANKS = (8, 16, 32, 64)
_MOST_FRAMES = 32
_FEWEST_SUBJECTS = 2
"""Minimum number of subjects per class: one for training and one to leave out."""
_FEWEST_WINDOWS = 20
"""Minimum number of labelled windows; with fewer, any difference is noise."""
_REFIT_SHARE = 0.1
"""Fraction of the time reserved for fitting the best settings to all windows."""


@dataclass(frozen=True)
class Settings:
    """The settings of one try: frames of the STFT, rank, and whether profiles are non-negative."""

    n_fft: int
    hop: int
    parts: str = "log_amplitude"
    rank: int = 32
    nonnegative: bool = True

    @classmethod
    def recommended(cls, windows: Windows) -> Settings:
        """Return the library's defaults for windows (N, channels, time)."""
        frames = recommended_stft(windows.shape[2], windows.fs)
        return cls(frames.n_fft, frames.hop)

    def estimator(self, seed: int, device: Any) -> CPD:
        """Return an unfitted estimator with these settings."""
        frames = STFT(self.n_fft, self.hop, parts=self.parts, mean="auto")  # type: ignore[arg-type]
        return CPD(self.rank, tensorize=frames, nonnegative=self.nonnegative, device=device, random_state=seed)

    def changed_from(self, other: Settings) -> dict[str, Any]:
        """Return the values that differ from other settings, by name.

        Examples
        --------
        >>> Settings(64, 8, rank=16).changed_from(Settings(64, 8))
        {'rank': 16}
        """
        return {name: value for name, value in asdict(self).items() if value != getattr(other, name)}


def choices(settings: Settings, length: int, recommended: Settings) -> Iterator[Settings]:
    """Yield settings that differ in one value, for windows of `length` samples; a new frame length adapts the hop.

    Examples
    --------
    >>> [other.changed_from(Settings(64, 8)) for other in choices(Settings(64, 8), 128, Settings(64, 8))][:3]
    [{'n_fft': 32, 'hop': 4}, {'n_fft': 128, 'hop': 16}, {'hop': 16}]
    """

    def hops(n_fft: int) -> list[int]:
        first = max(n_fft // 8, -(-(length - n_fft) // (_MOST_FRAMES - 1)), 1)
        return [first, *(hop for hop in (2 * first, 4 * first) if hop <= n_fft // 2)]

    sizes = (recommended.n_fft // 2, recommended.n_fft, 2 * recommended.n_fft)
    frames = [n_fft for n_fft in sizes if SHORTEST_FRAME <= n_fft <= length]
    yield from (replace(settings, n_fft=n_fft, hop=hops(n_fft)[0]) for n_fft in frames if n_fft != settings.n_fft)
    yield from (replace(settings, hop=hop) for hop in hops(settings.n_fft) if hop != settings.hop)
    yield from (replace(settings, rank=rank) for rank in _RANKS if rank != settings.rank)
    yield replace(settings, nonnegative=not settings.nonnegative)
    yield replace(settings, parts="log_re_im" if settings.parts == "log_amplitude" else "log_amplitude")


@dataclass(frozen=True, eq=False)
class Try:
    """Settings that were tried, the model with them, what each subject contributes to the score, and the time."""

    settings: Settings
    model: CPD
    shares: NDArray[np.float64]  # (subjects,)
    seconds: float

    @property
    def score(self) -> float:
        """Balanced accuracy on left-out subjects."""
        return float(self.shares.sum())


def best_try(tries: list[Try]) -> Try:
    """Return the try with the largest cautious gain over the first, which has the recommended settings.

    The cautious gain is the gain in score minus half its standard error over subjects: the best of many tries looks
    better than it is, and more so if its gain is noisy. The factor of one half was chosen on development subjects.
    """

    def cautious_gain(tried: Try) -> float:
        gains = tried.shares - tries[0].shares
        return float(gains.sum() - 0.5 * np.sqrt(len(gains)) * gains.std(ddof=1))

    return max(tries, key=cautious_gain)


def score_subjects(
    Z: NDArray[np.float64], y: NDArray[Any], subject: NDArray[Any], columns: NDArray[np.intp]
) -> NDArray[np.float64]:
    """Evaluate features (n, F) of labelled windows by a `Probe` with the settings that are best on left-out subjects.

    `columns` are the indices of the statistics. Returns for each subject the sum over its windows that are classified
    correctly without it of 1 / (number of windows of the class · number of classes): it adds up to the balanced
    accuracy.
    """
    probe = Probe(unlabelled=False).fit(Z, y, subject, columns)
    likelihoods, _ = probe.left_out_likelihoods(Z, subject)
    is_right = probe.classes_[likelihoods.argmax(axis=1)] == y
    return np.asarray(np.bincount(np.unique(subject, return_inverse=True)[1], balanced_weights(y) * is_right), float)


def search(
    windows: Windows,
    recommended: Settings,
    seed: int = 0,
    device: Any = "auto",
    until: float = math.inf,
    most: int | None = None,
    on_try: Callable[[Try], None] = lambda tried: None,
) -> list[Try]:
    """Try the recommended settings, then single changes of the best settings so far.

    The search ends when no change is left, after `most` tries, or if another try is likely to end after `until`, on the
    clock of `time.monotonic`. Features are fitted to all windows; those with labels and subjects are used for scoring.
    """
    labelled = windows[np.flatnonzero((windows.label >= 0) & (windows.subject != ""))]
    y, tries = labels_of(labelled), list[Try]()
    settings: Settings | None = recommended
    while settings is not None:
        begun, model = time.monotonic(), settings.estimator(seed, device).fit(windows)
        shares = score_subjects(features_of(model, labelled), y, labelled.subject, statistic_columns(model))
        tries.append(Try(settings, model, shares, time.monotonic() - begun))
        on_try(tries[-1])
        expected = float(np.median([tried.seconds for tried in tries]))
        if len(tries) == most or time.monotonic() + expected >= until:
            break
        tried_settings = {tried.settings for tried in tries}
        changes = choices(best_try(tries).settings, windows.shape[2], recommended)
        settings = next((changed for changed in changes if changed not in tried_settings), None)
    return tries


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
    nested : scores on left-out subjects of the "recommended" settings, and of those "tuned" without these subjects;
        empty if no subject could be left out
    """

    model: WindowClassifier
    settings: Settings
    recommended: Settings
    reason: str
    seconds: float
    tries: list[Try]
    nested: dict[str, CrossValidation]

    @property
    def tuned(self) -> bool:
        """Whether the chosen settings differ from the recommended ones."""
        return self.settings != self.recommended

    @property
    def used(self) -> CrossValidation | None:
        """Scores on left-out subjects of settings chosen as those in use; None if no subject could be left out."""
        return self.nested.get("tuned" if self.tuned else "recommended")

    def summary(self) -> str:
        """Return the result in a few lines of text."""
        lines = [self.reason]
        if self.used is not None:
            tuned, recommended = (100 * self.nested[name].balanced_accuracy for name in ("tuned", "recommended"))
            lines.append(
                f"Balanced accuracy over all windows of {self.used.subjects} left-out subjects: {tuned:.1f} % with the "
                f"settings that a search without them chose, {recommended:.1f} % with the recommended settings."
            )
            if self.used.along is not None:
                chain = self.model.chain_
                uses = "along the recording" if chain is not None and chain.is_default else "each window by itself"
                lines.append(
                    f"Along the recording {100 * self.used.along['balanced_accuracy']:.1f} %, each window by itself "
                    f"{100 * self.used.balanced_accuracy:.1f} %; predict labels {uses}."
                )
        changes = self.settings.changed_from(self.recommended)
        lines.append(f"Settings: {', '.join(f'{name}={value}' for name, value in changes.items()) or 'recommended'}.")
        if self.tries:
            lines.append(f"Tries in the search on all subjects: {len(self.tries)}; {self.seconds:.0f} s in all.")
        return "\n".join(lines)

    __repr__ = summary

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the model, in types that JSON can store."""
        scores = {name: result.balanced_accuracy for name, result in self.nested.items()}
        if self.used is not None and self.used.along is not None:
            scores["along"] = self.used.along["balanced_accuracy"]
        rounded = {name: round(score, 6) for name, score in scores.items()}
        subjects = {
            subject: {name: result.per_subject[subject]["balanced_accuracy"] for name, result in self.nested.items()}
            for subject in (() if self.used is None else self.used.per_subject)
        }
        return {
            "settings": asdict(self.settings),
            "recommended": asdict(self.recommended),
            "tuned": self.tuned,
            "reason": self.reason,
            "nested": rounded.get("tuned"),
            "nested_recommended": rounded.get("recommended"),
            "nested_along": rounded.get("along"),
            "subjects": subjects,
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
    on_try: Callable[[int, int, Try], None] = lambda number, count, tried: None,
) -> Tuning:
    """Search for the best settings for your windows, and fit a classifier with them.

    The search varies frames, rank and non-negativity. Each try is scored by cross-validation over labelled subjects;
    windows without labels always take part in the fit. Nested cross-validation evaluates the search itself: it is
    repeated without some of the subjects and tested on those.

    Parameters
    ----------
    windows : windows of which some have labels and subjects
    minutes : total time limit: searches, nested cross-validation and the final fit
    tries : number of settings to try per search, instead of the time limit; makes the result reproducible from the seed
    folds : number of outer folds, groups of subjects that are left out in turn to evaluate the search
    random_state : random seed
    device : device to compute on
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
    recommended, cause = Settings.recommended(windows), _why_not(windows)
    if cause and len(np.unique(windows.label[windows.label >= 0])) < 2:
        raise PolyadicError(
            f"{cause}; a classifier needs labels of at least two classes. Without labels, use polyadic fit"
        )
    people = np.unique(windows.subject[(windows.label >= 0) & (windows.subject != "")])
    count = min(int(folds), len(people)) + 1 if not cause else 1
    numbers, causes = iter(range(count)), list[str]()

    def search_on(part: Windows) -> list[Try]:
        """Search on a part of the windows; all searches that are to come have equal shares of the time."""
        number, now = next(numbers), time.monotonic()
        share = (begun + 60 * minutes - now) * (1 - _REFIT_SHARE) / (count - number)
        until = now + share if tries is None else math.inf
        return search(part, recommended, random_state, device, until, tries, partial(on_try, number, count))

    def search_and_fit(part: Windows) -> CPD:
        """Return a model with the settings that a search on these windows chooses, or the recommended ones."""
        causes.append(_why_not(part))
        return clone(plain).fit(part) if causes[-1] else best_try(search_on(part)).model

    plain = recommended.estimator(random_state, device)
    nested, tried = dict[str, CrossValidation](), list[Try]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        if not cause:
            for name, estimator in (("recommended", plain), ("tuned", _Searched(search_and_fit))):
                nested[name] = cross_validate(estimator, windows, count - 1, random_state=random_state)
            cause = f"without some of the subjects {causes[0]}" if all(causes) else ""
        if cause:
            nested, reason = {}, f"Kept the recommended settings: a search cannot be validated, because {cause}."
            settings, features = recommended, plain.fit(windows)
        else:
            tried = search_on(windows)
            chosen, reason = _choose(tried, windows, nested)
            settings, features = chosen.settings, chosen.model
        model = WindowClassifier(features).fit(windows)
    return Tuning(model, settings, recommended, reason, time.monotonic() - begun, tried, nested)


class _Searched(BaseEstimator):  # type: ignore[misc]
    """Features with settings that are searched on the windows they are fitted to, for `cross_validate`."""

    def __init__(self, search_and_fit: Callable[[Windows], CPD]) -> None:
        self.search_and_fit = search_and_fit

    def fit(self, windows: Windows) -> Self:
        self.model_ = self.search_and_fit(windows)
        self.readout_ = self.model_.readout_
        return self

    def transform(self, windows: Windows) -> Any:
        return self.model_.transform(windows)


def _choose(tries: list[Try], windows: Windows, nested: dict[str, CrossValidation]) -> tuple[Try, str]:
    """Return which try of a search on all windows has the settings to use, and why."""
    best, recommended = best_try(tries), tries[0]
    if len(tries) == 1:
        return best, "Kept the recommended settings: the search ended before any other was tried."
    if best == recommended:
        return best, "Kept the recommended settings: in the search on all subjects, no other promised a gain."
    before, after = (nested[name] for name in ("recommended", "tuned"))
    tested = windows[before.rows]
    gain, error = gain_over_subjects(labels_of(tested), before.predicted[0], after.predicted[0], tested.subject)
    measured = (
        f"on subjects left out of the search, its choice scored {round(100 * gain, 1) + 0.0:+.1f} ± {100 * error:.1f} "
        "points against them"
    )
    if gain > error:
        return best, f"Changed the recommended settings: {measured}."
    return recommended, f"Kept the recommended settings: {measured}{', within noise' if gain > 0 else ''}."


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
