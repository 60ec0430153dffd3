"""Rendering of a report as one HTML file with its style, script, figures (as JSON) and a compressed copy of plotly."""

from __future__ import annotations

import base64
import gzip
import json
import os
import platform
from collections.abc import Callable, Mapping
from importlib import metadata, resources
from typing import Any

from polyadic._util.files import write_atomically
from polyadic._util.version import __version__
from polyadic.core.persist import encode
from polyadic.data.splits import Protocol
from polyadic.evaluate.probe import AUTO
from polyadic.plot.electrodes import positions
from polyadic.plot.sketches import picture
from polyadic.plot.style import new_figure
from polyadic.report.components import Component, large_but_not_replicating, strongest_class
from polyadic.report.contents import ReportContents, as_windows, collect_contents
from polyadic.report.figures import figures, previews
from polyadic.report.headline import headline, methods_of
from polyadic.report.reproduce import BIBTEX, fit_script

__all__ = ["packed", "render", "write"]

_PACKAGES = ("torch", "numpy", "scipy", "scikit-learn")
_SHOWN, _SHOWN_ON_PHONES = 12, 6
"""Number of components shown initially, on large and on small screens."""
_COSTS = ("seconds", "sweeps", "fit")
_ORIGIN = ("command", "commit", "date", "machine", "versions", "sha256")


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
    >>> signals = synthetic(60)
    >>> model = SALS(rank=2, max_sweeps=2).fit(signals)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(f"{folder}/report.html", model, signals, title="Four rhythms")
    ...     Path(f"{folder}/report.html").stat().st_size < 6_000_000
    True
    """
    write_atomically(path, render(model, data, **options).encode())


def render(
    model: Any,
    data: Any = None,
    *,
    result: dict[str, Any] | None = None,
    origin: Mapping[str, Any] | None = None,
    title: str = "",
    protocol: Protocol | None = None,
    random_state: int = 0,
    probe: str = AUTO,
    transductive: bool = False,
    source: str = "",
    check_note: str = "",
    on_stage: Callable[[int, int, str], None] | None = None,
) -> str:
    """Return the report of a model as HTML.

    Parameters
    ----------
    model : fitted
    data : `Windows`, a `WindowStore` or an array as for `model.transform`; without it the report has only the
        components and the training
    result : content of the results.json of `polyadic run`, for the comparison of methods
    origin : provenance, as far as known: `command`, `commit`, `date`, `machine`, `versions`, and `sha256` of files by
        name
    title : title of the page; by default the estimator's name
    protocol, random_state : how the probe is trained and tested: "subject" for cross-validation by subject, the
        default where subjects are known, "paper" for one random split
    probe : as for `polyadic.evaluate.probe.make_probe`
    transductive : keep the model's features in cross-validation, even if they were learned from windows of test
        subjects; otherwise they are refitted in every fold
    source : an expression that reads the data, such as `open_windows("sleep.store")`, for the script that refits the
        model
    check_note : a sentence on the origin of `model.replicability_`
    on_stage : called with the number of parts done, the total and the name of the next; each component is a part
    """

    def begin(done: int, stage: str) -> None:
        if on_stage is not None:
            on_stage(done, model.rank + 3, stage)

    new_figure()  # fails early if plotly is not installed
    begin(0, "features and probe")

    def on_fold(done: int, count: int) -> None:
        begin(0, f"features and probe, fold {done} of {count} done")

    contents = collect_contents(model, data, protocol, random_state, probe, transductive, on_fold)
    methods = [] if result is None else methods_of(result, _method_name(model), contents.probe)
    shown = [method for method in methods if method.protocol == methods[0].protocol]
    drawn = figures(model, contents, shown, lambda done, stage: begin(1 + done, stage))
    shown_windows = previews(contents.sample)
    begin(model.rank + 2, "page")
    file = resources.files("polyadic.report")
    values = {
        "model": model,
        "kind": type(model).__name__,
        "title": title or type(model).__name__,
        "contents": contents,
        "probe": contents.probe,
        "sample": contents.sample,
        "methods": methods,
        "costs": [name for name in _COSTS if any(getattr(method, name) is not None for method in methods)],
        "protocols": list(dict.fromkeys(method.protocol for method in methods)),
        "headline": headline(methods, len(result["seeds"]) if result else 0, contents.probe),
        "result": result,
        "components": _component_rows(model, contents),
        "settings": _parameter_texts(model),
        "origin": dict.fromkeys(_ORIGIN) | {"versions": _versions()} | dict(origin or {}),
        "names": set(drawn),
        "maps": _map_choices(drawn),
        "reproduce": fit_script(model, as_windows(model, data), source, _versions()),
        "fit_seconds": float(getattr(model, "fit_seconds_", 0.0)) or sum(model.history_["seconds"]),
        "way": _way(model),
        "readout": getattr(model, "readout_", None),
        "checked": getattr(model, "replicability_", None),
        "check_note": check_note,
        "large_hidden": large_but_not_replicating(contents.components),
        "cite": BIBTEX,
        "version": __version__,
        "style": (file / "report.css").read_text(encoding="utf-8"),
        "script": (file / "report.js").read_text(encoding="utf-8"),
        "figures": packed(json.dumps({"figures": drawn, "previews": shown_windows}, allow_nan=False).encode()),
        "previews": shown_windows is not None,
        "modes": _mode_names(contents),
        "heads": contents.axes[0].kind == "channel" and bool(positions(contents.axes[0].labels)),
        "sections": _sections(contents, drawn),
        "plotly": packed((resources.files("plotly") / "package_data" / "plotly.min.js").read_bytes()),
    }
    return str(_template().render(values))


def _mode_names(contents: ReportContents) -> str:
    """Return the names of the modes as text, such as "channels, frequencies and time"."""
    plural = {"channel": "channels", "frequency": "frequencies"}
    names = [plural.get(axis.kind, axis.name) for axis in contents.axes]
    return " and ".join([part for part in (", ".join(names[:-1]), names[-1]) if part])


def _sections(contents: ReportContents, drawn: dict[str, Any]) -> dict[str, str]:
    """Return the titles of the sections that have content, by id."""
    there = {
        "result": True,
        "components": True,
        "timeline": bool(contents.timelines),
        "samples": any(name.startswith("map ") for name in drawn),
        "probe": contents.probe is not None,
        "features": "readout" in drawn,
        "training": "training-sweeps" in drawn,
        "provenance": True,
    }
    return {name: name.capitalize() for name, found in there.items() if found}


def packed(content: bytes) -> str:
    """Compress content and encode it in characters that are safe in HTML; the browser decompresses it.

    Examples
    --------
    >>> gzip.decompress(base64.b64decode(packed(b"</script>")))
    b'</script>'
    """
    return base64.b64encode(gzip.compress(content, compresslevel=9, mtime=0)).decode()


def _versions() -> dict[str, str]:
    """Return the versions of polyadic, Python and the main dependencies."""
    python = {"python": platform.python_version(), "polyadic": __version__}
    return python | {name: metadata.version(name) for name in _PACKAGES}


def _template() -> Any:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("polyadic.report", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2")


def _component_rows(model: Any, contents: ReportContents) -> list[dict[str, Any]]:
    """Return the rows of the component table: cells, values to sort by, and words to search for."""
    rows = []
    largest = max((abs(level) for component in contents.components for level in component.levels), default=0.0) or 1.0
    for place, component in enumerate(contents.components):
        cells: list[dict[str, Any]] = []
        for mode, factor, at in zip(contents.axes, model.factors_, component.places, strict=True):
            value = -1.0 if at.value != at.value else at.value  # NaN: sort a flat profile to the end
            cells.append({"picture": picture(mode, factor[:, component.index]), "at": at.text, "value": value})
        name, told = strongest_class(component, contents.classes)
        words = " ".join([str(component.number), *(cell["at"] for cell in cells), name]).lower()
        spread = max(map(abs, component.effects), default=0.0)
        rows.append(
            {
                "of": component,
                "cells": cells,
                "strongest": name,
                "told": told.replace("-", "−"),
                "spread": spread,
                "words": words,
                "largest": largest,
                "state": _row_state(component, place),
            }
        )
    return rows


def _row_state(component: Component, place: int) -> str:
    """Return the CSS classes of a row: whether it is hidden initially, and whether it is grey."""
    states = []
    if not component.replicates or place >= _SHOWN:
        states.append("folded")
    elif place >= _SHOWN_ON_PHONES:
        states.append("folded-small")
    return " ".join([*states, "gone"] if not component.replicates else states)


def _parameter_texts(model: Any) -> dict[str, str]:
    """Return every parameter as text."""
    named = {name: encode(value) for name, value in model.get_params(deep=False).items()}
    return {name: value if isinstance(value, str) else json.dumps(value, default=str) for name, value in named.items()}


def _way(model: Any) -> str:
    """Return how the model was fitted, such as "12 sweeps, best of 3 starts"."""
    starts = getattr(model, "restarts", 1)
    if getattr(model, "consensus", False):
        return f"consensus of {starts} starts"
    sweeps = f"{model.n_sweeps_} sweep{'s' * (model.n_sweeps_ != 1)}"
    return sweeps + (f", best of {starts} starts" if starts > 1 else "")


def _method_name(model: Any) -> str:
    """Return the name of this model's method in a run."""
    kind = type(model).__name__
    views_alone = kind == "ATD" and not model.beta and getattr(model, "augment_", None) is not None
    return "ATD_ss-" if views_alone else {"GRSALS": "GR-SALS"}.get(kind, kind)


def _map_choices(drawn: dict[str, Any]) -> dict[str, list[str]]:
    """Return the embeddings and colourings of the available maps."""
    names = [name.split(" ") for name in drawn if name.startswith("map ")]
    return {
        "methods": list(dict.fromkeys(method for _, method, _ in names)),
        "colours": list(dict.fromkeys(colour for _, _, colour in names)),
    }
