"""Plots of models, features and scores: functions that return plotly figures, to show, change or save.

    from polyadic import plot
    plot.component(model, 3, windows).show()

Needs plotly, which comes with the extra `report`.
"""

from __future__ import annotations

from polyadic.plot.components import channels, class_means, component, components, profile
from polyadic.plot.samples import embedded, features, signals
from polyadic.plot.scores import comparison, confusion, low_label, subjects, training

__all__ = [
    "channels",
    "class_means",
    "comparison",
    "component",
    "components",
    "confusion",
    "embedded",
    "features",
    "low_label",
    "profile",
    "signals",
    "subjects",
    "training",
]
