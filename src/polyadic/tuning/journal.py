"""Journal of a search: a file with one line per try, from which an interrupted search resumes."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from polyadic._util.json_lines import append_line, read_lines
from polyadic.data import Windows
from polyadic.errors import PolyadicError
from polyadic.tuning.judging import Judged
from polyadic.tuning.search import Try
from polyadic.tuning.space import Settings

__all__ = ["Journal"]


class Journal:
    """Record of the tries of one call of `tune`, in memory and, if a path is given, in a file.

    Parameters
    ----------
    path : the file, or None
    fingerprint : hash of windows and seed; a file with another fingerprint is rejected
    """

    def __init__(self, path: Path | None, fingerprint: str) -> None:
        self._path, self._fingerprint = path, fingerprint
        self._known: dict[int, dict[tuple[Settings, bool], Try]] = {}
        if path is None:
            return
        if path.exists():
            self._read(path)
        else:
            append_line(path, {"tune": fingerprint})

    @classmethod
    def at(cls, path: Any, windows: Windows, seed: int) -> Journal:
        """Open the journal at a path for a search on these windows."""
        first = windows.read(np.arange(min(1, len(windows))))
        parts = [
            list(windows.shape),
            seed,
            windows.label.tolist(),
            windows.subject.tolist(),
            np.abs(first).sum().item(),
        ]
        digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:20]
        return cls(None if path is None else Path(path), digest)

    def known(self, search: int) -> dict[tuple[Settings, bool], Try]:
        """Return the tries that one of the searches has already evaluated."""
        return self._known.get(search, {})

    def note(self, search: int, one: Try) -> None:
        """Append a try to the file, unless the file already contains it."""
        if self._path is None or (one.settings, one.full) in self.known(search):
            return
        values = {"score": one.judged.score, "shares": one.judged.shares.tolist(), "seconds": one.seconds}
        flags = {"full": one.full, "fitted": one.fitted}
        append_line(self._path, {"search": search, "settings": asdict(one.settings), **values, **flags})

    def _read(self, path: Path) -> None:
        entries = read_lines(path)
        try:
            owner = entries[0]["tune"]
        except (KeyError, TypeError, IndexError) as error:
            raise PolyadicError(f"{path.name} is not a journal of polyadic tune: choose another name") from error
        if owner != self._fingerprint:
            raise PolyadicError(
                f"{path.name} is the journal of other windows or another seed: choose another name, or remove it"
            )
        for entry in entries[1:]:
            try:
                settings = Settings(**entry["settings"])
                judged = Judged(float(entry["score"]), np.array(entry["shares"]))
                one = Try(settings, judged, float(entry["seconds"]), bool(entry["full"]), bool(entry["fitted"]))
                self._known.setdefault(int(entry["search"]), {})[settings, one.full] = one
            except (ValueError, KeyError, TypeError):
                continue  # settings of another version
