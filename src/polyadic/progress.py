"""Progress bars on the terminal: what is being done, how far it is, how long it will still take."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from polyadic.terms import Term

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.progress import Task

__all__ = ["SweepProgress", "epoch_bar", "file_bar", "stage_bar", "sweep_bar"]


def _describe(history: dict[str, list[float]]) -> str:
    """The last sweep's loss and those of its terms that are at work."""
    terms = [f"{term.label} {history[term.key][-1]:.4g}" for term in Term if history[term.key][-1] != 0]
    return f"loss {history['loss'][-1]:.4g} = {' + '.join(terms)}"


class SweepProgress(Protocol):
    """What `sweep_bar` gives: to be called with the history after every sweep, and with windows after every batch."""

    def __call__(self, history: dict[str, list[float]]) -> None: ...

    def windows(self, count: int, size: int) -> None:
        """So many more windows of this sweep, and so many bytes, are done."""
        ...


@contextmanager
def sweep_bar(title: str, max_sweeps: int, n_windows: int) -> Iterator[SweepProgress]:
    """A bar on standard error that moves with every batch; without a terminal, a line every tenth sweep and the last.

    Parameters
    ----------
    n_windows : windows in a sweep
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.text import Text

    class Bar(Progress):
        """A bar with the loss and its terms on a line of its own, for both would not fit on one."""

        terms = ""

        def get_renderables(self) -> Iterator[RenderableType]:
            yield self.make_tasks_table(self.tasks)
            yield Text(self.terms, style="dim", overflow="ellipsis", no_wrap=True)

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TextColumn("sweep {task.fields[sweep]}"),
        TimeElapsedColumn(),
        TextColumn("at most"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    with Bar(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(title, total=max_sweeps, sweep=f"0/{max_sweeps}")

        class Update:
            """Moves the bar; remembers what has not been said where there is no bar."""

            def __init__(self) -> None:
                self.unsaid, self.sweeps, self.seen, self.bytes = "", 0, 0, 0
                self.terms, self.begun = "", time.perf_counter()

            def __call__(self, history: dict[str, list[float]]) -> None:
                self.sweeps, self.seen = len(history["loss"]), 0
                self.terms = progress.terms = _describe(history)
                progress.update(task, completed=self.sweeps, sweep=f"{self.sweeps}/{max_sweeps}")
                self.unsaid = f"{title}: sweep {self.sweeps} of at most {max_sweeps}, {self.terms}"
                if self.sweeps == 1 or self.sweeps % 10 == 0:
                    self.say()

            def windows(self, count: int, size: int) -> None:
                self.seen += count
                self.bytes += size
                speed = self.bytes / 1e6 / max(time.perf_counter() - self.begun, 1e-9)
                said = f"{self.seen:,} of {n_windows:,} windows, {speed:,.0f} MB/s"
                progress.terms = f"{said}; {self.terms}" if self.terms else said
                progress.update(task, completed=self.sweeps + min(self.seen / n_windows, 1.0))

            def say(self) -> None:
                if self.unsaid and not console.is_terminal:
                    console.print(self.unsaid, soft_wrap=True)
                self.unsaid = ""

        update = Update()
        yield update
        update.say()


@contextmanager
def file_bar(title: str, hidden: bool = False) -> Iterator[Callable[[str, int, int, int, int], None]]:
    """A bar on standard error that moves with every file: files, windows, MB/s, time left; none without a terminal.

    Yields
    ------
    a function to be called with the file's name, files done, files in all, windows so far, bytes so far
    """
    begun = time.perf_counter()
    with stage_bar(title, hidden) as show:

        def update(name: str, done: int, total: int, windows: int, size: int) -> None:
            speed = size / 1e6 / max(time.perf_counter() - begun, 1e-9)
            # Where windows are what is counted, their number stands there already.
            counted = "windows" if windows == done and windows else f"{windows:,} windows" if windows else ""
            said = ", ".join(part for part in (counted, f"{speed:,.0f} MB/s", name) if part)
            show(done, total, said)

        yield update


@contextmanager
def epoch_bar(title: str, max_epochs: int) -> Iterator[Callable[[dict[str, list[float]]], None]]:
    """A bar on standard error that moves with every epoch; without a terminal, a line for every tenth and the last.

    Yields
    ------
    a function to be called with the history after every epoch
    """
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(title, total=max_epochs)
        unsaid = ""

        def update(history: dict[str, list[float]]) -> None:
            nonlocal unsaid
            done = len(history["loss"])
            unsaid = (
                f"{title}: epoch {done} of at most {max_epochs}, loss {history['loss'][-1]:.4g}, "
                f"held out {history['held_out'][-1]:.4g}"
            )
            progress.update(task, completed=done, description=unsaid)
            if done == 1 or done % 10 == 0:
                say()

        def say() -> None:
            nonlocal unsaid
            if unsaid and not console.is_terminal:
                console.print(unsaid, soft_wrap=True)
            unsaid = ""

        yield update
        say()


@contextmanager
def stage_bar(
    title: str, hidden: bool = False, unit: str = "", already: int = 0
) -> Iterator[Callable[[int, int, object], None]]:
    """A bar on standard error that moves with every stage, with throughput and time left; none without a terminal.

    Parameters
    ----------
    unit : what is counted, in the plural; without it the throughput is left to what is said of a stage
    already : how much of the work was done before

    Yields
    ------
    a function to be called with the work done, the work in all, and what is being done
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.text import Text

    class Left(TextColumn):
        """The time left, by the mean speed so far: rich itself forgets what is older than half a minute."""

        def render(self, task: Task) -> Text:
            return Text(f"left {_clock(task.fields['end'] - time.perf_counter())}", style="progress.remaining")

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[said]}"),
        TimeElapsedColumn(),
        Left(""),
    )
    hidden, begun = hidden or not console.is_terminal, time.perf_counter()
    with Progress(*columns, console=console, disable=hidden, transient=True) as progress:
        task = progress.add_task(title, total=None, said="", end=math.inf)

        def update(done: int, total: int, stage: object) -> None:
            now = time.perf_counter()
            speed = (done - already) / max(now - begun, 1e-9)
            end = now + (total - done) / speed if speed > 0 else math.inf
            words = (unit, _rate(speed) if unit else "", str(stage))
            progress.update(task, completed=done, total=total, said=", ".join(filter(None, words)), end=end)

        yield update


def _rate(speed: float) -> str:
    """A speed in what makes it a number to be read, or nothing if there is none yet.

    Examples
    --------
    >>> _rate(1234.5), _rate(2.5), _rate(0.1), _rate(0.001), _rate(0.0)
    ('1,234/s', '2.5/s', '6.0/min', '3.6/h', '')
    """
    units = {"s": 1, "min": 60, "h": 3600}
    name = next((name for name, seconds in units.items() if speed * seconds >= 1), "h")
    number = speed * units[name]
    return f"{number:,.{0 if number >= 100 else 1}f}/{name}" if number else ""


def _clock(seconds: float) -> str:
    """Hours, minutes and seconds; what takes longer than was thought is not known.

    Examples
    --------
    >>> _clock(3725.4), _clock(-0.5), _clock(-1.0), _clock(math.inf)
    ('1:02:05', '0:00:00', '-:--:--', '-:--:--')
    """
    if not -1 < seconds < math.inf:
        return "-:--:--"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
