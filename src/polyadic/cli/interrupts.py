"""What becomes of a command that is stopped by Ctrl-C or SIGTERM: a sentence, an exit code, and a way to go on."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from polyadic.team import Team

__all__ = ["Terminated", "going_on", "stopped_by_a_sentence", "terminate_like_ctrl_c"]


class Terminated(KeyboardInterrupt):
    """SIGTERM, as schedulers send it before they kill: what it ends is cleared away as after Ctrl-C."""


def terminate_like_ctrl_c() -> None:
    """Let SIGTERM end this process as Ctrl-C does, with another exit code; a second one does not disturb that."""

    def terminated(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Terminated

    signal.signal(signal.SIGTERM, terminated)


@contextmanager
def stopped_by_a_sentence() -> Iterator[None]:
    """Say that Ctrl-C or SIGTERM was heard, and end with its exit code."""
    try:
        yield
    except KeyboardInterrupt as stop:
        # A command that can go on where it stopped has put in the words that say how.
        said = str(stop) or "nothing half-written is left"
        typer.secho(f"\npolyadic: stopped; {said}", err=True, fg="yellow")
        # Python remembers a Ctrl-C that came while a text was executed, as when an import makes a dataclass, and would
        # end by the signal instead of the code; it forgets when the next text is executed.
        exec("")  # noqa: S102
        raise typer.Exit(143 if isinstance(stop, Terminated) else 130) from None


@contextmanager
def going_on(folder: Path, kept: bool, team: Team) -> Iterator[None]:
    """Around a fit with checkpoints: stopped, it says how to go on; done, it removes a folder that nobody asked for.

    Parameters
    ----------
    folder : of the checkpoints
    kept : whether it stays when all is done
    team : the processes that fit together, of which the first speaks
    """
    from polyadic.engine import checkpoints

    def there() -> bool:
        return folder.is_dir() and bool(checkpoints.list_checkpoints(folder))

    try:
        yield
    except KeyboardInterrupt as stop:
        if team.index > 0:
            raise typer.Exit(143 if isinstance(stop, Terminated) else 130) from None
        if there():
            stop.args = (_how(folder, team),)
        raise
    finally:
        # One that holds nothing, as of a fit that was refused, is of no use to anyone.
        if team.index == 0 and not kept and folder.is_dir() and not there():
            checkpoints.remove_checkpoints(folder)
    if not kept:
        team.once(lambda: checkpoints.remove_checkpoints(folder))


def _how(folder: Path, team: Team) -> str:
    """The command that goes on; how several processes were started is not known here."""
    if team.size > 1:
        return f"the same command with --resume goes on from {folder}"
    words = [word for word in sys.argv[1:] if word != "--resume"]
    start = "python -m polyadic" if Path(sys.argv[0]).name == "__main__.py" else "polyadic"
    return f"how far it came is in {folder}. To go on:\n  {start} {shlex.join([*words, '--resume'])}"
