"""How much memory compressed data may take."""

from __future__ import annotations

from polyadic.errors import DataError

__all__ = ["check_inflation"]

_HARMLESS_BYTES = 256 * 2**20
_HARMLESS_RATIO = 100
"""Compressed data may always take so many bytes of memory, and so many times the size of its file."""


def check_inflation(name: str, declared: int, size: int, advice: str = "save it uncompressed, by np.savez") -> None:
    """Refuse compressed data that would take far more memory than the file has bytes.

    Parameters
    ----------
    name : what is compressed, for the message
    declared : bytes that it has uncompressed, as it says
    size : bytes of the file
    advice : what to do if the data are genuine
    """
    if declared > max(_HARMLESS_BYTES, _HARMLESS_RATIO * size):
        raise DataError(
            f"{name} would take {declared / 1e6:,.0f} MB, {declared // max(size, 1):,} times the size of its file. If "
            f"that is right, {advice}"
        )
