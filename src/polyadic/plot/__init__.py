"""Plots of models, features and scores: functions that return plotly figures, to show, change or save.

    from polyadic import plot
    plot.component(model, 3, windows).show()
    plot.static(plot.component(model, 3, windows)).savefig("component.pdf")  # by matplotlib

Needs plotly (and matplotlib for `static`), which come with the extra `report`.
"""

from __future__ import annotations

from polyadic.plot.components import class_means, component, components, profile, spectrum_by_class
from polyadic.plot.maps import channels
from polyadic.plot.previews import preview
from polyadic.plot.readouts import levels, readout, replicability, shares
from polyadic.plot.samples import embedded, features, signals
from polyadic.plot.scores import comparison, confusion, low_label, subjects, training
from polyadic.plot.static import static
from polyadic.plot.thumbnails import thumbnail
from polyadic.plot.times import timeline
from polyadic.plot.tuning import tuning

__all__ = [
    "channels",
    "class_means",
    "comparison",
    "component",
    "components",
    "confusion",
    "embedded",
    "features",
    "levels",
    "low_label",
    "preview",
    "profile",
    "readout",
    "replicability",
    "shares",
    "signals",
    "spectrum_by_class",
    "static",
    "subjects",
    "thumbnail",
    "timeline",
    "training",
    "tuning",
]
