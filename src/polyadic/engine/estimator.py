"""Base class of all estimators on windows: input checks, tensorizer calibration, batches, axes and files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from polyadic._util.immutable import Immutable
from polyadic._util.threads import thread_pool
from polyadic._util.version import __version__
from polyadic.augment import Augmentation, as_augmentation
from polyadic.core import persist
from polyadic.core.tensorizer import (
    Axis,
    Tensorizer,
    as_tensorizer,
    channel_axis,
    numbered_axes,
    tensor_shape,
    time_axis,
)
from polyadic.data.batches import WindowSource
from polyadic.data.labels import known_labels
from polyadic.data.samples import Samples, choose_device, integer_random_state
from polyadic.engine.window_model import WindowModel
from polyadic.errors import ModelFileError, PolyadicError

__all__ = ["WindowEstimator", "all_or_nothing", "labelled_windows"]

_CALIBRATION_WINDOWS = 1024


@contextmanager
def all_or_nothing(model: object) -> Iterator[None]:
    """Restore the previous state of a model if its fit fails."""
    before = dict(vars(model))
    try:
        yield
    except BaseException:
        vars(model).clear()
        vars(model).update(before)
        raise


def labelled_windows(X: Any, y: Any) -> tuple[Any, np.ndarray]:
    """Return the windows that have a label, and their labels; X itself if all have one.

    Parameters
    ----------
    X : (N, …), any input of an estimator
    y : (N,), with unknown labels as in `polyadic.data.labels`; a column (N, 1) is raveled with scikit-learn's warning
    """
    flat = column_or_1d(y, warn=True) if getattr(y, "ndim", 1) == 2 else y
    known, labels = known_labels(flat, len(Samples(X)))
    if known.all():
        return X, labels
    return _safe_indexing(getattr(X, "windows", X), np.flatnonzero(known)), labels


class WindowEstimator(WindowModel, BaseEstimator):  # type: ignore[misc]
    """Base class of estimators with the parameters `tensorize`, `device`, `random_state` and, with views, `augment`.

    To support model files, a subclass implements `_arrays` and `_extra`, which return its state, and `_restore`.
    """

    tensorize: Any
    random_state: Any
    history_: dict[str, list[float]]
    _kinds: ClassVar[dict[str, type[WindowEstimator]]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        WindowEstimator._kinds[cls.__name__] = cls

    # ------------------------------------------------------------- parameters

    def set_params(self, **params: Any) -> Self:
        """Set parameters; a nested one, such as `tensorize__n_fft`, replaces the immutable object by a changed copy."""
        nested: dict[str, dict[str, Any]] = {}
        plain = {}
        for name, value in params.items():
            owner, _, inner = name.partition("__")
            if inner and owner in ("tensorize", "augment", "readout"):
                nested.setdefault(owner, {})[inner] = value
            else:
                plain[name] = value
        super().set_params(**plain)
        for owner, changes in nested.items():
            held = getattr(self, owner, None)
            if not isinstance(held, Immutable):
                raise PolyadicError(
                    f"{owner} is {held!r}, which has no parameters to set: {', '.join(changes)}; first set {owner} to "
                    "an object that has them, such as tensorize=STFT(...)"
                )
            setattr(self, owner, held.with_params(**changes))
        return self

    def _check_windows(self) -> None:
        """Raise if `tensorize` or `augment` is invalid."""
        self._tensorizer(())
        as_augmentation(self._augmentation())

    def _tensorizer(self, shape: tuple[int, ...]) -> Tensorizer | None:
        """Return the tensorizer for samples of this shape (N, …), not yet calibrated."""
        return as_tensorizer(self.tensorize)

    # ------------------------------------------------------------------ input

    def _source(self, X: Any, reset: bool = True) -> WindowSource:
        """Return the source of batches of X; with `reset`, also set seed, shape, calibration and axes of the model."""
        samples = self._samples(X, reset)
        device = choose_device(self.device, samples.data)
        if reset:
            self.seed_ = integer_random_state(self.random_state)
            self.units_ = tuple(str(unit) for unit in getattr(X, "units", ()))
            # Always use the pool: otherwise the last digits of the floors would depend on device and augmentation.
            with thread_pool():
                self.tensorize_ = self._calibrated(samples, self.units_)
            self._sample_shape = samples.shape[1:]
            self.split_ = str(getattr(X, "split", ""))
            self.reading_ = dict(getattr(X, "reading", {}))
            self.typical_ = {}
        augment: Augmentation | None = as_augmentation(self._augmentation())
        return WindowSource(samples, self.tensorize_, augment, self.seed_, device, samples.dtype)

    def _check_samples(self, X: Any, samples: Samples, reset: bool) -> None:
        # Leave a wrong number of columns to scikit-learn, whose error message users know.
        both_flat = not reset and len(samples.shape) == 1 + len(self._sample_shape) == 2
        if not both_flat:
            super()._check_samples(X, samples, reset)
        validate_data(self, X if hasattr(X, "columns") else samples.data, reset=reset, skip_check_array=True)

    def _calibrated(self, samples: Samples, units: tuple[str, ...]) -> Tensorizer | None:
        """Return the tensorizer, calibrated on evenly spaced windows; the result is the same on every device."""
        tensorizer = self._tensorizer(samples.shape)
        if tensorizer is None:
            return None
        count = min(len(samples), _CALIBRATION_WINDOWS)
        ids = torch.linspace(0, len(samples) - 1, count, dtype=torch.float64, device="cpu").long()
        return tensorizer.calibrated(samples.take(ids, torch.device("cpu"), samples.dtype), units)

    def _tensor_shape(self, source: WindowSource) -> tuple[int, ...]:
        """Return the shape (I, J, …) of one sample's tensor."""
        return tensor_shape(source.tensorize, source.samples.take(slice(0, 1), source.device, source.dtype))

    # ------------------------------------------------------------------- axes

    def _axes(self, sizes: Sequence[int], data: Any = None) -> list[Axis]:
        """Return the axes of the tensors, of these sizes."""
        shape = self._sample_shape
        fs = getattr(data, "fs", None) or getattr(self, "fs_", None)
        labels = self._channel_labels(data)
        if self.tensorize_ is not None and len(shape) == 2:
            return self.tensorize_.axes(shape, labels, fs) or numbered_axes(sizes)
        # Only `Windows` are known to be channels by time; the modes of other tensors are unknown.
        if self.tensorize_ is None and len(shape) == 2 and hasattr(data, "fs"):
            return [channel_axis(labels), time_axis(np.arange(shape[1]), fs)]
        return numbered_axes(sizes)

    # ------------------------------------------------------------------ files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the fitted model to one safetensors file, atomically; `polyadic.load` loads it.

        Your own functions and modules, a given graph and a RandomState are not saved: files contain no code and no
        data. For a module, the file contains a hash of its weights.

        Parameters
        ----------
        path : the file, conventionally with the extension .safetensors
        """
        check_is_fitted(self)
        parameters = {name: persist.encode(value) for name, value in self.get_params(deep=False).items()}
        parameters["device"] = str(self.device)
        header = {
            "version": __version__,
            "estimator": type(self).__name__,
            "parameters": parameters,
            "tensorize": persist.encode(self.tensorize_),
            "sample_shape": [int(size) for size in self._sample_shape],
            "feature_names": [str(name) for name in getattr(self, "feature_names_in_", [])],
            "seed": int(self.seed_),
            "split": self.split_,
            "fs": self.fs_,
            "channels": list(self.channel_names_),
            "units": list(getattr(self, "units_", ())),
            "reading": getattr(self, "reading_", {}),
            "typical": getattr(self, "typical_", {}),
            "history": self.history_,
            **self._extra(),
        }
        persist.write(path, self._arrays(), header)

    @classmethod
    def _from_file(
        cls, arrays: dict[str, np.ndarray], header: dict[str, Any], tensorize: Any, augment: Any
    ) -> WindowEstimator:
        """Build the model that `save` wrote, and check that its parts are consistent."""
        given = {"tensorize": tensorize, "augment": augment}
        parameters = dict(header["parameters"])
        model = cls(**{name: persist.decode(value, given.get(name)) for name, value in parameters.items()})
        model._restore_windows(header, tensorize)
        model.history_ = {str(name): [float(v) for v in values] for name, values in header["history"].items()}
        model.seed_, model.split_ = int(header["seed"]), str(header.get("split", ""))
        model._restore(arrays, header.get("extra", header))
        if not all(array.dtype.kind != "f" or np.isfinite(array).all() for array in arrays.values()):
            raise ModelFileError("the file's arrays hold NaN or infinity")
        return model

    def _arrays(self) -> dict[str, np.ndarray]:
        """Return the learned arrays, by name."""
        raise NotImplementedError

    def _extra(self) -> dict[str, Any]:
        """Return further state to save, as JSON."""
        return {}

    def _restore(self, arrays: dict[str, np.ndarray], extra: dict[str, Any]) -> None:
        """Restore the state from `_arrays` and `_extra`; raise ValueError, KeyError or TypeError if invalid."""
        raise NotImplementedError

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags
