"""A classifier of windows: features that were learned without labels, and a probe on top; one file holds both."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from polyadic.data.labels import UNKNOWN_MARKS, as_column, known_labels
from polyadic.data.store import WindowStore
from polyadic.data.windows import Windows
from polyadic.errors import ModelFileError, PolyadicError
from polyadic.estimators import ATD, GRSALS, SALS
from polyadic.evaluate.probe import AUTO, PROBES, probe, quiet_training, train_probe
from polyadic.persist import load
from polyadic.validated_probe import Probe, level_columns

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


def _gives_probabilities(self: WindowClassifier) -> bool:
    return hasattr(self.probe_ if hasattr(self, "probe_") else probe(self.probe), "predict_proba")


class WindowClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Labels and probabilities for windows.

    Parameters
    ----------
    features : an `ATD`, `SALS` or `GRSALS`; one that is fitted is taken as it is, for it may have learned from far more
        windows than have labels, and of any other a copy is fitted to all windows given to `fit`
    probe : "auto" for a `Probe`, which chooses its settings for subjects it has not seen; "plain" or "standardised" for
        one logistic regression, as for `polyadic.evaluate.probe`; or a scikit-learn classifier of your own. Model files
        hold a `Probe`, a LogisticRegression, or a pipeline of a StandardScaler and one

    Attributes
    ----------
    features_ : the fitted features
    probe_ : the fitted probe, a scikit-learn classifier of features; the `reason_` of a `Probe` says in one sentence
        how its settings were chosen
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

    def __init__(self, features: ATD | SALS | GRSALS, probe: Any = AUTO) -> None:
        self.features = features
        self.probe = probe

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
            default the labels that X itself has
        groups : (N,), whose windows they are, for a probe that is chosen by leaving groups out; by default `X.subject`
            where X is `Windows` or a store. In a pipeline by its step's name, or by metadata routing
            (`set_fit_request(groups=True)`)
        on_rows : called with the number of windows done, while their features are made
        """
        classifier = probe(self.probe)
        windows = X.windows if isinstance(X, WindowStore) else X
        own_labels = y is None and isinstance(windows, Windows)
        known, labels = known_labels(labels_of(windows) if own_labels else y, len(windows))
        classes = len(np.unique(labels))
        if classes < 2:
            raise PolyadicError(
                f"y must have at least two classes, but has {classes} ({UNKNOWN_MARKS} marks a window without a label)"
            )
        people = _groups_of(windows, groups)
        fitted = self.features.__sklearn_is_fitted__()
        self.features_ = self.features if fitted else clone(self.features).fit(windows)
        rows = np.flatnonzero(known)
        # In double precision, as files have it: a probe from a file then says exactly the same.
        Z = np.asarray(self.features_.transform(windows[rows], on_rows=on_rows), np.float64)
        theirs = None if people is None else people[rows]
        with quiet_training(self.probe):
            self.probe_ = train_probe(classifier, Z, labels, theirs, level_columns(self.features_))
        self.classes_ = self.probe_.classes_
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class of each window: (N,)."""
        check_is_fitted(self)
        predicted: NDArray[Any] = self.probe_.predict(self._features(X))
        return predicted

    @available_if(_gives_probabilities)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """How probable each class is, in the order of `classes_`: (N, classes).

        A `Probe` weights classes equally, which changes probabilities: they hold where all classes are equally
        frequent. Use `probe=Probe(class_weight=None)` where they must match the frequencies of the training data.
        """
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
        self = cls(model, _kind(model.probe_))
        self.features_, self.probe_, self.classes_ = model, model.probe_, model.probe_.classes_
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "probe_")


def _groups_of(windows: Any, groups: ArrayLike | None) -> NDArray[Any] | None:
    """Whose windows they are: as given, else the subjects of the windows where any is known: (N,)."""
    if groups is not None:
        return as_column(groups, "groups", len(windows))
    if isinstance(windows, Windows) and (windows.subject != "").any():
        return windows.subject
    return None


def _kind(fitted: Any) -> Any:
    """What `probe` was for a fitted probe of a model file."""
    if not isinstance(fitted, Probe):
        return PROBES[hasattr(fitted, "steps")]
    return AUTO if fitted.get_params() == Probe().get_params() else clone(fitted)
