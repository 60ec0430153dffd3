"""Preprocessing as JSON, for model files: tensorizers, augmentations and readouts by class and fields."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from polyadic._util.immutable import Immutable
from polyadic.core.tensorizer import Tensorizer
from polyadic.errors import ModelFileError, PolyadicError


def encode(value: Any, own: bool = False) -> Any:
    """Encode preprocessing as JSON: objects by class and fields; with `own`, a user's functions by name.

    Examples
    --------
    >>> from polyadic.augment import Jitter
    >>> encode(Jitter(0.5))
    {'type': 'Jitter', 'degree': 0.5}
    """
    if isinstance(value, Immutable) and hasattr(value, "__dataclass_fields__"):
        return {"type": value.type_name(), **{name: encode(field, own) for name, field in value.get_params().items()}}
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, tuple | list):
        return [encode(item, own) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if own:
        return repr(value)
    raise PolyadicError(
        f"{value!r} cannot be described in a file, which contains no code: preprocessing of your own must be a "
        "dataclass of numbers and text that subclasses Tensorizer or Augmentation"
    )


def decode(value: Any) -> Any:
    """Build the object that `encode` described."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    name = value.get("type")
    for module in ("augment", "readout", "spectral"):  # they register their classes
        import_module(f"polyadic.{module}")
    kind = Immutable.find(str(name))
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


def decode_tensorizer(value: Any) -> Tensorizer | None:
    """Build the calibrated tensorizer of a model."""
    tensorizer = decode(value)
    if tensorizer is not None and not isinstance(tensorizer, Tensorizer):
        raise ModelFileError(f"the file's tensorize must be null or a tensorizer, but is {value!r}")
    return tensorizer
