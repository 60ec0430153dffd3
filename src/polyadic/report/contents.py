"""The contents of a report, collected from a model, its data and the result of a run; `page` does the layout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from polyadic.core.missing import dead_channels
from polyadic.core.tensorizer import Axis
from polyadic.data.channels import match_signals
from polyadic.data.store import WindowStore
from polyadic.data.windows import Windows
from polyadic.errors import PolyadicError
from polyadic.evaluate.probe import AUTO
from polyadic.explain.expression import expression, level, shown
from polyadic.explain.replicability import Replicability
from polyadic.report.components import Component, describe_components
from polyadic.report.probe import ProbeResult, score_probe, thinned

__all__ = ["ReportContents", "Timeline", "collect_contents"]

_SAMPLED = 4000
_SCORED = 1024
_AT_A_TIME = 256
_MOST_RECORDINGS = 12
_MOST_NUMBERS = 150_000
_FEWEST_WINDOWS = 8
_MOST_COMPONENTS = 6


class Timeline(NamedTuple):
    """One recording: its name, and what `plot.timeline` takes."""

    name: str  # of the recording, or of the subject if recordings have no names
    windows: Windows  # in order of time
    predicted: NDArray[np.int64] | None  # (n,), -1 where a window was not tested; None without a probe
    probability: NDArray[np.float32] | None  # (n, classes)
    strengths: NDArray[np.float64] | None  # (n, rows), level and relative expressions in dB; or coefficients, in SD
    names: list[str]  # of these rows: level, component 1, …
    alone: NDArray[np.int64] | None  # (n,), the class of each window by itself, if predicted is a path


@dataclass
class ReportContents:
    """Everything that a report shows. The sample is evenly spaced: a large store takes no longer than a small one."""

    model: Any
    people: Any  # the model whose components are shown
    axes: list[Axis]
    checked: Replicability | None
    total: int = 0  # number of windows in the data; 0 without data
    windows: Windows | None = None  # the sample; None without data
    level: NDArray[Any] | None = None  # (n,), its level in dB; None if components have no expression
    values: NDArray[Any] | None = None  # (n, rank), its relative expressions in dB, or standardised coefficients
    no_expression: str = ""  # why components have no expression, if so
    Z: NDArray[Any] | None = None  # (n, features), its features, after the readout
    fit: float = float("nan")  # 1 − relative error of the model's bases on the first 1,024 windows of the sample
    classes: list[str] = field(default_factory=list)  # names of the classes in the sample
    components: list[Component] = field(default_factory=list)  # in display order
    probe: ProbeResult | None = None
    trouble: str = ""  # why no probe could be trained despite labels
    timelines: list[Timeline] = field(default_factory=list)
    recordings: int = 0  # number of recordings that timelines could show
    store: WindowStore | None = None  # the store that contains the windows
    dead: dict[str, float] = field(default_factory=dict)  # share of the sample in which a channel is dead, if any

    @property
    def unit(self) -> str:
        """Unit of the values of components."""
        return "SD" if self.level is None else "dB"

    @property
    def quantity(self) -> str:
        """What the values of components are."""
        return "coefficient" if self.level is None else "relative expression"


def collect_contents(
    model: Any,
    data: Any = None,
    random_state: int = 0,
    probe_kind: str = AUTO,
    transductive: bool = False,
    on_fold: Callable[[int, int], None] | None = None,
) -> ReportContents:
    """Collect the contents of a report from a model and, if given, data; parameters as for `polyadic.report.render`."""
    people, windows = shown(model), data.windows if isinstance(data, WindowStore) else data
    if data is not None:  # the channels of the model, in its order and units
        windows = windows if isinstance(windows, Windows) else Windows(np.asarray(windows))
        windows = match_signals(windows, model.fs_, model.channel_names_, "data", units=model.units_)
    named = windows if hasattr(data, "fs") else None  # an array has no names of channels
    contents = ReportContents(model, people, model.axes(named), getattr(people, "replicability_", None))
    if windows is None:
        contents.components = describe_components(people, contents.axes, checked=contents.checked)
        return contents
    sample = windows[thinned(np.arange(len(windows)), _SAMPLED)]
    contents.total, contents.windows, contents.fit = len(windows), sample, model.score(sample[:_SCORED])
    x = np.asarray(people.coefficients(sample), np.float64) if people.rank else None
    contents.level, contents.values, contents.no_expression = _decibels(model, sample, x, x)
    contents.Z = np.asarray(model.transform(sample), dtype=np.float64)
    contents.dead = _dead_channels(model, sample)
    contents.classes = [sample.classes[code] for code in np.unique(sample.label[sample.label >= 0])]
    if len(np.unique(windows.label[windows.label >= 0])) > 1:
        try:
            contents.probe = score_probe(model, windows, random_state, probe_kind, transductive, on_fold)
        except PolyadicError as error:
            contents.trouble = str(error)
    values = None if contents.level is None else contents.values
    contents.components = describe_components(people, contents.axes, x, values, sample.label, contents.checked)
    contents.store = windows._samples if isinstance(windows._samples, WindowStore) else None
    contents.timelines, contents.recordings = _timelines(contents, windows, x)
    return contents


def _dead_channels(model: Any, windows: Windows) -> dict[str, float]:
    """Return the share of windows in which a channel is dead, stuck or clipped, of channels with such windows."""
    if model.tensorize_ is None or model._keeps_flat:
        return {}
    limits, counts = model.prior_.limits if hasattr(model, "prior_") else None, np.zeros(windows.shape[1])
    for first in range(0, len(windows), _AT_A_TIME):
        X = windows.read(np.arange(first, min(first + _AT_A_TIME, len(windows))))
        counts += dead_channels(torch.as_tensor(X), limits).sum(dim=0).numpy()
    names = windows.channels or [f"channel {number + 1}" for number in range(len(counts))]
    return {name: float(count / len(windows)) for name, count in zip(names, counts, strict=True) if count}


def _decibels(model: Any, X: Any, x: NDArray[Any] | None, sample: NDArray[Any] | None) -> tuple[Any, Any, str]:
    """Return level (n,) and relative expressions (n, rank) in dB; or None, coefficients as SD of a sample, and why."""
    try:
        loud = level(model, X)
        return loud, expression(model, X, relative=True), ""
    except PolyadicError as error:
        if x is None or sample is None:
            return None, None, str(error)
        spread = sample.std(axis=0)
        return None, (x - sample.mean(axis=0)) / np.where(spread > 0, spread, 1.0), str(error)


def _timelines(contents: ReportContents, windows: Windows, x: NDArray[Any] | None) -> tuple[list[Timeline], int]:
    """Return timelines of at most twelve evenly spaced recordings, and the number of recordings to choose from.

    Recordings with fewer than eight windows, or without a prediction although there is a probe, are skipped.
    """
    probe, components = contents.probe, contents.components
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
        probability = np.full((len(windows), len(windows.classes)), np.nan, np.float32)
        probability[probe.rows] = probe.probability
    groups = [(str(name), np.flatnonzero(names == name)) for name in np.unique(names) if name != ""]
    groups = [(name, rows) for name, rows in groups if len(rows) >= _FEWEST_WINDOWS and tested[rows].any()]
    chosen = [each for each in components if each.replicates][:_MOST_COMPONENTS] or components[:_MOST_COMPONENTS]
    numbers = [each.number for each in chosen]
    room = _MOST_NUMBERS // (len(windows.classes) + len(chosen) + 2)
    columns = [number - 1 for number in numbers]
    rows_of = [*["level"] * (contents.level is not None), *(f"component {number}" for number in numbers)]
    drawn = list[Timeline]()
    for place in thinned(np.arange(len(groups)), _MOST_RECORDINGS).tolist():
        name, rows = groups[place]
        rows = rows[np.argsort(windows.start[rows], kind="stable")]
        if len(rows) > room:
            continue
        room -= len(rows)
        part = windows[rows]
        own = np.asarray(contents.people.coefficients(part), np.float64) if contents.people.rank else None
        loud, values, _ = _decibels(contents.model, part, own, x)
        strengths = np.empty((len(rows), 0)) if values is None else values[:, columns]
        strengths = strengths if loud is None else np.column_stack([loud, strengths])
        codes, shares, single = (None if each is None else each[rows] for each in (predicted, probability, alone))
        drawn.append(Timeline(name, part, codes, shares, strengths if rows_of else None, rows_of, single))
    return drawn, len(groups)
