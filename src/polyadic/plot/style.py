"""The common style of all plots: empty figures, panels, colour-blind safe colours, and names as plain text."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from polyadic._util.packages import import_package

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

PALETTE = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#888888")
"""Paul Tol's bright scheme, which is colour-blind safe and works on light and dark backgrounds."""
NEUTRAL = PALETTE[-1]
SYMBOLS = ("circle", "diamond", "square", "triangle-up", "x", "star")

_SEQUENTIAL = [[0.0, "#f4f6f9"], [0.5, "#86a9cf"], [1.0, "#1f4e8c"]]
_DIVERGING = [[0.0, "#2166ac"], [0.25, "#92c5de"], [0.5, "#f7f7f7"], [0.75, "#f4a582"], [1.0, "#b2182b"]]
# Invisible ticks keep the labels of two axes apart.
_AXIS = {"gridcolor": "#e6e8ec", "zerolinecolor": "#c3c8d0", "automargin": True, "title": {"standoff": 8}}
_AXIS |= {"ticks": "outside", "ticklen": 5, "tickcolor": "rgba(0,0,0,0)"}
_LONGEST = 28


def new_figure(height: int = 320, **layout: Any) -> Figure:
    """Return an empty figure in the common style, or raise an error that says how to install plotly."""
    go = import_package("plotly.graph_objects", "a plot")
    style = go.layout.Template(
        layout={
            "font": {"family": "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", "size": 13},
            "colorway": list(PALETTE),
            "paper_bgcolor": "white",
            "plot_bgcolor": "white",
            "xaxis": _AXIS,
            "yaxis": _AXIS,
            "colorscale": {"sequential": _SEQUENTIAL, "diverging": _DIVERGING, "sequentialminus": _SEQUENTIAL[::-1]},
        }
    )
    figure: Figure = go.Figure(
        layout={
            "template": style,
            "height": height,
            "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
            "legend": {"orientation": "h", "yanchor": "bottom", "y": 1.02, "xanchor": "left", "x": 0},
            "hoverlabel": {"align": "left"},
            "bargap": 0.3,
        }
    )
    return figure.update_layout(**layout)


def dots(names: Sequence[str], x: Any, colours: Sequence[str], title: str, **error: Any) -> Figure:
    """Return a figure with one dot per row, with the error bars `array` and, if these are asymmetric, `arrayminus`."""
    figure = new_figure(height=56 + 24 * max(4, len(names)), showlegend=False)
    figure.add_scatter(
        x=compact(x),
        y=list(range(len(names))),
        mode="markers",
        marker={"size": 10, "color": list(colours)},
        error_x={"type": "data", "thickness": 1.3} | {name: compact(values) for name, values in error.items()},
        hovertemplate="%{y}: %{x:.3g}<extra></extra>",
    )
    return figure.update_layout(xaxis_title_text=title, yaxis=line_up(names))


def line_up(names: Sequence[str]) -> dict[str, Any]:
    """Return the settings of a vertical axis with one row per name, the first at the top.

    Names are labels of numeric ticks, because plotly would parse some names as dates or numbers.
    """
    ticks = {"tickvals": list(range(len(names))), "ticktext": list(names)}
    return ticks | {"range": [len(names) - 0.5, -0.5], "showgrid": False, "zeroline": False}


def short(name: str, most: int = _LONGEST) -> str:
    """Shorten a name from the data and escape it, because plotly reads tags as markup.

    Examples
    --------
    >>> short("<b>x</b>")
    '&lt;b&gt;x&lt;/b&gt;'
    """
    text = " ".join(str(name).split())
    return escape(text if len(text) <= most else text[: most - 1] + "…", quote=False)


def compact(values: Any) -> NDArray[np.float32]:
    """Convert the numbers of a plot to float32, which is precise enough to draw and halves the size of the figure."""
    return np.ascontiguousarray(values, dtype=np.float32)
