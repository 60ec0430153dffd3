"""How recordings are read: channels, sampling rate, windows, labels and subjects, in one description.

`Reading` is the only declaration of these options: the command line and `polyadic.data.folder` are generated from it.
It is saved in the header of a store and in model files, so that later recordings are read in the same way.
"""

# ruff: noqa: RUF009 - `_option` returns a dataclass field
from __future__ import annotations

import difflib
import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from numbers import Real
from textwrap import fill
from typing import Any, Literal, Self

from polyadic.errors import PolyadicError

_AT_EPOCHS = "none (windows begin at scored epochs, or at the start of a recording)"
_UNITS = {"seconds": " s", "stride": " s", "offset": " s", "fs": " Hz"}
_Method = Literal["hold", "polyphase"]


def _option(about: str, metavar: str | None = None, default: Any = None, **more: Any) -> Any:
    """Return a dataclass field with its description, and for the command line its metavar, flag and bounds."""
    return field(default=default, metadata={"help": about, "metavar": metavar, **more})


@dataclass(frozen=True)
class Reading:
    """How recordings become windows with labels and subjects."""

    seconds: float = _option("Length of a window in seconds. Default: 10.", "SECONDS", 10.0)
    stride: float | None = _option(
        "Time from one window start to the next. Default: the length of a window (no overlap).", "SECONDS", min=0.0
    )
    offset: float | None = _option(
        "Start of the first window. Default: the first scored epoch if epochs have a regular length, else the start of "
        "the recording.",
        "SECONDS",
        min=0.0,
    )
    min_share: float | None = _option("Share of a window that its label must cover. Default: 1.", "X", min=0.0, max=1.0)
    channels: tuple[str, ...] | None = _option(
        "Channel to use; repeat for several, in order. Default: all.", "NAME", flag="--channel"
    )
    rename: Mapping[str, str] = _option(
        "Rename a channel, as in AX=ax; repeat for several. Other options use the new names.", "OLD=NEW", ()
    )
    fs: float | None = _option(
        "Sampling rate of arrays and tables that do not contain it; target rate of --resample.", "HZ", min=0.0
    )
    resample: _Method | None = _option(
        "Resample recordings or channels of different rates to one rate: repeat samples, or filter."
    )
    missing: float | None = _option(
        "Value of missing samples, such as -32.768, in addition to empty cells and to the marks of the format.", "VALUE"
    )
    classes: Mapping[str, Sequence[str]] = _option(
        "Label to use as a class: TEXT, NAME=TEXT to rename, or NAME=TEXT|TEXT to merge. Repeat for several. Default: "
        "all.",
        "TEXT",
        (),
        flag="--class",
    )
    label: str | None = _option("Table column with the label.", "COLUMN")
    label_from: str | None = _option(
        "Take the label from the path: folder, or a regular expression with one group.", "REGEX"
    )
    subject: str | None = _option(
        "Where the subject comes from: folder, a table column, or a regular expression with one group, applied to the "
        "path. Default: a BIDS entity such as sub-01, else the folder of the file, else its name.",
        "REGEX",
    )
    time: str | None = _option("Table column with the time.", "COLUMN")
    scoring: str | None = _option("Files with the labels of the recordings, such as '*-Hypnogram.edf'.", "PATTERN")
    pattern: str | None = _option("Which files in a folder are recordings, such as '*_imu.csv'.", "PATTERN")

    def __post_init__(self) -> None:
        for name in ("seconds", "stride", "fs"):
            value = getattr(self, name)
            if not ((value is None and name != "seconds") or (_is_number(value) and 0 < value < math.inf)):
                raise PolyadicError(f"{name} must be a positive number ({_UNITS[name].strip()}), but is {value!r}")
        if self.offset is not None and not (_is_number(self.offset) and 0 <= self.offset < math.inf):
            raise PolyadicError(f"offset must be a non-negative number of seconds, but is {self.offset!r}")
        if self.missing is not None and not (_is_number(self.missing) and math.isfinite(self.missing)):
            raise PolyadicError(f"missing must be a finite number, but is {self.missing!r}")
        if self.min_share is not None and not (_is_number(self.min_share) and 0 < self.min_share <= 1):
            raise PolyadicError(f"min_share must be above 0 and at most 1, but is {self.min_share!r}")
        if self.resample not in (None, "hold", "polyphase"):
            raise PolyadicError(f"resample must be 'hold', 'polyphase' or None, but is {self.resample!r}")
        if self.channels is not None:
            given: Any = self.channels
            names = () if isinstance(given, str) else tuple(given)
            if not names or len(set(names)) != len(names):
                raise PolyadicError(f"channels must be a list of unique names, but is {self.channels!r}")
            object.__setattr__(self, "channels", names)
        object.__setattr__(self, "classes", parse_classes(self.classes))
        object.__setattr__(self, "rename", parse_renames(self.rename))
        if sum(value is not None for value in (self.label, self.label_from, self.scoring)) > 1:
            raise PolyadicError("--label, --label-from and --scoring cannot be combined: give only one of them")

    @property
    def class_numbers(self) -> dict[str, int]:
        """Class number of each annotation text."""
        return {text: number for number, texts in enumerate(self.classes.values()) for text in texts}

    def channels_in(self, names: Iterable[str]) -> tuple[str, ...] | None:
        """Return the channels to read from a file, by their names in that file; None for all."""
        there = set(names)
        old = {new: old for old, new in self.rename.items() if old in there}
        return None if self.channels is None else tuple(old.get(name, name) for name in self.channels)

    @property
    def subject_column(self) -> str | None:
        """The table column with the subject, or None if the subject is found in the path."""
        return None if self.subject in (None, "folder") or is_pattern(str(self.subject)) else self.subject

    def to_json(self) -> dict[str, Any]:
        """Return the options that are set as a JSON object; `seconds` is always included."""
        content: dict[str, Any] = {"seconds": self.seconds}
        for item in fields(self):
            value = getattr(self, item.name)
            if value not in (item.default, {}):
                content[item.name] = list(value) if isinstance(value, tuple) else value
        return content

    @classmethod
    def from_json(cls, content: Any) -> Self:
        """Return the description written by `to_json`, or raise ValueError; unknown entries are ignored."""
        if not isinstance(content, dict):
            raise ValueError(f"the entry 'reading' must be an object, but is {content!r}")
        values = {item.name: content[item.name] for item in fields(cls) if item.name in content}
        try:
            for name in ("label", "label_from", "subject", "time", "scoring", "pattern"):
                if not isinstance(values.get(name), str | None):
                    raise TypeError(f"{name} must be a string")
            return cls(**values)
        except (AttributeError, TypeError, ValueError, PolyadicError) as error:
            raise ValueError(f"the entry 'reading' is damaged: {error}") from error

    def with_given(self, given: Mapping[str, Any], owner: str, known: bool = True) -> Self:
        """Return this description, which `owner` has, with additional options; one that contradicts it is an error.

        If it is `known`, None in this description means the default, which a given option can contradict as well.
        """
        added = {name: value for name, value in given.items() if value not in (None, {})}
        defaults = {"stride": self.seconds, "min_share": 1.0, "offset": _AT_EPOCHS} if known else {}
        present = {name: getattr(self, name) for name in added}
        present = {name: defaults.get(name) if value is None else value for name, value in present.items()}
        differing = [
            f"{option_name(name)} is {_worded(name, value)}, but {owner} has {_worded(name, present[name])}"
            for name, value in added.items()
            if present[name] not in (None, {}, value)
        ]
        if differing:
            raise PolyadicError(
                f"{'; '.join(differing)}: leave the option out, or cut these recordings with polyadic prepare folder"
            )
        return replace(self, **added)


