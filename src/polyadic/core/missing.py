"""What is missing in windows: NaN samples, short gaps, dead channels, and the tensor entries that depend on them.

A window enters as (channels, time) with NaN where nothing was recorded, and leaves as a tensor without NaN and a mask
of the entries that were observed.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyadic.core.tensorizer import Tensorizer, tensors
from polyadic.errors import PolyadicError

_GAP_SECONDS, _GAP_SAMPLES = 0.05, 3
"""Longest gap that is interpolated: the larger of the two."""
_FLAT_SHARE, _FLAT_QUANTILE = 0.1, 0.001
"""A channel is dead below this share of this quantile of its deviations in the windows of the fit."""
_FAINT_SHARE = 0.005
"""Windows of the fit below this share of the median deviation do not count: a sensor may have failed in them, too."""
CLIPPED_SHARE = 0.5
"""A channel is dead if it stays at one extreme value for more than this share of a window."""


class MissingWarning(UserWarning):
    """Channels without a signal count as missing.

    Attributes
    ----------
    windows, rows : the input, and by the name of each channel which of its windows lack it, (n,)
    """

    windows: Any = None
    rows: Mapping[str, NDArray[np.intp]] = {}


class Flatness(NamedTuple):
    """What tells a dead channel: the deviation it stays below, and the extremes of the fit's windows: (C,) each."""

    below: Tensor
    lowest: Tensor
    highest: Tensor

    @classmethod
    def of(cls, deviations: Tensor, lowest: Tensor, highest: Tensor) -> Flatness:
        """Return the limits from deviations, minima and maxima of the windows of a fit: (n, C) each."""
        faint = deviations < _FAINT_SHARE * deviations.median(dim=0).values
        below = _FLAT_SHARE * torch.nanquantile(deviations.masked_fill(faint, torch.nan), _FLAT_QUANTILE, dim=0)
        return cls(below, lowest.amin(dim=0), highest.amax(dim=0))


def dead_channels(X: Tensor, flatness: Flatness | None = None) -> Tensor:
    """Return which channels of windows (b, C, t) are dead: (b, C).

    A dead channel is constant or, if `flatness` is known, deviates less than `below`, or stays at one value that the
    fit's windows do not exceed for most of the window (clipped). NaN samples do not count; a channel of nothing but NaN
    is not dead, but missing already.

    Examples
    --------
    >>> dead_channels(torch.tensor([[[2.0, 2.0, 2.0], [1.0, 2.0, 3.0]]]))
    tensor([[ True, False]])
    """
    low, high = X.amin(dim=2), X.amax(dim=2)
    if bool(torch.isnan(low).any()):  # the minimum of numbers and NaN is NaN
        known = ~torch.isnan(X)
        low, high = X.where(known, torch.inf).amin(dim=2), X.where(known, -torch.inf).amax(dim=2)
    dead = low == high
    if flatness is None:
        return dead
    below, lowest, highest = (limit.to(X) for limit in flatness)
    # The range is at most √(2t) deviations, so few windows need the deviation itself.
    small = torch.nonzero((high - low < below * math.sqrt(2 * X.shape[2])) & ~dead)
    dead[small[:, 0], small[:, 1]] |= _deviations(X[small[:, 0], small[:, 1]]) < below[small[:, 1]]
    for extreme, reached in ((low, low <= lowest), (high, high >= highest)):
        clipped = torch.nonzero(reached & ~dead)
        at = X[clipped[:, 0], clipped[:, 1]] == extreme[clipped[:, 0], clipped[:, 1]][:, None]
        dead[clipped[:, 0], clipped[:, 1]] |= at.to(X.dtype).mean(dim=1) > CLIPPED_SHARE
    return dead


def _deviations(X: Tensor) -> Tensor:
    """Return the standard deviation of the known samples of rows (n, t): (n,)."""
    centred = X - X.nanmean(dim=1, keepdim=True)
    return centred.square().nanmean(dim=1).sqrt()


def fill_gaps(X: Tensor, longest: int) -> tuple[Tensor, Tensor]:
    """Interpolate NaN of windows (n, C, t) linearly, and return which samples count as present afterwards.

    Samples in gaps of up to `longest` samples count as present; longer gaps are filled only so that no NaN is left. At
    the ends, the nearest sample is repeated. A channel without any sample is 0.

    Examples
    --------
    >>> filled, present = fill_gaps(torch.tensor([[[1.0, torch.nan, 3.0, torch.nan, torch.nan]]]), longest=1)
    >>> filled[0, 0].tolist(), present[0, 0].tolist()
    ([1.0, 2.0, 3.0, 3.0, 3.0], [True, True, True, False, False])
    """
    length = X.shape[2]
    known = ~torch.isnan(X)
    places = torch.arange(length, device=X.device).expand_as(X)
    before = places.where(known, -1).cummax(dim=2).values
    after = places.where(known, length).flip(2).cummin(dim=2).values.flip(2)
    left, right = before.where(before >= 0, after), after.where(after < length, before)
    values = torch.nan_to_num(X)
    first, last = (values.gather(2, place.clamp(0, length - 1)) for place in (left, right))
    share = (places - left).to(X.dtype) / (right - left).clamp_min(1)
    filled = values.where(known, first + (last - first) * share.clamp(0, 1))
    some = known.any(dim=2, keepdim=True)
    return filled, known | (some & (after - before - 1 <= longest))


class Gaps(NamedTuple):
    """Windows of a batch in which something is missing.

    rows : (n,), which windows of the batch
    observed : (n, I, J, …) bool, which entries of their tensors were observed; a mode of size 1 stands for all entries
    present : (n, C, t) bool, which samples are present; None if windows are tensors already
    """

    rows: Tensor
    observed: Tensor
    present: Tensor | None


