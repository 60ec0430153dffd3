"""Statistics of coefficients and levels, collected in one pass and constant memory, by any number of processes.

Everything a readout needs follows from the mean and covariance of the rows (coefficients, levels), from the second
moment of the differences between views, and from a small sample of rows. Means and covariances are merged by the
formulas of Chan, Golub and LeVeque (1979). Unlike plain sums of squares, they lose no digits if means are large
compared with deviations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from polyadic._util.checks import check_integer
from polyadic._util.random_streams import uniform, window_keys
from polyadic.errors import PolyadicError

__all__ = ["SAMPLED", "Accumulator", "SampledWindows"]

SAMPLED = 4096
"""Maximum number of windows in the sample."""

_CENTRED = ("count", "mean", "scatter")
_PLAIN = ("within", "pairs", "differences", "kept")


class SampledWindows(NamedTuple):
    """A sample of windows: their coefficients (n, R), levels (n, C) and residuals (n,)."""

    x: Tensor
    levels: Tensor
    residuals: Tensor


class Accumulator:
    """Statistics of the windows added so far, in float64 on the CPU.

    Up to 4,096 of the `n_windows` windows are kept as a stratified sample, one at random from each of 4,096 equal
    segments of the data. Their indices depend only on `n_windows`, so each has a fixed position in the sample, and the
    samples of several processes are merged by adding them.

    Parameters
    ----------
    rank : number of coefficients of a window
    n_windows : total number of windows over all processes; ids go from 0 to n_windows − 1
    n_channels : number of levels of a window
    paired : whether views are also added

    Examples
    --------
    >>> accumulator = Accumulator(rank=2, n_windows=3)
    >>> accumulator.add(torch.arange(3), torch.tensor([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]]), torch.zeros(3))
    >>> accumulator.mean, round(float(accumulator.covariance[0, 0]), 4)
    (tensor([2., 0.], dtype=torch.float64), 0.6667)
    """

    def __init__(self, rank: int, n_windows: int, n_channels: int = 0, paired: bool = False) -> None:
        check_integer("rank", rank, 1)
        check_integer("n_windows", n_windows, 1)
        check_integer("n_channels", n_channels, 0)
        self.rank, self.n_windows, self.n_channels, self.paired = rank, n_windows, n_channels, paired
        self._sampled = _sampled(n_windows)
        width = rank + n_channels
        shapes: dict[str, tuple[int, ...]] = {
            "count": (),
            "mean": (width,),
            "scatter": (width, width),
            "within": (n_channels,),
            "pairs": (),
            "differences": (rank, rank),
            # The last two columns are the residual and how often the window was added.
            "kept": (len(self._sampled), width + 2),
        }
        self._state = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in shapes.items()}

    @property
    def count(self) -> int:
        """Number of windows added."""
        return int(self._state["count"])

    @property
    def mean(self) -> Tensor:
        """Mean of coefficients and levels: (R + C,)."""
        return self._state["mean"]

    @property
    def covariance(self) -> Tensor:
        """Covariance of coefficients and levels, normalised by N: (R + C, R + C)."""
        return self._state["scatter"] / self._state["count"]

    @property
    def within(self) -> Tensor:
        """Mean variance of each channel within windows: (C,)."""
        return (self._state["within"] / self._state["count"]).clamp_min(0)

    @property
    def pairs(self) -> int:
        """Number of windows added with a view."""
        return int(self._state["pairs"])

    @property
    def differences(self) -> Tensor:
        """Mean of ddᵀ over the pairs, d the difference between the coefficients of a view and a window: (R, R)."""
        return self._state["differences"] / self._state["pairs"]

    def sample(self) -> SampledWindows:
        """Return the sample."""
        kept = self._state["kept"]
        kept = kept[kept[:, -1] > 0]
        if bool((kept[:, -1] > 1).any()):
            raise PolyadicError("every window must be added once, but some were added several times")
        return SampledWindows(kept[:, : self.rank], kept[:, self.rank : -2], kept[:, -2])

    def add(
        self,
        ids: Tensor,
        x: Tensor,
        residuals: Tensor,
        windows: Tensor | None = None,
        views: Tensor | None = None,
        has_view: Tensor | None = None,
    ) -> None:
        """Add a batch; every window must be added exactly once.

        All tensors may have any floating-point type and device.

        Parameters
        ----------
        ids : (b,), indices of the windows
        x : (b, R), coefficients
        residuals : (b,), ‖T − T̂‖² of each window
        windows : (b, channels, time), the raw windows, if there are levels
        views : (p, R), coefficients of the views of the windows that have one, in order
        has_view : (b,) bool, which windows have a view; by default all
        """
        self._check(ids, x, residuals, windows, views, has_view)
        if not len(x):
            return
        rows, state = _exact(x), self._state
        if views is not None:
            apart = _exact(views) - (rows if has_view is None else rows[has_view.to("cpu")])
            state["differences"] += apart.T @ apart
            state["pairs"] += len(apart)
        if windows is not None and self.n_channels:
            means = _exact(windows.mean(dim=2, dtype=torch.float64))
            norms = _exact(torch.linalg.vector_norm(windows, dim=2, dtype=torch.float64))
            state["within"] += (norms.square() / windows.shape[2] - means.square()).sum(dim=0)
            rows = torch.cat([rows, means], dim=1)
        mean = rows.mean(dim=0)
        centred = rows - mean
        self._merge(torch.tensor(len(rows), dtype=torch.float64), mean, centred.T @ centred)
        self._keep(ids.to("cpu"), torch.cat([rows, _exact(residuals)[:, None], torch.ones_like(rows[:, :1])], dim=1))

    def _keep(self, ids: Tensor, rows: Tensor) -> None:
        """Add the rows of sampled windows to the sample."""
        places = torch.searchsorted(self._sampled, ids).clamp_max(len(self._sampled) - 1)
        chosen = self._sampled[places] == ids
        self._state["kept"].index_add_(0, places[chosen], rows[chosen])

    def _check(
        self,
        ids: Tensor,
        x: Tensor,
        residuals: Tensor,
        windows: Tensor | None,
        views: Tensor | None,
        has_view: Tensor | None,
    ) -> None:
        if x.ndim != 2 or x.shape[1] != self.rank:
            raise PolyadicError(f"x must have shape (windows, {self.rank}), but has shape {tuple(x.shape)}")
        for name, column in (("ids", ids), ("residuals", residuals), ("has_view", has_view)):
            if column is not None and column.shape != (len(x),):
                raise PolyadicError(f"{name} must have shape ({len(x)},), but has shape {tuple(column.shape)}")
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < self.n_windows:
            raise PolyadicError(
                f"ids must lie between 0 and {self.n_windows - 1}, but reach from {int(ids.min())} to {int(ids.max())}"
            )
        if self.n_channels and (windows is None or windows.ndim != 3 or windows.shape[:2] != (len(x), self.n_channels)):
            given = "windows is None" if windows is None else f"has shape {tuple(windows.shape)}"
            raise PolyadicError(f"windows must have shape ({len(x)}, {self.n_channels}, time), but {given}")
        if views is None:
            return
        if not self.paired:
            raise PolyadicError("views are used only by a readout that whitens, but whiten is None")
        expected = (len(x) if has_view is None else int(has_view.sum()), self.rank)
        if tuple(views.shape) != expected:
            raise PolyadicError(f"views must have shape {expected}, but have shape {tuple(views.shape)}")

    # -------------------------------------------------------------------- merging

    def _merge(self, count: Tensor, mean: Tensor, scatter: Tensor) -> None:
        state = self._state
        total = state["count"] + count
        apart, share = mean - state["mean"], count / total
        state["scatter"] += scatter + torch.outer(apart, apart) * (state["count"] * share)
        state["mean"] += apart * share
        state["count"] = total

    def __add__(self, other: Accumulator) -> Accumulator:
        """Merge the statistics of both."""
        if not isinstance(other, Accumulator):
            return NotImplemented
        if self._settings != other._settings:
            raise PolyadicError(
                "statistics can be merged if rank, n_windows, n_channels and paired agree, but they are "
                f"{self._settings} and {other._settings}"
            )
        both = self.from_tensors(self.tensors())
        if other.count:
            both._merge(*(other._state[name] for name in _CENTRED))
        for name in _PLAIN:
            both._state[name] += other._state[name]
        return both

    def summed(self, add: Callable[[Tensor], Tensor]) -> Accumulator:
        """Return the statistics of all processes, identical in each; all processes must call it.

        Parameters
        ----------
        add : sums a float64 tensor over all processes, as `Team.sum`
        """
        count, mean, scatter = (self._state[name] for name in _CENTRED)
        totals = add(torch.cat([count[None], count * mean]))
        common = totals[1:] / totals[0].clamp_min(1)
        # Sums of squares about the common mean are additive.
        apart = mean - common
        parts = {"scatter": scatter + torch.outer(apart, apart) * count, **{name: self._state[name] for name in _PLAIN}}
        pieces = torch.split(
            add(torch.cat([part.flatten() for part in parts.values()])), [p.numel() for p in parts.values()]
        )
        state = {name: piece.reshape(parts[name].shape) for name, piece in zip(parts, pieces, strict=True)}
        return self.from_tensors({**self.tensors(), **state, "count": totals[0], "mean": common})

    # -------------------------------------------------------------- as plain tensors

    @property
    def _settings(self) -> tuple[int, int, int, bool]:
        return self.rank, self.n_windows, self.n_channels, self.paired

    def tensors(self) -> dict[str, Tensor]:
        """Return the state as float64 tensors by name, for a file; `from_tensors` restores it."""
        settings = torch.tensor(self._settings, dtype=torch.float64)
        return {"settings": settings, **{name: values.clone() for name, values in self._state.items()}}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Accumulator:
        """Restore an accumulator from the output of `tensors`."""
        rank, n_windows, n_channels, paired = (int(value) for value in tensors["settings"])
        restored = cls(rank, n_windows, n_channels, bool(paired))
        for name, values in restored._state.items():
            if name not in tensors or tensors[name].shape != values.shape:
                raise PolyadicError(f"{name!r} must be a tensor of shape {tuple(values.shape)}, as from tensors()")
            values.copy_(tensors[name])
        return restored


def _exact(values: Tensor) -> Tensor:
    return values.detach().to("cpu", torch.float64)


def _sampled(n_windows: int) -> Tensor:
    """Return the indices of the windows to sample, in order: (n,) int64, n at most `SAMPLED`."""
    size = min(n_windows, SAMPLED)
    bounds = torch.arange(size + 1) * n_windows // size
    return bounds[:-1] + (uniform(window_keys(0, 0, torch.arange(size)), (), torch.float64) * bounds.diff()).long()
