"""A fitted probe as arrays and a few words, and back: a logistic regression in a model file that holds no code."""

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

__all__ = ["PREFIX", "pack", "unpack"]

PREFIX = "probe."
"""How the names of a probe's arrays begin."""


def pack(probe: Any) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """The numbers and the classes of a fitted probe.

    Parameters
    ----------
    probe : a fitted LogisticRegression, or a pipeline of a StandardScaler and one

    Returns
    -------
    `probe.coef` (K, R) and `probe.intercept` (K,), K the number of classes or 1 for two of them, with a scaler also
    `probe.mean` and `probe.scale` (R,), all float64; and the classes, names or whole numbers, for JSON

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
    return {PREFIX + name: np.asarray(array, np.float64) for name, array in arrays.items()}, {"classes": classes}


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
    if {"mean", "scale"} & own.keys():
        expected |= {"mean": (rank,), "scale": (rank,)}
    shapes = {name: array.shape for name, array in own.items()}
    if shapes != expected:
        raise ModelFileError(f"the file's probe has arrays {shapes}, but its classes call for {expected}")
    if "scale" in own and not (own["scale"] > 0).all():
        raise ModelFileError("the file's probe has scales that are not positive")
    regression = LogisticRegression(max_iter=1000)
    regression.coef_, regression.intercept_ = own["coef"], own["intercept"]
    regression.classes_, regression.n_features_in_ = np.asarray(classes), rank
    if "mean" not in own:
        return regression
    scaler = StandardScaler()
    scaler.mean_, scaler.scale_, scaler.var_ = own["mean"], own["scale"], own["scale"] ** 2
    scaler.n_features_in_ = rank
    return make_pipeline(scaler, regression)


def _parts(probe: Any) -> tuple[StandardScaler | None, LogisticRegression]:
    steps = [step for _, step in probe.steps] if isinstance(probe, Pipeline) else [probe]
    if [type(step) for step in steps] == [LogisticRegression]:
        return None, steps[0]
    if [type(step) for step in steps] == [StandardScaler, LogisticRegression] and steps[0].with_mean & steps[
        0
    ].with_std:
        return steps[0], steps[1]
    raise PolyadicError(
        "a model file holds a LogisticRegression, or a pipeline of a StandardScaler and one, as its probe, but this is "
        f"{probe!r}"
    )


def _are_classes(classes: Any) -> bool:
    if not isinstance(classes, list) or len(classes) < 2:
        return False
    alike = all(type(name) is str for name in classes) or all(type(name) is int for name in classes)
    return alike and len(set(classes)) == len(classes)
