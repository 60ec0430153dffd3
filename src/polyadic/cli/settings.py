"""Settings from a TOML file: one table per command, with its options as keys.

A pydantic model built from the options of the commands validates the tables. Their values become the defaults of the
options, so that options on the command line take precedence.
"""

from __future__ import annotations

import difflib
import inspect
import json
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

import typer

from polyadic._util.files import check_regular_file
from polyadic.cli.errors import SettingsError

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

__all__ = ["apply", "model_of", "read_settings"]

_LARGEST = 64 * 1024
_MOST_DOTS = 200
"""Maximum bytes of a settings file and dots in a line: the time of tomllib is quadratic in the parts of a key."""

_ABOUT_THE_TERMINAL = ("json", "quiet", "settings", "version")


def apply(context: typer.Context, path: Path | None) -> Path | None:
    """Use the settings of a file as defaults of the current command (callback of `--settings`)."""
    if path is not None and not context.resilient_parsing:
        from polyadic.cli.commands import app

        table: Any = read_settings(path, model_of(app))
        for word in context.command_path.split()[-_depth(context) :]:
            table = table.get(word, {})
        names = {key: name for name, (key, _) in _options(_function(app, context)).items()}
        context.default_map = {names[key]: value for key, value in table.items()}
    return path


def read_settings(path: Path, model: type[BaseModel]) -> dict[str, Any]:
    """Read and validate the tables of a settings file.

    Parameters
    ----------
    path : the settings file
    model : result of `model_of`

    Raises
    ------
    SettingsError : if the file is invalid; the message gives the file, the line and the key
    """
    from pydantic import ValidationError

    check_regular_file(path, SettingsError)
    size = path.stat().st_size
    if size > _LARGEST:
        raise SettingsError(f"{path.name} must have at most {_LARGEST} bytes, but has {size}")
    try:
        text = path.read_bytes().decode("utf-8-sig")  # editors on Windows add a byte order mark
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path.name} is not UTF-8 text: {error}") from error
    for number, line in enumerate(text.splitlines(), start=1):
        if line.count(".") > _MOST_DOTS:
            raise SettingsError(f"{path.name}, line {number}: a line must have at most {_MOST_DOTS} dots")
    try:
        tables = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise SettingsError(f"{path.name} is not TOML: {error}") from error
    try:
        # Through JSON, where strings are valid for paths and choices, but not for numbers.
        model.model_validate_json(json.dumps(tables, default=str), strict=True)
    except RecursionError as error:
        raise SettingsError(f"{path.name} has too many nested tables") from error
    except ValidationError as error:
        raise SettingsError(_explained(error, path.name, text, model)) from error
    return tables


def model_of(app: typer.Typer) -> type[BaseModel]:
    """Build the pydantic model of a settings file: a field per command, with a field per option."""
    from pydantic import ConfigDict, Field, create_model

    fields: dict[str, Any] = {}
    for number, (name, function) in enumerate(_commands(app)):
        inner = model_of(function) if isinstance(function, typer.Typer) else _model_of_command(name, function)
        fields[f"command_{number}"] = (inner, Field(default=None, alias=name))
    return create_model("Settings", __config__=ConfigDict(extra="forbid"), **fields)


def _model_of_command(name: str, function: Callable[..., Any]) -> type[BaseModel]:
    from pydantic import ConfigDict, Field, create_model

    fields = {}
    for number, (key, (kind, option)) in enumerate(_options(function).values()):
        bounds = {"ge": option.min, "le": option.max, "alias": key}
        if float in (kind, *get_args(kind)):
            bounds["allow_inf_nan"] = False
        fields[f"option_{number}"] = (kind, Field(default=None, **bounds))
    return create_model(name, __config__=ConfigDict(extra="forbid"), **fields)  # type: ignore[call-overload,no-any-return]


def _commands(app: typer.Typer) -> Iterator[tuple[str, Any]]:
    """Yield the names of commands with their functions, and of groups with their apps."""
    for command in app.registered_commands:
        assert command.callback is not None
        yield command.name or command.callback.__name__.replace("_", "-"), command.callback
    for group in app.registered_groups:
        yield str(group.name), group.typer_instance


