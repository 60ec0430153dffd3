"""Output files of commands: checks before any work, tables of windows, and labels as annotations."""

from __future__ import annotations

import csv
import io
import math
import os
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from polyadic._util.files import check_output, harmless, open_atomically, write_atomically
from polyadic.errors import DataError, MissingExtraError, PolyadicError

if TYPE_CHECKING:
    from polyadic.data import Windows

STEP, _STEP_BYTES = 4096, 2**24
"""Maximum number of windows that are processed at a time, and maximum size of their samples."""

LABEL_ENDINGS = (".csv", ".tsv", ".edf", ".bdf", ".atr")
"""File extensions for predictions."""
_TABLES = (
    b"subject,recording,start",
    b"recording,start,duration,label,who,time",
    b"measure,name,value",
    b"n_fft,hop,parts",
    b"onset\tduration\ttrial_type",
)
"""First bytes of the tables that commands write."""


def require(package: str, what: str, extra: str) -> None:
    """Raise if a package is not installed, before any work."""
    from importlib.util import find_spec

    if find_spec(package) is None:
        raise MissingExtraError(f"{what} {package}, which is not installed: pip install 'polyadic[{extra}]'")


def check_out_file(
    out: Path, *inputs: Path | None, endings: Sequence[str] = (), force: bool = True, option: str = "--out"
) -> None:
    """Raise if an output file cannot be written, or would overwrite an input or, without `force`, another file.

    Recordings and tables of other programs are never replaced. `endings` are the allowed extensions, or none for any.
    """
    for given in inputs:
        if given is not None:
            _check_apart(out, given)
    if out.is_dir():
        raise PolyadicError(f"{option} must be a file, but {out} is a folder")
    if not out.resolve().parent.is_dir():
        raise PolyadicError(f"{option} must be in an existing folder, but {out.parent} does not exist")
    if endings and out.suffix.lower() not in endings:
        named = " or ".join(filter(None, [", ".join(endings[:-1]), endings[-1]]))
        raise PolyadicError(f"{option} must end in {named}, but is {out.name}")
    check_output(out)
    if out.exists() and not force:
        raise PolyadicError(f"{option}: {out.name} already exists: use --force to overwrite it, or choose another name")
    if endings and out.exists() and not _is_replaceable(out):
        raise PolyadicError(
            f"{option}: {out.name} already exists and is not a {out.suffix} file written by polyadic: choose another "
            "name"
        )


def names_folder(out: str) -> bool:
    """Return whether an output path is a folder: it exists, ends in a slash, or has no extension.

    Examples
    --------
    >>> names_folder("derivatives/v1.0/"), names_folder("derivatives"), names_folder("labels.csv")
    (True, True, False)
    """
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
    from polyadic.data.folders import ENDINGS
    from polyadic.data.readers.common import ending_of
    from polyadic.data.store import is_store

    if given.is_dir() and is_store(given) and out.resolve().is_relative_to(given.resolve()):
        raise PolyadicError(f"--out is inside the store {given.name}, which this command reads: choose another folder")
    if not out.is_file():
        return
    read = [given]
    if given.is_dir():
        known = ending_of(out) in (*ENDINGS, ".dat", ".mat") and not (out.suffix == ".csv" and _is_replaceable(out))
        read = list(given.rglob(f"*{out.suffix}")) if known else []
    elif given.suffix.lower() == ".hea" and out.suffix in (".dat", ".mat", ".atr"):
        read = [given.with_suffix(out.suffix)]
    for path in read:
        if path.exists() and out.samefile(path):
            raise PolyadicError(f"--out would overwrite {path.name}, which this command reads: choose another name")


def _is_replaceable(path: Path) -> bool:
    """Whether --force may replace a file; recordings, annotations and tables only if a command wrote them, or empty."""
    from polyadic.data.readers import edf, wfdb

    ending = path.suffix.lower()
    if ending not in LABEL_ENDINGS or not path.stat().st_size:
        return True
    if ending in (".edf", ".bdf"):
        return edf.is_marked(path)
    if ending == ".atr":
        return wfdb.is_annotations(path)
    with path.open("rb") as file:
        return file.read(64).startswith(_TABLES)


