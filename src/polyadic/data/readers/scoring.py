"""Read labels from separate files: EDF+ hypnograms, tables of onset, duration and label, and one stage per line."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np

from polyadic.data.labels import NO_LABEL, is_unknown
from polyadic.data.readers.common import check_file, decode_text, is_table, stem_of
from polyadic.data.readers.edf import EdfFile, begin_together
from polyadic.data.readers.tables import read_heads, read_texts
from polyadic.data.readers.wfdb import read_annotations
from polyadic.data.reading import listed
from polyadic.data.recordings import LATEST, Annotation, Recording
from polyadic.errors import DataError

_LABELS = ("trial_type", "label", "description", "stage", "annotation", "event", "value", "text", "class")
_HEADS = (*_LABELS, "labels", "stages", "sleep_stage", "sleep stage", "hypnogram")
_EPOCHS = (30.0, 20.0, 10.0)
"""Common epoch lengths of scorings in seconds."""


def matches(path: str, pattern: str | None) -> bool:
    """Whether a path relative to the folder that is read, or its file name, matches a pattern."""
    if pattern is None:
        return False
    wanted = pattern.replace("{name}", "*")
    return fnmatchcase(path, wanted) or fnmatchcase(path.rpartition("/")[2], wanted)


def find_scorings(path: Path, base: Path, pattern: str, files: Iterable[Path]) -> list[Path]:
    """Return the files that score a recording, by their names: those that have most of its name in common.

    The text that matches the * of the pattern must be a prefix of the name of the recording, followed by its end or by
    a character that is not a letter or digit. In the names of EDF files, the prefix may end in a letter where the
    recording has a digit, as in Sleep-EDF. {name} instead of * stands for the whole name of the recording. `files`
    match the pattern, below the folder `base`; those in the folder of the recording take precedence.
    """
    fitting, stem = dict[Path, int](), stem_of(path)
    for file in files:
        key = _key(file, base, pattern)
        if (key == stem) if "{name}" in pattern else _begins_with(stem, key, file):
            fitting[file] = len(key)
    near = {file: shared for file, shared in fitting.items() if file.parent == path.parent} or fitting
    return [file for file, shared in near.items() if shared == max(near.values())]


def _begins_with(stem: str, key: str, file: Path) -> bool:
    """Whether the name of a recording begins with `key` as a whole word: S1_night begins with S1, S10 does not."""
    if not key or stem[len(key) : len(key) + 1].isalnum():
        return False
    if stem.startswith(key):
        return True
    in_edf = file.suffix.lower() in (".edf", ".bdf")
    last = stem[len(key) - 1 : len(key)]
    return in_edf and len(key) > 1 and stem.startswith(key[:-1]) and key[-1].isalpha() and last.isdigit()


def _key(file: Path, base: Path, pattern: str) -> str:
    """Return the text that matches the * of a pattern in the name of a file; the longest if there are several."""
    parts = [re.escape(part) for part in re.split(r"\*|\{name\}", pattern)]
    for name in (file.relative_to(base).as_posix() if file.is_relative_to(base) else file.name, file.name):
        found = re.fullmatch("(.*)".join(parts).replace(r"\?", "."), name)
        if found:
            return max((group.rpartition("/")[2] for group in found.groups()), key=len, default="")
    return file.name.partition(".")[0]


def read_scoring(path: Path, recording: Recording, source: Path, seconds: float) -> tuple[Annotation, ...]:
    """Read the labels of a recording, whose file is `source`, from a scoring file.

    It is an EDF+ file with annotations, a table of onset, duration and label, a WFDB annotation file, or a text file
    with one stage per line, for which the length of a window in seconds is tried as the length of an epoch.
    """
    suffix = path.suffix.lower()
    if suffix in (".edf", ".bdf"):
        annotations = EdfFile(path).annotations
        if source.suffix.lower() in (".edf", ".bdf") and not begin_together(path, source):
            raise DataError(f"{path.name} does not belong to {source.name}: they begin at different times")
        return annotations
    if is_table(path) and {"onset", "duration"} & {head.lower() for head in read_heads(path)}:
        return read_events(path, None)
    if source.suffix.lower() == ".hea" and suffix not in (".csv", ".tsv", ".txt"):
        return read_annotations(path, recording.duration)
    return _read_lines(path, recording, seconds)


def read_events(path: Path, column: str | None) -> tuple[Annotation, ...]:
    """Read annotations from a table with the columns onset and duration in seconds, as in BIDS, and a label column.

    By default, the label is in the first column of trial_type, label, description, stage, annotation, event, value,
    text and class that the table has.
    """
    import pandas as pd

    heads = read_heads(path)
    named = {head.lower(): head for head in heads}
    label = column or next((named[name] for name in _LABELS if name in named), None)
    if "onset" not in named or label not in heads:
        raise DataError(
            f"{path.name} must have the columns onset, duration and {column or 'label'}, but has {listed(heads)}"
        )
    frame = read_texts(path)
    times = []
    for name in ("onset", "duration"):
        cells = frame[named[name]].str.lower().str.replace(",", ".") if name in named else pd.Series("0", frame.index)
        cells = cells.where(~cells.isin(NO_LABEL), "0") if name == "duration" else cells
        times.append(pd.to_numeric(cells, errors="coerce").to_numpy(np.float64))
    onsets, durations = times
    valid = (np.abs(onsets) <= LATEST) & (durations >= 0) & (durations <= LATEST)
    if not valid.all():
        line = int(np.argmin(valid)) + 2
        raise DataError(f"{path.name}, line {line}: onset and duration must be numbers of seconds, at most {LATEST:g}")
    rows = zip(onsets.tolist(), durations.tolist(), frame[label], strict=True)
    annotations = (Annotation(*row) for row in rows if row[2].lower() not in NO_LABEL and not is_unknown(row[2]))
    return tuple(sorted(annotations, key=lambda annotation: annotation.onset))


def _read_lines(path: Path, recording: Recording, window: float) -> tuple[Annotation, ...]:
    """Read one stage per line, with or without a heading: epochs of equal length that cover the recording."""
    if check_file(path) > 1 << 24:
        raise DataError(f"{path.name} is too large to have one stage per line")
    lines = [line.strip() for line in decode_text(path.read_bytes()).removeprefix("\ufeff").splitlines()]
    while lines and not lines[-1]:
        lines.pop()
    if lines and lines[0].strip("\"'").lower() in _HEADS:
        del lines[0]
    epoch = _epoch_length(len(lines), recording, window, path.name)
    return tuple(Annotation(row * epoch, epoch, text) for row, text in enumerate(lines) if not is_unknown(text))


def _epoch_length(lines: int, recording: Recording, window: float, file: str) -> float:
    """Return the epoch length in seconds: that of a window, a common one, or whole seconds that fill the recording.

    The epochs must leave less than one epoch at the end of the recording. A length that leaves nothing is preferred.
    """
    seconds, slack = recording.signal.shape[1] / recording.fs, 0.5 / recording.fs
    usual = {window, *_EPOCHS}
    fitting = sorted(size for size in usual if lines and lines * size <= seconds + slack < (lines + 1) * size)
    lengths = fitting or [float(round(seconds / max(lines, 1)))]
    filling = [size for size in lengths if size and abs(lines * size - seconds) <= slack]
    if len(fitting) == 1 or filling:
        return (filling or fitting)[0]
    which = f"may be epochs of {fitting[0]:g} or of {fitting[-1]:g} s" if fitting else "fit no usual epoch length"
    raise DataError(
        f"{file} has {lines} lines, which {which} in the {seconds:g} s of {recording.name}: give a table of onset, "
        "duration and label instead"
    )
