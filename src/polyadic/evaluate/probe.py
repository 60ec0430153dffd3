"""`Probe`: logistic regression on features, with settings chosen by cross-validation over groups (subjects).

`make_probe` and `train_probe` make and train any classifier of features, by name or as an object.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import product
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn import config_context
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import recall_score
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
from polyadic.errors import PolyadicError
from polyadic.evaluate.linear import SCALES, LinearProbe, decisions, most_probable

__all__ = [
    "AUTO",
    "FEWEST_LABELS",
    "FIXED_C",
    "FOLDS",
    "GRID",
    "PROBES",
    "Probe",
    "left_out",
    "level_columns",
    "make_probe",
    "mean_variance",
    "regressions",
    "train_probe",
    "unthreaded",
]

AUTO = "auto"
"""The name of `Probe`, which chooses its own settings."""

PROBES = ("plain", "standardised")
"""The probes of the paper's tables: each is one logistic regression with fixed settings."""

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


class _Setting(NamedTuple):
    C: float
    scale: str
    levels: bool


class _Labelled(NamedTuple):
    """The rows that a probe learns from: features (n, F), labels (n,), groups (n,), and the level columns.

    blocks : whether the groups are contiguous blocks, because none were given
    """

    Z: NDArray[np.float64]
    y: NDArray[Any]
    groups: NDArray[np.intp]
    blocks: bool
    levels: NDArray[np.intp]

    def columns(self, levels: bool) -> NDArray[np.intp]:
        """Return the indices of the columns, with or without the level block."""
        every = np.arange(self.Z.shape[1])
        return every if levels else np.setdiff1d(every, self.levels)


class Probe(ClassifierMixin, BaseEstimator, LinearProbe):  # type: ignore[misc]
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

    def fit(self, Z: Any, y: ArrayLike, groups: ArrayLike | None = None, level_columns: Any = None) -> Self:
        """Choose the settings and train on all labelled rows.

        Parameters
        ----------
        Z : (N, F), features
        y : (N,), classes; rows labelled "", None, NaN or -1 are ignored
        groups : (N,), group of each row, for example `Windows.subject`; rows of unknown subject ("", -1) form one
            group. In a pipeline use `probe__groups=`, or metadata routing with `set_fit_request(groups=True)`
        level_columns : the columns of Z that form the level block: a slice, indices or a mask

        Returns
        -------
        the probe itself
        """
        self._check_parameters()
        rows = self._labelled(Z, y, groups, level_columns)
        candidates = self._candidates(rows)
        chosen = candidates[GRID.index(FIXED_C) if self.C == AUTO else 0]
        reason = _reason_not_to_validate(rows, len(candidates))
        scores: list[float] = []
        with unthreaded(), thread_pool():
            if not reason:
                chosen, scores, reason = self._validate(rows, candidates, fixed=chosen)
            columns = rows.columns(chosen.levels)
            ((coef, self.intercept_),) = regressions(
                rows.Z[:, columns], rows.y, chosen.scale, [chosen.C], self.class_weight, _TOLERANCE
            )
        self.classes_ = np.unique(rows.y)
        self.coef_ = np.zeros((len(coef), rows.Z.shape[1]))
        self.coef_[:, columns] = coef
        self.C_, self.scale_ = chosen.C, chosen.scale
        self.levels_ = chosen.levels if len(rows.levels) else None
        self.validation_ = [
            {**setting._asdict(), "levels": setting.levels if len(rows.levels) else None, "balanced_accuracy": score}
            for setting, score in zip(candidates, scores, strict=False)  # without validation, there are no scores
        ]
        block = "" if self.levels_ is None else f", {'with' if self.levels_ else 'without'} the levels of the channels"
        self.reason_ = f"{_described(self.C_, self.scale_)}{block}: {reason}"
        return self

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

    def _check_features(self, Z: Any) -> NDArray[np.float64]:
        check_is_fitted(self)
        features: NDArray[np.float64] = validate_data(self, _on_cpu(Z), reset=False, dtype=np.float64)
        return features

    def _labelled(self, Z: Any, y: Any, groups: Any, level_columns: Any) -> _Labelled:
        """Check the input, and select the labelled rows."""
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
        levels = _columns(level_columns, features.shape[1])
        if not self.levels and (level_columns is None or len(levels) == features.shape[1]):
            what = "none were given" if level_columns is None else f"they are all {len(levels)} columns"
            raise PolyadicError(f"levels=False requires level_columns, the columns to leave out, but {what}")
        codes = _group_codes(groups, known)
        blocks = contiguous_blocks(labels, FOLDS) if codes is None else codes
        return _Labelled(features[known], labels, blocks, codes is None, levels)

    def _candidates(self, rows: _Labelled) -> list[_Setting]:
        """Return all combinations of the candidate settings; the first C values are those of the fixed settings."""
        scales = SCALES if self.scale == AUTO else (self.scale,)
        both = isinstance(self.levels, str) and 0 < len(rows.levels) < rows.Z.shape[1]
        candidates = []
        for scale, level in product(scales, (True, False) if both else (bool(self.levels),)):
            unit = mean_variance(rows.Z[:, rows.columns(level)], scale)
            Cs = [C / unit for C in GRID] if self.C == AUTO else [float(self.C)]
            candidates += [_Setting(C, scale, level) for C in Cs]
        return candidates

    def _validate(
        self, rows: _Labelled, candidates: list[_Setting], fixed: _Setting
    ) -> tuple[_Setting, list[float], str]:
        """Return the best candidate, the balanced accuracy of each, and a sentence on the choice."""
        fold = group_folds(rows.y, rows.groups, FOLDS)
        scores: dict[_Setting, float] = {}

        def try_all(variant: tuple[str, bool]) -> None:
            path = [setting for setting in candidates if setting[1:] == variant]
            Z, Cs = rows.Z[:, rows.columns(variant[1])], [setting.C for setting in path]
            predicted = left_out(Z, rows.y, fold, variant[0], Cs, self.class_weight, _SEARCH_TOLERANCE)
            for setting, guess in zip(path, predicted, strict=True):
                scores[setting] = float(recall_score(rows.y, guess, average="macro", zero_division=0))

        for_each(try_all, list(dict.fromkeys(setting[1:] for setting in candidates)))

        def preference(setting: _Setting) -> tuple[Any, ...]:
            alike = (setting.scale == fixed.scale, setting.levels == fixed.levels)
            return (round(scores[setting], 12), *alike, -abs(np.log(setting.C / fixed.C)), -setting.C)

        chosen = max(candidates, key=preference)
        who = f"{len(np.unique(rows.groups))} {'contiguous blocks' if rows.blocks else 'subjects'}"
        reason = (
            f"the best of {len(candidates)} settings by leaving out {who} in {fold.max() + 1} folds, "
            f"balanced accuracy {100 * scores[chosen]:.1f} % (optimistic: the setting was chosen by it)"
        )
        return chosen, [scores[setting] for setting in candidates], reason


