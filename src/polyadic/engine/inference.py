"""Coefficients and features of windows from a fitted CP model: closed-form least squares and the readout.

Uses only torch and numpy, so that commands which only read a model file need not import scikit-learn. `CPModel` extends
this for the estimators; `StoredModel` is a model loaded from a file only to transform and predict.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from polyadic._util.checks import check_integer, check_number
from polyadic._util.torch_state import plain_torch
from polyadic.core import persist
from polyadic.core import step as als
from polyadic.core.algebra import gram, project, ridge_inverse, squared_errors
from polyadic.core.tensorizer import tensors
from polyadic.data.batches import check_modes
from polyadic.data.samples import Samples, choose_device
from polyadic.engine.processes import write_rows
from polyadic.engine.window_model import WindowModel
from polyadic.errors import ModelFileError, PolyadicError
from polyadic.evaluate.linear import LinearProbe
from polyadic.readout import PREFIX, FittedReadout, Readout
from polyadic.team import ALONE, Team

__all__ = ["Inference", "StoredModel"]


class _Batch(NamedTuple):
    """Raw windows (b, …), their tensors (b, I, J, …), coefficients (b, R) and squared residuals (b,)."""

    windows: Tensor
    T: Tensor
    x: Tensor
    residuals: Tensor


class Inference(WindowModel):
    """Base class that computes features of windows: tensorizer, bases, ridge weight and readout."""

    rank: int
    alpha: float
    readout: Any
    factors_: list[np.ndarray]
    readout_: FittedReadout | None

    def _check_is_fitted(self) -> None:
        """Raise if the model is not fitted."""

    # --------------------------------------------------------------- features

    @plain_torch()
    def transform(
        self,
        X: Any,
        *,
        out: str | os.PathLike[str] | None = None,
        on_rows: Callable[[int], None] | None = None,
        team: Team = ALONE,
    ) -> Any:
        """Compute features of new samples: coefficients, mapped by the readout.

        Parameters
        ----------
        X : (N, channels, time), or (N, I, J, …) with `tensorize=None`; any input of `fit`
        out : a `.npy` file to write the features to, batch by batch and atomically
        on_rows : called after each batch with the number of samples done
        team : the processes that share the work, from `polyadic.engine.join`; requires `out` on a shared disk

        Returns
        -------
        (N, features), the same kind of array as X, or the memory map of `out`
        """
        self._check_is_fitted()
        readout = self._fitted_readout()
        samples = self._samples(X, reset=False)
        share = team.share(torch.arange(len(samples), device="cpu"))
        batches = self._batches(samples, share)
        computed = (batch.x if readout is None else readout.features(batch.x, batch.windows) for batch in batches)
        features = _report_rows(computed, on_rows)
        if out is None and team.size > 1:
            raise PolyadicError("with several processes, transform writes to a shared file, but out is None: pass out")
        if out is None:
            with self._pool(choose_device(self.device, samples.data)):
                return samples.like_input(torch.cat(list(features)))
        shape = (len(samples), self._n_features_out)
        dtype = np.dtype(np.float64 if samples.dtype == torch.float64 else np.float32)
        first = int(share[0]) if len(share) else 0
        with self._pool(choose_device(self.device, samples.data)):
            write_rows(team, out, shape, dtype, first, (Z.cpu().numpy() for Z in features))
        return np.load(out, mmap_mode="r")

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
        self._check_is_fitted()
        samples = self._samples(X, reset=False)
        ids = torch.arange(len(samples), device="cpu")
        with self._pool(choose_device(self.device, samples.data)):
            return samples.like_input(torch.cat([batch.x for batch in self._batches(samples, ids)]))

    def _fitted_readout(self) -> FittedReadout | None:
        """Return the readout, or None if the features are the coefficients."""
        if self.readout is not None and not hasattr(self, "readout_"):
            raise PolyadicError(
                "the readout has not been fitted to these components: call fit_readout(X) with unlabelled windows, or "
                "coefficients(X) for the coefficients alone"
            )
        return getattr(self, "readout_", None)

    @property
    def _n_features_out(self) -> int:
        readout = getattr(self, "readout_", None)
        return int(self.factors_[0].shape[1]) if readout is None else readout.n_features

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Return the names of the features: z1, z2, … and levels by channel, or x1, x2, … without a readout.

        Parameters
        ----------
        input_features : ignored

        Returns
        -------
        (features,) of strings
        """
        self._check_is_fitted()
        readout = self._fitted_readout()
        if readout is None:
            return np.array([f"x{number + 1}" for number in range(self._n_features_out)], dtype=object)
        return np.array(readout.feature_names(self._channel_labels(None) if readout.n_channels else ()), dtype=object)

    def _batches(self, samples: Samples, ids: Tensor) -> Iterator[_Batch]:
        """Yield samples in order, with their tensors, coefficients and residuals."""
        solve = self._solver(choose_device(self.device, samples.data), samples.dtype)
        size = int(np.prod([len(factor) for factor in self.factors_]))
        for _, windows in self._raw_batches(samples, size, ids):
            T = tensors(self.tensorize_, windows)
            yield _Batch(windows, T, *solve(T))

    def _solver(self, device: torch.device, dtype: torch.dtype) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        """Return a function that maps tensors (b, I, J, …) to coefficients (b, R) and squared residuals (b,)."""
        check_number("alpha", self.alpha, 0)
        factors, closed_form = self._factors(device, dtype), als.Objective(alpha=float(self.alpha))
        # Invert on the CPU: for a small matrix that is faster than loading the GPU's solver.
        exact = gram([factor.double() for factor in self._factors(torch.device("cpu"), dtype)])
        G, inverse = exact.to(device), ridge_inverse(exact, closed_form.alpha).to(device)

        def solve(T: Tensor) -> tuple[Tensor, Tensor]:
            check_modes(T, factors)
            M = project(T, factors)
            x = als.fixed_point(M, inverse, closed_form, 1)
            if not bool(torch.isfinite(x).all()):
                raise PolyadicError(
                    "the features are not finite: the values in X or in the bases are too large; rescale X or pass it "
                    "as float64"
                )
            return x, squared_errors(T, x, M, G)

        return solve

    def _factors(self, device: torch.device, dtype: torch.dtype) -> list[Tensor]:
        return [torch.as_tensor(factor, dtype=dtype, device=device) for factor in self.factors_]

    # ------------------------------------------------------------------ files

    def _restore_components(self, arrays: dict[str, np.ndarray], extra: dict[str, Any]) -> None:
        """Restore bases and readout from a model file, and check that they are consistent."""
        check_integer("rank", self.rank, 1)
        check_number("alpha", self.alpha, 0)
        names = [f"factors.{mode}" for mode in range(sum(name.startswith("factors.") for name in arrays))]
        self.factors_ = [arrays[name] for name in names]
        shapes = [factor.shape for factor in self.factors_]
        shape = tuple(len(factor) if factor.ndim else 0 for factor in self.factors_)
        known = self._sample_shape if self.tensorize_ is None else self.tensorize_.shape(*self._sample_shape)
        expected = [(size, self.rank) for size in known or shape]
        if shapes != expected or not expected:
            raise ModelFileError(f"the file's factors have shapes {shapes}, but its header calls for {expected}")
        if not all(array.dtype.kind == "f" and np.isfinite(array).all() for array in arrays.values()):
            raise ModelFileError("the file's arrays hold NaN, infinity or no floating-point numbers")
        self._restore_readout(arrays, extra.get("readout"))

    def _restore_readout(self, arrays: dict[str, np.ndarray], described: Any) -> None:
        if described is None:
            if any(name.startswith(PREFIX) for name in arrays):
                raise ModelFileError("the file has arrays of a readout, but no description of one")
            if self.readout is None:
                self.readout_ = None
            return
        readout = persist.decode(described)
        if not isinstance(readout, Readout):
            raise ModelFileError(f"the file's description of its readout must be a JSON object, but is {described!r}")
        channels = 0 if self.tensorize_ is None else self._sample_shape[0]
        self.readout_ = FittedReadout.from_arrays(readout, arrays, self.rank, channels)


class StoredModel(Inference):
    """A CP model from a file, for inference only; see `polyadic.core.persist.load_for_inference`.

    Attributes
    ----------
    device : device to compute on, "auto" unless set
    probe_ : the classifier stored in the file, if any
    """

    probe_: LinearProbe

    @classmethod
    def _from_file(
        cls, arrays: dict[str, np.ndarray], header: dict[str, Any], tensorize: Any, augment: Any
    ) -> StoredModel:
        model, parameters = cls(), header["parameters"]
        model.device = "auto"
        model.rank, model.alpha = parameters["rank"], parameters["alpha"]
        model.readout = persist.decode(parameters.get("readout", "auto"))
        model._restore_windows(header, tensorize)
        model._restore_components(arrays, header)
        probe = LinearProbe.unpack(arrays, header.get("probe"), model._n_features_out)
        if probe is not None:
            model.probe_ = probe
        return model


def _report_rows(parts: Iterator[Tensor], on_rows: Callable[[int], None] | None) -> Iterator[Tensor]:
    done = 0
    for part in parts:
        yield part
        done += len(part)
        if on_rows is not None:
            on_rows(done)
