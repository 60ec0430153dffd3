"""A probe trained on augmented copies of its labelled windows, and perturbed windows for robustness tests.

Here the classifier, and not the alignment of features, learns the invariance to an augmentation: it is trained on each
labelled window and on several augmented copies of it. `AugmentedProbe` wraps any fitted feature extractor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import assert_all_finite
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
from torch import Tensor

from polyadic._util.checks import Readable, check_integer
from polyadic._util.random_streams import integer_seed
from polyadic.augment import as_augmentation
from polyadic.data.batches import prefetch
from polyadic.data.folds import contiguous_blocks
from polyadic.data.labels import UNKNOWN_MARKS, as_column, known_labels
from polyadic.data.samples import Samples, integer_random_state
from polyadic.data.store import WindowStore
from polyadic.data.windows import Windows
from polyadic.errors import PolyadicError
from polyadic.estimators import WindowEstimator, all_or_nothing, labelled_windows
from polyadic.evaluate.probes import probe, quiet_training, takes_groups, train_probe
from polyadic.evaluate.validated_probe import FOLDS, level_columns

__all__ = ["AugmentedProbe", "augmented_features", "perturbed"]

_BATCH = 256
_TESTS = 0x7E57


def perturbed(X: Any, augment: Any, seed: int = 0, *, batch_size: int = _BATCH) -> NDArray[Any]:
    """Augment every window once, for a robustness test.

    The random draws differ from those that a fit or an `AugmentedProbe` with the same seed is trained on.

    Parameters
    ----------
    X : (N, channels, time), an array, a tensor, `Windows` or a `WindowStore`
    augment : as for `AugmentedProbe`
    batch_size : number of windows augmented at a time; does not change the result

    Returns
    -------
    (N, channels, time), numpy

    Examples
    --------
    >>> from polyadic.augment import Jitter
    >>> perturbed(np.ones((5, 2, 100)), Jitter(0.1)).shape
    (5, 2, 100)
    """
    samples = Samples(X)
    result = np.empty(samples.shape, np.float64 if samples.dtype == torch.float64 else np.float32)
    first = 0
    for batch in _batches(samples, augment, integer_seed(seed, _TESTS), 0, batch_size):
        result[first : first + len(batch)] = batch.cpu().numpy()
        first += len(batch)
    return result


def augmented_features(
    features: Any, X: Any, augment: Any, sweep: int = 0, seed: int = 0, *, batch_size: int = _BATCH
) -> NDArray[Any]:
    """Compute features of an augmented copy of each window, batch by batch.

    Parameters
    ----------
    features : fitted, with a method `transform`
    X : (N, channels, time), an array, a tensor, `Windows` or a `WindowStore`
    augment : as for `AugmentedProbe`
    sweep, seed : together with the row of a window in X, they determine its copy
    batch_size : number of windows augmented at a time; does not change the result

    Returns
    -------
    (N, R), numpy
    """
    # An estimator reorders channels by name; the copies are arrays without names, so reorder before augmenting.
    samples = features._samples(X, reset=False) if isinstance(features, WindowEstimator) else Samples(X)
    return _transformed(features, samples, _batches(samples, augment, seed, sweep, batch_size))


def _plain_features(features: Any, X: Any, batch_size: int) -> NDArray[Any]:
    """Return the features of the windows without augmentation: (N, R)."""
    samples = Samples(X)
    if isinstance(features, WindowEstimator) or not isinstance(samples.data, Readable):
        return _matrix(features.transform(X), len(samples))
    return _transformed(features, samples, _batches(samples, None, 0, 0, batch_size))


def _transformed(features: Any, samples: Samples, batches: Iterator[Tensor]) -> NDArray[Any]:
    return np.concatenate([_matrix(features.transform(samples.like_input(batch)), len(batch)) for batch in batches])


def _matrix(Z: Any, count: int) -> NDArray[Any]:
    """Return the output of an extractor as an array, checked to have shape (count, R)."""
    matrix = Z.numpy(force=True) if isinstance(Z, Tensor) else np.asarray(Z)
    if matrix.ndim != 2 or len(matrix) != count:
        raise PolyadicError(f"features.transform must return shape ({count}, features), but returned {matrix.shape}")
    return matrix


def _batches(samples: Samples, augment: Any, seed: int, sweep: int, size: int) -> Iterator[Tensor]:
    """Yield all windows in order, each with its own random augmentation, or unchanged if `augment` is None: (b, …)."""
    check_integer("batch_size", size, 1)
    augmentation = as_augmentation(augment)
    device = samples.data.device if isinstance(samples.data, Tensor) else torch.device("cpu")
    for ids, raw, _ in prefetch(samples, torch.split(torch.arange(len(samples), device="cpu"), int(size))):
        batch = samples.checked(raw, ids, device, samples.dtype)
        if augmentation is None:
            yield batch
            continue
        # A plain function is seeded once per call: calling it with one window makes draws independent of the batch.
        step = len(batch) if augmentation.per_window else 1
        parts = zip(torch.split(batch, step), torch.split(ids, step), strict=True)
        yield torch.cat([augmentation(part, which, seed=seed, sweep=sweep) for part, which in parts])


def _can(method: str) -> Callable[[Any], bool]:
    """Return a function that checks whether a probe's classifier, fitted or not, has a method."""

    def has(self: AugmentedProbe) -> bool:
        return hasattr(self.classifier_ if hasattr(self, "classifier_") else self._classifier(), method)

    return has


