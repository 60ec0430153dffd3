"""Limit the memory that compressed data may take."""

from __future__ import annotations

from polyadic.errors import DataError

__all__ = ["check_inflation"]

_HARMLESS_BYTES = 256 * 2**20
_HARMLESS_RATIO = 100
"""Compressed data may take this many bytes of memory, or this many times the size of the file if that is more."""


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
