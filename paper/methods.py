"""The methods of an experiment with their settings: how each is built, fitted and scored with one seed."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import RidgeClassifier, RidgeClassifierCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

import paper.baselines
import polyadic.baselines
from paper.scoring import PROBES, score_classifier, score_split, unthreaded
from paper.speed.measure import seconds_per_sweep
from polyadic import ATD, GRSALS, SALS
from polyadic._util.random_streams import permutation
from polyadic.augment import Augmentation, Compose, Jitter, Rotate3D
from polyadic.data import Split, Windows, split
from polyadic.errors import PolyadicError
from polyadic.spectral import STFT

Row = dict[str, Any]
Protocol = Literal["paper", "subject"]
Kind = Literal["features", "supervised features", "classifier"]

_TENSOR_METHODS = ("ATD", "ATD_ss-", "GR-SALS", "SALS")
_SUPERVISED: dict[str, Kind] = {"UMLDA": "supervised features", "STL": "classifier", "CNN": "classifier"}
_FIT_WINDOWS = 1024
"""Number of unlabelled windows on which the relative error is measured."""


@dataclass(frozen=True)
class ExperimentSettings:
    """The settings that all methods of an experiment share.

    Parameters
    ----------
    windows : the data
    dataset : name of the paper's dataset, for its settings and its results in the paper
    tensorize, augment, parameters : frames, augmentations and other arguments of the tensor methods
    seeds, protocols : seeds and protocols, with all of which each method is run
    max_unlabelled, max_labelled : maximum number of windows to learn from and to train a probe on; None for all
    epochs : maximum number of epochs of the deep baselines
    device : where to compute
    tuned : settings of methods by family: arguments of the estimator, `window` and `parts` of its frames, and `views`
        by a name that `choose_views` knows
    """

    windows: Windows
    dataset: str
    tensorize: STFT
    augment: Augmentation
    parameters: dict[str, Any]
    seeds: Sequence[int]
    protocols: Sequence[Protocol]
    max_unlabelled: int | None = None
    max_labelled: int | None = None
    epochs: int = 100
    device: str = "auto"
    tuned: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def with_views(self, augment: Augmentation) -> ExperimentSettings:
        """Return the same settings with other views, which override those of the tuned settings."""
        tuned = {name: {k: v for k, v in own.items() if k != "views"} for name, own in self.tuned.items()}
        return replace(self, augment=augment, tuned=tuned)

    def split_for(self, protocol: Protocol, seed: int) -> Split:
        """Return the split for a seed, with its unlabelled and training parts reduced to the maximum sizes."""
        whole = split(self.windows, protocol, random_state=seed)
        rng = np.random.default_rng(seed)
        unlabelled, train = whole.unlabelled, whole.train
        if self.max_unlabelled is not None and len(unlabelled) > self.max_unlabelled:
            unlabelled = np.sort(rng.choice(unlabelled, self.max_unlabelled, replace=False))
        if self.max_labelled is not None and len(train) > self.max_labelled:
            train = train[low_label_rows(self.windows.label[train], self.max_labelled, seed)]
        return replace(whole, unlabelled=unlabelled, train=train)


@dataclass(frozen=True)
class MethodVariant:
    """A method with specific settings.

    labels : columns that identify the variant within its experiment, such as method and rank
    changes : arguments of the estimator other than those of the experiment's settings
    augment : augmentations that replace those of the settings
    label_counts : numbers of labelled windows to score the method with; by default all
    """

    labels: dict[str, Any]
    changes: dict[str, Any]
    augment: Augmentation | None = None
    label_counts: tuple[int, ...] = ()

    @property
    def method(self) -> str:
        """The method's name in the paper."""
        return str(self.labels["method"])

    @property
    def kind(self) -> Kind:
        """Whether the method learns features without labels, features with labels, or is a classifier itself."""
        return _SUPERVISED.get(self.method, "features")

    def build(self, settings: ExperimentSettings, seed: int) -> Any:
        """Return the unfitted estimator."""
        name = self.method
        changes = _as_arguments({**settings.tuned.get(family(name), {}), **self.changes}, settings)
        shared = {"tensorize": settings.tensorize, "device": settings.device, "random_state": seed}
        if name in _TENSOR_METHODS:
            arguments = {"augment": settings.augment, **settings.parameters, **shared, **changes}
            return _build_tensor_method(name, arguments)
        _, _, dim = name.partition("-")
        return _build_baseline(family(name), int(dim) if dim.isdigit() else 32, {**shared, **changes}, settings)


