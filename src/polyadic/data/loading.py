"""Load the files of a folder as a `Reading` describes: signals, subjects, and labels as annotations."""

from __future__ import annotations

import importlib.util
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from polyadic.data.annotations import annotated, infer_durations
from polyadic.data.channels import split_unit
from polyadic.data.folders import (
    ENDINGS,
    bids_events,
    find_files,
    find_recordings,
    is_bids,
    read_participants,
)
from polyadic.data.labels import is_unknown
from polyadic.data.readers import edf, wfdb
from polyadic.data.readers.common import choose_channels, ending_of, is_table
from polyadic.data.readers.mne import read_mne
from polyadic.data.readers.scoring import find_scoring, matches, read_events, read_scoring
from polyadic.data.readers.table_files import read_heads
from polyadic.data.readers.tables import TableColumns, find_heads, read_csv, read_csv_by_subject
from polyadic.data.reading import Reading, close_match, listed
from polyadic.data.recordings import Recording
from polyadic.data.resampling import as_values, resample_recording
from polyadic.data.subjects import COLUMN, FILE, FOLDER, PARTICIPANTS, Subject, find_in_path, find_subject
from polyadic.errors import DataError, MissingExtraError, PolyadicError

__all__ = ["FolderReader", "LabelledRecording", "OnError", "read_recording"]

OnError = Literal["raise", "skip"]

_PACKAGES = {
    **dict.fromkeys((".edf", ".bdf"), "edfio"),
    ".hea": "wfdb",
    **dict.fromkeys((".vhdr", ".set", ".fif", ".fif.gz"), "mne"),
}
"""Packages that read a format; other formats are tables."""

_EXTRAS = {"edfio": "edf", "wfdb": "wfdb", "mne": "mne"}
_ANNOTATIONS = (".ann", ".atr")
_NOTHING = ("n/a", "nan")
_SLOW = 4
"""A channel is slow if its sampling rate is lower than the fastest by this factor or more."""

_Path = str | os.PathLike[str]


class LabelledRecording(NamedTuple):
    """A recording, where its subject was found, and notes on how it was read."""

    recording: Recording
    subject_from: str
    notes: tuple[str, ...] = ()


