"""A window classifier: features learned without labels and a probe on top, saved in one model file."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.metrics import accuracy_score
from sklearn.utils import _safe_indexing
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from polyadic.core.persist import load
from polyadic.data.labels import UNKNOWN_MARKS, as_column, known_labels
from polyadic.data.store import WindowStore
from polyadic.data.windows import Windows
from polyadic.errors import ModelFileError, PolyadicError
from polyadic.estimators import CPD, describe_fit
from polyadic.evaluate.probe import (
    AUTO,
    PRIORS,
    Probe,
    features_of,
    make_probe,
    own_prior,
    statistic_columns,
    train_probe,
    uses_unlabelled,
)
from polyadic.evaluate.sequences import Chain, choose_chain, rows_along
from polyadic.evaluate.unlabelled import pool_rows
from polyadic.scale.cluster import lazily

__all__ = ["WindowClassifier", "labels_of"]


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


def _gives_probabilities(self: WindowClassifier) -> bool:
    return hasattr(self.probe_ if hasattr(self, "probe_") else make_probe(self.probe), "predict_proba")


class WindowClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Classify windows with learned features and a probe.

    Parameters
    ----------
    features : a `CPD`, `ATD`, `SALS` or `GRSALS`, or a baseline, which cannot be saved with a probe. A fitted one is
        not refitted: it may have been fitted to many more windows than have labels. An unfitted one is cloned and
        fitted to all windows passed to `fit`. Clones share fitted features, so `cross_val_score` and `GridSearchCV`
        train and score only the probe; to refit the features in every fold, pass an unfitted estimator
    probe : "auto" for a `Probe`, which selects its settings for unseen subjects; "plain" or "standardised" for one
        logistic regression, on features as they are or standardised; or any scikit-learn classifier. Model files can
        hold a `Probe`, a LogisticRegression, or a pipeline of a StandardScaler and a LogisticRegression, and `load`
        returns all of these as a `Probe`
    prior : class frequencies that predictions assume: "balanced" for equally frequent classes, "training" for those of
        the training labels, which raises accuracy at the cost of rare classes. By default as the probe was trained:
        "auto" is balanced, "plain" and "standardised" are not

    Attributes
    ----------
    features_ : the fitted features
    probe_ : the fitted probe, a scikit-learn classifier of features; the `reason_` of a `Probe` says in one sentence
        how its settings were chosen
    classes_ : (C,), the class labels

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

    def fit(
        self, X: Any, y: Any = None, groups: ArrayLike | None = None, *, on_rows: Callable[[int], None] | None = None
    ) -> Self:
        """Train the probe on the windows with labels and on a sample of those without.

        Parameters
        ----------
        X : (N, channels, time), anything that `CPD.fit` takes
        y : (N,), classes by name or number; "", None, NaN and -1 mark windows without a label, which a `Probe` uses,
            too. By default the labels of X
        groups : (N,), the subject of each window, for a probe that is selected by leaving groups out; by default
            `X.subject` if X is `Windows` or a store. In a pipeline, pass it with the step's name, or by metadata
            routing (`set_fit_request(groups=True)`)
        on_rows : called with the number of windows done while features are computed
        """
        make_probe(self.probe)  # raises before the features are learned
        if self.prior not in (None, *PRIORS):
            raise PolyadicError(f"prior must be None, 'balanced' or 'training', but is {self.prior!r}")
        windows, known, labels = _labelled(X, y)
        classes = len(np.unique(labels))
        if classes < 2:
            raise PolyadicError(
                f"y must have at least two classes, but has {classes} ({UNKNOWN_MARKS} marks a window without a label)"
            )
        subjects = groups_of(windows, groups)
        rows = rows_to_transform(known, subjects, uses_unlabelled(self.probe))
        ordered = rows_along(windows, known)
        every = np.union1d(rows, ordered)
        self.features_ = self.features if self._has_fitted_features() else clone(self.features).fit(windows)
        Z = features_of(self.features_, _safe_indexing(windows, every), on_rows)
        subjects = None if subjects is None else subjects[every]
        marked, columns = partly_labelled(labels, known)[every], statistic_columns(self.features_)
        used, along = np.isin(every, rows), np.isin(every, ordered)
        groups = None if subjects is None else subjects[used]
        self.probe_ = train_probe(self.probe, Z[used], marked[used], groups, columns, self.prior)
        self.probe_.chain_ = None
        if along.any():
            words = Z, marked, subjects, used, columns, windows[ordered], along
            self.probe_.chain_ = learn_chain(self.probe_, *words)
        self.classes_ = self.probe_.classes_
        return self

    @lazily
    def predict(self, X: Any) -> NDArray[Any]:
        """Predict the most probable class of each window: (N,).

        Parameters
        ----------
        X : (N, channels, time)
        """
        Z, covariance, _ = self._features_and_spread(X)
        if covariance is not None:
            return np.asarray(self.classes_[self.probe_.predict_proba(Z, covariance).argmax(axis=1)])
        predicted: NDArray[Any] = self.probe_.predict(Z)
        return predicted

    @available_if(_gives_probabilities)  # type: ignore[untyped-decorator]
    @lazily
    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Predict the probability of each class, in the order of `classes_`: (N, classes).

        A `Probe` weights classes equally, so its probabilities assume equally frequent classes. Use `prior="training"`
        if they must reflect the class frequencies of the training labels. If something is missing in a window,
        a `Probe` averages over what it might have been, which makes the prediction less certain.
        """
        return self.probabilities_and_missing(X)[0]

    def probabilities_and_missing(self, X: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Predict as `predict_proba` (N, classes), and return how much of each window is missing (N,).

        The second is the share of samples, over all channels, that are missing (NaN, or of a dead channel).
        """
        Z, covariance, missing = self._features_and_spread(X)
        known = () if covariance is None else (covariance,)
        return self.probe_.predict_proba(Z, *known), missing

    def predict_sequence(self, X: Any) -> tuple[NDArray[Any], NDArray[np.float64]]:
        """Predict along each recording: the labels (N,), and the probability of each class (N, classes).

        The labels are the most probable sequence (Viterbi), without changes that no sequence of classes would make:
        use it for a hypnogram, bouts and durations. The probabilities are those of each window given its whole
        recording (forward-backward): use their argmax for the fewest wrong windows, and them for how sure it is. Class
        frequencies are equal in both; `prior` has no effect.

        Parameters
        ----------
        X : `Windows` or a store, with the recording and the start of every window, in order of time. A gap of n steps
            is n transitions; after more than 20 steps, and in the next recording, everything starts anew

        Raises
        ------
        PolyadicError : if the order of the windows is not known, now or in training
        """
        windows = X.windows if isinstance(X, WindowStore) else X
        return self.label_sequence(self.predict_proba(X), windows)

    def label_sequence(
        self, probabilities: NDArray[np.float64], windows: Windows
    ) -> tuple[NDArray[Any], NDArray[np.float64]]:
        """Return what `predict_sequence` does, from the output of `predict_proba` (N, classes) for these windows."""
        check_is_fitted(self)
        if self.chain_ is None:
            raise PolyadicError(
                "the classifier does not know the order of windows: train it on windows with the recording and the "
                "start of each, in order of time, and with one of the library's own probes"
            )
        likelihoods = Probe.of(self.probe_).likelihoods_of(np.log(np.maximum(probabilities, np.finfo(float).tiny)))
        path = self.chain_.path(likelihoods, windows)
        return np.asarray(self.classes_[path]), self.chain_.smooth(likelihoods, windows)

    @property
    def chain_(self) -> Chain | None:
        """The `polyadic.evaluate.sequences.Chain` that `predict_sequence` uses; None if the order was not known."""
        return getattr(self.probe_, "chain_", None)

    def score(self, X: Any, y: Any = None, sample_weight: ArrayLike | None = None) -> float:
        """Return the accuracy on the windows that have a label.

        Parameters
        ----------
        X : (N, channels, time)
        y : (N,), classes as for `fit`; windows without a label are left out. By default the labels of X
        sample_weight : (N,), weight of each window
        """
        windows, known, labels = _labelled(X, y)
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
        weights = Probe.of(self.probe_).coef_
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
                f"{type(self.features_).__name__}, which can only be saved by themselves"
            )
        model = copy.copy(self.features_)
        model.probe_ = self.probe_
        return model

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Load a classifier from a model file with a probe.

        Raises
        ------
        ModelFileError : if the file is damaged, or has no probe
        """
        return cls.of(load(path), os.path.basename(path))  # noqa: PTH119

    @classmethod
    def of(cls, model: CPD, name: str = "the model") -> Self:
        """Return a fitted model with a probe, `model.probe_`, as a classifier; an error message calls it `name`."""
        if not hasattr(model, "probe_"):
            raise ModelFileError(f"{name} has no probe: train one on labelled windows with polyadic fit --probe")
        probe = model.probe_
        is_default = probe.get_params() == Probe().get_params()
        classifier = cls(model, AUTO if is_default else clone(probe), own_prior(model))
        classifier.features_, classifier.probe_, classifier.classes_ = model, probe, probe.classes_
        return classifier

    # ------------------------------------------------ scikit-learn's contract

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "probe_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = (
            isinstance(self.features, CPD) and self.features.__sklearn_tags__().input_tags.allow_nan
        )
        return tags

    def __sklearn_clone__(self) -> Self:
        # Cloning fitted features would discard the fit. They are never modified here, so clones can share them.
        features = self.features if self._has_fitted_features() else clone(self.features)
        return type(self)(features, clone(self.probe, safe=False), self.prior)

    def set_params(self, **params: Any) -> Self:
        """Set parameters, including those of `features` if it is unfitted (clones share fitted features)."""
        inner = [name for name in params if name.startswith("features__")]
        features = params.get("features", self.features)
        if inner and features.__sklearn_is_fitted__():
            raise PolyadicError(
                f"{inner[0]} cannot be set: features is already fitted, and clones share it. Pass unfitted features, "
                "such as sklearn.base.clone(features)"
            )
        super().set_params(**params)
        return self

    def __str__(self) -> str:
        """Return the settings and, if fitted, classes, settings of the probe and a one-line summary of the features."""
        if not self.__sklearn_is_fitted__():
            return repr(self)
        lines = [repr(self), f"classes: {', '.join(map(str, self.classes_))}"]
        if isinstance(self.probe_, Probe):
            lines.append(f"probe: {self.probe_.reason_}")
        if self.chain_ is not None:
            lines.append(f"along the recording: {self.chain_.reason}")
        about = describe_fit(self.features_) if isinstance(self.features_, CPD) else str(self.features_)
        return "\n".join([*lines, f"features: {about}"])

    def _features_and_spread(
        self, X: Any
    ) -> tuple[NDArray[np.float64], NDArray[np.float64] | None, NDArray[np.float64]]:
        """Return features (N, F), the covariance of the logits (N, K, K) or None, and the share missing (N,)."""
        check_is_fitted(self)
        windows, covariance = X.windows if isinstance(X, WindowStore) else X, None
        if isinstance(self.features_, CPD) and isinstance(self.probe_, Probe):
            Z, covariance, by_channel = self.features_.features_and_spread(windows, self.probe_.coef_)
            missing = by_channel.mean(axis=1)
            covariance = covariance if missing.any() else None
        else:
            Z = features_of(self.features_, windows)
            missing = np.zeros(len(Z))
        return Z, covariance, missing

    def _has_fitted_features(self) -> bool:
        return bool(self.features.__sklearn_is_fitted__())


