"""`Probe`: logistic regression on features, with settings chosen by cross-validation over groups (subjects)."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, ndtri, softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import balanced_accuracy_score
from sklearn.utils import assert_all_finite
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
from threadpoolctl import threadpool_limits

from polyadic._util.threads import for_each, thread_pool
from polyadic.data.labels import UNKNOWN_MARKS, as_column, as_text, known_labels
from polyadic.data.splits import contiguous_blocks, group_folds
from polyadic.errors import ModelFileError, PolyadicError
from polyadic.evaluate import regression
from polyadic.evaluate.regression import FEWEST_LABELS, FOLDS, SCALES, Setting, logits
from polyadic.evaluate.sequences import Chain
from polyadic.evaluate.unlabelled import FEWEST, neighbour_graph, pool_rows, trusted_labels

__all__ = ["AUTO", "PRIORS", "SCALES", "Probe", "averaged_softmax", "fixed_points"]

AUTO = "auto"
"""The name of `Probe`, and of a setting that it chooses."""
PRIORS = {"balanced": "equally frequent classes", "training": "the class frequencies of the training labels"}
"""Class frequencies that probabilities may assume."""
_TOLERANCE, _SEARCH_TOLERANCE = 1e-4, 1e-3
# Fewest out-of-subject predictions and subjects to fit a temperature. It is 1 without: on development subjects the best
# ones are on both sides, by up to a factor of 5.
_FEWEST_PREDICTIONS, _FEWEST_SUBJECTS = 30, 3
_SPREAD = 0.7  # standard deviation of the priors of the logarithms of the temperature and of the weight
_MOST_VALIDATED = 2000  # maximum number of labels in the search for settings
_UNSEEN = 20.0  # how far the log likelihood of a class that a fold lacks is below the others
_PREFIX = "probe."
_STORED = ("C", "scale", "statistics", "temperature", "unlabelled", "validation", "reason", "prior", "class_counts")
"""Fitted attributes in the JSON of a probe."""

_Number = int | float | np.number
_Floats = NDArray[np.float64]
_Mask = NDArray[np.bool_]
_Rows = NDArray[np.intp]


class _Data(NamedTuple):
    """Labelled rows first, then unlabelled ones."""

    Z: _Floats  # (n, F)
    codes: _Rows  # (n,), classes from 0; -1 without a label
    block: _Rows  # (n,), rows of one block are left out together; -1 for rows that never are
    fold: _Rows  # (n,), the same for all rows of a block; -1 in blocks without a label
    unit: str  # what blocks are
    is_statistic: _Mask  # (F,)

    @classmethod
    def of(cls, Z: _Floats, codes: _Rows, group: _Rows | None, pool: _Rows, statistic_columns: Any) -> Self:
        """Return the labelled rows of Z (N, F) and those of the pool; `group` (N,) is None if unknown."""
        labelled = np.flatnonzero(codes >= 0)
        block, unit = np.full(len(Z), -1) if group is None else group, "subjects"
        if group is None:
            block[labelled], unit = contiguous_blocks(codes[labelled], FOLDS), "contiguous blocks"
        is_statistic = np.zeros(Z.shape[1], bool)
        is_statistic[[] if statistic_columns is None else statistic_columns] = True
        fold_of_block = np.full(int(block.max()) + 1, -1)
        fold_of_block[block[labelled]] = group_folds(codes[labelled], block[labelled], FOLDS)
        fold = np.where(block < 0, -1, fold_of_block[block])
        rows = np.concatenate([labelled, pool])
        # Features that are nothing but statistics have no other block to be weighted against.
        is_statistic &= not is_statistic.all()
        return cls(Z[rows], codes[rows], block[rows], fold[rows], unit, is_statistic)

    def labelled(self) -> tuple[_Floats, _Rows, _Rows, _Rows]:
        """Return features, classes, blocks and folds of the labelled rows."""
        count = int((self.codes >= 0).sum())
        return self.Z[:count], self.codes[:count], self.block[:count], self.fold[:count]


@dataclass(eq=False, repr=False)
class Probe(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Logistic regression on features, with settings chosen to generalise to new groups (subjects).

    Parameters set to "auto" are chosen together, by the balanced accuracy on left-out groups in up to five folds;
    without groups, contiguous blocks of rows are left out. Ties go to the fixed settings: unscaled features, weight 0.7
    for the statistics, C = 1 / variance. These are also used with labels from one group, or fewer than 100; with three
    or more groups the weight is then the one that makes left-out labels likeliest, its logarithm shrunk to that of 0.7.

    Parameters
    ----------
    C : inverse regularisation strength, or "auto" for six values from 1e-3 to 1e2, each divided by the variance of the
        features, which makes the choice independent of their unit
    scale : "plain" for unscaled features, "standardised" for mean 0 and variance 1; "auto" is plain for features with
        statistics, whose scales are right, and otherwise chooses
    statistics : factor of the (scaled) statistics, or "auto" for ¼, ½, 0.7, 1 or 2; 0 leaves them out
    unlabelled : "auto" to use rows without a label if there are 250 or more (`polyadic.evaluate.unlabelled`); with 100
        labels or more only if that does not lower the balanced accuracy on left-out groups. False to ignore them
    class_weight : "balanced" for equal weights of all classes in training, which probabilities then assume, or None

    Attributes
    ----------
    C_, scale_, statistics_ : the settings used; None without statistics
    unlabelled_ : the number of unlabelled rows in the graph; 0 if they are not used
    temperature_ : by which `coef_` and `intercept_` are divided, so that probabilities are calibrated on left-out
        groups; 1 for fewer than 30 predictions or 3 groups
    classes_, class_counts_ : (K,), the classes, and the number of labels of each
    coef_, intercept_ : (K, F) and (K,), or (1, F) and (1,) for two classes, of the features as passed to `fit`
    validation_ : a list of dictionaries with C, scale, statistics and balanced_accuracy, one per candidate
    prior_ : the prior set by `with_prior`, or None
    chain_ : the order of classes along a recording, if `WindowClassifier` has learned one, or None
    reason_ : one sentence on how the settings were chosen, what unlabelled rows gained, whether confidence was
        calibrated, and which class frequencies the probabilities assume

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> y, subject = np.arange(200) % 2, np.arange(200) // 20
    >>> Z = rng.normal(size=(200, 3)) + 4 * y[:, None]
    >>> probe = Probe().fit(Z, y, groups=subject)
    >>> probe.scale_, len(probe.validation_), probe.score(Z, y)
    ('plain', 12, 1.0)
    """

    C: Any = AUTO
    scale: str = AUTO
    statistics: Any = AUTO
    unlabelled: Any = AUTO
    class_weight: Any = "balanced"

    def fit(self, Z: Any, y: ArrayLike, groups: ArrayLike | None = None, statistic_columns: Any = None) -> Self:
        """Choose the settings and train on all rows.

        Parameters
        ----------
        Z : (N, F), features
        y : (N,), classes; "", None, NaN or -1 marks a row without a label
        groups : (N,), group of each row, for example `Windows.subject`; unknown ones ("", -1) form one group. In a
            pipeline use `probe__groups=`, or metadata routing with `set_fit_request(groups=True)`
        statistic_columns : the columns of Z that are statistics: a slice, indices or a mask
        """
        self._check_parameters()
        Z, codes, self.classes_ = self._check_input(Z, y)
        names, group = _names(groups, len(Z)), None
        if (names[codes >= 0] != "").any():
            column = as_column(groups, "groups", len(Z))
            # Numbers are ordered as numbers, not as texts.
            group = np.unique(column if column.dtype.kind in "iu" else names, return_inverse=True)[1]
        pool = pool_rows(codes >= 0, group) if self.unlabelled == AUTO else np.empty(0, np.intp)
        pool = pool if len(pool) >= FEWEST else pool[:0]
        data = _Data.of(Z, codes, group, pool, statistic_columns)
        # In BLAS, threads slow down such small problems up to a hundredfold.
        with threadpool_limits(limits=1), thread_pool():
            chosen, scores, reason = self._choose(data)
            graph, self.temperature_, gain = self._validate(data, chosen)
            (fit,) = _train(data, [chosen], self.class_weight, _TOLERANCE, graph)
        folds = zip(names[codes >= 0].tolist(), data.labelled()[3].tolist(), strict=True)
        self._fold_of = {} if group is None else dict(folds)
        self.coef_, self.intercept_ = fit.coef / self.temperature_, fit.intercept / self.temperature_
        self.unlabelled_ = 0 if graph is None else len(pool)
        self.class_counts_: list[int] = fit.counts.tolist()
        self.chain_: Chain | None = None
        self.prior_: str | None = None
        has_block = bool(data.is_statistic.any())
        self.C_, self.scale_, self.statistics_ = chosen.C, chosen.scale, float(chosen.weight) if has_block else None
        self.validation_ = [
            {"C": C, "scale": scale, "statistics": weight if has_block else None, "balanced_accuracy": score}
            for (C, scale, weight), score in scores.items()
        ]
        block = f", statistics with weight {self.statistics_:g}" if has_block else ""
        scale = "unscaled" if self.scale_ == "plain" else self.scale_
        left_out = f"calibrated on {len(np.unique(data.labelled()[2]))} left-out {data.unit}"
        if self.temperature_ == 1.0:
            left_out = "not calibrated, because labels or subjects are too few"
        told = f"{gain}confidence {left_out}; {self._assumption()}"
        self.reason_ = f"C={self.C_:.3g}, {scale} features{block}: {reason}; {told}"
        return self

    def _choose(self, data: _Data) -> tuple[Setting, dict[Setting, float], str]:
        """Return the setting, the score of each candidate, and the reason for the choice."""
        (Z, y, block, _), has_block = data.labelled(), bool(data.is_statistic.any())
        grid = regression.GRID if self.C == AUTO else (regression.FIXED_C,)
        scales = (self.scale,) if self.scale != AUTO else SCALES[:1] if has_block else SCALES
        weights = [1.0]
        if has_block and self.statistics != AUTO:
            weights = [float(self.statistics)]
        elif has_block:
            weights = list(dict.fromkeys((regression.FIXED_WEIGHT, *regression.WEIGHTS)))
        settings = regression.settings_of(Z, data.is_statistic, grid, scales, weights)
        if self.C != AUTO:
            settings = [setting._replace(C=float(self.C)) for setting in settings]
        fixed, count = settings[grid.index(regression.FIXED_C)], len(np.unique(block))
        if len(settings) == 1:
            return fixed, {}, "as given"
        if count == 1 and data.unit == "subjects":
            return fixed, {}, "the fixed settings, because all labels are from one subject"
        if len(y) < FEWEST_LABELS:
            few = f"because {len(y)} labels are too few to validate (fewer than {FEWEST_LABELS})"
            if len(weights) == 1 or count < _FEWEST_SUBJECTS:
                return fixed, {}, f"the fixed settings, {few}"
            likely = self._likely_weight(data, settings[grid.index(regression.FIXED_C) :: len(grid)])
            return likely, {}, f"a fixed C, and the weight by likelihood on {count} left-out {data.unit}, {few}"
        rows = _some_rows(y, _MOST_VALIDATED)
        fold = group_folds(y[rows], block[rows], FOLDS)
        part = data._replace(Z=Z[rows], codes=y[rows], block=block[rows], fold=fold)
        fits = zip(settings, _train_without_folds(part, settings, self.class_weight), strict=True)
        predicted = {one: _left_out_logits(part, folds, len(self.classes_)).argmax(axis=1) for one, folds in fits}
        scores = {setting: float(balanced_accuracy_score(y[rows], guess)) for setting, guess in predicted.items()}
        chosen = max(scores, key=lambda setting: _preference(setting, scores[setting], fixed))
        right = 100 * (predicted[chosen] == y[rows])
        each = [float(right[block[rows] == own].mean()) for own in np.unique(block[rows])]
        reason = (
            f"the best of {len(scores)} settings by leaving out {count} {data.unit} in {min(count, FOLDS)} folds, "
            f"balanced accuracy {100 * scores[chosen]:.1f} % (optimistic: the setting was chosen by it; accuracy of "
            f"single {data.unit} from {min(each):.0f} to {max(each):.0f} %)"
        )
        return chosen, scores, reason

    def _likely_weight(self, data: _Data, settings: Sequence[Setting]) -> Setting:
        """Return the setting with the smallest loss on left-out groups, the weight's logarithm shrunk to the fixed one.

        Of few labels the loss tells more than the number of correct predictions.
        """
        y, fits = data.labelled()[1], _train_without_folds(data, settings, self.class_weight)
        found = [_left_out_logits(data, folds, len(self.classes_)) for folds in fits]
        away = np.log([setting.weight / regression.FIXED_WEIGHT for setting in settings]) / _SPREAD
        losses = [_loss(logits, y, self.class_weight) for logits in found] + away**2 / 2
        return settings[int(np.argmin(losses))]

    def _validate(self, data: _Data, chosen: Setting) -> tuple[Any, float, str]:
        """Return the graph of unlabelled rows, or None if it is not used, the temperature, and a few words on both."""
        _, y, block, _ = data.labelled()
        pool, blocks = len(data.codes) - len(y), len(np.unique(block))
        subjects = data.block if data.unit == "subjects" else None
        graph = neighbour_graph(data.Z, data.is_statistic, subjects) if pool else None
        self._left_out: tuple[_Fit, ...] = ()
        if blocks > 1:
            (self._left_out,) = _train_without_folds(data, [chosen], self.class_weight, graph)
        if blocks < _FEWEST_SUBJECTS or len(y) < _FEWEST_PREDICTIONS:
            few = f"{pool:,} unlabelled windows used, too few labels or subjects to tell what they gain; "
            return graph, 1.0, few if pool else ""
        scores, said = _left_out_logits(data, self._left_out, len(self.classes_)), ""
        if graph is not None:
            (fits,) = _train_without_folds(data, [chosen], self.class_weight)
            without = _left_out_logits(data, fits, len(self.classes_))
            ways = [float(balanced_accuracy_score(y, found.argmax(axis=1))) for found in (scores, without)]
            gain = f"{100 * (ways[0] - ways[1]):+.1f} points of balanced accuracy on {blocks} left-out {data.unit}"
            few = "" if len(y) >= FEWEST_LABELS else f" (not decisive with fewer than {FEWEST_LABELS} labels)"
            said = f"{pool:,} unlabelled windows used, {gain}{few}; "
            if len(y) >= FEWEST_LABELS and ways[0] < ways[1]:
                graph, scores, self._left_out = None, without, fits
                said = f"unlabelled windows not used, because they would bring {gain}; "
        return graph, _temperature(scores, y, self.class_weight), said

    def left_out_likelihoods(self, Z: Any, groups: ArrayLike | None) -> tuple[_Floats, _Rows]:
        """Return `log_likelihoods` by probes that saw no row of the row's group (N, K), and the folds (N,).

        These probes were trained by `fit`, with the same settings and temperature, and are not stored in model files.
        Rows of groups without a label are in no fold, -1, and get the likelihoods of this probe; so do all rows if
        labels are from one group only.
        """
        found, left_out = self.log_likelihoods(Z), self._left_out if self._fold_of else ()
        Z = np.asarray(Z, np.float64)
        names = _names(groups, len(Z)).tolist()
        fold = np.array([self._fold_of.get(name, -1) if left_out else -1 for name in names], np.intp)
        for number, fit in enumerate(left_out):
            test = np.flatnonzero(fold == number)
            probabilities = log_softmax(fit.logits(Z[test], self.temperature_), axis=1)
            found[test] = -_UNSEEN
            prior = 0.0 if self.class_weight == "balanced" else np.log(fit.counts)
            found[np.ix_(test, fit.classes)] = probabilities - prior
        return found, fold

    def with_prior(self, prior: str | None) -> Probe:
        """Return a copy whose probabilities and predictions assume other class frequencies, by Bayes' rule.

        `prior` is "balanced" for equally frequent classes, "training" for the class frequencies of the training labels,
        None for those assumed now.

        Examples
        --------
        >>> Z, y = np.array([[-1.0]] * 90 + [[1.0]] * 10), np.array([0] * 90 + [1] * 10)
        >>> probe = Probe(C=1.0, scale="plain").fit(Z, y)
        >>> [round(float(p.predict_proba([[0.0]])[0, 1]), 1) for p in (probe, probe.with_prior("training"))]
        [0.5, 0.1]
        """
        check_is_fitted(self)
        if prior is None:
            return self
        if prior not in PRIORS:
            raise PolyadicError(f"prior must be 'balanced' or 'training', but is {prior!r}")
        shift = _log_prior(prior, self.class_counts_) - _log_prior(self._assumed_prior, self.class_counts_)
        probe = copy.copy(self)
        probe.intercept_ = self.intercept_ + (shift if len(self.intercept_) > 1 else shift[1:] - shift[:1])
        probe.prior_ = prior
        probe.reason_ = f"{self.reason_.rpartition('; ')[0]}; {probe._assumption()}"
        return probe

    @property
    def _assumed_prior(self) -> str:
        return self.prior_ or ("training" if self.class_weight is None else "balanced")

    def _assumption(self) -> str:
        return f"probabilities assume {PRIORS[self._assumed_prior]}"

    def log_likelihoods(self, Z: Any) -> _Floats:
        """Return the logarithm of each class's probability over the frequency it assumes, up to a constant: (N, K)."""
        return self.likelihoods_of(log_softmax(self._logits(Z), axis=1))

    def likelihoods_of(self, log_probabilities: _Floats) -> _Floats:
        """Return `log_likelihoods` from the logarithms of the output of `predict_proba`: (N, K)."""
        return np.asarray(log_probabilities - _log_prior(self._assumed_prior, self.class_counts_))

    def decision_function(self, Z: Any) -> _Floats:
        """Return the log odds of the second of two classes (N,), or one score per class (N, K)."""
        scores = self._logits(Z)
        return scores[:, 1] if scores.shape[1] == 2 else scores

    def predict(self, Z: Any) -> NDArray[Any]:
        """Return the most probable class of each row: (N,)."""
        best = self._logits(Z).argmax(axis=1)
        return np.asarray(self.classes_[best])

    def predict_proba(self, Z: Any, covariance: _Floats | None = None) -> _Floats:
        """Return the probability of each of `classes_`: (N, K), averaged over uncertain logits.

        Their covariance is (N, K, K), or (N, 1, 1) for two classes.
        """
        scores = self._logits(Z)
        return np.asarray(softmax(scores, axis=1)) if covariance is None else averaged_softmax(scores, covariance)

    def _logits(self, Z: Any) -> _Floats:
        check_is_fitted(self)
        return logits(validate_data(self, Z, reset=False, dtype=np.float64), self.coef_, self.intercept_)

    def _check_parameters(self) -> None:
        weight = self.statistics
        allowed = {
            "C": (self.C == AUTO or (isinstance(self.C, _Number) and self.C > 0), "'auto' or a positive number"),
            "scale": (self.scale in (AUTO, *SCALES), "'auto', 'plain' or 'standardised'"),
            "statistics": (weight == AUTO or (isinstance(weight, _Number) and weight >= 0), "'auto' or at least 0"),
            "unlabelled": (self.unlabelled == AUTO or self.unlabelled is False, "'auto' or False"),
            "class_weight": (self.class_weight in ("balanced", None), "'balanced' or None"),
        }
        for name, (is_valid, expected) in allowed.items():
            if not is_valid:
                raise PolyadicError(f"{name} must be {expected}, but is {getattr(self, name)!r}")

    def _check_input(self, Z: Any, y: Any) -> tuple[_Floats, _Rows, NDArray[Any]]:
        """Return the features (N, F), the class of each row from 0, or -1 (N,), and the classes (K,)."""
        if y is None:
            raise PolyadicError("Probe requires y to be passed, but the target y is None")
        features = validate_data(self, Z, dtype=np.float64)
        known, labels = known_labels(column_or_1d(y, warn=True) if getattr(y, "ndim", 1) == 2 else y, len(features))
        assert_all_finite(labels, input_name="y")
        check_classification_targets(labels)
        codes = np.full(len(features), -1)
        classes, codes[known] = np.unique(labels, return_inverse=True)
        if len(classes) < 2:
            what = f"1 class, {classes.tolist()[0]!r}" if len(classes) else "no labelled row"
            raise PolyadicError(
                f"y must have at least two classes, but has {what} ({UNKNOWN_MARKS} marks an unknown label)"
            )
        return features, codes, classes

    # ----------------------------------------------------------- model files

    def pack(self) -> tuple[dict[str, _Floats], dict[str, Any]]:
        """Convert a fitted probe to arrays and JSON, for a model file: coefficients, classes, parameters, settings."""
        classes = self.classes_.tolist()
        if isinstance(classes[0], float):
            classes = [int(name) for name in classes]
        parameters = {name: np.asarray(value).item() for name, value in self.get_params().items()}
        fitted = {name: getattr(self, f"{name}_") for name in _STORED}
        arrays = {f"{_PREFIX}coef": self.coef_, f"{_PREFIX}intercept": self.intercept_}
        chain = None if self.chain_ is None else self.chain_.to_dict()
        return arrays, {"classes": classes, "parameters": parameters, **fitted, "chain": chain}

    @classmethod
    def unpack(cls, arrays: Mapping[str, NDArray[Any]], header: Any, features: int) -> Self:
        """Build the probe of a model with this many features from the output of `pack`, among other arrays."""
        stored = {name.removeprefix(_PREFIX): array for name, array in arrays.items() if name.startswith(_PREFIX)}
        classes, counts = header["classes"], header["class_counts"]
        are_names = {type(name) for name in classes} in ({str}, {int}, {bool})
        if not are_names or len(set(classes)) != len(classes) or len(classes) < 2:
            raise ModelFileError(f"the file's probe must name two or more different classes, but has {classes!r}")
        rows = 1 if len(classes) == 2 else len(classes)
        shapes = {name: array.shape for name, array in stored.items()}
        if shapes != {"coef": (rows, features), "intercept": (rows,)}:
            raise ModelFileError(f"the file's probe has arrays {shapes}, but must have {rows} rows of {features}")
        if len(counts) != len(classes) or min(counts) < 1 or header["prior"] not in (None, *PRIORS):
            raise ModelFileError(f"the file's probe has an invalid prior, {header['prior']!r} of {counts!r} labels")
        probe = cls(**header["parameters"])
        probe._check_parameters()
        for name in _STORED:
            setattr(probe, f"{name}_", header[name])
        probe.classes_, probe.n_features_in_ = np.asarray(classes), features
        probe.coef_, probe.intercept_ = stored["coef"], stored["intercept"]
        chain = header.get("chain")
        probe.chain_ = None if chain is None else Chain.from_dict(chain, len(classes))
        return probe


