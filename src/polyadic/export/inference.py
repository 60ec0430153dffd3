"""All steps after the tensorizer as a few arrays: projections, one matrix, standardised statistics, probe.

The closed form of the coefficients (Eqn. feature_extractor) and the readout are linear, so they combine to one matrix:
spectral features are matrix · Kᵀt + offset, with t the tensor of a window and K the Khatri-Rao product of the factors.
Statistics of the window follow them, standardised as `FittedReadout` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax
from sklearn.utils.validation import check_is_fitted

from polyadic.core.algebra import gram, ridge_inverse
from polyadic.core.tensorizer import tensors
from polyadic.errors import PolyadicError
from polyadic.estimators import CPD
from polyadic.evaluate.probe import Probe
from polyadic.readout import FittedReadout, Readout
from polyadic.spectral import STFT
from polyadic.statistics import window_statistics

_Array = NDArray[np.float64]
_MOST_ERROR = 2e-5
"""Relative error of float32 sums above which they are in double precision."""
_LARGEST, _RIDGE = 127, 1e-6


@dataclass(frozen=True, eq=False)
class Inference:
    """From tensors to features and probabilities, in float64."""

    factors: Sequence[_Array]  # (I, R), (J, R), …
    matrix: _Array  # (Z, R), from projections to spectral features, or to coefficients without a readout
    offset: _Array  # (Z,), of the same
    typical: _Array  # (R,), projections of the mean of the unlabelled windows; 0 without a readout
    readout: FittedReadout  # for the statistics; its matrix is part of the one above
    weights: _Array  # (n, F), of a linear probe with n classes; empty if there is none
    intercept: _Array  # (n,)
    classes: tuple[Any, ...]  # in the order of the probe

    @classmethod
    def of(cls, model: CPD, probe: Probe | None = None) -> Inference:
        """Return the arrays of a fitted model, and of a probe if there is one."""
        factors, alpha = [np.array(factor, np.float64) for factor in model.factors_], float(model.alpha)
        G = gram([torch.from_numpy(factor) for factor in factors])
        rank, none = len(G), np.zeros(0)
        # Without a readout, the features are the coefficients.
        plain = FittedReadout(Readout(0), np.eye(rank), np.eye(rank), np.zeros(rank), none, none, np.zeros((0, 0)))
        readout = model._fitted_readout() or plain
        weights, intercept, classes = np.zeros((0, 0)), none, ()
        if probe is not None:
            weights, intercept, classes = probe.coef_, probe.intercept_, tuple(probe.classes_.tolist())
            if len(intercept) == 1:  # of two classes: softmax of 0 and the decision value
                weights, intercept = np.pad(weights, ((1, 0), (0, 0))), np.pad(intercept, (1, 0))
        return cls(
            factors=factors,
            matrix=readout.matrix @ ridge_inverse(G, alpha).numpy(),
            offset=readout.offset,
            typical=G.numpy() @ readout.centre + alpha * readout.centre,
            readout=readout,
            weights=weights,
            intercept=intercept,
            classes=classes,
        )

    @property
    def rank(self) -> int:
        return int(self.matrix.shape[1])

    @property
    def n_features(self) -> int:
        return self.readout.n_features

    @property
    def n_statistics(self) -> int:
        return self.readout.n_statistics

    @property
    def n_axes(self) -> int:
        return int(self.readout.statistic_axes.shape[1])

    @property
    def uncertain(self) -> _Array:
        """The weights of the logits that are not 0: (k, F), with k = 1 for two classes."""
        is_difference = len(self.weights) == 2 and not self.weights[0].any()
        return self.weights[1:] if is_difference else self.weights

    def gram(self, other: Inference | None = None) -> _Array:
        """Return KᵀK, or KᵀK' with the components of another model: (R, R)."""
        others = self.factors if other is None else other.factors
        return np.asarray(np.prod([a.T @ b for a, b in zip(self.factors, others, strict=True)], axis=0))

    def spectral(self, T: NDArray[Any]) -> NDArray[Any]:
        """Compute spectral features of tensors, in the dtype of the tensors: (N, Z)."""
        projections = T @ self.factors[-1]
        for factor in reversed(self.factors[:-1]):
            projections = np.einsum("...ir,ir->...r", projections, factor)
        return np.asarray(projections @ self.matrix.T + self.offset)

    def project_mean(self, mean: _Array) -> _Array:
        """Return the projections of a tensor that is (I, J) in every frame: (R,)."""
        first, second, third = self.factors
        return np.asarray(np.einsum("ij,ir,jr->r", mean, first, second) * third.sum(axis=0))

    def features(self, T: NDArray[Any], statistics: NDArray[Any]) -> _Array:
        """Compute features (N, F) of tensors (N, I, J, …) and statistics (N, S), (N, 0) if there are none."""
        block = self.readout.standardised(torch.from_numpy(statistics)).numpy()
        block = block @ self.readout.statistic_axes if self.n_axes else block
        return np.concatenate([self.spectral(np.asarray(T, np.float64)), block * self.readout.block_gain], axis=1)

    def probabilities(self, Z: NDArray[Any]) -> _Array:
        """Compute probabilities (N, classes) from features (N, F)."""
        return np.asarray(softmax(Z @ self.weights.T + self.intercept, axis=1))


