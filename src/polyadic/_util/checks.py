"""Argument checks that do not need torch, so that data and files can be used without importing it."""

from __future__ import annotations

import numbers
import reprlib
import sys
from typing import Any, Protocol, runtime_checkable

import numpy as np

from polyadic.errors import PolyadicError


@runtime_checkable
class Readable(Protocol):
    """Samples that are read on demand, such as those of a store."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    def read(self, rows: np.ndarray) -> np.ndarray:
        """Return the samples of some rows: (n, …)."""
        ...


def check_integer(name: str, value: Any, least: int, none: bool = False) -> None:
    """Raise unless `value` is an integer from `least` to 2**63 - 1 (or None, if `none` is True)."""
    integer = isinstance(value, numbers.Integral) and not isinstance(value, bool | np.bool_)
    if not (integer and least <= value < 2**63) and not (none and value is None):
        or_none = " or None" if none else ""
        raise PolyadicError(f"{name} must be a whole number >= {least}{or_none}, but is {reprlib.repr(value)}")


def check_number(name: str, value: Any, least: float, most: float = float("inf"), none: bool = False) -> None:
    """Raise unless `value` is a finite number between `least` and `most` (or None, if `none` is True)."""
    real = isinstance(value, numbers.Real) and not isinstance(value, bool | np.bool_)
    value = value.item() if isinstance(value, np.generic) else value  # numpy would cast the limits to its type
    if not (real and least <= value <= min(most, sys.float_info.max)) and not (none and value is None):
        upper = ("" if most == float("inf") else f" and at most {most:g}") + (" or None" if none else "")
        raise PolyadicError(f"{name} must be a number of at least {least:g}{upper}, but is {reprlib.repr(value)}")
