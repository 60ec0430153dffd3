"""Model files: one safetensors file with a JSON header, written atomically, read without running anything from it.

Arrays and header only, without torch; `persist` makes estimators of them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_bytes

from polyadic.errors import ModelFileError
from polyadic.files import check_regular_file, write_atomically

__all__ = ["SCHEMA", "read", "write"]

SCHEMA = 3
"""Version of the header's layout. Readers refuse a newer one. Since 2 the file has a checksum, since 3 a readout."""

_KEY = "polyadic"
_CHECKSUM = "sha256"


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
    try:
        sound = (checksum is None and schema == 1) or checksum == _checksum(arrays, header)
    except RecursionError as error:  # the header is nested a little less deeply than reading it allows
        raise ModelFileError(f"{path} has a damaged header: {error!r}") from error
    if not sound:
        raise ModelFileError(f"{path} is damaged: its checksum does not fit")
    return arrays, header
