"""From recordings to a window store: one after the other, with a policy for damaged ones."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyadic.data.recordings import Recording
from polyadic.data.store import MANIFEST, WRITING, Header, WindowStore
from polyadic.data.windows import Windows
from polyadic.data.writer import StoreWriter
from polyadic.errors import DataError, PolyadicError

__all__ = ["Entry", "OnError", "Piece", "Plan", "Progress", "prepare", "write_windows"]

OnError = Literal["raise", "skip"]

Progress = Callable[[str, int, int, int, int], None]
"""Called after each recording with its name, recordings done, recordings in all, windows so far, bytes read so far."""


class Piece(NamedTuple):
    """A recording with the windows that are wanted of it."""

    recording: Recording
    starts: NDArray[np.int64]
    labels: NDArray[np.int32]
    part: str = ""


@dataclass(frozen=True)
class Entry:
    """A recording still on disk.

    name : the recording's
    load : reads it
    bytes : size of its files
    """

    name: str
    load: Callable[[], Piece]
    bytes: int = 0


@dataclass(frozen=True)
class Plan:
    """Which recordings become which windows; rate, channels, units and type are those of the first good recording.

    entries : the recordings
    length : samples in a window, from the sampling rate
    classes, dataset, settings : as for `polyadic.data.Header`
    """

    entries: Sequence[Entry]
    length: Callable[[float], int]
    classes: tuple[str, ...]
    dataset: str = ""
    settings: dict[str, Any] = field(default_factory=dict)

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
    plan: Plan,
    path: str | os.PathLike[str],
    *,
    on_error: OnError = "raise",
    append: bool = False,
    progress: Progress | None = None,
) -> WindowStore:
    """Write a store, or go on with one that was not finished.

    Parameters
    ----------
    path : folder of the store
    on_error : what to do about a recording that cannot be read: "raise", or "skip" it and note it in the manifest
    append : add recordings that are new to a complete store
    """
    if on_error not in ("raise", "skip"):
        raise PolyadicError(f"on_error must be 'raise' or 'skip', but is {on_error!r}")
    if not plan.entries:
        raise DataError("there are no recordings to prepare")
    _check_names([entry.name for entry in plan.entries])
    _check_target(Path(path), append)
    writer: StoreWriter | None = None
    skipped: list[tuple[str, str]] = []
    windows = read = 0
    with ExitStack() as stack:
        for number, entry in enumerate(plan.entries):
            piece = None
            if writer is None or entry.name not in writer.done:
                with _guarded(entry.name, on_error, skipped, DataError, OSError):
                    piece = entry.load()
            if piece is not None:
                writer = writer or stack.enter_context(StoreWriter(path, plan.header(piece.recording), append=append))
                if entry.name not in writer.done:
                    # A full disk is an OSError, too, but none of the recording's faults.
                    with _guarded(entry.name, on_error, skipped, DataError):
                        windows += writer.add(*_named(piece, entry.name))
            read += entry.bytes
            if progress is not None:
                progress(entry.name, number + 1, len(plan.entries), windows, read)
        if writer is None:
            name, reason = skipped[0]
            raise DataError(f"none of the {len(skipped)} recordings can be read; the first, {name}: {reason}")
        for name, reason in skipped:
            writer.skip(name, reason)
    return WindowStore(path)


def _check_names(names: list[str]) -> None:
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise DataError(f"recordings must have different names, but {twice[0]!r} is there twice")


def _check_target(path: Path, append: bool) -> None:
    """Say at once, before anything is read, that a store is complete."""
    if (path / MANIFEST).exists() and not (path / WRITING).exists() and not append:
        raise PolyadicError(
            f"the store {path.name} is there already and complete: append to it, or choose another path"
        )


@contextmanager
def _guarded(
    name: str, on_error: OnError, skipped: list[tuple[str, str]], *kinds: type[DataError] | type[OSError]
) -> Iterator[None]:
    """Note a recording's fault instead of raising it, if that is wanted."""
    try:
        yield
    except kinds as error:
        if on_error == "raise":
            raise
        skipped.append((name, _reason(error)))


def _reason(error: DataError | OSError) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{Path(str(error.filename)).name}: {error.strerror}"
    return str(error)


def _named(piece: Piece, name: str) -> Piece:
    """A recording under the name it is planned under, by which a writer that goes on knows it."""
    return piece._replace(recording=replace(piece.recording, name=name))


def write_windows(
    windows: Windows,
    path: str | os.PathLike[str],
    *,
    settings: dict[str, Any] | None = None,
    append: bool = False,
    progress: Progress | None = None,
) -> WindowStore:
    """Write windows that are in memory or elsewhere on disk to a store, recording by recording.

    Parameters
    ----------
    windows : int16 is stored as it is, all else as float32; those with NaN or infinity are left out
    path : folder of the store
    """
    if not len(windows) or len(windows.shape) != 3:
        raise PolyadicError(f"windows must have shape (N, channels, time), but have shape {windows.shape}")
    if windows.fs is None:
        raise PolyadicError("fs must be known for a store: give the sampling rate in Hz")
    _check_target(Path(path), append)
    n_channels, length = windows.shape[1], windows.shape[2]
    header = Header(
        fs=windows.fs,
        channels=windows.channels or tuple(f"channel {number + 1}" for number in range(n_channels)),
        units=windows.units or ("",) * n_channels,
        length=length,
        dtype="int16" if windows.dtype == np.int16 else "float32",
        classes=windows.classes,
        dataset=windows.dataset,
        settings=settings or {},
    )
    # By name: windows that were put together may have the same recording several times in their tables.
    code = np.unique(windows.index.names, return_inverse=True)[1][windows.index.recording]
    order = np.argsort(code, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(code[order])) + 1)
    written = 0
    with StoreWriter(path, header, append=append) as writer:
        for number, rows in enumerate(groups):
            group = windows[rows]
            name = str(group.recording[0])
            if name not in writer.done:
                written += writer.add_windows(group)
            if progress is not None:
                progress(name, number + 1, len(groups), written, written * header.window_bytes)
    return WindowStore(path)
