"""The paper's four datasets, from their published folders to window stores, and folders of your own.

Windows, channels, labels and splits are those of the paper (section 4.1, appendix D.1). Signals keep the digits of
their files; only channels of several rates are brought to one, explicitly.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyadic.data.prepare import Entry, OnError, Piece, Plan, Progress, prepare, write_windows
from polyadic.data.readers import edf, ptbxl, wfdb
from polyadic.data.readers import har as har_reader
from polyadic.data.readers import mgh as mgh_reader
from polyadic.data.readers.tables import read_csv
from polyadic.data.recordings import UNLABELLED, Recording, label_starts, window_starts
from polyadic.data.store import WindowStore
from polyadic.data.synthetic import synthetic
from polyadic.errors import DataError, PolyadicError

__all__ = ["ENDINGS", "folder", "har", "mgh", "ptb_xl", "recording", "sleep_edf", "synthetic"]

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

_Path = str | os.PathLike[str]


def sleep_edf(
    root: _Path,
    store: _Path,
    *,
    trim: float | None = None,
    on_error: OnError = "raise",
    append: bool = False,
    progress: Progress | None = None,
) -> WindowStore:
    """Sleep-EDF Expanded (sleep cassette): 30 s windows of seven signals at 100 Hz, five sleep stages.

    The four signals that were recorded at 1 Hz are held for 100 samples each, so that all keep their digits. Stages 3
    and 4 are N3; movement time and unscored epochs are left out.

    Parameters
    ----------
    root : the folder with `SC4ssNE0-PSG.edf` and `SC4ssNEX-Hypnogram.edf`, or a folder above it
    store : folder of the store
    trim : minutes of wake to keep before the first and after the last sleep; None keeps all, as in the paper
    on_error, append, progress : as for `polyadic.data.prepare.prepare`
    """
    if trim is not None and not trim >= 0:
        raise PolyadicError(f"trim must be None or minutes >= 0, but is {trim!r}")
    recordings = _found(root, "SC4*-PSG.edf")
    entries = [Entry(path.name[:8], partial(_sleep_edf, path, trim), path.stat().st_size) for path in recordings]
    settings = {"seconds": _WINDOW_SECONDS, "trim": trim}
    plan = Plan(entries, _seconds(_WINDOW_SECONDS), STAGES, "sleep_edf", settings)
    return prepare(plan, store, on_error=on_error, append=append, progress=progress)


def _sleep_edf(path: Path, trim: float | None) -> Piece:
    """One night: SC4ssNE0 is subject ss, night N."""
    scores = sorted(path.parent.glob(f"{path.name[:7]}?-Hypnogram.edf"))
    if len(scores) != 1:
        found = ", ".join(score.name for score in scores) or "none"
        raise DataError(f"{path.name} needs one hypnogram {path.name[:7]}?-Hypnogram.edf beside it, but has {found}")
    if edf.read_start(path) != edf.read_start(scores[0]):
        raise DataError(f"{scores[0].name} is not of the same night as {path.name}: they begin at different times")
    recording = edf.read_edf(
        path, channels=SLEEP_EDF_CHANNELS, resample="hold", name=path.name[:8], subject=path.name[:5]
    )
    recording = _with_annotations(recording, edf.read_annotations(scores[0]))
    starts, labels = _labelled(recording, _SLEEP_EDF_STAGES, scores[0].name)
    if trim is not None:
        asleep = np.flatnonzero(labels != STAGES.index("W"))
        if len(asleep):
            margin = round(trim * 60 * recording.fs)
            keep = (starts >= starts[asleep[0]] - margin) & (starts <= starts[asleep[-1]] + margin)
            starts, labels = starts[keep], labels[keep]
    return Piece(recording, starts, labels)


def mgh(
    root: _Path,
    store: _Path,
    *,
    on_error: OnError = "raise",
    append: bool = False,
    progress: Progress | None = None,
) -> WindowStore:
    """MGH sleep: 30 s windows of six EEG channels at 200 Hz, five sleep stages.

    In the layout in which part of it was published for the PhysioNet/CinC Challenge 2018: a folder a recording, with
    `tr03-0005.mat` and `tr03-0005-arousal.mat`. Recordings of its test set (`te…`) have no stages and are kept
    unlabelled.

    Parameters
    ----------
    root : the folder with the recordings' folders, or a folder above it
    store : folder of the store
    on_error, append, progress : as for `polyadic.data.prepare.prepare`
    """
    recordings = [path for path in _found(root, "*.mat") if not path.stem.endswith("-arousal")]
    entries = [Entry(path.stem, partial(_mgh, path), path.stat().st_size) for path in recordings]
    plan = Plan(entries, _seconds(_WINDOW_SECONDS), STAGES, "mgh", {"seconds": _WINDOW_SECONDS})
    return prepare(plan, store, on_error=on_error, append=append, progress=progress)


def _mgh(path: Path) -> Piece:
    recording = mgh_reader.read_mgh(path.with_suffix(""))
    if not recording.annotations:
        if not path.stem.startswith("te"):
            raise DataError(f"{path.stem}-arousal.mat with the sleep stages of {path.name} is missing or has none")
        starts = window_starts(recording, _seconds(_WINDOW_SECONDS)(recording.fs))
        return Piece(recording, starts, np.full(len(starts), UNLABELLED, np.int32))
    return Piece(recording, *_labelled(recording, {stage: number for number, stage in enumerate(STAGES)}, path.name))


def ptb_xl(
    root: _Path,
    store: _Path,
    *,
    on_error: OnError = "raise",
    append: bool = False,
    progress: Progress | None = None,
) -> WindowStore:
    """PTB-XL: 10 s windows of twelve leads at 500 Hz, sex. A patient may have several records.

    Parameters
    ----------
    root : the folder with `ptbxl_database.csv` and `records500`
    store : folder of the store
    on_error, append, progress : as for `polyadic.data.prepare.prepare`
    """
    table = ptbxl.read_metadata(Path(root))
    entries = []
    for row in range(len(table["ecg_id"])):
        path = Path(root) / str(table["filename_hr"][row])
        patient, sex = str(table["patient_id"][row]), int(table["sex"][row])
        entries.append(Entry(path.name, partial(_ptb_xl, path, patient, sex), 2 * 12 * _PTB_XL_SAMPLES))
    plan = Plan(entries, lambda fs: _PTB_XL_SAMPLES, ("male", "female"), "ptb_xl", {"label": "sex"})
    return prepare(plan, store, on_error=on_error, append=append, progress=progress)


def _ptb_xl(path: Path, patient: str, sex: int) -> Piece:
    recording = wfdb.read_wfdb(path, channels=_PTB_XL_LEADS, name=path.name, subject=patient)
    if recording.fs != 500 or recording.signal.shape[1] != _PTB_XL_SAMPLES:
        came = f"{recording.signal.shape[1]} samples at {recording.fs:g} Hz"
        raise DataError(f"{path.name} must have {_PTB_XL_SAMPLES} samples at 500 Hz, but has {came}")
    return Piece(recording, np.zeros(1, np.int64), np.array([sex], np.int32))


def har(root: _Path, store: _Path, *, append: bool = False, progress: Progress | None = None) -> WindowStore:
    """UCI HAR: windows of 128 samples of nine channels at 50 Hz, six activities, with the official people split.

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
    progress: Progress | None = None,
) -> WindowStore:
    """Recordings of your own: all EDF, BDF, WFDB and CSV files in a folder and those below it, or one such file.

    Parameters
    ----------
    root : the folder, or the file
    store : folder of the store
    seconds : length of a window
    channels : which ones, in this order; by default all, which must then be the same in all files
    fs, resample : rate to bring all channels to, and how ("hold" or "polyphase"); without them a file of several
        rates is an error. For CSV files without a time column, `fs` is their rate
    classes : annotation texts that are classes; a window has one if such annotations cover it and agree
    subject : regular expression with one group that finds the subject in a file's path below `root`; by default the
        name of the folder the file lies in or, for files directly in `root`, their own
    on_error, append, progress : as for `polyadic.data.prepare.prepare`
    """
    if not 0 < seconds < np.inf:
        raise PolyadicError(f"seconds must be a positive length of a window, but is {seconds!r}")
    base, paths = Path(root), [Path(root)]
    if not base.is_file():
        paths = [path for path in _found(root, "*") if path.suffix.lower() in ENDINGS]
    options = {"channels": None if channels is None else tuple(channels), "fs": fs, "resample": resample}
    numbers = {text: number for number, text in enumerate(classes)}
    entries = []
    for path in paths:
        below = path.name if path == base else path.relative_to(base).as_posix()
        name = below.removesuffix(path.suffix)
        load = partial(_own, path, name, _subject(below, subject), seconds, numbers, options)
        entries.append(Entry(name, load, path.stat().st_size))
    plan = Plan(entries, _seconds(seconds), tuple(classes), "", {"seconds": seconds, **options})
    return prepare(plan, store, on_error=on_error, append=append, progress=progress)


