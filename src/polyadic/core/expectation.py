"""A fit to windows of which some lack entries: expectation of what is missing, then sweeps on moments, in turn (EM).

Compressed windows with missing entries are kept where they fit into memory; otherwise the data are read again, at most
20 times. The expectation is that of `completion.Solver` at the current bases. Its covariance counts, too: without it,
components would vary less than they do where much is missing.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from polyadic.core.accumulator import Accumulator
from polyadic.core.algebra import components, khatri_rao, reconstruct
from polyadic.core.completion import Prior, Solver
from polyadic.core.compression import Compression
from polyadic.core.missing import distinct_masks
from polyadic.core.moments import Block, Incomplete, Moments
from polyadic.core.step import Objective, State

__all__ = ["CompletedMoments"]

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

    Parameters
    ----------
    moments : of the complete windows, with the incomplete ones beside them
    redundancy : of the tensorizer
    read_again : returns the moments of all windows, filled by a solver or with 0, in another pass over the data
    """

    def __init__(self, moments: Moments, redundancy: float, read_again: Callable[[Solver | None], Moments]) -> None:
        self._complete, self._redundancy, self._read_again = moments, redundancy, read_again
        self._entries = math.prod(moments.compression.shape)
        self._passes, self._share = 0, 1 - moments.lost / (moments.count + moments.n_incomplete)
        self._rows = Incomplete(**Incomplete.joined(moments.incomplete)) if moments.incomplete else None
        self._masks = (torch.zeros(0), torch.zeros(0)) if self._rows is None else distinct_masks(self._rows.observed)
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

    def accumulator(self, factors: Sequence[Tensor], alpha: float) -> Accumulator:
        """Return what a readout needs, as `Moments.accumulator`, with missing entries filled at these bases."""
        self._expect(factors, alpha, statistics=True)
        result = self._current.accumulator(factors, alpha)
        result.observed_share = self._share
        return result

    def _expect(self, factors: Sequence[Tensor], alpha: float, statistics: bool = False) -> None:
        """Fill missing entries by their expectation at these bases; sweeps do without the statistics."""
        entries = self._entries * self._share / self._redundancy
        prior = Prior.fitted(self._current.accumulator(factors, alpha), entries, np.zeros(0))
        solver = Solver(prior, [factor.double() for factor in factors], alpha)
        if self._rows is None:
            self._passes += 1
            self._current = self._read_again(solver)
        else:
            self._current = self._filled(self._rows, solver, statistics)

    def _filled(self, rows: Incomplete, solver: Solver | None, statistics: bool = False) -> Moments:
        """Return the moments of all windows; without a solver, missing entries are 0, the mean."""
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
                own, patterns = number == mask, self._compressed(solver, ~rows.observed[first[mask]])
                c[own] += (x[own] @ patterns).to(c.dtype)
                values, vectors = torch.linalg.eigh(covariance[mask])
                roots = (vectors * values.clamp_min(0).sqrt()).T
                uncertain.append(scale * math.sqrt(float(counts[mask])) * roots @ patterns)
            rare = torch.nonzero(~torch.isin(number, torch.tensor(frequent)))[:, 0]
            for part in torch.split(rare, max(1, _BYTES // (8 * self._entries))) if len(rare) else ():
                missing = reconstruct(x[part], solver.factors) * ~rows.observed[part]
                c[part] += self.compression.compress(missing).to(c.dtype)
        for part in torch.split(torch.arange(len(c)), _ROWS):
            moments.add(rows.ids[part], Block(c[part], squares[part], known[part]))
        moments.settle()
        if not moments.keeps_rows:
            for root in uncertain:
                moments.scatter[: root.shape[1], : root.shape[1]] += root.T @ root
                moments.energy += float(root.square().sum())
        moments.finish()
        return moments

    def _compressed(self, solver: Solver, missing: Tensor) -> Tensor:
        """Return the missing entries of each component, compressed: (R, P), for a mask (I, J, …)."""
        return self.compression.compress(components(solver.factors) * missing)
