"""Options for reading recordings, shared by all commands that read them."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import Annotated, Any, get_type_hints

import typer

from polyadic.cli.options import RECORDINGS, SECONDS, Resample
from polyadic.errors import PolyadicError

__all__ = ["reads_recordings"]

Given = dict[str, Any]
"""Fields of a `polyadic.data.reading.Reading` set on the command line."""


def _option(kind: Any, about: str, metavar: str | None = None, *names: str, **bounds: Any) -> Any:
    return Annotated[
        kind | None, typer.Option(*names, help=about, metavar=metavar, rich_help_panel=RECORDINGS, **bounds)
    ]


_OPTIONS: dict[str, Any] = {
    "seconds": _option(float, f"Length of a window in seconds. Default: {SECONDS:g}.", "SECONDS"),
    "stride": _option(
        float,
        "Time from one window start to the next. Default: the length of a window (no overlap).",
        "SECONDS",
        min=0.0,
    ),
    "offset": _option(
        float,
        "Start of the first window. Default: the first scored epoch if epochs have a regular length, else the start of "
        "the recording.",
        "SECONDS",
        min=0.0,
    ),
    "min_share": _option(float, "Share of a window that its label must cover. Default: 1.", "X", min=0.0, max=1.0),
    "channel": _option(list[str], "Channel to use; repeat for several, in order. Default: all.", "NAME"),
    "fs": _option(
        float, "Sampling rate of arrays and tables that do not contain it; target rate of --resample.", "HZ", min=0.0
    ),
    "resample": _option(
        Resample, "Resample recordings or channels of different rates to one rate: repeat samples, or filter."
    ),
    "keep_slow": _option(
        Resample,
        "Keep channels at a quarter of the fastest rate or less (left out by default): repeat samples, or filter.",
    ),
    "class_": _option(
        list[str],
        "Label to use as a class: TEXT, NAME=TEXT to rename, or NAME=TEXT|TEXT to merge. Repeat for several. Default: "
        "all.",
        "TEXT",
        "--class",
    ),
    "label": _option(str, "Table column with the label.", "COLUMN"),
    "label_from": _option(
        str, "Take the label from the path: folder, or a regular expression with one group.", "REGEX"
    ),
    "subject": _option(
        str,
        "Where the subject comes from: folder, a table column, or a regular expression with one group, applied to the "
        "path. Default: a BIDS entity such as sub-01, else the folder of the file.",
        "REGEX",
    ),
    "subject_from": _option(str, "Like --subject, but always a regular expression.", "REGEX"),
    "time": _option(str, "Table column with the time.", "COLUMN"),
    "scoring": _option(str, "Files with the labels of the recordings, such as '*-Hypnogram.edf'.", "PATTERN"),
    "pattern": _option(str, "Which files in a folder are recordings, such as '*_imu.csv'.", "PATTERN"),
}


def reads_recordings(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options for reading recordings to a command.

    Parameters
    ----------
    function : the command; receives the options that were set as `given`, by the field names of a `Reading`
    """
    hints = get_type_hints(function, include_extras=True)
    own = [
        parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in inspect.signature(function).parameters.items()
        if name != "given"
    ]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in _OPTIONS.items()
    ]

    @functools.wraps(function)
    def command(**values: Any) -> None:
        options = {name: values.pop(name) for name in _OPTIONS}
        function(**values, given=_fields(options))

    parameters = [*own, *added]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _fields(options: dict[str, Any]) -> Given:
    """Return the fields of a `Reading` for the options that were set."""
    given = {name: value for name, value in options.items() if value not in (None, [])}
    for name in ("resample", "keep_slow"):
        if name in given:
            given[name] = given[name].value
    if "channel" in given:
        given["channels"] = tuple(given.pop("channel"))
    if "class_" in given:
        from polyadic.data.reading import parse_classes

        given["classes"] = parse_classes(given.pop("class_"))
    if "subject_from" in given:
        if "subject" in given:
            raise PolyadicError("--subject and --subject-from cannot be combined: give only one of them")
        given["subject"] = given.pop("subject_from")
        if not re.search(r"\((?!\?[:=!<])", given["subject"]):
            raise PolyadicError(
                "--subject-from must be a regular expression with one group, such as 'S(\\d+)', but is "
                f"{given['subject']!r}"
            )
    return given
