"""Sleep-EDF, PTB-XL and MGH: windows of recordings in their published layouts, written to a store one by one."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyadic.data import Annotation, Header, Recording, StoreWriter, WindowStore, read_recording
from polyadic.errors import DataError

STAGES = ("W", "N1", "N2", "N3", "R")
"""The sleep stages of Sleep-EDF and MGH."""
EPOCH_SECONDS = 30

_SLEEP_CHANNELS = ("EEG Fpz-Cz", "EEG Pz-Oz", "EOG horizontal", "Resp oro-nasal", "EMG submental", "Temp rectal",
                   "Event marker")  # fmt: skip
_SLEEP_CLASSES = {
    f"Sleep stage {text}": STAGES.index(stage)
    for text, stage in {"W": "W", "1": "N1", "2": "N2", "3": "N3", "4": "N3", "R": "R"}.items()
}
_SLEEP_FS = 100
_LEADS = ("I", "II", "III", "AVR", "AVL", "AVF", "V1", "V2", "V3", "V4", "V5", "V6")
_ECG_TABLE = "ptbxl_database.csv"
_ECG_FS, _ECG_SAMPLES = 500, 5000
_MGH_CHANNELS = ("F3-M2", "F4-M1", "C3-M2", "C4-M1", "O1-M2", "O2-M1")
_MGH_NAMES = {"wake": "W", "nonrem1": "N1", "nonrem2": "N2", "nonrem3": "N3", "rem": "R"}
_MGH_FS = 200


def sleep_edf(root: str | Path, store: str | Path, **how: Any) -> WindowStore:
    """Write a store of Sleep-EDF Expanded, sleep cassette: 30 s of seven signals at 100 Hz, five sleep stages.

    Each sample of the four signals recorded at 1 Hz is repeated 100 times, which keeps the digital values. Stages 3 and
    4 are merged into N3; movement time and unscored epochs are left out.

    Parameters
    ----------
    root : folder with `SC4ssNE0-PSG.edf` and `SC4ssNEX-Hypnogram.edf`, or one of its parent folders
    store : folder of the store
    how : `on_error` and `progress`, as for `_write_store`
    """
    loaders = {path.name[:8]: partial(_load_night, path) for path in _find_files(root, "SC4*-PSG.edf")}
    return _write_store(
        store,
        loaders,
        length=EPOCH_SECONDS * _SLEEP_FS,
        classes=STAGES,
        dataset="sleep_edf",
        settings={"seconds": EPOCH_SECONDS},
        **how,
    )


def _load_night(path: Path) -> Cut:
    """Load one night: SC4ssNE0 is night N of subject ss."""
    import edfio

    scores = sorted(path.parent.glob(f"{path.name[:7]}?-Hypnogram.edf"))
    if len(scores) != 1:
        listed = ", ".join(score.name for score in scores) or "none"
        raise DataError(f"{path.name} needs one hypnogram {path.name[:7]}?-Hypnogram.edf next to it, but has {listed}")
    recording = read_recording(path, path.name[:8], path.name[:5], channels=_SLEEP_CHANNELS, resample="hold")
    try:
        annotations = edfio.read_edf(scores[0]).annotations
    except (ValueError, LookupError) as error:
        raise DataError(f"{scores[0].name} cannot be read as the hypnogram of {path.name}: {error}") from error
    if _start(path) != _start(scores[0]):
        raise DataError(f"{scores[0].name} is not from the same night as {path.name}: they begin at different times")
    stages = tuple(Annotation(one.onset, one.duration or 0.0, one.text) for one in annotations)
    return _labelled_epochs(replace(recording, annotations=stages), _SLEEP_CLASSES, scores[0].name)


def _start(path: Path) -> bytes:
    """Return start date and time as they stand in the header of an EDF file."""
    with path.open("rb") as file:
        return file.read(184)[168:]


def ptb_xl(root: str | Path, store: str | Path, **how: Any) -> WindowStore:
    """Write a store of PTB-XL: 10 s of twelve leads at 500 Hz, labelled with the patient's sex.

    Subjects are patients, who may have several records.

    Parameters
    ----------
    root : folder with `ptbxl_database.csv` and `records500`
    store : folder of the store
    how : `on_error` and `progress`, as for `_write_store`
    """
    loaders = {}
    for line, row in enumerate(_table_rows(Path(root) / _ECG_TABLE), 2):
        try:
            path, patient, sex = Path(root) / row["filename_hr"], str(int(float(row["patient_id"]))), int(row["sex"])
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{_ECG_TABLE}, line {line}: needs filename_hr, patient_id and sex: {error!r}") from error
        if sex not in (0, 1):
            raise DataError(f"{_ECG_TABLE}, line {line}: sex must be 0 (male) or 1 (female), but is {sex}")
        loaders[path.name] = partial(_load_ecg, path.with_name(f"{path.name}.hea"), patient, sex)
    return _write_store(
        store,
        loaders,
        length=_ECG_SAMPLES,
        classes=("male", "female"),
        dataset="ptb_xl",
        settings={"label": "sex"},
        **how,
    )


def _table_rows(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        raise DataError(f"there is no {_ECG_TABLE} in {path.parent}: pass the folder of PTB-XL as it is published")
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def _load_ecg(path: Path, patient: str, sex: int) -> Cut:
    recording = read_recording(path, path.stem, patient, channels=_LEADS)
    if recording.fs != _ECG_FS or recording.signal.shape[1] != _ECG_SAMPLES:
        actual = f"{recording.signal.shape[1]} samples at {recording.fs:g} Hz"
        raise DataError(f"{path.stem} must have {_ECG_SAMPLES} samples at {_ECG_FS} Hz, but has {actual}")
    return Cut(recording, np.zeros(1, np.int64), np.array([sex], np.int32))


def mgh(root: str | Path, store: str | Path, **how: Any) -> WindowStore:
    """Write a store of the sleep recordings of Massachusetts General Hospital: 30 s of six EEG channels at 200 Hz.

    The layout is that of the part published for the PhysioNet/CinC Challenge 2018: one folder per recording, with a
    WFDB header, a MATLAB file with the digital values, and a MATLAB 7.3 (HDF5) file with the sleep stage of every
    sample. Recordings of the test set (`te…`) have no stages and get no labels.

    Parameters
    ----------
    root : folder that contains the folders of the recordings, or one of its parent folders
    store : folder of the store
    how : `on_error` and `progress`, as for `_write_store`
    """
    return _write_store(
        store,
        {path.stem: partial(_load_mgh, path) for path in _find_files(root, "*.hea")},
        length=EPOCH_SECONDS * _MGH_FS,
        classes=STAGES,
        dataset="mgh",
        settings={"seconds": EPOCH_SECONDS},
        **how,
    )


def _load_mgh(path: Path) -> Cut:
    recording = read_recording(path, channels=_MGH_CHANNELS)
    labels = path.with_name(f"{path.stem}-arousal.mat")
    if path.stem.startswith("te") and not labels.exists():
        starts = np.arange(recording.signal.shape[1] // (EPOCH_SECONDS * _MGH_FS)) * (EPOCH_SECONDS * _MGH_FS)
        return Cut(recording, starts, np.full(len(starts), -1, np.int32))
    if not labels.exists():
        raise DataError(f"{path.stem} has no sleep stages: {labels.name} is missing")
    stages = _read_stages(labels, recording.signal.shape[1])
    firsts = np.concatenate([[0], np.flatnonzero(np.diff(stages)) + 1, [len(stages)]])
    runs = [
        Annotation(first / recording.fs, (end - first) / recording.fs, STAGES[stages[first]])
        for first, end in pairwise(firsts.tolist())
        if stages[first] >= 0
    ]
    classes = {stage: number for number, stage in enumerate(STAGES)}
    return _labelled_epochs(replace(recording, annotations=tuple(runs)), classes, labels.name)


def _read_stages(path: Path, samples: int) -> NDArray[np.int8]:
    """Read the stage of each sample as an index into `STAGES`, -1 if undefined: (samples,)."""
    import h5py

    stages = np.full(samples, -1, np.int8)
    try:
        with h5py.File(path, "r") as file:
            for name, stage in _MGH_NAMES.items():
                flags = file[f"data/sleep_stages/{name}"][()].reshape(-1)
                if flags.shape != (samples,):
                    raise DataError(f"{path.name}: {name} must have {samples} samples, but has {len(flags)}")
                stages[flags == 1] = STAGES.index(stage)
    except (OSError, LookupError) as error:
        raise DataError(f"{path.name}: HDF5 cannot read the sleep stages: {error}") from error
    return stages


# ---------------------------------------------------------------------- what they share


class Cut(NamedTuple):
    """A recording with the first samples and the classes of its windows, (n,) each; class -1 for none."""

    recording: Recording
    starts: NDArray[np.int64]
    labels: NDArray[np.int32]


def _write_store(
    path: str | Path,
    loaders: Mapping[str, Callable[[], Cut]],
    *,
    length: int,
    classes: Sequence[str],
    dataset: str,
    settings: dict[str, Any],
    on_error: Literal["raise", "skip"] = "raise",
    progress: Callable[[int, int, str], None] | None = None,
) -> WindowStore:
    """Write the windows of recordings to a store.

    Parameters
    ----------
    path : folder of the store
    loaders : functions that read and cut a recording, by its name
    length : samples in a window
    classes, dataset, settings : as for `polyadic.data.Header`
    on_error : what to do if a recording cannot be read: "raise", or "skip" it and list it in the store
    progress : called after each recording with the number done, the total, and the name
    """
    if not loaders:
        raise DataError(f"no recordings of {dataset} found: pass the folder of the data set as it is published")
    writer: StoreWriter | None = None
    skipped: dict[str, str] = {}
    with ExitStack() as stack:
        for number, (name, load) in enumerate(loaders.items(), 1):
            try:
                cut = load()
            except (DataError, OSError) as error:
                if on_error == "raise":
                    raise
                cut, skipped[name] = None, str(error)
            if cut is not None and writer is None:
                one = cut.recording
                header = Header(one.fs, one.channels, one.units, length, tuple(classes), dataset, settings)
                writer = stack.enter_context(StoreWriter(path, header))
            if cut is not None and writer is not None:
                writer.add(cut.recording, cut.starts, cut.labels, subject_from="file names")
            if progress is not None:
                progress(number, len(loaders), name)
        if writer is None:
            raise DataError(f"none of {len(loaders)} recordings can be read; the first: {next(iter(skipped.values()))}")
        for name, reason in skipped.items():
            writer.skip(name, reason)
    return WindowStore(path)


def _find_files(root: str | Path, pattern: str) -> list[Path]:
    """Return the files in a folder and its subfolders whose names match a glob pattern, sorted by path."""
    if not Path(root).is_dir():
        raise DataError(f"the folder {root} does not exist")
    return sorted(Path(root).rglob(pattern))


def _labelled_epochs(recording: Recording, classes: Mapping[str, int], source: str) -> Cut:
    """Cut the epochs of 30 s that one class of annotations covers completely.

    Parameters
    ----------
    classes : class of each annotation text; other texts are ignored
    source : file of the annotations, for the error message
    """
    length = round(EPOCH_SECONDS * recording.fs)
    sample_labels = np.full(recording.signal.shape[1], -1, np.int32)
    for onset, duration, text in recording.annotations:
        if text in classes:
            first, end = (round(seconds * recording.fs) for seconds in (onset, onset + duration))
            sample_labels[max(first, 0) : end] = classes[text]
    epochs = sample_labels[: len(sample_labels) // length * length].reshape(-1, length)
    covered = (epochs[:, 0] >= 0) & (epochs == epochs[:, :1]).all(axis=1)
    if not covered.any():
        raise DataError(f"{source} labels no window of {recording.name}: its labels must be {', '.join(classes)}")
    return Cut(recording, np.flatnonzero(covered) * length, epochs[covered, 0])
