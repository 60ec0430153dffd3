"""Write recordings to a window store one by one, with a policy for recordings that cannot be read."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyadic.data.channels import numbered_channels
from polyadic.data.recordings import Recording
from polyadic.data.store import Added, WindowStore, read_recordings
from polyadic.data.store_files import MANIFEST, WRITING, Header
from polyadic.data.windows import Windows
from polyadic.data.writer import StoreWriter
from polyadic.errors import DataError, MissingExtraError, PolyadicError

__all__ = ["CutRecording", "OnError", "OnRecording", "PlannedRecording", "StorePlan", "prepare", "write_windows"]

OnError = Literal["raise", "skip"]

OnRecording = Callable[[str, int, int, int, int], None]
"""Called after each recording with its name, recordings done, total recordings, windows so far, bytes read so far."""

_SAMPLED_BLOCKS = 16
_SAMPLED_BYTES = 2**16
_SAMPLED_WINDOWS = 64


class CutRecording(NamedTuple):
    """A recording with the starts and labels of the windows to cut from it, and where its subject was found."""

    recording: Recording
    starts: NDArray[np.int64]
    labels: NDArray[np.int32]
    part: str = ""
    subject_from: str = ""


@dataclass(frozen=True)
class PlannedRecording:
    """A recording that is still on disk.

    name : name of the recording
    load : function that reads and cuts it
    bytes : size of its files
    files : files it is read from; their content identifies the recording when a store is resumed or appended to
    """

    name: str
    load: Callable[[], CutRecording]
    bytes: int = 0
    files: tuple[Path, ...] = ()

    def fingerprint(self) -> str:
        """Return a checksum of the sizes and of some blocks of the files, or "" if a file cannot be read."""
        state = hashlib.sha256()
        try:
            for path in self.files:
                for block in _sampled_blocks(path):
                    state.update(block)
        except OSError:
            return ""
        return state.hexdigest() if self.files else ""


def _sampled_blocks(path: Path) -> Iterator[bytes]:
    """Yield the size of a file, and blocks spread from its start to its end, which cover a small file completely."""
    size = path.stat().st_size if path.is_file() else 0
    yield size.to_bytes(8, "little")
    if not size:
        return
    with path.open("rb") as file:
        for place in np.linspace(0, max(0, size - _SAMPLED_BYTES), _SAMPLED_BLOCKS).astype(int).tolist():
            file.seek(place)
            yield file.read(_SAMPLED_BYTES)


@dataclass(frozen=True)
class StorePlan:
    """The recordings of a store; the first one that can be read sets the sampling rate, channels, units and type.

    recordings : recordings to read, in this order
    length : function that converts the sampling rate in Hz to the number of samples in a window
    classes, dataset, settings : as for `polyadic.data.Header`
    left_out : skipped files and folders, with the reason
    """

    recordings: Sequence[PlannedRecording] = field(repr=False)
    length: Callable[[float], int]
    classes: tuple[str, ...]
    dataset: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict, repr=False)

    def header(self, recording: Recording) -> Header:
        return Header(
            fs=recording.fs,
            channels=recording.channels,
            units=recording.units,
            length=self.length(recording.fs),
            dtype="int16" if recording.signal.dtype == np.int16 else "float32",
            classes=self.classes,
            dataset=self.dataset,
            settings=self.settings,
        )


def prepare(
    plan: StorePlan,
    path: str | os.PathLike[str],
    *,
    on_error: OnError = "raise",
    append: bool = False,
    progress: OnRecording | None = None,
) -> WindowStore:
    """Write a store, or resume an unfinished one.

    Parameters
    ----------
    plan : recordings to write, and how to cut them
    path : folder of the store
    on_error : what to do if a recording cannot be read: "raise", or "skip" it and list it in the manifest
    append : whether to add new recordings to a complete store
    progress : called after each recording

    Returns
    -------
    the store; its attribute `added` says how much was added

    Raises
    ------
    DataError : if the store has a different recording of the same name; then nothing is added
    """
    if on_error not in ("raise", "skip"):
        raise PolyadicError(f"on_error must be 'raise' or 'skip', but is {on_error!r}")
    if not plan.recordings:
        raise DataError("no recordings to prepare")
    _check_names([planned.name for planned in plan.recordings])
    target = Path(path).absolute()
    _check_target(target, append)
    present = _present_recordings(plan.recordings, target)
    writer: StoreWriter | None = None
    skipped: list[tuple[str, str]] = list(plan.left_out.items())
    windows = written = read = 0
    with ExitStack() as stack:
        for number, planned in enumerate(plan.recordings):
            cut = None
            if writer is None or planned.name not in writer.done:
                with _note_errors(planned.name, on_error, skipped, PolyadicError, OSError):
                    cut = planned.load()
            if cut is not None:
                writer = writer or stack.enter_context(StoreWriter(target, plan.header(cut.recording), append=append))
                if planned.name not in writer.done:
                    # No OSError here: an error in writing, such as a full disk, is not the fault of the recording.
                    with _note_errors(planned.name, on_error, skipped, DataError):
                        count = _add(writer, cut, planned)
                        windows, written = windows + count, written + (count > 0)
            read += planned.bytes
            if progress is not None:
                progress(planned.name, number + 1, len(plan.recordings), windows, read)
        if writer is None:
            name, reason = skipped[len(plan.left_out)]
            if len(plan.recordings) == 1:
                raise DataError(f"cannot read {name}: {reason}")
            raise DataError(f"none of the {len(plan.recordings)} recordings can be read; the first, {name}: {reason}")
        for name, reason in skipped:
            writer.skip(name, reason)
    return _opened(target, Added(windows, written, len(present)))


def _opened(path: Path, added: Added) -> WindowStore:
    store = WindowStore(path)
    store.added = added
    return store


def _add(writer: StoreWriter, cut: CutRecording, planned: PlannedRecording) -> int:
    """Write a recording under its planned name, by which a resuming writer recognises it."""
    recording = replace(cut.recording, name=planned.name)
    return writer.add(
        recording, cut.starts, cut.labels, cut.part, subject_from=cut.subject_from, source=planned.fingerprint()
    )


def _present_recordings(recordings: Sequence[PlannedRecording], path: Path) -> list[str]:
    """Return the names of planned recordings that are already in the store, after checking that they are the same."""
    known = read_recordings(path)
    present = [planned for planned in recordings if planned.name in known]
    _check_same_content(
        [planned.name for planned in present if known[planned.name].get("source", "") != planned.fingerprint()], path
    )
    return [planned.name for planned in present]


def _check_same_content(clashes: list[str], path: Path) -> None:
    if clashes:
        others = f" (and {len(clashes) - 1} more)" if len(clashes) > 1 else ""
        raise DataError(
            f"recording {clashes[0]!r}{others} is already in the store {path.name}, with different content. Nothing "
            "was added: rename the new files or folders (or, in a file of arrays, the recordings), or prepare a "
            "separate store"
        )


def _check_names(names: list[str]) -> None:
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise DataError(f"recordings must have different names, but {twice[0]!r} occurs twice")


def _check_target(path: Path, append: bool) -> None:
    """Raise before anything is read if the store is already complete."""
    if (path / MANIFEST).exists() and not (path / WRITING).exists() and not append:
        raise PolyadicError(
            f"the store {path.name} already exists and is complete: append to it, or choose another path"
        )


@contextmanager
def _note_errors(
    name: str, on_error: OnError, skipped: list[tuple[str, str]], *kinds: type[PolyadicError] | type[OSError]
) -> Iterator[None]:
    """Add an error to `skipped` instead of raising it, if `on_error` is "skip"."""
    try:
        yield
    except MissingExtraError:  # not the fault of the recording
        raise
    except kinds as error:
        if on_error == "raise":
            raise
        skipped.append((name, _reason(error)))


def _reason(error: PolyadicError | OSError) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{Path(str(error.filename)).name}: {error.strerror}"
    return str(error)


# ------------------------------------------------------------------------------------- windows that are already cut


def write_windows(
    windows: Windows,
    path: str | os.PathLike[str],
    *,
    settings: dict[str, Any] | None = None,
    append: bool = False,
    progress: OnRecording | None = None,
) -> WindowStore:
    """Write windows that are in memory or elsewhere on disk to a store, recording by recording.

    Windows without a recording name get the name of their subject, with a number if the store has a different recording
    of that name.

    Parameters
    ----------
    windows : int16 is stored as int16, everything else as float32; windows with NaN or infinity are left out
    path : folder of the store
    settings : as for `polyadic.data.Header`
    append : whether to add new recordings to a complete store
    progress : called after each recording

    Returns
    -------
    the store; its attribute `added` says how much was added

    Raises
    ------
    DataError : if the store has a different recording of the same name; then nothing is added
    """
    if not len(windows) or len(windows.shape) != 3:
        raise PolyadicError(f"windows must have shape (N, channels, time), but have shape {windows.shape}")
    if windows.fs is None:
        raise PolyadicError("fs must be known for a store: give the sampling rate in Hz")
    target = Path(path).absolute()
    _check_target(target, append)
    n_channels, length = windows.shape[1], windows.shape[2]
    header = Header(
        fs=windows.fs,
        channels=windows.channels or numbered_channels(n_channels),
        units=windows.units or ("",) * n_channels,
        length=length,
        dtype="int16" if windows.dtype == np.int16 else "float32",
        classes=windows.classes,
        dataset=windows.dataset,
        settings=settings or {},
    )
    groups = _by_recording(windows)
    names, present = _names_in_store(groups, target)
    count = written = 0
    with StoreWriter(target, header, append=append) as writer:
        for number, (group, name) in enumerate(zip(groups, names, strict=True)):
            if name not in writer.done:
                added = writer.add_windows(group, name, source=_content_fingerprint(group))
                count, written = count + added, written + (added > 0)
            if progress is not None:
                progress(name, number + 1, len(groups), count, count * header.window_bytes)
    return _opened(target, Added(count, written, present))


def _by_recording(windows: Windows) -> list[Windows]:
    """Return the windows of each recording; windows without a recording name are grouped by subject."""
    index = windows.index
    # By name: concatenated windows may have the same recording several times in their tables.
    keys = np.where(index.names == "", index.subjects, index.names)
    code = np.unique(keys, return_inverse=True)[1][index.recording]
    order = np.argsort(code, kind="stable")
    return [windows[rows] for rows in np.split(order, np.flatnonzero(np.diff(code[order])) + 1)]


def _names_in_store(groups: list[Windows], path: Path) -> tuple[list[str], int]:
    """Return the name of each group in the store, and how many of the groups are already in it."""
    known = {name: str(entry.get("source", "")) for name, entry in read_recordings(path).items()}
    names, clashes, present = [], [], 0
    for group in groups:
        name, subject = str(group.recording[0]), str(group.subject[0])
        own = name if name != "" else subject
        content = _content_fingerprint(group) if own in known else ""
        if own in known and own == subject:  # named after its subject
            own = _numbered_name(own, content, known)
        if own in known and known[own] != content:
            clashes.append(own)
        present += own in known
        names.append(own)
    _check_same_content(clashes, path)
    return names, present


def _numbered_name(name: str, content: str, known: dict[str, str]) -> str:
    """Return the name under which the store has this content, or the first free name: "S01", "S01 (2)", "S01 (3)"…"""
    candidate, number = name, 1
    while candidate in known and known[candidate] != content:
        number += 1
        candidate = f"{name} ({number})".strip()
    return candidate


def _content_fingerprint(group: Windows) -> str:
    """Return a checksum of the starts, the labels and some windows of a recording."""
    state = hashlib.sha256(np.array(group.shape, "<i8").tobytes())
    for column in (group.start, group.label):
        state.update(np.ascontiguousarray(column, "<i8").tobytes())
    rows = np.unique(np.linspace(0, len(group) - 1, _SAMPLED_WINDOWS).astype(np.intp))
    with np.errstate(over="ignore"):
        sampled = np.ascontiguousarray(group.read(rows), "<i2" if group.dtype == np.int16 else "<f4")
    state.update(sampled.tobytes())
    return state.hexdigest()