def _own(
    path: Path, name: str, subject: str, seconds: float, classes: dict[str, int], options: dict[str, Any]
) -> Piece:
    whole = recording(path, name, subject, **options)
    length = _seconds(seconds)(whole.fs)
    starts = window_starts(whole, length)
    return Piece(whole, starts, label_starts(whole, starts, length, classes))


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
    name : of the recording; the file's if None
    subject : whose it is; the recording's name if None
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
    if fs is not None or resample is not None:
        raise PolyadicError("fs and resample are for EDF and CSV files, but there is a WFDB record: " + path.name)
    extensions = [other.suffix[1:] for other in path.parent.glob(f"{path.stem}.*") if other.suffix in (".atr", ".ann")]
    return wfdb.read_wfdb(path, channels=channels, annotations=extensions or None, name=name, subject=subject)


def _read_csv(path: Path, name: str, subject: str, channels: Any, fs: Any, resample: Any) -> Recording:
    if resample is not None:
        raise PolyadicError("resample is not for CSV files, but there is one: " + path.name)
    whole = read_csv(path, fs, name, subject)
    if channels is None:
        return whole
    if missing := [channel for channel in channels if channel not in whole.channels]:
        raise DataError(
            f"{path.name}: must have the channels {missing}, but has {', '.join(map(repr, whole.channels))}"
        )
    rows = [whole.channels.index(channel) for channel in channels]
    count = len(rows)
    return Recording(
        name, subject, whole.fs, tuple(channels), ("",) * count, whole.signal[rows], np.ones(count), np.zeros(count)
    )


