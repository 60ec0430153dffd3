"""`Probe`: logistic regression on features, with settings chosen by cross-validation over groups (subjects).

`make_probe` and `train_probe` make and train any classifier of features, by name or as an object.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import product
from numbers import Real
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import softmax
from sklearn import config_context
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import assert_all_finite
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, has_fit_parameter, validate_data
from threadpoolctl import threadpool_limits
from torch import Tensor

from polyadic._util.threads import for_each, thread_pool
from polyadic.data.folds import contiguous_blocks, group_folds
from polyadic.data.labels import UNKNOWN_MARKS, as_column, as_text, known_labels
from polyadic.errors import ModelFileError, PolyadicError

__all__ = [
    "AUTO",
    "FEWEST_LABELS",
    "FIXED_C",
    "FOLDS",
    "GRID",
    "SCALES",
    "Probe",
    "features_of",
    "left_out",
    "level_columns",
    "make_probe",
    "mean_variance",
    "regressions",
    "train_probe",
    "unthreaded",
]

AUTO = "auto"
"""The name of `Probe`, and of a setting that it chooses."""

SCALES = ("plain", "standardised")
"""Unscaled features, or features scaled to mean 0 and variance 1; also the names of the paper's two probes."""

GRID = tuple(10.0**power for power in range(-4, 3))
"""Candidate values of C, for features of mean variance 1."""

FIXED_C = 1.0
"""C without validation, for features of mean variance 1; features are then unscaled and the level block is used."""

FOLDS = 5
"""Maximum number of folds."""

FEWEST_LABELS = 100
"""Minimum number of labels for validation; with fewer, the fixed settings were better on development subjects."""

_SEARCH_TOLERANCE, _TOLERANCE = 1e-3, 1e-4
_MOST_ITERATIONS = 1000

_PREFIX = "probe."
_STORED: dict[str, Any] = {
    "C": float,
    "scale": str,
    "levels": bool | None,
    "validation": list,
    "reason": str,
    "recenter": bool,
}
"""Fitted attributes in the JSON of a probe, and their types."""


class _Setting(NamedTuple):
    C: float
    scale: str
    levels: bool


