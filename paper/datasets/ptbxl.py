"""Read the table of PTB-XL, `ptbxl_database.csv`: patient, sex, age, fold and files of each ECG.

The ECGs are WFDB records, which `polyadic.data.readers.wfdb` reads.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyadic._util.files import check_regular_file
from polyadic.errors import DataError

__all__ = ["read_metadata"]

_FILE = "ptbxl_database.csv"
_DTYPES = {
    "ecg_id": np.int64,
    "patient_id": np.int64,
    "age": np.float64,
    "sex": np.int8,
    "strat_fold": np.int8,
    "filename_lr": np.str_,
    "filename_hr": np.str_,
}
# Some columns of the published table have whole numbers as decimals, such as 56.0.
_INTEGER = re.compile(r"[0-9]{1,15}(\.0)?")
_PATH = re.compile(r"[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*")


def read_metadata(root: str | Path) -> dict[str, NDArray[Any]]:
    """Read the columns of the table that a study needs, in row order.

    Parameters
    ----------
    root : folder that contains `ptbxl_database.csv`

    Returns
    -------
    columns, each (records,): ecg_id and patient_id, int64; age in years, float64, NaN if unknown and 300, as published,
    above 89; sex, int8, 0 male and 1 female; strat_fold, int8, 1 to 10; filename_lr and filename_hr, paths of the
    records at 100 and 500 Hz, relative to `root`

    Raises
    ------
    DataError : if the table is missing or a row is invalid; the message gives the line
    """
    rows = _parse_rows(_read_text(Path(root) / _FILE))
    _, titles = next(rows, (0, []))
    for title in _DTYPES:
        if titles.count(title) != 1:
            raise DataError(f"{_FILE}: line 1 must name the column {title} once, but names {', '.join(titles)[:200]}")
    places = {title: titles.index(title) for title in _DTYPES}
    columns: dict[str, list[Any]] = {title: [] for title in _DTYPES}
    seen: dict[int, int] = {}
    for line, row in rows:
        if len(row) != len(titles):
            raise DataError(f"{_FILE}: line {line} must have {len(titles)} fields, but has {len(row)}")
        values = _parse_values({title: row[place] for title, place in places.items()}, line)
        if values["ecg_id"] in seen:
            raise DataError(
                f"{_FILE}: lines {seen[values['ecg_id']]} and {line} have the same ecg_id, {values['ecg_id']}"
            )
        seen[values["ecg_id"]] = line
        for title, value in values.items():
            columns[title].append(value)
    if not seen:
        raise DataError(f"{_FILE}: the table has no records")
    return {title: np.array(columns[title], dtype) for title, dtype in _DTYPES.items()}


def _read_text(path: Path) -> str:
    check_regular_file(path)
    if not path.is_file():
        raise DataError(f"{path.name}: there is no such file")
    data = path.read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path.name}: line {line} must be UTF-8, but has the byte {data[error.start]:#x}") from None


def _parse_rows(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield each row with the number of the line on which it ends."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        raise DataError(f"{_FILE}: line {reader.line_num} must be a row of comma-separated values: {error}") from None


def _parse_values(row: dict[str, str], line: int) -> dict[str, Any]:
    values: dict[str, Any] = {
        "ecg_id": _parse_integer(row, "ecg_id", line, 1),
        "patient_id": _parse_integer(row, "patient_id", line, 0),
        "age": _parse_integer(row, "age", line, 0, 300) if row["age"] else math.nan,
        "sex": _parse_integer(row, "sex", line, 0, 1),
        "strat_fold": _parse_integer(row, "strat_fold", line, 1, 10),
    }
    for title, ending in (("filename_lr", "lr"), ("filename_hr", "hr")):
        path, expected = row[title], f"{values['ecg_id']:05d}_{ending}"
        # The pattern allows no dots, so that no path can leave the root; records have no extension.
        if not _PATH.fullmatch(path) or path.rpartition("/")[2] != expected:
            raise DataError(
                f"{_FILE}: line {line}: {title} must be a path relative to the dataset folder that ends in {expected}, "
                f"but is {path[:80]!r}"
            )
        values[title] = path
    return values


def _parse_integer(row: dict[str, str], title: str, line: int, low: int, high: int | None = None) -> int:
    text = row[title]
    value = int(float(text)) if _INTEGER.fullmatch(text) else None
    if value is None or value < low or (high is not None and value > high):
        wanted = f"a whole number from {low}" + ("" if high is None else f" to {high}")
        raise DataError(f"{_FILE}: line {line}: {title} must be {wanted}, but is {text[:80]!r}")
    return value
