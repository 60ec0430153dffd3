"""Windows on disk: memory-mapped shards, an index, and a manifest with checksums.

    manifest.json      what the store holds, with the checksum of every shard's description; there once it is complete
    writing.json       the settings of a store that is being written, until it is complete
    00000.npy          (n, channels, time), int16 digits or float32 values
    00000.index.npy    recording, first sample and label of each window
    00000.json         recordings, their scales, and the checksums of the two files above; written last

A recording lies in one shard. A shard counts once its description is there, so a writer that is killed loses the
shard it was at and nothing else, and goes on after the last one that counts.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from polyadic.data.windows import Index, Windows
from polyadic.draws import block_permutation
from polyadic.errors import DataError, PolyadicError
from polyadic.files import digest

__all__ = ["SCHEMA", "Header", "WindowStore"]

SCHEMA = 1
"""Version of the layout. Readers refuse a newer one."""

MANIFEST = "manifest.json"
WRITING = "writing.json"
INDEX = np.dtype([("recording", "<i4"), ("start", "<i8"), ("label", "<i4")])
DATA_OFFSET = 128
LARGEST = float(np.finfo(np.float32).max)
_BUFFER_BYTES = 256 * 2**20
_OPEN_SHARDS = 256  # each keeps a file open, of which a process may have some thousand
_TYPES: dict[str, np.dtype[Any]] = {"int16": np.dtype("<i2"), "float32": np.dtype("<f4")}


@dataclass(frozen=True)
class Header:
    """What all windows of a store have in common.

    Parameters
    ----------
    fs : sampling rate in Hz
    channels, units : names, one a channel
    length : samples in a window
    dtype : "int16" for digits with a scale and an offset for each channel of a recording, or "float32" for values
    classes : names of the classes
    dataset : name of a published dataset, or ""
    settings : what else went into making the windows, for the record; a writer that goes on must have the same
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
        if self.dtype not in _TYPES:
            raise PolyadicError(f"dtype must be one of {', '.join(_TYPES)}, but is {self.dtype!r}")
        if not 0 < self.fs < np.inf or self.length < 1 or not self.channels:
            raise PolyadicError(
                f"a store needs a sampling rate, a length and channels, but has fs={self.fs!r}, "
                f"length={self.length!r}, channels={self.channels!r}"
            )
        if len(self.units) != len(self.channels):
            raise PolyadicError(f"units must be {len(self.channels)}, one a channel, but are {len(self.units)}")
        try:
            plain = json.loads(json.dumps(asdict(self), allow_nan=False))
        except (TypeError, ValueError, RecursionError) as error:
            raise PolyadicError(f"what describes a store must fit into a JSON file, but does not: {error}") from error
        object.__setattr__(self, "settings", plain["settings"])  # as they will be read back

    @property
    def stored(self) -> np.dtype[Any]:
        """The type of the shards' numbers, little-endian."""
        return _TYPES[self.dtype]

    @property
    def window_bytes(self) -> int:
        return len(self.channels) * self.length * self.stored.itemsize

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Header:
        values = {item.name: content[item.name] for item in fields(cls)}
        for name in ("channels", "units", "classes"):
            if not isinstance(values[name], list) or not all(isinstance(item, str) for item in values[name]):
                raise TypeError(f"{name} must be a list of names")
            values[name] = tuple(values[name])
        if not isinstance(values["settings"], dict) or not isinstance(values["length"], int):
            raise TypeError("settings must be an object and length a whole number")
        return cls(**values)


