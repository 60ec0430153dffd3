"""All that a window passes through behind the tensorizer, as a few arrays: projections, one matrix, levels, probe.

The closed form of the coefficients (Eqn. feature_extractor) and the readout are both linear, so they fold into one
matrix: features are matrix · Kᵀt + offset, with t the tensor of a window and K the Khatri-Rao product of the factors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Inference", "Quantised", "quantise"]

_Array = NDArray[np.float64]
_LARGEST = 127


@dataclass(frozen=True, eq=False)
class Inference:
    """From tensors to features and probabilities, in float64.

    Parameters
    ----------
    factors : (I, R), (J, R), …
    matrix, offset : (S, R) and (S,), from projections to spectral features, or to coefficients without a readout
    level_mean, level_gain : (C,), for the levels of the channels; empty if there are none
    weights, intercept : (n, F) and (n,) of a linear probe, n the number of classes, both empty if there is none
    classes : in the order of the probe
    alpha : the ridge of the closed form
    """

    factors: Sequence[_Array]
    matrix: _Array
    offset: _Array
    level_mean: _Array
    level_gain: _Array
    weights: _Array
    intercept: _Array
    classes: tuple[Any, ...]
    alpha: float

    @classmethod
    def of(cls, model: Any, probe: Any = None) -> Inference:
        """What a fitted model does, with its own probe if none is given and it has one."""
        import torch

        from polyadic.algebra import gram, ridge_inverse
        from polyadic.linear_probe import linear

        factors = [np.array(factor, np.float64) for factor in model.factors_]
        G = gram([torch.from_numpy(factor) for factor in factors])
        V = ridge_inverse(G, float(model.alpha)).numpy()
        readout = model._fitted_readout()
        matrix, offset = V, np.zeros(len(V))
        level_mean = level_gain = np.zeros(0)
        if readout is not None:
            matrix, offset = readout.matrix @ V, np.asarray(readout.offset)
            level_mean, level_gain = readout.level_mean, readout.level_gain
        # A `WindowClassifier` has its probe inside.
        probe = getattr(model, "probe_", None) if probe is None else getattr(probe, "probe_", probe)
        weights, intercept, classes = np.zeros((0, 0)), np.zeros(0), []
        if probe is not None:
            weights, intercept, classes = linear(probe, int(model._n_features_out))
            weights = weights.T
            if len(intercept) == 1:
                # Two classes are a softmax of 0 and the one decision.
                weights, intercept = np.pad(weights, ((1, 0), (0, 0))), np.pad(intercept, (1, 0))
        return cls(
            factors, matrix, offset, level_mean, level_gain, weights, intercept, tuple(classes), float(model.alpha)
        )

    @property
    def rank(self) -> int:
        return int(self.matrix.shape[1])

    @property
    def n_features(self) -> int:
        return len(self.matrix) + len(self.level_mean)

    def gram(self, other: Inference | None = None) -> _Array:
        """KᵀK, or KᵀK' with the components of another: (R, R)."""
        others = self.factors if other is None else other.factors
        return math.prod((a.T @ b for a, b in zip(self.factors, others, strict=True)), start=np.float64(1.0))  # type: ignore[arg-type,return-value]

    @property
    def condition(self) -> float:
        """The condition number of KᵀK + αI; components that are nearly collinear make it large."""
        return float(np.linalg.cond(self.gram() + self.alpha * np.eye(self.rank)))

    @property
    def amplification(self) -> float:
        """How much larger the relative rounding error of features is than that of the projections.

        For tensors of independent entries; 1 where components are orthogonal.
        """
        G = self.gram()
        lost = (G.diagonal() * np.square(self.matrix).sum(axis=0)).sum()
        return float(np.sqrt(lost / max(np.einsum("sr,rq,sq->", self.matrix, G, self.matrix), np.finfo(float).tiny)))

    def features(self, T: NDArray[Any], levels: NDArray[Any]) -> _Array:
        """Features (N, F).

        Parameters
        ----------
        T : (N, I, J, …), tensors
        levels : (N, C), mean of each channel over the window
        """
        projections = np.asarray(T, np.float64) @ self.factors[-1]
        for factor in reversed(self.factors[:-1]):
            projections = np.einsum("...ir,ir->...r", projections, factor)
        spectral = projections @ self.matrix.T + self.offset
        if not len(self.level_mean):
            return spectral
        return np.concatenate([spectral, (np.asarray(levels) - self.level_mean) * self.level_gain], axis=1)

    def probabilities(self, Z: NDArray[Any]) -> _Array:
        """Probabilities (N, classes) of features (N, F)."""
        decisions = Z @ self.weights.T + self.intercept
        raised = np.exp(decisions - decisions.max(axis=1, keepdims=True))
        return np.asarray(raised / raised.sum(axis=1, keepdims=True))


