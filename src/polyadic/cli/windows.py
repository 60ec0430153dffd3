"""Open the windows of a command: from a store, from arrays, or cut from recordings."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyadic._util.terminal import echo
from polyadic.errors import DataError, PolyadicError

if TYPE_CHECKING:
    from polyadic.data import Windows
    from polyadic.data.reading import Reading

__all__ = ["are_recordings", "opened", "opened_for"]

_NAMED = 5
"""Maximum number of files to name when several are left out for the same reason."""


def are_recordings(data: Path) -> bool:
    """Whether a path holds recordings, which must be cut into windows, rather than a store or arrays."""
    from polyadic.data.folders import ENDINGS
    from polyadic.data.readers.common import ending_of
    from polyadic.data.store import is_store

    return not is_store(data) if data.is_dir() else ending_of(data) in ENDINGS


@contextmanager
def opened(
    data: Path,
    given: Mapping[str, Any],
    *,
    on_error: str = "raise",
    shuffle: str = "full",
    hidden: bool = False,
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

    _check_cutting(data, given)
    if are_recordings(data):
        with _cut(data, Reading(**given), on_error=on_error, shuffle=shuffle, hidden=hidden) as windows:
            yield windows
    else:
        yield _cut_already(data, given.get("fs"), shuffle)


@contextmanager
def opened_for(
    model: Any,
    data: Path,
    given: Mapping[str, Any],
    *,
    labels: bool | None = False,
    hidden: bool = False,
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

    _check_cutting(data, given)
    if not are_recordings(data):
        windows = _cut_already(data, given.get("fs"), "full")
        if labels:
            _refuse_shared(windows)
        yield match_signals(windows, model.fs_, model.channel_names_, data.name)
        return
    reading = _reading_for(model, data, given)
    if labels and "label" not in given:
        _check_label_column(data, reading)
    with _cut(data, reading, labels=labels, check_classes="classes" in given, hidden=hidden) as windows:
        if labels:
            _refuse_shared(windows)
        yield match_signals(windows, model.fs_, model.channel_names_, data.name)


def _check_cutting(data: Path, given: Mapping[str, Any]) -> None:
    """Raise if an option would have no effect."""
    from polyadic.data.reading import option_name

    if are_recordings(data):
        return
    for name in given:
        if name != "fs" or data.is_dir():
            raise PolyadicError(
                f"{option_name(name)} is for recordings, but {data.name} already contains windows: leave it out"
            )


def _cut_already(data: Path, fs: float | None, shuffle: Any) -> Windows:
    from polyadic.data import WindowStore
    from polyadic.data.folders import ENDINGS
    from polyadic.data.readers.arrays import ARRAYS, open_windows

    if not data.is_dir() and data.suffix.lower() not in ARRAYS:
        windows = ", ".join(ARRAYS)
        raise PolyadicError(f"{data} is neither windows ({windows} or a store) nor a recording ({', '.join(ENDINGS)})")
    return WindowStore(data, shuffle=shuffle).windows if data.is_dir() else open_windows(data, fs=fs)


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
        reasons: dict[str, list[str]] = {}
        for entry in store.skipped:
            reasons.setdefault(entry["reason"], []).append(entry["name"])
        for reason, names in reasons.items():
            rest = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
            echo(f"left out {', '.join(names[:_NAMED])}{rest}: {reason}", err=True, colour="yellow")
        incomplete = sum(int(entry.get("incomplete", 0)) for entry in store.recordings)
        if incomplete:
            words = f"left out {incomplete:,} window{'s' * (incomplete != 1)} with missing values"
            echo(words, err=True, colour="yellow")
        for note in store.notes:
            echo(note, err=True, colour="yellow")
        yield WindowStore(store.path, shuffle=shuffle).windows


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
    if known.pattern is not None and (given.get("pattern") is not None or not _fits_files(data, known.pattern)):
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


def _fits_files(data: Path, pattern: str) -> bool:
    """Whether any recording matches a pattern."""
    from polyadic.data.folders import find_recordings

    try:
        return bool(find_recordings(data, "skip", pattern).files)
    except DataError:
        return False


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
