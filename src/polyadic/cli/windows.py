"""Open the windows of a command (from a store, from arrays, or cut from recordings), and describe them."""

from __future__ import annotations

import difflib
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyadic._util.terminal import echo, print_table
from polyadic.errors import DataError, PolyadicError

if TYPE_CHECKING:
    from polyadic.data import Windows
    from polyadic.data.reading import Reading

__all__ = ["are_recordings", "counted", "describe", "describe_sizes", "opened", "opened_for", "scarcities"]

_NAMED = 5
"""Maximum number of files, or of notes on classes, that are shown for the same reason."""
_SIMILAR = 0.75
"""Minimum similarity of two words, one of which may be a typo of the other."""


def counted(number: int, what: str) -> str:
    """Return a number with what it counts.

    Examples
    --------
    >>> counted(1, "window"), counted(2000, "window")
    ('1 window', '2,000 windows')
    """
    return f"{number:,} {what}{'s' * (number != 1)}"


def are_recordings(data: Path) -> bool:
    """Whether a path holds recordings, which must be cut into windows, rather than a store or arrays."""
    from polyadic.data.folders import ENDINGS
    from polyadic.data.readers.common import ending_of
    from polyadic.data.store import is_store

    return not is_store(data) if data.is_dir() else ending_of(data) in ENDINGS


@contextmanager
def opened(
    data: Path, given: Mapping[str, Any], *, on_error: str = "raise", shuffle: str = "full", hidden: bool = False
) -> Iterator[Windows]:
    """Open the windows of a path; recordings are cut into a temporary store.

    Parameters
    ----------
    data : a store, a file of arrays, a recording or a folder of recordings
    given : options for reading recordings, by the field names of a `Reading`
    on_error : what to do with recordings that cannot be read
    shuffle : as for `polyadic.data.WindowStore`
    hidden : do not show a progress bar
    """
    from polyadic.data.reading import Reading

    if are_recordings(data):
        with _cut(data, Reading(**given), on_error=on_error, shuffle=shuffle, hidden=hidden) as windows:
            yield windows
    else:
        yield _cut_already(data, given, shuffle)


@contextmanager
def opened_for(
    model: Any, data: Path, given: Mapping[str, Any], *, labels: bool | None = False, hidden: bool = False
) -> Iterator[Windows]:
    """Open the windows of a path for a model, cut in the same way as for the fit.

    Parameters
    ----------
    model : the loaded model
    data : a store, a file of arrays, a recording or a folder of recordings
    given : options for reading recordings; options that contradict the model are an error
    labels : whether labels are needed; if so, the same recording must not belong to two subjects. None reads those
        that there are
    hidden : do not show a progress bar
    """
    from polyadic.data.channels import match_signals

    def checked(windows: Windows) -> Windows:
        if labels:
            _refuse_shared(windows)
        matched: Windows = match_signals(windows, model.fs_, model.channel_names_, data.name)
        return matched

    if not are_recordings(data):
        yield checked(_cut_already(data, given))
        return
    reading = _reading_for(model, data, given)
    if labels and "label" not in given:
        _check_label_column(data, reading)
    with _cut(data, reading, labels=labels, check_classes="classes" in given, hidden=hidden) as windows:
        yield checked(windows)


def _cut_already(data: Path, given: Mapping[str, Any], shuffle: Any = "full") -> Windows:
    """Open a store or a file of arrays; raise if an option would have no effect."""
    from polyadic.data import WindowStore
    from polyadic.data.folders import ENDINGS
    from polyadic.data.readers.arrays import ARRAYS, open_windows
    from polyadic.data.reading import option_name

    for name in given:
        if name != "fs" or data.is_dir():
            raise PolyadicError(
                f"{option_name(name)} is for recordings, but {data.name} already contains windows: leave it out"
            )
    if not data.is_dir() and data.suffix.lower() not in ARRAYS:
        windows = ", ".join(ARRAYS)
        raise PolyadicError(f"{data} is neither windows ({windows} or a store) nor a recording ({', '.join(ENDINGS)})")
    return WindowStore(data, shuffle=shuffle).windows if data.is_dir() else open_windows(data, fs=given.get("fs"))


