"""Export of models to ONNX, C and the Hugging Face hub, and conversion from MNE."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyadic.export.c_file import CExport, c
    from polyadic.export.hub_folder import HUB_FILES, hub
    from polyadic.export.interop import from_mne
    from polyadic.export.onnx_file import Features, onnx

__all__ = ["HUB_FILES", "CExport", "Features", "c", "from_mne", "hub", "onnx"]

_MODULES = {"CExport": "c_file", "c": "c_file", "HUB_FILES": "hub_folder", "hub": "hub_folder", "from_mne": "interop"}


def __getattr__(name: str) -> Any:
    # `Features` runs on small devices, with only numpy and onnxruntime: it must not import torch.
    if name not in __all__:
        raise AttributeError(f"module 'polyadic.export' has no attribute {name!r}")
    return getattr(import_module(f"polyadic.export.{_MODULES.get(name, 'onnx_file')}"), name)
