"""Second moments of compressed windows, and sweeps on them: without views and graphs, a fit needs nothing else.

With C = Σccᵀ over the compressed windows c, and K, G and V of the bases as in `step` (K in the compressed modes), the
coefficients are X = cKV. So XᵀT = VKᵀC, XᵀX = VKᵀCKV and ‖T − XKᵀ‖² = ‖T‖² − 2·tr(VKᵀCK) + tr(XᵀX·G). The readout
follows, too: coefficients are linear in c. Moments of several sets of windows add up to those of all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations_with_replacement
from typing import NamedTuple

import numpy as np
import scipy.linalg
import torch
from torch import Tensor

from polyadic._util.random_streams import uniform, window_keys
from polyadic._util.threads import for_each
from polyadic.core.algebra import gram, khatri_rao, nonnegative_rows, ridge_inverse
from polyadic.core.compression import Compression
from polyadic.core.step import Objective, State, Term

__all__ = ["SAMPLED", "Block", "Coefficients", "Moments", "leading_axes"]

SAMPLED = 4096
"""Maximum number of windows in the sample."""
_COLUMNS = 256
_ROWS = 1024
_INCOMPLETE_BYTES = 2**30
"""Maximum size of the compressed windows with missing entries that are kept; more are read again."""
_SUMS = ("mean", "scatter", "pairs", "ids", "rows", "details")


class Block(NamedTuple):
    """Windows of the last pass.

    ids : (b,), on the CPU
    c, squares : (b, P) and (b,), compressed windows and squared norms
    statistics : (b, S), those of raw windows, NaN where missing
    observed : (n, I, J, …) bool, entries observed in the tensors of windows that lack some; missing ones are 0
    lacking : (n,), which windows these are; None if `observed` is that of all windows, or if none is to be kept apart
    """

    ids: Tensor
    c: Tensor
    squares: Tensor
    statistics: Tensor
    observed: Tensor | None = None
    lacking: Tensor | None = None

    def part(self, rows: Tensor, observed: Tensor | None = None) -> Block:
        """Return some of the windows, by their number or by a mask (b,)."""
        ids, c, squares, statistics = (values[rows.to(values.device)] for values in self[:4])
        return Block(ids, c, squares, statistics, observed)

    def split(self) -> tuple[Block, Block | None]:
        """Return the complete windows, and those that lack entries, if any."""
        if self.lacking is None:
            return self, None
        complete = torch.ones(len(self.ids), dtype=torch.bool, device=self.lacking.device)
        complete[self.lacking] = False
        return self.part(complete), self.part(self.lacking, self.observed)


@dataclass(frozen=True)
class Coefficients:
    """What a readout needs: moments of the coefficients and statistics of windows, and a sample of these.

    rank, count : number of coefficients of a window, and of windows
    mean, covariance : (R + S,) and (R + S, R + S) float64, normalised by the number of windows
    statistics, residuals : (n, S) and (n,), of the sample; of moments without windows, the mean residual (1,)
    observed_share : share of the entries of all tensors that was observed; residuals are those of these entries
    """

    rank: int
    count: int
    mean: Tensor
    covariance: Tensor
    statistics: Tensor
    residuals: Tensor
    observed_share: float = 1.0


class Moments:
    """Moments of the windows added so far: count, mean and scatter of (c, statistics), energy, and a sample of windows.

    Means and scatter matrices are updated by the formulas of Chan, Golub and LeVeque (1979), in float64. If there are
    fewer windows than entries of c, the sample holds them all, and the scatter matrix is never formed.

    Parameters
    ----------
    compression : the compression of the windows
    n_windows : number of all windows, of which a sample is kept; their ids go from 0 to n_windows − 1. 0 if it is
        unknown, or if no window is to be kept
    n_statistics : number of statistics of a window
    dtype : floating-point type of products
    device : where the sums are collected; `finish` moves them to the CPU
    ids : the first id of the windows that will be added, and the one after the last; by default all windows

    Examples
    --------
    >>> moments = Moments(Compression.none((2, 2)), n_windows=3)
    >>> squares = torch.full((3,), 4.0, dtype=torch.float64)
    >>> moments.add(Block(torch.arange(3), torch.ones(3, 4), squares, torch.zeros(3, 0)))
    >>> moments.finish()
    >>> moments.times(torch.eye(4))[0].tolist(), moments.energy
    ([3.0, 3.0, 3.0, 3.0], 12.0)
    """

    def __init__(
        self,
        compression: Compression,
        n_windows: int,
        n_statistics: int = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        ids: tuple[int, int] | None = None,
    ) -> None:
        self.compression, self.dtype = compression, dtype
        self.n_windows, self.n_statistics = n_windows, n_statistics
        size, width = compression.size, compression.size + n_statistics
        self.count, self.energy = 0, 0.0
        exact = partial(torch.zeros, dtype=torch.float64, device=device)
        self.mean = exact(width)
        self.keeps_rows = 0 < n_windows <= min(SAMPLED, size)
        self.scatter = exact(0 if self.keeps_rows else width, width)
        sampled, (first, end) = _sampled_windows(n_windows), ids or (0, n_windows)
        self.ids = sampled[(sampled >= first) & (sampled < end)]
        self.rows = torch.zeros(len(self.ids), size, dtype=dtype, device=device)
        # Statistics and the squared norm of each window of the sample.
        self.details = exact(len(self.ids), n_statistics + 1)
        # Of statistics that may be missing: how many windows have two of them, (S, S).
        self.pairs = exact(n_statistics, n_statistics)
        self._waiting: list[tuple[Tensor, Tensor]] = []
        # Σccᵀ over all windows, (P, P), after `finish`; not if all rows are kept.
        self.second = torch.zeros(0)
        self.incomplete: list[Block] = []
        # The number of incomplete windows, and the sum of what they lack as a share.
        self.n_incomplete, self.lost = 0, 0.0

    def add(self, block: Block) -> None:
        """Add windows; every window is added once, and blocks are added in a fixed order.

        Windows that lack entries are kept apart, unless no window is to be kept: then these count as their mean.
        """
        if self.n_windows:
            block, incomplete = block.split()
            if incomplete is not None:
                self._keep_incomplete(incomplete)
        if not len(block.ids):
            return
        self.energy += float(block.squares.sum())
        if len(self.ids):
            places = torch.searchsorted(self.ids, block.ids).clamp_max(len(self.ids) - 1)
            chosen = torch.nonzero(self.ids[places] == block.ids)[:, 0]
            places, chosen = places[chosen].to(self.rows.device), chosen.to(self.rows.device)
            self.rows[places] = block.c[chosen]
            self.details[places] = torch.cat([block.statistics, block.squares[:, None]], dim=1)[chosen]
        self.count += len(block.ids)
        if not self.keeps_rows:
            self._waiting.append((block.c, block.statistics))
            if sum(len(c) for c, _ in self._waiting) >= _ROWS:
                self.settle()

    def _keep_incomplete(self, block: Block) -> None:
        """Keep incomplete windows on the CPU, or drop all of them if they are too large to keep."""
        kept = [part.cpu() for part in block if part is not None]
        fits = self.n_incomplete == sum(len(other.ids) for other in self.incomplete)
        self.incomplete.append(Block(*kept))
        self.n_incomplete += len(block.ids)
        self.lost += float((1 - kept[-1].flatten(1).double().mean(dim=1)).sum())
        size = sum(int(part.nbytes) for other in self.incomplete for part in other if part is not None)
        if not fits or size > _INCOMPLETE_BYTES:
            self.incomplete = []

    def settle(self) -> None:
        """Add windows that wait for a large enough product to the scatter matrix."""
        if not self._waiting:
            return
        c, statistics = (torch.cat(parts) for parts in zip(*self._waiting, strict=True))
        self._waiting = []
        before = self.count - len(c)
        if bool(torch.isnan(statistics).any()) or not bool((self.pairs.diagonal() == before).all()):
            self._settle_known(c, statistics)
            return
        # Subtract means in float64: a statistic may be large compared with its deviation. Statistics are in the unit of
        # the signals, so their squares may be out of the range of float32: they are divided by their largest values.
        mean = torch.cat([c.mean(dim=0, dtype=torch.float64), statistics.mean(dim=0)])
        size = c.shape[1]
        apart, unit = statistics - mean[size:], torch.ones_like(mean)
        largest = apart.abs().amax(dim=0)
        unit[size:] = torch.where(largest > 0, largest, 1.0)
        centred = torch.cat([c - mean[:size].to(c.dtype), (apart / unit[size:]).to(c.dtype)], dim=1)
        apart, share = mean - self.mean, len(c) / self.count
        weight = before * share
        self.mean += apart * share
        self.pairs += len(c)
        if centred.is_cuda:
            product = (centred.T @ centred).double().mul_(torch.outer(unit, unit))
            self.scatter += product.add_(torch.outer(apart, apart), alpha=weight)
            return

        def multiply(pair: tuple[slice, slice]) -> None:
            first, second = pair
            product = (centred[:, first].T @ centred[:, second]).double().mul_(torch.outer(unit[first], unit[second]))
            self.scatter[first, second] += product.add_(torch.outer(apart[first], apart[second]), alpha=weight)

        for_each(multiply, _block_pairs(centred.shape[1]))

    def _settle_known(self, c: Tensor, statistics: Tensor) -> None:
        """Add windows of which some statistics are missing: each has its own number of windows."""
        known, before, size = ~torch.isnan(statistics), self.count - len(c), c.shape[1]
        counts = torch.cat([c.new_full((size,), len(c), dtype=torch.float64), known.sum(dim=0).double()])
        earlier = torch.cat([c.new_full((size,), before, dtype=torch.float64), self.pairs.diagonal()])
        rows = torch.cat([c.double(), torch.nan_to_num(statistics)], dim=1)
        mean = torch.where(counts > 0, rows.sum(dim=0) / counts.clamp_min(1), self.mean)
        centred = rows - mean
        centred[:, size:] *= known
        share = counts / (counts + earlier).clamp_min(1)
        apart = (mean - self.mean) * (earlier * share).sqrt()
        self.scatter += centred.T @ centred + torch.outer(apart, apart)
        self.mean += (mean - self.mean) * share
        self.pairs += known.double().T @ known.double()

    def merge(self, other: Moments) -> None:
        """Add the moments of other windows with the same compression, whose ids follow those of these windows."""
        for moments in (self, other):
            moments.settle()
        for block in other.incomplete:
            self._keep_incomplete(block)
        if other.n_incomplete and not other.incomplete:
            self.incomplete, self.n_incomplete = [], self.n_incomplete + other.n_incomplete
            self.lost += other.lost
        device, mine, others = self.mean.device, self._counts(), other._counts().to(self.mean.device)
        apart, share = other.mean.to(device) - self.mean, others / (mine + others).clamp_min(1)
        if not self.keeps_rows:
            step = apart * (mine * share).sqrt()
            self.scatter += other.scatter.to(device)
            self.scatter.addr_(step, step)
        self.mean += apart * share
        self.pairs += other.pairs.to(device)
        self.count, self.energy = self.count + other.count, self.energy + other.energy
        for name in ("ids", "rows", "details"):
            known = getattr(self, name)
            setattr(self, name, torch.cat([known, getattr(other, name).to(known.device)]))

    def _counts(self) -> Tensor:
        """Return the number of windows that each entry of the mean is that of: (P + S,)."""
        return torch.cat([self.mean.new_full((self.compression.size,), self.count), self.pairs.diagonal()])

    def to_cpu(self) -> None:
        """Add the windows that wait, and move the sums to the CPU."""
        self.settle()
        for name in _SUMS:
            setattr(self, name, getattr(self, name).cpu())

    def finish(self) -> None:
        """Complete the sums after the last window."""
        self.to_cpu()
        if self.keeps_rows:
            statistics = self.details[:, :-1]
            mean = statistics.mean(dim=0)
            mean = mean if not bool(torch.isnan(mean).any()) else torch.nan_to_num(statistics.nanmean(dim=0))
            self.mean = torch.cat([self.rows.mean(dim=0, dtype=torch.float64), mean])
            return
        for first, second in _block_pairs(len(self.mean)):
            if first != second:
                self.scatter[second, first] = self.scatter[first, second].T
        size = self.compression.size
        centre = self.mean[:size]
        self.second = torch.addr(self.scatter[:size, :size], centre, centre, alpha=self.count).to(self.dtype)

    def times(self, K: Tensor) -> Tensor:
        """Compute CK, with C = Σccᵀ over all windows: (P, R)."""
        if self.keeps_rows:
            return self.rows.T @ (self.rows @ K)
        return torch.cat(for_each(lambda block: block @ K, torch.split(self.second, _COLUMNS)))

    def sweep(self, state: State, objective: Objective) -> Tensor:
        """Take the step of `step.step` on all windows; the same arguments and result, from second moments alone.

        All but the product with C is small, and in numpy and float64: fastest for matrices of this size.
        """
        factors = [factor.double().numpy() for factor in state.factors]
        axes = [None if matrix is None else matrix.double().numpy() for matrix in self.compression.axes]
        grams = [factor.T @ factor for factor in factors]
        inner = [factor if axis is None else axis.T @ factor for axis, factor in zip(axes, factors, strict=True)]
        K, G = khatri_rao([torch.from_numpy(basis) for basis in inner]), torch.from_numpy(np.prod(grams, axis=0))
        V = ridge_inverse(G, objective.alpha)
        CK = self.times(K.to(self.dtype)).double()
        KCK = K.T @ CK
        S = V @ KCK @ V
        terms = G.new_zeros(len(Term))
        terms[Term.FIT] = (self.energy - 2 * (V * KCK).sum() + (S * G).sum()).clamp_min(0.0)
        terms[Term.TIKHONOV] = objective.alpha * S.trace()
        state.energy = S.diagonal()
        # Each basis in turn, as `step.update_bases`: contract Y = XᵀT with the bases of all other modes, and then with
        # the new basis.
        Y = (CK @ V).T.contiguous().numpy()
        for mode, (axis, size) in enumerate(zip(axes, self.compression.ranks, strict=True)):
            Y = Y.reshape(len(Y), size, -1)
            others = np.ones((1, len(Y)))
            for basis in inner[mode + 1 :]:
                others = (others[:, None] * basis).reshape(-1, len(Y))
            M = (Y @ others.T[:, :, None])[:, :, 0].T
            M = M if axis is None else axis @ M
            H = np.prod([S.numpy(), *grams[:mode], *grams[mode + 1 :]], axis=0)
            if objective.nonnegative:
                factors[mode] = nonnegative_rows(H, M, factors[mode], objective.alpha)
            else:
                factors[mode] = M @ ridge_inverse(torch.from_numpy(H), objective.alpha).numpy()
            grams[mode] = factors[mode].T @ factors[mode]
            inner[mode] = factors[mode] if axis is None else axis.T @ factors[mode]
            Y = inner[mode].T[:, None] @ Y
        state.factors = [torch.from_numpy(new).to(old) for new, old in zip(factors, state.factors, strict=True)]
        return terms

    def sweep_of(self, objective: Objective) -> Callable[[State, int], Tensor]:
        """Return the function that runs one sweep, for `solve`."""
        return lambda state, number: self.sweep(state, objective)

    @property
    def kept_energy(self) -> float:
        """Share of the energy of the windows within the compressed space, at most 1."""
        size = self.compression.size
        if self.keeps_rows:
            inside = float(self.rows.double().square().sum())
        else:
            inside = float(self.scatter.diagonal()[:size].sum() + self.count * self.mean[:size].square().sum())
        return min(inside / self.energy, 1.0) if self.energy > 0 else 1.0

    def coefficients(
        self, factors: Sequence[Tensor] | None = None, alpha: float = 0.0, statistics: bool = True
    ) -> Coefficients:
        """Return what a readout needs of the coefficients at these bases; without bases, windows are coefficients.

        Without `statistics`, the result has none.
        """
        size = self.compression.size
        count = self.n_statistics if statistics else 0
        centre, sums = self.mean[: size + count], self.scatter[: size + count, : size + count]
        rows, details, residuals = self._sample()
        if factors is None:
            extract, x = torch.eye(size, dtype=torch.float64), rows
        else:
            exact = [factor.double() for factor in factors]
            K, G = khatri_rao(self.compression.project(exact)), gram(exact)
            extract = K @ ridge_inverse(G, alpha)
            x = rows @ extract
            if len(rows):
                residuals = residuals - 2 * ((rows @ K) * x).sum(dim=1) + ((x @ G) * x).sum(dim=1)
            else:
                Y = sums[:size, :size] @ extract + self.count * torch.outer(centre[:size], centre[:size] @ extract)
                fit = self.energy - 2 * (K * Y).sum() + ((extract.T @ Y) * G).sum()
                residuals = fit[None] / self.count
        rank, details = extract.shape[1], details[:, :count]
        known, pairs = ~torch.isnan(details), self.pairs[:count, :count]
        details = details.where(known, centre[size:])
        if self.keeps_rows:
            joint = torch.cat([x, details], dim=1)
            mean = joint.mean(dim=0)
            mean[rank:] = centre[size:]
            scatter = (joint - mean).T @ (joint - mean)
            pairs = known.double().T @ known.double()
        else:
            mean = torch.cat([centre[:size] @ extract, centre[size:]])
            half = torch.cat([extract.T @ sums[:size], sums[size:]])
            scatter = torch.cat([half[:, :size] @ extract, half[:, size:]], dim=1)
        # Statistics that are missing have added nothing to the sums.
        seen = torch.cat([pairs.new_full((rank,), self.count), pairs.diagonal()])
        together = torch.minimum(seen[:, None], seen[None])
        together[rank:, rank:] = pairs
        scatter = torch.where(together > 0, scatter * (self.count / together.clamp_min(1)), 0.0)
        return Coefficients(rank, self.count, mean, scatter / max(self.count, 1), details, residuals)

    def _sample(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return compressed windows (n, P), their statistics (n, S) and squared norms (n,).

        If no window was kept, there are only statistics, drawn from the normal distribution with the same mean and
        covariance.
        """
        if len(self.ids):
            return self.rows.double(), self.details[:, :-1], self.details[:, -1]
        size = self.compression.size
        # Of the correlation matrix: units of statistics may differ by orders of magnitude.
        covariance = self.scatter[size:, size:] / self.count
        deviation = covariance.diagonal().sqrt()
        unit = torch.where(deviation > 0, deviation, 1.0)
        values, vectors = torch.linalg.eigh(covariance / torch.outer(unit, unit))
        generator = torch.Generator().manual_seed(0)
        noise = torch.randn(min(self.count, SAMPLED), len(values), dtype=torch.float64, generator=generator)
        drawn = self.mean[size:] + unit * ((noise * values.clamp_min(0).sqrt()) @ vectors.T)
        return self.rows.double(), drawn, drawn.new_zeros(0)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the sums as arrays, to save them between two blocks."""
        arrays = {name: getattr(self, name).cpu().numpy() for name in _SUMS}
        arrays |= {"count": np.array(self.count), "energy": np.array(self.energy)}
        arrays |= {"gaps": np.array([self.n_incomplete, self.lost])}
        if self._waiting:
            waiting = (torch.cat(parts).cpu().numpy() for parts in zip(*self._waiting, strict=True))
            arrays |= dict(zip(("waiting", "waiting statistics"), waiting, strict=True))
        if self.incomplete:
            columns = zip(*(block[:5] for block in self.incomplete), strict=True)
            arrays |= {f"incomplete.{number}": torch.cat(parts).numpy() for number, parts in enumerate(columns)}
        return arrays

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Set the sums to those of `arrays`."""
        self.count, self.energy = int(arrays["count"].item()), float(arrays["energy"].item())
        self.n_incomplete, self.lost = int(arrays["gaps"][0]), float(arrays["gaps"][1])
        for name in _SUMS:
            setattr(self, name, torch.from_numpy(arrays[name].copy()).to(getattr(self, name).device))
        if "waiting" in arrays:
            names = ("waiting", "waiting statistics")
            waiting, statistics = (torch.from_numpy(arrays[name].copy()).to(self.mean.device) for name in names)
            self._waiting = [(waiting, statistics)]
        if "incomplete.0" in arrays:
            parts = (torch.from_numpy(arrays[f"incomplete.{number}"].copy()) for number in range(5))
            self.incomplete = [Block(*parts)]


