"""What every baseline shares: the input of ATD, parameters that can be counted, and model files."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from polyadic import persist
from polyadic.data.labels import known_labels
from polyadic.engine.batches import Augment, Transform, tensors
from polyadic.engine.estimator import WindowEstimator, all_or_nothing
from polyadic.errors import ModelFileError, PolyadicError
from polyadic.inputs import Samples, choose_device
from polyadic.spectral import STFT
from polyadic.version import __version__

__all__ = ["Baseline", "load"]

_KINDS: dict[str, type[Baseline]] = {}
_KEPT_BYTES = 2**30


class Baseline(ClassNamePrefixFeaturesOutMixin, TransformerMixin, WindowEstimator):  # type: ignore[misc]
    """Features from windows, learned by something other than ATD.

    A subclass stores its parameters (`tensorize`, `device`, `random_state` and its own), learns in `_learn`, makes
    features in `_features`, and says in `_arrays` all numbers it learned and in `_restore` how it takes them back.
    """

    history_: dict[str, list[float]]

    def __init_subclass__(cls, **words: Any) -> None:
        super().__init_subclass__(**words)
        _KINDS[cls.__name__] = cls

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from windows.

        Parameters
        ----------
        X : (N, channels, time), or (N, I, J, …) with `tensorize=None`; anything that `ATD.fit` takes
        y : (N,), classes, for those that are supervised, which leave out windows whose label is "", None, NaN or -1;
            else ignored

        Returns
        -------
        the estimator itself
        """
        with all_or_nothing(self):
            self._check_windows()
            self.history_ = {}
            if y is not None and self.__sklearn_tags__().target_tags.required:
                X, y = _labelled_windows(X, y)
            self._learn(X, y)
            self._n_features_out = self._width()
        return self

    def transform(self, X: Any) -> Any:
        """Features of windows.

        Parameters
        ----------
        X : as for `fit`

        Returns
        -------
        (N, features), the same kind of array as X
        """
        check_is_fitted(self)
        samples = self._samples(X, reset=False)
        return samples.like_input(torch.cat([self._features(T) for T in self._tensors(samples)]))

    @property
    def n_parameters_(self) -> int:
        """How many numbers were learned."""
        check_is_fitted(self)
        return sum(array.size for array in self._arrays().values())

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_n_features_out")

    @abstractmethod
    def _learn(self, X: Any, y: Any) -> None:
        """Learn; call `self._source(X)` for checked batches."""

    @abstractmethod
    def _features(self, T: Tensor) -> Tensor:
        """(b, I, J, …) to (b, features)."""

    @abstractmethod
    def _width(self) -> int:
        """The number of features."""

    @abstractmethod
    def _arrays(self) -> dict[str, np.ndarray]:
        """All that was learned, by name."""

    @abstractmethod
    def _restore(self, arrays: dict[str, np.ndarray], extra: dict[str, Any]) -> None:
        """Take back what `_arrays` and `_extra` gave; raise ValueError, KeyError or TypeError if they do not fit."""

    def _extra(self) -> dict[str, Any]:
        """What else has to be kept, as JSON."""
        return {}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one safetensors file, atomically; `polyadic.baselines.load` reads it back."""
        check_is_fitted(self)
        parameters = {name: persist.encode(value) for name, value in self.get_params(deep=False).items()}
        parameters["device"] = str(self.device)
        header = {
            "version": __version__,
            "estimator": type(self).__name__,
            "parameters": parameters,
            "tensorize": persist.encode(self.tensorize_),
            "sample_shape": [int(size) for size in self._sample_shape],
            "seed": int(self.seed_),
            "split": self.split_,
            "fs": self.fs_,
            "channels": list(self.channel_names_),
            "history": self.history_,
            "extra": self._extra(),
        }
        persist.write(path, self._arrays(), header)


def load(
    path: str | os.PathLike[str], *, tensorize: Transform | None = None, augment: Augment | None = None
) -> Baseline:
    """A baseline from the file that `save` wrote.

    Parameters
    ----------
    path : the file
    tensorize, augment : the functions the model was made with, if they were functions of your own: files hold no code

    Raises
    ------
    ModelFileError : if the file is damaged, of a newer schema, or not a baseline
    """
    arrays, header = persist.read(path)
    try:
        kind = _KINDS[header["estimator"]]
        given = {"tensorize": tensorize, "augment": augment}
        model = kind(**{name: persist.decode(value, given.get(name)) for name, value in header["parameters"].items()})
        model.tensorize_ = persist.decode(header["tensorize"], tensorize, "tensorize")
        model._sample_shape = tuple(int(size) for size in header["sample_shape"])
        model.seed_, model.split_ = int(header["seed"]), str(header["split"])
        model.fs_, model.channel_names_ = header.get("fs"), tuple(map(str, header.get("channels", ())))
        model.history_ = {str(name): [float(v) for v in values] for name, values in header["history"].items()}
        model.n_features_in_ = model._sample_shape[0]
        if not all(np.isfinite(array).all() for array in arrays.values()):
            raise ModelFileError("the file's arrays hold NaN or infinity")
        model._restore(arrays, header["extra"])
        model._n_features_out = model._width()
    except ModelFileError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, RuntimeError) as error:
        raise ModelFileError(f"{path} has a damaged header or arrays that do not fit it: {error!r}") from error
    return model


def _labelled_windows(X: Any, y: Any) -> tuple[Any, np.ndarray]:
    """The windows that have a label, with their labels; X as it is if all of them have one."""
    known, labels = known_labels(y, len(X))
    return (X, labels) if known.all() else (_safe_indexing(X, np.flatnonzero(known)), labels)


def labels_of(y: Any, samples: Samples, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Classes and codes (N,) of the labels that a supervised baseline needs."""
    if y is None:
        raise PolyadicError(f"{name} is supervised: y must have a label for each window, but is None")
    labels = np.asarray(y)
    if labels.shape != (len(samples),):
        raise PolyadicError(f"y must have shape ({len(samples)},), one label a window, but has shape {labels.shape}")
    classes, codes = np.unique(labels, return_inverse=True)
    if len(classes) < 2:
        raise PolyadicError(f"y must have at least two classes, but has {len(classes)}")
    return classes, codes


