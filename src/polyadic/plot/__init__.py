"""Plots of models, features and scores: functions that return plotly figures, to show, change or save.

    from polyadic import plot
    figure = plot.components(model, windows)
    figure.show()
    figure.write_image("components.pdf", width=700)  # or .svg, .png; needs Chrome or Chromium

Needs plotly and, for `write_image`, kaleido. Both come with the extra `report`.
"""

from __future__ import annotations

from polyadic.plot.components import class_means, components, profile
from polyadic.plot.scores import confusion, missing_channels, reliability, subjects
from polyadic.plot.windows import features, signals, timeline

__all__ = [
    "class_means",
    "components",
    "confusion",
    "features",
    "missing_channels",
    "profile",
    "reliability",
    "signals",
    "subjects",
    "timeline",
]
