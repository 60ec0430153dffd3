"""Open the model and the windows of a command: from a store, from arrays, or cut from recordings. Describe them."""

from __future__ import annotations

import re
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyadic._util.terminal import print_notes, print_table
from polyadic.errors import DataError, PolyadicError

if TYPE_CHECKING:
    from polyadic.cli.options import Common
    from polyadic.data import Windows, WindowStore
    from polyadic.data.reading import Reading

_NAMED = 5
"""Maximum number of files with the same reason that are named, and of dead channels."""
_TRIED = 8
_SKIP = "\n(--on-error skip skips such recordings)"


def counted(number: int, what: str) -> str:
    """Return a number with what it counts: "1 window", "2,000 windows"."""
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
    data: Path, common: Common, *, model: Any = None, labels: bool | None = True, compares: bool | None = None
) -> Iterator[Windows]:
    """Open the windows of a path; recordings are cut into a temporary store.

    For a model, recordings are cut as for its fit, options that contradict it are an error, channels are matched by
    name, and units are converted. With `labels=None`, labels are read if there are any; those of --labels take their
    place. A command that compares subjects (by default: one that needs labels) refuses a recording that belongs to two
    of them.
    """
    from polyadic.data.channels import match_signals, unknown_units
    from polyadic.data.splits import refuse_copies

    compares, labels = labels if compares is None else compares, labels if common.labels is None else False
    with tempfile.TemporaryDirectory(prefix="polyadic-") as folder:
        windows = _cut(data, Path(folder), common, model, labels) if are_recordings(data) else _open_cut(data, common)
        if common.labels is not None:
            from polyadic.label.journal import apply_labels

            windows, note = apply_labels(common.labels, windows)
            replaced = common.given.keys() & {"label", "label_from", "scoring", "classes"}
            print_notes(note, f"{common.labels.name} replaces the labels of the recordings" if replaced else "")
        if compares:
            refuse_copies(windows)
        if model is not None:
            units = getattr(model, "units_", ())
            print_notes(unknown_units(windows, units, data.name))
            windows = match_signals(windows, model.fs_, model.channel_names_, data.name, units=units)
        with naming_dead_channels(windows):
            yield windows


def _open_cut(data: Path, common: Common) -> Windows:
    """Open a store or a file of arrays; raise if an option would have no effect."""
    from polyadic.data.folders import ENDINGS
    from polyadic.data.readers.arrays import ARRAYS, open_windows
    from polyadic.data.reading import option_name

    for name in common.given:
        if name != "fs" or data.is_dir():
            raise PolyadicError(
                f"{option_name(name)} is for recordings, but {data.name} already contains windows: leave it out, or "
                "cut the recordings again with it (polyadic prepare folder)"
            )
    if not data.is_dir() and data.suffix.lower() not in ARRAYS:
        windows = ", ".join(ARRAYS)
        raise PolyadicError(f"{data} is neither windows ({windows} or a store) nor a recording ({', '.join(ENDINGS)})")
    return open_windows(data, fs=common.given.get("fs"))


def _cut(data: Path, folder: Path, common: Common, model: Any, labels: bool | None) -> Windows:
    """Cut recordings into a store in a folder, and print notes about them."""
    from polyadic.data.reading import Reading

    reading = Reading(**common.given) if model is None else _reading_for(model, data, common)
    options = {"check_classes": model is None or "classes" in common.given}
    try:
        try:
            store = write_recordings(data, folder / "store", reading, common, labels=labels is not False, **options)
        except PolyadicError as error:
            if labels is not None:
                raise
            store = write_recordings(data, folder / "unlabelled", reading, common, labels=False, **options)
            print_notes(f"read without labels: {str(error).partition(chr(10))[0]}")
    except DataError as error:
        if model is None or "fs" in common.given or " Hz, not " not in str(error):
            raise
        raise DataError(f"{error} (the model was fitted at {model.fs_:g} Hz)") from error
    for reason, names in by_reason({entry["name"]: entry["reason"] for entry in store.skipped}).items():
        rest = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
        print_notes(f"left out {', '.join(names[:_NAMED])}{rest}: {reason}")
    empty = sum(int(entry["empty"]) for entry in store.recordings)
    print_notes(f"left out {counted(empty, 'window')} without any sample" if empty else "")
    print_notes(*store.notes)
    return store.windows


def write_recordings(
    data: Path, store: Path, reading: Reading, common: Common, force: bool = False, **options: Any
) -> WindowStore:
    """Cut recordings into a store, with a progress bar; say how to go on if one of a folder cannot be read."""
    from polyadic._util.progress import stage_bar
    from polyadic.data.cutting import write_store

    with stage_bar("reading", common.hidden, "files") as show:
        try:
            return write_store(
                data,
                store,
                reading,
                on_error=common.on_error,
                force=force,
                progress=lambda name, done, total: show(done, total, name),
                **options,
            )
        except DataError as error:
            if data.is_file() or common.on_error == "skip" or str(error).startswith(("No recordings", "no recording")):
                raise
            skip = _any_can_be_read(data, reading, options.get("labels", True))
            raise DataError(f"{data}: {error}{_SKIP if skip else ''}") from error


