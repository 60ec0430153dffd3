"""One search: sequential tries within a budget, starting from the recommended settings and sharing fits."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from polyadic import CPD
from polyadic._util.threads import thread_pool
from polyadic.core.moments import sharing
from polyadic.data import Windows
from polyadic.data.splits import group_folds
from polyadic.errors import PolyadicError
from polyadic.evaluate.classifier import WindowClassifier, labels_of, recentred
from polyadic.evaluate.probe import statistic_columns
from polyadic.evaluate.regression import (
    FEWEST_LABELS,
    FIXED_C,
    FIXED_WEIGHT,
    FOLDS,
    GRID,
    WEIGHTS,
    left_out,
    settings_of,
    unthreaded,
)
from polyadic.tuning.space import Settings, Space

__all__ = ["Search", "Try", "best_try", "score_subjects"]

_FIT_NAMES = ("n_fft", "hop", "rank", "nonnegative", "parts")
_READOUT_NAMES = ("whiten", "shrinkage", "recenter")
_KEPT = 3
"""One in this many coarsely evaluated settings is evaluated in full."""
_COARSE_GRID = (0.01, 1.0)


@dataclass(frozen=True, eq=False)
class Try:
    """Settings that were tried, their score on left-out subjects, and the time it took.

    shares : contribution of each subject to `score`, see `score_subjects`
    full : whether all settings of the probe were evaluated
    fitted : whether the features were fitted for this try, rather than reused from an earlier one
    """

    settings: Settings
    shares: NDArray[np.float64] = field(repr=False)
    seconds: float
    full: bool
    fitted: bool

    @property
    def score(self) -> float:
        """Balanced accuracy on left-out subjects."""
        return float(self.shares.sum())


def best_try(tries: list[Try]) -> Try:
    """Return the fully evaluated try with the largest cautious gain over the first, which has the recommended settings.

    The cautious gain is the gain in score minus half its standard error over subjects: the best of many tries looks
    better than it is, and more so if its gain is noisy. The factor of one half was chosen on the development subjects
    of `paper/benchmarks/tuning.py`.
    """

    def cautious_gain(tried: Try) -> float:
        gains = tried.shares - tries[0].shares
        return float(gains.sum() - 0.5 * np.sqrt(len(gains)) * gains.std(ddof=1))

    return max((tried for tried in tries if tried.full), key=cautious_gain)


def score_subjects(
    Z: NDArray[np.float64], y: NDArray[Any], subject: NDArray[Any], columns: NDArray[np.intp], full: bool
) -> NDArray[np.float64]:
    """Evaluate features (n, F) of labelled windows by cross-validation of a logistic regression over subjects.

    With fewer labels than `Probe` needs for validation, its fixed settings are used. Otherwise the score is the best
    over settings of the probe: all settings if `full`, two otherwise. `columns` are the indices of the statistics.

    Returns
    -------
    (subjects,), adding up to the balanced accuracy: the sum over the correctly classified windows of a subject of
    1 / (number of windows of the class · number of classes)
    """
    full = full and len(y) >= FEWEST_LABELS
    grid = GRID if full else (FIXED_C,) if len(y) < FEWEST_LABELS else _COARSE_GRID
    is_statistic = np.isin(np.arange(Z.shape[1]), columns)
    weights = (WEIGHTS if full else (FIXED_WEIGHT,)) if len(columns) else (1.0,)
    settings = settings_of(Z, is_statistic, grid, ("plain",), weights)
    _, code, counts = np.unique(y, return_inverse=True, return_counts=True)
    _, member = np.unique(subject, return_inverse=True)
    shares = [
        np.asarray(np.bincount(member, weights=(predicted == y) / (counts[code] * len(counts))), np.float64)
        for predicted in left_out(Z, y, group_folds(y, subject, FOLDS), settings, is_statistic).values()
    ]
    return max(shares, key=lambda share: float(share.sum()))


@dataclass
class Search:
    """A search on some windows, until a deadline on the clock of `time.monotonic` or a number of different settings.

    Features are fitted to all windows; those with labels and subjects are used for scoring. `known` has the tries of an
    earlier, interrupted search, by settings and `full`.
    """

    windows: Windows
    space: Space
    seed: int
    device: Any
    until: float = math.inf
    max_tries: int | None = None
    known: dict[tuple[Settings, bool], Try] = field(default_factory=dict)
    on_try: Callable[[Try], None] | None = None
    tries: list[Try] = field(default_factory=list)
    interrupted: bool = False

    def __post_init__(self) -> None:
        self._rows = np.flatnonzero((self.windows.label >= 0) & (self.windows.subject != ""))
        self._y, self._subject = labels_of(self.windows)[self._rows], self.windows.subject[self._rows]
        self._models: dict[tuple[Any, ...], CPD] = {}

    def run(self) -> Try:
        """Run tries until the budget is spent, and return the best; the recommended settings are always tried."""
        with sharing():
            try:
                for settings, full in self._proposals():
                    if self.tries and not self._has_budget(full):
                        break
                    self._try(settings, full)
            except KeyboardInterrupt:
                if not self.tries:
                    raise
                self.interrupted = True
        return best_try(self.tries)

    def classifier(self, settings: Settings) -> WindowClassifier:
        """Train a classifier with settings that were tried on all labelled windows."""
        return WindowClassifier(self._fitted(settings), recenter=settings.recenter).fit(self.windows)

    def _has_budget(self, full: bool) -> bool:
        """Return whether another try fits in the budget; settings evaluated coarsely and in full count once."""
        spent = [tried.seconds for tried in self.tries if tried.full == full]
        expected = float(np.median(spent)) if spent else 0.0
        done = len({tried.settings for tried in self.tries})
        return time.monotonic() + expected < self.until and (self.max_tries is None or done < self.max_tries)

    # -------------------------------------------------------------- proposals

    def _proposals(self) -> Iterator[tuple[Settings, bool]]:
        """Yield settings to try, and whether to evaluate them in full, by successive halving.

        First come single changes of the fit, evaluated coarsely; then the best third in full; then single changes of
        the readout; then views in the fit and combinations of good values, until the budget is spent.
        """
        base = self.space.recommended
        yield base, True
        yield base, False
        for names in (_FIT_NAMES, _READOUT_NAMES):
            changes = list(self.space.neighbours(base, names))
            yield from ((settings, False) for settings in changes)
            kept = self._best_coarse([base, *changes], max(1, len(changes) // _KEPT))
            yield from ((settings, True) for settings in kept)
            base = max((tried for tried in self.tries if tried.full), key=lambda tried: tried.score).settings
        yield from ((settings, False) for settings in self.space.neighbours(base, ("view", "shrinkage")))
        rng, seen = np.random.default_rng(self.seed), {tried.settings for tried in self.tries if tried.full}
        while True:
            sampled = [self._sample(rng) for _ in range(2 * _KEPT)]
            fresh = [settings for settings in dict.fromkeys(sampled) if settings not in seen]
            if not fresh:
                return
            yield from ((settings, False) for settings in fresh)
            yield from ((settings, True) for settings in self._best_coarse(fresh, len(fresh) // _KEPT or 1))
            seen |= set(fresh)

    def _best_coarse(self, candidates: list[Settings], count: int) -> list[Settings]:
        """Return the best of some settings by coarse score, except settings already evaluated in full."""
        scores = {tried.settings: tried.score for tried in self.tries if not tried.full}
        done = {tried.settings for tried in self.tries if tried.full}
        known = [settings for settings in candidates if settings in scores and settings not in done]
        return sorted(known, key=lambda settings: -scores[settings])[:count]

    def _sample(self, rng: np.random.Generator) -> Settings:
        """Sample values one by one, with higher probability for values with good coarse scores."""
        settings, coarse = self.space.recommended, [tried for tried in self.tries if not tried.full]
        for name in self.space.values:
            choices = self.space.choices(settings, name)
            best: dict[Any, float] = {}
            for tried in coarse:
                value = getattr(tried.settings, name)
                best[value] = max(best.get(value, 0.0), tried.score)
            lowest = min((best[value] for value in choices if value in best), default=0.0)
            scores = np.array([best.get(value, lowest) for value in choices])
            weights = np.exp((scores - scores.max()) / 0.01)
            value = choices[int(rng.choice(len(choices), p=weights / weights.sum()))]
            settings = self.space.with_value(settings, name, value)
        return settings

    # ------------------------------------------------------------------ tries

    def _try(self, settings: Settings, full: bool) -> None:
        tried = self.known.get((settings, full))
        if tried is None:
            begun, fitted = time.monotonic(), settings.fitted not in self._models
            try:
                model = self._fitted(settings)
            except PolyadicError as error:
                if settings == self.space.recommended or "pairs" not in str(error):
                    raise
                return  # too few windows have a partner for this view
            Z = self._features(model, settings.recenter)
            with unthreaded(), thread_pool():
                shares = score_subjects(Z, self._y, self._subject, statistic_columns(model), full)
            tried = Try(settings, shares, time.monotonic() - begun, full, fitted)
        self.tries.append(tried)
        if self.on_try is not None:
            self.on_try(tried)

    def _fitted(self, settings: Settings) -> CPD:
        """Return the estimator of settings, fitted with their readout; equal fits are shared."""
        views = self.space.views
        if settings.fitted not in self._models:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                self._models[settings.fitted] = settings.estimator(views, self.seed, self.device).fit(self.windows)
        model, readout = self._models[settings.fitted], settings.readout(views)
        if model.readout_ is None or model.readout_.readout != readout:
            model.fit_readout(self.windows, readout)
        return model

    def _features(self, model: CPD, recenter: bool) -> NDArray[np.float64]:
        """Return the features of the labelled windows; recentring uses all windows of a subject."""
        if not recenter:
            return np.asarray(model.transform(self.windows[self._rows]), np.float64)
        Z = np.asarray(model.transform(self.windows), np.float64)
        return recentred(Z, self.windows.subject)[self._rows]
