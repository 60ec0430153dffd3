"""Output files of commands: checks before any work, and tables of windows."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyadic._util.files import check_output, harmless, open_atomically
from polyadic.errors import DataError, PolyadicError

if TYPE_CHECKING:
    from polyadic.data import Windows

STEP, _STEP_BYTES = 4096, 2**24
"""Maximum number of windows that are processed at a time, and maximum size of their samples."""


def check_out_file(out: Path, *inputs: Path | None, endings: Sequence[str] = (), force: bool = True) -> None:
    """Raise if an output file cannot be written, or would overwrite an input or, without `force`, another file.

    `endings` are the allowed extensions, or none for any.
    """
    for given in inputs:
        if given is not None:
            _check_apart(out, given)
    if out.is_dir():
        raise PolyadicError(f"--out must be a file, but {out} is a folder")
    if not out.resolve().parent.is_dir():
        raise PolyadicError(f"--out must be in an existing folder, but {out.parent} does not exist")
    if endings and out.suffix.lower() not in endings:
        raise PolyadicError(f"--out must end in {' or '.join(endings)}, but is {out.name}")
    check_output(out)
    if out.exists() and not force:
        raise PolyadicError(f"--out: {out.name} already exists: use --force to overwrite it, or choose another name")


def names_folder(out: str) -> bool:
    """Return whether an output path is a folder: it exists, ends in a slash, or has no extension."""
    return out.endswith(("/", os.sep)) or not Path(out).suffix or Path(out).is_dir()


def check_out_folder(out: Path, data: Path | None) -> None:
    """Raise if an output folder cannot be written to, or is in the store `data` that the command reads."""
    if data is not None:
        _check_apart(out, data)
    existing = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    if existing == out and not out.is_dir():
        raise PolyadicError(f"--out must be a folder, but {out} is a file")
    check_output(existing / "polyadic-output")


def _check_apart(out: Path, given: Path) -> None:
    """Raise if an output is an input, a file of a store, or a recording in a folder of recordings."""
    from polyadic.data.folders import find_recordings
    from polyadic.data.store import is_store

    if is_store(given) and out.resolve().is_relative_to(given.resolve()):
        raise PolyadicError(f"--out is inside the store {given.name}, which this command reads: choose another folder")
    if not out.is_file():
        return
    read = [given]
    with suppress(DataError):  # a folder without recordings
        found = find_recordings(given)
        others = [name for name, reason in found.left_out.items() if "written by polyadic" not in reason]
        read += [*found.files, *(given / name for name in others)]  # tables of events may have the labels
    for path in read:
        if path.exists() and out.samefile(path):
            raise PolyadicError(f"--out would overwrite {path.name}, which this command reads: choose another name")


# -------------------------------------------------------------------------------------------------------- tables


def parts_of(windows: Windows) -> Iterator[Windows]:
    """Yield windows in parts that take little memory."""
    size = max(1, min(STEP, _STEP_BYTES // (4 * math.prod(windows.shape[1:]))))
    return (windows[first : first + size] for first in range(0, len(windows), size))


def write_table(
    out: Path, windows: Windows, heads: Sequence[str], rows: Iterable[Sequence[Any]], fs: float | None, clock: bool
) -> None:
    """Write one row per window: subject, recording, start in seconds, and further columns, the first of them labels.

    With `clock`, there is also the date and time of the start in ISO 8601. What is unknown is empty. Numbers have six
    digits.
    """
    from polyadic.data.recordings import clock_time

    entries = windows.store.recordings if clock and windows.store is not None else ()
    began = {str(entry["name"]): str(entry.get("began", "")) for entry in entries}

    def lines() -> Iterator[list[str]]:
        yield ["subject", "recording", "start", *(["time"] if clock else []), *(harmless(head) for head in heads)]
        places = zip(windows.subject.tolist(), windows.recording.tolist(), windows.start.tolist(), rows, strict=True)
        for subject, recording, sample, (label, *values) in places:
            start = "" if sample < 0 or fs is None else f"{sample / fs:.10g}"
            when = [clock_time(began.get(recording, ""), float(start)) if start else ""] if clock else []
            cells = [f"{value:.6g}" if isinstance(value, float) else value for value in values]
            yield [harmless(subject), harmless(recording), start, *when, harmless(label), *cells]

    with open_atomically(out) as file:
        # File names need not be text: bytes that are none are written as \\udc80 to \\udcff.
        text = io.TextIOWrapper(file, encoding="utf-8", errors="backslashreplace", newline="")
        csv.writer(text).writerows(lines())
        text.flush()
        text.detach()