_DESCRIPTIONS = "\n".join(
    fill(f"{item.name} : {item.metadata['help']}", 116, initial_indent="    ", subsequent_indent="        ")
    for item in fields(Reading)
).replace("*", "\\*")  # not emphasis, where Sphinx shows it
Reading.__doc__ = (
    f"{Reading.__doc__} None means that an option is not set.\n\n    Parameters\n    ----------\n{_DESCRIPTIONS}\n    "
)


def takes_reading_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Replace the `**options` of a function by the fields of `Reading`, in its signature and its docstring."""
    signature = inspect.signature(function)
    kept = [item for item in signature.parameters.values() if item.kind is not inspect.Parameter.VAR_KEYWORD]
    options = [
        inspect.Parameter(item.name, inspect.Parameter.KEYWORD_ONLY, default=item.default, annotation=item.type)
        for item in fields(Reading)
    ]

    function.__signature__ = signature.replace(parameters=[*kept, *options])  # type: ignore[attr-defined]
    function.__doc__ = (function.__doc__ or "").rstrip() + f"\n{_DESCRIPTIONS}\n    "
    return function


def option_name(field: str) -> str:
    """Return the command-line option that sets a field, such as --min-share."""
    flags = {item.name: item.metadata.get("flag") for item in fields(Reading)}
    return flags.get(field) or f"--{field.replace('_', '-')}"


def parse_classes(given: Iterable[str] | Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Parse classes given as "TEXT", "NAME=TEXT" or "NAME=TEXT|TEXT", or as a mapping from names to texts.

    Examples
    --------
    >>> parse_classes(["W=Sleep stage W", "N3=Sleep stage 3|Sleep stage 4", "R"])
    {'W': ['Sleep stage W'], 'N3': ['Sleep stage 3', 'Sleep stage 4'], 'R': ['R']}
    """
    if isinstance(given, str):
        raise PolyadicError(f"classes must be a list of strings, but is the string {given!r}")
    classes: dict[str, list[str]] = {}
    owners: dict[str, str] = {}
    for word in given:
        name, equals, merged = str(word).partition("=")
        name, texts = (name.strip(), [text.strip() for text in merged.split("|")]) if equals else (word, [word])
        if isinstance(given, Mapping):
            entry = given[word]
            name, texts = str(word), [entry] if isinstance(entry, str) else [str(text) for text in entry]
        if not name or "" in texts:
            raise PolyadicError(f"a class must be TEXT or NAME=TEXT|TEXT, but is {name + '=' + '|'.join(texts)!r}")
        for text in texts:
            if owners.setdefault(text, name) != name:
                raise PolyadicError(
                    f"an annotation must have one class, but {text!r} is in {owners[text]!r} and {name!r}"
                )
        classes[name] = list(dict.fromkeys([*classes.get(name, ()), *texts]))
    return classes


