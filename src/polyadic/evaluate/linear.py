"""The fitted part of a probe: linear functions of features as plain arrays, their predictions, and their form in files.

Uses numpy only. `polyadic predict` needs no more of a probe, and importing scikit-learn takes as long as importing
torch; `polyadic.evaluate.Probe` adds the training.
"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from polyadic.errors import ModelFileError, PolyadicError

__all__ = ["PREFIX", "SCALES", "LinearProbe", "decisions", "most_probable"]

PREFIX = "probe."
"""Prefix of the names of a probe's arrays in a model file."""

_STORED: dict[str, Any] = {
    "C": float,
    "scale": str,
    "levels": bool | None,
    "validation": list,
    "reason": str,
    "recenter": bool,
}
"""Fitted attributes in the JSON of a probe, and their types."""

SCALES = ("plain", "standardised")
"""Unscaled features, or features scaled to mean 0 and variance 1."""


def decisions(Z: NDArray[Any], coef: NDArray[np.float64], intercept: NDArray[np.float64]) -> NDArray[np.float64]:
    """Evaluate linear functions of features: log odds of the second of two classes (n,), or scores (n, K)."""
    values: NDArray[np.float64] = Z @ coef.T + intercept
    return values[:, 0] if len(intercept) == 1 else values


def most_probable(decision: NDArray[np.float64], classes: NDArray[Any]) -> NDArray[Any]:
    """Return the class with the highest decision value: (n,)."""
    best = (decision > 0).astype(np.intp) if decision.ndim == 1 else decision.argmax(axis=1)
    predicted: NDArray[Any] = classes[best]
    return predicted


