"""`Probe`: logistic regression on features, with settings chosen by cross-validation over groups (subjects).

`make_probe` and `train_probe` make and train any classifier of features, by name or as an object.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, ndtri, softmax
from sklearn import config_context
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import assert_all_finite
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, has_fit_parameter, validate_data
from torch import Tensor

from polyadic._util.threads import for_each, thread_pool
from polyadic.data.labels import UNKNOWN_MARKS, as_column, as_text, known_labels
from polyadic.data.splits import contiguous_blocks, group_folds
from polyadic.errors import ModelFileError, PolyadicError
from polyadic.evaluate.regression import (
    FEWEST_LABELS,
    FIXED_C,
    FIXED_WEIGHT,
    FOLDS,
    GRID,
    MOST_ITERATIONS,
    SCALES,
    WEIGHTS,
    Setting,
    gains,
    left_out,
    logits,
    regressions,
    settings_of,
    unthreaded,
)
from polyadic.evaluate.sequences import Chain
from polyadic.evaluate.unlabelled import FEWEST, neighbour_graph, pool_rows, trusted_labels

__all__ = ["AUTO", "PRIORS", "SCALES", "Probe", "averaged_softmax", "make_probe", "train_probe"]

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
    "statistics": float | None,
    "temperature": float,
    "unlabelled": int,
    "validation": list,
    "reason": str,
    "prior": str | None,
    "class_counts": list | None,
}
"""Fitted attributes in the JSON of a probe, and their types."""
TEMPERATURE = 1.0
"""Temperature without validation: on development subjects the best ones are on both sides, by up to a factor of 5."""
_FEWEST_PREDICTIONS, _FEWEST_SUBJECTS = 30, 3
"""Minimum number of out-of-subject predictions and of subjects to fit a temperature."""
_TEMPERATURE_SPREAD = 0.7
"""Standard deviation of the prior of the temperature's logarithm."""
_MOST_VALIDATED = 2000
"""Maximum number of labels in the search for settings."""

_UNSEEN = 20.0
"""How far the log likelihood of a class that a fold lacks is below the others."""

_Floats = NDArray[np.float64]
_Mask = NDArray[np.bool_]
_Rows = NDArray[np.intp]


def fixed_points(size: int) -> _Floats:
    """Return half of the points of `averaged_softmax`; the others are their negatives: (64, size)."""
    golden = 1.5
    for _ in range(64):
        golden = (1 + golden) ** (1 / (size + 1))
    points = ndtri((0.5 + np.arange(1, 65)[:, None] * golden ** -np.arange(1.0, size + 1)) % 1)
    return np.asarray(points / np.sqrt((points**2).mean(axis=0)))


