"""Cut the recordings of a folder into windows, and write them to a store; classes come from the annotations."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from polyadic.data.annotations import is_moment, label_windows, scored_phase
from polyadic.data.channels import split_unit
from polyadic.data.loading import FolderReader, OnError
from polyadic.data.readers.tables import (
    check_signals,
    choose_columns,
    recordings_in,
    time_column,
    typed_frame,
    unlike_signals,
)
from polyadic.data.reading import Reading, close_match, listed, takes_reading_options
from polyadic.data.recordings import Recording, cut_recording, observed_windows, window_starts
from polyadic.data.store import Header, StoreWriter, WindowStore, check_new_store
from polyadic.data.windows import Windows
from polyadic.errors import DataError, PolyadicError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["OnFile", "folder", "windows_of_frame", "write_store"]

OnFile = Callable[[str, int, int], None]
"""Called after each file with its name, the number of files done, and that of all files."""

_MOST_CLASSES = 50
"""Maximum number of annotation texts used as classes, unless classes are given."""

_MOSTLY = 0.5
"""Share of recordings that must have a channel."""

_KEPT_BYTES = 256 * 2**20
"""Maximum size of the tables that are kept in memory from the survey of a folder until their windows are cut."""


@takes_reading_options
def folder(
    root: str | os.PathLike[str],
    store: str | os.PathLike[str],
    *,
    on_error: OnError = "raise",
    force: bool = False,
    progress: OnFile | None = None,
    **options: Any,
) -> WindowStore:
    """Write a store from your own recordings: one file, or all files of a folder in any format that polyadic reads.

    Hidden files and folders, tables of metadata and files of other formats are skipped and listed in `skipped`; links
    are followed. In a BIDS dataset, the events are the labels.

    Parameters
    ----------
    root : folder of recordings, or one file
    store : folder of the store
    on_error : what to do if a recording cannot be read: "raise", or "skip" it and list it in the store
    force : whether to replace an existing store, once the new one is complete
    progress : called after each file with its name, the number of files done, and that of all files
    """
    return write_store(root, store, Reading(**options), on_error=on_error, force=force, progress=progress)


def write_store(
    root: str | os.PathLike[str],
    store: str | os.PathLike[str],
    reading: Reading,
    *,
    labels: bool = True,
    check_classes: bool = True,
    on_error: OnError = "raise",
    force: bool = False,
    progress: OnFile | None = None,
) -> WindowStore:
    """Write a store of windows that are cut from recordings as a `Reading` describes.

    The store has the channels that at least half of the recordings have, or those of `reading`; where a recording lacks
    one of them, it is missing. With `check_classes`, a class or a channel that no recording has is an error. Other
    parameters are as for `folder`. The `notes` of the store describe how the recordings were read.
    """
    if on_error not in ("raise", "skip"):
        raise PolyadicError(f"on_error must be 'raise' or 'skip', but is {on_error!r}")
    check_new_store(Path(store).absolute(), force)
    reader = FolderReader(root, reading, labels=labels, on_error=on_error)
    survey, loaded = _Survey(reader), dict[Path, list[Recording]]()
    if labels or reading.channels is None or reading.subject_column is not None:
        loaded = survey.read_all()
    channels = survey.choose_channels(reading, check_classes)
    if labels:
        reading = _with_classes(reading, survey, check_classes)
    known = reading if labels else replace(reading, classes={})
    with ExitStack() as stack:
        writer: StoreWriter | None = None
        for number, path in enumerate(reader.files, 1):
            for recording in loaded.pop(path) if path in loaded else reader.load(path):
                # An OSError here, such as a full disk, is not the fault of the recording.
                with reader.skipping(recording.name, PolyadicError):
                    windows = _cut(recording, known, survey.by_moments)
                    if writer is None:  # the first recording sets the sampling rate
                        units = dict(zip(recording.channels, recording.units, strict=True)) | survey.units
                        header = Header(
                            recording.fs,
                            channels,
                            tuple(units.get(channel, "") for channel in channels),
                            windows.shape[2],
                            windows.classes,
                            settings={"reading": reading.to_json()},
                        )
                        writer = stack.enter_context(StoreWriter(store, header, force=force))
                    writer.add_windows(windows, recording.name, recording.began)
            if progress is not None:
                progress(reader.name_of(path), number, len(reader.files))
        if writer is None:
            name, reason = next(iter(reader.skipped.items()))
            if len(reader.files) == 1:
                raise DataError(f"cannot read {name}: {reason}")
            raise DataError(f"none of the {len(reader.files)} recordings can be read; the first, {name}: {reason}")
        for name, reason in (reader.left_out | reader.skipped).items():
            writer.skip(name, reason)
    reader.notes |= writer.notes
    written = WindowStore(store)
    unknown = [] if check_classes else survey.unknown_classes(known)
    written.notes = (*unknown, *survey.sentences(known, written))
    return written


def _place(recording: Recording, reading: Reading) -> tuple[int, NDArray[np.int64]]:
    """Return the length of the windows of a recording in samples, and their first samples: (n,)."""
    length = _samples_in(reading.seconds, recording.fs)
    step = None if reading.stride is None else _samples_in(reading.stride, recording.fs, "--stride")
    phase = scored_phase(recording, length, step) if reading.offset is None else None
    return length, window_starts(recording, length, step, reading.offset, phase)


def _cut(recording: Recording, reading: Reading, by_moments: bool = False) -> Windows:
    """Return the windows of a recording, with their classes."""
    length, starts = _place(recording, reading)
    label = label_windows(recording, starts, length, reading.class_numbers, reading.min_share, by_moments=by_moments)
    return cut_recording(recording, starts, length, label, tuple(reading.classes))


def _samples_in(seconds: float, fs: float, option: str = "--seconds") -> int:
    samples = round(seconds * fs)
    if not 1 <= samples < 2**31 or abs(samples - seconds * fs) > 1e-6 * samples:
        what = "a window" if option == "--seconds" else "a stride"
        raise PolyadicError(
            f"{what} of {seconds:g} s must have a whole number of samples below 2**31, but does not at {fs:.9g} Hz: "
            f"choose another length ({option}), or give the exact sampling rate (--fs)"
        )
    return samples


def windows_of_frame(
    frame: pd.DataFrame,
    reading: Reading,
    label: str | None = None,
    subject: str | None = None,
    recording: str | None = None,
) -> Windows:
    """Cut windows from a data frame with one row per sample; see `Windows.from_dataframe`."""
    import pandas as pd

    if isinstance(frame.index, pd.DatetimeIndex | pd.TimedeltaIndex) and reading.time is None:
        frame = frame.reset_index(names="time")
    file, heads, by = "the data frame", tuple(map(str, frame.columns)), recording or subject
    time = reading.time or time_column(heads)
    reading = replace(reading, time=None if time in (reading.channels or ()) else time)
    frame = frame.set_axis(heads, axis=1)
    if reading.time in heads and frame[reading.time].dtype.kind == "m":
        frame = frame.assign(**{str(reading.time): frame[reading.time].dt.total_seconds()})
    named = {"label": label, "subject": subject, "recording": recording, "time": reading.time}
    wanted = choose_columns(file, heads, reading.channels, named)
    if wanted is not None and len(wanted) < len(reading.channels or ()):
        raise DataError(f"{file} must have the channels {listed(reading.channels or ())}, but has {listed(heads)}")
    texts = {column for column in named.values() if column is not None}
    if wanted is None:
        looks = unlike_signals(frame, texts)
        if label is not None:  # what has words is no second label
            looks = dict.fromkeys(looks, ("--subject", "a label or a name"))
        check_signals(looks, file, python=True)
    table = typed_frame(frame, file, texts, wanted)
    signals = wanted or tuple(name for name in table.columns if name not in texts)
    pieces = recordings_in(table, replace(reading, channels=signals, label=label), file, "", by)
    labels = {one.text: [one.text] for piece in pieces for one in piece.annotations}
    cut = [_cut(piece, replace(reading, classes=labels)) for piece in pieces]
    X = np.concatenate([windows.X for windows in cut])
    kept, owner = observed_windows(X), np.repeat(np.arange(len(cut)), [len(windows) for windows in cut])
    if not kept.any():
        raise DataError(f"no recording has a window of {reading.seconds:g} s with samples: choose a shorter one")
    owners = {} if by is None or subject is None else table.groupby(by)[subject].unique().to_dict()
    for name, people in owners.items():
        if len(people) > 1:
            raise PolyadicError(f"a recording must have one subject, but {name!r} has {listed(people)}")
    names = np.array([piece.subject for piece in pieces])
    start, code = (np.concatenate([getattr(windows, what) for windows in cut]) for what in ("start", "label"))
    return Windows(
        X[kept],
        pieces[0].fs,
        subject=np.array([owners.get(name, [""])[0] for name in names])[owner[kept]],
        recording=names[owner[kept]],
        start=start[kept],
        label=None if label is None else np.array([*labels, ""])[code[kept]],
        channels=pieces[0].channels,
        units=pieces[0].units if any(pieces[0].units) else (),
    )


# -------------------------------------------------------------------------------------------------------------- survey


@dataclass
class _Survey:
    """Channels and annotations of the recordings of a folder, collected before their samples are read.

    recordings : number of recordings
    channels : number of recordings that have each channel
    units : first known unit of each channel
    covering : number of windows that each annotation text covers
    marking : for each annotation text without duration, the number of windows in which it is the most frequent one
    moments : for each annotation text without duration, the maximum number of occurrences in a recording
    lasting : texts of annotations with a duration that may be classes
    """

    reader: FolderReader
    recordings: int = 0
    channels: Counter[str] = field(default_factory=Counter)
    units: dict[str, str] = field(default_factory=dict)
    covering: Counter[str] = field(default_factory=Counter)
    marking: Counter[str] = field(default_factory=Counter)
    moments: dict[str, int] = field(default_factory=dict)
    lasting: set[str] = field(default_factory=set)

    def read_all(self) -> dict[Path, list[Recording]]:
        """Add all recordings, and return those that are in memory by file, as long as there is room for them."""
        kept, room = {}, float(_KEPT_BYTES)
        for path in self.reader.files:
            found = self.reader.load(path)
            with self.reader.skipping(self.reader.name_of(path), PolyadicError):
                for recording in found:
                    self.add(recording)
            signals = [recording.signal for recording in found]
            size = sum(signal.nbytes if isinstance(signal, np.ndarray) else np.inf for signal in signals)
            if size <= room:
                kept[path] = found
                room -= size
        return kept

    def add(self, recording: Recording) -> None:
        """Add one recording, and its annotations if labels are read."""
        reading = self.reader.reading
        if not self.channels or self.channels.keys() & set(recording.channels):
            self.recordings += 1
            self.channels.update(recording.channels)
            for channel, unit in zip(recording.channels, recording.units, strict=True):
                self.units[channel] = self.units.get(channel) or unit
        texts = dict.fromkeys(one.text for one in recording.annotations)
        if not texts or not self.reader.labels:
            return
        length, starts = _place(recording, reading)
        label = partial(label_windows, recording, starts, length, min_share=reading.min_share)
        moments = Counter(one.text for one in recording.annotations if is_moment(one, recording.fs))
        for text, count in moments.items():
            self.moments[text] = max(count, self.moments.get(text, 0))
        numbers = reading.class_numbers or {text: number for number, text in enumerate(texts)}
        self.lasting |= {
            one.text for one in recording.annotations if not is_moment(one, recording.fs) and one.text in numbers
        }
        marked = label(classes={text: numbers[text] for text in moments if text in numbers}, by_moments=True)
        self.marking.update({text: int((marked == numbers[text]).sum()) for text in moments if text in numbers})
        self.covering.update({text: int((label(classes={text: 0}) == 0).sum()) for text in texts})

    def choose_channels(self, reading: Reading, check: bool) -> tuple[str, ...]:
        """Return the channels of the store: those given, or those that at least half of the recordings have."""
        given = reading.channels or ()
        if self.channels:  # the name of a column may have a unit, which is not part of the channel's name
            given = tuple(name if name in self.channels else split_unit(name)[0] for name in given)
        unknown = [channel for channel in given if self.channels and channel not in self.channels]
        unknown += [old for old, new in reading.rename.items() if not given and new not in self.channels]
        if unknown and check:
            names = self.reader.channels | dict.fromkeys(self.channels)
            raise DataError(
                f"no recording has the channel {listed(unknown)}; there are {listed(names)}"
                f"{close_match(unknown[0], names)}"
            )
        if given:
            return given
        rare = {channel: count for channel, count in self.channels.items() if count < _MOSTLY * self.recordings}
        if rare:
            words = ", ".join(f"{channel!r} ({count} of {self.recordings})" for channel, count in rare.items())
            self.reader.note(f"channels that most recordings lack: {words}", "left out")
        return tuple(channel for channel in self.channels if channel not in rare)

    @property
    def by_moments(self) -> bool:
        """Whether moments label windows, because no annotation that may be a class has a duration."""
        return bool(self.moments) and not self.lasting

    @property
    def n_windows(self) -> Counter[str]:
        """Number of windows that each annotation text labels."""
        return +(self.marking if self.by_moments else self.covering)

    def unknown_classes(self, reading: Reading) -> list[str]:
        """Return a note on the windows of classes that a model does not know."""
        counts = self.n_windows
        unknown = sorted(counts.keys() - reading.class_numbers.keys())
        if not unknown or not reading.classes:
            return []
        windows = sum(counts[text] for text in unknown)
        return [f"classes that the model does not know ({windows:,} windows), so scores are without: {listed(unknown)}"]

    def sentences(self, reading: Reading, store: WindowStore) -> list[str]:
        """Return notes on how the recordings were read."""
        found = []
        for note, files in self.reader.notes.items():
            others = len(files) - 1
            more = f" and {others} other file{'s' * (others != 1)}" if others else ""
            found.append(f"{files[0]}{more}: {note}")
        lost = [] if self.by_moments else sorted(self.lasting - reading.class_numbers.keys())
        if lost and reading.classes:
            found.append(
                f"classes are missing, because no window of {reading.seconds:g} s lies within {listed(lost)}: use "
                "shorter windows (--seconds) or --min-share 0.5"
            )
        named = [text for text in self.moments if text not in self.lasting and text in reading.class_numbers]
        if self.by_moments and reading.classes:
            found.append(
                "annotations have no duration: a window gets the class of most annotations in it. If they mark "
                "intervals, give their durations in a table of onset, duration and label (--scoring)"
            )
        elif self.by_moments:
            once = "annotations without duration that occur once per recording label no window"
            found.append(f"{once}: {listed(self.moments)}. Use --class to make them classes")
        elif named:
            found.append(f"annotations without duration label no window if others have a duration: {listed(named)}")
        found += [f"{listed(names)} are the same recording under several names" for names in store.identical()]
        return found


def _with_classes(reading: Reading, survey: _Survey, check: bool) -> Reading:
    """Return the description with its classes: those given, or the texts that cover windows or recur as moments."""
    if not reading.classes:
        names = sorted(text for text in survey.n_windows if not survey.by_moments or survey.moments[text] > 1)
        if len(names) > _MOST_CLASSES:
            many = f"{len(names)} annotation texts cover windows, too many for classes: select some with --class"
            survey.reader.note(many, "labels are left out")
            return reading
        return replace(reading, classes={name: [name] for name in names})
    if check:
        for name, texts in reading.classes.items():
            absent = [text for text in texts if text not in survey.covering]
            if len(absent) == len(texts):
                there = listed(sorted(survey.covering)) if survey.covering else "no annotations at all"
                raise PolyadicError(
                    f"--class {name!r}: no recording has {' or '.join(map(repr, absent))}; there are {there}"
                    f"{close_match(absent[0], survey.covering)}"
                )
            if absent:
                survey.reader.note(f"no recording has {listed(absent)}", f"class {name!r}")
    return reading
