"""Simple baselines: principal components of the tensors, and hand-crafted features."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyadic._util.checks import check_integer
from polyadic.baselines.base import Baseline, RawBaseline
from polyadic.errors import PolyadicError

__all__ = ["HandFeatures", "PCAFeatures"]

_EXACT_ENTRIES = 1024
_OVERSAMPLING = 10


class PCAFeatures(Baseline):
    """Principal components of the flattened tensors, by default the same spectra as those of `CPD`, batch by batch.

    For tensors of up to 1,024 entries, the result is exact, from their covariance matrix. For larger ones, it is
    computed by randomised subspace iteration with ten more columns than components: each pass over the data multiplies
    a random basis by the covariance, and the last pass solves the eigenproblem within it. Four passes correspond to
    scikit-learn's randomised solver; components with similar variances need more.

    Parameters
    ----------
    dim : number of components, and of features
    tensorize : from a batch (b, channels, time) to tensors (b, I, J, …), as for `CPD`: "auto" (default) for the
        recommended `STFT`, None if the input already is a tensor, or for components of raw windows
    n_passes : passes over the data for large tensors, after the one for the mean
    device : "auto", "cpu", "cuda", …
    random_state : seed of the random basis

    Attributes
    ----------
    mean_ : (I, J, …)
    components_ : (dim, I, J, …), of norm 1, with a positive entry of largest absolute value
    explained_variance_ : (dim,), with N - 1 in the denominator
    n_parameters_ : (dim + 1) · I · J · …, the components and the mean; for HAR's 18 × 33 × 33 and dim=32 the
        components alone are 627,264

    Examples
    --------
    >>> X = np.random.default_rng(0).normal(size=(50, 4, 64))
    >>> PCAFeatures(dim=3).fit_transform(X).shape
    (50, 3)
    """

    def __init__(
        self,
        dim: int = 32,
        *,
        tensorize: Any = "auto",
        n_passes: int = 6,
        device: str | torch.device = "auto",
        random_state: Any = 0,
    ) -> None:
        self.dim = dim
        self.tensorize = tensorize
        self.n_passes = n_passes
        self.device = device
        self.random_state = random_state

    def _learn(self, X: Any, y: Any) -> None:
        check_integer("dim", self.dim, 1)
        check_integer("n_passes", self.n_passes, 1)
        source = self._source(X)
        passes = self._passes(source.samples)
        total, count = torch.zeros(1, dtype=torch.float64), 0
        for T in passes():
            total = total.to(T.device) + T.sum(dim=0, dtype=torch.float64)
            count += len(T)
        mean = total / count
        if self.dim > min(count, mean.numel()):
            raise PolyadicError(
                f"dim must be at most {min(count, mean.numel())}, the smaller of {count} windows and {mean.numel()} "
                f"entries, but is {self.dim}"
            )
        if mean.numel() <= _EXACT_ENTRIES:
            values, vectors = torch.linalg.eigh(_spread(passes, mean, torch.eye(mean.numel(), dtype=torch.float64)))
        else:
            values, vectors = self._sketched(passes, mean, count)
        order = values.argsort(descending=True)[: self.dim]
        components = vectors[:, order].T
        largest = components.gather(1, components.abs().argmax(dim=1, keepdim=True))
        dtype = torch.empty(0, dtype=source.dtype).numpy().dtype
        signed = (components * largest.sign()).reshape(-1, *mean.shape).numpy()
        self.components_ = np.ascontiguousarray(signed, dtype=dtype)
        self.mean_ = mean.cpu().numpy().astype(dtype)
        self.history_ = {"explained_variance": (values[order].clamp_min(0) / max(count - 1, 1)).tolist()}

    def _sketched(self, passes: Callable[[], Iterable[Tensor]], mean: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Compute the leading eigenvalues and eigenvectors of the scatter matrix by randomised subspace iteration."""
        generator = torch.Generator().manual_seed(self.seed_)
        width = min(self.dim + _OVERSAMPLING, count, mean.numel())
        basis = torch.randn(mean.numel(), width, dtype=torch.float64, generator=generator)
        for _ in range(self.n_passes):
            basis = torch.linalg.qr(basis).Q
            product = _spread(passes, mean, basis)
            last, basis = basis, product
        # The last pass also gives the scatter within the current basis.
        values, rotation = torch.linalg.eigh(last.T @ product)
        return values, last @ rotation

    @property
    def explained_variance_(self) -> NDArray[np.float64]:
        """Variance along every component: (dim,)."""
        return np.array(self.history_["explained_variance"])

    def _features(self, T: Tensor) -> Tensor:
        if T.shape[1:] != self.mean_.shape:
            raise PolyadicError(
                f"tensorize must return tensors of shape {self.mean_.shape} as in fit, but returned "
                f"{tuple(T.shape[1:])}"
            )
        mean, components = (torch.as_tensor(array).to(T) for array in (self.mean_, self.components_))
        return (T - mean).flatten(1) @ components.flatten(1).T

    def _width(self) -> int:
        return len(self.components_)

    def _arrays(self) -> dict[str, np.ndarray]:
        return {"mean": self.mean_, "components": self.components_}

    def _restore(self, arrays: dict[str, np.ndarray], extra: dict[str, Any]) -> None:
        self.mean_, self.components_ = arrays["mean"], arrays["components"]
        if self.components_.shape != (self.dim, *self.mean_.shape):
            raise ValueError(f"components {self.components_.shape} and mean {self.mean_.shape} do not fit")


