"""Kernels for the parts of an ALS step that are slow in torch: the product over the batch, and small matrices."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import next_power_of_2

from polyadic.core.step import Term

_FIT = tl.constexpr(int(Term.FIT))
_FIT_AUGMENTED = tl.constexpr(int(Term.FIT_AUGMENTED))
_TIKHONOV = tl.constexpr(int(Term.TIKHONOV))
_SELF_SUPERVISED = tl.constexpr(int(Term.SELF_SUPERVISED))

LARGEST_PRODUCT = 2**19
"""Maximum of rows × rank², both rounded up to powers of two, for which `coefficients` is fast."""


@triton.jit
def _inverse(
    S, grams, out, product, ridge, flag, tolerance, largest,
    RANK: tl.constexpr, SIZE: tl.constexpr, MODES: tl.constexpr, SKIP: tl.constexpr, WEIGHTED: tl.constexpr,
):  # fmt: skip
    i = tl.arange(0, SIZE)[:, None]
    j = tl.arange(0, SIZE)[None, :]
    inside = (i < RANK) & (j < RANK)
    # Beyond the rank, the matrix is padded with the identity, which inversion leaves unchanged.
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
    # The sweep operator keeps the matrix symmetric, so rows equal columns, and ends with minus the inverse.
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
    """Compute `algebra.ridge_inverse` of the product of Gram matrices, without synchronising with the host.

    grams (modes, R, R) without mode `skip`, times S (R, R) if given; `limits` (2,) are the maximum of Aᵢᵢ(A⁻¹)ᵢᵢ and of
    the entries of the inverse, beyond which `flag` (1,) is set. Returns the inverse (R, R), and the product without
    ridge if there is no S; all float64.
    """
    modes, rank = grams.shape[:2]
    out = torch.empty(rank, rank, dtype=torch.float64, device=grams.device)
    product = torch.empty_like(out) if S is None else out
    size = max(next_power_of_2(rank), 4)
    _inverse[(1,)](
        out if S is None else S, grams, out, product, ridge, flag, limits, limits[1:], RANK=rank, SIZE=size,
        MODES=modes, SKIP=skip, WEIGHTED=S is not None, num_warps=min(max(size * size // 256, 1), 16),
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
    """Compute Σₖ Y[o, k, r] · factor[k, r]: (count, R) in `dtype`.

    Entry (o, k, r) of Y is at offset o · outer + k · inner + r; factor is (K, R) float32.
    """
    length, rank = factor.shape
    size = max(next_power_of_2(rank), 4)
    block = next_power_of_2(min(length, max(4096 // size, 1)))
    rows = max(min(4096 // (size * block), next_power_of_2(count)), 1)
    out = torch.empty(count, rank, dtype=dtype, device=Y.device)
    _contract[(triton.cdiv(count, rows),)](
        Y, factor, out, count, length, outer, inner, RANK=rank, SIZE=size, ROWS=rows, BLOCK=block, num_warps=4
    )
    return out


@triton.jit
def _direction(X):
    """Return `alignment.normalise` of the rows, and their norms."""
    tiny = 1.1754943508222875e-38
    big = tl.max(tl.abs(X), axis=1)
    scaled = X / tl.maximum(big, tiny)[:, None]
    norm = tl.sqrt(tl.sum(scaled * scaled, axis=1))
    return scaled / tl.maximum(norm, tiny)[:, None], big * norm


@triton.jit
def _aligned(ls, V, v2, beta, ROUNDS: tl.constexpr):
    """Run `alignment.align` from the least-squares rows."""
    X = ls
    for _ in tl.static_range(ROUNDS):
        u, norm = _direction(X)
        tangent = v2 - tl.sum(v2 * u, axis=1)[:, None] * u
        correction = tl.dot(tangent * (beta / (2 * norm))[:, None], V, input_precision="ieee")
        size = tl.sqrt(tl.sum(correction * correction, axis=1))
        meaningful = size < norm / 1.1920928955078125e-07
        X = ls - tl.where(meaningful[:, None], correction, 0.0)
    return X


@triton.jit(do_not_specialize=["batch"])
def _coefficients(
    M, ls, V, X, peak, totals, weights, batch,
    RANK: tl.constexpr, SIZE: tl.constexpr, ROWS: tl.constexpr, VIEWS: tl.constexpr, ALIGN: tl.constexpr,
    ROUNDS: tl.constexpr,
):  # fmt: skip
    row = tl.arange(0, ROWS)
    column = tl.arange(0, SIZE)
    inside = row < batch
    place = row[:, None] * RANK + column[None, :]
    mask = inside[:, None] & (column[None, :] < RANK)
    step = batch * RANK
    x = tl.load(ls + place, mask=mask, other=0.0)
    if VIEWS == 2:
        y = tl.load(ls + step + place, mask=mask, other=0.0)
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
        tl.store(totals + _SELF_SUPERVISED, tl.load(totals + _SELF_SUPERVISED) + loss)
    tl.store(X + place, x, mask=mask)
    highest = tl.max(tl.abs(x), axis=0)
    m = tl.load(M + place, mask=mask, other=0.0)
    product = tl.sum(tl.sum(x.to(tl.float64) * m.to(tl.float64), axis=1), axis=0)
    tl.store(totals + _FIT, tl.load(totals + _FIT) - 2 * product)
    if VIEWS == 2:
        tl.store(X + step + place, y, mask=mask)
        highest = tl.maximum(highest, tl.max(tl.abs(y), axis=0))
        m = tl.load(M + step + place, mask=mask, other=0.0)
        product = tl.sum(tl.sum(y.to(tl.float64) * m.to(tl.float64), axis=1), axis=0)
        tl.store(totals + _FIT_AUGMENTED, tl.load(totals + _FIT_AUGMENTED) - 2 * product)
    tl.store(peak + column, highest, mask=column < RANK)


def coefficients(
    M: Tensor, ls: Tensor, V: Tensor, weights: Tensor, totals: Tensor, views: int, align: bool, rounds: int
) -> tuple[Tensor, Tensor]:
    """Run `core.step.solve_coefficients` in one launch; add −2⟨X, M⟩ of each view and the alignment to `totals`.

    M (views · b, R) float64, ls = M·V float32, V (R, R) float64; weights (3,) float64 are β, the weight of random
    pairs, and the weight of the positive pair minus that. Returns X like ls, and the maxima of its columns (R,).
    """
    batch, rank = len(M) // views, M.shape[1]
    X = torch.empty_like(ls)
    peak = torch.empty(rank, dtype=torch.float32, device=M.device)
    rows, size = max(next_power_of_2(batch), 16), max(next_power_of_2(rank), 16)
    _coefficients[(1,)](
        M, ls, V, X, peak, totals, weights, batch, RANK=rank, SIZE=size, ROWS=rows, VIEWS=views, ALIGN=align,
        ROUNDS=rounds, num_warps=min(max(rows * size // 512, 4), 16),
    )  # fmt: skip
    return X, peak


@triton.jit(do_not_specialize=["batch"])
def _tally(
    X, product, gram, totals, energy, ridge, batch,
    RANK: tl.constexpr, SIZE: tl.constexpr, VIEWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    i = tl.arange(0, SIZE)[:, None]
    j = tl.arange(0, SIZE)[None, :]
    inside = (i < RANK) & (j < RANK)
    place = i * RANK + j
    G = tl.load(product + place, mask=inside, other=0.0)
    S = tl.zeros([SIZE, SIZE], dtype=tl.float64)
    for view in tl.static_range(VIEWS):
        part = tl.zeros([SIZE, SIZE], dtype=tl.float64)
        for begin in range(0, batch, BLOCK):
            row = begin + tl.arange(0, BLOCK)[:, None]
            x = tl.load(X + (view * batch + row) * RANK + j, mask=(row < batch) & (j < RANK), other=0.0).to(tl.float64)
            part += tl.dot(tl.trans(x), x, input_precision="ieee", out_dtype=tl.float64)
        explained = tl.sum(tl.sum(part * G, axis=1), axis=0)
        tl.store(totals + _FIT + view, tl.load(totals + _FIT + view) + explained)
        S += part
    diagonal = tl.sum(tl.where(i == j, S, 0.0), axis=1)
    r = tl.arange(0, SIZE)
    squares = tl.load(ridge) * tl.sum(diagonal, axis=0)
    tl.store(totals + _TIKHONOV, tl.load(totals + _TIKHONOV) + squares)
    tl.store(energy + r, tl.load(energy + r, mask=r < RANK, other=0.0) + diagonal, mask=r < RANK)
    tl.store(gram + place, S, mask=inside)


def tally(X: Tensor, views: int, product: Tensor, gram: Tensor, totals: Tensor, energy: Tensor, ridge: Tensor) -> None:
    """Set `gram` (R, R) to XᵀX, and add to loss and energy of the components, for coefficients X (views · b, R).

    Adds ⟨XᵀX, product⟩ of each view and α‖X‖² to `totals`, and ‖x_r‖² to energy (R,); ridge () is α. All but X are
    float64.
    """
    rank = X.shape[1]
    size = max(next_power_of_2(rank), 16)
    _tally[(1,)](
        X, product, gram, totals, energy, ridge, len(X) // views, RANK=rank, SIZE=size, VIEWS=views,
        BLOCK=min(max(1024 // size, 16), 32), num_warps=min(max(size // 8, 4), 16),
    )  # fmt: skip


@triton.jit
def _halves(A, B, C, peaks, out, J, K, width, RANK: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    e = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    r = tl.arange(0, SIZE)[None, :]
    there = (e < width)[:, None] & (r < RANK)
    product = tl.load(A + (e // (J * K))[:, None] * RANK + r, mask=there, other=0.0)
    product *= tl.load(B + ((e // K) % J)[:, None] * RANK + r, mask=there, other=0.0)
    product *= tl.load(C + (e % K)[:, None] * RANK + r, mask=there, other=0.0)
    high, low = _split(product, _column_maxima(peaks, r, RANK))
    place = out + e[:, None] * (2 * RANK) + r
    tl.store(place, high, mask=there)
    tl.store(place + RANK, low, mask=there)


@triton.jit
def _column_maxima(peaks, r, RANK: tl.constexpr):
    """Return the largest entry of each column of a Khatri-Rao product: the product of the maxima of the three bases."""
    highest = tl.load(peaks + r, mask=r < RANK, other=1.0) * tl.load(peaks + RANK + r, mask=r < RANK, other=1.0)
    highest *= tl.load(peaks + 2 * RANK + r, mask=r < RANK, other=1.0)
    return tl.where(highest > 0, highest, 1.0)


@triton.jit
def _split(x, highest):
    """Split each x into two float16 numbers: x over its column's maximum, and 2048 times the remainder."""
    x = x / highest
    high = x.to(tl.float16)
    return high, ((x - high.to(tl.float32)) * 2048).to(tl.float16)


