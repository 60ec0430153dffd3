"""Sleep-EDF, PTB-XL and MGH: windows of recordings in their published layouts, written to a store one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paper.results import stage_bar
from polyadic.data import Header, Recording, StoreWriter, WindowStore, read_recording
from polyadic.errors import DataError

STAGES = ("W", "N1", "N2", "N3", "R")
"""The sleep stages of Sleep-EDF and MGH."""
_EPOCH = 30
"""Seconds of an epoch."""

_SLEEP_CHANNELS = ("EEG Fpz-Cz", "EEG Pz-Oz", "EOG horizontal", "Resp oro-nasal", "EMG submental", "Temp rectal",
                   "Event marker")  # fmt: skip
_SLEEP_STAGES = {"W": "W", "1": "N1", "2": "N2", "3": "N3", "4": "N3", "R": "R"}
_LEADS = ("I", "II", "III", "AVR", "AVL", "AVF", "V1", "V2", "V3", "V4", "V5", "V6")
_ECG_TABLE = "ptbxl_database.csv"
_ECG_SAMPLES = 5000
_MGH_CHANNELS = ("F3-M2", "F4-M1", "C3-M2", "C4-M1", "O1-M2", "O2-M1")
_MGH_STAGES = {"wake": "W", "nonrem1": "N1", "nonrem2": "N2", "nonrem3": "N3", "rem": "R"}

Cut = tuple[Recording, NDArray[np.intp], NDArray[np.int32]]
"""A recording with the first samples and the classes of its windows, (n,) each; class -1 for none."""


def sleep_edf(root: str | Path, store: str | Path) -> WindowStore:
    """Write a store of Sleep-EDF Expanded, sleep cassette: 30 s of seven signals at 100 Hz, five sleep stages.

    Each sample of the four signals recorded at 1 Hz is repeated 100 times, which keeps the digital values. Stages 3 and
    4 are merged into N3; movement time and unscored epochs are left out. `root` is the folder with `SC4ssNE0-PSG.edf`
    and `SC4ssNEX-Hypnogram.edf`, or one of its parent folders.
    """
    paths = sorted(Path(root).rglob("SC4*-PSG.edf"))
    return _write_store(store, paths, _load_night, 100 * _EPOCH, STAGES, "sleep_edf", {"seconds": _EPOCH})


def _load_night(path: Path) -> Cut:
    """Load one night: SC4ssNE0 is night N of subject ss."""
    import edfio

    scores = sorted(path.parent.glob(f"{path.name[:7]}?-Hypnogram.edf"))
    if len(scores) != 1:
        raise DataError(f"{path.name} needs one hypnogram {path.name[:7]}?-Hypnogram.edf, but has {len(scores)}")
    recording = read_recording(path, path.name[:8], path.name[:5], channels=_SLEEP_CHANNELS, resample="hold")
    stages = np.full(recording.signal.shape[1], -1, np.int32)
    for note in edfio.read_edf(scores[0]).annotations:
        stage = _SLEEP_STAGES.get(note.text.removeprefix("Sleep stage "))
        if stage is not None:
            first, end = (round(seconds * 100) for seconds in (note.onset, note.onset + (note.duration or 0.0)))
            stages[max(first, 0) : end] = STAGES.index(stage)
    return recording, *_whole_epochs(stages, 100 * _EPOCH)


def ptb_xl(root: str | Path, store: str | Path) -> WindowStore:
    """Write a store of PTB-XL: 10 s of twelve leads at 500 Hz, labelled with the patient's sex.

    Subjects are patients, who may have several records. `root` is the folder with `ptbxl_database.csv`.
    """
    import pandas as pd

    if not (Path(root) / _ECG_TABLE).is_file():
        raise DataError(f"there is no {_ECG_TABLE} in {root}: pass the folder of PTB-XL as it is published")
    table = pd.read_csv(Path(root) / _ECG_TABLE, usecols=["filename_hr", "patient_id", "sex"])
    about = {Path(root, f"{row.filename_hr}.hea"): row for row in table.itertuples()}

    def load(path: Path) -> Cut:
        recording = read_recording(path, path.stem, str(int(about[path].patient_id)), channels=_LEADS)
        return recording, np.zeros(1, np.intp), np.array([about[path].sex], np.int32)

    return _write_store(store, list(about), load, _ECG_SAMPLES, ("male", "female"), "ptb_xl", {"label": "sex"})


def mgh(root: str | Path, store: str | Path) -> WindowStore:
    """Write a store of the sleep recordings of Massachusetts General Hospital: 30 s of six EEG channels at 200 Hz.

    The layout is that of the part published for the PhysioNet/CinC Challenge 2018: one folder per recording, with a
    WFDB header, a MATLAB file with the digital values, and a MATLAB 7.3 (HDF5) file with the sleep stage of every
    sample. Recordings of the test set (`te…`) have no stages and get no labels. `root` is the folder that contains the
    folders of the recordings, or one of its parent folders.
    """
    paths = sorted(Path(root).rglob("*.hea"))
    return _write_store(store, paths, _load_mgh, 200 * _EPOCH, STAGES, "mgh", {"seconds": _EPOCH})


def _load_mgh(path: Path) -> Cut:
    import h5py

    recording = read_recording(path, channels=_MGH_CHANNELS)
    scores, count = path.with_name(f"{path.stem}-arousal.mat"), recording.signal.shape[1]
    if path.stem.startswith("te") and not scores.exists():
        starts = np.arange(0, count - 200 * _EPOCH + 1, 200 * _EPOCH)
        return recording, starts, np.full(len(starts), -1, np.int32)
    stages = np.full(count, -1, np.int32)
    with h5py.File(scores, "r") as file:
        for name, stage in _MGH_STAGES.items():
            stages[file[f"data/sleep_stages/{name}"][()].reshape(-1) == 1] = STAGES.index(stage)
    return recording, *_whole_epochs(stages, 200 * _EPOCH)


# ---------------------------------------------------------------------------------------------------- what they share


def _whole_epochs(stages: NDArray[np.int32], length: int) -> tuple[NDArray[np.intp], NDArray[np.int32]]:
    """Return the first samples and the stages of the epochs that one stage covers completely; stage -1 for none."""
    epochs = stages[: len(stages) // length * length].reshape(-1, length)
    covered = (epochs[:, 0] >= 0) & (epochs == epochs[:, :1]).all(axis=1)
    return np.flatnonzero(covered) * length, epochs[covered, 0]


def _write_store(
    store: str | Path,
    paths: Sequence[Path],
    load: Callable[[Path], Cut],
    length: int,
    classes: tuple[str, ...],
    dataset: str,
    settings: dict[str, Any],
) -> WindowStore:
    """Write the windows of recordings, of `length` samples each, to a store; the other arguments are for `Header`."""
    writer: StoreWriter | None = None
    with stage_bar("preparing", unit="recordings") as update, ExitStack() as stack:
        for number, path in enumerate(paths):
            update(number, len(paths), path.name)
            recording, starts, labels = load(path)
            if writer is None:
                about = (recording.fs, recording.channels, recording.units, length, classes, dataset, settings)
                writer = stack.enter_context(StoreWriter(store, Header(*about)))
            writer.add(replace(recording, subject_from="file names"), starts, labels)
    if writer is None:
        raise DataError(f"no recordings of {dataset} found: pass the folder of the data set as it is published")
    return WindowStore(store)