@dataclass(frozen=True, eq=False)
class Quantised:
    """Weights as int8; features are scale · (matrix · (gain · projections)) + offset, rows of the matrix by rows.

    Parameters
    ----------
    factors : (I, R), … int8; their scales are part of `gain`
    gain : (R,)
    matrix : (S, R) int8 with `scale` (S,)
    weights : (classes, F) int8 with `weight_scale` (classes,)
    inference : what these numbers stand for, in float64
    """

    factors: Sequence[NDArray[np.int8]]
    gain: _Array
    matrix: NDArray[np.int8]
    scale: _Array
    weights: NDArray[np.int8]
    weight_scale: _Array
    inference: Inference


def quantise(exact: Inference) -> Quantised:
    """Weights of 8 bits: each component's profiles, each feature's row and each class's row have a scale of their own.

    Rounded profiles are other profiles. The matrix is fitted again to them, so that features stay as close to the exact
    ones as these profiles allow; and what one of its entries loses by rounding, the later ones of its row make good
    where their components are similar.
    """
    factors, scales = zip(*(_rounded(factor.T) for factor in exact.factors), strict=True)
    bare = replace(exact, factors=[rounded.T.astype(np.float64) for rounded in factors])
    G = bare.gram()
    size = np.sqrt(np.maximum(G.diagonal(), 1.0))
    # A ridge as small as this only matters where two components became equal.
    H = G / size / size[:, None] + 1e-6 * np.eye(exact.rank)
    target = np.linalg.solve(H, (exact.gram(bare) / size).T @ exact.matrix.T).T
    gain = np.abs(target).max(axis=0)
    gain[gain == 0] = 1.0
    matrix, scale = _rounded_together(target / gain, H * gain * gain[:, None])
    weights, weight_scale = _rounded(exact.weights)
    stands_for = replace(
        bare,
        matrix=matrix * scale[:, None] * gain / size,
        weights=weights * weight_scale[:, None],
    )
    del scales  # `target` has them
    return Quantised(
        [rounded.T for rounded in factors], gain / size, matrix, scale, weights, weight_scale, stands_for
    )


def _rounded(rows: _Array) -> tuple[NDArray[np.int8], _Array]:
    """Rows as int8, and the scale of each."""
    scale = np.abs(rows).max(axis=1, initial=0.0) / _LARGEST
    scale[scale == 0] = 1.0
    return np.rint(rows / scale[:, None]).astype(np.int8), scale


def _rounded_together(rows: _Array, H: _Array) -> tuple[NDArray[np.int8], _Array]:
    """Rows w as int8, and the scale of each, such that (w − ŵ)ᵀH(w − ŵ) is small: one entry after the other.

    Every entry is rounded with what rounding the earlier ones has moved it by (Babai's nearest plane, with one sweep).
    """
    scale = np.abs(rows).max(axis=1, initial=0.0) / _LARGEST
    scale[scale == 0] = 1.0
    left, found = rows / scale[:, None], np.zeros(rows.shape, np.int8)
    # H⁻¹ = UᵀU with U upper triangular: row k of U says how entry k's error is made good by those after it.
    U = np.linalg.cholesky(np.linalg.inv(H)).T
    for k in range(rows.shape[1]):
        found[:, k] = np.clip(np.rint(left[:, k]), -_LARGEST, _LARGEST)
        error = (left[:, k] - found[:, k]) / U[k, k]
        left[:, k + 1 :] -= error[:, None] * U[k, k + 1 :]
    return found, scale
