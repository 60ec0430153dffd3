"""The methods of an experiment with their settings: how each is built, fitted and scored with one seed."""

from __future__ import annotations

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

from paper.baselines import BYOL, STL, UMLDA, AutoEncoder, HandFeatures, ReferenceCNN, SimCLR
from paper.scoring import PROBES, score_classifier, score_split, unthreaded
from paper.speed.measure import seconds_per_sweep
from polyadic import ATD, GRSALS, SALS
from polyadic._util.random_streams import permutation
from polyadic.augment import Augmentation, Compose, Jitter, Rotate3D
from polyadic.baselines import MiniRocket, PCAFeatures
from polyadic.data import Split, Windows, split
from polyadic.spectral import STFT

Row = dict[str, Any]
Protocol = Literal["subject", "paper"]
PROTOCOLS: tuple[Protocol, ...] = ("subject", "paper")

_TENSOR_METHODS = ("ATD", "ATD_ss-", "GR-SALS", "SALS")
_CLASSIFIERS = ("STL", "CNN")
_SUPERVISED = (*_CLASSIFIERS, "UMLDA")
_ESTIMATORS: dict[str, tuple[Any, dict[str, Any]]] = {
    "ATD": (ATD, {}),
    "ATD_ss-": (ATD, {"beta": 0.0}),
    "GR-SALS": (GRSALS, {}),
    "SALS": (SALS, {}),
    "SimCLR": (SimCLR, {}),
    "BYOL": (BYOL, {}),
    "AE": (AutoEncoder, {"augment": None}),
    "AE_ss": (AutoEncoder, {"contrastive": True}),
    "CNN": (ReferenceCNN, {"augment": None}),
    "UMLDA": (UMLDA, {}),
    "STL": (STL, {}),
    "PCA": (PCAFeatures, {}),
    "Hand": (HandFeatures, {}),
    "MiniRocket": (MiniRocket, {}),
}
"""The estimator of each method, and the arguments that define the method."""


@dataclass(frozen=True)
class ExperimentSettings:
    """The settings that all methods of an experiment share.

    Parameters
    ----------
    windows, dataset : the data, and the name of the paper's dataset
    tensorize, augment, parameters : frames, augmentations and other arguments of the tensor methods
    seeds : seeds, with all of which each method is run
    max_unlabelled, max_labelled : maximum number of windows to learn from and to train a probe on; None for all
    epochs : maximum number of epochs of the deep baselines
    tuned : settings of methods by family: arguments of the estimator, `window` and `parts` of its frames, and `views`:
        "all", "no rotation" or "jitter DEGREE"
    """

    windows: Windows
    dataset: str
    tensorize: STFT
    augment: Augmentation
    parameters: dict[str, Any]
    seeds: Sequence[int]
    max_unlabelled: int | None = None
    max_labelled: int | None = None
    epochs: int = 100
    device: str = "auto"
    tuned: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

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
class Variant:
    """A method with specific settings.

    method : its name in the paper, with the number of features for the deep baselines and PCA, such as BYOL-128
    labels : further columns that identify the variant within its experiment, such as the rank
    changes : arguments of the estimator other than those of the experiment's settings
    augment : augmentations that replace those of the settings
    label_counts : numbers of labelled windows to score the method with; None for all
    """

    method: str
    labels: dict[str, Any] = field(default_factory=dict)
    changes: dict[str, Any] = field(default_factory=dict)
    augment: Augmentation | None = None
    label_counts: tuple[int | None, ...] = (None,)

    def build(self, settings: ExperimentSettings, seed: int) -> Any:
        """Return the unfitted estimator."""
        family = family_of(self.method)
        size = self.method.removeprefix(f"{family}-")
        estimator, fixed = _ESTIMATORS[family]
        shared: dict[str, Any] = {"tensorize": settings.tensorize, "augment": settings.augment}
        shared |= {"device": settings.device, "random_state": seed, "max_epochs": settings.epochs}
        shared["dim"] = int(size) if family in ("SimCLR", "BYOL", "AE", "AE_ss") else settings.parameters["rank"]
        if family in _TENSOR_METHODS:
            shared |= settings.parameters
        known = {name: value for name, value in shared.items() if name in estimator._get_param_names()}
        tuned = dict(settings.tuned.get(family, {}))
        if frames := {name: tuned.pop(name) for name in ("window", "parts") if name in tuned}:
            tuned["tensorize"] = replace(settings.tensorize, **frames)
        if "views" in tuned:
            tuned["augment"] = _chosen_views(settings.augment, tuned.pop("views"))
        own = {} if self.augment is None else {"augment": self.augment}
        return estimator(**{**known, **tuned, **own, **self.changes, **fixed})


