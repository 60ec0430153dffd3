"""Hand-crafted features, a rival of the tables: statistics, band powers and channel correlations."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from polyadic.baselines import Baseline

__all__ = ["HandFeatures"]

_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_BANDS = 8


@dataclass(eq=False, repr=False)
class HandFeatures(Baseline):
    """Hand-crafted features of raw windows: statistics, band powers and channel correlations; nothing is learned.

    For every channel: mean, standard deviation, minimum, maximum, five quantiles (5, 25, 50, 75, 95 %), skewness,
    excess kurtosis, mean crossings and mean absolute difference per sample, and log power in up to eight bands of
    equal width on a logarithmic scale; then the correlations of all pairs of channels. Undefined features of a constant
    channel are 0.

    Examples
    --------
    >>> X = np.random.default_rng(0).normal(size=(50, 2, 128))
    >>> HandFeatures().fit_transform(X).shape
    (50, 43)
    """

    _least_samples = 2

    def _features(self, T: Tensor) -> Tensor:
        X = T.double()
        mean = X.mean(dim=2)
        centred = X - mean[:, :, None]
        std = centred.square().mean(dim=2).sqrt()
        # The rounding error of a constant channel is not a signal.
        alive = std > 1e-12 * X.abs().amax(dim=2)
        std = std * alive
        z = centred / torch.where(alive, std, 1.0)[:, :, None] * alive[:, :, None]
        crossings = ((z[:, :, 1:] >= 0) != (z[:, :, :-1] >= 0)).double().mean(dim=2)
        levels = torch.quantile(X, torch.tensor(_QUANTILES, dtype=X.dtype, device=X.device), dim=2)
        shape = [z.pow(3).mean(dim=2), (z.pow(4).mean(dim=2) - 3.0) * alive]
        moves = X.diff(dim=2).abs().mean(dim=2)
        statistics = [mean, std, X.amin(dim=2), X.amax(dim=2), *levels, *shape, crossings, moves]
        first, second = torch.triu_indices(z.shape[1], z.shape[1], offset=1)
        correlations = (z @ z.mT / z.shape[2])[:, first, second]
        parts = [torch.stack(statistics, dim=2).flatten(1), _log_powers(centred).flatten(1), correlations]
        return torch.cat(parts, dim=1).to(T.dtype)


def _log_powers(X: Tensor) -> Tensor:
    """Compute the log power of each band in each channel: (b, channels, bands).

    Power is clipped at 1e-9 of the window's power, so that a constant channel has a finite value in any unit.
    """
    length = X.shape[2]
    power = torch.fft.rfft(X, dim=2).abs().square() / length**2 * 2
    if length % 2 == 0:
        power[:, :, -1] /= 2
    edges = np.unique(np.geomspace(1, length // 2 + 1, _BANDS + 1).round().astype(int)).tolist()
    bands = torch.stack([power[:, :, first:end].sum(dim=2) for first, end in pairwise(edges)], dim=2)
    floor = 1e-9 * bands.sum(dim=(1, 2), keepdim=True) + 1e-30
    return (bands + floor).log()
