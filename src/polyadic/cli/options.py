"""Options that several commands share, those for reading recordings, and the classes of commands."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Collection
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

import typer
import typer.core

from polyadic.cli.exits import exit_with_message
from polyadic.data.reading import Reading, option_name, parse_classes, parse_renames

_RECORDINGS = "Reading recordings (not for stores and arrays)"
"""Heading of the options that apply only to recordings."""


OnError = Literal["raise", "skip"]
Protocol = Literal["subject", "paper"]
ProbeKind = Literal["auto", "plain", "standardised"]
PROBE_KINDS = (
    "auto: a logistic regression tuned by cross-validation over subjects; plain or standardised: a logistic regression "
    "with fixed settings, as in the paper's tables."
)
"""Help text for the kinds of probes."""


def check_data(path: Path | None) -> Any:
    """Raise if a path is given but does not exist, with a close match; return it with a name for messages."""
    if path is None:
        return None
    if not path.exists():
        names = [file.name for file in path.parent.iterdir()] if path.parent.is_dir() else []
        close = difflib.get_close_matches(path.name, names, 1)
        hint = f" Did you mean {str(path.parent / close[0])!r}?" if close else ""
        raise typer.BadParameter(f"path {str(path)!r} does not exist.{hint}")
    return path if path.name else path.absolute()


def _check_model(ctx: typer.Context, path: Path) -> Path:
    from polyadic.data.folders import ENDINGS
    from polyadic.data.readers.arrays import ARRAYS
    from polyadic.data.readers.common import ending_of

    check_data(path)
    if path.is_dir() or ending_of(path) in (*ARRAYS, *ENDINGS):
        kind = "folder" if path.is_dir() else f"{ending_of(path)} file"
        raise typer.BadParameter(
            f"{str(path)!r} is a {kind}, not a model file. The model comes first: polyadic {ctx.info_name} "
            "model.safetensors; polyadic fit writes one."
        )
    return path


def option(text: str, *names: str, panel: str | None = None, **more: Any) -> Any:
    """Declare an option: help first, then its names, if they are not that of the parameter."""
    return typer.Option(*names, help=text, rich_help_panel=panel, **more)


Json = Annotated[bool, option("Print the result as JSON and nothing else.", "--json")]
Quiet = Annotated[bool, option("Hide the progress bar. Warnings and errors are still shown.", "--quiet")]
Force = Annotated[bool, option("Overwrite the output file if it exists.", "--force")]
Device = Annotated[str, option("Compute device: auto, cpu or cuda.", metavar="NAME")]
Seed = Annotated[int, option("Random seed.", metavar="N")]
Fs = Annotated[float | None, option("Sampling rate, if the file does not contain it.", min=0.0, metavar="HZ")]
Preset = Annotated[
    str | None, option("The paper's settings for a dataset: sleep_edf, har, ptb_xl or mgh.", metavar="NAME")
]
Prior = Annotated[
    Literal["balanced", "training"] | None,
    option(
        "Class frequencies that predictions assume: balanced (all classes equally frequent) or training (as among "
        "the training labels: more accurate overall, less so for rare classes). Default: as the probe was trained; "
        "auto is balanced."
    ),
]
Rank = Annotated[int | None, option("Number of components (patterns). Default: 32.", min=1, metavar="N")]
Sweeps = Annotated[
    int | None, option("Maximum number of sweeps. Default: 200; atd, sals, gr-sals: 50.", min=1, metavar="N")
]
Nfft = Annotated[int | None, option("Frame length of the STFT in samples.", min=2, metavar="N")]
Hop = Annotated[int | None, option("Hop of the STFT in samples.", min=1, metavar="N")]
Consensus = Annotated[bool, option("With --restarts: average the components on which the starts agree.", "--consensus")]
Probe = Annotated[ProbeKind, option(f"Probe: the classifier that scores the features. {PROBE_KINDS}", metavar="KIND")]
Transductive = Annotated[
    bool, option("Do not refit the features in every fold, even if they have seen test subjects.", "--transductive")
]
ModelOut = Annotated[Path, option("The model file to write.", "--out", "-o", metavar="FILE")]
Model = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL",
        help="Model file written by [bold]polyadic fit[/bold] or [bold]tune[/bold].",
        callback=_check_model,
    ),
]
Data = Annotated[
    Path,
    typer.Argument(
        metavar="DATA",
        help="A store (folder of windows written by [bold]polyadic prepare[/bold]), a .npz, .npy or .mat file of "
        "windows, or recordings: a file of EDF, BDF, WFDB (.hea), BrainVision (.vhdr), EEGLAB (.set), FIF or a table "
        "(CSV, Parquet, Excel), or a folder of them.",
        callback=check_data,
    ),
]
DataOption = Annotated[
    Path | None,
    option("A store, a file of windows, or recordings.", "--data", metavar="DATA", callback=check_data),
]
SkipErrors = Annotated[OnError, option("Stop at a recording that cannot be read, or skip it.", panel=_RECORDINGS)]


def reads_recordings(function: Callable[..., None], only: Collection[str] = ()) -> Callable[..., None]:
    """Add the options for reading recordings to a command: one for each field of `Reading`.

    Parameters
    ----------
    function : the command; receives the options that were set as `given`, by the field names of a `Reading`
    only : the fields to add; all if empty
    """
    chosen = [field for field in fields(Reading) if not only or field.name in only]
    hints = get_type_hints(function, include_extras=True)
    kinds = get_type_hints(Reading) | dict.fromkeys(("channels", "classes", "rename"), list[str])
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        parameter.replace(annotation=hints[name], kind=keyword)
        for name, parameter in inspect.signature(function).parameters.items()
        if name != "given"
    ]
    for field in chosen:
        about = {name: value for name, value in field.metadata.items() if name != "flag"}
        option = typer.Option(option_name(field.name), rich_help_panel=_RECORDINGS, **about)
        kind: Any = kinds[field.name]
        annotation = Annotated[kind | None, option]
        parameters.append(inspect.Parameter(field.name, keyword, default=None, annotation=annotation))

    @functools.wraps(function)
    def command(**values: Any) -> None:
        options = {field.name: values.pop(field.name) for field in chosen}
        given = {name: value for name, value in options.items() if value not in (None, [])}
        if "channels" in given:
            given["channels"] = tuple(given["channels"])
        if "rename" in given:
            given["rename"] = parse_renames(given["rename"])
        if "classes" in given:
            given["classes"] = parse_classes(given["classes"])
        function(**values, given=given)

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


# ------------------------------------------------------------------------------------------ commands and their help


class _PlainFlags:
    """Help without the type of flags, which take no value."""

    def get_params(self, ctx: Any) -> Any:
        parameters = super().get_params(ctx)  # type: ignore[misc]
        for parameter in parameters:
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
        return parameters


class Command(_PlainFlags, typer.core.TyperCommand):
    """A command that ends with a message and an exit code; the --probe of `fit` needs no value."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        if self.name == "fit":
            end = args.index("--") if "--" in args else len(args)
            for place, word in enumerate(args[:end]):
                if word == "--probe" and [*args, ""][place + 1] not in get_args(ProbeKind):
                    args[place] = "--probe=auto"
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        with exit_with_message(any("--sweeps" in parameter.opts for parameter in self.params)):
            return super().invoke(ctx)


class Group(_PlainFlags, typer.core.TyperGroup):
    """A group of commands; typer would list a group such as prepare after all commands."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=lambda name: {"run": 0, "prepare": 1}.get(name, 2))


def flowing(text: str | None) -> str:
    """Join the lines of each paragraph, so that the terminal can wrap them; keep paragraphs with indented lines.

    Examples
    --------
    >>> flowing("one\\ntwo\\n\\nthree:\\n  polyadic run")
    'one two\\n\\nthree:\\n  polyadic run'
    """
    parts = inspect.cleandoc(text or "").split("\n\n")
    return "\n\n".join(part if "\n " in part else part.replace("\n", " ") for part in parts)