class Probe(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Logistic regression on features, with settings chosen to generalise to new groups (subjects).

    Parameters set to "auto" are chosen jointly by the balanced accuracy on left-out groups, in up to five folds.
    Without groups, contiguous blocks of rows are used instead. Ties go to the setting closest to the fixed settings:
    unscaled features, level block used, C = 1 / (mean variance of the features). The fixed settings are also used if
    validation is impossible or too noisy: all labels from one group, or fewer than 100 labels in total.

    Rows with unknown label ("", None, NaN or -1) are ignored.

    With `class_weight="balanced"`, all classes have the same weight in training. This increases the recall of rare
    classes, and `predict_proba` then assumes that all classes are equally frequent. Use `class_weight=None` if
    probabilities must match the class frequencies of the training data.

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
    reason_ : one sentence on how the settings were chosen

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
        used = {True: np.ones(Z.shape[1], bool), False: ~is_level}  # columns with and without the level block

        candidates = self._candidates(Z, used)
        chosen = fixed = candidates[GRID.index(FIXED_C) if self.C == AUTO else 0]
        scores: dict[_Setting, float] = {}
        count = len(np.unique(blocks))
        with unthreaded(), thread_pool():
            if len(candidates) == 1:
                reason = "as given"
            elif count == 1 and codes is not None:
                reason = "the fixed settings, because all labels are from one subject"
            elif len(labels) < FEWEST_LABELS:
                few = f"{len(labels)} labels are too few to validate (fewer than {FEWEST_LABELS})"
                reason = f"the fixed settings, because {few}"
            else:
                scores = self._validate(Z, labels, group_folds(labels, blocks, FOLDS), used, candidates)
                chosen = max(candidates, key=lambda setting: _preference(setting, scores[setting], fixed))
                reason = (
                    f"the best of {len(candidates)} settings by leaving out {count} "
                    f"{'contiguous blocks' if codes is None else 'subjects'} in {min(count, FOLDS)} folds, balanced "
                    f"accuracy {100 * scores[chosen]:.1f} % (optimistic: the setting was chosen by it)"
                )
            columns = used[chosen.levels]
            fits = regressions(Z[:, columns], labels, chosen.scale, [chosen.C], self.class_weight, _TOLERANCE)
        ((coef, self.intercept_),) = fits
        self.classes_ = np.unique(labels)
        self.coef_ = np.zeros((len(coef), Z.shape[1]))
        self.coef_[:, columns] = coef
        self.C_, self.scale_ = chosen.C, chosen.scale
        self.levels_ = chosen.levels if is_level.any() else None
        self.validation_ = [
            {"C": C, "scale": scale, "levels": levels if is_level.any() else None, "balanced_accuracy": score}
            for (C, scale, levels), score in scores.items()
        ]
        block = "" if self.levels_ is None else f", {'with' if self.levels_ else 'without'} the levels of the channels"
        self.reason_ = f"{_described(self.C_, self.scale_)}{block}: {reason}"
        return self

    def decision_function(self, Z: Any) -> NDArray[np.float64]:
        """Return the log odds of the second of two classes (N,), or one score per class (N, K)."""
        logits = self._logits(Z)
        return logits[:, 1] if logits.shape[1] == 2 else logits

    def predict(self, Z: Any) -> NDArray[Any]:
        """Return the most probable class of each row: (N,)."""
        best = self._logits(Z).argmax(axis=1)
        return np.asarray(self.classes_[best])

    def predict_proba(self, Z: Any) -> NDArray[np.float64]:
        """Return the probability of each of `classes_`: (N, K)."""
        return np.asarray(softmax(self._logits(Z), axis=1))

    def _logits(self, Z: Any) -> NDArray[np.float64]:
        check_is_fitted(self)
        return _logits(validate_data(self, _on_cpu(Z), reset=False, dtype=np.float64), self.coef_, self.intercept_)

    def _check_parameters(self) -> None:
        number = isinstance(self.C, Real) and not isinstance(self.C, bool | np.bool_)
        if self.C != AUTO and not (number and 0 < self.C < np.inf):
            raise PolyadicError(f"C must be 'auto' or a positive number, but is {self.C!r}")
        if self.scale not in (AUTO, *SCALES):
            raise PolyadicError(f"scale must be 'auto', 'plain' or 'standardised', but is {self.scale!r}")
        if self.levels != AUTO and not isinstance(self.levels, bool | np.bool_):
            raise PolyadicError(f"levels must be 'auto', True or False, but is {self.levels!r}")
        weight = self.class_weight
        if weight is not None and not isinstance(weight, dict) and weight != "balanced":
            raise PolyadicError(f"class_weight must be 'balanced', None or a dictionary, but is {weight!r}")

    def _check_input(self, Z: Any, y: Any) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[Any]]:
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

    def _check_levels(self, level_columns: Any, count: int) -> NDArray[np.bool_]:
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

    def _candidates(self, Z: NDArray[np.float64], used: Mapping[bool, NDArray[np.bool_]]) -> list[_Setting]:
        """Return all combinations of the candidate settings; the first C values are those of the fixed settings."""
        scales = SCALES if self.scale == AUTO else (self.scale,)
        both = self.levels == AUTO and used[False].any() and not used[False].all()
        candidates = []
        for scale, levels in product(scales, (True, False) if both else (bool(self.levels),)):
            unit = mean_variance(Z[:, used[levels]], scale)
            Cs = [C / unit for C in GRID] if self.C == AUTO else [float(self.C)]
            candidates += [_Setting(C, scale, levels) for C in Cs]
        return candidates

    def _validate(
        self,
        Z: NDArray[np.float64],
        y: NDArray[Any],
        fold: NDArray[np.intp],
        used: Mapping[bool, NDArray[np.bool_]],
        candidates: list[_Setting],
    ) -> dict[_Setting, float]:
        """Return the balanced accuracy of each candidate on left-out folds."""
        scores: dict[_Setting, float] = {}

        def score_path(variant: tuple[str, bool]) -> None:
            scale, levels = variant
            Cs = [setting.C for setting in candidates if setting[1:] == variant]
            predicted = left_out(Z[:, used[levels]], y, fold, scale, Cs, self.class_weight, _SEARCH_TOLERANCE)
            for C, classes in zip(Cs, predicted, strict=True):
                scores[_Setting(C, scale, levels)] = float(balanced_accuracy_score(y, classes))

        for_each(score_path, list(dict.fromkeys(setting[1:] for setting in candidates)))
        return {setting: scores[setting] for setting in candidates}

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
                "to be stored or exported, the probe must be a Probe, a LogisticRegression, or a pipeline of a "
                f"StandardScaler and a LogisticRegression, but is {' and '.join(type(step).__name__ for step in steps)}"
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
        probe.reason_ = f"{_described(probe.C_, probe.scale_)}: as given"
        probe.recenter_ = getattr(classifier, "recenter_", False)
        return probe

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
            weight = [[np.asarray(name).item(), float(value)] for name, value in weight.items()]
        parameters = {
            "C": self.C if self.C == AUTO else float(self.C),
            "scale": self.scale,
            "levels": self.levels if self.levels == AUTO else bool(self.levels),
            "class_weight": weight,
        }
        fitted = {name: getattr(self, f"{name}_") for name in _STORED}
        arrays = {f"{_PREFIX}coef": self.coef_, f"{_PREFIX}intercept": self.intercept_}
        return arrays, {"classes": classes, "parameters": parameters, **fitted}

    @classmethod
    def unpack(cls, arrays: Mapping[str, NDArray[Any]], header: Any, features: int) -> Self:
        """Build the probe from the output of `pack`; `polyadic.load` reports all errors as ModelFileError.

        Parameters
        ----------
        arrays : the arrays of the model file; those of other parts are ignored
        header : the JSON of the probe
        features : number of features of the model
        """
        stored = {name.removeprefix(_PREFIX): array for name, array in arrays.items() if name.startswith(_PREFIX)}
        classes = header.get("classes") if isinstance(header, dict) else None
        if not isinstance(classes, list) or not _are_classes(classes):
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
        probe.classes_, probe.n_features_in_ = np.asarray(classes), features
        probe.coef_, probe.intercept_ = stored["coef"], stored["intercept"]
        return probe


