"""Predictions as BIDS derivatives: one events table per recording, and the description of the derived data set."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from polyadic._util.files import write_atomically
from polyadic._util.version import __version__
from polyadic.cli.files import Labelled, check_out_folder, write_labels
from polyadic.cli.windows import are_recordings
from polyadic.errors import DataError, PolyadicError

__all__ = ["check_derivatives", "table_of", "write_derivatives"]

_DESCRIPTION = "dataset_description.json"
_RECORDING = re.compile(r"(sub-[^/]+/(?:.+/)?sub-[^/]+)_i?eeg")
_USE_A_TABLE = "derivatives are for BIDS data sets: use -o labels.csv"


def check_derivatives(out: Path, data: Path, force: bool) -> None:
    """Raise before any work if `data` is no BIDS data set, or `out` is another data set or, without force, a folder."""
    from polyadic.data.folders import is_bids

    check_out_folder(out, data)
    if are_recordings(data) and not is_bids(data):
        raise PolyadicError(f"--out {out.name} is a folder, but {data.name} has no {_DESCRIPTION}: {_USE_A_TABLE}")
    if not out.is_dir() or not any(out.iterdir()):
        return
    if not is_bids(out):
        if not force:
            raise PolyadicError(
                f"--out: the folder {out.name} exists and has no derivatives of polyadic: use --force to write into "
                "it, or choose another name"
            )
    elif not _is_ours(out / _DESCRIPTION):
        raise PolyadicError(
            f"--out: the folder {out.name} is a data set that polyadic did not write: choose another, such as "
            "derivatives/polyadic"
        )


def _is_ours(description: Path) -> bool:
    """Return whether polyadic wrote the description of a data set."""
    try:
        return str(json.loads(description.read_bytes())["GeneratedBy"][0]["Name"]) == "polyadic"
    except (ValueError, LookupError, TypeError):
        return False


def table_of(recording: str) -> str:
    """Return the path of the events table of a recording: sub-01/eeg/sub-01_desc-polyadic_events.tsv."""
    found = _RECORDING.fullmatch(recording)
    if found is None or ".." in recording.split("/"):
        raise DataError(f"{recording!r} is not a recording of a BIDS data set (sub-…/…/sub-…_eeg), and {_USE_A_TABLE}")
    return f"{found[1]}_desc-polyadic_events.tsv"


def write_derivatives(
    out: Path, recordings: Sequence[str], labels: Sequence[Labelled], model: str, classes: Sequence[str]
) -> None:
    """Write a folder of BIDS derivatives; for each window, there is the name of its recording and its label."""
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
    _write_json(out / _DESCRIPTION, description)
    tables: dict[str, list[Labelled]] = {}
    for recording, label in zip(recordings, labels, strict=True):
        tables.setdefault(recording, []).append(label)
    for recording, found in tables.items():
        path = out / table_of(recording)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_labels(path, path, found)
        _write_json(path.with_suffix(".json"), columns)


def _write_json(path: Path, content: object) -> None:
    write_atomically(path, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())
