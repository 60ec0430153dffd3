"""Tables of windows as CSV files: who, which recording, when, and what a model says of each."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polyadic.data import Windows

__all__ = ["harmless", "write_table"]

_STEP = 4096


def harmless(text: str) -> str:
    """A text that no spreadsheet takes for a formula: one that begins like a formula gets an apostrophe in front.

    Examples
    --------
    >>> harmless("=1+1"), harmless("N2")
    ("'=1+1", 'N2')
    """
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r", "\n") else text


def write_table(
    out: Path,
    windows: Windows,
    heads: Sequence[str],
    columns: Callable[[Windows], list[list[str]]],
    *,
    fs: float | None,
    on_rows: Callable[[int], None],
) -> None:
    """Write a line for each window: subject, recording, start in seconds (empty if unknown), and further columns.

    The file is there whole or not at all.

    Parameters
    ----------
    heads : names of the further columns
    columns : from some windows to the cells of each; the first of them is a text
    fs : sampling rate in Hz; without it the start stays empty
    on_rows : called with the number of windows done
    """
    from polyadic.files import open_atomically

    with open_atomically(out) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        table = csv.writer(text)
        table.writerow(["subject", "recording", "start", *(harmless(head) for head in heads)])
        for first in range(0, len(windows), _STEP):
            part = windows[first : first + _STEP]
            starts = ["" if start < 0 or fs is None else f"{start / fs:.10g}" for start in part.start.tolist()]
            rows = zip(part.subject.tolist(), part.recording.tolist(), starts, columns(part), strict=True)
            for subject, recording, start, (label, *values) in rows:
                table.writerow([harmless(subject), harmless(recording), start, harmless(label), *values])
            on_rows(first + len(part))
        text.flush()
        text.detach()
