"""Who is told about a fit while it runs: a progress bar, and whoever wants to see the model after each sweep."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from polyadic.engine.loop import History
from polyadic.progress import SweepProgress, sweep_bar

__all__ = ["Observer", "observing", "warn_of_vanished"]


@dataclass(frozen=True)
class Observer:
    """Called after every sweep with the history so far; `windows` is called after every batch, if it is there."""

    bar: SweepProgress | None
    show: Callable[[History], None] | None

    @property
    def windows(self) -> Callable[[int, int], None] | None:
        return None if self.bar is None else self.bar.windows

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


def warn_of_vanished(factors: Sequence[Tensor]) -> None:
    """Warn if components have no entry but 0 left in one of their profiles."""
    dead = torch.stack([~factor.any(dim=0) for factor in factors]).any(dim=0)
    if bool(dead.any()):
        warnings.warn(
            f"{int(dead.sum())} of {len(dead)} components have vanished: the data has no use for them. A smaller rank "
            "gives the same fit.",
            ConvergenceWarning,
            stacklevel=3,
        )
