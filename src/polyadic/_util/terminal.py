"""Output to terminals and pipes, with names from data as plain text."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pandas import DataFrame

_LISTED, _ROWS = 12, 40
"""Maximum number of items of a list and of rows of a table that are shown; JSON has all."""


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
    finite = json.loads(json.dumps(outcome), parse_constant=lambda _: None)
    for line in json.dumps(finite, indent=1).split("\n"):
        echo(line)


def described(facts: Mapping[str, Any]) -> list[str]:
    """Return the entries of a result that are known as lines; long lists are cut off."""
    lines = []
    for name, value in _known(facts):
        several = isinstance(value, Mapping)
        texts = [f"{key}: {_shown('', item)}" for key, item in _known(value)] if several else [_shown(name, value)]
        heads = [name.replace("_", " "), *[""] * len(texts)]
        lines += [f"{head:<18}  {text}" for head, text in zip(heads, texts, strict=False)]
    return lines


def _known(facts: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the entries that are not empty."""
    return [(name, value) for name, value in facts.items() if value not in (None, "", [], {}, ())]


def _shown(name: str, value: Any) -> str:
    if name in ("shape", "window"):
        return " × ".join(f"{side:,}" for side in value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_shown('', item)}" for key, item in _known(value))
    if isinstance(value, list | tuple):
        if value and isinstance(value[0], list):
            return f"{len(value):,} × {len(value[0]):,} values"
        more = f", … ({len(value):,} in all)" if len(value) > _LISTED else ""
        return ", ".join(_shown("", item) for item in value[:_LISTED]) + more
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if name.endswith("bytes"):
        return f"{value / 1e6:,.1f} MB" if value >= 1e6 else f"{value / 1e3:,.1f} kB"
    text = f"{value:,}" if isinstance(value, int) else f"{value:.6g}"
    return text + {"fs": " Hz", "seconds": " s"}.get(name, "")


def print_table(frame: DataFrame, title: str = "", err: bool = False) -> None:
    """Print a table; one that is wider than the terminal continues below, with the names of its rows."""
    stream = sys.stderr if err else sys.stdout
    width = get_terminal_size().columns if stream is not None and stream.isatty() else None
    plain = frame.rename(index=lambda name: printable(str(name)), columns=printable)
    text = plain.to_string(line_width=width, float_format="{:,.1f}".format, max_colwidth=None, max_rows=_ROWS)
    for line in ("", *([title] if title else []), *text.split("\n"), ""):
        echo(line, err=err)