# -------------------------------------------------------------------------------------------------------- tables


def write_csv(out: Path, rows: Iterable[Sequence[Any]]) -> None:
    """Write rows to a CSV file, atomically."""
    with open_atomically(out) as file:
        # File names need not be text: bytes that are none are written as \\udc80 to \\udcff.
        text = io.TextIOWrapper(file, encoding="utf-8", errors="backslashreplace", newline="")
        csv.writer(text).writerows(rows)
        text.flush()
        text.detach()


def parts_of(windows: Windows) -> Iterator[Windows]:
    """Yield windows in parts that take little memory."""
    size = max(1, min(STEP, _STEP_BYTES // (4 * math.prod(windows.shape[1:]))))
    return (windows[first : first + size] for first in range(0, len(windows), size))


def write_table(
    out: Path,
    windows: Windows,
    heads: Sequence[str],
    columns: Callable[[Windows], list[list[str]]],
    *,
    fs: float | None,
    on_rows: Callable[[int], None] = lambda done: None,
    clock: bool = False,
) -> None:
    """Write one row per window: subject, recording, start in seconds, and further columns, the first of them labels.

    With `clock`, there is also the date and time of the start in ISO 8601. What is unknown is empty.
    """
    from polyadic.data.recordings import clock_time

    entries = windows.store.recordings if clock and windows.store is not None else ()
    began = {str(entry["name"]): str(entry.get("began", "")) for entry in entries}

    def rows() -> Iterable[list[str]]:
        yield ["subject", "recording", "start", *(["time"] if clock else []), *(harmless(head) for head in heads)]
        done = 0
        for part in parts_of(windows):
            starts = ["" if start < 0 or fs is None else f"{start / fs:.10g}" for start in part.start.tolist()]
            cells = zip(part.subject.tolist(), part.recording.tolist(), starts, columns(part), strict=True)
            for subject, recording, start, (label, *values) in cells:
                when = [clock_time(began.get(recording, ""), float(start)) if start else ""] if clock else []
                yield [harmless(subject), harmless(recording), start, *when, harmless(label), *values]
            done += len(part)
            on_rows(done)

    write_csv(out, rows())


# -------------------------------------------------------------------------------------------------------- labels


_LONGEST_NOTE = 254
"""Maximum length of a label in a WFDB annotation: a note has at most 255 characters, and begins with a parenthesis."""


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
            gaps = file.read(236)[192:197].upper() in (b"EDF+D", b"BDF+D")
        if gaps:
            raise PolyadicError(
                f"{data.name} has gaps (EDF+D). An annotated copy would lose them, and its times would be wrong: use "
                ".tsv"
            )


def check_label_texts(out: Path, labels: Iterable[str]) -> None:
    """Raise before any work if the format of a file cannot hold one of the labels."""
    ending = out.suffix.lower()
    for label in labels if ending != ".csv" else ():
        reasons = {
            "has line breaks, tabs or other control characters": not label.isprintable(),
            "has characters beyond ASCII": ending == ".atr" and not label.isascii(),
            f"has more than {_LONGEST_NOTE} characters": ending == ".atr" and len(label) > _LONGEST_NOTE,
        }
        for reason, holds in reasons.items():
            if holds:
                raise PolyadicError(
                    f"--out {out.name}: a {ending} file cannot hold the label {label[:40]!r}, which {reason}: use .csv"
                )


def write_labels(out: Path, data: Path, labels: Sequence[Labelled], classes: Collection[str] = ()) -> None:
    """Write the labels of one recording, in order; the extension of `out` sets the format.

    In a copy of the recording, the labels replace the annotations of `classes`.
    """
    if out.suffix.lower() == ".tsv":
        content = "onset\tduration\ttrial_type\tconfidence\tunusual\n"
        for onset, duration, text, confidence, unusual in labels:
            mark = "n/a" if unusual is None else int(unusual)
            content += f"{onset:.10g}\t{duration:.10g}\t{harmless(text)}\t{confidence:.6g}\t{mark}\n"
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

    from polyadic.data.readers.common import import_package
    from polyadic.data.readers.wfdb import read_header

    wfdb, fs = import_package("wfdb", data.name), read_header(data).fs
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
