"""Messages between processes as bytes: numbers, strings, tensors and the state of a fit; decoding runs no code."""

from __future__ import annotations

import builtins
import json
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load as from_bytes
from safetensors.numpy import save as to_bytes
from torch import Tensor

from polyadic import errors
from polyadic.core.step import State, Statistics
from polyadic.engine.loop import FitProgress

__all__ = ["decode_message", "encode_message", "in_memory_order", "restore_layout"]

_KINDS = {kind.__name__: kind for kind in (FitProgress, State, Statistics)}
_KEY = "message"


def in_memory_order(tensor: Tensor) -> tuple[np.ndarray, list[int]]:
    """Convert a tensor to an array with axes in memory order, and return that order.

    The memory layout must be restored, because it affects the last bit of sums.
    """
    axes = sorted(range(tensor.ndim), key=tensor.stride().__getitem__, reverse=True)
    return tensor.detach().cpu().permute(axes).contiguous().numpy(), axes


def restore_layout(array: np.ndarray, axes: list[int]) -> Tensor:
    """Restore the tensor from the output of `in_memory_order`."""
    if sorted(axes) != list(range(array.ndim)):
        raise ValueError(f"axes {axes} of an array with {array.ndim}")
    # Copied, because other memory may be unaligned, which changes the rounding of products.
    return torch.from_numpy(array).clone().permute([axes.index(axis) for axis in range(array.ndim)])


def encode_message(value: Any, error: Exception | None = None) -> bytes:
    """Encode a value, or the error raised instead, as bytes.

    Examples
    --------
    >>> decode_message(encode_message({"names": ["a", "b"], "numbers": torch.ones(2)}))
    {'names': ['a', 'b'], 'numbers': tensor([1., 1.])}
    """
    arrays: dict[str, np.ndarray] = {}
    said = {"value": _describe(value, arrays)} if error is None else {"error": _describe_error(error)}
    return to_bytes(arrays, metadata={_KEY: json.dumps(said)})


def decode_message(content: bytes) -> Any:
    """Decode the output of `encode_message`; an error is raised."""
    size = int.from_bytes(content[:8], "little")
    said = json.loads(json.loads(content[8 : 8 + size])["__metadata__"][_KEY])
    if "error" in said:
        raise _rebuild_error(said["error"])
    return _rebuild(said["value"], from_bytes(content))


def _describe(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor):
        name = str(len(arrays))
        arrays[name], axes = in_memory_order(value)
        return {"kind": "tensor", "name": name, "axes": axes}
    if isinstance(value, list | tuple):
        return {"kind": type(value).__name__, "items": [_describe(item, arrays) for item in value]}
    if isinstance(value, dict):
        return {"kind": "dict", "items": {str(name): _describe(item, arrays) for name, item in value.items()}}
    if type(value).__name__ in _KINDS:
        return {"kind": type(value).__name__, "items": _describe(dict(vars(value)), arrays)}
    raise TypeError(f"a message cannot hold a {type(value).__name__}")


def _rebuild(said: Any, arrays: dict[str, np.ndarray]) -> Any:
    if not isinstance(said, dict):
        return said
    kind = said["kind"]
    if kind == "tensor":
        return restore_layout(arrays[said["name"]], said["axes"])
    if kind == "dict":
        return {name: _rebuild(item, arrays) for name, item in said["items"].items()}
    if kind in ("list", "tuple"):
        items = [_rebuild(item, arrays) for item in said["items"]]
        return items if kind == "list" else tuple(items)
    return _KINDS[kind](**_rebuild(said["items"], arrays))


def _describe_error(error: Exception) -> dict[str, Any]:
    """Describe an error by its nearest polyadic or builtin class, or a system error by its number."""
    names = (kind.__name__ for kind in type(error).__mro__ if kind.__module__ in (errors.__name__, "builtins"))
    known = next(names)
    if isinstance(error, OSError) and error.errno is not None:
        return {"errno": error.errno, "text": error.strerror, "file": str(error.filename or "")}
    return {"kind": known, "text": str(error)}


def _rebuild_error(said: dict[str, Any]) -> Exception:
    if "errno" in said:
        return OSError(said["errno"], said["text"], *([said["file"]] if said["file"] else []))
    kind = getattr(errors, said["kind"], None) or getattr(builtins, said["kind"], None)
    if not isinstance(kind, type) or not issubclass(kind, Exception):
        return errors.PolyadicError(said["text"])
    error: Exception = kind(said["text"])
    return error
