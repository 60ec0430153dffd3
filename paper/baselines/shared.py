"""What the supervised baselines share: labels as codes."""

from __future__ import annotations

from typing import Any

import numpy as np

from polyadic.errors import PolyadicError


def labels_of(y: Any, count: int, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the classes, and the codes (N,) of the labels of `count` windows, for the supervised baseline `name`."""
    if y is None:
        raise PolyadicError(f"{name} is supervised: y must have a label for each window, but is None")
    labels = np.asarray(y)
    if labels.shape != (count,):
        raise PolyadicError(f"y must have shape ({count},), one entry per window, but has shape {labels.shape}")
    classes, codes = np.unique(labels, return_inverse=True)
    if len(classes) < 2:
        raise PolyadicError(f"y must have at least two classes, but has {len(classes)}")
    return classes, codes
