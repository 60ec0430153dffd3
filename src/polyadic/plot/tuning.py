"""A plot of the settings that `polyadic.tune` tried: scores against each setting that was varied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from polyadic.plot.canvas import NEUTRAL, PALETTE, blank, graph_objects, short

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

__all__ = ["tuning"]

_LABELS = {
    "n_fft": "frame length, samples",
    "hop": "hop, samples",
    "nonnegative": "non-negative",
    "view": "view in the fit",
    "levels": "levels",
    "whiten": "whitening",
    "recenter": "recentring",
}
_KINDS = {False: ("scored with two probe settings", NEUTRAL), True: ("scored with all probe settings", PALETTE[0])}
_LEAST = 2
_ROW = 150


def tuning(tries: Sequence[dict[str, Any]], recommended: dict[str, Any]) -> Figure:
    """Plot the balanced accuracy of every trial against each varied setting; the recommended value is marked.

    Parameters
    ----------
    tries : as `Tuning.to_dict()["tries"]`
    recommended : as `Tuning.to_dict()["recommended"]`

    Examples
    --------
    >>> tries = [{"rank": 8, "score": 0.7, "full": True}, {"rank": 16, "score": 0.8, "full": True}]
    >>> tuning(tries, {"rank": 16}).layout.xaxis.title.text
    'rank'
    """
    go = graph_objects()
    names = [name for name in recommended if len({one[name] for one in tries}) >= _LEAST]
    rows = max(1, -(-len(names) // 2))
    figure = blank(height=90 + _ROW * rows, showlegend=True)
    figure.update_layout(legend={"orientation": "h", "x": 0.0, "y": 1.02, "yanchor": "bottom"})
    for number, name in enumerate(names):
        values = sorted({one[name] for one in tries}, key=lambda value: (isinstance(value, str), value))
        places = {value: place for place, value in enumerate(values)}
        axis = "" if number == 0 else str(number + 1)
        column, row = number % 2, number // 2
        gap = 0.09
        low = 1 - (row + 1) / rows
        for full, (text, colour) in _KINDS.items():
            own = [one for one in tries if one["full"] == full]
            figure.add_trace(
                go.Scatter(
                    x=[places[one[name]] for one in own],
                    y=[100 * one["score"] for one in own],
                    mode="markers",
                    name=text,
                    legendgroup=text,
                    showlegend=number == 0,
                    marker={"size": 7, "opacity": 0.7, "color": colour},
                    xaxis=f"x{axis}",
                    yaxis=f"y{axis}",
                    hovertemplate="%{y:.1f} %<extra></extra>",
                )
            )
        texts = [short(_text(value)) + (" *" if value == recommended[name] else "") for value in values]
        figure.update_layout(
            {
                f"xaxis{axis}": {
                    "domain": [0.0, 0.5 - gap / 2] if column == 0 else [0.5 + gap / 2, 1.0],
                    "anchor": f"y{axis}",
                    "title": {"text": _LABELS.get(name, name)},
                    "tickvals": list(range(len(values))),
                    "ticktext": texts,
                    "range": [-0.5, len(values) - 0.5],
                    "showgrid": False,
                    "zeroline": False,
                },
                f"yaxis{axis}": {
                    "domain": [low + 0.35 / rows, low + 0.95 / rows],
                    "anchor": f"x{axis}",
                    "title": {"text": "balanced accuracy, %" if column == 0 and row == 0 else ""},
                },
            }
        )
    return figure


def _text(value: Any) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
