"""Model files: one safetensors file with a JSON header, written atomically and read without executing code."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_bytes

from polyadic._util.files import check_regular_file, write_atomically
from polyadic.errors import ModelFileError

SCHEMA = 4
"""Version of the header layout; others are refused."""

_KEY, _CHECKSUM = "polyadic", "sha256"


def write(path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray], header: Mapping[str, Any]) -> None:
    """Write arrays and JSON-serialisable metadata atomically; on failure, an existing file stays untouched."""
    content = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    described = {"schema": SCHEMA, **header}
    text = json.dumps({**described, _CHECKSUM: checksum(content, described)})
    write_atomically(path, to_bytes(content, metadata={_KEY: text}))


def checksum(arrays: Mapping[str, np.ndarray], header: Mapping[str, Any] | None = None) -> str:
    """Return the SHA-256 of the header and of the names, types, shapes and bytes of the arrays."""
    state = hashlib.sha256(json.dumps(header or {}).encode())
    for name in sorted(arrays):
        array = arrays[name]
        state.update(json.dumps([name, array.dtype.str, array.shape]).encode())
        state.update(array.reshape(-1).view(np.uint8).data)
    return state.hexdigest()


def read(path: str | os.PathLike[str]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read arrays and header of a model file, and verify its checksum.

    Raises
    ------
    ModelFileError : if the file is damaged, of another version, or not a model file
    """
    check_regular_file(path, ModelFileError)
    try:
        with safe_open(os.fspath(path), framework="numpy") as file:
            header = json.loads((file.metadata() or {})[_KEY])
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        schema, expected = header["schema"], header.pop(_CHECKSUM, None)
    except FileNotFoundError:
        raise
    except (SafetensorError, OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ModelFileError(f"{path} is damaged, truncated or not a model file: {error}") from error
    if schema != SCHEMA:
        later = isinstance(schema, int) and schema > SCHEMA
        remedy = "a later version: upgrade" if later else "version 0.2 or earlier: fit the model again"
        raise ModelFileError(f"{path} was written by polyadic of {remedy}")
    if expected != checksum(arrays, header):
        raise ModelFileError(f"{path} is damaged: its checksum does not match")
    return arrays, header
