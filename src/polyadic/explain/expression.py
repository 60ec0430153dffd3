"""How strongly each component is expressed in a window, in dB above the typical level.

Components overlap, so the least-squares coefficient of one depends on all others, and may fall where the power that it
describes rises. The expression does not: it is the mean of the window's centred log amplitudes, weighted by the
component's profiles.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from polyadic._util.torch_state import plain_torch
from polyadic.core.algebra import khatri_rao
from polyadic.core.missing import Seen, Tally, without_gaps
from polyadic.data.batches import choose_device
from polyadic.errors import PolyadicError
from polyadic.spectral import STFT

__all__ = ["alike", "expression", "level", "profiles", "shown", "with_bases"]

_DECIBELS = 20 / math.log(10)
_ALIKE = 0.8

_Floats = NDArray[np.float64]


def expression(model: Any, X: Any, relative: bool = False) -> _Floats:
    """Compute how strongly each component is expressed in each window, in dB above the typical level.

    This is 20/ln 10 · Σ w (ln(Z + f/1000) − b), with Z the STFT amplitudes, f the model's floor, b the mean of this
    logarithm over the windows of the fit, and w the outer product of the component's profiles, scaled to sum 1. A
    signal with twice the power is 3 dB higher in all components.

    Parameters
    ----------
    model : fitted, with non-negative components of log amplitudes, as by default. If it has components for people,
        `components_`, the expression is theirs
    X : (N, channels, time), as for `model.transform`. What is missing (NaN, dead channels) is left out: the weights of
        the rest are scaled to sum 1, and the result (N, rank) is NaN where a component has no weight on the rest
    relative : subtract the `level` of each window. Loud windows are loud in all components: their expressions differ
        little, and relative expressions show what is special about a window

    Examples
    --------
    >>> from polyadic import CPD
    >>> from polyadic.data import synthetic
    >>> windows = synthetic(60)
    >>> model = CPD(rank=2).fit(windows)
    >>> gain = expression(model, np.sqrt(2) * windows.X) - expression(model, windows)
    >>> gain.mean().round(1)
    np.float64(3.0)
    """
    values = _expressed(model, X)
    return values[:, :-1] - values[:, -1:] if relative else values[:, :-1]


def level(model: Any, X: Any) -> _Floats:
    """Compute how much louder each window is than typical, in dB: the `expression` of uniform profiles, (N,).

    Examples
    --------
    >>> from polyadic import CPD
    >>> from polyadic.data import synthetic
    >>> windows = synthetic(60)
    >>> bool(abs(level(CPD(rank=2).fit(windows), windows).mean()) < 1e-3)
    True
    """
    return _expressed(model, X)[:, -1]


@plain_torch()
def _expressed(model: Any, X: Any) -> _Floats:
    """Return the expression of the components and, in the last column, of uniform profiles: (N, R + 1)."""
    # Of the model itself: one without components has no prior.
    limits, keep_flat = (model.prior_.limits, model._keeps_flat) if hasattr(model, "prior_") else (None, True)
    model = shown(model)
    stft = _checked_stft(model)
    samples, quiet, tally, result = model._samples(X), stft.quiet(), Tally(), []
    device, dtype = choose_device(model.device, samples.data), samples.dtype
    factors = [profiles(np.column_stack([factor, np.ones(len(factor))])) for factor in model.factors_]
    weights = khatri_rao([torch.as_tensor(factor, dtype=dtype, device=device) for factor in factors])
    baseline = torch.as_tensor(stft.baseline, dtype=dtype, device=device)[:, :, None]
    for _, raw in model._raw_batches(samples, missing=True):
        windows, lacking, present, dead = without_gaps(raw, model.fs_, limits, keep_flat)
        if lacking is not None and present is not None:  # NaN makes every frame that it touches NaN
            windows[lacking] = windows[lacking].masked_fill(~present, torch.nan)
        T = quiet.transform(windows) - baseline
        tally.add(Seen(windows, T, dead=dead))
        result.append(_weighted_mean(T.flatten(1), weights).double().cpu().numpy())
    tally.warn(model._channel_labels(), samples.data)
    return _DECIBELS * np.concatenate(result)


def _weighted_mean(T: Tensor, weights: Tensor) -> Tensor:
    """Return the means of rows (b, n) with weights (n, R) of sum 1, over the entries that are not NaN: (b, R)."""
    known = ~torch.isnan(T)
    if bool(known.all()):
        return T @ weights
    return (torch.where(known, T, 0.0) @ weights) / (known.to(T.dtype) @ weights)


def alike(relative: NDArray[Any]) -> list[tuple[int, int]]:
    """Return the pairs of components (from 1) whose relative expressions (N, R) correlate above 0.8."""
    known = relative[np.isfinite(relative).all(axis=1)]
    if relative.shape[1] < 2 or len(known) < 2:
        return []
    with np.errstate(invalid="ignore", divide="ignore"):
        correlations = np.nan_to_num(np.corrcoef(known.T))
    return [(int(a) + 1, int(b) + 1) for a, b in np.argwhere(np.triu(correlations, 1) > _ALIKE)]


def shown(model: Any) -> Any:
    """Return the model whose components a person reads: that of `model.components_`, or the model if it has none.

    If no component replicates, the result has rank 0.
    """
    found = getattr(model, "components_", None)
    if found is None:
        return model
    if found.model is None:
        return with_bases(model, [np.empty((len(factor), 0)) for factor in model.factors_], None)
    # As after loading: a model of components that was fitted to sums does not know which channels are dead.
    return with_bases(model, found.model.factors_, getattr(found.model, "replicability_", None))


def with_bases(model: Any, factors: list[NDArray[Any]], replicability: Any) -> Any:
    """Return a copy of a model with other bases, and without what belongs to its own."""
    part = copy.copy(model)
    part._owner_keeps_flat = model._keeps_flat
    part.rank, part.factors_, part.readout, part.readout_ = factors[0].shape[1], factors, None, None
    for name in ("probe_", "components_", "replicability_", "prior_"):
        vars(part).pop(name, None)
    if hasattr(model, "prior_") and part.rank:
        part.prior_ = model.prior_.of_bases(model.factors_, factors, float(model.alpha))
    if replicability is not None:
        part.replicability_ = replicability
    return part


def profiles(factor: NDArray[Any]) -> _Floats:
    """Scale the non-negative columns of a basis (I, R) to sum 1; columns of zeros stay zero."""
    columns = np.asarray(factor, np.float64)
    sums = columns.sum(axis=0)
    return np.asarray(columns / np.where(sums > 0, sums, 1.0))


def _checked_stft(model: Any) -> STFT:
    """Return the STFT of a model whose components have an expression in dB; raise if they have none."""
    check_is_fitted(model)
    stft = getattr(model, "tensorize_", None)
    if not isinstance(stft, STFT) or stft.parts != "log_amplitude" or not hasattr(model, "factors_"):
        parts = "none" if stft is None else getattr(stft, "parts", type(stft).__name__)
        why = f"needs log amplitudes of an STFT, but the model has {parts}"
    elif any((factor < 0).any() for factor in model.factors_):
        why = "needs profiles that are not negative, but this model was fitted with nonnegative=False"
    elif stft.baseline is None:
        why = "needs the typical level of the windows of the fit: fit the model again with mean='auto', the default"
    else:
        return stft
    raise PolyadicError(f"expression in dB {why}. model.coefficients(X) exists for every model, without a unit")
