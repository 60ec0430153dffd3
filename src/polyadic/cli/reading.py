"""Options for reading recordings, shared by all commands that read them; they are the fields of `Reading`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Annotated, Any, get_type_hints

import typer

from polyadic.cli.options import RECORDINGS
from polyadic.data.reading import Reading, is_pattern, option_name, parse_classes
from polyadic.errors import PolyadicError

__all__ = ["reads_recordings"]

_LISTS = ("channels", "classes")
"""Fields whose option is given several times."""


def _options() -> dict[str, Any]:
    """Return the type of each option: one per field of `Reading`, and --subject-from."""
    hints = get_type_hints(Reading)
    options = {}
    for item in fields(Reading):
        about = {name: value for name, value in item.metadata.items() if name != "flag"}
        option = typer.Option(option_name(item.name), rich_help_panel=RECORDINGS, **about)
        options[item.name] = Annotated[list[str] | None if item.name in _LISTS else hints[item.name] | None, option]
        if item.name == "subject":
            words = "Like --subject, but always a regular expression."
            option = typer.Option(help=words, metavar="REGEX", rich_help_panel=RECORDINGS)
            options["subject_from"] = Annotated[str | None, option]
    return options


def reads_recordings(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options for reading recordings to a command.

    Parameters
    ----------
    function : the command; receives the options that were set as `given`, by the field names of a `Reading`
    """
    hints = get_type_hints(function, include_extras=True)
    parameters = [
        parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in inspect.signature(function).parameters.items()
        if name != "given"
    ]
    options = _options()
    parameters += [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in options.items()
    ]

    @functools.wraps(function)
    def command(**values: Any) -> None:
        given = _fields({name: values.pop(name) for name in options})
        function(**values, given=given)

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _fields(options: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a `Reading` for the options that were set."""
    given = {name: value for name, value in options.items() if value not in (None, [])}
    if "channels" in given:
        given["channels"] = tuple(given["channels"])
    if "classes" in given:
        given["classes"] = parse_classes(given["classes"])
    if "subject_from" in given:
        if "subject" in given:
            raise PolyadicError("--subject and --subject-from cannot be combined: give only one of them")
        given["subject"] = given.pop("subject_from")
        if not is_pattern(given["subject"]):
            raise PolyadicError(
                "--subject-from must be a regular expression with one group, such as 'S(\\d+)', but is "
                f"{given['subject']!r}"
            )
    return given
