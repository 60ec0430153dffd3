"""`tune`: search settings on all subjects, and evaluate the search by nested cross-validation.

A search tries the recommended settings, then single changes of the best ones, until the budget is spent. It is repeated
without some of the subjects, and its choice is scored on these by `cross_validate`, as `polyadic evaluate` scores.
"""

from __future__ import annotations

import json
import math
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import joblib
import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning

from polyadic._util.checks import check_integer, check_number
from polyadic._util.files import write_atomically
from polyadic._util.version import __version__
from polyadic.data import Windows
from polyadic.data.batches import choose_device
from polyadic.data.splits import refuse_copies
from polyadic.data.store import WindowStore
from polyadic.errors import PolyadicError
from polyadic.estimators import CPD
from polyadic.evaluate.classifier import WindowClassifier, labels_of
from polyadic.evaluate.probe import Probe, features_of, statistic_columns
from polyadic.evaluate.scoring import balanced_weights, gain_over_subjects
from polyadic.evaluate.validation import CrossValidation, cross_validate
from polyadic.scale.checkpoints import differences
from polyadic.spectral import SHORTEST_FRAME, STFT, recommended_stft

__all__ = ["Search", "Settings", "Try", "Tuning", "best_try", "choices", "score_subjects", "tune"]

_RANKS = (8, 16, 32, 64)
_MOST_FRAMES = 32
_FEWEST_SUBJECTS = 2
"""Minimum number of subjects per class: one for training and one to leave out."""
_FEWEST_WINDOWS = 20
"""Minimum number of labelled windows; with fewer, any difference is noise."""
_REFIT_SHARE = 0.1
"""Fraction of the time reserved for fitting the best settings to all windows."""
_ROWS = 1024


# ------------------------------------------------------------------------------------------------ one search


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
    """Settings that were tried, the contribution of each subject to the score, and the time it took."""

    settings: Settings
    shares: NDArray[np.float64] = field(repr=False)
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


class Search:
    """A search on some windows, until a deadline on the clock of `time.monotonic` or a number of different settings.

    Features are fitted to all windows; those with labels and subjects are used for scoring. `known` has the tries of an
    earlier, interrupted search.
    """

    def __init__(
        self,
        windows: Windows,
        recommended: Settings,
        seed: int,
        device: Any,
        until: float = math.inf,
        max_tries: int | None = None,
        known: dict[Settings, Try] | None = None,
        on_try: Callable[[Try], None] = lambda tried: None,
    ) -> None:
        self.windows, self.recommended, self.until, self.max_tries = windows, recommended, until, max_tries
        self.known, self.on_try, self.tries = known or {}, on_try, list[Try]()
        self._seed, self._device, self._models = seed, device, dict[Settings, CPD]()

    def run(self) -> Settings:
        """Try single changes of the best settings so far, until the budget is spent or none is left to try."""
        self._try(self.recommended)
        while self._has_budget():
            best, done = best_try(self.tries).settings, {tried.settings for tried in self.tries}
            changes = choices(best, self.windows.shape[2], self.recommended)
            fresh = next((settings for settings in changes if settings not in done), None)
            if fresh is None:
                break
            self._try(fresh)
        return best_try(self.tries).settings

    def fitted(self, settings: Settings) -> CPD:
        """Return a model with these settings, fitted to all windows."""
        if settings not in self._models:
            self._models[settings] = settings.estimator(self._seed, self._device).fit(self.windows)
        return self._models[settings]

    def _has_budget(self) -> bool:
        """Return whether another try fits in the budget."""
        expected = float(np.median([tried.seconds for tried in self.tries]))
        within = self.max_tries is None or len(self.tries) < self.max_tries
        return within and time.monotonic() + expected < self.until

    def _try(self, settings: Settings) -> None:
        tried = self.known.get(settings)
        if tried is None:
            begun, model = time.monotonic(), self.fitted(settings)
            part = self.windows[np.flatnonzero((self.windows.label >= 0) & (self.windows.subject != ""))]
            shares = score_subjects(features_of(model, part), labels_of(part), part.subject, statistic_columns(model))
            tried = Try(settings, shares, time.monotonic() - begun)
        self.tries.append(tried)
        self.on_try(tried)


