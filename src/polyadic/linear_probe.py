"""Fitted probes as plain numbers: for a model file, which holds no code, and for exports.

A probe is a `Probe`, a LogisticRegression, or a pipeline of a StandardScaler and a LogisticRegression.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import check_is_fitted

from polyadic.errors import ModelFileError, PolyadicError
from polyadic.validated_probe import SCALES, Probe

__all__ = ["PREFIX", "linear", "linear_form", "pack", "unpack"]

PREFIX = "probe."
"""How the names of a probe's arrays begin."""


_VALIDATED = "Probe"
_COLUMNS = ("C", "scale", "levels", "balanced_accuracy")


def linear(probe: Any, features: int) -> tuple[NDArray[np.float64], NDArray[np.float64], list[Any]]:
    """The linear functions of a fitted probe, in terms of features as they are.

    Parameters
    ----------
    probe : a fitted `Probe` or LogisticRegression, or a pipeline of a StandardScaler and a LogisticRegression
    features : how many the model has

    Returns
    -------
    weights (features, n), offsets (n,) and the classes; n is 1 for two classes

    Examples
    --------
    >>> weights, offsets, classes = linear(LogisticRegression().fit([[0.0], [1.0]], ["rest", "walk"]), features=1)
    >>> weights.shape, offsets.shape, classes
    ((1, 1), (1,), ['rest', 'walk'])
    """
    if getattr(probe, "recenter_", False):
        raise PolyadicError(
            "this probe was trained on features recentred by subject, which takes other windows of the same subject "
            "and has no ONNX or C form: train a probe without recenter, or export the features alone (del model.probe_)"
        )
    return linear_form(probe, features)


def linear_form(probe: Any, features: int) -> tuple[NDArray[np.float64], NDArray[np.float64], list[Any]]:
    """As `linear`, also for a probe on features that are recentred by subject: in terms of the recentred features."""
    steps = [step for _, step in probe.steps] if isinstance(probe, Pipeline) else [probe]
    if [type(step) for step in steps] not in ([Probe], [LogisticRegression], [StandardScaler, LogisticRegression]):
        raise PolyadicError(
            "probe must be a LogisticRegression or a pipeline of StandardScaler and LogisticRegression, or a Probe, "
            "but is " + " and ".join(type(step).__name__ for step in steps)
        )
    for step in steps:
        check_is_fitted(step)
    last = steps[-1]
    weights, offsets = last.coef_.T.astype(np.float64), last.intercept_.astype(np.float64)
    if len(weights) != features:
        raise PolyadicError(
            f"probe must be fitted to the model's {features} features, but was fitted to {len(weights)}"
        )
    # Some versions of scikit-learn can fit one regression for each of many classes, whose probabilities are no softmax.
    one_by_one = getattr(last, "solver", "") == "liblinear" or getattr(last, "multi_class", "auto") == "ovr"
    if one_by_one and len(offsets) > 1:
        raise PolyadicError("probe must be one regression for all classes, but has one for each class against the rest")
    if len(steps) == 2:
        scaler = steps[0]
        weights = weights / scaler.scale_[:, None] if scaler.with_std else weights
        offsets = offsets - scaler.mean_ @ weights if scaler.with_mean else offsets
    return weights, offsets, last.classes_.tolist()


def pack(probe: Any) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """The numbers and the classes of a fitted probe.

    Parameters
    ----------
    probe : a fitted `Probe` or LogisticRegression, or a pipeline of a StandardScaler and a LogisticRegression

    Returns
    -------
    `probe.coef` (K, R) and `probe.intercept` (K,), K the number of classes or 1 for two of them, with a scaler also
    `probe.mean` and `probe.scale` (R,), all float64; and for JSON the classes, names or whole numbers, and of a `Probe`
    its settings and how they were chosen; `recenter` where features are recentred by subject

    Examples
    --------
    >>> arrays, header = pack(LogisticRegression().fit([[0.0], [1.0]], ["rest", "walk"]))
    >>> sorted(arrays), header
    (['probe.coef', 'probe.intercept'], {'classes': ['rest', 'walk']})
    """
    scaler, regression = _parts(probe)
    check_is_fitted(regression)
    classes = regression.classes_.tolist()
    if not _are_classes(classes):
        raise PolyadicError(f"a model file holds classes that are names or whole numbers, but these are {classes!r}")
    arrays = {"coef": regression.coef_, "intercept": regression.intercept_}
    if scaler is not None:
        arrays |= {"mean": scaler.mean_, "scale": scaler.scale_}
    words = {"classes": classes} | (_words(regression) if isinstance(regression, Probe) else {})
    if getattr(probe, "recenter_", False):
        words["recenter"] = True
    return {PREFIX + name: np.asarray(array, np.float64) for name, array in arrays.items()}, words


