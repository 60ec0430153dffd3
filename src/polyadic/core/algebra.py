"""Multilinear algebra on torch tensors, for any number of feature modes.

A batch `T : (N, I, J, K, …)` is only viewed as `(N, I·J·K·…)`, in the order of its modes in memory. Two matrix
products, `project` and `collect`, do all the work of the paper's alternating least squares (section 3.3 and appendix
C): every basis is computed from the result of `collect`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from polyadic._util.random_streams import integer_seed
from polyadic._util.threads import for_each, row_slices
from polyadic.errors import PolyadicError

__all__ = [
    "collect",
    "components",
    "contract",
    "gram",
    "initial_factors",
    "khatri_rao",
    "nonnegative_solve",
    "project",
    "reconstruct",
    "ridge_inverse",
    "ridge_solve",
    "squared_norms",
]


_LARGE = 2**20
_COLUMNS = 2**10
_FEWEST = 16
"""Minimum number of samples for which a convolution gives bit-identical results at any batch size."""


def khatri_rao(factors: Sequence[Tensor]) -> Tensor:
    """Compute the column-wise Kronecker product of factors (I, R), (J, R), …: (I·J·…, R), the first index slowest.

    Examples
    --------
    >>> khatri_rao([torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [5.0]])]).T
    tensor([[ 3.,  5.,  6., 10.]])
    """
    product = factors[0]
    for factor in factors[1:]:
        product = (product[:, None, :] * factor[None, :, :]).reshape(-1, factor.shape[1])
    return product


def gram(factors: Sequence[Tensor]) -> Tensor:
    """Compute the Gram matrix (R, R) of the Khatri-Rao product: the Hadamard product of the factors' Gram matrices.

    Examples
    --------
    >>> gram([torch.ones(2, 1), torch.ones(3, 1)])
    tensor([[6.]])
    """
    product = factors[0].T @ factors[0]
    for factor in factors[1:]:
        product = product * (factor.T @ factor)
    return product


def project(T: Tensor, factors: Sequence[Tensor]) -> Tensor:
    """Compute inner products of tensors (N, I, J, …) with every rank-one component: (N, R), the paper's v₁.

    Examples
    --------
    >>> project(torch.ones(1, 2, 3), [torch.ones(2, 1), torch.ones(3, 1)])
    tensor([[6.]])
    """
    samples, modes = _stored(T)
    factors = [factors[mode] for mode in modes]
    if T.device.type != "cpu" or T.dtype != torch.float32 or T.numel() < _LARGE:
        return samples @ khatri_rao(factors)
    # Correlate each sample with each component, as kernels of full length: on a CPU, torch's convolutions are up to
    # twice as fast as its products with such a narrow matrix.
    signals, kernels = samples[:, None], components(factors).flatten(1)[:, None]
    slices = row_slices(len(T), signals.shape[2], _FEWEST)
    return torch.cat(for_each(lambda rows: torch.nn.functional.conv1d(signals[rows], kernels), slices))[..., 0]


def components(factors: Sequence[Tensor]) -> Tensor:
    """Return the rank-one components of factors (I, R), (J, R), … as dense tensors: (R, I, J, …).

    Examples
    --------
    >>> components([torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [5.0]])])
    tensor([[[ 3.,  5.],
             [ 6., 10.]]])
    """
    product = factors[0].T.contiguous()
    for factor in factors[1:]:
        rows = factor.T.contiguous()
        product = product[..., None] * rows.reshape(len(rows), *[1] * (product.ndim - 1), -1)
    return product


def collect(X: Tensor, T: Tensor) -> Tensor:
    """Sum tensors (N, I, J, …) weighted by coefficients (N, R): XᵀT (R, I, J, …), which with XᵀX determines the bases.

    Examples
    --------
    >>> collect(torch.tensor([[1.0], [2.0]]), torch.ones(2, 3))
    tensor([[3., 3., 3.]])
    """
    samples, modes = _stored(T)
    shape, back = [T.shape[1 + mode] for mode in modes], [modes.index(mode) for mode in range(len(modes))]
    if T.is_cuda:
        # On a GPU, TᵀX is faster, and its memory layout, components last, suits the contractions.
        return _ordered((samples.T @ X).reshape(*shape, X.shape[1]).movedim(-1, 0), back)
    Y = T.new_empty(X.shape[1], samples.shape[1])
    # In blocks of columns, so that those of all samples stay in the CPU cache.
    width = _COLUMNS if T.numel() >= _LARGE else samples.shape[1]
    parts = list(zip(torch.split(samples, width, dim=1), torch.split(Y, width, dim=1), strict=True))
    for_each(lambda part: torch.mm(X.T, part[0], out=part[1]), parts)
    return _ordered(Y.reshape(X.shape[1], *shape), back)


def _stored(T: Tensor) -> tuple[Tensor, list[int]]:
    """Flatten samples in memory order: (N, I·J·…), and the feature modes by decreasing stride."""
    modes = _memory_order(T)
    return _ordered(T, modes).flatten(1), modes


def _memory_order(T: Tensor) -> list[int]:
    strides = T.stride()
    return sorted(range(T.ndim - 1), key=lambda mode: -strides[1 + mode])


def _ordered(T: Tensor, modes: Sequence[int]) -> Tensor:
    """Permute the feature modes to this order."""
    return T if modes == sorted(modes) else T.permute(0, *(1 + mode for mode in modes))


def contract(Y: Tensor, mode: int, factor: Tensor) -> Tensor:
    """Contract one feature mode (from 0) of every component of Y (R, I, J, …) with that component's column of a factor.

    The first and the last mode in memory are the fastest.

    Examples
    --------
    >>> contract(torch.ones(1, 2, 3), 0, torch.tensor([[1.0], [4.0]]))
    tensor([[5., 5., 5.]])
    """
    if Y.is_cuda:
        column = factor.reshape(len(factor), *[1] * (Y.ndim - 2 - mode), factor.shape[1])
        return (Y.movedim(0, -1) * column).sum(dim=mode).movedim(-1, 0)
    modes = _memory_order(Y)
    place, rest = modes.index(mode), [other for other in modes if other != mode]
    numbers, size, columns = _ordered(Y, modes), len(factor), factor.T.contiguous()[:, None]
    if place == len(rest):
        rows = numbers.reshape(len(Y), -1, size)
        if Y.device.type == "cpu" and Y.numel() >= _LARGE:
            # For long rows of odd length, numpy takes half of torch's time.
            product = torch.from_numpy(np.einsum("rms,rxs->rm", rows.numpy(), columns.numpy()))
        else:
            product = torch.bmm(columns, rows.mT)
    elif place == 0:
        product = torch.bmm(columns, numbers.reshape(len(Y), size, -1))
    else:
        before = math.prod(Y.shape[1 + other] for other in modes[:place])
        product = torch.matmul(columns[:, None], numbers.reshape(len(Y), before, size, -1))
    left = product.reshape(len(Y), *(Y.shape[1 + other] for other in rest))
    return _ordered(left, [rest.index(other) for other in sorted(rest)])


def ridge_inverse(G: Tensor, alpha: float) -> Tensor:
    """Compute (G + αI)⁻¹ of a positive semidefinite matrix (R, R), the paper's V₃, in float64.

    If the matrix is singular to the precision of `G`, a small multiple of the identity is added; if that is not enough
    (or the inverse would overflow), the pseudo-inverse is used. Both give a warning. The result is always finite.

    Examples
    --------
    >>> ridge_inverse(torch.eye(1), 1.0)
    tensor([[0.5000]])
    """
    rank = G.shape[0]
    exact = _ridged(G.double(), alpha)
    limits = torch.finfo(G.dtype)
    tolerance = 4 * rank * limits.eps
    inverse = _cholesky_inverse(exact, tolerance, limits.max)
    if inverse is not None:
        return inverse.to(G.dtype)
    if not bool(torch.isfinite(exact).all()):
        reason = "the data or the factors have overflowed; scale the data or use float64"
        if alpha == 0:
            reason = (
                "with alpha=0 the bases grow without bound where the Gram matrix is singular, as for data that are all "
                "zero, or a rank above that of the data or a batch; a positive alpha or a smaller rank avoids this. "
                "If the values in the data are very large, scale them or use float64"
            )
        raise PolyadicError(
            f"G must be finite, but holds NaN or infinity (shape {tuple(G.shape)}, {G.dtype}): {reason}"
        )
    # A compromise: a small jitter amplifies rounding errors, a large one distorts the solution.
    jitter = tolerance ** (2 / 3) * float(exact.diagonal().amax())
    inverse = _cholesky_inverse(_ridged(exact, jitter), tolerance, limits.max)
    remedy = "a small constant was added to its diagonal"
    if inverse is None:
        inverse = torch.linalg.pinv(exact, atol=limits.tiny, rtol=tolerance, hermitian=True)
        remedy = "the minimum-norm least-squares solution was used"
    # Without numbers that change from step to step, Python shows the same warning only once.
    warnings.warn(
        f"the {rank} x {rank} Gram matrix is singular at alpha={alpha:g}; {remedy}. "
        "A larger alpha or a smaller rank avoids this.",
        RuntimeWarning,
        stacklevel=2,
    )
    return inverse.to(G.dtype)


def _cholesky_inverse(matrix: Tensor, tolerance: float, largest: float) -> Tensor | None:
    """Return the inverse, or None if the matrix is singular or an entry of its inverse exceeds `largest`.

    Aᵢᵢ(A⁻¹)ᵢᵢ, the variance inflation of column i, is invariant to the scale of the columns; in a singular matrix,
    rounding makes at least one of them 1/(R·eps) or larger. The pivots are no criterion, as they depend on their order.
    """
    try:
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(matrix))
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        return None
    diagonal = inverse.diagonal()
    # NaN compares false.
    regular = float((matrix.diagonal() * diagonal).amax()) < 1 / tolerance
    # The inverse is finite here, so only a narrower type can overflow.
    narrow = largest < torch.finfo(inverse.dtype).max
    return inverse if regular and (not narrow or float(diagonal.amax()) <= largest) else None


def _ridged(G: Tensor, alpha: float) -> Tensor:
    """Return G + αI."""
    return torch.add(G, _identity(len(G), G.device), alpha=alpha)


@lru_cache(maxsize=64)
def _identity(rank: int, device: torch.device) -> Tensor:
    return torch.eye(rank, dtype=torch.float64, device=device)


def ridge_solve(G: Tensor, M: Tensor, alpha: float) -> Tensor:
    """Solve ridge least squares for the rows of M (N, R): M (G + αI)⁻¹; see `ridge_inverse` for singular matrices.

    Examples
    --------
    >>> ridge_solve(torch.eye(2), torch.tensor([[2.0, 4.0]]), 1.0)
    tensor([[1., 2.]])
    """
    # Multiply in the wider type: rounding a nearly singular inverse first would lose what cancels in the product.
    return (M.to(G.dtype) @ ridge_inverse(G, alpha)).to(M.dtype)


def reconstruct(X: Tensor, factors: Sequence[Tensor]) -> Tensor:
    """Reconstruct the dense tensors ⟦X, A, B, …⟧ (N, I, J, …) from coefficients (N, R).

    Examples
    --------
    >>> reconstruct(torch.tensor([[2.0]]), [torch.ones(2, 1), torch.ones(2, 1)])
    tensor([[[2., 2.],
             [2., 2.]]])
    """
    return (X @ khatri_rao(factors).T).reshape(X.shape[0], *(factor.shape[0] for factor in factors))


def squared_norms(T: Tensor) -> Tensor:
    """Compute the squared norm of every tensor of (N, I, J, …): (N,) float64.

    Examples
    --------
    >>> squared_norms(torch.ones(2, 3, 3))
    tensor([9., 9.], dtype=torch.float64)
    """
    samples, _ = _stored(T)
    slices = row_slices(*samples.shape)
    return torch.cat(for_each(lambda rows: torch.linalg.vector_norm(samples[rows], dim=1), slices)).double().square()


def initial_factors(
    shape: Sequence[int],
    rank: int,
    seed: int,
    dtype: torch.dtype,
    device: torch.device,
    nonnegative: bool = False,
) -> list[Tensor]:
    """Sample random bases (I, R), (J, R), … with unit-norm columns, on the CPU so that every device starts equally.

    Examples
    --------
    >>> [tuple(f.shape) for f in initial_factors((3, 4), 2, 0, torch.float32, torch.device("cpu"))]
    [(3, 2), (4, 2)]
    """
    generator = torch.Generator().manual_seed(integer_seed(seed, 0xFAC7))
    factors = [torch.randn(size, rank, dtype=torch.float64, generator=generator) for size in shape]
    factors = [factor.abs() for factor in factors] if nonnegative else factors
    return [(f / torch.linalg.vector_norm(f, dim=0)).to(device, dtype) for f in factors]


# -------------------------------------------------------------- non-negativity

PASSES = 5
"""Number of passes over all rows in a non-negative solve; the next solve starts from its result."""


def nonnegative_solve(G: Tensor, M: Tensor, start: Tensor, alpha: float, passes: int = PASSES) -> Tensor:
    """Find a non-negative F that decreases ½·tr(F(G + αI)Fᵀ) − tr(FMᵀ), from a start.

    Hierarchical alternating least squares (Cichocki and Phan, 2009): each column in turn is set to its minimum with all
    others fixed, so no pass can increase the objective. A column without weight in G and α keeps its starting value.

    Parameters
    ----------
    G : (R, R), positive semidefinite
    M, start : (I, R), right-hand sides as rows, and where to begin; the start is at least 0

    Examples
    --------
    >>> nonnegative_solve(torch.eye(2), torch.tensor([[2.0, -4.0]]), torch.zeros(1, 2), 1.0)
    tensor([[1., 0.]])
    """
    # Sequential work on small matrices is faster in numpy on the CPU than in torch or on a GPU.
    weights, right, begin = (values.cpu().double().numpy() for values in (G, M, start))
    return torch.from_numpy(nonnegative_rows(weights, right, begin, alpha, passes)).to(M)


def nonnegative_rows(G: np.ndarray, M: np.ndarray, start: np.ndarray, alpha: float, passes: int = PASSES) -> np.ndarray:
    """Run `nonnegative_solve` on float64 arrays."""
    H = G + alpha * np.eye(len(G))
    weight = H.diagonal().copy()
    scale = np.divide(1.0, weight, out=np.zeros_like(weight), where=weight > 0)[:, None]
    # With the right-hand sides below F, one product gives the minimum of a row: (−others, identity)(F, right).
    others, size = -H * scale, len(H)
    np.fill_diagonal(others, 0.0)
    weights = np.concatenate([others, np.eye(size)], axis=1)
    both = np.concatenate([start.T, M.T * scale])
    rows = [(weights[row], both[row]) for row in np.flatnonzero(weight > 0)]
    product, zero = np.empty(both.shape[1]), np.zeros(both.shape[1])
    for _ in range(passes):
        for weight_row, row in rows:
            np.dot(weight_row, both, out=product)
            np.maximum(product, zero, out=row)
    return np.ascontiguousarray(both[:size].T)
