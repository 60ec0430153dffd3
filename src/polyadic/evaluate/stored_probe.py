"""A fitted probe as stored in a model file: predictions with numpy only.

`linear_probe` converts scikit-learn classifiers to this form and back. Prediction does not need scikit-learn, whose
import takes as long as that of torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyadic.errors import ModelFileError, PolyadicError

__all__ = [
    "PREFIX",
    "SCALES",
    "STANDARDISED",
    "VALIDATED",
    "Settings",
    "StoredProbe",
    "are_classes",
    "check_parameters",
    "decisions",
    "named",
    "probabilities",
]

PREFIX = "probe."
"""Prefix of the names of a probe's arrays in a model file."""

VALIDATED = "Probe"
"""Name in a model file of a probe that chooses its settings by validation."""

STANDARDISED = "standardised"
"""The scaling to mean 0 and variance 1; any other value leaves features unscaled."""

SCALES = ("plain", STANDARDISED)
"""Unscaled features, or features scaled to mean 0 and variance 1."""

_COLUMNS = ("C", "scale", "levels", "balanced_accuracy")


# ---------------------------------------------------------------- linear functions


def decisions(Z: NDArray[Any], coef: NDArray[np.float64], intercept: NDArray[np.float64]) -> NDArray[np.float64]:
    """Evaluate the linear functions of a regression: log odds of the second of two classes (n,), or scores (n, K)."""
    values: NDArray[np.float64] = Z @ coef.T + intercept
    return values[:, 0] if len(intercept) == 1 else values


def named(decision: NDArray[np.float64], classes: NDArray[Any]) -> NDArray[Any]:
    """Return the predicted classes for decision values: (n,)."""
    best = (decision > 0).astype(np.intp) if decision.ndim == 1 else decision.argmax(axis=1)
    found: NDArray[Any] = classes[best]
    return found


