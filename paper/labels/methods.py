"""The methods of the label curve: the default, its ablations, and baselines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.pipeline import make_pipeline

from paper.baselines import HandFeatures
from paper.labels.people import LabelSet
from paper.scoring import statistic_columns
from polyadic import ATD, CPD, SALS
from polyadic.augment import Jitter
from polyadic.baselines import MiniRocket, PCAFeatures, StatisticsFeatures
from polyadic.errors import PolyadicError
from polyadic.readout import Readout
from polyadic.spectral import STFT, recommended_stft

DEFAULT = "polyadic"
"""The method that all others are compared with: the library's defaults."""

Group = Literal["default", "rivals", "paper", "less"]
ProbeKind = Literal["auto", "plain", "standardised"]
_Build = Callable[[LabelSet, int, str], Any]


@dataclass(frozen=True)
class Method:
    """A row of the tables.

    name : the name of the row
    group : the table that has the row
    build : function that returns the unfitted estimator for a set, seed and device
    probe : the classifier trained on the labels; "auto" is `Probe`
    columns : "features", or "coefficients" for the coefficients of a decomposition instead of its isometric features
    most_seeds : maximum number of seeds; one for slow methods
    standardised : whether features are standardised on the windows that others learn from, and limited to ±6
    needs : the package that the method needs and polyadic does not; "" for none
    """

    name: str
    group: Group
    build: _Build
    probe: ProbeKind = "auto"
    columns: Literal["features", "coefficients"] = "features"
    most_seeds: int = 10_000
    standardised: bool = False
    needs: str = ""

    @property
    def is_available(self) -> bool:
        """Whether the package that the method needs is installed."""
        return not self.needs or find_spec(self.needs) is not None


@dataclass(frozen=True)
class Features:
    """Features of all labelled windows.

    Z : (N, F)
    statistics : the columns that are statistics of the raw window
    """

    Z: NDArray[np.float32]
    statistics: NDArray[np.intp]


def features_of(one: Method, model: Any, windows: Any) -> Features:
    """Compute the inputs of a method's probe."""
    Z, columns = np.asarray(model.transform(windows), np.float32), statistic_columns(model)
    if one.columns == "coefficients":
        x = np.asarray(model.coefficients(windows), np.float64)
        # One common factor gives the variance of the isometric features, so that statistics have the same weight.
        x *= np.sqrt(x.shape[1] / max(float(x.var(axis=0).sum()), 1e-300))
        Z = np.hstack([x.astype(np.float32), Z[:, columns]])
        columns = np.arange(x.shape[1], Z.shape[1])
    return Features(Z, columns)


def _default(changes: Callable[[LabelSet], dict[str, Any]] = lambda _: {}) -> _Build:
    """Build the library's defaults with some arguments changed."""

    def build(data: LabelSet, seed: int, device: str) -> Any:
        changed = changes(data)
        kind = ATD if "augment" in changed else CPD
        return kind(**{"device": device, "random_state": seed, **_small(data), **changed})

    return build


def _small(data: LabelSet) -> dict[str, Any]:
    return {"rank": 4, "max_sweeps": 3} if data.name == "synthetic" else {}


def _frames(data: LabelSet, **changes: Any) -> STFT:
    return replace(recommended_stft(data.windows.shape[2], data.windows.fs), **changes)


def _paper(kind: type[ATD] | type[SALS]) -> _Build:
    def build(data: LabelSet, seed: int, device: str) -> Any:
        known = dict(data.paper.parameters)
        if kind is SALS:
            known = {name: value for name, value in known.items() if name not in ("beta", "gamma", "rounds")}
        else:
            known["augment"] = data.paper.augment
        return kind(tensorize=data.paper.tensorize, device=device, random_state=seed, **known)

    return build


def _hand(data: LabelSet, seed: int, device: str) -> Any:
    return HandFeatures(device=device, random_state=seed)


def _mini_rocket(data: LabelSet, seed: int, device: str) -> Any:
    return MiniRocket(840 if data.name == "synthetic" else 10_000, device=device, random_state=seed)


def _pca(data: LabelSet, seed: int, device: str) -> Any:
    size = 4 if data.name == "synthetic" else 32
    return PCAFeatures(size, tensorize=_frames(data), device=device, random_state=seed)


class _TangentSpace(BaseEstimator):  # type: ignore[misc]
    """Channel covariances projected to the tangent space at their mean, by pyRiemann, for `Windows`."""

    def fit(self, windows: Any) -> _TangentSpace:
        from pyriemann.estimation import Covariances
        from pyriemann.tangentspace import TangentSpace

        self._steps = make_pipeline(Covariances("lwf"), TangentSpace("riemann"))
        self._steps.fit(np.asarray(windows.X, np.float64))
        return self

    def transform(self, windows: Any) -> NDArray[np.float64]:
        Z: NDArray[np.float64] = self._steps.transform(np.asarray(windows.X, np.float64))
        return Z

    @property
    def n_parameters_(self) -> int:
        return int(self._steps[-1].reference_.size)


METHODS: tuple[Method, ...] = (
    Method(DEFAULT, "default", _default()),
    Method("hand features", "rivals", _hand, standardised=True),
    Method("MiniRocket", "rivals", _mini_rocket, most_seeds=1),
    Method("PCA-32", "rivals", _pca),
    Method("statistics", "rivals", lambda _, seed, device: StatisticsFeatures(device=device), standardised=True),
    Method("tangent space", "rivals", lambda *_: _TangentSpace(), needs="pyriemann"),
    Method("the paper's ATD, plain probe", "paper", _paper(ATD), probe="plain"),
    Method("the paper's SALS, plain probe", "paper", _paper(SALS), probe="plain"),
    Method("the paper's ATD, Probe", "paper", _paper(ATD)),
    Method("the paper's SALS, Probe", "paper", _paper(SALS)),
    Method("log|Re| and log|Im|", "less", _default(lambda d: {"tensorize": _frames(d, parts="log_re_im")})),
    Method("no centring", "less", _default(lambda d: {"tensorize": _frames(d, mean=None)})),
    Method("a floor for each channel", "less", _default(lambda d: {"tensorize": _frames(d, floor="channel")})),
    Method("coefficients for isometric features", "less", _default(), columns="coefficients"),
    Method("no statistics", "less", _default(lambda d: {"readout": Readout(statistics=0.0)})),
    Method("ATD", "rivals", _default(lambda d: {"augment": Jitter(0.05)})),
    Method("profiles of either sign", "less", _default(lambda d: {"nonnegative": False})),
    Method("standardised probe, not validated", "less", _default(), probe="standardised"),
)  # fmt: skip


RELEASE = (DEFAULT, "ATD", "the paper's ATD, plain probe", "the paper's ATD, Probe", "statistics", "hand features",
           "MiniRocket", "PCA-32", "tangent space")  # fmt: skip
"""The methods of a release's table, the default of `python -m paper labels`."""
FROZEN = ("MiniRocket", "the paper's ATD, plain probe", "the paper's ATD, Probe")
"""Slow methods whose scores with a plain probe are those of 0.2.0; their features have not changed."""


def method(name: str) -> Method:
    """Return a method by its name."""
    known = {one.name: one for one in METHODS}
    if name not in known:
        raise PolyadicError(f"--method must be one of {'; '.join(known)}, but is {name!r}")
    return known[name]
