"""What a command says of trouble: a line for a warning, and for an error that ends it a sentence and an exit code."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from polyadic.errors import PolyadicError
from polyadic.terminal import echo

__all__ = ["SettingsError", "exit_on_error", "plain_warnings"]


class SettingsError(PolyadicError):
    """A settings file with an unknown key or a value that is not possible."""


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Print the errors that polyadic raises on purpose, those of files, and a lack of memory; others are bugs."""
    try:
        yield
    except (PolyadicError, OSError) as error:
        _print(str(error))
        raise SystemExit(2 if isinstance(error, SettingsError) else 1) from None
    except (MemoryError, RuntimeError) as error:
        if not _is_lack_of_memory(error):
            raise
        first = str(error).partition("\n")[0]
        _print(f"there is not enough memory{f': {first}' if first else ''}")
        raise SystemExit(1) from None


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Show warnings as a line of text, without file, line and code; those meant for developers stay as they are."""
    usual = warnings.showwarning

    def show(message: Any, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, UserWarning | RuntimeWarning):
            echo(f"polyadic: warning: {' '.join(str(message).split())}", err=True, colour="yellow")
        else:
            usual(message, category, *where, **more)

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = usual


def _is_lack_of_memory(error: Exception) -> bool:
    torch = sys.modules.get("torch")
    if isinstance(error, MemoryError) or (torch is not None and isinstance(error, torch.OutOfMemoryError)):
        return True
    return "can't allocate memory" in str(error)  # torch has no class of its own for it on a CPU


def _print(message: str) -> None:
    # Further lines are indented, so that a line break in the name of a file cannot pass for a message.
    first, *more = message.split("\n")
    echo(f"polyadic: {first}", err=True, colour="red")
    for line in more:
        echo(f"  {line.strip()}", err=True, colour="red")
