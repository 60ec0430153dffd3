"""Load estimators from model files, and encode their parts as JSON and arrays."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

import numpy as np

from polyadic._util.immutable import Immutable
from polyadic._util.model_files import read
from polyadic._util.torch_state import plain_torch
from polyadic.core.tensorizer import Tensorizer, as_tensorizer
from polyadic.errors import ModelFileError, PolyadicError

__all__ = ["MODEL_FILE", "decode", "decode_tensorizer", "encode", "load"]

MODEL_FILE = "model.safetensors"
"""Name of the model file in a repository of the Hugging Face hub."""

_HUB = "hf://"
_OWN = "function"


# ---------------------------------------------------------------- preprocessing


def encode(value: Any) -> Any:
    """Encode preprocessing as JSON: our classes by name and fields, the user's functions by name only.

    Examples
    --------
    >>> from polyadic.augment import Jitter
    >>> encode(Jitter(0.5))
    {'type': 'Jitter', 'degree': 0.5}
    """
    if isinstance(value, Immutable):
        described = getattr(value, "describe", lambda: None)()
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


# ------------------------------------------------------------------------ files


@plain_torch()
def load(path: str | os.PathLike[str], *, tensorize: Any = None, augment: Any = None) -> Any:
    """Load a model from a file written by `save`: `CPD`, `ATD`, `SALS` or `GRSALS`.

    Parameters
    ----------
    path : the file, or "hf://user/repository" for a model on the Hugging Face hub (needs huggingface_hub)
    tensorize, augment : your own functions, if the model was fitted with any: files contain no code

    Returns
    -------
    the fitted estimator

    Raises
    ------
    ModelFileError : if the file is damaged, of another version, or not a model

    Examples
    --------
    >>> import tempfile
    >>> from polyadic import CPD
    >>> model = CPD(rank=2, tensorize=None, max_sweeps=1).fit(np.random.default_rng(0).normal(size=(20, 3, 4)))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model.save(f"{folder}/m.safetensors")
    ...     same = load(f"{folder}/m.safetensors")
    >>> np.array_equal(same.factors_[0], model.factors_[0])
    True
    """
    arrays, header = read(_downloaded(path) if str(path).startswith(_HUB) else path)
    if "moments" in header:
        raise ModelFileError(f"{path} holds sums over windows, not a model: polyadic fit --moments fits one to them")
    try:
        name = header["estimator"]
        kind = import_module("polyadic.estimators").WindowEstimator._kinds.get(name)
        if kind is None:
            raise ModelFileError(
                f"the file contains a model of unknown type {name!r}: import the module that defines it before loading"
            )
        model = kind._from_file(arrays, header, tensorize, augment)
    except ModelFileError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError, RuntimeError) as error:
        raise ModelFileError(f"{path} has a damaged header: {error!r}, or arrays that do not fit it") from error
    for parameter, value in (("tensorize", tensorize), ("augment", augment)):
        if value is not None and getattr(model, parameter, None) is not value:
            raise PolyadicError(
                f"{parameter} was given, but the model in {path} was not fitted with a function of your own"
            )
    return model


def _downloaded(address: Any) -> str:
    """Return the path of a model of the Hugging Face hub, downloaded unless it is in the cache."""
    try:
        from huggingface_hub import hf_hub_download
    except ImportError as error:
        raise PolyadicError(f"{address} needs huggingface_hub: pip install 'polyadic[hub]'") from error
    repository = str(address).removeprefix(_HUB)
    if repository.count("/") != 1:
        raise PolyadicError(f"a model on the hub is hf://user/repository, but the address is {address}")
    return str(hf_hub_download(repository, MODEL_FILE))
