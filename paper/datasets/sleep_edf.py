"""Sleep-EDF Expanded, sleep cassette: 30 s windows of seven signals at 100 Hz, five sleep stages."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import edfio
import numpy as np

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

CHANNELS = (
    "EEG Fpz-Cz",
    "EEG Pz-Oz",
    "EOG horizontal",
    "Resp oro-nasal",
    "EMG submental",
    "Temp rectal",
    "Event marker",
)
_CLASSES = {
    f"Sleep stage {text}": STAGES.index(stage)
    for text, stage in {"W": "W", "1": "N1", "2": "N2", "3": "N3", "4": "N3", "R": "R"}.items()
}
_FS = 100


def sleep_edf(
    root: str | Path,
    store: str | Path,
    *,
    trim: float | None = None,
    on_error: OnError = "raise",
    progress: OnRecording | None = None,
) -> WindowStore:
    """Write a store of Sleep-EDF.

    Each sample of the four signals recorded at 1 Hz is repeated 100 times, which keeps the digital values. Stages 3 and
    4 are merged into N3; movement time and unscored epochs are left out.

    Parameters
    ----------
    root : folder with `SC4ssNE0-PSG.edf` and `SC4ssNEX-Hypnogram.edf`, or one of its parent folders
    store : folder of the store
    trim : minutes of wake to keep before the first and after the last sleep epoch; None keeps all, as in the paper
    on_error, progress : as for `paper.datasets.store.write_store`
    """
    loaders = {path.name[:8]: partial(_load, path, trim) for path in find_files(root, "SC4*-PSG.edf")}
    return write_store(
        store,
        loaders,
        length=EPOCH_SECONDS * _FS,
        classes=STAGES,
        dataset="sleep_edf",
        settings={"seconds": EPOCH_SECONDS, "trim": trim},
        on_error=on_error,
        progress=progress,
    )


def _load(path: Path, trim: float | None) -> Cut:
    """Load one night: SC4ssNE0 is night N of subject ss."""
    scores = sorted(path.parent.glob(f"{path.name[:7]}?-Hypnogram.edf"))
    if len(scores) != 1:
        listed = ", ".join(score.name for score in scores) or "none"
        raise DataError(f"{path.name} needs one hypnogram {path.name[:7]}?-Hypnogram.edf next to it, but has {listed}")
    recording = read_recording(path, path.name[:8], path.name[:5], channels=CHANNELS, resample="hold")
    try:
        annotations = edfio.read_edf(scores[0]).annotations
    except (ValueError, LookupError) as error:
        raise DataError(f"{scores[0].name} cannot be read as the hypnogram of {path.name}: {error}") from error
    if _start(path) != _start(scores[0]):
        raise DataError(f"{scores[0].name} is not from the same night as {path.name}: they begin at different times")
    stages = tuple(Annotation(one.onset, one.duration or 0.0, one.text) for one in annotations)
    cut = labelled_epochs(replace(recording, annotations=stages), _CLASSES, scores[0].name)
    asleep = np.flatnonzero(cut.labels != STAGES.index("W"))
    if trim is None or not len(asleep):
        return cut
    margin = round(trim * 60 * recording.fs)
    keep = (cut.starts >= cut.starts[asleep[0]] - margin) & (cut.starts <= cut.starts[asleep[-1]] + margin)
    return cut._replace(starts=cut.starts[keep], labels=cut.labels[keep])


def _start(path: Path) -> bytes:
    """Return start date and time as they stand in the header of an EDF file."""
    with path.open("rb") as file:
        return file.read(184)[168:]
