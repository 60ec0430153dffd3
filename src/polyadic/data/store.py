"""Windows on disk: a folder that is written once, recording by recording, and read batch by batch.

    samples.npy    (N, channels, time) float32, NaN where samples are missing; memory-mapped
    index.npz      recording (place in the list of recordings), first sample and label of each window, (N,) each
    store.json     sampling rate, channels, recordings, and the SHA-256 of the other two files

See `polyadic.data.store_writer` for writing.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyadic._util.files import digest
from polyadic.data.windows import Index, Windows
from polyadic.errors import DataError, PolyadicError

__all__ = ["DESCRIPTION", "INDEX", "SAMPLES", "VERSION", "Header", "WindowStore", "checksum", "is_store"]

VERSION = 3
SAMPLES, INDEX, DESCRIPTION = "samples.npy", "index.npz", "store.json"


@dataclass(frozen=True)
class Header:
    """Properties that all windows of a store have in common.

    Parameters
    ----------
    fs : sampling rate in Hz
    channels, units : names, one per channel
    length : samples in a window
    classes : names of the classes
    dataset : name of a published dataset, or ""
    settings : how the windows were created, for the record
    """

    fs: float
    channels: tuple[str, ...]
    units: tuple[str, ...]
    length: int
    classes: tuple[str, ...] = ()
    dataset: str = ""
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.units) != len(self.channels):
            raise PolyadicError(f"units must be one per channel ({len(self.channels)}), but are {len(self.units)}")

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
    shape : (N, channels, time)
    samples : (N, channels, time) float32, a memory map
    index : recording, start, label of each window
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
        values: dict[str, Any] = {item.name: content[item.name] for item in fields(Header)}
        values |= {name: tuple(values[name]) for name in ("channels", "units", "classes")}
        self.header = header = Header(**values)
        self.fs, self.channels, self.units, self.classes = header.fs, header.channels, header.units, header.classes
        self.dataset, self.settings = header.dataset, header.settings
        self.reading: dict[str, Any] = header.settings.get("reading", {})
        self.recordings: list[dict[str, Any]] = content["recordings"]
        self.skipped: list[dict[str, str]] = content["skipped"]
        self.checksum: str = content["checksum"]
        self.shape = (int(content["windows"]), len(header.channels), header.length)
        self._files: dict[str, dict[str, Any]] = content["files"]
        if self._is_damaged(INDEX):
            raise DataError(f"{INDEX} of the store {self.path.name} is missing or damaged: prepare the store again")
        tables = ([entry[key] for entry in self.recordings] for key in ("name", "subject", "part", "subject_from"))
        with np.load(self.path / INDEX) as file:
            columns = [file[name] for name in ("recording", "start", "label")]
        self.index = Index(*columns, *(np.array(table, np.str_) for table in tables))
        samples, size = self.path / SAMPLES, int(self._files[SAMPLES]["bytes"])
        if not samples.is_file() or samples.stat().st_size != size:
            raise DataError(f"{SAMPLES} of the store {self.path.name} must have {size:,} bytes, but is cut or missing")
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
        """Values that identify the windows."""
        return {"store": self.checksum}

    @property
    def windows(self) -> Windows:
        """All windows, for selecting and splitting; samples are read on demand."""
        return Windows.from_index(self, self.index, self)

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
    """Return whether a folder is a store."""
    return (folder / DESCRIPTION).exists()


def _read_description(folder: Path) -> dict[str, Any]:
    path = folder / DESCRIPTION
    if not path.is_file():
        reason = f"is not a window store: it has no {DESCRIPTION}" if folder.is_dir() else "does not exist"
        raise DataError(f"the store {folder.name} {reason}")
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
        intact = content["checksum"] == checksum(content)
    except (ValueError, TypeError, KeyError, RecursionError):
        intact = False
    if not intact:
        raise DataError(f"{DESCRIPTION} of the store {folder.name} is damaged: prepare the store again")
    if content["version"] != VERSION:
        raise DataError(
            f"the store {folder.name} was written by polyadic {content['polyadic']} in another format: prepare it again"
        )
    return content


def checksum(content: dict[str, Any]) -> str:
    """Return the checksum of the description of a store."""
    plain = {key: value for key, value in content.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
