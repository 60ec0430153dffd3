"""`polyadic rank`: how many components the data calls for."""

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
  polyadic rank sleep.store --preset sleep_edf -o rank.png

EDF files of your own in windows of 30 s:
  polyadic rank recordings --seconds 30

Few ranks, many restarts, for components that shall be read:
  polyadic rank windows.npz --ranks 1,2,3,4,5,6 --restarts 10
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
        int, typer.Option(min=2, metavar="N", help="How many windows to take, spread evenly over the data.")
    ] = 256,
    restarts: Annotated[
        int, typer.Option(min=1, max=MOST_REPEATS, metavar="N", help="Fits of each rank, from different starts.")
    ] = 3,
    preset: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The paper's settings for a dataset: sleep_edf, har, ptb_xl or mgh."),
    ] = None,
    n_fft: Annotated[int | None, typer.Option(min=2, metavar="N", help="Samples in a frame of the STFT.")] = None,
    hop: Annotated[int | None, typer.Option(min=1, metavar="N", help="Samples from one frame to the next.")] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Of the starts.")] = 0,
    on_error: OnErrorOption = OnError.RAISE,
    force: ForceOption = False,
    settings: SettingsOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
    *,
    given: dict[str, Any],
) -> None:
    """Recommend a rank, and say why.

    Decomposes some of the windows at several ranks. Does a larger one fit better than noise would, do restarts agree?
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
    wanted = _ranks(ranks)
    with (
        opened(data, given, on_error=on_error.value, hidden=quiet or json) as taken,
        stage_bar("decomposing", quiet or json, "components") as show,
    ):
        found = suggest_rank(
            taken,
            wanted,
            tensorize=settings_for(taken, preset=preset, n_fft=n_fft, hop=hop).tensorize,
            n_windows=windows,
            restarts=restarts,
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
