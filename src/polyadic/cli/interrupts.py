"""How a command ends that is stopped by Ctrl-C, SIGTERM or SIGHUP: a sentence, an exit code, and a way to resume.

This module imports nothing heavy: it must be at work before anything that takes time to import.
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
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polyadic.team import Team

__all__ = ["Terminated", "exit_on_interrupt", "handle_signals", "resumable_fit"]

_TERMINATING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
_IMPORT_POLL = 0.02
"""Seconds after which a signal that came during an import is tried again."""


class Terminated(KeyboardInterrupt):
    """SIGTERM from a scheduler or SIGHUP from a closed terminal: cleaned up after as after Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def _exit_code(stop: KeyboardInterrupt) -> int:
    return 128 + (stop.number if isinstance(stop, Terminated) else signal.SIGINT)


def handle_signals(program: CodeType) -> None:
    """Let Ctrl-C, SIGTERM and SIGHUP raise exceptions, though never in the middle of an import.

    Signals that are ignored, as by `nohup`, stay ignored. After a first SIGTERM or SIGHUP further ones are ignored, so
    that cleaning up is not disturbed.

    Parameters
    ----------
    program : the code of the program's main function; an import that it runs in itself does not count
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
    """Whether an import is under way: libraries in C++ end the process if an exception meets them in theirs."""
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
    """Say that a command was stopped, and end the program with the signal's exit code."""
    try:
        yield
    except KeyboardInterrupt as stop:
        from polyadic.terminal import echo

        # A command that can be resumed has put into the exception how.
        first, *more = (str(stop) or "no partial output is left").split("\n")
        echo("", err=True)
        echo(f"polyadic: stopped; {first}", err=True, colour="yellow")
        for line in more:
            echo(line, err=True, colour="yellow")
        # Python remembers a Ctrl-C that came while a text was executed, as when an import makes a dataclass, and would
        # end by the signal instead of the code; it forgets when the next text is executed.
        exec("")  # noqa: S102
        raise SystemExit(_exit_code(stop)) from None


@contextmanager
def resumable_fit(folder: Path, keep: bool, team: Team) -> Iterator[None]:
    """Around a fit with checkpoints: when it is stopped, say how to resume; when it is done, remove the folder.

    Parameters
    ----------
    folder : of the checkpoints
    keep : whether the folder stays when the fit is done
    team : the processes that fit together, of which the first prints
    """
    from polyadic.engine import checkpoints

    def has_checkpoints() -> bool:
        return folder.is_dir() and bool(checkpoints.list_checkpoints(folder))

    try:
        yield
    except KeyboardInterrupt as stop:
        if team.index > 0:
            raise SystemExit(_exit_code(stop)) from None
        if has_checkpoints():
            stop.args = (_how_to_resume(folder, team),)
        raise
    finally:
        # A fit that was refused leaves an empty folder, which is of no use.
        if team.index == 0 and not keep and folder.is_dir() and not has_checkpoints():
            checkpoints.remove_checkpoints(folder)
    if not keep:
        team.once(lambda: checkpoints.remove_checkpoints(folder))


def _how_to_resume(folder: Path, team: Team) -> str:
    """The command that resumes the fit; how several processes were started is not known here."""
    import shlex

    if team.size > 1:
        return f"the same command with --resume continues from {folder}"
    words = [word for word in sys.argv[1:] if word != "--resume"]
    start = "python -m polyadic" if Path(sys.argv[0]).name == "__main__.py" else "polyadic"
    return f"progress is saved in {folder}. To resume:\n  {start} {shlex.join([*words, '--resume'])}"
