"""The four datasets of the paper, from their published folders to window stores, and folders of your own.

Windows, channels, labels and splits are those of the paper (section 4.1, appendix D.1). Signals keep the digits of
their files; only channels of several rates are resampled to one, explicitly.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyadic.data.folders import FolderFiles, find_files
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
from polyadic.data.readers.tables import read_csv
from polyadic.data.recordings import Recording, label_windows, window_starts
from polyadic.data.store import WindowStore
from polyadic.data.subjects import COLUMN, FILE, find_subject
from polyadic.data.synthetic import synthetic
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
_PTB_XL_LEADS = ("I", "II", "III", "AVR", "AVL", "AVF", "V1", "V2", "V3", "V4", "V5", "V6")
_PTB_XL_SAMPLES = 5000

_ANNOTATIONS = (".ann", ".atr")

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
    """Sleep-EDF Expanded (sleep cassette): 30 s windows of seven signals at 100 Hz, five sleep stages.

    The samples of the four signals recorded at 1 Hz are repeated 100 times, so that all keep their digits. Stages 3 and
    4 are N3; movement time and unscored epochs are left out.

    Parameters
    ----------
    root : the folder with `SC4ssNE0-PSG.edf` and `SC4ssNEX-Hypnogram.edf`, or a folder above it
    store : folder of the store
    trim : minutes of wake to keep before the first and after the last sleep; None keeps all, as the paper does
    on_error, append, progress : as for `polyadic.data.prepare.prepare`
    """
    if trim is not None and not trim >= 0:
        raise PolyadicError(f"trim must be None or minutes >= 0, but is {trim!r}")
    found = _find(root, "SC4*-PSG.edf", on_error)
    recordings = [
        _plan(path.name[:8], partial(_load_sleep_edf, path, trim), [path, *_hypnograms(path)]) for path in found.files
    ]
    settings = {"seconds": _WINDOW_SECONDS, "trim": trim}
    plan = StorePlan(recordings, _samples_in(_WINDOW_SECONDS), STAGES, "sleep_edf", settings, found.left_out)
    return prepare(plan, store, on_error=on_error, append=append, progress=progress)


def _hypnograms(path: Path) -> list[Path]:
    return sorted(path.parent.glob(f"{path.name[:7]}?-Hypnogram.edf"))


def _load_sleep_edf(path: Path, trim: float | None) -> CutRecording:
    """One night: SC4ssNE0 is subject ss, night N."""
    scores = _hypnograms(path)
    if len(scores) != 1:
        found = ", ".join(score.name for score in scores) or "none"
        raise DataError(f"{path.name} needs one hypnogram {path.name[:7]}?-Hypnogram.edf beside it, but has {found}")
    if edf.read_start(path) != edf.read_start(scores[0]):
        raise DataError(f"{scores[0].name} is not of the same night as {path.name}: they begin at different times")
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
    """MGH sleep: 30 s windows of six EEG channels at 200 Hz, five sleep stages.

    In the layout in which part of it was published for the PhysioNet/CinC Challenge 2018: a folder for each recording,
    with `tr03-0005.mat` and `tr03-0005-arousal.mat`. Recordings of its test set (`te…`) have no stages and are kept
    without labels.

    Parameters
    ----------
    root : the folder with the recordings' folders, or a folder above it
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
    plan = StorePlan(recordings, _samples_in(_WINDOW_SECONDS), STAGES, "mgh", settings, found.left_out)
    return prepare(plan, store, on_error=on_error, append=append, progress=progress)


