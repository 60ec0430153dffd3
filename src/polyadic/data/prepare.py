"""Write recordings to a window store one by one, with a policy for recordings that cannot be read."""

from __future__ import annotations

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
from polyadic.data.store import Header, StoreWriter, WindowStore, check_new_store
from polyadic.data.windows import Windows
from polyadic.errors import DataError, MissingExtraError, PolyadicError

__all__ = ["CutRecording", "OnError", "OnRecording", "PlannedRecording", "StorePlan", "prepare", "write_windows"]

OnError = Literal["raise", "skip"]

OnRecording = Callable[[str, int, int, int, int], None]
"""Called after each recording with its name, recordings done, total recordings, windows so far, bytes read so far."""


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
    """

    name: str
    load: Callable[[], CutRecording]
    bytes: int = 0


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
    force: bool = False,
    progress: OnRecording | None = None,
) -> WindowStore:
    """Write a store.

    Parameters
    ----------
    plan : recordings to write, and how to cut them
    path : folder of the store
    on_error : what to do if a recording cannot be read: "raise", or "skip" it and list it in the store
    force : whether to replace an existing store, once the new one is complete
    progress : called after each recording
    """
    if on_error not in ("raise", "skip"):
        raise PolyadicError(f"on_error must be 'raise' or 'skip', but is {on_error!r}")
    if not plan.recordings:
        raise DataError("no recordings to prepare")
    _check_names([planned.name for planned in plan.recordings])
    check_new_store(Path(path).absolute(), force)
    writer: StoreWriter | None = None
    skipped: list[tuple[str, str]] = list(plan.left_out.items())
    windows = read = 0
    with ExitStack() as stack:
        for number, planned in enumerate(plan.recordings):
            cut = None
            with _note_errors(planned.name, on_error, skipped, PolyadicError, OSError):
                cut = planned.load()
            if cut is not None:
                writer = writer or stack.enter_context(StoreWriter(path, plan.header(cut.recording), force=force))
                # No OSError here: an error in writing, such as a full disk, is not the fault of the recording.
                with _note_errors(planned.name, on_error, skipped, DataError):
                    recording = replace(cut.recording, name=planned.name)
                    windows += writer.add(recording, cut.starts, cut.labels, cut.part, subject_from=cut.subject_from)
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
    return WindowStore(path)


def _check_names(names: list[str]) -> None:
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise DataError(f"recordings must have different names, but {twice[0]!r} occurs twice")


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
    force: bool = False,
    progress: OnRecording | None = None,
) -> WindowStore:
    """Write windows that are in memory or elsewhere on disk to a store, recording by recording.

    Windows without a recording name get the name of their subject.

    Parameters
    ----------
    windows : int16 is stored as int16, everything else as float32; windows with NaN or infinity are left out
    path : folder of the store
    settings : as for `polyadic.data.Header`
    force : whether to replace an existing store, once the new one is complete
    progress : called after each recording
    """
    if not len(windows) or len(windows.shape) != 3:
        raise PolyadicError(f"windows must have shape (N, channels, time), but have shape {windows.shape}")
    if windows.fs is None:
        raise PolyadicError("fs must be known for a store: give the sampling rate in Hz")
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
    count = 0
    with StoreWriter(path, header, force=force) as writer:
        for number, group in enumerate(groups):
            name = str(group.recording[0]) or str(group.subject[0])
            count += writer.add_windows(group, name)
            if progress is not None:
                progress(name, number + 1, len(groups), count, count * header.window_bytes)
    return WindowStore(path)


def _by_recording(windows: Windows) -> list[Windows]:
    """Return the windows of each recording; windows without a recording name are grouped by subject."""
    index = windows.index
    # By name: concatenated windows may have the same recording several times in their tables.
    keys = np.where(index.names == "", index.subjects, index.names)
    code = np.unique(keys, return_inverse=True)[1][index.recording]
    order = np.argsort(code, kind="stable")
    return [windows[rows] for rows in np.split(order, np.flatnonzero(np.diff(code[order])) + 1)]
