"""Coefficients and statistics of windows in which something is missing, and how uncertain they are.

With K the Khatri-Rao product of the bases, G = KᵀK, and o and m the observed and missing entries of a tensor t,

    x̂ = (G + αI)⁻¹ (K_oᵀ t_o + K_mᵀ K_m x_MAP),

where x_MAP is the posterior mean of the coefficients given t_o, under the Gaussian prior of those of unlabelled windows
and residuals of equal variance: missing entries take their expectation, then follows the usual solve. Hence x̂
is the usual solution if nothing is missing, and the prior's mean if everything is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyadic.core.accumulator import Accumulator
from polyadic.core.algebra import gram, khatri_rao, project, reconstruct, ridge_inverse, squared_norms
from polyadic.core.missing import Flatness, distinct_masks
from polyadic.errors import ModelFileError

__all__ = ["PREFIX", "Masked", "Prior", "Solver", "observed_grams"]

PREFIX = "prior."
"""Prefix of the names of a prior's arrays in a model file."""
AXES = 32
"""Maximum number of axes that stand for the correlations of coefficients and statistics."""
UNIQUE = 1e-2
"""Smallest share of a feature's variance that the axes do not explain."""
_OUTER = 2**22
"""Maximum number of values of the outer products that are held at a time."""
_NOISELESS = 1e-9
"""Smallest residual variance, relative to the variance that components explain."""

_Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Prior:
    """What is known of a window before it is seen: the distribution of unlabelled windows.

    Parameters
    ----------
    mean, covariance : (R,) and (R, R), of the coefficients
    noise : (1,), residual variance of one entry of a tensor, times the number of entries that count as one
    loadings : (R + S, A), the leading principal axes of coefficients and statistics, each divided by its deviation;
        times their deviations. A row of zeros stands for a constant feature. (R, 0) without statistics
    flatness : (3, C), for each channel the deviation below which it is dead, and the minimum and maximum over windows;
        (3, 0) if it is not known
    spectra : (2, C, F), for each channel what tells noise (`polyadic.core.noise.Spectra`); (2, 0, 0) if it is not known
    """

    mean: _Array
    covariance: _Array
    noise: _Array
    loadings: _Array
    flatness: _Array
    spectra: _Array = field(default_factory=lambda: np.zeros((2, 0, 0)))

    @classmethod
    def fitted(cls, moments: Accumulator, entries: float, scale: _Array, levels: Sequence[Tensor] = ()) -> Prior:
        """Return the prior from the moments of unlabelled windows.

        Parameters
        ----------
        entries : number of independent entries of a tensor
        scale : (S,), deviations of the statistics, 0 for a constant one
        levels : deviations, minima and maxima of a sample of windows, (n, C) each, if known
        """
        rank = moments.rank
        covariance, residuals = moments.covariance, moments.sample().residuals
        own = covariance[:rank, :rank]
        loadings = torch.zeros(rank, 0, dtype=torch.float64)
        if len(scale):
            deviation = torch.cat([own.diagonal().clamp_min(0).sqrt(), torch.from_numpy(np.array(scale))])
            inverse = torch.where(deviation > 0, 1 / deviation, 0.0)
            values, vectors = torch.linalg.eigh(covariance * inverse[:, None] * inverse)
            count = min(AXES, len(values))
            loadings = vectors[:, -count:].flip(1) * values[-count:].flip(0).clamp_min(0).sqrt()
        flatness = torch.stack([*Flatness.of(*levels)]) if levels else torch.zeros(3, 0, dtype=torch.float64)
        noise = residuals.mean()[None].clamp_min(0) / (entries * moments.observed_share)
        return cls(*(part.numpy() for part in (moments.mean[:rank].clone(), own.clone(), noise, loadings, flatness)))

    def of_bases(self, bases: Sequence[_Array], others: Sequence[_Array], alpha: float) -> Prior:
        """Return the prior of the coefficients on other bases, without statistics.

        Coefficients x on K have the reconstruction Kx, and this has the coefficients V'K'ᵀKx on K'. The residuals, of
        equal variance, add V'G'V' times that variance.

        Parameters
        ----------
        bases, others : of this prior and of the new one: matrices of shapes (I, R), (J, R), … and (I, R'), (J, R'), …
        alpha : weight of the ridge term
        """
        old, new = ([torch.as_tensor(np.asarray(basis, np.float64)) for basis in each] for each in (bases, others))
        G = gram(new)
        V = ridge_inverse(G, alpha)
        M = V @ torch.stack([theirs.T @ ours for theirs, ours in zip(new, old, strict=True)]).prod(dim=0)
        noise = float(self.noise[0]) * (V @ G @ V)
        covariance = M @ torch.tensor(self.covariance) @ M.T + noise
        mean, empty = (M @ torch.tensor(self.mean)).numpy(), np.zeros((len(G), 0))
        return Prior(mean, covariance.numpy(), self.noise, empty, self.flatness)

    @property
    def limits(self) -> Flatness | None:
        """What tells a dead channel, or None if it is not known."""
        return Flatness(*torch.tensor(self.flatness)) if self.flatness.shape[1] else None

    def arrays(self) -> dict[str, _Array]:
        """Return the arrays by name, for a model file."""
        return {PREFIX + name: getattr(self, name) for name in self.__dataclass_fields__}

    @classmethod
    def from_arrays(
        cls, arrays: Mapping[str, NDArray[Any]], rank: int, n_statistics: int, channels: int, frequencies: int
    ) -> Prior | None:
        """Restore the prior of a model file; None if it has none.

        Raises
        ------
        ModelFileError : if shapes of the arrays are invalid
        """
        own = {name.removeprefix(PREFIX): array for name, array in arrays.items() if name.startswith(PREFIX)}
        if not own:
            return None
        axes = min(AXES, rank + n_statistics) if n_statistics else 0
        expected = {"mean": (rank,), "covariance": (rank, rank), "noise": (1,), "loadings": (rank + n_statistics, axes)}
        shapes = {name: array.shape for name, array in own.items()}
        flat, spectra = shapes.pop("flatness", None), shapes.pop("spectra", None)
        known = flat in ((3, 0), (3, channels)) and spectra in ((2, 0, 0), (2, channels, frequencies))
        if shapes != expected or not known:
            raise ModelFileError(f"the file's prior has arrays {shapes}, but its model needs {expected}")
        return cls(**own)


