"""Read the files of tables as data frames with pandas: CSV, TSV (also gzip), Parquet, Feather and Excel."""

from __future__ import annotations

import csv
import gzip
import io
import re
import warnings
import zlib
from collections.abc import Collection, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from polyadic.data.labels import as_text
from polyadic.data.readers.common import check_file, check_inflation, ending_of
from polyadic.data.reading import shell_word
from polyadic.errors import DataError, MissingExtraError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["is_number", "read_frame", "read_heads", "read_texts", "typed_frame"]

_NOTHING = ["", "nan", "NaN", "NAN", "NA", "N/A", "n/a", "null"]
_SAMPLE = 1 << 16
"""Bytes at the start of a table from which separator and decimal sign are detected."""

_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+(?:[eE][+-]?\d+)?")
_DECIMAL_POINT = re.compile(r"[+-]?\d+\.\d+(?:[eE][+-]?\d+)?")
_FORMATS = {
    ".parquet": ("read_parquet", "pyarrow"),
    ".feather": ("read_feather", "pyarrow"),
    ".xlsx": ("read_excel", "openpyxl"),
}
"""Function of pandas and package that read a format."""


def read_heads(path: Path) -> tuple[str, ...]:
    """Return the column names of a table, without an unnamed first column; () if the file is not a table."""
    try:
        state = path.stat()
        return _heads_of(path, state.st_mtime_ns, state.st_size)
    except (DataError, csv.Error, OSError):
        return ()


@lru_cache(maxsize=4096)
def _heads_of(path: Path, changed: int, size: int) -> tuple[str, ...]:
    """Return the column names of a table; they are needed often, and some formats must be read as a whole for them."""
    if ending_of(path) in _FORMATS:
        return tuple(map(str, _read_binary(path).columns))
    heads = _split_heads(_decoded(path, _SAMPLE))[1]
    return heads[1:] if _has_index(heads) else heads


def read_texts(path: Path) -> pd.DataFrame:
    """Read all columns of a table as text, "" for empty cells."""
    return read_frame(path, read_heads(path))


def read_frame(path: Path, texts: Collection[str], channels: Sequence[str] | None = None) -> pd.DataFrame:
    """Read a table: the columns `texts` as strings, the channels (or all others) as numbers, NaN for empty cells.

    Raises
    ------
    DataError : if the file is not such a table; the message gives the file and the line
    """
    frame = _read_binary(path) if ending_of(path) in _FORMATS else _read_text(path, texts)
    return typed_frame(frame, path.name, texts, channels)


def typed_frame(
    frame: pd.DataFrame, file: str, texts: Collection[str], channels: Sequence[str] | None = None
) -> pd.DataFrame:
    """Return a table with the columns `texts` as strings, and the channels (or all others) as numbers."""
    heads = tuple(map(str, frame.columns))
    _check_heads(file, heads)
    if not len(frame):
        raise DataError(f"{file}: the table must have at least one sample below the names, but has none")
    columns: dict[str, Any] = {}
    for name, (_, column) in zip(heads, frame.items(), strict=True):
        if name in texts:
            columns[name] = [as_text(value).strip() for value in column]
        elif channels is None or name in channels:
            columns[name] = _numbers(column, name, file)
    return type(frame)(columns)


def _read_binary(path: Path) -> pd.DataFrame:
    import pandas as pd

    check_file(path)
    function, package = _FORMATS[ending_of(path)]
    try:
        frame: pd.DataFrame = getattr(pd, function)(path, **({"engine": package} if function == "read_excel" else {}))
        return frame
    except ImportError as error:
        raise MissingExtraError(f"{path.name} needs the package {package}: pip install {package}") from error
    except Exception as error:  # the engines raise many types
        raise DataError(f"{path.name} cannot be read as a table: {error}") from error


def _decoded(path: Path, most: int | None = None) -> str:
    """Return the text of a table, or at most its first bytes; raise if a compressed one becomes far too large."""
    size = check_file(path)
    content = bytearray()
    packed = path.suffix.lower() == ".gz"
    try:
        with gzip.open(path) if packed else path.open("rb") as file:
            while (most is None or len(content) < most) and (chunk := file.read(most or 1 << 20)):
                content += chunk
                if packed:
                    check_inflation(f"{path.name} unpacked", len(content), size, "unpack it first")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path.name} cannot be unpacked: {error}") from error
    if most is not None and len(content) >= most:
        del content[content.rfind(b"\n") + 1 :]
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:  # spreadsheets in Europe often write cp1252
        return content.decode("cp1252", "replace")


