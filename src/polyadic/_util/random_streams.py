"""Counter-based random numbers, which do not depend on the order in which they are sampled.

Every number is a hash of (seed, sweep, window id, stream, position), so the augmentation of a window does not depend on
batch size, order, number of workers or device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

_MASK64 = (1 << 64) - 1


def integer_seed(*parts: int) -> int:
    """Combine several integers to one 63-bit seed, by chained splitmix64."""
    state = 0x9E3779B97F4A7C15
    for part in parts:
        state = (state ^ (part & _MASK64)) + 0x9E3779B97F4A7C15 & _MASK64
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _MASK64
        state = (state ^ state >> 27) * 0x94D049BB133111EB & _MASK64
        state ^= state >> 31
    return state >> 1


def _int32(value: int) -> int:
    """Return the low 32 bits of a Python integer, as a signed int32."""
    return (value & 0xFFFFFFFF) - ((value & 0x80000000) << 1)


def _scramble(x: Tensor) -> Tensor:
    """Hash every int32 in place (two multiply-xorshift rounds)."""
    if x.device.type == "cpu":  # numpy has unsigned integers and less overhead per call
        words = x.numpy().view(np.uint32)
        words ^= words >> 16
        words *= 0x7FEB352D
        words ^= words >> 15
        words *= 0x846CA68B
        words ^= words >> 16
        return x
    # torch shifts int32 arithmetically, so the copied sign bits are masked away.
    x ^= (x >> 16).bitwise_and_(0xFFFF)
    x *= 0x7FEB352D
    x ^= (x >> 15).bitwise_and_(0x1FFFF)
    x *= _int32(0x846CA68B)
    x ^= (x >> 16).bitwise_and_(0xFFFF)
    return x


def window_keys(seed: int, sweep: int, ids: Tensor) -> Tensor:
    """Return one key per window, which determines all its random numbers in this sweep: (b,) indices to (b,) int32.

    Examples
    --------
    >>> window_keys(0, 0, torch.tensor([4, 5]))[1] == window_keys(0, 0, torch.tensor([5]))[0]
    tensor(True)
    """
    base = integer_seed(seed, sweep)
    low = (ids & 0xFFFFFFFF).to(torch.int64)
    high = ids.to(torch.int64) >> 32
    keys = ((low ^ (base & 0xFFFFFFFF)) << 32 >> 32).to(torch.int32)
    return _scramble(_scramble(keys) + _int32(base >> 32) ^ high.to(torch.int32))


def derive(keys: Tensor, stream: int) -> Tensor:
    """Derive keys for one of several independent random streams of the same windows: (b,) int32 to (b,) int32."""
    return _scramble(keys ^ stream_constant(stream))


def stream_constant(stream: int) -> int:
    """Return the int32 constant that `derive` mixes into the keys for a stream."""
    return _int32(integer_seed(stream))


def uniform(keys: Tensor, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """Sample uniform numbers in [0, 1) with 24 random bits, on the device of the keys: (b,) int32 to (b, *shape)."""
    counters = _scramble(torch.arange(1, math.prod(shape) + 1, dtype=torch.int32, device=keys.device))
    bits = _scramble(keys[:, None] ^ counters[None, :])
    if keys.device.type == "cpu":
        words = bits.numpy().view(np.uint32)
        words >>= 8
    else:
        bits = (bits >> 8).bitwise_and_(0xFFFFFF)
    return bits.to(dtype).mul_(2.0**-24).reshape(len(keys), *shape)


def permutation(count: int, seed: int, sweep: int) -> Tensor:
    """Return the order in which a sweep visits the windows: (count,) int64, on the CPU."""
    generator = torch.Generator().manual_seed(integer_seed(seed, sweep, 0x0DE2))
    return torch.randperm(count, generator=generator)
