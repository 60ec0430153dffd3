"""Which components replicate, for the commands that ask: computed behind a progress bar, and said in a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from polyadic.terminal import echo

if TYPE_CHECKING:
    from polyadic.replication import Replicability

__all__ = ["LONGEST", "checked", "tell_replicability"]

LONGEST = 60.0
"""Seconds up to which a report checks a model without being asked."""


def checked(model: Any, windows: Any, seed: int, hidden: bool) -> Replicability:
    """The replicability of a model, with a progress bar unless it is hidden."""
    from polyadic.explain.replicability import replicability
    from polyadic.progress import stage_bar

    with stage_bar("replicability", hidden, "refits") as show:
        return replicability(model, windows, random_state=seed, progress=lambda done, total: show(done, total, ""))


def tell_replicability(found: Replicability) -> None:
    """Say how many components come back, and which do not."""
    came_back = found.replicates
    of = "subjects" if found.halves else "windows, for fewer than two subjects are known"
    rank = len(came_back)
    echo(
        f"replicability: {int(came_back.sum())} of {rank} component{'s' * (rank != 1)} came back (match of at least "
        f"{found.threshold:g}) in at least half of {found.refits} refits on halves of the {of}; mean match "
        f"{found.score:.2f}"
    )
    missing = [str(number + 1) for number in range(rank) if not came_back[number]]
    if missing:
        echo(f"not to be relied on: component{'s' * (len(missing) != 1)} {', '.join(missing)}")