def observed_grams(observed: Tensor, factors: Sequence[Tensor]) -> Tensor:
    """Compute K_oᵀK_o for each mask: rows of the bases drop out of AᵀA ∗ BᵀB ∗ ….

    Parameters
    ----------
    observed : (u, I, J, …) bool, with size 1 in modes that are not masked
    factors : matrices of shapes (I, R), (J, R), …

    Returns
    -------
    (u, R, R) float64

    Examples
    --------
    >>> observed_grams(torch.tensor([[[True], [False]]]), [torch.tensor([[2.0], [3.0]]), torch.ones(5, 1)])
    tensor([[[20.]]], dtype=torch.float64)
    """
    masked = [mode for mode in range(len(factors)) if observed.shape[1 + mode] > 1]
    exact = [factor.double() for factor in factors]
    rank, rest = exact[0].shape[1], [factor for mode, factor in enumerate(exact) if mode not in masked]
    whole = gram(rest) if rest else exact[0].new_ones(rank, rank)
    if not masked:
        return whole * observed.reshape(len(observed), 1, 1)
    K, weights = khatri_rao([exact[mode] for mode in masked]), observed.flatten(1)
    sums = K.new_zeros(len(observed), rank * rank)
    step = max(1, _OUTER // rank**2)
    for rows, part in zip(torch.split(K, step), torch.split(weights, step, dim=1), strict=True):
        sums += part.to(K.dtype) @ (rows[:, :, None] * rows[:, None]).flatten(1)
    return sums.reshape(-1, rank, rank) * whole


class Masked(NamedTuple):
    """Coefficients (n, R), squared residuals of observed entries (n,), covariance of the coefficients (u, R, R)."""

    x: Tensor
    residuals: Tensor
    covariance: Tensor


class Solver:
    """Solves for windows in which something is missing, at fixed bases.

    Parameters
    ----------
    prior : the prior of coefficients and statistics
    factors : matrices of shapes (I, R), (J, R), …
    alpha : weight of the ridge term
    """

    def __init__(self, prior: Prior, factors: Sequence[Tensor], alpha: float) -> None:
        device = factors[0].device
        self.factors = [factor.double() for factor in factors]
        exact = [factor.cpu() for factor in self.factors]
        G = gram(exact)
        mean, covariance = torch.tensor(prior.mean), torch.tensor(prior.covariance)
        values, vectors = torch.linalg.eigh((covariance + covariance.T) / 2)
        root = (vectors * values.clamp_min(0).sqrt()) @ vectors.T
        explained = float(((covariance + torch.outer(mean, mean)) * G).sum()) / math.prod(len(one) for one in exact)
        self.noise = max(float(prior.noise[0]), _NOISELESS * explained, torch.finfo(torch.float64).tiny)
        loadings = torch.tensor(prior.loadings)
        deviation = covariance.diagonal().clamp_min(0).sqrt()
        parts = (G, ridge_inverse(G, alpha), mean, root, loadings, torch.where(deviation > 0, 1 / deviation, 0.0))
        self.G, self.V, self.mean, self.root, self.loadings, self.gain = (part.to(device) for part in parts)
        self.unique = (1 - self.loadings.square().sum(dim=1)).clamp_min(UNIQUE)

    def coefficients(self, T: Tensor, observed: Tensor, number: Tensor, first: Tensor) -> Masked:
        """Solve for the coefficients of windows.

        Parameters
        ----------
        T : (n, I, J, …), with any values where entries are missing
        observed : (n, I, J, …) bool
        number : (n,), the number of each window's mask
        first : (u,), the first window with each mask
        """
        known = T.double() * observed
        b = project(known, self.factors)
        seen, unseen, posterior = self._posterior(observed[first])
        x_map = self._x_map(b, seen, posterior, number)
        x = (b + _each(unseen, x_map, number)) @ self.V
        residuals = squared_norms(known) - 2 * (b * x).sum(dim=1) + (_each(seen, x, number) * x).sum(dim=1)
        # Of the coefficients with nothing missing, given what is there.
        lost = unseen @ posterior @ unseen + self.noise * unseen
        return Masked(x, residuals.clamp_min(0), self.V @ lost @ self.V)

    def _posterior(self, observed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return K_oᵀK_o, K_mᵀK_m and the posterior covariance P of the coefficients, for each mask: (u, R, R) each."""
        seen = observed_grams(observed, self.factors)
        precision = torch.eye(len(self.G), dtype=seen.dtype, device=seen.device)
        precision = precision + self.root @ seen @ self.root / self.noise
        half = torch.cholesky_solve(self.root.expand_as(seen), torch.linalg.cholesky(precision))
        return seen, self.G - seen, self.root @ half

    def _x_map(self, b: Tensor, seen: Tensor, posterior: Tensor, number: Tensor) -> Tensor:
        """Return the posterior mean of the coefficients, mean + P (b − G_o mean) / σ², with b = K_oᵀt_o: (n, R)."""
        return self.mean + _each(posterior, (b - (seen @ self.mean)[number]) / self.noise, number)

    def posterior(self, b: Tensor, observed: Tensor, number: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the posterior distribution of the coefficients of windows, and what is missing.

        Parameters
        ----------
        b : (n, R), K_oᵀt_o
        observed : (u, I, J, …) bool, the masks
        number : (n,), the number of each window's mask

        Returns
        -------
        x_MAP (n, R); its covariance for each mask (u, R, R); and the squared norm of K_m x_MAP (n,)
        """
        seen, unseen, covariance = self._posterior(observed)
        x = self._x_map(b, seen, covariance, number)
        return x, covariance, (_each(unseen, x, number) * x).sum(dim=1)

    def filled(self, T: Tensor, observed: Tensor) -> Tensor:
        """Return tensors (n, I, J, …) with missing entries replaced by their expectation, K_m x_MAP."""
        known, (first, number) = T.double() * observed, distinct_masks(observed)
        x, _, _ = self.posterior(project(known, self.factors), observed[first], number)
        return (known + reconstruct(x, self.factors) * ~observed).to(T.dtype)

    def statistics(self, solved: Masked, z: Tensor, number: Tensor, first: Tensor) -> tuple[Tensor, _Regression]:
        """Fill missing statistics by their conditional mean given the coefficients and the other statistics.

        Parameters
        ----------
        z : (n, S), standardised, NaN where missing
        number, first : as for `coefficients`; windows with the same number lack the same statistics

        Returns
        -------
        (n, S), and what tells how uncertain they are
        """
        rank, L = len(self.mean), self.loadings
        known = ~torch.isnan(z)
        weights = known[first].double() / self.unique[rank:]
        spread = solved.covariance.diagonal(dim1=1, dim2=2) * self.gain.square()
        weights = torch.cat([(self.gain > 0) / (self.unique[:rank] + spread), weights], dim=1)
        joint = torch.cat([(solved.x - self.mean) * self.gain, torch.nan_to_num(z)], dim=1)
        axes = L.shape[1]
        precision = (weights @ (L[:, :, None] * L[:, None]).flatten(1)).reshape(-1, axes, axes)
        inverse = torch.linalg.inv(precision + torch.eye(axes, dtype=L.dtype, device=L.device))
        f = _each(inverse, (joint * weights[number]) @ L, number)
        filled = z.where(known, f @ L[rank:].T)
        return filled, _Regression(inverse, weights[:, :rank] * self.gain, ~known[first])

    def spread(self, solved: Masked, missing: _Regression | None, D: Tensor, D_statistics: Tensor) -> Tensor:
        """Compute the covariance of linear functions of coefficients and standardised statistics: (u, k, k).

        Parameters
        ----------
        D, D_statistics : (k, R) and (k, S), the functions
        """
        if missing is None:
            return D @ solved.covariance @ D.T
        rank, L = len(self.mean), self.loadings
        lost = D_statistics * missing.lost[:, None]
        on_axes = lost @ L[rank:]
        # The missing statistics follow the coefficients by their regression.
        total = D + (on_axes @ missing.inverse @ L[:rank].T) * missing.weights[:, None]
        own = (lost * self.unique[rank:]) @ lost.mT
        return total @ solved.covariance @ total.mT + on_axes @ missing.inverse @ on_axes.mT + own


class _Regression(NamedTuple):
    """Covariance of the axes (u, A, A), weights of coefficients (u, R), and which statistics are missing (u, S)."""

    inverse: Tensor
    weights: Tensor
    lost: Tensor


def _each(matrices: Tensor, rows: Tensor, number: Tensor) -> Tensor:
    """Multiply each row (n, R) with the matrix (u, R, R) of its number."""
    if len(matrices) == 1:
        return rows @ matrices[0].mT
    result = torch.empty(len(rows), matrices.shape[1], dtype=rows.dtype, device=rows.device)
    if len(matrices) > len(rows) // 2:
        return (matrices[number] @ rows[:, :, None])[:, :, 0]
    for index, matrix in enumerate(matrices):
        own = number == index
        result[own] = rows[own] @ matrix.mT
    return result
