"""Progress bars on standard error: the current stage, how much is done, the throughput and the time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from polyadic._util.terminal import console, echo, is_terminal, printable

__all__ = ["SweepBar", "file_bar", "stage_bar", "sweep_bar", "window_bar"]

_LINE_EVERY = 10
"""Without a terminal, a line is printed for the first sweep, every tenth, and the last."""

_WHOLE_RUN = 1e9
"""Seconds over which rich averages the speed, for the time left: all that have passed."""


def _has_terminal() -> bool:
    return is_terminal(sys.stderr)


def _bar(*columns: str) -> Any:
    """Build a bar with a description, texts with the fields of a task, and the time passed and left."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    texts = (TextColumn(text, markup=False) for text in columns)
    left = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    title = TextColumn("{task.description}", markup=False)
    return Progress(
        title,
        BarColumn(bar_width=15),
        *texts,
        *left,
        console=console(err=True),
        transient=True,
        speed_estimate_period=_WHOLE_RUN,
    )


class SweepBar:
    """The progress of a fit: a bar on a terminal, else lines. It is called with the history after every sweep."""

    def __init__(self, bar: Any, title: str, max_sweeps: int, n_windows: int) -> None:
        self._bar, self._title, self._max_sweeps, self._n_windows = bar, printable(title), max_sweeps, n_windows
        self._task = None if bar is None else bar.add_task(self._title, total=max_sweeps, status="")
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
        self._line = (
            f"{self._title}{self._attempt}: sweep {self._sweeps} of at most {self._max_sweeps}{self._loss} = "
            + " + ".join(terms)
        )
        if self._sweeps == 1 or self._sweeps % _LINE_EVERY == 0:
            self.print_line()
        self.windows(0, 0)

    def windows(self, count: int, size: int) -> None:
        """Report a number of further windows and bytes of this sweep as done."""
        self._windows_done += count
        self._bytes += size
        if self._bar is not None:
            speed = self._bytes / 1e6 / max(time.perf_counter() - self._begun, 1e-9)
            stage = f"sweep {self._sweeps}/{self._max_sweeps}" if self._sweeps else "reading windows"
            self._bar.update(
                self._task,
                completed=self._sweeps + min(self._windows_done / self._n_windows, 1.0),
                status=f"{stage}{self._loss}, {speed:,.0f} MB/s",
                description=f"{self._title}{self._attempt}",
            )

    def print_line(self) -> None:
        """Print the last line that was not yet printed, if there is no bar."""
        if self._bar is None and self._line:
            echo(self._line, err=True)
        self._line = ""


@contextmanager
def sweep_bar(title: str, max_sweeps: int, n_windows: int) -> Iterator[SweepBar]:
    """Show a bar that advances with every batch of `n_windows`; without a terminal, print a line every tenth sweep."""
    with _bar("{task.fields[status]}") if _has_terminal() else nullcontext() as bar:
        sweeps = SweepBar(bar, title, max_sweeps, n_windows)
        yield sweeps
    sweeps.print_line()


@contextmanager
def stage_bar(title: str, hidden: bool = False, unit: str = "") -> Iterator[Callable[[int, int, object], None]]:
    """Show a bar on a terminal; yield a function to call with the work done, the total work and the current stage.

    Throughput is shown if the counted items have a name, in the plural.
    """
    if hidden or not _has_terminal():
        yield lambda done, total, stage: None
        return
    begun = time.perf_counter()
    with _bar("{task.completed}/{task.total}", "{task.fields[status]}") as bar:
        task = bar.add_task(printable(title), total=None, status="")

        def update(done: int, total: int, stage: object) -> None:
            speed = _rate(done / max(time.perf_counter() - begun, 1e-9)) if unit else ""
            status = ", ".join(filter(None, (unit, speed, str(stage))))
            bar.update(task, completed=done, total=total, status=printable(status))

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

        def update(name: str, done: int, total: int, windows: int, size: int) -> None:
            speed = size / 1e6 / max(time.perf_counter() - begun, 1e-9)
            show(done, total, f"{windows:,} windows, {speed:,.0f} MB/s, {name}")

        yield update


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
