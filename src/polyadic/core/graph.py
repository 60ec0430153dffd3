"""The graph of GR-SALS, with the windows of a fit as nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from polyadic.errors import PolyadicError

__all__ = ["Graph"]


@dataclass(frozen=True)
class Graph:
    """Weights between the windows of a fit; each batch uses its submatrix."""

    weights: Any

    @classmethod
    def of(cls, graph: Any, count: int) -> Graph:
        given = graph if sparse.issparse(graph) else np.asarray(graph)
        if given.dtype.kind not in "fiub":
            raise PolyadicError(f"graph must hold real numbers, but has type {given.dtype}")
        weights = sparse.csr_array(given, dtype=np.float64) if sparse.issparse(given) else given.astype(np.float64)
        if weights.shape != (count, count):
            raise PolyadicError(
                f"graph must have shape ({count}, {count}) for {count} windows, but has {weights.shape}"
            )
        lowest, highest = weights.min(), weights.max()
        if not (lowest >= 0 and highest < np.inf):
            raise PolyadicError(f"graph must have finite weights >= 0, but they range from {lowest:g} to {highest:g}")
        gap = abs(weights - weights.T).max()
        if gap > 1e-9 * highest:
            raise PolyadicError(f"graph must be symmetric, but weights differ from their transpose by up to {gap:g}")
        return cls(weights)

    def __call__(self, ids: Tensor) -> Tensor:
        """Return the weights between the windows `ids`: (b, b) float64."""
        rows = ids.numpy()
        part = self.weights[rows][:, rows]
        return torch.as_tensor(part.toarray() if sparse.issparse(part) else part)