def _preference(setting: _Setting, score: float, fixed: _Setting) -> tuple[Any, ...]:
    """Return the key of a setting: the score, then similarity to the fixed settings."""
    alike = (setting.scale == fixed.scale, setting.levels == fixed.levels)
    return (round(score, 12), *alike, -abs(np.log(setting.C / fixed.C)), -setting.C)


def _described(C: float, scale: str) -> str:
    return f"C={C:.3g}, {'unscaled' if scale == 'plain' else scale} features"


def _are_classes(classes: list[Any]) -> bool:
    """Return whether these are two or more distinct strings, or distinct integers."""
    alike = all(type(name) is str for name in classes) or all(type(name) is int for name in classes)
    return alike and len(set(classes)) == len(classes) > 1


def _on_cpu(Z: Any) -> Any:
    return Z.numpy(force=True) if isinstance(Z, Tensor) else Z


def _group_codes(groups: ArrayLike | None, known: NDArray[np.bool_]) -> NDArray[np.intp] | None:
    """Return the groups of the labelled rows as integers, or None if all are unknown ("", None, NaN or -1)."""
    if groups is None:
        return None
    column = as_column(groups, "groups", len(known))[known]
    names = np.array([as_text(value) for value in column.tolist()], np.str_)
    if not (names != "").any():
        return None
    return np.unique(column if column.dtype.kind in "iu" else names, return_inverse=True)[1]  # numbers in their order


# -------------------------------------------------------------------- regression


@contextmanager
def unthreaded() -> Iterator[None]:
    """Limit the fitting of probes to one thread, and suppress ConvergenceWarning."""
    # Threads slow down such small problems: in BLAS up to a hundredfold.
    with threadpool_limits(limits=1), warnings.catch_warnings():
        # A regression that is not quite at its optimum after 1000 iterations is good enough for evaluation.
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield


def mean_variance(Z: NDArray[np.float64], scale: str) -> float:
    """Return the mean variance of features (n, F) after scaling, the unit of 1 / C; 1 if they are constant."""
    return 1.0 if scale == "standardised" else float(Z.var(axis=0).mean()) or 1.0


