"""Readouts: from the coefficients of a decomposition and statistics of the window to the features of a classifier.

Coefficients of a CP decomposition are correlated and of unequal scale. Under a readout, distances between features
equal distances between reconstructions; see `Readout` for the formulas. It is fitted to unlabelled windows in one pass
and constant memory, because the second moments of the coefficients determine it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyadic._util.checks import check_number
from polyadic._util.immutable import Immutable
from polyadic._util.threads import thread_pool
from polyadic.core.algebra import gram
from polyadic.core.moments import Coefficients, leading_axes
from polyadic.errors import ModelFileError, PolyadicError
from polyadic.statistics import window_statistics

__all__ = ["PREFIX", "FittedReadout", "Readout"]

PREFIX = "readout."
"""Prefix of the names of a readout's arrays in a model file."""

_ALWAYS = ("matrix", "back", "centre")
_OF_STATISTICS = ("statistic_mean", "statistic_scale", "statistic_axes")
_EPS = float(np.finfo(np.float64).eps)
_CONSTANT = 1e-12
"""A statistic counts as constant below this ratio of standard deviation to mean: rounding in float64."""
CLIP = 6.0
"""Standardised statistics are limited to this many standard deviations."""
_MOST_STATISTICS, _AXES = 256, 64
"""Above the first number, statistics are reduced to the second number of principal axes."""

_Array = NDArray[np.float64]


@dataclass(frozen=True)
class Readout(Immutable):
    """Settings of the map from coefficients to features; fitting it to unlabelled windows gives a `FittedReadout`.

    With K the Khatri-Rao product of the factors, G = KᵀK and x the coefficients of a window,

    - *isometric*: z = s·Vᵀ(G^½x − mean), V the principal axes of G^½x, s such that the variances of z sum to R. Since
      ‖G^½(x − x')‖ = ‖K(x − x')‖, distances between z are s times distances between reconstructions. Axis k stands for
      the pattern K G^(−½)v_k, the k-th principal component of the reconstructions, with the sign that makes the sum of
      the pattern positive. Hence z is invariant to the order and signs of the components and to how their norms are
      divided among the modes. (The order of axes of equal variance is arbitrary.) Axes without variance are 0, also
      for new windows.
    - *statistics*: additional columns with the statistics of `polyadic.statistics`, standardised on the unlabelled
      windows, limited to ±6 and multiplied by `statistics`·√(R/S), so that with `statistics=1` all S of them together
      have the variance of z. Above 256, the leading 64 principal axes of the standardised statistics take their place.
      A statistic that is constant over the unlabelled windows is 0.

    Parameters
    ----------
    statistics : weight of the statistics; 0 for none
    keep_flat : whether dead and stuck channels are taken as they are; by default they count as missing

    Examples
    --------
    >>> from polyadic import CPD
    >>> X = np.random.default_rng(0).normal(size=(60, 3, 128)).astype(np.float32)
    >>> Z = CPD(rank=4, readout=Readout(statistics=0)).fit(X).transform(X)
    >>> Z.shape, round(float(Z.var(axis=0).sum()), 2)
    ((60, 4), 4.0)
    """

    statistics: float = 1.0
    keep_flat: bool = False

    def __post_init__(self) -> None:
        check_number("statistics", self.statistics, 0)

    def fitted(
        self, moments: Coefficients, factors: Sequence[Tensor | NDArray[Any]], rounding: Tensor | None = None
    ) -> FittedReadout:
        """Fit the readout of a model with these factors to the moments of its unlabelled windows.

        Parameters
        ----------
        moments : of the coefficients and statistics of all windows
        factors : matrices of shapes (I, R), (J, R), …
        rounding : (S,), deviations below which statistics count as constant; by default those of float64

        Raises
        ------
        PolyadicError : if there are no windows
        """
        exact = [torch.as_tensor(factor).detach().to("cpu", torch.float64) for factor in factors]
        if moments.count == 0:
            raise PolyadicError("a readout must be fitted to at least one window, but there are none")
        given = moments.mean, moments.covariance, moments.statistics, moments.residuals, *exact
        if not all(bool(torch.isfinite(values).all()) for values in given):
            raise PolyadicError(
                "factors, coefficients, residuals and statistics must be finite, but hold NaN or infinity"
            )
        rank = moments.rank
        covariance = moments.covariance[:rank, :rank]
        # For matrices this small, waking torch's threads takes longer than the computation.
        with thread_pool():
            arrays = *_isometric(exact, moments.mean[:rank], covariance), *_standardisation(moments, rounding, self)
        return FittedReadout(self, *(array.numpy() for array in arrays))


