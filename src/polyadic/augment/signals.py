"""The augmentations of the paper for raw windows: jitter, bandpass filtering, rotation (appendix D.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from operator import index

import numpy as np
import torch
from torch import Tensor

from polyadic._util.checks import check_number
from polyadic._util.random_streams import derive, stream_constant, uniform
from polyadic.augment.base import Augmentation
from polyadic.errors import PolyadicError

__all__ = ["Bandpass", "Jitter", "Rotate3D"]

_SHORTEST_NOISE = 100
_LONGEST_FUSED = 2**15
_CACHED = 2**18
"""Number of samples processed at a time, so that intermediate results stay in the CPU caches."""
_JITTER_STREAMS = (stream_constant(0), stream_constant(1), stream_constant(2), stream_constant(3))


def _draw_choice(keys: Tensor, channels: int, count: int) -> Tensor:
    """Sample one of `count` equally likely integers for each channel: (b, channels)."""
    return (uniform(keys, (channels,)) * count).long()


def _has_kernels(X: Tensor) -> bool:
    """Return whether fused kernels can augment this batch."""
    if not X.is_cuda:
        return False
    from polyadic.scale.gpu import kernels

    return kernels.available(X.device, X.dtype)


@dataclass(frozen=True)
class Jitter(Augmentation, trusted=True):
    """Add uniform noise to each channel: fast, slow, or both, with equal probability.

    Fast noise is independent from sample to sample. Slow noise is a sequence of random length, between 100 samples and
    the window length (shorter windows use their full length), interpolated linearly to the window length.

    Parameters
    ----------
    degree : amplitude of the noise relative to that of the channel, which is half its range within the window

    Examples
    --------
    >>> X = torch.randn(4, 3, 200)
    >>> (Jitter(0.05)(X) - X).abs().max() < 0.05 * (X.amax() - X.amin())
    tensor(True)
    """

    degree: float

    def __post_init__(self) -> None:
        check_number("degree", self.degree, 0)

    def apply(self, X: Tensor, keys: Tensor) -> Tensor:
        channels, length = X.shape[1:]
        if _has_kernels(X) and 1 < length <= _LONGEST_FUSED:
            from polyadic.scale.gpu.kernels.signals import jitter

            return jitter(X, keys, float(self.degree), _JITTER_STREAMS, min(_SHORTEST_NOISE, length))
        rows = max(1, _CACHED // (channels * length))
        result = torch.empty_like(X)
        for piece in zip(*(torch.split(given, rows) for given in (X, keys, result)), strict=True):
            self._by_torch(*piece)
        return result

    def _by_torch(self, X: Tensor, keys: Tensor, result: Tensor) -> None:
        channels, length = X.shape[1:]
        kind = _draw_choice(derive(keys, 0), channels, 3)[..., None]
        fast = uniform(derive(keys, 1), (channels, length), X.dtype).mul_(2).sub_(1)
        shortest = min(_SHORTEST_NOISE, length)
        sizes = shortest + _draw_choice(derive(keys, 2), channels, length - shortest + 1)
        points = uniform(derive(keys, 3), (channels, length), X.dtype).mul_(2).sub_(1)
        # Divide by a tensor: GPUs replace division by a scalar with multiplication by its inverse, and would miss
        # the last point.
        last = torch.full((), max(length - 1, 1), dtype=torch.float64, device=keys.device)
        position = torch.arange(length, dtype=torch.float64, device=keys.device) / last * (sizes - 1)[..., None]
        left = position.long()
        fraction = position.sub_(left).to(X.dtype)
        slow = points.gather(2, left)
        # The last sample coincides with the last point (fraction 0) and has no right neighbour.
        left[..., :-1] += 1
        slow.lerp_(points.gather(2, left), fraction)
        size = (X.amax(dim=2, keepdim=True) - X.amin(dim=2, keepdim=True)).mul_(self.degree / 2)
        torch.addcmul(X, fast, size * (kind != 1), out=result).addcmul_(slow, size * (kind != 0))


@dataclass(frozen=True)
class Bandpass(Augmentation, trusted=True):
    """Filter each channel with the first bandpass filter, the second, or both in sequence, with equal probability.

    The filters are first-order Butterworth and start at rest at the window's first sample, like `scipy.signal.lfilter`.

    Parameters
    ----------
    bands : two pairs (low, high) in Hz
    fs : sampling rate in Hz

    Examples
    --------
    >>> Bandpass(bands=[(1, 20), (5, 24.5)], fs=50)(torch.randn(4, 9, 128)).shape
    torch.Size([4, 9, 128])
    """

    bands: Sequence[tuple[float, float]]
    fs: float

    def __post_init__(self) -> None:
        check_number("fs", self.fs, 0)
        try:
            bands = tuple((float(low), float(high)) for low, high in self.bands)
        except (TypeError, ValueError):
            bands = ()
        if len(bands) != 2:
            raise PolyadicError(f"bands must be two pairs (low, high) in Hz, but are {self.bands!r}")
        object.__setattr__(self, "bands", bands)
        for low, high in bands:
            if not 0 < low < high < self.fs / 2:
                raise PolyadicError(
                    f"bands must satisfy 0 < low < high < fs/2 = {self.fs / 2:g} Hz, but one is ({low:g}, {high:g})"
                )

    def apply(self, X: Tensor, keys: Tensor) -> Tensor:
        kind = _draw_choice(keys, X.shape[1], 3)
        if _has_kernels(X):
            from polyadic.scale.gpu.kernels.signals import biquads

            return biquads(X, kind, _filter_sections(self, X.device))
        return self._by_scipy(X, kind)

    def _by_scipy(self, X: Tensor, kind: Tensor) -> Tensor:
        """Filter channels on the CPU, each with the filters of its kind (b, channels)."""
        from scipy.signal import lfilter

        exact = X if X.dtype == torch.float32 else X.double()
        signals, chosen = exact.flatten(0, 1).cpu().numpy(), kind.flatten().cpu().numpy()
        filtered = np.empty_like(signals)
        for number, filters in enumerate(((0,), (1,), (0, 1))):
            rows = signals[chosen == number]
            for place in filters if len(rows) else ():
                b, a = _butterworth(self)[place]
                rows = lfilter(b.astype(rows.dtype), a.astype(rows.dtype), rows)
            filtered[chosen == number] = rows
        return torch.from_numpy(filtered).reshape(X.shape).to(X)


@lru_cache(maxsize=32)
def _butterworth(bandpass: Bandpass) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the coefficients b and a of both filters."""
    from scipy import signal

    return [signal.butter(1, band, btype="bandpass", fs=bandpass.fs) for band in bandpass.bands]


