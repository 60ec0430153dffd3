"""What the supervised and the tensor baselines share: labels as codes, and factors from model files."""

from __future__ import annotations

from typing import Any

import numpy as np

from polyadic.baselines import Baseline
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


def restored_factors(model: Baseline, arrays: dict[str, np.ndarray], width: int) -> list[np.ndarray]:
    """Return the matrices `factors.0`, … of a model file, validated to have `width` columns and the tensors' sizes."""
    shape = model._known_tensor_shape()
    if shape is None:
        shape = tuple(len(array) for name, array in arrays.items() if name.startswith("factors."))
    factors = [arrays[f"factors.{mode}"] for mode in range(len(shape))]
    if [factor.shape for factor in factors] != [(size, width) for size in shape]:
        raise ValueError(f"factors of shapes {[factor.shape for factor in factors]} do not fit tensors {shape}")
    return factors