def parts_of(model: Any) -> tuple[CPD, Probe | None]:
    """Return the model of features and its probe or None, of a fitted model or `WindowClassifier`."""
    check_is_fitted(model)
    probe = getattr(model, "probe_", None)
    model = getattr(model, "features_", model)
    if not isinstance(model, CPD):
        raise PolyadicError(
            f"only CPD, ATD, SALS and GRSALS have an ONNX or C form, but the features are of {type(model).__name__}"
        )
    if not isinstance(model.tensorize_, STFT | None):
        raise PolyadicError(
            f"models of an STFT have an ONNX and a C form, but tensorize is a {type(model.tensorize_).__name__}"
        )
    return model, probe


# ------------------------------------------------------------------------ float32


def typical_windows(model: CPD, count: int = 16) -> _Array:
    """Generate oscillations in noise, with the scale and level of a model's data if known: (count, *sample shape)."""
    shape, random = model._sample_shape, np.random.default_rng(0)
    each = (count, *shape[:-1], 1)
    waves = np.sin(random.uniform(0.05, 1.5, each) * np.arange(shape[-1]) + random.uniform(0, 2 * np.pi, each))
    X = waves + 0.3 * random.normal(size=(count, *shape))
    if isinstance(model.tensorize_, STFT):
        X = X * model.tensorize_.c_form(shape).scale[:, None]
    level = getattr(model._fitted_readout(), "statistic_mean", np.zeros(0))[: shape[0]]  # means come first
    return X + level[:, None] if len(level) else X


def features_of(tensorizer: Any, inference: Inference, X: _Array, rounded: bool = False) -> _Array:
    """Compute features (N, F) of windows; if `rounded`, with tensors in float32 before their mean is subtracted."""
    T = tensors(tensorizer, torch.from_numpy(X))
    if rounded and tensorizer is not None:
        whole = tensorizer.uncentred(T)
        T = T + (whole.float().double() - whole)
    statistics = window_statistics(torch.from_numpy(X)).numpy() if inference.n_statistics else np.zeros((len(X), 0))
    return inference.features(T.reshape(len(T), *map(len, inference.factors)).numpy(), statistics)


def rounding_error(tensorizer: Any, inference: Inference, X: _Array) -> float:
    """Return the largest change of a feature by rounding tensors to float32, relative to their root mean square."""
    return _relative_error(*(features_of(tensorizer, inference, X, rounded) for rounded in (True, False)))


def needs_double(model: CPD, inference: Inference, X: _Array) -> bool:
    """Return whether sums need double precision to agree with `transform` on windows X.

    That is so if components are nearly collinear, or tensors are far from 0.
    """
    T = tensors(model.tensorize_, torch.from_numpy(X)).float().numpy()
    rounded: Any = [array.astype(np.float32) for array in (inference.matrix, inference.offset, *inference.factors)]
    single = replace(inference, matrix=rounded[0], offset=rounded[1], factors=rounded[2:])
    return _relative_error(single.spectral(T), inference.spectral(T.astype(np.float64))) > _MOST_ERROR


def _relative_error(found: NDArray[Any], expected: NDArray[Any]) -> float:
    """Return the largest difference, relative to the root mean square of what is expected."""
    size = float(np.sqrt(np.mean(np.square(expected)))) or 1.0
    return float(np.abs(found - expected).max()) / size


