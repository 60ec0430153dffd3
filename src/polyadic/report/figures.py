"""The figures of a report by name, as JSON without a template; the page's script adds the style."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from polyadic import plot
from polyadic.data.windows import Windows
from polyadic.explain.comparison import Comparison
from polyadic.explain.spectra import where_strongest
from polyadic.report.components import Component
from polyadic.report.contents import ReportContents
from polyadic.report.probe import thinned

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

__all__ = ["figures"]

_MAPPED = 1000
_POINTS = 600
_DRAWN_NUMBERS = 250_000
_DRAWN_COMPONENTS = 16
_DRAWN_CHANNELS = 8


def figures(
    contents: ReportContents,
    compared: Comparison | None = None,
    begin: Callable[[int, str], None] = lambda done, stage: None,
) -> dict[str, Any]:
    """Build all figures in the order in which they are shown. Figures of component n are named `component-n-…`.

    Parameters
    ----------
    compared : the comparison of groups, if there is one
    begin : called with the number of parts done (each component is one) and the name of the next part
    """
    drawn: dict[str, Figure] = {}
    model, windows, probe = contents.model, contents.windows, contents.probe
    if compared is not None and compared.tested:
        rows = zip(compared.names, compared.effect[0], *compared.interval[:, 0], strict=True)
        ends = {name: (float(g), float(low), float(high)) for name, g, low, high in rows}
        drawn["groups"] = plot.comparison(ends, f"Hedges' g, {compared.groups[1]} against {compared.groups[0]}")
    # These take longest, so they come first: otherwise the estimate of the remaining time would be too low.
    begin(0, "maps and scores")
    readout = getattr(model, "readout_", None)
    if windows is not None and len(windows) >= 3:
        drawn |= _feature_maps(contents, windows, standardise=readout is None)
    if probe is not None and windows is not None:
        result = probe.result
        drawn["confusion"] = plot.confusion(probe.y, probe.predicted, windows.classes)
        by_subject = {name: row["balanced_accuracy"] for name, row in result.per_subject.items()}
        drawn["subjects"] = plot.subjects(by_subject, "balanced accuracy", result.chance)
        drawn["reliability"] = plot.reliability(result.confidence.ravel(), result.correct.ravel())
        if probe.without:
            drawn["missing"] = plot.missing_channels(probe.without, windows.shape[1], result.chance)
    for number, each in enumerate(contents.timelines):
        drawn[f"timeline-{number}"] = plot.timeline(*each[1:], contents.unit)
    if contents.level is not None and windows is not None and len(contents.classes) > 1:
        drawn["level"] = plot.class_means(contents.level, windows.label, windows.classes, "level (dB)")
    if readout is not None and readout.n_statistics and windows is not None and len(contents.classes) > 1:
        drawn["statistics"] = plot.statistics(model, np.asarray(contents.Z), windows.label, windows.classes)
    if model.history_["loss"]:
        drawn["training"] = plot.training(model)
    count = len(contents.components)
    for place, component in enumerate(contents.components):
        begin(1 + place, f"component {place + 1} of {count}")
        parts = _profiles(contents, component)
        if windows is not None and place < _DRAWN_COMPONENTS:
            parts["windows"] = _expressing_windows(contents, component, windows)
        drawn |= {f"component-{component.number}-{name}": figure for name, figure in parts.items()}
    return {name: _without_template(figure) for name, figure in drawn.items()}


def _without_template(figure: Figure) -> Any:
    content = json.loads(figure.to_json())
    del content["layout"]["template"]
    return content


def _profiles(contents: ReportContents, component: Component) -> dict[str, Figure]:
    """Build the figures of a component: its profile along each mode, and its strength by class."""
    model, windows, r = contents.model, contents.windows, component.number - 1
    by_channel = contents.axes[0].kind == "channel"
    drawn = {str(mode): plot.profile(model, r, mode, windows) for mode in range(1, len(contents.axes))}
    drawn["0"] = plot.channels(model, r, windows) if by_channel else plot.profile(model, r, 0)
    if windows is None or contents.values is None or len(contents.classes) < 2:
        return drawn
    title = f"{contents.quantity} ({contents.unit})"
    drawn["classes"] = plot.class_means(contents.values[:, r], windows.label, windows.classes, title)
    return drawn


def _expressing_windows(contents: ReportContents, component: Component, windows: Windows) -> Figure:
    """Plot the windows in which a component is strongest, around the time where it is strongest.

    The channels are those with the largest weights, in the order of the data. The number of samples per channel is
    bounded, and so is the size of the page.
    """
    r, channels = component.number - 1, None
    if contents.axes[0].kind == "channel":
        weights = np.abs(contents.axes[0].by_part(contents.people.factors_[0][:, r])).max(axis=0)
        channels = np.sort(np.argsort(-weights, kind="stable")[:_DRAWN_CHANNELS])
    lines = 3 * min(_DRAWN_COMPONENTS, len(contents.components)) * min(windows.shape[1], _DRAWN_CHANNELS)
    points = min(_DRAWN_NUMBERS // lines, _POINTS)
    centre = None
    if windows.shape[2] > points:
        centre = where_strongest(contents.people, windows[component.windows], r)
    return plot.signals(windows, component.windows, points, channels, centre)


def _feature_maps(contents: ReportContents, sample: Windows, standardise: bool) -> dict[str, Figure]:
    """Build a map for each colouring with more than one colour."""
    rows = thinned(np.arange(len(sample)), _MAPPED)
    Z, windows = np.asarray(contents.Z)[rows], sample[rows]
    columns = {"class": windows.label, "subject": windows.subject, "recording": windows.recording}
    if np.array_equal(windows.subject, windows.recording):
        del columns["recording"]
    colours: list[Any] = [name for name, column in columns.items() if len(np.unique(column)) > 1] or ["class"]
    return {f"map {colour}": plot.features(Z, windows, colour, standardise) for colour in colours}
