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
from sklearn.utils.validation import check_is_fitted
from torch import Tensor
from torch.nn.functional import conv1d

from polyadic._util.checks import check_integer
from polyadic._util.random_streams import integer_seed
from polyadic.baselines.base import RawBaseline
from polyadic.data.batches import WindowSource

__all__ = ["MiniRocket"]

_LENGTH = 9
_KERNELS = tuple(combinations(range(_LENGTH), 3))
_MOST_CHANNELS = 9
_GOLDEN = (5**0.5 + 1) / 2
_CHUNK_BYTES = 32 * 2**20


class MiniRocket(RawBaseline):
    """MiniRocket features: the fraction of each window in which a convolution exceeds a bias.

    There are 84 kernels with many dilations and biases. A kernel has nine weights, three of 2 and six of -1. Each
    kernel at each dilation sums its convolutions over a random set of channels, and has several biases: quantiles of
    its output for one random training window. Every other kernel also counts padded positions at the ends. Train a
    linear classifier, such as ridge regression, on the features.

    Parameters
    ----------
    n_kernels : number of features, rounded down to a multiple of 84: 9,996 for 10,000
    max_dilations : maximum number of dilations
    tensorize : not used, because features are computed from raw windows; accepted for consistency with other baselines
    device : "auto", "cpu", "cuda", …
    random_state : seed of the channel sets and of the windows for the biases

    Attributes
    ----------
    dilations_ : (d,), in samples
    channels_ : (d, 84, channels) bool, the channels of each kernel at each dilation
    biases_ : (features,), by dilation, then kernel, then quantile
    n_parameters_ : the number of biases, one per feature; the sets of channels are random, not learned

    Examples
    --------
    >>> X = np.random.default_rng(0).normal(size=(20, 2, 64)).astype(np.float32)
    >>> MiniRocket(n_kernels=500).fit_transform(X).shape
    (20, 420)
    """

    def __init__(
        self,
        n_kernels: int = 10_000,
        *,
        max_dilations: int = 32,
        tensorize: Any = None,
        device: str | torch.device = "auto",
        random_state: Any = 0,
    ) -> None:
        self.n_kernels = n_kernels
        self.max_dilations = max_dilations
        self.tensorize = tensorize
        self.device = device
        self.random_state = random_state

    def _learn(self, X: Any, y: Any) -> None:
        check_integer("n_kernels", self.n_kernels, len(_KERNELS))
        check_integer("max_dilations", self.max_dilations, 1)
        source = self._raw_windows(X, _LENGTH)
        self._plan = _Plan.of(self._sample_shape[1], int(self.n_kernels), int(self.max_dilations))
        generator = torch.Generator().manual_seed(integer_seed(self.seed_, 0x20C7))
        shape = (len(self._plan.dilations), len(_KERNELS))
        self.channels_ = _channel_sets(shape, self._sample_shape[0], generator)
        self.biases_ = self._biases(source, generator)

    @property
    def dilations_(self) -> np.ndarray:
        """Dilations in samples: (d,)."""
        return np.array(self._plan.dilations)

    @property
    def n_parameters_(self) -> int:
        """Number of learned parameters: the biases."""
        check_is_fitted(self)
        return int(self.biases_.size)

    def _biases(self, source: WindowSource, generator: torch.Generator) -> np.ndarray:
        """Compute quantiles of each kernel's output for a random window, at levels of a low-discrepancy sequence."""
        levels = torch.arange(1, self._plan.n_features + 1, dtype=torch.float64) * _GOLDEN % 1
        parts, done = [], 0
        for number, (dilation, count) in enumerate(zip(self._plan.dilations, self._plan.counts, strict=True)):
            ids = torch.randint(source.n_windows, (len(_KERNELS),), generator=generator)
            X = source.samples.take(ids, source.device, source.dtype)
            outputs = _convolve(X, self._weights(number, X), dilation)
            own = outputs.diagonal().T.double()
            wanted = levels[done : done + len(_KERNELS) * count].reshape(-1, count).to(own.device)
            quantiles = [torch.quantile(row, level) for row, level in zip(own, wanted, strict=True)]
            parts.append(torch.cat(quantiles).to(source.dtype).cpu().numpy())
            done += len(_KERNELS) * count
        return np.concatenate(parts)

    def _weights(self, number: int, like: Tensor) -> Tensor:
        """Return the kernels at one dilation, 0 for channels that they do not use: (84, channels, 9)."""
        weights = torch.full((len(_KERNELS), 1, _LENGTH), -1.0, dtype=torch.float32)
        weights.scatter_(2, torch.tensor(_KERNELS)[:, None, :], 2.0)
        return (weights * torch.as_tensor(self.channels_[number])[:, :, None]).to(like)

    def _features(self, T: Tensor) -> Tensor:
        rows = max(1, _CHUNK_BYTES // (len(_KERNELS) * T.shape[2] * T.element_size()))
        return torch.cat([self._shares(part) for part in torch.split(T, rows)])

    def _shares(self, X: Tensor) -> Tensor:
        features, done = [], 0
        for number, (dilation, count) in enumerate(zip(self._plan.dilations, self._plan.counts, strict=True)):
            outputs = _convolve(X, self._weights(number, X), dilation)
            size = len(_KERNELS) * count
            biases = torch.as_tensor(self.biases_[done : done + size]).to(X).reshape(-1, count)
            shares = X.new_empty(len(X), len(_KERNELS), count)
            for parity, cut in ((0, 0), (1, dilation * (_LENGTH // 2))):
                kernels = slice((parity + number) % 2, None, 2)
                inner = outputs[:, kernels, cut : outputs.shape[2] - cut].contiguous()
                for place in range(count):
                    above = inner > biases[kernels, place, None]
                    shares[:, kernels, place] = above.sum(dim=2).to(X.dtype) / inner.shape[2]
            features.append(shares.flatten(1))
            done += size
        return torch.cat(features, dim=1)

    def _width(self) -> int:
        return self._plan.n_features

    def _arrays(self) -> dict[str, np.ndarray]:
        return {"biases": self.biases_, "channels": self.channels_}

    def _restore(self, arrays: dict[str, np.ndarray], extra: dict[str, Any]) -> None:
        channels, length = self._sample_shape
        self._plan = _Plan.of(length, int(self.n_kernels), int(self.max_dilations))
        self.biases_, self.channels_ = arrays["biases"], arrays["channels"].astype(bool)
        expected = (len(self._plan.dilations), len(_KERNELS), channels)
        if self.biases_.shape != (self._plan.n_features,) or self.channels_.shape != expected:
            raise ValueError(f"{self.biases_.shape} biases and channels {self.channels_.shape} do not fit {expected}")


@dataclass(frozen=True)
class _Plan:
    """Exponentially spaced dilations, up to the longest kernel that fits, and the number of biases at each."""

    dilations: tuple[int, ...]
    counts: tuple[int, ...]

    @classmethod
    def of(cls, length: int, n_kernels: int, max_dilations: int) -> _Plan:
        each = n_kernels // len(_KERNELS)
        wanted = min(each, max_dilations)
        longest = np.log2((length - 1) / (_LENGTH - 1))
        dilations, times = np.unique(np.logspace(0, longest, wanted, base=2).astype(int), return_counts=True)
        counts = times * each // wanted
        # Distribute the remainder of rounding over the first dilations.
        for extra in range(each - int(counts.sum())):
            counts[extra % len(counts)] += 1
        return cls(tuple(dilations.tolist()), tuple(counts.tolist()))

    @property
    def n_features(self) -> int:
        return len(_KERNELS) * sum(self.counts)


def _channel_sets(shape: tuple[int, int], n_channels: int, generator: torch.Generator) -> np.ndarray:
    """Sample random sets of channels (d, 84, channels) with log-uniform size, so that small sets are more likely."""
    most = min(n_channels, _MOST_CHANNELS)
    powers = torch.rand(shape, generator=generator, dtype=torch.float64) * np.log2(most + 1)
    sizes = (2**powers).long().clamp(1, most)
    ranks = torch.rand(*shape, n_channels, generator=generator, dtype=torch.float32).argsort(dim=-1).argsort(dim=-1)
    chosen: np.ndarray = (ranks < sizes[:, :, None]).numpy()
    return chosen


def _convolve(X: Tensor, weights: Tensor, dilation: int) -> Tensor:
    """Convolve windows with zero padding, to outputs (b, 84, time) of the same length."""
    return conv1d(X, weights, padding=dilation * (_LENGTH // 2), dilation=dilation)
