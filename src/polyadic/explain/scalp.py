"""Scalp maps: values at electrodes, interpolated over the head."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["interpolated"]


def interpolated(places: NDArray[np.float64], values: NDArray[np.float64], size: int = 32) -> NDArray[np.float64]:
    """Interpolate values at electrodes on a square grid around the head.

    Parameters
    ----------
    places : (n, 2), as returned by `polyadic.plot.electrodes.positions`
    values : (n,)
    size : number of grid points per side

    Returns
    -------
    (size, size), from the back of the head to the front
    """
    from scipy.interpolate import RBFInterpolator

    distinct, rows = np.unique(places, axis=0, return_inverse=True)
    means = np.bincount(rows.ravel(), weights=values) / np.bincount(rows.ravel())
    line = np.linspace(-1.0, 1.0, size)
    grid = np.stack(np.meshgrid(line, line), axis=-1).reshape(-1, 2)
    # Smooth and, unlike a thin-plate spline, also defined if all electrodes lie on one line.
    surface = RBFInterpolator(distinct, means, kernel="multiquadric", epsilon=2.0, degree=0)(grid)
    # Do not extrapolate: clip to the range of the electrodes' values.
    picture: NDArray[np.float64] = np.clip(surface, means.min(), means.max()).reshape(size, size)
    return picture