class FolderReader:
    """The recordings of a folder.

    Parameters
    ----------
    root : folder, or one file
    reading : how the recordings are read
    labels : whether to read labels; if not, options for labels and subjects that do not apply are ignored
    on_error : what to do about a subfolder that cannot be listed

    Attributes
    ----------
    files, left_out : recordings of the folder, and other files with the reason why they are not read
    notes : notes on the folder as a whole
    """

    def __init__(self, root: _Path, reading: Reading, *, labels: bool = True, on_error: OnError = "raise") -> None:
        self.base, self.labels = Path(root), labels
        self.reading = reading if labels else reading.without_labels()
        self._label_from = reading.label_from  # subjects must not depend on `labels`
        self.files, self.left_out = find_recordings(root, on_error, reading.pattern, reading.scoring)
        self.notes: list[str] = []
        for name, count in Counter(map(self.name_of, self.files)).items():
            if count > 1:
                raise DataError(f"recordings must have different names, but {name!r} occurs twice")
        for path in self.files:  # before anything is computed
            package = _PACKAGES.get(ending_of(path))
            if package is not None and importlib.util.find_spec(package) is None:
                raise MissingExtraError(
                    f"{path.name} needs the package {package}, which is not installed: pip install "
                    f"'polyadic[{_EXTRAS[package]}]'"
                )
        # Digital values differ between formats, so files of several formats are read as physical values.
        formats = {(_PACKAGES.get(ending_of(path)), ending_of(path) == ".bdf") for path in self.files}
        self._as_values = len(formats) > 1
        self._bids = is_bids(self.base)
        self._participants = read_participants(self.base) if self._bids else {}
        self._participant_labels = self._find_participant_labels()
        self._tables_have_label: bool | None = None
        self._scorings = self._find_scorings() if self.reading.scoring is not None else {}

    def name_of(self, path: Path) -> str:
        """Return the name of a recording: its path relative to the folder, without the extension."""
        below = self._below(path)
        return below[: len(below) - len(ending_of(path))]

    def _below(self, path: Path) -> str:
        return path.name if path == self.base else path.relative_to(self.base).as_posix()

    def load(self, path: Path) -> list[LabelledRecording]:
        """Load the recordings of a file: one, or one per subject for a table with a subject column.

        Samples are read when they are needed, except those of tables.
        """
        who = self._subject_of(path)
        recordings, notes = self._read(path)
        loaded = []
        for recording in recordings:
            if not self._has_subject_column(path):
                recording = replace(recording, name=self.name_of(path), subject=who.name)
            recording = self._at_rate(self._renamed(recording), path)
            recording, more = self._labelled(recording, path)
            if self.labels:
                recording, epoch = infer_durations(recording, self.reading.class_numbers or None)
                if epoch is not None:
                    more += (
                        f"annotations have no duration, but mark epochs of {epoch:g} s: each lasts until the next",
                    )
            source = COLUMN if self._has_subject_column(path) else who.source
            loaded.append(LabelledRecording(recording, source, (*notes, *more)))
        return loaded

    def may_have_labels(self, path: Path) -> bool:
        """Return whether a file may have labels or several subjects; tables have them only if an option says so."""
        reading = self.reading
        rules = (reading.label, reading.label_from, reading.scoring, reading.subject_column)
        return not is_table(path) or any(rule is not None for rule in rules)

    # ----------------------------------------------------------------------------------------------------- subjects

    def _has_subject_column(self, path: Path) -> bool:
        column = self.reading.subject_column
        return bool(column and is_table(path) and (self.labels or column in read_heads(path)))

    def _subject_of(self, path: Path) -> Subject:
        below, rule, root = self._below(path), self.reading.subject, self.base.absolute().name
        try:
            if rule == "folder" and self._label_from != "folder":
                folder = below.rpartition("/")[0].rpartition("/")[2] or (root if self.base.is_dir() else "")
                return Subject(folder, FOLDER) if folder else find_subject(below, None, root)
            if self.reading.subject_column is not None and not is_table(path):
                raise PolyadicError(
                    f"--subject {rule!r} is a table column, but {path.name} is not a table: use 'folder', or a regular "
                    "expression with one group that finds the subject in the path"
                )
            pattern = None if self.reading.subject_column is not None or rule == "folder" else rule
            who = find_subject(below, pattern, root)
        except PolyadicError:
            if self.labels:
                raise
            pattern, who = None, find_subject(below, None, root)
        if pattern is None and self._label_from is not None and who.source == FOLDER:
            return self._subject_above_label(below, who)
        return Subject(who.name, PARTICIPANTS) if who.name.removeprefix("sub-") in self._participants else who

    def _subject_above_label(self, below: str, who: Subject) -> Subject:
        """Return the subject that the default rule found, unless it is the folder of a class: then the folder above."""
        try:
            label = self._path_label(below)
        except PolyadicError:
            if self.labels:
                raise
            return who
        if who.name != label:
            return who
        *folders, name = below.split("/")
        above = [folder for folder in folders if folder != label]
        return Subject(above[-1], FOLDER) if above else Subject(name[: len(name) - len(ending_of(Path(name)))], FILE)

    # ------------------------------------------------------------------------------------------------------- labels

    def _label_column(self, path: Path) -> str | None:
        """Return the label column of a table, or None for a table without it if other tables have the column."""
        column = self.reading.label
        if column is None or column in (heads := read_heads(path)):
            return column
        if self._tables_have_label is None:
            self._tables_have_label = any(is_table(file) and column in read_heads(file) for file in self.files)
        return None if self._tables_have_label and heads else column

    def _path_label(self, below: str) -> str:
        rule = str(self._label_from)
        if rule != "folder":
            return find_in_path(rule, below, "--label-from")
        folder = below.rpartition("/")[0].rpartition("/")[2] or self.base.absolute().name * self.base.is_dir()
        if not folder:
            raise PolyadicError(f"--label-from folder needs one folder per class, but {below} is not in a subfolder")
        return folder

    def _labelled(self, recording: Recording, path: Path) -> tuple[Recording, tuple[str, ...]]:
        """Return a recording with the annotations that the label options find, and notes on it."""
        reading = self.reading
        if not self.labels:
            return recording, ()
        if reading.label_from is not None:
            return annotated(recording, self._path_label(self._below(path))), ()
        if reading.scoring is not None:
            scoring = self._scorings.get(path)
            if isinstance(scoring, DataError):
                raise scoring
            if scoring is None:
                return replace(recording, annotations=()), (f"no file matches --scoring {reading.scoring!r}",)
            return replace(recording, annotations=read_scoring(scoring, recording, path, reading.seconds)), ()
        if self._bids:
            return self._labelled_by_bids(recording, path), ()
        if reading.label is not None and not is_table(path):
            raise PolyadicError(
                f"--label names a column of a table, but {path.name} is not a table: --class selects annotations, "
                "--scoring names files of labels, --label-from finds labels in paths"
            )
        return recording, ()

    def _find_participant_labels(self) -> dict[str, str]:
        """Return the label of each participant if --label is a column of participants.tsv, and note how many match."""
        column = self.reading.label
        if column is None or column not in next(iter(self._participants.values()), {}):
            return {}
        rows = {who: row[column] for who, row in self._participants.items()}
        labels = {who: text for who, text in rows.items() if not is_unknown(text) and text.lower() not in _NOTHING}
        if not labels:
            raise DataError(f"participants.tsv has no values in the column {column!r}")
        subjects = {self._subject_of(path).name.removeprefix("sub-") for path in self.files}
        matched = len(subjects & labels.keys())
        if not matched:
            raise DataError(
                f"participants.tsv describes none of the subjects: it has {listed(sorted(self._participants))}, the "
                f"recordings are of {listed(sorted(subjects))}"
            )
        self.notes.append(f"participants.tsv has a {column!r} for {matched} of {len(subjects)} subjects (--label)")
        return labels

    def _labelled_by_bids(self, recording: Recording, path: Path) -> Recording:
        column, events = self.reading.label, bids_events(path)
        if self._participant_labels:
            return annotated(recording, self._participant_labels.get(recording.subject.removeprefix("sub-"), ""))
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

    def _find_scorings(self) -> dict[Path, Path | DataError]:
        """Return the scoring file of each recording that has one; raise an error if one matches two recordings."""
        pattern = str(self.reading.scoring)
        folder = self.base if self.base.is_dir() else self.base.parent
        every = find_files(folder, on_error="skip").files
        candidates = [path for path in every if matches(path.relative_to(folder).as_posix(), pattern)]
        if not candidates:
            raise DataError(f"--scoring {pattern!r} matches no file in {folder.name or folder}")
        scorings: dict[Path, Path | DataError] = {}
        owners: dict[Path, Path] = {}
        for path in self.files:
            stem = path.name[: len(path.name) - len(ending_of(path))]
            try:
                scoring = find_scoring(path, folder, stem, pattern, candidates)
            except DataError as error:  # raised when this recording is read, so that it can be skipped
                scorings[path] = error
                continue
            if scoring is not None and owners.setdefault(scoring, path) != path:
                raise DataError(
                    f"{scoring.name} matches both {self._below(owners[scoring])} and {self._below(path)}: make "
                    "--scoring more specific, with {name} for the name of the recording, or select recordings with "
                    "--pattern"
                )
            if scoring is not None:
                scorings[path] = scoring
        return scorings

    # ------------------------------------------------------------------------------------------------------ signals

    def _read(self, path: Path) -> tuple[Sequence[Recording], tuple[str, ...]]:
        """Read the recordings of a file, with the annotations in it, and notes."""
        reading, ending, package = self.reading, ending_of(path), _PACKAGES.get(ending_of(path))
        if ending not in ENDINGS:
            raise PolyadicError(f"{path.name} is not a recording: its extension must be one of {', '.join(ENDINGS)}")
        if package == "mne":
            return [read_mne(path, None if reading.rename else reading.channels)], ()
        if package is None:
            return self._read_table(path)
        if package == "edfio":
            rates = {channel: rate for channel, (rate, _) in edf.read_channels(path).items()}
        else:
            rates = wfdb.read_rates(path)
        channels, how, notes = _without_slow(rates, reading)
        if package == "edfio":
            fs = reading.fs if reading.resample is not None else None
            return [edf.read_edf(path, channels=channels, fs=fs, resample=how)], notes
        extensions = [ending[1:] for ending in _ANNOTATIONS if path.with_suffix(ending).exists()]
        return [wfdb.read_wfdb(path, channels=channels, annotations=extensions, resample=how)], notes

    def _read_table(self, path: Path) -> tuple[Sequence[Recording], tuple[str, ...]]:
        reading, heads = self.reading, read_heads(path)
        columns = TableColumns(
            find_heads(reading.channels_in(split_unit(head)[0] for head in heads), heads),
            self._label_column(path),
            reading.subject_column if self._has_subject_column(path) else None,
            reading.time,
            refuse_labels=True,
            resample=reading.resample,
        )
        notes: tuple[str, ...] = ()
        if reading.label is not None and columns.label is None:
            notes = (f"read without labels, because there is no column {reading.label!r} (--label)",)
        if columns.subject is not None:
            return read_csv_by_subject(path, reading.fs, self.name_of(path), columns), notes
        return [read_csv(path, reading.fs, columns=columns)], notes

    def _renamed(self, recording: Recording) -> Recording:
        """Give channels their new names, and choose channels that could not be chosen by name before."""
        names, reading = dict(self.reading.rename), self.reading
        if not names:
            return recording
        for old, new in names.items() if reading.channels is None else ():
            if old not in recording.channels and new not in recording.channels:
                raise DataError(
                    f"{recording.name} has no channel {old!r} to rename to {new!r} (--rename); it has "
                    f"{listed(recording.channels)}"
                )
        recording = replace(recording, channels=tuple(names.get(name, name) for name in recording.channels))
        if reading.channels is None or recording.channels == reading.channels:
            return recording
        return recording.with_channels(choose_channels(recording.name, recording.channels, reading.channels))

    def _at_rate(self, recording: Recording, path: Path) -> Recording:
        """Resample a recording as requested; if any are filtered, all are converted to values, so that types agree."""
        reading = self.reading
        if reading.fs is not None and abs(recording.fs - reading.fs) > 1e-6 * reading.fs:
            if reading.resample is None:
                whole = abs((ratio := reading.fs / recording.fs) - round(ratio)) <= 1e-9 * ratio and ratio >= 1
                held = "--resample hold repeats its samples, " if whole else ""
                raise DataError(
                    f"{path.name} is sampled at {recording.fs:g} Hz, not at {reading.fs:g} Hz: {held}--resample "
                    "polyphase filters and resamples it"
                )
            recording = resample_recording(recording, reading.fs, reading.resample)
        if self._as_values or "polyphase" in (reading.resample, reading.keep_slow):
            recording = as_values(recording)
        return recording


