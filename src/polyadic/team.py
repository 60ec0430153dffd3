"""The processes of a parallel fit: a team of one process; `engine.processes` implements teams of several."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from torch import Tensor

from polyadic.core.alignment import Add

if TYPE_CHECKING:
    from polyadic.core.step import State, Statistics

__all__ = ["ALONE", "Team"]

_Result = TypeVar("_Result")


class Team:
    """The processes of a parallel fit, each with its share of every batch; this class is a team of one."""

    index, size = 0, 1

    def share(self, ids: Tensor) -> Tensor:
        """Return this process's share of some windows: (b,)."""
        return ids

    def sum(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over the processes; every process gets the same result."""
        return tensor

    def broadcast(self, tensor: Tensor) -> Tensor:
        """Return the first process's tensor, in every process."""
        return tensor

    def once(self, work: Callable[[], _Result]) -> _Result:
        """Run a function in the first process only; every process returns its result or raises its error."""
        return work()

    def start_sum(self, statistics: Statistics) -> Callable[[Tensor], tuple[Statistics, Tensor]]:
        """Start summing statistics over the processes; the returned function completes it and also sums a vector.

        In the result, Y may still be this process's part; then `sum_by_mode` is not None.
        """
        return lambda sums: (statistics, sums)

    def sum_by_mode(self, Y: Tensor) -> Add | None:
        """Return the function that sums the MTTKRP of a mode over processes, if that is exchanged instead of Y."""
        return None

    def gather(self, state: State, n_views: int) -> State:
        """Collect the complete state in the first process; `scatter` is the inverse."""
        return state

    def scatter(self, state: State, n_views: int) -> State:
        """Return this process's part of a complete state."""
        return state


ALONE = Team()
