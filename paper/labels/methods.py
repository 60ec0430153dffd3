"""The methods of the label curve: the default, and baselines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.pipeline import make_pipeline

from paper.baselines import HandFeatures
from paper.labels.people import LabelSet
from polyadic import ATD, CPD
from polyadic.augment import Jitter
from polyadic.baselines import MiniRocket, PCAFeatures
from polyadic.errors import PolyadicError
from polyadic.spectral import recommended_stft
from polyadic.statistics import window_statistics

DEFAULT = "polyadic"
"""The method that all others are compared with: the library's defaults."""

_Build = Callable[[LabelSet, int, str], Any]


@dataclass(frozen=True)
class Method:
    """A row of the tables.

    name : the name of the row
    build : function that returns the unfitted estimator for a set, seed and device
    probe : the classifier trained on the labels; "auto" is `Probe`, "plain" the paper's logistic regression
    most_seeds : maximum number of seeds; one for slow methods
    standardised : whether features are standardised on the windows that others learn from, and limited to ±6
    needs : the package that the method needs and polyadic does not; "" for none
    """

    name: str
    build: _Build
    probe: Literal["auto", "plain"] = "auto"
    most_seeds: int = 10_000
    standardised: bool = False
    needs: str = ""

    @property
    def is_available(self) -> bool:
        """Whether the package that the method needs is installed."""
        return not self.needs or find_spec(self.needs) is not None


def _default(data: LabelSet, seed: int, device: str) -> Any:
    return CPD(device=device, random_state=seed, **_small(data))


def _atd(data: LabelSet, seed: int, device: str) -> Any:
    return ATD(augment=Jitter(0.05), device=device, random_state=seed, **_small(data))


def _small(data: LabelSet) -> dict[str, Any]:
    return {"rank": 4, "max_sweeps": 3} if data.name == "synthetic" else {}


def _paper(data: LabelSet, seed: int, device: str) -> Any:
    views = {"tensorize": data.paper.tensorize, "augment": data.paper.augment}
    return ATD(device=device, random_state=seed, **views, **data.paper.parameters)


def _hand(data: LabelSet, seed: int, device: str) -> Any:
    return HandFeatures(device=device, random_state=seed)


def _mini_rocket(data: LabelSet, seed: int, device: str) -> Any:
    return MiniRocket(840 if data.name == "synthetic" else 10_000, device=device, random_state=seed)


def _pca(data: LabelSet, seed: int, device: str) -> Any:
    size = 4 if data.name == "synthetic" else 32
    return PCAFeatures(
        size, tensorize=recommended_stft(data.windows.shape[2], data.windows.fs), device=device, random_state=seed
    )


class _Statistics(BaseEstimator):  # type: ignore[misc]
    """The statistics of polyadic alone, for `Windows`."""

    n_parameters_ = 0

    def fit(self, windows: Any) -> _Statistics:
        return self

    def transform(self, windows: Any) -> NDArray[np.float64]:
        return window_statistics(torch.from_numpy(np.asarray(windows.X, np.float32))).numpy()


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
    Method(DEFAULT, _default),
    Method("ATD", _atd),
    Method("the paper's ATD, plain probe", _paper, probe="plain"),
    Method("the paper's ATD, Probe", _paper),
    Method("statistics", lambda *_: _Statistics(), standardised=True),
    Method("hand features", _hand, standardised=True),
    Method("MiniRocket", _mini_rocket, most_seeds=1),
    Method("PCA-32", _pca),
    Method("tangent space", lambda *_: _TangentSpace(), needs="pyriemann"),
)


def method(name: str) -> Method:
    """Return a method by its name."""
    known = {one.name: one for one in METHODS}
    if name not in known:
        raise PolyadicError(f"--method must be one of {'; '.join(known)}, but is {name!r}")
    return known[name]
