"""Scalp maps: values at electrodes as a picture of the head."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["interpolated"]


def interpolated(places: NDArray[np.float64], values: NDArray[np.float64], size: int = 32) -> NDArray[np.float64]:
    """Values at electrodes as a picture of the head and the square around it.

    Parameters
    ----------
    places : (n, 2), as of `polyadic.electrodes.positions`
    values : (n,)
    size : points across

    Returns
    -------
    (size, size), from the back of the head to the front
    """
    from scipy.interpolate import RBFInterpolator

    distinct, rows = np.unique(places, axis=0, return_inverse=True)
    means = np.bincount(rows.ravel(), weights=values) / np.bincount(rows.ravel())
    line = np.linspace(-1.0, 1.0, size)
    grid = np.stack(np.meshgrid(line, line), axis=-1).reshape(-1, 2)
    # Smooth, and unlike a thin-plate spline also there for electrodes on one line.
    surface = RBFInterpolator(distinct, means, kernel="multiquadric", epsilon=2.0, degree=0)(grid)
    # Beyond the electrodes nothing is known: no value there goes beyond theirs.
    picture: NDArray[np.float64] = np.clip(surface, means.min(), means.max()).reshape(size, size)
    return picture
