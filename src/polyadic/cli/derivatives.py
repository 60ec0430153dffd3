"""Predictions as BIDS derivatives: one events table per recording, and the description of the derived data set."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from polyadic._util.files import write_atomically
from polyadic._util.version import __version__
from polyadic.errors import DataError

__all__ = ["derivative_name", "write_derivatives"]

_SUFFIX = re.compile(r"_[a-zA-Z]+$")


def derivative_name(recording: str) -> str:
    """Return the name of the events table of a recording of a BIDS data set.

    Examples
    --------
    >>> derivative_name("sub-01/eeg/sub-01_task-rest_eeg")
    'sub-01/eeg/sub-01_task-rest_desc-polyadic_events.tsv'
    """
    folder, _, name = recording.rpartition("/")
    stem = _SUFFIX.sub("", name)
    if not (stem.startswith("sub-") and folder.startswith("sub-")):
        raise DataError(
            f"{recording} is not a recording of a BIDS data set (sub-…/…/sub-…_eeg), so that derivatives cannot be "
            "written: use -o labels.csv"
        )
    return f"{folder}/{stem}_desc-polyadic_events.tsv"


def write_derivatives(out: Path, tables: Mapping[str, Sequence[str]], model: str, classes: Sequence[str]) -> None:
    """Write a folder of BIDS derivatives.

    Parameters
    ----------
    out : the folder, such as derivatives/polyadic
    tables : the lines of the events table of each recording, by the name of the recording, without the head
    model : name of the model file
    classes : names of the classes
    """
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
    files = {derivative_name(recording): lines for recording, lines in tables.items()}
    head = "\t".join(columns)
    for name, lines in files.items():
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, "\n".join([head, *lines, ""]).encode())
        write_atomically(path.with_suffix(".json"), (json.dumps(columns, indent=2) + "\n").encode())
    # Last: a data set without its description is not complete.
    write_atomically(out / "dataset_description.json", (json.dumps(description, indent=2) + "\n").encode())
