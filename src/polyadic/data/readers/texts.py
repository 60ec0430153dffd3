"""Decode text in the headers of recordings: standards require ASCII, but units and channel names often are not."""

from __future__ import annotations

__all__ = ["as_unit", "decode_text"]


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
