"""From raw windows to tensors: noise drawn where it is added, recursive filters, and an STFT that writes tensors at once."""

from __future__ import annotations

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from polyadic.kernels import power_of_two

__all__ = ["PART_CODES", "biquads", "jitter", "spectrum"]

PART_CODES = {"log_re_im": 0, "re_im": 1, "log_amplitude": 2, "amplitude": 3}
"""The values of `STFT.parts` that `spectrum` knows."""

_ROWS = 32


@triton.jit
def _scrambled(x):  # type: ignore[no-untyped-def]
    """`draws._scramble` of unsigned integers."""
    x = x ^ (x >> 16)
    x = x * 0x7FEB352D
    x = x ^ (x >> 15)
    x = x * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _uniform(key, position):  # type: ignore[no-untyped-def]
    """`draws.uniform` at a position counted from 0."""
    counter = _scrambled((position + 1).to(tl.uint32))
    return (_scrambled(key ^ counter) >> 8).to(tl.float32) * 5.9604644775390625e-08


@triton.jit
def _jitter(X, keys, out, degree, c0, c1, c2, c3, channels, length, shortest, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
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
    place = time.to(tl.float64) / tl.maximum(length - 1, 1).to(tl.float64) * (size - 1).to(tl.float64)
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
def _section(x, b0, b1, b2, a1, a2, s1, s2):  # type: ignore[no-untyped-def]
    """One sample through a second-order filter, transposed direct form II: output, and the two numbers it keeps."""
    y = b0 * x + s1
    return y, b1 * x - a1 * y + s2, b2 * x - a2 * y


@triton.jit
def _biquads(X, kind, out, filters, rows, length, ROWS: tl.constexpr):  # type: ignore[no-untyped-def]
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
    whole = length // 4 * 4
    for t in range(0, whole, 4):
        # All loads before the first store: the compiler cannot know that they touch different memory.
        x0 = tl.load(source + t, mask=inside, other=0.0)
        x1 = tl.load(source + t + 1, mask=inside, other=0.0)
        x2 = tl.load(source + t + 2, mask=inside, other=0.0)
        x3 = tl.load(source + t + 3, mask=inside, other=0.0)
        y0, s1, s2 = _section(x0, b0, b1, b2, a1, a2, s1, s2)
        y1, s1, s2 = _section(x1, b0, b1, b2, a1, a2, s1, s2)
        y2, s1, s2 = _section(x2, b0, b1, b2, a1, a2, s1, s2)
        y3, s1, s2 = _section(x3, b0, b1, b2, a1, a2, s1, s2)
        y0, u1, u2 = _section(y0, d0, d1, d2, c1, c2, u1, u2)
        y1, u1, u2 = _section(y1, d0, d1, d2, c1, c2, u1, u2)
        y2, u1, u2 = _section(y2, d0, d1, d2, c1, c2, u1, u2)
        y3, u1, u2 = _section(y3, d0, d1, d2, c1, c2, u1, u2)
        tl.store(target + t, y0, mask=inside)
        tl.store(target + t + 1, y1, mask=inside)
        tl.store(target + t + 2, y2, mask=inside)
        tl.store(target + t + 3, y3, mask=inside)
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
def _spectrum(  # type: ignore[no-untyped-def]
    X, T, cosines, sines, window, floor, squares, channels, row_step, hop, frames, frame_blocks, blocks,
    HALF: tl.constexpr, PADDED: tl.constexpr, CODE: tl.constexpr, WINDOWED: tl.constexpr, PRECISION: tl.constexpr,
    FRAMES: tl.constexpr, FREQUENCIES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    number = tl.program_id(0)
    row = (number // blocks).to(tl.int64)
    block = number % blocks
    first_frame = (block % frame_blocks) * FRAMES
    first_frequency = (block // frame_blocks) * FREQUENCIES
    k = first_frame + tl.arange(0, FRAMES)
    f = first_frequency + tl.arange(0, FREQUENCIES)
    start = X + row * row_step + (k * hop)[:, None]
    present = (k < frames)[:, None]
    re = tl.zeros([FRAMES, FREQUENCIES], dtype=tl.float32)
    im = tl.zeros([FRAMES, FREQUENCIES], dtype=tl.float32)
    highest = tl.zeros([FRAMES], dtype=tl.float32)
    # cos is even and sin is odd about the middle of a frame, so x[t] ± x[n_fft − t] halve the work.
    for first in range(0, HALF, BLOCK):
        t = first + tl.arange(0, BLOCK)[None, :]
        left = tl.load(start + t, mask=present & (t < HALF), other=0.0)
        right = tl.load(start + (2 * HALF - t), mask=present & (t < HALF) & (t > 0), other=0.0)
        if WINDOWED:
            left *= tl.load(window + t, mask=t < HALF, other=0.0)
            right *= tl.load(window + 2 * HALF - t, mask=(t < HALF) & (t > 0), other=0.0)
        place = (first + tl.arange(0, BLOCK))[:, None] * PADDED + f[None, :]
        even = left + right
        re = tl.dot(even, tl.load(cosines + place), re, input_precision=PRECISION)
        im = tl.dot(left - right, tl.load(sines + place), im, input_precision=PRECISION)
        highest += tl.sum(even * (1 - 2 * (t & 1)).to(tl.float32), axis=1)
    middle = tl.load(start + HALF + tl.arange(0, 1)[None, :], mask=present, other=0.0)
    if WINDOWED:
        middle *= tl.load(window + HALF)
    re += middle * (1 - 2 * (f & 1)).to(tl.float32)[None, :]
    highest += tl.sum(middle, axis=1) * (1 - 2 * (HALF % 2))
    channel = row % channels
    offset = tl.load(floor + channel)
    plane = (HALF + 1) * frames
    if CODE <= 1:
        target = T + ((row // channels) * 2 * channels + channel) * plane
    else:
        target = T + row * plane
    low = re * 0.0
    peak = tl.abs(highest)
    if CODE == 0:
        re = tl.log(tl.abs(re) + offset)
        im = tl.log(tl.abs(im) + offset)
        highest = tl.log(peak + offset)
        low = tl.log(low + offset)
    elif CODE >= 2:
        re = tl.sqrt(re * re + im * im)
        highest = peak
        if CODE == 2:
            re = tl.log(re + offset)
            highest = tl.log(peak + offset)
    wanted = (f < HALF)[:, None] & (k < frames)[None, :]
    place = f[:, None] * frames + k[None, :]
    re = tl.trans(re)
    tl.store(target + place, re, mask=wanted)
    energy = tl.where(wanted, re * re, 0.0)
    if CODE <= 1:
        im = tl.trans(im)
        tl.store(target + channels * plane + place, im, mask=wanted)
        energy += tl.where(wanted, im * im, 0.0)
    total = tl.sum(tl.sum(energy, axis=1), axis=0)
    if first_frequency == 0:
        last = HALF * frames + k
        tl.store(target + last, highest, mask=k < frames)
        edge = tl.where(k < frames, highest * highest, 0.0)
        if CODE <= 1:
            zero = tl.zeros([FRAMES], dtype=tl.float32)
            if CODE == 0:
                zero = tl.log(zero + offset)
            tl.store(target + channels * plane + last, zero, mask=k < frames)
            edge += tl.where(k < frames, zero * zero, 0.0)
        total += tl.sum(edge, axis=0)
    tl.store(squares + row * blocks + block, total)


@lru_cache(maxsize=8)
def _tables(n_fft: int, height: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and −sin of 2πft/n_fft for t and f below n_fft / 2, with zeros around: (height, width) each."""
    half = n_fft // 2
    angle = torch.outer(torch.arange(half), torch.arange(half)).remainder(n_fft).double() * (2 * torch.pi / n_fft)
    room = (0, width - half, 0, height - half)
    cosines, sines = (torch.nn.functional.pad(part, room) for part in (angle.cos(), -angle.sin()))
    return cosines.to(device, torch.float32), sines.to(device, torch.float32)


def spectrum(X: Tensor, T: Tensor, n_fft: int, hop: int, floor: Tensor, what: str, window: Tensor | None) -> Tensor:
    """Fill tensors with the parts of the short-time Fourier coefficients of windows, by products with a DFT matrix.

    Parameters
    ----------
    X : (N, channels, time) float32, contiguous
    T : (N, parts · channels, n_fft / 2 + 1, frames) float32, contiguous, to be filled
    n_fft : an even number
    floor : (channels,) float32
    what : a key of `PART_CODES`
    window : (n_fft,) float32, or None for a rectangular one

    Returns
    -------
    (N,) float64, the squared norm of each window's tensor
    """
    windows, channels, length = X.shape
    half, frames = n_fft // 2, T.shape[3]
    config = _shape(half, frames)
    blocks_of_frames = triton.cdiv(frames, config["FRAMES"])
    blocks = blocks_of_frames * triton.cdiv(half, config["FREQUENCIES"])
    height = triton.cdiv(half, config["BLOCK"]) * config["BLOCK"]
    padded = triton.cdiv(half, config["FREQUENCIES"]) * config["FREQUENCIES"]
    cosines, sines = _tables(n_fft, height, padded, X.device)
    squares = torch.empty(windows, channels * blocks, dtype=torch.float32, device=X.device)
    _spectrum[(windows * channels * blocks,)](
        X, T, cosines, sines, cosines if window is None else window, floor, squares, channels, length, hop, frames,
        blocks_of_frames, blocks, HALF=half, PADDED=padded, CODE=PART_CODES[what], WINDOWED=window is not None,
        PRECISION="tf32x3", **config,
    )  # fmt: skip
    return squares.sum(dim=1, dtype=torch.float64)


def _shape(half: int, frames: int) -> dict[str, int]:
    """How much of a channel's frames and frequencies one program makes."""
    return {
        "FRAMES": 32 if frames > 16 else 16,
        "FREQUENCIES": min(power_of_two(half, 16), 64),
        "BLOCK": min(power_of_two(half, 16), 32),
        "num_warps": 4,
    }
