"""Numbers, tables, structures and names as C source."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_TYPES = {"float": "f4", "double": "f8", "signed char": "i1", "unsigned char": "u1", "short": "i2", "int": "i4"}

Struct = dict[str, tuple[str, tuple[int, ...]]]
"""The fields of a C structure: type and shape, by name."""


class Table(NamedTuple):
    """A constant array in C."""

    type: str
    shape: tuple[int, ...]
    text: str

    @property
    def bytes(self) -> int:
        return sizeof({"values": (self.type, self.shape)})


def table(values: NDArray[Any], kind: str = "") -> Table:
    """Convert an array to a C table; by default, int8 and int16 to those, integers to int, others to float."""
    whole = values.dtype.kind in "iu"
    kind = kind or {"i1": "signed char", "i2": "short"}.get(values.dtype.str[1:], "int" if whole else "float")
    number = str if whole else repr if kind == "double" else float_literal

    def text(part: NDArray[Any], indent: int) -> str:
        if part.ndim > 1:
            inner = f",\n{' ' * (indent + 4)}".join(text(row, indent + 4) for row in part)
            return f"{{\n{' ' * (indent + 4)}{inner}\n{' ' * indent}}}"
        numbers = [number(value) for value in part.tolist()]
        lines = [", ".join(numbers[first : first + 8]) for first in range(0, len(numbers), 8)]
        return "{" + f",\n{' ' * (indent + 1)}".join(lines) + "}"

    return Table(kind, values.shape, text(values, 0))


def sizeof(fields: Struct) -> int:
    """Return `sizeof` of a structure with natural alignment."""
    return np.dtype([(name, _TYPES[kind], shape) for name, (kind, shape) in fields.items()], align=True).itemsize


def literal(value: float, kind: str) -> str:
    """Format a number as a C literal of type float or double."""
    return float_literal(value) if kind == "float" else repr(float(value))


def float_literal(value: float) -> str:
    """Format a number as a C float literal, correctly rounded.

    Examples
    --------
    >>> float_literal(1), float_literal(0.1), float_literal(1e-30)
    ('1.0f', '0.1f', '1e-30f')
    """
    text = str(np.float32(value))
    return f"{text if '.' in text or 'e' in text else text + '.0'}f"


def string_literal(text: str) -> str:
    """Format a string as a C string literal.

    Examples
    --------
    >>> print(string_literal('a "quick" walk?'), string_literal("µ"))
    "a \\"quick\\" walk\\?" "\\302\\265"
    """
    escaped = {'"': '\\"', "\\": "\\\\", "?": "\\?"}
    letters = (
        escaped.get(chr(byte), chr(byte)) if 32 <= byte < 127 else f"\\{byte:03o}" for byte in text.encode("utf-8")
    )
    return f'"{"".join(letters)}"'


def comment(text: str) -> str:
    """Escape text so that it cannot end a comment, start another, or hide code."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in text)
    return shown.replace("\\", "|").replace("??", "? ").replace("*/", "* /").replace("/*", "/ *")
