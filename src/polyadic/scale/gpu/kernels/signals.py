"""Kernels that augment raw windows: noise and filters.

Sizes that vary only in a short last batch are not specialised, to avoid recompilation.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor
from triton import next_power_of_2

_ROWS = 32


@triton.jit
def _scrambled(x):
    """Compute `draws._scramble` of unsigned integers."""
    x = x ^ (x >> 16)
    x = x * 0x7FEB352D
    x = x ^ (x >> 15)
    x = x * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _uniform(key, position):
    """Compute `draws.uniform` at a position counted from 0."""
    counter = _scrambled((position + 1).to(tl.uint32))
    return (_scrambled(key ^ counter) >> 8).to(tl.float32) * 5.9604644775390625e-08


def rows(X: Tensor) -> tuple[Tensor, int]:
    """Return a batch with a constant stride between channels, and that stride."""
    step = X.stride(1)
    if X.stride() != (X.shape[1] * step, step, 1):
        # The stride of a single channel is arbitrary, even in a contiguous batch.
        return X.contiguous(), X.shape[2]
    return X, step


def _empty(X: Tensor) -> Tensor:
    """Allocate a batch of the same shape, with channels of long windows padded so that frames are aligned."""
    length = X.shape[2]
    return X.new_empty(*X.shape[:2], length if length < 512 else -(-length // 128) * 128)[..., :length]


@triton.jit
def _lowest_and_highest(x, length, BLOCK: tl.constexpr):
    """Return the lowest and the highest of `length` samples."""
    low = tl.full([BLOCK], float("inf"), dtype=tl.float32)
    high = -low
    for begin in range(0, length, BLOCK):
        time = begin + tl.arange(0, BLOCK)
        low = tl.minimum(low, tl.load(x + time, mask=time < length, other=float("inf")))
        high = tl.maximum(high, tl.load(x + time, mask=time < length, other=float("-inf")))
    return tl.min(low, axis=0), tl.max(high, axis=0)


@triton.jit
def _jitter(X, keys, out, degree, c0, c1, c2, c3, channels, length, step, out_step, shortest, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    channel = (row % channels).to(tl.int32)
    key = tl.load(keys + row // channels).to(tl.uint32, bitcast=True)
    source = X + row * step
    low, high = _lowest_and_highest(source, length, BLOCK)
    kind = (_uniform(_scrambled(key ^ c0.to(tl.uint32, bitcast=True)), channel) * 3).to(tl.int32)
    spread = (length - shortest + 1).to(tl.float32)
    size = shortest + (_uniform(_scrambled(key ^ c2.to(tl.uint32, bitcast=True)), channel) * spread).to(tl.int32)
    quick = _scrambled(key ^ c1.to(tl.uint32, bitcast=True))
    stretched = _scrambled(key ^ c3.to(tl.uint32, bitcast=True))
    ratio = (size - 1).to(tl.float64) / tl.maximum(length - 1, 1).to(tl.float64)
    for begin in range(0, length, BLOCK):
        time = begin + tl.arange(0, BLOCK)
        noise = tl.zeros([BLOCK], dtype=tl.float32)
        if kind != 1:
            noise += _uniform(quick, channel * length + time) * 2 - 1
        if kind != 0:
            # The short sequence is sampled at the two points around each sample, instead of being stored.
            place = time.to(tl.float64) * ratio
            left = place.to(tl.int32)
            weight = (place - left.to(tl.float64)).to(tl.float32)
            right = tl.minimum(left + 1, size - 1)
            a = _uniform(stretched, channel * length + left) * 2 - 1
            b = _uniform(stretched, channel * length + right) * 2 - 1
            noise += tl.where(weight < 0.5, a + weight * (b - a), b - (b - a) * (1 - weight))
        x = tl.load(source + time, mask=time < length, other=0.0)
        tl.store(out + row * out_step + time, x + noise * (degree * ((high - low) / 2)), mask=time < length)


def jitter(X: Tensor, keys: Tensor, degree: float, streams: tuple[int, int, int, int], shortest: int) -> Tensor:
    """Run `augment.Jitter.apply` in one pass, with the `draws.stream_constant` of its four streams."""
    X, step = rows(X)
    batch, channels, length = X.shape
    out = _empty(X)
    block = min(next_power_of_2(length), 1024)
    _jitter[(batch * channels,)](
        X, keys, out, degree, *streams, channels, length, step, out.stride(1), shortest,
        BLOCK=block, num_warps=min(max(block // 256, 1), 4),
    )  # fmt: skip
    return out


@triton.jit
def _filter_sample(x, b0, b1, b2, a1, a2, s1, s2):
    """Filter one sample (second order, transposed direct form II); return the output and the two state variables."""
    y = b0 * x + s1
    return y, b1 * x - a1 * y + s2, b2 * x - a2 * y


@triton.jit
def _split_quarters(x, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return every fourth column, starting from the first, the second, the third and the fourth."""
    even, odd = tl.split(tl.reshape(x, [ROWS, COLUMNS // 2, 2]))
    first, third = tl.split(tl.reshape(even, [ROWS, COLUMNS // 4, 2]))
    second, fourth = tl.split(tl.reshape(odd, [ROWS, COLUMNS // 4, 2]))
    return first, second, third, fourth


@triton.jit
def _join_quarters(first, second, third, fourth, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Invert `_split_quarters`."""
    even = tl.reshape(tl.join(first, third), [ROWS, COLUMNS // 2])
    odd = tl.reshape(tl.join(second, fourth), [ROWS, COLUMNS // 2])
    return tl.reshape(tl.join(even, odd), [ROWS, COLUMNS])


@triton.jit
def _sections(x0, x1, x2, x3, b0, b1, b2, a1, a2, s1, s2):
    x0, s1, s2 = _filter_sample(x0, b0, b1, b2, a1, a2, s1, s2)
    x1, s1, s2 = _filter_sample(x1, b0, b1, b2, a1, a2, s1, s2)
    x2, s1, s2 = _filter_sample(x2, b0, b1, b2, a1, a2, s1, s2)
    x3, s1, s2 = _filter_sample(x3, b0, b1, b2, a1, a2, s1, s2)
    return x0, x1, x2, x3, s1, s2


@triton.jit
def _coefficient(filters, number, passed, otherwise):
    # A filter that does not apply to a row gets coefficients that leave the row unchanged.
    return tl.where(passed, tl.load(filters + number), otherwise)[:, None]


@triton.jit(do_not_specialize=["rows"])
def _biquads(X, kind, out, filters, rows, length, step, out_step, ROWS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    chosen = tl.load(kind + row, mask=row < rows, other=0)
    b0 = _coefficient(filters, 0, chosen != 1, 1.0)
    b1 = _coefficient(filters, 1, chosen != 1, 0.0)
    b2 = _coefficient(filters, 2, chosen != 1, 0.0)
    a1 = _coefficient(filters, 3, chosen != 1, 0.0)
    a2 = _coefficient(filters, 4, chosen != 1, 0.0)
    d0 = _coefficient(filters, 5, chosen != 0, 1.0)
    d1 = _coefficient(filters, 6, chosen != 0, 0.0)
    d2 = _coefficient(filters, 7, chosen != 0, 0.0)
    c1 = _coefficient(filters, 8, chosen != 0, 0.0)
    c2 = _coefficient(filters, 9, chosen != 0, 0.0)
    s1 = tl.zeros([ROWS, 1], dtype=tl.float32)
    s2 = tl.zeros([ROWS, 1], dtype=tl.float32)
    u1 = tl.zeros([ROWS, 1], dtype=tl.float32)
    u2 = tl.zeros([ROWS, 1], dtype=tl.float32)
    source = X + row.to(tl.int64)[:, None] * step
    target = out + row.to(tl.int64)[:, None] * out_step
    # Load sixteen samples of each row as one tile, so that adjacent memory is read together. Then split the tile into
    # columns, which are filtered one after the other.
    for begin in range(0, length, 16):
        time = begin + tl.arange(0, 16)[None, :]
        inside = (row < rows)[:, None] & (time < length)
        p, q, r, w = _split_quarters(tl.load(source + time, mask=inside, other=0.0), ROWS, 16)
        p0, p1, p2, p3 = _split_quarters(p, ROWS, 4)
        q0, q1, q2, q3 = _split_quarters(q, ROWS, 4)
        r0, r1, r2, r3 = _split_quarters(r, ROWS, 4)
        w0, w1, w2, w3 = _split_quarters(w, ROWS, 4)
        p0, q0, r0, w0, s1, s2 = _sections(p0, q0, r0, w0, b0, b1, b2, a1, a2, s1, s2)
        p1, q1, r1, w1, s1, s2 = _sections(p1, q1, r1, w1, b0, b1, b2, a1, a2, s1, s2)
        p2, q2, r2, w2, s1, s2 = _sections(p2, q2, r2, w2, b0, b1, b2, a1, a2, s1, s2)
        p3, q3, r3, w3, s1, s2 = _sections(p3, q3, r3, w3, b0, b1, b2, a1, a2, s1, s2)
        p0, q0, r0, w0, u1, u2 = _sections(p0, q0, r0, w0, d0, d1, d2, c1, c2, u1, u2)
        p1, q1, r1, w1, u1, u2 = _sections(p1, q1, r1, w1, d0, d1, d2, c1, c2, u1, u2)
        p2, q2, r2, w2, u1, u2 = _sections(p2, q2, r2, w2, d0, d1, d2, c1, c2, u1, u2)
        p3, q3, r3, w3, u1, u2 = _sections(p3, q3, r3, w3, d0, d1, d2, c1, c2, u1, u2)
        p = _join_quarters(p0, p1, p2, p3, ROWS, 4)
        q = _join_quarters(q0, q1, q2, q3, ROWS, 4)
        r = _join_quarters(r0, r1, r2, r3, ROWS, 4)
        w = _join_quarters(w0, w1, w2, w3, ROWS, 4)
        tl.store(target + time, _join_quarters(p, q, r, w, ROWS, 16), mask=inside)


def biquads(X: Tensor, kind: Tensor, filters: Tensor) -> Tensor:
    """Filter each channel of X (b, channels, time) with the first filter, the second, or both in sequence, from rest.

    kind (b, channels) is 0, 1 or 2; filters (2, 5) float32 are b₀, b₁, b₂, a₁, a₂ of each, with a₀ = 1.
    """
    X, step = rows(X)
    out = _empty(X)
    count, length = X.shape[0] * X.shape[1], X.shape[2]
    _biquads[(triton.cdiv(count, _ROWS),)](
        X, kind, out, filters, count, length, step, out.stride(1), ROWS=_ROWS, num_warps=1
    )
    return out
