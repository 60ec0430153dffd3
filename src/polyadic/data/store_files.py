"""The files of a window store: shards of samples, an index, and a manifest with checksums.

    manifest.json      contents of the store, with the checksum of every shard's description; written at the end
    writing.json       the settings of a store that is being written, until it is complete
    00000.npy          (n, channels, time), int16 digits or float32 values
    00000.index.npy    recording, first sample and label of each window
    00000.json         recordings, their scales, and the checksums of the two files above; written last

Each recording is in one shard. A shard is valid once its description exists. A writer that is killed therefore loses
only the shard it was writing, and resumes after the last valid one.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from polyadic._util.files import check_regular_file, digest
from polyadic.errors import DataError, PolyadicError

__all__ = [
    "DATA_OFFSET",
    "INDEX",
    "LARGEST",
    "MANIFEST",
    "SCHEMA",
    "WRITING",
    "Header",
    "Shard",
    "npy_header",
    "read_json",
    "read_manifest",
    "read_shards",
    "read_unfinished_header",
    "sealed",
    "shard_name",
]

SCHEMA = 1
"""Version of the layout; newer versions are refused."""

MANIFEST = "manifest.json"
WRITING = "writing.json"
INDEX = np.dtype([("recording", "<i4"), ("start", "<i8"), ("label", "<i4")])
DATA_OFFSET = 128
LARGEST = float(np.finfo(np.float32).max)
_TYPES: dict[str, np.dtype[Any]] = {"int16": np.dtype("<i2"), "float32": np.dtype("<f4")}


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
    settings : how the windows were created, for the record; must be the same when a writer resumes
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
            raise PolyadicError(f"units must be one per channel ({len(self.channels)}), but are {len(self.units)}")
        try:
            plain = json.loads(json.dumps(asdict(self), allow_nan=False))
        except (TypeError, ValueError, RecursionError) as error:
            raise PolyadicError(f"the description of a store must be valid JSON, but is not: {error}") from error
        object.__setattr__(self, "settings", plain["settings"])  # as they are read back from the file

    @property
    def stored(self) -> np.dtype[Any]:
        """The little-endian dtype of the shards."""
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
    """One file of windows with its index, from the description of the shard."""

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
        """Read the description of a shard, and check the sizes of its files."""
        content = read_json(folder / f"{name}.json")
        if not _matches_checksum(content):
            raise DataError(f"{name}.json of the store is damaged: its checksum does not match")
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
            raise DataError(
                f"{name}.json of the store is damaged: its recordings have {sum(counts)} windows, not {shard.rows}"
            )
        expected = DATA_OFFSET + shard.rows * header.window_bytes
        for path, size in ((shard.data, expected), (shard.index, DATA_OFFSET + shard.rows * INDEX.itemsize)):
            check_regular_file(path)
            actual = path.stat().st_size if path.exists() else None
            if actual != size:
                found = "is missing" if actual is None else f"has {actual:,} bytes"
                raise DataError(f"{path.name} of the store must have {size:,} bytes, but {found}")
        return shard

    def matches_checksum(self, path: Path) -> bool:
        """Return whether one of the two files exists and matches its checksum."""
        return path.is_file() and digest(path) == self.checksums[path.name]

    def read_index(self) -> NDArray[Any]:
        """Read the recording, start and label of each window: (n,), a structured array."""
        content = self.index.read_bytes()
        if hashlib.sha256(content).hexdigest() != self.checksums[self.index.name]:
            raise DataError(f"{self.index.name} of the store is damaged: its checksum does not match")
        index = np.frombuffer(content, INDEX, self.rows, DATA_OFFSET).copy()
        if index["recording"].min() < 0 or index["recording"].max() >= len(self.recordings):
            raise DataError(f"{self.index.name} of the store is damaged: it refers to recordings that do not exist")
        return index


def shard_name(number: int) -> str:
    return f"{number:05d}"


def npy_header(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    """Return the header of a `.npy` file: always 128 bytes, so that it can be overwritten once the shape is known."""
    descr = dtype.descr if dtype.names else dtype.str
    text = repr({"descr": descr, "fortran_order": False, "shape": shape})
    size = DATA_OFFSET - 10
    return b"\x93NUMPY\x01\x00" + size.to_bytes(2, "little") + text.ljust(size - 1).encode("ascii") + b"\n"


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file of the store."""
    check_regular_file(path)
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
    """Return the content of a JSON file with its checksum added."""
    return content | {"checksum": _checksum(content)}


def _matches_checksum(content: dict[str, Any]) -> bool:
    try:
        return bool(content.get("checksum") == _checksum(content))
    except RecursionError:
        return False


def _checksum(content: dict[str, Any]) -> str:
    plain = {key: value for key, value in content.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest of a complete store, and check its checksum."""
    if not (folder / MANIFEST).exists():
        if (folder / WRITING).exists():
            raise DataError(
                f"the store {folder.name} is unfinished: its writer was stopped. Run the same `polyadic prepare` again "
                "to resume it"
            )
        what = "is not a window store: it has no manifest.json" if folder.is_dir() else "does not exist"
        raise DataError(f"the store {folder.name} {what}")
    manifest = read_json(folder / MANIFEST)
    schema = manifest.get("schema")
    if isinstance(schema, int) and schema > SCHEMA:
        raise DataError(
            f"the store {folder.name} has schema {schema}, but this version of polyadic reads up to {SCHEMA}: upgrade"
        )
    if schema != SCHEMA or not _matches_checksum(manifest):
        raise DataError(f"{MANIFEST} of the store {folder.name} is damaged: its checksum does not match")
    return manifest


def read_shards(folder: Path, header: Header) -> list[Shard]:
    """Read the shards of a complete or unfinished store, up to the first one without a description."""
    found: list[Shard] = []
    while (folder / f"{shard_name(len(found))}.json").exists():
        found.append(Shard.read(folder, shard_name(len(found)), header))
    return found


def read_unfinished_header(folder: Path) -> Header:
    """Read the header of a store that is being written."""
    try:
        return Header.from_json(read_json(folder / WRITING))
    except (KeyError, TypeError, PolyadicError) as error:
        raise DataError(
            f"{WRITING} of the store {folder.name} is damaged: {error}. Delete the folder and prepare the store again"
        ) from error
