"""The arms of an experiment: methods with their settings, on one dataset, and how each is judged with one seed."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import RidgeClassifier, RidgeClassifierCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from polyadic import ATD, GRSALS, SALS
from polyadic.augment import Augmentation, Compose, Jitter, Rotate3D
from polyadic.data import Split, Windows, split
from polyadic.data.splits import Protocol
from polyadic.errors import PolyadicError
from polyadic.evaluate import PROBES, low_label_rows, probe
from polyadic.evaluate.augmented import augmented_features, perturbed
from polyadic.evaluate.metrics import scores
from polyadic.evaluate.probe import unthreaded
from polyadic.evaluate.timing import seconds_per_sweep
from polyadic.spectral import STFT

__all__ = ["Arm", "Context", "Row", "clean_scores", "family", "fitted", "judged", "method", "views_of"]

Row = dict[str, Any]
Kind = Literal["features", "supervised features", "classifier"]

_VIEWS = 4
_SUPERVISED = ("UMLDA", "STL", "CNN")
_CP_ALS_WINDOWS = 1_500
"""CP-ALS sees all windows at once in every iteration; on more than these it takes longer than all other methods."""


@dataclass(frozen=True)
class Context:
    """What all arms of an experiment have in common.

    Parameters
    ----------
    windows : the data
    dataset : whose settings and whose figures in the paper they are compared with
    tensorize, augment, parameters : frames, augmentations and other arguments of the tensor methods
    seeds, protocols : what is repeated
    unlabelled, labelled : most windows to learn from and to train a probe on; None for all
    epochs : most epochs of the deep baselines
    device : where to compute
    settings : of methods by family, as `tuning` writes them: arguments of the estimator, `window` and `parts` of its
        frames, and `views` by a name that `views_of` knows
    tries : settings to try for each method when they are tuned
    fractions : of a split other than the data's own
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
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    tries: int = 12
    fractions: tuple[float, float, float] | None = None

    def with_views(self, augment: Augmentation) -> Context:
        """The same with other views, whatever views the settings would have."""
        settings = {name: {k: v for k, v in own.items() if k != "views"} for name, own in self.settings.items()}
        return replace(self, augment=augment, settings=settings)

    def parts(self, protocol: Protocol, seed: int) -> Split:
        """The split for a seed, its unlabelled and training part cut to what is asked for."""
        whole = split(self.windows, protocol, self.fractions, seed)
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
        changes = _resolved({**context.settings.get(family(self.name), {}), **self.changes}, context)
        shared = {"tensorize": context.tensorize, "device": context.device, "random_state": seed}
        _, _, dim = self.name.partition("-")
        if self.name in ("ATD", "ATD_ss-", "GR-SALS", "SALS"):
            return _tensor_method(self.name, {"augment": context.augment, **context.parameters, **shared, **changes})
        return _baseline(family(self.name), int(dim) if dim.isdigit() else 32, shared, changes, context)


def family(name: str) -> str:
    """A method without its number of features: settings are shared by all sizes.

    Examples
    --------
    >>> family("SimCLR-128"), family("GR-SALS")
    ('SimCLR', 'GR-SALS')
    """
    kind, _, dim = name.partition("-")
    return kind if dim.isdigit() else name


def _resolved(settings: dict[str, Any], context: Context) -> dict[str, Any]:
    """Settings as arguments of an estimator: frames and views by what is changed of the context's."""
    arguments = dict(settings)
    frames = {name: arguments.pop(name) for name in ("window", "parts") if name in arguments}
    if frames:
        arguments["tensorize"] = replace(context.tensorize, **frames)
    if "views" in arguments:
        arguments["augment"] = views_of(context.augment, arguments.pop("views"))
    return arguments


