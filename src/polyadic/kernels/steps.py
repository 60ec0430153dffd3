"""The parts of an ALS step that torch has no fast way for: the first product over the batch, and all that is small."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from polyadic.kernels import power_of_two

__all__ = ["LARGEST_TILE", "coefficients", "contract", "inverse", "project", "tally"]

LARGEST_TILE = 2**15
"""Rows times components, both rounded up to powers of two, that `coefficients` can hold."""


@triton.jit
def _inverse(
    S, grams, out, product, ridge, flag, tolerance, largest,
    RANK: tl.constexpr, SIZE: tl.constexpr, MODES: tl.constexpr, SKIP: tl.constexpr, WEIGHTED: tl.constexpr,
):  # fmt: skip
    i = tl.arange(0, SIZE)[:, None]
    j = tl.arange(0, SIZE)[None, :]
    inside = (i < RANK) & (j < RANK)
    # Beyond the rank the matrix is the identity, which stays what it is.
    H = tl.where(inside, 1.0, 0.0).to(tl.float64)
    if WEIGHTED:
        H = tl.load(S + i * RANK + j, mask=inside, other=0.0)
    for mode in tl.static_range(MODES):
        if mode != SKIP:
            H = H * tl.load(grams + (mode * RANK + i) * RANK + j, mask=inside, other=0.0)
    if not WEIGHTED:
        tl.store(product + i * RANK + j, H, mask=inside)
    alpha = tl.load(ridge)
    H = tl.where(i == j, tl.where(inside, H + alpha, 1.0), H)
    before = tl.sum(tl.where(i == j, H, 0.0), axis=1)
    lowest = tl.max(before, axis=0)
    index = tl.arange(0, SIZE)
    # The sweep operator keeps the matrix symmetric, so a row is a column, and ends with minus the inverse.
    for k in range(RANK):
        row = tl.sum(tl.where(i == k, H, 0.0), axis=0)
        pivot = tl.sum(tl.where(index == k, row, 0.0), axis=0)
        lowest = tl.minimum(lowest, pivot)
        scale = 1.0 / pivot
        scaled = row * scale
        H = tl.where(i == k, scaled[None, :], tl.where(j == k, scaled[:, None], H - row[:, None] * scaled[None, :]))
        H = tl.where((i == k) & (j == k), -scale, H)
    H = -H
    tl.store(out + i * RANK + j, H, mask=inside)
    after = tl.sum(tl.where(i == j, H, 0.0), axis=1)
    worst = tl.max(before * after, axis=0)
    # NaN compares false, so it is not regular.
    regular = (lowest > 0) & (worst < tl.load(tolerance)) & (tl.max(after, axis=0) <= tl.load(largest))
    tl.store(flag, 1, mask=regular == 0)


def inverse(
    grams: Tensor, skip: int, ridge: Tensor, limits: Tensor, flag: Tensor, S: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """`algebra.ridge_inverse` of a Hadamard product of Grams, without a question to the host.

    Parameters
    ----------
    grams : (modes, R, R) float64, the Gram matrix of each basis
    skip : a mode to leave out, or -1
    ridge : () float64, α
    limits : (2,) float64, what diagonal entries over those of the inverse, and the inverse's own, may reach
    flag : (1,) int32, set to 1 where the matrix is singular
    S : (R, R) float64, a further factor of the product

    Returns
    -------
    the inverse (R, R) float64, and without S the product before the ridge was added
    """
    modes, rank = grams.shape[:2]
    out = torch.empty(rank, rank, dtype=torch.float64, device=grams.device)
    product = torch.empty_like(out) if S is None else out
    size = power_of_two(rank, 4)
    _inverse[(1,)](
        out if S is None else S, grams, out, product, ridge, flag, limits, limits[1:], RANK=rank, SIZE=size,
        MODES=modes, SKIP=skip, WEIGHTED=S is not None, num_warps=min(max(size * size // 1024, 1), 16),
    )  # fmt: skip
    return out, product


@triton.jit
def _contract(
    Y, W, out, count, length, outer, inner,
    RANK: tl.constexpr, SIZE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    o = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None, None]
    r = tl.arange(0, SIZE)[None, None, :]
    total = tl.zeros([ROWS, SIZE], dtype=tl.float64)
    for first in range(0, length, BLOCK):
        k = first + tl.arange(0, BLOCK)[None, :, None]
        inside = (o < count) & (k < length) & (r < RANK)
        y = tl.load(Y + o.to(tl.int64) * outer + k.to(tl.int64) * inner + r, mask=inside, other=0.0)
        w = tl.load(W + k * RANK + r, mask=(k < length) & (r < RANK), other=0.0)
        total += tl.sum(y.to(tl.float32) * w, axis=1).to(tl.float64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, SIZE)[None, :]
    tl.store(out + row * RANK + column, total.to(out.dtype.element_ty), mask=(row < count) & (column < RANK))


def contract(Y: Tensor, factor: Tensor, count: int, outer: int, inner: int, dtype: torch.dtype) -> Tensor:
    """Weighted sums over one mode of an array whose last index counts the components.

    Parameters
    ----------
    Y : numbers whose entry (o, k, r) lies at o · outer + k · inner + r
    factor : (K, R) float32, the weights
    count : how many o there are

    Returns
    -------
    (count, R) in `dtype`, Σₖ Y[o, k, r] · factor[k, r]
    """
    length, rank = factor.shape
    size = power_of_two(rank, 4)
    block = power_of_two(min(length, max(4096 // size, 1)))
    rows = max(min(4096 // (size * block), power_of_two(count)), 1)
    out = torch.empty(count, rank, dtype=dtype, device=Y.device)
    _contract[(triton.cdiv(count, rows),)](
        Y, factor, out, count, length, outer, inner, RANK=rank, SIZE=size, ROWS=rows, BLOCK=block, num_warps=4
    )
    return out


@triton.jit
def _direction(X):
    """`alignment.normalise`, and the norms."""
    tiny = 1.1754943508222875e-38
    big = tl.max(tl.abs(X), axis=1)
    scaled = X / tl.maximum(big, tiny)[:, None]
    norm = tl.sqrt(tl.sum(scaled * scaled, axis=1))
    return scaled / tl.maximum(norm, tiny)[:, None], big * norm


@triton.jit
def _aligned(ls, V, v2, beta, ROUNDS: tl.constexpr):
    """`alignment.align` from the least-squares rows."""
    X = ls
    for _ in tl.static_range(ROUNDS):
        u, norm = _direction(X)
        tangent = v2 - tl.sum(v2 * u, axis=1)[:, None] * u
        correction = tl.dot(tangent * (beta / (2 * norm))[:, None], V, input_precision="ieee")
        size = tl.sqrt(tl.sum(correction * correction, axis=1))
        meaningful = size < norm / 1.1920928955078125e-07
        X = ls - tl.where(meaningful[:, None], correction, 0.0)
    return X


@triton.jit
def _coefficients(
    M, ls, V, X, exact, totals, weights, batch,
    RANK: tl.constexpr, SIZE: tl.constexpr, ROWS: tl.constexpr, VIEWS: tl.constexpr, ALIGN: tl.constexpr,
    ROUNDS: tl.constexpr,
):  # fmt: skip
    row = tl.arange(0, ROWS)
    column = tl.arange(0, SIZE)
    inside = row < batch
    place = row[:, None] * RANK + column[None, :]
    mask = inside[:, None] & (column[None, :] < RANK)
    step = batch * RANK
    x = tl.load(ls + place, mask=mask, other=0.0).to(tl.float32)
    if VIEWS == 2:
        y = tl.load(ls + step + place, mask=mask, other=0.0).to(tl.float32)
    if ALIGN:
        beta = tl.load(weights)
        random = tl.load(weights + 1).to(tl.float32)
        own = tl.load(weights + 2).to(tl.float32)
        k = tl.arange(0, SIZE)[:, None]
        narrow = tl.load(V + k * RANK + column[None, :], mask=(k < RANK) & (column[None, :] < RANK), other=0.0)
        narrow = narrow.to(tl.float32)
        u, _ = _direction(y)
        x = _aligned(x, narrow, random * tl.sum(u, axis=0)[None, :] + own * u, beta.to(tl.float32), ROUNDS)
        u, _ = _direction(x)
        y = _aligned(y, narrow, random * tl.sum(u, axis=0)[None, :] + own * u, beta.to(tl.float32), ROUNDS)
        w, _ = _direction(y)
        pairs = tl.sum(tl.sum(u.to(tl.float64) * w.to(tl.float64), axis=1), axis=0)
        sums = tl.sum(tl.sum(u.to(tl.float64), axis=0) * tl.sum(w.to(tl.float64), axis=0), axis=0)
        loss = beta * (tl.load(weights + 1) * sums + tl.load(weights + 2) * pairs)
        tl.store(totals + 3, tl.load(totals + 3) + loss)
    tl.store(X + place, x, mask=mask)
    tl.store(exact + place, x.to(tl.float64), mask=mask)
    m = tl.load(M + place, mask=mask, other=0.0)
    product = tl.sum(tl.sum(x.to(tl.float64) * m.to(tl.float64), axis=1), axis=0)
    tl.store(totals, tl.load(totals) - 2 * product)
    if VIEWS == 2:
        tl.store(X + step + place, y, mask=mask)
        tl.store(exact + step + place, y.to(tl.float64), mask=mask)
        m = tl.load(M + step + place, mask=mask, other=0.0)
        product = tl.sum(tl.sum(y.to(tl.float64) * m.to(tl.float64), axis=1), axis=0)
        tl.store(totals + 1, tl.load(totals + 1) - 2 * product)


def coefficients(
    M: Tensor, V: Tensor, weights: Tensor, totals: Tensor, views: int, align: bool, rounds: int
) -> tuple[Tensor, Tensor]:
    """`als.solve_coefficients` in one launch; adds −2⟨X, M⟩ of each view and the self-supervised loss to `totals`.

    Parameters
    ----------
    M : (views · b, R) float64
    V : (R, R) float64
    weights : (3,) float64: β, the weight of random pairs, and that of the positive pair less the former
    totals : (5,) float64, in the order of `als.TERMS`
    align : whether β is at work

    Returns
    -------
    (views · b, R) float32, and the same in float64
    """
    batch, rank = len(M) // views, M.shape[1]
    exact = torch.empty_like(M)
    X = torch.empty_like(M, dtype=torch.float32)
    rows, size = power_of_two(batch, 16), power_of_two(rank, 16)
    _coefficients[(1,)](
        M, M @ V, V, X, exact, totals, weights, batch, RANK=rank, SIZE=size, ROWS=rows, VIEWS=views, ALIGN=align,
        ROUNDS=rounds, num_warps=min(max(rows * size // 512, 4), 16),
    )  # fmt: skip
    return X, exact


@triton.jit
def _tally(each, product, memory, totals, energy, weights, RANK: tl.constexpr, SIZE: tl.constexpr, VIEWS: tl.constexpr):
    i = tl.arange(0, SIZE)[:, None]
    j = tl.arange(0, SIZE)[None, :]
    inside = (i < RANK) & (j < RANK)
    place = i * RANK + j
    G = tl.load(product + place, mask=inside, other=0.0)
    S = tl.zeros([SIZE, SIZE], dtype=tl.float64)
    for view in tl.static_range(VIEWS):
        part = tl.load(each + view * RANK * RANK + place, mask=inside, other=0.0)
        explained = tl.sum(tl.sum(part * G, axis=1), axis=0)
        tl.store(totals + view, tl.load(totals + view) + explained)
        S += part
    diagonal = tl.sum(tl.where(i == j, S, 0.0), axis=1)
    r = tl.arange(0, SIZE)
    tl.store(totals + 2, tl.load(totals + 2) + tl.load(weights) * tl.sum(diagonal, axis=0))
    tl.store(energy + r, tl.load(energy + r, mask=r < RANK, other=0.0) + diagonal, mask=r < RANK)
    kept = tl.load(weights + 1) * tl.load(memory + place, mask=inside, other=0.0)
    tl.store(memory + place, S + kept, mask=inside)


def tally(each: Tensor, product: Tensor, memory: Tensor, totals: Tensor, energy: Tensor, weights: Tensor) -> None:
    """Book what the coefficients of a batch say: the loss, the energy of the components, the sums that are remembered.

    Parameters
    ----------
    each : (views, R, R) float64, XᵀX of each view
    product : (R, R) float64, the Gram matrix of the bases' Khatri-Rao product
    memory : (R, R) float64, becomes what it was times its weight plus the sum of `each`
    totals : (5,) float64, gets ⟨XᵀX, G⟩ of each view and α‖X‖²
    energy : (R,) float64, gets ‖x_r‖²
    weights : (2,) float64: α, and the weight of the memory
    """
    views, rank = each.shape[:2]
    size = power_of_two(rank, 4)
    _tally[(1,)](
        each, product, memory, totals, energy, weights, RANK=rank, SIZE=size, VIEWS=views,
        num_warps=min(max(size * size // 512, 1), 16),
    )  # fmt: skip


@triton.jit
def _project(
    T, K, out, rows, width, per, row_blocks,
    RANK: tl.constexpr, SIZE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, ALIGNED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    split = tl.program_id(0) // row_blocks
    row = (tl.program_id(0) % row_blocks) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, SIZE)
    total = tl.zeros([ROWS, SIZE], dtype=tl.float32)
    first = split * per
    start = T + (row.to(tl.int64) * (width // ALIGNED) * ALIGNED)[:, None]
    for begin in range(first, tl.minimum(first + per, width), BLOCK):
        e = begin + tl.arange(0, BLOCK)
        t = tl.load(start + e[None, :], mask=(row < rows)[:, None] & (e < width)[None, :], other=0.0)
        there = (e < width)[:, None] & (column < RANK)[None, :]
        k = tl.load(K + e[:, None] * RANK + column[None, :], mask=there, other=0.0)
        total = tl.dot(t, k, total, input_precision=PRECISION)
    place = (split * rows + row)[:, None] * RANK + column[None, :]
    tl.store(out + place, total, mask=(row < rows)[:, None] & (column < RANK)[None, :])


def project(T: Tensor, K: Tensor) -> Tensor:
    """T·K in float64, for a few hundred long rows: `algebra.project` with the Khatri-Rao product at hand.

    Parameters
    ----------
    T : (N, width) float32
    K : (width, R) float32

    Returns
    -------
    (N, R) float64
    """
    (rows, width), rank = T.shape, K.shape[1]
    config = {"ROWS": 128, "BLOCK": 32, "num_warps": 8, "num_stages": 3}
    row_blocks = triton.cdiv(rows, config["ROWS"])
    splits = max(1, min(triton.cdiv(width, 4 * config["BLOCK"]), triton.cdiv(264, row_blocks)))
    per = triton.cdiv(triton.cdiv(width, splits), config["BLOCK"]) * config["BLOCK"]
    splits = triton.cdiv(width, per)
    out = torch.empty(splits, rows, rank, dtype=torch.float32, device=T.device)
    _project[(splits * row_blocks,)](
        T, K, out, rows, width, per, row_blocks, RANK=rank, SIZE=power_of_two(rank, 16), ALIGNED=_alignment(width),
        PRECISION="tf32x3", **config,
    )  # fmt: skip
    return contract(out, torch.ones(splits, rank, device=T.device), rows, rank, rows * rank, torch.float64)


def _alignment(width: int) -> int:
    """By how many numbers the beginnings of rows are aligned."""
    return next(step for step in (4, 2, 1) if width % step == 0)
