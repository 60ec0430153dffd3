"""The methods of the label curve: the default, its ablations, its variants with views, and baselines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.pipeline import make_pipeline

from paper.labels.people import LabelSet
from paper.scoring import statistic_columns
from polyadic import ATD, CPD, SALS
from polyadic.augment import Augmentation, Bandpass, Compose, Jitter, WindowIndex, split_pairing
from polyadic.errors import PolyadicError
from polyadic.presets import PAPER_METHOD
from polyadic.readout import Readout
from polyadic.spectral import STFT, recommended_stft
from polyadic.tuning import views_for

DEFAULT = "polyadic"
"""The method that all others are compared with: the library's defaults."""

Group = Literal["default", "rivals", "paper", "less", "views"]
ProbeKind = Literal["auto", "plain", "standardised"]

_OLD_LONGEST_FRAME = 256
_COPIES = 3
"""Number of views of each labelled window that an augmented probe is trained on, in addition to the window."""
_BETAS = (2.0, 25.0, 125.0)


@dataclass(frozen=True)
class Method:
    """A row of the tables.

    name : the name of the row
    group : the table that has the row
    build : function that returns the unfitted estimator for a set, seed, device and number of epochs
    probe : the classifier trained on the labels; "auto" is `Probe`
    columns : "features", or "coefficients" for the coefficients of a decomposition instead of its isometric features
    is_classifier : whether the estimator itself is trained on the labels
    most_seeds : maximum number of seeds; one for slow methods
    standardised : whether features are standardised on the windows that others learn from, and limited to ±6
    probe_view : the name of the view that the probe is also trained on; "" for none
    view : the name of the view that the method uses in any way; "" for none
    """

    name: str
    group: Group
    build: Callable[[LabelSet, int, str, int], Any]
    probe: ProbeKind = "auto"
    columns: Literal["features", "coefficients"] = "features"
    is_classifier: bool = False
    most_seeds: int = 10_000
    standardised: bool = False
    probe_view: str = ""
    view: str = ""

    def suits(self, data: LabelSet) -> bool:
        """Return whether the method's view can be made from the windows of a set."""
        return self.view in ("", *_views(data))


@dataclass(frozen=True)
class Features:
    """Features of all labelled windows.

    Z : (N, F)
    statistics : the columns that are statistics of the raw window
    copies : (copies, N, F), features of views for an augmented probe; NaN for windows without such a view
    """

    Z: NDArray[np.float32]
    statistics: NDArray[np.intp]
    copies: NDArray[np.float32]


def features_of(one: Method, model: Any, data: LabelSet, windows: Any) -> Features:
    """Compute the inputs of a method's probe."""
    Z, columns = np.asarray(model.transform(windows), np.float32), statistic_columns(model)
    if one.columns == "coefficients":
        x = np.asarray(model.coefficients(windows), np.float64)
        # One common factor gives the variance of the isometric features, so that statistics have the same weight.
        x *= np.sqrt(x.shape[1] / max(float(x.var(axis=0).sum()), 1e-300))
        Z = np.hstack([x.astype(np.float32), Z[:, columns]])
        columns = np.arange(x.shape[1], Z.shape[1])
    copies = _view_features(model, _views(data)[one.probe_view], windows) if one.probe_view else Z[None][:0]
    return Features(Z, columns, copies)


def _view_features(model: Any, view: Augmentation, windows: Any) -> NDArray[np.float32]:
    """Return features (copies, N, F) of views: one view for partner windows, several for random augmentations."""
    pairing, _ = split_pairing(view)
    X = torch.from_numpy(np.ascontiguousarray(windows.X, np.float32))
    if pairing is None:
        return np.stack([model.transform(view(X, sweep=sweep).numpy()) for sweep in range(_COPIES)])
    partner = pairing.partners(WindowIndex.of(windows), torch.arange(len(X))).numpy()
    found: NDArray[np.float32] = np.asarray(model.transform(windows), np.float32)[partner]
    found[partner < 0] = np.nan
    return found[None]


def _default(changes: Callable[[LabelSet], dict[str, Any]] = lambda _: {}) -> Callable[[LabelSet, int, str, int], Any]:
    """Build the library's defaults with some arguments changed."""

    def build(data: LabelSet, seed: int, device: str, epochs: int) -> Any:
        changed = changes(data)
        kind = ATD if "augment" in changed else CPD
        return kind(**{"device": device, "random_state": seed, **_small(data), **changed})

    return build


def _small(data: LabelSet) -> dict[str, Any]:
    return {"rank": 4, "max_sweeps": 3} if data.name == "synthetic" else {}


def _frames(data: LabelSet, **changes: Any) -> STFT:
    return replace(recommended_stft(data.windows.shape[2], data.windows.fs), **changes)


