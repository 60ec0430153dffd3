"""The command line, and the manual that `polyadic --help` shows. Commands import heavy modules themselves, so that
--help is fast."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Annotated

import typer

from polyadic._util.memory import reuse_memory
from polyadic._util.terminal import echo
from polyadic._util.version import __version__
from polyadic.cli import prepare
from polyadic.cli.options import Command, Group, flowing, option

__all__ = ["app", "main"]

_HELP = """
Small, interpretable features from unlabelled multichannel recordings.

A model describes windows (pieces of recordings) by a few components: patterns over channels, frequencies and time.

No data at hand? [bold]polyadic run[/bold] shows few labels and a failing sensor on simulated nights. With your own
recordings:

  recordings ─ ([bold]prepare[/bold]) ─┬─ [bold]fit[/bold] ──┬─▶ model ─┬─ [bold]transform[/bold] ─▶ features
                          └─ [bold]tune[/bold] ─┘          ├─ [bold]predict[/bold] ───▶ labels
                                              ├─ [bold]evaluate[/bold] ──▶ scores
                                              └─ [bold]report[/bold] ────▶ HTML page

prepare writes a store, a folder of windows on disk, for data that is used more than once. Windows need no labels. If
some have labels, [bold]fit --probe[/bold] also trains a probe: the simple classifier that predict uses. If none has,
[bold]label[/bold] asks you about the windows that matter, in the browser.
"""

_EPILOG = """
[bold]Examples[/bold]

Train on a folder of EDF files, label new ones, and write a report:
  polyadic prepare folder recordings my.store --seconds 30
  polyadic fit my.store --probe -o model.safetensors
  polyadic predict model.safetensors new-recordings -o labels.csv
  polyadic report model.safetensors --data my.store -o report.html

[bold]Every command[/bold] has --help with examples. Most have --json (machine-readable result on standard output)
and --quiet (no progress bar; warnings and errors are still shown).

[bold]Exit codes[/bold]

  0    success
  1    failure: data, models or values that cannot be used
  2    wrong usage: unknown command or option, or a value of the wrong type
  130  stopped by Ctrl-C: no partial output; says how to resume, if possible
  143  the same, stopped by SIGTERM
  129  the same, stopped by SIGHUP (closed terminal)
"""

_PANELS = {
    "Start here": ("run",),
    "From recordings to a model": ("label", "fit", "tune", "moments"),
    "Use a model": ("transform", "predict", "evaluate", "export"),
    "Inspect": ("report", "compare", "rank", "info"),
}

app = typer.Typer(
    name="polyadic",
    cls=Group,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help=flowing(_HELP),
    epilog=flowing(_EPILOG),
)


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, option("Show the version and exit.", "--version")] = False) -> None:
    if version:
        echo(f"polyadic {__version__}")
        raise typer.Exit


app.add_typer(prepare.app, name="prepare", rich_help_panel="From recordings to a model")
for _panel, _names in _PANELS.items():
    for _name in _names:
        _module = import_module(f"polyadic.cli.{_name}")
        _function = getattr(_module, _name)
        _epilog = "[bold]Examples[/bold]\n\n" + flowing(_module.EXAMPLES)
        app.command(cls=Command, help=flowing(_function.__doc__), epilog=_epilog, rich_help_panel=_panel)(_function)


def main() -> None:
    """Run the `polyadic` program."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # names may have characters that the terminal's encoding lacks
    reuse_memory()
    app(prog_name="polyadic")
