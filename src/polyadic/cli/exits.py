"""How commands end: one line about an error or a signal, and an exit code.

This module imports nothing heavy, because signal handlers must be in place before slow imports.
"""

from __future__ import annotations

import _thread
import shlex
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from polyadic._util.terminal import echo
from polyadic.errors import PolyadicError

__all__ = ["exit_on_error", "exit_on_interrupt", "handle_signals", "plain_warnings", "resume_command"]

_TERMINATING = (signal.SIGTERM, signal.SIGHUP)
_IMPORT_POLL = 0.02
"""Seconds after which a signal that arrived during an import is sent again."""


_received = [signal.SIGINT]
"""The signal that stopped this process, for its exit code."""


def handle_signals(program: CodeType) -> None:
    """Let Ctrl-C, SIGTERM and SIGHUP raise KeyboardInterrupt, but never during an import.

    An exception during the import of a C++ library would abort the process. Ignored signals, as under `nohup`, stay
    ignored. After the first SIGTERM or SIGHUP, further ones are ignored, so that cleanup is not interrupted.

    Parameters
    ----------
    program : code of the main function; imports in frames above it do not count
    """

    def handle(number: int, frame: FrameType | None) -> None:
        while frame is not None and frame.f_code is not program:
            if frame.f_code.co_filename.startswith("<frozen importlib"):
                _thread.start_new_thread(send_again, (number,))
                return
            frame = frame.f_back
        _received[0] = signal.Signals(number)
        if number in _TERMINATING:
            for other in _TERMINATING:
                signal.signal(other, signal.SIG_IGN)
        raise KeyboardInterrupt

    def send_again(number: int) -> None:
        time.sleep(_IMPORT_POLL)
        signal.pthread_kill(threading.main_thread().ident or 0, number)

    for number in (signal.SIGINT, *_TERMINATING):
        if signal.getsignal(number) not in (signal.SIG_IGN, None):
            signal.signal(number, handle)


@contextmanager
def exit_on_interrupt() -> Iterator[None]:
    """Print that the command was stopped, and exit with the signal's exit code."""
    try:
        yield
    except KeyboardInterrupt as stop:
        # Commands that can be resumed put the instructions into the exception.
        first, *more = (str(stop) or "no partial output is left").split("\n")
        for line in ("", f"polyadic: stopped; {first}", *more):
            echo(line, err=True, colour="yellow")
        raise SystemExit(128 + _received[0]) from None


def resume_command() -> str:
    """Return the command line of this process with --resume."""
    words = [word for word in sys.argv[1:] if word != "--resume"]
    start = "python -m polyadic" if Path(sys.argv[0]).name == "__main__.py" else "polyadic"
    return f"{start} {shlex.join([*words, '--resume'])}"


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Print PolyadicError, OSError and out-of-memory errors without a traceback; all others are bugs."""
    try:
        yield
    except (PolyadicError, OSError) as error:
        message = str(error)
    except (MemoryError, RuntimeError) as error:
        torch = sys.modules.get("torch")
        known = (MemoryError,) if torch is None else (MemoryError, torch.OutOfMemoryError)
        # torch has no exception class for it on the CPU.
        if not isinstance(error, known) and "can't allocate memory" not in str(error):
            raise
        message = ": ".join(filter(None, ["not enough memory", str(error).partition("\n")[0]]))
    else:
        return
    # Further lines are indented, so that a line break in a file name cannot imitate a message.
    first, *more = message.split("\n")
    for line in (f"polyadic: {first}", *(f"  {line.strip()}" for line in more)):
        echo(line, err=True, colour="red")
    raise SystemExit(1)


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Show warnings as one line of text, without file and code; warnings for developers are shown as usual."""
    usual = warnings.showwarning

    def show(message: Any, category: type[Warning], *where: Any, **more: Any) -> None:
        if not issubclass(category, UserWarning | RuntimeWarning):
            usual(message, category, *where, **more)
            return
        text = " ".join(str(message).split())
        estimators = sys.modules.get("polyadic.estimators")  # loaded if a fit warned
        if estimators is not None:
            text = text.replace(estimators.MORE_SWEEPS, "Increase --sweeps of fit.")
        echo(f"polyadic: warning: {text}", err=True, colour="yellow")

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = usual