@cache
def _filter_sections(bandpass: Bandpass, device: torch.device) -> Tensor:
    # Cached forever, because a CUDA graph may read them at any time.
    return torch.tensor([[*b, *a[1:]] for b, a in _butterworth(bandpass)], dtype=torch.float32, device=device)


@dataclass(frozen=True)
class Rotate3D(Augmentation, trusted=True):
    """Rotate the axes of three-axis sensors at random.

    Parameters
    ----------
    triads : channel indices (x, y, z) of each sensor; all sensors share one rotation, as in one device

    Examples
    --------
    >>> X = torch.randn(2, 3, 8)
    >>> torch.allclose(Rotate3D([(0, 1, 2)])(X).square().sum(1), X.square().sum(1), atol=1e-4)
    True
    """

    triads: Sequence[tuple[int, int, int]]

    def __post_init__(self) -> None:
        try:
            triads = tuple(tuple(index(channel) for channel in triad) for triad in self.triads)
        except TypeError:
            triads = ()
        channels = [channel for triad in triads for channel in triad]
        threes = triads and all(len(triad) == 3 for triad in triads)
        if not threes or len(set(channels)) != len(channels) or min(channels) < 0:
            raise PolyadicError(f"triads must be groups of three different channels >= 0, but are {self.triads!r}")
        object.__setattr__(self, "triads", triads)

    def apply(self, X: Tensor, keys: Tensor) -> Tensor:
        highest = max(channel for triad in self.triads for channel in triad)
        if highest >= X.shape[1]:
            raise PolyadicError(f"triads contain channel {highest}, but X has only {X.shape[1]} channels")
        order = _axes_in_order(self, X.device)
        rotation = _rotations(uniform(keys, (3,), torch.float64)).to(X.dtype)
        turned = torch.bmm(rotation, X.index_select(1, order).reshape(len(X), 3, -1))
        return X.clone().index_copy_(1, order, turned.reshape(len(X), len(order), X.shape[2]))


@cache
def _axes_in_order(rotate: Rotate3D, device: torch.device) -> Tensor:
    """Return the channels of all x axes, all y axes and all z axes: (3 · sensors,)."""
    # Cached forever, because a CUDA graph may read them at any time.
    return torch.tensor(rotate.triads, device=device).T.flatten()


def _rotations(u: Tensor) -> Tensor:
    """Compute uniform random rotations from three uniform numbers, via quaternions (Shoemake 1992): (b, 3, 3)."""
    near, far = (1 - u[:, :1]).sqrt(), u[:, :1].sqrt()
    first, second = 2 * torch.pi * u[:, 1:2], 2 * torch.pi * u[:, 2:]
    v = torch.cat([near * first.sin(), near * first.cos(), far * second.sin()], dim=1)
    w = (far * second.cos())[:, :, None]
    identity = torch.eye(3, dtype=u.dtype, device=u.device)
    product = torch.linalg.cross(v[:, :, None], identity[None], dim=1)  # of v and each unit vector
    square = v.square().sum(dim=1)[:, None, None]
    rotations: Tensor = (w * w - square) * identity + 2 * (v[:, :, None] * v[:, None, :] + w * product)
    return rotations
