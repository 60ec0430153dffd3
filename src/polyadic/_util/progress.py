"""Progress bars on standard error: the current stage, how much is done, the throughput and the time left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from polyadic._util.terminal import console, echo, printable

__all__ = ["SweepBar", "file_bar", "stage_bar", "sweep_bar", "window_bar"]


@contextmanager
def _bar(title: str, hidden: bool = False) -> Iterator[tuple[Callable[..., None], bool]]:
    """Show a bar, on terminals only; yield a function that updates it, and whether it is shown."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    shown = console(err=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=15),
        TextColumn("{task.fields[status]}", markup=False),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    # The time left follows from the mean speed of the whole run.
    options: dict[str, Any] = {"console": shown, "transient": True, "speed_estimate_period": 1e9}
    bar = Progress(*columns, disable=hidden or not shown.is_terminal, **options)
    task = bar.add_task(printable(title), total=None, status="")
    with bar:
        yield lambda **changes: bar.update(task, **changes), not bar.disable


def _speedometer() -> Callable[[float], float]:
    """Return a function from an amount that was done since this call to the amount per second."""
    begun = time.perf_counter()
    return lambda amount: amount / max(time.perf_counter() - begun, 1e-9)


class SweepBar:
    """The progress of a fit: a bar on a terminal, else lines. It is called with the history after every sweep."""

    def __init__(self, update: Callable[..., None] | None, title: str, max_sweeps: int, n_windows: int) -> None:
        self._update, self._title, self._max_sweeps, self._n_windows = update, printable(title), max_sweeps, n_windows
        self._line, self._loss, self._sweeps, self._windows_done, self._bytes = "", "", 0, 0, 0
        self._attempt, self._speed = "", _speedometer()

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
        if self._sweeps == 1 or self._sweeps % 10 == 0:
            self.print_line()
        self.windows(0, 0)

    def windows(self, count: int, size: int) -> None:
        """Report a number of further windows and bytes of this sweep as done."""
        self._windows_done += count
        self._bytes += size
        if self._update is not None:
            stage = f"sweep {self._sweeps}/{self._max_sweeps}" if self._sweeps else "reading windows"
            self._update(
                total=self._max_sweeps,
                completed=self._sweeps + min(self._windows_done / self._n_windows, 1.0),
                status=f"{stage}{self._loss}, {self._speed(self._bytes / 1e6):,.0f} MB/s",
                description=f"{self._title}{self._attempt}",
            )

    def print_line(self) -> None:
        """Print the last line that was not yet printed, if there is no bar."""
        if self._update is None and self._line:
            echo(self._line, err=True)
        self._line = ""


@contextmanager
def sweep_bar(title: str, max_sweeps: int, n_windows: int) -> Iterator[SweepBar]:
    """Show a bar that advances with every batch of `n_windows`; without a terminal, print a line every tenth sweep."""
    with _bar(title) as (update, shown):
        sweeps = SweepBar(update if shown else None, title, max_sweeps, n_windows)
        yield sweeps
    sweeps.print_line()


@contextmanager
def stage_bar(title: str, hidden: bool = False, unit: str = "") -> Iterator[Callable[[int, int, object], None]]:
    """Show a bar on a terminal; yield a function to call with the work done, the total work and the current stage.

    Throughput is shown if the counted items have a name, in the plural.
    """
    speed = _speedometer()
    with _bar(title, hidden) as (update, _):

        def show(done: int, total: int, stage: object) -> None:
            rate = f"{speed(done):,.{0 if speed(done) >= 100 else 1}f}/s" if unit and done else ""
            words = (f"{done}/{total} {unit}".strip(), rate, str(stage))
            update(completed=done, total=total, status=printable(", ".join(filter(None, words))))

        yield show


@contextmanager
def window_bar(title: str, n_windows: int, hidden: bool) -> Iterator[Callable[[int], None]]:
    """Show a bar that counts windows; yield a function to call with the number of windows done."""
    with stage_bar(title, hidden, "windows") as show:
        yield lambda done: show(done, n_windows, "")


@contextmanager
def file_bar(title: str, hidden: bool = False) -> Iterator[Callable[[str, int, int, int, int], None]]:
    """Show a bar; yield a function to call with a file's name, files done, total files, windows and bytes so far."""
    speed = _speedometer()
    with stage_bar(title, hidden) as show:
        yield lambda name, done, total, windows, size: show(
            done, total, f"{windows:,} windows, {speed(size / 1e6):,.0f} MB/s, {name}"
        )