def probabilities(decision: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute class probabilities from decision values: (n, K).

    Examples
    --------
    >>> probabilities(np.array([0.0, -800.0])).tolist()
    [[0.5, 0.5], [1.0, 0.0]]
    """
    if decision.ndim == 1:
        # log(1 + exp(x)) without overflow, and accurate for tiny probabilities
        return np.exp(-np.logaddexp(0.0, np.stack([decision, -decision], axis=1)))
    exponentials = np.exp(decision - decision.max(axis=1, keepdims=True))
    shares: NDArray[np.float64] = exponentials / exponentials.sum(axis=1, keepdims=True)
    return shares


# ------------------------------------------------------------------------ settings


class Settings(NamedTuple):
    """The parameters of a `Probe`, the chosen settings and the reason, as in the header of a model file."""

    parameters: dict[str, Any]
    C: float
    scale: str
    levels: bool | None
    validation: list[dict[str, Any]]
    reason: str


def check_parameters(C: Any, scale: Any, levels: Any, class_weight: Any) -> None:
    """Raise if a parameter of a `Probe` is invalid."""
    if not _is_auto(C):
        number = isinstance(C, Real) and not isinstance(C, bool | np.bool_)
        if not number or not 0 < float(C) < np.inf:
            raise PolyadicError(f"C must be 'auto' or a positive number, but is {C!r}")
    if scale not in ("auto", *SCALES):
        raise PolyadicError(f"scale must be 'auto', 'plain' or 'standardised', but is {scale!r}")
    if not _is_auto(levels) and not isinstance(levels, bool | np.bool_):
        raise PolyadicError(f"levels must be 'auto', True or False, but is {levels!r}")
    if class_weight is not None and class_weight != "balanced" and not isinstance(class_weight, dict):
        raise PolyadicError(f"class_weight must be 'balanced', None or a dictionary, but is {class_weight!r}")


def _is_auto(value: Any) -> bool:
    return isinstance(value, str) and value == "auto"


def _read_settings(header: dict[str, Any]) -> Settings:
    try:
        if header["kind"] != VALIDATED:
            raise ValueError(f"its kind is {header['kind']!r}")
        parameters = dict(header["parameters"])
        if isinstance(parameters["class_weight"], list):
            parameters["class_weight"] = {name: float(value) for name, value in parameters["class_weight"]}
        check_parameters(**parameters)
        chosen = {name: header[name] for name in _COLUMNS[:3]}
        table, reason = header["validation"], header["reason"]
        if not isinstance(table, list) or not isinstance(reason, str):
            raise TypeError("its validation must be a list and its reason a text")
        for entry in table:
            _check_setting({name: entry[name] for name in _COLUMNS[:3]})
            if set(entry) != set(_COLUMNS) or not 0 <= float(entry["balanced_accuracy"]) <= 1:
                raise ValueError("its table of validation scores is invalid")
        _check_setting(chosen)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelFileError(f"the file's probe has an invalid description: {error}") from error
    return Settings(parameters, float(chosen["C"]), chosen["scale"], chosen["levels"], table, reason)


def _check_setting(setting: dict[str, Any]) -> None:
    C, levels = setting["C"], setting["levels"]
    positive = type(C) in (int, float) and 0 < C < np.inf
    if not positive or setting["scale"] not in SCALES or not (levels is None or isinstance(levels, bool)):
        raise ValueError(f"{setting!r} is not a setting")


def are_classes(classes: Any) -> bool:
    """Return whether these are valid classes of a model file: two or more distinct strings, or distinct integers."""
    if not isinstance(classes, list) or len(classes) < 2:
        return False
    alike = all(type(name) is str for name in classes) or all(type(name) is int for name in classes)
    return alike and len(set(classes)) == len(classes)


# ---------------------------------------------------------------------------- probe


@dataclass(frozen=True)
class StoredProbe:
    """The probe of a model file, for prediction.

    Parameters
    ----------
    classes_ : (K,), strings or integers
    coef, intercept : (K, F) and (K,), or (1, F) and (1,) for two classes
    mean, scale : (F,), of the features before the regression; None for unscaled features
    settings : settings of a `Probe`; None for a logistic regression
    recenter_ : whether features are recentred by subject

    Examples
    --------
    >>> arrays = {"probe.coef": np.array([[2.0]]), "probe.intercept": np.array([-1.0])}
    >>> StoredProbe.of_file(arrays, {"classes": ["rest", "walk"]}, features=1).predict(np.array([[0.0], [1.0]]))
    array(['rest', 'walk'], dtype='<U4')
    """

    classes_: NDArray[Any]
    coef: NDArray[np.float64]
    intercept: NDArray[np.float64]
    mean: NDArray[np.float64] | None = None
    scale: NDArray[np.float64] | None = None
    settings: Settings | None = None
    recenter_: bool = False

    def __repr__(self) -> str:
        return f"<StoredProbe of {self.coef.shape[1]} features: {', '.join(map(str, self.classes_))}>"

    def decision_function(self, Z: NDArray[Any]) -> NDArray[np.float64]:
        """Return the log odds of the second of two classes (N,), or one score per class (N, K)."""
        scaled = Z if self.mean is None or self.scale is None else (Z - self.mean) / self.scale
        return decisions(scaled, self.coef, self.intercept)

    def predict(self, Z: NDArray[Any]) -> NDArray[Any]:
        """Return the most probable class of each row of features (N, F): (N,)."""
        return named(self.decision_function(Z), self.classes_)

    def predict_proba(self, Z: NDArray[Any]) -> NDArray[np.float64]:
        """Return the probability of each of `classes_` for each row of features (N, F): (N, K)."""
        return probabilities(self.decision_function(Z))

    @staticmethod
    def is_in(arrays: Mapping[str, NDArray[Any]], header: Mapping[str, Any]) -> bool:
        """Return whether a model file contains a probe, or parts of one."""
        return header.get("probe") is not None or any(name.startswith(PREFIX) for name in arrays)

    @classmethod
    def of_file(cls, arrays: Mapping[str, NDArray[Any]], header: Any, features: int) -> StoredProbe:
        """Build the probe from the output of `polyadic.evaluate.linear_probe.pack`.

        Parameters
        ----------
        arrays : the arrays of the model file; those of other parts are ignored
        header : the JSON entry with the classes
        features : number of features of the model

        Raises
        ------
        ModelFileError : if arrays and classes are inconsistent
        """
        own = {name.removeprefix(PREFIX): array for name, array in arrays.items() if name.startswith(PREFIX)}
        classes = header.get("classes") if isinstance(header, dict) else None
        if not are_classes(classes):
            raise ModelFileError(f"the file's probe must name two or more different classes, but has {classes!r}")
        assert isinstance(classes, list)
        rows = 1 if len(classes) == 2 else len(classes)
        expected = {"coef": (rows, features), "intercept": (rows,)}
        validated = "kind" in header
        if {"mean", "scale"} & own.keys() and not validated:
            expected |= {"mean": (features,), "scale": (features,)}
        shapes = {name: array.shape for name, array in own.items()}
        if shapes != expected:
            raise ModelFileError(f"the file's probe has arrays {shapes}, but its classes call for {expected}")
        if "scale" in own and not (own["scale"] > 0).all():
            raise ModelFileError("the file's probe has scales that are not positive")
        settings = _read_settings(header) if validated else None
        recenter = header.get("recenter", False)
        if not isinstance(recenter, bool):
            raise ModelFileError(f"the file's probe must have true or false as recenter, but has {recenter!r}")
        return cls(np.asarray(classes), **own, settings=settings, recenter_=recenter)
