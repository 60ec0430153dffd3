"""What a report shows, collected from a model, its data and the scores of a probe; `page` does the layout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyadic.core.tensorizer import Axis
from polyadic.data.channels import match_signals, numbered_channels
from polyadic.data.store import WindowStore
from polyadic.data.windows import Windows, describe_places
from polyadic.errors import PolyadicError
from polyadic.explain.expression import expression, level, shown
from polyadic.explain.replicability import Replicability
from polyadic.report.components import Component, describe_components
from polyadic.report.probe import ProbeResult, score_probe, thinned

_SAMPLED = 4000
_SCORED = 1024
_MOST_RECORDINGS = 12
_MOST_NUMBERS = 150_000
"""Maximum number of values in all timelines, which bounds the size of the page."""
_FEWEST_WINDOWS = 8
_MOST_COMPONENTS = 6


class Timeline(NamedTuple):
    """One recording: its name, and what `plot.timeline` takes."""

    name: str  # of the recording, or of the subject if recordings have no names
    windows: Windows  # in order of time
    predicted: NDArray[Any] | None  # (n,), names, "" where a window was not tested; None without a probe
    probability: NDArray[np.float64] | None  # (n, classes)
    strengths: NDArray[np.float64] | None  # (n, rows), level and relative expressions in dB; or coefficients, in SD
    names: list[str]  # of these rows: level, component 1, …
    alone: NDArray[Any] | None  # (n,), the class of each window by itself, if predicted is a path


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
    fit: float = float("nan")  # 1 − relative error of the model's bases on 1,024 windows of the sample, evenly spaced
    classes: list[str] = field(default_factory=list)  # names of the classes in the sample
    components: list[Component] = field(default_factory=list)  # in display order
    probe: ProbeResult | None = None
    trouble: str = ""  # why no probe could be trained despite labels
    timelines: list[Timeline] = field(default_factory=list)
    recordings: int = 0  # number of recordings that timelines could show
    store: WindowStore | None = None  # the store that contains the windows
    missing: dict[str, float] = field(default_factory=dict)  # share of the sample that lacks a channel, if any does
    places: dict[str, str] = field(default_factory=dict)  # the recordings that lack it, if they are known

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
    transductive: bool = False,
    on_fold: Callable[[int, int], None] = lambda done, count: None,
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
    contents.total, contents.windows = len(windows), sample
    contents.fit = model.score(sample[thinned(np.arange(len(sample)), _SCORED)])
    x = np.asarray(people.coefficients(sample), np.float64) if people.rank else None
    try:
        contents.level, contents.values = level(model, sample), expression(model, sample, relative=True)
    except PolyadicError as error:
        contents.no_expression, contents.values = str(error), None if x is None else _standardised(x, x)
    contents.Z, _, missing = model.features_and_spread(sample, np.zeros((0, len(model.get_feature_names_out()))))
    if model.tensorize_ is not None:
        names = sample.channels or numbered_channels(sample.shape[1])
        lacking = {name: rows for name, rows in zip(names, (missing == 1).T, strict=True) if rows.any()}
        contents.missing = {name: float(rows.mean()) for name, rows in lacking.items()}
        if (sample.recording != "").any():
            contents.places = {name: describe_places(sample, np.flatnonzero(rows)) for name, rows in lacking.items()}
    contents.classes = [sample.classes[code] for code in np.unique(sample.label[sample.label >= 0])]
    if len(np.unique(windows.label[windows.label >= 0])) > 1:
        try:
            contents.probe = score_probe(model, windows, random_state, transductive, on_fold)
        except PolyadicError as error:
            contents.trouble = str(error)
    about = x, contents.values, sample.label, contents.checked, contents.level is not None
    contents.components = describe_components(people, contents.axes, *about)
    contents.store = windows._samples if isinstance(windows._samples, WindowStore) else None
    contents.timelines, contents.recordings = _timelines(contents, windows, x)
    return contents


def _standardised(x: NDArray[Any], sample: NDArray[Any]) -> NDArray[np.float64]:
    """Return coefficients in standard deviations of a sample."""
    spread = sample.std(axis=0)
    return np.asarray((x - sample.mean(axis=0)) / np.where(spread > 0, spread, 1.0))


def _timelines(contents: ReportContents, windows: Windows, x: NDArray[Any] | None) -> tuple[list[Timeline], int]:
    """Return timelines of at most twelve evenly spaced recordings, and the number of recordings to choose from.

    Recordings with fewer than eight windows, or without a prediction although there is a probe, are left out. `x` are
    the coefficients of the sample.
    """
    probe, people = contents.probe, contents.people
    names = windows.recording if (windows.recording != "").any() else windows.subject
    tested = np.full(len(windows), probe is None)
    predicted = probability = alone = None
    if probe is not None:
        result, rows = probe.result, probe.result.rows
        tested[rows] = True
        predicted, found = np.full(len(windows), "", object), result.probability
        predicted[rows] = result.predicted[0]
        if result.along is not None and probe.is_along:
            alone, found = predicted.copy(), result.along["probability"]
            predicted[rows] = result.along["predicted"][0]
        places = np.array([windows.classes.index(name) for name in result.classes])
        probability = np.full((len(windows), len(windows.classes)), np.nan)
        probability[rows] = 0.0
        probability[rows[:, None], places] = found
    groups = {str(name): np.flatnonzero(names == name) for name in np.unique(names) if name != ""}
    able = [name for name, rows in groups.items() if len(rows) >= _FEWEST_WINDOWS and tested[rows].any()]
    chosen = [able[place] for place in thinned(np.arange(len(able)), _MOST_RECORDINGS)]
    replicating = [each for each in contents.components if each.replicates] or contents.components
    numbers = [each.number for each in replicating[:_MOST_COMPONENTS]]
    labels = [*["level"] * (contents.level is not None), *(f"component {number}" for number in numbers)]
    room = _MOST_NUMBERS // (len(windows.classes) + len(labels) + 1)
    drawn = list[Timeline]()
    for name in chosen:
        rows = groups[name][np.argsort(windows.start[groups[name]], kind="stable")]
        if len(rows) > room:
            continue
        room -= len(rows)
        part, columns = windows[rows], np.array(numbers, int) - 1
        strengths = None
        if contents.level is not None:
            values = expression(contents.model, part, relative=True)[:, columns]
            strengths = np.column_stack([level(contents.model, part), values])
        elif x is not None:
            strengths = _standardised(np.asarray(people.coefficients(part), np.float64), x)[:, columns]
        guesses, shares, single = (None if each is None else each[rows] for each in (predicted, probability, alone))
        drawn.append(Timeline(name, part, guesses, shares, strengths, labels, single))
    return drawn, len(able)