def _any_can_be_read(data: Path, reading: Reading, labels: bool) -> bool:
    """Whether one of a few recordings of a folder can be read, so that it helps to skip those that cannot."""
    from polyadic.data.loading import FolderReader

    with suppress(PolyadicError):
        reader = FolderReader(data, reading, labels=labels, on_error="skip")
        return any(reader.load(path) for path in reader.files[:: len(reader.files) // _TRIED + 1])
    return False


def by_reason(reasons: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the names of files by the reason why they are not read, without the file's own name."""
    from polyadic.data.folders import ENDINGS

    endings, files = "|".join(map(re.escape, ENDINGS)), dict[str, list[str]]()
    for name, reason in reasons.items():
        own = f"^{re.escape(Path(name).name)}({endings})?[:,]? "
        files.setdefault(re.sub(own, "", reason, flags=re.IGNORECASE), []).append(name)
    return files


@contextmanager
def naming_dead_channels(windows: Windows) -> Iterator[None]:
    """Print one warning at the end for all channels that count as missing, with the recordings and times of each."""
    import numpy as np

    from polyadic.data.windows import describe_places

    show, rows = warnings.showwarning, dict[str, Any]()

    def collect(message: Any, *where: Any, **more: Any) -> None:
        source: Any = getattr(message, "windows", None)
        if getattr(source, "_samples", None) is windows._samples:
            for channel, places in message.rows.items():
                rows[channel] = np.union1d(rows.get(channel, places[:0]), source.source(places))
        else:
            show(message, *where, **more)

    with warnings.catch_warnings():
        warnings.filterwarnings("always", "dead or stuck")
        warnings.showwarning = collect
        try:
            yield
        finally:
            most = sorted(rows, key=lambda channel: -len(rows[channel]))
            named = [f"{channel}: {describe_places(windows, rows[channel])}" for channel in most[:_NAMED]]
            more = f"; and {counted(len(most) - _NAMED, 'more channel')}" if len(most) > _NAMED else ""
            if rows:
                print_notes(
                    "polyadic: warning: dead or stuck channels, and channels of noise, count as missing: "
                    f"{'; '.join(named)}{more} (fit --keep-flat takes them as they are)"
                )


def _reading_for(model: Any, data: Path, common: Common) -> Reading:
    """Return how to read recordings for a model: in the same way as for the fit."""
    from polyadic.data.channels import numbered_channels
    from polyadic.data.reading import Reading, is_pattern, option_name
    from polyadic.data.subjects import is_simple_pattern

    if model.fs_ is None:
        raise PolyadicError(
            f"cannot cut {data.name} into windows: the model was fitted to arrays without a sampling rate, so the "
            "length of a window is unknown. Write a store with polyadic prepare first"
        )
    stored, given = getattr(model, "reading_", {}), common.given
    known = Reading.from_json(stored) if stored else Reading()
    for name in ("subject", "label_from"):
        pattern = getattr(known, name)
        if name not in given and pattern is not None and is_pattern(pattern) and not is_simple_pattern(pattern):
            raise PolyadicError(
                f"the model was fitted with {option_name(name)} '{pattern}'. A model file may be someone else's, so an "
                "expression with this many repetitions is not run from it: if you trust it, give the option again"
            )
    if not known.classes and hasattr(model, "probe_"):
        known = replace(known, classes={str(name): [str(name)] for name in model.probe_.classes_})
    unnamed = model.channel_names_ in ((), numbered_channels(len(model.channel_names_)))
    known = replace(
        known,
        seconds=model._sample_shape[-1] / model.fs_,
        channels=None if unnamed else model.channel_names_,
        fs=model.fs_,
        pattern=None if "pattern" in given else known.pattern,  # other folders may name their files differently
    )
    return known.with_given(given, "the model", known=bool(stored))


def describe(windows: Windows, hidden: bool) -> None:
    """Print a table of the classes unless hidden, and notes on what makes scores unsound or impossible."""
    import numpy as np
    import pandas as pd

    from polyadic.data.subjects import note_on_files

    frame = pd.DataFrame({"label": np.array([*windows.classes, ""])[windows.label], "subject": windows.subject})
    labelled = frame[windows.label >= 0]
    counts = labelled["label"].value_counts().reindex(list(windows.classes), fill_value=0)
    notes = [note_on_files(windows.index)]
    if len(labelled) and not hidden:
        table = pd.DataFrame({"windows": {**counts, "(no label)": len(frame) - len(labelled)}})
        print_table(table.assign(percent=100 * table["windows"] / len(frame)), err=True)
    if len(labelled) and (absent := counts.index[counts == 0].tolist()):
        notes.append(f"No window has the class {' or '.join(map(repr, absent))}: scores are without it.")
    alike = counts.groupby(counts.index.str.casefold()).size()
    if len(twice := [name for name in counts.index if alike[name.casefold()] > 1]):
        notes.append(f"Classes differ only in capitals: {', '.join(map(repr, twice[:_NAMED]))}.")
    pairs = labelled[labelled["subject"] != ""].drop_duplicates()
    classes, subjects = pairs["label"].value_counts(sort=False), pairs["subject"].value_counts()
    if len(pairs) == len(subjects) > 1 and len(classes) > 1:
        notes.append(
            f"Every subject ({counted(windows.index.n_subjects, 'subject')} from {windows.index.subjects_from}) has "
            "windows of one class only, so scores may tell subjects apart instead of classes. If these are not the "
            "subjects, set them with --subject."
        )
    elif len(subjects) > 1 and (classes == 1).any():
        names = ", ".join(map(repr, classes.index[classes == 1][:_NAMED]))
        notes.append(f"Classes with labels of one subject only cannot be tested on other subjects: {names}.")
    print_notes(*notes)