@dataclass(frozen=True)
class Shard:
    """One file of windows, as its description has it."""

    folder: Path
    name: str
    rows: int
    recordings: tuple[dict[str, Any], ...]
    checksums: dict[str, str]

    @property
    def data(self) -> Path:
        return self.folder / f"{self.name}.npy"

    @property
    def index(self) -> Path:
        return self.folder / f"{self.name}.index.npy"

    @property
    def description(self) -> Path:
        return self.folder / f"{self.name}.json"

    @classmethod
    def read(cls, folder: Path, name: str, header: Header) -> Shard:
        """A shard whose files have the sizes they should have."""
        content = read_json(folder / f"{name}.json")
        if not _is_sound(content):
            raise DataError(f"{name}.json of the store is damaged: its checksum does not fit")
        try:
            shard = cls(folder, name, int(content["rows"]), tuple(content["recordings"]), dict(content["sha256"]))
            if {shard.data.name, shard.index.name} != set(shard.checksums):
                raise ValueError("it lacks checksums")
            counts = [int(recording["windows"]) for recording in shard.recordings]
            for recording in shard.recordings:
                scale, offset = np.array(recording["scale"], float), np.array(recording["offset"], float)
                if scale.shape != (len(header.channels),) or offset.shape != scale.shape:
                    raise ValueError(f"recording {recording['name']!r} lacks scales")
                if not (np.abs([scale, offset]) <= LARGEST).all():
                    raise ValueError(f"recording {recording['name']!r} has scales that are not finite")
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise DataError(f"{name}.json of the store is damaged: {error!r}") from error
        if sum(counts) != shard.rows or shard.rows < 1 or min(counts) < 0:
            raise DataError(f"{name}.json of the store is damaged: its recordings have {sum(counts)} windows")
        expected = DATA_OFFSET + shard.rows * header.window_bytes
        for path, size in ((shard.data, expected), (shard.index, DATA_OFFSET + shard.rows * INDEX.itemsize)):
            came = path.stat().st_size if path.exists() else None
            if came != size:
                found = "is missing" if came is None else f"has {came:,} bytes"
                raise DataError(f"{path.name} of the store must have {size:,} bytes, but {found}")
        return shard

    def is_sound(self, path: Path) -> bool:
        """Whether one of the two files is there and fits its checksum."""
        return path.exists() and digest(path) == self.checksums[path.name]

    def open(self, header: Header) -> np.memmap[Any, Any]:
        """The windows as a memory map: (n, channels, time)."""
        shape = (self.rows, len(header.channels), header.length)
        try:
            return np.memmap(self.data, header.stored, "r", DATA_OFFSET, shape)
        except (FileNotFoundError, ValueError) as error:
            raise DataError(f"{self.data.name} of the store was taken away or cut short: {error}") from error

    def read_index(self) -> NDArray[Any]:
        """Recording, start and label of each window: (n,) structured."""
        content = self.index.read_bytes()
        if hashlib.sha256(content).hexdigest() != self.checksums[self.index.name]:
            raise DataError(f"{self.index.name} of the store is damaged: its checksum does not fit")
        index = np.frombuffer(content, INDEX, self.rows, DATA_OFFSET).copy()
        if index["recording"].min() < 0 or index["recording"].max() >= len(self.recordings):
            raise DataError(f"{self.index.name} of the store is damaged: it names recordings that are not there")
        return index


def shard_name(number: int) -> str:
    return f"{number:05d}"


