"""`polyadic rank`: the largest rank at which components replicate in other subjects."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Annotated, Any

from polyadic._util.terminal import print_table
from polyadic.cli.fit import found_components
from polyadic.cli.options import Common, Data, option, with_options
from polyadic.cli.windows import opened

EXAMPLES = """
How many components replicate at each rank, and the rank to interpret:
  polyadic rank sleep.store
  polyadic rank recordings --seconds 30

Sums of [bold]polyadic moments[/bold], without reading the data again:
  polyadic rank sleep.moments
"""


@with_options("seed json quiet")
def rank(
    common: Common,
    data: Data,
    restarts: Annotated[int, option("Number of random starts whose consensus is taken.", min=1, metavar="N")] = 8,
) -> None:
    """Find the largest rank at which at least 70 % of the components replicate in halves of the subjects.

    The rank is the number of components: patterns over channels, frequencies and time. [bold]polyadic fit[/bold] finds
    the same components and stores them for reports; features for a classifier have a rank of their own, 32.
    """
    import pandas as pd

    from polyadic.scale.moments import Moments

    source: Any = nullcontext(Moments.load(data)) if data.suffix == ".moments" else opened(data, common)
    with source as windows:
        found = found_components(windows, common.seed, common.hidden, restarts=restarts, replicates=0)
    if not common.json:
        print_table(pd.DataFrame({"components that replicate": found.tried}), "by rank")
    common.tell({**found.to_dict(), "reason": repr(found)}, shown=[repr(found)])
