"""`polyadic rank`: recommend a number of components."""

from __future__ import annotations

import math
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from polyadic._util.terminal import echo, print_json
from polyadic.cli import options
from polyadic.cli.files import check_out_file, require
from polyadic.cli.fit import check_consensus
from polyadic.cli.windows import counted, opened
from polyadic.errors import PolyadicError

EXAMPLES = """
[bold]Examples[/bold]

A table and a recommendation with its reason; optionally a plot:
  polyadic rank sleep.store
  polyadic rank sleep.store -o rank.html

EDF files in windows of 30 s:
  polyadic rank recordings --seconds 30

Sums of [bold]polyadic moments[/bold], without reading the data again:
  polyadic rank sleep.moments

Selected ranks, with the consensus of 30 random starts:
  polyadic rank windows.npz --ranks 2,4,6,8 --restarts 30 --consensus
"""


@options.reads_recordings
def rank(
    data: options.Data,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="Also write a plot to this .html, .png, .svg or .pdf file."),
    ] = None,
    ranks: Annotated[
        str, typer.Option(metavar="N,N,…", help="Ranks to try, separated by commas.")
    ] = "1,2,4,8,16,32,64",
    windows: Annotated[
        int, typer.Option(min=2, metavar="N", help="Maximum number of windows, spread evenly over the data.")
    ] = 2048,
    refits: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="Number of fits to random halves of the subjects per rank."),
    ] = 4,
    restarts: Annotated[int, typer.Option(min=1, metavar="N", help="Number of random starts per fit.")] = 1,
    consensus: options.Consensus = False,
    preset: options.Preset = None,
    n_fft: options.Nfft = None,
    hop: options.Hop = None,
    seed: options.Seed = 0,
    on_error: options.SkipErrors = "raise",
    force: options.Force = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    *,
    given: dict[str, Any],
) -> None:
    """Recommend the largest rank at which most components replicate.

    The rank is the number of components: patterns over channels, frequencies and time. Fits halves of the subjects at
    several ranks and checks which components are found again. With labels, it also shows how accuracy on other subjects
    depends on the rank.
    """
    from polyadic._util.progress import stage_bar
    from polyadic._util.provenance import provenance
    from polyadic.explain.rank import suggest_rank
    from polyadic.explain.replicability import REFITS
    from polyadic.presets import settings_for
    from polyadic.scale.moments import Moments

    if out is not None:
        check_out_file(out, data, endings=(".html", ".png", ".svg", ".pdf"), force=force)
        for package in ("plotly",) if out.suffix == ".html" else ("plotly", "kaleido"):
            require(package, "a plot needs", "report")
    check_consensus(consensus, restarts)
    try:
        wanted = [int(word) for word in ranks.split(",")]
    except ValueError:
        raise PolyadicError(f"--ranks must be integers separated by commas, such as 2,4,8, but is {ranks!r}") from None
    sums = data.suffix == ".moments"
    with (
        nullcontext() if sums else opened(data, given, on_error=on_error, hidden=quiet or json) as windows_of_data,
        stage_bar("fitting", quiet or json, "components") as show,
    ):
        taken = Moments.load(data) if sums else windows_of_data
        found = suggest_rank(
            taken,
            wanted,
            tensorize="auto" if sums else settings_for(taken, preset=preset, n_fft=n_fft, hop=hop).tensorize,
            n_windows=windows,
            refits=refits,
            restarts=restarts,
            consensus=consensus,
            random_state=seed,
            on_fit=lambda done, work, rank: show(done, work, f"rank {rank}"),
        )
    if json:
        print_json({**found.to_dict(), **provenance("cpu")})
    else:
        for line in repr(found).splitlines():
            echo(line)
        if not quiet and not all(math.isnan(value) for value in found.accuracy):
            echo(
                "Balanced accuracy is that of a probe on left-out subjects. It is optimistic, because the "
                "components were learned from all subjects; polyadic evaluate refits them."
            )
        if not quiet and refits != REFITS:
            made = counted(refits, "refit")
            echo(f"Replicability is from {made} per rank; a report has {REFITS} (use --refits {REFITS}).")
    if out is not None:  # last, so that a failed plot does not lose the result
        from polyadic import plot
        from polyadic.plot.style import save_figure

        save_figure(plot.ranks(found), out)
        if not json:
            echo(f"plot: {out.name}")
