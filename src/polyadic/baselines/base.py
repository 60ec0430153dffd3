"""The base class of baselines, which take the same windows as `CPD`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Self

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


@dataclass(eq=False, repr=False)
class Baseline(ClassNamePrefixFeaturesOutMixin, TransformerMixin, WindowEstimator):  # type: ignore[misc]
    """A feature extractor for windows to compare with; it has no model files.

    A subclass is a dataclass of its own parameters, with `tensorize` unless it takes raw windows. It implements
    `_features` and, if anything is learned, `_learn` and `n_parameters_`.
    """

    _: KW_ONLY
    device: str | torch.device = "auto"
    random_state: Any = 0

    tensorize = None  # raw windows; without annotation it is no parameter
    _least_samples: ClassVar[int] = 0
    """Minimum length of raw windows; 0 for baselines that take tensors."""

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
            source, least = self._source(X), self._least_samples
            if least and (len(self._sample_shape) != 2 or self._sample_shape[1] < least):
                raise PolyadicError(
                    f"X must hold raw windows (N, channels, time) of at least {least} samples, but has shape "
                    f"{source.samples.shape}"
                )
            self._learn(source, y)
            self._n_features_out = int(self._features(tensors(self.tensorize_, source.example())).shape[1])
        return self

    @plain_torch()
    def transform(self, X: Any) -> Any:
        """Compute the features of windows X, as for `fit`: (N, features), the same kind of array as X."""
        check_is_fitted(self)
        samples = self._samples(X, reset=False)
        return samples.like_input(torch.cat([self._features(T) for T in self._tensors(samples)]))

    @property
    def n_parameters_(self) -> int:
        """Number of learned parameters."""
        return 0

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_n_features_out")

    def _learn(self, source: WindowSource, y: Any) -> None:
        """Fit the baseline to the batches of a source."""

    @abstractmethod
    def _features(self, T: Tensor) -> Tensor:
        """Map tensors (b, I, J, …) to features (b, features)."""

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