@contextmanager
def _cut(
    data: Path,
    reading: Reading,
    *,
    labels: bool | None = True,
    check_classes: bool = True,
    on_error: Any = "raise",
    shuffle: Any = "full",
    hidden: bool = False,
) -> Iterator[Windows]:
    """Cut recordings into a temporary store, and print notes about them; `labels` as for `opened_for`."""
    from polyadic._util.progress import file_bar
    from polyadic.data import WindowStore
    from polyadic.data.cutting import write_store

    def written(name: str, labels: bool) -> WindowStore:
        options = {"labels": labels, "check_classes": check_classes, "on_error": on_error}
        try:
            with file_bar("reading", hidden) as update:
                return write_store(data, Path(folder) / name, reading, **options, progress=update)
        except DataError as error:
            if data.is_file() or str(error).startswith("No recordings"):
                raise
            file = re.split(r"[:,]? ", str(error), maxsplit=1)[0]
            raise DataError(f"{data}{'/' if (data / file).is_file() else ': '}{error}") from error

    with tempfile.TemporaryDirectory(prefix="polyadic-") as folder:
        try:
            store = written("store", labels is not False)
        except PolyadicError as error:
            if labels is not None:
                raise
            store = written("unlabelled", labels=False)  # raises again if the error has another cause
            echo(f"read without labels: {error}", err=True, colour="yellow")
        for note in _notes(store):
            echo(note, err=True, colour="yellow")
        yield WindowStore(store.path, shuffle=shuffle).windows


def _notes(store: Any) -> list[str]:
    """Return notes on files and windows that were left out, and those of the store."""
    reasons: dict[str, list[str]] = {}
    for entry in store.skipped:
        reasons.setdefault(entry["reason"], []).append(entry["name"])
    notes = []
    for reason, names in reasons.items():
        rest = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
        notes.append(f"left out {', '.join(names[:_NAMED])}{rest}: {reason}")
    incomplete = sum(int(entry.get("incomplete", 0)) for entry in store.recordings)
    if incomplete:
        notes.append(f"left out {counted(incomplete, 'window')} with missing values")
    return [*notes, *store.notes]


def _reading_for(model: Any, data: Path, given: Mapping[str, Any]) -> Reading:
    """Return how to read recordings for a model: in the same way as for the fit."""
    from dataclasses import replace

    from polyadic.data.channels import numbered_channels
    from polyadic.data.reading import Reading

    if model.fs_ is None:
        raise PolyadicError(
            f"cannot cut {data.name} into windows: the model was fitted to arrays without a sampling rate, so the "
            "length of a window is unknown. Write a store with polyadic prepare first"
        )
    stored = getattr(model, "reading_", {})
    known = Reading.from_json(stored) if stored else Reading()
    if known.pattern is not None and (given.get("pattern") is not None or not _has_files(data, known.pattern)):
        known = replace(known, pattern=None)  # other folders may name their files differently
    if not known.classes and hasattr(model, "probe_"):
        known = replace(known, classes=tuple((str(name), (str(name),)) for name in model.probe_.classes_))
    unnamed = model.channel_names_ in ((), numbered_channels(len(model.channel_names_)))
    known = replace(
        known,
        seconds=model._sample_shape[-1] / model.fs_,
        channels=None if unnamed else model.channel_names_,
        fs=model.fs_,
    )
    return known.with_given(given, "the model", known=bool(stored))


def _has_files(data: Path, pattern: str) -> bool:
    """Whether any recording matches a pattern."""
    from polyadic.data.folders import find_recordings

    try:
        return bool(find_recordings(data, "skip", pattern).files)
    except DataError:
        return False


def _check_label_column(data: Path, reading: Reading) -> None:
    """Raise if the labels of a model are in a table column that none of these recordings has."""
    from polyadic.data.bids import is_bids
    from polyadic.data.folders import find_recordings
    from polyadic.data.readers.common import is_table
    from polyadic.data.readers.tables import read_heads
    from polyadic.data.reading import listed

    if reading.label is None or is_bids(data):
        return
    tables = [file for file in find_recordings(data, "skip", reading.pattern).files if is_table(file)]
    heads = [read_heads(file) for file in tables]
    if all(heads) and tables and not any(reading.label in columns for columns in heads):
        raise DataError(
            f"scores need labels, but {data.name} has none: the model reads labels from the column {reading.label!r}, "
            f"and {tables[0].name} has only {listed(heads[0])}. To label new recordings, use polyadic predict"
        )


def _refuse_shared(windows: Windows) -> None:
    """Raise if the same recording belongs to two subjects: it could be in both the training and the test part."""
    store = windows.store
    if store is None:
        return
    whose = {str(entry["name"]): str(entry["subject"]) for entry in store.recordings}
    for names in store.identical():
        if len({whose[name] for name in names}) > 1:
            raise PolyadicError(
                f"{' and '.join(names[:2])} are the same recording with two subjects, so scores would be too high: "
                "remove one of them, or set the subjects with --subject"
            )


