"""From raw windows to tensors: noise drawn where it is added, recursive filters, complex numbers to tensors."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from polyadic.kernels import power_of_two

__all__ = ["PART_CODES", "biquads", "jitter", "parts"]

PART_CODES = {"log_re_im": 0, "re_im": 1, "log_amplitude": 2, "amplitude": 3}
"""The values of `STFT.parts` that `parts` knows."""

_ROWS = 32


@triton.jit
def _scrambled(x):
    """`draws._scramble` of unsigned integers."""
    x = x ^ (x >> 16)
    x = x * 0x7FEB352D
    x = x ^ (x >> 15)
    x = x * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _uniform(key, position):
    """`draws.uniform` at a position counted from 0."""
    counter = _scrambled((position + 1).to(tl.uint32))
    return (_scrambled(key ^ counter) >> 8).to(tl.float32) * 5.9604644775390625e-08


@triton.jit
def _jitter(X, keys, out, degree, c0, c1, c2, c3, channels, length, shortest, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    channel = (row % channels).to(tl.int32)
    key = tl.load(keys + row // channels).to(tl.uint32, bitcast=True)
    time = tl.arange(0, BLOCK)
    inside = time < length
    x = tl.load(X + row * length + time, mask=inside, other=0.0)
    high = tl.max(tl.where(inside, x, float("-inf")), axis=0)
    low = tl.min(tl.where(inside, x, float("inf")), axis=0)
    kind = (_uniform(_scrambled(key ^ c0.to(tl.uint32, bitcast=True)), channel) * 3).to(tl.int32)
    spread = (length - shortest + 1).to(tl.float32)
    size = shortest + (_uniform(_scrambled(key ^ c2.to(tl.uint32, bitcast=True)), channel) * spread).to(tl.int32)
    fast = _uniform(_scrambled(key ^ c1.to(tl.uint32, bitcast=True)), channel * length + time) * 2 - 1
    # The short sequence is drawn at the two places between which a sample lies, instead of being kept.
    place = time.to(tl.float64) * ((size - 1).to(tl.float64) / tl.maximum(length - 1, 1).to(tl.float64))
    left = place.to(tl.int32)
    weight = (place - left.to(tl.float64)).to(tl.float32)
    right = tl.minimum(left + 1, size - 1)
    stretched = _scrambled(key ^ c3.to(tl.uint32, bitcast=True))
    a = _uniform(stretched, channel * length + left) * 2 - 1
    b = _uniform(stretched, channel * length + right) * 2 - 1
    slow = tl.where(weight < 0.5, a + weight * (b - a), b - (b - a) * (1 - weight))
    noise = tl.where(kind == 0, fast, slow) + tl.where(kind == 2, fast, 0.0)
    tl.store(out + row * length + time, x + noise * (degree * ((high - low) / 2)), mask=inside)


def jitter(X: Tensor, keys: Tensor, degree: float, streams: tuple[int, int, int, int], shortest: int) -> Tensor:
    """`augment.Jitter.apply` in one pass.

    Parameters
    ----------
    X : (b, channels, time) float32, contiguous
    keys : (b,) int32
    streams : the constants by which `draws.derive` makes the keys of the four streams, as int32
    shortest : samples of the shortest slow noise

    Returns
    -------
    (b, channels, time)
    """
    out = torch.empty_like(X)
    batch, channels, length = X.shape
    block = power_of_two(length)
    warps = min(max(block // 512, 1), 16)
    _jitter[(batch * channels,)](
        X, keys, out, degree, *streams, channels, length, shortest, BLOCK=block, num_warps=warps
    )
    return out


@triton.jit
def _section(x, b0, b1, b2, a1, a2, s1, s2):
    """One sample through a second-order filter, transposed direct form II: output, and the two numbers it keeps."""
    y = b0 * x + s1
    return y, b1 * x - a1 * y + s2, b2 * x - a2 * y


@triton.jit
def _four(place, inside):
    x0 = tl.load(place, mask=inside, other=0.0)
    x1 = tl.load(place + 1, mask=inside, other=0.0)
    x2 = tl.load(place + 2, mask=inside, other=0.0)
    x3 = tl.load(place + 3, mask=inside, other=0.0)
    return x0, x1, x2, x3


@triton.jit
def _sections(x0, x1, x2, x3, b0, b1, b2, a1, a2, s1, s2):
    x0, s1, s2 = _section(x0, b0, b1, b2, a1, a2, s1, s2)
    x1, s1, s2 = _section(x1, b0, b1, b2, a1, a2, s1, s2)
    x2, s1, s2 = _section(x2, b0, b1, b2, a1, a2, s1, s2)
    x3, s1, s2 = _section(x3, b0, b1, b2, a1, a2, s1, s2)
    return x0, x1, x2, x3, s1, s2


@triton.jit
def _keep_four(place, y0, y1, y2, y3, inside):
    tl.store(place, y0, mask=inside)
    tl.store(place + 1, y1, mask=inside)
    tl.store(place + 2, y2, mask=inside)
    tl.store(place + 3, y3, mask=inside)


@triton.jit
def _biquads(X, kind, out, filters, rows, length, ROWS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    chosen = tl.load(kind + row, mask=inside, other=0)
    first = chosen != 1
    second = chosen != 0
    # A filter that a row does not pass is one that changes nothing.
    b0 = tl.where(first, tl.load(filters), 1.0)
    b1 = tl.where(first, tl.load(filters + 1), 0.0)
    b2 = tl.where(first, tl.load(filters + 2), 0.0)
    a1 = tl.where(first, tl.load(filters + 3), 0.0)
    a2 = tl.where(first, tl.load(filters + 4), 0.0)
    d0 = tl.where(second, tl.load(filters + 5), 1.0)
    d1 = tl.where(second, tl.load(filters + 6), 0.0)
    d2 = tl.where(second, tl.load(filters + 7), 0.0)
    c1 = tl.where(second, tl.load(filters + 8), 0.0)
    c2 = tl.where(second, tl.load(filters + 9), 0.0)
    s1 = tl.zeros([ROWS], dtype=tl.float32)
    s2 = tl.zeros([ROWS], dtype=tl.float32)
    u1 = tl.zeros([ROWS], dtype=tl.float32)
    u2 = tl.zeros([ROWS], dtype=tl.float32)
    source = X + row.to(tl.int64) * length
    target = out + row.to(tl.int64) * length
    # Sixteen loads before the first store: the compiler cannot know that they touch different memory, and would wait.
    whole = length // 16 * 16
    for t in range(0, whole, 16):
        p0, p1, p2, p3 = _four(source + t, inside)
        q0, q1, q2, q3 = _four(source + t + 4, inside)
        r0, r1, r2, r3 = _four(source + t + 8, inside)
        w0, w1, w2, w3 = _four(source + t + 12, inside)
        p0, p1, p2, p3, s1, s2 = _sections(p0, p1, p2, p3, b0, b1, b2, a1, a2, s1, s2)
        q0, q1, q2, q3, s1, s2 = _sections(q0, q1, q2, q3, b0, b1, b2, a1, a2, s1, s2)
        r0, r1, r2, r3, s1, s2 = _sections(r0, r1, r2, r3, b0, b1, b2, a1, a2, s1, s2)
        w0, w1, w2, w3, s1, s2 = _sections(w0, w1, w2, w3, b0, b1, b2, a1, a2, s1, s2)
        p0, p1, p2, p3, u1, u2 = _sections(p0, p1, p2, p3, d0, d1, d2, c1, c2, u1, u2)
        q0, q1, q2, q3, u1, u2 = _sections(q0, q1, q2, q3, d0, d1, d2, c1, c2, u1, u2)
        r0, r1, r2, r3, u1, u2 = _sections(r0, r1, r2, r3, d0, d1, d2, c1, c2, u1, u2)
        w0, w1, w2, w3, u1, u2 = _sections(w0, w1, w2, w3, d0, d1, d2, c1, c2, u1, u2)
        _keep_four(target + t, p0, p1, p2, p3, inside)
        _keep_four(target + t + 4, q0, q1, q2, q3, inside)
        _keep_four(target + t + 8, r0, r1, r2, r3, inside)
        _keep_four(target + t + 12, w0, w1, w2, w3, inside)
    for t in range(whole, length):
        x0 = tl.load(source + t, mask=inside, other=0.0)
        y0, s1, s2 = _section(x0, b0, b1, b2, a1, a2, s1, s2)
        y0, u1, u2 = _section(y0, d0, d1, d2, c1, c2, u1, u2)
        tl.store(target + t, y0, mask=inside)


def biquads(X: Tensor, kind: Tensor, filters: Tensor) -> Tensor:
    """Every channel through the first filter, the second, or one after the other, each starting at rest.

    Parameters
    ----------
    X : (b, channels, time) float32, contiguous
    kind : (b, channels), 0 for the first filter, 1 for the second, 2 for both
    filters : (2, 5) float32: b₀, b₁, b₂, a₁, a₂ of each, with a₀ = 1

    Returns
    -------
    (b, channels, time)
    """
    out = torch.empty_like(X)
    rows, length = X.shape[0] * X.shape[1], X.shape[2]
    _biquads[(triton.cdiv(rows, _ROWS),)](X, kind, out, filters, rows, length, ROWS=_ROWS, num_warps=1)
    return out


@triton.jit
def _parts(
    Z, T, floor, squares, channels, frequencies, frames, row_step, frame_blocks, blocks,
    CODE: tl.constexpr, FREQUENCIES: tl.constexpr, FRAMES: tl.constexpr,
):  # fmt: skip
    number = tl.program_id(0)
    row = (number // blocks).to(tl.int64)
    block = number % blocks
    f = (block // frame_blocks) * FREQUENCIES + tl.arange(0, FREQUENCIES)[None, :]
    k = (block % frame_blocks) * FRAMES + tl.arange(0, FRAMES)[:, None]
    inside = (f < frequencies) & (k < frames)
    pair = tl.load(Z + row * row_step + (k * frequencies + f), mask=inside, other=0)
    re = (pair & 0xFFFFFFFF).to(tl.int32).to(tl.float32, bitcast=True)
    im = (pair >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    channel = (row % channels).to(tl.int32)
    offset = tl.load(floor + channel)
    place = tl.trans(f * frames + k)
    wanted = tl.trans(inside)
    size = (frequencies * frames).to(tl.int64)
    if CODE <= 1:
        if CODE == 0:
            re = tl.log(tl.abs(re) + offset)
            im = tl.log(tl.abs(im) + offset)
        energy = tl.where(inside, re * re + im * im, 0.0)
        first = T + ((row // channels) * 2 * channels + channel) * size
        tl.store(first + place, tl.trans(re), mask=wanted)
        tl.store(first + channels * size + place, tl.trans(im), mask=wanted)
    else:
        value = tl.sqrt(re * re + im * im)
        if CODE == 2:
            value = tl.log(value + offset)
        energy = tl.where(inside, value * value, 0.0)
        tl.store(T + row * size + place, tl.trans(value), mask=wanted)
    tl.store(squares + number, tl.sum(tl.sum(energy, axis=1), axis=0))


def parts(Z: Tensor, T: Tensor, floor: Tensor, what: str, frames_in_row: int) -> Tensor:
    """Fill tensors with the parts of complex coefficients, turned from frames × frequencies to frequencies × frames.

    Parameters
    ----------
    Z : (at least N · channels · frames_in_row less the last row's rest, frequencies) complex64, contiguous: the frames
        of each channel of each window, of which the first are wanted
    T : (N, parts · channels, frequencies, frames) float32, contiguous, to be filled
    floor : (channels,) float32
    what : a key of `PART_CODES`
    frames_in_row : frames from one channel to the next

    Returns
    -------
    (N,) float64, the squared norm of each window's tensor
    """
    count = 2 if PART_CODES[what] <= 1 else 1
    windows, stacked, frequencies, frames = T.shape
    channels = stacked // count
    config = _tile(frequencies, frames)
    frame_blocks = triton.cdiv(frames, config["FRAMES"])
    blocks = frame_blocks * triton.cdiv(frequencies, config["FREQUENCIES"])
    squares = torch.empty(windows, channels * blocks, dtype=torch.float32, device=T.device)
    _parts[(windows * channels * blocks,)](
        Z.view(torch.int64), T, floor, squares, channels, frequencies, frames, frames_in_row * frequencies,
        frame_blocks, blocks, CODE=PART_CODES[what], **config,
    )  # fmt: skip
    return squares.sum(dim=1, dtype=torch.float64)


def _tile(frequencies: int, frames: int) -> dict[str, int]:
    """How much of a channel's coefficients one program turns."""
    return {"FREQUENCIES": min(power_of_two(frequencies), 16), "FRAMES": min(power_of_two(frames), 32), "num_warps": 4}