def unpack(arrays: Mapping[str, NDArray[Any]], header: Any, rank: int) -> Any:
    """The probe that `pack` described, ready to predict.

    Parameters
    ----------
    arrays : of the model file; those that are none of the probe's are not looked at
    header : with the classes
    rank : how many features there are

    Raises
    ------
    ModelFileError : if the arrays and the classes do not fit together

    Examples
    --------
    >>> probe = LogisticRegression().fit([[0.0], [1.0]], ["rest", "walk"])
    >>> unpack(*pack(probe), rank=1).predict([[2.0]])
    array(['walk'], dtype='<U4')
    """
    own = {name.removeprefix(PREFIX): array for name, array in arrays.items() if name.startswith(PREFIX)}
    classes = header.get("classes") if isinstance(header, dict) else None
    if not _are_classes(classes):
        raise ModelFileError(f"the file's probe must name two or more different classes, but has {classes!r}")
    assert isinstance(classes, list)
    rows = 1 if len(classes) == 2 else len(classes)
    expected = {"coef": (rows, rank), "intercept": (rows,)}
    validated = "kind" in header
    if {"mean", "scale"} & own.keys() and not validated:
        expected |= {"mean": (rank,), "scale": (rank,)}
    shapes = {name: array.shape for name, array in own.items()}
    if shapes != expected:
        raise ModelFileError(f"the file's probe has arrays {shapes}, but its classes call for {expected}")
    if "scale" in own and not (own["scale"] > 0).all():
        raise ModelFileError("the file's probe has scales that are not positive")
    regression = _from_words(header) if validated else LogisticRegression(max_iter=1000)
    regression.coef_, regression.intercept_ = own["coef"], own["intercept"]
    regression.classes_, regression.n_features_in_ = np.asarray(classes), rank
    if "mean" not in own:
        return _with_flag(regression, header)
    scaler = StandardScaler()
    scaler.mean_, scaler.scale_, scaler.var_ = own["mean"], own["scale"], own["scale"] ** 2
    scaler.n_features_in_ = rank
    return _with_flag(make_pipeline(scaler, regression), header)


def _with_flag(probe: Any, header: dict[str, Any]) -> Any:
    """The probe, marked if it is one for features that are recentred by subject."""
    flag = header.get("recenter", False)
    if not isinstance(flag, bool):
        raise ModelFileError(f"the file's probe must say by true or false whether it recentres, but says {flag!r}")
    if flag:
        probe.recenter_ = True
    return probe


def _parts(probe: Any) -> tuple[StandardScaler | None, LogisticRegression | Probe]:
    steps = [step for _, step in probe.steps] if isinstance(probe, Pipeline) else [probe]
    kinds = [type(step) for step in steps]
    if kinds in ([LogisticRegression], [Probe]):
        return None, steps[0]
    if kinds == [StandardScaler, LogisticRegression] and steps[0].with_mean & steps[0].with_std:
        return steps[0], steps[1]
    raise PolyadicError(
        "a model file holds a Probe, a LogisticRegression or a pipeline of a StandardScaler and one as its probe, "
        f"but this is {probe!r}"
    )


def _words(probe: Probe) -> dict[str, Any]:
    """A `Probe` without its numbers: parameters, what was chosen, and why."""
    weight = probe.class_weight
    return {
        "kind": _VALIDATED,
        "parameters": {
            "C": probe.C if isinstance(probe.C, str) else float(probe.C),
            "scale": probe.scale,
            "levels": probe.levels if isinstance(probe.levels, str) else bool(probe.levels),
            # Names of classes may be numbers, which cannot be keys in JSON.
            "class_weight": [[_plain(name), float(value)] for name, value in weight.items()]
            if isinstance(weight, dict)
            else weight,
        },
        "C": float(probe.C_),
        "scale": probe.scale_,
        "levels": probe.levels_,
        "validation": probe.validation_,
        "reason": probe.reason_,
    }


def _plain(name: Any) -> Any:
    return name.item() if isinstance(name, np.generic) else name


def _from_words(header: dict[str, Any]) -> Probe:
    """The `Probe` that `_words` described, without its numbers."""
    try:
        if header["kind"] != _VALIDATED:
            raise ValueError(f"its kind is {header['kind']!r}")
        parameters = dict(header["parameters"])
        if isinstance(parameters["class_weight"], list):
            parameters["class_weight"] = {name: float(value) for name, value in parameters["class_weight"]}
        probe = Probe(**parameters)
        probe._check_parameters()
        chosen = {name: header[name] for name in ("C", "scale", "levels")}
        table, reason = header["validation"], header["reason"]
        if not isinstance(table, list) or not isinstance(reason, str):
            raise TypeError("its validation must be a list and its reason a text")
        for entry in table:
            _check_setting({name: entry[name] for name in _COLUMNS[:3]})
            if set(entry) != set(_COLUMNS) or not 0 <= float(entry["balanced_accuracy"]) <= 1:
                raise ValueError("its table of validation scores is not one")
        _check_setting(chosen)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelFileError(f"the file's probe is described wrongly: {error}") from error
    probe.C_, probe.scale_, probe.levels_ = float(chosen["C"]), chosen["scale"], chosen["levels"]
    probe.validation_, probe.reason_ = table, reason
    return probe


def _check_setting(setting: dict[str, Any]) -> None:
    C, levels = setting["C"], setting["levels"]
    positive = type(C) in (int, float) and 0 < C < np.inf
    if not positive or setting["scale"] not in SCALES or not (levels is None or isinstance(levels, bool)):
        raise ValueError(f"{setting!r} is not a setting")


def _are_classes(classes: Any) -> bool:
    if not isinstance(classes, list) or len(classes) < 2:
        return False
    alike = all(type(name) is str for name in classes) or all(type(name) is int for name in classes)
    return alike and len(set(classes)) == len(classes)
