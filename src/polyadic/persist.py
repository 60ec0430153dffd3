"""Model files: one safetensors file with a JSON header, written atomically, read without running anything from it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_bytes

from polyadic import augment, spectral
from polyadic.errors import ModelFileError, PolyadicError
from polyadic.files import check_regular_file, write_atomically

__all__ = ["SCHEMA", "decode", "encode", "read", "write"]

SCHEMA = 2
"""Version of the header's layout. Readers refuse a newer one. Since 2 it has a checksum of all that the file holds."""

_KEY = "polyadic"
_CHECKSUM = "sha256"
_FUNCTION = "function"
_TYPES: dict[str, Callable[..., Any]] = {
    kind.__name__: kind
    for kind in (spectral.STFT, augment.Jitter, augment.Bandpass, augment.Rotate3D, augment.Compose, augment.OneOf)
}


def encode(value: Any) -> Any:
    """Preprocessing as JSON: our own classes by name and fields, what holds a function of the user's by name alone.

    Examples
    --------
    >>> encode(augment.Jitter(0.5))
    {'type': 'Jitter', 'degree': 0.5}
    """
    if type(value) in _TYPES.values():
        fields = {field.name: encode(getattr(value, field.name)) for field in dataclasses.fields(value)}
        if not any(_holds_function(field) for field in fields.values()):
            return {"type": type(value).__name__, **fields}
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return {"type": _FUNCTION, "name": getattr(value, "__qualname__", type(value).__qualname__)}


def _holds_function(encoded: Any) -> bool:
    if isinstance(encoded, list):
        return any(_holds_function(item) for item in encoded)
    return isinstance(encoded, dict) and encoded["type"] == _FUNCTION


def decode(value: Any, given: Any = None, name: str = "") -> Any:
    """The object that `encode` described; a user's function must be `given` again."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    kind = value.get("type")
    if kind == _FUNCTION:
        if given is None and name:
            raise ModelFileError(
                f"the model was made with the function {value.get('name')!r} as its {name}, and a model file holds no "
                f"code: pass it again, load(path, {name}=...)"
            )
        return given
    fields = {key: decode(item) for key, item in value.items() if key != "type"}
    try:
        return _TYPES[str(kind)](**fields)
    except (KeyError, TypeError, PolyadicError) as error:
        raise ModelFileError(
            f"the header describes preprocessing of type {kind!r} that cannot be made: {error}"
        ) from error


def write(path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray], header: Mapping[str, Any]) -> None:
    """Write a model file, or leave what was there untouched.

    Parameters
    ----------
    arrays : the tensors by name
    header : what JSON can hold
    """
    whole = {"schema": SCHEMA, **header}
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    text = json.dumps({**whole, _CHECKSUM: _checksum(contiguous, whole)})
    write_atomically(path, to_bytes(contiguous, metadata={_KEY: text}))


def _checksum(arrays: Mapping[str, np.ndarray], header: Mapping[str, Any]) -> str:
    """SHA-256 of the header and of the names, types, shapes and bytes of the arrays."""
    state = hashlib.sha256(json.dumps(header).encode())
    for name in sorted(arrays):
        array = arrays[name]
        state.update(json.dumps([name, array.dtype.str, array.shape]).encode())
        state.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return state.hexdigest()


def read(path: str | os.PathLike[str]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays and the header of a model file, after comparing them with its checksum, which older files lack.

    Raises
    ------
    ModelFileError : if the file is damaged, of a newer schema, or something else
    """
    check_regular_file(path, ModelFileError)
    try:
        with safe_open(os.fspath(path), framework="numpy") as file:
            text = (file.metadata() or {}).get(_KEY)
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise
    except (SafetensorError, OSError, ValueError, TypeError, KeyError) as error:
        raise ModelFileError(f"{path} is damaged, cut short or not a model file: {error}") from error
    if text is None:
        raise ModelFileError(
            f"{path} is a safetensors file, but not a polyadic model: its header has no {_KEY!r} entry"
        )
    try:
        header = dict(json.loads(text))
        schema = header["schema"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ModelFileError(f"{path} has a damaged header: {error!r}") from error
    if not isinstance(schema, int) or schema < 1:
        raise ModelFileError(f"{path} has a damaged header: its schema must be a whole number, but is {schema!r}")
    if schema > SCHEMA:
        raise ModelFileError(
            f"{path} was written with model file schema {schema}, but this version of polyadic reads up to {SCHEMA}: "
            "upgrade polyadic to open it"
        )
    checksum = header.pop(_CHECKSUM, None)
    if (checksum is not None or schema > 1) and checksum != _checksum(arrays, header):
        raise ModelFileError(f"{path} is damaged: its checksum does not fit")
    return arrays, header
