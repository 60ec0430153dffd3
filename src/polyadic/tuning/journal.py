"""Journal of `tune`: a file with one line of JSON per try, from which an interrupted search resumes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from polyadic._util.files import write_atomically
from polyadic._util.version import __version__
from polyadic.data import Windows
from polyadic.errors import PolyadicError
from polyadic.tuning.search import Settings, Try

__all__ = ["Journal", "fingerprint"]

_ROWS = 1024
_SHOWN = 24


def fingerprint(windows: Windows, **options: Any) -> dict[str, Any]:
    """Return everything that a score depends on: the version, all samples and labels as hashes, and the options."""
    samples = (windows.read(np.arange(n, min(n + _ROWS, len(windows)))) for n in range(0, len(windows), _ROWS))
    return {
        "version": __version__,
        "shape": list(windows.shape),
        "sampling rate": windows.fs,
        "channels": list(windows.channels),
        "samples": _hash(np.ascontiguousarray(part).tobytes() for part in samples),
        "labels": _hash([json.dumps([windows.classes, windows.label.tolist()]).encode()]),
        "subjects": _hash([json.dumps(windows.subject.tolist()).encode()]),
        "recordings": _hash([json.dumps([windows.recording.tolist(), windows.start.tolist()]).encode()]),
        **options,
    }


def _hash(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


class Journal:
    """The tries of all searches of a call of `tune`, kept in a file.

    Parameters
    ----------
    path : the file; one with another fingerprint is rejected, and the error names what differs
    expected : `fingerprint` of this call
    """

    def __init__(self, path: Path, expected: dict[str, Any]) -> None:
        self.path = path
        self.known: dict[int, dict[Settings, Try]] = {}
        self._lines = [json.dumps({"tune": expected})]
        if not path.exists():
            return
        try:
            head, *entries = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
            found = head["tune"]
            for entry in entries:
                search, settings = entry.pop("search"), Settings(**entry.pop("settings"))
                self._add(search, Try(settings, np.array(entry.pop("shares")), **entry))
        except (ValueError, TypeError, KeyError) as error:
            raise PolyadicError(f"{path.name} is not a journal of polyadic tune: choose another name") from error
        differences = [_difference(name, found.get(name), value) for name, value in expected.items()]
        if any(differences):
            raise PolyadicError(
                f"{path.name} is the journal of another search ({', '.join(filter(None, differences))}): use the same "
                "data and options to resume it, choose another name, or remove it"
            )

    def _add(self, search: int, tried: Try) -> None:
        self._lines.append(json.dumps({"search": search, **asdict(tried), "shares": tried.shares.tolist()}))
        self.known.setdefault(search, {})[tried.settings] = tried

    def record(self, search: int, tried: Try) -> None:
        """Add a try of one of the searches, unless it is known, and write the file."""
        if tried.settings not in self.known.get(search, {}):
            self._add(search, tried)
            write_atomically(self.path, "".join(f"{line}\n" for line in self._lines).encode())


def _difference(name: str, then: Any, now: Any) -> str:
    """Describe a difference between two values of a fingerprint, or return "" if there is none."""
    if then == now:
        return ""
    return f"other {name}" if len(str(now)) > _SHOWN else f"{name} {then} then, {now} now"
