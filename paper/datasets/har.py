"""UCI "Human Activity Recognition Using Smartphones": 2.56 s windows of nine channels at 50 Hz, six activities."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyadic.data import Header, StoreWriter, Windows, WindowStore
from polyadic.errors import DataError

CHANNELS = tuple(f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz")
UNITS = ("g", "g", "g", "rad/s", "rad/s", "rad/s", "g", "g", "g")
FS, LENGTH = 50.0, 128
_FOLDER, _LEGEND = "UCI HAR Dataset", "activity_labels.txt"


def har(root: str | Path, store: str | Path) -> WindowStore:
    """Write a store of UCI HAR, with the official split as parts "train" and "test".

    Parameters
    ----------
    root : as for `read_har`
    store : folder of the store
    """
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
    columns: dict[str, list[NDArray[Any]]] = {"X": [], "label": [], "subject": [], "part": []}
    for part in ("train", "test"):
        label, subject = (_table(base, f"{part}/{name}_{part}.txt", 1)[:, 0].astype(int) for name in ("y", "subject"))
        signals = [_table(base, f"{part}/Inertial Signals/{name}_{part}.txt", LENGTH) for name in CHANNELS]
        if {len(values) for values in (subject, *signals)} != {len(label)}:
            raise DataError(f"{_FOLDER}: the files of {part} must have the same number of lines")
        values = (np.stack(signals, axis=1), label - 1, subject, np.full(len(label), part))
        for column, rows in zip(columns.values(), values, strict=True):
            column.append(rows)
    joined = {key: np.concatenate(values) for key, values in columns.items()}
    classes = tuple(line.split()[1] for line in (base / _LEGEND).read_text().splitlines() if line.strip())
    if not (joined["label"].min() >= 0 and joined["label"].max() < len(classes)):
        raise DataError(f"{_FOLDER}: labels must be from 1 to {len(classes)}, as in {_LEGEND}")
    recording = np.char.add(np.char.add(joined["part"], "-"), np.char.zfill(joined["subject"].astype(str), 2))
    return Windows(
        joined["X"],
        FS,
        subject=joined["subject"],
        recording=recording,
        start=_counts_within(recording) * (LENGTH // 2),
        label=joined["label"],
        part=joined["part"],
        classes=classes,
        channels=CHANNELS,
        units=UNITS,
        dataset="har",
    )


def _open(root: Path) -> Any:
    """Return the folder of the data set, as a path on disk or inside a zip file."""
    if not root.exists():
        raise DataError(f"{root} does not exist")
    try:
        candidates: list[Any] = [root, root / _FOLDER] if root.is_dir() else _in_archive(zipfile.ZipFile(root))
    except zipfile.BadZipFile as error:
        raise DataError(f"{root.name} cannot be read as a zip file: {error}") from error
    for folder in candidates:
        if (folder / _LEGEND).is_file():
            return folder
    raise DataError(f"{root.name or root} must contain {_LEGEND}, {_FOLDER} or {_FOLDER}.zip, but does not")


def _in_archive(archive: zipfile.ZipFile) -> list[Any]:
    inner = f"{_FOLDER}.zip"
    if inner in archive.namelist():
        archive = zipfile.ZipFile(io.BytesIO(archive.read(inner)))
    root = zipfile.Path(archive)
    return [root, root / _FOLDER]


def _table(base: Any, name: str, columns: int) -> NDArray[np.float32]:
    """Read a file of numbers, one window per line: (windows, columns)."""
    try:
        with (base / name).open("r") as file:
            values = np.loadtxt(file, np.float32, ndmin=2)
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"{_FOLDER}/{name} cannot be read: {error}") from error
    if values.shape[1] != columns or not np.isfinite(values).all():
        raise DataError(f"{_FOLDER}/{name} must have {columns} finite numbers on each line")
    return values


def _counts_within(group: NDArray[Any]) -> NDArray[np.int64]:
    """Return for each entry the number of earlier entries of the same group: (N,)."""
    order = np.argsort(group, kind="stable")
    places = np.empty(len(group), np.int64)
    places[order] = np.concatenate([np.arange(size) for size in np.unique(group, return_counts=True)[1]])
    return places
