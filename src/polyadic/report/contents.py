"""The contents of a report, collected from a model, its data and the result of a run; `page` does the layout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyadic.core.tensorizer import Axis
from polyadic.data.splits import Protocol
from polyadic.data.store import WindowStore
from polyadic.data.windows import Windows
from polyadic.errors import PolyadicError
from polyadic.evaluate.probe import AUTO
from polyadic.explain.replicability import Replicability
from polyadic.explain.spectra import Typical, typical
from polyadic.report.components import Component, describe_components
from polyadic.report.probe import ProbeResult, score_probe, thinned

__all__ = ["ReportContents", "Timeline", "as_windows", "collect_contents"]

_SAMPLED = 4000
_SCORED = 1024
_MOST_RECORDINGS = 12
_MOST_NUMBERS = 150_000
_FEWEST_WINDOWS = 8
_MOST_COMPONENTS = 6


class Timeline(NamedTuple):
    """One recording."""

    name: str  # of the recording, or of the subject if recordings have no names
    windows: Windows  # in order of time
    predicted: NDArray[np.int64] | None  # (n,), -1 where a window was not tested; None without a probe
    probability: NDArray[np.float32] | None  # (n, classes)
    strengths: NDArray[np.float64]  # (n, components), in standard deviations
    components: list[int]  # the numbers of these components, from 1
    alone: NDArray[np.int64] | None = None  # (n,), the class of each window by itself, if predicted is a path


@dataclass
class ReportContents:
    """Everything that a report shows. The sample is evenly spaced: a large store takes no longer than a small one."""

    model: Any
    axes: list[Axis]
    checked: Replicability | None
    total: int = 0  # number of windows in the data; 0 without data
    windows: Windows | None = None  # the sample; None without data, or for plain tensors
    x: NDArray[Any] | None = None  # (n, rank), its coefficients
    Z: NDArray[Any] | None = None  # (n, features), its features, after the readout
    fit: float = float("nan")  # 1 − relative error of the bases on the first 1,024 windows of the sample
    typical: Typical | None = None  # mean tensors of the sample, for units
    classes: list[str] = field(default_factory=list)  # names of the classes in the sample
    components: list[Component] = field(default_factory=list)  # in display order
    probe: ProbeResult | None = None
    trouble: str = ""  # why no probe could be trained despite labels
    timelines: list[Timeline] = field(default_factory=list)
    recordings: int = 0  # number of recordings that timelines could show
    store: WindowStore | None = None  # the store that contains the windows


def collect_contents(
    model: Any,
    data: Any = None,
    protocol: Protocol | None = None,
    random_state: int = 0,
    probe_kind: str = AUTO,
    transductive: bool = False,
    replicability: Replicability | None = None,
    on_fold: Callable[[int, int], None] | None = None,
) -> ReportContents:
    """Collect the contents of a report from a model and, if given, data; parameters as for `polyadic.report.render`."""
    whole, label = as_windows(model, data), None
    contents = ReportContents(model, model.axes(whole), replicability or getattr(model, "replicability_", None))
    if data is not None:
        source = data if whole is None else whole
        sample = source[thinned(np.arange(len(source)), _SAMPLED)]
        contents.x = np.asarray(model.coefficients(sample), dtype=np.float64)
        contents.Z = np.asarray(model.transform(sample), dtype=np.float64)
        contents.total, contents.fit = len(source), model.score(sample[:_SCORED])
        contents.typical = typical(model, sample[thinned(np.arange(len(sample)), _SCORED)], contents.x)
        if isinstance(sample, Windows):
            contents.windows, label = sample, sample.label
            contents.classes = [sample.classes[code] for code in np.unique(label[label >= 0])]
    if whole is not None and len(np.unique(whole.label[whole.label >= 0])) > 1:
        try:
            contents.probe = score_probe(model, whole, protocol, random_state, probe_kind, transductive, on_fold)
        except PolyadicError as error:
            contents.trouble = str(error)
    contents.components = describe_components(model, contents.axes, contents.x, label, contents.checked)
    if whole is not None:
        contents.store = whole._samples if isinstance(whole._samples, WindowStore) else None
        contents.timelines, contents.recordings = _timelines(contents, whole)
    return contents


def as_windows(model: Any, data: Any) -> Windows | None:
    """Return the data as `Windows`, or None if it is tensors rather than signals."""
    if data is None or isinstance(data, Windows):
        return data
    if isinstance(data, WindowStore):
        return data.windows
    if model.tensorize_ is not None and len(np.shape(data)) == 3:
        return Windows(np.asarray(data))
    return None


def _timelines(contents: ReportContents, windows: Windows) -> tuple[list[Timeline], int]:
    """Return timelines of at most twelve evenly spaced recordings, and the number of recordings to choose from.

    Recordings with fewer than eight windows, or without a prediction although there is a probe, are skipped.
    """
    probe, components, x = contents.probe, contents.components, np.asarray(contents.x)
    names = windows.recording if (windows.recording != "").any() else windows.subject
    tested = np.full(len(windows), probe is None)
    predicted = probability = alone = None
    if probe is not None:
        tested[probe.rows] = True
        predicted = np.full(len(windows), -1)
        predicted[probe.rows] = probe.predicted[0]
        if probe.path is not None:
            alone = predicted.copy()
            predicted[probe.rows] = probe.path
        shares = probe.probability if probe.path is None else probe.path_probability
        if shares is not None:
            probability = np.full((len(windows), len(windows.classes)), np.nan, np.float32)
            probability[probe.rows] = shares
    groups = [(str(name), np.flatnonzero(names == name)) for name in np.unique(names) if name != ""]
    groups = [(name, rows) for name, rows in groups if len(rows) >= _FEWEST_WINDOWS and tested[rows].any()]
    chosen = [each for each in components if each.replicates][:_MOST_COMPONENTS] or components[:_MOST_COMPONENTS]
    numbers = [each.number for each in chosen]
    room = _MOST_NUMBERS // (len(windows.classes) + len(chosen) + 2)
    shown, mean, spread = list[Timeline](), x.mean(axis=0), x.std(axis=0)
    for place in thinned(np.arange(len(groups)), _MOST_RECORDINGS).tolist():
        name, rows = groups[place]
        rows = rows[np.argsort(windows.start[rows], kind="stable")]
        if len(rows) > room:
            continue
        room -= len(rows)
        strengths = (np.asarray(contents.model.coefficients(windows[rows]), np.float64) - mean) / np.where(
            spread > 0, spread, 1.0
        )
        codes, shares, single = (None if values is None else values[rows] for values in (predicted, probability, alone))
        columns = strengths[:, [number - 1 for number in numbers]]
        shown.append(Timeline(name, windows[rows], codes, shares, columns, numbers, single))
    return shown, len(groups)
