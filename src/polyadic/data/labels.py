"""Labels as users give them, and the one rule for windows whose label is not known.

"", None, NaN (also pandas' NA) and -1, as a number or a text, and masked entries are unknown, whatever kind of array or
list holds them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyadic.errors import PolyadicError

__all__ = ["UNKNOWN_MARKS", "UNLABELLED", "as_column", "as_text", "encode_labels", "is_unknown", "known_labels"]

UNLABELLED = -1
"""The code of a window whose class is not known."""

UNKNOWN_MARKS = '"", None, NaN or -1'
"""The marks of an unknown label, for messages and documentation."""

_Mask = NDArray[np.bool_]


def is_unknown(value: Any) -> bool:
    """Whether a label, a subject or the name of a recording stands for "not known".

    Examples
    --------
    >>> [is_unknown(value) for value in ("", None, float("nan"), -1, "-1", 0, "rest")]
    [True, True, True, True, True, False, False]
    """
    if value is None:
        return True
    if isinstance(value, str | bytes):
        return value in ("", "-1", b"", b"-1")
    try:
        return bool(value != value or value == UNLABELLED)
    except TypeError:  # pandas.NA: a comparison with it is neither true nor false
        return True


def as_text(value: Any) -> str:
    """A name as a text: "" if it is unknown, and a whole number written alike whatever its type.

    Examples
    --------
    >>> as_text(3.0), as_text(b"rest"), as_text(None)
    ('3', 'rest', '')
    """
    if is_unknown(value):
        return ""
    if isinstance(value, bytes):
        return value.decode()
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def as_column(values: Any, name: str, count: int) -> NDArray[Any]:
    """Values as an array (count,); a list is not forced into one type, and masked entries become None."""
    if isinstance(values, np.ma.MaskedArray):
        values = values.tolist()
    column = np.array(values, object) if isinstance(values, list | tuple) else np.asarray(values)
    if column.shape != (count,):
        raise PolyadicError(f"{name} must have shape ({count},), one entry per window, but has shape {column.shape}")
    return column


def known_labels(y: Any, count: int, name: str = "y") -> tuple[_Mask, NDArray[Any]]:
    """Which windows have a label, and those labels.

    Parameters
    ----------
    y : (count,), labels of any type: an array, a list, a pandas Series
    count : number of windows
    name : the argument's name, for messages

    Returns
    -------
    (count,) bool, and (known,): numbers in the type they came in, all else as texts

    Examples
    --------
    >>> known_labels(["rest", "", None, "walk"], 4)
    (array([ True, False, False,  True]), array(['rest', 'walk'], dtype='<U4'))
    """
    column = as_column(y, name, count)
    if column.dtype.kind in "iub":
        known: _Mask = column != UNLABELLED if column.dtype.kind == "i" else np.ones(count, bool)
        return known, column[known]
    if column.dtype.kind == "f":
        known = ~(np.isnan(column) | (column == UNLABELLED))
        return known, column[known]
    values = column.tolist()
    known = np.fromiter((not is_unknown(value) for value in values), bool, count)
    return known, _plain([value for value in values if not is_unknown(value)])


def _plain(values: list[Any]) -> NDArray[Any]:
    """Known labels as an array of numbers if all of them are numbers, else of texts."""
    if all(isinstance(value, bool | int | float | np.number | np.bool_) for value in values):
        numbers = np.array(values)
        if numbers.dtype.kind in "fiub":
            return numbers
    return np.array([as_text(value) for value in values], np.str_)


def encode_labels(label: Any, classes: tuple[str, ...], count: int) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """Labels as codes, and the classes they stand for.

    Parameters
    ----------
    label : (count,), names, or numbers: those are places among `classes` where these are given
    classes : names of the classes; () to take those that occur, in ascending order

    Returns
    -------
    (count,), from 0 on, `UNLABELLED` where the class is not known, and the names
    """
    known, values = known_labels(label, count, "label")
    if values.dtype.kind in "fiub":
        places, classes = _number_codes(values, classes)
    else:
        places, classes = _name_codes(values.tolist(), classes)
    codes = np.full(count, UNLABELLED, np.int32)
    codes[known] = places
    return codes, classes


def _number_codes(values: NDArray[Any], classes: tuple[str, ...]) -> tuple[NDArray[Any], tuple[str, ...]]:
    if values.dtype.kind == "f" and not (np.isfinite(values).all() and np.array_equal(values, np.rint(values))):
        raise PolyadicError("label must hold classes (whole numbers or names), but holds fractions or infinity")
    numbers = values.astype(np.int64)
    low, high = numbers.min(initial=0), numbers.max(initial=0)
    if low < 0 or (classes and high >= len(classes)):
        above = f" and {len(classes) - 1}" if classes else " and the number of classes"
        raise PolyadicError(f"label must lie between {UNLABELLED}{above}, but reaches from {low} to {high}")
    if classes:
        return numbers, classes
    found, codes = np.unique(numbers, return_inverse=True)
    return codes, tuple(str(value) for value in found)


def _name_codes(names: list[str], classes: tuple[str, ...]) -> tuple[NDArray[Any], tuple[str, ...]]:
    classes = classes or tuple(sorted(set(names)))
    places = {name: number for number, name in enumerate(classes)}
    strange = sorted(set(names) - places.keys())
    if strange:
        raise PolyadicError(f"label must be one of {', '.join(classes)}, but there is {strange[0]!r}")
    return np.array([places[name] for name in names], np.int32), classes
