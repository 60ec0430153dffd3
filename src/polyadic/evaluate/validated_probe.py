"""`Probe`: logistic regression with regularisation, scaling and level block chosen by cross-validation over groups.

Import it as `polyadic.evaluate.Probe`. It is defined here, below the estimators, because model files contain probes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import recall_score
from sklearn.utils import assert_all_finite
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
from torch import Tensor

from polyadic._util.threads import for_each, thread_pool
from polyadic.data.folds import contiguous_blocks, group_folds
from polyadic.data.labels import UNKNOWN_MARKS, as_column, as_text, known_labels
from polyadic.errors import PolyadicError
from polyadic.evaluate.logistic import left_out, regressions, unthreaded
from polyadic.evaluate.stored_probe import SCALES, STANDARDISED, check_parameters, decisions, named, probabilities

__all__ = ["FEWEST_LABELS", "FIXED_C", "FIXED_SCALE", "FOLDS", "GRID", "Probe", "level_columns"]

GRID = tuple(10.0**power for power in range(-4, 3))
"""Candidate values of C, for features of mean variance 1."""

FOLDS = 5
"""Maximum number of folds."""

FIXED_C, FIXED_SCALE = 1.0, "plain"
"""The settings without validation, with C for features of mean variance 1; the level block is used."""

FEWEST_LABELS = 100
"""Minimum number of labels for validation; with fewer, the fixed settings were better on development subjects."""

_SEARCH_TOLERANCE, _TOLERANCE = 1e-3, 1e-4


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


class _Setting(NamedTuple):
    C: float
    scale: str
    levels: bool


@dataclass(frozen=True)
class _Labelled:
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

    def __init__(
        self, C: Any = "auto", scale: str = "auto", levels: Any = "auto", class_weight: Any = "balanced"
    ) -> None:
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

        Returns
        -------
        the probe itself
        """
        check_parameters(self.C, self.scale, self.levels, self.class_weight)
        rows = self._labelled(Z, y, groups, level_columns)
        candidates = self._candidates(rows)
        fixed = self._fixed(rows)
        reason = _reason_not_to_validate(rows, len(candidates))
        with unthreaded(), thread_pool():
            if reason:
                chosen, table = fixed, list[dict[str, Any]]()
            else:
                chosen, table, reason = self._validated(rows, candidates, fixed)
            columns = rows.columns(chosen.levels)
            line = regressions(rows.Z[:, columns], rows.y, chosen.scale, [chosen.C], self.class_weight, _TOLERANCE)[0]
        self.C_, self.scale_, self.validation_ = chosen.C, chosen.scale, table
        self.levels_ = chosen.levels if len(rows.levels) else None
        self.classes_ = np.unique(rows.y)
        self.coef_ = np.zeros((len(line[0]), rows.Z.shape[1]))
        self.coef_[:, columns], self.intercept_ = line
        self.reason_ = f"{_described(chosen, self.levels_)}: {reason}"
        return self

    def decision_function(self, Z: Any) -> NDArray[np.float64]:
        """Return the log odds of the second of two classes (N,), or one score per class (N, K)."""
        check_is_fitted(self)
        features = validate_data(self, _on_cpu(Z), reset=False, dtype=np.float64)
        return decisions(features, self.coef_, self.intercept_)

    def predict(self, Z: Any) -> NDArray[Any]:
        """Return the most probable class of each row: (N,)."""
        return named(self.decision_function(Z), self.classes_)

    def predict_proba(self, Z: Any) -> NDArray[np.float64]:
        """Return the probability of each of `classes_`: (N, K). Balanced class weights change it (see the class)."""
        return probabilities(self.decision_function(Z))

    # ------------------------------------------------------------- the choice

    def _labelled(self, Z: Any, y: Any, groups: Any, level_columns: Any) -> _Labelled:
        """Validate the input, and select the labelled rows."""
        if y is None:
            raise PolyadicError("Probe requires y to be passed, but the target y is None")
        features = validate_data(self, _on_cpu(Z), dtype=np.float64)
        known, labels = known_labels(column_or_1d(y, warn=True) if getattr(y, "ndim", 1) == 2 else y, len(features))
        assert_all_finite(labels, input_name="y")
        check_classification_targets(labels)
        found = np.unique(labels)
        if len(found) < 2:
            what = f"1 class, {found.tolist()[0]!r}" if len(found) else "no labelled row"
            raise PolyadicError(
                f"y must have at least two classes, but has {what} ({UNKNOWN_MARKS} marks an unknown label)"
            )
        levels = _columns(level_columns, features.shape[1])
        if not self.levels and (level_columns is None or len(levels) == features.shape[1]):
            what = "none were given" if level_columns is None else f"they are all {len(levels)} columns"
            raise PolyadicError(f"levels=False requires level_columns, the columns to leave out, but {what}")
        given = _coded(groups, known)
        blocks = contiguous_blocks(labels, FOLDS) if given is None else given
        return _Labelled(features[known], labels, blocks, given is None, levels)

    def _candidates(self, rows: _Labelled) -> list[_Setting]:
        """Return all combinations of the candidate settings."""
        scales = SCALES if self.scale == "auto" else (self.scale,)
        both = _is_auto(self.levels) and 0 < len(rows.levels) < rows.Z.shape[1]
        levels = (True, False) if both else (bool(self.levels),)
        found = []
        for scale, level in product(scales, levels):
            unit = _mean_variance(rows, scale, level)
            found += [_Setting(C / unit if _is_auto(self.C) else float(C), scale, level) for C in self._values()]
        return found

    def _values(self) -> Sequence[float]:
        return GRID if _is_auto(self.C) else (self.C,)

    def _fixed(self, rows: _Labelled) -> _Setting:
        """Return the fixed settings, for parameters set to "auto"."""
        scale, level = FIXED_SCALE if self.scale == "auto" else self.scale, bool(self.levels)
        C = FIXED_C / _mean_variance(rows, scale, level) if _is_auto(self.C) else float(self.C)
        return _Setting(C, scale, level)

    def _validated(
        self, rows: _Labelled, candidates: list[_Setting], fixed: _Setting
    ) -> tuple[_Setting, list[dict[str, Any]], str]:
        """Return the best candidate, the table of all candidates, and a sentence on the choice."""
        fold = group_folds(rows.y, rows.groups, FOLDS)
        scores: dict[_Setting, float] = {}

        def try_all(variant: tuple[str, bool]) -> None:
            scale, level = variant
            path = sorted(setting for setting in candidates if (setting.scale, setting.levels) == (scale, level))
            Z = rows.Z[:, rows.columns(level)]
            Cs = [setting.C for setting in path]
            predicted = left_out(Z, rows.y, fold, scale, Cs, self.class_weight, _SEARCH_TOLERANCE)
            scores.update({s: _balanced_accuracy(rows.y, guess) for s, guess in zip(path, predicted, strict=True)})

        for_each(try_all, list(dict.fromkeys((setting.scale, setting.levels) for setting in candidates)))

        def preference(setting: _Setting) -> tuple[Any, ...]:
            like = (setting.scale == fixed.scale, setting.levels == fixed.levels)
            return (round(scores[setting], 12), *like, -abs(np.log(setting.C / fixed.C)), -setting.C)

        chosen = max(candidates, key=preference)
        table = [{**setting._asdict(), "balanced_accuracy": scores[setting]} for setting in candidates]
        if not len(rows.levels):
            table = [entry | {"levels": None} for entry in table]
        who = f"{len(np.unique(rows.groups))} {'contiguous blocks' if rows.blocks else 'subjects'}"
        reason = (
            f"the best of {len(candidates)} settings by leaving out {who} in {fold.max() + 1} folds, "
            f"balanced accuracy {100 * scores[chosen]:.1f} % (optimistic: the setting was chosen by it)"
        )
        return chosen, table, reason


