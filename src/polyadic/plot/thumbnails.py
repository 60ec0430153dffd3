"""Small plots of the profiles of components, as in the table of the report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from polyadic._util.checks import check_integer
from polyadic.errors import PolyadicError
from polyadic.plot.canvas import PALETTE, blank, compact, graph_objects
from polyadic.plot.components import checked_axes
from polyadic.plot.sketches import Sketch, sketch

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

__all__ = ["thumbnail"]

_HEIGHT = 72
_NEGATIVE, _POSITIVE = (33, 102, 172), (178, 24, 43)
_HIDDEN = {"visible": False, "fixedrange": True}


def thumbnail(model: Any, r: int, mode: int, data: Any = None) -> Figure:
    """Plot one profile of a component without axes: a head for electrodes, bars for other channels, otherwise a line.

    On a head, red is positive and blue negative; the weaker the weight, the paler the electrode.

    Parameters
    ----------
    model : fitted
    r : number of the component, from 0
    mode : number of the mode, from 0
    data : `Windows` or a `WindowStore`, for the names of the channels

    Examples
    --------
    >>> from polyadic import SALS
    >>> model = SALS(rank=2, tensorize=None, max_sweeps=1).fit(np.random.default_rng(0).normal(size=(20, 3, 4)))
    >>> len(thumbnail(model, 0, 1).data[0].y)
    4
    """
    axes = checked_axes(model, r, data)
    check_integer("mode", mode, 0)
    if mode >= len(axes):
        raise PolyadicError(f"mode must be below {len(axes)}, the number of modes, but is {mode}")
    shown = sketch(axes[mode], model.factors_[mode][:, r])
    figure = blank(height=_HEIGHT, showlegend=False, barmode="group", xaxis=_HIDDEN, yaxis=_HIDDEN)
    if shown.kind == "head":
        _add_heads(figure, shown)
        return figure
    go = graph_objects()
    for number, values in enumerate(shown.values):
        colour, where = PALETTE[number], {"x": compact(shown.places), "y": compact(values)}
        if shown.kind == "bars":
            figure.add_trace(go.Bar(marker_color=colour, **where))
        else:
            figure.add_trace(
                go.Scatter(mode="lines", line={"color": colour, "width": 1.5}, fill="tozeroy",
                           fillcolor="rgba(68,119,170,.18)", **where)
            )  # fmt: skip
    return figure


def _add_heads(figure: Figure, shown: Sketch) -> None:
    """Add a head with its electrodes for each part."""
    go = graph_objects()
    width = 1.0 / len(shown.values)
    for number, values in enumerate(shown.values):
        name = "" if number == 0 else str(number + 1)
        strength = values / (float(np.abs(values).max()) or 1.0)
        colours = [
            f"rgba({','.join(map(str, _POSITIVE if one > 0 else _NEGATIVE))},{abs(one):.2f})" for one in strength
        ]
        x, y = compact(shown.places.T)
        figure.add_trace(
            go.Scatter(x=x, y=y, mode="markers", marker={"color": colours, "size": 7}, customdata=compact(values),
                       hovertemplate="%{customdata:.3g}<extra></extra>", xaxis=f"x{name}", yaxis=f"y{name}")
        )  # fmt: skip
        square = {"scaleanchor": f"x{name}", "anchor": f"x{name}", "range": [-1.1, 1.25]}
        across = {"domain": [number * width, (number + 1) * width], "anchor": f"y{name}", "range": [-1.1, 1.1]}
        figure.update_layout({f"xaxis{name}": _HIDDEN | across, f"yaxis{name}": _HIDDEN | square})
        pen = {"line": {"color": "#888", "width": 1}, "xref": f"x{name}", "yref": f"y{name}"}
        figure.add_shape(type="circle", x0=-1, x1=1, y0=-1, y1=1, **pen)
        figure.add_shape(type="path", path="M -0.15 0.98 L 0 1.2 L 0.15 0.98", **pen)
