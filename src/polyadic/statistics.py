"""Statistics of raw windows: levels, extremes, shape, slow bands and correlations, which spectra of frames do not hold.

To add a statistic, write a function of `Signals` that returns one value per channel, (b, C), and add it to `STATISTICS`
(and to `IN_UNITS` if it has the unit of the signal); `tests/test_statistics.py` then checks its contract. One with
other columns, such as `power` and `corr`, also needs names in `statistic_names`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from polyadic._util.threads import for_each

__all__ = ["BANDS", "IN_UNITS", "MOST_CORRELATED", "STATISTICS", "Signals", "band_edges", "correlated_pairs"]
__all__ += ["channels_of_statistics", "levels", "padded_length", "rounding", "statistic_names", "window_statistics"]

BANDS = 8
"""Maximum number of frequency bands; short windows have fewer."""
MOST_CORRELATED = 32
"""Maximum number of channels for correlations: of more, their number would dwarf that of all other statistics."""
FLOOR = 1e-6
"""Amplitude below which a band is empty, relative to the deviation of its channel."""
SILENT = 1e-12
"""Deviation of a silent channel, relative to the largest of all channels; these may have different units."""
TINY = 1e-30
"""Deviation of a window in which all channels are constant."""
TIE = 1e-6
"""Samples this close to the mean, relative to the channel's largest distance from its first sample, are above it."""
ZERO_MEAN = 1e-6
"""A mean below this share of the channel's deviation is rounding, and counts as 0."""
IN_UNITS = ("mean", "min", "max")
"""Statistics in the unit of the signal; the others are logarithms, shares and ratios."""
_PIECE_VALUES = 2**19
"""Number of samples of a piece, which fits the cache of a CPU core."""
ROUNDING = 1e-5
"""Bound of the rounding errors of statistics without a unit."""


class Signals:
    """Raw windows and what several statistics need of them.

    Samples are taken relative to the first one and divided by the largest, so that float32 suffices for signals of any
    size and offset; results are in float64.

    Parameters
    ----------
    X : (b, C, time), finite
    present : (b, C, time) bool, the samples to use; by default all
    """

    def __init__(self, X: Tensor, present: Tensor | None = None) -> None:
        self.present = present
        first = X[:, :, :1]
        if present is not None:
            first = X.gather(2, present.to(torch.uint8).argmax(dim=2, keepdim=True))
        known = X if present is None else X.where(present, first)
        self.lowest, self.highest = known.amin(dim=2), known.amax(dim=2)
        # The first sample of each channel, and the largest distance from it: (b, C).
        size = torch.maximum(self.highest - first[:, :, 0], first[:, :, 0] - self.lowest)
        self.first, self.size = first[:, :, 0].double(), size.double()
        apart = (known - first).div_(torch.where(size > 0, size, 1.0)[:, :, None])
        self._middle = self.average(apart)
        # (X − mean) / size, and 0 for a constant channel and for samples that are not present: (b, C, time).
        self.centred = apart.sub_(self._middle[:, :, None])
        if present is not None:
            self.centred.mul_(present)

    def average(self, values: Tensor) -> Tensor:
        """Average values (b, C, time), which are 0 where no sample is present, over the samples: (b, C)."""
        return values.mean(dim=2) if self.present is None else values.sum(dim=2) / self.count

    @cached_property
    def count(self) -> Tensor:
        """Number of samples of each channel, at least 1: (b, C), or their number for all channels."""
        if self.present is None:
            return torch.tensor(self.centred.shape[2], device=self.first.device)
        return self.present.sum(dim=2).clamp_min(1)

    @cached_property
    def mean(self) -> Tensor:
        """Mean of each channel: (b, C)."""
        mean = self.first + self.size * self._middle.double()
        return torch.where(mean.abs() > ZERO_MEAN * self.deviation, mean, 0.0)

    @cached_property
    def _unit(self) -> Tensor:
        """Deviation of `centred`: (b, C)."""
        return self.average(self.centred.square()).sqrt()

    @cached_property
    def deviation(self) -> Tensor:
        """Standard deviation of each channel: (b, C)."""
        return self.size * self._unit.double()

    @cached_property
    def floor(self) -> Tensor:
        """What is added to deviations, and to amplitudes of bands, before taking logarithms: (b, C)."""
        return FLOOR * self.deviation + SILENT * self.deviation.amax(dim=1, keepdim=True) + TINY

    @cached_property
    def square(self) -> Tensor:
        """Squares of `z`: (b, C, time)."""
        return self.z.square()

    @cached_property
    def z(self) -> Tensor:
        """Channels with mean 0 and deviation 1; 0 for a constant channel: (b, C, time)."""
        return self.centred / torch.where(self._unit > 0, self._unit, 1.0)[:, :, None]


