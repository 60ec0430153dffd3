"""What every estimator on windows shares: checked input, an STFT fixed by the data's scale, batches as tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import validate_data
from torch import Tensor

from polyadic.augment import Augmentation
from polyadic.data.channels import match_signals, recorded_signals
from polyadic.engine.batches import Augment, Transform, WindowSource, read_ahead, tensors
from polyadic.errors import PolyadicError
from polyadic.inputs import Samples, choose_device
from polyadic.spectral import STFT
from polyadic.threads import thread_pool

__all__ = ["WindowEstimator", "all_or_nothing"]

_CALIBRATION_WINDOWS = 1024
_BATCH_BYTES = 2**25
_GPU_BATCHES = 32


@contextmanager
def all_or_nothing(model: object) -> Iterator[None]:
    """Put a model back to what it was if its fit fails."""
    before = dict(vars(model))
    try:
        yield
    except BaseException:
        vars(model).clear()
        vars(model).update(before)
        raise


class WindowEstimator(BaseEstimator):  # type: ignore[misc]
    """An estimator with the parameters `tensorize`, `device` and `random_state`, and an `augment` if it has views."""

    tensorize: Transform | None
    device: str | torch.device
    random_state: Any

    def _check_windows(self) -> None:
        """Refuse functions that are none."""
        if self.tensorize is not None and not callable(self.tensorize):
            raise PolyadicError(f"tensorize must be None, an STFT or a function of a batch, but is {self.tensorize!r}")
        augment = self._augmentation()
        if augment is not None and not callable(augment):
            raise PolyadicError(f"augment must be None or a function of a batch, but is {augment!r}")

    def _augmentation(self) -> Augment | None:
        return None

    def _crew(self, device: torch.device) -> AbstractContextManager[None]:
        """Threads that share every batch on a CPU; functions of the user's are left to torch's own."""
        ours = self.tensorize is None or isinstance(self.tensorize, STFT)
        augment = self._augmentation()
        ours = ours and (augment is None or isinstance(augment, Augmentation))
        return thread_pool() if ours and device.type == "cpu" else nullcontext()

    def _source(self, X: Any, reset: bool = True) -> WindowSource:
        """Batches of X; with `reset` a new model begins, and learns seed, shape and scale at once."""
        samples = self._samples(X, reset)
        device = choose_device(self.device, samples.data)
        if reset:
            self.seed_ = _seed(self.random_state)
            # By the same threads for every device and augmentation, or the floors would differ in their last digits.
            with thread_pool():
                self.tensorize_ = self._calibrated(samples)
            self._sample_shape = samples.shape[1:]
            self.split_ = str(getattr(X, "split", ""))
        return WindowSource(samples, self.tensorize_, self._augmentation(), self.seed_, device, samples.dtype)

    def _samples(self, X: Any, reset: bool) -> Samples:
        if reset:
            self.fs_, self.channel_names_ = recorded_signals(X)
        else:
            X = match_signals(X, getattr(self, "fs_", None), getattr(self, "channel_names_", ()))
        samples = Samples(X)
        # Columns of a matrix that do not fit are for scikit-learn to tell, in the words its users know.
        both_flat = not reset and len(samples.shape) == 1 + len(self._sample_shape) == 2
        if not reset and not both_flat and samples.shape[1:] != self._sample_shape:
            expected = ", ".join(str(size) for size in self._sample_shape)
            raise PolyadicError(f"X must have shape (N, {expected}) as in fit, but has shape {samples.shape}")
        validate_data(self, X if hasattr(X, "columns") else samples.data, reset=reset, skip_check_array=True)
        return samples

    def _calibrated(self, samples: Samples) -> Transform | None:
        """`tensorize`, its log floor fixed by the scale of the data where it asks for that; on every device alike."""
        if not isinstance(self.tensorize, STFT):
            return self.tensorize
        ids = torch.linspace(0, len(samples) - 1, min(len(samples), _CALIBRATION_WINDOWS), dtype=torch.float64).long()
        return self.tensorize.fitted(samples.take(ids, torch.device("cpu"), samples.dtype))

    def _tensors(self, samples: Samples, size: int | None = None, ids: Tensor | None = None) -> Iterator[Tensor]:
        """Samples in order as tensors (b, I, J, …), batch by batch, with no more than some MiB at a time.

        Parameters
        ----------
        size : numbers in one sample's tensor, if it is known
        ids : which samples; by default all
        """
        device = choose_device(self.device, samples.data)
        largest = max(size or 0, int(np.prod(samples.shape[1:])))
        if size is None and isinstance(self.tensorize_, STFT):
            largest = max(largest, int(np.prod(self.tensorize_.shape(*samples.shape[1:]))))
        room = _BATCH_BYTES * (_GPU_BATCHES if device.type == "cuda" else 1)
        rows = max(1, room // (largest * samples.dtype.itemsize))
        wanted = torch.arange(len(samples)) if ids is None else ids
        for part, batch, _ in read_ahead(samples, torch.split(wanted, rows) if len(wanted) else []):
            yield tensors(self.tensorize_, samples.checked(batch, part, device, samples.dtype))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags


def _seed(random_state: Any) -> int:
    if isinstance(random_state, int | np.integer) and not isinstance(random_state, bool):
        return int(random_state)
    try:
        return int(check_random_state(random_state).randint(2**31 - 1))
    except ValueError as error:
        raise PolyadicError(
            f"random_state must be an integer, a numpy RandomState or None, but is {random_state!r}"
        ) from error
