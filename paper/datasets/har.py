"""UCI "Human Activity Recognition Using Smartphones": 2.56 s windows of nine channels at 50 Hz, six activities."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from polyadic.data import Header, StoreWriter, Windows, WindowStore
from polyadic.errors import DataError

CHANNELS = tuple(f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz")
UNITS = ("g", "g", "g", "rad/s", "rad/s", "rad/s", "g", "g", "g")
FS, LENGTH = 50.0, 128
_FOLDER, _LEGEND = "UCI HAR Dataset", "activity_labels.txt"


def har(root: str | Path, store: str | Path) -> WindowStore:
    """Write a store of UCI HAR, with the official split as parts "train" and "test"; `root` is as for `read_har`."""
    windows = read_har(root)
    header = Header(FS, CHANNELS, UNITS, LENGTH, windows.classes, "har")
    with StoreWriter(store, header) as writer:
        for name in np.unique(windows.recording).tolist():
            writer.add_windows(windows.select(recording=name))
    return WindowStore(store)


def read_har(root: str | Path) -> Windows:
    """Read all windows, the part "train" first: X (N, 9, 128) float32 in g and rad/s at 50 Hz.

    The data set does not say which recording a window is from. All windows of a subject are treated as one recording
    with 50 % overlap between consecutive windows, which is right for most of them.

    Parameters
    ----------
    root : the folder `UCI HAR Dataset`, its parent folder, its zip file, or the published zip file that contains that
    """
    base = _open(Path(root))
    signals, tables = [], []
    for part in ("train", "test"):
        label, subject = (_numbers(base / part / f"{name}_{part}.txt")[:, 0].astype(int) for name in ("y", "subject"))
        files = [base / part / "Inertial Signals" / f"{name}_{part}.txt" for name in CHANNELS]
        signals.append(np.stack([_numbers(file) for file in files], axis=1))
        tables.append(pd.DataFrame({"label": label - 1, "subject": subject, "part": part}))
    table = pd.concat(tables, ignore_index=True)
    recording = table["part"] + "-" + table["subject"].astype(str).str.zfill(2)
    return Windows(
        np.concatenate(signals),
        FS,
        subject=table["subject"].to_numpy(),
        recording=recording.to_numpy(str),
        start=table.groupby(recording).cumcount().to_numpy() * (LENGTH // 2),
        label=table["label"].to_numpy(),
        part=table["part"].to_numpy(str),
        classes=tuple(line.split()[1] for line in (base / _LEGEND).read_text().splitlines() if line.strip()),
        channels=CHANNELS,
        units=UNITS,
        dataset="har",
    )


def _open(root: Path) -> Any:
    """Return the folder of the data set, as a path on disk or inside a zip file."""
    folder: Any = root
    if zipfile.is_zipfile(root):
        archive, inner = zipfile.ZipFile(root), f"{_FOLDER}.zip"
        if inner in archive.namelist():
            archive = zipfile.ZipFile(io.BytesIO(archive.read(inner)))
        folder = zipfile.Path(archive)
    for place in (folder, folder / _FOLDER):
        if (place / _LEGEND).is_file():
            return place
    raise DataError(f"{root} must be the folder or the zip file of {_FOLDER}, with {_LEGEND}")


def _numbers(file: Any) -> np.ndarray:
    """Read a file of numbers, one window per line: (windows, columns)."""
    with file.open("r") as lines:
        return np.loadtxt(lines, np.float32, ndmin=2)
