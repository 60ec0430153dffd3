"""Preprocessing as JSON, for model files: tensorizers, augmentations and readouts by name and fields."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from polyadic._util.immutable import Immutable
from polyadic.core.tensorizer import Tensorizer, as_tensorizer
from polyadic.errors import ModelFileError, PolyadicError

__all__ = ["decode", "decode_tensorizer", "encode"]

_OWN = "function"


def encode(value: Any) -> Any:
    """Encode preprocessing as JSON: our classes by name and fields, the user's functions by name only.

    Examples
    --------
    >>> from polyadic.augment import Jitter
    >>> encode(Jitter(0.5))
    {'type': 'Jitter', 'degree': 0.5}
    """
    if isinstance(value, Immutable):
        described = value.describe()
        if described is not None:
            return described
        fields = {name: encode(field) for name, field in value.get_params().items()}
        if hasattr(value, "__dataclass_fields__") and not any(_is_own(field) for field in fields.values()):
            return {"type": value.type_name(), **fields}
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return {"type": _OWN, "name": getattr(value, "__qualname__", type(value).__qualname__)}


def _is_own(encoded: Any) -> bool:
    """Return whether a description is, or contains, that of a user's function."""
    if isinstance(encoded, list):
        return any(_is_own(item) for item in encoded)
    return isinstance(encoded, dict) and encoded["type"] == _OWN


def decode(value: Any, given: Any = None) -> Any:
    """Build the object that `encode` described; `given` replaces a user's function."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    name = value.get("type")
    if name == _OWN:
        return given
    for module in ("augment", "readout", "spectral"):  # they register their classes
        import_module(f"polyadic.{module}")
    kind = Immutable.find(str(name))
    if kind is None and given is not None:
        return given
    if kind is None:
        module = str(name).rpartition(".")[0]
        hint = f"import the module that defines it, {module}, before loading" if module else "no such class is known"
        raise ModelFileError(f"the header describes preprocessing of type {name!r} that cannot be built: {hint}")
    fields = {key: decode(item) for key, item in value.items() if key != "type"}
    try:
        return kind(**fields)
    except (TypeError, PolyadicError) as error:
        raise ModelFileError(
            f"the header describes preprocessing of type {name!r} that cannot be built: {error}"
        ) from error


def decode_tensorizer(value: Any, given: Any) -> Tensorizer | None:
    """Build the calibrated tensorizer of a model; a user's function must be `given` again."""
    if value is not None and not isinstance(value, dict):
        raise ModelFileError(f"the file's tensorize must be null or an object, but is {value!r}")
    if value is None or value.get("type") != _OWN:
        decoded = decode(value, given)
        if decoded is not None and not isinstance(decoded, Tensorizer):
            raise ModelFileError(f"the file's tensorize must be null or a tensorizer, but is {decoded!r}")
        return decoded
    if given is None:
        raise ModelFileError(
            f"the model was fitted with the function {value.get('name')!r} as tensorize, and model files contain no "
            "code: pass it again, load(path, tensorize=...)"
        )
    return as_tensorizer(given)