FEWEST_SAMPLES = 0.2
"""Share of a channel's samples, or of those that two channels have together, below which statistics are missing."""


def _crossings(signals: Signals) -> Tensor:
    """Share of neighbouring samples on different sides of the mean: (b, C)."""
    above = signals.centred >= -TIE
    if above.shape[2] < 2:
        return signals.deviation.new_zeros(above.shape[:2])
    crosses = above[:, :, 1:] != above[:, :, :-1]
    if signals.present is None:
        return crosses.sum(dim=2, dtype=torch.float64) / crosses.shape[2]
    both = signals.present[:, :, 1:] & signals.present[:, :, :-1]
    return (crosses & both).sum(dim=2, dtype=torch.float64) / both.sum(dim=2).clamp_min(1)


def _band_powers(signals: Signals) -> Tensor:
    """Logarithm of the mean square of each channel in each band of `band_edges`: (b, C, bands)."""
    length = signals.centred.shape[2]
    padded, edges = padded_length(length), band_edges(length)
    spectrum = torch.fft.rfft(signals.centred, n=padded, dim=2)
    parts = torch.view_as_real(spectrum)
    bands = [torch.linalg.vector_norm(parts[:, :, first:end], dim=(2, 3)).square() for first, end in pairwise(edges)]
    if not bands:
        return signals.deviation.new_zeros((*parts.shape[:2], 0))
    scale = 2 * signals.size.square() / (padded * (length if signals.present is None else signals.count))
    return (torch.stack(bands, dim=2).double() * scale[:, :, None] + signals.floor.square()[:, :, None]).log()


def _correlations(signals: Signals) -> Tensor:
    """Correlation of each of the `correlated_pairs`; 0 if one channel is constant: (b, pairs)."""
    first, second = correlated_pairs(signals.z.shape[1]).to(signals.z.device)
    if not len(first):
        return signals.deviation[:, :0]
    if signals.present is None:
        return (torch.bmm(signals.z, signals.z.mT) / signals.z.shape[2])[:, first, second]
    there = signals.present.to(signals.z.dtype)
    return (torch.bmm(signals.z, signals.z.mT) / torch.bmm(there, there.mT).clamp_min(1))[:, first, second]


STATISTICS: dict[str, Callable[[Signals], Tensor]] = {
    "mean": lambda signals: signals.mean,
    "min": lambda signals: signals.lowest,
    "max": lambda signals: signals.highest,
    "std": lambda signals: (signals.deviation + signals.floor).log(),
    "skew": lambda signals: signals.average(signals.square * signals.z),
    # The logarithm of the kurtosis, which is at least 1.
    "kurt": lambda signals: signals.average(signals.square.square()).clamp_min(1.0).log(),
    "crossings": _crossings,
    "power": _band_powers,
    "corr": _correlations,
}
"""The statistics by name, in the order of their columns; chosen on development subjects."""


def padded_length(length: int) -> int:
    """Return the length that windows are padded to with zeros for band powers: the next power of two."""
    return 1 << max(length - 1, 0).bit_length()


def correlated_pairs(n_channels: int) -> Tensor:
    """Return the pairs of channels with a correlation, all or, of more than 32 channels, none: (2, pairs).

    Examples
    --------
    >>> correlated_pairs(3).tolist(), correlated_pairs(33).shape
    ([[0, 0, 1], [1, 2, 2]], torch.Size([2, 0]))
    """
    count = n_channels if n_channels <= MOST_CORRELATED else 0
    return torch.triu_indices(count, count, offset=1)


