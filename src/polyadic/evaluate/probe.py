"""`Probe`: logistic regression on features, with settings chosen by cross-validation over groups (subjects).

`make_probe` and `train_probe` make and train any classifier of features, by name or as an object.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from numbers import Real
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import softmax
from sklearn import config_context
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import assert_all_finite
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, has_fit_parameter, validate_data
from torch import Tensor

from polyadic._util.threads import thread_pool
from polyadic.data.labels import UNKNOWN_MARKS, as_column, as_text, known_labels
from polyadic.data.splits import contiguous_blocks, group_folds
from polyadic.errors import ModelFileError, PolyadicError
from polyadic.evaluate.regression import (
    FEWEST_LABELS,
    FIXED_C,
    FOLDS,
    GRID,
    MOST_ITERATIONS,
    SCALES,
    Setting,
    candidates,
    left_out,
    logits,
    regressions,
    unthreaded,
)

__all__ = [
    "AUTO",
    "PRIORS",
    "SCALES",
    "Probe",
    "features_of",
    "level_columns",
    "make_probe",
    "own_prior",
    "train_probe",
]

AUTO = "auto"
"""The name of `Probe`, and of a setting that it chooses."""
PRIORS = ("balanced", "training")
"""Class frequencies that probabilities assume: all equal, or those of the training labels."""
_ASSUMPTIONS = {
    "balanced": "equally frequent classes",
    "training": "the class frequencies of the training labels",
    "weights": "the class weights",
}

_TOLERANCE = 1e-4
_PREFIX = "probe."
_STORED: dict[str, Any] = {
    "C": float,
    "scale": str,
    "levels": bool | None,
    "validation": list,
    "reason": str,
    "recenter": bool,
    "prior": str | None,
    "class_counts": list | None,
}
"""Fitted attributes in the JSON of a probe, and their types."""

_Floats = NDArray[np.float64]
_Mask = NDArray[np.bool_]


class Probe(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Logistic regression on features, with settings chosen to generalise to new groups (subjects).

    Parameters set to "auto" are chosen jointly by the balanced accuracy on left-out groups, in up to five folds.
    Without groups, contiguous blocks of rows are used instead. Ties go to the setting closest to the fixed settings:
    unscaled features, level block used, C = 1 / (mean variance of the features). The fixed settings are also used if
    validation is impossible or too noisy: all labels from one group, or fewer than 100 labels in total.

    With `class_weight="balanced"`, all classes have the same weight in training. This increases the recall of rare
    classes, and `predict_proba` then assumes that all classes are equally frequent; `with_prior("training")` converts
    it to the class frequencies of the training labels.

    Parameters
    ----------
    C : inverse regularisation strength, as in scikit-learn, or "auto" for seven values from 1e-4 to 1e2, each divided
        by the mean variance of the features, which makes the choice independent of their unit
    scale : "plain" for unscaled features, "standardised" for mean 0 and variance 1, or "auto"
    levels : whether to use the level block (`level_columns` of `fit`), or "auto"
    class_weight : "balanced", None, or a dictionary of weights by class

    Attributes
    ----------
    C_, scale_ : the settings used
    levels_ : whether the level block is used; None if there is none
    classes_ : (K,), the classes
    coef_, intercept_ : (K, F) and (K,), or (1, F) and (1,) for two classes; they apply to the features as passed to
        `fit`, include the scaling, and are 0 for unused columns
    validation_ : a list of dictionaries with C, scale, levels and balanced_accuracy, one per candidate; empty without
        validation
    class_counts_ : the number of training labels of each class
    prior_ : the prior set by `with_prior`; None for that of the class weights
    reason_ : one sentence on how the settings were chosen, and which class frequencies the probabilities assume

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> y, subject = np.arange(200) % 2, np.arange(200) // 20
    >>> Z = rng.normal(size=(200, 3)) + 4 * y[:, None]
    >>> probe = Probe().fit(Z, y, groups=subject)
    >>> probe.scale_, len(probe.validation_), probe.score(Z, y)
    ('plain', 14, 1.0)
    """

    recenter_ = False
    """Whether the features must be recentred by subject; set by `WindowClassifier`."""
    prior_: str | None = None
    class_counts_: list[int] | None = None

    def __init__(self, C: Any = AUTO, scale: str = AUTO, levels: Any = AUTO, class_weight: Any = "balanced") -> None:
        self.C = C
        self.scale = scale
        self.levels = levels
        self.class_weight = class_weight

    def fit(self, Z: Any, y: ArrayLike, groups: ArrayLike | None = None, level_columns: Any = None) -> Self:
        """Choose the settings and train on all labelled rows.

        Parameters
        ----------
        Z : (N, F), features
        y : (N,), classes; rows labelled "", None, NaN or -1 are ignored
        groups : (N,), group of each row, for example `Windows.subject`; rows of unknown subject ("", -1) form one
            group. In a pipeline use `probe__groups=`, or metadata routing with `set_fit_request(groups=True)`
        level_columns : the columns of Z that form the level block: a slice, indices or a mask
        """
        self._check_parameters()
        Z, known, labels = self._check_input(Z, y)
        is_level = self._check_levels(level_columns, Z.shape[1])
        codes = _group_codes(groups, known)
        blocks = contiguous_blocks(labels, FOLDS) if codes is None else codes
        Z = Z[known]
        auto, both = self.C == AUTO, self.levels == AUTO and bool(is_level.any() and not is_level.all())
        settings = candidates(
            Z,
            is_level,
            GRID if auto else (FIXED_C,),
            SCALES if self.scale == AUTO else (self.scale,),
            (True, False) if both else (bool(self.levels),),
        )
        if not auto:
            settings = [setting._replace(C=float(self.C)) for setting in settings]
        chosen = fixed = settings[GRID.index(FIXED_C) if auto else 0]
        scores: dict[Setting, float] = {}
        count = len(np.unique(blocks))
        with unthreaded(), thread_pool():
            if len(settings) == 1:
                reason = "as given"
            elif count == 1 and codes is not None:
                reason = "the fixed settings, because all labels are from one subject"
            elif len(labels) < FEWEST_LABELS:
                few = f"{len(labels)} labels are too few to validate (fewer than {FEWEST_LABELS})"
                reason = f"the fixed settings, because {few}"
            else:
                fold = group_folds(labels, blocks, FOLDS)
                predicted = left_out(Z, labels, fold, settings, is_level, self.class_weight)
                scores = {setting: float(balanced_accuracy_score(labels, y)) for setting, y in predicted.items()}
                chosen = max(settings, key=lambda setting: _preference(setting, scores[setting], fixed))
                reason = (
                    f"the best of {len(settings)} settings by leaving out {count} "
                    f"{'contiguous blocks' if codes is None else 'subjects'} in {min(count, FOLDS)} folds, balanced "
                    f"accuracy {100 * scores[chosen]:.1f} % (optimistic: the setting was chosen by it)"
                )
            columns = chosen.levels | ~is_level
            fits = regressions(Z[:, columns], labels, chosen.scale, [chosen.C], self.class_weight, _TOLERANCE)
        ((coef, self.intercept_),) = fits
        self.classes_, counts = np.unique(labels, return_counts=True)
        self.class_counts_, self.prior_ = counts.tolist(), None
        self.coef_ = np.zeros((len(coef), Z.shape[1]))
        self.coef_[:, columns] = coef
        self.C_, self.scale_ = chosen.C, chosen.scale
        self.levels_ = chosen.levels if is_level.any() else None
        self.validation_ = [
            {"C": C, "scale": scale, "levels": levels if is_level.any() else None, "balanced_accuracy": score}
            for (C, scale, levels), score in scores.items()
        ]
        block = "" if self.levels_ is None else f", {'with' if self.levels_ else 'without'} the levels of the channels"
        self.reason_ = f"{_described(self.C_, self.scale_)}{block}: {reason}; {self._assumption()}"
        return self

    def with_prior(self, prior: str) -> Probe:
        """Return a copy of a fitted probe whose probabilities and predictions assume other class frequencies.

        By Bayes' rule, the logit of each class changes by the logarithm of its new over its old prior.

        Parameters
        ----------
        prior : "balanced" for equally frequent classes, "training" for the class frequencies of the training labels

        Examples
        --------
        >>> Z, y = np.array([[-1.0]] * 90 + [[1.0]] * 10), np.array([0] * 90 + [1] * 10)
        >>> probe = Probe(C=1.0, scale="plain").fit(Z, y)
        >>> [round(float(p.predict_proba([[0.0]])[0, 1]), 1) for p in (probe, probe.with_prior("training"))]
        [0.5, 0.1]
        """
        check_is_fitted(self)
        if prior not in PRIORS:
            raise PolyadicError(f"prior must be 'balanced' or 'training', but is {prior!r}")
        if self.class_counts_ is None:
            raise PolyadicError(
                "prior needs the number of training labels of each class: train the probe by WindowClassifier"
            )
        shift = self._log_prior(prior) - self._log_prior(self._assumed_prior())
        probe = copy.copy(self)
        probe.intercept_ = self.intercept_ + (shift if len(self.intercept_) > 1 else shift[1:] - shift[:1])
        probe.prior_ = prior
        probe.reason_ = f"{self.reason_.rpartition('; ')[0]}; {probe._assumption()}"
        return probe

    def _assumed_prior(self) -> str:
        if self.prior_ is not None:
            return self.prior_
        return "weights" if isinstance(self.class_weight, dict) else self.class_weight or "training"

    def _log_prior(self, prior: str) -> _Floats:
        """Return the logarithms of the class frequencies, up to a constant: (K,)."""
        if prior == "balanced":
            return np.zeros(len(self.classes_))
        weights = self.class_weight if prior == "weights" else {}
        weight = [weights.get(name, 1.0) for name in self.classes_.tolist()]
        return np.asarray(np.log(np.array(self.class_counts_) * weight))

    def _assumption(self) -> str:
        return f"probabilities assume {_ASSUMPTIONS[self._assumed_prior()]}"

    def decision_function(self, Z: Any) -> _Floats:
        """Return the log odds of the second of two classes (N,), or one score per class (N, K)."""
        logits = self._logits(Z)
        return logits[:, 1] if logits.shape[1] == 2 else logits

    def predict(self, Z: Any) -> NDArray[Any]:
        """Return the most probable class of each row: (N,)."""
        best = self._logits(Z).argmax(axis=1)
        return np.asarray(self.classes_[best])

    def predict_proba(self, Z: Any) -> _Floats:
        """Return the probability of each of `classes_`: (N, K)."""
        return np.asarray(softmax(self._logits(Z), axis=1))

    def _logits(self, Z: Any) -> _Floats:
        check_is_fitted(self)
        return logits(validate_data(self, _on_cpu(Z), reset=False, dtype=np.float64), self.coef_, self.intercept_)

    def _check_parameters(self) -> None:
        number = isinstance(self.C, Real) and not isinstance(self.C, bool | np.bool_)
        weight = self.class_weight
        for name, is_valid, expected in (
            ("C", self.C == AUTO or (number and 0 < self.C < np.inf), "'auto' or a positive number"),
            ("scale", self.scale in (AUTO, *SCALES), "'auto', 'plain' or 'standardised'"),
            ("levels", self.levels == AUTO or isinstance(self.levels, bool | np.bool_), "'auto', True or False"),
            (
                "class_weight",
                weight is None or isinstance(weight, dict) or weight == "balanced",
                "'balanced', None or a dictionary",
            ),
        ):
            if not is_valid:
                raise PolyadicError(f"{name} must be {expected}, but is {getattr(self, name)!r}")

    def _check_input(self, Z: Any, y: Any) -> tuple[_Floats, _Mask, NDArray[Any]]:
        """Return the features (N, F), which rows have a label (N,), and the known labels."""
        if y is None:
            raise PolyadicError("Probe requires y to be passed, but the target y is None")
        features = validate_data(self, _on_cpu(Z), dtype=np.float64)
        known, labels = known_labels(column_or_1d(y, warn=True) if getattr(y, "ndim", 1) == 2 else y, len(features))
        assert_all_finite(labels, input_name="y")
        check_classification_targets(labels)
        classes = np.unique(labels)
        if len(classes) < 2:
            what = f"1 class, {classes.tolist()[0]!r}" if len(classes) else "no labelled row"
            raise PolyadicError(
                f"y must have at least two classes, but has {what} ({UNKNOWN_MARKS} marks an unknown label)"
            )
        return features, known, labels

    def _check_levels(self, level_columns: Any, count: int) -> _Mask:
        """Return which columns form the level block: (F,)."""
        is_level = np.zeros(count, bool)
        try:
            is_level[[] if level_columns is None else level_columns] = True
        except IndexError as error:
            raise PolyadicError(
                f"level_columns must be a slice, indices or a mask of {count} columns, but is {level_columns!r}"
            ) from error
        if not self.levels and (level_columns is None or is_level.all()):
            what = "none were given" if level_columns is None else f"they are all {count} columns"
            raise PolyadicError(f"levels=False requires level_columns, the columns to leave out, but {what}")
        return is_level

    # ------------------------------------------------------------- model files

    @classmethod
    def of(cls, classifier: Any) -> Probe:
        """Return a fitted linear classifier as a `Probe`, which can be stored and exported.

        Parameters
        ----------
        classifier : a fitted `Probe` or LogisticRegression, or a pipeline of a StandardScaler and a LogisticRegression

        Examples
        --------
        >>> Probe.of(LogisticRegression().fit([[0.0], [1.0]], ["rest", "walk"])).predict([[2.0]])
        array(['walk'], dtype='<U4')
        """
        steps = [step for _, step in classifier.steps] if isinstance(classifier, Pipeline) else [classifier]
        if [type(step) for step in steps] not in ([Probe], [LogisticRegression], [StandardScaler, LogisticRegression]):
            raise PolyadicError(
                "to be stored, exported or given a prior, the probe must be a Probe, a LogisticRegression, or a "
                "pipeline of a StandardScaler and a LogisticRegression, but is "
                f"{' and '.join(type(step).__name__ for step in steps)}"
            )
        regression = steps[-1]
        check_is_fitted(regression)
        if isinstance(regression, Probe):
            return regression
        # Some versions of scikit-learn support one-vs-rest regressions, whose probabilities are not a softmax.
        one_by_one = regression.solver == "liblinear" or getattr(regression, "multi_class", "auto") == "ovr"
        if one_by_one and len(regression.intercept_) > 1:
            raise PolyadicError("probe must be a multinomial regression, but is one-vs-rest: use another solver")
        probe = cls(float(regression.C), SCALES[len(steps) - 1], True, regression.class_weight)
        probe.coef_, probe.intercept_ = regression.coef_.astype(np.float64), regression.intercept_.astype(np.float64)
        if len(steps) == 2:
            scaler = steps[0]
            probe.coef_ = probe.coef_ / scaler.scale_ if scaler.with_std else probe.coef_
            probe.intercept_ = probe.intercept_ - probe.coef_ @ scaler.mean_ if scaler.with_mean else probe.intercept_
        probe.classes_, probe.n_features_in_ = regression.classes_, probe.coef_.shape[1]
        probe.C_, probe.scale_, probe.levels_, probe.validation_ = probe.C, probe.scale, None, []
        probe.reason_ = f"{_described(probe.C_, probe.scale_)}: as given; {probe._assumption()}"
        probe.recenter_ = getattr(classifier, "recenter_", False)
        probe.class_counts_ = getattr(classifier, "class_counts_", None)
        return probe

    def pack(self) -> tuple[dict[str, _Floats], dict[str, Any]]:
        """Convert a fitted probe to arrays and JSON, for a model file: coefficients, classes, parameters, settings."""
        classes = self.classes_.tolist()
        if all(isinstance(name, float) and name.is_integer() for name in classes):
            classes = [int(name) for name in classes]
        if not _are_classes(classes):
            raise PolyadicError(f"classes must be strings or integers to be stored in a model file, but are {classes}")
        parameters = {name: np.asarray(value).item() for name, value in self.get_params().items()}
        if isinstance(self.class_weight, dict):  # classes may be integers, which cannot be keys in JSON
            parameters["class_weight"] = [[np.asarray(key).item(), float(w)] for key, w in self.class_weight.items()]
        fitted = {name: getattr(self, f"{name}_") for name in _STORED}
        arrays = {f"{_PREFIX}coef": self.coef_, f"{_PREFIX}intercept": self.intercept_}
        return arrays, {"classes": classes, "parameters": parameters, **fitted}

    @classmethod
    def unpack(cls, arrays: Mapping[str, NDArray[Any]], header: Any, features: int) -> Self:
        """Build the probe of a model with this many features from the output of `pack`, among other arrays."""
        stored = {name.removeprefix(_PREFIX): array for name, array in arrays.items() if name.startswith(_PREFIX)}
        classes: Any = header.get("classes") if isinstance(header, dict) else None
        if not _are_classes(classes):
            raise ModelFileError(f"the file's probe must name two or more different classes, but has {classes!r}")
        rows = 1 if len(classes) == 2 else len(classes)
        shapes = {name: array.shape for name, array in stored.items()}
        if shapes != {"coef": (rows, features), "intercept": (rows,)}:
            raise ModelFileError(f"the file's probe has arrays {shapes}, but must have {rows} rows of {features}")
        parameters = dict(header["parameters"])
        if isinstance(parameters["class_weight"], list):
            parameters["class_weight"] = {name: float(value) for name, value in parameters["class_weight"]}
        probe = cls(**parameters)
        probe._check_parameters()
        for name, kind in _STORED.items():
            if not isinstance(header[name], kind):
                raise ModelFileError(f"the file's probe has an invalid {name}, {header[name]!r}")
            setattr(probe, f"{name}_", header[name])
        counts = [1] * len(classes) if probe.class_counts_ is None else probe.class_counts_
        if not all(type(count) is int and count > 0 for count in counts) or len(counts) != len(classes):
            raise ModelFileError(f"the file's probe has an invalid class_counts, {counts!r}")
        if probe.prior_ not in (None, *PRIORS):
            raise ModelFileError(f"the file's probe has an invalid prior, {probe.prior_!r}")
        probe.classes_, probe.n_features_in_ = np.asarray(classes), features
        probe.coef_, probe.intercept_ = stored["coef"], stored["intercept"]
        return probe


