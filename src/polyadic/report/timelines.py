"""The timelines of a report: which recordings are shown, with their predictions and component strengths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyadic.data.windows import Windows
from polyadic.report.components import Component
from polyadic.report.probe import ProbeResult, thinned

__all__ = ["Timeline", "timelines"]

_MOST_RECORDINGS = 12
_MOST_NUMBERS = 150_000
_FEWEST_WINDOWS = 8
_MOST_COMPONENTS = 6


@dataclass(frozen=True)
class Timeline:
    """One recording: its windows in order of time, their predicted classes, and component strengths.

    name : name of the recording, or of the subject if recordings have no names
    windows : the windows, in order of time
    predicted : (n,), -1 where a window was not tested; None without a probe
    probability : (n, classes), or None
    strengths : (n, components), in standard deviations
    components : the numbers of these components, from 1
    """

    name: str
    windows: Windows
    predicted: NDArray[np.int64] | None
    probability: NDArray[np.float32] | None
    strengths: NDArray[np.float64]
    components: list[int]


def timelines(
    model: Any, windows: Windows | None, probe: ProbeResult | None, components: list[Component], x: NDArray[Any]
) -> tuple[list[Timeline], int]:
    """Build the timelines of at most twelve evenly spaced recordings.

    Recordings with fewer than eight windows, or without a prediction although there is a probe, are skipped.

    Parameters
    ----------
    windows : all windows
    probe : predictions for some of the windows, or None
    components : in the order of the report
    x : (n, rank), coefficients of a sample, for their mean and spread

    Returns
    -------
    the timelines, and the number of recordings that could be shown
    """
    if windows is None:
        return [], 0
    names = windows.recording if (windows.recording != "").any() else windows.subject
    tested = np.full(len(windows), probe is None)
    predicted = probability = None
    if probe is not None:
        tested[probe.rows] = True
        predicted = np.full(len(windows), -1)
        predicted[probe.rows] = probe.predicted
        if probe.probability is not None:
            probability = np.full((len(windows), len(windows.classes)), np.nan, np.float32)
            probability[probe.rows] = probe.probability
    groups = [(str(name), np.flatnonzero(names == name)) for name in np.unique(names) if name != ""]
    groups = [(name, rows) for name, rows in groups if len(rows) >= _FEWEST_WINDOWS and tested[rows].any()]
    chosen = [each for each in components if each.replicates][:_MOST_COMPONENTS] or components[:_MOST_COMPONENTS]
    columns, numbers = [each.index for each in chosen], [each.number for each in chosen]
    room = _MOST_NUMBERS // (len(windows.classes) + len(chosen) + 2)
    shown, mean, spread = list[Timeline](), x.mean(axis=0), x.std(axis=0)
    for place in thinned(np.arange(len(groups)), _MOST_RECORDINGS).tolist():
        name, rows = groups[place]
        rows = rows[np.argsort(windows.start[rows], kind="stable")]
        if len(rows) > room:
            continue
        room -= len(rows)
        recording = windows[rows]
        strengths = (np.asarray(model.coefficients(recording), np.float64) - mean) / np.where(spread > 0, spread, 1.0)
        labels, chances = (None if values is None else values[rows] for values in (predicted, probability))
        shown.append(Timeline(name, recording, labels, chances, strengths[:, columns], numbers))
    return shown, len(groups)
