"""Slow, obvious reference implementations that the tests compare the library with.

They follow the paper word by word, in numpy, with loops over rows and with matrices that the library never forms: the
Khatri-Rao product, G(γ) of N × N, the Kronecker system of a graph. Nothing here imports polyadic; an `objective` is
whatever has `alpha`, `beta`, `gamma`, `rounds`, `graph_weight` and `nonnegative`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

Factors = Sequence[np.ndarray]

# ---------------------------------------------------------------------------------------------- multilinear algebra


def component_entry(factors: Factors, index: tuple[int, ...], r: int) -> float:
    """Entry `index` of the r-th rank-one tensor."""
    return math.prod(factor[i, r] for factor, i in zip(factors, index, strict=True))


def khatri_rao(factors: Factors) -> np.ndarray:
    """K : (I·J·…, R), entry by entry; the last mode varies fastest."""
    rank = factors[0].shape[1]
    cells = np.ndindex(*(len(factor) for factor in factors))
    return np.array([[component_entry(factors, index, r) for r in range(rank)] for index in cells])


def gram(factors: Factors) -> np.ndarray:
    """KᵀK, entry by entry."""
    product = khatri_rao(factors)
    rank = product.shape[1]
    return np.array([[sum(row[r] * row[s] for row in product) for s in range(rank)] for r in range(rank)])


def project(T: np.ndarray, factors: Factors) -> np.ndarray:
    """T·K, entry by entry."""
    rank = factors[0].shape[1]
    out = np.zeros((len(T), rank))
    for (n, *index), r in itertools.product(np.ndindex(*T.shape), range(rank)):
        out[n, r] += T[(n, *index)] * component_entry(factors, tuple(index), r)
    return out


def collect(X: np.ndarray, T: np.ndarray) -> np.ndarray:
    """XᵀT : (R, I, J, …), entry by entry."""
    out = np.zeros((X.shape[1], *T.shape[1:]))
    for (n, *index), r in itertools.product(np.ndindex(*T.shape), range(X.shape[1])):
        out[(r, *index)] += X[n, r] * T[(n, *index)]
    return out


def reconstruct(X: np.ndarray, factors: Factors) -> np.ndarray:
    """⟦X, A, B, …⟧ : (N, I, J, …), the sum of its outer products."""
    components = zip(X.T, *(factor.T for factor in factors), strict=True)
    return np.asarray(sum(reduce(np.multiply.outer, vectors) for vectors in components))


def ridge_on_unfolding(T: np.ndarray, matrices: Factors, mode: int, alpha: float) -> np.ndarray:
    """argmin ‖T_(mode) − F·Kᵀ‖² + α‖F‖², as plain least squares with √α·I below K; `matrices` has one for each mode."""
    K = khatri_rao([matrix for other, matrix in enumerate(matrices) if other != mode])
    unfolding = np.moveaxis(T, mode, 0).reshape(T.shape[mode], -1)
    rank = K.shape[1]
    left = np.concatenate([K, np.sqrt(alpha) * np.eye(rank)])
    right = np.concatenate([unfolding.T, np.zeros((rank, len(unfolding)))])
    return np.linalg.lstsq(left, right)[0].T


def least_squares(T: np.ndarray, factors: Factors, alpha: float) -> np.ndarray:
    """X : (N, R), the coefficients without alignment."""
    return ridge_on_unfolding(T, [np.zeros((len(T), factors[0].shape[1])), *factors], 0, alpha)


# ------------------------------------------------------------------------------------------- self-supervised loss


def pair_matrix(count: int, gamma: float) -> np.ndarray:
    """G(γ), which weighs every pair of windows."""
    G = np.zeros((count, count))
    for n in range(count):
        for s in range(count):
            G[n, s] = -1 / count if n == s else (gamma + 1) / (count * (count - 1))
    return G


def alignment_loss(X: np.ndarray, X_augmented: np.ndarray, gamma: float) -> float:
    """Eqn. empirical_ss_loss, pair by pair."""

    def cosine(x: np.ndarray, y: np.ndarray) -> float:
        return float(x @ y / (np.linalg.norm(x) * np.linalg.norm(y)))

    count = len(X)
    positive = sum(cosine(X[n], X_augmented[n]) for n in range(count)) / count
    if count == 1:
        return -positive
    pairs = [(n, s) for n in range(count) for s in range(count) if s != n]
    random_pairs = sum(cosine(X[n], X_augmented[s]) for n, s in pairs) / (count * (count - 1))
    return (gamma + 1) * random_pairs - positive


def improved_rows(
    T: np.ndarray, factors: Factors, X: np.ndarray, X_other: np.ndarray, alpha: float, beta: float, gamma: float
) -> np.ndarray:
    """Eqn. improved_x row by row from the guess X, with G(γ), D(X̃) and the projector in full."""
    K = khatri_rao(factors)
    rank = K.shape[1]
    V3 = np.linalg.inv(reduce(np.multiply, [factor.T @ factor for factor in factors]) + alpha * np.eye(rank))
    D = np.diag([1 / np.linalg.norm(row) for row in X_other])
    G = pair_matrix(len(X), gamma)
    rows = []
    for k in range(len(X)):
        x = X[k : k + 1]
        norm = np.linalg.norm(x)
        v1 = T[k].reshape(1, -1) @ K
        v2 = G[k : k + 1] @ D @ X_other
        rows.append(v1 @ V3 - beta * v2 / (2 * norm) @ (np.eye(rank) - x.T @ x / norm**2) @ V3)
    return np.vstack(rows)


# ------------------------------------------------------------------------------------------------- the solver


def aligned_coefficients(
    T: np.ndarray, factors: Factors, objective: Any, start: np.ndarray | None = None
) -> np.ndarray:
    """X with X̃ fixed, then X̃ with the new X fixed; both begin as least squares unless `start` has them."""
    start = least_squares(T, factors, objective.alpha) if start is None else start
    (T1, T2), (X1, X2) = np.split(T, 2), np.split(start, 2)
    gamma = len(T1) if objective.gamma is None else objective.gamma
    weights = (objective.alpha, objective.beta, gamma)
    for _ in range(objective.rounds):
        X1 = improved_rows(T1, factors, X1, X2, *weights)
    for _ in range(objective.rounds):
        X2 = improved_rows(T2, factors, X2, X1, *weights)
    return np.concatenate([X1, X2])


def graph_coefficients(T: np.ndarray, factors: Factors, alpha: float, graph_weight: float) -> np.ndarray:
    """argmin ‖T − X·Kᵀ‖² + α‖X‖² + w·Tr(XᵀLX), by the Kronecker system of all entries of X."""
    K = khatri_rao(factors)
    rank, laplacian = K.shape[1], np.eye(len(T)) - 1 / len(T)
    system = np.kron(np.eye(len(T)), K.T @ K + alpha * np.eye(rank)) + graph_weight * np.kron(laplacian, np.eye(rank))
    return np.linalg.solve(system, (T.reshape(len(T), -1) @ K).ravel()).reshape(len(T), rank)


def nonnegative_on_unfolding(T: np.ndarray, matrices: Factors, mode: int, alpha: float) -> np.ndarray:
    """Five passes of coordinate descent on ‖T_(mode) − F·Kᵀ‖² + α‖F‖² with F ≥ 0, entry by entry from the given F."""
    K = khatri_rao([matrix for other, matrix in enumerate(matrices) if other != mode])
    unfolding, F = np.moveaxis(T, mode, 0).reshape(T.shape[mode], -1), matrices[mode].copy()
    for _, r, i in itertools.product(range(5), range(K.shape[1]), range(len(F))):
        residual = unfolding[i] - K @ F[i] + F[i, r] * K[:, r]
        F[i, r] = max(0.0, residual @ K[:, r] / (K[:, r] @ K[:, r] + alpha))
    return F


def updated_bases(
    T: np.ndarray, X: np.ndarray, factors: Factors, alpha: float, eta: float = 1.0, nonnegative: bool = False
) -> list[np.ndarray]:
    """A with B and C fixed, B with the new A, C with the new A and B, each moved by η."""
    factors, solve = list(factors), nonnegative_on_unfolding if nonnegative else ridge_on_unfolding
    for mode, factor in enumerate(factors):
        factors[mode] = (1 - eta) * factor + eta * solve(T, [X, *factors], mode + 1, alpha)
    return factors


def coefficients(
    T: np.ndarray, factors: Factors, objective: Any, n_views: int, start: np.ndarray | None = None
) -> np.ndarray:
    """The coefficients of a batch at fixed bases; the graph is complete with weights 1/b."""
    if objective.graph_weight > 0:
        return graph_coefficients(T, factors, objective.alpha, objective.graph_weight)
    if objective.beta > 0 and n_views == 2:
        return aligned_coefficients(T, factors, objective, start)
    return least_squares(T, factors, objective.alpha)


def objective_terms(T: np.ndarray, X: np.ndarray, factors: Factors, objective: Any, n_views: int) -> list[float]:
    """Every term of Eqn. objective by its definition, the Tikhonov term with the bases' share, the graph's last."""
    views = zip(np.split(T, n_views), np.split(X, n_views), strict=True)
    errors = [((t - reconstruct(x, factors)) ** 2).sum() for t, x in views]
    tikhonov = objective.alpha * sum((matrix**2).sum() for matrix in (X, *factors))
    contrast = smoothness = 0.0
    if n_views == 2 and objective.beta > 0:
        gamma = len(X) // 2 if objective.gamma is None else objective.gamma
        contrast = alignment_loss(*np.split(X, 2), gamma)
    if objective.graph_weight > 0:
        # Tr(XᵀLX) is half the weighted sum of squared distances.
        smoothness = ((X[:, None] - X) ** 2).sum() / (2 * len(X))
    errors += [0.0] * (2 - n_views)
    return [*errors, tikhonov, objective.beta * contrast, objective.graph_weight * smoothness]


def algorithm_1(
    T: np.ndarray, factors: Factors, objective: Any, n_views: int, sweeps: int
) -> tuple[list[np.ndarray], np.ndarray]:
    """The bases and every term of the objective, sweep by sweep, with X and X̃ kept from one sweep to the next."""
    history, X = [], None
    for _ in range(sweeps):
        X = coefficients(T, factors, objective, n_views, X)
        history.append(objective_terms(T, X, factors, objective, n_views))
        factors = updated_bases(T, X, factors, objective.alpha, nonnegative=objective.nonnegative)
    return list(factors), np.array(history).T
