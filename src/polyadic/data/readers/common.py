"""What readers share: files of several signals, text of any encoding, the choice of channels, limits on memory."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyadic.data.reading import close_match, listed
from polyadic.data.recordings import (
    Annotation,
    Recording,
    Segment,
    Unread,
    join_channels,
    mark_missing,
    resample_recording,
)
from polyadic.errors import DataError

TABLES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet", ".feather", ".xlsx")
_HARMLESS_BYTES = 256 * 2**20
_HARMLESS_RATIO = 100
"""Compressed data may take this many bytes of memory, or this many times the size of the file if that is more."""


class Layout(NamedTuple):
    """What signals of a file have in common.

    numbers : places of the signals in the file
    frames : number of frames, which hold the same number of samples of a signal each
    segments : first frame and onset in seconds of each part between gaps
    annotations : in order of onset
    began : as for a `Recording`
    """

    numbers: Sequence[int]
    frames: int
    segments: Sequence[tuple[int, float]]
    annotations: Sequence[Annotation]
    began: str


class SignalFile(ABC):
    """An open file whose signals may have different sampling rates.

    Attributes
    ----------
    name : file name, for error messages
    labels, units, counts : names of the signals in the order of the file, their units, and their samples per frame
    rates : sampling rate of each signal in Hz, by name
    """

    name: str
    labels: list[str]
    units: list[str]
    counts: list[int]
    rates: dict[str, float]

    @abstractmethod
    def layout(self, numbers: Sequence[int]) -> Layout:
        """Check some signals, and return what they have in common."""

    @abstractmethod
    def read_frames(self, layout: Layout, numbers: Sequence[int], first: int, stop: int) -> Iterable[NDArray[Any]]:
        """Yield the values of some of the signals of a layout from one frame to another."""

    def read(
        self,
        channels: Sequence[str] | None = None,
        fs: float | None = None,
        resample: str | None = None,
        missing: float | None = None,
    ) -> Recording:
        """Return signals at one rate as a recording, named after the file; samples are read when they are needed.

        Parameters
        ----------
        channels : names of channels to read, in this order; all if None
        fs : sampling rate in Hz, by default that of the fastest of these channels
        resample : "hold" or "polyphase"; None raises an error if rates differ
        missing : value of missing samples, besides the marks of the format
        """
        if not self.labels:
            raise DataError(
                f"{self.name}: must have signals, but has only annotations: if it scores another recording, use "
                f"--scoring '*{common_ending(self.name)}'"
            )
        chosen = choose_channels(self.name, self.labels, channels)
        layout = self.layout(chosen)
        rates = {self.labels[number]: self.rates[self.labels[number]] for number in chosen}
        target, owner, parts = max(rates.values()) if fs is None else fs, self.name, []
        if len(set(rates.values())) > 1:
            listing = ", ".join(f"{name} {rate:g} Hz" for name, rate in rates.items())
            owner = f"{self.name} ({listing}) has a channel that"
        for rate in dict.fromkeys(rates.values()):
            part = self._at_rate([number for number in chosen if rates[self.labels[number]] == rate], rate, layout)
            parts.append(resample_recording(mark_missing(part, missing), target, resample, owner))
        return join_channels(parts, tuple(rates))

    def _at_rate(self, numbers: Sequence[int], fs: float, layout: Layout) -> Recording:
        """Return signals of one rate as a recording."""
        stem, count = stem_of(Path(self.name)), self.counts[numbers[0]]

        def read(first: int, stop: int) -> NDArray[np.float32]:
            values = np.empty((len(numbers), stop - first), np.float32)
            rows = self.read_frames(layout, numbers, first // count, -(-stop // count))
            for row, samples in zip(values, rows, strict=True):
                row[:] = samples[first % count :][: stop - first]
            return values

        return Recording(
            name=stem,
            subject=stem,
            fs=fs,
            channels=tuple(self.labels[number] for number in numbers),
            units=tuple(self.units[number] for number in numbers),
            signal=Unread((len(numbers), layout.frames * count), read),
            annotations=tuple(layout.annotations),
            segments=tuple(Segment(frame * count, onset) for frame, onset in layout.segments),
            began=layout.began,
        )


def ending_of(path: Path) -> str:
    """Return the extension of a file in lower case, including compression, such as ".csv.gz"."""
    name = path.name.lower()
    return next((double for double in (".csv.gz", ".tsv.gz", ".fif.gz") if name.endswith(double)), path.suffix.lower())


def stem_of(path: Path) -> str:
    """Return the name of a file without its extension."""
    return path.name[: len(path.name) - len(ending_of(path))]


def is_table(path: Path) -> bool:
    """Whether a file is a table by its extension."""
    return ending_of(path) in TABLES


def common_ending(file: str) -> str:
    """Return the end of a file name that files of the same kind most likely share, such as "-Hypnogram.edf"."""
    match = re.search(r"[-_][A-Za-z]+\.\w+$", file) or re.search(r"\.\w+(?:\.gz)?$", file)
    return match[0] if match else file


def check_file(path: Path) -> int:
    """Return the size of a file in bytes; raise if it is none: reading a named pipe, for example, would block."""
    if not path.is_file():
        what = "is not a regular file" if path.exists() else "does not exist"
        raise DataError(f"{path.name} {what}")
    return path.stat().st_size


def check_inflation(name: str, declared: int, size: int, advice: str = "save it uncompressed with np.savez") -> None:
    """Raise if the declared bytes of compressed data are far more than the size of the file."""
    if declared > max(_HARMLESS_BYTES, _HARMLESS_RATIO * size):
        raise DataError(
            f"{name} would take {declared / 1e6:,.0f} MB, {declared // max(size, 1):,} times the size of its file. If "
            f"that is right, {advice}"
        )


def decode_text(raw: bytes) -> str:
    """Decode bytes as UTF-8 or, if they are invalid, as Latin-1, in which every byte is a character."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def choose_channels(file: str, names: Sequence[str], channels: Sequence[str] | None) -> list[int]:
    """Return the positions of the requested channels that a file has; of all channels if None."""
    wanted = [name for name in (names if channels is None else channels) if name in names]
    if not wanted:
        asked = list(channels or ())
        renames = "\n(if a channel only has another name: --rename OLD=NEW)"
        hint = f"{close_match(asked[0], names)}{renames}" if asked else ""
        raise DataError(f"{file}: must have the channels {listed(asked)}, but has {listed(names)}{hint}")
    counts = Counter(names)
    if repeated := [name for name in dict.fromkeys(wanted) if counts[name] > 1]:
        raise DataError(f"{file}: channel names must be unique, but several channels are named {listed(repeated)}")
    return [list(names).index(name) for name in wanted]