class _Fit(NamedTuple):
    """A regression on some rows."""

    classes: _Rows  # (K,), classes of these rows, as numbers
    counts: _Rows  # (K,), number of labels
    coef: _Floats  # (K, F), or (1, F) for two classes; not used if there is only one
    intercept: _Floats

    def logits(self, Z: _Floats, temperature: float = 1.0) -> _Floats:
        """Return one score per class: (n, K)."""
        if len(self.classes) == 1:
            return np.zeros((len(Z), 1))
        return logits(Z, self.coef / temperature, self.intercept / temperature)


def _train(
    data: _Data, settings: Sequence[Setting], class_weight: Any, tolerance: float, graph: Any = None
) -> list[_Fit]:
    """Train a regression for each setting on labelled rows; with a graph, one setting also on spread labels."""
    labelled, fits = data.codes >= 0, list[tuple[_Floats, _Floats]]()
    classes, codes, counts = np.unique(data.codes[labelled], return_inverse=True, return_counts=True)
    if len(classes) < 2:
        return [_Fit(classes, counts, np.zeros((1, data.Z.shape[1])), np.zeros(1))] * len(settings)
    for (scale, weight), group in groupby(settings, key=lambda setting: setting[1:]):
        words = scale, [one.C for one in group], class_weight, tolerance, regression.gains(data.is_statistic, weight)
        path = regression.regressions(data.Z[labelled], codes, *words)
        if graph is not None:
            marked = np.full(len(data.codes), -1)
            marked[labelled] = codes
            spread, trust = trusted_labels(graph, marked, softmax(logits(data.Z, *path[0]), axis=1))
            used = trust > 0
            path = regression.regressions(data.Z[used], spread[used], *words, trust[used])
        fits += path
    return [_Fit(classes, counts, *fit) for fit in fits]


