"""Command groups whose help lists commands in the order of use and wraps text to the terminal width."""

from __future__ import annotations

from typing import Any

import typer.core

from polyadic.cli.interrupts import exit_on_interrupt

__all__ = ["Manual", "flowing"]

_ORDER = ("run", "prepare", "fit", "transform", "predict", "evaluate", "export", "report", "rank", "info")


class Manual(typer.core.TyperGroup):
    """A group of commands; Ctrl-C and SIGTERM end them with a message."""

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
        with exit_on_interrupt():
            return super().make_context(*args, **words)

    def invoke(self, ctx: Any) -> Any:
        with exit_on_interrupt():
            return super().invoke(ctx)


def _without_types_of_flags(command: Any, ctx: Any) -> Any:
    """Hide the type of flags, which take no value."""
    for parameter in command.get_params(ctx):
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return command


def flowing(text: str) -> str:
    """Join the lines of each paragraph, so that the terminal can wrap them; keep indented lines.

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
