"""The arms of an experiment: methods with their settings, on one dataset, and how each is judged with one seed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import RidgeClassifier, RidgeClassifierCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from polyadic import ATD, GRSALS, SALS
from polyadic.augment import Augmentation
from polyadic.data import Split, Windows, split
from polyadic.data.splits import Protocol
from polyadic.evaluate import low_label_rows, probe
from polyadic.evaluate.augmented import augmented_features, perturbed
from polyadic.evaluate.metrics import scores
from polyadic.evaluate.timing import seconds_per_sweep
from polyadic.spectral import STFT

__all__ = ["Arm", "Context", "Row", "judged", "method"]

Row = dict[str, Any]
Kind = Literal["features", "supervised features", "classifier"]

_VIEWS = 4
_SUPERVISED = ("UMLDA", "STL", "CNN")
_CP_ALS_WINDOWS = 1_500
"""CP-ALS sees all windows at once in every iteration; on more than these it takes longer than all other methods."""


@dataclass(frozen=True)
class Context:
    """What all arms of an experiment have in common.

    windows : the data
    dataset : whose settings and whose figures in the paper they are compared with
    tensorize, augment, parameters : frames, augmentations and other arguments of the tensor methods
    seeds, protocols : what is repeated
    unlabelled, labelled : most windows to learn from and to train a probe on; None for all
    epochs : most epochs of the deep baselines
    device : where to compute
    """

    windows: Windows
    dataset: str
    tensorize: STFT
    augment: Augmentation
    parameters: dict[str, Any]
    seeds: Sequence[int]
    protocols: Sequence[Protocol]
    unlabelled: int | None = None
    labelled: int | None = None
    epochs: int = 100
    device: str = "auto"

    def parts(self, protocol: Protocol, seed: int) -> Split:
        """The split for a seed, its unlabelled and training part cut to what is asked for."""
        whole = split(self.windows, protocol, seed=seed)
        rng = np.random.default_rng(seed)
        unlabelled, train = whole.unlabelled, whole.train
        if self.unlabelled is not None and len(unlabelled) > self.unlabelled:
            unlabelled = np.sort(rng.choice(unlabelled, self.unlabelled, replace=False))
        if self.labelled is not None and len(train) > self.labelled:
            train = train[low_label_rows(self.windows.label[train], self.labelled, seed)]
        return replace(whole, unlabelled=unlabelled, train=train)


@dataclass(frozen=True)
class Arm:
    """A method with settings of its own.

    labels : what tells it from the other arms of its experiment, such as method and rank
    make : from context and seed to the estimator, unfitted
    kind : whether it learns features without labels, features with them, or is a classifier itself
    augment : views other than those of the context
    counts : numbers of labelled windows to judge it with; all there are if none are given
    """

    labels: dict[str, Any]
    make: Callable[[Context, int], Any]
    kind: Kind = "features"
    augment: Augmentation | None = None
    counts: tuple[int, ...] = ()


def method(
    name: str,
    labels: dict[str, Any] | None = None,
    augment: Augmentation | None = None,
    counts: tuple[int, ...] = (),
    **changes: Any,
) -> Arm:
    """An arm by the method's name in the paper, its settings changed by `changes`.

    Parameters
    ----------
    name : ATD, ATD_ss-, GR-SALS, SALS; SimCLR-32, BYOL-128, AE-32, AE_ss-32 and the like; CNN, UMLDA, STL; PCA-32,
        Hand, MiniRocket, CP-ALS
    labels : further ones than the method
    augment, counts : as for `Arm`
    changes : arguments of the estimator other than those of the context
    """
    kind: Kind = "features"
    if name in _SUPERVISED:
        kind = "supervised features" if name == "UMLDA" else "classifier"
    return Arm({"method": name, **(labels or {})}, _Maker(name, changes), kind, augment, counts)


@dataclass(frozen=True)
class _Maker:
    """Makes the estimator of a method; a class, so that it can be sent to other processes."""

    name: str
    changes: dict[str, Any]

    def __call__(self, context: Context, seed: int) -> Any:
        shared = {"tensorize": context.tensorize, "device": context.device, "random_state": seed}
        kind, _, dim = self.name.partition("-")
        if self.name in ("ATD", "ATD_ss-", "GR-SALS", "SALS"):
            return _tensor_method(self.name, {**context.parameters, **shared, **self.changes}, context.augment)
        return _baseline(kind, int(dim) if dim.isdigit() else 32, shared, self.changes, context)


def _tensor_method(name: str, arguments: dict[str, Any], augment: Augmentation) -> ATD | SALS | GRSALS:
    if name == "ATD":
        return ATD(augment=augment, **arguments)
    if name == "ATD_ss-":
        return ATD(augment=augment, **{**arguments, "beta": 0.0})
    known = {key: value for key, value in arguments.items() if key not in ("beta", "gamma", "rounds")}
    return SALS(**known) if name == "SALS" else GRSALS(**known)


def _baseline(kind: str, dim: int, shared: dict[str, Any], changes: dict[str, Any], context: Context) -> Any:
    from polyadic import baselines

    deep = {**shared, "max_epochs": context.epochs, **changes}
    views = {**deep, "augment": context.augment}
    rank = int(context.parameters.get("rank", 32))
    makers: dict[str, Callable[[], Any]] = {
        "SimCLR": lambda: baselines.SimCLR(dim, **views),
        "BYOL": lambda: baselines.BYOL(dim, **views),
        "AE": lambda: baselines.AutoEncoder(dim, **deep),
        "AE_ss": lambda: baselines.AutoEncoder(dim, contrastive=True, **views),
        "CNN": lambda: baselines.ReferenceCNN(**deep),
        "UMLDA": lambda: baselines.UMLDA(rank, **shared, **changes),
        "STL": lambda: baselines.STL(**shared, **changes),
        "PCA": lambda: baselines.PCAFeatures(rank, **shared, **changes),
        "Hand": lambda: baselines.HandFeatures(**{**shared, "tensorize": None}, **changes),
        "MiniRocket": lambda: baselines.MiniRocket(**{**shared, "tensorize": None}, **changes),
        "CP": lambda: baselines.CPALS(rank, **shared, **changes),
    }
    return makers[kind]()


def judged(arm: Arm, context: Context, seed: int) -> list[Row]:
    """Fit one arm with one seed and judge it under each protocol; a fit serves all protocols that share its windows."""
    context = context if arm.augment is None else replace(context, augment=arm.augment)
    rows: list[Row] = []
    model, learned = None, np.empty(0, dtype=np.intp)
    said: list[warnings.WarningMessage] = []
    for protocol in context.protocols:
        whole = context.parts(protocol, seed)
        for count in arm.counts or (None,):
            part = _cut(whole, count, seed)
            if part is None:
                continue
            wanted = part.unlabelled if arm.kind == "features" else part.train
            if model is None or not np.array_equal(wanted, learned):
                learned = wanted
                unlabelled, train, _ = part
                model = arm.make(context, seed)
                with warnings.catch_warnings(record=True) as said:
                    warnings.simplefilter("always", ConvergenceWarning)
                    if arm.labels["method"] == "CP-ALS":
                        unlabelled = unlabelled[:: -(-len(unlabelled) // _CP_ALS_WINDOWS)]
                    model.fit(unlabelled) if arm.kind == "features" else model.fit(train, train.label)
            labels = {**arm.labels, **({} if count is None else {"labels": count})}
            known: Row = {"seed": seed, "protocol": protocol, "split": part.hash}
            if said:
                known["warnings"] = sorted({str(one.message) for one in said})
            rows.append({**labels, **known, **_scores(arm, model, context, part, seed)})
    return rows


def _cut(part: Split, count: int | None, seed: int) -> Split | None:
    """The split with that many training windows; None if it has fewer, or not two classes among them."""
    if count is None:
        return part
    if len(part.train) < count:
        return None
    labels = part.windows.label[part.train]
    chosen = part.train[low_label_rows(labels, count, seed)]
    return replace(part, train=chosen) if len(np.unique(part.windows.label[chosen])) > 1 else None


def _ridge(classifier: Any) -> Any:
    return make_pipeline(StandardScaler(with_mean=False), classifier)


def _scores(arm: Arm, model: Any, context: Context, part: Split, seed: int) -> Row:
    _, train, test = part
    rough = perturbed(test, context.augment, seed)
    row: Row = {"n_train": len(train), "n_test": len(test), "parameters": int(model.n_parameters_)}
    seconds = getattr(model, "history_", {}).get("seconds", [])
    if len(seconds):
        row |= {"seconds": seconds_per_sweep(seconds), "sweeps": len(seconds)}
    subject = test.subject if (test.subject != "").all() else None
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        if arm.kind == "classifier":
            for kind in ("plain", "standardised"):
                row[kind] = scores(test.label, model.predict(test), subject)
                row[f"{kind} perturbed"] = scores(test.label, model.predict(rough))
            return row
        Z, Z_test, Z_rough = model.transform(train), model.transform(test), model.transform(rough)
        many = [Z, *(augmented_features(model, train, context.augment, view, seed) for view in range(_VIEWS))]
        trained: dict[str, tuple[Any, NDArray[Any], NDArray[Any]]] = {
            "plain": (probe("plain"), Z, train.label),
            "standardised": (probe("standardised"), Z, train.label),
            "augmented": (probe("standardised"), np.concatenate(many), np.tile(train.label, 1 + _VIEWS)),
        }
        if arm.labels["method"] == "MiniRocket":
            # As its authors do. Its penalty is chosen on the windows themselves, for cross-validation over five times
            # as many would take minutes.
            chosen = _ridge(RidgeClassifierCV(np.logspace(-3, 3, 10))).fit(Z.astype(np.float64), train.label)
            final = RidgeClassifier(chosen[-1].alpha_)
            trained = {name: (_ridge(final), F.astype(np.float64), y) for name, (_, F, y) in trained.items()}
        for name, (classifier, features, labels) in trained.items():
            classifier.fit(features, labels)
            row[name] = scores(test.label, classifier.predict(Z_test), subject)
            row[f"{name} perturbed"] = scores(test.label, classifier.predict(Z_rough))
    if hasattr(model, "score") and arm.labels["method"] in ("ATD", "ATD_ss-", "GR-SALS", "SALS"):
        row["fit"] = model.score(context.windows[part.unlabelled[:1024]])
        last = {name: values[-1] for name, values in model.history_.items() if name != "seconds"}
        row["share_of_self_supervised"] = abs(last["self_supervised"]) / max(last["fit"], 1e-300)
    return row
