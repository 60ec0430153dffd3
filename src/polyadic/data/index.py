"""The index of windows: recording, start and class of each, and name, subject and part of each recording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyadic.data.labels import UNLABELLED, as_column, as_text
from polyadic.data.subjects import COLUMN, join_sources, subject_count
from polyadic.errors import PolyadicError

__all__ = ["Index", "check_column"]

_Rows = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Index:
    """The recording, the start and the class of each window, and the subject of each recording.

    Parameters
    ----------
    recording : (N,) int32, row of the recording in the tables below
    start : (N,) int64, first sample of the window, counted from the start of the recording including gaps, or -1 if
        unknown
    label : (N,) int32, class number from 0, or -1 if unknown
    names, subjects, parts : (M,) str, name and subject of each recording, and its part of a published split ("train",
        "test", or "" if there is none)
    subject_sources : (M,) str, where the subject of each recording was found; see `polyadic.data.subjects`
    """

    recording: NDArray[np.int32]
    start: NDArray[np.int64]
    label: NDArray[np.int32]
    names: NDArray[Any]
    subjects: NDArray[Any]
    parts: NDArray[Any]
    subject_sources: NDArray[Any]

    def __len__(self) -> int:
        return len(self.recording)

    def __repr__(self) -> str:
        counts = [(len(self), "window"), (int(self.present().sum()), "recording"), (self.n_subjects, "subject")]
        listed = ", ".join(f"{count:,} {what}{'s' * (count != 1)}" for count, what in counts)
        return f"<Index of {listed}>"

    def take(self, rows: _Rows | slice) -> Index:
        """Return the index of some windows, with the same tables of recordings."""
        return replace(self, recording=self.recording[rows], start=self.start[rows], label=self.label[rows])

    def present(self, rows: _Rows | slice = slice(None)) -> NDArray[np.bool_]:
        """Return which recordings of the tables occur among some windows: (M,)."""
        found: NDArray[np.bool_] = np.bincount(self.recording[rows], minlength=len(self.names)) > 0
        return found

    @property
    def n_subjects(self) -> int:
        """The number of known subjects."""
        return len(set(self.subjects[self.present()].tolist()) - {""})

    @property
    def subjects_from(self) -> str:
        """Where the subjects were found, such as "folder names"; "nothing" if none is known."""
        known = self.present() & (self.subjects != "")
        return join_sources(self.subject_sources[known].tolist())

    def describe_subjects(self) -> str:
        """Return the number of subjects and where they were found, for example "12 subjects (from folder names)"."""
        return subject_count(self.n_subjects, self.subjects_from)

    @classmethod
    def from_columns(
        cls,
        count: int,
        subject: ArrayLike | None = None,
        recording: ArrayLike | None = None,
        start: ArrayLike | None = None,
        label: NDArray[np.int32] | None = None,
        part: ArrayLike | None = None,
    ) -> Index:
        """Build an index from columns of `count` entries; missing columns are unknown.

        Without recordings, each subject is treated as one recording.
        """
        subjects = _encode_names("subject", subject, count)
        columns = [
            subjects if recording is None else _encode_names("recording", recording, count),
            subjects,
            _encode_names("part", part, count),
        ]
        known = np.full(count, -1) if start is None else np.asarray(start)
        check_column("start", known, count)
        if known.dtype.kind not in "iu" and count:
            raise PolyadicError(f"start must hold whole numbers of samples, but has type {known.dtype}")
        if (known < -1).any():
            raise PolyadicError(f"start must be a sample number, or -1 if unknown, but got {known.min()}")
        labels = np.full(count, UNLABELLED, np.int32) if label is None else label
        check_column("label", labels, count)
        shape = tuple(len(names) for names, _ in columns)
        keys, codes = np.unique(np.ravel_multi_index([code for _, code in columns], shape), return_inverse=True)
        places = np.unravel_index(keys, shape)
        names, people, parts = (found[place] for (found, _), place in zip(columns, places, strict=True))
        owners = np.bincount(places[0]) * (columns[0][0] != "")
        if recording is not None and (owners > 1).any():
            shared = str(columns[0][0][owners.argmax()])
            raise PolyadicError(f"a recording must have one subject and one part, but recording {shared!r} has several")
        sources = np.where(people == "", "", COLUMN)
        return cls(
            codes.astype(np.int32), known.astype(np.int64), labels.astype(np.int32), names, people, parts, sources
        )

    @classmethod
    def concatenate(cls, indices: Sequence[Index]) -> Index:
        """Concatenate indices; recordings with the same name, subject and part become one."""
        seen: dict[tuple[str, ...], int] = {}
        sources: list[str] = []
        moved = []
        for index in indices:
            rows = zip(index.names.tolist(), index.subjects.tolist(), index.parts.tolist(), strict=True)
            codes = np.array([seen.setdefault(row, len(seen)) for row in rows], np.int32)
            sources += ["" for _ in range(len(seen) - len(sources))]
            for code, source in zip(codes.tolist(), index.subject_sources.tolist(), strict=True):
                sources[code] = sources[code] or source
            moved.append(codes[index.recording])
        names, subjects, parts = (np.array([row[column] for row in seen], np.str_) for column in range(3))
        start, label = (np.concatenate([getattr(index, name) for index in indices]) for name in ("start", "label"))
        return cls(np.concatenate(moved), start, label, names, subjects, parts, np.array(sources, np.str_))


def _encode_names(what: str, column: ArrayLike | None, count: int) -> tuple[NDArray[np.str_], NDArray[np.intp]]:
    """Return the sorted names in a column ("" if unknown), and the position of each entry among them."""
    if column is None:
        return np.array([""]), np.zeros(count, np.intp)
    values = as_column(column, what, count)
    # A dictionary is ten times as fast as sorting millions of strings.
    seen: dict[Any, int] = {}
    codes = np.fromiter((seen.setdefault(value, len(seen)) for value in values.tolist()), np.intp, count)
    names, places = np.unique(np.array([as_text(value) for value in seen] or [""]), return_inverse=True)
    return names, places[codes]


def check_column(name: str, column: NDArray[Any], count: int) -> None:
    if column.shape != (count,):
        raise PolyadicError(f"{name} must have shape ({count},), one entry per window, but has shape {column.shape}")
