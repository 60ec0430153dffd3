"""One search: sequential tries within a budget, starting from the recommended settings and sharing fits."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from polyadic import CPD
from polyadic._util.threads import thread_pool
from polyadic.core.moments import sharing
from polyadic.data import Windows
from polyadic.errors import PolyadicError
from polyadic.evaluate.classifier import group_names, labels_of, means_by_group, recentred
from polyadic.evaluate.probe import level_columns, unthreaded
from polyadic.tuning.judging import Judged, difference, judge
from polyadic.tuning.space import Settings, Space

__all__ = ["Budget", "Search", "Try", "best_try", "worth"]

_FIT_NAMES = ("n_fft", "hop", "rank", "nonnegative", "parts")
_READOUT_NAMES = ("levels", "whiten", "shrinkage", "recenter")
_CAUTION = 0.5
_KEPT = 3
"""One in this many coarsely evaluated settings is evaluated in full."""


@dataclass
class Budget:
    """Limits of a search: a deadline, a number of tries, or both.

    until : deadline on the clock of `time.monotonic`
    tries : maximum number of different settings to try; None for no limit
    """

    until: float = float("inf")
    tries: int | None = None

    def allows(self, done: int, seconds: float = 0.0) -> bool:
        """Return whether another try that takes `seconds` fits in the budget."""
        return time.monotonic() + seconds < self.until and (self.tries is None or done < self.tries)


@dataclass(frozen=True, eq=False)
class Try:
    """Settings that were tried, their score, and the time it took.

    full : whether all settings of the probe were evaluated
    fitted : whether the features were fitted for this try, rather than reused from an earlier one
    """

    settings: Settings
    judged: Judged
    seconds: float
    full: bool
    fitted: bool


def worth(gap: float, error: float) -> float:
    """Return the cautious gain of a try over the recommended settings: its gain minus half its standard error.

    The best of many tries looks better than it is, and more so if its gain is noisy. The factor of one half was chosen
    on the development subjects of `paper/benchmarks/tuning.py`.

    Parameters
    ----------
    gap, error : gain on left-out subjects, and its standard error

    Examples
    --------
    >>> worth(3.0, 2.0), worth(0.5, 2.0)
    (2.0, -0.5)
    """
    return gap - _CAUTION * error


def best_try(tries: Sequence[Try]) -> Try:
    """Return the fully evaluated try with the largest cautious gain over the first, which has the recommended settings.

    Parameters
    ----------
    tries : of one search, in order
    """
    first = tries[0].judged
    return max((one for one in tries if one.full), key=lambda one: worth(*difference(one.judged, first)))


@dataclass
class Search:
    """A search on some windows.

    windows : windows that features are fitted to; those with labels and subjects are used for scoring
    space : the settings to vary
    seed, device : random seed and device of the fits
    budget : when to stop
    known : tries of an earlier, interrupted search, by settings and `full`
    on_try : called after every try
    """

    windows: Windows
    space: Space
    seed: int
    device: Any
    budget: Budget
    known: dict[tuple[Settings, bool], Try] = field(default_factory=dict)
    on_try: Callable[[Try], None] | None = None
    tries: list[Try] = field(default_factory=list)
    interrupted: bool = False

    def __post_init__(self) -> None:
        rows = (self.windows.label >= 0) & (self.windows.subject != "")
        self._rows: NDArray[np.intp] = np.flatnonzero(rows)
        self._y = labels_of(self.windows)[self._rows]
        self._subject = self.windows.subject[self._rows]
        self._models: dict[tuple[Any, ...], CPD] = {}

    def run(self) -> Try:
        """Run tries until the budget is spent, and return the best; the recommended settings are always tried."""
        with sharing():
            try:
                for settings, full in self._proposals():
                    # Settings that are evaluated coarsely and in full count once.
                    done = len({one.settings for one in self.tries})
                    if done and not self.budget.allows(done, self._typical(full)):
                        break
                    self._try(settings, full)
            except KeyboardInterrupt:
                if not self.tries:
                    raise
                self.interrupted = True
        return self.best()

    def best(self) -> Try:
        """Return the best try so far; see `best_try`."""
        return best_try(self.tries)

    def _typical(self, full: bool) -> float:
        spent = [one.seconds for one in self.tries if one.full == full]
        return float(np.median(spent)) if spent else 0.0

    # -------------------------------------------------------------- proposals

    def _proposals(self) -> Iterator[tuple[Settings, bool]]:
        """Yield settings to try, and whether to evaluate them in full, by successive halving.

        First come single changes of the fit, evaluated coarsely; then the best third in full; then single changes of
        the readout; then views in the fit and combinations of good values, until the budget is spent.
        """
        first, length = self.space.recommended, self.windows.shape[2]
        yield first, True
        yield first, False
        singles = list(self.space.neighbours(first, length, _FIT_NAMES))
        for settings in singles:
            yield settings, False
        kept = self._best_of([first, *singles], max(1, len(singles) // _KEPT))
        for settings in kept:
            yield settings, True
        base = self._best_in_full()
        changes = list(self.space.neighbours(base, length, _READOUT_NAMES))
        for settings in changes:
            yield settings, False
        for settings in self._best_of([base, *changes], max(1, len(changes) // _KEPT)):
            yield settings, True
        for settings in self.space.neighbours(self._best_in_full(), length, ("view", "shrinkage")):
            yield settings, False
        rng, seen = np.random.default_rng(self.seed), {one.settings for one in self.tries if one.full}
        while True:
            drawn = [self.space.drawn(self._marginals(), rng, length) for _ in range(2 * _KEPT)]
            fresh = [settings for settings in dict.fromkeys(drawn) if settings not in seen]
            if not fresh:
                return
            for settings in fresh:
                yield settings, False
            for settings in self._best_of(fresh, len(fresh) // _KEPT or 1):
                seen.add(settings)
                yield settings, True
            seen |= set(fresh)

    def _best_of(self, settings: list[Settings], count: int) -> list[Settings]:
        """Return the best of some settings by coarse score, except settings already evaluated in full."""
        scores = {one.settings: one.judged.score for one in self.tries if not one.full}
        done = {one.settings for one in self.tries if one.full}
        known = [one for one in settings if one in scores and one not in done]
        return sorted(known, key=lambda one: -scores[one])[:count]

    def _best_in_full(self) -> Settings:
        return max((one for one in self.tries if one.full), key=lambda one: one.judged.score).settings

    def _marginals(self) -> dict[str, dict[Any, float]]:
        """Return, for each setting, the best coarse score of each of its values."""
        found: dict[str, dict[Any, float]] = {}
        for one in self.tries:
            if not one.full:
                for name in self.space.values:
                    value = getattr(one.settings, name)
                    own = found.setdefault(name, {})
                    own[value] = max(own.get(value, 0.0), one.judged.score)
        return found

    # ------------------------------------------------------------------ tries

    def _try(self, settings: Settings, full: bool) -> None:
        known = self.known.get((settings, full))
        if known is None:
            begun = time.monotonic()
            fitted = settings.fitted not in self._models
            try:
                Z, levels = self._features(settings)
            except PolyadicError as error:
                if settings == self.space.recommended or "pairs" not in str(error):
                    raise
                return  # too few windows have a partner for this view
            with unthreaded(), thread_pool():
                judged = judge(Z, self._y, self._subject, levels, full)
            known = Try(settings, judged, time.monotonic() - begun, full, fitted)
        self.tries.append(known)
        if self.on_try is not None:
            self.on_try(known)

    def _features(self, settings: Settings) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
        """Return features of the labelled windows and the indices of the level columns; equal fits are shared."""
        views = self.space.views
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            if settings.fitted not in self._models:
                self._models[settings.fitted] = settings.estimator(views, self.seed, self.device).fit(self.windows)
        model = self._models[settings.fitted]
        readout = settings.readout(views)
        if model.readout_ is None or model.readout_.readout != readout:
            model.fit_readout(self.windows, readout)
        if not settings.recenter:
            return np.asarray(model.transform(self.windows[self._rows]), np.float64), level_columns(model)
        names = group_names(self.windows.subject, len(self.windows))
        whole = np.asarray(model.transform(self.windows), np.float64)
        Z = recentred(whole, names, means_by_group([(whole, names)]))
        return Z[self._rows], level_columns(model)

    def model(self, settings: Settings) -> CPD:
        """Return the fitted estimator of settings that were tried."""
        self._features(settings)
        return self._models[settings.fitted]
