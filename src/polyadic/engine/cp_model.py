"""A fitted CP model: reconstructions, readout, score, axes and files.

`inference` computes coefficients and features; `estimators` has the classes that fit a model.
"""

from __future__ import annotations

import os
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import TransformerMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from polyadic._util.torch_state import plain_torch
from polyadic.core import step as als
from polyadic.core.algebra import reconstruct
from polyadic.core.tensorizer import Axis, Tensorizer
from polyadic.data.batches import WindowSource
from polyadic.data.samples import Samples, choose_device
from polyadic.engine import cp_files
from polyadic.engine.estimator import WindowEstimator, all_or_nothing
from polyadic.engine.inference import Inference
from polyadic.engine.outcome import describe_fit
from polyadic.engine.readout_pass import fit_readout
from polyadic.errors import PolyadicError
from polyadic.readout import Readout
from polyadic.spectral import recommended_stft
from polyadic.team import ALONE, Team

__all__ = ["CPModel"]


class CPModel(TransformerMixin, Inference, WindowEstimator):  # type: ignore[misc]
    """Methods of a fitted ATD, SALS or GR-SALS."""

    n_sweeps_: int
    _memory: als.Statistics | None
    _n_seen: int

    def _tensorizer(self, shape: tuple[int, ...]) -> Tensorizer | None:
        if not (isinstance(self.tensorize, str) and self.tensorize == "auto"):
            return super()._tensorizer(shape)
        # Three-dimensional input is windows of channels by time; any other already holds tensors.
        return recommended_stft(shape[-1], self.fs_) if len(shape) == 3 else None

    def _check_is_fitted(self) -> None:
        check_is_fitted(self)

    # --------------------------------------------------------------- features

    transform = Inference.transform  # scikit-learn's `set_output` looks for it in this class

    @plain_torch()
    def inverse_transform(self, Z: Any) -> Any:
        """Reconstruct tensors from features, including the mean that the tensorizer subtracted.

        The result is in tensor space: an STFT is not inverted to signals.

        Parameters
        ----------
        Z : (N, features), as returned by `transform`

        Returns
        -------
        (N, I, J, …), the same kind of array as Z
        """
        check_is_fitted(self)
        readout = self._fitted_readout()
        samples, rows = self._matrix(Z, "Z", self._n_features_out)
        return samples.like_input(self._reconstructed(rows if readout is None else readout.inverse(rows)))

    @plain_torch()
    def reconstruct(self, x: Any) -> Any:
        """Reconstruct tensors from coefficients, including the mean that the tensorizer subtracted.

        Parameters
        ----------
        x : (N, rank), as returned by `coefficients`

        Returns
        -------
        (N, I, J, …), the same kind of array as x
        """
        check_is_fitted(self)
        samples, rows = self._matrix(x, "x", self.factors_[0].shape[1])
        return samples.like_input(self._reconstructed(rows))

    def _matrix(self, values: Any, name: str, columns: int) -> tuple[Samples, Tensor]:
        samples = Samples(values, name)
        if samples.shape[1:] != (columns,):
            raise PolyadicError(f"{name} must have shape (N, {columns}), but has shape {samples.shape}")
        return samples, samples.take(slice(None), choose_device(self.device, samples.data), samples.dtype)

    def _reconstructed(self, x: Tensor) -> Tensor:
        T = reconstruct(x, self._factors(x.device, x.dtype))
        return T if self.tensorize_ is None else self.tensorize_.uncentred(T)

    # ---------------------------------------------------------------- readout

    @plain_torch()
    def fit_readout(self, X: Any, readout: Any = None, *, team: Team = ALONE) -> Self:
        """Fit the readout to unlabelled samples, with fixed components.

        `fit` does this at its end. Call it after `partial_fit`, for an imported model, or to try another readout
        without refitting the components. A probe trained on the previous features is dropped.

        Parameters
        ----------
        X : as for `transform`
        readout : the new `polyadic.readout.Readout`; by default the model's `readout` parameter
        team : the processes that share the work, from `polyadic.engine.join`

        Returns
        -------
        the model itself
        """
        check_is_fitted(self)
        with all_or_nothing(self):
            if readout is not None:
                self.readout = readout
            self._check_readout()
            self._fit_readout(self._source(X, reset=False), team)
        return self

    def _check_readout(self) -> None:
        known = self.readout is None or isinstance(self.readout, Readout)
        if not known and not (isinstance(self.readout, str) and self.readout == "auto"):
            raise PolyadicError(f"readout must be 'auto', None or a polyadic.readout.Readout, but is {self.readout!r}")

    def _fit_readout(self, source: WindowSource, team: Team) -> None:
        if hasattr(self, "probe_"):
            del self.probe_
        settings = Readout() if isinstance(self.readout, str) else self.readout
        self.readout_ = None
        if settings is None:
            return
        size, solve = int(np.prod([len(factor) for factor in self.factors_])), self._solver(source.device, source.dtype)
        with self._pool(source.device):
            rows = self._batch_rows(source.samples, size)
            self.readout_ = fit_readout(settings, source, solve, self.factors_, rows, team)

    @plain_torch()
    def score(self, X: Any, y: Any = None, *, team: Team = ALONE) -> float:
        """Return the goodness of fit of the bases: 1 − ‖T − T̂‖ / ‖T‖ over all samples, at most 1.

        Parameters
        ----------
        X : as for `transform`
        y : ignored
        team : the processes that share the work, from `polyadic.engine.join`
        """
        check_is_fitted(self)
        error = norm = 0.0
        samples = self._samples(X, reset=False)
        for batch in self._batches(samples, team.share(torch.arange(len(samples), device="cpu"))):
            error += float(batch.residuals.sum())
            norm += float(torch.linalg.vector_norm(batch.T, dtype=torch.float64)) ** 2
        error = max(error, 0.0)
        error, norm = team.sum(torch.tensor([error, norm], dtype=torch.float64)).tolist()
        return 1.0 - float(np.sqrt(error / norm)) if norm > 0 else float(error == 0)

    @property
    def n_parameters_(self) -> int:
        """Number of learned parameters: those of the bases, the tensorizer's mean and the readout."""
        check_is_fitted(self)
        readout = getattr(self, "readout_", None)
        front = 0 if self.tensorize_ is None else self.tensorize_.n_parameters
        return front + sum(factor.size for factor in self.factors_) + (0 if readout is None else readout.n_parameters)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "factors_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def axes(self, data: Any = None) -> list[Axis]:
        """Return the axes of the bases: channels, frequencies in Hz, times in seconds.

        Parameters
        ----------
        data : `Windows` or a `WindowStore` with the sampling rate and channel names; by default those of the fit

        Examples
        --------
        >>> from polyadic import SALS
        >>> from polyadic.data import synthetic
        >>> from polyadic.spectral import STFT
        >>> signals = synthetic(20, n_channels=2)
        >>> model = SALS(rank=2, tensorize=STFT(n_fft=32, hop=16), max_sweeps=1).fit(signals)
        >>> [axis.title for axis in model.axes()], model.axes()[0].labels
        (['channel', 'frequency (Hz)', 'time (s)'], ('1', '2'))
        """
        check_is_fitted(self)
        return self._axes([len(factor) for factor in self.factors_], data)

    def _html_repr(self) -> str:
        """Return HTML for notebooks: scikit-learn's diagram before the fit, pictures of the components after it."""
        if not hasattr(self, "factors_"):
            return str(super()._html_repr())
        from polyadic.plot.sketches import model_html

        return model_html(self, describe_fit(self))

    def __str__(self) -> str:
        """Return the settings and, if fitted, a one-line summary of the fit."""
        settings = repr(self)
        return f"{settings}\n{describe_fit(self)}" if hasattr(self, "factors_") else settings

    # ----------------------------------------------------------------- files

    def save(self, path: str | os.PathLike[str]) -> None:
        check_is_fitted(self)
        self._check_rank()
        super().save(path)

    @classmethod
    def _from_file(
        cls, arrays: dict[str, np.ndarray], header: dict[str, Any], tensorize: Any, augment: Any
    ) -> WindowEstimator:
        for name in ("rank", "alpha"):
            header["parameters"][name]  # KeyError if missing: features depend on them, so there is no default
        return super()._from_file(arrays, header, tensorize, augment)

    def _arrays(self) -> dict[str, np.ndarray]:
        return cp_files.arrays_of(self)

    def _extra(self) -> dict[str, Any]:
        return cp_files.extra_of(self)

    def _restore(self, arrays: dict[str, np.ndarray], extra: dict[str, Any]) -> None:
        self._restore_components(arrays, extra)
        cp_files.restore(self, arrays, extra)

    def _check_rank(self) -> None:
        rank = self.factors_[0].shape[1]
        if self.rank != rank:
            raise PolyadicError(f"rank must stay {rank} as in fit, but is now {self.rank}: fit again, or reset it")