def _split_heads(text: str) -> tuple[str, tuple[str, ...]]:
    """Return the separator of a table and its column names, from the first line of its text."""
    first = re.split("[\r\n]", text, maxsplit=1)[0]
    delimiter = max(",;\t", key=re.sub('"[^"]*"', "", first).count)
    return delimiter, tuple(cell.strip() for cell in next(csv.reader([first], delimiter=delimiter), []))


def _has_index(heads: tuple[str, ...]) -> bool:
    """Whether only the first column has no name, like the index column that pandas writes."""
    return len(heads) > 1 and heads[0] == "" and "" not in heads[1:]


def _check_heads(file: str, heads: tuple[str, ...]) -> None:
    if not heads or "" in heads:
        raise DataError(f"{file}, line 1: the first row must name every channel, but is empty or has an empty name")
    if all(map(is_number, heads)):
        raise DataError(f"{file}, line 1: the first row must name the channels, but holds numbers")
    if len(set(heads)) != len(heads):
        raise DataError(f"{file}: channel names must differ, but are {', '.join(heads)}")


def _read_text(path: Path, texts: Collection[str]) -> pd.DataFrame:
    """Read a text table: separator, encoding and decimal sign are detected; blank rows at the end are ignored."""
    import pandas as pd

    text = _decoded(path)
    delimiter, heads = _split_heads(text)
    index = _has_index(heads)
    _check_heads(path.name, heads[index:])
    cells = re.split(rf"[\r\n{delimiter}]", text[:_SAMPLE])[len(heads) :]
    comma = any(map(_DECIMAL_COMMA.fullmatch, cells)) and not any(map(_DECIMAL_POINT.fullmatch, cells))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # rows that are longer than the names
            frame = pd.read_csv(
                io.StringIO(text),
                sep=delimiter,
                header=0,
                names=list(heads),
                index_col=False,
                decimal="," if comma else ".",
                dtype={name: str for name in heads if name in texts},
                keep_default_na=False,
                na_values=dict.fromkeys((name for name in heads if name not in texts), _NOTHING),
                skip_blank_lines=False,
                low_memory=False,
            )
    except (ValueError, pd.errors.ParserWarning) as error:
        hint = "; are decimal commas also the separators?" if delimiter == "," else ""
        raise DataError(f"{path.name} cannot be read as a table: {str(error).strip()}{hint}") from error
    filled = np.flatnonzero(~(frame.isna() | (frame == "")).all(axis=1))
    frame = frame.iloc[: filled[-1] + 1 if filled.size else 0]
    if index and not np.array_equal(frame.iloc[:, 0], np.arange(len(frame)) + frame.iloc[:1, 0].sum()):
        _check_heads(path.name, heads)  # an unnamed column that does not count rows
    return frame.iloc[:, int(index) :]


def is_number(cell: str) -> bool:
    """Whether a cell is a number; underscores, which Python allows, are not."""
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell


def _numbers(column: pd.Series, name: str, file: str) -> NDArray[np.float64]:
    """Return a column of numbers; raise an error with the line of the first cell that is none."""
    import pandas as pd

    numbers: NDArray[np.float64] = pd.to_numeric(column, errors="coerce").to_numpy(np.float64)
    wrong = np.flatnonzero(np.isnan(numbers) & column.notna().to_numpy())
    if wrong.size:
        row, cell = int(wrong[0]), str(column.iloc[int(wrong[0])])
        hint = "; numbers must have decimal points, not commas" if _DECIMAL_COMMA.fullmatch(cell) else ""
        if row == 0 and not hint:
            hint = f"; if the column {name!r} has labels, use --label {shell_word(name)}; --channel selects the signals"
        raise DataError(f"{file}, line {row + 2}: cells must be numbers, but there is {cell[:40]!r}{hint}")
    return numbers