def _views(data: LabelSet) -> dict[str, Augmentation]:
    """Return the views that suit a set, by name."""
    return {**views_for(data.windows), "the paper's": data.paper.augment}


_VIEWS = ("jitter 0.05", "jitter 0.3", "neighbour", "distant neighbour", "rotation 20°", "dropped channels", "shift",
          "scale", "band-pass", "the paper's")  # fmt: skip


def _view_methods() -> list[Method]:
    """Return the methods with a second view: in the fit, with the paper's loss, in the readout, and in the probe."""

    def fitted(name: str, beta: float = 0.0) -> Callable[[LabelSet, int, str, int], Any]:
        return _default(lambda data: {"augment": _views(data)[name], "beta": beta})

    def whitened(name: str) -> Callable[[LabelSet, int, str, int], Any]:
        return _default(lambda data: {"readout": Readout(whiten=_views(data)[name])})

    return [
        *(Method(f"in the fit: {name}", "views", fitted(name), view=name) for name in _VIEWS),
        *(Method(f"the paper's loss, β = {beta:g}", "views", fitted("the paper's", beta)) for beta in _BETAS),
        *(Method(f"whitening: {name}", "views", whitened(name), view=name) for name in _VIEWS),
        *(Method(f"in the probe: {name}", "views", _default(), probe_view=name, view=name) for name in _VIEWS),
    ]


def _paper(kind: type[ATD] | type[SALS]) -> Callable[[LabelSet, int, str, int], Any]:
    def build(data: LabelSet, seed: int, device: str, epochs: int) -> Any:
        known = dict(data.paper.parameters)
        if kind is SALS:
            known = {name: value for name, value in known.items() if name not in ("beta", "gamma", "rounds")}
        else:
            known["augment"] = data.paper.augment
        return kind(tensorize=data.paper.tensorize, device=device, random_state=seed, **known)

    return build


def _first_release(data: LabelSet, seed: int, device: str, epochs: int) -> Any:
    """Build the default model of `polyadic fit` 0.1.0: short frames, two views, the paper's loss."""
    length, fs = data.windows.shape[2], float(data.windows.fs or 1.0)
    n_fft = max(2, min(_OLD_LONGEST_FRAME, 1 << max(length // 4, 2).bit_length() - 1))
    views = Compose([Jitter(0.05), Bandpass([(0.01 * fs, 0.3 * fs), (0.1 * fs, 0.49 * fs)], fs)])
    frames = STFT(n_fft, max(1, n_fft // 4), floor="channel")
    shared = {"tensorize": frames, "augment": views, "device": device, "random_state": seed}
    return ATD(**{**PAPER_METHOD, **shared, **_small(data)})


def _baseline(kind: str) -> Callable[[LabelSet, int, str, int], Any]:
    def build(data: LabelSet, seed: int, device: str, epochs: int) -> Any:
        from paper.baselines import ReferenceCNN, SimCLR
        from polyadic import baselines

        shared: dict[str, Any] = {"device": device, "random_state": seed}
        if kind == "Hand":
            return baselines.HandFeatures(**shared)
        if kind == "MiniRocket":
            return baselines.MiniRocket(840 if data.name == "synthetic" else 10_000, **shared)
        if kind == "PCA":
            return baselines.PCAFeatures(4 if data.name == "synthetic" else 32, tensorize=_frames(data), **shared)
        tuned = dict(data.tuned.get(kind, {}))
        paper = data.paper.tensorize
        frames = STFT(paper.n_fft, paper.hop, floor="channel")
        frames = replace(frames, **{name: tuned.pop(name) for name in ("window", "parts") if name in tuned})
        deep = {"tensorize": frames, "max_epochs": epochs, **shared}
        if kind == "CNN":
            return ReferenceCNN(**deep, **tuned)
        views = Jitter(0.05) if tuned.pop("views", None) == "jitter 0.05" else data.paper.augment
        return SimCLR(32, augment=views, **deep, **tuned)

    return build


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
    Method("hand features", "rivals", _baseline("Hand"), standardised=True),
    Method("MiniRocket", "rivals", _baseline("MiniRocket"), most_seeds=1),
    Method("PCA-32", "rivals", _baseline("PCA")),
    Method("tangent space", "rivals", lambda *_: _TangentSpace()),
    Method("CNN, supervised", "rivals", _baseline("CNN"), is_classifier=True, most_seeds=1),
    Method("SimCLR-32", "rivals", _baseline("SimCLR"), most_seeds=1),
    Method("polyadic 0.1.0, standardised probe", "paper", _first_release, probe="standardised"),
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
    *_view_methods(),
)  # fmt: skip


def method(name: str) -> Method:
    """Return a method by its name."""
    known = {one.name: one for one in METHODS}
    if name not in known:
        raise PolyadicError(f"--method must be one of {'; '.join(known)}, but is {name!r}")
    return known[name]
