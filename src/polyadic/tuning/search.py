"""One search: the recommended settings, then single changes of the best ones, until the budget is spent."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from polyadic import CPD
from polyadic._util.threads import thread_pool
from polyadic.data import Windows
from polyadic.data.splits import group_folds
from polyadic.evaluate import regression
from polyadic.evaluate.classifier import WindowClassifier, labels_of
from polyadic.evaluate.probe import features_of, statistic_columns
from polyadic.spectral import SHORTEST_FRAME, STFT, recommended_stft

__all__ = ["Search", "Settings", "Try", "best_try", "choices", "score_subjects"]

_RANKS = (8, 16, 32, 64)
_MOST_FRAMES = 32


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
    """Settings that were tried, the time it took, and the contribution of each subject to the score."""

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
    """Evaluate features (n, F) of labelled windows by cross-validation of a logistic regression over subjects.

    The settings are those of `Probe` with the best score, or with few labels its fixed ones. `columns` are the indices
    of the statistics. Returns for each subject the sum over its correctly classified windows of 1 / (number of windows
    of the class · number of classes), which adds up to the balanced accuracy.
    """
    grid: tuple[float, ...] = regression.GRID
    weights: tuple[float, ...] = regression.WEIGHTS
    if len(y) < regression.FEWEST_LABELS:
        grid, weights = (regression.FIXED_C,), (regression.FIXED_WEIGHT,)
    is_statistic, folds = np.isin(np.arange(Z.shape[1]), columns), group_folds(y, subject, regression.FOLDS)
    settings = regression.settings_of(Z, is_statistic, grid, ("plain",), weights if len(columns) else (1.0,))
    _, code, counts = np.unique(y, return_inverse=True, return_counts=True)
    _, member = np.unique(subject, return_inverse=True)
    shares = [
        np.asarray(np.bincount(member, weights=(predicted == y) / (counts[code] * len(counts))), np.float64)
        for predicted in regression.left_out(Z, y, folds, settings, is_statistic).values()
    ]
    return max(shares, key=lambda share: float(share.sum()))


@dataclass
class Search:
    """A search on some windows, until a deadline on the clock of `time.monotonic` or a number of different settings.

    Features are fitted to all windows; those with labels and subjects are used for scoring. `known` has the tries of an
    earlier, interrupted search.
    """

    windows: Windows
    recommended: Settings
    seed: int
    device: Any
    until: float = math.inf
    max_tries: int | None = None
    known: dict[Settings, Try] = field(default_factory=dict)
    on_try: Callable[[Try], None] | None = None
    tries: list[Try] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rows = np.flatnonzero((self.windows.label >= 0) & (self.windows.subject != ""))
        self._y, self._subject = labels_of(self.windows)[self._rows], self.windows.subject[self._rows]
        self._models: dict[Settings, CPD] = {}

    def run(self) -> Try:
        """Try single changes of the best settings so far, until the budget is spent or none is left to try."""
        self._try(self.recommended)
        while self._has_budget():
            best, done = best_try(self.tries).settings, {tried.settings for tried in self.tries}
            changes = choices(best, self.windows.shape[2], self.recommended)
            fresh = next((settings for settings in changes if settings not in done), None)
            if fresh is None:
                break
            self._try(fresh)
        return best_try(self.tries)

    def classifier(self, settings: Settings) -> WindowClassifier:
        """Train a classifier with these settings on all labelled windows."""
        return WindowClassifier(self._fitted(settings)).fit(self.windows)

    def _has_budget(self) -> bool:
        """Return whether another try fits in the budget."""
        expected = float(np.median([tried.seconds for tried in self.tries]))
        within = self.max_tries is None or len(self.tries) < self.max_tries
        return within and time.monotonic() + expected < self.until

    def _try(self, settings: Settings) -> None:
        tried = self.known.get(settings)
        if tried is None:
            begun = time.monotonic()
            model = self._fitted(settings)
            Z = features_of(model, self.windows[self._rows])
            with regression.unthreaded(), thread_pool():
                shares = score_subjects(Z, self._y, self._subject, statistic_columns(model))
            tried = Try(settings, shares, time.monotonic() - begun)
        self.tries.append(tried)
        if self.on_try is not None:
            self.on_try(tried)

    def _fitted(self, settings: Settings) -> CPD:
        if settings not in self._models:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                self._models[settings] = settings.estimator(self.seed, self.device).fit(self.windows)
        return self._models[settings]
