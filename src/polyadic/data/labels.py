"""Convert labels given by users to class numbers, with one rule for unknown labels.

In any kind of array or list, "", None, NaN (and pandas.NA, and "nan", which `astype(str)` makes of it), -1 (as a number
or a string) and masked entries mean that the label is unknown.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyadic.errors import PolyadicError

UNLABELLED = -1
"""Class number of a window whose class is unknown."""

UNKNOWN_MARKS = '"", None, NaN or -1'
"""Values that stand for an unknown label, for messages and documentation."""

NO_LABEL = ("n/a", "nan", "na", "")
"""Texts, in lower case, that mark unknown values in tables of events and of participants."""

_Mask = NDArray[np.bool_]


def is_unknown(value: Any) -> bool:
    """Return whether a label, a subject or the name of a recording is unknown.

    Examples
    --------
    >>> [is_unknown(value) for value in ("", None, float("nan"), "nan", -1, "-1", 0, "rest")]
    [True, True, True, True, True, True, False, False]
    """
    if value is None:
        return True
    if isinstance(value, str | bytes):
        return value in ("", "-1", "nan", b"", b"-1", b"nan")
    try:
        return bool(value != value or value == UNLABELLED)
    except TypeError:  # pandas.NA: a comparison with it is neither true nor false
        return True


def as_text(value: Any) -> str:
    """Return a name as a string: "" if it is unknown, and whole numbers without a decimal point."""
    if is_unknown(value):
        return ""
    if isinstance(value, bytes):
        return value.decode()
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def as_column(values: Any, name: str, count: int) -> NDArray[Any]:
    """Return values as an array (count,); elements of a list keep their types, and masked entries become None."""
    if isinstance(values, np.ma.MaskedArray):
        values = values.tolist()
    column = np.array(values, object) if isinstance(values, list | tuple) else np.asarray(values)
    if column.shape != (count,):
        raise PolyadicError(f"{name} must have shape ({count},), one entry per window, but has shape {column.shape}")
    return column


def known_labels(y: Any, count: int, name: str = "y") -> tuple[_Mask, NDArray[Any]]:
    """Return which windows have a label, (count,) bool, and their labels, (known,): numbers as they are, or strings.

    Examples
    --------
    >>> known_labels(["rest", "", None, "walk"], 4)
    (array([ True, False, False,  True]), array(['rest', 'walk'], dtype='<U4'))
    """
    column = as_column(y, name, count)
    if column.dtype.kind in "fiub":
        known: _Mask = (column == column) & ((column != UNLABELLED) | (column.dtype.kind in "ub"))
        return known, column[known]
    known = np.fromiter((not is_unknown(value) for value in column.tolist()), bool, count)
    values = column[known].tolist()
    if all(isinstance(value, bool | int | float | np.number | np.bool_) for value in values):
        numbers = np.array(values)
        if numbers.dtype.kind in "fiub":
            return known, numbers
    return known, np.array([as_text(value) for value in values], np.str_)


def encode_labels(label: Any, classes: tuple[str, ...], count: int) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """Return labels as class numbers from 0 (`UNLABELLED` if unknown), (count,), and the names of the classes.

    Labels are names or numbers, which are positions in `classes`, if these are given; () for all labels that occur.
    """
    known, values = known_labels(label, count, "label")
    codes = np.full(count, UNLABELLED, np.int32)
    if values.dtype.kind not in "fiub":
        classes = classes or tuple(np.unique(values).tolist())
        for name in np.setdiff1d(values, classes).tolist():
            raise PolyadicError(f"label must be one of {', '.join(classes)}, but there is {name!r}")
        places = {name: number for number, name in enumerate(classes)}
        codes[known] = [places[name] for name in values.tolist()]
        return codes, classes
    if not (np.isfinite(values).all() and np.array_equal(values, np.rint(values))):
        raise PolyadicError("label must hold classes (whole numbers or names), but holds fractions or infinity")
    numbers = values.astype(np.int64)
    low, high = numbers.min(initial=0), numbers.max(initial=0)
    if low < 0 or (classes and high >= len(classes)):
        most = len(classes) - 1 if classes else "the number of classes"
        raise PolyadicError(f"label must lie between {UNLABELLED} and {most}, but reaches from {low} to {high}")
    if not classes:
        found, numbers = np.unique(numbers, return_inverse=True)
        classes = tuple(str(value) for value in found)
    codes[known] = numbers
    return codes, classes
