"""Coefficients and statistics of windows in which something is missing, and how uncertain they are.

With K the Khatri-Rao product of the bases, G = KᵀK, and o and m the observed and missing entries of a tensor t,

    x̂ = (G + αI)⁻¹ (K_oᵀ t_o + K_mᵀ K_m x_MAP),

where x_MAP is the posterior mean of the coefficients given t_o, under the Gaussian prior of those of unlabelled windows
and residuals of equal variance: missing entries take their expectation, then follows the usual solve. Hence x̂
is the usual solution if nothing is missing, and the prior's mean if everything is.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyadic.core.algebra import components, gram, khatri_rao, project, reconstruct, ridge_inverse, squared_norms
from polyadic.core.compression import Compression
from polyadic.core.missing import Flatness, Seen, distinct_masks
from polyadic.core.moments import Block, Coefficients, Moments, leading_axes
from polyadic.core.step import Objective, State
from polyadic.errors import ModelFileError

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
    spectra : (2, C, F), for each channel what tells noise (`Spectra`); (2, 0, 0) if it is not known
    """

    mean: _Array
    covariance: _Array
    noise: _Array
    loadings: _Array
    flatness: _Array
    spectra: _Array = field(default_factory=lambda: np.zeros((2, 0, 0)))

    @classmethod
    def fitted(cls, moments: Coefficients, entries: float, scale: _Array, levels: Sequence[Tensor] = ()) -> Prior:
        """Return the prior from the moments of unlabelled windows, whose tensors have `entries` independent entries.

        `scale` (S,) are deviations of the statistics, 0 for a constant one; `levels` are deviations, minima and maxima
        of a sample of windows, (n, C) each, if known.
        """
        rank, covariance, residuals = moments.rank, moments.covariance, moments.residuals
        own = covariance[:rank, :rank]
        loadings = torch.zeros(rank, 0, dtype=torch.float64)
        if len(scale):
            deviation = torch.cat([own.diagonal().clamp_min(0).sqrt(), torch.from_numpy(np.array(scale))])
            values, axes = leading_axes(covariance, deviation, AXES)
            loadings = axes * values.clamp_min(0).sqrt()
        flatness = torch.stack([*Flatness.of(*levels)]) if levels else torch.zeros(3, 0, dtype=torch.float64)
        noise = residuals.mean()[None].clamp_min(0) / (entries * moments.observed_share)
        return cls(*(part.numpy() for part in (moments.mean[:rank].clone(), own.clone(), noise, loadings, flatness)))

    def of_bases(self, bases: Sequence[_Array], others: Sequence[_Array], alpha: float) -> Prior:
        """Return the prior of the coefficients on other bases, without statistics.

        Coefficients x on K have the reconstruction Kx, and this has the coefficients V'K'ᵀKx on K'. The residuals, of
        equal variance, add V'G'V' times that variance.
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
        """Restore the prior of a model file; None if it has none."""
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
    """Compute K_oᵀK_o for each mask: rows of the bases drop out of AᵀA ∗ BᵀB ∗ …; (u, R, R) float64.

    Masks are (u, I, J, …) bool, with size 1 in modes that are not masked.

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
    """Solves for windows in which something is missing, at fixed bases (I, R), (J, R), … and ridge weight α."""

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
        """Solve for the coefficients of windows with tensors T (n, I, J, …), of which some entries were `observed`.

        Each window has the `number` (n,) of its mask, and each mask the `first` window (u,) with it.
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
        """Return x_MAP (n, R), its covariance for each mask (u, R, R), and the squared norm of K_m x_MAP (n,).

        `b` (n, R) is K_oᵀt_o, `observed` (u, I, J, …) the masks, and `number` (n,) that of each window.
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

        `z` (n, S) are standardised, NaN where missing; windows with the same `number` lack the same ones. Returns
        (n, S), and what tells how uncertain they are.
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
        """Compute the covariance (u, k, k) of linear functions D (k, R) and (k, S) of coefficients and statistics."""
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


# ------------------------------------------------------------ channels of noise

CALIBRATION = 512
"""Maximum number of windows of the fit that the limits are computed from."""
FEWEST_CHANNELS = 3
"""Minimum number of channels: of two that do not fit together, either may be noise."""
_FEWEST = 50
_FACTOR, _QUANTILE = 10.0, 0.999
"""A channel is noise above this factor of this quantile of the fit's windows: on development subjects at most 0.5 % of
clean windows of new subjects have such a channel."""
_SMALLEST = 1e-2
"""Smallest deviation at a frequency, relative to the root mean square over all frequencies and channels."""