def _logits(Z: NDArray[Any], coef: NDArray[np.float64], intercept: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return one score per class (n, K); of two classes, the first has score 0."""
    logits: NDArray[np.float64] = Z @ coef.T + intercept
    return logits if len(intercept) > 1 else np.hstack([np.zeros_like(logits), logits])


def regressions(
    Z: NDArray[np.float64], y: NDArray[Any], scale: str, Cs: Sequence[float], class_weight: Any, tolerance: float
) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Fit one regression per C, each warm-started from the previous one; ascending values are fastest.

    The intercept is not penalised, so features can be centred first. The penalty is invariant to rotation and the
    solution lies in the span of the centred rows, so with more features than rows, coordinates in that span are used.

    Parameters
    ----------
    Z : (n, F), features
    y : (n,), at least two classes
    scale : one of `SCALES`
    Cs, class_weight : as for scikit-learn's LogisticRegression
    tolerance : tolerance on the gradient of the mean loss, for features of mean variance 1

    Returns
    -------
    for each C the coefficients (K, F) and the intercepts (K,) in terms of Z, with K = 1 for two classes
    """
    centre = Z.mean(axis=0)
    # For plain features a common divisor, compensated by C, only sets the scale for the solver's tolerance.
    divisor = StandardScaler().fit(Z).scale_ if scale == "standardised" else np.sqrt(mean_variance(Z, scale))
    F, basis = (Z - centre) / divisor, None
    if F.shape[1] > F.shape[0]:
        basis, coordinates = np.linalg.qr(F.T)  # F = coordinatesᵀ basisᵀ
        F = coordinates.T
    solver = LogisticRegression(warm_start=True, tol=tolerance, max_iter=_MOST_ITERATIONS, class_weight=class_weight)
    fits = []
    for C in Cs:
        solver.set_params(C=C if scale == "standardised" else C * divisor**2).fit(F, y)
        coef = (solver.coef_ if basis is None else solver.coef_ @ basis.T) / divisor
        fits.append((coef, solver.intercept_ - coef @ centre))
    return fits


def left_out(
    Z: NDArray[np.float64],
    y: NDArray[Any],
    fold: NDArray[np.intp],
    scale: str,
    Cs: Sequence[float],
    class_weight: Any,
    tolerance: float,
) -> NDArray[Any]:
    """Predict each row with regressions trained without its fold, one per C: (len(Cs), n).

    Within `polyadic._util.threads.thread_pool`, folds run in parallel.

    Parameters
    ----------
    fold : (n,), from 0; if the other folds have only one class, that class is predicted
    others : as for `regressions`
    """
    predicted = np.empty((len(Cs), len(y)), y.dtype)

    def leave_out(number: int) -> None:
        test, train = fold == number, fold != number
        classes = np.unique(y[train])
        if len(classes) == 1:
            predicted[:, test] = classes[0]
            return
        weight = class_weight
        if isinstance(weight, dict):  # scikit-learn rejects weights of missing classes
            weight = {name: value for name, value in weight.items() if name in classes}
        fits = regressions(Z[train], y[train], scale, Cs, weight, tolerance)
        for row, fit in zip(predicted, fits, strict=True):
            row[test] = classes[_logits(Z[test], *fit).argmax(axis=1)]

    for_each(leave_out, range(fold.max() + 1))
    return predicted


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
    regression = LogisticRegression(max_iter=_MOST_ITERATIONS)
    return regression if kind == "plain" else make_pipeline(StandardScaler(), regression)


def train_probe(kind: Any, Z: NDArray[Any], y: NDArray[Any], groups: Any = None, level_columns: Any = None) -> Any:
    """Train a probe; groups and the level block are passed on if its `fit` takes them.

    Parameters
    ----------
    kind : as for `make_probe`. The library's own probes train in one thread and without convergence warnings
    Z : (n, F), features
    y : (n,), classes
    groups : (n,), the subject of each row, or None; for a pipeline they are passed to its last step
    level_columns : as for `Probe.fit`; not passed to pipelines, whose steps may change the columns
    """
    probe, words = make_probe(kind), {}
    name, last = probe.steps[-1] if isinstance(probe, Pipeline) else ("", probe)
    if has_fit_parameter(last, "groups"):
        words[f"{name}__groups" if name else "groups"] = groups
    if has_fit_parameter(probe, "level_columns"):
        words["level_columns"] = level_columns
    # The arguments are passed directly; metadata routing is for the estimators around the probe.
    with config_context(enable_metadata_routing=False), unthreaded() if isinstance(kind, str) else nullcontext():
        return probe.fit(Z, y, **words)


def features_of(model: Any, windows: Any, on_rows: Callable[[int], None] | None = None) -> NDArray[np.float64]:
    """Compute features in double precision, as in model files: (N, F); `on_rows` takes the number of windows done."""
    words = {} if on_rows is None else {"on_rows": on_rows}  # other feature extractors do not take it
    return np.asarray(model.transform(windows, **words), np.float64)


def level_columns(model: Any) -> NDArray[np.intp]:
    """Return the indices of a feature extractor's level columns, whose names begin with "level "."""
    names = model.get_feature_names_out() if hasattr(model, "get_feature_names_out") else []
    return np.flatnonzero([str(name).startswith("level ") for name in names])