def leading_axes(covariance: Tensor, deviation: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the largest eigenvalues of a correlation matrix (k,), largest first, and their eigenvectors (n, k).

    A deviation of 0 stands for a constant, whose correlations are 0. k is `count`, or n if that is smaller.
    """
    inverse = torch.where(deviation > 0, 1 / deviation, 0.0)
    correlation = (covariance * inverse[:, None] * inverse).numpy()
    wanted = (max(len(correlation) - count, 0), len(correlation) - 1)
    values, vectors = scipy.linalg.eigh(correlation, subset_by_index=wanted)
    return torch.from_numpy(values[::-1].copy()), torch.from_numpy(vectors[:, ::-1].copy())


def _block_pairs(width: int) -> list[tuple[slice, slice]]:
    """Return the pairs of column blocks of the upper triangle of a symmetric product."""
    blocks = [slice(first, min(first + _COLUMNS, width)) for first in range(0, width, _COLUMNS)]
    return list(combinations_with_replacement(blocks, 2))


def _sampled_windows(n_windows: int) -> Tensor:
    """Return the indices of the windows to sample, in order: (n,) int64, one at random from each of 4,096 segments."""
    size = min(n_windows, SAMPLED)
    bounds = torch.arange(size + 1) * n_windows // max(size, 1)
    return bounds[:-1] + (uniform(window_keys(0, 0, torch.arange(size)), (), torch.float64) * bounds.diff()).long()
