"""The options of how recordings are read, the same for every command that reads them."""

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
"""Fields of a `polyadic.data.reading.Reading` that were given as options."""


def _option(kind: Any, about: str, metavar: str | None = None, *names: str, **bounds: Any) -> Any:
    return Annotated[
        kind | None, typer.Option(*names, help=about, metavar=metavar, rich_help_panel=RECORDINGS, **bounds)
    ]


_OPTIONS: dict[str, Any] = {
    "seconds": _option(float, f"Length of a window; {SECONDS:g} if not given.", "SECONDS"),
    "stride": _option(float, "From one window to the next; the length of a window if not given.", "SECONDS", min=0.0),
    "offset": _option(
        float,
        "Before the first window. If not given, windows begin at scored epochs where these have a regular length, else "
        "at the start of the recording.",
        "SECONDS",
        min=0.0,
    ),
    "min_share": _option(float, "Share of a window that its label must cover; 1 if not given.", "X", min=0.0, max=1.0),
    "channel": _option(list[str], "A channel to take; once for each, in order. All if not given.", "NAME"),
    "fs": _option(float, "Sampling rate in Hz; of arrays and tables that do not say theirs.", "HZ", min=0.0),
    "resample": _option(Resample, "Bring recordings or channels of other rates to one: repeat samples, or filter."),
    "keep_slow": _option(
        Resample, "Keep channels far slower than the fastest, which are left out: repeat samples, or filter."
    ),
    "class_": _option(
        list[str],
        "A label that is a class, once for each: TEXT, NAME=TEXT, or NAME=TEXT|TEXT to merge. All if not given.",
        "TEXT",
        "--class",
    ),
    "label": _option(str, "The column of tables that has the label.", "COLUMN"),
    "label_from": _option(str, "Where a path has the label: folder, or a regular expression with one group.", "REGEX"),
    "subject": _option(
        str,
        "Whose a recording is: folder, a column of tables, or a regular expression with one group over its path. If "
        "not given, a BIDS entity such as sub-01, else the folder of the file.",
        "REGEX",
    ),
    "subject_from": _option(str, "The same as a regular expression only.", "REGEX"),
    "time": _option(str, "The column of tables that has the time.", "COLUMN"),
    "scoring": _option(str, "Files that have the labels of the recordings, as '*-Hypnogram.edf'.", "PATTERN"),
    "pattern": _option(str, "Which files of a folder are recordings, as '*_imu.csv'.", "PATTERN"),
}


def reads_recordings(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of how recordings are read.

    Parameters
    ----------
    function : the command; it gets those options that were given as `given`, by the names of fields of a `Reading`
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
    """The fields of a `Reading` from the options that were given."""
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
            raise PolyadicError("subjects come from one place: give one of --subject and --subject-from")
        given["subject"] = given.pop("subject_from")
        if not re.search(r"\((?!\?[:=!<])", given["subject"]):
            raise PolyadicError(
                f"--subject-from must be a regular expression with one group, as 'S(\\d+)', but is {given['subject']!r}"
            )
    return given
