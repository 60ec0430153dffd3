"""Rendering of a report as one HTML file with its style, script, figures (as JSON) and a compressed copy of plotly."""

from __future__ import annotations

import base64
import gzip
import json
import os
from collections.abc import Callable, Mapping
from importlib import resources
from typing import Any

from polyadic._util.files import write_atomically
from polyadic._util.provenance import versions
from polyadic._util.version import __version__
from polyadic.core.persist import encode
from polyadic.evaluate.probe import AUTO
from polyadic.explain.comparison import Comparison
from polyadic.explain.expression import shown
from polyadic.plot.electrodes import positions
from polyadic.plot.sketches import picture
from polyadic.plot.style import new_figure
from polyadic.report.components import sentence, strongest_class
from polyadic.report.contents import ReportContents, collect_contents
from polyadic.report.figures import figures
from polyadic.report.probe import headline

__all__ = ["BIBTEX", "render", "write"]

_SHOWN, _SHOWN_ON_PHONES = 12, 6
"""Number of components shown initially, on large and on small screens."""
_ORIGIN = ("command", "commit", "date", "machine", "versions", "sha256")

BIBTEX = f"""\
@inproceedings{{yang2022atd,
  title     = {{{{ATD: Augmenting CP Tensor Decomposition by Self Supervision}}}},
  author    = {{Yang, Chaoqi and Qian, Cheng and Singh, Navjot and Xiao, Cao and Westover, M Brandon and Solomonik, \
Edgar and Sun, Jimeng}},
  booktitle = {{Advances in Neural Information Processing Systems 35 (NeurIPS 2022)}},
  year      = {{2022}}
}}

@software{{polyadic,
  title   = {{polyadic: augmented tensor decomposition for multichannel recordings}},
  author  = {{{{The polyadic developers}}}},
  version = {{{__version__}}}
}}"""
"""Entries for the paper on the method and for this software, as in CITATION.cff."""


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
    probe: str = AUTO,
    transductive: bool = False,
    comparison: Comparison | None = None,
    on_stage: Callable[[int, int, str], None] | None = None,
) -> str:
    """Return the report of a model as HTML.

    Parameters
    ----------
    model : fitted
    data : `Windows`, a `WindowStore` or an array of windows (N, channels, time); without it the report has only the
        components and the training
    origin : provenance, as far as known: `command`, `commit`, `date`, `machine`, `versions`, and `sha256` of files by
        name
    title : title of the page; by default the estimator's name
    random_state : random seed of the folds in which the probe is tested
    probe : as for `polyadic.evaluate.probe.make_probe`
    transductive : keep the model's features in cross-validation, even if they were learned from windows of test
        subjects; otherwise they are refitted in every fold
    comparison : result of `polyadic.explain.compare`, shown first
    on_stage : called with the number of parts done, the total and the name of the next; each component is a part
    """

    def begin(done: int, stage: str) -> None:
        if on_stage is not None:
            on_stage(done, shown(model).rank + 3, stage)

    new_figure()  # fails early if plotly is not installed
    begin(0, "features and probe")

    def on_fold(done: int, count: int) -> None:
        begin(0, f"features and probe, fold {done} of {count} done")

    contents = collect_contents(model, data, random_state, probe, transductive, on_fold)
    drawn = figures(contents, comparison, lambda done, stage: begin(1 + done, stage))
    begin(shown(model).rank + 2, "page")
    file = resources.files("polyadic.report")
    plural = {"channel": "channels", "frequency": "frequencies"}
    names_of_modes = [plural.get(axis.kind, axis.name) for axis in contents.axes]
    values = {
        "model": model,
        "kind": type(model).__name__,
        "title": title or type(model).__name__,
        "contents": contents,
        "probe": contents.probe,
        "checked": contents.checked,
        "found": getattr(model, "components_", None),
        "comparison": comparison,
        "comparison_words": "" if comparison is None else comparison.words(),
        "converged": getattr(model, "converged_", None),
        "headline": None if contents.probe is None else headline(contents.probe),
        "components": _component_rows(contents),
        "settings": _parameter_texts(model),
        "origin": dict.fromkeys(_ORIGIN) | {"versions": versions()} | dict(origin or {}),
        "figure_names": set(drawn),
        "map_colours": [name.removeprefix("map ") for name in drawn if name.startswith("map ")],
        "fit_seconds": float(getattr(model, "fit_seconds_", 0.0)) or sum(model.history_["seconds"]),
        "way": _way(model),
        "readout": getattr(model, "readout_", None),
        "cite": BIBTEX,
        "version": __version__,
        "style": (file / "report.css").read_text(encoding="utf-8"),
        "script": (file / "report.js").read_text(encoding="utf-8"),
        "figures": _packed(json.dumps(drawn, allow_nan=False).encode()),
        "modes": " and ".join(filter(None, [", ".join(names_of_modes[:-1]), names_of_modes[-1]])),
        "heads": contents.axes[0].kind == "channel" and bool(positions(contents.axes[0].labels)),
        "plotly": _packed((resources.files("plotly") / "package_data" / "plotly.min.js").read_bytes()),
    }
    return str(_template().render(values))


def _packed(content: bytes) -> str:
    """Compress content and encode it in characters that are safe in HTML; the browser decompresses it."""
    return base64.b64encode(gzip.compress(content, compresslevel=9, mtime=0)).decode()


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


def _component_rows(contents: ReportContents) -> list[dict[str, Any]]:
    """Return the rows of the component table: cells, texts and CSS classes."""
    rows = []
    largest = max((abs(mean) for component in contents.components for mean in component.means), default=0.0) or 1.0
    for place, component in enumerate(contents.components):
        cells = [
            {"picture": picture(axis, factor[:, component.number - 1]), "at": at.text, "value": at.value}
            for axis, factor, at in zip(contents.axes, contents.people.factors_, component.places, strict=True)
        ]
        state = "folded" if place >= _SHOWN else "folded-small" if place >= _SHOWN_ON_PHONES else ""
        rows.append(
            {
                "of": component,
                "cells": cells,
                "strongest": strongest_class(component, contents.classes),
                "sentence": sentence(component, contents.classes, contents.unit),
                "spread": max(map(abs, component.effects), default=0.0),
                "largest": largest,
                "state": state + " gone" * (not component.replicates),
            }
        )
    return rows


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
