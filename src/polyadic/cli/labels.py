"""Write predicted labels as EDF+ or WFDB annotations, or as BIDS events."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from polyadic.errors import DataError, MissingExtraError, PolyadicError

__all__ = ["LABEL_ENDINGS", "Labelled", "check_label_file", "write_labels"]

LABEL_ENDINGS = (".csv", ".tsv", ".edf", ".bdf", ".atr")
"""File extensions for predictions."""


class Labelled(NamedTuple):
    """A predicted label with onset and duration in seconds; `unusual` is None if unknown."""

    onset: float
    duration: float
    text: str
    confidence: float
    unusual: bool | None


def check_label_file(out: Path, data: Path) -> None:
    """Raise before any work if annotations cannot be written for this recording, or a package is missing."""
    from importlib.util import find_spec

    ending, source = out.suffix.lower(), data.suffix.lower()
    if ending == ".csv":
        return
    if data.is_dir() or source in (".npz", ".npy"):
        raise PolyadicError(
            f"--out {out.name} holds the labels of one recording, but {data.name} is not a single recording: use .csv"
        )
    needed = {".edf": ((".edf",), "edfio"), ".bdf": ((".bdf",), "edfio"), ".atr": ((".hea",), "wfdb")}
    if ending in needed:
        sources, package = needed[ending]
        if source not in sources:
            raise PolyadicError(f"--out {out.name} is for {sources[0]} recordings, but DATA is {data.name}: use .tsv")
        if find_spec(package) is None:
            extra = "edf" if package == "edfio" else package
            raise MissingExtraError(
                f"{ending} files need the package {package}, which is not installed: pip install 'polyadic[{extra}]'"
            )
        if package == "edfio" and _has_gaps(data):
            raise PolyadicError(
                f"{data.name} has gaps (EDF+D). An annotated copy would lose them, and its times would be wrong: use "
                ".tsv"
            )


def _has_gaps(data: Path) -> bool:
    """Whether the header of an EDF or BDF file says that it is discontinuous."""
    with data.open("rb") as file:
        return file.read(236)[192:197].upper() in (b"EDF+D", b"BDF+D")


def write_labels(out: Path, data: Path, labels: Sequence[Labelled], classes: Collection[str] = ()) -> None:
    """Write the labels of one recording; the extension of `out` sets the format.

    Parameters
    ----------
    out : file to write
    data : the recording
    labels : the labels, in order of onset
    classes : annotation texts of classes; in a copy of the recording, the labels replace these annotations
    """
    from polyadic._util.files import write_atomically

    ending = out.suffix.lower()
    if ending == ".tsv":
        rows = ["onset\tduration\ttrial_type\tconfidence\tunusual"]
        for one in labels:
            unusual = "n/a" if one.unusual is None else str(int(one.unusual))
            rows.append(f"{one.onset:.10g}\t{one.duration:.10g}\t{one.text}\t{one.confidence:.6g}\t{unusual}")
        write_atomically(out, ("\n".join(rows) + "\n").encode())
    elif ending == ".atr":
        _write_wfdb(out, data, labels)
    else:
        _write_edf(out, data, labels, classes)


def _write_edf(out: Path, data: Path, labels: Sequence[Labelled], classes: Collection[str]) -> None:
    """Write a copy of an EDF file with the labels as annotations, which replace existing annotations of classes."""
    import edfio

    from polyadic._util.files import write_atomically
    from polyadic.data.readers.edf import mark_copy

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            copy: Any = edfio.read_edf(data) if out.suffix.lower() == ".edf" else edfio.read_bdf(data)
            known = {*classes, *(one.text for one in labels)}
            kept = [one for one in copy.annotations if one.text not in known]
            found = [edfio.EdfAnnotation(one.onset, one.duration, one.text) for one in labels]
            copy.set_annotations([*kept, *found])
            content = mark_copy(copy.to_bytes())
    except Exception as error:
        raise DataError(f"{data.name}: edfio cannot write an annotated copy: {error}. Use a .tsv file") from error
    write_atomically(out, content)


def _write_wfdb(out: Path, data: Path, labels: Sequence[Labelled]) -> None:
    """Write annotations in the MIT format: rhythm changes (+) with the labels as notes."""
    import tempfile

    import numpy as np

    from polyadic._util.files import write_atomically
    from polyadic.data.readers.wfdb import import_wfdb, read_header

    wfdb, fs = import_wfdb(), read_header(data, segments=True).fs
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wfdb.wrann(
            "r",
            "atr",
            sample=np.array([round(one.onset * fs) for one in labels]),
            symbol=["+"] * len(labels),
            aux_note=[one.text if one.text.startswith("(") else f"({one.text}" for one in labels],
            fs=fs,
            write_dir=folder,
        )
        write_atomically(out, (Path(folder) / "r.atr").read_bytes())
