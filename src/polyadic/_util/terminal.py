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
from contextlib import contextmanager, suppress
from functools import cache
from typing import IO, TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

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


def _harmless(text: str) -> str:
    """Replace control characters in a text of several lines."""
    return "\n".join(printable(line) for line in text.split("\n"))


def echo(line: str, *, err: bool = False, colour: str | None = None) -> None:
    """Print one line.

    Parameters
    ----------
    err : whether to print to standard error, where failures to write are ignored
    colour : a colour name of `typer.secho`, used on terminals
    """
    stream = sys.stderr if err else sys.stdout
    if stream is None:
        return
    out = cast(IO[str], _Lenient(stream)) if err else stream
    if colour is not None and is_terminal(stream):
        import typer

        typer.secho(printable(line), file=out, fg=colour)
        return
    out.write(f"{printable(line)}\n")
    out.flush()


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
    stream = cast(IO[str], _Lenient(sys.stderr)) if err and sys.stderr is not None else None
    return _harmless_console()(stderr=err, file=stream)


def print_table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, title: str = "", err: bool = False) -> None:
    """Print a table; the first column is aligned left, the others right."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    heading = Text(title, "table.title") if title else None
    table = Table(title=heading, title_justify="left", box=box.SIMPLE_HEAD, collapse_padding=True)
    for number, head in enumerate(heads):
        table.add_column(Text(head), justify="right" if number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))
    console(err=err).print(table)


@cache
def _harmless_console() -> type[Console]:
    """Return a console class that removes control codes from texts but keeps rich's own, as for progress bars."""
    from rich.console import Console

    class HarmlessConsole(Console):
        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                yield segment if segment.control else segment._replace(text=_harmless(segment.text))

    return HarmlessConsole


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