# ------------------------------------------------------------------------------------------------ the result


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
    nested_score, recommended_score : the same over all windows of these subjects, as `cross_validate` computes it; NaN
        if there are none
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
                f"Balanced accuracy over all windows of {len(self.nested)} left-out subjects: "
                f"{100 * self.nested_score:.1f} % with the settings that a search without them chose, "
                f"{100 * self.recommended_score:.1f} % with the recommended settings."
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
    recommended, cause = Settings.recommended(windows), _why_not(windows)
    if cause and len(np.unique(windows.label[windows.label >= 0])) < 2:
        raise PolyadicError(
            f"{cause}; a classifier needs labels of at least two classes. Without labels, use polyadic fit"
        )
    people = np.unique(windows.subject[(windows.label >= 0) & (windows.subject != "")])
    count = min(int(folds), len(people)) + 1 if not cause else 1
    numbers, causes = iter(range(count)), list[str]()
    written = None
    if journal is not None and not cause:
        options = {"folds": int(folds), "random_state": int(random_state), "device": choose_device(device).type}
        written = _Journal(Path(journal), windows, options)

    def new_search(part: Windows) -> Search:
        """Return a search on a part of the windows; all that are to come have equal shares of the time."""
        number, now = next(numbers), time.monotonic()

        def on_each(tried: Try) -> None:
            if written:
                written.record(number, tried)
            if on_try is not None:
                on_try(number, count, tried)

        until = now + (begun + 60 * minutes - now) * (1 - _REFIT_SHARE) / (count - number)
        deadline, known = until if tries is None else math.inf, written.known.get(number, {}) if written else {}
        return Search(part, recommended, random_state, device, deadline, tries, known, on_each)

    def search_and_fit(part: Windows) -> CPD:
        """Return a model with the settings that a search on these windows chooses, or the recommended ones."""
        search = new_search(part)
        causes.append(_why_not(part))
        return search.fitted(recommended if causes[-1] else search.run())

    settings, nested = recommended, dict[str, CrossValidation]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        if not cause:
            plain = recommended.estimator(random_state, device)
            for name, estimator in (("recommended", plain), ("tuned", _Searched(search_and_fit))):
                nested[name] = cross_validate(estimator, windows, count - 1, random_state=random_state)
            cause = f"without some of the subjects {causes[0]}" if all(causes) else ""
        search = new_search(windows)
        if cause:
            nested, reason = {}, f"Kept the recommended settings: a search cannot be validated, because {cause}."
        else:
            settings, reason = _choose(search, nested)
        model = WindowClassifier(search.fitted(settings)).fit(windows)
    used = nested.get("recommended" if settings == recommended else "tuned")
    score = {name: result.balanced_accuracy for name, result in nested.items()}
    return Tuning(
        model=model,
        settings=settings,
        recommended=recommended,
        reason=reason,
        seconds=time.monotonic() - begun,
        tries=search.tries,
        nested={
            subject: {name: result.per_subject[subject]["balanced_accuracy"] for name, result in nested.items()}
            for subject in (used.per_subject if used is not None else ())
        },
        nested_score=score.get("tuned", math.nan),
        recommended_score=score.get("recommended", math.nan),
        along_score=math.nan if used is None or used.along is None else used.along["balanced_accuracy"],
    )


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


def _choose(search: Search, nested: dict[str, CrossValidation]) -> tuple[Settings, str]:
    """Search, and return the settings to use, and why."""
    best = search.run()
    if len(search.tries) == 1:
        return best, "Kept the recommended settings: the search ended before any other was tried."
    if best == search.recommended:
        return best, "Kept the recommended settings: in the search on all subjects, no other promised a gain."
    before, after = (nested[name] for name in ("recommended", "tuned"))
    tested = search.windows[before.rows]
    gain, error = gain_over_subjects(labels_of(tested), before.predicted[0], after.predicted[0], tested.subject)
    measured = (
        f"on subjects left out of the search, its choice scored {round(100 * gain, 1) + 0.0:+.1f} ± {100 * error:.1f} "
        "points against them"
    )
    if gain > error:
        return best, f"Changed the recommended settings: {measured}."
    return search.recommended, f"Kept the recommended settings: {measured}{', within noise' if gain > 0 else ''}."


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