_READERS: dict[str, Callable[..., Recording]] = {
    ".edf": _read_edf,
    ".bdf": _read_edf,
    ".hea": _read_wfdb,
    ".csv": _read_csv,
}
ENDINGS = tuple(_READERS)
"""How the names of files that can be read end, in small letters."""


def _subject(below: str, pattern: str | None) -> str:
    parts = below.split("/")
    if pattern is None:
        return parts[-2] if len(parts) > 1 else parts[0].rpartition(".")[0]
    try:
        found = re.search(pattern, below)
        return str(found[1]) if found else _no_subject(pattern, below)
    except (re.error, IndexError) as error:
        raise PolyadicError(
            f"subject must be a regular expression with one group, but is {pattern!r}: {error}"
        ) from error


def _no_subject(pattern: str, below: str) -> str:
    raise PolyadicError(f"subject must find the subject in every path, but {pattern!r} does not fit {below}")


def _found(root: _Path, pattern: str) -> list[Path]:
    """Files below a folder in a fixed order, hidden ones left out."""
    base = Path(root)
    if not base.is_dir():
        raise DataError(
            f"{base.name} must be a folder of recordings, but {'is a file' if base.exists() else 'is not there'}"
        )
    paths = sorted(path for path in base.rglob(pattern) if path.is_file() and not path.name.startswith("."))
    if not paths:
        raise DataError(f"{base.name} must hold files {pattern}, but there are none")
    return paths


_LONGEST = 2**31 - 1


def _seconds(seconds: float) -> Callable[[float], int]:
    """From a sampling rate to the samples in a window."""

    def length(fs: float) -> int:
        if seconds * fs > _LONGEST:
            raise PolyadicError(f"a window of {seconds:g} s is too long: it must have at most {_LONGEST} samples")
        samples = round(seconds * fs)
        if samples < 1 or abs(samples - seconds * fs) > 1e-6 * samples:
            raise PolyadicError(f"a window of {seconds:g} s must have a whole number of samples, but not at {fs:g} Hz")
        return samples

    return length


def _labelled(
    recording: Recording, classes: dict[str, int], source: str
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """First samples and classes of the windows that have one."""
    length = _seconds(_WINDOW_SECONDS)(recording.fs)
    starts = window_starts(recording, length)
    labels = label_starts(recording, starts, length, classes)
    if not (labels != UNLABELLED).any():
        raise DataError(f"{source} labels no window of {recording.name}: its texts must be {', '.join(classes)}")
    return starts[labels != UNLABELLED], labels[labels != UNLABELLED]


def _with_annotations(recording: Recording, annotations: tuple[Any, ...]) -> Recording:
    from dataclasses import replace

    return replace(recording, annotations=annotations)
