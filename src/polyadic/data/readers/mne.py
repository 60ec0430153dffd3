"""Recordings and windows from objects of MNE-Python; that package itself is not needed to import this module.

MNE's values are in SI units: volts, tesla, tesla per metre.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyadic.data.clock import clock_time
from polyadic.data.recordings import Annotation, Recording
from polyadic.data.windows import Windows
from polyadic.errors import DataError, MissingExtraError, PolyadicError
from polyadic.files import check_regular_file

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
"""Units by type of channel; those of other types are unknown."""

_SUBJECTS = ("subject", "subject_id", "participant_id")
"""Columns of metadata that have the subject."""

_BLOCK = 1 << 20
"""Samples that are read at once: MNE gives float64, of which a whole night would take too much memory."""


def from_raw(raw: Any, name: str | None = None, subject: str | None = None) -> Recording:
    """A recording from an `mne.io.Raw`, with all its channels.

    Times of annotations count from the first sample. Samples that an annotation marks as bad (`BAD…`, also where two
    files were joined, `EDGE boundary`) are missing; an annotation for some channels marks just those, and one without
    duration marks one sample.

    Parameters
    ----------
    name : of the recording; by default that of its file
    subject : by default the identifier in `raw.info` or, without one, the name of the recording
    """
    _check(raw, ("info", "ch_names", "n_times", "first_time", "annotations", "get_channel_types"), "raw", "mne.io.Raw")
    if name is None:
        files = [file for file in raw.filenames if file is not None]
        name = Path(files[0]).stem if files else "raw"
    signal = np.empty((len(raw.ch_names), raw.n_times), np.float32)
    for first in range(0, raw.n_times, _BLOCK):
        last = min(first + _BLOCK, raw.n_times)
        signal[:, first:last] = raw.get_data(start=first, stop=last, verbose="ERROR")
    count = len(signal)
    annotations, missing = _annotations(raw)
    began = raw.info.get("meas_date")
    return Recording(
        name,
        subject if subject is not None else (_subject(raw) or name),
        float(raw.info["sfreq"]),
        tuple(raw.ch_names),
        _units(raw),
        signal,
        np.ones(count),
        np.zeros(count),
        annotations,
        missing=missing,
        began=clock_time(began.isoformat(), float(raw.first_time)) if began is not None else "",
    )


def read_mne(path: Path, name: str, subject: str) -> Recording:
    """A recording from a file that MNE-Python reads, such as BrainVision (`.vhdr`) or EEGLAB (`.set`).

    Volts become microvolts, the unit of EEG in these files and in EDF.

    Raises
    ------
    DataError : if MNE cannot read it
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
            found = from_raw(mne.io.read_raw(path, verbose="ERROR"), name, subject)
    except PolyadicError:
        raise
    except Exception as error:  # of any of MNE's readers
        raise DataError(f"{path.name}: mne cannot read it: {error}") from error
    volts = np.array([unit == "V" for unit in found.units])
    found.signal[volts] *= np.float32(1e6)
    return replace(found, units=tuple("uV" if unit == "V" else unit for unit in found.units))


def from_epochs(epochs: Any, label: str | None = None, subject: str | None = None) -> Windows:
    """Windows from an `mne.Epochs`: X (N, channels, time) float32, labelled by the names of their events.

    Classes are in the order of the events' codes. Epochs that MNE has dropped are left out.

    Parameters
    ----------
    label : a column of `epochs.metadata` that has the labels, in place of the events
    subject : a column of `epochs.metadata` that has the subjects; by default `subject`, `subject_id` or
        `participant_id` if there is one, else the identifier in `epochs.info`
    """
    _check(epochs, ("info", "ch_names", "events", "event_id", "get_channel_types"), "epochs", "mne.Epochs")
    X = np.asarray(epochs.get_data(verbose="ERROR"), dtype=np.float32)
    if not len(X):
        raise DataError("epochs must have at least one epoch that was not dropped, but have none")
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
        units=_units(epochs),
        classes=classes,
    )


def _event_labels(epochs: Any) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """The class of each epoch by its event, and the names of the classes in the order of the events' codes."""
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


def _units(given: Any) -> tuple[str, ...]:
    return tuple(_UNITS.get(kind, "") for kind in given.get_channel_types())


def _subject(given: Any) -> str | None:
    """The identifier of the person, if the file had one."""
    person = given.info["subject_info"] or {}
    return str(person.get("his_id") or person.get("id") or "") or None


def _annotations(raw: Any) -> tuple[tuple[Annotation, ...], NDArray[np.bool_] | None]:
    """Annotations, in order of onset as MNE keeps them, and the samples they mark as bad: (channels, samples)."""
    found = []
    missing = np.zeros((len(raw.ch_names), raw.n_times), np.bool_)
    row = {channel: number for number, channel in enumerate(raw.ch_names)}
    noted = raw.annotations
    channels = noted.ch_names if noted.ch_names is not None else [()] * len(noted)
    for onset, duration, text, names in zip(noted.onset, noted.duration, noted.description, channels, strict=True):
        # MNE counts from where the device began, which is before the first sample if that was cut off.
        onset = float(onset) - float(raw.first_time)
        found.append(Annotation(onset, float(duration), str(text)))
        if text.upper().startswith("BAD") or text == "EDGE boundary":
            first = round(onset * raw.info["sfreq"])
            last = max(round((onset + float(duration)) * raw.info["sfreq"]), first + 1)
            rows = [row[each] for each in names if each in row] if names else slice(None)
            missing[rows, max(first, 0) : max(last, 0)] = True
    return tuple(found), missing if missing.any() else None
