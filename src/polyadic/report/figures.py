"""The figures of a report by name, as JSON without a template; the page's script adds the style."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from polyadic import plot
from polyadic.explain.spectra import where_strongest
from polyadic.plot.windows import HALF_ROW, MOST_CHANNELS, Outlines, outlines, preview_figure, scale_texts
from polyadic.report.components import Component
from polyadic.report.contents import ReportContents, Sample
from polyadic.report.headline import MethodScores
from polyadic.report.probe import thinned

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

__all__ = ["figures", "previews"]

_MAPPED = 1000
_PREVIEW_BYTES = 700_000
_AT_A_TIME = 50
_POINTS = 600
_DRAWN_NUMBERS = 250_000
_DRAWN_COMPONENTS = 16
_DRAWN_CHANNELS = 8

Figures = dict[str, Any]


def figures(
    model: Any,
    contents: ReportContents,
    methods: list[MethodScores],
    begin: Callable[[int, str], None] = lambda done, stage: None,
) -> Figures:
    """Build all figures in the order in which they are shown. Figures of component n are named `component-n-…`.

    Parameters
    ----------
    begin : called with the number of parts done (each component is one) and the name of the next part
    """
    found: dict[str, Figure] = {}
    scored = {
        method.name: (method.accuracy, *(method.accuracy if end is None else end for end in (method.low, method.high)))
        for method in methods
        if method.accuracy is not None
    }
    if scored:
        found["comparison"] = plot.comparison(scored, methods[0].measure)  # type: ignore[arg-type]
    # These take longest, so they come first: otherwise the estimate of the remaining time would be too low.
    begin(0, "maps and scores")
    if contents.sample is not None and len(contents.sample.Z) >= 3:
        found |= _feature_maps(contents.sample, standardise=getattr(model, "readout_", None) is None)
    found |= _probe_figures(contents) | _timeline_figures(contents) | _feature_figures(model, contents)
    if getattr(model, "replicability_", None) is not None:
        found["replicability"] = plot.replicability(model)
    if model.history_["loss"]:
        found["training-sweeps"] = plot.training(model)
        found["training-seconds"] = plot.training(model, "seconds")
    found |= _component_figures(model, contents, lambda done, stage: begin(1 + done, stage))
    return {name: _without_template(figure) for name, figure in found.items()}


def _probe_figures(contents: ReportContents) -> dict[str, Figure]:
    probe = contents.probe
    if probe is None:
        return {}
    found = {"confusion": plot.confusion(probe.y, probe.predicted, _class_names(contents))}
    if probe.per_subject:
        found["subjects"] = plot.subjects(probe.per_subject, "balanced accuracy", probe.chance)
    return found | {"low-label": plot.low_label(probe.curve)}


def _timeline_figures(contents: ReportContents) -> dict[str, Figure]:
    return {
        f"timeline-{number}": plot.timeline(
            one.windows,
            one.predicted,
            one.probability,
            one.strengths,
            [f"component {component}" for component in one.components],
        )
        for number, one in enumerate(contents.timelines)
    }


def _feature_figures(model: Any, contents: ReportContents) -> dict[str, Figure]:
    """Build the figures of the readout's features."""
    sample = contents.sample
    if sample is None or getattr(model, "readout_", None) is None:
        return {}
    found = {"readout": plot.readout(model, sample.Z)}
    if model.readout_.n_channels and sample.windows is not None and len(contents.classes) > 1:
        found["levels"] = plot.levels(model, sample.Z, sample.windows.label, sample.windows.classes)
    return found


def _class_names(contents: ReportContents) -> tuple[str, ...]:
    assert contents.sample is not None
    assert contents.sample.windows is not None
    return contents.sample.windows.classes


def _without_template(figure: Figure) -> Any:
    content = json.loads(figure.to_json())
    del content["layout"]["template"]
    return content


def _component_figures(model: Any, contents: ReportContents, begin: Callable[[int, str], None]) -> dict[str, Figure]:
    found: dict[str, Figure] = {}
    windows = None if contents.sample is None else contents.sample.windows
    drawn = 0 if windows is None else min(_DRAWN_COMPONENTS, len(contents.components))
    for place, component in enumerate(contents.components):
        begin(place, f"component {place + 1} of {len(contents.components)}")
        name = f"component-{component.number}"
        found |= {f"{name}-{key}": figure for key, figure in _profile_figures(model, contents, component).items()}
        if windows is not None and place < drawn:
            found[f"{name}-windows"] = _expressing_windows(model, contents, component, windows, drawn)
    return found


