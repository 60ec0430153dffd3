"""Moments of coefficients and statistics, collected in one pass and constant memory.

Everything a readout needs follows from the mean and covariance of the rows (coefficients, statistics) and from a small
sample of rows. Means and covariances are updated by the
formulas of Chan, Golub and LeVeque (1979). Unlike plain sums of squares, they lose no digits if means are large
compared with deviations.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from polyadic._util.random_streams import uniform, window_keys

__all__ = ["SAMPLED", "Accumulator", "SampledWindows", "sampled_windows"]

SAMPLED = 4096
"""Maximum number of windows in the sample."""


class SampledWindows(NamedTuple):
    """A sample of windows: their coefficients (n, R), statistics (n, S) and residuals (n,)."""

    x: Tensor
    statistics: Tensor
    residuals: Tensor


class Accumulator:
    """Moments of the windows added so far, and a sample of them, in float64 on the CPU.

    Up to 4,096 of the `n_windows` windows are kept as a stratified sample, one at random from each of 4,096 equal
    segments of the data. Their indices depend only on `n_windows`.

    Parameters
    ----------
    rank : number of coefficients of a window
    n_windows : total number of windows; ids go from 0 to n_windows − 1
    n_statistics : number of statistics of a window

    Examples
    --------
    >>> accumulator = Accumulator(rank=2, n_windows=3)
    >>> accumulator.add(torch.arange(3), torch.tensor([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]]), torch.zeros(3))
    >>> accumulator.mean, round(float(accumulator.covariance[0, 0]), 4)
    (tensor([2., 0.], dtype=torch.float64), 0.6667)
    """

    observed_share = 1.0
    """Share of the entries of all tensors that was observed; residuals are those of these entries."""

    def __init__(self, rank: int, n_windows: int, n_statistics: int = 0) -> None:
        self.rank, self.n_statistics = rank, n_statistics
        self._sampled = sampled_windows(n_windows)
        width = rank + n_statistics
        shapes: dict[str, tuple[int, ...]] = {
            "count": (),
            "mean": (width,),
            "scatter": (width, width),
            # The last column is the residual.
            "kept": (len(self._sampled), width + 1),
        }
        self._state = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in shapes.items()}

    @property
    def count(self) -> int:
        """Number of windows added."""
        return int(self._state["count"])

    @property
    def mean(self) -> Tensor:
        """Mean of coefficients and statistics: (R + S,)."""
        return self._state["mean"]

    @property
    def covariance(self) -> Tensor:
        """Covariance of coefficients and statistics, normalised by N: (R + S, R + S)."""
        return self._state["scatter"] / self._state["count"]

    def sample(self) -> SampledWindows:
        """Return the sample, once all windows are added."""
        kept = self._state["kept"]
        return SampledWindows(kept[:, : self.rank], kept[:, self.rank : -1], kept[:, -1])

    def is_finite(self) -> bool:
        """Return whether all values are finite."""
        return all(bool(torch.isfinite(values).all()) for values in self._state.values())

    def set(self, count: int, mean: Tensor, scatter: Tensor, kept: Tensor) -> None:
        """Set the moments of all windows at once, from `polyadic.core.moments`.

        Parameters
        ----------
        mean, scatter : (R + S,), (R + S, R + S), of coefficients and statistics
        kept : (n, R + S + 1), coefficients, statistics and residuals of the sample
        """
        values = {"count": torch.tensor(float(count)), "mean": mean, "scatter": scatter, "kept": kept}
        self._state |= {name: value.double() for name, value in values.items()}

    def add(self, ids: Tensor, x: Tensor, residuals: Tensor, statistics: Tensor | None = None) -> None:
        """Add a batch; every window must be added exactly once.

        All tensors may have any floating-point type and device.

        Parameters
        ----------
        ids : (b,), indices of the windows
        x : (b, R), coefficients
        residuals : (b,), ‖T − T̂‖² of each window
        statistics : (b, S), statistics of the raw windows, if there are any
        """
        rows, state = _exact(x), self._state
        if statistics is not None:
            rows = torch.cat([rows, _exact(statistics)], dim=1)
        mean = rows.mean(dim=0)
        centred = rows - mean
        total = state["count"] + len(rows)
        apart, share = mean - state["mean"], len(rows) / total
        state["scatter"] += centred.T @ centred + torch.outer(apart, apart) * (state["count"] * share)
        state["mean"] += apart * share
        state["count"] = total
        ids = ids.to("cpu")
        places = torch.searchsorted(self._sampled, ids).clamp_max(len(self._sampled) - 1)
        chosen = self._sampled[places] == ids
        state["kept"][places[chosen]] = torch.cat([rows, _exact(residuals)[:, None]], dim=1)[chosen]


def _exact(values: Tensor) -> Tensor:
    return values.detach().to("cpu", torch.float64)


def sampled_windows(n_windows: int) -> Tensor:
    """Return the indices of the windows to sample, in order: (n,) int64, n at most `SAMPLED`."""
    size = min(n_windows, SAMPLED)
    bounds = torch.arange(size + 1) * n_windows // max(size, 1)
    return bounds[:-1] + (uniform(window_keys(0, 0, torch.arange(size)), (), torch.float64) * bounds.diff()).long()
