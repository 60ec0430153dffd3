"""Windows unlike those of a fit: by the distance of their features, or by what the components leave over."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["QUANTILE", "typical_windows", "unusual_windows"]

QUANTILE = 0.995
"""The share of the windows of a fit that are within the stored bounds of distance, and of residual."""

_SAMPLED = 4096


def typical_windows(model: Any, windows: Any) -> dict[str, Any]:
    """What features and residuals of the windows of a fit are like, as JSON can hold it.

    Parameters
    ----------
    model : fitted
    windows : that it was fitted to; some thousands of them, spread evenly, are looked at, but for flat ones

    Returns
    -------
    mean and scale of the features, (F,) each, and the bounds of distance and residual that almost all windows are
    within
    """
    rows = np.unique(np.linspace(0, len(windows) - 1, min(len(windows), _SAMPLED)).astype(np.intp))
    Z, residual, flat = _features_and_residuals(model, windows[rows])
    if not flat.all():
        Z, residual = Z[~flat], residual[~flat]
    mean, scale = Z.mean(axis=0), Z.std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    found = {"mean": mean.tolist(), "scale": scale.tolist(), "quantile": QUANTILE}
    distance = _distances(Z, mean, scale)
    return found | {
        "distance": float(np.quantile(distance, QUANTILE)),
        "residual": float(np.quantile(residual, QUANTILE)),
    }


def unusual_windows(model: Any, windows: Any) -> NDArray[np.bool_] | None:
    """Which windows are beyond the bounds that almost all windows of the fit were within, or flat: (N,).

    A window is flat if every channel of it is constant, as where an electrode was off.

    Returns
    -------
    None if the model does not know these bounds, as one of an earlier version
    """
    known = getattr(model, "typical_", {})
    if not known:
        return None
    Z, residual, flat = _features_and_residuals(model, windows)
    distance = _distances(Z, np.array(known["mean"]), np.array(known["scale"]))
    found: NDArray[np.bool_] = (distance > known["distance"]) | (residual > known["residual"]) | flat
    return found


def _distances(Z: NDArray[np.float64], mean: NDArray[np.float64], scale: NDArray[np.float64]) -> NDArray[np.float64]:
    """Root mean square of the standardised features: (N,)."""
    return np.asarray(np.sqrt((((Z - mean) / scale) ** 2).mean(axis=1)))


def _features_and_residuals(
    model: Any, windows: Any
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    """Features (N, F), squared residuals of the tensors (N,), and which windows are flat (N,)."""
    readout, samples = model._fitted_readout(), model._samples(windows, reset=False)
    features, residuals, flat = [], [], []
    with torch.no_grad():
        for batch in model._batches(samples, torch.arange(len(samples), device="cpu")):
            Z = batch.x if readout is None else readout.features(batch.x, batch.windows)
            features.append(Z.double().cpu().numpy())
            residuals.append(batch.residuals.double().cpu().numpy())
            constant = (batch.windows == batch.windows[..., :1]).flatten(1).all(dim=1)
            # Tensors that are given as such have no time in which to be flat.
            flat.append(constant.cpu().numpy() & (model.tensorize_ is not None))
    return np.concatenate(features), np.concatenate(residuals), np.concatenate(flat)
