"""Who is told about a fit while it runs: a progress bar, and whoever wants to see the model after each sweep."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from polyadic.engine.loop import History
from polyadic.progress import SweepProgress, sweep_bar

__all__ = ["Observer", "observing"]


@dataclass(frozen=True)
class Observer:
    """Called after every sweep with the history so far; `windows` is called after every batch, if it is there."""

    bar: SweepProgress | None
    show: Callable[[History], None] | None

    @property
    def windows(self) -> Callable[[int, int], None] | None:
        return None if self.bar is None else self.bar.windows

    def start(self, attempt: int, attempts: int) -> None:
        """Note that another of several attempts begins, counted from 1."""
        if self.bar is not None:
            self.bar.start(attempt, attempts)

    def __call__(self, history: History) -> None:
        if self.bar is not None:
            self.bar(history)
        if self.show is not None:
            self.show(history)


@contextmanager
def observing(
    name: str, sweeps: int, windows: int, shows_bar: bool, show: Callable[[History], None] | None
) -> Iterator[Observer | None]:
    """What a fit calls, or None where nobody looks.

    Parameters
    ----------
    name : of the method
    sweeps, windows : most sweeps, and windows in each
    shows_bar : whether there is a progress bar
    show : called after every sweep with the history so far
    """
    with sweep_bar(name, sweeps, windows) if shows_bar else nullcontext(None) as bar:
        yield None if bar is None and show is None else Observer(bar, show)
