"""`WindowClassifier`: features learned without labels and a probe on top, saved in one model file."""

from __future__ import annotations

import copy
import os
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.metrics import accuracy_score
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import check_is_fitted

from polyadic.data.labels import UNKNOWN_MARKS, as_column, as_text, known_labels
from polyadic.data.store import WindowStore
from polyadic.data.windows import Windows
from polyadic.errors import ModelFileError, PolyadicError
from polyadic.estimators import CPD, load
from polyadic.evaluate.probe import AUTO, PRIORS, SCALES, Probe, features_of, statistic_columns
from polyadic.evaluate.sequences import Chain, choose_chain, rows_along
from polyadic.evaluate.unlabelled import pool_rows
from polyadic.scale.cluster import lazily

__all__ = ["WindowClassifier", "labels_of", "learn_chain", "make_probe", "rows_to_transform"]


def labels_of(windows: Any) -> NDArray[Any]:
    """Return the class name of each window, "" if it has no label: (N,).

    Examples
    --------
    >>> from polyadic.data import Windows
    >>> labels_of(Windows(np.zeros((3, 1, 4)), label=["rest", "", "walk"]))
    array(['rest', '', 'walk'], dtype='<U4')
    """
    names = np.array([*windows.classes, ""])
    named: NDArray[Any] = names[windows.label]  # -1 (no label) selects the last entry
    return named


class WindowClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Classify windows with learned features and a probe.

    Parameters
    ----------
    features : a `CPD`, `ATD`, `SALS` or `GRSALS`, or a baseline, which cannot be saved with a probe. A fitted one is
        not refitted, and clones share it, so `cross_val_score` and `GridSearchCV` train and score only the probe. An
        unfitted one is cloned and fitted to all windows passed to `fit`
    probe : "auto" for a `Probe`, which selects its settings for unseen subjects; a `Probe` with other settings; or
        "plain" or "standardised" for C = 1 on features as they are or standardised, without class weights and
        unlabelled windows. Another classifier follows the features in a pipeline of scikit-learn
    prior : class frequencies that predictions assume: "balanced" for equally frequent classes, "training" for those of
        the training labels, which raises accuracy at the cost of rare classes. By default as the probe was trained

    Attributes
    ----------
    features_ : the fitted features
    probe_ : the fitted `Probe`, whose `reason_` says how its settings were chosen
    classes_ : (C,), the class labels
    chain_ : the `polyadic.evaluate.sequences.Chain` of `predict_sequence`; None if the order of windows is not known

    Examples
    --------
    >>> from polyadic import CPD
    >>> from polyadic.data import synthetic
    >>> windows = synthetic(120, n_channels=2)
    >>> model = WindowClassifier(CPD(rank=4, max_sweeps=3).fit(windows)).fit(windows)
    >>> model.predict_proba(windows[:5]).shape == (5, len(windows.classes))
    True
    """

    def __init__(self, features: Any, probe: Any = AUTO, prior: str | None = None) -> None:
        self.features = features
        self.probe = probe
        self.prior = prior

    def fit(self, X: Any, y: Any = None, groups: ArrayLike | None = None) -> Self:
        """Train the probe on the windows with labels and on a sample of those without.

        Parameters
        ----------
        X : (N, channels, time), anything that `CPD.fit` takes
        y : (N,), classes by name or number; "", None, NaN and -1 mark windows without a label, which a `Probe` uses,
            too. By default the labels of X
        groups : (N,), the subject of each window; by default `X.subject` if X is `Windows` or a store. In a pipeline,
            pass it with the step's name, or by metadata routing (`set_fit_request(groups=True)`)
        """
        probe = make_probe(self.probe)  # raises before the features are learned
        if self.prior not in (None, *PRIORS):
            raise PolyadicError(f"prior must be None, 'balanced' or 'training', but is {self.prior!r}")
        windows, column = _labelled(X, y)
        known, labels = known_labels(column, len(column))
        classes = len(np.unique(labels))
        if classes < 2:
            raise PolyadicError(
                f"y must have at least two classes, but has {classes} ({UNKNOWN_MARKS} marks a window without a label)"
            )
        known_subjects = getattr(windows, "subject", np.full(len(column), ""))
        subjects = known_subjects if groups is None else as_column(groups, "groups", len(column))
        if subjects.dtype.kind not in "iuU":  # names and None, for example
            subjects = np.array([as_text(name) for name in subjects.tolist()])
        rows, in_probe, in_order = rows_to_transform(windows, known, ~known & (probe.unlabelled == AUTO), subjects)
        self.features_ = self.features if self._has_fitted_features() else clone(self.features).fit(windows)
        Z, columns = features_of(self.features_, _safe_indexing(windows, rows)), statistic_columns(self.features_)
        named = np.full(len(column), None)
        named[known] = labels
        y, subjects = named[rows], subjects[rows]
        trained = clone(probe).fit(Z[in_probe], y[in_probe], subjects[in_probe], columns)
        self.probe_: Probe = trained.with_prior(self.prior)
        ordered = _safe_indexing(windows, rows[in_order])
        self.probe_.chain_ = learn_chain(self.probe_, Z[in_order], y[in_order], subjects[in_order], ordered)
        self.classes_ = self.probe_.classes_
        return self

    @lazily
    def predict(self, X: Any) -> NDArray[Any]:
        """Predict the most probable class of each window (N, channels, time): (N,)."""
        predicted: NDArray[Any] = self.classes_[self.probabilities_and_missing(X)[0].argmax(axis=1)]
        return predicted

    @lazily
    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Predict the probability of each class, in the order of `classes_`: (N, classes).

        By default all classes are assumed to be equally frequent (`prior`). If something is missing in a window,
        probabilities are averaged over what it might have been, which makes the prediction less certain.
        """
        return self.probabilities_and_missing(X)[0]

    def probabilities_and_missing(self, X: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Predict as `predict_proba` (N, classes), and return how much of each window is missing (N,).

        The second is the share of samples, over all channels, that are missing (NaN, or of a dead channel).
        """
        check_is_fitted(self)
        windows = X.windows if isinstance(X, WindowStore) else X
        if not isinstance(self.features_, CPD):
            Z = features_of(self.features_, windows)
            return self.probe_.predict_proba(Z), np.zeros(len(Z))
        Z, covariance, missing = self.features_.features_and_spread(windows, self.probe_.coef_)
        return self.probe_.predict_proba(Z, covariance if missing.any() else None), missing.mean(axis=1)

    def predict_sequence(self, X: Any, probabilities: Any = None) -> tuple[NDArray[Any], NDArray[np.float64]]:
        """Predict along each recording: the labels (N,), and the probability of each class (N, classes).

        The labels are the most probable sequence (Viterbi), for a hypnogram, bouts and durations. The probabilities are
        those of each window given its whole recording (forward-backward); their argmax has the fewest wrong windows.
        Classes are assumed to be equally frequent; `prior` has no effect.

        Parameters
        ----------
        X : `Windows` or a store, with the recording and the start of every window, in order of time. A gap of n steps
            is n transitions; after more than 20 steps, and in the next recording, everything starts anew. Raises if the
            order of the windows is not known, now or in training
        probabilities : (N, classes), as from `predict_proba(X)`, if they are known already
        """
        check_is_fitted(self)
        if self.chain_ is None:
            raise PolyadicError(
                "the classifier does not know the order of windows: train it on windows with the recording and the "
                "start of each, in order of time"
            )
        windows = X.windows if isinstance(X, WindowStore) else X
        given = self.predict_proba(X) if probabilities is None else probabilities
        likelihoods = self.probe_.likelihoods_of(np.log(np.maximum(given, np.finfo(float).tiny)))
        path = self.chain_.path(likelihoods, windows)
        return np.asarray(self.classes_[path]), self.chain_.smooth(likelihoods, windows)

    @property
    def chain_(self) -> Chain | None:
        return self.probe_.chain_

    def score(self, X: Any, y: Any = None, sample_weight: ArrayLike | None = None) -> float:
        """Return the accuracy on the windows that have a label; arguments are those of `fit`."""
        windows, column = _labelled(X, y)
        known, labels = known_labels(column, len(column))
        if not known.any():
            raise PolyadicError("y must have labels to score predictions with, but has none")
        weight = None if sample_weight is None else np.asarray(sample_weight)[known]
        return float(accuracy_score(labels, self.predict(windows)[known], sample_weight=weight))

    def component_weights(self) -> NDArray[np.float64]:
        """Return the probe's weights on the components: (classes, R), or one row for two classes, as in `coef_`.

        The logits of a window with coefficients x are W·x plus the contribution of its statistics plus an offset, which
        is the same for all windows.
        """
        check_is_fitted(self)
        readout = getattr(self.features_, "readout_", None)
        weights: NDArray[np.float64] = self.probe_.coef_
        if readout is None:
            return weights
        # The features z = M·x + offset of a readout are linear in x.
        return weights[:, : int(self.features_.rank)] @ np.asarray(readout.matrix, np.float64)

    # ------------------------------------------------------------- model files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write features and probe to one model file, which `polyadic.load` can also read."""
        self.as_model().save(path)

    def as_model(self) -> CPD:
        """Return the features as a model with the probe as its attribute `probe_`, as `polyadic.load` does."""
        check_is_fitted(self)
        if not isinstance(self.features_, CPD):
            raise PolyadicError(
                "to be stored or exported with a probe, features must be a CPD, ATD, SALS or GRSALS, but are "
                f"{type(self.features_).__name__}"
            )
        model = copy.copy(self.features_)
        model.probe_ = self.probe_
        return model

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Load a classifier from a model file with a probe; raises ModelFileError if it is damaged or has none."""
        return cls.of(load(path), name=os.path.basename(path))  # noqa: PTH119

    @classmethod
    def of(cls, features: Any, probe: Probe | None = None, name: str = "the model") -> Self:
        """Return fitted features and a probe trained on them, by default `features.probe_`, as a classifier.

        If there is none, an error message calls the features `name`.
        """
        probe = getattr(features, "probe_", None) if probe is None else probe
        if probe is None:
            raise ModelFileError(f"{name} has no probe: train one on labelled windows with polyadic fit --probe")
        classifier = cls(features, clone(probe), probe.prior_)
        classifier.features_, classifier.probe_, classifier.classes_ = features, probe, probe.classes_
        return classifier

    # ------------------------------------------------ scikit-learn's contract

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "probe_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        features = self.features
        tags.input_tags.allow_nan = isinstance(features, CPD) and features.__sklearn_tags__().input_tags.allow_nan
        return tags

    def __sklearn_clone__(self) -> Self:
        # Cloning fitted features would discard the fit. They are never modified here, so clones can share them.
        features = self.features if self._has_fitted_features() else clone(self.features)
        return type(self)(features, clone(self.probe, safe=False), self.prior)

    def set_params(self, **params: Any) -> Self:
        """Set parameters, including those of the feature extractor if it is unfitted (clones share a fitted one)."""
        inner = [name for name in params if name.startswith("features__")]
        if inner and params.get("features", self.features).__sklearn_is_fitted__():
            raise PolyadicError(
                f"{inner[0]} cannot be set: features is already fitted, and clones share it. Pass unfitted features, "
                "such as sklearn.base.clone(features)"
            )
        super().set_params(**params)
        return self

    def _has_fitted_features(self) -> bool:
        return bool(self.features.__sklearn_is_fitted__())


# ------------------------------------------------------------------ training on features


def learn_chain(
    probe: Probe, Z: NDArray[np.float64], y: NDArray[Any], subjects: NDArray[Any], windows: Any
) -> Chain | None:
    """Learn the order of classes along whole recordings, in order of time; None without labels (n,) there."""
    known, labels = known_labels(y, len(y))
    if not known.any():
        return None
    codes = np.full(len(y), -1)
    codes[known] = np.searchsorted(probe.classes_, labels)
    likelihoods, fold = probe.left_out_likelihoods(Z, subjects)
    return choose_chain(likelihoods, codes, fold, subjects, windows)


def make_probe(kind: Any = AUTO) -> Probe:
    """Return a `Probe` as it is, or one by name, as for `WindowClassifier`.

    Examples
    --------
    >>> make_probe("plain")
    Probe(C=1.0, class_weight=None, scale='plain', statistics=1.0, unlabelled=False)
    """
    if isinstance(kind, Probe):
        return kind
    if not isinstance(kind, str) or kind not in (AUTO, *SCALES):
        raise PolyadicError(
            f"probe must be one of {', '.join((AUTO, *SCALES))}, or a Probe, but is {kind!r}: other classifiers follow "
            "the features in make_pipeline(features, classifier)"
        )
    return Probe() if kind == AUTO else Probe(1.0, kind, 1.0, unlabelled=False, class_weight=None)


def rows_to_transform(
    windows: Any, known: NDArray[np.bool_], spare: NDArray[np.bool_], subjects: NDArray[Any]
) -> tuple[NDArray[np.intp], NDArray[np.bool_], NDArray[np.bool_]]:
    """Return the rows whose features are needed, and which of them are for the probe and which for the chain: (n,).

    `known` (N,) says which windows have a label, `spare` (N,) which others may help a probe: a sample of these does.
    """
    sample = np.union1d(np.flatnonzero(known), pool_rows(~spare, subjects))
    ordered = rows_along(windows, known)
    rows = np.union1d(sample, ordered)
    return rows, np.isin(rows, sample), np.isin(rows, ordered)


def _labelled(X: Any, y: Any) -> tuple[Any, NDArray[Any]]:
    """Return the windows and the labels of all, by default their own: (N,)."""
    windows = X.windows if isinstance(X, WindowStore) else X
    if y is None and isinstance(windows, Windows):
        y = labels_of(windows)
    return windows, as_column(y, "y", len(windows))