def averaged_softmax(scores: _Floats, covariance: _Floats) -> _Floats:
    """Average the softmax over Gaussian scores, at 128 fixed points: ±Φ⁻¹ of a low-discrepancy sequence.

    The sequence is {½ + i/gʲ}, i = 1 … 64, with g the positive root of g^(k + 1) = g + 1 in k dimensions (Roberts,
    2018). Points are scaled to variance 1 and multiplied by the symmetric root of the covariance.

    Parameters
    ----------
    scores : (N, K), their means
    covariance : (N, K, K), or (N, 1, 1) of the second score of two, if the first is known to be 0

    Returns
    -------
    (N, K), the softmax itself where the covariance is 0

    Examples
    --------
    >>> averaged_softmax(np.array([[0.0, 3.0]]), np.array([[[4.0]]])).round(2)
    array([[0.13, 0.87]])
    """
    probabilities, size = np.asarray(softmax(scores, axis=1)), covariance.shape[1]
    points = fixed_points(size)
    points = np.concatenate([points, -points])
    uncertain = np.flatnonzero(np.einsum("nkk->n", covariance) > 0)
    for rows in np.array_split(uncertain, 1 + len(uncertain) // 1024):
        values, vectors = np.linalg.eigh(covariance[rows])  # singular: the logits of a softmax have a constant sum
        root = (vectors * np.sqrt(np.maximum(values, 0))[:, None]) @ vectors.transpose(0, 2, 1)
        moved = np.einsum("nij,pj->pni", root, points)
        moved = np.pad(moved, ((0, 0), (0, 0), (scores.shape[1] - size, 0)))
        probabilities[rows] = softmax(scores[rows] + moved, axis=2).mean(axis=0)
    return probabilities


class _Data(NamedTuple):
    """Labelled rows first, then unlabelled ones: features (n, F), classes (n,) or −1, groups (n,), statistics (F,)."""

    Z: _Floats
    codes: _Rows
    groups: _Rows | None
    is_statistic: _Mask

    @property
    def n_labelled(self) -> int:
        return int((self.codes >= 0).sum())

    @property
    def blocks(self) -> _Rows:
        """The group of each labelled row, or the contiguous block that stands in for it."""
        labelled = self.codes[: self.n_labelled]
        return contiguous_blocks(labelled, FOLDS) if self.groups is None else self.groups[: self.n_labelled]

    @property
    def block_name(self) -> str:
        return "contiguous blocks" if self.groups is None else "subjects"


class Probe(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Logistic regression on features, with settings chosen to generalise to new groups (subjects).

    **Settings.** Parameters set to "auto" are chosen by the balanced accuracy on left-out groups, in up to five folds:
    C and scale first, then the weight of the statistics. Without groups, contiguous blocks of rows are used instead.
    Ties go to the fixed settings: unscaled features, weight 0.7 for the statistics, C = 1 / variance. These are
    also used if validation is impossible or too noisy: all labels from one group, or fewer than 100 labels.

    **Unlabelled rows.** Rows of y without a label take part if there are at least 250 of them (up to 3,500, spread over
    the groups): labels spread along graphs of nearest neighbours, and the regression is refitted with the spread
    labels that can be trusted (`polyadic.evaluate.unlabelled`). With 100 labels or more this is kept only if it does
    not lower the balanced accuracy on left-out groups, whose unlabelled rows are left out, too.

    **Probabilities** are calibrated by one temperature, fitted to out-of-group predictions of all of the above. Its
    logarithm is shrunk towards that of 1, the value for fewer than 30 predictions or 3 groups. With
    `class_weight="balanced"`, all classes have the same weight in training. This increases the recall of rare classes,
    and `predict_proba` then assumes that all classes are equally frequent; `with_prior("training")` converts it to the
    class frequencies of the training labels.

    Parameters
    ----------
    C : inverse regularisation strength, as in scikit-learn, or "auto" for six values from 1e-3 to 1e2, each divided
        by the variance of the features, which makes the choice independent of their unit
    scale : "plain" for unscaled features, "standardised" for mean 0 and variance 1; "auto" is plain for features with
        statistics, whose scales are right, and otherwise chooses
    statistics : factor of the (scaled) statistics, `statistic_columns` of `fit`, or "auto" for ¼, ½, 0.7, 1 or 2;
        0 leaves them out
    unlabelled : "auto" to use rows without a label as above, False to ignore them
    class_weight : "balanced", None, or a dictionary of weights by class

    Attributes
    ----------
    C_, scale_ : the settings used
    statistics_ : the weight of the statistics; None if there are none
    unlabelled_ : the number of unlabelled rows in the graph; 0 if they are not used
    temperature_ : the temperature by which `coef_` and `intercept_` are divided
    classes_ : (K,), the classes
    coef_, intercept_ : (K, F) and (K,), or (1, F) and (1,) for two classes; they apply to the features as passed to
        `fit`, and include scaling, weight and temperature
    validation_ : a list of dictionaries with C, scale, statistics and balanced_accuracy, one per candidate; empty
        without validation
    class_counts_ : the number of training labels of each class
    prior_ : the prior set by `with_prior`; None for that of the class weights
    reason_ : one sentence on how the settings were chosen, what unlabelled rows gained, and which class frequencies
        the probabilities assume

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> y, subject = np.arange(200) % 2, np.arange(200) // 20
    >>> Z = rng.normal(size=(200, 3)) + 4 * y[:, None]
    >>> probe = Probe().fit(Z, y, groups=subject)
    >>> probe.scale_, len(probe.validation_), probe.score(Z, y)
    ('plain', 12, 1.0)
    """

    prior_: str | None = None
    class_counts_: list[int] | None = None
    chain_: Chain | None = None
    """The order of classes along a recording, learned by `WindowClassifier`."""

    def __init__(
        self,
        C: Any = AUTO,
        scale: str = AUTO,
        statistics: Any = AUTO,
        unlabelled: Any = AUTO,
        class_weight: Any = "balanced",
    ) -> None:
        self.C = C
        self.scale = scale
        self.statistics = statistics
        self.unlabelled = unlabelled
        self.class_weight = class_weight

    def fit(self, Z: Any, y: ArrayLike, groups: ArrayLike | None = None, statistic_columns: Any = None) -> Self:
        """Choose the settings and train on all rows.

        Parameters
        ----------
        Z : (N, F), features
        y : (N,), classes; "", None, NaN or -1 marks a row without a label
        groups : (N,), group of each row, for example `Windows.subject`; rows of unknown subject ("", -1) form one
            group. In a pipeline use `probe__groups=`, or metadata routing with `set_fit_request(groups=True)`
        statistic_columns : the columns of Z that are statistics: a slice, indices or a mask
        """
        self._check_parameters()
        Z, known, labels = self._check_input(Z, y)
        is_statistic = _is_statistic(statistic_columns, Z.shape[1])
        self.classes_, codes, counts = np.unique(labels, return_inverse=True, return_counts=True)
        every = _group_codes(groups, known)
        pool = np.empty(0, np.intp) if self.unlabelled is False else pool_rows(known, every)
        pool = pool if len(pool) >= FEWEST else pool[:0]
        rows = np.concatenate([np.flatnonzero(known), pool])
        codes = np.concatenate([codes, np.full(len(pool), -1)])
        data = _Data(Z[rows], codes, None if every is None else every[rows], is_statistic)
        with unthreaded(), thread_pool():
            chosen, scores, reason = self._choose(data)
            graph, self.temperature_, more = self._validate(data, chosen)
            coef, intercept = self._train(data, chosen, graph, _TOLERANCE)
        self.unlabelled_ = 0 if graph is None else len(pool)
        self.coef_, self.intercept_ = coef / self.temperature_, intercept / self.temperature_
        self.class_counts_, self.prior_, self.chain_ = counts.tolist(), None, None
        self.C_, self.scale_ = chosen.C, chosen.scale
        self.statistics_ = float(chosen.weight) if is_statistic.any() else None
        self.validation_ = [
            {"C": C, "scale": scale, "statistics": weight if is_statistic.any() else None, "balanced_accuracy": score}
            for (C, scale, weight), score in scores.items()
        ]
        block = "" if self.statistics_ is None else f", statistics with weight {self.statistics_:g}"
        self.reason_ = f"{_described(self.C_, self.scale_)}{block}: {reason}; {more}{self._assumption()}"
        return self

    def _choose(self, data: _Data) -> tuple[Setting, dict[Setting, float], str]:
        """Return the setting, the score of each candidate, and the reason for the choice."""
        Z, y, has_block = data.Z[: data.n_labelled], data.codes[: data.n_labelled], bool(data.is_statistic.any())
        grid = GRID if self.C == AUTO else (FIXED_C,)
        scales = (self.scale,) if self.scale != AUTO else SCALES[:1] if has_block else SCALES
        first = (FIXED_WEIGHT if self.statistics == AUTO else float(self.statistics)) if has_block else 1.0
        others = [weight for weight in WEIGHTS if weight != first] if has_block and self.statistics == AUTO else []

        def candidates(grid: Sequence[float], scales: Sequence[str], weights: Sequence[float]) -> dict[Setting, float]:
            found = settings_of(Z, data.is_statistic, grid, scales, weights)
            return found if self.C == AUTO else {setting._replace(C=float(self.C)): C for setting, C in found.items()}

        settings = candidates(grid, scales, [first])
        chosen = fixed = list(settings)[grid.index(FIXED_C)]
        if len(settings) == 1 and not others:
            return chosen, {}, "as given"
        blocks = data.blocks
        count = len(np.unique(blocks))
        if count == 1 and data.groups is not None:
            return chosen, {}, "the fixed settings, because all labels are from one subject"
        if len(y) < FEWEST_LABELS:
            few = f"{len(y)} labels are too few to validate (fewer than {FEWEST_LABELS})"
            return chosen, {}, f"the fixed settings, because {few}"
        rows = _some_rows(y, _MOST_VALIDATED)
        fold, scores, tried = group_folds(y[rows], blocks[rows], FOLDS), dict[Setting, float](), settings
        while tried:
            predicted = left_out(Z[rows], y[rows], fold, tried, data.is_statistic, self._code_weights())
            scores |= {setting: float(balanced_accuracy_score(y[rows], guess)) for setting, guess in predicted.items()}
            chosen = max(scores, key=lambda setting: _preference(setting, scores[setting], fixed))
            # C and scale first, then the weight of the statistics.
            tried = candidates([settings[chosen]], [chosen.scale], others) if tried is settings else {}
        reason = (
            f"the best of {len(scores)} settings by leaving out {count} {data.block_name} in {min(count, FOLDS)} "
            f"folds, balanced accuracy {100 * scores[chosen]:.1f} % (optimistic: the setting was chosen by it)"
        )
        return chosen, scores, reason

    def _validate(self, data: _Data, chosen: Setting) -> tuple[Any, float, str]:
        """Return the graph of unlabelled rows, or None if it is not used, the temperature, and a few words on both."""
        pool, y, blocks = len(data.codes) - data.n_labelled, data.codes[: data.n_labelled], data.blocks
        graph = neighbour_graph(data.Z, data.is_statistic) if pool else None
        if len(np.unique(blocks)) < _FEWEST_SUBJECTS or len(y) < _FEWEST_PREDICTIONS:
            few = f"{pool:,} unlabelled windows used, too few labels or subjects to tell what they gain; "
            return graph, TEMPERATURE, few if pool else ""
        fold = group_folds(y, blocks, FOLDS)
        left, said = self._left_out(data, fold, chosen, graph), ""
        if graph is not None:
            without = self._left_out(data, fold, chosen, None)
            scores = [float(balanced_accuracy_score(y, found.argmax(axis=1))) for found in (left, without)]
            gain = f"{100 * (scores[0] - scores[1]):+.1f} points of balanced accuracy on left-out {data.block_name}"
            few = "" if len(y) >= FEWEST_LABELS else f" (not decisive with fewer than {FEWEST_LABELS} labels)"
            said = f"{pool:,} unlabelled windows used, {gain}{few}; "
            if len(y) >= FEWEST_LABELS and scores[0] < scores[1]:
                graph, left, said = None, without, f"unlabelled windows not used, because they would bring {gain}; "
        return graph, _temperature(left, y, self._code_weights()), said

    def _train(self, data: _Data, chosen: Setting, graph: Any, tolerance: float) -> tuple[_Floats, _Floats]:
        """Train on labelled rows and, with a graph, on spread labels: coefficients (K, F) and intercepts (K,)."""
        labelled, gain = data.codes >= 0, gains(data.is_statistic, chosen.weight)
        words = chosen.scale, [chosen.C], self._code_weights(), tolerance, gain
        (fit,) = regressions(data.Z[labelled], data.codes[labelled], *words)
        if graph is None:
            return fit
        probabilities = softmax(logits(data.Z, *fit), axis=1)
        spread_codes, weight = trusted_labels(graph, data.codes, probabilities)
        used = weight > 0
        (fit,) = regressions(data.Z[used], spread_codes[used], *words, weight[used])
        return fit

    def _left_out(self, data: _Data, fold: _Rows, chosen: Setting, graph: Any) -> _Floats:
        """Return logits (labelled rows, K) of probes that saw no row of the groups in the row's fold.

        Those of a class that the other folds lack are −∞.
        """
        found = np.full((data.n_labelled, len(self.classes_)), -np.inf)

        def leave_out(number: int) -> None:
            test = np.flatnonzero(fold == number)
            members = np.arange(len(data.codes)) if data.groups is None else data.groups
            classes, probe = self._trained_on(data, ~np.isin(members, members[test]), chosen, graph)
            scores = 0.0 if probe is None else logits(data.Z[test], probe.coef_, probe.intercept_)
            found[np.ix_(test, classes)] = scores

        for_each(leave_out, range(int(fold.max()) + 1))
        return found

    def _trained_on(self, data: _Data, kept: _Mask, chosen: Setting, graph: Any) -> tuple[_Rows, Probe | None]:
        """Return the classes of some rows, kept (n,), and a probe trained on them; None without two classes."""
        classes, codes = np.unique(data.codes[kept & (data.codes >= 0)], return_inverse=True)
        if len(classes) < 2:
            return classes, None
        # Classes are numbered from 0 among those of these rows; weights by class go by their own names.
        probe = copy.copy(self)
        probe.classes_, probe.class_counts_, probe.prior_ = self.classes_[classes], np.bincount(codes).tolist(), None
        codes = np.concatenate([codes, np.full(int((data.codes[kept] < 0).sum()), -1)])
        part = _Data(data.Z[kept], codes, None, data.is_statistic)
        edges = None if graph is None else graph[kept][:, kept]
        probe.coef_, probe.intercept_ = probe._train(part, chosen, edges, 10 * _TOLERANCE)
        return classes, probe

    def left_out_likelihoods(
        self, Z: Any, y: ArrayLike, groups: ArrayLike | None, trained: _Mask, statistic_columns: Any = None
    ) -> tuple[_Floats, _Rows]:
        """Return `log_likelihoods` by probes that saw no row of the row's group (N, K), and the folds (N,).

        These probes have the settings and the temperature of this one. Rows of groups without a label are in no fold,
        -1, and get the likelihoods of this probe; so do all rows with labels from one group only.

        Parameters
        ----------
        Z, y, groups, statistic_columns : as for `fit`
        trained : (N,), the rows that this probe was trained on
        """
        Z, known, labels = copy.copy(self)._check_input(Z, y)
        every = _group_codes(groups, known)
        found, codes = self.log_likelihoods(Z), np.full(len(Z), -1)
        if every is None or len(np.unique(every[known])) < 2:
            return found, codes
        codes[known] = np.searchsorted(self.classes_, labels)
        fold_of_group = np.full(int(every.max()) + 1, -1)
        fold_of_group[every[known]] = group_folds(labels, every[known], FOLDS)
        fold = fold_of_group[every]
        chosen = Setting(self.C_, self.scale_, 1.0 if self.statistics_ is None else self.statistics_)
        pool = ~known & trained & bool(self.unlabelled_)
        rows = np.concatenate([np.flatnonzero(known & trained), np.flatnonzero(pool)])
        data = _Data(Z[rows], codes[rows], None, _is_statistic(statistic_columns, Z.shape[1]))
        graph = neighbour_graph(data.Z, data.is_statistic) if pool.any() else None

        def leave_out(number: int) -> None:
            test = np.flatnonzero(fold == number)
            classes, probe = self._trained_on(data, fold[rows] != number, chosen, graph)
            found[test] = -_UNSEEN
            found[np.ix_(test, classes)] = 0.0
            if probe is not None:
                probe.coef_, probe.intercept_ = probe.coef_ / self.temperature_, probe.intercept_ / self.temperature_
                found[np.ix_(test, classes)] = probe.log_likelihoods(Z[test])

        with unthreaded(), thread_pool():
            for_each(leave_out, range(int(fold.max()) + 1))
        return found, fold

    def log_likelihoods(self, Z: Any) -> _Floats:
        """Return the logarithm of each class's probability over the frequency it assumes, up to a constant: (N, K)."""
        return self.likelihoods_of(log_softmax(self._logits(Z), axis=1))

    def likelihoods_of(self, log_probabilities: _Floats) -> _Floats:
        """Return `log_likelihoods` from the logarithms of the output of `predict_proba`: (N, K)."""
        return np.asarray(log_probabilities - self._log_prior(self._assumed_prior()))

    def _code_weights(self) -> Any:
        """Return the class weights, with classes numbered from 0."""
        if not isinstance(self.class_weight, dict):
            return self.class_weight
        return {code: self.class_weight.get(name, 1.0) for code, name in enumerate(self.classes_.tolist())}

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

    def predict_proba(self, Z: Any, covariance: _Floats | None = None) -> _Floats:
        """Return the probability of each of `classes_`: (N, K).

        Parameters
        ----------
        Z : (N, F)
        covariance : (N, K, K), or (N, 1, 1) for two classes: the covariance of the logits, over which to average
        """
        scores = self._logits(Z)
        return np.asarray(softmax(scores, axis=1)) if covariance is None else averaged_softmax(scores, covariance)

    def _logits(self, Z: Any) -> _Floats:
        check_is_fitted(self)
        return logits(validate_data(self, _on_cpu(Z), reset=False, dtype=np.float64), self.coef_, self.intercept_)

    def _check_parameters(self) -> None:
        weight = self.class_weight
        for name, is_valid, expected in (
            ("C", self.C == AUTO or (_is_number(self.C) and self.C > 0), "'auto' or a positive number"),
            ("scale", self.scale in (AUTO, *SCALES), "'auto', 'plain' or 'standardised'"),
            ("statistics", self.statistics == AUTO or _is_number(self.statistics), "'auto' or a number from 0"),
            ("unlabelled", self.unlabelled == AUTO or self.unlabelled is False, "'auto' or False"),
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
        probe = cls(float(regression.C), SCALES[len(steps) - 1], 1.0, False, regression.class_weight)
        probe.coef_, probe.intercept_ = regression.coef_.astype(np.float64), regression.intercept_.astype(np.float64)
        if len(steps) == 2:
            scaler = steps[0]
            probe.coef_ = probe.coef_ / scaler.scale_ if scaler.with_std else probe.coef_
            probe.intercept_ = probe.intercept_ - probe.coef_ @ scaler.mean_ if scaler.with_mean else probe.intercept_
        probe.classes_, probe.n_features_in_ = regression.classes_, probe.coef_.shape[1]
        probe.C_, probe.scale_, probe.statistics_, probe.validation_ = probe.C, probe.scale, None, []
        probe.temperature_, probe.unlabelled_ = 1.0, 0
        probe.reason_ = f"{_described(probe.C_, probe.scale_)}: as given; {probe._assumption()}"
        probe.class_counts_ = getattr(classifier, "class_counts_", None)
        probe.chain_ = getattr(classifier, "chain_", None)
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
        chain = None if self.chain_ is None else self.chain_.to_dict()
        return arrays, {"classes": classes, "parameters": parameters, **fitted, "chain": chain}

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
        if header.get("chain") is not None:
            probe.chain_ = Chain.from_dict(header["chain"], len(classes))
        return probe


def _preference(setting: Setting, score: float, fixed: Setting) -> tuple[Any, ...]:
    """Return the key of a setting: the score, then similarity to the fixed settings."""
    alike = (setting.scale == fixed.scale, setting.weight == fixed.weight)
    return (round(score, 12), *alike, -abs(np.log(setting.C / fixed.C)), -setting.C)


def _some_rows(y: _Rows, most: int) -> _Rows:
    """Return at most this many rows, at random, with the same share of each class: (n,), sorted."""
    if len(y) <= most:
        return np.arange(len(y))
    order = np.random.default_rng(0).permutation(len(y))
    rank = np.empty(len(y))
    for code in np.unique(y):
        own = order[y[order] == code]
        rank[own] = np.arange(len(own)) / len(own)
    return np.sort(np.argsort(rank, kind="stable")[:most])


def _temperature(found: _Floats, y: _Rows, class_weight: Any) -> float:
    """Return the temperature of logits (n, K) with the smallest loss, its logarithm shrunk towards `TEMPERATURE`.

    Rows whose class the probe of their fold had not seen (a logit of −∞) say nothing about the final probe.
    """
    weight = compute_sample_weight(class_weight, y)
    seen = np.isfinite(found[np.arange(len(y)), y])
    found, y, weight = found[seen], y[seen], weight[seen]
    if len(y) < _FEWEST_PREDICTIONS:
        return TEMPERATURE
    weight *= len(y) / weight.sum()

    def loss(logarithm: float) -> float:
        likelihood = log_softmax(found * np.exp(-logarithm), axis=1)[np.arange(len(y)), y]
        distance = (logarithm - np.log(TEMPERATURE)) / _TEMPERATURE_SPREAD
        return float(-(weight * likelihood).sum() + distance**2 / 2)

    return float(np.exp(minimize_scalar(loss, bounds=(-4.0, 4.0), method="bounded").x))


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    return is_number and bool(0 <= value < np.inf)


def _described(C: float, scale: str) -> str:
    return f"C={C:.3g}, {'unscaled' if scale == 'plain' else scale} features"


def _is_statistic(statistic_columns: Any, count: int) -> _Mask:
    """Return which columns are statistics: (F,)."""
    is_statistic = np.zeros(count, bool)
    is_statistic[[] if statistic_columns is None else statistic_columns] = True
    # Features that are nothing but statistics have no other block to be weighted against.
    return is_statistic & (not is_statistic.all())


def _are_classes(classes: Any) -> bool:
    """Return whether these are two or more distinct strings, integers or booleans."""
    if not isinstance(classes, list) or len(classes) < 2:
        return False
    return {type(name) for name in classes} in ({str}, {int}, {bool}) and len(set(classes)) == len(classes)


def _on_cpu(Z: Any) -> Any:
    return Z.numpy(force=True) if isinstance(Z, Tensor) else Z


def _group_codes(groups: ArrayLike | None, known: _Mask) -> _Rows | None:
    """Return the groups of all rows as integers, or None if those of labelled rows are unknown ("", None, NaN, -1)."""
    if groups is None:
        return None
    column = as_column(groups, "groups", len(known))
    names = np.array([as_text(value) for value in column.tolist()], np.str_)
    if not (names[known] != "").any():
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
    statistic_columns: Any = None,
    prior: str | None = None,
) -> Any:
    """Train a probe; groups and the columns of statistics are passed on if its `fit` takes them.

    Parameters
    ----------
    kind : as for `make_probe`. The library's own probes train in one thread and without convergence warnings
    Z, y : (n, F) and (n,), features and classes; rows without a label are used by a `Probe` only
    groups : (n,), the subject of each row, or None; for a pipeline they are passed to its last step
    statistic_columns : as for `Probe.fit`; not passed to pipelines, whose steps may change the columns
    prior : as for `WindowClassifier`
    """
    probe, words = make_probe(kind), {}
    name, last = probe.steps[-1] if isinstance(probe, Pipeline) else ("", probe)
    known, labels = known_labels(y, len(y))
    if not isinstance(last, Probe):
        Z, y, groups = Z[known], labels, None if groups is None else np.asarray(groups)[known]
    if has_fit_parameter(last, "groups"):
        words[f"{name}__groups" if name else "groups"] = groups
    if has_fit_parameter(probe, "statistic_columns"):
        words["statistic_columns"] = statistic_columns
    # The arguments are passed directly; metadata routing is for the estimators around the probe.
    with config_context(enable_metadata_routing=False), unthreaded() if isinstance(kind, str) else nullcontext():
        probe.fit(Z, y, **words)
    probe.class_counts_ = np.unique(labels, return_counts=True)[1].tolist()
    return probe if prior is None else Probe.of(probe).with_prior(prior)


def uses_unlabelled(probe: Any) -> bool:
    """Return whether a probe, as for `make_probe`, also learns from rows without a label."""
    made = make_probe(probe)
    last = made.steps[-1][1] if isinstance(made, Pipeline) else made
    return isinstance(last, Probe) and last.unlabelled is not False


def own_prior(model: Any) -> str | None:
    """Return the prior that was set for a model's own probe, or None."""
    return getattr(getattr(model, "probe_", None), "prior_", None)


def features_of(model: Any, windows: Any, on_rows: Callable[[int], None] | None = None) -> _Floats:
    """Compute features in double precision, as in model files: (N, F); `on_rows` takes the number of windows done."""
    words = {"on_rows": on_rows} if "on_rows" in inspect.signature(model.transform).parameters else {}
    return np.asarray(model.transform(windows, **words), np.float64)


def statistic_columns(model: Any) -> _Rows:
    """Return the indices of the columns of a feature extractor that are statistics of the window."""
    readout = getattr(model, "readout_", None)
    return np.arange(0) if readout is None else np.arange(readout.rank, readout.n_features)
