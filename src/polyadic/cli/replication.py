"""Compute the replicability of components with a progress bar, and summarise it; shared by several commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from polyadic._util.terminal import echo

if TYPE_CHECKING:
    from polyadic.explain.replicability import Replicability

__all__ = ["LONGEST", "checked", "tell_replicability"]

LONGEST = 60.0
"""Maximum estimated time in seconds for which a report checks replicability by default."""


def checked(model: Any, windows: Any, seed: int, hidden: bool) -> Replicability:
    """Return the replicability of a model; show a progress bar unless hidden."""
    from polyadic._util.progress import stage_bar
    from polyadic.explain.replicability import replicability

    with stage_bar("replicability", hidden, "refits") as show:
        return replicability(model, windows, random_state=seed, progress=lambda done, total: show(done, total, ""))


def tell_replicability(found: Replicability) -> None:
    """Print how many components replicate, and which do not."""
    came_back = found.replicates
    of = "subjects" if found.halves else "windows (fewer than two subjects are known)"
    rank = len(came_back)
    echo(
        f"replicability: {int(came_back.sum())} of {rank} component{'s' * (rank != 1)} found again (match of at least "
        f"{found.threshold:g}) in at least half of {found.refits} refits on halves of the {of}; mean match "
        f"{found.score:.2f}"
    )
    missing = [str(number + 1) for number in range(rank) if not came_back[number]]
    if missing:
        echo(f"do not interpret component{'s' * (len(missing) != 1)} {', '.join(missing)}")
