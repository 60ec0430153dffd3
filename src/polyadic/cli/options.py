"""Options that several commands share, those for reading recordings, and how commands end."""

from __future__ import annotations

import difflib
import functools
import inspect
import shlex
import signal
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import typer
import typer.core

from polyadic._util.terminal import described, echo, print_json, print_notes
from polyadic.data.reading import Reading, option_name
from polyadic.errors import PolyadicError


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
    check_data(path)
    if path.suffix.lower() != ".safetensors":
        raise typer.BadParameter(
            f"{str(path)!r} is not a model file. The model comes first: polyadic {ctx.info_name} model.safetensors; "
            "polyadic fit writes one."
        )
    return path


def option(text: str, *names: str, panel: str | None = None, **more: Any) -> Any:
    """Declare an option: help first, then its names, if they are not that of the parameter."""
    return typer.Option(*names, help=text, rich_help_panel=panel, **more)


def out_option(text: str, metavar: str = "FILE") -> Any:
    """Declare the option --out (-o)."""
    return option(text, "--out", "-o", metavar=metavar)


Fs = Annotated[float | None, option("Sampling rate, if the file does not contain it.", min=0.0, metavar="HZ")]
Prior = Annotated[
    Literal["balanced", "training"] | None,
    option("Class frequencies that predictions assume: equal, or those of training labels. Default: as in training."),
]
Rank = Annotated[int | None, option("Number of components (patterns). Default: 32.", min=1, metavar="N")]
Transductive = Annotated[bool, option("Keep features that have seen test subjects, without refits.", "--transductive")]
ModelOut = Annotated[Path, out_option("The model file to write.")]
Model = Annotated[
    Path, typer.Argument(metavar="MODEL", help="A model file of [bold]fit[/bold] or tune.", callback=_check_model)
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

_RECORDINGS = "Reading recordings (not for stores and arrays)"
_READING = tuple(item.name for item in fields(Reading))
_Function = Callable[..., None]


@dataclass(frozen=True)
class Common:
    """The options that many commands have; `given` are those for reading recordings that were set, by name."""

    seed: Annotated[int, option("Random seed.", metavar="N")] = 0
    device: Annotated[str, option("Compute device: auto, cpu or cuda.", metavar="NAME")] = "auto"
    force: Annotated[bool, option("Overwrite the output if it exists.", "--force")] = False
    json: Annotated[bool, option("Print the result as JSON and nothing else.", "--json")] = False
    quiet: Annotated[bool, option("Hide the progress bar. Warnings and errors are still shown.", "--quiet")] = False
    labels: Annotated[
        Path | None,
        option("Labels from a .csv file such as that of polyadic label.", metavar="TABLE", callback=check_data),
    ] = None
    on_error: Any = "raise"
    given: Mapping[str, Any] = field(default_factory=dict)

    @property
    def hidden(self) -> bool:
        """Whether to show no progress."""
        return self.quiet or self.json

    def tell(self, outcome: Mapping[str, Any], *notes: str, shown: Iterable[str] | None = None) -> None:
        """Print the result: as JSON with --json, else its entries, or the lines that are `shown`, and notes."""
        if self.json:
            print_json(outcome)
        else:
            for line in (*(described(outcome) if shown is None else shown), *notes):
                echo(line)


def with_options(names: str, reading: Collection[str] = _READING) -> Callable[[_Function], _Function]:
    """Add common options to a command, by their names, and those for reading recordings, with --on-error if all.

    The command receives their values as `common`.
    """
    kinds = get_type_hints(Reading) | dict.fromkeys(("channels", "classes", "rename"), list[str])
    hints = get_type_hints(Common, include_extras=True)
    options: dict[str, Any] = {name: hints[name] for name in names.split()}
    for item in fields(Reading):
        if item.name in reading:
            about = {name: value for name, value in item.metadata.items() if name != "flag"}
            declared = typer.Option(option_name(item.name), rich_help_panel=_RECORDINGS, **about)
            options[item.name] = Annotated[kinds[item.name] | None, declared]
    if reading == _READING:
        skip = option("Stop at a recording that cannot be read (default), or skip it.", panel=_RECORDINGS)
        options["on_error"] = Annotated[Literal["raise", "skip"] | None, skip]

    def decorate(function: _Function) -> _Function:
        own, keyword = get_type_hints(function, include_extras=True), inspect.Parameter.KEYWORD_ONLY
        parameters = [
            parameter.replace(annotation=own[name], kind=keyword)
            for name, parameter in inspect.signature(function).parameters.items()
            if name != "common"
        ]
        for name, kind in options.items():
            default = getattr(Common, name) if name in names.split() else None
            parameters.append(inspect.Parameter(name, keyword, default=default, annotation=kind))

        @functools.wraps(function)
        def command(**values: Any) -> None:
            chosen = {name: value for name in options if (value := values.pop(name)) not in (None, [])}
            given = {name: chosen.pop(name) for name in _READING if name in chosen}
            parsed = Reading(**given)
            function(**values, common=Common(**chosen, given={name: getattr(parsed, name) for name in given}))

        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return command

    return decorate


# ------------------------------------------------------------------------------------------ commands and their help


class _PlainFlags:
    """A command of which the help shows flags without a type: they take no value."""

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if getattr(param, "is_flag", False):
                param.metavar = ""
        return params


class Command(_PlainFlags, typer.core.TyperCommand):
    """A command that ends with a message and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        with _exit_with_message():
            return super().invoke(ctx)


class Group(_PlainFlags, typer.core.TyperGroup):
    """A group of commands; typer would list a group such as prepare after all commands."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=lambda name: {"run": 0, "prepare": 1}.get(name, 2))


def flowing(text: str | None) -> str:
    """Join the lines of each paragraph, so that the terminal can wrap them; keep paragraphs with indented lines."""
    parts = inspect.cleandoc(text or "").split("\n\n")
    return "\n\n".join(part if "\n " in part else part.replace("\n", " ") for part in parts)


# --------------------------------------------------------------------------------------------- how commands end


@contextmanager
def _exit_with_message() -> Iterator[None]:
    """Turn errors and signals into a message and an exit code, and warnings into one line each.

    SIGTERM and SIGHUP act like Ctrl-C; ignored signals, as under `nohup`, stay ignored. PolyadicError, OSError and a
    lack of memory are shown without a traceback; all other exceptions are bugs.
    """
    received, shown = [signal.SIGINT], set[str]()

    def stop(number: int, _: Any) -> None:
        received[0] = signal.Signals(number)
        raise KeyboardInterrupt

    def show(message: Any, *where: Any, **more: Any) -> None:
        text = " ".join(str(message).split())
        if text not in shown:
            shown.add(text)
            print_notes(f"polyadic: warning: {text}")

    usual, warnings.showwarning = warnings.showwarning, show
    for number in (signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)):  # which Windows lacks
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, stop)
    try:
        yield
    except KeyboardInterrupt as interrupt:
        # Commands that can be resumed put the instructions into the exception.
        _exit(f"stopped; {str(interrupt) or 'no partial output is left'}", 128 + received[0], "yellow")
    except BrokenPipeError:
        raise  # ends quietly
    except (PolyadicError, OSError) as error:
        _exit(str(error))
    except (MemoryError, RuntimeError) as error:  # torch raises a RuntimeError
        text = str(error)
        if not (isinstance(error, MemoryError) or "out of memory" in text or "can't allocate memory" in text):
            raise
        _exit(f"not enough memory: {text.partition(chr(10))[0]}")
    finally:
        warnings.showwarning = usual


def _exit(message: str, code: int = 1, colour: str = "red") -> None:
    # Further lines are indented, so that a line break in a file name cannot imitate a message.
    first, *more = message.split("\n")
    for line in (f"polyadic: {first}", *(f"  {line.strip()}" for line in more)):
        echo(line, err=True, colour=colour)
    raise SystemExit(code) from None


@contextmanager
def resumable(path: Path) -> Iterator[None]:
    """Remove the file of what is done when all is done; if the command is stopped, say how to resume with it."""
    try:
        yield
    except KeyboardInterrupt as stop:
        if path.exists():
            words = [word for word in sys.argv[1:] if word != "--resume"]
            start = "python -m polyadic" if Path(sys.argv[0]).name == "__main__.py" else "polyadic"
            command = f"{start} {shlex.join([*words, '--resume'])}"
            stop.args = (f"progress is saved in {path}. To resume:\n  {command}",)
        raise
    path.unlink(missing_ok=True)
