"""Groups of commands that read like a manual: in the order in which one needs them, with text that fits any width."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
import typer.core

__all__ = ["Manual", "flowing"]

_ORDER = ("run", "prepare", "verify", "fit", "transform", "predict", "evaluate", "export", "report", "rank", "info")


class Manual(typer.core.TyperGroup):
    """A group of commands; Ctrl-C ends any of them with a sentence and exit code 130."""

    def __init__(self, *args: Any, **words: Any) -> None:
        super().__init__(*args, **words)
        for command in (self, *self.commands.values()):
            command.help, command.epilog = flowing(command.help or ""), flowing(command.epilog or "")

    def list_commands(self, ctx: Any) -> list[str]:
        names = super().list_commands(ctx)
        return sorted(names, key=lambda name: _ORDER.index(name) if name in _ORDER else len(_ORDER))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        return None if command is None else _without_types_of_flags(command, ctx)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        _without_types_of_flags(self, ctx)
        super().format_help(ctx, formatter)

    def make_context(self, *args: Any, **words: Any) -> Any:
        with _stopped_by_a_sentence():
            return super().make_context(*args, **words)

    def invoke(self, ctx: Any) -> Any:
        with _stopped_by_a_sentence():
            return super().invoke(ctx)


@contextmanager
def _stopped_by_a_sentence() -> Iterator[None]:
    """Say that Ctrl-C was heard, and end with its exit code."""
    try:
        yield
    except KeyboardInterrupt as stop:
        # A command that can go on where it stopped raises it again, with the words that say how.
        said = str(stop) or "nothing half-written is left"
        typer.secho(f"\npolyadic: stopped; {said}", err=True, fg="yellow")
        # Python remembers a Ctrl-C that came while a text was executed, as when an import makes a dataclass, and would
        # end by the signal instead of the code; it forgets when the next text is executed.
        exec("")  # noqa: S102
        raise typer.Exit(130) from None


def _without_types_of_flags(command: Any, ctx: Any) -> Any:
    """A flag has no value, and so no type to be shown."""
    for parameter in command.get_params(ctx):
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return command


def flowing(text: str) -> str:
    """A text whose paragraphs are one line each, for the terminal to break; indented lines stay as they are.

    Examples
    --------
    >>> flowing("one\\ntwo\\n\\nthree:\\n  polyadic run")
    'one two\\n\\nthree:\\n  polyadic run'
    """
    lines: list[str] = []
    for line in text.strip("\n").split("\n"):
        follows = bool(lines) and lines[-1].strip() and not lines[-1].startswith(" ")
        if follows and line.strip() and not line.startswith(" "):
            lines[-1] += f" {line}"
        else:
            lines.append(line)
    return "\n".join(lines)
