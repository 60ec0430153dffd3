"""Conversion of fitted probes to arrays and back, for model files, which contain no code, and for exports.

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

from polyadic.errors import PolyadicError
from polyadic.evaluate.stored_probe import PREFIX, VALIDATED, Settings, StoredProbe, are_classes
from polyadic.evaluate.validated_probe import Probe

__all__ = ["linear", "linear_form", "pack", "unpack"]


def linear(probe: Any, features: int) -> tuple[NDArray[np.float64], NDArray[np.float64], list[Any]]:
    """Return the linear functions of a fitted probe, in terms of unscaled features.

    Parameters
    ----------
    probe : a fitted `Probe` or LogisticRegression, or a pipeline of a StandardScaler and a LogisticRegression
    features : number of features of the model

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
            "this probe was trained on features recentred by subject, which needs other windows of the same subject "
            "and has no ONNX or C form: train a probe without recenter, or export the features only (del model.probe_)"
        )
    return linear_form(probe, features)


def linear_form(probe: Any, features: int) -> tuple[NDArray[np.float64], NDArray[np.float64], list[Any]]:
    """Return the same as `linear`, but also accept a probe with recentring, which applies to the recentred features."""
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
    # Some versions of scikit-learn support one-vs-rest regressions, whose probabilities are not a softmax.
    one_by_one = getattr(last, "solver", "") == "liblinear" or getattr(last, "multi_class", "auto") == "ovr"
    if one_by_one and len(offsets) > 1:
        raise PolyadicError("probe must be a multinomial regression, but is one-vs-rest: use another solver")
    if len(steps) == 2:
        scaler = steps[0]
        weights = weights / scaler.scale_[:, None] if scaler.with_std else weights
        offsets = offsets - scaler.mean_ @ weights if scaler.with_mean else offsets
    return weights, offsets, last.classes_.tolist()


def pack(probe: Any) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Convert a fitted probe to arrays and JSON.

    Parameters
    ----------
    probe : a fitted `Probe` or LogisticRegression, or a pipeline of a StandardScaler and a LogisticRegression

    Returns
    -------
    arrays `probe.coef` (K, R) and `probe.intercept` (K,), with K the number of classes or 1 for two of them, and with a
    scaler `probe.mean` and `probe.scale` (R,), all float64; and as JSON the classes (strings or integers), the settings
    of a `Probe` and how they were chosen, and `recenter` if features are recentred by subject

    Examples
    --------
    >>> arrays, header = pack(LogisticRegression().fit([[0.0], [1.0]], ["rest", "walk"]))
    >>> sorted(arrays), header
    (['probe.coef', 'probe.intercept'], {'classes': ['rest', 'walk']})
    """
    scaler, regression = _parts(probe)
    check_is_fitted(regression)
    classes = regression.classes_.tolist()
    if not are_classes(classes):
        raise PolyadicError(f"classes must be strings or integers to be stored in a model file, but are {classes!r}")
    arrays = {"coef": regression.coef_, "intercept": regression.intercept_}
    if scaler is not None:
        arrays |= {"mean": scaler.mean_, "scale": scaler.scale_}
    words = {"classes": classes} | (_words(regression) if isinstance(regression, Probe) else {})
    if getattr(probe, "recenter_", False):
        words["recenter"] = True
    return {PREFIX + name: np.asarray(array, np.float64) for name, array in arrays.items()}, words


def unpack(arrays: Mapping[str, NDArray[Any]], header: Any, rank: int) -> Any:
    """Build the probe from the output of `pack`.

    Parameters
    ----------
    arrays : the arrays of the model file; those of other parts are ignored
    header : the JSON entry with the classes
    rank : number of features

    Raises
    ------
    ModelFileError : if arrays and classes are inconsistent

    Examples
    --------
    >>> probe = LogisticRegression().fit([[0.0], [1.0]], ["rest", "walk"])
    >>> unpack(*pack(probe), rank=1).predict([[2.0]])
    array(['walk'], dtype='<U4')
    """
    stored = StoredProbe.of_file(arrays, header, rank)
    regression = LogisticRegression(max_iter=1000) if stored.settings is None else _from_settings(stored.settings)
    regression.coef_, regression.intercept_ = stored.coef, stored.intercept
    regression.classes_, regression.n_features_in_ = stored.classes_, rank
    probe = regression
    if stored.mean is not None and stored.scale is not None:
        scaler = StandardScaler()
        scaler.mean_, scaler.scale_, scaler.var_ = stored.mean, stored.scale, stored.scale**2
        scaler.n_features_in_ = rank
        probe = make_pipeline(scaler, regression)
    if stored.recenter_:
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
        "the probe of a model file must be a Probe, a LogisticRegression, or a pipeline of a StandardScaler and a "
        f"LogisticRegression, but is {probe!r}"
    )


def _words(probe: Probe) -> dict[str, Any]:
    """Describe a `Probe` without its arrays as JSON: parameters, chosen settings, reason."""
    weight = probe.class_weight
    return {
        "kind": VALIDATED,
        "parameters": {
            "C": probe.C if isinstance(probe.C, str) else float(probe.C),
            "scale": probe.scale,
            "levels": probe.levels if isinstance(probe.levels, str) else bool(probe.levels),
            # Classes may be integers, which cannot be keys in JSON.
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


def _from_settings(settings: Settings) -> Probe:
    """Build the `Probe` that `_words` described, without its arrays."""
    probe = Probe(**settings.parameters)
    probe.C_, probe.scale_, probe.levels_ = settings.C, settings.scale, settings.levels
    probe.validation_, probe.reason_ = settings.validation, settings.reason
    return probe
