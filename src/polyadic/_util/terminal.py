"""Output to terminals and pipes, with names from data as plain text."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Sequence
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["console", "echo", "print_json", "print_notes", "print_table", "printable"]


def printable(name: str) -> str:
    """Return a name on one line, with control and invisible characters replaced.

    Examples
    --------
    >>> printable("night 1"), printable("red\\x1b[31m"), printable("two\\nlines")
    ('night 1', 'red�[31m', 'two�lines')
    """
    return "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in name)


def echo(line: str, *, err: bool = False, colour: str | None = None) -> None:
    """Print one line, coloured on terminals.

    A failure to write to standard error, such as a closed pipe, is ignored: it must not cost the result.
    """
    text, stream = printable(line), sys.stderr if err else sys.stdout
    if colour is not None and stream is not None and stream.isatty():
        import typer

        text = typer.style(text, fg=colour)
    with suppress(OSError) if err else nullcontext():
        print(text, file=stream, flush=True)


def print_notes(*notes: str) -> None:
    """Print notes to standard error, in yellow on terminals; empty ones are left out."""
    for note in filter(None, notes):
        echo(note, err=True, colour="yellow")


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
    """Return a rich console on standard output or standard error; pipes are wide, so that tables are whole."""
    from rich.console import Console

    stream = sys.stderr if err else sys.stdout
    return Console(stderr=err, width=None if stream is not None and stream.isatty() else 200)


def print_table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, title: str = "", err: bool = False) -> None:
    """Print a table; the first column is aligned left, the others right. Long cells continue on the next line."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    heading = Text(printable(title), "table.title") if title else None
    table = Table(title=heading, title_justify="left", box=box.SIMPLE_HEAD, collapse_padding=True)
    for number, head in enumerate(heads):
        table.add_column(Text(printable(head)), justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    console(err=err).print(table)