def variant(
    name: str,
    labels: dict[str, Any] | None = None,
    augment: Augmentation | None = None,
    label_counts: tuple[int, ...] = (),
    **changes: Any,
) -> MethodVariant:
    """Return a method by its name in the paper, with some settings changed.

    Parameters
    ----------
    name : ATD, ATD_ss-, GR-SALS, SALS; SimCLR-32, BYOL-128, AE-32, AE_ss-32 and the like; CNN, UMLDA, STL; PCA-32,
        Hand, MiniRocket
    labels : labels of the variant, in addition to the method
    augment, label_counts, changes : as for `MethodVariant`
    """
    return MethodVariant({"method": name, **(labels or {})}, changes, augment, label_counts)


def family(name: str) -> str:
    """Return a method's name without its number of features, because all sizes share tuned settings.

    Examples
    --------
    >>> family("SimCLR-128"), family("GR-SALS")
    ('SimCLR', 'GR-SALS')
    """
    kind, _, dim = name.partition("-")
    return kind if dim.isdigit() else name


def _as_arguments(tuned: dict[str, Any], settings: ExperimentSettings) -> dict[str, Any]:
    """Return tuned settings as arguments of an estimator; frames and views are derived from those of the experiment."""
    arguments = dict(tuned)
    frames = {name: arguments.pop(name) for name in ("window", "parts") if name in arguments}
    if frames:
        arguments["tensorize"] = replace(settings.tensorize, **frames)
    if "views" in arguments:
        arguments["augment"] = choose_views(settings.augment, arguments.pop("views"))
    return arguments


def choose_views(augment: Augmentation, name: str) -> Augmentation:
    """Return the augmentation with a given name, derived from the augmentations of a dataset.

    Parameters
    ----------
    name : "all"; "no rotation"; "jitter 0.3" and the like for only a jitter of that degree

    Examples
    --------
    >>> choose_views(Compose([Jitter(0.002), Rotate3D([(0, 1, 2)])]), "no rotation")
    Compose(steps=(Jitter(degree=0.002),))
    >>> choose_views(Jitter(0.002), "jitter 0.3")
    Jitter(degree=0.3)
    """
    if name == "all":
        return augment
    if name == "no rotation":
        steps = augment.steps if isinstance(augment, Compose) else (augment,)
        kept = [step for step in steps if not isinstance(step, Rotate3D)]
        return augment if len(kept) == len(steps) else Compose(kept)
    word, _, degree = name.partition(" ")
    if word == "jitter" and re.fullmatch(r"\d+(\.\d+)?", degree):
        return Jitter(float(degree))
    raise PolyadicError(f"views must be all, no rotation or jitter DEGREE, but is {name!r}")


def _build_tensor_method(name: str, arguments: dict[str, Any]) -> ATD | SALS | GRSALS:
    if name == "ATD":
        return ATD(**arguments)
    if name == "ATD_ss-":
        return ATD(**{**arguments, "beta": 0.0})
    known = {key: value for key, value in arguments.items() if key not in ("augment", "beta", "gamma", "rounds")}
    return SALS(**known) if name == "SALS" else GRSALS(**known)


def _build_baseline(kind: str, dim: int, both: dict[str, Any], settings: ExperimentSettings) -> Any:
    deep = {"max_epochs": settings.epochs, **both}
    views = {"augment": settings.augment, **deep}
    raw = {**both, "tensorize": None}
    rank = int(settings.parameters.get("rank", 32))
    kinds: dict[str, tuple[Any, tuple[int, ...], dict[str, Any]]] = {
        "SimCLR": (paper.baselines.SimCLR, (dim,), views),
        "BYOL": (paper.baselines.BYOL, (dim,), views),
        "AE": (paper.baselines.AutoEncoder, (dim,), deep),
        "AE_ss": (paper.baselines.AutoEncoder, (dim,), {"contrastive": True, **views}),
        "CNN": (paper.baselines.ReferenceCNN, (), deep),
        "UMLDA": (paper.baselines.UMLDA, (rank,), both),
        "STL": (paper.baselines.STL, (), both),
        "PCA": (polyadic.baselines.PCAFeatures, (rank,), both),
        "Hand": (polyadic.baselines.HandFeatures, (), raw),
        "MiniRocket": (polyadic.baselines.MiniRocket, (), raw),
    }
    estimator, size, arguments = kinds[kind]
    return estimator(*size, **arguments)


def fit_and_score(one: MethodVariant, settings: ExperimentSettings, seed: int) -> list[Row]:
    """Fit a method with one seed and score it under each protocol; protocols with the same windows share a fit.

    Returns
    -------
    a row for each protocol and number of labels
    """
    settings = settings if one.augment is None else settings.with_views(one.augment)
    rows: list[Row] = []
    model, learned = None, np.empty(0, dtype=np.intp)
    messages: list[str] = []
    for protocol in settings.protocols:
        whole = settings.split_for(protocol, seed)
        for count in one.label_counts or (None,):
            part = _with_fewer_labels(whole, count, seed)
            if part is None:
                continue
            wanted = part.unlabelled if one.kind == "features" else part.train
            if model is None or not np.array_equal(wanted, learned):
                learned = wanted
                model, messages = _fit(one, settings, part, seed)
            labels = {**one.labels, **({} if count is None else {"labels": count})}
            known: Row = {"seed": seed, "protocol": protocol, "split": part.hash}
            if messages:
                known["warnings"] = messages
            rows.append({**labels, **known, **_describe_fit(one, model, settings, part, seed)})
    return rows


