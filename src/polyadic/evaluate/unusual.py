"""Detection of windows unlike those of the fit, by the distance of their features or by their residuals."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["QUANTILE", "typical_windows", "unusual_windows"]

QUANTILE = 0.995
"""Quantile of distance and residual over the windows of a fit that is stored as the bound."""
_SAMPLED = 4096

_Floats = NDArray[np.float64]


def typical_windows(model: Any, windows: Any) -> dict[str, Any]:
    """Describe features and residuals of the windows that a model was fitted to, as JSON.

    Up to 4,096 evenly spaced windows are used, without flat ones. Returns mean and scale of the features, (F,) each,
    and upper bounds of distance and residual for almost all windows.
    """
    rows = np.unique(np.linspace(0, len(windows) - 1, min(len(windows), _SAMPLED)).astype(np.intp))
    Z, residual, flat = _features_and_residuals(model, windows[rows])
    if not flat.all():
        Z, residual = Z[~flat], residual[~flat]
    mean, scale = Z.mean(axis=0), Z.std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    bounds = {"distance": _distances(Z, mean, scale), "residual": residual}
    about = {"mean": mean.tolist(), "scale": scale.tolist(), "quantile": QUANTILE}
    return about | {name: float(np.quantile(values, QUANTILE)) for name, values in bounds.items()}


def unusual_windows(model: Any, windows: Any) -> NDArray[np.bool_] | None:
    """Find windows that exceed the bounds of `typical_windows`, or are flat: (N,); None if the model has no bounds.

    A window is flat if all its channels are constant, for example if electrodes were off.
    """
    known = getattr(model, "typical_", {})
    if not known:
        return None
    Z, residual, flat = _features_and_residuals(model, windows)
    distance = _distances(Z, np.array(known["mean"]), np.array(known["scale"]))
    unusual: NDArray[np.bool_] = (distance > known["distance"]) | (residual > known["residual"]) | flat
    return unusual


def _distances(Z: _Floats, mean: _Floats, scale: _Floats) -> _Floats:
    """Return the root mean square of the standardised features: (N,)."""
    return np.asarray(np.sqrt((((Z - mean) / scale) ** 2).mean(axis=1)))


def _features_and_residuals(model: Any, windows: Any) -> tuple[_Floats, _Floats, NDArray[np.bool_]]:
    """Return the features (N, F), squared residuals of the tensors (N,), and which windows are flat (N,)."""
    features, residuals, flat = [], [], []
    with torch.no_grad():
        for batch in model._batches(model._samples(windows), features=True):
            features.append(batch.Z.double().cpu().numpy())
            residuals.append(batch.residuals.double().cpu().numpy())
            constant = (batch.windows == batch.windows[..., :1]).flatten(1).all(dim=1)
            # Input that already holds tensors has no time axis, and so no flat windows.
            flat.append(constant.cpu().numpy() & (model.tensorize_ is not None))
    return np.concatenate(features), np.concatenate(residuals), np.concatenate(flat)
