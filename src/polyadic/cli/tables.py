"""Write CSV tables of windows with the output of a model, and describe windows on the terminal."""

from __future__ import annotations

import csv
import difflib
import io
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polyadic.data import Windows

__all__ = ["describe", "describe_sizes", "harmless", "scarcities", "write_table"]

_STEP = 4096
_MOST_NOTES = 5
"""Maximum number of notes on classes that only one subject has."""
_SIMILAR = 0.75
"""Minimum similarity of two words, one of which may be a typo of the other."""


def harmless(text: str) -> str:
    """Escape a text so that no spreadsheet runs it as a formula: prefix an apostrophe if it begins like one.

    Examples
    --------
    >>> harmless("=1+1"), harmless("N2")
    ("'=1+1", 'N2')
    """
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r", "\n") else text


def describe(windows: Windows, hidden: bool) -> None:
    """Print a table of the classes, and notes if there are too few recordings, subjects or classes.

    Parameters
    ----------
    windows : the windows to describe
    hidden : do not print the table
    """
    import numpy as np

    from polyadic._util.terminal import console, echo, printable

    counts = np.bincount(windows.label[windows.label >= 0], minlength=len(windows.classes))
    known = int(counts.sum())
    if known and not hidden:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE_HEAD, collapse_padding=True)
        for head in ("class", "windows", "%"):
            table.add_column(head, justify="left" if head == "class" else "right", no_wrap=True)
        for name, count in zip(windows.classes, counts.tolist(), strict=True):
            table.add_row(Text(printable(name)), f"{count:,}", f"{100 * count / len(windows):.1f}")
        if known < len(windows):
            rest = len(windows) - known
            table.add_row(Text("(no label)"), f"{rest:,}", f"{100 * rest / len(windows):.1f}")
        console(err=True).print(table)
    names = [name for name, count in zip(windows.classes, counts.tolist(), strict=True) if count]
    recordings = len(set(windows.recording.tolist()) - {""})
    for sentence in scarcities(recordings, windows.index.n_subjects, names):
        echo(sentence, err=True, colour="yellow")
    for sentence in _of_one_subject(windows, names):
        echo(sentence, err=True, colour="yellow")


def describe_sizes(windows: Windows, frame: int, length_is_default: bool, frame_is_default: bool) -> str:
    """Return the number and length of windows, their channels and rate, and the frame length, as one line.

    Parameters
    ----------
    windows : the windows to describe
    frame : frame length in samples
    length_is_default, frame_is_default : whether window length and frame length are defaults

    Examples
    --------
    >>> import numpy as np
    >>> from polyadic.data import Windows
    >>> describe_sizes(Windows(np.zeros((5, 2, 100)), fs=50.0), 32, True, False)
    '5 windows of 2 s (default), 2 channels at 50 Hz, frames of 0.64 s'
    """
    count, channels, samples = windows.shape
    fs = windows.fs
    length, part = (f"{size} samples" if fs is None else f"{size / fs:g} s" for size in (samples, frame))
    rate = "" if fs is None else f" at {fs:g} Hz"
    marks = [" (default)" * one for one in (length_is_default, frame_is_default)]
    return (
        f"{count:,} window{'s' * (count != 1)} of {length}{marks[0]}, {channels} channel{'s' * (channels != 1)}{rate}, "
        f"frames of {part}{marks[1]}"
    )


def _of_one_subject(windows: Windows, names: Sequence[str]) -> list[str]:
    """Return a note on each class that only one subject has, with another class of which it may be a typo."""
    from polyadic.data.reading import shell_word

    known = (windows.label >= 0) & (windows.subject != "")
    pairs = set(zip(windows.label[known].tolist(), windows.subject[known].tolist(), strict=True))
    if len({subject for _, subject in pairs}) < 2:
        return []
    counts = Counter(windows.classes[label] for label, _ in pairs)
    found = []
    for name in [name for name in names if counts[name] == 1][:_MOST_NOTES]:
        other = next((other for other in names if counts[other] > 1 and _is_typo(name, other)), None)
        hint = ""
        if other is not None:
            merged = shell_word(f"{other}={other}|{name}")
            hint = f" Did you mean {other!r}? --class {merged} merges them; list the other classes with --class, too."
        found.append(f"Class {name!r} has labels of one subject only, so it cannot be tested on other subjects.{hint}")
    return found


def _is_typo(name: str, other: str) -> bool:
    """Whether two names differ only in similar words; "stage 3" is not a typo of "stage 4"."""
    words, others = name.casefold().split(), other.casefold().split()
    changed = " ".join(word for word in words if word not in others), " ".join(w for w in others if w not in words)
    return difflib.SequenceMatcher(None, *changed).ratio() >= _SIMILAR


def scarcities(recordings: int, subjects: int, classes: Sequence[str]) -> list[str]:
    """Return notes on the consequences if there is only one recording, subject or class.

    Examples
    --------
    >>> scarcities(2, 2, ["N2"])
    ["There is only one class, 'N2': a probe needs at least two."]
    """
    found = []
    if recordings == 1:
        found.append("There is only one recording: the model may not generalise to others.")
    if subjects == 1:
        found.append(
            "There is only one subject: evaluate needs at least two, to test on subjects that the model has not seen."
        )
    if len(classes) == 1:
        found.append(f"There is only one class, {classes[0]!r}: a probe needs at least two.")
    return found


def write_table(
    out: Path,
    windows: Windows,
    heads: Sequence[str],
    columns: Callable[[Windows], list[list[str]]],
    *,
    fs: float | None,
    on_rows: Callable[[int], None],
    clock: bool = False,
) -> None:
    """Write one row per window: subject, recording, start in seconds (empty if unknown), and further columns.

    The file is written atomically.

    Parameters
    ----------
    out : file to write
    windows : the windows, one per row
    heads : names of the further columns
    columns : function that returns the further cells of each window; the first cell is a label
    fs : sampling rate in Hz; without it, start is empty
    on_rows : called with the number of windows done
    clock : also write the date and time of the start in ISO 8601; empty if unknown
    """
    from polyadic._util.files import open_atomically
    from polyadic.data.clock import clock_time

    entries = windows.store.recordings if clock and windows.store is not None else ()
    began = {str(entry["name"]): str(entry.get("began", "")) for entry in entries}
    with open_atomically(out) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        table = csv.writer(text)
        table.writerow(
            ["subject", "recording", "start", *(["time"] if clock else []), *(harmless(head) for head in heads)]
        )
        for first in range(0, len(windows), _STEP):
            part = windows[first : first + _STEP]
            starts = ["" if start < 0 or fs is None else f"{start / fs:.10g}" for start in part.start.tolist()]
            rows = zip(part.subject.tolist(), part.recording.tolist(), starts, columns(part), strict=True)
            for subject, recording, start, (label, *values) in rows:
                when = [clock_time(began.get(recording, ""), float(start)) if start else ""] if clock else []
                table.writerow([harmless(subject), harmless(recording), start, *when, harmless(label), *values])
            on_rows(first + len(part))
        text.flush()
        text.detach()
