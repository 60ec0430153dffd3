"""The command line. Everything heavy is imported by the command that needs it, so that help comes at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polyadic.cli import models, stores
from polyadic.cli.bench import BENCH_EXAMPLES, bench
from polyadic.cli.report import REPORT_EXAMPLES, report
from polyadic.errors import PolyadicError
from polyadic.version import __version__

__all__ = ["app", "main"]

app = typer.Typer(
    name="polyadic",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Small, fast features that can be looked into, from many unlabelled multichannel recordings.\n\n"
    "Start with [bold]polyadic run[/bold]: it needs no data and takes less than a minute. With recordings of your own, "
    "[bold]prepare[/bold] a store of windows, [bold]fit[/bold] a model to it, and [bold]transform[/bold] windows into "
    "features.",
)

_EXAMPLES = """
Built-in signals, and such as augmentations cannot help with:

  polyadic run

  polyadic run --nuisance 0

Your own windows, sampled at 100 Hz:

  polyadic run --data windows.npz --fs 100

The paper's settings, its protocol and by person:

  polyadic run --data har.npz --preset har --protocol both
"""


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"polyadic {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


@app.command(epilog=_EXAMPLES)
def run(
    data: Annotated[
        Path | None,
        typer.Option(
            help="A window store made by [bold]polyadic prepare[/bold], or a .npz file with X (windows, channels, "
            "time), optional y and subject; or X_train (unlabelled) with X_test, y_test, subject_test. Built-in "
            "signals if not given.",
            exists=True,
        ),
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help="The paper's settings for a dataset: sleep_edf, har, ptb_xl or mgh.")
    ] = None,
    defaults: Annotated[
        bool,
        typer.Option(
            "--defaults",
            help="With --preset: its frame length, hop and augmentations, all else the library's own settings.",
        ),
    ] = False,
    protocol: Annotated[
        str | None,
        typer.Option(
            help="subject: people of the training and the test windows are apart (default where people are known); "
            "paper: windows drawn at random, which flatters every method; or both."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds.")] = 5,
    rank: Annotated[int | None, typer.Option(min=1, help="Number of components.")] = None,
    sweeps: Annotated[int | None, typer.Option(min=1, help="Most passes over the data.")] = None,
    fs: Annotated[float | None, typer.Option(min=0.0, help="Sampling rate in Hz, if the file does not say.")] = None,
    n_fft: Annotated[int | None, typer.Option(min=2, help="Samples in a frame of the STFT.")] = None,
    hop: Annotated[int | None, typer.Option(min=1, help="Samples from one frame to the next.")] = None,
    nuisance: Annotated[
        float, typer.Option(min=0.0, help="Built-in signals: strength of the components no class cares about.")
    ] = 0.8,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    jobs: Annotated[
        int, typer.Option(min=1, help="Processes at a time. With more than one, seconds a sweep say nothing.")
    ] = 1,
    out: Annotated[Path, typer.Option(help="Folder for the models, results.json and results.md.")] = Path(
        "polyadic-run"
    ),
    json: Annotated[bool, typer.Option("--json", help="Print the results as JSON and nothing else.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Compare ATD, ATD_ss-, GR-SALS and SALS on the same windows.

    Each is fitted on the unlabelled part; a logistic regression is trained and tested on the labelled part.

    Shows accuracy over the seeds, parameters and seconds a sweep; writes one model of each method and the results.
    """
    from polyadic.experiments import main_job

    job = main_job.Job(
        data=data,
        preset=preset,
        defaults=defaults,
        protocol=protocol,
        seeds=seeds,
        rank=rank,
        sweeps=sweeps,
        fs=fs,
        n_fft=n_fft,
        hop=hop,
        nuisance=nuisance,
        device=device,
        jobs=jobs,
        out=out,
    )
    main_job.run(job, as_json=json, quiet=quiet)


app.add_typer(stores.app, name="prepare")
app.command(epilog=stores.VERIFY_EXAMPLES)(stores.verify)
app.command(epilog=models.FIT_EXAMPLES)(models.fit)
app.command(epilog=models.TRANSFORM_EXAMPLES)(models.transform)
app.command(epilog=REPORT_EXAMPLES)(report)
app.command(epilog=BENCH_EXAMPLES)(bench)


def main() -> None:
    """The `polyadic` command: 0 if all went well, 1 for input or settings that cannot be used, 130 for Ctrl-C."""
    try:
        app()
    except (PolyadicError, OSError) as error:
        typer.secho(f"polyadic: {error}", err=True, fg="red")
        raise SystemExit(1) from None
