"""Progress bars on standard error: the current stage, how much is done, the throughput and the time left."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from polyadic._util.terminal import console, echo, is_terminal, printable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.progress import Progress, Task

__all__ = ["SweepProgress", "file_bar", "stage_bar", "sweep_bar"]


_LINE_EVERY = 10
"""Without a terminal, a line is printed for the first sweep, every tenth, and the last."""


def _has_terminal() -> bool:
    return is_terminal(sys.stderr)


class _Lines:
    """Prints status lines, where there is no terminal for a bar."""

    def __init__(self) -> None:
        self._pending = ""

    def update(self, number: int, status: str) -> None:
        self._pending = status
        if number == 1 or number % _LINE_EVERY == 0:
            self.print_pending()

    def print_pending(self) -> None:
        if self._pending:
            echo(self._pending, err=True)
        self._pending = ""


class SweepProgress(Protocol):
    """The progress of a fit: called with the history after every sweep, and with windows after every batch."""

    def __call__(self, history: dict[str, list[float]]) -> None: ...

    def start(self, attempt: int, attempts: int) -> None:
        """Report the start of a restart, counted from 1."""
        ...

    def windows(self, count: int, size: int) -> None:
        """Report a number of further windows and bytes of this sweep as done."""
        ...


def _describe_loss(history: dict[str, list[float]]) -> str:
    """Describe the loss of the last sweep and its nonzero terms."""
    labels = {name: name.replace("_", "-") for name in history if name not in ("loss", "seconds")}
    labels |= {"fit_augmented": "augmented", "tikhonov": "Tikhonov"}
    terms = [f"{label} {history[name][-1]:.4g}" for name, label in labels.items() if history[name][-1] != 0]
    return f"loss {history['loss'][-1]:.4g} = {' + '.join(terms)}"


@contextmanager
def sweep_bar(title: str, max_sweeps: int, n_windows: int) -> Iterator[SweepProgress]:
    """Show a bar that advances with every batch; without a terminal, print a line for every tenth sweep.

    Parameters
    ----------
    n_windows : number of windows in a sweep
    """
    if _has_terminal():
        with _sweep_progress() as bar:
            yield _SweepBar(bar, title, max_sweeps, n_windows)
    else:
        lines = _Lines()
        yield _SweepLines(lines, title, max_sweeps)
        lines.print_pending()


class _SweepLines:
    """Prints lines about sweeps."""

    def __init__(self, lines: _Lines, title: str, max_sweeps: int) -> None:
        self._lines, self._title, self._max_sweeps, self._attempt = lines, title, max_sweeps, ""

    def start(self, attempt: int, attempts: int) -> None:
        self._lines.print_pending()
        self._attempt = f", start {attempt} of {attempts}"

    def __call__(self, history: dict[str, list[float]]) -> None:
        done = len(history["loss"])
        self._lines.update(
            done, f"{self._title}{self._attempt}: sweep {done} of at most {self._max_sweeps}, {_describe_loss(history)}"
        )

    def windows(self, count: int, size: int) -> None:
        pass


class _SweepBar:
    """Moves a bar with sweeps and batches."""

    def __init__(self, bar: Any, title: str, max_sweeps: int, n_windows: int) -> None:
        self._bar, self._title, self._max_sweeps, self._n_windows = bar, printable(title), max_sweeps, n_windows
        self._task = bar.add_task(printable(title), total=max_sweeps, sweep=f"0/{max_sweeps}")
        self._sweeps, self._windows_done, self._bytes = 0, 0, 0
        self._loss, self._begun = "", time.perf_counter()

    def start(self, attempt: int, attempts: int) -> None:
        self._sweeps = self._windows_done = 0
        title = f"{self._title}, start {attempt} of {attempts}"
        self._bar.update(self._task, description=title, completed=0, sweep=f"0/{self._max_sweeps}")

    def __call__(self, history: dict[str, list[float]]) -> None:
        self._sweeps, self._windows_done = len(history["loss"]), 0
        self._loss = self._bar.status = _describe_loss(history)
        self._bar.update(self._task, completed=self._sweeps, sweep=f"{self._sweeps}/{self._max_sweeps}")

    def windows(self, count: int, size: int) -> None:
        self._windows_done += count
        self._bytes += size
        speed = self._bytes / 1e6 / max(time.perf_counter() - self._begun, 1e-9)
        status = f"{self._windows_done:,} of {self._n_windows:,} windows, {speed:,.0f} MB/s"
        self._bar.status = f"{status}; {self._loss}" if self._loss else status
        self._bar.update(self._task, completed=self._sweeps + min(self._windows_done / self._n_windows, 1.0))


def _sweep_progress() -> Progress:
    """Build the bar of `sweep_bar`, with the loss and its terms on a second line."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.text import Text

    class Bar(Progress):
        status = ""

        def get_renderables(self) -> Iterator[RenderableType]:
            yield self.make_tasks_table(self.tasks)
            yield Text(self.status, style="dim", overflow="ellipsis", no_wrap=True)

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        TextColumn("sweep {task.fields[sweep]}"),
        TimeElapsedColumn(),
        TextColumn("at most"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    return Bar(*columns, console=console(err=True))


@contextmanager
def file_bar(title: str, hidden: bool = False) -> Iterator[Callable[[str, int, int, int, int], None]]:
    """Show a bar that advances with every file: files, windows, MB/s, time left. Only shown on a terminal.

    Yields
    ------
    a function to call with the file's name, files done, total files, windows so far, bytes so far
    """
    begun = time.perf_counter()
    with stage_bar(title, hidden) as show:

        def update(name: str, done: int, total: int, windows: int, size: int) -> None:
            speed = size / 1e6 / max(time.perf_counter() - begun, 1e-9)
            # If the bar counts windows, their number is already shown.
            counted = "windows" if windows == done and windows else f"{windows:,} windows" if windows else ""
            show(done, total, ", ".join(part for part in (counted, f"{speed:,.0f} MB/s", name) if part))

        yield update


@contextmanager
def stage_bar(
    title: str, hidden: bool = False, unit: str = "", already: int = 0
) -> Iterator[Callable[[int, int, object], None]]:
    """Show a bar that advances with every stage, with throughput and time left. Only shown on a terminal.

    Parameters
    ----------
    unit : name of the counted items, in the plural; without it no throughput is shown
    already : number of items done before

    Yields
    ------
    a function to call with the work done, the total work, and the current stage
    """
    if hidden or not _has_terminal():
        yield lambda done, total, stage: None
        return
    bar, task = _stage_progress(printable(title))
    begun = time.perf_counter()
    with bar:

        def update(done: int, total: int, stage: object) -> None:
            now = time.perf_counter()
            speed = (done - already) / max(now - begun, 1e-9)
            end = now + (total - done) / speed if speed > 0 else math.inf
            status = ", ".join(filter(None, (unit, _rate(speed) if unit else "", str(stage))))
            bar.update(task, completed=done, total=total, status=printable(status), end=end)

        yield update


def _stage_progress(title: str) -> tuple[Progress, Any]:
    """Build the bar of `stage_bar`, and its task."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.text import Text

    class TimeLeft(TextColumn):
        """Time left, estimated from the mean speed so far; rich only uses the last 30 seconds."""

        def render(self, task: Task) -> Text:
            return Text(f"left {_clock(task.fields['end'] - time.perf_counter())}", style="progress.remaining")

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[status]}", markup=False),
        TimeElapsedColumn(),
        TimeLeft(""),
    )
    bar = Progress(*columns, console=console(err=True), transient=True)
    return bar, bar.add_task(title, total=None, status="", end=math.inf)


def _rate(speed: float) -> str:
    """Format a speed per second, minute or hour, whichever gives a readable number; empty if it is zero.

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
    """Format a time as hours, minutes and seconds, or as dashes if it is unknown or already over.

    Examples
    --------
    >>> _clock(3725.4), _clock(-0.5), _clock(-1.0), _clock(math.inf)
    ('1:02:05', '0:00:00', '-:--:--', '-:--:--')
    """
    if not -1 < seconds < math.inf:
        return "-:--:--"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
