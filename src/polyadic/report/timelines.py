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

    Recordings with fewer than eight windows are skipped.

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
    known = (windows.recording != "").any()
    names = windows.recording if known else windows.subject
    groups = [(str(name), np.flatnonzero(names == name)) for name in np.unique(names) if name != ""]
    groups = [(name, rows) for name, rows in groups if len(rows) >= _FEWEST_WINDOWS and _tells(windows, probe, rows)]
    chosen = [one for one in components if one.replicates][:_MOST_COMPONENTS] or components[:_MOST_COMPONENTS]
    room = _MOST_NUMBERS // (len(windows.classes) + len(chosen) + 2)
    found, mean, spread = list[Timeline](), x.mean(axis=0), x.std(axis=0)
    for place in thinned(np.arange(len(groups)), _MOST_RECORDINGS).tolist():
        name, rows = groups[place]
        rows = rows[np.argsort(windows.start[rows], kind="stable")]
        if len(rows) > room:
            continue
        room -= len(rows)
        own = windows[rows]
        columns = [component.index for component in chosen]
        strengths = (np.asarray(model.coefficients(own), np.float64) - mean) / np.where(spread > 0, spread, 1.0)
        numbers = [component.number for component in chosen]
        found.append(Timeline(name, own, *_predictions(probe, rows), strengths[:, columns], numbers))
    return found, len(groups)


def _tells(windows: Windows, probe: ProbeResult | None, rows: NDArray[np.intp]) -> bool:
    """Return whether a recording has predictions, or there is no probe."""
    return probe is None or bool(np.isin(rows, probe.rows).any())


def _predictions(
    probe: ProbeResult | None, rows: NDArray[np.intp]
) -> tuple[NDArray[np.int64] | None, NDArray[np.float32] | None]:
    if probe is None:
        return None, None
    order = np.argsort(probe.rows)
    place = np.searchsorted(probe.rows, rows, sorter=order).clip(max=len(order) - 1)
    mine = order[place]
    tested = probe.rows[mine] == rows
    predicted = np.where(tested, probe.predicted[mine], -1)
    if probe.probability is None:
        return predicted, None
    return predicted, np.where(tested[:, None], probe.probability[mine], np.nan).astype(np.float32)