def _gram_root(factors: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Compute a root with ‖root·x‖ = ‖Kx‖, its pseudoinverse, and an orthonormal basis of the null space of K.

    The root is G^½ of components scaled to unit norm, times their norms. It equals G^½ up to a rotation, which the
    principal axes undo, and keeps the precision of weak components next to strong ones.
    """
    G = gram(factors)
    norms = G.diagonal().clamp_min(0).sqrt()
    inverse = torch.where(norms > 0, 1 / norms, 0.0)
    values, vectors = torch.linalg.eigh(G * inverse[:, None] * inverse)
    # Negative eigenvalues come from rounding, and so do positive ones of the same size.
    kept = values > 4 * len(G) * _EPS * values[-1].clamp_min(_EPS)
    unseen = torch.linalg.qr(vectors[:, ~kept] / torch.where(norms > 0, norms, 1.0)[:, None]).Q
    values, vectors = values[kept], vectors[:, kept]
    root = (vectors * values.sqrt()) @ vectors.T * norms
    back = inverse[:, None] * ((vectors * values.rsqrt()) @ vectors.T)
    return root, back, unseen


def _isometric(factors: Sequence[Tensor], mean: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return matrix, back and centre of the map z = matrix·(x − centre) and its inverse x = back·z + centre."""
    rank = len(mean)
    root, back, unseen = _gram_root(factors)
    centre = mean - unseen @ (unseen.T @ mean)
    spread = root @ covariance @ root.T
    variances, axes = (found.flip(-1) for found in torch.linalg.eigh((spread + spread.T) / 2))
    size = spread.trace() + (root @ mean).square().sum()
    live = (variances > 4 * rank * _EPS * size) & (variances > 0)
    if not bool(live.any()):
        warnings.warn(
            "the reconstructions of all unlabelled windows are equal, so all spectral features are 0",
            RuntimeWarning,
            stacklevel=3,
        )
        return torch.zeros_like(covariance), torch.zeros_like(covariance), centre
    scale = (rank / variances[live].sum()).sqrt()
    axes = axes * _pattern_signs(factors, back @ axes) * live
    directions = back @ axes / scale
    return scale * axes.T @ root, directions - unseen @ (unseen.T @ directions), centre


def _pattern_signs(factors: Sequence[Tensor], directions: Tensor) -> Tensor:
    """Return the signs under which the unit-norm patterns K·direction have a positive sum: (R,).

    If the sum is 0, as for an antisymmetric pattern, entries are weighted by √(1 + position) in each mode. K itself is
    not formed: both sums are products of the factors' (weighted) column sums.
    """
    entries = math.prod(len(factor) for factor in factors)
    plain = torch.stack([factor.sum(dim=0) for factor in factors]).prod(dim=0) @ directions
    weights = [torch.arange(1, len(factor) + 1, dtype=factor.dtype).sqrt() for factor in factors]
    weighted = torch.stack([w @ factor for w, factor in zip(weights, factors, strict=True)]).prod(dim=0) @ directions
    decisive = torch.where(plain.abs() > 1e-9 * math.sqrt(entries), plain, weighted)
    return torch.where(decisive < 0, -1.0, 1.0).to(plain.dtype)


def _standardisation(moments: Coefficients, rounding: Tensor | None, readout: Readout) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean and deviation (S,) of the statistics and, of many, their leading principal axes (S, A)."""
    rank = moments.rank
    count = moments.statistics.shape[1] if readout.statistics > 0 else 0
    mean, covariance = moments.mean[rank : rank + count], moments.covariance[rank:, rank:][:count, :count]
    scale = covariance.diagonal().clamp_min(0).sqrt()
    smallest = _CONSTANT * mean.abs()
    smallest = smallest if rounding is None or not count else torch.maximum(smallest, rounding)
    scale = torch.where(scale > smallest, scale, 0.0)
    axes = torch.zeros(count, 0, dtype=torch.float64)
    if count > _MOST_STATISTICS:
        values, leading = leading_axes(covariance, scale, _AXES)
        # Unit variance in total, and a positive sum of each axis, which would otherwise be of either sign.
        signs = torch.where(leading.sum(dim=0) < 0, -1.0, 1.0).to(leading)
        axes = leading * signs * values.sum().clamp_min(_EPS).rsqrt()
    return mean, scale, axes


@dataclass(frozen=True, eq=False)
class FittedReadout:
    """A fitted, immutable readout that computes features.

    Spectral features are matrix·(x − centre); for statistics see `Readout`.

    Parameters
    ----------
    readout : its settings
    matrix : (R, R) float64, one row per spectral feature; a row of zeros for an axis without variance
    back : (R, R) float64, from spectral features back to coefficients
    centre : (R,) float64, the coefficients whose features are 0
    statistic_mean, statistic_scale : (S,) float64, mean and standard deviation of the statistics over the unlabelled
        windows (exactly 0 for a constant one); both empty without statistics
    statistic_axes : (S, A) float64, principal axes of more than 256 standardised statistics, with unit variance in
        total; (S, 0) of fewer
    """

    readout: Readout
    matrix: _Array
    back: _Array
    centre: _Array
    statistic_mean: _Array
    statistic_scale: _Array
    statistic_axes: _Array

    def __post_init__(self) -> None:
        for name in (*_ALWAYS, *_OF_STATISTICS):
            array = np.array(getattr(self, name), np.float64)
            array.flags.writeable = False
            object.__setattr__(self, name, array)

    def __repr__(self) -> str:
        block = f" and {self.describe_block()}" if self.n_statistics else ""
        return f"<FittedReadout of {self.readout}: {self.rank} feature{'s' * (self.rank != 1)}{block}>"

    # ------------------------------------------------------------------ features

    @property
    def rank(self) -> int:
        return len(self.centre)

    @property
    def n_statistics(self) -> int:
        """Number of statistics of a window; 0 without them."""
        return len(self.statistic_mean)

    @property
    def n_block(self) -> int:
        """Number of columns after the spectral ones: statistics, or their axes."""
        return self.statistic_axes.shape[1] or self.n_statistics

    @property
    def n_features(self) -> int:
        return self.rank + self.n_block

    @property
    def n_parameters(self) -> int:
        """Number of values in the matrix, its offset and those of the statistics; `back` follows from these."""
        block = self.statistic_mean.size + self.statistic_scale.size + self.statistic_axes.size
        return self.matrix.size + self.centre.size + block

    @property
    def offset(self) -> _Array:
        """The offset of the spectral features, added to matrix·x: (R,)."""
        return -self.matrix @ self.centre

    @property
    def statistic_gain(self) -> _Array:
        """The factor that standardises each statistic, 0 if it is constant: (S,)."""
        gain = np.zeros_like(self.statistic_scale)
        return np.divide(1.0, self.statistic_scale, out=gain, where=self.statistic_scale > 0)

    @property
    def block_gain(self) -> float:
        """The factor that gives the standardised statistics, or their axes, the total variance of R·weight²."""
        live = 1 if self.statistic_axes.shape[1] else max(int((self.statistic_scale > 0).sum()), 1)
        return float(self.readout.statistics * math.sqrt(self.rank / live))

    def feature_names(self, statistics: Sequence[str] = ()) -> list[str]:
        """Return the names of the feature columns; without names of the statistics, these are numbered, as are axes.

        Examples
        --------
        >>> numbers = np.eye(2), np.eye(2), np.zeros(2), np.zeros(1), np.ones(1), np.zeros((1, 0))
        >>> FittedReadout(Readout(), *numbers).feature_names(["mean EEG Fpz-Cz"])
        ['z1', 'z2', 'mean EEG Fpz-Cz']
        """
        numbered = [f"s{number + 1}" for number in range(self.n_block)]
        named = list(statistics) if statistics and not self.statistic_axes.shape[1] else numbered
        return [f"z{number + 1}" for number in range(self.rank)] + named[: self.n_block]

    def describe_block(self) -> str:
        """Return the number of statistics, or of their axes, in words."""
        count, axes = self.n_statistics, self.statistic_axes.shape[1]
        return f"{axes} axes of {count} statistics" if axes else f"{count} statistic{'s' * (count != 1)}"

    def features(self, x: Tensor, windows: Tensor | None = None) -> Tensor:
        """Compute features (b, F) from coefficients (b, R) and, if the readout has statistics, raw windows.

        Parameters
        ----------
        x : (b, R); features have its type and device
        windows : (b, channels, time)
        """
        if not self.n_statistics:
            return self.joined(x, None).to(x.dtype)
        assert windows is not None
        return self.joined(x, self.standardised(window_statistics(windows).to(x.device))).to(x.dtype)

    def standardised(self, statistics: Tensor) -> Tensor:
        """Standardise and limit statistics (b, S), which may hold NaN: (b, S) float64."""
        mean, gain = (
            torch.tensor(array, device=statistics.device) for array in (self.statistic_mean, self.statistic_gain)
        )
        return ((statistics - mean) * gain).clamp(-CLIP, CLIP)

    def joined(self, x: Tensor, block: Tensor | None) -> Tensor:
        """Compute features from coefficients and standardised statistics (b, S): (b, F) float64."""
        matrix, centre = (torch.tensor(array, device=x.device) for array in (self.matrix, self.centre))
        spectral = (x.double() - centre) @ matrix.T
        if block is None:
            return spectral
        axes = torch.tensor(self.statistic_axes, device=x.device)
        return torch.cat([spectral, (block @ axes if axes.shape[1] else block) * self.block_gain], dim=1)

    def pulled_back(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return linear functions (k, F) of features as those of coefficients (k, R) and statistics (k, S)."""
        matrix, axes = (torch.tensor(array, device=weights.device) for array in (self.matrix, self.statistic_axes))
        block = weights[:, self.rank :] * self.block_gain
        return weights[:, : self.rank] @ matrix, block @ axes.T if axes.shape[1] else block

    def inverse(self, features: Tensor) -> Tensor:
        """Map features (b, F) back to coefficients (b, R); statistics are ignored.

        The result is the minimum-norm solution with the same reconstruction as the original window. Along axes without
        variance over the unlabelled windows, the information is lost.
        """
        back, centre = (torch.tensor(array, device=features.device) for array in (self.back, self.centre))
        return (features[:, : self.rank].double() @ back.T + centre).to(features.dtype)

    # ----------------------------------------------------------------------- files

    def arrays(self) -> dict[str, _Array]:
        """Return the arrays by name, for a model file; the settings are stored in its header."""
        names = (*_ALWAYS, *(_OF_STATISTICS if self.n_statistics else ()))
        return {PREFIX + name: getattr(self, name) for name in names}

    @classmethod
    def from_arrays(
        cls, readout: Readout, arrays: Mapping[str, NDArray[Any]], rank: int, n_statistics: int = 0
    ) -> FittedReadout:
        """Restore the readout of a model file; arrays of other parts of the file are ignored."""
        own = {name.removeprefix(PREFIX): array for name, array in arrays.items() if name.startswith(PREFIX)}
        expected: dict[str, tuple[int, ...]] = {"matrix": (rank, rank), "back": (rank, rank), "centre": (rank,)}
        if set(_OF_STATISTICS) & own.keys():
            axes = _AXES if n_statistics > _MOST_STATISTICS else 0
            expected |= {"statistic_mean": (n_statistics,), "statistic_scale": (n_statistics,)}
            expected |= {"statistic_axes": (n_statistics, axes)}
        shapes = {name: np.shape(array) for name, array in own.items()}
        if shapes != expected:
            raise ModelFileError(f"the file's readout has arrays {shapes}, but its model needs {expected}")
        none = {"statistic_mean": np.zeros(0), "statistic_scale": np.zeros(0), "statistic_axes": np.zeros((0, 0))}
        return cls(readout, **{**none, **own})
