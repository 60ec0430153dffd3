"""Read the recordings of a folder or file as a `Reading` describes: signals, subjects, and labels as annotations."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from polyadic.data import bids
from polyadic.data.folders import FolderFiles, find_files
from polyadic.data.marks import hold_marks
from polyadic.data.readers import edf, wfdb
from polyadic.data.readers import mne as mne_reader
from polyadic.data.readers.cells import read_heads
from polyadic.data.readers.edf import common_ending
from polyadic.data.readers.scoring import find_scoring, matches, read_events, read_scoring
from polyadic.data.readers.tables import TableColumns, read_csv, read_csv_by_subject, table_ending
from polyadic.data.reading import Reading, close_match, listed
from polyadic.data.recordings import Annotation, Recording, as_values, resample_recording
from polyadic.data.subjects import COLUMN, FILE, FOLDER, PARTICIPANTS, Subject, find_in_path, find_subject
from polyadic.errors import DataError, MissingExtraError, PolyadicError

__all__ = ["ENDINGS", "Source", "Sources", "ending_of", "find_recordings", "read_recording"]

ENDINGS = (".edf", ".bdf", ".hea", ".csv", ".tsv", ".csv.gz", ".tsv.gz", ".vhdr", ".set")
"""Extensions of files that can be read as recordings, in lower case."""

_PACKAGES = {".edf": "edfio", ".bdf": "edfio", ".hea": "wfdb", ".vhdr": "mne", ".set": "mne"}
_FAMILIES = {".edf": "edf", ".bdf": "bdf", ".hea": "wfdb", ".vhdr": "mne", ".set": "mne"}
_EXTRAS = {"edfio": "edf", "wfdb": "wfdb", "mne": "mne"}
_ANNOTATIONS = (".ann", ".atr")
_SHOWN = 3
_SLOW = 4
"""A channel is slow if its sampling rate is lower than the fastest by this factor or more."""

_OWN_TABLES = (
    ["subject", "recording", "start"],
    ["measure", "name", "value"],
    ["n_fft", "hop", "parts"],
)
"""First columns, in lower case, of the tables that polyadic writes."""

_METADATA = re.compile(
    r"(?:participants?|subjects?|patients?|people|metadata|meta|demographics|info|readme|sessions|scans|clinical)"
    r"\.[ct]sv(?:\.gz)?|.*_(?:events|channels|electrodes|scans|sessions|coordsystem)\.tsv",
    re.IGNORECASE,
)

_Path = str | os.PathLike[str]


class Source(NamedTuple):
    """A recording, where its subject was found, and notes on how it was read."""

    recording: Recording
    subject_from: str
    notes: tuple[str, ...] = ()


def ending_of(path: Path) -> str:
    """Return the extension of a file in lower case, including the compression of a table, such as ".csv.gz"."""
    return table_ending(path) or path.suffix.lower()


def find_recordings(
    root: _Path,
    on_error: Literal["raise", "skip"] = "raise",
    pattern: str | None = None,
    scoring: str | None = None,
) -> FolderFiles:
    """Find the files in a folder and its subfolders that can be read as recordings; `root` can also be one file.

    Tables of metadata and tables written by polyadic are skipped, with the reason. In a BIDS dataset, only raw EEG and
    iEEG files are recordings.

    Parameters
    ----------
    pattern : glob pattern for paths relative to the folder; other files are not recordings
    scoring : glob pattern for files with labels, which are not recordings

    Raises
    ------
    DataError : if there are no recordings
    """
    base = Path(root)
    if base.exists() and not base.is_dir():
        return FolderFiles([base], {})
    found = find_files(base, lambda name: ending_of(Path(name)) in ENDINGS, on_error)
    layout = bids.is_bids(base)
    files, left_out = [], dict(found.left_out)
    for path in found.files:
        below = path.relative_to(base).as_posix()
        if (
            (pattern is not None and not matches(below, pattern))
            or matches(below, scoring)
            or (layout and not bids.is_bids_recording(below))
        ):
            continue
        reason = _no_recording(path)
        if reason:
            left_out[below] = reason
        else:
            files.append(path)
    for copy, original in _labelled_copies(files).items():
        files.remove(copy)
        left_out[copy.relative_to(base).as_posix()] = f"a copy of {original.name} with labels, written by polyadic"
    for segment, record in wfdb.find_segments(path for path in files if path.suffix.lower() == ".hea").items():
        files.remove(segment)
        left_out[segment.relative_to(base).as_posix()] = f"a segment of {record}, read as part of it"
    if not files:
        wanted = f"{', '.join(ENDINGS)}{f' that match --pattern {pattern!r}' if pattern else ''}"
        others = "".join(f"; left out {name}: {reason}" for name, reason in list(left_out.items())[:_SHOWN])
        raise DataError(f"No recordings found in {base} (looked for {wanted}){others}")
    return FolderFiles(files, dict(sorted(left_out.items())))


def _no_recording(path: Path) -> str:
    """Return why a file is not a recording, or an empty string if it may be one."""
    if not table_ending(path) or not path.is_file():
        return ""
    if _METADATA.fullmatch(path.name):
        return "a table of metadata, by its name"
    heads = [head.lower() for head in read_heads(path)]
    if {"onset", "duration"} <= set(heads):
        return f"a table of events: use --scoring '*{common_ending(path.name)}' to read labels from it"
    return "a table written by polyadic" if any(heads[: len(own)] == own for own in _OWN_TABLES) else ""


def _labelled_copies(files: Sequence[Path]) -> dict[Path, Path]:
    """Return the EDF and BDF files that `predict` wrote as copies of other files in the list, with their originals."""
    ours = [path for path in files if ending_of(path) in (".edf", ".bdf") and path.is_file()]
    marked = [path for path in ours if edf.is_marked(path)]
    found: dict[Path, Path] = {}
    for path in marked:
        original = next((one for one in ours if one not in marked and edf.is_copy_of(path, one)), None)
        if original is not None:
            found[path] = original
    return found


class Sources:
    """The recordings of a folder.

    Parameters
    ----------
    root : folder, or one file
    reading : how the recordings are read
    labels : whether to read labels; if not, options for labels and subjects that do not apply are ignored
    on_error : what to do about a subfolder that cannot be listed
    """

    def __init__(
        self, root: _Path, reading: Reading, *, labels: bool = True, on_error: Literal["raise", "skip"] = "raise"
    ) -> None:
        self.base, self.labels = Path(root), labels
        self.reading = reading if labels else reading.without_labels()
        self._label_from = reading.label_from  # subjects must not depend on `labels`
        found = find_recordings(root, on_error, reading.pattern, reading.scoring)
        self.files, self.left_out = found.files, found.left_out
        check_packages(self.files)
        # Digital values differ between formats, so files of several formats are read as physical values.
        self._values = len({_FAMILIES.get(ending_of(path), "table") for path in self.files}) > 1
        self._participants = bids.read_participants(self.base) if bids.is_bids(self.base) else {}
        self._tables_have_label: bool | None = None
        self._scorings: list[Path] = []
        if self.reading.scoring is not None:
            folder = self.base if self.base.is_dir() else self.base.parent
            every = find_files(folder, lambda _: True, on_error="skip").files
            self._scorings = [
                path for path in every if matches(path.relative_to(folder).as_posix(), self.reading.scoring)
            ]
            if not self._scorings:
                raise DataError(f"--scoring {self.reading.scoring!r} matches no file in {folder.name or folder}")
            self._check_scorings()

    def name_of(self, path: Path) -> str:
        """Return the name of a recording: its path relative to the folder, without the extension."""
        below = self._below(path)
        return below[: len(below) - len(ending_of(path))]

    def _below(self, path: Path) -> str:
        return path.name if path == self.base else path.relative_to(self.base).as_posix()

    def load(self, path: Path, *, signals: bool = True) -> list[Source]:
        """Load the recordings of a file: one, or one per subject for a table with a subject column.

        Parameters
        ----------
        signals : whether to read the samples; if False, only lengths and annotations are valid
        """
        name, who = self.name_of(path), self._subject_of(path)
        found, notes = self._read(path, name, who.name, signals)
        sources = []
        for recording in found:
            source = COLUMN if self._has_subject_column(path) else who.source
            recording, more = self._labelled(self._at_rate(recording, path), path)
            if self.labels:
                recording, epoch = hold_marks(recording, self.reading.class_numbers or None)
                if epoch is not None:
                    more += (
                        f"annotations have no duration, but mark epochs of {epoch:g} s: each lasts until the next",
                    )
            sources.append(Source(recording, source, (*notes, *more)))
        return sources

    def may_have_labels(self, path: Path) -> bool:
        """Return whether a file may have labels or several subjects; tables have them only if an option says so."""
        reading = self.reading
        rules = (reading.label, reading.label_from, reading.scoring, reading.subject_column)
        return not table_ending(path) or any(rule is not None for rule in rules)

    # ----------------------------------------------------------------------------------------------------- subjects

    def _has_subject_column(self, path: Path) -> bool:
        column = self.reading.subject_column
        return bool(column and table_ending(path) and (self.labels or column in read_heads(path)))

    def _subject_of(self, path: Path) -> Subject:
        below, rule = self._below(path), self.reading.subject
        root = self.base.absolute().name
        try:
            if rule == "folder" and self._label_from != "folder":
                folder = below.rpartition("/")[0].rpartition("/")[2] or (root if self.base.is_dir() else "")
                return Subject(folder, FOLDER) if folder else find_subject(below, None, root)
            if self.reading.subject_column is not None and not table_ending(path):
                raise PolyadicError(
                    f"--subject {rule!r} is a table column, but {path.name} is not a table: use 'folder', or a regular "
                    "expression with one group that finds the subject in the path"
                )
            pattern = None if self.reading.subject_column is not None or rule == "folder" else rule
            if pattern is None and self._label_from is not None:
                return self._subject_beside_label(below, root)
            who = find_subject(below, pattern, root)
        except PolyadicError:
            if self.labels:
                raise
            who = find_subject(below, None, root)
        return Subject(who.name, PARTICIPANTS) if who.name in self._participants else who

    def _subject_beside_label(self, below: str, root: str) -> Subject:
        """Find the subject by the default rule, but do not mistake a class folder for a subject."""
        who = find_subject(below, None, root)
        label = self._path_label(below)
        if who.source != FOLDER or who.name != label:
            return who
        *folders, name = below.split("/")
        above = [folder for folder in folders if folder != label]
        return Subject(above[-1], FOLDER) if above else Subject(name[: len(name) - len(ending_of(Path(name)))], FILE)

    # ------------------------------------------------------------------------------------------------------- labels

    def _label_column(self, path: Path) -> str | None:
        """Return the label column of a table, or None for a table without it if other tables have the column."""
        column = self.reading.label
        if not self.labels or column is None or column in read_heads(path):
            return column if self.labels else None
        if self._tables_have_label is None:
            self._tables_have_label = any(table_ending(one) and column in read_heads(one) for one in self.files)
        return None if self._tables_have_label and read_heads(path) else column

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
            return _annotated(recording, self._path_label(self._below(path))), ()
        if reading.scoring is not None:
            scoring = self._scoring_of(path)
            if scoring is None:
                return replace(recording, annotations=()), (f"no file matches --scoring {reading.scoring!r}",)
            return replace(recording, annotations=read_scoring(scoring, recording, path, reading.seconds)), ()
        if bids.is_bids(self.base):
            return self._labelled_by_bids(recording, path), ()
        if reading.label is not None and not table_ending(path):
            raise PolyadicError(
                f"--label names a column of a table, but {path.name} is not a table: --class selects annotations, "
                "--scoring names files of labels, --label-from finds labels in paths"
            )
        return recording, ()

    def _labelled_by_bids(self, recording: Recording, path: Path) -> Recording:
        column, events = self.reading.label, bids.events_of(path)
        if column is not None:
            people = bids.participant_labels(self.base, column)
            if people is not None:
                return _annotated(recording, people.get(recording.subject, ""))
            heads = read_heads(events) if events is not None else ()
            if events is not None and column not in heads:
                others = tuple(next(iter(self._participants.values()), {}))
                raise DataError(
                    f"there is no column {column!r} (--label): participants.tsv has {listed(others) or 'none'}, "
                    f"{events.name} has {listed(heads) or 'none'}{close_match(column, (*others, *heads))}"
                )
        return recording if events is None else replace(recording, annotations=read_events(events, column))

    def _scoring_of(self, path: Path) -> Path | None:
        if self.reading.scoring is None:
            return None
        folder = self.base if self.base.is_dir() else self.base.parent
        stem = path.name[: len(path.name) - len(ending_of(path))]
        return find_scoring(path, folder, stem, self.reading.scoring, self._scorings)

    def _check_scorings(self) -> None:
        """Raise an error if a scoring matches two recordings."""
        owners: dict[Path, Path] = {}
        for path in self.files:
            try:
                scoring = self._scoring_of(path)
            except DataError:  # raised when the recording is read
                continue
            if scoring is not None and owners.setdefault(scoring, path) != path:
                raise DataError(
                    f"{scoring.name} matches both {self._below(owners[scoring])} and {self._below(path)}: make "
                    "--scoring more specific, with {name} for the name of the recording, or select recordings with "
                    "--pattern"
                )

    # ------------------------------------------------------------------------------------------------------ signals

    def _read(self, path: Path, name: str, subject: str, signals: bool) -> tuple[list[Recording], tuple[str, ...]]:
        reading = self.reading
        if not table_ending(path):
            return _read_signals(path, name, subject, reading, signals)
        columns = TableColumns(
            reading.channels,
            self._label_column(path),
            reading.subject_column if self._has_subject_column(path) else None,
            reading.time,
            refuse_labels=True,
            resample=reading.resample,
        )
        notes: tuple[str, ...] = ()
        if self.labels and reading.label is not None and columns.label is None:
            notes = (f"read without labels, because there is no column {reading.label!r} (--label)",)
        if columns.subject is not None:
            return read_csv_by_subject(path, reading.fs, name, columns), notes
        return [read_csv(path, reading.fs, name, subject, columns)], notes

    def _at_rate(self, recording: Recording, path: Path) -> Recording:
        """Resample a recording as requested; if any are filtered, all are converted to values, so that types agree."""
        reading = self.reading
        if reading.fs is not None and abs(recording.fs - reading.fs) > 1e-6 * reading.fs:
            if reading.resample is None:
                held = "--resample hold repeats its samples, " if _is_multiple(reading.fs, recording.fs) else ""
                raise DataError(
                    f"{path.name} is sampled at {recording.fs:g} Hz, not at {reading.fs:g} Hz: {held}--resample "
                    "polyphase filters and resamples it"
                )
            recording = resample_recording(recording, reading.fs, reading.resample)
        if self._values or "polyphase" in (reading.resample, reading.keep_slow):
            recording = as_values(recording)
        return recording


def _is_multiple(fs: float, of: float) -> bool:
    return fs >= of and abs(fs / of - round(fs / of)) <= 1e-9 * fs / of


def _annotated(recording: Recording, text: str) -> Recording:
    """Return a recording with one annotation that covers it, or with none if the text is empty."""
    last = recording.segments[-1]
    end = last.onset + (recording.signal.shape[1] - last.first) / recording.fs
    return replace(recording, annotations=(Annotation(0.0, end, text),) if text else ())


def check_packages(files: Sequence[Path]) -> None:
    """Check that the packages to read these files are installed, before anything is computed.

    Raises
    ------
    MissingExtraError : if a package is missing; the message says how to install it
    """
    for path in files:
        package = _PACKAGES.get(ending_of(path))
        if package is not None and importlib.util.find_spec(package) is None:
            raise MissingExtraError(
                f"{path.name} needs the package {package}, which is not installed: pip install "
                f"'polyadic[{_EXTRAS[package]}]'"
            )


def _read_signals(
    path: Path, name: str, subject: str, reading: Reading, signals: bool
) -> tuple[list[Recording], tuple[str, ...]]:
    """Read a file that is not a table, with the annotations in it; return a list of one recording, and notes."""
    read = _READERS.get(ending_of(path))
    if read is None:
        raise PolyadicError(f"{path.name} is not a recording: its extension must be one of {', '.join(ENDINGS)}")
    recording, notes = read(path, name, subject, reading, signals)
    return [recording], notes


def _read_edf(
    path: Path, name: str, subject: str, reading: Reading, signals: bool
) -> tuple[Recording, tuple[str, ...]]:
    known = edf.read_channels(path)
    rates = {channel: rate for channel, (rate, _) in known.items()}
    channels, how, notes = _without_slow(rates, reading)
    # The reader resamples channels of several rates itself, starting from their digital values.
    fs = reading.fs if reading.resample is not None else None
    recording = edf.read_edf(path, channels=channels, fs=fs, resample=how, name=name, subject=subject, signals=signals)
    return recording, notes


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
        return list(reading.channels), ways, ()
    if reading.keep_slow is not None or not slow:
        return None, ways, ()
    words = ", ".join(f"{channel} ({rate:g} Hz)" for channel, rate in slow.items())
    note = f"left out slow channels: {words}. --keep-slow hold repeats their samples, --keep-slow polyphase filters"
    return [channel for channel in rates if channel not in slow], ways, (note,)


def _read_wfdb(
    path: Path, name: str, subject: str, reading: Reading, signals: bool
) -> tuple[Recording, tuple[str, ...]]:
    channels, how, notes = _without_slow(wfdb.read_rates(path), reading)
    extensions = [ending[1:] for ending in _ANNOTATIONS if path.with_suffix(ending).exists()]
    recording = wfdb.read_wfdb(
        path, channels=channels, annotations=extensions or None, name=name, subject=subject, resample=how
    )
    return recording, notes


def _read_mne(
    path: Path, name: str, subject: str, reading: Reading, signals: bool
) -> tuple[Recording, tuple[str, ...]]:
    recording = mne_reader.read_mne(path, name, subject)
    if reading.channels is None:
        return recording, ()
    for channel in reading.channels:
        if channel not in recording.channels:
            raise DataError(
                f"{path.name}: must have the channel {channel!r}, but has {listed(recording.channels)}"
                f"{close_match(channel, recording.channels)}"
            )
    rows = [recording.channels.index(channel) for channel in reading.channels]
    chosen = replace(
        recording,
        channels=reading.channels,
        units=tuple(recording.units[row] for row in rows),
        signal=np.ascontiguousarray(recording.signal[rows]),
        scale=recording.scale[rows],
        offset=recording.offset[rows],
        missing=None if recording.missing is None else recording.missing[rows],
    )
    return chosen, ()


_READERS: dict[str, Callable[..., tuple[Recording, tuple[str, ...]]]] = {
    ".edf": _read_edf,
    ".bdf": _read_edf,
    ".hea": _read_wfdb,
    ".vhdr": _read_mne,
    ".set": _read_mne,
}


def read_recording(
    path: _Path,
    name: str | None = None,
    subject: str | None = None,
    *,
    channels: Sequence[str] | None = None,
    fs: float | None = None,
    resample: str | None = None,
    keep_slow: str | None = None,
) -> Recording:
    """Read one recording from an EDF, BDF, WFDB (its .hea file), BrainVision, EEGLAB, CSV or TSV file.

    Parameters
    ----------
    name : name of the recording; by default the file name without its extension
    subject : name of the subject; by default the name of the recording
    channels, fs, resample, keep_slow : as for `polyadic.data.datasets.folder`
    """
    file = Path(path)
    if ending_of(file) not in ENDINGS:
        raise PolyadicError(f"{file.name} is not a recording: its extension must be one of {', '.join(ENDINGS)}")
    options: Any = {"fs": fs, "resample": resample, "keep_slow": keep_slow}
    reading = Reading(channels=None if channels is None else tuple(channels), **options)
    (found, *_) = Sources(file, reading, labels=False).load(file)
    name = file.name[: len(file.name) - len(ending_of(file))] if name is None else name
    return replace(found.recording, name=name, subject=name if subject is None else subject)
