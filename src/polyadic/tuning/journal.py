"""Journal of a search: a file with one line per try, from which an interrupted search resumes."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from polyadic.data import Windows
from polyadic.errors import PolyadicError
from polyadic.files import check_regular_file
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
        check_regular_file(path, PolyadicError)
        if path.exists():
            self._read(path)
        else:
            self._append({"tune": fingerprint})

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
        self._append({"search": search, "settings": asdict(one.settings), **values, **flags})

    def _read(self, path: Path) -> None:
        lines = path.read_bytes().splitlines()
        try:
            owner = json.loads(lines[0])["tune"]
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise PolyadicError(f"{path.name} is not a journal of polyadic tune: choose another name") from error
        if owner != self._fingerprint:
            raise PolyadicError(
                f"{path.name} is the journal of other windows or another seed: choose another name, or remove it"
            )
        for line in lines[1:]:
            try:
                entry = json.loads(line)
                settings = Settings(**entry["settings"])
                judged = Judged(float(entry["score"]), np.array(entry["shares"]))
                one = Try(settings, judged, float(entry["seconds"]), bool(entry["full"]), bool(entry["fitted"]))
                self._known.setdefault(int(entry["search"]), {})[settings, one.full] = one
            except (ValueError, KeyError, TypeError):
                continue  # a line truncated when the process was killed

    def _append(self, entry: dict[str, Any]) -> None:
        assert self._path is not None
        with self._path.open("ab+") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    file.write(b"\n")
            file.write((json.dumps(entry) + "\n").encode())
            file.flush()
            os.fsync(file.fileno())
