"""Read text tables: a header row, then rows of numbers and text. Separators and decimal signs are detected."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import re
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyadic._util.files import check_regular_file
from polyadic.data.readers.compression import check_inflation
from polyadic.data.reading import shell_word
from polyadic.errors import DataError

__all__ = ["Table", "is_number", "read_heads", "read_table"]

_BLOCK = 1 << 16
"""Rows that are parsed at once, which bounds the memory taken by their strings."""

_CHUNK = 1 << 20
_ENCODINGS = ("utf-8-sig", "cp1252")
"""Tried in this order: spreadsheets in Europe often write cp1252."""

_COMMA = "; numbers must have decimal points, not commas"
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+(?:[eE][+-]?\d+)?")


class Table(NamedTuple):
    """Columns of a table by name: numbers (samples,), or as many strings."""

    heads: tuple[str, ...]
    numbers: dict[str, NDArray[np.float64]]
    texts: dict[str, list[str]]


def read_heads(path: Path) -> tuple[str, ...]:
    """Return the column names of a table, without an unnamed first column; () if the file is not a table."""
    for encoding in _ENCODINGS:
        try:
            with _opened(path, encoding) as file:
                heads = _split_heads(file.readline())[1]
                return heads[1:] if _has_index(heads) else heads
        except UnicodeDecodeError:
            continue
        except (DataError, csv.Error, OSError):
            break
    return ()


def read_table(path: Path, texts: Collection[str] = (), only: Collection[str] | None = None) -> Table:
    """Read a table; an unnamed first column that counts rows, as pandas writes it, is ignored.

    Parameters
    ----------
    texts : columns to read as strings; all others must be numeric
    only : numeric columns to read; all if None

    Raises
    ------
    DataError : if the file is not such a table; the message gives the file and the line
    """
    for encoding in _ENCODINGS:
        try:
            with _opened(path, encoding) as file:
                return _parse(file, texts, only)
        except DataError as error:
            raise DataError(f"{path.name}{error}") from error
        except UnicodeDecodeError as error:
            undecoded = error
        except csv.Error as error:
            raise DataError(f"{path.name} cannot be read as a table: {error}") from error
    raise DataError(f"{path.name} cannot be read as a table: {undecoded}") from undecoded


def is_number(cell: str) -> bool:
    """Whether a cell is a number; underscores, which Python allows, are not."""
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell


def _opened(path: Path, encoding: str) -> IO[str]:
    check_regular_file(path)
    if not path.is_file():
        raise DataError(" does not exist")
    if path.suffix.lower() != ".gz":
        return path.open(encoding=encoding, newline="")
    return io.TextIOWrapper(io.BytesIO(_inflated(path)), encoding=encoding, newline="")


def _inflated(path: Path) -> bytes:
    """Return the content of a gzip file; raise if it becomes far larger than the file."""
    size, content = path.stat().st_size, bytearray()
    try:
        with gzip.open(path) as file:
            while chunk := file.read(_CHUNK):
                content += chunk
                check_inflation(" unpacked", len(content), size, "unpack it first")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f" cannot be unpacked: {error}") from error
    return bytes(content)


def _split_heads(first: str) -> tuple[str, tuple[str, ...]]:
    """Return the separator of a table and its column names, from the first line."""
    delimiter = max(",;\t", key=re.sub('"[^"]*"', "", first).count)
    return delimiter, tuple(cell.strip() for cell in next(csv.reader([first], delimiter=delimiter), []))


def _has_index(heads: tuple[str, ...]) -> bool:
    """Whether only the first column has no name, like the index column that pandas writes."""
    return len(heads) > 1 and heads[0] == "" and "" not in heads[1:]


def _check_index(rows: list[list[str]], before: int | None) -> int | None:
    """Return the last number of the index column in these rows; None if it does not count rows."""
    cells = [row[0] for row in rows]
    first = before + 1 if before is not None else int(cells[0]) if cells[0].isdecimal() else -1
    return first + len(cells) - 1 if cells == [str(first + row) for row in range(len(cells))] else None


def _parse(file: IO[str], texts: Collection[str], only: Collection[str] | None) -> Table:
    """Parse the requested columns; error messages begin with the line, and the caller adds the file name."""
    delimiter, heads = _split_heads(file.readline())
    indexed = _has_index(heads)
    unnamed = DataError(", line 1: the first row must name every channel, but is empty or has an empty name")
    if not heads or ("" in heads and not indexed):
        raise unnamed
    if all(is_number(cell) for cell in heads):
        raise DataError(", line 1: the first row must name the channels, but holds numbers")
    if len(set(heads)) != len(heads):
        raise DataError(f": channel names must differ, but are {', '.join(heads)}")
    text_places = {name: place for place, name in enumerate(heads) if name in texts}
    places = [
        place for place, name in enumerate(heads) if name and name not in text_places and (only is None or name in only)
    ]
    reader = csv.reader(file, delimiter=delimiter, strict=True)
    blocks: list[NDArray[np.float64]] = []
    columns: dict[str, list[str]] = {name: [] for name in text_places}
    comma = False
    counted: int | None = None
    for line, rows in _row_blocks(reader, len(heads)):
        if indexed:
            counted = _check_index(rows, counted)
            if counted is None:
                raise unnamed
        comma = comma or _has_decimal_commas(rows, places)
        blocks.append(_parse_numbers(rows, places, heads, line, comma))
        for name, place in text_places.items():
            columns[name] += [row[place].strip() for row in rows]
    if not blocks:
        raise DataError(": the table must have at least one sample below the names, but has none")
    values = np.concatenate(blocks)
    return Table(heads[indexed:], {heads[place]: values[:, at] for at, place in enumerate(places)}, columns)


def _row_blocks(reader: Iterator[list[str]], width: int) -> Iterator[tuple[int, list[list[str]]]]:
    """Yield blocks of rows with the line number of the first; blank rows are allowed only at the end of the file."""
    line, ended = 1, 0
    wanted = f"the row must have {width} cell{'s' if width != 1 else ''}"
    while rows := list(itertools.islice(reader, _BLOCK)):
        full = len(rows)
        while full and not rows[full - 1]:
            full -= 1
        if ended and full:
            raise DataError(f", line {ended}: {wanted}, but is blank")
        for number, row in enumerate(rows[:full], start=line + 1):
            if len(row) != width:
                hint = _COMMA if len(row) == 2 * width else ""
                raise DataError(f", line {number}: {wanted}, but has {len(row)}{hint}")
        if full < len(rows):
            ended = ended or line + 1 + full
        if full:
            yield line + 1, rows[:full]
        line += len(rows)


def _has_decimal_commas(rows: list[list[str]], places: list[int]) -> bool:
    """Whether rows contain numbers with decimal commas, and none with decimal points."""
    cells = [row[place] for row in rows for place in places]
    return any("," in cell and _DECIMAL_COMMA.fullmatch(cell) for cell in cells) and not any("." in c for c in cells)


def _parse_numbers(
    rows: list[list[str]], places: list[int], heads: tuple[str, ...], line: int, comma: bool
) -> NDArray[np.float64]:
    """Parse the numeric columns at `places`: (rows, columns)."""
    cells = [row[place] or "nan" for row in rows for place in places]
    if comma:
        cells = [cell.replace(",", ".") if _DECIMAL_COMMA.fullmatch(cell) else cell for cell in cells]
    try:
        if any("_" in cell for cell in cells):  # Python would read 1_000 as a number
            raise ValueError
        return np.array(cells, dtype=np.float64).reshape(len(rows), len(places))
    except ValueError:
        at, cell = next((at, cell) for at, cell in enumerate(cells) if not is_number(cell))
    hint = _COMMA if is_number(cell.replace(",", ".", 1)) else ""
    column = heads[places[at % len(places)]]
    if at < len(places) and not hint:
        hint = f"; if the column {column!r} has labels, use --label {shell_word(column)}; --channel selects the signals"
    raise DataError(f", line {line + at // len(places)}: cells must be numbers, but there is {cell!r}{hint}") from None
