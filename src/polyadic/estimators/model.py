"""A fitted CP decomposition: features and coefficients of new windows, reconstructions, and axes."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.base import TransformerMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from polyadic._util import model_files
from polyadic._util.checks import check_number
from polyadic._util.files import write_array
from polyadic._util.torch_state import plain_torch
from polyadic.core.algebra import reconstruct
from polyadic.core.completion import NoiseFinder, Prior, Solver, Spectra
from polyadic.core.missing import Gaps, Seen, Tally, distinct_masks, look
from polyadic.core.step import Statistics, feature_extractor
from polyadic.core.tensorizer import Axis, channel_axis, numbered_axes, time_axis
from polyadic.data.batches import Samples, check_modes, choose_device
from polyadic.errors import PolyadicError
from polyadic.estimators.base import WindowEstimator
from polyadic.estimators.files import arrays_and_header
from polyadic.readout import FittedReadout, Readout
from polyadic.scale.cluster import lazily
from polyadic.statistics import statistic_names, window_statistics


class _Batch(NamedTuple):
    """Raw windows (b, …), tensors (b, I, J, …), coefficients (b, R), squared residuals (b,) and, if wanted, features.

    Windows and tensors hold no NaN. Tensors are 0 where something is missing, of which residuals know nothing. Features
    are (b, F); the covariance of linear functions of them is (b, k, k).
    """

    windows: Tensor
    T: Tensor
    x: Tensor
    residuals: Tensor
    Z: Tensor
    covariance: Tensor
    gaps: Gaps | None


class Inferred(NamedTuple):
    """Features (N, F), the covariance of linear functions of them (N, k, k), and what is missing (N, C) as a share."""

    Z: np.ndarray
    covariance: np.ndarray
    missing: np.ndarray


class CPModel(TransformerMixin, WindowEstimator):  # type: ignore[misc]
    """What a fitted decomposition does; `CPD` has its parameters and its fit."""

    factors_: list[np.ndarray]
    readout_: FittedReadout | None
    prior_: Prior
    n_sweeps_: int
    probe_: Any
    compression_: dict[str, Any] | None
    _memory: Statistics | None
    _n_seen: int

    # --------------------------------------------------------------- features

    @lazily
    @plain_torch()
    def transform(
        self, X: Any, *, out: str | os.PathLike[str] | None = None, on_rows: Callable[[int], None] | None = None
    ) -> Any:
        """Compute features of new samples: coefficients, mapped by the readout.

        Parameters
        ----------
        X : (N, channels, time), or (N, I, J, …) with `tensorize=None`; any input of `fit` but `Moments`. For a
            `dask.array` or a list of paths, the result is a lazy `dask.array`
        out : a `.npy` file to write the features to, batch by batch and atomically
        on_rows : called after each batch with the number of samples done

        Returns
        -------
        (N, features), the same kind of array as X, or the memory map of `out`
        """
        check_is_fitted(self)
        samples = self._samples(X)

        def features() -> Iterator[Tensor]:
            done = 0
            for batch in self._batches(samples, features=True):
                yield batch.Z
                done += len(batch.x)
                if on_rows is not None:
                    on_rows(done)

        if out is None:
            return samples.like_input(torch.cat(list(features())))
        dtype = np.dtype(np.float64 if samples.dtype == torch.float64 else np.float32)
        write_array(out, (len(samples), self._n_features_out), dtype, (Z.cpu().numpy() for Z in features()))
        return np.load(out, mmap_mode="r")

    @lazily
    @plain_torch()
    def coefficients(self, X: Any) -> Any:
        """Compute coefficients of new samples in closed form (Eqn. feature_extractor), without the readout.

        Parameters
        ----------
        X : as for `transform`

        Returns
        -------
        (N, rank), the same kind of array as X
        """
        check_is_fitted(self)
        samples = self._samples(X)
        return samples.like_input(torch.cat([batch.x for batch in self._batches(samples)]))

    @plain_torch()
    def features_and_spread(self, X: Any, weights: Any) -> Inferred:
        """Compute features and, from what is missing, how uncertain linear functions of them are.

        Parameters
        ----------
        X : as for `transform`, but not in chunks
        weights : (k, F), the linear functions, for example the coefficients of a logistic regression

        Returns
        -------
        the features (N, F); the covariance of features · weightsᵀ (N, k, k), 0 for windows in which nothing is missing;
        and the share of samples that is missing in each channel (N, C), (N, 1) if X holds tensors
        """
        check_is_fitted(self)
        parts = []
        for batch in self._batches(self._samples(X), features=True, weights=weights):
            share = np.zeros((len(batch.Z), self._sample_shape[0] if self.tensorize_ is not None else 1))
            if batch.gaps is not None:
                rows, observed, present = batch.gaps
                known = observed.flatten(1)[:, None] if present is None else present
                share[rows.cpu()] = 1 - known.double().mean(dim=2).cpu().numpy()
            parts.append((batch.Z.double().cpu().numpy(), batch.covariance.cpu().numpy(), share))
        return Inferred(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    @plain_torch()
    def score(self, X: Any, y: Any = None) -> float:
        """Return the goodness of fit of the bases: 1 − ‖T − T̂‖ / ‖T‖ over all samples, at most 1.

        Parameters
        ----------
        X : as for `transform`
        y : ignored
        """
        check_is_fitted(self)
        error = norm = 0.0
        for batch in self._batches(self._samples(X)):
            error += float(batch.residuals.sum())
            norm += float(torch.linalg.vector_norm(batch.T, dtype=torch.float64)) ** 2
        error = max(error, 0.0)
        return 1.0 - float(np.sqrt(error / norm)) if norm > 0 else float(error == 0)

    def _batches(self, samples: Samples, features: bool = False, weights: Any = None) -> Iterator[_Batch]:
        """Yield samples in order, with their tensors, coefficients, residuals and, if wanted, `features`.

        With `weights` (k, F), also the covariance of features · weightsᵀ.
        """
        device = choose_device(self.device, samples.data)
        extract, tally = self._extractor(device, samples.dtype), Tally()
        readout = self._fitted_readout() if features else getattr(self, "readout_", None)
        solver = self._solver(device) if hasattr(self, "prior_") else None
        finder = None
        if solver is not None and self.prior_.spectra.shape[1] and not self._keeps_flat:
            finder = NoiseFinder(solver, Spectra(*torch.tensor(self.prior_.spectra)))
        W = torch.as_tensor(np.zeros((0, 0)) if weights is None else np.asarray(weights)).to(device, torch.float64)
        size = math.prod(len(factor) for factor in self.factors_)
        with self._pool(device):
            for _, windows in self._raw_batches(samples, size, missing=True):
                seen = self._look(windows, finder)
                tally.add(seen)
                x, residuals = extract(seen.T)
                if seen.gaps is None:
                    Z = readout.features(x, seen.windows) if features and readout is not None else x
                    none = W.new_zeros(len(x), len(W), len(W))
                    yield _Batch(seen.windows, seen.T, x, residuals, Z, none, None)
                else:
                    solver = solver or self._solver(device)
                    yield self._completed(seen, seen.gaps, x, residuals, solver, readout, features, W)
        tally.warn(self._channel_labels(), samples.data)

    def _look(self, windows: Tensor, finder: NoiseFinder | None) -> Seen:
        """Return windows and their tensors without NaN; dead channels and channels of noise count as missing."""
        limits, keep_flat = (self.prior_.limits, self._keeps_flat) if hasattr(self, "prior_") else (None, True)
        seen = look(windows, self.tensorize_, self.fs_, limits, keep_flat)
        noisy = None if finder is None else finder.in_complete_windows(seen)
        if noisy is None:
            return seen
        dead = noisy if seen.dead is None else noisy | seen.dead
        windows = windows.masked_fill(noisy[:, :, None], torch.nan)
        return look(windows, self.tensorize_, self.fs_, limits, keep_flat)._replace(dead=dead)

    def _completed(
        self,
        seen: Seen,
        gaps: Gaps,
        x: Tensor,
        residuals: Tensor,
        solver: Solver,
        readout: FittedReadout | None,
        features: bool,
        W: Tensor,
    ) -> _Batch:
        """Return a batch in which something is missing; `x` and `residuals` are those of its filled tensors."""
        rows, observed, present = gaps
        statistics = regression = None
        if readout is not None and readout.n_statistics and present is not None:
            statistics = window_statistics(seen.windows[rows], present)
        first, number = distinct_masks(observed, *(() if statistics is None else (torch.isnan(statistics),)))
        solved = solver.coefficients(seen.T[rows], observed, number, first)
        x[rows], residuals[rows] = solved.x.to(x.dtype), solved.residuals
        T = seen.T.clone()
        T[rows] *= observed
        Z = readout.features(x, seen.windows) if features and readout is not None else x
        if features and readout is not None and statistics is not None:
            z, regression = solver.statistics(solved, readout.standardised(statistics), number, first)
            Z[rows] = readout.joined(solved.x, z).to(Z.dtype)
        covariance = W.new_zeros(len(Z), len(W), len(W))
        if len(W):
            known, block = (W, W[:, :0]) if readout is None else readout.pulled_back(W)
            covariance[rows] = solver.spread(solved, regression, known, block)[number.to(W.device)]
        return _Batch(seen.windows, T, x, residuals, Z, covariance, gaps)

    def _solver(self, device: torch.device) -> Solver:
        """Return the solver of windows in which something is missing."""
        prior = getattr(self, "prior_", None)
        if prior is None:
            raise PolyadicError(
                "X has missing values, but the model does not know the distribution of coefficients to fill them from: "
                "call fit_readout(X) with unlabelled windows"
            )
        return Solver(prior, self._factors(device, torch.float64), float(self.alpha))

    def _extractor(self, device: torch.device, dtype: torch.dtype) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        """Return a function that maps tensors (b, I, J, …) to coefficients (b, R) and squared residuals (b,)."""
        check_number("alpha", self.alpha, 0)
        factors = self._factors(device, dtype)
        extract = feature_extractor(factors, float(self.alpha))

        def checked(T: Tensor) -> tuple[Tensor, Tensor]:
            check_modes(T, factors)
            x, residuals = extract(T)
            if not bool(torch.isfinite(x).all()):
                raise PolyadicError(
                    "the features are not finite: the values in X or in the bases are too large; rescale X or pass it "
                    "as float64"
                )
            return x, residuals

        return checked

    def _factors(self, device: torch.device, dtype: torch.dtype) -> list[Tensor]:
        return [torch.as_tensor(factor, dtype=dtype, device=device) for factor in self.factors_]

    # ---------------------------------------------------------------- readout

    @property
    def _readout(self) -> Readout | None:
        """The settings of the readout, with "auto" resolved."""
        return Readout() if isinstance(self.readout, str) else self.readout

    @property
    def _keeps_flat(self) -> bool:
        """Whether dead channels are taken as they are; without a readout they are, as in the paper.

        Components for people have no readout and do as the model that they belong to.
        """
        own = True if self._readout is None else bool(self._readout.keep_flat)
        return bool(vars(self).get("_owner_keeps_flat", own))

    def _fitted_readout(self) -> FittedReadout | None:
        """Return the readout, or None if the features are the coefficients."""
        if self.readout is not None and not hasattr(self, "readout_"):
            raise PolyadicError(
                "the readout has not been fitted to these components: call fit_readout(X) with unlabelled windows, or "
                "coefficients(X) for the coefficients alone"
            )
        return getattr(self, "readout_", None)

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Return the names of the features: z1, z2, … and the statistics, or x1, x2, … without a readout.

        Parameters
        ----------
        input_features : ignored

        Returns
        -------
        (features,) of strings
        """
        check_is_fitted(self)
        readout = self._fitted_readout()
        if readout is None:
            return np.array([f"x{number + 1}" for number in range(self._n_features_out)], dtype=object)
        return np.array(readout.feature_names(self._statistic_names() if readout.n_statistics else ()), dtype=object)

    def _statistic_names(self) -> list[str]:
        return statistic_names(self._channel_labels(), self._sample_shape[1], self.fs_)

    @property
    def _n_features_out(self) -> int:
        readout = getattr(self, "readout_", None)
        return int(self.factors_[0].shape[1]) if readout is None else readout.n_features

    # --------------------------------------------------------- reconstruction

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
        return self._reconstructed(Z, "Z", self._n_features_out, None if readout is None else readout.inverse)

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
        return self._reconstructed(x, "x", self.factors_[0].shape[1])

    def _reconstructed(
        self, values: Any, name: str, columns: int, inverse: Callable[[Tensor], Tensor] | None = None
    ) -> Any:
        """Return the tensors of coefficients, or of what `inverse` maps to coefficients."""
        samples = Samples(values, name)
        if samples.shape[1:] != (columns,):
            raise PolyadicError(f"{name} must have shape (N, {columns}), but has shape {samples.shape}")
        x = samples.take(slice(None), choose_device(self.device, samples.data), samples.dtype)
        x = x if inverse is None else inverse(x)
        T = reconstruct(x, self._factors(x.device, x.dtype))
        return samples.like_input(T if self.tensorize_ is None else self.tensorize_.uncentred(T))

    # ------------------------------------------------------------ description

    @property
    def n_parameters_(self) -> int:
        """Number of learned parameters: those of the bases, the tensorizer's mean and the readout."""
        check_is_fitted(self)
        readout = getattr(self, "readout_", None)
        front = 0 if self.tensorize_ is None else self.tensorize_.n_parameters
        return front + sum(factor.size for factor in self.factors_) + (0 if readout is None else readout.n_parameters)

    def axes(self, data: Any = None) -> list[Axis]:
        """Return the axes of the bases: channels, frequencies in Hz, times in seconds.

        Parameters
        ----------
        data : `Windows` or a `WindowStore` with the sampling rate and channel names; by default those of the fit

        Examples
        --------
        >>> from polyadic import CPD
        >>> from polyadic.data import synthetic
        >>> from polyadic.spectral import STFT
        >>> model = CPD(rank=2, tensorize=STFT(n_fft=32, hop=16), max_sweeps=1).fit(synthetic(20, n_channels=2))
        >>> [axis.title for axis in model.axes()], model.axes()[0].labels
        (['channel', 'frequency (Hz)', 'time (s)'], ('1', '2'))
        """
        check_is_fitted(self)
        shape, labels = self._sample_shape, self._channel_labels(data)
        fs = getattr(data, "fs", None) or getattr(self, "fs_", None)
        numbered = numbered_axes([len(factor) for factor in self.factors_])
        if self.tensorize_ is not None and len(shape) == 2:
            return self.tensorize_.axes(shape, labels, fs) or numbered
        # Only `Windows` are known to be channels by time; the modes of other tensors are unknown.
        if self.tensorize_ is None and len(shape) == 2 and hasattr(data, "fs"):
            return [channel_axis(labels), time_axis(np.arange(shape[1]), fs)]
        return numbered

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "factors_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        tags.input_tags.allow_nan = self._collects
        return tags

    def __str__(self) -> str:
        """Return the settings and, if fitted, a one-line summary of the fit."""
        settings = repr(self)
        return f"{settings}\n{describe_fit(self)}" if hasattr(self, "factors_") else settings

    # ------------------------------------------------------------------ files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the fitted model to one safetensors file, atomically; `polyadic.load` loads it.

        Files contain no code: classes of your own are named, and must be imported before loading.

        Parameters
        ----------
        path : the file, conventionally with the extension .safetensors
        """
        check_is_fitted(self)
        model_files.write(path, *arrays_and_header(self))

    def _check_rank(self) -> None:
        rank = self.factors_[0].shape[1]
        if self.rank != rank:
            raise PolyadicError(f"rank must stay {rank} as in fit, but is now {self.rank}: fit again, or reset it")


def describe_fit(model: CPModel) -> str:
    """Summarise a fitted model in one line: windows, tensor shape, size, sweeps, loss and convergence.

    Examples
    --------
    >>> from polyadic import CPD
    >>> from polyadic.data import synthetic
    >>> describe_fit(CPD(rank=2, max_sweeps=500).fit(synthetic(50)))  # doctest: +ELLIPSIS
    'fitted to 50 windows of 8 × 256, as tensors 8 × 33 × 25; rank 2, ... parameters; ... sweeps, loss ..., converged'
    """
    sizes = " × ".join(str(len(factor)) for factor in model.factors_)
    count, sweeps, losses = model._n_seen, model.n_sweeps_, model.history_["loss"]
    shape = " × ".join(str(size) for size in model._sample_shape)
    as_tensors = f", as tensors {sizes}" if sizes != shape else ""
    parts = [f"fitted to {count:,} window{'s' * (count != 1)} of {shape}{as_tensors}"]
    parts.append(f"rank {model.factors_[0].shape[1]}, {model.n_parameters_:,} parameters")
    readout = getattr(model, "readout_", None)
    if readout is not None and readout.n_block < readout.n_statistics:
        parts.append(readout.describe_block())
    if losses:
        converged = {True: ", converged", False: ", not converged", None: ""}[getattr(model, "converged_", None)]
        parts.append(f"{sweeps} sweep{'s' * (sweeps != 1)}, loss {losses[-1]:.4g}{converged}")
    return "; ".join(parts)
