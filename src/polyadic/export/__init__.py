"""Models for other tools and other machines: ONNX, TensorLy, xarray, MNE, matrices in pipelines."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyadic.export.interop import Unflatten, from_mne, from_tensorly, to_tensorly, to_xarray, topomap
    from polyadic.export.onnx_file import Features, onnx

__all__ = ["Features", "Unflatten", "from_mne", "from_tensorly", "onnx", "to_tensorly", "to_xarray", "topomap"]


def __getattr__(name: str) -> Any:
    # `Features` runs on small devices, with numpy and onnxruntime alone: torch must not be imported for it.
    if name not in __all__:
        raise AttributeError(f"module 'polyadic.export' has no attribute {name!r}")
    module = "onnx_file" if name in ("Features", "onnx") else "interop"
    return getattr(import_module(f"polyadic.export.{module}"), name)
