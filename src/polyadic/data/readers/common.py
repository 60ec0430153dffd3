"""What readers share: text of any encoding, the choice of channels, and a limit on the memory of compressed data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from polyadic.data.reading import close_match, listed
from polyadic.errors import DataError, PolyadicError

__all__ = ["as_unit", "check_inflation", "choose_channels", "decode_text", "ending_of", "is_table"]

_TABLES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet", ".feather", ".xlsx")
_HARMLESS_BYTES = 256 * 2**20
_HARMLESS_RATIO = 100
"""Compressed data may take this many bytes of memory, or this many times the size of the file if that is more."""


def ending_of(path: Path) -> str:
    """Return the extension of a file in lower case, including compression, such as ".csv.gz"."""
    name = path.name.lower()
    return next((double for double in (".csv.gz", ".tsv.gz", ".fif.gz") if name.endswith(double)), path.suffix.lower())


def is_table(path: Path) -> bool:
    """Whether a file is a table by its extension."""
    return ending_of(path) in _TABLES


def decode_text(raw: bytes) -> str:
    """Decode bytes as UTF-8 or, if they are invalid, as Latin-1, in which every byte is a character.

    Examples
    --------
    >>> decode_text("°C".encode()), decode_text("°C".encode("latin-1"))
    ('°C', '°C')
    """
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def as_unit(text: str) -> str:
    """Return a unit with "u" for the micro sign, as the standards write it.

    Examples
    --------
    >>> as_unit("µV")
    'uV'
    """
    return text.replace("\N{MICRO SIGN}", "u").replace("\N{GREEK SMALL LETTER MU}", "u")


def choose_channels(file: str, names: Sequence[str], channels: Sequence[str] | None) -> list[int]:
    """Return the positions of the requested channels in `names`; of all channels if None.

    Raises
    ------
    DataError : if the file does not have a channel, or has two of its name
    """
    if isinstance(channels, str) or (channels is not None and not channels):
        raise PolyadicError(f"channels must be a list of distinct names, but is {channels!r}")
    wanted = list(names if channels is None else channels)
    missing = [name for name in wanted if name not in names]
    if missing:
        raise DataError(
            f"{file}: must have the channels {listed(missing)}, but has {listed(names)}{close_match(missing[0], names)}"
        )
    counts = Counter(names)
    if repeated := [name for name in dict.fromkeys(wanted) if counts[name] > 1]:
        raise DataError(f"{file}: channel names must be unique, but several channels are named {listed(repeated)}")
    if len(set(wanted)) != len(wanted):
        raise PolyadicError(f"channels must be a list of distinct names, but is {wanted!r}")
    return [list(names).index(name) for name in wanted]


def check_inflation(name: str, declared: int, size: int, advice: str = "save it uncompressed with np.savez") -> None:
    """Raise if compressed data would take far more memory than the size of the file.

    Parameters
    ----------
    name : what is compressed, for the error message
    declared : uncompressed size in bytes, according to the file
    size : size of the file in bytes
    advice : what to do if the data are genuine
    """
    if declared > max(_HARMLESS_BYTES, _HARMLESS_RATIO * size):
        raise DataError(
            f"{name} would take {declared / 1e6:,.0f} MB, {declared // max(size, 1):,} times the size of its file. If "
            f"that is right, {advice}"
        )
