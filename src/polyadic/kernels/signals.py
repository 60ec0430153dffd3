"""From raw windows to tensors: noise drawn where it is added, and complex coefficients to real tensors in one pass."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from polyadic.kernels import power_of_two

__all__ = ["PART_CODES", "jitter", "parts"]

PART_CODES = {"log_re_im": 0, "re_im": 1, "log_amplitude": 2, "amplitude": 3}
"""The values of `STFT.parts` that `parts` knows."""

_TILE = 2048


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
def _parts(  # type: ignore[no-untyped-def]
    Z, T, floor, squares, channels, frequencies, frames, row_step,
    CODE: tl.constexpr, FREQUENCIES: tl.constexpr, FRAMES: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    f = block * FREQUENCIES + tl.arange(0, FREQUENCIES)[None, :]
    k = tl.arange(0, FRAMES)[:, None]
    inside = (f < frequencies) & (k < frames)
    pair = tl.load(Z + row * row_step + k * frequencies + f, mask=inside, other=0)
    re = (pair & 0xFFFFFFFF).to(tl.int32).to(tl.float32, bitcast=True)
    im = (pair >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    channel = row % channels
    offset = tl.load(floor + channel)
    target = f * frames + k
    size = frequencies.to(tl.int64) * frames
    if CODE <= 1:
        if CODE == 0:
            re = tl.log(tl.abs(re) + offset)
            im = tl.log(tl.abs(im) + offset)
        first = T + ((row // channels) * 2 * channels + channel) * size
        tl.store(first + target, re, mask=inside)
        tl.store(first + channels * size + target, im, mask=inside)
        energy = tl.where(inside, re * re + im * im, 0.0)
    else:
        value = tl.sqrt(re * re + im * im)
        if CODE == 2:
            value = tl.log(value + offset)
        tl.store(T + row * size + target, value, mask=inside)
        energy = tl.where(inside, value * value, 0.0)
    total = tl.sum(tl.sum(energy, axis=1), axis=0)
    tl.store(squares + row * tl.num_programs(1) + block, total)


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
    height = power_of_two(frames)
    width = min(power_of_two(frequencies), max(_TILE // height, 4))
    blocks = triton.cdiv(frequencies, width)
    squares = torch.empty(windows, channels * blocks, dtype=torch.float32, device=T.device)
    _parts[(windows * channels, blocks)](
        Z.view(torch.int64) if Z.dtype == torch.complex64 else Z, T, floor, squares, channels, frequencies, frames,
        frames_in_row * frequencies, CODE=PART_CODES[what], FREQUENCIES=width, FRAMES=height, num_warps=4,
    )  # fmt: skip
    return squares.sum(dim=1, dtype=torch.float64)