def _reason_not_to_validate(rows: _Labelled, candidates: int) -> str:
    if candidates == 1:
        return "as given"
    if len(np.unique(rows.groups)) < 2 and not rows.blocks:
        return "the fixed settings, because all labels are from one subject"
    if len(rows.y) < FEWEST_LABELS or len(np.unique(rows.groups)) < 2:
        return f"the fixed settings, because {len(rows.y)} labels are too few to validate (fewer than {FEWEST_LABELS})"
    return ""


def _described(C: float, scale: str) -> str:
    return f"C={C:.3g}, {'unscaled' if scale == 'plain' else scale} features"


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

    Examples
    --------
    >>> (coef, intercept), = regressions(np.array([[0.0], [2.0]]), np.array([0, 1]), "plain", [1.0], None, 1e-6)
    >>> bool(abs(coef[0, 0] + intercept[0]) < 1e-6)
    True
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
            row[test] = most_probable(decisions(Z[test], *fit), classes)

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
    if not isinstance(kind, str) or kind not in (AUTO, *PROBES):
        raise PolyadicError(
            f"probe must be one of {', '.join((AUTO, *PROBES))}, or a scikit-learn classifier, but is {kind!r}"
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

    Examples
    --------
    >>> Z, y = np.arange(200.0)[:, None], np.arange(200) // 100
    >>> train_probe("auto", Z, y, groups=np.arange(200) % 5).score(Z, y)
    1.0
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


def level_columns(model: Any) -> NDArray[np.intp]:
    """Return the indices of a feature extractor's level columns, whose names begin with "level ".

    Parameters
    ----------
    model : a fitted feature extractor; without `get_feature_names_out` it has no level block

    Examples
    --------
    >>> from sklearn.preprocessing import FunctionTransformer
    >>> names = lambda *_: ["z1", "z2", "level x"]
    >>> level_columns(FunctionTransformer(feature_names_out=names).fit(np.zeros((1, 3))))
    array([2])
    """
    names = model.get_feature_names_out() if hasattr(model, "get_feature_names_out") else []
    return np.flatnonzero([str(name).startswith("level ") for name in names])


# ------------------------------------------------------------------------- input


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


def _columns(chosen: Any, count: int) -> NDArray[np.intp]:
    """Return the indices of the level columns, in ascending order."""
    every = np.arange(count)
    if chosen is None or (not isinstance(chosen, slice) and not np.size(chosen)):
        return every[:0]
    try:
        return np.unique(every[chosen if isinstance(chosen, slice) else np.asarray(chosen)])
    except IndexError as error:
        raise PolyadicError(
            f"level_columns must be a slice, indices or a mask of {count} columns, but is {chosen!r}"
        ) from error
