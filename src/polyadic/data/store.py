"""Windows on disk, read batch by batch; `polyadic.data.store_files` describes the files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyadic._util.files import check_regular_file, digest
from polyadic.data.index import Index
from polyadic.data.row_files import OpenFiles, row_runs
from polyadic.data.store_files import (
    DATA_OFFSET,
    INDEX,
    MANIFEST,
    WRITING,
    Header,
    Shard,
    read_manifest,
    read_shards,
    read_unfinished_header,
    shard_name,
)
from polyadic.data.windows import Windows
from polyadic.errors import DataError, PolyadicError

__all__ = ["Added", "WindowStore", "read_recordings"]

_BUFFER_BYTES = 256 * 2**20


class Added(NamedTuple):
    """How much a call added to a store.

    windows, recordings : number of windows and recordings added
    present : number of recordings that were already in the store, with the same content
    """

    windows: int
    recordings: int
    present: int


class WindowStore:
    """Windows in a folder, read batch by batch; written by `polyadic prepare` or `polyadic.data.StoreWriter`.

    Parameters
    ----------
    path : folder of the store
    shuffle : "full" allows any order of the windows in a sweep; "block" goes from shard to shard and shuffles within
        256 MiB, for disks with slow random access

    Attributes
    ----------
    shape : (N, channels, time)
    index : recording, start, label of each window
    fs, channels, units, classes, dataset, settings : as for `polyadic.data.Header`
    recordings : name, subject, part, windows, scale, offset and quality of each recording
    skipped : files and recordings that were left out, each with the reason
    reading : how the recordings were read, as returned by `polyadic.data.reading.Reading.to_json`; empty if unknown
    added : how much the call that wrote the store, or appended to it, added; None if the store was only opened
    notes : notes on how the recordings were read, from the call that wrote the store
    """

    on_disk = True
    dtype = np.dtype(np.float32)

    def __init__(self, path: str | os.PathLike[str], *, shuffle: Literal["full", "block"] = "full") -> None:
        if shuffle not in ("full", "block"):
            raise PolyadicError(f"shuffle must be 'full' or 'block', but is {shuffle!r}")
        self.path, self.shuffle = Path(path).absolute(), shuffle  # the working directory may change
        self.added: Added | None = None
        self.notes: tuple[str, ...] = ()
        manifest = read_manifest(self.path)
        try:
            self.header = Header.from_json(manifest)
            named = [(str(entry["name"]), str(entry["sha256"])) for entry in manifest["shards"]]
            self.skipped: list[dict[str, str]] = list(manifest["skipped"])
            if not named or [name for name, _ in named] != [shard_name(number) for number in range(len(named))]:
                raise ValueError("its shards must be numbered from 0")
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{MANIFEST} of the store {self.path.name} is damaged: {error!r}") from error
        self.checksum = str(manifest["checksum"])
        self.shards: list[Shard] = []
        for name, checksum in named:
            description = self.path / f"{name}.json"
            check_regular_file(description)
            if not description.exists() or digest(description) != checksum:
                raise DataError(f"{description.name} of the store is missing or damaged: its checksum does not match")
            self.shards.append(Shard.read(self.path, name, self.header))
        self._files, self._paths = OpenFiles(), [str(shard.data) for shard in self.shards]
        self._prefetched: set[int] = set()
        self._ends = np.cumsum([shard.rows for shard in self.shards], dtype=np.intp)
        self.recordings = [recording for shard in self.shards for recording in shard.recordings]
        self.index = self._read_index()
        self._scale = np.array([recording["scale"] for recording in self.recordings], np.float32)[:, :, None]
        self._offset = np.array([recording["offset"] for recording in self.recordings], np.float32)[:, :, None]

    def _read_index(self) -> Index:
        columns, before = [], 0
        for shard in self.shards:
            column = shard.read_index()
            column["recording"] += before
            columns.append(column)
            before += len(shard.recordings)
        index = np.concatenate(columns)
        tables = (
            np.array([str(recording.get(key, "")) for recording in self.recordings], dtype=np.str_)
            for key in ("name", "subject", "part", "subject_from")
        )
        if index["label"].min() < -1 or index["label"].max() >= len(self.classes):
            raise DataError(f"the index of the store {self.path.name} is damaged: it has labels beyond its classes")
        return Index(*(np.ascontiguousarray(index[name]) for name in INDEX.names or ()), *tables)

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
    def reading(self) -> dict[str, Any]:
        found = self.header.settings.get("reading", {})
        return found if isinstance(found, dict) else {}

    def identical(self) -> list[list[str]]:
        """Return groups of recordings with the same samples, each as a list of names."""
        names: dict[str, list[str]] = {}
        for recording in self.recordings:
            if recording.get("content"):
                names.setdefault(str(recording["content"]), []).append(str(recording["name"]))
        return [same for same in names.values() if len(same) > 1]

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self), len(self.channels), self.header.length)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_prefetched": set()}

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

    def digits(self, rows: NDArray[np.intp]) -> NDArray[Any]:
        """Read windows as stored, int16 or float32: (n, channels, time)."""
        rows = self._check_rows(rows)
        result = np.empty((len(rows), *self.shape[1:]), self.header.stored)
        owner = np.searchsorted(self._ends, rows, side="right")
        if self.shuffle == "block":
            self._prefetch(set(np.unique(owner).tolist()))
        local, size = rows - np.concatenate([[0], self._ends])[owner], self.header.window_bytes
        # Adding the number of the shard splits runs at the border between two shards.
        for places, _ in row_runs(rows + owner):
            path = self._paths[owner[places.start]]
            try:
                self._files.open(path).read_into(result[places], DATA_OFFSET + int(local[places.start]) * size)
            except (FileNotFoundError, EOFError) as error:
                name = os.path.basename(path)  # noqa: PTH119
                raise DataError(f"{name} of the store was removed or truncated: {error}") from error
        return result

    def raw(
        self, rows: NDArray[np.intp]
    ) -> tuple[NDArray[Any], NDArray[np.float32] | None, NDArray[np.float32] | None]:
        """Read windows as stored, and the scale and offset in value = stored · scale + offset.

        Returns
        -------
        windows (n, channels, time); scale and offset (n, channels, 1), or None if the values themselves are stored
        """
        rows = self._check_rows(rows)
        digits = self.digits(rows)
        if self.header.dtype == "float32":
            return digits, None, None
        recording = self.index.recording[rows]
        return digits, self._scale[recording], self._offset[recording]

    def read(self, rows: NDArray[np.intp]) -> NDArray[np.float32]:
        """Read windows in physical units: (n, channels, time) float32."""
        digits, scale, offset = self.raw(rows)
        if scale is None or offset is None:
            return digits.astype(np.float32, copy=False)
        result = np.empty(digits.shape, np.float32)
        # Window by window, while each is still in the CPU cache. One product and one sum, each rounded once, as in
        # `polyadic.data.samples.Samples`, so that fits to the store and to this array are bit-identical.
        for number, window in enumerate(result):
            window[...] = digits[number]
            window *= scale[number]
            window += offset[number]
        return result

    def _check_rows(self, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        given = np.asarray(rows)
        if given.ndim != 1 or (given.dtype.kind not in "iu" and len(given)):
            raise PolyadicError(f"rows must be a list of whole numbers, but have type {given.dtype}, {given.ndim}-d")
        rows = given.astype(np.intp)
        if len(rows) and not (rows.min() >= 0 and rows.max() < len(self)):
            raise PolyadicError(
                f"rows must lie between 0 and {len(self) - 1}, but range from {rows.min()} to {rows.max()}"
            )
        return rows

    def order(self, seed: int, sweep: int) -> NDArray[np.intp] | None:
        """Return the order in which a sweep visits the windows if shuffle="block", or None if any order is allowed."""
        if self.shuffle == "full":
            return None
        from polyadic._util.random_streams import (
            block_permutation,  # imports torch, which reading a store does not need
        )

        sizes = [shard.rows for shard in self.shards]
        return block_permutation(sizes, max(1, _BUFFER_BYTES // self.header.window_bytes), seed, sweep).numpy()

    def _prefetch(self, shards: set[int]) -> None:
        """Ask the operating system to prefetch the shards that the previous batch did not need."""
        for number in shards - self._prefetched:
            try:
                self._files.open(self._paths[number]).prefetch()
            except OSError:  # reading the file raises the error
                continue
        self._prefetched = shards

    # --------------------------------------------------------------- verifying

    def verify(self, on_shard: Callable[[int, int], None] | None = None) -> None:
        """Read all files and compare them with their checksums.

        Parameters
        ----------
        on_shard : called after each shard with the number of shards done and the size of this shard in bytes

        Raises
        ------
        DataError : if files are damaged; the message names all of them
        """
        damaged = []
        for number, shard in enumerate(self.shards):
            damaged += [path.name for path in (shard.data, shard.index) if not shard.matches_checksum(path)]
            if on_shard is not None:
                on_shard(number + 1, DATA_OFFSET + shard.rows * self.header.window_bytes)
        if damaged:
            raise DataError(
                f"the store {self.path.name} is damaged: the checksums of {', '.join(damaged)} do not match; "
                "prepare it again from the recordings"
            )

    def quality(self) -> dict[str, dict[str, int]]:
        """Return how many recordings have missing, flat or clipped samples, by kind and channel."""
        totals: dict[str, dict[str, int]] = {}
        for recording in self.recordings:
            for kind, channels in recording.get("quality", {}).items():
                for channel in channels:
                    counts = totals.setdefault(kind, {})
                    counts[channel] = counts.get(channel, 0) + 1
        return totals

    def recorded_rates(self) -> dict[str, dict[str, int]]:
        """Return the original sampling rates of resampled channels: by channel, the number of recordings per rate."""
        totals: dict[str, dict[str, int]] = {}
        for recording in self.recordings:
            rates = recording.get("rates", [])
            for channel, rate in zip(self.channels, rates, strict=False):
                counts = totals.setdefault(channel, {})
                counts[f"{rate:g} Hz"] = counts.get(f"{rate:g} Hz", 0) + 1
        return totals


def read_recordings(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the recordings in a complete or unfinished store by name; empty if there is no store."""
    if not ((folder / MANIFEST).exists() or (folder / WRITING).exists()):
        return {}
    header = WindowStore(folder).header if (folder / MANIFEST).exists() else read_unfinished_header(folder)
    return {str(entry["name"]): entry for shard in read_shards(folder, header) for entry in shard.recordings}