def band_edges(length: int) -> list[int]:
    """Return the edges of the bands in bins of the padded spectrum, of equal width on a logarithmic scale.

    Bands reach from the first bin above 0 to half the sampling rate; empty bands are left out.

    Examples
    --------
    >>> band_edges(128), band_edges(4)
    ([1, 2, 3, 5, 8, 14, 23, 39, 65], [1, 2, 3])
    """
    padded = padded_length(length)
    if padded < 2:
        return []
    edges = np.geomspace(1, padded // 2 + 1, BANDS + 1).round()
    return [int(edge) for edge in np.unique(edges)]


def window_statistics(X: Tensor, present: Tensor | None = None) -> Tensor:
    """Compute all statistics of windows (b, C, time): (b, S) float64, in the order of `statistic_names`.

    Parameters
    ----------
    present : (b, C, time) bool, the samples to use, by default all. The statistics of a channel with too few samples
        are NaN

    Examples
    --------
    >>> window_statistics(torch.randn(4, 2, 128)).shape
    torch.Size([4, 31])
    """
    if present is not None or X.is_cuda:
        return _statistics_of(X, present)
    # In pieces that fit the cache of a CPU core, on all cores.
    pieces = torch.split(X, max(1, _PIECE_VALUES // max(1, X.shape[1] * X.shape[2])))
    return torch.cat(for_each(_statistics_of, pieces))


def _statistics_of(X: Tensor, present: Tensor | None = None) -> Tensor:
    """Compute the statistics of a piece, as `window_statistics`."""
    signals = Signals(X, present)
    # Of a statistic with several columns per channel, the columns of a channel stand together.
    columns = torch.cat([statistic(signals).double().flatten(1) for statistic in STATISTICS.values()], dim=1)
    if present is None:
        return columns
    there = present.to(X.dtype)
    shares = torch.bmm(there, there.mT) / X.shape[2]
    first, second = correlated_pairs(X.shape[1]).to(X.device)
    channels = channels_of_statistics(X.shape[1], X.shape[2]).to(X.device)
    share = torch.cat([shares.diagonal(dim1=1, dim2=2)[:, channels], shares[:, first, second]], dim=1)
    return columns.masked_fill(share < FEWEST_SAMPLES, torch.nan)


def channels_of_statistics(n_channels: int, length: int) -> Tensor:
    """Return the channel of each column of `window_statistics` before the correlations, from 0: (S − pairs,)."""
    bands = max(len(band_edges(length)) - 1, 0)
    channels = torch.arange(n_channels)
    kinds = [
        channels.repeat_interleave(bands) if kind == "power" else channels for kind in STATISTICS if kind != "corr"
    ]
    return torch.cat(kinds)


def statistic_names(channels: Sequence[str], length: int, fs: float | None = None) -> list[str]:
    """Return the names of the columns of `window_statistics`.

    Parameters
    ----------
    channels : names of the channels
    length : samples of a window
    fs : sampling rate in Hz; None names bands in cycles per sample

    Examples
    --------
    >>> statistic_names(["ax", "ay"], 4, 50.0)[-6:]
    ['crossings ay', 'power 6.2–19 Hz ax', 'power 19–25 Hz ax', 'power 6.2–19 Hz ay', 'power 19–25 Hz ay', 'corr ax ay']
    """
    rate, unit = (fs, "Hz") if fs else (1.0, "cycles per sample")
    hertz = [min((edge - 0.5) / padded_length(length), 0.5) * rate for edge in band_edges(length)]
    bands = [f"{low:.2g}–{high:.2g} {unit}" for low, high in pairwise(hertz)]
    names = []
    for statistic in STATISTICS:
        if statistic == "power":
            names += [f"power {band} {channel}" for channel in channels for band in bands]
        elif statistic == "corr":
            pairs = correlated_pairs(len(channels)).T.tolist()
            names += [f"corr {channels[first]} {channels[second]}" for first, second in pairs]
        else:
            names += [f"{statistic} {channel}" for channel in channels]
    return names


def levels(statistics: Tensor, n_channels: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the deviation, minimum and maximum of each channel from statistics (b, S): (b, C) each."""
    kinds = list(STATISTICS)
    lowest, highest, deviation = (
        statistics[:, kinds.index(kind) * n_channels :][:, :n_channels] for kind in ("min", "max", "std")
    )
    return deviation.exp(), lowest, highest


def rounding(n_channels: int, length: int) -> Tensor:
    """Return the deviation below which a statistic counts as constant: (S,), 0 for one in the unit of the signal.

    The logarithm of the deviation of windows that were standardised one by one, for example, varies by rounding alone.

    Examples
    --------
    >>> rounding(1, 1).tolist()  # mean, min, max, std, skew, kurt, crossings
    [0.0, 0.0, 0.0, 1e-05, 1e-05, 1e-05, 1e-05]
    """
    kinds = [name.split()[0] for name in statistic_names(["-"] * n_channels, length)]
    return torch.tensor([0.0 if kind in IN_UNITS else ROUNDING for kind in kinds], dtype=torch.float64)
