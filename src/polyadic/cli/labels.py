"""Predicted labels where the field keeps them: annotations of EDF+ and WFDB, and tables of events as in BIDS."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from polyadic.errors import DataError, MissingExtraError, PolyadicError

__all__ = ["LABEL_ENDINGS", "Labelled", "check_label_file", "write_labels"]

LABEL_ENDINGS = (".csv", ".tsv", ".edf", ".bdf", ".atr")
"""The endings of files that predictions are written to."""


class Labelled(NamedTuple):
    """A predicted label from `onset` seconds on; `unusual` is None if it is not known."""

    onset: float
    duration: float
    text: str
    confidence: float
    unusual: bool | None


def check_label_file(out: Path, data: Path) -> None:
    """Refuse a file of annotations that does not fit the recording, and missing packages, before any work."""
    from importlib.util import find_spec

    ending, source = out.suffix.lower(), data.suffix.lower()
    if ending == ".csv":
        return
    if data.is_dir() or source in (".npz", ".npy"):
        raise PolyadicError(f"--out {out.name} is for the labels of one recording, but {data.name} is none: use .csv")
    needed = {".edf": ((".edf",), "edfio"), ".bdf": ((".bdf",), "edfio"), ".atr": ((".hea",), "wfdb")}
    if ending in needed:
        sources, package = needed[ending]
        if source not in sources:
            raise PolyadicError(
                f"--out {out.name} is for recordings that end in {sources[0]}, but {data.name} does not: use .tsv"
            )
        if find_spec(package) is None:
            extra = "edf" if package == "edfio" else package
            raise MissingExtraError(
                f"{ending} files need the package {package}, which is not installed: pip install 'polyadic[{extra}]'"
            )
        if package == "edfio" and _has_gaps(data):
            raise PolyadicError(
                f"{data.name} has gaps (EDF+D), which a copy with annotations would lose, and with them the times: use "
                ".tsv"
            )


def _has_gaps(data: Path) -> bool:
    """Whether an EDF or BDF file says in its header that its records are not one after another."""
    with data.open("rb") as file:
        return file.read(236)[192:197].upper() in (b"EDF+D", b"BDF+D")


def write_labels(out: Path, data: Path, labels: Sequence[Labelled], classes: Collection[str] = ()) -> None:
    """Write the labels of one recording; the ending of `out` decides how.

    Parameters
    ----------
    data : the recording
    classes : texts of annotations that stand for classes; a copy has the labels in their place
    """
    from polyadic.files import write_atomically

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
    """A copy of an EDF file with the labels as annotations; its own with the texts of classes give way to them."""
    import edfio

    from polyadic.data.readers.edf import mark_copy
    from polyadic.files import write_atomically

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
        raise DataError(f"{data.name}: edfio cannot write a copy with annotations: {error}. Use a .tsv file") from error
    write_atomically(out, content)


def _write_wfdb(out: Path, data: Path, labels: Sequence[Labelled]) -> None:
    """Annotations in the MIT format: changes of state, whose notes are the labels."""
    import tempfile

    import numpy as np

    from polyadic.data.readers.wfdb import _import_wfdb, read_header
    from polyadic.files import write_atomically

    wfdb, fs = _import_wfdb(), read_header(data, segments=True).fs
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
