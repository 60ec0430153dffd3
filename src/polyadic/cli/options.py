"""Options and helpers that several commands share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

from polyadic._util.terminal import is_terminal, printable
from polyadic.cli.settings import apply

__all__ = [
    "MOST_EPOCHS",
    "MOST_JOBS",
    "MOST_REPEATS",
    "PROBE_KINDS",
    "RECORDINGS",
    "DataArgument",
    "DeviceOption",
    "FewArguments",
    "ForceOption",
    "JsonOption",
    "ModelArgument",
    "OnError",
    "OnErrorOption",
    "ProbeKind",
    "Protocol",
    "QuietOption",
    "SettingsOption",
    "shows_progress",
    "window_bar",
]

RECORDINGS = "Cutting recordings into windows (not for stores and arrays)"
"""Heading of the options that apply only to recordings."""

MOST_REPEATS, MOST_JOBS, MOST_EPOCHS = 10_000, 1_000, 1_000_000
"""Upper bounds that catch typing errors: repetitions, parallel processes, epochs."""


class OnError(StrEnum):
    """What to do with a recording that cannot be read."""

    RAISE = "raise"
    SKIP = "skip"


class Protocol(StrEnum):
    """How to split windows into training and test parts."""

    SUBJECT = "subject"
    PAPER = "paper"


class ProbeKind(StrEnum):
    """How a probe is trained."""

    AUTO = "auto"
    PLAIN = "plain"
    STANDARDISED = "standardised"


def _check_exists(path: Path) -> None:
    """Raise if a path does not exist; suggest a similar name in the same folder."""
    if path.exists():
        return
    import difflib

    folder = path.parent
    names = [one.name for one in folder.iterdir()] if folder.is_dir() else []
    close = difflib.get_close_matches(path.name, names, 1)
    hint = f" Did you mean {str(folder / close[0])!r}?" if close else ""
    raise typer.BadParameter(f"path {str(path)!r} does not exist.{hint}")


def _check_data(path: Path) -> Path:
    """Check that a path exists, and return it in a form that has a name for messages."""
    _check_exists(path)
    return path if path.name else path.absolute()


def _check_model(ctx: typer.Context, path: Path) -> Path:
    """Check that a path exists and is not a folder, and return it."""
    _check_exists(path)
    if path.is_dir():
        raise typer.BadParameter(
            f"{str(path)!r} is a folder, not a model file. The model comes first: polyadic {ctx.info_name} "
            "model.safetensors; polyadic fit writes one."
        )
    return path


PROBE_KINDS = (
    "auto: a logistic regression tuned by cross-validation over subjects; plain or standardised: a logistic regression "
    "with fixed settings, as in the paper's tables."
)
"""Help text for the kinds of probes."""

JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON and nothing else.")]
QuietOption = Annotated[
    bool, typer.Option("--quiet", help="Hide the progress bar. Warnings and errors are still shown.")
]
ForceOption = Annotated[bool, typer.Option("--force", help="Overwrite the output file if it exists.")]
SettingsOption = Annotated[
    Path | None,
    typer.Option(
        "--settings",
        help="TOML file with a table of options for each command. Options on the command line take precedence.",
        metavar="FILE",
        exists=True,
        dir_okay=False,
        is_eager=True,
        callback=apply,
    ),
]
DeviceOption = Annotated[str, typer.Option(help="Compute device: auto, cpu or cuda.", metavar="NAME")]
ModelArgument = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL",
        help="Model file written by [bold]polyadic fit[/bold] or [bold]tune[/bold].",
        callback=_check_model,
    ),
]
DataArgument = Annotated[
    Path,
    typer.Argument(
        metavar="DATA",
        help="A store (folder of windows written by [bold]polyadic prepare[/bold]), a .npz or .npy file of windows, or "
        "recordings: an EDF, BDF, WFDB (.hea), BrainVision (.vhdr), EEGLAB (.set) or CSV file, or a folder of them.",
        callback=_check_data,
    ),
]
OnErrorOption = Annotated[
    OnError,
    typer.Option(help="Stop at a recording that cannot be read, or skip it.", rich_help_panel=RECORDINGS),
]


_EXTRA_HINTS = {
    "fit": "fit takes only DATA, and writes a new model to -o FILE",
    "report": "The data is an option: --data {}",
    "export": "The output file is an option: -o {}",
}
"""What to do about an extra argument, by command."""


class FewArguments(typer.core.TyperCommand):
    """A command that says where an extra argument belongs."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        ctx.allow_extra_args = True  # they are refused below, with a hint
        extra = super().parse_args(ctx, args)
        if extra and not ctx.resilient_parsing:
            words = printable(" ".join(extra))
            ctx.fail(f"Got unexpected extra argument(s) ({words}). {_EXTRA_HINTS[self.name or ''].format(words)}.")
        return extra


def shows_progress(quiet: bool, json: bool) -> bool:
    """Whether to show a progress bar: standard error is a terminal, and neither --quiet nor --json is given."""
    return is_terminal(sys.stderr) and not (quiet or json)


@contextmanager
def window_bar(title: str, shape: tuple[int, ...], hidden: bool) -> Iterator[Callable[[int], None]]:
    """Show a progress bar that counts windows.

    Parameters
    ----------
    title : text next to the bar
    shape : shape of the windows, (N, channels, time)
    hidden : do not show the bar

    Yields
    ------
    a function that takes the number of windows done
    """
    from polyadic._util.progress import file_bar

    size = int(shape[1] * shape[2] * 4)
    with file_bar(title, hidden) as update:
        yield lambda done: update("", done, shape[0], done, done * size)
