"""A report as one HTML file with its style, script, figures (as JSON) and a compressed copy of plotly."""

from __future__ import annotations

import base64
import gzip
import json
import os
import warnings
from collections.abc import Callable, Mapping
from html import escape
from importlib import resources
from typing import TYPE_CHECKING, Any

import numpy as np

from polyadic import plot
from polyadic._util.files import write_atomically
from polyadic._util.provenance import versions
from polyadic._util.version import __version__
from polyadic.core.missing import MissingWarning
from polyadic.core.persist import encode
from polyadic.data.windows import Windows
from polyadic.errors import PolyadicError
from polyadic.explain import expression, level
from polyadic.explain.comparison import Comparison
from polyadic.explain.electrodes import positions
from polyadic.explain.spectra import where_strongest
from polyadic.plot.style import NEUTRAL, PALETTE, dots, new_figure, short
from polyadic.report.components import Component, picture, sentence, strongest_class
from polyadic.report.contents import ReportContents, collect_contents
from polyadic.report.probe import thinned

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

__all__ = ["add_to_mne", "render", "write"]

_MAPPED = 1000
_POINTS = 600
_DRAWN_COMPONENTS, _DRAWN_CHANNELS = 16, 8
_MOST_IN_MNE = 4


def write(path: str | os.PathLike[str], model: Any, data: Any = None, **options: Any) -> None:
    """Write the report of a model as one self-contained HTML file.

    Parameters
    ----------
    path : the file to write, usually with extension .html
    model, data, options : as for `polyadic.report.render`

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from polyadic import SALS
    >>> from polyadic.data import synthetic
    >>> signals = synthetic(60, n_channels=2)
    >>> model = SALS(rank=2, max_sweeps=2).fit(signals)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(f"{folder}/report.html", model, signals, title="Four rhythms")
    ...     Path(f"{folder}/report.html").stat().st_size < 6_000_000
    True
    """
    write_atomically(path, render(model, data, **options).encode(errors="backslashreplace"))


