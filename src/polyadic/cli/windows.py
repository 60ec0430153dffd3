"""The windows that a command works on: from a store, from arrays, or cut from recordings as a model needs them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyadic.errors import DataError, PolyadicError
from polyadic.terminal import echo

if TYPE_CHECKING:
    from polyadic.data import Windows
    from polyadic.data.reading import Reading

__all__ = ["are_recordings", "opened", "opened_for"]

_NAMED = 5
"""Files that are named if several are left out for the same reason."""


def are_recordings(data: Path) -> bool:
    """Whether a path leads to recordings, which have to be cut into windows, and not to a store or a file of arrays."""
    from polyadic.data.sources import ENDINGS, ending_of
    from polyadic.data.store_files import MANIFEST, WRITING

    if not data.is_dir():
        return ending_of(data) in ENDINGS
    return not ((data / MANIFEST).exists() or (data / WRITING).exists())


@contextmanager
def opened(
    data: Path,
    given: Mapping[str, Any],
    *,
    on_error: str = "raise",
    shuffle: str = "full",
    hidden: bool = False,
) -> Iterator[Windows]:
    """The windows of a path; those of recordings are kept in a temporary store.

    Parameters
    ----------
    data : a store, a file of arrays, a recording or a folder of recordings
    given : options of how recordings are read, by the names of fields of a `Reading`
    on_error : what to do about recordings that cannot be read
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
    labels: bool = False,
    hidden: bool = False,
) -> Iterator[Windows]:
    """The windows of a path as a model needs them, cut as those were that it was fitted to.

    Parameters
    ----------
    model : loaded
    given : options of how recordings are read; what contradicts the model is refused
    labels : whether labels and subjects are needed, and must not be shared between recordings of different subjects
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
    with _cut(data, reading, labels=labels, check_classes="classes" in given, hidden=hidden) as windows:
        if labels:
            _refuse_shared(windows)
        yield match_signals(windows, model.fs_, model.channel_names_, data.name)


def _check_cutting(data: Path, given: Mapping[str, Any]) -> None:
    """Refuse options that would do nothing."""
    from polyadic.data.reading import option_name

    if are_recordings(data):
        return
    for name in given:
        if name != "fs" or data.is_dir():
            raise PolyadicError(
                f"{option_name(name)} is for recordings, but the windows of {data.name} are cut already"
            )


def _cut_already(data: Path, fs: float | None, shuffle: Any) -> Windows:
    from polyadic.data import WindowStore
    from polyadic.data.loading import open_windows

    return WindowStore(data, shuffle=shuffle).windows if data.is_dir() else open_windows(data, fs=fs)


@contextmanager
def _cut(
    data: Path,
    reading: Reading,
    *,
    labels: bool = True,
    check_classes: bool = True,
    on_error: Any = "raise",
    shuffle: Any = "full",
    hidden: bool = False,
) -> Iterator[Windows]:
    """The windows of recordings in a temporary store; what should be known about them is said."""
    from polyadic.data import WindowStore
    from polyadic.data.collection import write_store
    from polyadic.progress import file_bar

    with tempfile.TemporaryDirectory(prefix="polyadic-") as folder:
        try:
            with file_bar("reading", hidden) as update:
                store = write_store(
                    data,
                    Path(folder) / "store",
                    reading,
                    labels=labels,
                    check_classes=check_classes,
                    on_error=on_error,
                    progress=update,
                )
        except DataError as error:
            if data.is_file() or str(error).startswith("No recordings"):
                raise
            raise DataError(f"{data.name} is read as recordings: {error}") from error
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
    """How to read recordings for a model: as those were that it was fitted to."""
    from dataclasses import replace

    from polyadic.data.channels import numbered_channels
    from polyadic.data.reading import Reading

    if model.fs_ is None:
        raise PolyadicError(
            f"{data.name} is read as recordings, but the length of a window is unknown: the model was fitted to arrays "
            "without a sampling rate. Cut the recordings by polyadic prepare"
        )
    stored = getattr(model, "reading_", {})
    known = Reading.from_json(stored) if stored else Reading()
    if known.pattern is not None and (given.get("pattern") is not None or not _fits_files(data, known.pattern)):
        known = replace(known, pattern=None)  # other folders name their files otherwise
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


def _fits_files(data: Path, pattern: str) -> bool:
    """Whether there are recordings whose paths fit a pattern."""
    from polyadic.data.sources import find_recordings

    try:
        return bool(find_recordings(data, "skip", pattern).files)
    except DataError:
        return False


def _refuse_shared(windows: Windows) -> None:
    """Refuse recordings that stand under two names and belong to two subjects: one would test what the other taught."""
    store = windows.store
    if store is None:
        return
    whose = {str(entry["name"]): str(entry["subject"]) for entry in store.recordings}
    for names in store.identical():
        if len({whose[name] for name in names}) > 1:
            raise PolyadicError(
                f"{' and '.join(names[:2])} are the same recording under two names and of two subjects, so that scores "
                "would be too good: remove one of them, or name the subjects by --subject"
            )
