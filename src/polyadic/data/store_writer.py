"""Write stores: recordings one by one, or windows that are already cut.

A store is written to a hidden folder next to its path, which is renamed once it is complete.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from polyadic._util.files import LOCKED, digest, lock_folder, sync_folder, write_atomically
from polyadic._util.version import __version__
from polyadic.data.channels import numbered_channels, unit_factors, unknown_units
from polyadic.data.reading import listed, shell_word
from polyadic.data.recordings import Recording, SignalFaults, complete_windows, cut_windows, quality
from polyadic.data.store import DESCRIPTION, INDEX, SAMPLES, TYPES, VERSION, Header, WindowStore, checksum, is_store
from polyadic.data.windows import Windows
from polyadic.errors import DataError, PolyadicError

__all__ = ["OnRecording", "StoreWriter", "check_new_store", "write_windows"]

OnRecording = Callable[[str, int, int, int, int], None]
"""Called after each recording with its name, recordings done, total recordings, windows so far, bytes read so far."""

_LARGEST = float(np.finfo(np.float32).max)
_WRITTEN_BYTES = 8 * 2**20
"""Maximum bytes of windows to hold in memory while writing."""
_COMPARED_BYTES = 2**16
"""Bytes of every `_WRITTEN_BYTES` that are hashed to find identical recordings."""
_MOST_NAMED = 6

_Batch = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]
"""Complete windows (n, channels, time) of a recording, with their starts and labels, (n,) each."""


def check_new_store(path: Path, force: bool = False) -> None:
    """Raise if a store cannot be written to this path; `force` allows to replace a store, but nothing else."""
    if path.exists() and not path.is_dir():
        raise PolyadicError(f"path must be a folder for the store, but {path.name} is a file")
    if is_store(path):
        if not force:
            raise PolyadicError(f"the store {path.name} already exists: use --force to replace it, or another path")
    elif path.is_dir() and any(path.iterdir()):
        raise PolyadicError(f"path must be a new or empty folder, but {path.name} contains other files")


class StoreWriter:
    """Writer of recordings to a new store.

    Use it in a `with` block; leaving the block without an error completes the store. After an error nothing is left; a
    process that is killed leaves a hidden folder, which the next writer of the same path removes.

    Parameters
    ----------
    path : folder of the store
    header : properties that all windows have in common
    force : whether to replace an existing store, once the new one is complete

    Attributes
    ----------
    unit_notes : notes on units that are unknown on one side, each with the names of the recordings
    """

    def __init__(self, path: str | os.PathLike[str], header: Header, *, force: bool = False) -> None:
        self.path, self.header = Path(path).absolute(), header
        check_new_store(self.path, force)
        self._recordings: dict[str, dict[str, Any]] = {}
        self._skipped: dict[str, str] = {}
        self.unit_notes: dict[str, list[str]] = {}
        self._index: list[_Batch] = []
        self._count = 0
        self._head = len(self._npy_head())
        self._folder = self.path.with_name(f".{self.path.name}.writing")
        self._folder.mkdir(parents=True, exist_ok=True)
        self._lock = lock_folder(self._folder)
        if self._lock == LOCKED:
            raise PolyadicError(f"the store {self.path.name} is being written by another process")
        for leftover in self._folder.iterdir():  # from a writer that was killed
            leftover.unlink()
        self._file = (self._folder / SAMPLES).open("wb")

    def _npy_head(self) -> bytes:
        """Return the header of `samples.npy`; numpy leaves room for a larger first axis, so that its size is fixed."""
        file, dtype = io.BytesIO(), TYPES[self.header.dtype].str
        shape = (self._count, len(self.header.channels), self.header.length)
        np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
        return file.getvalue()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        complete = False
        try:
            if kind is None:
                with self._naming_the_store():
                    self._finish()
                    self._publish()
                complete = True
        finally:
            with suppress(OSError):  # on a full disk, the buffer cannot be flushed
                self._file.close()
            if not complete:
                shutil.rmtree(self._folder, ignore_errors=True)
            if self._lock is not None:
                os.close(self._lock)

    @contextmanager
    def _naming_the_store(self) -> Iterator[None]:
        """Give errors of writing, such as a full disk, the name of the store; the system names no file."""
        try:
            yield
        except OSError as error:
            error.filename = error.filename or str(self.path)
            raise

    def add(
        self,
        recording: Recording,
        starts: NDArray[Any],
        labels: NDArray[Any],
        part: str = "",
        *,
        subject_from: str = "",
    ) -> int:
        """Write the windows of one recording that begin at `starts`; windows with missing values are left out.

        Channels are matched by name, in any order, and converted to the units of the store.

        Parameters
        ----------
        starts, labels : (n,), first samples and classes (-1 where unknown)
        part : part of a published split that the recording belongs to
        subject_from : where the subject was found; see `polyadic.data.subjects`

        Returns
        -------
        the number of windows written
        """
        header, length = self.header, self.header.length
        if recording.channels != header.channels and set(recording.channels) == set(header.channels):
            recording = recording.with_channels([recording.channels.index(channel) for channel in header.channels])
        if recording.channels == header.channels:
            recording = self._in_units(recording)
        if len(labels) != len(starts):
            raise DataError(f"{recording.name}: number of labels must be {len(starts)}, but is {len(labels)}")
        self._check(recording.name, labels, recording, str(recording.signal.dtype))
        last = recording.signal.shape[1] - length
        if len(starts) and not (starts.min() >= 0 and starts.max() <= last):
            raise DataError(
                f"{recording.name}: windows must begin between samples 0 and {last}, but begin at {starts.min()} to "
                f"{starts.max()}"
            )
        if not (np.abs([recording.scale, recording.offset]) <= _LARGEST).all():
            raise DataError(f"{recording.name}: scale and offset must be at most {_LARGEST:g}")
        entry = {
            "name": recording.name,
            "subject": recording.subject,
            "subject_from": subject_from,
            "part": part,
            "incomplete": 0,
            "scale": recording.scale.tolist(),
            "offset": recording.offset.tolist(),
            "quality": quality(recording),
            **({"rates": list(recording.rates)} if recording.rates else {}),
            **({"began": recording.began} if recording.began else {}),
        }
        return self._write(entry, self._cut_batches(recording, np.asarray(starts, np.int64), labels, entry))

    def add_windows(self, windows: Windows, name: str | None = None) -> int:
        """Write the windows of one recording, already cut, batch by batch; windows with missing values are left out.

        Parameters
        ----------
        name : name of the recording, in place of the name in the windows

        Returns
        -------
        the number of windows written
        """
        if not len(windows):
            raise DataError("windows of a recording must have at least one window, but are empty")
        header, name = self.header, str(windows.recording[0]) if name is None else name
        for what in ("recording", "subject", "part"):
            if len(set(getattr(windows, what).tolist())) > 1:
                raise DataError(f"{name}: windows added in one call must have the same {what}")
        if windows.shape[1:] != (len(header.channels), header.length):
            shape = (len(header.channels), header.length)
            raise DataError(f"{name}: shape must be {shape} as in the store, but is {windows.shape[1:]}")
        self._check(name, windows.label, windows, "int16" if windows.dtype == np.int16 else "float32")
        entry: dict[str, Any] = {
            "name": name,
            "subject": str(windows.subject[0]),
            "subject_from": str(windows.index.subject_sources[windows.index.recording[0]]),
            "part": str(windows.part[0]),
            "scale": [1.0] * len(header.channels),
            "offset": [0.0] * len(header.channels),
        }
        return self._write(entry, self._complete_batches(windows, entry))

    def skip(self, name: str, reason: str) -> None:
        """List a file or recording as skipped in the store, with the reason."""
        self._skipped[name] = reason

    def _cut_batches(
        self, recording: Recording, starts: NDArray[np.int64], labels: NDArray[Any], entry: dict[str, Any]
    ) -> Iterator[_Batch]:
        """Yield batches of windows without missing values, read from the recording block by block."""
        length, elapsed = self.header.length, recording.elapsed_samples(starts)
        reach = np.maximum.accumulate(starts)
        room = max(1, _WRITTEN_BYTES // self.header.window_bytes) * length
        first = 0
        while first < len(starts):
            rows = slice(first, max(first + 1, int(np.searchsorted(reach, reach[first] + room))))
            begin, end = int(starts[rows].min()), int(starts[rows].max()) + length
            block, places = recording.part(begin, end), starts[rows] - begin
            complete = complete_windows(block, places, length)
            entry["incomplete"] += int((~complete).sum())
            yield cut_windows(block, places[complete], length), elapsed[rows][complete], labels[rows][complete]
            first = rows.stop

    def _in_units(self, recording: Recording) -> Recording:
        """Convert a recording to the units of the store."""
        units, others = self.header.units, "the recordings before it"
        if recording.units == units:
            return recording
        if note := unknown_units(recording, units, "", others).removeprefix(": "):
            self.unit_notes.setdefault(note, []).append(recording.name)
        factors = unit_factors(recording.name, recording.channels, recording.units, units, f"{others} have it in")
        gains = np.array(factors, np.float64)

        def convert(part: Recording) -> Recording:
            if part.signal.dtype == np.int16:
                return replace(part, units=units, scale=part.scale * gains, offset=part.offset * gains)
            signal = (part.signal * gains[:, None]).astype(np.float32)
            limits = None if part.limits is None else part.limits * gains[:, None]
            return replace(part, units=units, signal=signal, limits=limits)

        return recording.apply(convert)

    def _complete_batches(self, windows: Windows, entry: dict[str, Any]) -> Iterator[_Batch]:
        """Yield batches of windows without missing values; then add the quality of all windows to `entry`."""
        faults, incomplete = SignalFaults(self.header.channels), 0
        size = max(1, _WRITTEN_BYTES // self.header.window_bytes)
        for rows in np.split(np.arange(len(windows)), range(size, len(windows), size)):
            with np.errstate(over="ignore"):
                X = windows.read(rows).astype(TYPES[self.header.dtype])
            faults.update(X.swapaxes(0, 1).reshape(X.shape[1], -1))
            complete = np.isfinite(X).all(axis=(1, 2))
            incomplete += int((~complete).sum())
            yield X[complete], windows.start[rows][complete], windows.label[rows][complete]
        entry |= {"incomplete": incomplete, "quality": faults.counts()}

    def _write(self, entry: dict[str, Any], batches: Iterable[_Batch]) -> int:
        """Write a recording; if a batch cannot be read, the next recording overwrites what was written."""
        self._file.seek(self._head + self._count * self.header.window_bytes)
        content = hashlib.sha256(np.array([entry["scale"], entry["offset"]], "<f8").tobytes())
        columns, count = [], 0
        for windows, starts, labels in batches:
            samples = windows.astype(TYPES[self.header.dtype], copy=False).tobytes()
            with self._naming_the_store():
                self._file.write(samples)
            content.update(samples[:_COMPARED_BYTES])
            columns.append((np.full(len(windows), len(self._recordings), np.int32), starts, labels))
            count += len(windows)
        if not count:
            self.skip(entry["name"], "it has no complete window")
            return 0
        content.update(count.to_bytes(8, "little"))
        self._index += columns
        self._count += count
        self._recordings[entry["name"]] = {**entry, "windows": count, "content": content.hexdigest()}
        return count

    def _check(self, name: str, labels: NDArray[Any], source: Recording | Windows, dtype: str) -> None:
        if name in self._recordings:
            raise DataError(f"recordings must have different names, but {name!r} occurs twice")
        header = self.header
        for what, actual, expected in (
            ("sampling rate", source.fs, header.fs),
            ("channels", source.channels or header.channels, header.channels),
            ("units", source.units or header.units, header.units),
            ("type", dtype, header.dtype),
        ):
            if actual != expected:
                raise DataError(_difference(name, what, actual, expected))
        if len(labels) and not (labels.min() >= -1 and labels.max() < len(header.classes)):
            raise DataError(f"{name}: labels must lie between -1 and {len(header.classes) - 1}")

    def _finish(self) -> None:
        """Write the header of the samples, the index and the description."""
        if not self._recordings:
            seconds = self.header.length / self.header.fs
            raise DataError(
                f"no recording has a complete window of {seconds:g} s, so the store would be empty: choose shorter "
                "windows (--seconds)"
            )
        self._file.truncate(self._head + self._count * self.header.window_bytes)
        self._file.seek(0)
        self._file.write(self._npy_head())
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        recording, start, label = (np.concatenate(column) for column in zip(*self._index, strict=True))
        table = io.BytesIO()
        np.savez(table, recording=recording, start=start.astype(np.int64), label=label.astype(np.int32))
        write_atomically(self._folder / INDEX, table.getvalue())
        paths = (self._folder / SAMPLES, self._folder / INDEX)
        content = {
            "version": VERSION,
            "polyadic": __version__,
            **asdict(self.header),
            "windows": len(recording),
            "recordings": list(self._recordings.values()),
            "skipped": [{"name": name, "reason": reason} for name, reason in self._skipped.items()],
            "files": {path.name: {"bytes": path.stat().st_size, "sha256": digest(path)} for path in paths},
        }
        text = json.dumps(content | {"checksum": checksum(content)}, indent=1) + "\n"
        write_atomically(self._folder / DESCRIPTION, text.encode())
        sync_folder(self._folder)

    def _publish(self) -> None:
        """Rename the complete folder, after moving aside a store that it replaces: folders cannot be swapped."""
        replaced = self.path.with_name(f".{self.path.name}.replaced")
        if self.path.exists():
            shutil.rmtree(replaced, ignore_errors=True)
            self.path.rename(replaced)
        self._folder.rename(self.path)
        sync_folder(self.path.parent)
        shutil.rmtree(replaced, ignore_errors=True)


def _difference(name: str, what: str, actual: Any, expected: Any) -> str:
    """Return how a recording differs from those before it, and what to do."""
    if what == "sampling rate" and actual is not None:
        return (
            f"{name} is sampled at {actual:g} Hz, but the recordings before it at {expected:g} Hz: --fs "
            f"{min(actual, expected):g} --resample polyphase resamples all to one rate, or select files with --pattern"
        )
    if what != "channels":
        return f"{name}: {what} must be {expected!r} as in the store, but is {actual!r}"
    common = [channel for channel in expected if channel in actual]
    options = " ".join(f"--channel {shell_word(channel)}" for channel in common[:_MOST_NAMED])
    more = " …" if len(common) > _MOST_NAMED else ""
    remedy = f"{options}{more} selects the common ones" if common else "they have no channel in common"
    alike = {new.casefold(): new for new in expected if new not in actual}
    renames = [
        f"--rename {shell_word(old)}={shell_word(alike[old.casefold()])}" for old in actual if old.casefold() in alike
    ]
    remedy += f", {' '.join(renames or ['--rename OLD=NEW'])} gives a channel another name"
    return (
        f"{name} has the channels {listed(actual)}, but the recordings before it have {listed(expected)}: {remedy}, "
        "or select files with --pattern"
    )


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
    index = windows.index
    # By name: concatenated windows may have the same recording several times in their tables.
    keys = np.where(index.names == "", index.subjects, index.names)
    code = np.unique(keys, return_inverse=True)[1][index.recording]
    order = np.argsort(code, kind="stable")
    groups = [windows[rows] for rows in np.split(order, np.flatnonzero(np.diff(code[order])) + 1)]
    count = 0
    with StoreWriter(path, header, force=force) as writer:
        for number, group in enumerate(groups):
            name = str(group.recording[0]) or str(group.subject[0])
            count += writer.add_windows(group, name)
            if progress is not None:
                progress(name, number + 1, len(groups), count, count * header.window_bytes)
    return WindowStore(path)
