"""Write recordings of a published data set to a window store, one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyadic.data import Header, Recording, StoreWriter, WindowStore
from polyadic.errors import DataError

STAGES = ("W", "N1", "N2", "N3", "R")
"""The sleep stages of Sleep-EDF and MGH."""
EPOCH_SECONDS = 30

OnError = Literal["raise", "skip"]
OnRecording = Callable[[int, int, str], None]
"""Called after each recording with the number done, the total, and the name."""


class Cut(NamedTuple):
    """A recording with the first samples and the classes of its windows, (n,) each; class -1 for none."""

    recording: Recording
    starts: NDArray[np.int64]
    labels: NDArray[np.int32]


def write_store(
    path: str | Path,
    loaders: Mapping[str, Callable[[], Cut]],
    *,
    length: int,
    classes: Sequence[str],
    dataset: str,
    settings: dict[str, Any],
    on_error: OnError = "raise",
    progress: OnRecording | None = None,
) -> WindowStore:
    """Write the windows of recordings to a store.

    Parameters
    ----------
    path : folder of the store
    loaders : functions that read and cut a recording, by its name
    length : samples in a window
    classes, dataset, settings : as for `polyadic.data.Header`
    on_error : what to do if a recording cannot be read: "raise", or "skip" it and list it in the store
    progress : called after each recording
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
                dtype: Literal["int16", "float32"] = "int16" if one.signal.dtype == np.int16 else "float32"
                header = Header(one.fs, one.channels, one.units, length, dtype, tuple(classes), dataset, settings)
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


def find_files(root: str | Path, pattern: str) -> list[Path]:
    """Return the files in a folder and its subfolders whose names match a glob pattern, sorted by path."""
    if not Path(root).is_dir():
        raise DataError(f"the folder {root} does not exist")
    return sorted(Path(root).rglob(pattern))


def labelled_epochs(recording: Recording, classes: Mapping[str, int], source: str) -> Cut:
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