def _is_auto(value: Any) -> bool:
    return isinstance(value, str) and value == "auto"


def _reason_not_to_validate(rows: _Labelled, candidates: int) -> str:
    if candidates == 1:
        return "as given"
    if len(np.unique(rows.groups)) < 2 and not rows.blocks:
        return "the fixed settings, because all labels are from one subject"
    if len(rows.y) < FEWEST_LABELS or len(np.unique(rows.groups)) < 2:
        return f"the fixed settings, because {len(rows.y)} labels are too few to validate (fewer than {FEWEST_LABELS})"
    return ""


def _described(setting: _Setting, levels: bool | None) -> str:
    block = "" if levels is None else f", {'with' if levels else 'without'} the levels of the channels"
    scale = "standardised" if setting.scale == STANDARDISED else "unscaled"
    return f"C={setting.C:.3g}, {scale} features{block}"


def _mean_variance(rows: _Labelled, scale: str, level: bool) -> float:
    """Return the mean variance of the features used in the regression; 1 if they are constant."""
    if scale == STANDARDISED:
        return 1.0
    return float(rows.Z[:, rows.columns(level)].var(axis=0).mean()) or 1.0


def _balanced_accuracy(y: NDArray[Any], predicted: NDArray[Any]) -> float:
    return float(recall_score(y, predicted, labels=np.unique(y), average="macro", zero_division=0))


# ------------------------------------------------------------------- input


def _on_cpu(Z: Any) -> Any:
    return Z.numpy(force=True) if isinstance(Z, Tensor) else Z


def _coded(groups: ArrayLike | None, known: NDArray[np.bool_]) -> NDArray[np.intp] | None:
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
    if chosen is None:
        return np.empty(0, np.intp)
    try:
        picked = chosen if isinstance(chosen, slice) else np.asarray(chosen)
        empty = not isinstance(picked, slice) and picked.size == 0
        return np.empty(0, np.intp) if empty else np.unique(np.arange(count)[picked])
    except IndexError as error:
        raise PolyadicError(
            f"level_columns must be a slice, indices or a mask of {count} columns, but is {chosen!r}"
        ) from error
