"""The command line. Everything heavy is imported by the command that needs it, so that help comes at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polyadic.cli import models, stores
from polyadic.cli.bench import BENCH_EXAMPLES, bench
from polyadic.cli.evaluate import EVALUATE_EXAMPLES, evaluate
from polyadic.cli.export import EXPORT_EXAMPLES, export
from polyadic.cli.info import INFO_EXAMPLES, info
from polyadic.cli.manual import Manual
from polyadic.cli.options import DeviceOption, JsonOption, QuietOption, SettingsOption
from polyadic.cli.predict import PREDICT_EXAMPLES, predict
from polyadic.cli.rank import RANK_EXAMPLES, rank
from polyadic.cli.report import REPORT_EXAMPLES, report
from polyadic.cli.settings import SettingsError
from polyadic.cli.stopping import terminate_like_ctrl_c
from polyadic.errors import PolyadicError
from polyadic.version import __version__

__all__ = ["app", "main"]

_HELP = """
Small, fast features that can be looked into, from many unlabelled multichannel recordings.

No data at hand? [bold]polyadic run[/bold] makes some and compares the methods in less than a minute. With recordings of
your own:

  recordings ─ [bold]prepare[/bold] ─▶ store ─ [bold]fit[/bold] ─▶ model ─┬─ [bold]transform[/bold] ─▶ features
                                                ├─ [bold]predict[/bold] ───▶ labels
                                                ├─ [bold]evaluate[/bold] ──▶ scores
                                                └─ [bold]report[/bold] ────▶ a page to read

Windows need no labels; with some, [bold]fit --probe[/bold] also trains the classifier that predict uses.
"""

_EPILOG = """
[bold]Examples[/bold]

From a folder of EDF files to labels for new ones:
  polyadic prepare folder recordings my.store --seconds 30 --class W --class R
  polyadic fit my.store --probe -o model.safetensors
  polyadic predict model.safetensors new-recordings -o labels.csv

A model of a folder of EDF files, and a page to look into it:
  polyadic fit recordings --seconds 30 -o model.safetensors
  polyadic report model.safetensors --data recordings -o report.html

The methods compared on your own windows:
  polyadic run --data windows.npz --fs 100

[bold]Every command[/bold] has --help with examples. Most have --json (the outcome for programs, alone on standard
output), --quiet (no progress bar) and --settings FILE (options from a TOML file).

[bold]Exit codes[/bold]

  0    done
  1    it cannot be done: data, models or values that cannot be used
  2    wrong usage: an unknown command or option, a wrong settings file
  130  stopped by Ctrl-C: nothing half-written, what can go on says how
  143  the same, stopped by SIGTERM
"""

_START, _MODEL, _USE, _LOOK, _PAPER = (
    "Start here",
    "From recordings to a model",
    "Use a model",
    "Look into it",
    "The paper",
)

app = typer.Typer(
    name="polyadic",
    cls=Manual,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help=_HELP,
    epilog=_EPILOG,
)

_EXAMPLES = """
[bold]Examples[/bold]

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
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    pass


@app.command(epilog=_EXAMPLES, rich_help_panel=_START)
def run(
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DATA",
            help="A window store made by [bold]polyadic prepare[/bold], or a .npz file with X (windows, channels, "
            "time), optional y and subject; or X_train (unlabelled) with X_test, y_test, subject_test. Built-in "
            "signals if not given.",
            exists=True,
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The paper's settings for a dataset: sleep_edf, har, ptb_xl or mgh."),
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
            metavar="NAME",
            help="subject: people of the training and the test windows are apart (default where people are known); "
            "paper: windows drawn at random, which flatters every method; or both.",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="How many seeds.")] = 5,
    rank: Annotated[int | None, typer.Option(min=1, metavar="N", help="Number of components.")] = None,
    sweeps: Annotated[int | None, typer.Option(min=1, metavar="N", help="Most passes over the data.")] = None,
    fs: Annotated[
        float | None, typer.Option(min=0.0, metavar="HZ", help="Sampling rate in Hz, if the file does not say.")
    ] = None,
    n_fft: Annotated[int | None, typer.Option(min=2, metavar="N", help="Samples in a frame of the STFT.")] = None,
    hop: Annotated[int | None, typer.Option(min=1, metavar="N", help="Samples from one frame to the next.")] = None,
    nuisance: Annotated[
        float,
        typer.Option(min=0.0, metavar="X", help="Built-in signals: strength of the components no class cares about."),
    ] = 0.8,
    device: DeviceOption = "auto",
    jobs: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="Processes at a time. With more than one, seconds a sweep say nothing."),
    ] = 1,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FOLDER", help="Folder for the models, results.json and results.md.")
    ] = Path("polyadic-run"),
    settings: SettingsOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
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


app.add_typer(stores.app, name="prepare", rich_help_panel=_MODEL)
app.command(epilog=stores.VERIFY_EXAMPLES, rich_help_panel=_MODEL)(stores.verify)
app.command(epilog=models.FIT_EXAMPLES, rich_help_panel=_MODEL)(models.fit)
app.command(epilog=models.TRANSFORM_EXAMPLES, rich_help_panel=_USE)(models.transform)
app.command(epilog=PREDICT_EXAMPLES, rich_help_panel=_USE)(predict)
app.command(epilog=EVALUATE_EXAMPLES, rich_help_panel=_USE)(evaluate)
app.command(epilog=EXPORT_EXAMPLES, rich_help_panel=_USE)(export)
app.command(epilog=REPORT_EXAMPLES, rich_help_panel=_LOOK)(report)
app.command(epilog=RANK_EXAMPLES, rich_help_panel=_LOOK)(rank)
app.command(epilog=INFO_EXAMPLES, rich_help_panel=_LOOK)(info)
app.command(epilog=BENCH_EXAMPLES, rich_help_panel=_PAPER)(bench)


def main() -> None:
    """The `polyadic` command. Exit codes: 0 done, 1 it cannot be done, 2 wrong usage, 130 Ctrl-C, 143 SIGTERM."""
    terminate_like_ctrl_c()
    try:
        app(prog_name="polyadic")
    except (PolyadicError, OSError) as error:
        typer.secho(f"polyadic: {error}", err=True, fg="red")
        raise SystemExit(2 if isinstance(error, SettingsError) else 1) from None