def repeatable(
    model: WindowEstimator, samples: Samples, prepare: Transform | None = None, most: int | None = None
) -> Callable[[], Iterable[Tensor]]:
    """All samples in order as tensors (b, I, J, …), for as many passes as a method needs.

    Parameters
    ----------
    prepare : what is done to every batch
    most : bytes up to which the tensors stay in memory, 1 GiB by default; beyond, every pass makes them anew
    """
    device = choose_device(model.device, samples.data)
    first = tensors(model.tensorize_, samples.take(slice(0, 1), device, samples.dtype))

    def anew() -> Iterator[Tensor]:
        for T in model._tensors(samples, first.numel()):
            yield T if prepare is None else prepare(T)

    if first.numel() * first.element_size() * len(samples) > (_KEPT_BYTES if most is None else most):
        return anew
    kept = list(anew())
    return lambda: kept


def restored_factors(model: WindowEstimator, arrays: dict[str, np.ndarray], width: int) -> list[np.ndarray]:
    """The matrices `factors.0`, `factors.1`, … of a file, checked to have `width` columns and the tensors' sizes."""
    shape = model._sample_shape
    if isinstance(model.tensorize_, STFT):
        shape = model.tensorize_.shape(*shape)
    factors = [arrays[f"factors.{mode}"] for mode in range(len(shape))]
    if [factor.shape for factor in factors] != [(size, width) for size in shape]:
        raise ValueError(f"factors of shapes {[factor.shape for factor in factors]} do not fit tensors {shape}")
    return factors
