"""Peaks, effect sizes and shares of components, and where they are, in words."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage

from polyadic.core.tensorizer import Axis, tensors
from polyadic.data.channels import match_signals
from polyadic.data.windows import Windows
from polyadic.explain.electrodes import positions

__all__ = ["effect_sizes", "place", "shares", "where_strongest"]

_FLAT = 0.75  # a profile is flat if at least this share of it is above half of its peak
_RHYTHMS = {"slow": 0.0, "delta": 0.5, "theta": 4.0, "alpha": 8.0, "sigma": 12.0, "beta": 16.0, "gamma": 30.0}
"""Lower limits of the EEG bands in Hz; sigma is the band of sleep spindles, and slow the baseline."""
_EVERYWHERE = {"frequency": "all frequencies", "time": "throughout"}
_MOST_NAMED = 3
_Floats = NDArray[np.float64]


def where_strongest(model: Any, windows: Windows, r: int) -> _Floats:
    """Return the sample at which a component is strongest in each window: (n,); the middle if time is not a mode."""
    windows = match_signals(windows, model.fs_, model.channel_names_, "windows", units=model.units_)
    axes = model.axes(windows)
    if [axis.kind for axis in axes] != ["channel", "frequency", "time"]:
        return np.full(len(windows), windows.shape[2] / 2)
    first, second, third = (np.asarray(factor[:, r], np.float64) for factor in model.factors_)
    T = np.asarray(tensors(model.tensorize_, torch.as_tensor(windows.X, dtype=torch.float32)), np.float64)
    centred = T - T.mean(axis=(0, 3), keepdims=True)
    over_time = np.einsum("nijk,ij->nk", centred, first[:, None] * second)
    over_time *= np.sign(third[np.abs(third).argmax()] or 1.0)
    places: _Floats = axes[2].positions[over_time.argmax(axis=1)] * (windows.fs or 1.0)
    return places


def place(axis: Axis, weights: NDArray[Any], axes: list[Axis]) -> str:
    """Describe the peak of a profile, its full width at half maximum, and how many other ranges are as high.

    Of channels, those near the largest weight are named. A profile above half of its peak almost everywhere is flat.

    Examples
    --------
    >>> axis = Axis("frequency", "frequency", np.arange(7.0), "Hz")
    >>> place(axis, np.array([0.0, 0.6, 1.0, 0.6, 0.0, 0.7, 0.2]), [Axis("channel", "channel", np.arange(2.0))])
    '2 Hz (1–3) and 1 more'
    """
    if axis.kind == "channel":
        return _channels(axis, np.abs(axis.by_part(weights)).max(axis=0))
    peak = int(np.abs(weights).argmax())
    high = weights * np.sign(weights[peak]) >= 0.5 * abs(weights[peak])
    if high.mean() >= _FLAT:
        return _EVERYWHERE.get(axis.kind, "flat")
    numbers, count = ndimage.label(high)  # of connected ranges
    width = axis.positions[numbers == numbers[peak]]
    steps = np.abs(np.diff(axis.positions))
    # As many decimals as tell a position from its neighbours.
    whole = not len(steps) or (axis.positions == np.rint(axis.positions)).all()
    digits = 0 if whole else max(1, int(np.ceil(-np.log10(steps.min()))))
    at, first, last = (f"{value:.{digits}f}" for value in (axis.positions[peak], width[0], width[-1]))
    text = f"{at} {axis.unit}".strip() + (f" ({first}–{last})" if first != last else "")
    text += f" and {count - 1} more" if count > 1 else ""
    if axis.unit == "Hz" and positions(axes[0].labels):
        text = f"{[name for name, lowest in _RHYTHMS.items() if axis.positions[peak] >= lowest][-1]}, {text}"
    return text + (", perhaps an offset" if axis.kind == "frequency" and axis.positions[peak] == 0 else "")


def _channels(axis: Axis, sizes: NDArray[Any]) -> str:
    """Name the channels near the largest weight (n,), or those without much if the others have about the same."""
    low = [name for name, size in zip(axis.labels, sizes, strict=True) if size < 0.5 * sizes.max()]
    if len(sizes) > 1 and len(low) <= (1 - _FLAT) * len(sizes):
        some = ", ".join(low) if len(low) <= _MOST_NAMED else f"{len(low)} channels"
        return f"all but {some}" if low else "all channels"
    order = np.argsort(-sizes, kind="stable")
    near = [axis.labels[number] for number in order.tolist() if sizes[number] >= 0.7 * sizes[order[0]]]
    more = f" and {len(near) - _MOST_NAMED} more" if len(near) > _MOST_NAMED else ""
    return ", ".join(near[:_MOST_NAMED]) + more


def effect_sizes(values: NDArray[Any], label: NDArray[Any]) -> _Floats:
    """Compute Cohen's d of each class against all other labelled windows: (classes,), 0 if values do not vary.

    It is the difference of the means of `values` (N,) over their pooled SD; `label` (N,) are classes from 0, or -1.

    Examples
    --------
    >>> effect_sizes(np.array([0.0, 2.0, 4.0, 6.0]), np.array([0, 0, 1, 1])).round(1)
    array([-2.8,  2.8])
    """
    known = label >= 0
    codes = np.unique(label[known])
    sizes = np.zeros(len(codes))
    for number, code in enumerate(codes):
        inside, rest = values[label == code], values[known & (label != code)]
        if len(rest):
            squares = float(((inside - inside.mean()) ** 2).sum() + ((rest - rest.mean()) ** 2).sum())
            pooled = np.sqrt(squares / max(len(inside) + len(rest) - 2, 1))
            sizes[number] = (inside.mean() - rest.mean()) / pooled if pooled > 0 else 0.0
    return sizes


def shares(model: Any, x: NDArray[Any]) -> _Floats:
    """Return the share of each component in the variation that a model explains, in percent: (R,), adding up to 100.

    The coefficients are x (N, R). Components overlap, so their energies do not add up. They are selected greedily: each
    time the one that explains most of the remaining variation. Its share is what it explains beside those before it.

    Examples
    --------
    >>> from polyadic import CPD
    >>> X = np.random.default_rng(0).normal(size=(20, 3, 4))
    >>> model = CPD(rank=2, tensorize=None, max_sweeps=1).fit(X)
    >>> round(shares(model, model.coefficients(X)).sum())
    100
    """
    factors = [np.asarray(factor, np.float64) for factor in model.factors_]
    gram = np.prod([factor.T @ factor for factor in factors], axis=0)
    return greedy_shares(gram, np.cov(np.asarray(x, np.float64).T, bias=True).reshape(gram.shape))


def greedy_shares(gram: _Floats, covariance: _Floats) -> _Floats:
    """Return `shares` from inner products of the components (R, R) and the covariance of their coefficients (R, R)."""
    # Explained by the components of a set S: tr(G_SS⁻¹ C_SS), with C the covariance of inner products with windows.
    C, G, left = gram @ covariance @ gram, gram.copy(), list(range(len(gram)))
    found, total = np.zeros(len(gram)), float(np.trace(gram @ covariance))
    tiny = 1e-10 * np.maximum(gram.diagonal(), np.finfo(float).tiny)
    while left and total > 0:
        gains = np.array([C[r, r] / G[r, r] if G[r, r] > tiny[r] else 0.0 for r in left])
        best = left.pop(int(gains.argmax()))
        found[best] = gains.max()
        if G[best, best] > tiny[best]:
            # Project the component out of the others.
            slope = G[:, best] / G[best, best]
            C = C - np.outer(slope, C[best]) - np.outer(C[:, best], slope) + np.outer(slope, slope) * C[best, best]
            G = G - np.outer(slope, G[best])
    return 100 * found / (found.sum() or 1.0)