def _options(function: Callable[..., Any]) -> dict[str, tuple[str, tuple[Any, Any]]]:
    """Return the options of a command by parameter: name in a file, type and typer's description."""
    hints = get_type_hints(function, include_extras=True)
    found = {}
    for name in inspect.signature(function).parameters:
        if get_origin(hints[name]) is not Annotated or name in _ABOUT_THE_TERMINAL:
            continue
        kind, *notes = get_args(hints[name])
        for note in notes:
            if isinstance(note, typer.models.OptionInfo):
                # In an annotation, typer stores the first name of an option as its default.
                words = [str(word) for word in (note.default, *(note.param_decls or ()))]
                long = next((word for word in words if word.startswith("--")), f"--{name.replace('_', '-')}")
                found[name] = (long.removeprefix("--").partition("/")[0], (kind, note))
    return found


def _depth(context: typer.Context) -> int:
    """Return the number of words of the command after `polyadic`."""
    count = 0
    while context.parent is not None:
        count, context = count + 1, context.parent  # type: ignore[assignment]
    return count


def _function(app: typer.Typer, context: typer.Context) -> Callable[..., Any]:
    found: Any = app
    for word in context.command_path.split()[-_depth(context) :]:
        found = dict(_commands(found))[word]
    return found  # type: ignore[no-any-return]


# ------------------------------------------------------------------------------------------------ error messages


def _explained(error: ValidationError, file: str, text: str, model: type[BaseModel]) -> str:
    """Format each error on its own line: file, line, key, value and what is allowed."""
    lines = []
    for fault in error.errors(include_url=False):
        path = [str(part) for part in fault["loc"] if isinstance(part, str)]
        path = path[: _known(path, model) + 1]
        where = f"{file}, line {_line(text, path)}"
        if fault["type"] == "extra_forbidden":
            keys = _fields(path[:-1], model)
            what = "a command" if any(hasattr(kind, "model_fields") for kind in keys.values()) else "an option"
            owner = " ".join(["polyadic", *path[:-1]])
            lines.append(f"{where}: {path[-1]!r} is not {what} of {owner}{_suggestion(path[-1], list(keys))}")
        else:
            came = fault["input"]
            shown = "a table" if isinstance(came, dict) else repr(came)
            lines.append(f"{where}: {'.'.join(path)} is {shown}, but {_expected(fault['msg'])}")
    return "\n".join(dict.fromkeys(lines))


def _expected(message: str) -> str:
    message = message.removeprefix("Input ")
    return message if message.startswith("should") else f"is invalid: {message}"


def _fields(path: list[str], model: Any) -> dict[str, Any]:
    """Return the allowed keys of a table with their types; empty if it is not a table."""
    for word in path:
        model = _fields([], model)[word]
    return {str(field.alias): field.annotation for field in getattr(model, "model_fields", {}).values()}


def _known(path: list[str], model: Any) -> int:
    """Return how many words of a path are keys: pydantic appends other words, such as the members of a union."""
    for depth, word in enumerate(path):
        fields = _fields(path[:depth], model)
        if word not in fields:
            return depth - (not fields)
    return len(path)


def _suggestion(key: str, keys: list[str]) -> str:
    close = difflib.get_close_matches(key.replace("_", "-"), keys, 1, 0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; choose from {', '.join(keys)}"


def _line(text: str, path: list[str]) -> int:
    """Return the number of the line where the statement that sets a key begins.

    tomllib does not report lines, so increasingly long prefixes of the text are parsed until the key appears.
    """
    lines = text.splitlines(keepends=True)
    before = 0
    for count in range(1, len(lines) + 1):
        try:
            found: Any = tomllib.loads("".join(lines[:count]))
        except tomllib.TOMLDecodeError:
            continue
        for word in path:
            found = found.get(word) if isinstance(found, dict) else None
        if found is not None:
            added = lines[before:count]
            blank = next(n for n, line in enumerate(added) if line.strip() and not line.lstrip().startswith("#"))
            return before + blank + 1
        before = count
    return len(lines)
