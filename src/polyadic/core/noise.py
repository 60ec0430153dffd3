"""Channels of noise: a channel whose spectrum is far from what the other channels predict counts as missing.

The coefficients of a window follow from all channels but one (`completion.Solver`), and predict this channel's mean
spectrum over time. How far the observed spectrum is from it is compared with windows of the fit.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from polyadic.core.algebra import khatri_rao
from polyadic.core.completion import Solver
from polyadic.core.missing import Seen

__all__ = ["CALIBRATION", "FEWEST_CHANNELS", "NoiseFinder", "Spectra"]

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
    """Compares the spectrum of each channel with what the other channels predict.

    Parameters
    ----------
    solver : of windows in which something is missing
    spectra : what tells noise; only `find` needs it
    """

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
        """Return observed minus predicted spectra of tensors (n, C, F, …): (n, C, F).

        Parameters
        ----------
        noisy : (C,) bool, channels not to predict from; by default none
        """
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
