"""Open the model and the windows of a command: from a store, from arrays, or cut from recordings. Describe them."""

from __future__ import annotations

import difflib
import re
import shlex
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyadic._util.terminal import print_notes, print_table
from polyadic.errors import DataError, PolyadicError

if TYPE_CHECKING:
    from polyadic.cli.options import Common
    from polyadic.data import Windows
    from polyadic.data.reading import Reading

_NAMED = 5
"""Maximum number of files, or of notes on classes, that are shown for the same reason."""


def counted(number: int, what: str) -> str:
    """Return a number with what it counts.

    Examples
    --------
    >>> counted(1, "window"), counted(2000, "window")
    ('1 window', '2,000 windows')
    """
    return f"{number:,} {what}{'s' * (number != 1)}"


def open_model(path: Path, device: str = "auto") -> Any:
    """Load a model, to compute on a device; its refits in folds show no progress."""
    from polyadic import load

    model = load(path)
    return model.set_params(device=device, **({"verbose": 0} if hasattr(model, "verbose") else {}))


def are_recordings(data: Path) -> bool:
    """Whether a path holds recordings, which must be cut into windows, rather than a store or arrays."""
    from polyadic.data.folders import ENDINGS
    from polyadic.data.readers.common import ending_of
    from polyadic.data.store import is_store

    return not is_store(data) if data.is_dir() else ending_of(data) in ENDINGS


@contextmanager
def opened(
    data: Path,
    common: Common,
    *,
    model: Any = None,
    labels: bool | None = True,
    compares: bool | None = None,
) -> Iterator[Windows]:
    """Open the windows of a path; recordings are cut into a temporary store.

    For a model, recordings are cut as for its fit, options that contradict it are an error, channels are matched by
    name, and units are converted. With `labels=None`, labels are read if there are any. A command that compares
    subjects (by default: one that needs labels) refuses a recording that belongs to two of them.
    """
    from polyadic.data.channels import match_signals, unknown_units
    from polyadic.data.reading import Reading
    from polyadic.data.splits import refuse_copies

    given = dict(common.given)
    on_error = given.pop("on_error", "raise")
    with tempfile.TemporaryDirectory(prefix="polyadic-") as folder:
        if are_recordings(data):
            reading = Reading(**given) if model is None else _reading_for(model, data, given)
            options = {"check_classes": model is None or "classes" in given, "on_error": on_error}
            wanted = () if model is None else model.channel_names_
            try:
                windows = _cut(data, Path(folder), reading, labels, common.hidden, **options)
            except DataError as error:
                hints = _rename_hints(data, wanted, reading)
                raise (DataError(f"{error}\n({hints[0]})") if hints else error) from error
            if any("channels missing" in note for note in windows.store.notes):
                print_notes(*_rename_hints(data, wanted, reading, only_close=True))
        else:
            windows = _cut_already(data, given)
            wanted = () if model is None or "channel 1" in windows.channels else model.channel_names_
            if "channel 1" not in wanted and (hint := _renames(windows.channels, wanted)):
                print_notes(f"{data.name} has {hint} (in polyadic prepare)")
        if compares if compares is not None else labels:
            refuse_copies(windows)
        if model is not None:
            units = getattr(model, "units_", ())
            note = unknown_units(windows, units, data.name)
            windows = match_signals(windows, model.fs_, model.channel_names_, data.name, units=units)
            print_notes(note)
        yield windows


def _cut_already(data: Path, given: Mapping[str, Any]) -> Windows:
    """Open a store or a file of arrays; raise if an option would have no effect."""
    from polyadic.data.folders import ENDINGS
    from polyadic.data.readers.arrays import ARRAYS, open_windows
    from polyadic.data.reading import option_name

    for name in given:
        if name != "fs" or data.is_dir():
            raise PolyadicError(
                f"{option_name(name)} is for recordings, but {data.name} already contains windows: leave it out, or "
                "cut the recordings again with it (polyadic prepare folder)"
            )
    if not data.is_dir() and data.suffix.lower() not in ARRAYS:
        windows = ", ".join(ARRAYS)
        raise PolyadicError(f"{data} is neither windows ({windows} or a store) nor a recording ({', '.join(ENDINGS)})")
    return open_windows(data, fs=given.get("fs"))


