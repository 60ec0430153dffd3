"""Handling of Ctrl-C, SIGTERM and SIGHUP: a message, an exit code, and how to resume.

This module imports nothing heavy, because handlers must be in place before slow imports.
"""

from __future__ import annotations

import _thread
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType

__all__ = ["Terminated", "exit_on_interrupt", "handle_signals", "resumable_fit"]

_TERMINATING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
_IMPORT_POLL = 0.02
"""Seconds after which a signal that arrived during an import is sent again."""


class Terminated(KeyboardInterrupt):
    """SIGTERM from a scheduler or SIGHUP from a closed terminal; handled like Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def _exit_code(stop: KeyboardInterrupt) -> int:
    return 128 + (stop.number if isinstance(stop, Terminated) else signal.SIGINT)


def handle_signals(program: CodeType) -> None:
    """Let Ctrl-C, SIGTERM and SIGHUP raise exceptions, but never during an import.

    Ignored signals, as under `nohup`, stay ignored. After the first SIGTERM or SIGHUP, further ones are ignored, so
    that cleanup is not interrupted.

    Parameters
    ----------
    program : code of the main function; imports in frames above it do not count
    """

    def handle(number: int, frame: FrameType | None) -> None:
        if _is_importing(frame, program):
            _thread.start_new_thread(_send_again, (number,))
        elif number == signal.SIGINT:
            raise KeyboardInterrupt
        else:
            for other in _TERMINATING:
                signal.signal(other, signal.SIG_IGN)
            raise Terminated(number)

    for number in (signal.SIGINT, *_TERMINATING):
        if signal.getsignal(number) not in (signal.SIG_IGN, None):
            signal.signal(number, handle)


def _is_importing(frame: FrameType | None, program: CodeType) -> bool:
    """Whether an import is running: an exception during the import of a C++ library would end the process."""
    while frame is not None and frame.f_code is not program:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _send_again(number: int) -> None:
    time.sleep(_IMPORT_POLL)
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident or 0, number)
    else:
        signal.raise_signal(number)


@contextmanager
def exit_on_interrupt() -> Iterator[None]:
    """Print that the command was stopped, and exit with the signal's exit code."""
    try:
        yield
    except KeyboardInterrupt as stop:
        from polyadic._util.terminal import echo

        # Commands that can be resumed put the instructions into the exception.
        first, *more = (str(stop) or "no partial output is left").split("\n")
        echo("", err=True)
        echo(f"polyadic: stopped; {first}", err=True, colour="yellow")
        for line in more:
            echo(line, err=True, colour="yellow")
        # Python remembers a Ctrl-C during exec(), as when an import creates a dataclass, and would exit by the signal
        # instead of the code; the next exec() clears it.
        exec("")  # noqa: S102
        raise SystemExit(_exit_code(stop)) from None


@contextmanager
def resumable_fit(checkpoint: Path, keep: bool) -> Iterator[None]:
    """Run a fit with a checkpoint: say how to resume it when interrupted, remove the file when done.

    Parameters
    ----------
    checkpoint : the file
    keep : whether to keep the file after the fit
    """
    try:
        yield
    except KeyboardInterrupt as stop:
        if checkpoint.exists():
            stop.args = (_how_to_resume(checkpoint),)
        raise
    if not keep:
        checkpoint.unlink(missing_ok=True)


def _how_to_resume(checkpoint: Path) -> str:
    import shlex

    words = [word for word in sys.argv[1:] if word != "--resume"]
    start = "python -m polyadic" if Path(sys.argv[0]).name == "__main__.py" else "polyadic"
    return f"progress is saved in {checkpoint}. To resume:\n  {start} {shlex.join([*words, '--resume'])}"
