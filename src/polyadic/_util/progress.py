"""Progress bars on standard error: the current stage, how much is done, and the time left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
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
    with nullcontext() if bar.disable else bar:  # a bar that is not shown would end with an empty line
        yield lambda **changes: bar.update(task, **changes), not bar.disable


@contextmanager
def sweep_bar(
    title: str, max_sweeps: int, n_windows: int
) -> Iterator[tuple[Callable[[dict[str, list[float]], str], None], Callable[..., None]]]:
    """Show the progress of a fit: a bar that advances with every batch, or without a terminal a line every ten sweeps.

    Yields a function to call with the history after every sweep, and the name of the restart, and one to call with the
    number of windows of every batch, of `n_windows` in a sweep.
    """
    status, sweeps, read = "reading windows", 0, 0
    with _bar(title) as (update, shown):

        def on_batch(count: int, *_: int) -> None:
            nonlocal read
            read += count
            update(total=max_sweeps, completed=sweeps + min(read / n_windows, 1.0), status=status)

        def on_sweep(history: dict[str, list[float]], start: str) -> None:
            nonlocal status, sweeps, read
            sweeps, read, loss = len(history["loss"]), 0, f"loss {history['loss'][-1]:.4g}"
            status = f"sweep {sweeps}/{max_sweeps}{start}, {loss}"
            on_batch(0)
            if not shown and (sweeps == 1 or sweeps % 10 == 0):
                last = {name: values[-1] for name, values in history.items() if name not in ("loss", "seconds")}
                terms = " + ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in last.items() if value)
                echo(f"{printable(title)}{start}: sweep {sweeps} of at most {max_sweeps}, {loss} = {terms}", err=True)

        yield on_sweep, on_batch


@contextmanager
def stage_bar(title: str, hidden: bool = False, unit: str = "", total: int = 0) -> Iterator[Callable[..., None]]:
    """Show a bar on a terminal; yield a function to call with the work done, the total work and the current stage."""
    with _bar(title, hidden) as (update, _):

        def show(done: int, total: int = total, stage: object = "") -> None:
            update(completed=done, total=total, status=printable(f"{done}/{total} {unit} {stage}".strip()))

        yield show
