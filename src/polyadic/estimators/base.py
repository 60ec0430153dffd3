"""The base class of estimators of windows: it checks input and yields batches."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import column_or_1d, validate_data
from torch import Tensor

from polyadic._util.immutable import Immutable
from polyadic._util.threads import thread_pool
from polyadic.augment import Augmentation, as_augmentation
from polyadic.core.tensorizer import Tensorizer, as_tensorizer, tensor_shape, tensors
from polyadic.data.batches import Samples, WindowSource, choose_device, integer_random_state, prefetch
from polyadic.data.channels import match_signals, recorded_signals
from polyadic.data.labels import known_labels
from polyadic.errors import PolyadicError
from polyadic.spectral import recommended_stft

_CALIBRATION_WINDOWS = 1024
_BATCH_BYTES = 2**25
_GPU_BATCHES = 32


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
    """Return the windows that have a label, and their labels; X itself if all have one."""
    flat = column_or_1d(y, warn=True) if getattr(y, "ndim", 1) == 2 else y
    known, labels = known_labels(flat, len(Samples(X)))
    if known.all():
        return X, labels
    return _safe_indexing(getattr(X, "windows", X), np.flatnonzero(known)), labels


class WindowEstimator(BaseEstimator):  # type: ignore[misc]
    """Base class of estimators with the parameters `tensorize`, `device`, `random_state` and, with views, `augment`.

    It checks input, calibrates the tensorizer and yields batches.
    """

    tensorize: Any
    random_state: Any
    device: str | torch.device
    tensorize_: Tensorizer | None
    history_: dict[str, list[float]]
    fs_: float | None
    channel_names_: tuple[str, ...]
    units_: tuple[str, ...]
    _sample_shape: tuple[int, ...]

    def set_params(self, **params: Any) -> Self:
        """Set parameters; a nested one, such as `tensorize__n_fft`, replaces the immutable object by a changed copy."""
        nested: dict[str, dict[str, Any]] = {}
        for name in list(params):
            owner, _, inner = name.partition("__")
            if inner and owner in ("tensorize", "augment", "readout"):
                nested.setdefault(owner, {})[inner] = params.pop(name)
        super().set_params(**params)
        for owner, changes in nested.items():
            held = getattr(self, owner, None)
            if not isinstance(held, Immutable):
                raise PolyadicError(
                    f"{owner} is {held!r}, which has no parameters to set: {', '.join(changes)}; first set {owner} to "
                    "an object that has them, such as tensorize=STFT(...)"
                )
            setattr(self, owner, held.with_params(**changes))
        return self

    # ------------------------------------------------------------------ input

    def _tensorizer(self, shape: tuple[int, ...]) -> Tensorizer | None:
        """Return the tensorizer for samples of this shape (N, …), not yet calibrated."""
        if not (isinstance(self.tensorize, str) and self.tensorize == "auto"):
            return as_tensorizer(self.tensorize)
        if len(shape) == 2:
            raise PolyadicError(
                f"X must be windows (N, channels, time), but has shape {shape}: cut one recording (time, channels) "
                "into windows first, a data frame with Windows.from_dataframe(df, fs=…, seconds=…), or pass "
                "tensorize=None to factorise a table as it is"
            )
        # Three-dimensional input is windows of channels by time; any other already holds tensors.
        return recommended_stft(shape[-1], self.fs_) if len(shape) == 3 else None

    def _augmentation(self) -> Augmentation | None:
        """Return the augmentation of an estimator that has one."""
        augment = getattr(self, "augment", None)
        return None if augment is None else as_augmentation(augment)

    def _check_windows(self) -> None:
        """Raise if `tensorize` or `augment` is invalid."""
        self._tensorizer(())
        self._augmentation()

    def _samples(self, X: Any, reset: bool = False) -> Samples:
        """Return X as samples, checked against the windows of the fit; with `reset`, they define those of a new fit."""
        has_signals = hasattr(X, "fs")
        if reset:
            self.fs_, self.channel_names_ = recorded_signals(X) if has_signals else (None, ())
        elif has_signals:
            known = (getattr(self, "fs_", None), getattr(self, "channel_names_", ()))
            X = match_signals(X, *known, units=getattr(self, "units_", ()))
        samples = Samples(X)
        # Leave a wrong number of columns to scikit-learn, whose error message users know.
        flat = not reset and len(samples.shape) == 1 + len(self._sample_shape) == 2
        if not reset and not flat and samples.shape[1:] != self._sample_shape:
            expected = ", ".join(str(size) for size in self._sample_shape)
            raise PolyadicError(f"X must have shape (N, {expected}) as in fit, but has shape {samples.shape}")
        validate_data(self, X if hasattr(X, "columns") else samples.data, reset=reset, skip_check_array=True)
        return samples

    def _source(self, X: Any, reset: bool = True, calibrate: bool = True) -> WindowSource:
        """Return the source of batches of X; with `reset`, also set seed, shape, calibration and axes of the model."""
        samples = self._samples(X, reset)
        device = choose_device(self.device, samples.data)
        if reset:
            self.seed_ = integer_random_state(self.random_state)
            self.units_ = tuple(str(unit) for unit in getattr(X, "units", ()))
            tensorizer = self._tensorizer(samples.shape)
            if tensorizer is not None and (calibrate or type(tensorizer).measured is Tensorizer.measured):
                count = min(len(samples), _CALIBRATION_WINDOWS)
                ids = torch.linspace(0, len(samples) - 1, count, dtype=torch.float64).long()
                evenly_spaced = samples.take(ids, torch.device("cpu"), samples.dtype)
                # Always in the pool: otherwise the last digits of the floors would depend on device and augmentation.
                with thread_pool():
                    tensorizer = tensorizer.calibrated(evenly_spaced, self.units_)
            self.tensorize_ = tensorizer
            self._sample_shape = samples.shape[1:]
            self.reading_: dict[str, Any] = dict(getattr(X, "reading", {}))
            self.typical_: dict[str, Any] = {}
        return WindowSource(samples, self.tensorize_, self._augmentation(), self.seed_, device, samples.dtype)

    def _pool(self, device: torch.device) -> AbstractContextManager[None]:
        """Return the thread pool for batches on a CPU; a tensorizer of your own uses torch's threads instead."""
        ours = self.tensorize_ is None or self.tensorize_.trusted
        return thread_pool() if ours and device.type == "cpu" else nullcontext()

    def _tensor_shape(self, source: WindowSource) -> tuple[int, ...]:
        """Return the shape (I, J, …) of one sample's tensor."""
        return tensor_shape(source.tensorize, source.example())

    def _raw_batches(
        self, samples: Samples, size: int | None = None, missing: bool = False
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield indices (b,) and samples (b, …) in order, in batches of some MiB; tensors have `size` values each."""
        device = choose_device(self.device, samples.data)
        if size is None:
            known = None if self.tensorize_ is None else self.tensorize_.shape(*samples.shape[1:])
            size = math.prod(known or (1,))
        largest = max(size, math.prod(samples.shape[1:])) * samples.dtype.itemsize
        rows = max(1, _BATCH_BYTES * (_GPU_BATCHES if device.type == "cuda" else 1) // largest)
        for part, batch, _ in prefetch(samples, torch.split(torch.arange(len(samples)), rows)):
            yield part, samples.checked(batch, part, device, samples.dtype, missing)

    def _tensors(self, samples: Samples) -> Iterator[Tensor]:
        """Yield samples in order as tensors (b, I, J, …), in batches."""
        for _, batch in self._raw_batches(samples):
            yield tensors(self.tensorize_, batch)

    def _channel_labels(self, data: Any = None) -> tuple[str, ...]:
        """Return the names of the channels: from the data, the fit or a table's columns, else numbers from 1."""
        count = self._sample_shape[0]
        given = tuple(str(name) for name in getattr(data, "channels", ()) or getattr(self, "channel_names_", ()))
        if len(given) not in (0, count):
            raise PolyadicError(f"data must have {count} channels like the model, but has {len(given)}")
        columns = tuple(str(name) for name in getattr(self, "feature_names_in_", ()))
        return given or columns or tuple(str(number + 1) for number in range(count))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags
