"""Convert MNE-Python objects to recordings and windows, and read files with MNE (BrainVision, EEGLAB, FIF).

MNE is not needed to import this module.

MNE uses SI units: volts, tesla, tesla per metre.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyadic._util.files import check_regular_file
from polyadic.data.clock import clock_time
from polyadic.data.readers.common import choose_channels
from polyadic.data.recordings import Annotation, Recording, read_later
from polyadic.data.windows import Windows
from polyadic.errors import DataError, MissingExtraError, PolyadicError

__all__ = ["from_epochs", "from_raw", "read_mne"]

_UNITS = {
    **dict.fromkeys(("eeg", "eog", "ecg", "emg", "ecog", "seeg", "dbs", "bio"), "V"),
    **dict.fromkeys(("mag", "ref_meg"), "T"),
    "grad": "T/m",
    "gsr": "S",
    "temperature": "°C",
    "hbo": "M",
    "hbr": "M",
}
"""Units by channel type; units of other types are unknown."""

_SUBJECTS = ("subject", "subject_id", "participant_id")
"""Metadata columns that may contain the subject."""


def from_raw(raw: Any, name: str | None = None, subject: str | None = None) -> Recording:
    """Convert an `mne.io.Raw` to a recording, with all its channels.

    Onsets of annotations are relative to the first sample. Samples that an annotation marks as bad (`BAD…`, or
    `EDGE boundary` where two files were concatenated) are missing. An annotation with channel names applies to these
    channels only; one without duration marks one sample.

    Parameters
    ----------
    raw : the object to convert
    name : name of the recording; by default the file name without its extension
    subject : name of the subject; by default the identifier in `raw.info`, or else the name of the recording
    """
    _check(raw, ("info", "ch_names", "n_times", "first_time", "annotations", "get_channel_types"), "raw", "mne.io.Raw")
    if name is None:
        files = [file for file in raw.filenames if file is not None]
        name = Path(files[0]).stem if files else "raw"
    subject = subject if subject is not None else (_subject(raw) or name)
    return _recording(raw, name, subject, range(len(raw.ch_names)), "V").in_memory()


def _recording(raw: Any, name: str, subject: str, places: Sequence[int], volt: str) -> Recording:
    """Return some channels as a recording whose samples are read when they are needed, with volts in `V` or `uV`."""
    units = [_UNITS.get(kind, "") for kind in raw.get_channel_types()]
    factors = np.array([[1e6 if units[place] == "V" and volt == "uV" else 1.0] for place in places], np.float32)
    annotations, bad = _annotations(raw)
    began = raw.info.get("meas_date")

    def read(first: int, stop: int) -> Recording:
        try:
            signal = raw.get_data(start=first, stop=stop, verbose="ERROR")[list(places)].astype(np.float32)
        except Exception as error:  # MNE's readers raise many types
            raise DataError(f"{name}: MNE cannot read the samples: {error}") from error
        missing = np.zeros((len(raw.ch_names), stop - first), np.bool_)
        for begin, end, rows in bad:
            missing[rows, max(begin - first, 0) : max(end - first, 0)] = True
        missing = missing[list(places)]
        return Recording(
            name,
            subject,
            float(raw.info["sfreq"]),
            tuple(raw.ch_names[place] for place in places),
            tuple(volt if units[place] == "V" else units[place] for place in places),
            signal * factors,
            np.ones(len(signal)),
            np.zeros(len(signal)),
            missing=missing if missing.any() else None,
            began=clock_time(began.isoformat(), float(raw.first_time)) if began is not None else "",
        )

    sample = read(0, 1)
    return read_later(replace(sample, annotations=annotations), sample, read, raw.n_times)


def read_mne(path: Path, channels: Sequence[str] | None = None) -> Recording:
    """Open a recording with MNE-Python, such as a BrainVision (`.vhdr`), EEGLAB (`.set`) or MNE (`.fif`) file.

    Volts are converted to microvolts, the unit of EEG in these files and in EDF. Samples are read when they are needed.

    Raises
    ------
    DataError : if MNE cannot read the file
    MissingExtraError : if MNE is not installed
    """
    try:
        import mne
    except ImportError as error:
        raise MissingExtraError(
            f"{path.name} needs the package mne, which is not installed: pip install 'polyadic[mne]'"
        ) from error
    check_regular_file(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            raw = mne.io.read_raw(path, verbose="ERROR")
            return _recording(raw, path.name, path.name, choose_channels(path.name, raw.ch_names, channels), "uV")
    except PolyadicError:
        raise
    except Exception as error:  # MNE's readers raise many types
        raise DataError(f"{path.name}: MNE cannot read this file: {error}") from error


def from_epochs(epochs: Any, label: str | None = None, subject: str | None = None) -> Windows:
    """Convert an `mne.Epochs` to windows: X (N, channels, time) float32, labelled with the names of the events.

    Classes are ordered by event code. Epochs that MNE has dropped are left out.

    Parameters
    ----------
    epochs : the object to convert
    label : column of `epochs.metadata` with the labels, which replace the events
    subject : column of `epochs.metadata` with the subjects; by default `subject`, `subject_id` or `participant_id` if
        there is such a column, else the identifier in `epochs.info`
    """
    _check(epochs, ("info", "ch_names", "events", "event_id", "get_channel_types"), "epochs", "mne.Epochs")
    X = np.asarray(epochs.get_data(verbose="ERROR"), dtype=np.float32)
    if not len(X):
        raise DataError("epochs must contain at least one epoch that was not dropped, but contain none")
    metadata = getattr(epochs, "metadata", None)
    columns = () if metadata is None else tuple(map(str, metadata.columns))
    for name, column in (("label", label), ("subject", subject)):
        if column is not None and column not in columns:
            raise PolyadicError(f"{name} must be a column of the metadata, {', '.join(columns)}, but is {column!r}")
    subject = subject or next((name for name in _SUBJECTS if name in columns), None)
    own = _subject(epochs)
    people = metadata[subject].tolist() if metadata is not None and subject is not None else None
    labels, classes = _event_labels(epochs) if metadata is None or label is None else (metadata[label].tolist(), ())
    return Windows(
        X,
        float(epochs.info["sfreq"]),
        label=labels,
        subject=people if people is not None else None if own is None else np.full(len(X), own),
        channels=tuple(epochs.ch_names),
        units=tuple(_UNITS.get(kind, "") for kind in epochs.get_channel_types()),
        classes=classes,
    )


def _event_labels(epochs: Any) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """Return the class of each epoch from its event, and the names of the classes ordered by event code."""
    codes: dict[int, str] = {}
    for event, code in epochs.event_id.items():
        codes.setdefault(int(code), str(event))
    ordered = sorted(codes)
    place = {code: number for number, code in enumerate(ordered)}
    labels = np.array([place[int(code)] for code in epochs.events[:, 2]], np.int32)
    return labels, tuple(codes[code] for code in ordered)


def _check(given: Any, needed: tuple[str, ...], argument: str, kind: str) -> None:
    if not all(hasattr(given, each) for each in (*needed, "get_data")):
        raise PolyadicError(f"{argument} must be an {kind}, but is a {type(given).__name__}")


def _subject(given: Any) -> str | None:
    """Return the identifier of the subject, or None if the file has none."""
    person = given.info["subject_info"] or {}
    return str(person.get("his_id") or person.get("id") or "") or None


def _annotations(raw: Any) -> tuple[tuple[Annotation, ...], list[tuple[int, int, Any]]]:
    """Return the annotations, which MNE sorts by onset, and first sample, end and channels of those marked as bad."""
    found = []
    bad = []
    row = {channel: number for number, channel in enumerate(raw.ch_names)}
    noted = raw.annotations
    channels = noted.ch_names if noted.ch_names is not None else [()] * len(noted)
    for onset, duration, text, names in zip(noted.onset, noted.duration, noted.description, channels, strict=True):
        # MNE counts from the start of the acquisition, which is before the first sample if the start was cropped.
        onset = float(onset) - float(raw.first_time)
        found.append(Annotation(onset, float(duration), str(text)))
        if text.upper().startswith("BAD") or text == "EDGE boundary":
            first = round(onset * raw.info["sfreq"])
            last = max(round((onset + float(duration)) * raw.info["sfreq"]), first + 1)
            rows = [row[each] for each in names if each in row] if names else slice(None)
            bad.append((first, last, rows))
    return tuple(found), bad
