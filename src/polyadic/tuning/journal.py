"""Journal of `tune`: a file with one line of JSON per try, from which an interrupted search resumes."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import joblib
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
    samples = hashlib.sha256()
    for first in range(0, len(windows), _ROWS):
        rows = np.arange(first, min(first + _ROWS, len(windows)))
        samples.update(np.ascontiguousarray(windows.read(rows)).tobytes())
    return {
        "version": __version__,
        "shape": list(windows.shape),
        "sampling rate": windows.fs,
        "channels": list(windows.channels),
        "samples": samples.hexdigest(),
        "labels": joblib.hash([list(windows.classes), windows.label.tolist()]),
        "subjects": joblib.hash(windows.subject.tolist()),
        "recordings": joblib.hash([windows.recording.tolist(), windows.start.tolist()]),
        **options,
    }


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
        self._lines = [json.dumps(expected)]
        if not path.exists():
            return
        try:
            self._lines = path.read_text("utf-8").splitlines()
            then, *entries = map(json.loads, self._lines)
            differ = {name: then[name] for name, value in expected.items() if then[name] != value}
            for search, settings, shares, seconds in entries:
                tried = Try(Settings(**settings), np.array(shares), seconds)
                self.known.setdefault(search, {})[tried.settings] = tried
        except (ValueError, TypeError, KeyError) as error:
            raise PolyadicError(f"{path.name} is not a journal of polyadic tune: choose another name") from error
        if differ:
            changes = [
                f"other {name}" if len(str(old)) > _SHOWN else f"{name} {old} then, {expected[name]} now"
                for name, old in differ.items()
            ]
            raise PolyadicError(
                f"{path.name} is the journal of another search ({', '.join(changes)}): use the same data and options "
                "to resume it, choose another name, or remove it"
            )

    def record(self, search: int, tried: Try) -> None:
        """Add a try of one of the searches, unless it is known, and write the file."""
        if tried.settings not in self.known.setdefault(search, {}):
            self.known[search][tried.settings] = tried
            self._lines.append(json.dumps([search, asdict(tried.settings), tried.shares.tolist(), tried.seconds]))
            write_atomically(self.path, "".join(f"{line}\n" for line in self._lines).encode())