def _without_slow(
    rates: dict[str, float], reading: Reading
) -> tuple[list[str] | None, dict[str, str | None], tuple[str, ...]]:
    """Return the channels to read, the method to resample each, and a note on slow channels that are left out.

    Channels are slow relative to the fastest one, or to the target rate if that is lower. Channels that are named in
    `reading` are never left out.
    """
    fastest = max(rates.values(), default=0.0)
    if reading.resample is not None and reading.fs is not None:
        fastest = min(fastest, reading.fs)
    slow = {channel: rate for channel, rate in rates.items() if rate * _SLOW <= fastest}
    ways: dict[str, str | None] = {
        channel: (reading.keep_slow if channel in slow else None) or reading.resample for channel in rates
    }
    if reading.channels is not None:
        return reading.channels_in(rates), ways, ()
    if reading.keep_slow is not None or not slow:
        return None, ways, ()
    words = ", ".join(f"{channel} ({rate:g} Hz)" for channel, rate in slow.items())
    note = f"left out slow channels: {words}. --keep-slow hold repeats their samples, --keep-slow polyphase filters"
    return [channel for channel in rates if channel not in slow], ways, (note,)


def read_recording(path: _Path, name: str | None = None, subject: str | None = None, **options: Any) -> Recording:
    """Read one recording from a file of any format that polyadic reads (for WFDB, the .hea file).

    Parameters
    ----------
    name : name of the recording; by default the file name without its extension
    subject : name of the subject; by default the name of the recording
    options : `channels`, `fs`, `resample` and `keep_slow`, as for `Reading`
    """
    file = Path(path)
    (loaded, *_) = FolderReader(file, Reading(**options), labels=False).load(file)
    name = file.name[: len(file.name) - len(ending_of(file))] if name is None else name
    return replace(loaded.recording.in_memory(), name=name, subject=name if subject is None else subject)
