"""Progress bars on standard error: the current stage, how much is done, and the time left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from polyadic._util.terminal import echo, printable


@contextmanager
def _bar(title: str, hidden: bool = False) -> Iterator[tuple[Callable[..., None], bool]]:
    """Show a bar, on terminals only; yield a function that updates it, and whether it is shown."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns: list[Any] = [TextColumn("{task.description}", markup=False), BarColumn(bar_width=15)]
    columns += [TextColumn("{task.fields[status]}", markup=False)]
    columns += [TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()]
    # The time left follows from the mean speed of the whole run.
    shown = Console(stderr=True)
    options: dict[str, Any] = {"console": shown, "transient": True, "speed_estimate_period": 1e9}
    bar = Progress(*columns, disable=hidden or not shown.is_terminal, **options)
    task = bar.add_task(printable(title), total=None, status="")
    with bar:
        yield lambda **changes: bar.update(task, **changes), not bar.disable


class SweepBar:
    """The progress of a fit: a bar on a terminal, else lines. It is called with the history after every sweep."""

    def __init__(self, update: Callable[..., None], shown: bool, title: str, max_sweeps: int, n_windows: int) -> None:
        self._update, self._shown, self._title, self._start = update, shown, printable(title), ""
        self._max_sweeps, self._n_windows = max_sweeps, n_windows
        self._line, self._loss, self._sweeps, self._windows_done = "", "", 0, 0

    def start(self, attempt: int, attempts: int) -> None:
        """Report the start of a restart, counted from 1."""
        self.print_line()
        self._start, self._sweeps, self._windows_done = f", start {attempt} of {attempts}", 0, 0

    def __call__(self, history: dict[str, list[float]]) -> None:
        self._sweeps, self._windows_done = len(history["loss"]), 0
        last = {name: values[-1] for name, values in history.items() if name not in ("loss", "seconds")}
        terms = (f"{name.replace('_', ' ')} {value:.4g}" for name, value in last.items() if value != 0)
        self._loss = f", loss {history['loss'][-1]:.4g}"
        count = f"sweep {self._sweeps} of at most {self._max_sweeps}"
        self._line = f"{self._title}{self._start}: {count}{self._loss} = {' + '.join(terms)}"
        if self._sweeps == 1 or self._sweeps % 10 == 0:
            self.print_line()
        self.windows(0)

    def windows(self, count: int, *_: int) -> None:
        """Report a number of further windows of this sweep as done."""
        self._windows_done += count
        stage = f"sweep {self._sweeps}/{self._max_sweeps}" if self._sweeps else "reading windows"
        self._update(
            total=self._max_sweeps,
            completed=self._sweeps + min(self._windows_done / self._n_windows, 1.0),
            status=f"{stage}{self._loss}",
            description=f"{self._title}{self._start}",
        )

    def print_line(self) -> None:
        """Print the last line that was not yet printed, if there is no bar."""
        if self._line and not self._shown:
            echo(self._line, err=True)
        self._line = ""


@contextmanager
def sweep_bar(title: str, max_sweeps: int, n_windows: int) -> Iterator[SweepBar]:
    """Show a bar that advances with every batch of `n_windows`; without a terminal, print a line every tenth sweep."""
    with _bar(title) as (update, shown):
        sweeps = SweepBar(update, shown, title, max_sweeps, n_windows)
        yield sweeps
    sweeps.print_line()


@contextmanager
def stage_bar(title: str, hidden: bool = False, unit: str = "") -> Iterator[Callable[..., None]]:
    """Show a bar on a terminal; yield a function to call with the work done, the total work and the current stage."""
    with _bar(title, hidden) as (update, _):

        def show(done: int, total: int, stage: object = "") -> None:
            update(completed=done, total=total, status=printable(f"{done}/{total} {unit} {stage}".strip()))

        yield show


@contextmanager
def window_bar(title: str, n_windows: int, hidden: bool) -> Iterator[Callable[[int], None]]:
    """Show a bar that counts windows; yield a function to call with the number of windows done."""
    with stage_bar(title, hidden, "windows") as show:
        yield lambda done: show(done, n_windows, "")