def _load_mgh(path: Path) -> CutRecording:
    recording = mgh_reader.read_mgh(path.with_suffix(""))
    if not recording.annotations:
        if not path.stem.startswith("te"):
            raise DataError(f"{path.stem}-arousal.mat with the sleep stages of {path.name} is missing or has none")
        starts = window_starts(recording, _samples_in(_WINDOW_SECONDS)(recording.fs))
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
    """PTB-XL: 10 s windows of twelve leads at 500 Hz, sex. A patient may have several records.

    Parameters
    ----------
    root : the folder with `ptbxl_database.csv` and `records500`
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
    """UCI HAR: windows of 128 samples of nine channels at 50 Hz, six activities, with the official split by subject.

    Parameters
    ----------
    root : the folder `UCI HAR Dataset`, a folder above it, or the zip file
    store : folder of the store
    append, progress : as for `polyadic.data.prepare.prepare`
    """
    return write_windows(har_reader.read_har(root), store, append=append, progress=progress)


def folder(
    root: _Path,
    store: _Path,
    *,
    seconds: float,
    channels: Sequence[str] | None = None,
    fs: float | None = None,
    resample: str | None = None,
    classes: Sequence[str] = (),
    subject: str | None = None,
    on_error: OnError = "raise",
    append: bool = False,
    progress: OnRecording | None = None,
) -> WindowStore:
    """Recordings of your own: all EDF, BDF, WFDB and CSV files in a folder and those below it, or one such file.

    Hidden files and folders are left out and listed in `skipped`; links are followed.

    Parameters
    ----------
    root : the folder, or the file
    store : folder of the store
    seconds : length of a window
    channels : which ones, in this order; by default all, which must then be the same in all files
    fs, resample : rate to resample all channels to, and how ("hold" or "polyphase"); without them a file of several
        rates is an error. For CSV files without a time column, `fs` is their rate
    classes : annotation texts that are classes; a window has one if such annotations cover it and agree
    subject : regular expression with one group that finds the subject in a file's path below `root`; by default a BIDS
        entity such as `sub-01` in any part of the path, else the name of the folder the file lies in or, for files
        directly in `root`, their own
    on_error, append, progress : as for `polyadic.data.prepare.prepare`
    """
    if not 0 < seconds < np.inf:
        raise PolyadicError(f"seconds must be a positive length of a window, but is {seconds!r}")
    found = find_recordings(root, on_error)
    base = Path(root)
    options = {"channels": None if channels is None else tuple(channels), "fs": fs, "resample": resample}
    numbers = {text: number for number, text in enumerate(classes)}
    recordings = []
    for path in found.files:
        below = _below(path, base)
        name = below.removesuffix(path.suffix)
        who = find_subject(below, subject, base.absolute().name)
        load = partial(_load_own, path, name, who.name, who.source, seconds, numbers, options)
        recordings.append(_plan(name, load, _files_of(path)))
    settings = {"seconds": seconds, **options}
    plan = StorePlan(recordings, _samples_in(seconds), tuple(classes), "", settings, found.left_out)
    return prepare(plan, store, on_error=on_error, append=append, progress=progress)


def find_recordings(root: _Path, on_error: OnError = "raise") -> FolderFiles:
    """All EDF, BDF, WFDB and CSV files in a folder and those below it, or the one file that `root` is.

    Raises
    ------
    DataError : if there are none
    """
    base = Path(root)
    if base.exists() and not base.is_dir():
        return FolderFiles([base], {})
    found = find_files(base, lambda name: Path(name).suffix.lower() in ENDINGS, on_error)
    return _checked(found, base, ", ".join(ENDINGS))


def _below(path: Path, base: Path) -> str:
    """The path of a recording below the folder that is read; its name if it is what is read."""
    return path.name if path == base else path.relative_to(base).as_posix()


def _files_of(path: Path) -> list[Path]:
    """The files of a recording: of a WFDB header also its signals and annotations."""
    if path.suffix.lower() != ".hea":
        return [path]
    others = (path.with_suffix(ending) for ending in (".dat", ".mat", *_ANNOTATIONS))
    return [path, *(other for other in others if other.exists())]


def _load_own(
    path: Path,
    name: str,
    subject: str,
    subject_from: str,
    seconds: float,
    classes: dict[str, int],
    options: dict[str, Any],
) -> CutRecording:
    loaded = recording(path, name, subject, **options)
    length = _samples_in(seconds)(loaded.fs)
    starts = window_starts(loaded, length)
    return CutRecording(loaded, starts, label_windows(loaded, starts, length, classes), subject_from=subject_from)


def recording(
    path: _Path,
    name: str | None = None,
    subject: str | None = None,
    *,
    channels: Sequence[str] | None = None,
    fs: float | None = None,
    resample: str | None = None,
) -> Recording:
    """One recording from an EDF, BDF, WFDB (its .hea file) or CSV file.

    Parameters
    ----------
    name : of the recording; by default that of the file
    subject : by default the name of the recording
    channels, fs, resample : as for `folder`
    """
    file = Path(path)
    if file.suffix.lower() not in _READERS:
        raise PolyadicError(f"a recording must be a file that ends in {', '.join(ENDINGS)}, but is {file.name}")
    name = file.stem if name is None else name
    read = _READERS[file.suffix.lower()]
    return read(file, name, name if subject is None else subject, channels=channels, fs=fs, resample=resample)


def _read_edf(path: Path, name: str, subject: str, **options: Any) -> Recording:
    return edf.read_edf(path, name=name, subject=subject, **options)


def _read_wfdb(path: Path, name: str, subject: str, channels: Any, fs: Any, resample: Any) -> Recording:
    if resample is not None:
        raise PolyadicError(f"{path.name} is a WFDB record, which cannot be resampled: resample is for EDF files")
    extensions = [ending[1:] for ending in _ANNOTATIONS if path.with_suffix(ending).exists()]
    loaded = wfdb.read_wfdb(path, channels=channels, annotations=extensions or None, name=name, subject=subject)
    if fs is not None and not math.isclose(loaded.fs, fs, rel_tol=1e-6):
        raise DataError(f"{path.name} is sampled at {loaded.fs:g} Hz, not at {fs:g} Hz, and cannot be resampled")
    return loaded


def _read_csv(path: Path, name: str, subject: str, channels: Any, fs: Any, resample: Any) -> Recording:
    if resample is not None:
        raise PolyadicError(f"{path.name} is a CSV file, which cannot be resampled: resample is for EDF files")
    loaded = read_csv(path, fs, name, subject)
    if channels is None:
        return loaded
    if missing := [channel for channel in channels if channel not in loaded.channels]:
        raise DataError(
            f"{path.name}: must have the channels {missing}, but has {', '.join(map(repr, loaded.channels))}"
        )
    rows = [loaded.channels.index(channel) for channel in channels]
    count = len(rows)
    return Recording(
        name, subject, loaded.fs, tuple(channels), ("",) * count, loaded.signal[rows], np.ones(count), np.zeros(count)
    )


_READERS: dict[str, Callable[..., Recording]] = {
    ".edf": _read_edf,
    ".bdf": _read_edf,
    ".hea": _read_wfdb,
    ".csv": _read_csv,
}
ENDINGS = tuple(_READERS)
"""The endings of files that can be read as recordings, in lower case."""


def _find(root: _Path, pattern: str, on_error: OnError) -> FolderFiles:
    """The files below a folder whose names match a pattern."""
    return _checked(find_files(root, lambda name: fnmatchcase(name, pattern), on_error), Path(root), pattern)


def _checked(found: FolderFiles, base: Path, wanted: str) -> FolderFiles:
    if not found.files:
        raise DataError(f"No recordings found in {base.name or base} (looked for {wanted})")
    return found


def _plan(name: str, load: Callable[[], CutRecording], files: Iterable[Path]) -> PlannedRecording:
    """A recording to be read; the size of its first file stands for the work it takes."""
    listed = tuple(files)
    first = listed[0]
    return PlannedRecording(name, load, first.stat().st_size if first.exists() else 0, listed)


_LONGEST = 2**31 - 1


def _samples_in(seconds: float) -> Callable[[float], int]:
    """A function from a sampling rate to the number of samples in a window."""

    def length(fs: float) -> int:
        if seconds * fs > _LONGEST:
            raise PolyadicError(f"a window of {seconds:g} s is too long: it must have at most {_LONGEST} samples")
        samples = round(seconds * fs)
        if samples < 1 or abs(samples - seconds * fs) > 1e-6 * samples:
            raise PolyadicError(f"a window of {seconds:g} s must have a whole number of samples, but not at {fs:g} Hz")
        return samples

    return length


def _labelled_windows(
    recording: Recording, classes: dict[str, int], source: str
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """First samples and classes of the windows that have a class."""
    length = _samples_in(_WINDOW_SECONDS)(recording.fs)
    starts = window_starts(recording, length)
    labels = label_windows(recording, starts, length, classes)
    if not (labels != UNLABELLED).any():
        raise DataError(f"{source} labels no window of {recording.name}: its texts must be {', '.join(classes)}")
    return starts[labels != UNLABELLED], labels[labels != UNLABELLED]