def _preference(setting: Setting, score: float, fixed: Setting) -> tuple[Any, ...]:
    """Return the key of a setting: the score, then similarity to the fixed settings."""
    alike = (setting.scale == fixed.scale, setting.levels == fixed.levels)
    return (round(score, 12), *alike, -abs(np.log(setting.C / fixed.C)), -setting.C)


def _described(C: float, scale: str) -> str:
    return f"C={C:.3g}, {'unscaled' if scale == 'plain' else scale} features"


def _are_classes(classes: Any) -> bool:
    """Return whether these are two or more distinct strings, integers or booleans."""
    if not isinstance(classes, list) or len(classes) < 2:
        return False
    return {type(name) for name in classes} in ({str}, {int}, {bool}) and len(set(classes)) == len(classes)


def _on_cpu(Z: Any) -> Any:
    return Z.numpy(force=True) if isinstance(Z, Tensor) else Z


def _group_codes(groups: ArrayLike | None, known: _Mask) -> NDArray[np.intp] | None:
    """Return the groups of the labelled rows as integers, or None if all are unknown ("", None, NaN or -1)."""
    if groups is None:
        return None
    column = as_column(groups, "groups", len(known))[known]
    names = np.array([as_text(value) for value in column.tolist()], np.str_)
    if not (names != "").any():
        return None
    return np.unique(column if column.dtype.kind in "iu" else names, return_inverse=True)[1]  # numbers in their order


