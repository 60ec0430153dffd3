"""Load the files of a folder as a `Reading` describes: signals, subjects, and labels as annotations."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np

from polyadic.data.annotations import annotated, infer_durations
from polyadic.data.channels import split_unit
from polyadic.data.folders import (
    ENDINGS,
    bids_bad_channels,
    bids_table,
    find_files,
    find_recordings,
    is_bids,
    read_participants,
)
from polyadic.data.labels import NO_LABEL, is_unknown
from polyadic.data.readers.common import SignalFile, ending_of, is_table, stem_of
from polyadic.data.readers.edf import EdfFile
from polyadic.data.readers.mne import open_mne
from polyadic.data.readers.scoring import find_scorings, matches, read_events, read_scoring
from polyadic.data.readers.tables import read_heads, read_table
from polyadic.data.readers.wfdb import WfdbRecord
from polyadic.data.reading import Reading, close_match, listed
from polyadic.data.recordings import Recording
from polyadic.data.subjects import FOLDER, PARTICIPANTS, Subject, find_in_path, find_subject
from polyadic.errors import DataError, MissingExtraError, PolyadicError

__all__ = ["FolderReader", "OnError", "read_recording"]

OnError = Literal["raise", "skip"]

_SLOW = 4
"""A channel is slow if its sampling rate is lower than the fastest by this factor or more."""

_Path = str | os.PathLike[str]


class FolderReader:
    """The recordings of a folder, or of one file.

    Without `labels`, options for labels and subjects that do not apply are ignored.

    Attributes
    ----------
    files, left_out : recordings of the folder, and other files with the reason why they are not read
    skipped : files and recordings that could not be read, with the reason
    notes : notes on how files were read, each with the names of the files
    channels : names of all channels in the files that were loaded, also of those that were not requested
    """

    def __init__(self, root: _Path, reading: Reading, *, labels: bool = True, on_error: OnError = "raise") -> None:
        self.base, self.reading, self.labels, self.on_error = Path(root), reading, labels, on_error
        self.files, self.left_out = find_recordings(root, reading.pattern, reading.scoring)
        self.skipped: dict[str, str] = {}
        self.notes: dict[str, list[str]] = {}
        self.channels: dict[str, None] = {}
        self._bids = is_bids(self.base)
        self._participants = read_participants(self.base) if self._bids else {}
        self._participant_labels = self._find_participant_labels() if labels else {}
        self._scorings = self._find_scorings(reading.scoring) if labels and reading.scoring is not None else {}

    def note(self, text: str, name: str) -> None:
        """Add a note on a file, once: files may be read twice."""
        if name not in (names := self.notes.setdefault(text, [])):
            names.append(name)

    def name_of(self, path: Path) -> str:
        """Return the name of a recording: its path relative to the folder, without the extension."""
        return self._below(path).removesuffix(path.name) + stem_of(path)

    def _below(self, path: Path) -> str:
        return path.name if path == self.base else path.relative_to(self.base).as_posix()

    @contextmanager
    def skipping(self, name: str, *errors: type[Exception]) -> Iterator[None]:
        """Add what cannot be read to `skipped`, with the error as the reason; with `on_error="raise"`, raise it."""
        try:
            yield
        except MissingExtraError:  # not the fault of the recording
            raise
        except errors as error:
            if self.on_error == "raise":
                raise
            self.skipped[name] = str(error)
            if isinstance(error, OSError) and error.filename is not None:
                self.skipped[name] = f"{Path(str(error.filename)).name}: {error.strerror}"

    def load(self, path: Path) -> list[Recording]:
        """Load the recordings of a file; none if it is skipped.

        A file is one recording, or one per subject for a table with a subject column. Samples are read when they are
        needed, except those of tables.
        """
        loaded: list[Recording] = []
        with self.skipping(self.name_of(path), PolyadicError, OSError):
            loaded += [*self._load(path)]  # all or none
        return loaded

    def _load(self, path: Path) -> Iterator[Recording]:
        who, names = self._subject_of(path), self.reading.rename
        for recording in self._read(path):
            if not recording.subject_from:
                recording = replace(recording, name=self.name_of(path), subject=who.name, subject_from=who.source)
            recording = self._without_bad(recording, path)
            recording = replace(recording, channels=tuple(names.get(name, name) for name in recording.channels))
            yield self._with_durations(self._labelled(recording, path), path) if self.labels else recording

    # ----------------------------------------------------------------------------------------------------- subjects

    def _folder_of(self, below: str) -> str:
        """Return the name of the folder of a file, "" for a single file."""
        return below.rpartition("/")[0].rpartition("/")[2] or self.base.absolute().name * self.base.is_dir()

    def _subject_of(self, path: Path) -> Subject:
        below, rule, by_label = self._below(path), self.reading.subject, self.reading.label_from
        if rule == "folder" and by_label != "folder" and (folder := self._folder_of(below)):
            return Subject(folder, FOLDER)
        column, root = self.reading.subject_column, self.base.absolute().name
        pattern = rule if column is None and rule != "folder" else None
        try:
            if column is not None and not is_table(path):
                raise PolyadicError(
                    f"--subject {rule!r} is a table column, but {path.name} is not a table: use 'folder', or a regular "
                    "expression with one group that finds the subject in the path"
                )
            label = self._path_label(below) if pattern is None and by_label is not None else ""
            who = find_subject(below, pattern, root, label)
        except PolyadicError:
            if self.labels:
                raise
            who = find_subject(below, root=root)
        return Subject(who.name, PARTICIPANTS) if who.name.removeprefix("sub-") in self._participants else who

    # ------------------------------------------------------------------------------------------------------- labels

    def _path_label(self, below: str) -> str:
        rule = str(self.reading.label_from)
        label = self._folder_of(below) if rule == "folder" else find_in_path(rule, below, "--label-from")
        if not label:
            raise PolyadicError(f"--label-from folder needs one folder per class, but {below} is not in a subfolder")
        return label

    def _labelled(self, recording: Recording, path: Path) -> Recording:
        """Return a recording with the annotations that the label options find."""
        reading = self.reading
        if reading.label_from is not None:
            return annotated(recording, self._path_label(self._below(path)))
        if reading.scoring is not None:
            found = self._scorings[path]
            if len(found) > 1:
                raise DataError(
                    f"{path.name} has several scorings, {listed(file.name for file in found)}: make the pattern more "
                    "specific with --scoring, with {name} for the name of the recording"
                )
            if not found:
                self.note(f"no file matches --scoring {reading.scoring!r}", path.name)
            annotations = [read_scoring(file, recording, path, reading.seconds) for file in found]
            return replace(recording, annotations=tuple(chain(*annotations)))
        if self._participant_labels:
            return annotated(recording, self._participant_labels.get(recording.subject.removeprefix("sub-"), ""))
        if self._bids:
            return self._with_events(recording, path)
        if reading.label is not None and not is_table(path):
            raise PolyadicError(
                f"--label names a column of a table, but {path.name} is not a table: --class selects annotations, "
                "--scoring names files of labels, --label-from finds labels in paths"
            )
        return recording

    def _with_durations(self, recording: Recording, path: Path) -> Recording:
        """Return a recording whose marks of epochs last until the next, whether that is a class or not."""
        for wanted in (None, self.reading.class_numbers):  # marks of no class may be irregular
            recording, epoch = infer_durations(recording, wanted)
            if epoch is not None:
                words = f"annotations have no duration, but mark epochs of {epoch:g} s: each lasts until the next"
                self.note(words, path.name)
                break
        return recording

    def _find_participant_labels(self) -> dict[str, str]:
        """Return the label of each participant if --label is a column of participants.tsv, and note how many match."""
        column = self.reading.label
        if column is None or column not in next(iter(self._participants.values()), {}):
            return {}
        rows = {who: row[column] for who, row in self._participants.items()}
        labels = {who: text for who, text in rows.items() if text.lower() not in NO_LABEL and not is_unknown(text)}
        subjects = {self._subject_of(path).name.removeprefix("sub-") for path in self.files}
        matched = len(subjects & labels.keys())
        if not matched:
            raise DataError(
                f"participants.tsv has a {column!r} for none of the subjects: it describes "
                f"{listed(sorted(self._participants))}, the recordings are of {listed(sorted(subjects))}"
            )
        self.note(f"a {column!r} for {matched} of {len(subjects)} subjects (--label)", "participants.tsv")
        return labels

    def _with_events(self, recording: Recording, path: Path) -> Recording:
        """Return a BIDS recording with its events, if it has a table of them."""
        column, events = self.reading.label, bids_table(path, "events.tsv")
        if events is None:
            return recording
        heads = read_heads(events)
        if column is not None and column not in heads:
            others = tuple(next(iter(self._participants.values()), {}))
            raise DataError(
                f"there is no column {column!r} (--label): participants.tsv has {listed(others) or 'none'}, "
                f"{events.name} has {listed(heads) or 'none'}{close_match(column, (*others, *heads))}"
            )
        return replace(recording, annotations=read_events(events, column))

    def _find_scorings(self, pattern: str) -> dict[Path, list[Path]]:
        """Return the scoring files of each recording, of which there should be one; none may match two recordings."""
        folder = self.base if self.base.is_dir() else self.base.parent
        every = find_files(folder).files
        candidates = [path for path in every if matches(path.relative_to(folder).as_posix(), pattern)]
        if not candidates:
            raise DataError(f"--scoring {pattern!r} matches no file in {folder.name or folder}")
        scorings = {path: find_scorings(path, folder, pattern, candidates) for path in self.files}
        owners: dict[Path, Path] = {}
        for path, found in scorings.items():
            if len(found) == 1 and owners.setdefault(found[0], path) != path:
                raise DataError(
                    f"{found[0].name} matches both {self._below(owners[found[0]])} and {self._below(path)}: make "
                    "--scoring more specific, with {name} for the name of the recording, or select recordings with "
                    "--pattern"
                )
        return scorings

    # ------------------------------------------------------------------------------------------------------ signals

    def _read(self, path: Path) -> list[Recording]:
        """Read the recordings of a file, with the annotations in it."""
        if is_table(path):
            return self._read_table(path)
        file, reading = open_signals(path), self.reading
        self.channels |= dict.fromkeys(file.rates)
        return [file.read(self._fast_channels(file.rates, path), reading.fs, reading.resample, reading.missing)]

    def _read_table(self, path: Path) -> list[Recording]:
        reading, heads = self.reading, read_heads(path)
        names = [split_unit(head)[0] for head in heads]
        self.channels |= dict.fromkeys(names)
        label, by = (one if self.labels or one in heads else None for one in (reading.label, reading.subject_column))
        if label is not None and label not in heads and heads and self._tables_have_label:
            self.note(f"read without labels, because there is no column {label!r} (--label)", path.name)
            label = None
        described = replace(reading, channels=reading.channels_in(names), label=label, subject=by)
        found, used = read_table(path, described, self.name_of(path))
        if used.time is None:
            self.note(f"no times, so {reading.fs:g} Hz is taken as the sampling rate", path.name)
        return found if self.labels else [replace(recording, annotations=()) for recording in found]

    @cached_property
    def _tables_have_label(self) -> bool:
        return any(self.reading.label in read_heads(path) for path in self.files if is_table(path))

    def _fast_channels(self, rates: dict[str, float], path: Path) -> Sequence[str] | None:
        """Return the channels to read: without `channels`, those whose rate is not far below the others.

        Channels are slow relative to the fastest one, or to the target rate if that is lower.
        """
        reading, fastest = self.reading, max(rates.values(), default=0.0)
        if reading.resample is not None and reading.fs is not None:
            fastest = min(fastest, reading.fs)
        slow = {channel: rate for channel, rate in rates.items() if rate * _SLOW <= fastest}
        if reading.channels is not None or not slow:
            return reading.channels_in(rates)
        words = ", ".join(f"{channel} ({rate:g} Hz)" for channel, rate in slow.items())
        self.note(
            f"left out slow channels: {words}. name channels with --channel and resample (--resample) to keep them",
            path.name,
        )
        return [channel for channel in rates if channel not in slow]

    def _without_bad(self, recording: Recording, path: Path) -> Recording:
        """Return a BIDS recording with its bad channels missing."""
        names = bids_bad_channels(path) if self._bids else []
        bad = [channel for channel in recording.channels if channel in names]
        if not bad:
            return recording
        self.note(f"bad in channels.tsv, so missing: {listed(bad)}", path.name)
        keep = np.array([[1.0 if channel not in bad else np.nan] for channel in recording.channels], np.float32)
        return recording.apply(lambda signal: signal * keep)


def open_signals(path: Path) -> SignalFile:
    """Open a file of signals, which is not a table."""
    ending = ending_of(path)
    if ending not in ENDINGS:
        raise PolyadicError(f"{path.name} is not a recording: its extension must be one of {', '.join(ENDINGS)}")
    readers: dict[str, Callable[[Path], SignalFile]] = {".edf": EdfFile, ".bdf": EdfFile, ".hea": WfdbRecord}
    return readers.get(ending, open_mne)(path)


def read_recording(path: _Path, name: str | None = None, subject: str | None = None, **options: Any) -> Recording:
    """Read one recording from a file of any format that polyadic reads (for WFDB, the .hea file).

    `name` is by default the file name without its extension, and `subject` the name of the recording. Options are
    `channels`, `fs`, `resample` and `missing`, as for `Reading`.
    """
    file, reading = Path(path), Reading(**options)
    recording = FolderReader(file, reading, labels=False).load(file)[0].in_memory()
    names = {*recording.channels}
    lacking = [name for name in reading.channels or () if not {name, split_unit(name)[0]} & names]
    if lacking:
        raise DataError(
            f"{file.name}: must have the channels {listed(lacking)}, but has {listed(recording.channels)} of those "
            "requested"
        )
    name = stem_of(file) if name is None else name
    return replace(recording, name=name, subject=name if subject is None else subject)