def _train_without_folds(
    data: _Data, settings: Sequence[Setting], class_weight: Any, graph: Any = None
) -> list[tuple[_Fit, ...]]:
    """Train as `_train` does, without one fold after the other: for each setting, one regression per fold."""

    def leave_out(number: int) -> list[_Fit]:
        kept = data.fold != number
        part = data._replace(Z=data.Z[kept], codes=data.codes[kept])
        edges = None if graph is None else graph[kept][:, kept]
        return _train(part, settings, class_weight, _SEARCH_TOLERANCE, edges)

    return list(zip(*for_each(leave_out, range(int(data.fold.max()) + 1)), strict=True))


def _left_out_logits(data: _Data, fits: Sequence[_Fit], classes: int) -> _Floats:
    """Return logits (labelled rows, K) without the row's fold; those of a class that the others lack are −∞."""
    Z, _, _, fold = data.labelled()
    found = np.full((len(Z), classes), -np.inf)
    for number, fit in enumerate(fits):
        test = np.flatnonzero(fold == number)
        found[np.ix_(test, fit.classes)] = fit.logits(Z[test])
    return found


def _preference(setting: Setting, score: float, fixed: Setting) -> tuple[Any, ...]:
    """Return the key of a setting: the score, then similarity to the fixed settings."""
    alike = (setting.scale == fixed.scale, setting.weight == fixed.weight)
    return (round(score, 12), *alike, -abs(np.log(setting.C / fixed.C)), -setting.C)


