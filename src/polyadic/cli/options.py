"""Options that several commands share, those for reading recordings, and the form of help and usage errors."""

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

from polyadic._util.terminal import printable
from polyadic.cli.exits import exit_on_interrupt
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


def _check_data(path: Path | None) -> Path | None:
    """Check that a path exists, if one is given, and return it in a form that has a name for messages."""
    if path is None:
        return None
    if not path.exists():
        folder = path.parent
        names = [file.name for file in folder.iterdir()] if folder.is_dir() else []
        close = difflib.get_close_matches(path.name, names, 1)
        hint = f" Did you mean {str(folder / close[0])!r}?" if close else ""
        raise typer.BadParameter(f"path {str(path)!r} does not exist.{hint}")
    return path if path.name else path.absolute()


def _check_model(ctx: typer.Context, path: Path) -> Path:
    from polyadic.data.folders import ENDINGS
    from polyadic.data.readers.arrays import ARRAYS
    from polyadic.data.readers.common import ending_of

    _check_data(path)
    if path.is_dir() or ending_of(path) in (*ARRAYS, *ENDINGS):
        kind = "folder" if path.is_dir() else f"{ending_of(path)} file"
        raise typer.BadParameter(
            f"{str(path)!r} is a {kind}, not a model file. The model comes first: polyadic {ctx.info_name} "
            "model.safetensors; polyadic fit writes one."
        )
    return path


Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Hide the progress bar. Warnings and errors are still shown.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the output file if it exists.")]
Device = Annotated[str, typer.Option(help="Compute device: auto, cpu or cuda.", metavar="NAME")]
Seed = Annotated[int, typer.Option(metavar="N", help="Random seed.")]
Fs = Annotated[
    float | None, typer.Option(min=0.0, metavar="HZ", help="Sampling rate, if the file does not contain it.")
]
Preset = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The paper's settings for a dataset: sleep_edf, har, ptb_xl or mgh."),
]
Prior = Annotated[
    Literal["balanced", "training"] | None,
    typer.Option(
        help="Class frequencies that predictions assume: balanced (all classes equally frequent) or training (as among "
        "the training labels: more accurate overall, less so for rare classes). Default: as the probe was trained; "
        "auto is balanced."
    ),
]
Nfft = Annotated[int | None, typer.Option(min=2, metavar="N", help="Frame length of the STFT in samples.")]
Hop = Annotated[int | None, typer.Option(min=1, metavar="N", help="Hop of the STFT in samples.")]
Consensus = Annotated[
    bool, typer.Option("--consensus", help="With --restarts: average the components on which the starts agree.")
]
Probe = Annotated[
    ProbeKind, typer.Option(metavar="KIND", help=f"Probe: the classifier that scores the features. {PROBE_KINDS}")
]
Transductive = Annotated[
    bool,
    typer.Option(
        "--transductive", help="Do not refit the features in every fold, even if they were learned from test subjects."
    ),
]
ModelOut = Annotated[Path, typer.Option("--out", "-o", help="The model file to write.", metavar="FILE")]
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
        callback=_check_data,
    ),
]
DataOption = Annotated[
    Path | None,
    typer.Option("--data", metavar="DATA", help="A store, a file of windows, or recordings.", callback=_check_data),
]
SkipErrors = Annotated[
    OnError, typer.Option(help="Stop at a recording that cannot be read, or skip it.", rich_help_panel=_RECORDINGS)
]


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


# ------------------------------------------------------------------------------------------ help and usage errors

_EXTRA_HINTS = {
    "fit": " fit takes only DATA, and writes a new model to -o FILE.",
    "report": " The data is an option: --data {}.",
    "export": " The output file is an option: -o {}.",
}
"""What to do about an extra argument, by command."""


class Command(typer.core.TyperCommand):
    """A command that says where an extra argument belongs; the --probe of `fit` needs no value."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        if self.name == "fit":
            end = args.index("--") if "--" in args else len(args)
            for place, word in enumerate(args[:end]):
                if word == "--probe" and [*args, ""][place + 1] not in get_args(ProbeKind):
                    args[place] = "--probe=auto"
        ctx.allow_extra_args = True  # they are refused below, with a hint
        extra = super().parse_args(ctx, args)
        if extra and not ctx.resilient_parsing:
            words = printable(" ".join(extra))
            ctx.fail(
                f"Got unexpected extra argument(s) ({words}).{_EXTRA_HINTS.get(self.name or '', '').format(words)}"
            )
        return extra


class Manual(typer.core.TyperGroup):
    """A group of commands whose help wraps text to the terminal width; signals end its commands with a message."""

    def __init__(self, *args: Any, **words: Any) -> None:
        super().__init__(*args, **words)
        for command in (self, *self.commands.values()):
            command.help, command.epilog = flowing(command.help or ""), flowing(command.epilog or "")

    def list_commands(self, ctx: Any) -> list[str]:
        # typer lists commands and groups apart; sorting keeps the order of the others.
        return sorted(super().list_commands(ctx), key=lambda name: {"run": 0, "prepare": 1}.get(name, 2))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        return None if command is None else _without_types_of_flags(command, ctx)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        _without_types_of_flags(self, ctx)
        super().format_help(ctx, formatter)

    def make_context(self, *args: Any, **words: Any) -> Any:
        with exit_on_interrupt():
            return super().make_context(*args, **words)

    def invoke(self, ctx: Any) -> Any:
        with exit_on_interrupt():
            return super().invoke(ctx)


def _without_types_of_flags(command: Any, ctx: Any) -> Any:
    """Hide the type of flags, which take no value."""
    for parameter in command.get_params(ctx):
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return command


def flowing(text: str) -> str:
    """Join the lines of each paragraph, so that the terminal can wrap them; keep indented lines.

    Examples
    --------
    >>> flowing("one\\ntwo\\n\\nthree:\\n  polyadic run")
    'one two\\n\\nthree:\\n  polyadic run'
    """
    lines: list[str] = []
    for line in text.strip("\n").split("\n"):
        follows = bool(lines) and lines[-1].strip() and not lines[-1].startswith(" ")
        if follows and line.strip() and not line.startswith(" "):
            lines[-1] += f" {line}"
        else:
            lines.append(line)
    return "\n".join(lines)
