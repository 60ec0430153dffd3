"""Conversion from MNE, which is imported only by those who have it."""

from __future__ import annotations

from typing import Any

from polyadic._util.checks import check_number
from polyadic.data import Windows
from polyadic.data.readers.mne import from_epochs, from_raw
from polyadic.data.recordings import cut_windows, observed_windows, window_starts
from polyadic.errors import PolyadicError

__all__ = ["from_mne"]


def from_mne(instance: Any, seconds: float | None = None) -> Windows:
    """Convert an `mne.Epochs`, or an `mne.io.Raw` cut into windows of `seconds`, to `Windows`.

    Epochs are labelled by their events. For a Raw, samples annotated as bad are missing (NaN). Select channels
    first, for example with `instance.pick("eeg")`.

    Examples
    --------
    >>> import mne
    >>> import numpy as np
    >>> info = mne.create_info(["Fz", "Pz"], 100.0, "eeg")
    >>> raw = mne.io.RawArray(np.random.default_rng(0).normal(size=(2, 1000)) * 1e-5, info, verbose="ERROR")
    >>> from_mne(raw, seconds=2.5).shape
    (4, 2, 250)
    """
    if hasattr(instance, "n_times") != (seconds is not None):
        raise PolyadicError("seconds must be the length of the windows of an mne.io.Raw, and is not for mne.Epochs")
    if seconds is None:
        return from_epochs(instance)
    recording = from_raw(instance)
    check_number("seconds", seconds, 1 / recording.fs)
    length = round(seconds * recording.fs)
    starts = window_starts(recording, length)
    windows = Windows(
        cut_windows(recording.signal, starts, length),
        recording.fs,
        subject=[recording.subject] * len(starts),
        recording=[recording.name] * len(starts),
        start=starts,
        channels=recording.channels,
        units=recording.units,
    )
    return windows[observed_windows(windows.X)]
