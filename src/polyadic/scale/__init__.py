"""What a first reading can skip: sums over windows that are saved and merged, Dask, checkpoints and GPU kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyadic.scale.cluster import recordings
    from polyadic.scale.moments import Moments

__all__ = ["Moments", "recordings"]


def __getattr__(name: str) -> Any:
    # The GPU kernels are part of this package, and modules that `moments` needs import them.
    if name == "Moments":
        from polyadic.scale.moments import Moments

        return Moments
    if name == "recordings":
        from polyadic.scale.cluster import recordings

        return recordings
    raise AttributeError(f"module 'polyadic.scale' has no attribute {name!r}")
