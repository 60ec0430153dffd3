"""How commands end: one line about an error or a signal, and an exit code."""

from __future__ import annotations

import errno
import shlex
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from polyadic._util.terminal import echo
from polyadic.errors import PolyadicError

__all__ = ["exit_with_message", "resume_command"]


@contextmanager
def exit_with_message(has_sweeps: bool = False) -> Iterator[None]:
    """Turn errors and signals into a message and an exit code, and warnings into one line each.

    SIGTERM and SIGHUP act like Ctrl-C; ignored signals, as under `nohup`, stay ignored. PolyadicError, OSError and a
    lack of memory are shown without a traceback; all other exceptions are bugs.

    Parameters
    ----------
    has_sweeps : whether the command has the option --sweeps, which a warning may then recommend
    """
    received, shown = [signal.SIGINT], set[str]()

    def stop(number: int, _: Any) -> None:
        received[0] = signal.Signals(number)
        raise KeyboardInterrupt

    def show(message: Any, category: type[Warning], *where: Any, **more: Any) -> None:
        text = " ".join(str(message).split())
        estimators = sys.modules.get("polyadic.estimators")  # loaded if a fit warned
        if estimators is not None:
            text = text.replace(estimators.MORE_SWEEPS, "Increase --sweeps." if has_sweeps else "").rstrip()
        if text not in shown:  # the same data may be read several times
            shown.add(text)
            echo(f"polyadic: warning: {text}", err=True, colour="yellow")

    usual = warnings.showwarning
    warnings.showwarning = show
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) == signal.SIG_DFL:
                signal.signal(number, stop)
    try:
        yield
    except KeyboardInterrupt as interrupt:
        # Commands that can be resumed put the instructions into the exception.
        _tell(f"stopped; {str(interrupt) or 'no partial output is left'}", "yellow")
        raise SystemExit(128 + received[0]) from None
    except (PolyadicError, OSError) as error:
        if isinstance(error, OSError) and error.errno == errno.EPIPE:
            raise  # click ends quietly
        _tell(str(error), "red")
        raise SystemExit(1) from None
    except (MemoryError, RuntimeError) as error:  # torch raises a RuntimeError
        text = str(error)
        if not (isinstance(error, MemoryError) or "out of memory" in text or "can't allocate memory" in text):
            raise
        _tell(f"not enough memory: {text.partition(chr(10))[0]}", "red")
        raise SystemExit(1) from None
    finally:
        warnings.showwarning = usual


def _tell(message: str, colour: str) -> None:
    # Further lines are indented, so that a line break in a file name cannot imitate a message.
    first, *more = message.split("\n")
    for line in (f"polyadic: {first}", *(f"  {line.strip()}" for line in more)):
        echo(line, err=True, colour=colour)


def resume_command() -> str:
    """Return the command line of this process with --resume."""
    words = [word for word in sys.argv[1:] if word != "--resume"]
    start = "python -m polyadic" if Path(sys.argv[0]).name == "__main__.py" else "polyadic"
    return f"{start} {shlex.join([*words, '--resume'])}"
