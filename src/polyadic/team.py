"""The processes that make one fit together; here one process alone, in `engine.processes` several."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from torch import Tensor

from polyadic.alignment import Add

if TYPE_CHECKING:
    from polyadic.als import State, Statistics

__all__ = ["ALONE", "Team"]

_Result = TypeVar("_Result")


class Team:
    """The processes that make one fit together, each with its share of every batch: here, one process alone.

    What is said below to be the same is so in all of them.
    """

    index, size = 0, 1

    def share(self, ids: Tensor) -> Tensor:
        """This process's share of some windows: (b,)."""
        return ids

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum of the processes' tensors, the same."""
        return tensor

    def broadcast(self, tensor: Tensor) -> Tensor:
        """The first process's tensor, the same."""
        return tensor

    def once(self, work: Callable[[], _Result]) -> _Result:
        """Do something in the first process only; its result or its error, the same."""
        return work()

    def start_sum(self, statistics: Statistics) -> Callable[[Tensor], tuple[Statistics, Tensor]]:
        """Begin to add up what the processes found; the function it returns ends it, and adds up a vector, too.

        Of the statistics that come back, Y may still be this process's alone: `sum_by_mode` says so.
        """
        return lambda sums: (statistics, sums)

    def sum_by_mode(self, Y: Tensor) -> Add | None:
        """What adds up the MTTKRP of a mode, where that travels instead of Y."""
        return None

    def gather(self, state: State, n_views: int) -> State:
        """A state with all that the processes hold, in the first; `scatter` undoes it."""
        return state

    def scatter(self, state: State, n_views: int) -> State:
        """What this process holds of a whole state."""
        return state


ALONE = Team()
