"""The commands of `polyadic`, and the manual that `polyadic --help` shows."""

from __future__ import annotations

from typing import Annotated

import typer

from polyadic.cli import prepare
from polyadic.cli.bench import BENCH_EXAMPLES, bench
from polyadic.cli.evaluate import EVALUATE_EXAMPLES, evaluate
from polyadic.cli.export import EXPORT_EXAMPLES, export
from polyadic.cli.fit import FIT_EXAMPLES, FitCommand, fit
from polyadic.cli.info import INFO_EXAMPLES, info
from polyadic.cli.manual import Manual
from polyadic.cli.predict import PREDICT_EXAMPLES, predict
from polyadic.cli.rank import RANK_EXAMPLES, rank
from polyadic.cli.report import REPORT_EXAMPLES, report
from polyadic.cli.run import RUN_EXAMPLES, run
from polyadic.cli.transform import TRANSFORM_EXAMPLES, transform
from polyadic.cli.tune import TUNE_EXAMPLES, tune
from polyadic.terminal import echo
from polyadic.version import __version__

__all__ = ["app"]

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
  polyadic prepare folder recordings my.store --seconds 30
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
  129  the same, stopped by SIGHUP, as when a terminal is closed
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


def _show_version(value: bool) -> None:
    if value:
        echo(f"polyadic {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    pass


app.command(epilog=RUN_EXAMPLES, rich_help_panel=_START)(run)
app.add_typer(prepare.app, name="prepare", rich_help_panel=_MODEL)
app.command(epilog=prepare.VERIFY_EXAMPLES, rich_help_panel=_MODEL)(prepare.verify)
app.command(cls=FitCommand, epilog=FIT_EXAMPLES, rich_help_panel=_MODEL)(fit)
app.command(epilog=TUNE_EXAMPLES, rich_help_panel=_MODEL)(tune)
app.command(epilog=TRANSFORM_EXAMPLES, rich_help_panel=_USE)(transform)
app.command(epilog=PREDICT_EXAMPLES, rich_help_panel=_USE)(predict)
app.command(epilog=EVALUATE_EXAMPLES, rich_help_panel=_USE)(evaluate)
app.command(epilog=EXPORT_EXAMPLES, rich_help_panel=_USE)(export)
app.command(epilog=REPORT_EXAMPLES, rich_help_panel=_LOOK)(report)
app.command(epilog=RANK_EXAMPLES, rich_help_panel=_LOOK)(rank)
app.command(epilog=INFO_EXAMPLES, rich_help_panel=_LOOK)(info)
app.command(epilog=BENCH_EXAMPLES, rich_help_panel=_PAPER)(bench)
