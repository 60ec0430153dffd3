"""Predicted labels as annotations: BIDS events, annotated EDF copies, BIDS derivatives."""

from __future__ import annotations

import csv
import re
import warnings
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyadic._util.files import harmless, write_atomically, write_json
from polyadic._util.packages import import_package
from polyadic._util.version import __version__
from polyadic.cli.files import check_out_folder
from polyadic.cli.windows import are_recordings
from polyadic.errors import DataError, PolyadicError

if TYPE_CHECKING:
    from pandas import DataFrame

    from polyadic.data import Windows

LABEL_ENDINGS = (".csv", ".tsv", ".edf", ".bdf")


def check_label_file(out: Path, data: Path) -> None:
    """Raise before any work if annotations cannot be written for this recording, or a package is missing."""
    ending = out.suffix.lower()
    if ending != ".csv" and (data.is_dir() or not are_recordings(data)):
        raise PolyadicError(
            f"--out {out.name} holds the labels of one recording, but {data.name} is not a single recording: use .csv"
        )
    if ending in (".csv", ".tsv"):
        return
    if data.suffix.lower() != ending:
        raise PolyadicError(f"--out {out.name} is for {ending} recordings, but DATA is {data.name}: use .tsv")
    import_package("edfio", out.name)
    with data.open("rb") as file:
        if file.read(236)[192:197].upper() in (b"EDF+D", b"BDF+D"):
            raise PolyadicError(f"{data.name} has gaps (EDF+D), which an annotated copy would lose: use .tsv")


def check_label_texts(out: Path, labels: Iterable[str]) -> None:
    """Raise before any work if the format of a file cannot hold one of the labels."""
    ending = out.suffix.lower()
    for label in labels if ending != ".csv" else ():
        if not label.isprintable():
            raise PolyadicError(
                f"--out {out.name}: a {ending} file cannot hold the label {label[:40]!r}, which has control "
                "characters: use .csv"
            )


def events_of(windows: Windows, fs: float | None, labels: Iterable[str], **columns: Sequence[Any]) -> DataFrame:
    """Return the labels of windows as BIDS events: onset, duration, trial_type and further columns."""
    import pandas as pd

    rate = fs or 1.0
    times = {"onset": windows.start / rate, "duration": windows.shape[-1] / rate}
    return pd.DataFrame(times | {"trial_type": list(labels), **columns})


def write_labels(out: Path, data: Path, events: DataFrame, classes: Collection[str] = ()) -> None:
    """Write the labels of one recording; the extension of `out` sets the format.

    In a copy of the recording, the labels replace the annotations of `classes`.
    """
    if out.suffix.lower() == ".tsv":
        plain = events.assign(trial_type=events["trial_type"].map(harmless))
        text = plain.to_csv(sep="\t", index=False, na_rep="n/a", float_format="%.10g", quoting=csv.QUOTE_NONE)
        write_atomically(out, text.encode())
        return
    import edfio

    from polyadic.data.readers.edf import mark_copy

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            copy: Any = edfio.read_edf(data) if out.suffix.lower() == ".edf" else edfio.read_bdf(data)
            replaced = {*classes, *events["trial_type"]}
            kept = [annotation for annotation in copy.annotations if annotation.text not in replaced]
            added = [edfio.EdfAnnotation(row.onset, row.duration, row.trial_type) for row in events.itertuples()]
            copy.set_annotations([*kept, *added])
            content = mark_copy(copy.to_bytes())
    except Exception as error:
        raise DataError(f"{data.name}: edfio cannot write an annotated copy: {error}. Use a .tsv file") from error
    write_atomically(out, content)


# ------------------------------------------------------------------------------------------------ BIDS derivatives


_DESCRIPTION = "dataset_description.json"
_RECORDING = re.compile(r"(sub-[^/]+/(?:.+/)?sub-[^/]+)_i?eeg")
_USE_A_TABLE = "derivatives are for BIDS data sets: use -o labels.csv"


def check_derivatives(out: Path, data: Path, force: bool) -> None:
    """Raise before any work if `data` is no BIDS data set, or `out` is another data set or, without force, a folder."""
    from polyadic.data.folders import is_bids

    check_out_folder(out, data)
    if are_recordings(data) and not is_bids(data):
        raise PolyadicError(f"--out {out.name} is a folder, but {data.name} has no {_DESCRIPTION}: {_USE_A_TABLE}")
    if is_bids(out):
        if b"predicted by polyadic" not in (out / _DESCRIPTION).read_bytes():
            raise PolyadicError(f"--out: {out.name} is a data set that polyadic did not write: choose another folder")
    elif out.is_dir() and any(out.iterdir()) and not force:
        raise PolyadicError(f"--out: the folder {out.name} exists and has other files: use --force to write into it")


def table_of(recording: str) -> str:
    """Return the path of the events table of a recording: sub-01/eeg/sub-01_desc-polyadic_events.tsv."""
    found = _RECORDING.fullmatch(recording)
    if found is None or ".." in recording.split("/"):
        raise DataError(f"{recording!r} is not a recording of a BIDS data set (sub-…/…/sub-…_eeg), and {_USE_A_TABLE}")
    return f"{found[1]}_desc-polyadic_events.tsv"


def write_derivatives(
    out: Path, recordings: Sequence[str], events: DataFrame, model: str, classes: Sequence[str]
) -> None:
    """Write a folder of BIDS derivatives; `recordings` has the name of the recording of each event."""
    description = {
        "Name": "Labels predicted by polyadic",
        "BIDSVersion": "1.9.0",
        "DatasetType": "derivative",
        "GeneratedBy": [{"Name": "polyadic", "Version": __version__, "Description": f"polyadic predict {model}"}],
    }
    columns = {
        "onset": {"Description": "Start of the window from the start of the recording.", "Units": "s"},
        "duration": {"Description": "Length of the window.", "Units": "s"},
        "trial_type": {"Description": "Predicted class.", "Levels": {name: f"predicted as {name}" for name in classes}},
        "confidence": {"Description": "Probability of the predicted class."},
        "unusual": {"Description": "1 for a window unlike those that the model was fitted to."},
    }
    # First: a folder without its description would be refused if the command is interrupted and repeated.
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / _DESCRIPTION, description)
    for recording, found in events.groupby(list(recordings), sort=False):
        path = out / table_of(recording)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_labels(path, path, found)
        write_json(path.with_suffix(".json"), columns)