def parse_renames(given: Iterable[Any] | Mapping[str, str]) -> dict[str, str]:
    """Parse renamed channels given as "OLD=NEW", as pairs, or as a mapping from old to new names."""
    renames: dict[str, str] = {}
    for word in given.items() if isinstance(given, Mapping) else [given] if isinstance(given, str) else given:
        old, new = word.partition("=")[::2] if isinstance(word, str) else word
        if not old or not new:
            raise PolyadicError(f"a renamed channel must be OLD=NEW, but is {word!r}")
        if old in renames:
            raise PolyadicError(f"a channel can be renamed once only, but {old!r} becomes {renames[old]!r} and {new!r}")
        renames[str(old)] = str(new)
    return renames


def close_match(name: str, names: Iterable[str]) -> str:
    """Return a hint with the most similar name, to append to an error message, or "" if no name is similar.

    Examples
    --------
    >>> close_match("EEG Fpz-CZ", ["EEG Fpz-Cz", "EOG"])
    "; did you mean 'EEG Fpz-Cz'?"
    >>> close_match("O1", ["EEG O1", "EEG O2"])
    "; did you mean 'EEG O1'?"
    """
    folded = {other.casefold(): other for other in names}
    found = difflib.get_close_matches(name.casefold(), list(folded), 1)
    if not found:
        found = [other for other in folded if other.split()[-1:] == [name.casefold()]]
    return f"; did you mean {folded[found[0]]!r}?" if found else ""


def listed(names: Iterable[str], most: int = 12) -> str:
    """Return names in quotes, separated by commas; a long list is cut off after `most` names."""
    every = list(names)
    return ", ".join(map(repr, every[:most])) + (f", … ({len(every)} in all)" if len(every) > most else "")


def is_pattern(text: str) -> bool:
    """Return whether a string is a regular expression with a group, rather than the name of a column."""
    return re.search(r"\((?!\?[:=!<])", text) is not None


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _worded(name: str, value: Any) -> str:
    """Format the value of a field for an error message."""
    if value == _AT_EPOCHS:
        return _AT_EPOCHS
    if isinstance(value, Mapping):
        value = [f"{one}={texts if isinstance(texts, str) else '|'.join(texts)}" for one, texts in value.items()]
    if isinstance(value, tuple | list):
        return ", ".join(map(str, value))
    return f"{value:g}{_UNITS.get(name, '')}" if isinstance(value, int | float) else repr(value)
