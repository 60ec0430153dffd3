"""Simple baselines: principal components of the tensors, and statistics of each channel."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch
from torch import Tensor

from polyadic._util.checks import check_integer
from polyadic.baselines.base import Baseline
from polyadic.data.batches import WindowSource
from polyadic.errors import PolyadicError
from polyadic.statistics import window_statistics

__all__ = ["PCAFeatures", "StatisticsFeatures"]

_EXACT_ENTRIES = 1024
_OVERSAMPLING, _PASSES = 10, 6


@dataclass(eq=False, repr=False)
class PCAFeatures(Baseline):
    """Principal components of the flattened tensors, by default the same spectra as those of `CPD`, batch by batch.

    For tensors of up to 1,024 entries, the result is exact, from their covariance matrix. For larger ones, it is
    computed by randomised subspace iteration with ten more columns than components, in six passes over the data.

    Parameters
    ----------
    dim : number of components, and of features
    tensorize : from a batch (b, channels, time) to tensors (b, I, J, …), as for `CPD`: "auto" (default) for the
        recommended `STFT`, None if the input already is a tensor, or for components of raw windows
    device : "auto", "cpu", "cuda", …
    random_state : seed of the random basis

    Attributes
    ----------
    mean_ : (I, J, …)
    components_ : (dim, I, J, …), of norm 1, with a positive entry of largest absolute value
    explained_variance_ : (dim,), with N - 1 in the denominator
    n_parameters_ : (dim + 1) · I · J · …, the components and the mean

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(50, 4, 64))
    >>> PCAFeatures(dim=3).fit_transform(X).shape
    (50, 3)
    """

    dim: int = 32
    _: KW_ONLY
    tensorize: Any = "auto"

    def _learn(self, source: WindowSource, y: Any) -> None:
        check_integer("dim", self.dim, 1)
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
        signed = (components * largest.sign()).reshape(-1, *mean.shape)
        self.components_ = signed.to(source.dtype).contiguous().numpy()
        self.mean_ = mean.cpu().to(source.dtype).numpy()
        self.explained_variance_ = (values[order].clamp_min(0) / max(count - 1, 1)).numpy()

    def _sketched(self, passes: Callable[[], Iterable[Tensor]], mean: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Compute the leading eigenvalues and eigenvectors of the scatter matrix by randomised subspace iteration."""
        generator = torch.Generator().manual_seed(self.seed_)
        width = min(self.dim + _OVERSAMPLING, count, mean.numel())
        basis = torch.randn(mean.numel(), width, dtype=torch.float64, generator=generator)
        for _ in range(_PASSES):
            basis = torch.linalg.qr(basis).Q
            product = _spread(passes, mean, basis)
            last, basis = basis, product
        # The last pass also gives the scatter within the current basis.
        values, rotation = torch.linalg.eigh(last.T @ product)
        return values, last @ rotation

    @property
    def n_parameters_(self) -> int:
        return int(self.components_.size + self.mean_.size)

    def _features(self, T: Tensor) -> Tensor:
        mean, components = (torch.as_tensor(array).to(T) for array in (self.mean_, self.components_))
        return (T - mean).flatten(1) @ components.flatten(1).T


def _spread(passes: Callable[[], Iterable[Tensor]], mean: Tensor, basis: Tensor) -> Tensor:
    """Multiply the scatter matrix of the flattened tensors by a basis (D, k): (D, k) float64, on the CPU."""
    product = torch.zeros_like(basis)
    for T in passes():
        centred = (T - mean.to(T)).flatten(1)
        product += (centred.T @ (centred @ basis.to(T))).to(product)
    return product


@dataclass(eq=False, repr=False)
class StatisticsFeatures(Baseline):
    """The statistics of raw windows that `CPD` adds to its components, alone; nothing is learned.

    Standardise them before a classifier; `Probe` and `WindowClassifier` do so.

    Parameters
    ----------
    device : "auto", "cpu", "cuda", …
    random_state : not used

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(50, 2, 128))
    >>> StatisticsFeatures().fit_transform(X).shape
    (50, 31)
    """

    _least_samples = 2

    def _features(self, T: Tensor) -> Tensor:
        return window_statistics(T).to(T.dtype)
