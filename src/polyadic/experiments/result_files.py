"""Results as JSON files: a readable header, and one line for each row."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from polyadic._util.files import write_atomically

__all__ = ["encode_result", "write_result"]


def encode_result(result: Mapping[str, Any]) -> str:
    """Return a result as JSON: lists of objects with one object per line, other lists on one line, the rest indented.

    Examples
    --------
    >>> print(encode_result({"seeds": [0, 1], "rows": [{"seed": 0, "fit": 0.5}, {"seed": 1, "fit": 0.6}]}), end="")
    {
     "seeds": [0, 1],
     "rows": [
      {"seed":0,"fit":0.5},
      {"seed":1,"fit":0.6}
     ]
    }
    """
    entries = [f" {json.dumps(name)}: {_encode_entry(value)}" for name, value in result.items()]
    return "{\n" + ",\n".join(entries) + "\n}\n"


def _encode_entry(value: Any) -> str:
    """Return the JSON of one entry of a result, indented as in the file."""
    if not isinstance(value, list):
        return json.dumps(value, indent=1).replace("\n", "\n ")
    if not value or not all(isinstance(row, dict) for row in value):
        return json.dumps(value)
    return "[\n" + ",\n".join(f"  {json.dumps(row, separators=(',', ':'))}" for row in value) + "\n ]"


def write_result(path: Path, result: Mapping[str, Any]) -> None:
    """Write a result to a file atomically."""
    write_atomically(path, encode_result(result).encode())
