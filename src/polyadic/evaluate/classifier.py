"""A classifier of windows: features that were learned without labels, and a probe on top; one file holds both."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.utils.validation import check_is_fitted

from polyadic.data.labels import UNKNOWN_MARKS
from polyadic.engine.estimator import labelled_windows
from polyadic.errors import ModelFileError, PolyadicError
from polyadic.estimators import ATD, GRSALS, SALS
from polyadic.evaluate.probe import probe, unthreaded
from polyadic.persist import load

__all__ = ["WindowClassifier", "labels_of"]


def labels_of(windows: Any) -> NDArray[Any]:
    """The classes of windows by name, "" where none is known: (N,).

    Examples
    --------
    >>> from polyadic.data import Windows
    >>> labels_of(Windows(np.zeros((3, 1, 4)), label=["rest", "", "walk"]))
    array(['rest', '', 'walk'], dtype='<U4')
    """
    names = np.array([*windows.classes, ""])
    named: NDArray[Any] = names[windows.label]  # -1, the unknown, is the last
    return named


class WindowClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Labels and probabilities for windows.

    Parameters
    ----------
    features : an `ATD`, `SALS` or `GRSALS`; one that is fitted is taken as it is, for it may have learned from far more
        windows than have labels, and of any other a copy is fitted to all windows given to `fit`. Clones share fitted
        features, so that `cross_val_score` and `GridSearchCV` train and score the probe alone; to learn the features
        anew in every fold, give an estimator that is not fitted
    probe : "standardised" or "plain", as for `polyadic.evaluate.probe`

    Attributes
    ----------
    features_ : the fitted features
    probe_ : the fitted probe, a scikit-learn classifier of features
    classes_ : what is told apart

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

    def __init__(self, features: ATD | SALS | GRSALS, probe: str = "standardised") -> None:
        self.features = features
        self.probe = probe

    def fit(self, X: Any, y: Any = None, *, on_rows: Callable[[int], None] | None = None) -> Self:
        """Train the probe on the windows with labels.

        Parameters
        ----------
        X : (N, channels, time), anything that `ATD.fit` takes
        y : (N,), classes by name or number; "", None, NaN and -1 mark windows without a label, which are left out. By
            default the labels that X itself has
        on_rows : called with the number of windows done, while their features are made
        """
        labelled, labels = labelled_windows(X, labels_of(X) if y is None and hasattr(X, "label") else y)
        classes = len(np.unique(labels))
        if classes < 2:
            raise PolyadicError(
                f"y must have at least two classes, but has {classes} ({UNKNOWN_MARKS} marks a window without a label)"
            )
        self.features_ = self.features if self._has_fitted_features() else clone(self.features).fit(X)
        Z = self.features_.transform(labelled, on_rows=on_rows)
        with unthreaded():
            # In double precision, as files have it: a probe from a file then says exactly the same.
            self.probe_ = probe(self.probe).fit(np.asarray(Z, np.float64), labels)
        self.classes_ = self.probe_.classes_
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class of each window: (N,)."""
        check_is_fitted(self)
        predicted: NDArray[Any] = self.probe_.predict(self._features(X))
        return predicted

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """How probable each class is, in the order of `classes_`: (N, classes)."""
        check_is_fitted(self)
        probabilities: NDArray[np.float64] = self.probe_.predict_proba(self._features(X))
        return probabilities

    def _features(self, X: Any) -> NDArray[Any]:
        return np.asarray(self.features_.transform(X), np.float64)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write features and probe to one model file, which `polyadic.load` reads, too."""
        check_is_fitted(self)
        model = copy.copy(self.features_)
        model.probe_ = self.probe_
        model.save(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The classifier from a model file with a probe.

        Raises
        ------
        ModelFileError : if the file is damaged, or has no probe
        """
        return cls.of(load(path), os.path.basename(path))  # noqa: PTH119

    @classmethod
    def of(cls, model: ATD | SALS | GRSALS, name: str = "the model") -> Self:
        """The classifier that a loaded model with a probe is.

        Parameters
        ----------
        name : of the model, for the message if it has none
        """
        if not hasattr(model, "probe_"):
            raise ModelFileError(f"{name} has no probe: train one on labelled windows, polyadic fit --probe")
        self = cls(model, "standardised" if hasattr(model.probe_, "steps") else "plain")
        self.features_, self.probe_, self.classes_ = model, model.probe_, model.probe_.classes_
        return self

    # ------------------------------------------------ scikit-learn's contract

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "probe_")

    def __sklearn_clone__(self) -> Self:
        # A clone of fitted features would have forgotten them; nothing here changes them, so they can be shared.
        shared = self._has_fitted_features()
        return type(self)(self.features if shared else clone(self.features), self.probe)

    def set_params(self, **params: Any) -> Self:
        """Set parameters, of `features` too while it is not fitted: fitted features are shared by clones."""
        inner = [name for name in params if name.startswith("features__")]
        features = params.get("features", self.features)
        if inner and features.__sklearn_is_fitted__():
            raise PolyadicError(
                f"{inner[0]} cannot be set: features is fitted already, and clones share it. Give features that are "
                "not fitted, as sklearn.base.clone(features)"
            )
        super().set_params(**params)
        return self

    def _has_fitted_features(self) -> bool:
        return bool(self.features.__sklearn_is_fitted__())