def _cut(data: Path, folder: Path, reading: Reading, labels: bool | None, hidden: bool, **options: Any) -> Windows:
    """Cut recordings into a store in a folder, and print notes about them."""
    from polyadic._util.progress import file_bar
    from polyadic.data import WindowStore
    from polyadic.data.cutting import write_store

    def written(name: str, labels: bool) -> WindowStore:
        try:
            with file_bar("reading", hidden) as update:
                return write_store(data, folder / name, reading, labels=labels, **options, progress=update)
        except DataError as error:
            if data.is_file() or str(error).startswith("No recordings"):
                raise
            file = str(error).partition(" ")[0].rstrip(":,")
            # With none left, there would be nothing to read.
            can_skip = options.get("on_error") == "raise" and not str(error).startswith("no recording")
            skip = "\n(--on-error skip skips such recordings)" if can_skip else ""
            raise DataError(f"{data}{'/' if (data / file).is_file() else ': '}{error}{skip}") from error

    try:
        store = written("store", labels is not False)
    except PolyadicError as error:
        if labels is not None:
            raise
        store = written("unlabelled", labels=False)  # raises again if the error has another cause
        reason = str(error).partition("\n")[0].partition("; ")[0]
        print_notes(f"read without labels: {reason}")
    for reason, names in files_by_reason(store).items():
        rest = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
        print_notes(f"left out {', '.join(names[:_NAMED])}{rest}: {reason}")
    empty = sum(int(entry["empty"]) for entry in store.recordings)
    print_notes(f"left out {counted(empty, 'window')} without any sample" if empty else "", *store.notes)
    return store.windows


def files_by_reason(store: Any) -> dict[str, list[str]]:
    """Return the files that a store leaves out, by the reason."""
    reasons: dict[str, list[str]] = {}
    for entry in store.skipped:
        reasons.setdefault(entry["reason"], []).append(entry["name"])
    return reasons


def _reading_for(model: Any, data: Path, given: Mapping[str, Any]) -> Reading:
    """Return how to read recordings for a model: in the same way as for the fit."""
    from polyadic.data.channels import numbered_channels
    from polyadic.data.reading import Reading, is_pattern, option_name
    from polyadic.data.subjects import is_simple_pattern

    if model.fs_ is None:
        raise PolyadicError(
            f"cannot cut {data.name} into windows: the model was fitted to arrays without a sampling rate, so the "
            "length of a window is unknown. Write a store with polyadic prepare first"
        )
    stored = getattr(model, "reading_", {})
    known = Reading.from_json(stored) if stored else Reading()
    for name in ("subject", "label_from"):
        pattern = getattr(known, name)
        if name not in given and pattern is not None and is_pattern(pattern) and not is_simple_pattern(pattern):
            raise PolyadicError(
                f"the model was fitted with {option_name(name)} '{pattern}'. A model file may be someone else's, so an "
                "expression with this many repetitions is not run from it: if you trust it, give the option again"
            )
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


def _rename_hints(data: Path, wanted: Sequence[str], reading: Reading, only_close: bool = False) -> list[str]:
    """Return hints at --rename for the recordings that lack channels of the model and have others."""
    from polyadic.data.folders import find_recordings
    from polyadic.data.loading import open_signals
    from polyadic.data.readers.common import is_table
    from polyadic.data.readers.mne import read_mne
    from polyadic.data.readers.tables import signal_names

    renamed, files = dict(reading.rename), dict[str, list[str]]()
    for path in find_recordings(data, "skip", reading.pattern, reading.scoring).files if wanted else ():
        with suppress(PolyadicError, OSError):
            file = None if is_table(path) else open_signals(path)
            there = signal_names(path, reading) if is_table(path) else file.labels if file else read_mne(path).channels
            hint = _renames([renamed.get(channel, channel) for channel in there], wanted, only_close)
            files.setdefault(hint, []).append(path.name)
    files.pop("", None)
    return [
        f"{names[0]} has {hint}"
        if len(names) == 1
        else f"{names[0]} and {counted(len(names) - 1, 'other file')} have {hint}"
        for hint, names in files.items()
    ]