class Spectra(NamedTuple):
    """What the fit's windows show of the difference between observed and predicted spectra: (C, F) each.

    mean : its mean
    reach : its deviation, times the square root of the limit: the mean square of (difference − mean) / reach over
        frequencies is above 1 for a channel of noise
    """

    mean: Tensor
    reach: Tensor

    @classmethod
    def of(cls, differences: Tensor) -> Spectra | None:
        """Return the limits from windows of the fit, (n, C, F); None for fewer than 50 windows."""
        if len(differences) < _FEWEST:
            return None
        mean, deviation = differences.mean(dim=0), differences.std(dim=0)
        deviation = deviation.clamp_min(_SMALLEST * float(deviation.square().mean().sqrt()))
        deviation = torch.where(deviation > 0, deviation, 1.0)
        squares = ((differences - mean) / deviation).square().mean(dim=2)
        limit = _FACTOR * torch.quantile(squares, _QUANTILE, dim=0)
        return cls(mean, deviation * limit.clamp_min(1.0).sqrt()[:, None])

    def excess(self, differences: Tensor) -> Tensor:
        """Return how far differences (n, C, F) are, relative to the limit: (n, C)."""
        return ((differences - self.mean) / self.reach).square().mean(dim=2)


class NoiseFinder:
    """Compares the spectrum of each channel with what the other channels predict; only `find` needs the `spectra`."""

    def __init__(self, solver: Solver, spectra: Spectra | None = None) -> None:
        self._solver, self._spectra = solver, spectra
        self._A, others = solver.factors[0], solver.factors[1:]
        self._K = khatri_rao(others)
        # The spectrum of each component, averaged over the modes after the frequencies: (F, R).
        self._B = others[0]
        for factor in others[1:]:
            self._B = self._B * factor.mean(dim=0)
        self._all = self._linear(torch.ones(len(self._A), dtype=torch.bool, device=self._A.device))

    def differences(self, T: Tensor, noisy: Tensor | None = None) -> Tensor:
        """Return observed minus predicted spectra (n, C, F) of tensors (n, C, F, …), predicted without `noisy` (C,)."""
        offset, weights = (part.to(T.dtype) for part in (self._all if noisy is None else self._linear(~noisy)))
        known = self._A if noisy is None else self._A * ~noisy[:, None]
        own = (T.flatten(2) @ self._K.to(T.dtype)) * known.to(T.dtype)
        predicted = torch.bmm((own.sum(dim=1, keepdim=True) - own).transpose(0, 1), weights.mT).transpose(0, 1)
        return T.flatten(3).mean(dim=3) - offset - predicted if T.ndim > 3 else T - offset - predicted

    def _linear(self, alive: Tensor) -> tuple[Tensor, Tensor]:
        """Return offset (C, F) and weights (C, F, R) of predicted spectra, as functions of K_oᵀt_o."""
        masks = alive & ~torch.eye(len(alive), dtype=torch.bool, device=alive.device)
        masks = masks.reshape(*masks.shape, *[1] * (len(self._solver.factors) - 1))
        zero = self._A.new_zeros(len(masks), self._A.shape[1])
        mean, covariance, _ = self._solver.posterior(zero, masks, torch.arange(len(masks), device=alive.device))
        spectra = self._A[:, None] * self._B
        return torch.einsum("cfr,cr->cf", spectra, mean), spectra @ covariance / self._solver.noise

    def find(self, T: Tensor) -> Tensor:
        """Return which channels of tensors (n, C, F, …) are noise: (n, C) bool.

        The channel farthest above its limit is left out, and the others are compared again without it. If more than a
        quarter of the channels would go, the window differs as a whole, and all are kept.
        """
        assert self._spectra is not None
        spectra = Spectra(*(part.to(T) for part in self._spectra))
        noisy = torch.zeros(T.shape[:2], dtype=torch.bool, device=T.device)
        rows, excess = torch.arange(len(T), device=T.device), spectra.excess(self.differences(T))
        for _ in range(-(-T.shape[1] // 4) + 1):
            largest, worst = excess.max(dim=1)
            rows, worst = rows[largest > 1], worst[largest > 1]
            noisy[rows, worst] = True
            excess = T.new_zeros(len(rows), T.shape[1])
            for mask in torch.unique(noisy[rows], dim=0) if len(rows) else ():
                own = (noisy[rows] == mask).all(dim=1)
                excess[own] = spectra.excess(self.differences(T[rows[own]], mask)) * ~mask
        noisy[rows] = False
        return noisy

    def in_complete_windows(self, seen: Seen) -> Tensor | None:
        """Return which channels of windows that lack nothing are noise: (b, C) bool, or None if none is."""
        rows = seen.complete
        noisy = torch.zeros(seen.T.shape[:2], dtype=torch.bool, device=seen.T.device)
        noisy[rows] = self.find(seen.T[rows])
        return noisy if bool(noisy.any()) else None


# ----------------------------------------------------- fits to incomplete windows

_EVERY = 4
"""Number of sweeps between two expectations: the loss is checked as often."""
_MOST_PASSES = 20
"""Maximum number of passes over data whose incomplete windows do not fit into memory."""
_MOST_MASKS = 64
"""Number of masks, the most frequent ones, whose covariance is computed; they stand for the others."""
_ROWS = 4096
_BYTES = 2**26


class CompletedMoments:
    """Moments of windows of which some lack entries, which are filled anew during the sweeps.

    If the incomplete windows were too large to keep beside `moments`, `read_again` reads all windows once more and
    returns their moments, filled by a solver or with 0.
    """

    def __init__(self, moments: Moments, redundancy: float, read_again: Callable[[Solver | None], Moments]) -> None:
        self._complete, self._redundancy, self._read_again = moments, redundancy, read_again
        self._entries = math.prod(moments.compression.shape)
        self._passes, self._share = 0, 1 - moments.lost / (moments.count + moments.n_incomplete)
        self._rows: Block | None = None
        if moments.incomplete:
            columns = [torch.cat(parts) for parts in zip(*(block[:5] for block in moments.incomplete), strict=True)]
            self._rows, self._masks = Block(*columns), distinct_masks(columns[-1])
        self._current = read_again(None) if self._rows is None else self._filled(self._rows, None)

    @property
    def compression(self) -> Compression:
        """The compression of the windows."""
        return self._complete.compression

    @property
    def kept_energy(self) -> float:
        """Share of the energy of the windows within the compressed space."""
        return self._current.kept_energy

    def sweep_of(self, objective: Objective) -> Callable[[State, int], Tensor]:
        """Return the function that runs one sweep, for `solve`."""

        def sweep(state: State, number: int) -> Tensor:
            self._passes = 0 if number == 0 else self._passes
            if number % _EVERY == 0 and (self._rows is not None or self._passes < _MOST_PASSES):
                self._expect(state.factors, objective.alpha)
            return self._current.sweep(state, objective)

        return sweep

    def coefficients(self, factors: Sequence[Tensor], alpha: float) -> Coefficients:
        """Return what a readout needs, as `Moments.coefficients`, with missing entries filled at these bases."""
        self._expect(factors, alpha, statistics=True)
        return replace(self._current.coefficients(factors, alpha), observed_share=self._share)

    def _expect(self, factors: Sequence[Tensor], alpha: float, statistics: bool = False) -> None:
        """Fill missing entries by their expectation at these bases; sweeps do without the statistics."""
        entries = self._entries * self._share / self._redundancy
        prior = Prior.fitted(self._current.coefficients(factors, alpha, statistics=False), entries, np.zeros(0))
        solver = Solver(prior, [factor.double() for factor in factors], alpha)
        if self._rows is None:
            self._passes += 1
            self._current = self._read_again(solver)
        else:
            self._current = self._filled(self._rows, solver, statistics)

    def _filled(self, rows: Block, solver: Solver | None, statistics: bool = False) -> Moments:
        """Return the moments of all windows; without a solver, missing entries are 0, the mean."""
        assert rows.observed is not None
        moments, c, squares = copy.deepcopy(self._complete), rows.c, rows.squares
        moments.incomplete = []
        uncertain: list[Tensor] = []
        known = rows.statistics if statistics else torch.zeros_like(rows.statistics)
        if solver is not None:
            first, number = self._masks
            K = khatri_rao(self.compression.project(solver.factors))
            x, covariance, norms = solver.posterior((c @ K.to(c.dtype)).double(), rows.observed[first], number)
            c, squares = c.clone(), squares + norms
            counts = torch.bincount(number, minlength=len(first))
            frequent = torch.argsort(counts, descending=True, stable=True)[:_MOST_MASKS].tolist()
            scale = math.sqrt(float(counts.sum() / counts[frequent].sum()))
            for mask in frequent:
                own = number == mask
                # The missing entries of each component, compressed: (R, P).
                patterns = self.compression.compress(components(solver.factors) * ~rows.observed[first[mask]])
                c[own] += (x[own] @ patterns).to(c.dtype)
                values, vectors = torch.linalg.eigh(covariance[mask])
                roots = (vectors * values.clamp_min(0).sqrt()).T
                uncertain.append(scale * math.sqrt(float(counts[mask])) * roots @ patterns)
            rare = torch.nonzero(~torch.isin(number, torch.tensor(frequent)))[:, 0]
            for part in torch.split(rare, max(1, _BYTES // (8 * self._entries))) if len(rare) else ():
                missing = reconstruct(x[part], solver.factors) * ~rows.observed[part]
                c[part] += self.compression.compress(missing).to(c.dtype)
        for part in torch.split(torch.arange(len(c)), _ROWS):
            moments.add(Block(rows.ids[part], c[part], squares[part], known[part]))
        moments.settle()
        if not moments.keeps_rows:
            for root in uncertain:
                moments.scatter[: root.shape[1], : root.shape[1]] += root.T @ root
                moments.energy += float(root.square().sum())
        moments.finish()
        return moments
