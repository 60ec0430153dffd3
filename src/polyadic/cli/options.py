"""What commands have in common: options of the same name, type and help, and how an outcome is shown."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from polyadic.cli.settings import apply
from polyadic.terminal import is_terminal

__all__ = [
    "MOST_EPOCHS",
    "MOST_JOBS",
    "MOST_REPEATS",
    "PROBE_KINDS",
    "RECORDINGS",
    "SECONDS",
    "DataArgument",
    "DeviceOption",
    "ForceOption",
    "JsonOption",
    "ModelArgument",
    "OnError",
    "OnErrorOption",
    "ProbeKind",
    "Protocol",
    "QuietOption",
    "Resample",
    "SettingsOption",
    "shows_progress",
    "window_bar",
]

RECORDINGS = "How recordings become windows (stores and arrays are windows already)"
"""The heading of the options that only matter where recordings are cut."""

SECONDS = 10.0
"""Length of a window where none is given."""

MOST_REPEATS, MOST_JOBS, MOST_EPOCHS = 10_000, 1_000, 1_000_000
"""Bounds of what a typing error may ask for: repetitions, processes at a time, epochs."""


class OnError(StrEnum):
    """What to do about a recording that cannot be read."""

    RAISE = "raise"
    SKIP = "skip"


class Resample(StrEnum):
    """How to bring channels to one rate."""

    HOLD = "hold"
    POLYPHASE = "polyphase"


class Protocol(StrEnum):
    """How to split."""

    SUBJECT = "subject"
    PAPER = "paper"


class ProbeKind(StrEnum):
    """How a probe is trained."""

    AUTO = "auto"
    PLAIN = "plain"
    STANDARDISED = "standardised"


PROBE_KINDS = (
    "auto: a logistic regression whose settings are chosen by leaving subjects out; plain or standardised: "
    "one with fixed settings, as in the paper's tables."
)
"""What the kinds of probes are, for the help of options."""

JsonOption = Annotated[bool, typer.Option("--json", help="Print the outcome as JSON and nothing else.")]
QuietOption = Annotated[bool, typer.Option("--quiet", help="No progress bar; errors are still said.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace the output file if it exists.")]
SettingsOption = Annotated[
    Path | None,
    typer.Option(
        "--settings",
        help="A TOML file with a table of options for each command; options given here win.",
        metavar="FILE",
        exists=True,
        dir_okay=False,
        is_eager=True,
        callback=apply,
    ),
]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu or cuda.", metavar="NAME")]
ModelArgument = Annotated[
    Path,
    typer.Argument(metavar="MODEL", help="A model file of [bold]polyadic fit[/bold].", exists=True, dir_okay=False),
]
DataArgument = Annotated[
    Path,
    typer.Argument(
        metavar="DATA",
        help="A store made by [bold]polyadic prepare[/bold], a .npz or .npy file of windows, or recordings: an EDF, "
        "BDF, WFDB (.hea), BrainVision (.vhdr), EEGLAB (.set) or CSV file, or a folder with such files.",
        exists=True,
    ),
]
OnErrorOption = Annotated[
    OnError,
    typer.Option(help="Stop at a recording that cannot be read, or skip it.", rich_help_panel=RECORDINGS),
]


def shows_progress(quiet: bool, json: bool) -> bool:
    """Whether someone who looks at a terminal wants to be told how far it is."""
    return is_terminal(sys.stderr) and not (quiet or json)


@contextmanager
def window_bar(title: str, shape: tuple[int, ...], hidden: bool) -> Iterator[Callable[[int], None]]:
    """A progress bar of windows.

    Parameters
    ----------
    shape : (N, channels, time)

    Yields
    ------
    a function to be called with the number of windows done
    """
    from polyadic.progress import file_bar

    size = int(shape[1] * shape[2] * 4)
    with file_bar(title, hidden) as update:
        yield lambda done: update("", done, shape[0], done, done * size)