def _renames(there: Sequence[str], wanted: Sequence[str], only_close: bool = False) -> str:
    """Return a hint at --rename if there are channels that are not wanted, and wanted ones are not there."""
    others = {channel.casefold(): channel for channel in there if channel not in wanted}
    lacking = [channel for channel in wanted if channel not in there]
    close = {channel: difflib.get_close_matches(channel.casefold(), others, 1, 0.4) for channel in lacking}
    pairs = [(others[match[0]], channel) for channel, match in close.items() if match][:_NAMED]
    if not (others and lacking) or (only_close and not pairs):
        return ""
    renames = " ".join(f"--rename {shlex.quote(f'{old}={new}')}" for old, new in pairs or [("OLD", "NEW")])
    unknown = ", ".join(map(repr, dict.fromkeys(old for old, _ in pairs) or list(others.values())[:_NAMED]))
    return f"channels that the model does not know: {unknown}. If only the name differs: {renames}"


def _has_files(data: Path, pattern: str) -> bool:
    """Whether any recording matches a pattern."""
    from polyadic.data.folders import find_recordings

    try:
        return bool(find_recordings(data, "skip", pattern).files)
    except DataError:
        return False


# --------------------------------------------------------------------------------------------------- description


def describe(windows: Windows, hidden: bool) -> None:
    """Print a table of the classes unless hidden, and notes if there are too few recordings, subjects or classes."""
    import numpy as np

    codes = np.bincount(windows.label[windows.label >= 0], minlength=len(windows.classes))
    counts = dict(zip(windows.classes, codes.tolist(), strict=True))
    labelled, unlabelled = sum(counts.values()), int((windows.label < 0).sum())
    if labelled and not hidden:
        rows = {**counts, **({"(no label)": unlabelled} if unlabelled else {})}
        cells = [(name, f"{count:,}", f"{100 * count / len(windows):.1f}") for name, count in rows.items()]
        print_table(("class", "windows", "%"), cells, err=True)
    names = [name for name, count in counts.items() if count]
    notes = scarcities(len(set(windows.recording.tolist()) - {""}), windows.index.n_subjects, names)
    if len(names) < len(counts):
        absent = " or ".join(repr(name) for name, count in counts.items() if not count)
        notes.append(f"No window has the class {absent}: scores are without it.")
    if hidden and labelled and unlabelled:
        have = "have" if unlabelled != 1 else "has"
        notes.append(f'{counted(unlabelled, "window")} {have} no label ("", None, NaN or -1).')
    print_notes(*notes, *_subject_notes(windows, names))


def scarcities(recordings: int, subjects: int, classes: Sequence[str]) -> list[str]:
    """Return notes on the consequences if there is only one recording, subject or class."""
    only = {
        "recording: the model may not generalise to others": recordings,
        "subject: evaluate needs at least two, to test on subjects that the model has not seen": subjects,
        f"class, {''.join(classes[:1])!r}: a probe needs at least two": len(classes),
    }
    return [f"There is only one {what}." for what, count in only.items() if count == 1]


def _subject_notes(windows: Windows, names: Sequence[str]) -> list[str]:
    """Return notes if every file is taken as a subject, or if a subject has one class or a class one subject only."""
    from polyadic.data.subjects import note_on_files

    notes = list(filter(None, [note_on_files(windows.index)]))
    known = (windows.label >= 0) & (windows.subject != "")
    pairs = set(zip(windows.label[known].tolist(), windows.subject[known].tolist(), strict=True))
    classes, subjects = (Counter(pair[place] for pair in pairs) for place in (0, 1))
    if len(pairs) == len(subjects) > 1 and len(classes) > 1:
        notes.append(
            f"Every subject ({windows.index.describe_subjects()}) has windows of one class only, so scores may tell "
            "subjects apart instead of classes. If these are not the subjects, set them with --subject."
        )
    rare = [windows.classes[label] for label, count in sorted(classes.items()) if count == 1 and len(subjects) > 1]
    for name in rare[:_NAMED]:
        # "stage 3" is not a typo of "stage 4".
        others = [other for other in names if other not in rare and re.sub(r"\D", "", name) == re.sub(r"\D", "", other)]
        notes.append(f"Class {name!r} has labels of one subject only, so it cannot be tested on other subjects.")
        for close in difflib.get_close_matches(name, others, 1):
            notes[-1] += f" Did you mean {close!r}? --class {shlex.quote(f'{close}={close}|{name}')} merges them."
    return notes
