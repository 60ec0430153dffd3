"""MiniRocket (Dempster, Schmidt, Webb 2021): proportions of positive values under many fixed dilated convolutions.

Implemented in torch from the published description, with its multivariate extension, because existing packages need
compilers and restrict numpy versions.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import conv1d

from polyadic._util.checks import check_integer
from polyadic._util.random_streams import integer_seed
from polyadic.baselines.base import Baseline
from polyadic.data.batches import WindowSource

__all__ = ["MiniRocket"]

_LENGTH = 9
_KERNELS = tuple(combinations(range(_LENGTH), 3))
_MOST_CHANNELS, _MOST_DILATIONS = 9, 32
_GOLDEN = (5**0.5 + 1) / 2
_CHUNK_BYTES = 32 * 2**20


@dataclass(eq=False, repr=False)
class MiniRocket(Baseline):
    """MiniRocket features: the fraction of each window in which a convolution exceeds a bias.

    There are 84 kernels with many dilations and biases. A kernel has nine weights, three of 2 and six of -1. Each
    kernel at each dilation sums its convolutions over a random set of channels, and has several biases: quantiles of
    its output for one random training window. Every other kernel also counts padded positions at the ends. Train a
    linear classifier, such as ridge regression, on the features.

    Parameters
    ----------
    n_kernels : number of features, rounded down to a multiple of 84: 9,996 for 10,000
    device : "auto", "cpu", "cuda", …
    random_state : seed of the channel sets and of the windows for the biases

    Attributes
    ----------
    dilations_, counts_ : (d,), dilations in samples, and the number of biases of each kernel at each
    channels_ : (d, 84, channels) bool, the channels of each kernel at each dilation
    biases_ : (features,), by dilation, then kernel, then quantile
    n_parameters_ : the number of biases, one per feature; the sets of channels are random, not learned

    Examples
    --------
    >>> X = np.random.default_rng(0).normal(size=(20, 2, 64)).astype(np.float32)
    >>> MiniRocket(n_kernels=500).fit_transform(X).shape
    (20, 420)
    """

    n_kernels: int = 10_000
    _least_samples = _LENGTH

    def _learn(self, source: WindowSource, y: Any) -> None:
        check_integer("n_kernels", self.n_kernels, len(_KERNELS))
        self.dilations_, self.counts_ = _plan(self._sample_shape[1], int(self.n_kernels))
        generator = torch.Generator().manual_seed(integer_seed(self.seed_, 0x20C7))
        shape = (len(self.dilations_), len(_KERNELS))
        self.channels_ = _channel_sets(shape, self._sample_shape[0], generator)
        self.biases_ = self._biases(source, generator)

    @property
    def n_parameters_(self) -> int:
        return int(self.biases_.size)

    def _biases(self, source: WindowSource, generator: torch.Generator) -> np.ndarray:
        """Compute quantiles of each kernel's output for a random window, at levels of a low-discrepancy sequence."""
        features = len(_KERNELS) * int(self.counts_.sum())
        levels = torch.arange(1, features + 1, dtype=torch.float64) * _GOLDEN % 1
        parts = []
        for number, own_levels in enumerate(torch.split(levels, (len(_KERNELS) * self.counts_).tolist())):
            ids = torch.randint(source.n_windows, (len(_KERNELS),), generator=generator)
            X = source.samples.take(ids, source.device, source.dtype)
            own = self._convolved(X, number).diagonal().T.double()
            wanted = own_levels.reshape(len(_KERNELS), -1).to(own.device)
            quantiles = [torch.quantile(row, level) for row, level in zip(own, wanted, strict=True)]
            parts.append(torch.cat(quantiles).to(source.dtype).cpu().numpy())
        return np.concatenate(parts)

    def _convolved(self, X: Tensor, number: int) -> Tensor:
        """Convolve windows with the kernels at one dilation, zero-padded: (b, 84, time)."""
        weights = torch.full((len(_KERNELS), 1, _LENGTH), -1.0, dtype=torch.float32)
        weights.scatter_(2, torch.tensor(_KERNELS)[:, None, :], 2.0)
        # 0 for channels that a kernel does not use: (84, channels, 9)
        weights = (weights * torch.as_tensor(self.channels_[number])[:, :, None]).to(X)
        dilation = int(self.dilations_[number])
        return conv1d(X, weights, padding=dilation * (_LENGTH // 2), dilation=dilation)

    def _features(self, T: Tensor) -> Tensor:
        rows = max(1, _CHUNK_BYTES // (len(_KERNELS) * T.shape[2] * T.element_size()))
        return torch.cat([self._shares(part) for part in torch.split(T, rows)])

    def _shares(self, X: Tensor) -> Tensor:
        features, sizes = [], (len(_KERNELS) * self.counts_).tolist()
        for number, own_biases in enumerate(torch.split(torch.as_tensor(self.biases_).to(X), sizes)):
            outputs, biases = self._convolved(X, number), own_biases.reshape(len(_KERNELS), -1)
            shares = X.new_empty(len(X), *biases.shape)
            for parity, cut in ((0, 0), (1, int(self.dilations_[number]) * (_LENGTH // 2))):
                kernels = slice((parity + number) % 2, None, 2)
                inner = outputs[:, kernels, cut : outputs.shape[2] - cut].contiguous()
                for place in range(biases.shape[1]):
                    above = inner > biases[kernels, place, None]
                    shares[:, kernels, place] = above.sum(dim=2).to(X.dtype) / inner.shape[2]
            features.append(shares.flatten(1))
        return torch.cat(features, dim=1)


def _plan(length: int, n_kernels: int) -> tuple[np.ndarray, np.ndarray]:
    """Return exponentially spaced dilations, up to the longest kernel that fits, and the number of biases at each."""
    each = n_kernels // len(_KERNELS)
    wanted = min(each, _MOST_DILATIONS)
    longest = np.log2((length - 1) / (_LENGTH - 1))
    dilations, times = np.unique(np.logspace(0, longest, wanted, base=2).astype(int), return_counts=True)
    counts = times * each // wanted
    # Distribute the remainder of rounding over the first dilations.
    for extra in range(each - int(counts.sum())):
        counts[extra % len(counts)] += 1
    return dilations, counts


def _channel_sets(shape: tuple[int, int], n_channels: int, generator: torch.Generator) -> np.ndarray:
    """Sample random sets of channels (d, 84, channels) with log-uniform size, so that small sets are more likely."""
    most = min(n_channels, _MOST_CHANNELS)
    powers = torch.rand(shape, generator=generator, dtype=torch.float64) * np.log2(most + 1)
    sizes = (2**powers).long().clamp(1, most)
    ranks = torch.rand(*shape, n_channels, generator=generator, dtype=torch.float32).argsort(dim=-1).argsort(dim=-1)
    chosen: np.ndarray = (ranks < sizes[:, :, None]).numpy()
    return chosen
