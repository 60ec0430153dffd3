"""Windows on disk: a folder that is written once, recording by recording, and read batch by batch.

    samples.npy    (N, channels, time) float32, NaN where samples are missing; memory-mapped
    index.npz      recording (place in the list of recordings), first sample and label of each window, (N,) each
    store.json     sampling rate, channels, recordings, and the SHA-256 of the other two files

A store is written to a hidden folder next to its path, which is renamed once it is complete.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from polyadic._util.files import digest
from polyadic._util.version import __version__
from polyadic.data.channels import in_units, numbered_channels, unknown_units
from polyadic.data.reading import listed
from polyadic.data.recordings import Recording, cut_recording, observed_windows
from polyadic.data.windows import Index, Windows
from polyadic.errors import DataError, PolyadicError

__all__ = ["Header", "StoreWriter", "WindowStore", "check_new_store", "is_store", "write_windows"]

_VERSION = 3
_SAMPLES, _INDEX, _DESCRIPTION = "samples.npy", "index.npz", "store.json"

_WRITTEN_BYTES = 8 * 2**20
"""Maximum bytes of windows to hold in memory while writing."""
_COMPARED_BYTES = 2**16
"""Bytes of every `_WRITTEN_BYTES` that are hashed to find identical recordings."""
_ALL_MISSING = "all its samples are missing"
"""Reason to skip a recording without any sample."""


@dataclass(frozen=True)
class Header:
    """What all windows of a store have in common; `length` is in samples, `settings` say how they were created."""

    fs: float
    channels: tuple[str, ...]
    units: tuple[str, ...]
    length: int
    classes: tuple[str, ...] = ()
    dataset: str = ""
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def window_bytes(self) -> int:
        return len(self.channels) * self.length * 4


class WindowStore:
    """Windows in a folder, read batch by batch; written by `polyadic prepare` or `polyadic.data.StoreWriter`.

    Parameters
    ----------
    path : folder of the store

    Attributes
    ----------
    samples : (N, channels, time) float32, a memory map
    windows, index : all windows, for selecting and splitting, and the recording, start and label of each
    fs, channels, units, classes, dataset, settings : as for `polyadic.data.Header`
    recordings : name, subject, part, windows, empty windows left out, and quality of each recording
    skipped : files and recordings that were left out, each with the reason
    reading : how the recordings were read, as returned by `polyadic.data.reading.Reading.to_json`; empty if unknown
    notes : notes on how the recordings were read, from the call that wrote the store
    """

    on_disk = True
    dtype = np.dtype(np.float32)

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()  # the working directory may change
        self.notes: tuple[str, ...] = ()
        content = _read_description(self.path)
        values = {item.name: content[item.name] for item in fields(Header)}
        lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        self.header = header = Header(**values | lists)
        self.fs, self.channels, self.units, self.classes = header.fs, header.channels, header.units, header.classes
        self.dataset, self.settings = header.dataset, header.settings
        self.reading: dict[str, Any] = header.settings.get("reading", {})
        self.recordings: list[dict[str, Any]] = content["recordings"]
        self.skipped: list[dict[str, str]] = content["skipped"]
        self.checksum: str = content["checksum"]
        self.shape = (int(content["windows"]), len(header.channels), header.length)
        self._files: dict[str, dict[str, Any]] = content["files"]
        if self._is_damaged(_INDEX):
            raise DataError(f"{_INDEX} of the store {self.path.name} is missing or damaged: prepare the store again")
        tables = ([entry[key] for entry in self.recordings] for key in ("name", "subject", "part", "subject_from"))
        with np.load(self.path / _INDEX) as file:
            columns = [file[name] for name in ("recording", "start", "label")]
        self.index = Index(*columns, *(np.array(table, np.str_) for table in tables))
        samples, size = self.path / _SAMPLES, int(self._files[_SAMPLES]["bytes"])
        if not samples.is_file() or samples.stat().st_size != size:
            raise DataError(f"{_SAMPLES} of the store {self.path.name} must have {size:,} bytes, but is cut or missing")
        head = size - len(self) * header.window_bytes
        self.samples: NDArray[np.float32] = np.memmap(samples, "<f4", "r", head, self.shape)

    def _is_damaged(self, name: str) -> bool:
        path = self.path / name
        return not path.is_file() or digest(path) != self._files[name]["sha256"]

    def verify(self) -> None:
        """Read all files and compare them with their checksums; raise a `DataError` that names damaged ones."""
        damaged = [name for name in self._files if self._is_damaged(name)]
        if damaged:
            raise DataError(
                f"the store {self.path.name} is damaged: the checksums of {', '.join(damaged)} do not match; "
                "prepare it again from the recordings"
            )

    def __len__(self) -> int:
        return self.shape[0]

    def __reduce__(self) -> tuple[Any, tuple[Path]]:
        return WindowStore, (self.path,)  # another process maps the samples itself

    def __repr__(self) -> str:
        size = len(self) * self.header.window_bytes / 2**20
        return f"<WindowStore {self.path.name}: {self.shape}, {self.fs:g} Hz, {size:,.0f} MiB>"

    @property
    def fingerprint(self) -> dict[str, str]:
        return {"store": self.checksum}

    @property
    def windows(self) -> Windows:
        windows = Windows(
            self,
            self.fs,
            index=self.index,
            channels=self.channels,
            units=self.units,
            classes=self.classes,
            dataset=self.dataset,
        )
        windows.reading = self.reading
        return windows

    def read(self, rows: NDArray[np.intp]) -> NDArray[np.float32]:
        """Read windows in physical units, NaN for missing samples: (n, channels, time) float32."""
        return np.asarray(self.samples[np.asarray(rows, np.intp)], np.float32)

    def identical(self) -> list[list[str]]:
        """Return groups of recordings with the same samples, each as a list of names."""
        names: dict[str, list[str]] = {}
        for recording in self.recordings:
            names.setdefault(recording["content"], []).append(recording["name"])
        return [same for same in names.values() if len(same) > 1]

    def quality(self) -> dict[str, dict[str, int]]:
        """Return how many recordings have missing samples or a constant channel, by kind and channel."""
        totals: dict[str, Counter[str]] = {}
        for recording in self.recordings:
            for kind, channels in recording["quality"].items():
                totals.setdefault(kind, Counter()).update(channels.keys())
        return {kind: dict(counts) for kind, counts in totals.items()}


def is_store(folder: Path) -> bool:
    return (folder / _DESCRIPTION).exists()


def _read_description(folder: Path) -> dict[str, Any]:
    path = folder / _DESCRIPTION
    if not path.is_file():
        reason = f"is not a window store: it has no {_DESCRIPTION}" if folder.is_dir() else "does not exist"
        raise DataError(f"the store {folder.name} {reason}")
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
        intact = content["checksum"] == _checksum(content)
    except (ValueError, TypeError, KeyError, RecursionError):
        intact = False
    if not intact:
        raise DataError(f"{_DESCRIPTION} of the store {folder.name} is damaged: prepare the store again")
    if content["version"] != _VERSION:
        raise DataError(
            f"the store {folder.name} was written by polyadic {content['polyadic']} in another format: prepare it again"
        )
    return content


def _checksum(content: dict[str, Any]) -> str:
    plain = {key: value for key, value in content.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


# ------------------------------------------------------------------------------------------------------------- writing


def check_new_store(path: Path, force: bool = False) -> None:
    """Raise if a store cannot be written to this path; `force` allows to replace a store, but nothing else."""
    if path.exists() and not path.is_dir():
        raise PolyadicError(f"path must be a folder for the store, but {path.name} is a file")
    if is_store(path) and not force:
        raise PolyadicError(f"the store {path.name} already exists: use --force to replace it, or another path")
    if path.is_dir() and not is_store(path) and any(path.iterdir()):
        raise PolyadicError(f"path must be a new or empty folder, but {path.name} contains other files")


class StoreWriter:
    """Writer of recordings to a new store.

    Use it in a `with` block; leaving the block without an error completes the store. After an error nothing is left; a
    process that is killed leaves a hidden folder, which the next writer of the same path removes.

    Parameters
    ----------
    path : folder of the store
    header : what all windows have in common
    force : whether to replace an existing store, once the new one is complete

    Attributes
    ----------
    n_windows : number of windows written so far
    notes : notes on units that are unknown on one side and on missing channels, each with the names of the recordings
    """

    def __init__(self, path: str | os.PathLike[str], header: Header, *, force: bool = False) -> None:
        self.path, self.header = Path(path).absolute(), header
        check_new_store(self.path, force)
        self.notes: dict[str, list[str]] = {}
        self._recordings: dict[str, dict[str, Any]] = {}
        self._skipped: dict[str, str] = {}
        self._index: list[tuple[NDArray[Any], ...]] = []
        self.n_windows = 0
        self._folder = self.path.with_name(f".{self.path.name}.writing")
        shutil.rmtree(self._folder, ignore_errors=True)  # from a writer that was killed
        self._folder.mkdir(parents=True)
        self._file = (self._folder / _SAMPLES).open("wb")
        self._head = len(self._npy_head())

    def _npy_head(self) -> bytes:
        """Return the header of `samples.npy`; numpy leaves room for a larger first axis, so that its size is fixed."""
        file, shape = io.BytesIO(), (self.n_windows, len(self.header.channels), self.header.length)
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
        return file.getvalue()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        try:
            if kind is None:
                self._finish()
        except OSError as failed:
            error = failed
            raise
        finally:
            if isinstance(error, OSError):  # a full disk is reported without a name
                error.filename = error.filename or str(self.path)
            with suppress(OSError):  # on a full disk, the buffer cannot be flushed
                self._file.close()
            shutil.rmtree(self._folder, ignore_errors=True)

    def add(self, recording: Recording, starts: NDArray[Any], labels: NDArray[Any], part: str = "") -> int:
        """Write the windows of one recording that begin at `starts`, and return how many have a sample and are written.

        Parameters
        ----------
        starts, labels : (n,), first samples and classes (-1 where unknown)
        part : part of a published split that the recording belongs to
        """
        windows = cut_recording(recording, starts, self.header.length, labels, self.header.classes, part)
        return self.add_windows(windows, recording.name, recording.began)

    def add_windows(self, windows: Windows, name: str | None = None, began: str = "") -> int:
        """Write the windows of one recording, and return how many; those without a sample are left out.

        Channels are matched by name, in any order, and converted to the units of the store. Channels of the store that
        the recording lacks are missing in its windows; channels that the store does not have are left out.

        Parameters
        ----------
        name : name of the recording, if it is another one
        began : start date and time of the recording in ISO 8601
        """
        name = "".join(windows.recording[:1]) if name is None else name
        matched = self._matched(windows, name)
        if not len(windows):
            self.skip(name, "it is shorter than a window")
            return 0
        for what in ("recording", "subject", "part"):
            if len(set(getattr(windows, what).tolist())) != 1:
                raise DataError(f"{name}: windows added in one call must have the same {what}")
        if name in self._recordings:
            raise DataError(f"recordings must have different names, but {name!r} occurs twice")
        source = str(windows.index.subject_sources[windows.index.recording[0]])
        entry = {"name": name, "subject": str(windows.subject[0]), "subject_from": source, "part": str(windows.part[0])}
        return self._write(entry | ({"began": began} if began else {}), matched)

    def _matched(self, windows: Windows, name: str) -> Windows:
        """Return windows with the channels of the store, in its units; channels that they lack are NaN."""
        header, others, fs = self.header, "the recordings before it", windows.fs
        if fs != header.fs:
            raise DataError(
                f"{name} is sampled at {fs or 0:g} Hz, but {others} at {header.fs:g} Hz: --fs "
                f"{min(fs or np.inf, header.fs):g} --resample polyphase resamples all to one rate, or select files "
                "with --pattern"
            )
        names = windows.channels or header.channels
        if windows.shape[1:] != (len(names), header.length):
            raise DataError(
                f"{name}: windows must have {len(names)} channels and {header.length} samples, but have the shape "
                f"{windows.shape}"
            )
        lacking = [channel for channel in header.channels if channel not in names]
        alike = {channel.casefold(): channel for channel in lacking}
        renames = [f"--rename {own}={alike[own.casefold()]}" for own in names if own.casefold() in alike]
        rename = " ".join(renames or ["--rename OLD=NEW"])
        if len(lacking) == len(header.channels):
            raise DataError(
                f"{name} has the channels {listed(names)}, but {others} have {listed(header.channels)}: "
                f"{rename} gives a channel another name, --pattern selects files"
            )
        if windows.channels:
            windows = windows.with_channels(header.channels, missing=True)
        units = [unit if channel in names else "" for channel, unit in zip(header.channels, header.units, strict=True)]
        notes = [unknown_units(windows, units, "", others).removeprefix(": ")]
        if lacking:
            notes.append(f"channels missing: {listed(lacking)}; if a channel only has another name: {rename}")
        windows = in_units(windows, units, name, f"{others} have it in")
        for note in filter(None, notes):
            self.notes.setdefault(note, []).append(name)
        return windows

    def skip(self, name: str, reason: str) -> None:
        """List a file or recording as left out, with the reason."""
        self._skipped[name] = reason

    def _write(self, entry: dict[str, Any], windows: Windows) -> int:
        """Write a recording; if a batch cannot be read, the next recording overwrites what was written."""
        header, name = self.header, entry["name"]
        self._file.seek(self._head + self.n_windows * header.window_bytes)
        content, missing = hashlib.sha256(), np.zeros(len(header.channels), np.int64)
        low, high = np.full((2, len(header.channels)), np.nan)
        columns, count = [], 0
        size = max(1, _WRITTEN_BYTES // header.window_bytes)
        for rows in np.split(np.arange(len(windows)), range(size, len(windows), size)):
            with np.errstate(over="ignore"):
                values = windows.read(rows).astype("<f4", copy=False)
            if np.isinf(values).any():
                raise DataError(f"{name}: samples must be finite or NaN (missing), but some are infinite")
            missing += np.isnan(values).sum(axis=(0, 2))
            low = np.fmin(low, np.fmin.reduce(values, axis=(0, 2)))
            high = np.fmax(high, np.fmax.reduce(values, axis=(0, 2)))
            kept = observed_windows(values)
            samples = values[kept].tobytes()
            self._file.write(samples)
            content.update(samples[:_COMPARED_BYTES])
            columns.append((windows.start[rows[kept]], windows.label[rows[kept]]))
            count += int(kept.sum())
        if not count:
            self.skip(name, _ALL_MISSING)
            return 0
        content.update(count.to_bytes(8, "little"))
        self._index += [
            (np.full(len(start), len(self._recordings), np.int32), start, label) for start, label in columns
        ]
        self.n_windows += count
        faults = {"nan": missing, "flat": np.where(low == high, len(windows) * header.length - missing, 0)}
        quality = {
            kind: {channel: int(many) for channel, many in zip(header.channels, counts, strict=True) if many}
            for kind, counts in faults.items()
            if counts.any()
        }
        counts = {"windows": count, "empty": len(windows) - count, "quality": quality, "content": content.hexdigest()}
        self._recordings[name] = entry | counts
        return count

    def _finish(self) -> None:
        """Write the header of the samples, the index and the description; then rename the folder."""
        if not self._recordings:
            empty = [name for name, reason in self._skipped.items() if reason == _ALL_MISSING]
            why = f" with samples: all samples of {listed(empty)} are missing (empty cells, NaN)"
            shorter = ": choose shorter windows (--seconds)"
            seconds = self.header.length / self.header.fs
            raise DataError(f"no recording has a window of {seconds:g} s{why if empty else shorter}")
        self._file.truncate(self._head + self.n_windows * self.header.window_bytes)
        self._file.seek(0)
        self._file.write(self._npy_head())
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        recording, start, label = (np.concatenate(column) for column in zip(*self._index, strict=True))
        np.savez(self._folder / _INDEX, recording=recording, start=start.astype(np.int64), label=label.astype(np.int32))
        paths = (self._folder / _SAMPLES, self._folder / _INDEX)
        content = {
            "version": _VERSION,
            "polyadic": __version__,
            **asdict(self.header),
            "windows": self.n_windows,
            "recordings": list(self._recordings.values()),
            "skipped": [{"name": name, "reason": reason} for name, reason in self._skipped.items()],
            "files": {path.name: {"bytes": path.stat().st_size, "sha256": digest(path)} for path in paths},
        }
        text = json.dumps(content | {"checksum": _checksum(content)}, indent=1) + "\n"
        (self._folder / _DESCRIPTION).write_text(text, encoding="utf-8")
        replaced = self.path.with_name(f".{self.path.name}.replaced")
        shutil.rmtree(replaced, ignore_errors=True)
        if self.path.exists():  # folders cannot be swapped
            self.path.rename(replaced)
        self._folder.rename(self.path)
        shutil.rmtree(replaced, ignore_errors=True)


def write_windows(windows: Windows, path: str | os.PathLike[str], *, force: bool = False) -> WindowStore:
    """Write windows that are in memory or elsewhere on disk to a store, recording by recording.

    Windows without a recording name get the name of their subject. Windows without any sample are left out. With
    `force`, an existing store is replaced once the new one is complete.
    """
    if not len(windows):
        raise PolyadicError(f"windows must have shape (N, channels, time), but have shape {windows.shape}")
    if windows.fs is None:
        raise PolyadicError("fs must be known for a store: give the sampling rate in Hz")
    _, n_channels, length = windows.shape
    channels, units = windows.channels or numbered_channels(n_channels), windows.units or ("",) * n_channels
    header = Header(windows.fs, channels, units, length, windows.classes, windows.dataset)
    index = windows.index
    names, code = np.unique(np.where(index.names == "", index.subjects, index.names), return_inverse=True)
    order = np.argsort(code[index.recording], kind="stable")
    owner = code[index.recording][order]
    groups = np.split(order, np.flatnonzero(np.diff(owner)) + 1)
    with StoreWriter(path, header, force=force) as writer:
        for rows, name in zip(groups, names[np.unique(owner)].tolist(), strict=True):
            writer.add_windows(windows[rows], name)
    return WindowStore(path)
