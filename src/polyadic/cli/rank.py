"""`polyadic rank`: the largest rank at which components replicate in other subjects."""

from __future__ import annotations

from typing import Annotated, Any

from polyadic._util.terminal import echo, print_json, print_table
from polyadic.cli import options
from polyadic.cli.options import option
from polyadic.cli.windows import opened

EXAMPLES = """
[bold]Examples[/bold]

How many components replicate at each rank, and the rank to interpret:
  polyadic rank sleep.store
  polyadic rank recordings --seconds 30

Sums of [bold]polyadic moments[/bold], without reading the data again:
  polyadic rank sleep.moments
"""


@options.with_options("seed json quiet")
def rank(
    data: options.Data,
    restarts: Annotated[int, option("Number of random starts whose consensus is taken.", min=1, metavar="N")] = 8,
    refits: Annotated[int, option("Number of fits to random halves of the subjects.", min=1, metavar="N")] = 4,
    *,
    common: options.Common,
) -> None:
    """Find the largest rank at which at least 70 % of the components replicate in halves of the subjects.

    The rank is the number of components: patterns over channels, frequencies and time. [bold]polyadic fit[/bold] finds
    the same components and stores them for reports; features for a classifier have a rank of their own, 32.
    """
    from polyadic._util.progress import stage_bar
    from polyadic.explain import components
    from polyadic.scale.moments import Moments

    words: dict[str, Any] = {"restarts": restarts, "refits": refits, "replicates": 0, "random_state": common.seed}
    with stage_bar("components", common.hidden, "parts") as show:
        if data.suffix == ".moments":
            found = components(Moments.load(data), **words, progress=show)
        else:
            with opened(data, common) as windows:
                found = components(windows, **words, progress=show)
    if common.json:
        print_json({**found.to_dict(), "reason": repr(found)})
        return
    print_table(("rank", "components that replicate"), [[str(rank), str(count)] for rank, count in found.tried.items()])
    echo(repr(found))
