"""How recordings are read: channels, sampling rate, windows, labels and subjects, in one description.

Commands build a `Reading` from their options. It is saved in the header of a store and in model files, so that later
recordings are read in the same way for the model.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Self

import numpy as np

from polyadic.errors import PolyadicError

__all__ = ["SECONDS", "Classes", "Reading", "close_match", "listed", "option_name", "parse_classes", "shell_word"]

SECONDS = 10.0
"""Default window length in seconds."""

Classes = tuple[tuple[str, tuple[str, ...]], ...]
"""Class names, each with the annotation texts that belong to the class."""

_AT_EPOCHS = "none (windows begin at scored epochs, or at the start of a recording)"
_RESAMPLING = ("hold", "polyphase")
_FOLDER = "folder"
_OPTIONS = {"channels": "--channel", "classes": "--class"}
_WORDS = {"seconds": "length of a window", "stride": "number of seconds", "fs": "rate in Hz"}
_UNITS = {"seconds": " s", "stride": " s", "offset": " s", "fs": " Hz"}


@dataclass(frozen=True)
class Reading:
    """How recordings become windows with labels and subjects. None means that an option is not set.

    Parameters
    ----------
    seconds : window length in seconds
    stride : seconds from the start of one window to the next; the window length if None
    offset : seconds before the first window; if None, windows begin at scored epochs if these are regular, else at the
        start of the recording
    min_share : minimum share of a window that its label must cover; the whole window if None
    channels : names of the channels, in this order; all channels if None
    fs : sampling rate in Hz; the rate of the recordings if None
    resample : method ("hold" or "polyphase") to resample recordings or channels with another sampling rate
    keep_slow : the same for channels far slower than the fastest, which are left out if None
    classes : class names with their annotation texts; () for all texts that cover windows
    label : column with the label, in tables or BIDS events
    label_from : "folder", or a regular expression with one group that finds the label in a path
    subject : "folder", a table column, or a regular expression with one group that finds the subject in a path
    time : table column with the time
    scoring : glob pattern for the names of files with the labels of the recordings
    pattern : glob pattern for the paths of files that are recordings
    """

    seconds: float = SECONDS
    stride: float | None = None
    offset: float | None = None
    min_share: float | None = None
    channels: tuple[str, ...] | None = None
    fs: float | None = None
    resample: Literal["hold", "polyphase"] | None = None
    keep_slow: Literal["hold", "polyphase"] | None = None
    classes: Classes = ()
    label: str | None = None
    label_from: str | None = None
    subject: str | None = None
    time: str | None = None
    scoring: str | None = None
    pattern: str | None = None

    def __post_init__(self) -> None:
        for name in ("seconds", "stride", "fs"):
            value = getattr(self, name)
            if value is not None and not (_is_number(value) and 0 < value < np.inf):
                raise PolyadicError(f"{name} must be a positive {_WORDS[name]}, but is {value!r}")
        if self.offset is not None and not (_is_number(self.offset) and 0 <= self.offset < np.inf):
            raise PolyadicError(f"offset must be a non-negative number of seconds, but is {self.offset!r}")
        if self.min_share is not None and not (_is_number(self.min_share) and 0 < self.min_share <= 1):
            raise PolyadicError(f"min_share must be above 0 and at most 1, but is {self.min_share!r}")
        for name in ("resample", "keep_slow"):
            if getattr(self, name) not in (None, *_RESAMPLING):
                raise PolyadicError(f"{name} must be 'hold', 'polyphase' or None, but is {getattr(self, name)!r}")
        if self.channels is not None and (not self.channels or len(set(self.channels)) != len(self.channels)):
            raise PolyadicError(f"channels must be a list of unique names, but is {list(self.channels)!r}")
        if sum(value is not None for value in (self.label, self.label_from, self.scoring)) > 1:
            raise PolyadicError("--label, --label-from and --scoring cannot be combined: give only one of them")

    # ------------------------------------------------------------------ classes

    @property
    def class_names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.classes)

    @property
    def class_numbers(self) -> dict[str, int]:
        """Class number of each annotation text."""
        return {text: number for number, (_, texts) in enumerate(self.classes) for text in texts}

    # ----------------------------------------------------------------- subjects

    @property
    def subject_column(self) -> str | None:
        """The table column with the subject, or None if the subject is found in the path."""
        return None if self.subject in (None, _FOLDER) or _is_pattern(str(self.subject)) else self.subject

    # -------------------------------------------------------------------- files

    def to_json(self) -> dict[str, Any]:
        """Return the options that are set as a JSON object; `seconds` is always included."""
        found: dict[str, Any] = {"seconds": self.seconds}
        for item in fields(self):
            value = getattr(self, item.name)
            if value != item.default:
                found[item.name] = list(value) if isinstance(value, tuple) else value
        if self.classes:
            found["classes"] = {name: list(texts) for name, texts in self.classes}
        return found

    @classmethod
    def from_json(cls, content: Any) -> Self:
        """Return the description written by `to_json`; unknown entries are ignored.

        Raises
        ------
        ValueError : if the content is damaged
        """
        if not isinstance(content, dict):
            raise ValueError(f"the entry 'reading' must be an object, but is {content!r}")
        values = {item.name: content[item.name] for item in fields(cls) if item.name in content}
        try:
            classes = values.pop("classes", {})
            texts = tuple((str(name), tuple(str(text) for text in among)) for name, among in classes.items())
            if values.get("channels") is not None:
                values["channels"] = tuple(str(name) for name in values["channels"])
            for name in ("label", "label_from", "subject", "time", "scoring", "pattern"):
                if not isinstance(values.get(name), str | None):
                    raise TypeError(f"{name} must be a string")
            return cls(**values, classes=texts)
        except (AttributeError, TypeError, PolyadicError) as error:
            raise ValueError(f"the entry 'reading' is damaged: {error}") from error

    # ---------------------------------------------------------- for a model

    def with_given(self, given: Mapping[str, Any], owner: str, known: bool = True) -> Self:
        """Return this description with additional options, after checking that they do not contradict it.

        Parameters
        ----------
        given : option values by field name; None for options that were not given
        owner : owner of this description, for error messages
        known : whether None in this description means the default, which a given option can contradict as well

        Raises
        ------
        PolyadicError : if options differ; the message has both values
        """
        added = {name: value for name, value in given.items() if value not in (None, ())}
        defaults = {"stride": self.seconds, "min_share": 1.0, "offset": _AT_EPOCHS} if known else {}
        own = {name: getattr(self, name) for name in added}
        own = {name: defaults.get(name) if value is None else value for name, value in own.items()}
        differing = [
            f"{option_name(name)} is {_worded(name, value)}, but {owner} has {_worded(name, own[name])}"
            for name, value in added.items()
            if own[name] not in (None, (), value)
        ]
        if differing:
            raise PolyadicError(
                f"{'; '.join(differing)}: leave the option out, or cut these recordings with polyadic prepare folder"
            )
        return replace(self, **added)

    def without_labels(self) -> Self:
        """Return this description without the options for labels."""
        return replace(self, classes=(), min_share=None, label=None, label_from=None, scoring=None)


def option_name(field: str) -> str:
    """Return the command-line option that sets a field.

    Examples
    --------
    >>> option_name("min_share"), option_name("channels")
    ('--min-share', '--channel')
    """
    return _OPTIONS.get(field, f"--{field.replace('_', '-')}")


def parse_classes(given: Iterable[str] | Mapping[str, Sequence[str]]) -> Classes:
    """Parse classes given as "TEXT", "NAME=TEXT" or "NAME=TEXT|TEXT", or as a mapping from names to texts.

    Examples
    --------
    >>> parse_classes(["W=Sleep stage W", "N3=Sleep stage 3|Sleep stage 4", "R"])
    (('W', ('Sleep stage W',)), ('N3', ('Sleep stage 3', 'Sleep stage 4')), ('R', ('R',)))
    """
    if isinstance(given, str):
        raise PolyadicError(f"classes must be a list of strings, but is the string {given!r}")
    entries: list[tuple[str, list[str]]]
    if isinstance(given, Mapping):
        entries = [(str(name), [texts] if isinstance(texts, str) else list(texts)) for name, texts in given.items()]
    else:
        entries = []
        for word in given:
            name, equals, merged = str(word).partition("=")
            entries.append((name.strip(), [text.strip() for text in merged.split("|")]) if equals else (word, [word]))
    found: dict[str, list[str]] = {}
    for name, texts in entries:
        if not name or "" in texts:
            raise PolyadicError(f"a class must be TEXT or NAME=TEXT|TEXT, but is {name + '=' + '|'.join(texts)!r}")
        found.setdefault(name, []).extend(texts)
    owners: dict[str, str] = {}
    for name, texts in found.items():
        for text in texts:
            if owners.setdefault(text, name) != name:
                raise PolyadicError(
                    f"an annotation must have one class, but {text!r} is in {owners[text]!r} and {name!r}"
                )
    return tuple((name, tuple(dict.fromkeys(texts))) for name, texts in found.items())


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
    """Return names in quotes, separated by commas; a long list is cut off after `most` names.

    Examples
    --------
    >>> listed(["a", "b", "c"], most=2)
    "'a', 'b', … (3 in all)"
    """
    every = list(names)
    return ", ".join(map(repr, every[:most])) + (f", … ({len(every)} in all)" if len(every) > most else "")


def shell_word(name: str) -> str:
    """Return a name as it is typed on a command line, in quotes if necessary.

    Examples
    --------
    >>> shell_word("stage"), shell_word("sleep stage")
    ('stage', "'sleep stage'")
    """
    return name if re.fullmatch(r"[\w.-]+", name) else f"'{name}'"


def _is_pattern(text: str) -> bool:
    """Return whether a string is a regular expression with a group, rather than the name of a column."""
    return re.search(r"\((?!\?[:=!<])", text) is not None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def _worded(name: str, value: Any) -> str:
    """Format the value of a field for an error message."""
    if value == _AT_EPOCHS:
        return _AT_EPOCHS
    if name == "classes":
        return ", ".join(one if texts == (one,) else f"{one}={'|'.join(texts)}" for one, texts in value)
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return f"{value:g}{_UNITS.get(name, '')}" if isinstance(value, int | float) else repr(value)