def views_of(augment: Augmentation, name: str) -> Augmentation:
    """What views are made with, by a name, from the augmentations of a dataset.

    Parameters
    ----------
    name : "all"; "no rotation" or "jitter alone" for what is left of them; "jitter 0.3" and the like for a jitter of
        that degree and nothing else

    Examples
    --------
    >>> views_of(Compose([Jitter(0.002), Rotate3D([(0, 1, 2)])]), "jitter alone")
    Compose(steps=(Jitter(degree=0.002),))
    >>> views_of(Jitter(0.002), "jitter 0.3")
    Jitter(degree=0.3)
    """
    steps = augment.steps if isinstance(augment, Compose) else (augment,)
    if name == "all":
        return augment
    if name in ("no rotation", "jitter alone"):
        kept = [s for s in steps if (isinstance(s, Jitter) if name == "jitter alone" else not isinstance(s, Rotate3D))]
        return augment if len(kept) == len(steps) else Compose(kept)
    word, _, degree = name.partition(" ")
    if word == "jitter" and re.fullmatch(r"\d+(\.\d+)?", degree):
        return Jitter(float(degree))
    raise PolyadicError(f"views must be all, no rotation, jitter alone or jitter DEGREE, but is {name!r}")


def _tensor_method(name: str, arguments: dict[str, Any]) -> ATD | SALS | GRSALS:
    if name == "ATD":
        return ATD(**arguments)
    if name == "ATD_ss-":
        return ATD(**{**arguments, "beta": 0.0})
    known = {key: value for key, value in arguments.items() if key not in ("augment", "beta", "gamma", "rounds")}
    return SALS(**known) if name == "SALS" else GRSALS(**known)


def _baseline(kind: str, dim: int, shared: dict[str, Any], changes: dict[str, Any], context: Context) -> Any:
    from polyadic import baselines

    both = {**shared, **changes}
    deep = {"max_epochs": context.epochs, **both}
    views = {"augment": context.augment, **deep}
    raw = {**both, "tensorize": None}
    rank = int(context.parameters.get("rank", 32))
    makers: dict[str, Callable[[], Any]] = {
        "SimCLR": lambda: baselines.SimCLR(dim, **views),
        "BYOL": lambda: baselines.BYOL(dim, **views),
        "AE": lambda: baselines.AutoEncoder(dim, **deep),
        "AE_ss": lambda: baselines.AutoEncoder(dim, contrastive=True, **views),
        "CNN": lambda: baselines.ReferenceCNN(**deep),
        "UMLDA": lambda: baselines.UMLDA(rank, **both),
        "STL": lambda: baselines.STL(**both),
        "PCA": lambda: baselines.PCAFeatures(rank, **both),
        "Hand": lambda: baselines.HandFeatures(**raw),
        "MiniRocket": lambda: baselines.MiniRocket(**raw),
        "CP-ALS": lambda: baselines.CPALS(rank, **both),
    }
    return makers[kind]()


def judged(arm: Arm, context: Context, seed: int) -> list[Row]:
    """Fit one arm with one seed and judge it under each protocol; a fit serves all protocols that share its windows."""
    context = context if arm.augment is None else context.with_views(arm.augment)
    rows: list[Row] = []
    model, learned = None, np.empty(0, dtype=np.intp)
    said: list[str] = []
    for protocol in context.protocols:
        whole = context.parts(protocol, seed)
        for count in arm.counts or (None,):
            part = _cut(whole, count, seed)
            if part is None:
                continue
            wanted = part.unlabelled if arm.kind == "features" else part.train
            if model is None or not np.array_equal(wanted, learned):
                learned = wanted
                model, said = fitted(arm, context, part, seed)
            labels = {**arm.labels, **({} if count is None else {"labels": count})}
            known: Row = {"seed": seed, "protocol": protocol, "split": part.hash}
            if said:
                known["warnings"] = said
            rows.append({**labels, **known, **_scores(arm, model, context, part, seed)})
    return rows