# --------------------------------------------------------------------------------------------------- description


def describe(windows: Windows, hidden: bool) -> None:
    """Print a table of the classes, and notes if there are too few recordings, subjects or classes.

    Parameters
    ----------
    windows : the windows to describe
    hidden : do not print the table
    """
    import numpy as np

    counts = np.bincount(windows.label[windows.label >= 0], minlength=len(windows.classes)).tolist()
    if sum(counts) and not hidden:
        rows = [*zip(windows.classes, counts, strict=True), ("(no label)", len(windows) - sum(counts))]
        cells = [(name, f"{count:,}", f"{100 * count / len(windows):.1f}") for name, count in rows]
        print_table(("class", "windows", "%"), cells if rows[-1][1] else cells[:-1], err=True)
    names = [name for name, count in zip(windows.classes, counts, strict=True) if count]
    recordings = len(set(windows.recording.tolist()) - {""})
    notes = scarcities(recordings, windows.index.n_subjects, names)
    for sentence in (*notes, *_classes_of_one_subject(windows, names)):
        echo(sentence, err=True, colour="yellow")


def describe_sizes(windows: Windows, frame: int, length_is_default: bool, frame_is_default: bool) -> str:
    """Return the number and length of windows, their channels and rate, and the frame length, as one line.

    Parameters
    ----------
    windows : the windows to describe
    frame : frame length in samples
    length_is_default, frame_is_default : whether window length and frame length are defaults

    Examples
    --------
    >>> import numpy as np
    >>> from polyadic.data import Windows
    >>> describe_sizes(Windows(np.zeros((5, 2, 100)), fs=50.0), 32, True, False)
    '5 windows of 2 s (default), 2 channels at 50 Hz, frames of 0.64 s'
    """
    count, channels, samples = windows.shape
    fs = windows.fs
    length, part = (f"{size} samples" if fs is None else f"{size / fs:g} s" for size in (samples, frame))
    rate = "" if fs is None else f" at {fs:g} Hz"
    marks = [" (default)" * default for default in (length_is_default, frame_is_default)]
    return (
        f"{counted(count, 'window')} of {length}{marks[0]}, {counted(channels, 'channel')}{rate}, "
        f"frames of {part}{marks[1]}"
    )


def scarcities(recordings: int, subjects: int, classes: Sequence[str]) -> list[str]:
    """Return notes on the consequences if there is only one recording, subject or class.

    Examples
    --------
    >>> scarcities(2, 2, ["N2"])
    ["There is only one class, 'N2': a probe needs at least two."]
    """
    notes = []
    if recordings == 1:
        notes.append("There is only one recording: the model may not generalise to others.")
    if subjects == 1:
        notes.append(
            "There is only one subject: evaluate needs at least two, to test on subjects that the model has not seen."
        )
    if len(classes) == 1:
        notes.append(f"There is only one class, {classes[0]!r}: a probe needs at least two.")
    return notes


def _classes_of_one_subject(windows: Windows, names: Sequence[str]) -> list[str]:
    """Return a note on each class that only one subject has, with another class of which it may be a typo."""
    from polyadic.data.reading import shell_word

    known = (windows.label >= 0) & (windows.subject != "")
    pairs = set(zip(windows.label[known].tolist(), windows.subject[known].tolist(), strict=True))
    if len({subject for _, subject in pairs}) < 2:
        return []
    counts = Counter(windows.classes[label] for label, _ in pairs)
    notes = []
    for name in [name for name in names if counts[name] == 1][:_NAMED]:
        other = next((other for other in names if counts[other] > 1 and _is_typo(name, other)), None)
        hint = ""
        if other is not None:
            merged = shell_word(f"{other}={other}|{name}")
            hint = f" Did you mean {other!r}? --class {merged} merges them; list the other classes with --class, too."
        notes.append(f"Class {name!r} has labels of one subject only, so it cannot be tested on other subjects.{hint}")
    return notes


def _is_typo(name: str, other: str) -> bool:
    """Whether two names differ only in similar words; "stage 3" is not a typo of "stage 4"."""
    words, others = name.casefold().split(), other.casefold().split()
    changed = " ".join(word for word in words if word not in others), " ".join(w for w in others if w not in words)
    return difflib.SequenceMatcher(None, *changed).ratio() >= _SIMILAR
