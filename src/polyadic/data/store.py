"""Windows on disk: a folder that is written once, recording by recording, and read batch by batch.

    samples.npy    (N, channels, time), int16 digits or float32 values; memory-mapped
    index.npz      recording (place in the list of recordings), first sample and label of each window, (N,) each
    store.json     sampling rate, channels, recordings with their scales, and the SHA-256 of the other two files

See `polyadic.data.store_writer` for writing.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from polyadic._util.files import check_regular_file, digest
from polyadic.data.windows import Index, Windows
from polyadic.errors import DataError, PolyadicError

__all__ = ["DESCRIPTION", "INDEX", "SAMPLES", "TYPES", "VERSION", "Header", "WindowStore", "checksum", "is_store"]

VERSION = 2
SAMPLES, INDEX, DESCRIPTION = "samples.npy", "index.npz", "store.json"
TYPES: dict[str, np.dtype[Any]] = {"int16": np.dtype("<i2"), "float32": np.dtype("<f4")}
_BLOCK_BYTES, _BUFFER_BYTES = 128 * 2**20, 256 * 2**20
"""With shuffle="block": bytes of a block of windows, and of the blocks that are shuffled together."""

_Rows = NDArray[np.intp]


@dataclass(frozen=True)
class Header:
    """Properties that all windows of a store have in common.

    Parameters
    ----------
    fs : sampling rate in Hz
    channels, units : names, one per channel
    length : samples in a window
    dtype : "int16" for digital values, with a scale and an offset per channel and recording, or "float32" for values
    classes : names of the classes
    dataset : name of a published dataset, or ""
    settings : how the windows were created, for the record
    """

    fs: float
    channels: tuple[str, ...]
    units: tuple[str, ...]
    length: int
    dtype: Literal["int16", "float32"]
    classes: tuple[str, ...] = ()
    dataset: str = ""
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.dtype not in TYPES:
            raise PolyadicError(f"dtype must be one of {', '.join(TYPES)}, but is {self.dtype!r}")
        if len(self.units) != len(self.channels):
            raise PolyadicError(f"units must be one per channel ({len(self.channels)}), but are {len(self.units)}")

    @property
    def window_bytes(self) -> int:
        return len(self.channels) * self.length * TYPES[self.dtype].itemsize


class WindowStore:
    """Windows in a folder, read batch by batch; written by `polyadic prepare` or `polyadic.data.StoreWriter`.

    Parameters
    ----------
    path : folder of the store
    shuffle : "full" allows any order of the windows in a sweep; "block" shuffles within 256 MiB, for disks with slow
        random access

    Attributes
    ----------
    shape : (N, channels, time)
    samples : (N, channels, time), a memory map of the samples as stored
    index : recording, start, label of each window
    fs, channels, units, classes, dataset, settings : as for `polyadic.data.Header`
    recordings : name, subject, part, windows, scale, offset and quality of each recording
    skipped : files and recordings that were left out, each with the reason
    reading : how the recordings were read, as returned by `polyadic.data.reading.Reading.to_json`; empty if unknown
    notes : notes on how the recordings were read, from the call that wrote the store
    """

    on_disk = True
    dtype = np.dtype(np.float32)

    def __init__(self, path: str | os.PathLike[str], *, shuffle: Literal["full", "block"] = "full") -> None:
        if shuffle not in ("full", "block"):
            raise PolyadicError(f"shuffle must be 'full' or 'block', but is {shuffle!r}")
        self.path, self.shuffle = Path(path).absolute(), shuffle  # the working directory may change
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
        self._files: dict[str, dict[str, Any]] = content["files"]
        self.shape = (int(content["windows"]), len(header.channels), header.length)
        if not self._is_intact(INDEX):
            raise DataError(f"{INDEX} of the store {self.path.name} is missing or damaged: prepare the store again")
        tables = (
            np.array([str(recording[key]) for recording in self.recordings], np.str_)
            for key in ("name", "subject", "part", "subject_from")
        )
        with np.load(self.path / INDEX) as columns:
            self.index = Index(columns["recording"], columns["start"], columns["label"], *tables)
        self.samples = self._map_samples()
        self._scale, self._offset = (
            np.array([recording[key] for recording in self.recordings], np.float32)[:, :, None]
            for key in ("scale", "offset")
        )
        self._prefetched: set[int] = set()

    def _map_samples(self) -> NDArray[Any]:
        path, size = self.path / SAMPLES, int(self._files[SAMPLES]["bytes"])
        check_regular_file(path)
        actual = f"has {path.stat().st_size:,}" if path.exists() else "is missing"
        if actual != f"has {size:,}":
            raise DataError(f"{SAMPLES} of the store {self.path.name} must have {size:,} bytes, but {actual}")
        offset = size - len(self) * self.header.window_bytes
        return np.memmap(path, TYPES[self.header.dtype], "r", offset, self.shape)

    def _is_intact(self, name: str) -> bool:
        path = self.path / name
        check_regular_file(path)
        return path.exists() and digest(path) == self._files[name]["sha256"]

    def verify(self) -> None:
        """Read all files and compare them with their checksums.

        Raises
        ------
        DataError : if files are damaged; the message names all of them
        """
        damaged = [name for name in self._files if not self._is_intact(name)]
        if damaged:
            raise DataError(
                f"the store {self.path.name} is damaged: the checksums of {', '.join(damaged)} do not match; "
                "prepare it again from the recordings"
            )

    def __len__(self) -> int:
        return self.shape[0]

    def __reduce__(self) -> tuple[Any, tuple[Path]]:
        return partial(WindowStore, shuffle=self.shuffle), (self.path,)  # another process maps the samples itself

    def __repr__(self) -> str:
        size = len(self) * self.header.window_bytes / 2**20
        return f"<WindowStore {self.path.name}: {self.shape} {self.header.dtype}, {self.fs:g} Hz, {size:,.0f} MiB>"

    @property
    def fingerprint(self) -> dict[str, str]:
        """Values that identify the windows and the order in which a fit visits them."""
        return {"store": self.checksum, "shuffle": self.shuffle}

    @property
    def windows(self) -> Windows:
        """All windows, for selecting and splitting; samples are read on demand."""
        return Windows.from_index(self, self.index, self)

    # ----------------------------------------------------------------- reading

    def raw(self, rows: _Rows) -> tuple[NDArray[Any], NDArray[np.float32] | None, NDArray[np.float32] | None]:
        """Read windows as stored, and the scale and offset in value = stored · scale + offset.

        Returns
        -------
        windows (n, channels, time); scale and offset (n, channels, 1), or None if the values themselves are stored
        """
        rows = np.asarray(rows, np.intp)
        if self.shuffle == "block":
            self._prefetch(rows)
        digits = np.asarray(self.samples[rows])
        if self.header.dtype == "float32":
            return digits, None, None
        recording = self.index.recording[rows]
        return digits, self._scale[recording], self._offset[recording]

    def read(self, rows: _Rows) -> NDArray[np.float32]:
        """Read windows in physical units: (n, channels, time) float32."""
        digits, scale, offset = self.raw(rows)
        values = digits.astype(np.float32, copy=False)
        if scale is not None and offset is not None:
            # One product and one sum, each rounded once, as in `polyadic.data.batches.Samples`, so that fits to the
            # store and to this array are bit-identical.
            values *= scale
            values += offset
        return values

    def order(self, seed: int, sweep: int) -> _Rows | None:
        """Return the order in which a sweep visits the windows if shuffle="block", or None if any order is allowed."""
        if self.shuffle == "full":
            return None
        from polyadic._util.random_streams import block_permutation  # imports torch, which reading does not need

        whole, rest = divmod(len(self), self._block_rows)
        sizes = [self._block_rows] * whole + [rest] * (rest > 0)
        return block_permutation(sizes, max(1, _BUFFER_BYTES // self.header.window_bytes), seed, sweep).numpy()

    @property
    def _block_rows(self) -> int:
        return max(1, _BLOCK_BYTES // self.header.window_bytes)

    def _prefetch(self, rows: _Rows) -> None:
        """Ask the operating system to read the blocks of these rows, except those that the previous batch needed."""
        blocks = set((rows // self._block_rows).tolist())
        if not blocks <= self._prefetched and hasattr(os, "posix_fadvise"):
            size = self._block_rows * self.header.window_bytes
            with (self.path / SAMPLES).open("rb") as file:
                for block in blocks - self._prefetched:
                    os.posix_fadvise(file.fileno(), block * size, size, os.POSIX_FADV_WILLNEED)
        self._prefetched = blocks

    # ------------------------------------------------------------ of the recordings

    def identical(self) -> list[list[str]]:
        """Return groups of recordings with the same samples, each as a list of names."""
        names: dict[str, list[str]] = {}
        for recording in self.recordings:
            names.setdefault(recording["content"], []).append(recording["name"])
        return [same for same in names.values() if len(same) > 1]

    def quality(self) -> dict[str, dict[str, int]]:
        """Return how many recordings have missing, flat or clipped samples, by kind and channel."""
        totals: dict[str, Counter[str]] = {}
        for recording in self.recordings:
            for kind, channels in recording["quality"].items():
                totals.setdefault(kind, Counter()).update(channels.keys())
        return {kind: dict(counts) for kind, counts in totals.items()}

    def recorded_rates(self) -> dict[str, dict[str, int]]:
        """Return the original sampling rates of resampled channels: by channel, the number of recordings per rate."""
        totals: dict[str, Counter[str]] = {}
        for recording in self.recordings:
            for channel, rate in zip(self.channels, recording.get("rates", []), strict=False):
                totals.setdefault(channel, Counter())[f"{rate:g} Hz"] += 1
        return {channel: dict(counts) for channel, counts in totals.items()}


def is_store(folder: Path) -> bool:
    """Return whether a folder is a store, also one that was written by polyadic 0.2."""
    return (folder / DESCRIPTION).exists() or _is_old(folder)


def _is_old(folder: Path) -> bool:
    return (folder / "manifest.json").exists() and (folder / "00000.npy").exists()


def _read_description(folder: Path) -> dict[str, Any]:
    path = folder / DESCRIPTION
    check_regular_file(path)
    if not path.exists():
        if _is_old(folder):
            raise DataError(f"the store {folder.name} was written by polyadic 0.2: prepare it again")
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
        raise DataError(f"the store {folder.name} was written by polyadic {content['polyadic']}: upgrade polyadic")
    return content


def checksum(content: dict[str, Any]) -> str:
    """Return the checksum of the description of a store."""
    plain = {key: value for key, value in content.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