# ---------------------------------------------------------------- any classifier


def make_probe(kind: Any = AUTO) -> Any:
    """Return an unfitted classifier of features.

    Parameters
    ----------
    kind : "auto" for a `Probe`; "plain" for scikit-learn's LogisticRegression as in the paper (with more iterations,
        because the scales of raw features differ); "standardised" for the same on features of mean 0 and variance 1;
        or any classifier, which is cloned

    Examples
    --------
    >>> make_probe("plain")
    LogisticRegression(max_iter=1000)
    """
    if hasattr(kind, "fit") and not isinstance(kind, type):
        return clone(kind)
    if not isinstance(kind, str) or kind not in (AUTO, *SCALES):
        raise PolyadicError(
            f"probe must be one of {', '.join((AUTO, *SCALES))}, or a scikit-learn classifier, but is {kind!r}"
        )
    if kind == AUTO:
        return Probe()
    regression = LogisticRegression(max_iter=MOST_ITERATIONS)
    return regression if kind == "plain" else make_pipeline(StandardScaler(), regression)


def train_probe(
    kind: Any,
    Z: NDArray[Any],
    y: NDArray[Any],
    groups: Any = None,
    level_columns: Any = None,
    prior: str | None = None,
) -> Any:
    """Train a probe; groups and the level block are passed on if its `fit` takes them.

    Parameters
    ----------
    kind : as for `make_probe`. The library's own probes train in one thread and without convergence warnings
    Z, y : (n, F) and (n,), features and classes
    groups : (n,), the subject of each row, or None; for a pipeline they are passed to its last step
    level_columns : as for `Probe.fit`; not passed to pipelines, whose steps may change the columns
    prior : as for `WindowClassifier`
    """
    probe, words = make_probe(kind), {}
    name, last = probe.steps[-1] if isinstance(probe, Pipeline) else ("", probe)
    if has_fit_parameter(last, "groups"):
        words[f"{name}__groups" if name else "groups"] = groups
    if has_fit_parameter(probe, "level_columns"):
        words["level_columns"] = level_columns
    # The arguments are passed directly; metadata routing is for the estimators around the probe.
    with config_context(enable_metadata_routing=False), unthreaded() if isinstance(kind, str) else nullcontext():
        probe.fit(Z, y, **words)
    probe.class_counts_ = np.unique(y, return_counts=True)[1].tolist()
    return probe if prior is None else Probe.of(probe).with_prior(prior)


def own_prior(model: Any) -> str | None:
    """Return the prior that was set for a model's own probe, or None."""
    return getattr(getattr(model, "probe_", None), "prior_", None)


def features_of(model: Any, windows: Any, on_rows: Callable[[int], None] | None = None) -> _Floats:
    """Compute features in double precision, as in model files: (N, F); `on_rows` takes the number of windows done."""
    words = {"on_rows": on_rows} if "on_rows" in inspect.signature(model.transform).parameters else {}
    return np.asarray(model.transform(windows, **words), np.float64)


def level_columns(model: Any) -> NDArray[np.intp]:
    """Return the indices of a feature extractor's level columns, whose names begin with "level "."""
    names = model.get_feature_names_out() if hasattr(model, "get_feature_names_out") else []
    return np.flatnonzero([str(name).startswith("level ") for name in names])
