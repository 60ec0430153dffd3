"""Shared by all plots: empty figures in one style, colour-blind safe colours, and names as plain text."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from polyadic.errors import MissingExtraError

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

__all__ = ["LESS", "MORE", "NEUTRAL", "PALETTE", "SYMBOLS", "blank", "compact", "graph_objects", "short"]

PALETTE = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#888888")
"""Paul Tol's bright scheme, which is colour-blind safe and works on light and dark backgrounds."""

LESS, MORE, NEUTRAL = PALETTE[0], PALETTE[1], PALETTE[-1]
"""Colours for less, more and neither."""

SYMBOLS = ("circle", "diamond", "square", "triangle-up", "x", "triangle-down", "star")

_SEQUENTIAL = [[0.0, "#f4f6f9"], [0.5, "#86a9cf"], [1.0, "#1f4e8c"]]
_DIVERGING = [[0.0, "#2166ac"], [0.25, "#92c5de"], [0.5, "#f7f7f7"], [0.75, "#f4a582"], [1.0, "#b2182b"]]
_LONGEST = 28


def graph_objects() -> Any:
    """Import plotly's graph objects, or raise an error that says how to install them."""
    try:
        import plotly.graph_objects as go
    except ImportError as error:
        raise MissingExtraError("plots need plotly, which is not installed: pip install 'polyadic[report]'") from error
    return go


def blank(height: int = 320, **layout: Any) -> Figure:
    """Return an empty figure in the common style."""
    go = graph_objects()
    axis = {"gridcolor": "#e6e8ec", "zerolinecolor": "#c3c8d0", "automargin": True, "title": {"standoff": 8}}
    # Invisible ticks keep the labels of two axes apart.
    axis |= {"ticks": "outside", "ticklen": 5, "tickcolor": "rgba(0,0,0,0)"}
    style = go.layout.Template(
        layout={
            "font": {"family": "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", "size": 13},
            "colorway": list(PALETTE),
            "paper_bgcolor": "white",
            "plot_bgcolor": "white",
            "xaxis": axis,
            "yaxis": axis,
            "colorscale": {"sequential": _SEQUENTIAL, "diverging": _DIVERGING, "sequentialminus": _SEQUENTIAL[::-1]},
        }
    )
    settings = {
        "height": height,
        "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
        "legend": {"orientation": "h", "yanchor": "bottom", "y": 1.02, "xanchor": "left", "x": 0},
        "hoverlabel": {"align": "left"},
        "bargap": 0.3,
    }
    figure: Figure = go.Figure(layout=go.Layout(template=style, **settings))
    figure.update_layout(**layout)
    return figure


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
