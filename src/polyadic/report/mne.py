"""polyadic's sections in an `mne.Report`: components, relative expression by class, and the score on new subjects."""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np

from polyadic import plot
from polyadic.data.windows import Windows
from polyadic.errors import PolyadicError
from polyadic.explain import expression, level

__all__ = ["add_to_mne"]

_MOST = 4
"""Maximum number of components whose classes are shown."""


def add_to_mne(report: Any, model: Any, windows: Windows, *, scores: Any = None, section: str = "polyadic") -> None:
    """Add sections about a model to an `mne.Report`.

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
            values = np.asarray(expression(model, windows, relative=True))
        except PolyadicError:  # of models whose profiles have either sign
            values = np.empty((len(windows), 0))
        else:
            figures["Level by class"] = plot.class_means(
                level(model, windows), windows.label, windows.classes, "level (dB)"
            )
        for number in range(min(values.shape[1], _MOST)):
            title = f"Component {number + 1} by class"
            figures[title] = plot.class_means(values[:, number], windows.label, windows.classes)
    for number, (title, figure) in enumerate(figures.items()):
        # The library of the figures is part of the first one.
        html = figure.to_html(full_html=False, include_plotlyjs=number == 0)
        report.add_html(html, title, section=section)
