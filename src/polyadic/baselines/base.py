"""The base class of baselines, which take the same windows as `CPD`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Self

import torch
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from polyadic._util.torch_state import plain_torch
from polyadic.core.tensorizer import tensors
from polyadic.data.batches import Samples, WindowSource, choose_device
from polyadic.errors import PolyadicError
from polyadic.estimators import WindowEstimator, all_or_nothing, labelled_windows

__all__ = ["Baseline"]

_KEPT_BYTES = 2**30


class Baseline(ClassNamePrefixFeaturesOutMixin, TransformerMixin, WindowEstimator):  # type: ignore[misc]
    """A feature extractor for windows to compare with; it has no model files.

    A subclass stores its parameters (`device`, `random_state` and its own, `tensorize` unless it takes raw windows),
    and implements `_learn`, `_features`, `_width` and `n_parameters_`.
    """

    tensorize: Any = None

    @plain_torch()
    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit the baseline to windows, and return it.

        Parameters
        ----------
        X : (N, channels, time), or (N, I, J, …) with `tensorize=None`; anything that `CPD.fit` takes
        y : (N,), classes, for supervised baselines, which leave out windows whose label is "", None, NaN or -1; ignored
            by the others
        """
        with all_or_nothing(self):
            self._check_windows()
            self.history_ = {}
            if y is not None and self.__sklearn_tags__().target_tags.required:
                X, y = labelled_windows(X, y)
            self._learn(X, y)
            self._n_features_out = self._width()
        return self

    @plain_torch()
    def transform(self, X: Any) -> Any:
        """Compute the features of windows X, as for `fit`: (N, features), the same kind of array as X."""
        check_is_fitted(self)
        samples = self._samples(X, reset=False)
        return samples.like_input(torch.cat([self._features(T) for T in self._tensors(samples)]))

    @property
    @abstractmethod
    def n_parameters_(self) -> int:
        """Number of learned parameters."""

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_n_features_out")

    @abstractmethod
    def _learn(self, X: Any, y: Any) -> None:
        """Fit the baseline; `self._source(X)` provides validated batches."""

    @abstractmethod
    def _features(self, T: Tensor) -> Tensor:
        """Map tensors (b, I, J, …) to features (b, features)."""

    @abstractmethod
    def _width(self) -> int:
        """Return the number of features."""

    def _raw_windows(self, X: Any, least: int) -> WindowSource:
        """Return the source of raw windows, which must have at least this many samples."""
        source = self._source(X)
        if len(self._sample_shape) != 2 or self._sample_shape[1] < least:
            raise PolyadicError(
                f"X must hold raw windows (N, channels, time) of at least {least} samples, but has shape "
                f"{source.samples.shape}"
            )
        return source

    def _passes(
        self, samples: Samples, prepare: Callable[[Tensor], Tensor] | None = None
    ) -> Callable[[], Iterable[Tensor]]:
        """Return a function that starts a new pass over all samples in order, as tensors (b, I, J, …).

        `prepare` is applied to every batch. Tensors of up to 1 GiB are kept in memory; larger data is recomputed in
        every pass.
        """
        device = choose_device(self.device, samples.data)
        first = tensors(self.tensorize_, samples.take(slice(0, 1), device, samples.dtype))

        def anew() -> Iterable[Tensor]:
            return self._tensors(samples) if prepare is None else map(prepare, self._tensors(samples))

        if first.numel() * first.element_size() * len(samples) > _KEPT_BYTES:
            return anew
        kept = list(anew())
        return lambda: kept
