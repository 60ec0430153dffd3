"""Progress bars on standard error: the current stage, how much is done, the throughput and the time left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from polyadic._util.terminal import console, echo, printable

__all__ = ["SweepBar", "file_bar", "stage_bar", "sweep_bar", "window_bar"]

_LINE_EVERY = 10
"""Without a terminal, a line is printed for the first sweep, every tenth, and the last."""


def _bar(title: str, hidden: bool = False) -> tuple[Any, Any]:
    """Return a bar that is shown on terminals only, and its task, which has a `status` text."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    shown = console(err=True)
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=15),
        TextColumn("{task.fields[status]}", markup=False),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=shown,
        transient=True,
        speed_estimate_period=1e9,  # seconds: the time left follows from the mean speed of the whole run
        disable=hidden or not shown.is_terminal,
    )
    return bar, bar.add_task(printable(title), total=None, status="")


def _speed(amount: float, begun: float) -> float:
    return amount / max(time.perf_counter() - begun, 1e-9)


class SweepBar:
    """The progress of a fit: a bar on a terminal, else lines. It is called with the history after every sweep."""

    def __init__(self, bar: Any, task: Any, title: str, max_sweeps: int, n_windows: int) -> None:
        self._bar, self._task, self._title = bar, task, printable(title)
        self._max_sweeps, self._n_windows = max_sweeps, n_windows
        self._line, self._loss, self._sweeps, self._windows_done, self._bytes = "", "", 0, 0, 0
        self._attempt, self._begun = "", time.perf_counter()

    def start(self, attempt: int, attempts: int) -> None:
        """Report the start of a restart, counted from 1."""
        self.print_line()
        self._attempt, self._sweeps, self._windows_done = f", start {attempt} of {attempts}", 0, 0

    def __call__(self, history: dict[str, list[float]]) -> None:
        self._sweeps, self._windows_done = len(history["loss"]), 0
        labels = {name: name.replace("_", "-") for name in history if name not in ("loss", "seconds")}
        labels |= {"fit_augmented": "augmented", "tikhonov": "Tikhonov"}
        terms = [f"{label} {history[name][-1]:.4g}" for name, label in labels.items() if history[name][-1] != 0]
        self._loss = f", loss {history['loss'][-1]:.4g}"
        count = f"sweep {self._sweeps} of at most {self._max_sweeps}"
        self._line = f"{self._title}{self._attempt}: {count}{self._loss} = {' + '.join(terms)}"
        if self._sweeps == 1 or self._sweeps % _LINE_EVERY == 0:
            self.print_line()
        self.windows(0, 0)

    def windows(self, count: int, size: int) -> None:
        """Report a number of further windows and bytes of this sweep as done."""
        self._windows_done += count
        self._bytes += size
        stage = f"sweep {self._sweeps}/{self._max_sweeps}" if self._sweeps else "reading windows"
        self._bar.update(
            self._task,
            total=self._max_sweeps,
            completed=self._sweeps + min(self._windows_done / self._n_windows, 1.0),
            status=f"{stage}{self._loss}, {_speed(self._bytes / 1e6, self._begun):,.0f} MB/s",
            description=f"{self._title}{self._attempt}",
        )

    def print_line(self) -> None:
        """Print the last line that was not yet printed, if there is no bar."""
        if self._bar.disable and self._line:
            echo(self._line, err=True)
        self._line = ""


@contextmanager
def sweep_bar(title: str, max_sweeps: int, n_windows: int) -> Iterator[SweepBar]:
    """Show a bar that advances with every batch of `n_windows`; without a terminal, print a line every tenth sweep."""
    bar, task = _bar(title)
    with bar:
        sweeps = SweepBar(bar, task, title, max_sweeps, n_windows)
        yield sweeps
    sweeps.print_line()


@contextmanager
def stage_bar(title: str, hidden: bool = False, unit: str = "") -> Iterator[Callable[[int, int, object], None]]:
    """Show a bar on a terminal; yield a function to call with the work done, the total work and the current stage.

    Throughput is shown if the counted items have a name, in the plural.
    """
    begun = time.perf_counter()
    bar, task = _bar(title, hidden)

    def update(done: int, total: int, stage: object) -> None:
        speed = _rate(_speed(done, begun)) if unit else ""
        status = ", ".join(filter(None, (f"{done}/{total} {unit}".strip(), speed, str(stage))))
        bar.update(task, completed=done, total=total, status=printable(status))

    with bar:
        yield update


@contextmanager
def window_bar(title: str, n_windows: int, hidden: bool) -> Iterator[Callable[[int], None]]:
    """Show a bar that counts windows; yield a function to call with the number of windows done."""
    with stage_bar(title, hidden, "windows") as show:
        yield lambda done: show(done, n_windows, "")


@contextmanager
def file_bar(title: str, hidden: bool = False) -> Iterator[Callable[[str, int, int, int, int], None]]:
    """Show a bar; yield a function to call with a file's name, files done, total files, windows and bytes so far."""
    begun = time.perf_counter()
    with stage_bar(title, hidden) as show:
        yield lambda name, done, total, windows, size: show(
            done, total, f"{windows:,} windows, {_speed(size / 1e6, begun):,.0f} MB/s, {name}"
        )


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
