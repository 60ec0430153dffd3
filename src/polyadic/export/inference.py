"""All that a window passes through behind the tensorizer, as a few arrays: projections, one matrix, levels, probe.

The closed form of the coefficients (Eqn. feature_extractor) and the readout are both linear, so they fold into one
matrix: features are matrix · Kᵀt + offset, with t the tensor of a window and K the Khatri-Rao product of the factors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyadic.checks import check_number
from polyadic.errors import PolyadicError

__all__ = [
    "Inference",
    "Quantised",
    "check_rate",
    "example_windows",
    "fitted_to_float32",
    "needs_double",
    "quantise",
    "typical_windows",
]

_Array = NDArray[np.float64]
_MOST_ERROR, _COUNT = 2e-5, 16
"""Error of features in float32, in root mean squares, from which on sums are double; measured on so many windows."""
_LARGEST, _RIDGE = 127, 1e-6


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
    typical : (R,), projections of the mean of the unlabelled windows; 0 where it is not known, without a readout
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
    typical: _Array

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
        matrix, offset, typical = V, np.zeros(len(V)), np.zeros(len(V))
        level_mean = level_gain = np.zeros(0)
        if readout is not None:
            matrix, offset = readout.matrix @ V, np.asarray(readout.offset)
            level_mean, level_gain = readout.level_mean, readout.level_gain
            typical = G.numpy() @ readout.centre + float(model.alpha) * readout.centre
        # A `WindowClassifier` has its probe inside.
        probe = getattr(model, "probe_", None) if probe is None else getattr(probe, "probe_", probe)
        weights, intercept = np.zeros((0, 0)), np.zeros(0)
        classes: list[Any] = []
        if probe is not None:
            weights, intercept, classes = linear(probe, int(model._n_features_out))
            weights = weights.T
            if len(intercept) == 1:
                # Two classes are a softmax of 0 and the one decision.
                weights, intercept = np.pad(weights, ((1, 0), (0, 0))), np.pad(intercept, (1, 0))
        return cls(
            factors,
            matrix,
            offset,
            level_mean,
            level_gain,
            weights,
            intercept,
            tuple(classes),
            float(model.alpha),
            typical,
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
        found = np.ones((self.rank, self.rank))
        for a, b in zip(self.factors, others, strict=True):
            found *= a.T @ b
        return found

    @property
    def condition(self) -> float:
        """The condition number of KᵀK + αI; components that are nearly collinear make it large."""
        return float(np.linalg.cond(self.gram() + self.alpha * np.eye(self.rank)))

    def float32_error(self, T: NDArray[Any]) -> float:
        """How far spectral features computed in float32 are from exact ones, in root mean squares of the latter.

        Components that are nearly collinear magnify what rounding has taken from the projections.

        Parameters
        ----------
        T : (N, I, J, …), typical tensors
        """
        single = replace(
            self,
            factors=[factor.astype(np.float32) for factor in self.factors],
            matrix=self.matrix.astype(np.float32),
            offset=self.offset.astype(np.float32),
        )
        rounded = np.asarray(T, np.float32)
        expected = self._spectral(rounded.astype(np.float64))
        size = float(np.sqrt(np.mean(np.square(expected)))) or 1.0
        return float(np.abs(single._spectral(rounded) - expected).max()) / size

    def _spectral(self, T: NDArray[Any]) -> NDArray[Any]:
        """Spectral features of tensors, in their type: (N, S)."""
        projections = T @ self.factors[-1]
        for factor in reversed(self.factors[:-1]):
            projections = np.einsum("...ir,ir->...r", projections, factor)
        return np.asarray(projections @ self.matrix.T + self.offset)

    def features(self, T: NDArray[Any], levels: NDArray[Any]) -> _Array:
        """Features (N, F).

        Parameters
        ----------
        T : (N, I, J, …), tensors
        levels : (N, C), mean of each channel over the window
        """
        spectral = self._spectral(np.asarray(T, np.float64))
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
    where their components are similar. What is left of the error for the mean of the unlabelled windows, which may lie
    far from 0, goes into the offset.
    """
    factors = [_rounded(factor.T)[0].T for factor in exact.factors]  # `target` has their scales
    bare = replace(exact, factors=[rounded.astype(np.float64) for rounded in factors])
    G, cross = bare.gram(), exact.gram(bare)
    size = np.sqrt(np.maximum(G.diagonal(), 1.0))
    # A ridge as small as this only matters where two components became equal.
    H = G / size / size[:, None] + _RIDGE * np.eye(exact.rank)
    target = np.linalg.solve(H, (cross / size).T @ exact.matrix.T).T
    gain = np.abs(target).max(axis=0)
    gain[gain == 0] = 1.0
    matrix, scale = _rounded_together(target / gain, H * gain * gain[:, None])
    weights, weight_scale = _rounded(exact.weights)
    rebuilt = matrix * scale[:, None] * gain / size
    mean = np.linalg.lstsq(exact.gram(), exact.typical, rcond=None)[0]  # coefficients of the mean window
    stands_for = replace(
        bare,
        matrix=rebuilt,
        offset=exact.offset + exact.matrix @ exact.typical - rebuilt @ (cross.T @ mean),
        weights=weights * weight_scale[:, None],
    )
    return Quantised(factors, gain / size, matrix, scale, weights, weight_scale, stands_for)


def fitted_to_float32(exact: Inference) -> Inference:
    """The same with factors that float32 holds, and the matrix fitted to them: collinear components need it."""
    bare = replace(exact, factors=[factor.astype(np.float32).astype(np.float64) for factor in exact.factors])
    matrix = np.linalg.lstsq(bare.gram(), exact.gram(bare).T @ exact.matrix.T, rcond=None)[0].T
    return replace(bare, matrix=np.asarray(matrix, np.float64))


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


def check_rate(fs: Any) -> None:
    """Refuse what is no sampling rate in Hz; None is that of the model."""
    check_number("fs", fs, 0, none=True)
    if fs == 0:
        raise PolyadicError("fs must be above 0, but is 0: give the sampling rate in Hz")


def example_windows(
    shape: Sequence[int], count: int, scale: NDArray[Any] | None = None, level: NDArray[Any] | None = None
) -> _Array:
    """Oscillations in noise to try a model on: (count, *shape).

    Parameters
    ----------
    shape : of a window, (channels, time)
    scale, level : (channels,), standard deviation and mean of the channels; 1 and 0 if not known
    """
    random = np.random.default_rng(0)
    each = (count, *shape[:-1], 1)
    waves = np.sin(random.uniform(0.05, 1.5, each) * np.arange(shape[-1]) + random.uniform(0, 2 * np.pi, each))
    X = waves + 0.3 * random.normal(size=(count, *shape))
    if scale is not None:
        X = X * np.asarray(scale)[:, None]
    return X + level[:, None] if level is not None and len(level) else X


def typical_windows(model: Any, count: int = _COUNT) -> _Array:
    """Test signals of the scale and level that a model knows: (count, channels, time), or tensors."""
    try:
        scale = model.tensorize_.c_form(model._sample_shape).scale
    except (AttributeError, PolyadicError):
        scale = None  # without a tensorizer, or one that has no C form
    return example_windows(model._sample_shape, count, scale, getattr(model._fitted_readout(), "level_mean", None))


def needs_double(model: Any, inference: Inference) -> bool:
    """Whether features need sums in double to agree with `transform`, because components are nearly collinear."""
    import torch

    from polyadic.tensorize import tensors

    T = tensors(model.tensorize_, torch.from_numpy(typical_windows(model))).numpy()
    return inference.float32_error(T) > _MOST_ERROR
