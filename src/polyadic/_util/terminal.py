"""Output to terminals and pipes: without control codes, in any encoding, robust to closed streams.

Results go to standard output, where a failure to write is an error. Progress and messages go to standard error, where
failures are ignored: a closed pipe must not cost the result.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import IO, TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["console", "echo", "is_terminal", "print_json", "print_table", "printable", "robust_streams"]

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def printable(name: str) -> str:
    """Return a name on one line, with control and invisible characters replaced.

    Examples
    --------
    >>> printable("night 1"), printable("red\\x1b[31m"), printable("two\\nlines")
    ('night 1', 'red�[31m', 'two�lines')
    """
    return "".join(sign if sign.isprintable() else _REPLACEMENT for sign in name)


def echo(line: str, *, err: bool = False, colour: str | None = None) -> None:
    """Print one line, in a colour of `typer.secho` on terminals; failures to write to standard error are ignored."""
    stream = sys.stderr if err else sys.stdout
    if stream is None:
        return
    with suppress(OSError, ValueError) if err else nullcontext():
        if colour is not None and is_terminal(stream):
            import typer

            typer.secho(printable(line), file=stream, fg=colour)
            return
        stream.write(f"{printable(line)}\n")
        stream.flush()


def is_terminal(stream: IO[str] | None) -> bool:
    """Return whether a stream is an open terminal."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False


def print_json(outcome: Any) -> None:
    """Print a result as ASCII JSON; NaN and infinity become null."""
    for line in json.dumps(_finite(outcome), indent=1, allow_nan=False).split("\n"):
        echo(line)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def console(*, err: bool = False) -> Console:
    """Return a rich console on standard output, or on standard error, where failures to write are ignored."""
    from rich.console import Console

    return Console(stderr=err, file=cast(IO[str], _Lenient(sys.stderr)) if err and sys.stderr is not None else None)


def print_table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, title: str = "", err: bool = False) -> None:
    """Print a table; the first column is aligned left, the others right.

    A table that is wider than the terminal continues below, with the first column again.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    shown = console(err=err)
    columns = [[*column] for column in zip(heads, *rows, strict=True)]
    # Headings may have two lines; names from data have one.
    columns = [["\n".join(map(printable, head.split("\n"))), *map(printable, cells)] for head, *cells in columns]
    widths = [2 + max(Text(line).cell_len for cell in column for line in cell.split("\n")) for column in columns]
    first = 1
    while first < len(columns):
        last = first + 1
        while last < len(columns) and 2 + widths[0] + sum(widths[first : last + 1]) <= shown.width:
            last += 1
        heading = Text(printable(title), "table.title") if title and first == 1 else None
        table = Table(title=heading, title_justify="left", box=box.SIMPLE_HEAD, collapse_padding=True)
        part = [columns[0], *columns[first:last]]
        for number, (head, *_) in enumerate(part):
            table.add_column(Text(head), justify="right" if number else "left", no_wrap=True)
        for row in zip(*(cells for _, *cells in part), strict=True):
            table.add_row(*map(Text, row))
        shown.print(table)
        first = last


class _Lenient:
    """A text stream that ignores failures to write."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):  # broken pipe, full disk or closed stream
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def robust_streams() -> Iterator[None]:
    """Make the standard streams accept every character, and exit quietly if one of them is closed."""
    streams = [stream for stream in (sys.stdout, sys.stderr) if stream is not None]
    for stream in streams:
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        yield
    finally:
        for stream in streams:
            try:
                stream.flush()
            except (OSError, ValueError):
                _discard(stream)


def _discard(stream: IO[str]) -> None:
    """Redirect a stream to the null device: otherwise Python's final flush would fail and set the exit code."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
