"""Argument checks that do not need torch, so that data and files can be used without importing it."""

from __future__ import annotations

import numbers
import os
import reprlib
import sys
from typing import Any, Protocol, runtime_checkable

import numpy as np

from polyadic.errors import PolyadicError

__all__ = ["Readable", "check_integer", "check_memory", "check_number", "check_unmasked"]

_LARGEST_INTEGER = 2**63 - 1


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


def check_unmasked(X: Any, name: str) -> None:
    """Raise if X has masked values, because computations would use the data under the mask.

    Examples
    --------
    >>> check_unmasked(np.ma.array([1.0, 2.0], mask=[False, True]), "X")
    Traceback (most recent call last):
    polyadic.errors.PolyadicError: X has 1 masked value: fill the mask, as with X.filled(0.0), or drop these windows
    """
    parts = X if isinstance(X, list | tuple) else [X]
    masked = sum(int(np.ma.getmaskarray(part).sum()) for part in parts if isinstance(part, np.ma.MaskedArray))
    if masked:
        raise PolyadicError(
            f"{name} has {masked:,} masked value{'s' * (masked != 1)}: fill the mask, as with {name}.filled(0.0), or "
            "drop these windows"
        )


def check_integer(name: str, value: Any, least: int, none: bool = False) -> None:
    """Raise unless `value` is an integer of at least `least` (or None, if `none` is True)."""
    if none and value is None:
        return
    is_integer = isinstance(value, numbers.Integral) and not isinstance(value, bool | np.bool_)
    if is_integer and least <= value <= _LARGEST_INTEGER:
        return
    most = f" and below 2**63{' or None' if none else ''}" if is_integer and value > 0 else " or None" if none else ""
    raise PolyadicError(f"{name} must be a whole number >= {least}{most}, but is {reprlib.repr(value)}")


def check_number(name: str, value: Any, least: float, most: float = float("inf"), none: bool = False) -> None:
    """Raise unless `value` is a finite number between `least` and `most` (or None, if `none` is True)."""
    if none and value is None:
        return
    is_real = isinstance(value, numbers.Real) and not isinstance(value, bool | np.bool_)
    value = value.item() if isinstance(value, np.generic) else value  # numpy would cast the limits to its type
    if is_real and least <= value <= min(most, sys.float_info.max):
        return
    upper = ("" if most == float("inf") else f" and at most {most:g}") + (" or None" if none else "")
    raise PolyadicError(f"{name} must be a number of at least {least:g}{upper}, but is {reprlib.repr(value)}")


def check_memory(setting: str, needed: int) -> None:
    """Raise if a setting needs more memory than this machine has.

    Without this check, the operating system may overcommit memory and kill the process later.
    """
    try:
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not available on this system
        return
    if needed > there:
        sizes = [f"{size / 2**30:,.0f} GiB" for size in (needed, there)]
        raise PolyadicError(f"{setting} needs at least {sizes[0]} of memory, but this machine has {sizes[1]}")
