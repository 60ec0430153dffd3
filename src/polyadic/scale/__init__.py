"""What a first reading can skip: sums over windows that are saved and merged, Dask, checkpoints and GPU kernels."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyadic.scale.cluster import recordings
    from polyadic.scale.moments import Moments

__all__ = ["Moments", "recordings"]


def __getattr__(name: str) -> Any:
    # The GPU kernels are part of this package, and modules that `moments` needs import them.
    if name not in __all__:
        raise AttributeError(f"module 'polyadic.scale' has no attribute {name!r}")
    module = import_module("polyadic.scale.moments" if name == "Moments" else "polyadic.scale.cluster")
    return getattr(module, name)
