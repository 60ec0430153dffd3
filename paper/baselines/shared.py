"""What the supervised baselines of the paper share: factors, and labels as codes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyadic.baselines import Baseline
from polyadic.core.algebra import project
from polyadic.errors import PolyadicError


class SupervisedTensorBaseline(Baseline):
    """A baseline with a vector per mode and feature, learned from labels: `factors_`, (I, F), (J, F), …"""

    factors_: list[np.ndarray]

    @property
    def n_parameters_(self) -> int:
        return sum(factor.size for factor in self.factors_)

    def _features(self, T: Tensor) -> Tensor:
        return project(T, [torch.as_tensor(factor, dtype=T.dtype, device=T.device) for factor in self.factors_])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags


def labels_of(y: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the classes, and the codes (N,) of the labels."""
    classes, codes = np.unique([] if y is None else y, return_inverse=True)
    if len(classes) < 2:
        raise PolyadicError(f"y must have at least two classes, but has {len(classes)}")
    return classes, codes
