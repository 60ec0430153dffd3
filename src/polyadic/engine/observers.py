"""Observers of a running fit: a progress bar, and a callback after each sweep."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from polyadic._util.progress import SweepProgress, sweep_bar
from polyadic.engine.loop import History

__all__ = ["Observer", "observing"]


@dataclass(frozen=True)
class Observer:
    """Called with the history after every sweep; `windows`, if not None, is called after every batch."""

    bar: SweepProgress | None
    show: Callable[[History], None] | None

    @property
    def windows(self) -> Callable[[int, int], None] | None:
        return None if self.bar is None else self.bar.windows

    def start(self, attempt: int, attempts: int) -> None:
        """Report the start of a restart, counted from 1."""
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
    """Yield the observer of a fit, or None if there is nothing to observe.

    Parameters
    ----------
    name : name of the method
    sweeps, windows : maximum number of sweeps, and number of windows in each
    shows_bar : whether to show a progress bar
    show : called after every sweep with the history so far
    """
    with sweep_bar(name, sweeps, windows) if shows_bar else nullcontext(None) as bar:
        yield None if bar is None and show is None else Observer(bar, show)