def _fit(one: MethodVariant, settings: ExperimentSettings, part: Split, seed: int) -> tuple[Any, list[str]]:
    """Return the estimator of a method, fitted to its training data, and the warnings of the fit."""
    unlabelled, train, _ = part
    model = one.build(settings, seed)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        # The paper's methods run a fixed number of sweeps.
        warnings.filterwarnings("ignore", "The fit stopped at max_sweeps", ConvergenceWarning)
        model.fit(unlabelled) if one.kind == "features" else model.fit(train, train.label)
    return model, sorted({str(warning.message) for warning in caught})


def low_label_rows(y: NDArray[Any], count: int, random_state: int = 0) -> NDArray[np.intp]:
    """Choose `count` of the labelled windows, for a learning curve over the number of labels: row numbers, ascending.

    The choice is stratified: classes keep their proportions, and each has at least one window if `count` allows it
    (else the most frequent ones do). With the same `random_state`, a smaller count gives a subset of a larger one.
    """
    shuffled = permutation(len(y), random_state, 0).numpy()
    _, codes, sizes = np.unique(y[shuffled], return_inverse=True, return_counts=True)
    # An order of all windows whose every prefix is stratified: the k-th window of a class of n is placed at (k+½)/n,
    # except that the first window of each class precedes all others.
    turn = np.empty(len(y))
    for code, size in enumerate(sizes):
        turn[codes == code] = [-size, *((np.arange(1, size) + 0.5) / size)]
    chosen: NDArray[np.intp] = np.sort(shuffled[np.argsort(turn, kind="stable")[: int(count)]])
    return chosen


def _with_fewer_labels(part: Split, count: int | None, seed: int) -> Split | None:
    """Return the split with this many training windows; None if it has fewer, or fewer than two classes."""
    if count is None or len(part.train) < count:
        return part if count is None else None
    chosen = part.train[low_label_rows(part.windows.label[part.train], count, seed)]
    return replace(part, train=chosen) if len(np.unique(part.windows.label[chosen])) > 1 else None


def _score(one: MethodVariant, model: Any, part: Split, augment: Augmentation, seed: int) -> Row:
    """Return the scores of a fitted model by all probes, as `paper.scoring.score_split` does."""
    # The last bit of a network's features depends on the number of threads, which can change predictions near a tie.
    with unthreaded():
        if one.kind == "classifier":
            return score_classifier(model, part, augment, seed)
        return score_split(model, part, augment, seed, _ridge_probes if one.method == "MiniRocket" else None)


def _ridge_probes(Z_train: NDArray[Any], y_train: NDArray[Any]) -> dict[str, Any]:
    """Return the classifier that MiniRocket's authors recommend, in place of every probe."""

    def with_scaling(classifier: Any) -> Any:
        return make_pipeline(FunctionTransformer(np.float64), StandardScaler(with_mean=False), classifier)

    # Choose the penalty on the clean windows only: cross-validation that includes augmented copies would take minutes.
    chosen = with_scaling(RidgeClassifierCV(np.logspace(-3, 3, 10))).fit(Z_train, y_train)
    return {kind: with_scaling(RidgeClassifier(chosen[-1].alpha_)) for kind in PROBES}


def _describe_fit(one: MethodVariant, model: Any, settings: ExperimentSettings, part: Split, seed: int) -> Row:
    """Return sizes, seconds, scores and, for the tensor methods, the fit and the weight of the self-supervised term."""
    row: Row = {"n_train": len(part.train), "n_test": len(part.test), "parameters": int(model.n_parameters_)}
    seconds = model.history_.get("seconds", [])
    if len(seconds):
        row |= {"seconds": seconds_per_sweep(seconds), "sweeps": len(seconds)}
    for kind, scores in _score(one, model, part, settings.augment, seed).items():
        # No table or figure has accuracies of single subjects, which would dominate the file size.
        row[kind] = {name: value for name, value in scores.items() if name != "per_subject"}
    if one.method in _TENSOR_METHODS:
        row["fit"] = model.score(settings.windows[part.unlabelled[:_FIT_WINDOWS]])
        last = {name: values[-1] for name, values in model.history_.items() if name != "seconds"}
        row["share_of_self_supervised"] = abs(last["self_supervised"]) / max(last["fit"], 1e-300)
    return row
