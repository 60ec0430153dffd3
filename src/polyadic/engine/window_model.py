"""Base class of all models of windows, fitted or loaded from a file: input checks and batches.

Uses only torch and numpy, because importing scikit-learn takes as long as importing torch; `estimator` adds fitting and
scikit-learn's conventions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyadic._util.threads import thread_pool
from polyadic.augment import as_augmentation
from polyadic.core import persist
from polyadic.core.tensorizer import Tensorizer, tensors
from polyadic.data.batches import prefetch
from polyadic.data.channels import match_signals, recorded_signals
from polyadic.data.reading import Reading
from polyadic.data.samples import Samples, choose_device
from polyadic.errors import ModelFileError, PolyadicError

__all__ = ["WindowModel"]

_BATCH_BYTES = 2**25
_GPU_BATCHES = 32


class WindowModel:
    """A model of windows: device, calibrated tensorizer, and shape, rate, channels and units of the fit."""

    device: str | torch.device
    tensorize_: Tensorizer | None
    fs_: float | None
    channel_names_: tuple[str, ...]
    units_: tuple[str, ...]
    reading_: dict[str, Any]
    typical_: dict[str, Any]
    n_features_in_: int
    feature_names_in_: np.ndarray
    _sample_shape: tuple[int, ...]

    # ------------------------------------------------------------------ input

    def _augmentation(self) -> Any:
        return None

    def _pool(self, device: torch.device) -> AbstractContextManager[None]:
        """Return the thread pool for batches on a CPU; a user's functions and modules use torch's threads instead."""
        tensorize, augment = self.tensorize_, as_augmentation(self._augmentation())
        ours = (tensorize is None or tensorize.threaded) and (augment is None or augment.per_window)
        return thread_pool() if ours and device.type == "cpu" else nullcontext()

    def _samples(self, X: Any, reset: bool = False) -> Samples:
        """Return X as samples, checked against the windows of the fit; with `reset`, they define those of a new fit."""
        if reset:
            self.fs_, self.channel_names_ = recorded_signals(X)
        else:
            X = match_signals(X, getattr(self, "fs_", None), getattr(self, "channel_names_", ()))
        samples = Samples(X)
        self._check_samples(X, samples, reset)
        return samples

    def _check_samples(self, X: Any, samples: Samples, reset: bool) -> None:
        """Raise if samples do not have the shape of those of the fit."""
        if not reset and samples.shape[1:] != self._sample_shape:
            expected = ", ".join(str(size) for size in self._sample_shape)
            raise PolyadicError(f"X must have shape (N, {expected}) as in fit, but has shape {samples.shape}")

    def _tensors(self, samples: Samples, size: int | None = None, ids: Tensor | None = None) -> Iterator[Tensor]:
        """Yield samples in order as tensors (b, I, J, …), in batches; parameters as for `_raw_batches`."""
        for _, batch in self._raw_batches(samples, size, ids):
            yield tensors(self.tensorize_, batch)

    def _raw_batches(
        self, samples: Samples, size: int | None = None, ids: Tensor | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield indices (b,) and samples (b, …) in order, in batches of some MiB.

        Parameters
        ----------
        size : number of values in one sample's tensor, if known
        ids : indices of the samples; by default all
        """
        device, rows = choose_device(self.device, samples.data), self._batch_rows(samples, size)
        wanted = torch.arange(len(samples), device="cpu") if ids is None else ids
        for part, batch, _ in prefetch(samples, torch.split(wanted, rows) if len(wanted) else []):
            yield part, samples.checked(batch, part, device, samples.dtype)

    def _batch_rows(self, samples: Samples, size: int | None = None) -> int:
        """Return the number of samples per batch for which tensors of this size take some MiB."""
        device = choose_device(self.device, samples.data)
        known = self.tensorize_.shape(*samples.shape[1:]) if self.tensorize_ is not None and size is None else None
        largest = max(size or int(np.prod(known or (1,))), int(np.prod(samples.shape[1:])))
        room = _BATCH_BYTES * (_GPU_BATCHES if device.type == "cuda" else 1)
        return max(1, room // (largest * samples.dtype.itemsize))

    def _channel_labels(self, data: Any) -> tuple[str, ...]:
        """Return the names of the channels: from the data, the fit or a table's columns, else numbers from 1."""
        count = self._sample_shape[0]
        given = tuple(str(name) for name in getattr(data, "channels", ()) or getattr(self, "channel_names_", ()))
        if len(given) not in (0, count):
            raise PolyadicError(f"data must have {count} channels like the model, but has {len(given)}")
        columns = tuple(str(name) for name in getattr(self, "feature_names_in_", ()))
        return given or columns or tuple(str(number + 1) for number in range(count))

    # ------------------------------------------------------------------ files

    def _restore_windows(self, header: dict[str, Any], tensorize: Any) -> None:
        """Restore the calibrated tensorizer and the description of the windows from the header of a model file."""
        self.tensorize_ = persist.decode_tensorizer(header["tensorize"], tensorize)
        self._sample_shape = tuple(int(size) for size in header["sample_shape"])
        if self.tensorize_ is not None:
            self.tensorize_.check(self._sample_shape)
        self.n_features_in_ = self._sample_shape[0]
        # Baseline files of the first release have no feature names, and a separate "extra" entry.
        columns = header.get("feature_names", []) if "extra" in header else header["feature_names"]
        if not isinstance(columns, list) or len(columns) not in (0, self.n_features_in_):
            raise ModelFileError(f"the file names {columns!r} as columns, but the model has {self.n_features_in_}")
        if columns:
            self.feature_names_in_ = np.asarray(columns, dtype=object)
        self._restore_signals(header)

    def _restore_signals(self, header: dict[str, Any]) -> None:
        """Restore sampling rate, channels, units and reading options, which older files lack."""
        fs, names, units = header.get("fs"), header.get("channels", []), header.get("units", [])
        if fs is not None and not 0 < fs < np.inf:
            raise ModelFileError(f"the file's sampling rate must be a positive number of Hz, but is {fs!r}")
        if not isinstance(names, list) or len(names) not in (0, self._sample_shape[0]):
            raise ModelFileError(f"the file names {names!r} as channels, but the model has {self._sample_shape[0]}")
        if not isinstance(units, list) or len(units) not in (0, self._sample_shape[0]):
            raise ModelFileError(f"the file has the units {units!r}, but the model {self._sample_shape[0]} channels")
        self.fs_ = None if fs is None else float(fs)
        self.channel_names_, self.units_ = tuple(str(name) for name in names), tuple(str(unit) for unit in units)
        reading = header.get("reading", {})
        self.reading_ = reading and Reading.from_json(reading).to_json()
        self.typical_ = _typical(header.get("typical", {}))


def _typical(content: Any) -> dict[str, Any]:
    """Return the description of typical windows by `polyadic.evaluate.unusual`, or {} if the file has none."""
    if not content:
        return {}
    columns = {name: [float(value) for value in content[name]] for name in ("mean", "scale")}
    numbers = {name: float(content[name]) for name in ("distance", "residual", "quantile")}
    if len(columns["mean"]) != len(columns["scale"]) or not np.isfinite([*columns["mean"], *columns["scale"]]).all():
        raise ModelFileError("the file's description of typical windows is damaged")
    return columns | numbers
