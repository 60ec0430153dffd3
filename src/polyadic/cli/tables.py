"""CSV tables of windows: subject, recording, time, and the output of a model."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polyadic.data import Windows

__all__ = ["describe", "harmless", "scarcities", "write_table"]

_STEP = 4096


def harmless(text: str) -> str:
    """Escape a text so that no spreadsheet runs it as a formula: prefix an apostrophe if it begins like one.

    Examples
    --------
    >>> harmless("=1+1"), harmless("N2")
    ("'=1+1", 'N2')
    """
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r", "\n") else text


def describe(windows: Windows, hidden: bool) -> None:
    """Print a table of the classes of windows, and notes on what there is too little of.

    Parameters
    ----------
    hidden : do not print the table
    """
    import numpy as np

    from polyadic.terminal import console, echo, printable

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


def scarcities(recordings: int, subjects: int, classes: Sequence[str]) -> list[str]:
    """Return notes on what there is only one of, and its consequences.

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
    heads : names of the further columns
    columns : function from windows to the cells of each; the first cell is text
    fs : sampling rate in Hz; without it, start is empty
    on_rows : called with the number of windows done
    clock : also write the date and time of the start in ISO 8601; empty if unknown
    """
    from polyadic.data.clock import clock_time
    from polyadic.files import open_atomically

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
