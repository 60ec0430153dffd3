"""Output files of commands: checks before any work, tables of windows, and labels as annotations."""

from __future__ import annotations

import csv
import io
import warnings
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from polyadic._util.files import check_output, open_atomically, write_atomically
from polyadic.errors import DataError, MissingExtraError, PolyadicError

if TYPE_CHECKING:
    from polyadic.data import Windows

__all__ = [
    "LABEL_ENDINGS",
    "Labelled",
    "check_label_file",
    "check_out_file",
    "check_out_folder",
    "harmless",
    "require",
    "write_csv",
    "write_labels",
    "write_table",
]

STEP = 4096
"""Number of windows that are processed at a time."""

LABEL_ENDINGS = (".csv", ".tsv", ".edf", ".bdf", ".atr")
"""File extensions for predictions."""

_BESIDE_HEADER = (".dat", ".mat", ".atr", ".arousal")
"""Extensions of files that belong to a WFDB header of the same name: signals and annotations."""

_TABLES = (b"subject,recording,start", b"measure,name,value", b"n_fft,hop,parts", b"onset\tduration\ttrial_type")
"""First bytes of the tables that commands write."""


def require(package: str, what: str, extra: str) -> None:
    """Raise if a package is not installed, before any work."""
    from importlib.util import find_spec

    if find_spec(package) is None:
        raise MissingExtraError(f"{what} {package}, which is not installed: pip install 'polyadic[{extra}]'")


def check_out_file(
    out: Path, *inputs: Path | None, endings: Sequence[str] = (), force: bool = True, option: str = "--out"
) -> None:
    """Raise if an output file cannot be written, or would overwrite an input or another file.

    Parameters
    ----------
    inputs : files and folders that the command reads; None if not given
    endings : allowed extensions; any if empty
    force : whether to replace an existing file; recordings and annotations are never replaced
    option : name of the option, for messages
    """
    for given in inputs:
        if given is not None:
            _check_apart(out, given)
    if out.is_dir():
        raise PolyadicError(f"{option} must be a file, but {out} is a folder")
    if not out.resolve().parent.is_dir():
        raise PolyadicError(f"{option} must be in an existing folder, but {out.parent} does not exist")
    if endings and out.suffix.lower() not in endings:
        *first, last = endings
        named = f"{', '.join(first)} or {last}" if first else last
        raise PolyadicError(f"{option} must end in {named}, but is {out.name}")
    if out.exists() and not force:
        raise PolyadicError(f"{option}: {out.name} already exists: use --force to overwrite it, or choose another name")
    if endings and out.exists() and out.suffix.lower() in LABEL_ENDINGS and not _is_written_by_polyadic(out):
        raise PolyadicError(
            f"{option}: {out.name} already exists and is not a {out.suffix} file written by polyadic: choose another "
            "name"
        )
    check_output(out)


def check_out_folder(out: Path, data: Path | None) -> None:
    """Raise if an output folder cannot be written to, or is in the store `data` that the command reads."""
    if data is not None and data.is_dir() and out.resolve().is_relative_to(data.resolve()) and _is_store(data):
        raise PolyadicError(f"--out {out} is the store {data.name} or a folder in it: choose another folder")
    existing = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    if existing == out and not out.is_dir():
        raise PolyadicError(f"--out must be a folder, but {out} is a file")
    check_output(existing / "polyadic-output")


def _check_apart(out: Path, given: Path) -> None:
    """Raise if an output is an input, a file of a store, or a recording in a folder of recordings."""
    if not given.is_dir():
        companions = [given.with_suffix(ending) for ending in _BESIDE_HEADER] if given.suffix.lower() == ".hea" else []
        for path in (given, *companions):
            if out.exists() and path.exists() and out.samefile(path):
                raise PolyadicError(f"--out would overwrite {path.name}, which this command reads: choose another name")
        return
    inside = out.resolve().is_relative_to(given.resolve())
    if inside and _is_store(given):
        raise PolyadicError(f"--out is inside the store {given.name}, which this command reads: choose another folder")
    if out.is_file() and _is_recording(out):
        links = (path for path in given.rglob(f"*{out.suffix}") if path.exists())
        if inside or any(path.samefile(out) for path in links):
            raise PolyadicError(f"--out would overwrite {out.name}, a recording in {given.name}: choose another name")


def _is_store(folder: Path) -> bool:
    from polyadic.data.store import is_store

    return is_store(folder)


def _is_recording(path: Path) -> bool:
    from polyadic.data.folders import ENDINGS
    from polyadic.data.readers.common import ending_of

    known = ending_of(path) in (*ENDINGS, *_BESIDE_HEADER)
    return known and not (path.suffix.lower() in LABEL_ENDINGS and _is_written_by_polyadic(path))


def _is_written_by_polyadic(path: Path) -> bool:
    """Whether a table, a labelled copy of a recording or an annotation file was written by a command; or is empty."""
    if not path.stat().st_size:
        return True
    if path.suffix.lower() in (".edf", ".bdf"):
        from polyadic.data.readers.edf import is_marked

        return is_marked(path)
    if path.suffix.lower() == ".atr":
        from polyadic.data.readers.wfdb import is_annotations

        return is_annotations(path)
    with path.open("rb") as file:
        return file.read(64).startswith(_TABLES)


# -------------------------------------------------------------------------------------------------------- tables


def harmless(text: str) -> str:
    """Escape a text so that no spreadsheet runs it as a formula: prefix an apostrophe if it begins like one.

    Examples
    --------
    >>> harmless("=1+1"), harmless("N2")
    ("'=1+1", 'N2')
    """
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r", "\n") else text