class Seen(NamedTuple):
    """A batch without NaN: windows (b, …), tensors (b, I, J, …), what is missing, which channels are dead (b, C)."""

    windows: Tensor
    T: Tensor
    gaps: Gaps | None = None
    dead: Tensor | None = None

    @property
    def complete(self) -> Tensor:
        """The windows in which nothing is missing, by their number: (n,)."""
        rows = torch.ones(len(self.T), dtype=torch.bool, device=self.T.device)
        if self.gaps is not None:
            rows[self.gaps.rows] = False
        return torch.nonzero(rows)[:, 0]


def longest_gap(fs: float | None) -> int:
    """Return the number of samples of the longest gap that is interpolated: 3, or 50 ms if that is more."""
    return max(_GAP_SAMPLES, int(_GAP_SECONDS * (fs or 0.0)))


def without_gaps(
    X: Tensor, fs: float | None, flatness: Flatness | None, keep_flat: bool
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """Fill what is missing in raw windows (b, C, t).

    Returns the windows without NaN; the rows (n,) that lack samples; the samples (n, C, t) that are present in these;
    and the dead channels (b, C). The last three are None if there is nothing missing.
    """
    dead = None if keep_flat else dead_channels(X, flatness)
    if dead is not None and not bool(dead.any()):
        dead = None
    lacking = torch.isnan(X.sum(dim=(1, 2)))
    lacking = lacking if dead is None else lacking | dead.any(dim=1)
    rows = torch.nonzero(lacking)[:, 0]
    if not len(rows):
        return X, None, None, None
    broken = X[rows] if dead is None else X[rows].masked_fill(dead[rows][:, :, None], torch.nan)
    filled, present = fill_gaps(broken, longest_gap(fs))
    X = X.clone()
    X[rows] = filled
    lacks = ~present.flatten(1).all(dim=1)
    return (X, rows[lacks], present[lacks], dead) if bool(lacks.any()) else (X, None, None, dead)


def look(
    X: Tensor,
    tensorize: Tensorizer | None,
    fs: float | None = None,
    flatness: Flatness | None = None,
    keep_flat: bool = False,
) -> Seen:
    """Compute tensors of windows (b, channels, time), or tensors (b, I, J, …), with NaN where something is missing.

    `flatness` tells dead channels, which count as missing unless `keep_flat`.
    """
    if tensorize is None or X.ndim != 3:
        known = ~torch.isnan(X)
        rows = torch.nonzero(~known.flatten(1).all(dim=1))[:, 0]
        filled = torch.nan_to_num(X) if len(rows) else X
        return Seen(filled, tensors(tensorize, filled), Gaps(rows, known[rows], None) if len(rows) else None)
    filled, lacking, present, dead = without_gaps(X, fs, flatness, keep_flat)
    T = tensors(tensorize, filled)
    if lacking is None or present is None:
        return Seen(filled, T, dead=dead)
    observed = tensorize.observed(present)
    if observed is None:
        observed = _by_nan(tensorize, filled[lacking].masked_fill(~present, torch.nan), T)
    return Seen(filled, T, Gaps(lacking, observed, present), dead)


def _by_nan(tensorize: Tensorizer, X: Tensor, T: Tensor) -> Tensor:
    """Return which entries of the tensors of windows (n, C, t) do not depend on NaN: (n, I, J, …)."""
    with torch.no_grad():
        observed = ~torch.isnan(tensorize.transform(X.clone()))
    if observed.shape[1:] != T.shape[1:]:
        raise PolyadicError(
            "tensorize does not let NaN through, so that it is unknown what is missing: define `observed`"
        )
    return observed


def distinct_masks(observed: Tensor, *further: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first row of each distinct mask (u,) among rows (n, …), and the number of each row's mask (n,).

    Examples
    --------
    >>> distinct_masks(torch.tensor([[True, False], [True, True], [True, False]]))
    (tensor([0, 1]), tensor([0, 1, 0]))
    """
    rows = np.concatenate([np.packbits(mask.flatten(1).cpu().numpy(), axis=1) for mask in (observed, *further)], axis=1)
    _, first, number = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    return torch.from_numpy(first), torch.from_numpy(number.reshape(-1))


class Tally:
    """Collects dead channels over the windows of one call, to report them in one line."""

    def __init__(self) -> None:
        self.count, self.dead = 0, list[NDArray[np.intp]]()

    def add(self, seen: Seen) -> None:
        """Add a batch."""
        if seen.dead is not None:
            self.dead.append(np.argwhere(seen.dead.cpu().numpy()) + np.array([self.count, 0]))
        self.count += len(seen.windows)

    def warn(self, channels: Sequence[str], windows: Any) -> None:
        """Warn once about all dead channels of an input, all of whose windows have been added."""
        row, channel = np.concatenate([*self.dead, np.empty((0, 2), np.intp)]).T
        if not len(row):
            return
        rows = {channels[place]: row[channel == place] for place in np.unique(channel)}
        found = sorted(rows, key=lambda name: -len(rows[name]))
        named = ", ".join(f"{'channel ' * name.isdecimal()}{name} in {len(rows[name]):,}" for name in found[:5])
        more = f" and {len(found) - 5} more channels" if len(found) > 5 else ""
        warning = MissingWarning(
            f"dead or stuck channels, and channels of noise, count as missing: {named}{more} of {self.count:,} windows "
            "(Readout(keep_flat=True), or fit --keep-flat, takes them as they are)"
        )
        warning.windows, warning.rows = windows, rows
        warnings.warn(warning, stacklevel=3)