def _log_prior(prior: str, counts: Any) -> _Floats:
    """Return the logarithms of the class frequencies, up to a constant: (K,); `counts` are of the training labels."""
    return np.zeros(len(counts)) if prior == "balanced" else np.log(np.asarray(counts, np.float64))


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


def _temperature(scores: _Floats, y: _Rows, class_weight: Any) -> float:
    """Return the temperature of logits (n, K) with the smallest loss, its logarithm shrunk towards 0."""
    if int(_seen(scores, y).sum()) < _FEWEST_PREDICTIONS:
        return 1.0

    def loss(logarithm: float) -> float:
        return _loss(scores * np.exp(-logarithm), y, class_weight) + (logarithm / _SPREAD) ** 2 / 2

    return float(np.exp(minimize_scalar(loss, bounds=(-4.0, 4.0), method="bounded").x))


def _loss(scores: _Floats, y: _Rows, class_weight: Any) -> float:
    """Return the sum of the logistic losses of left-out logits (n, K), without rows that were not `_seen`."""
    seen = _seen(scores, y)
    weight = compute_sample_weight(class_weight, y)[seen]
    losses = -log_softmax(scores[seen], axis=1)[np.arange(len(weight)), y[seen]]
    return float(weight @ losses) * len(weight) / max(float(weight.sum()), 1e-300)


