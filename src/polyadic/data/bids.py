"""Datasets in the BIDS layout: find their EEG and iEEG recordings, and read their events and participants."""

from __future__ import annotations

import re
from pathlib import Path

from polyadic.data.labels import is_unknown
from polyadic.data.readers.tables import read_heads, read_texts
from polyadic.errors import DataError

__all__ = ["events_of", "is_bids", "is_bids_recording", "participant_labels", "read_participants"]

_RECORDING = re.compile(r"(?:^|/)sub-[^/]+/(?:.*/)?(?:eeg|ieeg)/[^/]+_(?:eeg|ieeg)\.\w+$")
_BESIDE = ("derivatives", "sourcedata", "code", "stimuli")
"""Top-level folders without raw recordings."""


def is_bids(root: Path) -> bool:
    """Return whether a folder is the root of a BIDS dataset."""
    return (root / "dataset_description.json").is_file()


def is_bids_recording(path: str) -> bool:
    """Return whether a path relative to the root is a raw EEG or iEEG recording.

    Examples
    --------
    >>> is_bids_recording("sub-01/eeg/sub-01_task-rest_eeg.edf"), is_bids_recording("derivatives/sub-01/eeg/a_eeg.edf")
    (True, False)
    """
    return path.partition("/")[0] not in _BESIDE and _RECORDING.search(path) is not None


def events_of(path: Path) -> Path | None:
    """Return the path of the events table of a recording, or None if it has none."""
    name = re.sub(r"_(?:eeg|ieeg)$", "_events.tsv", path.stem)
    events = path.with_name(name)
    return events if events.is_file() and name != path.stem else None


def read_participants(root: Path) -> dict[str, dict[str, str]]:
    """Return the rows of participants.tsv by participant; empty if there is no such table."""
    path = root / "participants.tsv"
    heads = read_heads(path) if path.is_file() else ()
    if "participant_id" not in heads:
        return {}
    rows: list[dict[str, str]] = read_texts(path).to_dict("records")
    return {row["participant_id"]: row for row in rows}


def participant_labels(root: Path, column: str) -> dict[str, str] | None:
    """Return the label of each participant from a column of participants.tsv, or None if there is no such column."""
    people = read_participants(root)
    if not people or column not in next(iter(people.values())):
        return None
    found = {who: row[column] for who, row in people.items()}
    known = {who: text for who, text in found.items() if not is_unknown(text) and text.lower() not in ("n/a", "nan")}
    if not known:
        raise DataError(f"participants.tsv has no values in the column {column!r}")
    return known