def fitted_to_float32(exact: Inference) -> Inference:
    """Round factors to float32 and refit the matrix to them, which matters for collinear components."""
    bare = replace(exact, factors=[factor.astype(np.float32).astype(np.float64) for factor in exact.factors])
    matrix = np.linalg.lstsq(bare.gram(), exact.gram(bare).T @ exact.matrix.T, rcond=None)[0].T
    return replace(bare, matrix=np.asarray(matrix, np.float64))


# --------------------------------------------------------------------------- int8


def quantise(exact: Inference) -> tuple[Inference, dict[str, NDArray[Any]]]:
    """Quantise weights to 8 bits, with a scale for each component's profiles, each feature's row and each class's row.

    The matrix is refitted to the rounded profiles, so that features stay as close to the exact ones as these profiles
    allow. The rounding error of each matrix entry is compensated by later entries of its row with similar components.
    The remaining error at the mean of the unlabelled windows, which may be far from 0, is corrected by the offset.

    Returns
    -------
    what the weights stand for, and int8 arrays with their scales by the name of their table: spectral features are
    scale · (matrix · (gain · projections)) + offset, with projections on the rounded profiles
    """
    factors = [_rounded(factor.T)[0] for factor in exact.factors]  # `target` has their scales
    bare = replace(exact, factors=[rounded.T.astype(np.float64) for rounded in factors])
    G, cross = bare.gram(), exact.gram(bare)
    size = np.sqrt(np.maximum(G.diagonal(), 1.0))
    # A ridge this small only matters if two components became equal.
    H = G / size / size[:, None] + _RIDGE * np.eye(exact.rank)
    target = np.linalg.solve(H, (cross / size).T @ exact.matrix.T).T
    gain = np.abs(target).max(axis=0)
    gain[gain == 0] = 1.0
    matrix, scale = _rounded_together(target / gain, H * gain * gain[:, None])
    axes, axis_scale = _rounded(exact.readout.statistic_axes.T)
    weights, weight_scale = _rounded(exact.weights)
    tables: dict[str, NDArray[Any]] = dict(zip(("first", "second", "third"), factors, strict=True))
    tables |= {"matrix": matrix, "gain": gain / size, "scale": scale}
    if exact.n_axes:
        tables |= {"axes": axes, "axis_scale": axis_scale * exact.readout.block_gain}
    if exact.classes:
        tables |= {"weights": weights, "weight_scale": weight_scale}
    rebuilt = matrix * scale[:, None] * gain / size
    mean = np.linalg.lstsq(exact.gram(), exact.typical, rcond=None)[0]  # coefficients of the mean window
    stands_for = replace(
        bare,
        matrix=rebuilt,
        offset=exact.offset + exact.matrix @ exact.typical - rebuilt @ (cross.T @ mean),
        readout=replace(exact.readout, statistic_axes=(axes * axis_scale[:, None]).T),
        weights=weights * weight_scale[:, None],
    )
    return stands_for, tables


def _rounded(rows: _Array) -> tuple[NDArray[np.int8], _Array]:
    """Quantise rows to int8, and return them with the scale of each."""
    scale = np.abs(rows).max(axis=1, initial=0.0) / _LARGEST
    scale[scale == 0] = 1.0
    return np.rint(rows / scale[:, None]).astype(np.int8), scale


def _rounded_together(rows: _Array, H: _Array) -> tuple[NDArray[np.int8], _Array]:
    """Quantise rows w to int8 with a scale each, such that (w − ŵ)ᵀH(w − ŵ) is small.

    Entries are rounded one after the other, each after correction for the rounding of the earlier ones (one pass of
    Babai's nearest plane algorithm).
    """
    rounded, scale = _rounded(rows)
    left = rows / scale[:, None]
    # H⁻¹ = UᵀU with U upper triangular: row k of U gives the corrections of later entries for the error of entry k.
    U = np.linalg.cholesky(np.linalg.inv(H)).T
    for k in range(rows.shape[1]):
        rounded[:, k] = np.clip(np.rint(left[:, k]), -_LARGEST, _LARGEST)
        error = (left[:, k] - rounded[:, k]) / U[k, k]
        left[:, k + 1 :] -= error[:, None] * U[k, k + 1 :]
    return rounded, scale
