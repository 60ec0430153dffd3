"""How commands report errors and warnings: one line each, and an exit code."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from polyadic._util.terminal import echo
from polyadic.errors import PolyadicError

__all__ = ["SettingsError", "exit_on_error", "plain_warnings"]


class SettingsError(PolyadicError):
    """A settings file has an unknown key or an invalid value."""


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Print PolyadicError, OSError and out-of-memory errors without a traceback; all others are bugs."""
    try:
        yield
    except (PolyadicError, OSError) as error:
        _print(str(error))
        raise SystemExit(2 if isinstance(error, SettingsError) else 1) from None
    except (MemoryError, RuntimeError) as error:
        if not _is_lack_of_memory(error):
            raise
        first = str(error).partition("\n")[0]
        _print(f"not enough memory{f': {first}' if first else ''}")
        raise SystemExit(1) from None


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Show warnings as one line of text, without file and code; warnings for developers are shown as usual."""
    usual = warnings.showwarning

    def show(message: Any, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, UserWarning | RuntimeWarning):
            text = " ".join(str(message).split())
            estimators = sys.modules.get("polyadic.estimators")  # loaded if a fit warned
            if estimators is not None:
                text = text.replace(estimators.MORE_SWEEPS, "Increase --sweeps.")
            echo(f"polyadic: warning: {text}", err=True, colour="yellow")
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
    return "can't allocate memory" in str(error)  # torch has no exception class for it on the CPU


def _print(message: str) -> None:
    # Further lines are indented, so that a line break in a file name cannot imitate a message.
    first, *more = message.split("\n")
    echo(f"polyadic: {first}", err=True, colour="red")
    for line in more:
        echo(f"  {line.strip()}", err=True, colour="red")
