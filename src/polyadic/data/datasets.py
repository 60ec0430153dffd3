"""Write window stores from the four datasets of the paper, as published, or from a folder of your own recordings.

Windows, channels, labels and splits follow the paper (section 4.1, appendix D.1). Samples keep the digital values of
their files, unless channels with different sampling rates are resampled to one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from polyadic.data.annotations import label_windows
from polyadic.data.cutting import folder, samples_in
from polyadic.data.folder_reader import read_recording as recording
from polyadic.data.folders import ENDINGS, FolderFiles, find_files, find_recordings
from polyadic.data.labels import UNLABELLED
from polyadic.data.prepare import (
    CutRecording,
    OnError,
    OnRecording,
    PlannedRecording,
    StorePlan,
    prepare,
    write_windows,
)
from polyadic.data.readers import edf, ptbxl, wfdb
from polyadic.data.readers import har as har_reader
from polyadic.data.readers import mgh as mgh_reader
from polyadic.data.reading import Reading
from polyadic.data.recordings import Recording, window_starts
from polyadic.data.store import WindowStore
from polyadic.data.subjects import COLUMN, FILE
from polyadic.data.synthesis import synthetic
from polyadic.errors import DataError, PolyadicError

__all__ = ["ENDINGS", "find_recordings", "folder", "har", "mgh", "ptb_xl", "recording", "sleep_edf", "synthetic"]

STAGES = ("W", "N1", "N2", "N3", "R")
SLEEP_EDF_CHANNELS = (
    "EEG Fpz-Cz",
    "EEG Pz-Oz",
    "EOG horizontal",
    "Resp oro-nasal",
    "EMG submental",
    "Temp rectal",
    "Event marker",
)
_SLEEP_EDF_STAGES = {
    f"Sleep stage {text}": STAGES.index(stage)
    for text, stage in zip(("W", "1", "2", "3", "4", "R"), ("W", "N1", "N2", "N3", "N3", "R"), strict=True)
}
_WINDOW_SECONDS = 30
_SLEEP_EDF_READING = Reading(
    seconds=_WINDOW_SECONDS,
    channels=SLEEP_EDF_CHANNELS,
    resample="hold",
    classes=tuple(
        (stage, tuple(text for text, number in _SLEEP_EDF_STAGES.items() if STAGES[number] == stage))
        for stage in STAGES
    ),
    subject=r"(SC4\d\d)",
    scoring="*-Hypnogram.edf",
    pattern="*-PSG.edf",
)
"""How Sleep-EDF recordings are read; models fitted to the store read new recordings in the same way."""
_PTB_XL_LEADS = ("I", "II", "III", "AVR", "AVL", "AVF", "V1", "V2", "V3", "V4", "V5", "V6")
_PTB_XL_SAMPLES = 5000

_Path = str | os.PathLike[str]


def sleep_edf(
    root: _Path,
    store: _Path,
    *,
    trim: float | None = None,
    on_error: OnError = "raise",
    append: bool = False,
    progress: OnRecording | None = None,
) -> WindowStore:
    """Write a store of Sleep-EDF Expanded (sleep cassette): 30 s windows of seven signals at 100 Hz, five sleep stages.

    Each sample of the four signals recorded at 1 Hz is repeated 100 times, which keeps the digital values. Stages 3 and
    4 are merged into N3; movement time and unscored epochs are left out.

    Parameters
    ----------
    root : folder with `SC4ssNE0-PSG.edf` and `SC4ssNEX-Hypnogram.edf`, or one of its parent folders
    store : folder of the store
    trim : minutes of wake to keep before the first and after the last sleep epoch; None keeps all, as in the paper
    on_error, append, progress : as for `polyadic.data.prepare.prepare`
    """
    if trim is not None and not trim >= 0:
        raise PolyadicError(f"trim must be None or minutes >= 0, but is {trim!r}")
    found = _find(root, "SC4*-PSG.edf", on_error)
    recordings = [
        _plan(path.name[:8], partial(_load_sleep_edf, path, trim), [path, *_hypnograms(path)]) for path in found.files
    ]
    settings = {"seconds": _WINDOW_SECONDS, "trim": trim, "reading": _SLEEP_EDF_READING.to_json()}
    plan = StorePlan(recordings, samples_in(_WINDOW_SECONDS), STAGES, "sleep_edf", settings, found.left_out)
    return prepare(plan, store, on_error=on_error, append=append, progress=progress)


def _hypnograms(path: Path) -> list[Path]:
    return sorted(path.parent.glob(f"{path.name[:7]}?-Hypnogram.edf"))


def _load_sleep_edf(path: Path, trim: float | None) -> CutRecording:
    """Load one night: SC4ssNE0 is night N of subject ss."""
    scores = _hypnograms(path)
    if len(scores) != 1:
        found = ", ".join(score.name for score in scores) or "none"
        raise DataError(f"{path.name} needs one hypnogram {path.name[:7]}?-Hypnogram.edf next to it, but has {found}")
    if edf.read_start(path) != edf.read_start(scores[0]):
        raise DataError(f"{scores[0].name} is not from the same night as {path.name}: they begin at different times")
    recording = edf.read_edf(
        path, channels=SLEEP_EDF_CHANNELS, resample="hold", name=path.name[:8], subject=path.name[:5]
    )
    recording = replace(recording, annotations=edf.read_annotations(scores[0]))
    starts, labels = _labelled_windows(recording, _SLEEP_EDF_STAGES, scores[0].name)
    if trim is not None:
        asleep = np.flatnonzero(labels != STAGES.index("W"))
        if len(asleep):
            margin = round(trim * 60 * recording.fs)
            keep = (starts >= starts[asleep[0]] - margin) & (starts <= starts[asleep[-1]] + margin)
            starts, labels = starts[keep], labels[keep]
    return CutRecording(recording, starts, labels, subject_from=FILE)


def mgh(
    root: _Path,
    store: _Path,
    *,
    on_error: OnError = "raise",
    append: bool = False,
    progress: OnRecording | None = None,
) -> WindowStore:
    """Write a store of the MGH sleep recordings: 30 s windows of six EEG channels at 200 Hz, five sleep stages.

    The layout is that of the part published for the PhysioNet/CinC Challenge 2018: one folder per recording, with
    `tr03-0005.mat` and `tr03-0005-arousal.mat`. Recordings of the test set (`te…`) have no sleep stages and are stored
    without labels.

    Parameters
    ----------
    root : folder that contains the folders of the recordings, or one of its parent folders
    store : folder of the store
    on_error, append, progress : as for `polyadic.data.prepare.prepare`
    """
    found = _find(root, "*.mat", on_error)
    recordings = [
        _plan(path.stem, partial(_load_mgh, path), [path, path.with_name(f"{path.stem}-arousal.mat")])
        for path in found.files
        if not path.stem.endswith("-arousal")
    ]
    settings = {"seconds": _WINDOW_SECONDS}
    plan = StorePlan(recordings, samples_in(_WINDOW_SECONDS), STAGES, "mgh", settings, found.left_out)
    return prepare(plan, store, on_error=on_error, append=append, progress=progress)


def _load_mgh(path: Path) -> CutRecording:
    recording = mgh_reader.read_mgh(path.with_suffix(""))
    if not recording.annotations:
        if not path.stem.startswith("te"):
            raise DataError(f"{path.name} has no sleep stages: {path.stem}-arousal.mat is missing or has none")
        starts = window_starts(recording, samples_in(_WINDOW_SECONDS)(recording.fs))
        return CutRecording(recording, starts, np.full(len(starts), UNLABELLED, np.int32), subject_from=FILE)
    numbers = {stage: number for number, stage in enumerate(STAGES)}
    return CutRecording(recording, *_labelled_windows(recording, numbers, path.name), subject_from=FILE)


def ptb_xl(
    root: _Path,
    store: _Path,
    *,
    on_error: OnError = "raise",
    append: bool = False,
    progress: OnRecording | None = None,
) -> WindowStore:
    """Write a store of PTB-XL: 10 s windows of twelve leads at 500 Hz, labelled with the patient's sex.

    Subjects are patients, who may have several records.

    Parameters
    ----------
    root : folder with `ptbxl_database.csv` and `records500`
    store : folder of the store
    on_error, append, progress : as for `polyadic.data.prepare.prepare`
    """
    table = ptbxl.read_metadata(Path(root))
    recordings = []
    for row in range(len(table["ecg_id"])):
        path = Path(root) / str(table["filename_hr"][row])
        patient, sex = str(table["patient_id"][row]), int(table["sex"][row])
        files = [path.with_name(path.name + ending) for ending in (".hea", ".dat")]
        recordings.append(_plan(path.name, partial(_load_ptb_xl, path, patient, sex), files))
    plan = StorePlan(recordings, lambda fs: _PTB_XL_SAMPLES, ("male", "female"), "ptb_xl", {"label": "sex"})
    return prepare(plan, store, on_error=on_error, append=append, progress=progress)


def _load_ptb_xl(path: Path, patient: str, sex: int) -> CutRecording:
    recording = wfdb.read_wfdb(path, channels=_PTB_XL_LEADS, name=path.name, subject=patient)
    if recording.fs != 500 or recording.signal.shape[1] != _PTB_XL_SAMPLES:
        actual = f"{recording.signal.shape[1]} samples at {recording.fs:g} Hz"
        raise DataError(f"{path.name} must have {_PTB_XL_SAMPLES} samples at 500 Hz, but has {actual}")
    return CutRecording(recording, np.zeros(1, np.int64), np.array([sex], np.int32), subject_from=COLUMN)


def har(root: _Path, store: _Path, *, append: bool = False, progress: OnRecording | None = None) -> WindowStore:
    """Write a store of UCI HAR: windows of 128 samples of nine channels at 50 Hz, six activities, official split.

    Parameters
    ----------
    root : folder `UCI HAR Dataset`, one of its parent folders, or the zip file
    store : folder of the store
    append, progress : as for `polyadic.data.prepare.prepare`
    """
    return write_windows(har_reader.read_har(root), store, append=append, progress=progress)


def _find(root: _Path, pattern: str, on_error: OnError) -> FolderFiles:
    """Find the files in a folder and its subfolders whose names match a glob pattern."""
    return _checked(find_files(root, lambda name: fnmatchcase(name, pattern), on_error), Path(root), pattern)


def _checked(found: FolderFiles, base: Path, wanted: str) -> FolderFiles:
    if not found.files:
        raise DataError(f"No recordings found in {base.name or base} (looked for {wanted})")
    return found


def _plan(name: str, load: Callable[[], CutRecording], files: Iterable[Path]) -> PlannedRecording:
    """Return a recording to be read; its progress is measured by the size of its first file."""
    listed = tuple(files)
    first = listed[0]
    return PlannedRecording(name, load, first.stat().st_size if first.exists() else 0, listed)


def _labelled_windows(
    recording: Recording, classes: dict[str, int], source: str
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return the first samples and the classes of the windows that have a class."""
    length = samples_in(_WINDOW_SECONDS)(recording.fs)
    starts = window_starts(recording, length)
    labels = label_windows(recording, starts, length, classes)
    if not (labels != UNLABELLED).any():
        raise DataError(f"{source} labels no window of {recording.name}: its labels must be {', '.join(classes)}")
    return starts[labels != UNLABELLED], labels[labels != UNLABELLED]
