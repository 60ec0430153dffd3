"""Sleep recordings of Massachusetts General Hospital: 30 s windows of six EEG channels at 200 Hz, five sleep stages.

The layout is that of the part published for the PhysioNet/CinC Challenge 2018: one folder per recording, with a WFDB
header, a MATLAB file with the digital values, and a MATLAB 7.3 (HDF5) file with the sleep stage of every sample.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from paper.datasets.store import (
    EPOCH_SECONDS,
    STAGES,
    Cut,
    OnError,
    OnRecording,
    find_files,
    labelled_epochs,
    write_store,
)
from polyadic.data import Annotation, WindowStore, read_recording
from polyadic.errors import DataError

CHANNELS = ("F3-M2", "F4-M1", "C3-M2", "C4-M1", "O1-M2", "O2-M1")
_NAMES = {"wake": "W", "nonrem1": "N1", "nonrem2": "N2", "nonrem3": "N3", "rem": "R"}
_FS = 200


def mgh(
    root: str | Path, store: str | Path, *, on_error: OnError = "raise", progress: OnRecording | None = None
) -> WindowStore:
    """Write a store of the MGH sleep recordings; those of the test set (`te…`) have no stages and get no labels.

    Parameters
    ----------
    root : folder that contains the folders of the recordings, or one of its parent folders
    store : folder of the store
    on_error, progress : as for `paper.datasets.store.write_store`
    """
    return write_store(
        store,
        {path.stem: partial(_load, path) for path in find_files(root, "*.hea")},
        length=EPOCH_SECONDS * _FS,
        classes=STAGES,
        dataset="mgh",
        settings={"seconds": EPOCH_SECONDS},
        on_error=on_error,
        progress=progress,
    )


def _load(path: Path) -> Cut:
    recording = read_recording(path, channels=CHANNELS)
    labels = path.with_name(f"{path.stem}-arousal.mat")
    if path.stem.startswith("te") and not labels.exists():
        starts = np.arange(recording.signal.shape[1] // (EPOCH_SECONDS * _FS)) * (EPOCH_SECONDS * _FS)
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
    return labelled_epochs(replace(recording, annotations=tuple(runs)), classes, labels.name)


def _read_stages(path: Path, samples: int) -> NDArray[np.int8]:
    """Read the stage of each sample as an index into `STAGES`, -1 if undefined: (samples,)."""
    stages = np.full(samples, -1, np.int8)
    try:
        with h5py.File(path, "r") as file:
            for name, stage in _NAMES.items():
                flags = file[f"data/sleep_stages/{name}"][()].reshape(-1)
                if flags.shape != (samples,):
                    raise DataError(f"{path.name}: {name} must have {samples} samples, but has {len(flags)}")
                stages[flags == 1] = STAGES.index(stage)
    except (OSError, LookupError) as error:
        raise DataError(f"{path.name}: HDF5 cannot read the sleep stages: {error}") from error
    return stages
