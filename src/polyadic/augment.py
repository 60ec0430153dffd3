"""Class-preserving augmentations of raw windows: jitter, bandpass filtering, rotation (appendix D.3).

An augmentation maps a batch (b, channels, time) to a new batch of the same shape on the same device. Every random
choice is a function of (seed, sweep, window id), see `draws`. A `Pairing` changes no window, but names another one of
the data set as its view.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from operator import index
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import signal
from torch import Tensor

from polyadic import kernels
from polyadic.draws import derive, stream_constant, uniform, window_keys
from polyadic.errors import PolyadicError
from polyadic.inputs import check_integer, check_number
from polyadic.threads import thread_pool

__all__ = [
    "Augmentation",
    "Bandpass",
    "Compose",
    "Jitter",
    "Neighbour",
    "OneOf",
    "Pairing",
    "Rotate3D",
    "WindowIndex",
    "split_pairing",
]

_SHORTEST_NOISE = 100
_LONGEST_FUSED = 2**15
_CACHED = 2**18
"""Samples at a time, so that what becomes of them on the way stays in the caches."""
_BLOCK, _STATE = 64, 4
_ALIKE = 16
"""Of multiples of so many rows, a matrix product treats each alike, to the bit."""
_JITTER_STREAMS = (stream_constant(0), stream_constant(1), stream_constant(2), stream_constant(3))


class Augmentation(ABC):
    """The base of all augmentations: write `apply`, and draw only from the keys it is given.

    `polyadic.testing.AugmentationContract` holds the tests that every augmentation should pass.
    """

    @abstractmethod
    def apply(self, X: Tensor, keys: Tensor) -> Tensor:
        """A new batch.

        Parameters
        ----------
        X : (b, channels, time), not to be changed
        keys : (b,), a key for each window, for `draws.uniform`

        Returns
        -------
        (b, channels, time)
        """

    def __call__(self, X: Tensor, ids: Tensor | None = None, *, seed: int = 0, sweep: int = 0) -> Tensor:
        """Augment a batch.

        Parameters
        ----------
        X : (b, channels, time), floating point
        ids : (b,), the windows' numbers within the data set; by default 0 … b−1
        seed, sweep : with the ids, all that the outcome depends on

        Returns
        -------
        (b, channels, time)
        """
        if X.ndim != 3 or not X.is_floating_point():
            raise PolyadicError(
                f"{type(self).__name__} needs a floating-point batch (windows, channels, time), but X has shape "
                f"{tuple(X.shape)} and type {X.dtype}"
            )
        ids = torch.arange(len(X)) if ids is None else ids
        if ids.shape != X.shape[:1]:
            raise PolyadicError(f"ids must have shape ({len(X)},), one for each window, but has {tuple(ids.shape)}")
        keys = window_keys(seed, sweep, ids).to(X.device)
        if X.device.type != "cpu":
            return self.apply(X, keys)
        # In one thread: those of torch would show in the last bits, and small calls stand in each other's way.
        with thread_pool():
            return self.apply(X, keys)


def _choice(keys: Tensor, channels: int, count: int) -> Tensor:
    """One of `count` equally likely numbers for each channel: (b, channels)."""
    return (uniform(keys, (channels,)) * count).long()


@dataclass(frozen=True)
class Jitter(Augmentation):
    """Uniform noise on each channel: fast, slow, or both, with equal chance.

    Fast noise is independent from sample to sample. Slow noise is a sequence of random length, at least 100 samples (or
    all, in shorter windows) and at most the window's, stretched to the window by linear interpolation.

    Parameters
    ----------
    degree : amplitude of the noise over that of the channel, which is half its range within the window

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
        if kernels.available(X.device, X.dtype) and 1 < length <= _LONGEST_FUSED:
            return self._fused(X, keys)
        rows = max(1, _CACHED // (channels * length))
        result = torch.empty_like(X)
        for piece in zip(*(torch.split(given, rows) for given in (X, keys, result)), strict=True):
            self._plain(*piece)
        return result

    def _plain(self, X: Tensor, keys: Tensor, result: Tensor) -> None:
        channels, length = X.shape[1:]
        kind = _choice(derive(keys, 0), channels, 3)[..., None]
        fast = uniform(derive(keys, 1), (channels, length), X.dtype).mul_(2).sub_(1)
        slow = self._slow(keys, channels, length, X.dtype)
        size = (X.amax(dim=2, keepdim=True) - X.amin(dim=2, keepdim=True)).mul_(self.degree / 2)
        torch.addcmul(X, fast, size * (kind != 1), out=result).addcmul_(slow, size * (kind != 0))

    def _fused(self, X: Tensor, keys: Tensor) -> Tensor:
        """The same on a GPU, in one pass."""
        from polyadic.kernels.signals import jitter

        return jitter(X, keys, float(self.degree), _JITTER_STREAMS, min(_SHORTEST_NOISE, X.shape[2]))

    @staticmethod
    def _slow(keys: Tensor, channels: int, length: int, dtype: torch.dtype) -> Tensor:
        """Short sequences stretched to the window: (b, channels, length)."""
        shortest = min(_SHORTEST_NOISE, length)
        sizes = shortest + _choice(derive(keys, 2), channels, length - shortest + 1)
        points = uniform(derive(keys, 3), (channels, length), dtype).mul_(2).sub_(1)
        # By a tensor: a GPU divides by a number as it multiplies by its inverse, and would miss the last point.
        last = torch.full((), max(length - 1, 1), dtype=torch.float64, device=keys.device)
        steps = torch.arange(length, dtype=torch.float64, device=keys.device) / last
        position = steps * (sizes - 1)[..., None]
        left = position.long()
        fraction = position.sub_(left).to(dtype)
        near = points.gather(2, left)
        # The last sample is the last point, at a fraction of 0 from itself; no other has it on its left.
        left[..., :-1] += 1
        return near.lerp_(points.gather(2, left), fraction)


@dataclass(frozen=True)
class Bandpass(Augmentation):
    """Each channel through the first bandpass filter, the second, or one after the other, with equal chance.

    The filters are Butterworth of order 1 and start at rest at the window's first sample, as `scipy.signal.lfilter`.

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
        for low, high in self.bands:
            if not 0 < low < high < self.fs / 2:
                raise PolyadicError(
                    f"bands must satisfy 0 < low < high < fs/2 = {self.fs / 2:g} Hz, but one is ({low:g}, {high:g})"
                )

    def apply(self, X: Tensor, keys: Tensor) -> Tensor:
        kind = _choice(keys, X.shape[1], 3)
        if X.device.type == "cpu":
            return self._blocked(X, kind)
        return self._fused(X, kind) if kernels.available(X.device, X.dtype) else self._spectral(X, kind)

    def _blocked(self, X: Tensor, kind: Tensor) -> Tensor:
        """The recursive filter block by block, the fastest way on a CPU.

        What comes out of a block, and the state it leaves behind, are linear in what goes in and the state before it.
        """
        channels, filtered = X.flatten(0, 1), torch.empty_like(X.flatten(0, 1))
        for number, matrix in enumerate(_block_matrices(self)):
            rows = torch.nonzero(kind.flatten() == number)[:, 0]
            # Filled up with the first channel: the bits of a row must not depend on how many others there are.
            signals = channels.index_select(0, torch.nn.functional.pad(rows, (0, -len(rows) % _ALIKE)))
            matrix = matrix.to(X.dtype)
            state = signals.new_zeros(len(signals), _STATE)
            results = torch.empty_like(signals)
            for begin in range(0, X.shape[2], _BLOCK):
                block, result = signals[:, begin : begin + _BLOCK], results[:, begin : begin + _BLOCK]
                size = block.shape[1]
                torch.mm(block, matrix[:size, :size], out=result).addmm_(state, matrix[_BLOCK:, :size])
                state = torch.addmm(block @ matrix[:size, _BLOCK:], state, matrix[_BLOCK:, _BLOCK:])
            filtered.index_copy_(0, rows, results[: len(rows)])
        return filtered.reshape(X.shape)

    def _fused(self, X: Tensor, kind: Tensor) -> Tensor:
        """The recursive filter on a GPU, all channels of all windows side by side."""
        from polyadic.kernels.signals import biquads

        return biquads(X, kind, _sections(self, X.device))

    def _spectral(self, X: Tensor, kind: Tensor) -> Tensor:
        """By convolution with the first samples of the impulse response, which is the same thing, on any device."""
        length = X.shape[2]
        size = 2 * length
        responses = torch.as_tensor(_impulse_responses(self, length), dtype=X.dtype, device=X.device)
        spectra = torch.fft.rfft(responses, n=size)
        filtered: Tensor = torch.fft.irfft(torch.fft.rfft(X, n=size) * spectra[kind], n=size)
        return filtered[..., :length].contiguous()


@lru_cache(maxsize=32)
def _designed(bandpass: Bandpass) -> list[tuple[np.ndarray, np.ndarray]]:
    """b and a of both filters."""
    return [signal.butter(1, band, btype="bandpass", fs=bandpass.fs) for band in bandpass.bands]


@lru_cache(maxsize=32)
def _block_matrices(bandpass: Bandpass) -> Tensor:
    """From a block of samples and the filters' state before it (rows) to those after it (columns).

    Returns
    -------
    (3, block + state, block + state) float64, for the first filter, the second, and one after the other
    """
    matrices = torch.empty(3, _BLOCK + _STATE, _BLOCK + _STATE, dtype=torch.float64)
    for matrix, filters in zip(matrices, ((0,), (1,), (0, 1)), strict=True):
        given = np.eye(_BLOCK + _STATE)
        signals, states = given[:, :_BLOCK], given[:, _BLOCK:]
        for number in filters:
            own = slice(2 * number, 2 * number + 2)
            signals, states[:, own] = signal.lfilter(*_designed(bandpass)[number], signals, zi=states[:, own])
        matrix.copy_(torch.from_numpy(np.hstack([signals, states])))
    return matrices


@cache
def _sections(bandpass: Bandpass, device: torch.device) -> Tensor:
    """b₀, b₁, b₂, a₁, a₂ of both filters: (2, 5) float32; kept for good, as a GPU's graph may read them at any time."""
    return torch.tensor([[*b, *a[1:]] for b, a in _designed(bandpass)], dtype=torch.float32, device=device)


@lru_cache(maxsize=32)
def _impulse_responses(bandpass: Bandpass, length: int) -> np.ndarray:
    """First samples of the responses of the first filter, the second, and one after the other: (3, length)."""
    impulse = np.zeros(length)
    impulse[0] = 1.0
    (b1, a1), (b2, a2) = _designed(bandpass)
    first, second = signal.lfilter(b1, a1, impulse), signal.lfilter(b2, a2, impulse)
    return np.stack([first, second, signal.lfilter(b2, a2, first)])


@dataclass(frozen=True)
class Rotate3D(Augmentation):
    """Turn the coordinate system of three-axis sensors by a rotation drawn uniformly from all rotations.

    Parameters
    ----------
    triads : the channel numbers (x, y, z) of each sensor
    independent : turn each sensor by a rotation of its own; by default they sit in one device and turn together

    Examples
    --------
    >>> X = torch.randn(2, 3, 8)
    >>> torch.allclose(Rotate3D([(0, 1, 2)])(X).square().sum(1), X.square().sum(1), atol=1e-4)
    True
    """

    triads: Sequence[tuple[int, int, int]]
    independent: bool = False

    def __post_init__(self) -> None:
        try:
            triads = tuple(tuple(index(channel) for channel in triad) for triad in self.triads)
        except TypeError:
            triads = ()
        channels = [channel for triad in triads for channel in triad]
        if not triads or any(len(triad) != 3 for triad in triads) or len(set(channels)) != len(channels):
            raise PolyadicError(f"triads must be groups of three different channels, but are {self.triads!r}")
        if min(channels) < 0:
            raise PolyadicError(f"triads must name channels from 0 on, but are {self.triads!r}")
        object.__setattr__(self, "triads", triads)

    def apply(self, X: Tensor, keys: Tensor) -> Tensor:
        highest = max(channel for triad in self.triads for channel in triad)
        if highest >= X.shape[1]:
            raise PolyadicError(f"triads name channel {highest}, but X has only {X.shape[1]} channels")
        return self._fused(X, keys) if kernels.available(X.device, X.dtype) else self._plain(X, keys)

    def _fused(self, X: Tensor, keys: Tensor) -> Tensor:
        """The same on a GPU, in one pass."""
        from polyadic.kernels.signals import rotate

        return rotate(X, keys, _channels(self, X.device), self.independent)

    def _plain(self, X: Tensor, keys: Tensor) -> Tensor:
        count = len(self.triads) if self.independent else 1
        rotation = _rotations(uniform(keys, (count, 3), torch.float64)).to(X.dtype)
        # What turns alike is turned by one product: all x, all y, all z; or the three of each sensor, each on its own.
        numbers = _channels(self, X.device)
        order = (numbers if self.independent else numbers.T).flatten()
        sensors = X.index_select(1, order).reshape(len(X) * count, 3, len(order) // 3 // count * X.shape[2])
        turned = torch.bmm(rotation.flatten(0, 1), sensors).reshape(len(X), len(order), X.shape[2])
        return X.clone().index_copy_(1, order, turned)


@cache
def _channels(rotate: Rotate3D, device: torch.device) -> Tensor:
    """The channels of all triads: (triads, 3); kept for good, as a GPU's graph may read them at any time."""
    return torch.tensor(rotate.triads, device=device)


def _rotations(u: Tensor) -> Tensor:
    """Uniformly distributed rotation matrices from three uniform numbers each, by unit quaternions (Shoemake 1992).

    u : (…, 3), returns (…, 3, 3)
    """
    angles = 2 * torch.pi * u[..., 1:]
    radii = torch.stack([1 - u[..., 0], u[..., 0]], dim=-1).sqrt_()
    # x and z, y and w of a quaternion; the entries of its matrix are sums of their products.
    q = torch.cat([radii * angles.sin(), radii * angles.cos()], dim=-1)
    products = (q[..., :, None] * q[..., None, :]).flatten(-2)
    return (products @ _quadratic(u.device)).reshape(*u.shape[:-1], 3, 3)


@cache
def _quadratic(device: torch.device) -> Tensor:
    """From the products of (x, z, y, w) to the entries of a rotation matrix: (16, 9) float64."""
    x, z, y, w = range(4)
    table = torch.zeros(4, 4, 3, 3, dtype=torch.float64)
    for one, (i, j, k) in zip((x, y, z), ((0, 1, 2), (1, 2, 0), (2, 0, 1)), strict=True):
        table[one, one, i, i] = table[w, w, i, i] = 1
        table[one, one, j, j] = table[one, one, k, k] = -1
        table[w, one, k, j], table[w, one, j, k] = 2, -2
    for a, b, i, j in ((x, y, 0, 1), (y, z, 1, 2), (x, z, 0, 2)):
        table[a, b, i, j] = table[a, b, j, i] = 2
    return table.reshape(16, 9).to(device)


@dataclass(frozen=True)
class Compose(Augmentation):
    """One augmentation after the other, as the paper applies its own.

    Parameters
    ----------
    steps : the augmentations, in order; a `Pairing` may only come first

    Examples
    --------
    >>> Compose([Jitter(0.01), Bandpass([(1, 20), (5, 24)], fs=50)])(torch.randn(4, 9, 128)).shape
    torch.Size([4, 9, 128])
    """

    steps: Sequence[Augmentation]

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", _checked(self.steps))
        _refuse_pairing(self.steps[1:], "may only come first in Compose")

    def apply(self, X: Tensor, keys: Tensor) -> Tensor:
        for number, augmentation in enumerate(self.steps):
            X = augmentation.apply(X, derive(keys, number))
        return X


@dataclass(frozen=True)
class OneOf(Augmentation):
    """For each window one of several augmentations, with equal chance.

    Parameters
    ----------
    choices : the augmentations, none of them a `Pairing`

    Examples
    --------
    >>> OneOf([Jitter(0.01), Rotate3D([(0, 1, 2)])])(torch.randn(4, 3, 128)).shape
    torch.Size([4, 3, 128])
    """

    choices: Sequence[Augmentation]

    def __post_init__(self) -> None:
        object.__setattr__(self, "choices", _checked(self.choices))
        _refuse_pairing(self.choices, "cannot be a choice of OneOf")

    def apply(self, X: Tensor, keys: Tensor) -> Tensor:
        chosen = (uniform(derive(keys, -1), ()) * len(self.choices)).long()
        result = torch.empty_like(X)
        for number, augmentation in enumerate(self.choices):
            rows = chosen == number
            if rows.any():
                result[rows] = augmentation.apply(X[rows], derive(keys, number)[rows])
        return result


def _checked(augmentations: Sequence[Augmentation]) -> tuple[Augmentation, ...]:
    members = tuple(augmentations)
    wrong = [member for member in members if not isinstance(member, Augmentation)]
    if wrong or not members:
        raise PolyadicError(f"expected one or more augmentations, but got {wrong[0] if wrong else 'none'!r}")
    return members


# ------------------------------------------------------------ other windows as views


@dataclass(frozen=True, eq=False)
class WindowIndex:
    """Where the windows of a data set lie in time, by which a `Pairing` finds partners.

    Parameters
    ----------
    recording : (N,) whole numbers, the same for windows of the same recording; below 0 where it is not known
    start : (N,), the window's first sample within its recording; below 0 where it is not known
    length : samples in a window
    fs : sampling rate in Hz, or None where it is not known

    Examples
    --------
    >>> index = WindowIndex([0, 0, 0, 1], start=[0, 50, 100, 0], length=100, fs=50)
    >>> Neighbour().partners(index, torch.arange(4))
    tensor([ 2, -1, -1, -1])
    """

    recording: NDArray[np.int64]
    start: NDArray[np.int64]
    length: int
    fs: float | None = None

    def __post_init__(self) -> None:
        check_integer("length", self.length, 1)
        check_number("fs", self.fs, 0, none=True)
        if self.fs == 0:
            raise PolyadicError("fs must be a positive sampling rate in Hz, but is 0")
        for name in ("recording", "start"):
            column = np.asarray(getattr(self, name))
            if column.ndim != 1 or (column.dtype.kind not in "iu" and column.size):
                raise PolyadicError(
                    f"{name} must be a column of whole numbers, but has shape {column.shape} and type {column.dtype}"
                )
            object.__setattr__(self, name, column.astype(np.int64))
        if len(self.recording) != len(self.start):
            raise PolyadicError(
                f"recording and start must have one entry per window, but have {len(self.recording)} and "
                f"{len(self.start)}"
            )

    @classmethod
    def of(cls, X: Any) -> WindowIndex:
        """The index of `Windows` or of a store.

        Raises
        ------
        PolyadicError : if nothing is known about recordings and starts, as with plain arrays
        """
        columns = getattr(X, "index", None)
        if not (hasattr(columns, "recording") and hasattr(columns, "start") and hasattr(columns, "names")):
            raise PolyadicError(
                "partner windows are found by recording and start, which plain arrays do not have, but X is of type "
                f"{type(X).__name__}: use polyadic.data.Windows(X, fs, recording=..., start=...) or a store"
            )
        assert columns is not None
        named = np.asarray(columns.names) != ""
        recording = np.where(named[columns.recording], columns.recording, -1)
        if not ((recording >= 0) & (columns.start >= 0)).any():
            raise PolyadicError(
                "partner windows are found by recording and start, but no window of X has both: use "
                "polyadic.data.Windows(X, fs, recording=..., start=...)"
            )
        return cls(recording, columns.start, int(X.shape[-1]), X.fs)

    def __len__(self) -> int:
        return len(self.recording)

    @cached_property
    def _timeline(self) -> _Timeline:
        """All recordings one after the other, so that one sorted array serves the search in any of them."""
        known = np.flatnonzero((self.recording >= 0) & (self.start >= 0))
        # Sorting is stable: of windows that start together the first in the data set stays first.
        rows = known[np.lexsort((self.start[known], self.recording[known]))]
        recording, start = self.recording[rows], self.start[rows]
        first = np.flatnonzero(np.diff(recording, prepend=-1))
        last = np.append(first[1:], len(rows))[: len(first)] - 1
        spans = start[last] - start[first] + 1
        if spans.sum(dtype=np.float64) > _FAR:
            raise PolyadicError(f"start must be a sample within the recording, but reaches {int(start.max())}")
        shift = np.cumsum(spans) - spans - start[first]
        times = start + np.repeat(shift, last - first + 1)
        of_window = np.full(len(self), -1)
        of_window[rows] = times
        return _Timeline(rows, times, of_window)


_FAR = 2**62


class _Timeline(NamedTuple):
    """Windows in order (n,), their times (n,), and the time of every window or -1 where it is not known (N,)."""

    rows: NDArray[np.intp]
    times: NDArray[np.int64]
    of_window: NDArray[np.int64]


class Pairing(Augmentation):
    """The base of augmentations whose view of a window is another window: write `partners`.

    Whoever reads the windows reads the partners, too; `split_pairing` says which. Views are then other rows of the
    data, so a GPU cannot capture this step in a graph. `polyadic.testing.PairingContract` holds the tests that every
    pairing should pass.
    """

    @abstractmethod
    def partners(self, index: WindowIndex, ids: Tensor) -> Tensor:
        """The partners of some windows.

        Parameters
        ----------
        index : of all windows
        ids : (b,), whole numbers from 0 to N − 1

        Returns
        -------
        (b,) int64, the partners' numbers, −1 for a window without one
        """

    def apply(self, X: Tensor, keys: Tensor) -> Tensor:
        raise PolyadicError(
            f"{type(self).__name__} names partner windows and cannot transform a batch: use it where partners are "
            "read, with windows whose recording and start are known"
        )


@dataclass(frozen=True)
class Neighbour(Pairing):
    """The next window of the same recording that does not overlap.

    It is the first that starts at least one window length and `gap` seconds after this one starts, and at most one
    length after that. Windows at the end of a recording, before an interruption, or without recording and start have
    none.

    Parameters
    ----------
    gap : seconds between the end of a window and the start of its partner, at least
    """

    gap: float = 0.0

    def __post_init__(self) -> None:
        check_number("gap", self.gap, 0)

    def partners(self, index: WindowIndex, ids: Tensor) -> Tensor:
        chosen = _checked_ids(ids, len(index))
        if self.gap > 0 and index.fs is None:
            raise PolyadicError(f"gap={self.gap:g} is in seconds, but the sampling rate of the windows is not known")
        # Rounded, because 0.3 s at 10 Hz are three samples, whatever the product says.
        pause = round(self.gap * (index.fs or 0.0), 6)
        least, most = index.length + math.ceil(pause), 2 * index.length + math.floor(pause)
        rows, times, of_window = index._timeline
        if not len(rows) or least > _FAR:
            return torch.full((len(chosen),), -1)
        place = np.searchsorted(times, of_window[chosen] + least)
        found = rows[np.minimum(place, len(rows) - 1)]
        valid = (
            (of_window[chosen] >= 0)
            & (place < len(rows))
            & (index.recording[found] == index.recording[chosen])
            & (index.start[found] - index.start[chosen] <= most)
        )
        return torch.from_numpy(np.where(valid, found, -1).astype(np.int64))


def _checked_ids(ids: Tensor, count: int) -> NDArray[np.int64]:
    chosen = torch.as_tensor(ids).cpu().numpy()
    if chosen.ndim != 1 or (chosen.dtype.kind not in "iu" and chosen.size):
        raise PolyadicError(f"ids must be a column of whole numbers, but has shape {chosen.shape}, type {chosen.dtype}")
    if chosen.size and not 0 <= chosen.min() <= chosen.max() < count:
        raise PolyadicError(f"ids must lie between 0 and {count - 1}, but reach from {chosen.min()} to {chosen.max()}")
    return chosen.astype(np.int64)


def split_pairing(augment: Any) -> tuple[Pairing | None, Any]:
    """What names the partner windows, and what is then to be applied to them; None for what there is not.

    Parameters
    ----------
    augment : an augmentation, any other function of a batch, or None

    Examples
    --------
    >>> split_pairing(Compose([Neighbour(), Jitter(0.05)]))
    (Neighbour(gap=0.0), Compose(steps=(Jitter(degree=0.05),)))
    >>> split_pairing(Jitter(0.05))
    (None, Jitter(degree=0.05))
    """
    if isinstance(augment, Pairing):
        return augment, None
    if not isinstance(augment, Compose):
        return None, augment
    pairing, rest = split_pairing(augment.steps[0])
    if pairing is None:
        return None, augment
    remaining = (*(() if rest is None else (rest,)), *augment.steps[1:])
    return pairing, Compose(remaining) if remaining else None


def _refuse_pairing(augmentations: Sequence[Augmentation], where: str) -> None:
    for augmentation in augmentations:
        pairing, _ = split_pairing(augmentation)
        if pairing is not None:
            raise PolyadicError(f"{type(pairing).__name__} names partner windows and {where}")
