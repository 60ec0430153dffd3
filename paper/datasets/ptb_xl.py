"""PTB-XL: 10 s windows of twelve leads at 500 Hz, labelled with the patient's sex."""

from __future__ import annotations

import csv
from functools import partial
from pathlib import Path

import numpy as np

from paper.datasets.store import Cut, OnError, OnRecording, write_store
from polyadic.data import WindowStore, read_recording
from polyadic.errors import DataError

_TABLE = "ptbxl_database.csv"
_LEADS = ("I", "II", "III", "AVR", "AVL", "AVF", "V1", "V2", "V3", "V4", "V5", "V6")
_FS, _SAMPLES = 500, 5000


def ptb_xl(
    root: str | Path, store: str | Path, *, on_error: OnError = "raise", progress: OnRecording | None = None
) -> WindowStore:
    """Write a store of PTB-XL. Subjects are patients, who may have several records.

    Parameters
    ----------
    root : folder with `ptbxl_database.csv` and `records500`
    store : folder of the store
    on_error, progress : as for `paper.datasets.store.write_store`
    """
    loaders = {}
    for line, row in enumerate(_rows(Path(root) / _TABLE), 2):
        try:
            path, patient, sex = Path(root) / row["filename_hr"], str(int(float(row["patient_id"]))), int(row["sex"])
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{_TABLE}, line {line}: needs filename_hr, patient_id and sex: {error!r}") from error
        if sex not in (0, 1):
            raise DataError(f"{_TABLE}, line {line}: sex must be 0 (male) or 1 (female), but is {sex}")
        loaders[path.name] = partial(_load, path.with_name(f"{path.name}.hea"), patient, sex)
    return write_store(
        store,
        loaders,
        length=_SAMPLES,
        classes=("male", "female"),
        dataset="ptb_xl",
        settings={"label": "sex"},
        on_error=on_error,
        progress=progress,
    )


def _rows(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        raise DataError(f"there is no {_TABLE} in {path.parent}: pass the folder of PTB-XL as it is published")
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def _load(path: Path, patient: str, sex: int) -> Cut:
    recording = read_recording(path, path.stem, patient, channels=_LEADS)
    if recording.fs != _FS or recording.signal.shape[1] != _SAMPLES:
        actual = f"{recording.signal.shape[1]} samples at {recording.fs:g} Hz"
        raise DataError(f"{path.stem} must have {_SAMPLES} samples at {_FS} Hz, but has {actual}")
    return Cut(recording, np.zeros(1, np.int64), np.array([sex], np.int32))