def _spread(passes: Callable[[], Iterable[Tensor]], mean: Tensor, basis: Tensor) -> Tensor:
    """Multiply the scatter matrix of the flattened tensors by a basis (D, k): (D, k) float64, on the CPU."""
    product = torch.zeros_like(basis)
    for T in passes():
        centred = (T - mean.to(T)).flatten(1)
        product += (centred.T @ (centred @ basis.to(T))).to(product)
    return product


_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_BANDS = 8


class HandFeatures(RawBaseline):
    """Hand-crafted features of raw windows: statistics, band powers and channel correlations; nothing is learned.

    For every channel: mean, standard deviation, minimum, maximum, five quantiles (5, 25, 50, 75, 95 %), skewness,
    excess kurtosis, mean crossings and mean absolute difference per sample, and log power in up to eight bands of
    equal width on a logarithmic scale; then the correlations of all pairs of channels. Undefined features of a constant
    channel are 0.

    Parameters
    ----------
    tensorize : not used, because features are computed from raw windows; accepted for consistency with other baselines
    device : "auto", "cpu", "cuda", …
    random_state : not used

    Attributes
    ----------
    n_parameters_ : 0

    Examples
    --------
    >>> X = np.random.default_rng(0).normal(size=(50, 2, 128))
    >>> HandFeatures().fit_transform(X).shape
    (50, 43)
    """

    def __init__(
        self,
        *,
        tensorize: Any = None,
        device: str | torch.device = "auto",
        random_state: Any = 0,
    ) -> None:
        self.tensorize = tensorize
        self.device = device
        self.random_state = random_state

    def _learn(self, X: Any, y: Any) -> None:
        self._raw_windows(X, 2)

    def _features(self, T: Tensor) -> Tensor:
        X = T.double()
        mean = X.mean(dim=2)
        centred = X - mean[:, :, None]
        std = centred.square().mean(dim=2).sqrt()
        # The rounding error of a constant channel is not a signal.
        alive = std > 1e-12 * X.abs().amax(dim=2)
        std = std * alive
        z = centred / torch.where(alive, std, 1.0)[:, :, None] * alive[:, :, None]
        crossings = ((z[:, :, 1:] >= 0) != (z[:, :, :-1] >= 0)).double().mean(dim=2)
        levels = torch.quantile(X, torch.tensor(_QUANTILES, dtype=X.dtype, device=X.device), dim=2)
        statistics = [
            mean,
            std,
            X.amin(dim=2),
            X.amax(dim=2),
            *levels,
            z.pow(3).mean(dim=2),
            (z.pow(4).mean(dim=2) - 3.0) * alive,
            crossings,
            X.diff(dim=2).abs().mean(dim=2),
        ]
        correlations = z @ z.mT / z.shape[2]
        upper = torch.triu_indices(z.shape[1], z.shape[1], offset=1)
        parts = [torch.stack(statistics, dim=2), _log_powers(centred)]
        flat = [part.flatten(1) for part in parts] + [correlations[:, upper[0], upper[1]]]
        return torch.cat(flat, dim=1).to(T.dtype)

    def _width(self) -> int:
        channels, length = self._sample_shape
        each = 8 + len(_QUANTILES) + len(_band_edges(length)) - 1
        return int(channels * each + channels * (channels - 1) // 2)

    def _arrays(self) -> dict[str, np.ndarray]:
        return {}

    def _restore(self, arrays: dict[str, np.ndarray], extra: dict[str, Any]) -> None:
        if len(self._sample_shape) != 2:
            raise ValueError(f"windows of shape {self._sample_shape} are not (channels, time)")


def _band_edges(length: int) -> list[int]:
    """Return the edges of the bands in bins, from 1 to length // 2 (inclusive), without empty bands."""
    edges = np.geomspace(1, length // 2 + 1, _BANDS + 1).round().astype(int)
    return [int(edge) for edge in np.unique(edges)]


def _log_powers(X: Tensor) -> Tensor:
    """Compute the log power of each band in each channel: (b, channels, bands).

    Power is clipped at 1e-9 of the window's power, so that a constant channel has a finite value in any unit.
    """
    length = X.shape[2]
    power = torch.fft.rfft(X, dim=2).abs().square() / length**2 * 2
    if length % 2 == 0:
        power[:, :, -1] /= 2
    parts = [power[:, :, first:end].sum(dim=2) for first, end in pairwise(_band_edges(length))]
    bands = torch.stack(parts, dim=2)
    floor = 1e-9 * bands.sum(dim=(1, 2), keepdim=True) + 1e-30
    return (bands + floor).log()
