"""`polyadic rank`: at how many components most of them replicate."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated, Any

import typer

from polyadic.cli.options import (
    MOST_REPEATS,
    DataArgument,
    ForceOption,
    JsonOption,
    OnError,
    OnErrorOption,
    QuietOption,
    SettingsOption,
)
from polyadic.cli.outputs import check_out_file
from polyadic.cli.reading import reads_recordings
from polyadic.cli.windows import opened
from polyadic.errors import MissingExtraError, PolyadicError
from polyadic.terminal import echo, print_json

__all__ = ["RANK_EXAMPLES", "rank"]

RANK_EXAMPLES = """
[bold]Examples[/bold]

A table, a recommendation and its reason; with a plot of the curves:
  polyadic rank sleep.store
  polyadic rank sleep.store -o rank.png

EDF files of your own in windows of 30 s:
  polyadic rank recordings --seconds 30

Few ranks, and components from the consensus of many starts:
  polyadic rank windows.npz --ranks 2,4,6,8 --restarts 30 --consensus
"""


@reads_recordings
def rank(
    data: DataArgument,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="A .png, .svg or .pdf file for the plot; none if not given."),
    ] = None,
    ranks: Annotated[
        str, typer.Option(metavar="N,N,…", help="The ranks to try, with commas between them.")
    ] = "1,2,4,8,16,32,64",
    windows: Annotated[
        int, typer.Option(min=2, metavar="N", help="How many windows to use at most, spread evenly.")
    ] = 2048,
    refits: Annotated[
        int, typer.Option(min=1, max=MOST_REPEATS, metavar="N", help="Fits of halves of the subjects at each rank.")
    ] = 4,
    restarts: Annotated[
        int, typer.Option(min=1, max=MOST_REPEATS, metavar="N", help="Random starts of every fit, as of fit.")
    ] = 1,
    consensus: Annotated[
        bool, typer.Option("--consensus", help="With --restarts: average the components that the starts agree on.")
    ] = False,
    preset: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The paper's settings for a dataset: sleep_edf, har, ptb_xl or mgh."),
    ] = None,
    n_fft: Annotated[int | None, typer.Option(min=2, metavar="N", help="Samples in a frame of the STFT.")] = None,
    hop: Annotated[int | None, typer.Option(min=1, metavar="N", help="Samples from one frame to the next.")] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Random seed.")] = 0,
    on_error: OnErrorOption = OnError.RAISE,
    force: ForceOption = False,
    settings: SettingsOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
    *,
    given: dict[str, Any],
) -> None:
    """Recommend the largest rank at which most components replicate.

    Fits halves of the subjects at several ranks and looks which components come back. Where windows have labels, it
    also says what a larger rank gains in accuracy on other subjects.
    """
    from polyadic.explain.rank import suggest_rank
    from polyadic.files import open_atomically
    from polyadic.presets import settings_for
    from polyadic.progress import stage_bar
    from polyadic.provenance import provenance

    if out is not None:
        check_out_file(out, data, settings, endings=(".png", ".svg", ".pdf"), force=force)
        if importlib.util.find_spec("matplotlib") is None:
            raise MissingExtraError("--out needs matplotlib, which is not installed: pip install 'polyadic[report]'")
    if consensus and restarts < 2:
        raise PolyadicError("--consensus averages the components of several starts: give --restarts, such as 30")
    wanted = _ranks(ranks)
    with (
        opened(data, given, on_error=on_error.value, hidden=quiet or json) as taken,
        stage_bar("fitting", quiet or json, "components") as show,
    ):
        found = suggest_rank(
            taken,
            wanted,
            tensorize=settings_for(taken, preset=preset, n_fft=n_fft, hop=hop).tensorize,
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
    if out is not None:  # last, so that a plot that fails costs no result
        with open_atomically(out) as file:
            found.plot().savefig(file, format=out.suffix[1:], dpi=150)
        if not json:
            echo(f"{out.name}: the plot")


def _ranks(text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise PolyadicError(f"--ranks must be whole numbers with commas between them, but is {text!r}") from None