class LinearProbe:
    """A fitted probe that predicts; parameters and attributes are those of `polyadic.evaluate.Probe`.

    Examples
    --------
    >>> probe = LinearProbe()
    >>> probe.classes_, probe.coef_, probe.intercept_ = np.array(["rest", "walk"]), np.array([[2.0]]), np.array([-1.0])
    >>> probe.predict(np.array([[0.0], [1.0]]))
    array(['rest', 'walk'], dtype='<U4')
    """

    classes_: NDArray[Any]
    coef_: NDArray[np.float64]
    intercept_: NDArray[np.float64]
    C_: float
    scale_: str
    levels_: bool | None
    validation_: list[dict[str, Any]]
    reason_: str
    n_features_in_: int
    recenter_ = False
    """Whether the features must be recentred by subject; set by `WindowClassifier`."""

    def __init__(
        self, C: Any = "auto", scale: str = "auto", levels: Any = "auto", class_weight: Any = "balanced"
    ) -> None:
        self.C = C
        self.scale = scale
        self.levels = levels
        self.class_weight = class_weight

    def __repr__(self) -> str:
        return f"<LinearProbe of {self.coef_.shape[1]} features: {', '.join(map(str, self.classes_))}>"

    def decision_function(self, Z: Any) -> NDArray[np.float64]:
        """Return the log odds of the second of two classes (N,), or one score per class (N, K)."""
        return decisions(self._check_features(Z), self.coef_, self.intercept_)

    def predict(self, Z: Any) -> NDArray[Any]:
        """Return the most probable class of each row: (N,)."""
        return most_probable(self.decision_function(Z), self.classes_)

    def predict_proba(self, Z: Any) -> NDArray[np.float64]:
        """Return the probability of each of `classes_`: (N, K). Balanced class weights change it (see `Probe`)."""
        decision = self.decision_function(Z)
        if decision.ndim == 1:
            # log(1 + exp(x)) without overflow, and accurate for tiny probabilities
            return np.exp(-np.logaddexp(0.0, np.stack([decision, -decision], axis=1)))
        exponentials = np.exp(decision - decision.max(axis=1, keepdims=True))
        probabilities: NDArray[np.float64] = exponentials / exponentials.sum(axis=1, keepdims=True)
        return probabilities

    def _check_features(self, Z: Any) -> NDArray[Any]:
        return np.asarray(Z)

    def _check_parameters(self) -> None:
        number = isinstance(self.C, Real) and not isinstance(self.C, bool | np.bool_)
        if not _is_auto(self.C) and not (number and 0 < self.C < np.inf):
            raise PolyadicError(f"C must be 'auto' or a positive number, but is {self.C!r}")
        if self.scale not in ("auto", *SCALES):
            raise PolyadicError(f"scale must be 'auto', 'plain' or 'standardised', but is {self.scale!r}")
        if not _is_auto(self.levels) and not isinstance(self.levels, bool | np.bool_):
            raise PolyadicError(f"levels must be 'auto', True or False, but is {self.levels!r}")
        weight = self.class_weight
        if weight is not None and not isinstance(weight, dict) and weight != "balanced":
            raise PolyadicError(f"class_weight must be 'balanced', None or a dictionary, but is {weight!r}")

    # ------------------------------------------------------------- model files

    def pack(self) -> tuple[dict[str, NDArray[np.float64]], dict[str, Any]]:
        """Convert a fitted probe to arrays and JSON, for a model file.

        Returns
        -------
        arrays `probe.coef` (K, F) and `probe.intercept` (K,), float64, with K the number of classes or 1 for two of
        them; and as JSON the classes (strings or integers), the parameters, the settings used and the reason for them
        """
        classes = self.classes_.tolist()
        if not _are_classes(classes):
            raise PolyadicError(
                f"classes must be strings or integers to be stored in a model file, but are {classes!r}"
            )
        weight = self.class_weight
        if isinstance(weight, dict):  # classes may be integers, which cannot be keys in JSON
            names = [name.item() if isinstance(name, np.generic) else name for name in weight]
            weight = [[name, float(value)] for name, value in zip(names, weight.values(), strict=True)]
        header = {
            "classes": classes,
            "parameters": {
                "C": self.C if _is_auto(self.C) else float(self.C),
                "scale": self.scale,
                "levels": self.levels if _is_auto(self.levels) else bool(self.levels),
                "class_weight": weight,
            },
            **{name: getattr(self, f"{name}_") for name in _STORED},
        }
        arrays = {"coef": self.coef_, "intercept": self.intercept_}
        return {PREFIX + name: np.asarray(array, np.float64) for name, array in arrays.items()}, header

    @classmethod
    def unpack(cls, arrays: Mapping[str, NDArray[Any]], header: Any, features: int) -> Self | None:
        """Build the probe from the output of `pack`; None if there is none.

        Parameters
        ----------
        arrays : the arrays of the model file; those of other parts are ignored
        header : the JSON of the probe
        features : number of features of the model

        Raises
        ------
        ModelFileError : if arrays and JSON are damaged or inconsistent

        Examples
        --------
        >>> LinearProbe.unpack({}, None, features=4) is None
        True
        """
        stored = {name.removeprefix(PREFIX): array for name, array in arrays.items() if name.startswith(PREFIX)}
        if header is None and not stored:
            return None
        classes = header.get("classes") if isinstance(header, dict) else None
        if not isinstance(classes, list) or not _are_classes(classes):
            raise ModelFileError(f"the file's probe must name two or more different classes, but has {classes!r}")
        rows = 1 if len(classes) == 2 else len(classes)
        shapes, expected = {name: array.shape for name, array in stored.items()}, {"coef": (rows, features)}
        if shapes != expected | {"intercept": (rows,)}:
            raise ModelFileError(f"the file's probe has arrays {shapes}, but must have {rows} rows of {features}")
        try:
            probe = cls._from_header(header)
        except (KeyError, TypeError, ValueError) as error:
            raise ModelFileError(f"the file's probe has an invalid description: {error}") from error
        probe.classes_, probe.n_features_in_ = np.asarray(classes), features
        probe.coef_, probe.intercept_ = stored["coef"], stored["intercept"]
        return probe

    @classmethod
    def _from_header(cls, header: dict[str, Any]) -> Self:
        """Build a probe from its JSON, without its arrays."""
        parameters = dict(header["parameters"])
        if isinstance(parameters["class_weight"], list):
            parameters["class_weight"] = {name: float(value) for name, value in parameters["class_weight"]}
        probe = cls(**parameters)
        probe._check_parameters()
        for name, kind in _STORED.items():
            if not isinstance(header[name], kind):
                raise TypeError(f"{name} is {header[name]!r}")
            setattr(probe, f"{name}_", header[name])
        return probe


def _is_auto(value: Any) -> bool:
    return isinstance(value, str) and value == "auto"


def _are_classes(classes: list[Any]) -> bool:
    """Return whether these are two or more distinct strings, or distinct integers."""
    alike = all(type(name) is str for name in classes) or all(type(name) is int for name in classes)
    return alike and len(set(classes)) == len(classes) > 1
