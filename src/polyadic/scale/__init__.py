"""What a first reading can skip: sums over windows that are saved and merged, Dask, checkpoints and GPU kernels."""

from polyadic.scale.cluster import recordings
from polyadic.scale.moments import Moments

__all__ = ["Moments", "recordings"]
