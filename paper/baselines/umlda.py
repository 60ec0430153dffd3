"""Uncorrelated multilinear discriminant analysis (Lu, Plataniotis, Venetsanopoulos 2009), as in appendix D.8.

Feature p of a tensor is its inner product with a rank-one tensor u⁽¹⁾∘u⁽²⁾∘…. These are found one after the other: each
maximises Fisher's criterion among those whose training coordinates are uncorrelated with the earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import linalg
from torch import Tensor

from paper.baselines.shared import SupervisedTensorBaseline, labels_of
from polyadic.core.algebra import khatri_rao
from polyadic.errors import PolyadicError

_Vectors = list[NDArray[np.float64]]
_Matrix = NDArray[np.float64]


@dataclass(eq=False, repr=False)
class UMLDA(SupervisedTensorBaseline):
    """Rank-one projections that separate the classes, with coordinates uncorrelated on the training windows.

    A projection is found by alternating over the modes: with all vectors but one fixed, the best one is the leading
    solution of a generalised eigenproblem as large as its mode, in the subspace that keeps the coordinates
    uncorrelated. The criterion, between-class over within-class scatter, never falls.

    The p-th projection has p - 1 constraints. A mode with p - 1 entries or fewer has no vector that meets them all: its
    vector is then optimised once without constraints, and only the larger modes meet them. `dim` is therefore at most
    the size of the largest mode (33 for HAR's 18 × 33 × 33) and less than the number of windows.

    Parameters
    ----------
    dim : number of projections, and of features
    tensorize : from a batch (b, channels, time) to tensors (b, I, J, …); None if the input already is a tensor
    ridge : added to the within-class variance of every entry, in units of its mean over all entries
    max_iter : maximum number of rounds over the modes for each projection
    tol : a projection has converged when a round raises its criterion by less than this fraction
    device : "auto", "cpu", "cuda", …
    random_state : not used, because nothing is random; accepted for consistency with other baselines

    Attributes
    ----------
    factors_ : the vectors as columns, matrices of shapes (I, dim), (J, dim), …; all but the last have norm 1, and the
        last is scaled so that the features have variance 1 within the classes, the ridge included
    history_ : `criterion`, Fisher's criterion with the ridge, and `rounds`, one number per projection

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> y = np.arange(60) % 3
    >>> X = rng.normal(size=(60, 4, 5)) + y[:, None, None] * rng.normal(size=(4, 5))
    >>> UMLDA(dim=3).fit(X, y).transform(X).shape
    (60, 3)
    """

    dim: int = 32
    _: KW_ONLY
    tensorize: Any = None
    ridge: float = 1.0
    max_iter: int = 30
    tol: float = 1e-3

    def _learn(self, source: Any, y: Any) -> None:
        self.classes_, codes = labels_of(y)
        problem = _Fisher(self._passes(source.samples), np.eye(len(self.classes_))[codes], self.ridge)
        limit = min(max(problem.shape), len(codes) - 1)
        if self.dim > limit:
            raise PolyadicError(f"dim must be at most {limit} for tensors {problem.shape}, but is {self.dim}")
        found: list[_Projection] = []
        for _ in range(self.dim):
            found.append(_climb(problem, found, self.max_iter, self.tol))
        self.factors_ = [np.stack(vectors, axis=1) for vectors in zip(*(one.vectors for one in found), strict=True)]
        self.factors_[-1] *= np.array([one.spread for one in found]) ** -0.5
        self.history_ = {
            "criterion": [one.criterion for one in found],
            "rounds": [float(one.rounds) for one in found],
        }


class _Projection(NamedTuple):
    """A rank-one projection with its training coordinates, of mean 0 and norm 1, and its within-class scatter."""

    vectors: _Vectors
    coordinates: _Matrix
    criterion: float
    spread: float
    rounds: int


class _Fisher:
    """Computes the scatter of partial projections, the only access of the search to the data."""

    def __init__(self, passes: Callable[[], Iterable[Tensor]], members: _Matrix, ridge: float) -> None:
        self.passes = passes
        self.members = members
        self.shares = members.mean(axis=0)
        self.shape, variance = self._variance_within()
        self.added = ridge * variance

    def _variance_within(self) -> tuple[tuple[int, ...], float]:
        """Return the tensors' shape, and the within-class variance averaged over all entries."""
        members = torch.as_tensor(self.members)
        sums, total, done = torch.zeros(1, dtype=torch.float64), 0.0, 0
        for T in self.passes():
            sums = sums.to(T.device) + (members[done : done + len(T)].to(T).T @ T.flatten(1)).double()
            done += len(T)
        means, done = sums / members.sum(dim=0).to(sums)[:, None], 0
        for T in self.passes():
            own = members[done : done + len(T)].to(T) @ means.to(T)
            total += float((T.flatten(1) - own).square().sum(dtype=torch.float64))
            done += len(T)
        return tuple(T.shape[1:]), total / (len(members) * means.shape[1])

    def partial(self, vectors: _Vectors, mode: int) -> _Matrix:
        """Contract every tensor with all vectors but one, and centre the result: (N, size of the mode)."""
        Y = torch.cat([_contract(T, vectors, mode).double().cpu() for T in self.passes()]).numpy()
        centred: _Matrix = Y - Y.mean(axis=0)
        return centred

    def scatters(self, Y: _Matrix) -> tuple[_Matrix, _Matrix]:
        """Return the between-class and within-class scatter (with the ridge) of centred partial projections."""
        means = self.members.T @ Y / (self.shares * len(Y))[:, None]
        rest = Y - self.members @ means
        between = (means.T * self.shares) @ means
        return between, rest.T @ rest / len(Y) + self.added * np.eye(Y.shape[1])


def _contract(T: Tensor, vectors: _Vectors, mode: int) -> Tensor:
    before, after = (_outer(part, T) for part in (vectors[:mode], vectors[mode + 1 :]))
    size = T.shape[1 + mode]
    return before @ (T.reshape(-1, len(after)) @ after).reshape(len(T), len(before), size)


def _outer(vectors: _Vectors, like: Tensor) -> Tensor:
    """Return the flattened outer product of some vectors, 1 for none."""
    columns = [torch.as_tensor(vector, dtype=like.dtype, device=like.device)[:, None] for vector in vectors]
    return khatri_rao(columns)[:, 0] if columns else like.new_ones(1)


def _climb(problem: _Fisher, found: list[_Projection], max_iter: int, tol: float) -> _Projection:
    """Return the projection to which alternating over the modes converges from equal entries, as in the paper."""
    vectors = [np.full(size, size**-0.5) for size in problem.shape]
    earlier = np.stack([projection.coordinates for projection in found], axis=1) if found else None
    free = [size > len(found) for size in problem.shape]
    criteria: list[float] = []
    for round_ in range(max_iter):
        # First, once, the modes that are too small for the constraints, so that the result meets them.
        for mode in sorted(range(len(vectors)), key=lambda mode: free[mode]):
            if not free[mode] and round_ > 0:
                continue
            Y = problem.partial(vectors, mode)
            allowed = _uncorrelated(Y, earlier) if free[mode] else np.eye(Y.shape[1])
            criterion, vectors[mode], spread = _best(*problem.scatters(Y), allowed)
        criteria.append(criterion)
        if any(new - old <= tol * new for old, new in pairwise(criteria[-2:])):
            break
    coordinates = Y @ vectors[mode]
    coordinates /= max(float(np.linalg.norm(coordinates)), np.finfo(float).tiny)
    return _Projection(vectors, coordinates, criterion, spread, len(criteria))


def _uncorrelated(Y: _Matrix, earlier: _Matrix | None) -> _Matrix:
    """Return an orthonormal basis of the vectors u for which Y u is uncorrelated with the earlier coordinates."""
    if earlier is None:
        return np.eye(Y.shape[1])
    directions, sizes, _ = np.linalg.svd(Y.T @ earlier, full_matrices=True)
    rank = int((sizes > sizes[0] * max(Y.shape) * np.finfo(float).eps).sum())
    return directions[:, rank:]


def _best(between: _Matrix, within: _Matrix, allowed: _Matrix) -> tuple[float, _Matrix, float]:
    """Return the largest scatter ratio along allowed directions, its unit direction, and its within-class scatter."""
    try:
        values, solutions = linalg.eigh(allowed.T @ between @ allowed, allowed.T @ within @ allowed)
    except linalg.LinAlgError as error:
        raise PolyadicError("the within-class scatter is singular: increase ridge") from error
    vector = allowed @ solutions[:, -1]
    vector /= np.linalg.norm(vector)
    vector *= np.sign(vector[np.abs(vector).argmax()])
    return float(values[-1]), vector, float(vector @ within @ vector)
