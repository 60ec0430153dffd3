"""A fitted CP model: coefficients of windows in closed form, reconstructions, fit, axes and files.

`estimators` has the classes that fit one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from polyadic import als
from polyadic.algebra import gram, project, reconstruct, ridge_inverse, squared_error
from polyadic.checks import check_integer, check_number
from polyadic.engine import cp_files
from polyadic.engine.batches import check_modes
from polyadic.engine.estimator import WindowEstimator
from polyadic.engine.processes import write_rows
from polyadic.errors import PolyadicError
from polyadic.inputs import Samples, choose_device
from polyadic.team import ALONE, Team
from polyadic.tensorize import Axis
from polyadic.thumbnails import model_html
from polyadic.torch_state import plain_torch

__all__ = ["CPModel"]


class CPModel(ClassNamePrefixFeaturesOutMixin, TransformerMixin, WindowEstimator):  # type: ignore[misc]
    """What a fitted ATD, SALS or GR-SALS can do."""

    rank: int
    alpha: float
    factors_: list[np.ndarray]
    n_sweeps_: int
    _memory: als.Statistics | None
    _n_seen: int
    _n_features_out: int

    @plain_torch()
    def transform(
        self,
        X: Any,
        *,
        out: str | os.PathLike[str] | None = None,
        on_rows: Callable[[int], None] | None = None,
        team: Team = ALONE,
    ) -> Any:
        """Features of new samples in closed form, Eqn. feature_extractor.

        Parameters
        ----------
        X : (N, channels, time), or (N, I, J, …) with `tensorize=None`; anything that `fit` takes
        out : a `.npy` file to write the features to batch by batch; it is there whole or not at all
        on_rows : called with the number of samples done after each batch
        team : the processes that transform together, from `polyadic.engine.join`, each its share; it needs `out`,
            on a disk that all of them see

        Returns
        -------
        (N, rank), the same kind of array as X, or the memory map of `out`
        """
        check_is_fitted(self)
        samples = self._samples(X, reset=False)
        share = team.share(torch.arange(len(samples), device="cpu"))
        features = _report_rows((Z for _, Z, _, _ in self._batches(samples, share)), on_rows)
        if out is None and team.size > 1:
            raise PolyadicError("several processes write features to a file that they share, but out is None")
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
    def inverse_transform(self, Z: Any) -> Any:
        """The tensors that features stand for (the STFT is not undone).

        Parameters
        ----------
        Z : (N, rank)

        Returns
        -------
        (N, I, J, …), the same kind of array as Z
        """
        check_is_fitted(self)
        samples = Samples(Z, "Z")
        if samples.shape[1:] != (self._n_features_out,):
            raise PolyadicError(f"Z must have shape (N, {self._n_features_out}), but has shape {samples.shape}")
        device = choose_device(self.device, samples.data)
        rows = samples.take(slice(None), device, samples.dtype)
        return samples.like_input(reconstruct(rows, self._factors(device, samples.dtype)))

    @plain_torch()
    def score(self, X: Any, y: Any = None, *, team: Team = ALONE) -> float:
        """How well the bases fit: 1 − ‖T − T̂‖ / ‖T‖ over all samples, 1 at best.

        Parameters
        ----------
        X : as for `transform`
        y : ignored
        team : the processes that do it together, from `polyadic.engine.join`, each its share
        """
        check_is_fitted(self)
        error = norm = 0.0
        samples = self._samples(X, reset=False)
        for T, Z, M, G in self._batches(samples, team.share(torch.arange(len(samples), device="cpu"))):
            error += float(squared_error(T, Z, M, G))
            norm += float(torch.linalg.vector_norm(T, dtype=torch.float64)) ** 2
        error, norm = team.sum(torch.tensor([error, norm], dtype=torch.float64)).tolist()
        return 1.0 - float(np.sqrt(error / norm)) if norm > 0 else float(error == 0)

    def _batches(self, samples: Samples, ids: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Tensors T, features Z, projections M of some samples in order, with the Gram matrix G."""
        check_number("alpha", self.alpha, 0)
        device = choose_device(self.device, samples.data)
        factors, closed_form = self._factors(device, samples.dtype), als.Objective(alpha=float(self.alpha))
        # The host has a small inverse before a GPU has loaded what it takes there.
        exact = gram([factor.double() for factor in self._factors(torch.device("cpu"), samples.dtype)])
        G, inverse = exact.to(device), ridge_inverse(exact, closed_form.alpha).to(device)
        for T in self._tensors(samples, int(np.prod([len(factor) for factor in factors])), ids):
            check_modes(T, factors)
            M = project(T, factors)
            Z = als.fixed_point(M, inverse, closed_form, 1)
            if not bool(torch.isfinite(Z).all()):
                raise PolyadicError(
                    "the features are not finite: the numbers in X or in the bases are too large; scale X or give it "
                    "as float64"
                )
            yield T, Z, M, G

    def _factors(self, device: torch.device, dtype: torch.dtype) -> list[Tensor]:
        return [torch.as_tensor(factor, dtype=dtype, device=device) for factor in self.factors_]

    @property
    def n_parameters_(self) -> int:
        """How many numbers the model learned: the size of its bases."""
        check_is_fitted(self)
        return sum(factor.size for factor in self.factors_)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "factors_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def axes(self, data: Any = None) -> list[Axis]:
        """What the rows of each basis stand for: channels, frequencies in Hz, times in seconds.

        Parameters
        ----------
        data : what has a sampling rate and names of channels, as `Windows` or a `WindowStore`, if not the model's own

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
        """What a notebook shows: scikit-learn's diagram before the fit, pictures of the components after it."""
        return model_html(self) if hasattr(self, "factors_") else str(super()._html_repr())

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
            header["parameters"][name]  # features depend on them: a default would be a guess
        return super()._from_file(arrays, header, tensorize, augment)

    def _arrays(self) -> dict[str, np.ndarray]:
        return cp_files.arrays_of(self)

    def _extra(self) -> dict[str, Any]:
        return cp_files.extra_of(self)

    def _restore(self, arrays: dict[str, np.ndarray], extra: dict[str, Any]) -> None:
        check_integer("rank", self.rank, 1)
        check_number("alpha", self.alpha, 0)
        cp_files.restore(self, arrays, extra)

    def _check_rank(self) -> None:
        if self.rank != self._n_features_out:
            raise PolyadicError(
                f"rank must stay {self._n_features_out} as in fit, but is {self.rank} now: fit again, or set it back"
            )


def _report_rows(parts: Iterator[Tensor], on_rows: Callable[[int], None] | None) -> Iterator[Tensor]:
    done = 0
    for part in parts:
        yield part
        done += len(part)
        if on_rows is not None:
            on_rows(done)
