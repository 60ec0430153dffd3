"""A window classifier: features learned without labels and a probe on top, saved in one model file."""

from __future__ import annotations

import copy
import os
from collections import Counter
from collections.abc import Callable
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.metrics import accuracy_score
from sklearn.utils import _safe_indexing
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, column_or_1d

from polyadic.core.persist import load
from polyadic.data.labels import UNKNOWN_MARKS, known_labels
from polyadic.data.store import WindowStore
from polyadic.data.windows import Windows
from polyadic.errors import PolyadicError
from polyadic.estimators import CPD, describe_fit
from polyadic.evaluate.predictor import (
    WindowPredictor,
    check_sizes,
    group_names,
    groups_of,
    means_by_group,
    recentred,
)
from polyadic.evaluate.probe import AUTO, Probe, level_columns, make_probe, train_probe

__all__ = ["WindowClassifier", "labels_of", "rows_to_transform"]


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


class WindowClassifier(ClassifierMixin, BaseEstimator, WindowPredictor):  # type: ignore[misc]
    """Classify windows with learned features and a probe.

    Parameters
    ----------
    features : an `ATD`, `SALS` or `GRSALS`. A fitted one is not refitted: it may have been fitted to many more windows
        than have labels. An unfitted one is cloned and fitted to all windows passed to `fit`. Clones share fitted
        features, so `cross_val_score` and `GridSearchCV` train and score only the probe; to refit the features in
        every fold, pass an unfitted estimator
    probe : "auto" for a `Probe`, which selects its settings for unseen subjects; "plain" or "standardised" for one
        logistic regression, on features as they are or standardised; or any scikit-learn classifier. Model files can
        hold a `Probe`, a LogisticRegression, or a pipeline of a StandardScaler and a LogisticRegression, and `load`
        returns all of these as a `Probe`
    recenter : subtract from the features of each window the mean over all windows of its subject, in training and in
        prediction. This needs at least 20 windows (labelled or not) of every subject, with a similar mix of classes

    Attributes
    ----------
    features_ : the fitted features
    probe_ : the fitted probe, a scikit-learn classifier of features; the `reason_` of a `Probe` says in one sentence
        how its settings were chosen
    classes_ : (C,), the class labels

    Examples
    --------
    >>> from polyadic.data import synthetic
    >>> from polyadic.spectral import STFT
    >>> windows = synthetic(200)
    >>> features = SALS(rank=4, tensorize=STFT(n_fft=32, hop=16), max_sweeps=3).fit(windows)
    >>> model = WindowClassifier(features).fit(windows)
    >>> model.predict_proba(windows[:5]).shape == (5, len(windows.classes))
    True
    """

    def __init__(self, features: CPD, probe: Any = AUTO, recenter: bool = False) -> None:
        self.features = features
        self.probe = probe
        self.recenter = recenter

    def fit(
        self,
        X: Any,
        y: Any = None,
        groups: ArrayLike | None = None,
        *,
        on_rows: Callable[[int], None] | None = None,
    ) -> Self:
        """Train the probe on the windows with labels.

        Parameters
        ----------
        X : (N, channels, time), anything that `ATD.fit` takes
        y : (N,), classes by name or number; "", None, NaN and -1 mark windows without a label, which are left out. By
            default the labels of X
        groups : (N,), the subject of each window, for a probe that is selected by leaving groups out and for
            `recenter`; by default `X.subject` if X is `Windows` or a store. In a pipeline, pass it with the step's
            name, or by metadata routing (`set_fit_request(groups=True)`)
        on_rows : called with the number of windows done while features are computed
        """
        make_probe(self.probe)  # raises before the features are learned
        windows = X.windows if isinstance(X, WindowStore) else X
        if y is None and isinstance(windows, Windows):
            y = labels_of(windows)
        known, labels = known_labels(column_or_1d(y, warn=True) if getattr(y, "ndim", 1) == 2 else y, len(windows))
        classes = len(np.unique(labels))
        if classes < 2:
            raise PolyadicError(
                f"y must have at least two classes, but has {classes} ({UNKNOWN_MARKS} marks a window without a label)"
            )
        subjects = groups_of(windows, groups)
        rows = rows_to_transform(known, subjects, self.recenter)
        self.features_ = self.features if self._has_fitted_features() else clone(self.features).fit(windows)
        # Double precision, as in model files: a loaded probe then makes exactly the same predictions.
        Z = np.asarray(self.features_.transform(_safe_indexing(windows, rows), on_rows=on_rows), np.float64)
        if self.recenter:
            names = group_names(subjects, len(windows))[rows]
            Z = recentred(Z, names, means_by_group([(Z, names)]))
        Z, subjects = Z[known[rows]], None if subjects is None else subjects[known]
        self.probe_ = train_probe(self.probe, Z, labels, subjects, level_columns(self.features_))
        if self.recenter:
            self.probe_.recenter_ = True
        self.classes_ = self.probe_.classes_
        return self

    predict_proba = available_if(_gives_probabilities)(WindowPredictor.predict_proba)

    def score(
        self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None, groups: ArrayLike | None = None
    ) -> float:
        """Return the accuracy of the predictions for labelled windows; `groups` as for `predict`."""
        return float(accuracy_score(y, self.predict(X, groups), sample_weight=sample_weight))

    def component_weights(self) -> NDArray[np.float64]:
        """Return the probe's weights on the components: (classes, R), or one row for two classes, as in `coef_`.

        The logits of a window with coefficients x are W·x plus the contribution of its levels plus an offset, which is
        the same for all windows (with `recenter`, for all windows of a subject). The features z = M·x + offset of a
        readout are linear in x, so W is the product of the probe's weights on z and M; without a readout, W is the
        probe's weights.
        """
        check_is_fitted(self)
        readout = getattr(self.features_, "readout_", None)
        rank = int(self.features_.rank)
        weights = Probe.of(self.probe_).coef_
        return weights if readout is None else weights[:, :rank] @ np.asarray(readout.matrix, np.float64)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write features and probe to one model file, which `polyadic.load` can also read."""
        check_is_fitted(self)
        model = copy.copy(self.features_)
        model.probe_ = self.probe_
        model.save(path)

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
        """Return a model with a probe as a classifier.

        Parameters
        ----------
        name : name of the model, for the error message if it has no probe
        """
        fitted = WindowPredictor(model, name)
        is_default = fitted.probe_.get_params() == Probe().get_params()
        classifier = cls(model, AUTO if is_default else clone(fitted.probe_), fitted.recenter)
        classifier.features_, classifier.probe_, classifier.classes_ = model, fitted.probe_, fitted.classes_
        return classifier

    # ------------------------------------------------ scikit-learn's contract

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "probe_")

    def __sklearn_clone__(self) -> Self:
        # Cloning fitted features would discard the fit. They are never modified here, so clones can share them.
        shared = self._has_fitted_features()
        features = self.features if shared else clone(self.features)
        return type(self)(features, clone(self.probe, safe=False), self.recenter)

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
        return "\n".join([*lines, f"features: {describe_fit(self.features_)}"])

    def _transform(self, windows: Any) -> NDArray[np.float64]:
        check_is_fitted(self)
        return super()._transform(windows)

    def _has_fitted_features(self) -> bool:
        return bool(self.features.__sklearn_is_fitted__())


def rows_to_transform(known: NDArray[np.bool_], subjects: NDArray[Any] | None, recenter: bool) -> NDArray[np.intp]:
    """Return the windows whose features are needed: those with labels or, to recentre, all of subjects with labels.

    Parameters
    ----------
    known : (N,), which windows have a label
    subjects : (N,), the subject of each window
    """
    if not recenter:
        return np.flatnonzero(known)
    names = group_names(subjects, len(known))
    chosen = np.isin(names, np.unique(names[known]))
    check_sizes(Counter(names[chosen].tolist()))
    return np.flatnonzero(chosen)
