"""Fingerprints of settings and data as JSON, compared when a fit is resumed or run by several processes."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from polyadic.core.persist import encode
from polyadic.data.samples import Samples
from polyadic.errors import PolyadicError
from polyadic.team import Team

__all__ = ["check_alike", "data_fingerprint", "describe", "differences"]

_SAMPLED = 64


def describe(value: Any) -> Any:
    """Describe a setting as JSON for comparison: arrays by shape and checksum, functions by name, others by content.

    Examples
    --------
    >>> describe(0.5), describe(np.zeros((2, 2)))["shape"]
    (0.5, [2, 2])
    """
    if sparse.issparse(value):
        matrix = sparse.csr_array(value)
        return {"type": "sparse", "parts": [describe(part) for part in (matrix.data, matrix.indices, matrix.indptr)]}
    if isinstance(value, np.ndarray | Tensor):
        return {"type": "array", "shape": list(value.shape), "sha256": _checksum(value)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: describe(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"type": type(value).__qualname__, **fields}
    if isinstance(value, list | tuple):
        return [describe(item) for item in value]
    return encode(value)


def _checksum(*arrays: np.ndarray | Tensor | None) -> str:
    """Return the SHA-256 of the content of some arrays."""
    found = hashlib.sha256()
    for array in arrays:
        if isinstance(array, Tensor):
            array = array.detach().cpu().contiguous().view(torch.uint8).numpy()  # numpy lacks some types
        if array is not None:
            found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def data_fingerprint(samples: Samples) -> dict[str, Any]:
    """Describe samples without reading all: shape, type, checksum of some, and the fingerprint of a store.

    Examples
    --------
    >>> data_fingerprint(Samples(np.zeros((3, 4, 5))))["shape"]
    [3, 4, 5]
    """
    ids = torch.linspace(0, len(samples) - 1, min(len(samples), _SAMPLED), dtype=torch.float64).long()
    sampled, known = _checksum(*samples.read(ids)), dict(getattr(samples.data, "fingerprint", {}))
    return {"shape": list(samples.shape), "dtype": str(samples.dtype), **known, "sampled windows": sampled}


def differences(then: Any, now: Any, name: str = "") -> Iterator[str]:
    """Yield a phrase for each entry that differs."""
    if isinstance(then, dict) and isinstance(now, dict) and then.get("type") == now.get("type"):
        for key in sorted(then.keys() | now.keys()):
            yield from differences(then.get(key), now.get(key), f"{name} {key}".strip())
    elif then != now:
        yield f"{name} was {json.dumps(then)} and is {json.dumps(now)} now"


def check_alike(team: Team, fingerprint: dict[str, Any]) -> None:
    """Raise if the processes have different settings or data.

    Examples
    --------
    >>> from polyadic.team import ALONE
    >>> check_alike(ALONE, {"rank": 3})
    """
    plain = json.loads(json.dumps(fingerprint))
    found = list(differences(team.once(lambda: plain), plain))
    if team.sum(torch.tensor(float(bool(found)))) > 0:
        said = f"process {team.index} differs: {'; '.join(found)}" if found else "another process differs"
        raise PolyadicError(f"all processes of a fit must have the same settings and data as the first, but {said}")