def write_csv(out: Path, rows: Iterable[Sequence[Any]]) -> None:
    """Write rows to a CSV file, atomically."""
    with open_atomically(out) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        csv.writer(text).writerows(rows)
        text.flush()
        text.detach()


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

    Parameters
    ----------
    out : file to write, atomically
    windows : the windows, one per row
    heads : names of the further columns
    columns : function that returns the further cells of each window; the first cell is a label
    fs : sampling rate in Hz; without it, start is empty
    on_rows : called with the number of windows done
    clock : also write the date and time of the start in ISO 8601; empty if unknown
    """
    from polyadic.data.clock import clock_time

    entries = windows.store.recordings if clock and windows.store is not None else ()
    began = {str(entry["name"]): str(entry.get("began", "")) for entry in entries}

    def rows() -> Iterable[list[str]]:
        yield ["subject", "recording", "start", *(["time"] if clock else []), *(harmless(head) for head in heads)]
        for first in range(0, len(windows), STEP):
            part = windows[first : first + STEP]
            starts = ["" if start < 0 or fs is None else f"{start / fs:.10g}" for start in part.start.tolist()]
            cells = zip(part.subject.tolist(), part.recording.tolist(), starts, columns(part), strict=True)
            for subject, recording, start, (label, *values) in cells:
                when = [clock_time(began.get(recording, ""), float(start)) if start else ""] if clock else []
                yield [harmless(subject), harmless(recording), start, *when, harmless(label), *values]
            on_rows(first + len(part))

    write_csv(out, rows())


# -------------------------------------------------------------------------------------------------------- labels


class Labelled(NamedTuple):
    """A predicted label with onset and duration in seconds; `unusual` is None if unknown."""

    onset: float
    duration: float
    text: str
    confidence: float
    unusual: bool | None


def check_label_file(out: Path, data: Path) -> None:
    """Raise before any work if annotations cannot be written for this recording, or a package is missing."""
    ending, source = out.suffix.lower(), data.suffix.lower()
    if ending == ".csv":
        return
    if data.is_dir() or source in (".npz", ".npy"):
        raise PolyadicError(
            f"--out {out.name} holds the labels of one recording, but {data.name} is not a single recording: use .csv"
        )
    if ending == ".tsv":
        return
    wanted, package, extra = (".hea", "wfdb", "wfdb") if ending == ".atr" else (ending, "edfio", "edf")
    if source != wanted:
        raise PolyadicError(f"--out {out.name} is for {wanted} recordings, but DATA is {data.name}: use .tsv")
    require(package, f"{ending} files need the package", extra)
    if package == "edfio":
        with data.open("rb") as file:
            kind = file.read(236)[192:197].upper()
        if kind in (b"EDF+D", b"BDF+D"):
            raise PolyadicError(
                f"{data.name} has gaps (EDF+D). An annotated copy would lose them, and its times would be wrong: use "
                ".tsv"
            )


def write_labels(out: Path, data: Path, labels: Sequence[Labelled], classes: Collection[str] = ()) -> None:
    """Write the labels of one recording; the extension of `out` sets the format.

    Parameters
    ----------
    out : file to write
    data : the recording
    labels : the labels, in order of onset
    classes : annotation texts of classes; in a copy of the recording, the labels replace these annotations
    """
    if out.suffix.lower() == ".tsv":
        content = "onset\tduration\ttrial_type\tconfidence\tunusual\n"
        for onset, duration, text, confidence, unusual in labels:
            mark = "n/a" if unusual is None else int(unusual)
            content += f"{onset:.10g}\t{duration:.10g}\t{text}\t{confidence:.6g}\t{mark}\n"
        write_atomically(out, content.encode())
    elif out.suffix.lower() == ".atr":
        _write_wfdb(out, data, labels)
    else:
        _write_edf(out, data, labels, classes)


def _write_edf(out: Path, data: Path, labels: Sequence[Labelled], classes: Collection[str]) -> None:
    """Write a copy of an EDF file with the labels as annotations, which replace existing annotations of classes."""
    import edfio

    from polyadic.data.readers.edf import mark_copy

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            copy: Any = edfio.read_edf(data) if out.suffix.lower() == ".edf" else edfio.read_bdf(data)
            replaced = {*classes, *(label.text for label in labels)}
            kept = [annotation for annotation in copy.annotations if annotation.text not in replaced]
            added = [edfio.EdfAnnotation(label.onset, label.duration, label.text) for label in labels]
            copy.set_annotations([*kept, *added])
            content = mark_copy(copy.to_bytes())
    except Exception as error:
        raise DataError(f"{data.name}: edfio cannot write an annotated copy: {error}. Use a .tsv file") from error
    write_atomically(out, content)


def _write_wfdb(out: Path, data: Path, labels: Sequence[Labelled]) -> None:
    """Write annotations in the MIT format: rhythm changes (+) with the labels as notes."""
    import tempfile

    import numpy as np

    from polyadic.data.readers.wfdb import import_wfdb, read_header

    wfdb, fs = import_wfdb(), read_header(data, segments=True).fs
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wfdb.wrann(
            "r",
            "atr",
            sample=np.array([round(label.onset * fs) for label in labels]),
            symbol=["+"] * len(labels),
            aux_note=[label.text if label.text.startswith("(") else f"({label.text}" for label in labels],
            fs=fs,
            write_dir=folder,
        )
        write_atomically(out, (Path(folder) / "r.atr").read_bytes())