def halves(factors: list[Tensor], peaks: Tensor) -> Tensor:
    """Compute the Khatri-Rao product of three bases, each entry split into two float16 numbers (22 bits in total).

    factors (I, R), (J, R), (K, R) with `peaks` (3, R), the largest magnitude in their columns, all float32. Returns
    (I · J · K, 2 · R) with columns scaled by the product of their peaks.
    """
    sizes, rank = [len(factor) for factor in factors], factors[0].shape[1]
    width = sizes[0] * sizes[1] * sizes[2]
    out = torch.empty(width, 2 * rank, dtype=torch.float16, device=peaks.device)
    _halves[(triton.cdiv(width, 64),)](
        *factors, peaks, out, sizes[1], sizes[2], width, RANK=rank, SIZE=next_power_of_2(rank), BLOCK=64
    )
    return out


@triton.jit(do_not_specialize=["rows", "row_blocks"])
def _project(
    T, K, out, rows, width, per, row_blocks,
    RANK: tl.constexpr, SIZE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    split = tl.program_id(0) // row_blocks
    row = (tl.program_id(0) % row_blocks) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, SIZE)
    total = tl.zeros([ROWS, SIZE], dtype=tl.float32)
    rest = tl.zeros([ROWS, SIZE], dtype=tl.float32)
    first = split * per
    start = T + (row.to(tl.int64) * (width // ALIGNED) * ALIGNED)[:, None]
    for begin in range(first, tl.minimum(first + per, width), BLOCK):
        e = begin + tl.arange(0, BLOCK)
        t = tl.load(start + e[None, :], mask=(row < rows)[:, None] & (e < width)[None, :], other=0.0)
        there = (e < width)[:, None] & (column < RANK)[None, :]
        place = K + e[:, None] * (2 * RANK) + column[None, :]
        total = tl.dot(t, tl.load(place, mask=there, other=0.0), total)
        rest = tl.dot(t, tl.load(place + RANK, mask=there, other=0.0), rest)
    total += rest / 2048
    place = (split * rows + row)[:, None] * RANK + column[None, :]
    tl.store(out + place, total, mask=(row < rows)[:, None] & (column < RANK)[None, :])


def project_halves(T: Tensor, K: Tensor) -> Tensor:
    """Compute partial sums (parts, N, R) of T·K, for `least_squares`: `algebra.project` given the Khatri-Rao product.

    T is (N, width) float16, and K the output of `halves`.
    """
    (rows, width), rank = T.shape, K.shape[1] // 2
    config = {"ROWS": 128, "BLOCK": 64, "num_warps": 8, "num_stages": 3}
    row_blocks = triton.cdiv(rows, config["ROWS"])
    splits = max(1, min(triton.cdiv(width, 4 * config["BLOCK"]), triton.cdiv(264, row_blocks)))
    per = triton.cdiv(triton.cdiv(width, splits), config["BLOCK"]) * config["BLOCK"]
    splits = triton.cdiv(width, per)
    out = torch.empty(splits, rows, rank, dtype=torch.float32, device=T.device)
    _project[(splits * row_blocks,)](
        T, K, out, rows, width, per, row_blocks, RANK=rank, SIZE=max(next_power_of_2(rank), 16),
        ALIGNED=_alignment(width), **config,
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["splits", "rows"])
def _least_squares(
    partial, peaks, V, M, out, splits, rows,
    RANK: tl.constexpr, SIZE: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    r = tl.arange(0, SIZE)
    total = tl.zeros([SIZE], dtype=tl.float64)
    for begin in range(0, splits, PARTS):
        part = begin + tl.arange(0, PARTS)[:, None]
        inside = (part < splits) & (r < RANK)[None, :]
        values = tl.load(partial + (part * rows + row) * RANK + r[None, :], mask=inside, other=0.0)
        total += tl.sum(values.to(tl.float64), axis=0)
    total *= _column_maxima(peaks, r, RANK).to(tl.float64)
    tl.store(M + row * RANK + r, total, mask=r < RANK)
    # The inverse is symmetric, so summing over a column equals summing over a row.
    inside = (r < RANK)[:, None] & (r < RANK)[None, :]
    inverse = tl.load(V + r[:, None] * RANK + r[None, :], mask=inside, other=0.0)
    solved = tl.sum(inverse * total[None, :], axis=1)
    tl.store(out + row * RANK + r, solved.to(tl.float32), mask=r < RANK)


def least_squares(partial: Tensor, V: Tensor, peaks: Tensor) -> tuple[Tensor, Tensor]:
    """Sum the output of `project_halves` to M (N, R) float64, and return it with M·V (N, R) float32.

    V (R, R) float64 is the ridge inverse; `peaks` are the scales of the columns of `halves`.
    """
    splits, rows, rank = partial.shape
    M = torch.empty(rows, rank, dtype=torch.float64, device=partial.device)
    out = torch.empty(rows, rank, dtype=torch.float32, device=partial.device)
    size = next_power_of_2(rank)
    _least_squares[(rows,)](
        partial, peaks, V, M, out, splits, rows, RANK=rank, SIZE=size,
        PARTS=min(next_power_of_2(splits), max(1024 // size, 1)),
        num_warps=min(max(size * size // 512, 1), 8),
    )  # fmt: skip
    return M, out


@triton.jit(do_not_specialize=["rows"])
def _collect(
    T, X, Y, peak, rows, width,
    RANK: tl.constexpr, SIZE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    e = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    column = tl.arange(0, SIZE)
    total = tl.zeros([BLOCK, SIZE], dtype=tl.float32)
    rest = tl.zeros([BLOCK, SIZE], dtype=tl.float32)
    highest = tl.load(peak + column, mask=column < RANK, other=1.0)
    highest = tl.where(highest > 0, highest, 1.0)[None, :]
    for begin in range(0, rows, ROWS):
        row = begin + tl.arange(0, ROWS)
        start = T + (row.to(tl.int64) * (width // ALIGNED) * ALIGNED)[:, None]
        t = tl.load(start + e[None, :], mask=(row < rows)[:, None] & (e < width)[None, :], other=0.0)
        there = (row < rows)[:, None] & (column < RANK)[None, :]
        high, low = _split(tl.load(X + row[:, None] * RANK + column[None, :], mask=there, other=0.0), highest)
        total = tl.dot(tl.trans(t), high, total)
        rest = tl.dot(tl.trans(t), low, rest)
    place = Y + e[:, None] * RANK + column[None, :]
    there = (e < width)[:, None] & (column < RANK)[None, :]
    tl.store(place, (total + rest / 2048) * highest, mask=there)


def collect(T: Tensor, X: Tensor, peak: Tensor, Y: Tensor) -> None:
    """Set Y (width, R) to TᵀX: `algebra.collect` for T (N, width) in half precision.

    X (N, R) float32 with `peak` (R,), the largest magnitude in its columns.
    """
    (rows, width), rank = T.shape, X.shape[1]
    config = {"ROWS": 64, "BLOCK": 128, "num_warps": 4, "num_stages": 3}
    _collect[(triton.cdiv(width, config["BLOCK"]),)](
        T, X, Y, peak, rows, width, RANK=rank, SIZE=max(next_power_of_2(rank), 16), ALIGNED=_alignment(width), **config,
    )  # fmt: skip


@triton.jit
def _solve(
    mttkrp, V, base, narrow, gram, peak, eta, count, RANK: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr
):
    i = tl.arange(0, SIZE)[:, None]
    j = tl.arange(0, SIZE)[None, :]
    square = (i < RANK) & (j < RANK)
    inverse = tl.load(V + i * RANK + j, mask=square, other=0.0)
    rate = tl.load(eta)
    total = tl.zeros([SIZE, SIZE], dtype=tl.float64)
    highest = tl.zeros([SIZE], dtype=tl.float32)
    for begin in range(0, count, BLOCK):
        row = begin + tl.arange(0, BLOCK)[:, None]
        there = (row < count) & (j < RANK)
        place = row * RANK + j
        solved = tl.dot(
            tl.load(mttkrp + place, mask=there, other=0.0), inverse, input_precision="ieee", out_dtype=tl.float64
        )
        old = tl.load(base + place, mask=there, other=0.0)
        new = old + rate * (solved - old)
        tl.store(base + place, new, mask=there)
        tl.store(narrow + place, new.to(tl.float32), mask=there)
        highest = tl.maximum(highest, tl.max(tl.abs(new.to(tl.float32)), axis=0))
        total += tl.dot(tl.trans(new), new, input_precision="ieee", out_dtype=tl.float64)
    tl.store(gram + i * RANK + j, total, mask=square)
    r = tl.arange(0, SIZE)
    tl.store(peak + r, highest, mask=r < RANK)


def solve(mttkrp: Tensor, V: Tensor, base: Tensor, narrow: Tensor, gram: Tensor, peak: Tensor, eta: Tensor) -> None:
    """Move a basis (I, R) by a fraction `eta` towards its least-squares solution mttkrp·V, all float64.

    Also set `narrow` to the basis in float32, `gram` to its Gram matrix and `peak` to the maxima of its columns.
    """
    count, rank = base.shape
    size = max(next_power_of_2(rank), 16)
    _solve[(1,)](
        mttkrp, V, base, narrow, gram, peak, eta, count, RANK=rank, SIZE=size, BLOCK=min(max(1024 // size, 16), 32),
        num_warps=min(max(size // 8, 4), 8),
    )  # fmt: skip


def _alignment(width: int) -> int:
    """Return the alignment of the starts of rows, in elements."""
    return next(step for step in (8, 4, 2, 1) if width % step == 0)