def _seen(scores: _Floats, y: _Rows) -> _Mask:
    """Return the rows whose class the probe of their fold had seen; others say nothing about the final probe: (n,)."""
    return np.asarray(np.isfinite(scores[np.arange(len(y)), y]))


def _names(groups: ArrayLike | None, count: int) -> NDArray[np.str_]:
    """Return the group of each row as text, (N,); "" if it is unknown (None, NaN, -1)."""
    known = [] if groups is None else as_column(groups, "groups", count).tolist()
    return np.array([as_text(name) for name in known] or [""] * count, np.str_)


def features_of(model: Any, windows: Any) -> _Floats:
    """Compute features in double precision, as in model files: (N, F)."""
    return np.asarray(model.transform(windows), np.float64)


def statistic_columns(model: Any) -> _Rows:
    """Return the indices of the columns of a feature extractor that are statistics of the window."""
    readout = getattr(model, "readout_", None)
    return np.arange(0) if readout is None else np.arange(readout.rank, readout.n_features)


# ------------------------------------------------------------------------------------------- uncertain scores


def fixed_points(size: int) -> _Floats:
    """Return half of the points of `averaged_softmax`; the others are their negatives: (64, size)."""
    golden = 1.5
    for _ in range(64):
        golden = (1 + golden) ** (1 / (size + 1))
    points = ndtri((0.5 + np.arange(1, 65)[:, None] * golden ** -np.arange(1.0, size + 1)) % 1)
    return np.asarray(points / np.sqrt((points**2).mean(axis=0)))


def averaged_softmax(scores: _Floats, covariance: _Floats) -> _Floats:
    """Average the softmax over Gaussian scores with means (N, K), at 128 fixed points: (N, K).

    The covariance is (N, K, K), or (N, 1, 1) of the second score of two. Points are ±Φ⁻¹ of the sequence {½ + i/gʲ},
    i = 1 … 64, with g the positive root of g^(k + 1) = g + 1 in k dimensions (Roberts, 2018), scaled to variance 1 and
    multiplied by the symmetric root of the covariance.

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