def _profile_figures(model: Any, contents: ReportContents, component: Component) -> dict[str, Figure]:
    """Build the figures of a component: its profile along each mode, and its strength by class."""
    sample, typical, r = contents.sample, contents.typical, component.index
    windows = None if sample is None else sample.windows
    by_channel = _has_channel_axis(contents)
    found = {
        "0": plot.channels(model, r, windows, typical) if by_channel else plot.profile(model, r, 0, typical=typical)
    }
    for mode in range(1, len(contents.axes)):
        found[str(mode)] = plot.profile(model, r, mode, windows, typical)
    if windows is None or sample is None or len(contents.classes) < 2:
        return found
    found["classes"] = plot.class_means(sample.x, windows.label, r, windows.classes)
    if typical is not None and by_channel and any(axis.kind == "frequency" for axis in contents.axes):
        part, channel = divmod(typical.peak_row(model, r), len(contents.axes[0].labels))
        shaded = None if component.band is None else component.band[1:]
        found["spectra"] = plot.spectrum_by_class(typical, channel, part, shaded)
    return found


def _expressing_windows(model: Any, contents: ReportContents, component: Component, windows: Any, drawn: int) -> Figure:
    """Plot the windows with the largest coefficients of a component, around the time where it is strongest."""
    rows, points = component.windows, _points_per_channel(windows.shape, drawn)
    centre = where_strongest(model, windows[rows], component.index) if windows.shape[2] > points else None
    return plot.signals(windows, rows, points, _strongest_channels(model, contents, component.index), centre)


def _strongest_channels(model: Any, contents: ReportContents, r: int) -> NDArray[np.intp] | None:
    """Return the channels with the largest weights, in the order of the data; None if channels are not a mode."""
    if not _has_channel_axis(contents):
        return None
    weights = np.abs(contents.axes[0].by_part(model.factors_[0][:, r])).max(axis=0)
    return np.sort(np.argsort(-weights, kind="stable")[:_DRAWN_CHANNELS])


def _has_channel_axis(contents: ReportContents) -> bool:
    return contents.axes[0].kind == "channel"


def _points_per_channel(shape: tuple[int, ...], count: int) -> int:
    """Return how many samples to draw per channel, given the limit on the size of the page."""
    lines = 3 * max(count, 1) * min(shape[1], _DRAWN_CHANNELS)
    return min(_DRAWN_NUMBERS // lines, _POINTS)


def _feature_maps(sample: Sample, standardise: bool) -> dict[str, Figure]:
    """Build a map for each embedding and each colouring with more than one colour."""
    rows = thinned(np.arange(len(sample.Z)), _MAPPED)
    windows = None if sample.windows is None else sample.windows[rows]
    colours = ["class"]
    if windows is not None:
        columns = {"class": windows.label, "subject": windows.subject, "recording": windows.recording}
        told = [name for name, column in columns.items() if len(np.unique(column)) > 1]
        if "subject" in told and np.array_equal(windows.subject, windows.recording):
            told = [name for name in told if name != "recording"]
        colours = told or colours
    found = {}
    for method in ("pca", "t-sne"):
        points = plot.embedded(sample.Z[rows], method, standardise)
        for colour in colours:
            found[f"map {method} {colour}"] = plot.features(points, windows, colour)  # type: ignore[arg-type]
    return found


def previews(sample: Sample | None) -> dict[str, Any] | None:
    """Return previews of the windows on the map, as drawn by `plot.preview`, in 8 bits to keep the page small.

    Returns
    -------
    a dictionary, or None for tensors: `figure`, the figure of the first window; `bytes` (base64 of windows × lines of
    the figure × `points`), to be scaled by `height`; `lines`, the number of lines per channel; `texts` (windows ×
    channels), the row labels
    """
    if sample is None or sample.windows is None or len(sample.Z) < 3:
        return None
    windows = sample.windows[thinned(np.arange(len(sample.Z)), _MAPPED)]
    count = min(windows.shape[1], MOST_CHANNELS)
    room = int(np.clip(_PREVIEW_BYTES // (len(windows) * count), 24, 1000))
    digits, texts, first = [], list[list[str]](), None
    # Read windows in chunks: a thousand long windows need much more memory than their outlines.
    for rows in np.split(np.arange(len(windows)), range(_AT_A_TIME, len(windows), _AT_A_TIME)):
        drawn = outlines(windows.read(rows)[:, :count], room)
        first = first or drawn
        digits.append(np.rint(127 * drawn.values).astype(np.int8))
        texts += [scale_texts(windows, np.arange(count), spread) for spread in drawn.spread]
    assert isinstance(first, Outlines)
    return {
        "figure": _without_template(preview_figure(windows, first)),
        "bytes": base64.b64encode(np.concatenate(digits).tobytes()).decode(),
        "lines": first.values.shape[2],
        "points": first.values.shape[3],
        "height": HALF_ROW / 127,
        "texts": texts,
    }