def learn_chain(
    probe: Any,
    Z: NDArray[np.float64],
    y: NDArray[Any],
    groups: NDArray[Any] | None,
    trained: NDArray[np.bool_],
    statistic_columns: Any,
    windows: Windows,
    along: NDArray[np.bool_],
) -> Chain | None:
    """Learn the order of classes along recordings; None for a probe without `Probe.of`, or without labels there.

    Parameters
    ----------
    probe : a trained probe
    Z, y, groups, statistic_columns : as for `Probe.fit`: (n, F), (n,) with None for windows without a label, (n,)
    trained : (n,), the rows that the probe was trained on
    windows, along : whole recordings in order of time, and which rows are theirs: (n,)
    """
    known, labels = known_labels(y, len(y))
    if not known[along].any():
        return None
    try:
        linear = Probe.of(probe)
    except PolyadicError:
        return None
    likelihoods, fold = linear.left_out_likelihoods(Z, y, groups, trained, statistic_columns)
    codes = np.full(len(y), -1)
    codes[known] = np.searchsorted(linear.classes_, labels)
    subjects = None if groups is None else groups[along]
    return choose_chain(likelihoods[along], codes[along], fold[along], subjects, windows)


# ------------------------------------------------------------ groups and labels


def _labelled(X: Any, y: Any) -> tuple[Any, NDArray[np.bool_], NDArray[Any]]:
    """Return the windows, which of them have a label (N,), and these labels; by default those of the windows."""
    windows = X.windows if isinstance(X, WindowStore) else X
    if y is None and isinstance(windows, Windows):
        y = labels_of(windows)
    return windows, *known_labels(y, len(windows))


def groups_of(windows: Any, groups: ArrayLike | None = None) -> NDArray[Any] | None:
    """Return the group of each window: as given, else the subjects of the windows if any is known: (N,)."""
    if groups is not None:
        return as_column(groups, "groups", len(windows))
    if isinstance(windows, Windows) and (windows.subject != "").any():
        return windows.subject
    return None


def partly_labelled(labels: NDArray[Any], known: NDArray[np.bool_]) -> NDArray[Any]:
    """Return a column (N,) with these labels where they are known, and None elsewhere; the labels if all are known."""
    if known.all():
        return labels
    column = np.full(len(known), None, object)
    column[known] = labels
    return column


def rows_to_transform(known: NDArray[np.bool_], subjects: NDArray[Any] | None, unlabelled: bool) -> NDArray[np.intp]:
    """Return the windows whose features are needed: those with labels and, if `unlabelled`, a sample of the others."""
    sample = pool_rows(known, subjects) if unlabelled else np.empty(0, np.intp)
    return np.sort(np.concatenate([np.flatnonzero(known), sample]))