class AugmentedProbe(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier trained on the features of labelled windows and of augmented copies of them.

    Parameters
    ----------
    features : a fitted feature extractor with `transform`, such as `ATD` or a baseline. It is not refitted, and clones
        of the probe share it
    augment : an augmentation of `polyadic.augment`, or any function from a batch to its augmented view. A function is
        called with one window at a time and should draw from torch's generator, which is seeded for each window. May
        be None if views=0
    views : number of augmented copies of each labelled window
    classifier : an unfitted scikit-learn classifier; None for the probe's logistic regression
    standardise : scale features to mean 0 and variance 1 (over windows and copies) first
    random_state : seed of the augmentations
    batch_size : number of windows augmented at a time; does not change the result

    Attributes
    ----------
    classes_ : (C,), the labels
    classifier_ : the fitted classifier, with the scaler if there is one
    seed_ : the seed of the augmented copies

    Examples
    --------
    >>> from polyadic import SALS
    >>> from polyadic.augment import Jitter
    >>> rng = np.random.default_rng(0)
    >>> y = np.arange(40) % 2
    >>> X = rng.normal(size=(40, 3, 50)) + y[:, None, None]
    >>> features = SALS(rank=4, max_sweeps=5, device="cpu").fit(X)
    >>> AugmentedProbe(features, Jitter(0.05)).fit(X, y).score(X, y)
    1.0
    """

    def __init__(
        self,
        features: Any,
        augment: Any,
        views: int = 4,
        classifier: Any = None,
        standardise: bool = True,
        random_state: Any = 0,
        batch_size: int = _BATCH,
    ) -> None:
        self.features = features
        self.augment = augment
        self.views = views
        self.classifier = classifier
        self.standardise = standardise
        self.random_state = random_state
        self.batch_size = batch_size

    def fit(self, X: Any, y: ArrayLike, groups: ArrayLike | None = None) -> Self:
        """Train the probe on labelled windows.

        Parameters
        ----------
        X : (N, channels, time), anything that the extractor takes; `Windows` and stores are read batch by batch
        y : (N,), their classes; "", None, NaN and -1 mark windows without a label, which are left out
        groups : (N,), the subject of each window, for a classifier that is selected by leaving groups out, such as
            `Probe`; by default `X.subject` if X is `Windows` or a store, else contiguous blocks of windows. Copies
            share the group of their window

        Returns
        -------
        the probe itself
        """
        with all_or_nothing(self):
            self._check_parameters()
            self._checked(X, reset=True)
            X, labels, given = _labelled(X, y, groups)
            self.seed_ = integer_random_state(self.random_state)
            Z = [_plain_features(self.features, X, self.batch_size)]
            for view in range(self.views):
                assert self.augment is not None
                Z.append(
                    augmented_features(self.features, X, self.augment, view, self.seed_, batch_size=self.batch_size)
                )
            classifier, copies = self._classifier(), 1 + self.views
            members = np.tile(_groups(X, labels, given), copies) if takes_groups(classifier) else None
            levels = level_columns(self.features)
            with quiet_training(self.classifier):
                self.classifier_ = train_probe(classifier, np.concatenate(Z), np.tile(labels, copies), members, levels)
            self.classes_ = self.classifier_.classes_
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """Predict the class of each window, without augmentation: (N,)."""
        return np.asarray(self._fitted().predict(self._features(X)))

    @available_if(_can("predict_proba"))  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> NDArray[Any]:
        """Predict the probability of each of `classes_`, if the classifier supports it: (N, C)."""
        return np.asarray(self._fitted().predict_proba(self._features(X)))

    @available_if(_can("decision_function"))  # type: ignore[untyped-decorator]
    def decision_function(self, X: Any) -> NDArray[Any]:
        """Return the confidence scores of the classifier, if it supports them: (N,) for two classes, else (N, C)."""
        return np.asarray(self._fitted().decision_function(self._features(X)))

    def _fitted(self) -> Any:
        check_is_fitted(self)
        return self.classifier_

    def _features(self, X: Any) -> NDArray[Any]:
        self._checked(X, reset=False)
        return _plain_features(self.features, X, self.batch_size)

    def _checked(self, X: Any, reset: bool) -> None:
        samples = Samples(X)
        validate_data(self, X if hasattr(X, "columns") else samples.data, reset=reset, skip_check_array=True)

    def _classifier(self) -> Any:
        if self.classifier is None:
            return probe("standardised" if self.standardise else "plain")
        own = clone(self.classifier)
        return make_pipeline(StandardScaler(), own) if self.standardise else own

    def _check_parameters(self) -> None:
        check_integer("views", self.views, 0)
        if not hasattr(self.features, "transform"):
            raise PolyadicError(f"features must be a fitted feature extractor with transform, but is {self.features!r}")
        if self.augment is None and self.views > 0:
            raise PolyadicError(f"augment is None, but views={self.views}: pass an augmentation, or set views=0")

    # ------------------------------------------------ scikit-learn's contract

    def __sklearn_clone__(self) -> Self:
        # Cloning the extractor would discard its fit. It is never modified here, so clones can share it.
        parameters = self.get_params(deep=False)
        others = {name: clone(value, safe=False) for name, value in parameters.items() if name != "features"}
        return type(self)(self.features, **others)

    def set_params(self, **params: Any) -> Self:
        """Set parameters of the probe (not of `features`, which is fitted and shared)."""
        inner = [name for name in params if name.startswith("features__")]
        if inner:
            raise PolyadicError(f"{inner[0]} cannot be set: features is already fitted, and clones share it")
        super().set_params(**params)
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags


def _groups(X: Any, y: NDArray[Any], groups: NDArray[Any] | None) -> NDArray[Any]:
    """Return the group of each window: as given, else its subject, else a block of neighbouring windows: (N,)."""
    if groups is not None:
        return groups
    windows = X.windows if isinstance(X, WindowStore) else X
    if isinstance(windows, Windows) and (windows.subject != "").any():
        return windows.subject
    return contiguous_blocks(y, FOLDS)


def _labelled(X: Any, y: Any, groups: Any) -> tuple[Any, NDArray[Any], NDArray[Any] | None]:
    """Return the windows that have a label, their validated labels, and their groups if given."""
    if y is None:
        raise PolyadicError("AugmentedProbe requires y to be passed, but the target y is None")
    if groups is not None:
        known, _ = known_labels(column_or_1d(y) if getattr(y, "ndim", 1) == 2 else y, len(Samples(X)))
        groups = as_column(groups, "groups", len(known))[known]
    windows, labels = labelled_windows(X, y)
    assert_all_finite(labels, input_name="y")
    check_classification_targets(labels)
    classes = len(np.unique(labels))
    if classes < 2:
        raise PolyadicError(
            f"y must have at least two classes, but has {classes} class{'es' * (classes != 1)} "
            f"({UNKNOWN_MARKS} marks a window without a label)"
        )
    return windows, labels, groups
