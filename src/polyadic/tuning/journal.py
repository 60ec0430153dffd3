"""Journal of `tune`: a file with one line of JSON per try, from which an interrupted search resumes."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from polyadic._util.version import __version__
from polyadic.data import Windows
from polyadic.errors import PolyadicError
from polyadic.tuning.search import Try
from polyadic.tuning.space import Settings

__all__ = ["append", "append_try", "fingerprint", "read_tries"]

Known = dict[int, dict[tuple[Settings, bool], Try]]


def fingerprint(windows: Windows, seed: int) -> str:
    """Return a hash of what the tries of a journal depend on."""
    first = float(np.abs(windows.read(np.arange(1))).sum())
    parts = [__version__, list(windows.shape), seed, windows.label.tolist(), windows.subject.tolist(), first]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:20]


def append(path: Path, value: dict[str, Any]) -> None:
    """Append a line, and wait until it is on disk; the line break comes first, so that it ends a truncated line."""
    with path.open("a", encoding="utf-8") as file:
        file.write("\n" + json.dumps(value))
        file.flush()
        os.fsync(file.fileno())


def append_try(path: Path, search: int, tried: Try) -> None:
    """Append a try of one of the searches."""
    append(path, {"search": search, **asdict(tried), "shares": tried.shares.tolist()})


def read_tries(path: Path, expected: str) -> Known:
    """Return the tries of each search, skipping lines that a killed process left incomplete.

    Parameters
    ----------
    expected : fingerprint of this search; a journal with another one is rejected
    """
    entries = []
    for line in path.read_bytes().splitlines():
        try:
            entries.append(json.loads(line))
        except ValueError:
            continue
    if not entries or not isinstance(entries[0], dict) or "tune" not in entries[0]:
        raise PolyadicError(f"{path.name} is not a journal of polyadic tune: choose another name")
    if entries[0]["tune"] != expected:
        raise PolyadicError(
            f"{path.name} is the journal of other windows, another seed or another version of polyadic: choose another "
            "name, or remove it"
        )
    known: Known = {}
    for entry in entries[1:]:
        search, settings = entry.pop("search"), Settings(**entry.pop("settings"))
        tried = Try(settings, np.array(entry.pop("shares")), **entry)
        known.setdefault(search, {})[settings, tried.full] = tried
    return known
