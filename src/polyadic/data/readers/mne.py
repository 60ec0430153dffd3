"""Convert MNE-Python objects to recordings and windows, and read files with MNE (BrainVision, EEGLAB, FIF).

MNE is not needed to import this module. It uses SI units: volts, tesla, tesla per metre.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyadic._util.packages import import_package
from polyadic.data.readers.common import Layout, SignalFile, check_file
from polyadic.data.recordings import Annotation, Recording, clock_time
from polyadic.data.windows import Windows
from polyadic.errors import DataError

__all__ = ["MneFile", "from_epochs", "from_raw"]

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


class MneFile(SignalFile):
    """The signals of an `mne.io.Raw`, in microvolts instead of volts if `micro`."""

    def __init__(self, raw: Any, name: str, micro: bool) -> None:
        units = [_UNITS.get(kind, "") for kind in raw.get_channel_types()]
        self.name, self._raw, self.labels, self.counts = name, raw, list(raw.ch_names), [1] * len(units)
        self.units = ["uV" if unit == "V" and micro else unit for unit in units]
        self.rates = dict.fromkeys(self.labels, float(raw.info["sfreq"]))
        self._annotations, self._bad, self._edges = _annotations(raw)

    def layout(self, numbers: Sequence[int]) -> Layout:
        raw, fs = self._raw, float(self._raw.info["sfreq"])
        began = raw.info.get("meas_date")
        clock = "" if began is None else clock_time(began, float(raw.first_time))
        segments = [(0, 0.0), *((edge, edge / fs) for edge in self._edges)]
        return Layout(numbers, raw.n_times, segments, self._annotations, clock)

    def read_frames(self, layout: Layout, numbers: Sequence[int], first: int, stop: int) -> Iterator[NDArray[Any]]:
        try:
            signal = self._raw.get_data(start=first, stop=stop, verbose="ERROR").astype(np.float32)
        except Exception as error:  # MNE's readers raise many types
            raise DataError(f"{self.name}: MNE cannot read the samples: {error}") from error
        for begin, end, rows in self._bad:
            signal[rows, max(begin - first, 0) : max(end - first, 0)] = np.nan
        return (signal[number] * np.float32(1e6 if self.units[number] == "uV" else 1) for number in numbers)


def open_mne(path: Path) -> MneFile:
    """Open a BrainVision (`.vhdr`), EEGLAB (`.set`), MNE (`.fif`) or other file; in microvolts, as EEG in EDF."""
    mne = import_package("mne", path.name)
    check_file(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return MneFile(mne.io.read_raw(path, verbose="ERROR"), path.name, micro=True)
    except Exception as error:  # MNE's readers raise many types
        raise DataError(f"{path.name}: MNE cannot read this file: {error}") from error


def from_raw(raw: Any) -> Recording:
    """Convert an `mne.io.Raw` to a recording, with all its channels, named after its file.

    Onsets of annotations are relative to the first sample. Samples that an annotation marks as bad (`BAD…`) are
    missing; if it has channel names, in these channels only. No window crosses an `EDGE boundary`, where two files were
    concatenated.
    """
    name = next((Path(file).name for file in raw.filenames if file is not None), "raw")
    recording = MneFile(raw, name, micro=False).read().in_memory()
    return replace(recording, subject=_subject(raw) or recording.name)


def from_epochs(epochs: Any) -> Windows:
    """Convert an `mne.Epochs` to windows: X (N, channels, time) float32, labelled with the names of the events.

    Classes are ordered by event code. Epochs that MNE has dropped are left out. The subject is in a column `subject`,
    `subject_id` or `participant_id` of the metadata, or else in `epochs.info`.
    """
    X = np.asarray(epochs.get_data(verbose="ERROR"), dtype=np.float32)
    if not len(X):
        raise DataError("epochs must contain at least one epoch that was not dropped, but contain none")
    metadata, own = getattr(epochs, "metadata", None), _subject(epochs)
    column = next((name for name in _SUBJECTS if metadata is not None and name in metadata), None)
    people = None if own is None else [own] * len(X)
    events = {int(code): str(event) for event, code in reversed(epochs.event_id.items())}
    codes = sorted(events)
    return Windows(
        X,
        float(epochs.info["sfreq"]),
        label=np.searchsorted(codes, epochs.events[:, 2]),
        subject=metadata[column].tolist() if metadata is not None and column is not None else people,
        channels=tuple(epochs.ch_names),
        units=tuple(_UNITS.get(kind, "") for kind in epochs.get_channel_types()),
        classes=tuple(events[code] for code in codes),
    )


def _subject(given: Any) -> str | None:
    """Return the identifier of the subject, or None if the file has none."""
    person = given.info["subject_info"] or {}
    return str(person.get("his_id") or person.get("id") or "") or None


def _annotations(raw: Any) -> tuple[tuple[Annotation, ...], list[tuple[int, int, Any]], list[int]]:
    """Return the annotations, which MNE sorts by onset; start, end and channels of those marked as bad; edges."""
    found = []
    bad: list[tuple[int, int, Any]] = []
    edges: list[int] = []
    noted, fs = raw.annotations, raw.info["sfreq"]
    channels = noted.ch_names if noted.ch_names is not None else [()] * len(noted)
    for onset, duration, text, names in zip(noted.onset, noted.duration, noted.description, channels, strict=True):
        # MNE counts from the start of the acquisition, which is before the first sample if the start was cropped.
        onset = float(onset) - float(raw.first_time)
        found.append(Annotation(onset, float(duration), str(text)))
        first = round(onset * fs)
        if text == "EDGE boundary" and 0 < first < raw.n_times:
            edges.append(first)
        if text.upper().startswith("BAD"):
            rows = [raw.ch_names.index(each) for each in names if each in raw.ch_names] if names else slice(None)
            bad.append((first, max(round((onset + float(duration)) * fs), first + 1), rows))
    return tuple(found), bad, edges