def family_of(name: str) -> str:
    """Return a method's name without its number of features, SimCLR for SimCLR-128; all sizes share tuned settings."""
    return name if name in _ESTIMATORS else name.rpartition("-")[0]


def _chosen_views(augment: Augmentation, name: str) -> Augmentation:
    """Return the augmentation with a name of the tuned settings, derived from the augmentations of a dataset."""
    if name == "no rotation" and isinstance(augment, Compose):
        return Compose([step for step in augment.steps if not isinstance(step, Rotate3D)])
    return Jitter(float(name.removeprefix("jitter "))) if name.startswith("jitter ") else augment


# --------------------------------------------------------------------------------------------------- fits and scores


def fit_and_score(one: Variant, settings: ExperimentSettings, seed: int) -> list[Row]:
    """Fit a method with one seed, and return its scores for each protocol and number of labels.

    Protocols with the same windows share a fit.
    """
    augment = settings.augment if one.augment is None else one.augment
    rows: list[Row] = []
    model, learned = None, np.empty(0, dtype=np.intp)
    for protocol in PROTOCOLS:
        whole = settings.split_for(protocol, seed)
        for count in one.label_counts:
            part = _with_fewer_labels(whole, count, seed)
            if part is None:
                continue
            wanted = part.train if one.method in _SUPERVISED else part.unlabelled
            if model is None or not np.array_equal(wanted, learned):
                learned = wanted
                model, messages = _fit(one, settings, part, seed)
            row: Row = {"method": one.method, **one.labels, **({} if count is None else {"labels": count})}
            row |= {"seed": seed, "protocol": protocol, "split": part.hash}
            row |= {"warnings": messages} if messages else {}
            rows.append(row | _describe_fit(one, model, part) | _score(one, model, part, augment, seed))
    return rows


def _fit(one: Variant, settings: ExperimentSettings, part: Split, seed: int) -> tuple[Any, list[str]]:
    """Return the estimator of a method, fitted to its training data, and the warnings of the fit."""
    unlabelled, train, _ = part
    model = one.build(settings, seed)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        # The paper's methods run a fixed number of sweeps.
        warnings.filterwarnings("ignore", "The fit stopped at max_sweeps", ConvergenceWarning)
        model.fit(train, train.label) if one.method in _SUPERVISED else model.fit(unlabelled)
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


def _score(one: Variant, model: Any, part: Split, augment: Augmentation, seed: int) -> Row:
    """Return the scores of a fitted model by all probes, as `paper.scoring.score_split` does."""
    # The last bit of a network's features depends on the number of threads, which can change predictions near a tie.
    with unthreaded():
        if one.method in _CLASSIFIERS:
            found = score_classifier(model, part, augment, seed)
        else:
            found = score_split(model, part, augment, seed, _ridge_probes if one.method == "MiniRocket" else None)
    # No table or figure has accuracies of single subjects, which would dominate the file size.
    return {kind: {k: v for k, v in scores.items() if k != "per_subject"} for kind, scores in found.items()}


def _ridge_probes(Z_train: NDArray[Any], y_train: NDArray[Any]) -> dict[str, Any]:
    """Return the classifier that MiniRocket's authors recommend, in place of every probe."""

    def with_scaling(classifier: Any) -> Any:
        return make_pipeline(FunctionTransformer(np.float64), StandardScaler(with_mean=False), classifier)

    # Choose the penalty on the clean windows only: cross-validation that includes augmented copies would take minutes.
    chosen = with_scaling(RidgeClassifierCV(np.logspace(-3, 3, 10))).fit(Z_train, y_train)
    return {kind: with_scaling(RidgeClassifier(chosen[-1].alpha_)) for kind in PROBES}


def _describe_fit(one: Variant, model: Any, part: Split) -> Row:
    """Return sizes, seconds and, for the tensor methods, the weight of the self-supervised term relative to the fit."""
    row: Row = {"n_train": len(part.train), "n_test": len(part.test), "parameters": int(model.n_parameters_)}
    seconds = model.history_.get("seconds", [])
    if len(seconds):
        row |= {"seconds": seconds_per_sweep(seconds), "sweeps": len(seconds)}
    if one.method in _TENSOR_METHODS:
        fit, pull = (model.history_[name][-1] for name in ("fit", "self_supervised"))
        row["share_of_self_supervised"] = abs(pull) / max(fit, 1e-300)
    return row
