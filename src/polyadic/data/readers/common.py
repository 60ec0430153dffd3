"""What readers share: files of several signals, text of any encoding, the choice of channels, limits on memory."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from polyadic.data.reading import close_match, listed
from polyadic.data.recordings import Recording, at_one_rate, mark_missing
from polyadic.errors import DataError

TABLES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet", ".feather", ".xlsx")
_HARMLESS_BYTES = 256 * 2**20
_HARMLESS_RATIO = 100
"""Compressed data may take this many bytes of memory, or this many times the size of the file if that is more."""


class SignalFile(ABC):
    """An open file whose signals may have different sampling rates.

    Attributes
    ----------
    name : file name, for error messages
    labels : names of the signals, in the order of the file
    rates : sampling rate of each signal in Hz, by name
    """

    name: str
    labels: list[str]
    rates: dict[str, float]

    @abstractmethod
    def rows(self, numbers: Sequence[int]) -> list[Recording]:
        """Return some signals as recordings of one channel, whose samples are read when they are needed."""

    def read(
        self,
        channels: Sequence[str] | None = None,
        fs: float | None = None,
        resample: str | Mapping[str, str | None] | None = None,
        missing: float | None = None,
    ) -> Recording:
        """Return the signals at one rate; samples are read when they are needed.

        Parameters
        ----------
        channels : names of channels to read, in this order; all if None
        fs, resample : as for `polyadic.data.recordings.at_one_rate`
        missing : value of missing samples, besides the marks of the format
        """
        if not self.labels:
            raise DataError(
                f"{self.name}: must have signals, but has only annotations: if it scores another recording, use "
                f"--scoring '*{common_ending(self.name)}'"
            )
        rows = self.rows(choose_channels(self.name, self.labels, channels))
        return at_one_rate(self.name, [mark_missing(row, missing) for row in rows], fs, resample)


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