def render(
    model: Any,
    data: Any = None,
    *,
    origin: Mapping[str, Any] | None = None,
    title: str = "",
    random_state: int = 0,
    transductive: bool = False,
    comparison: Comparison | None = None,
    on_stage: Callable[[int, int, str], None] = lambda done, total, stage: None,
) -> str:
    """Return the report of a model as HTML.

    Parameters
    ----------
    model : fitted
    data : `Windows`, a `WindowStore` or an array of windows (N, channels, time); without it the report has only the
        components
    origin : provenance, as far as known: `command`, `commit`, `date`, `machine`, `versions`, and `sha256` of files by
        name
    title : title of the page; by default the estimator's name
    random_state : random seed of the folds in which the probe is tested
    transductive : keep the model's features in cross-validation, even if they were learned from windows of test
        subjects; otherwise they are refitted in every fold
    comparison : result of `polyadic.explain.compare`, shown first
    on_stage : called with the number of parts done, their total, and the name of the next
    """
    import jinja2

    new_figure()  # fails early if plotly is not installed

    def on_fold(done: int, count: int) -> None:
        on_stage(done, count + 1, "features and probe")

    on_stage(0, 2, "features and probe")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MissingWarning)  # once for each fold and recording; the page names the channels
        contents = collect_contents(model, data, random_state, transductive, on_fold)
    on_stage(1, 2, "figures")
    drawn = _figures(contents, comparison)
    modes = [{"channel": "channels", "frequency": "frequencies"}.get(axis.kind, axis.name) for axis in contents.axes]
    file = resources.files("polyadic.report")
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("polyadic.report", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("report.html.j2").render(
        model=model,
        kind=type(model).__name__,
        title=title or type(model).__name__,
        contents=contents,
        probe=contents.probe,
        checked=contents.checked,
        found=getattr(model, "components_", None),
        comparison=comparison,
        components=[_row(contents, component) for component in contents.components],
        modes=" and ".join(filter(None, [", ".join(modes[:-1]), modes[-1]])),
        heads=bool(positions(contents.axes[0].labels)),
        fit_seconds=getattr(model, "fit_seconds_", 0.0) or sum(model.history_["seconds"]),
        converged=getattr(model, "converged_", None),
        created=_provenance(contents, dict(origin or {})),
        versions=(origin or {}).get("versions") or versions(),
        settings=_settings(model),
        date=(origin or {}).get("date"),
        version=__version__,
        style=(file / "report.css").read_text(encoding="utf-8"),
        script=(file / "report.js").read_text(encoding="utf-8"),
        names=set(drawn),
        figures=_packed(json.dumps(drawn, allow_nan=False).encode()),
        plotly=_packed((resources.files("plotly") / "package_data" / "plotly.min.js").read_bytes()),
    )
    return str(page)


def _packed(content: bytes) -> str:
    """Compress content and encode it in characters that are safe in HTML; the browser decompresses it."""
    return base64.b64encode(gzip.compress(content, compresslevel=9, mtime=0)).decode()


def _row(contents: ReportContents, component: Component) -> dict[str, Any]:
    """Return a row of the component table."""
    largest = max((abs(mean) for each in contents.components for mean in each.means), default=0.0) or 1.0
    factors = [factor[:, component.number - 1] for factor in contents.people.factors_]
    return {
        "of": component,
        "pictures": [picture(axis, factor) for axis, factor in zip(contents.axes, factors, strict=True)],
        "levels": [mean / largest for mean in component.means],
        "strongest": strongest_class(component, contents.classes, contents.unit),
        "sentence": sentence(component, contents.classes, contents.unit),
    }


def _settings(model: Any) -> dict[str, str]:
    """Return every parameter as text."""
    named = {name: encode(value, own=True) for name, value in model.get_params(deep=False).items()}
    return {name: value if isinstance(value, str) else json.dumps(value, default=str) for name, value in named.items()}


def _provenance(contents: ReportContents, origin: dict[str, Any]) -> dict[str, str]:
    """Return where the report is from, as far as known."""
    known = {name: origin.get(name) for name in ("command", "date", "commit")}
    if machine := origin.get("machine"):
        threads = f"{machine['threads']} of {machine['cores']} threads"
        known["machine"] = f"{machine.get('gpu') or machine['processor']}, {threads}"
    known["seed"] = f"{contents.model.seed_} (model)"
    known |= {"evaluation": contents.probe and contents.probe.how, "store": contents.store and contents.store.checksum}
    return {name: str(value) for name, value in (known | dict(origin.get("sha256") or {})).items() if value}


# --------------------------------------------------------------------------------------------------------- figures


def _figures(contents: ReportContents, compared: Comparison | None) -> dict[str, Any]:
    """Return all figures by name, as JSON without a template: the page's script adds the style.

    Figures of component n are named `component-n-…`.
    """
    windows, probe = contents.windows, contents.probe
    drawn: dict[str, Figure] = {}
    if compared is not None and compared.tested:
        size, (low, high) = compared.difference[0], compared.interval_db[:, 0]
        first, second, *_ = map(short, compared.groups)
        marks = np.where(compared.p <= 0.05, PALETTE[0], NEUTRAL).tolist()
        ends = {"array": high - size, "arrayminus": size - low}
        drawn["groups"] = dots(compared.names, size, marks, f"{second} − {first} (dB)", **ends)
    if probe is not None and windows is not None:
        result = probe.result
        drawn["confusion"] = plot.confusion(result.confusion, result.classes)
        by_subject = {name: row["balanced_accuracy"] for name, row in result.per_subject.items()}
        drawn["subjects"] = plot.subjects(by_subject, result.chance)
        drawn["reliability"] = plot.reliability(result.confidence.ravel(), result.correct.ravel())
        if probe.without:
            drawn["missing"] = plot.missing_channels(probe.without, windows.shape[1], result.chance)
    for number, each in enumerate(contents.timelines):
        drawn[f"timeline-{number}"] = plot.timeline(*each[1:], contents.unit)
    if windows is not None and len(windows) >= 3:
        some = thinned(np.arange(len(windows)), _MAPPED)
        colours = {"class": windows.label, "subject": windows.subject}
        for colour in [name for name, column in colours.items() if len(np.unique(column)) > 1] or ["class"]:
            Z = np.asarray(contents.Z)[some]
            drawn[f"map {colour}"] = plot.features(Z, windows[some], colour)  # type: ignore[arg-type]
    if windows is not None and len(contents.classes) > 1 and contents.level is not None:
        drawn["level"] = plot.class_means(contents.level, windows.label, windows.classes, "level (dB)")
    for place, component in enumerate(contents.components):
        parts = _component_figures(contents, component, with_windows=place < _DRAWN_COMPONENTS)
        drawn |= {f"component-{component.number}-{name}": figure for name, figure in parts.items()}
    plain = {name: json.loads(figure.to_json()) for name, figure in drawn.items()}
    for content in plain.values():
        del content["layout"]["template"]
    return plain


def _component_figures(contents: ReportContents, component: Component, with_windows: bool) -> dict[str, Figure]:
    """Return the figures of a component: profiles, strength by class, and the windows in which it is strongest."""
    model, windows, r = contents.model, contents.windows, component.number - 1
    drawn = {str(mode): plot.profile(model, r, mode, windows) for mode in range(len(contents.axes))}
    if windows is None:
        return drawn
    if contents.values is not None and len(contents.classes) > 1:
        title = f"{contents.quantity} ({contents.unit})"
        drawn["classes"] = plot.class_means(contents.values[:, r], windows.label, windows.classes, title)
    if with_windows:
        channels = centre = None
        if contents.axes[0].kind == "channel":  # those with the largest weights, in the order of the data
            weights = np.abs(contents.axes[0].by_part(contents.people.factors_[0][:, r])).max(axis=0)
            channels = np.sort(np.argsort(-weights, kind="stable")[:_DRAWN_CHANNELS])
        if windows.shape[2] > _POINTS:
            centre = where_strongest(contents.people, windows[component.windows], r)
        drawn["windows"] = plot.signals(windows, component.windows, _POINTS, channels, centre)
    return drawn


# ------------------------------------------------------------------------------------------------------------- mne


def add_to_mne(report: Any, model: Any, windows: Windows, *, scores: Any = None, section: str = "polyadic") -> None:
    """Add sections about a model to an `mne.Report`: components, level and expression by class, and scores.

    Parameters
    ----------
    report : the `mne.Report`
    model : a fitted `CPD`
    windows : windows with channel names and, for the bars by class, labels
    scores : a `polyadic.evaluate.CrossValidation`, whose summary is then added
    section : heading of the sections in the report

    Examples
    --------
    >>> import mne
    >>> from polyadic import CPD
    >>> from polyadic.data import synthetic_nights
    >>> windows = synthetic_nights(4, 20, n_dead=0)
    >>> page = mne.Report(title="nights", verbose=False)
    >>> add_to_mne(page, CPD(rank=2, max_sweeps=5).fit(windows), windows)
    >>> len(page._content)
    4
    """
    if scores is not None:
        lines = "".join(f"<p>{escape(line)}</p>" for line in scores.summary().splitlines())
        report.add_html(lines, "Score on left-out subjects", section=section)
    figures = {"Components": plot.components(model, windows)}
    if (windows.label >= 0).any():
        try:
            columns = {"Level": level(model, windows)}
            for number, column in enumerate(expression(model, windows, relative=True).T[:_MOST_IN_MNE], 1):
                columns[f"Component {number}"] = column
        except PolyadicError:  # of models whose profiles have either sign
            columns = {}
        for name, column in columns.items():
            words = ("level (dB)",) if name == "Level" else ()
            figures[f"{name} by class"] = plot.class_means(column, windows.label, windows.classes, *words)
    for number, (title, figure) in enumerate(figures.items()):
        # The library of the figures is part of the first one.
        html = figure.to_html(full_html=False, include_plotlyjs=number == 0)
        report.add_html(html, title, section=section)