def fitted(arm: Arm, context: Context, part: Split, seed: int) -> tuple[Any, list[str]]:
    """The estimator of an arm, fitted to what it may learn from, and what it warned of."""
    unlabelled, train, _ = part
    model = arm.make(context, seed)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", ConvergenceWarning)
        if arm.labels["method"] == "CP-ALS":
            unlabelled = unlabelled[:: -(-len(unlabelled) // _CP_ALS_WINDOWS)]
        model.fit(unlabelled) if arm.kind == "features" else model.fit(train, train.label)
    return model, sorted({str(one.message) for one in said})


def _cut(part: Split, count: int | None, seed: int) -> Split | None:
    """The split with that many training windows; None if it has fewer, or not two classes among them."""
    if count is None:
        return part
    if len(part.train) < count:
        return None
    labels = part.windows.label[part.train]
    chosen = part.train[low_label_rows(labels, count, seed)]
    return replace(part, train=chosen) if len(np.unique(part.windows.label[chosen])) > 1 else None


def _probes(arm: Arm, Z: NDArray[Any], y: NDArray[Any]) -> dict[str, Any]:
    """The unfitted classifiers that judge an arm's features."""
    if arm.labels["method"] != "MiniRocket":
        return {kind: probe(kind) for kind in PROBES}

    def ridge(classifier: Any) -> Any:
        return make_pipeline(FunctionTransformer(np.float64), StandardScaler(with_mean=False), classifier)

    # As its authors do. Its penalty is chosen on the windows themselves, for cross-validation over copies of them, too,
    # would take minutes.
    chosen = ridge(RidgeClassifierCV(np.logspace(-3, 3, 10))).fit(Z, y)
    return {kind: ridge(RidgeClassifier(chosen[-1].alpha_)) for kind in PROBES}


def clean_scores(arm: Arm, model: Any, part: Split) -> Row:
    """The scores of a fitted model by both probes on the test windows as they are."""
    _, train, test = part
    subject = test.subject if (test.subject != "").all() else None
    with unthreaded():
        if arm.kind == "classifier":
            found = scores(test.label, model.predict(test), subject)
            return dict.fromkeys(PROBES, found)
        Z, Z_test = model.transform(train), model.transform(test)
        classifiers = _probes(arm, Z, train.label)
        return {
            kind: scores(test.label, classifier.fit(Z, train.label).predict(Z_test), subject)
            for kind, classifier in classifiers.items()
        }


def _scores(arm: Arm, model: Any, context: Context, part: Split, seed: int) -> Row:
    _, train, test = part
    rough = perturbed(test, context.augment, seed)
    row: Row = {"n_train": len(train), "n_test": len(test), "parameters": int(model.n_parameters_)}
    seconds = getattr(model, "history_", {}).get("seconds", [])
    if len(seconds):
        row |= {"seconds": seconds_per_sweep(seconds), "sweeps": len(seconds)}
    subject = test.subject if (test.subject != "").all() else None
    with unthreaded():
        if arm.kind == "classifier":
            for kind in ("plain", "standardised"):
                row[kind] = scores(test.label, model.predict(test), subject)
                row[f"{kind} perturbed"] = scores(test.label, model.predict(rough))
            return row
        Z, Z_test, Z_rough = model.transform(train), model.transform(test), model.transform(rough)
        many = [Z, *(augmented_features(model, train, context.augment, view, seed) for view in range(_VIEWS))]
        classifiers = _probes(arm, Z, train.label)
        trained = {kind: (classifier, Z, train.label) for kind, classifier in classifiers.items()}
        copies = (np.concatenate(many), np.tile(train.label, 1 + _VIEWS))
        trained["augmented"] = (clone(classifiers["standardised"]), *copies)
        for name, (classifier, features, labels) in trained.items():
            classifier.fit(features, labels)
            row[name] = scores(test.label, classifier.predict(Z_test), subject)
            row[f"{name} perturbed"] = scores(test.label, classifier.predict(Z_rough))
    if hasattr(model, "score") and arm.labels["method"] in ("ATD", "ATD_ss-", "GR-SALS", "SALS"):
        row["fit"] = model.score(context.windows[part.unlabelled[:1024]])
        last = {name: values[-1] for name, values in model.history_.items() if name != "seconds"}
        row["share_of_self_supervised"] = abs(last["self_supervised"]) / max(last["fit"], 1e-300)
    return row
