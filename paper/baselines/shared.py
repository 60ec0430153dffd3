"""What the baselines of the paper share: no model files, and labels as codes."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from polyadic.baselines import Baseline
from polyadic.errors import PolyadicError


class PaperBaseline(Baseline):
    """A baseline of the paper: it has the interface of the library's, but no model files."""

    def save(self, path: Any) -> None:
        """Raise: only the estimators of the library have model files."""
        raise PolyadicError(f"{type(self).__name__} is a baseline of the paper, which cannot be saved")


class SupervisedTensorBaseline(PaperBaseline):
    """A baseline with a vector per mode and feature, learned from labels: `factors_`, (I, F), (J, F), …"""

    factors_: list[np.ndarray]

    @property
    def n_parameters_(self) -> int:
        """Number of learned parameters."""
        check_is_fitted(self)
        return sum(factor.size for factor in self.factors_)

    def _width(self) -> int:
        return int(self.factors_[0].shape[1])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags


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