def npy_header(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    """The head of a `.npy` file, always 128 bytes long so that it can be written again when the shape is known."""
    descr = dtype.descr if dtype.names else dtype.str
    text = repr({"descr": descr, "fortran_order": False, "shape": shape})
    size = DATA_OFFSET - 10
    return b"\x93NUMPY\x01\x00" + size.to_bytes(2, "little") + text.ljust(size - 1).encode("ascii") + b"\n"


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of the store."""
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise DataError(f"{path.name} of the store is missing") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path.name} of the store is damaged: {error}") from error
    if not isinstance(content, dict):
        raise DataError(f"{path.name} of the store is damaged: it must hold a JSON object")
    return content


def sealed(content: dict[str, Any]) -> dict[str, Any]:
    """The content of a JSON file with a checksum of itself."""
    return content | {"checksum": _checksum(content)}


def _is_sound(content: dict[str, Any]) -> bool:
    try:
        return bool(content.get("checksum") == _checksum(content))
    except RecursionError:
        return False


def _checksum(content: dict[str, Any]) -> str:
    plain = {key: value for key, value in content.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a complete store, checked against its own checksum."""
    if not (folder / MANIFEST).exists():
        if (folder / WRITING).exists():
            raise DataError(
                f"the store {folder.name} is unfinished: its writer was stopped. Run the same `polyadic prepare` again "
                "to go on where it stopped"
            )
        what = "is not a window store: it has no manifest.json" if folder.is_dir() else "is not there"
        raise DataError(f"the store {folder.name} {what}")
    manifest = read_json(folder / MANIFEST)
    schema = manifest.get("schema")
    if isinstance(schema, int) and schema > SCHEMA:
        raise DataError(
            f"the store {folder.name} has schema {schema}, but this version of polyadic reads up to {SCHEMA}: upgrade"
        )
    if schema != SCHEMA or not _is_sound(manifest):
        raise DataError(f"{MANIFEST} of the store {folder.name} is damaged: its checksum does not fit")
    return manifest


class WindowStore:
    """Windows in a folder, read batch by batch; made by `polyadic prepare` or `polyadic.data.StoreWriter`.

    Parameters
    ----------
    path : the folder
    shuffle : "full" visits the windows of a sweep in any order; "block" goes from shard to shard and shuffles within
        256 MiB of them, for disks on which jumping about is slow

    Attributes
    ----------
    shape : (N, channels, time)
    index : recording, start, label of each window
    fs, channels, units, classes, dataset, settings : as written
    recordings : for each its name, subject, part, windows, scale, offset, quality
    skipped : recordings that were left out, each with its reason
    """

    on_disk = True
    dtype = np.dtype(np.float32)

    def __init__(self, path: str | os.PathLike[str], *, shuffle: Literal["full", "block"] = "full") -> None:
        if shuffle not in ("full", "block"):
            raise PolyadicError(f"shuffle must be 'full' or 'block', but is {shuffle!r}")
        self.path, self.shuffle = Path(path), shuffle
        manifest = read_manifest(self.path)
        try:
            self.header = Header.from_json(manifest)
            named = [(str(entry["name"]), str(entry["sha256"])) for entry in manifest["shards"]]
            self.skipped: list[dict[str, str]] = list(manifest["skipped"])
            if not named or [name for name, _ in named] != [shard_name(number) for number in range(len(named))]:
                raise ValueError("its shards must be numbered from 0 on")
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{MANIFEST} of the store {self.path.name} is damaged: {error!r}") from error
        self.checksum = str(manifest["checksum"])
        self.shards: list[Shard] = []
        for name, checksum in named:
            description = self.path / f"{name}.json"
            if not description.exists() or digest(description) != checksum:
                raise DataError(f"{description.name} of the store is missing or damaged: its checksum does not fit")
            self.shards.append(Shard.read(self.path, name, self.header))
        self._maps: dict[int, NDArray[Any]] = {}
        self._announced: set[int] = set()
        self._ends = np.cumsum([shard.rows for shard in self.shards], dtype=np.intp)
        self.recordings = [recording for shard in self.shards for recording in shard.recordings]
        self.index = self._index()
        self._scale = np.array([recording["scale"] for recording in self.recordings], np.float32)[:, :, None]
        self._offset = np.array([recording["offset"] for recording in self.recordings], np.float32)[:, :, None]

    def _index(self) -> Index:
        columns, before = [], 0
        for shard in self.shards:
            column = shard.read_index()
            column["recording"] += before
            columns.append(column)
            before += len(shard.recordings)
        whole = np.concatenate(columns)
        tables = (
            np.array([str(recording.get(key, "")) for recording in self.recordings], dtype=np.str_)
            for key in ("name", "subject", "part")
        )
        if whole["label"].min() < -1 or whole["label"].max() >= len(self.classes):
            raise DataError(f"the index of the store {self.path.name} is damaged: it has labels beyond its classes")
        return Index(*(np.ascontiguousarray(whole[name]) for name in INDEX.names or ()), *tables)

    # ------------------------------------------------------------- description

    @property
    def fs(self) -> float:
        return self.header.fs

    @property
    def channels(self) -> tuple[str, ...]:
        return self.header.channels

    @property
    def units(self) -> tuple[str, ...]:
        return self.header.units

    @property
    def classes(self) -> tuple[str, ...]:
        return self.header.classes

    @property
    def dataset(self) -> str:
        return self.header.dataset

    @property
    def settings(self) -> dict[str, Any]:
        return self.header.settings

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self), len(self.channels), self.header.length)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getstate__(self) -> dict[str, Any]:
        # The memory maps would be copied as arrays.
        return vars(self) | {"_maps": {}, "_announced": set()}

    def __repr__(self) -> str:
        size = len(self) * self.header.window_bytes / 2**20
        return f"<WindowStore {self.path.name}: {self.shape} {self.header.dtype}, {self.fs:g} Hz, {size:,.0f} MiB>"

    @property
    def fingerprint(self) -> dict[str, str]:
        """What tells the windows, and the order in which a fit sees them, from others."""
        return {"store": self.checksum, "shuffle": self.shuffle}

    @property
    def windows(self) -> Windows:
        """All windows, for selecting and splitting; nothing is read yet."""
        return Windows._made(self, self.index, self)

    # ----------------------------------------------------------------- reading

    def digits(self, rows: NDArray[np.intp]) -> NDArray[Any]:
        """Windows as they are stored, int16 or float32: (n, channels, time)."""
        rows = self._checked(rows)
        result = np.empty((len(rows), *self.shape[1:]), self.header.stored)
        for place, window in enumerate(self._stored(rows)):
            result[place] = window
        return result

    def raw(
        self, rows: NDArray[np.intp]
    ) -> tuple[NDArray[Any], NDArray[np.float32] | None, NDArray[np.float32] | None]:
        """Windows as they are stored, and what makes values of them: value = digit · scale + offset.

        Returns
        -------
        (n, channels, time), and scale and offset (n, channels, 1), or None where the values themselves are stored
        """
        rows = self._checked(rows)
        digits = self.digits(rows)
        if self.header.dtype == "float32":
            return digits, None, None
        recording = self.index.recording[rows]
        return digits, self._scale[recording], self._offset[recording]

    def read(self, rows: NDArray[np.intp]) -> NDArray[np.float32]:
        """Windows in their units: (n, channels, time) float32."""
        rows = self._checked(rows)
        result = np.empty((len(rows), *self.shape[1:]), np.float32)
        scale, offset = self._scale, self._offset
        # Window by window, while each is still in the processor's cache.
        for window, stored, recording in zip(result, self._stored(rows), self.index.recording[rows], strict=True):
            window[...] = stored
            if self.header.dtype == "int16":
                window *= scale[recording]
                window += offset[recording]
        return result

    def _checked(self, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        given = np.asarray(rows)
        if given.ndim != 1 or (given.dtype.kind not in "iu" and len(given)):
            raise PolyadicError(f"rows must be a list of whole numbers, but have type {given.dtype}, {given.ndim}-d")
        rows = given.astype(np.intp)
        if len(rows) and not (rows.min() >= 0 and rows.max() < len(self)):
            raise PolyadicError(f"rows must lie between 0 and {len(self) - 1}, but reach to {rows.min()}, {rows.max()}")
        return rows

    def _stored(self, rows: NDArray[np.intp]) -> Iterator[NDArray[Any]]:
        """Each of the windows, in its memory map: (channels, time)."""
        owner = np.searchsorted(self._ends, rows, side="right")
        local = rows - np.concatenate([[0], self._ends])[owner]
        if self.shuffle == "block":
            self._announce(set(np.unique(owner).tolist()))
        for shard, row in zip(owner.tolist(), local.tolist(), strict=True):
            yield self._map(shard)[row]

    def _map(self, number: int) -> NDArray[Any]:
        opened = self._maps.get(number)
        if opened is None:
            if len(self._maps) >= _OPEN_SHARDS:
                self._maps.clear()
            # A plain array on the map: slices of a memmap cost as much as the copy of a window.
            opened = self._maps[number] = self.shards[number].open(self.header).view(np.ndarray)
        return opened

    def order(self, seed: int, sweep: int) -> NDArray[np.intp] | None:
        """The order in which a sweep visits the windows with shuffle="block"; None if any order will do."""
        if self.shuffle == "full":
            return None
        sizes = [shard.rows for shard in self.shards]
        return block_permutation(sizes, max(1, _BUFFER_BYTES // self.header.window_bytes), seed, sweep).numpy()

    def _announce(self, shards: set[int]) -> None:
        """Ask the system to read shards from start to end that the last batch did not need."""
        for number in shards - self._announced:
            base = getattr(self._map(number).base, "_mmap", None)
            if base is not None and hasattr(mmap, "MADV_WILLNEED"):
                base.madvise(mmap.MADV_WILLNEED)
        self._announced = shards

    # --------------------------------------------------------------- verifying

    def verify(self, on_shard: Callable[[int, int], None] | None = None) -> None:
        """Read everything and compare it with the checksums.

        Parameters
        ----------
        on_shard : called after each shard with the number done and the bytes read

        Raises
        ------
        DataError : that names every damaged file
        """
        damaged = []
        for number, shard in enumerate(self.shards):
            damaged += [path.name for path in (shard.data, shard.index) if not shard.is_sound(path)]
            if on_shard is not None:
                on_shard(number + 1, DATA_OFFSET + shard.rows * self.header.window_bytes)
        if damaged:
            raise DataError(
                f"the store {self.path.name} is damaged: the checksums of {', '.join(damaged)} do not fit; "
                "prepare it again from the recordings"
            )

    def quality(self) -> dict[str, dict[str, int]]:
        """How many recordings have missing, flat or clipped samples in each channel."""
        totals: dict[str, dict[str, int]] = {}
        for recording in self.recordings:
            for kind, channels in recording.get("quality", {}).items():
                for channel in channels:
                    counts = totals.setdefault(kind, {})
                    counts[channel] = counts.get(channel, 0) + 1
        return totals


def shards_written(folder: Path, header: Header) -> list[Shard]:
    """The shards in a folder that count, up to the first that does not."""
    found: list[Shard] = []
    while (folder / f"{shard_name(len(found))}.json").exists():
        found.append(Shard.read(folder, shard_name(len(found)), header))
    return found


def names_of(shards: Iterable[Shard]) -> set[str]:
    return {str(recording["name"]) for shard in shards for recording in shard.recordings}
