"""Maps of the head, seen from above, for electrodes with a known position."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from polyadic.core.tensorizer import Axis
from polyadic.explain.electrodes import Places, sites
from polyadic.plot.style import compact, new_figure, short

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_CIRCLE = " L ".join(f"{np.cos(angle):.3f} {np.sin(angle):.3f}" for angle in np.linspace(0, 2 * np.pi, 73)[:-1])
_LETTERS = 72
"""Maximum total length of the electrode names on a map; above it, names are shown on hover only."""
_PER_LINE = 4


def head_maps(axis: Axis, parts: NDArray[np.float64], places: Places, title: str) -> Figure:
    """Plot the weights of channels (parts, I) as one map for each part; other channels are named below with theirs."""
    limit = float(np.abs(parts).max()) or 1.0
    low = -limit if float(parts.min()) < 0 else 0.0
    rest = [
        f"{short(axis.labels[number])} {' / '.join(f'{value:.2g}' for value in parts[:, number])}"
        for number in range(parts.shape[1])
        if number not in places
    ]
    lines = [", ".join(rest[first : first + _PER_LINE]) for first in range(0, len(rest), _PER_LINE)]
    height = 320 + 18 * len(lines)
    bottom = (60 + 18 * len(lines)) / height
    bar: dict[str, Any] = {"orientation": "h", "thickness": 8, "len": 0.5, "y": bottom, "yanchor": "top"}
    bar |= {"outlinewidth": 0, "tickvals": sorted({low, 0.0, limit}), "tickformat": ".2g"}
    bar |= {"title": {"text": title, "side": "top", "font": {"size": 12}}}
    colours = {"cmin": low, "cmax": limit, "autocolorscale": True, "colorbar": bar}
    figure = new_figure(height=height, showlegend=False, coloraxis=colours).set_subplots(
        1, len(parts), horizontal_spacing=0
    )
    for number, weights in enumerate(parts):
        _add_map(figure, axis, number, weights, places)
        figure.update_yaxes(scaleanchor=figure.data[-1].xaxis, col=number + 1)
    figure.update_xaxes(visible=False, constrain="domain", range=[-1.12, 1.12])
    figure.update_yaxes(visible=False, constrain="domain", range=[-1.12, 1.45], domain=[bottom + 0.04, 1])
    if lines:
        below = {"x": 0.5, "y": 0, "xref": "paper", "yref": "paper", "yanchor": "bottom", "showarrow": False}
        figure.add_annotation(text="<br>".join(lines), font={"size": 12}, **below)
    return figure


def _add_map(figure: Figure, axis: Axis, part: int, weights: NDArray[np.float64], places: Places) -> None:
    """Add one map with its electrodes, head and nose."""
    where = {"row": 1, "col": part + 1}
    xy, names = np.array(list(places.values())), [short("-".join(sites(axis.labels[channel]))) for channel in places]
    values = weights[list(places)]
    surface = interpolated(xy, values)
    step = 2 / (len(surface) - 1)
    grid = {"x0": -1, "dx": step, "y0": -1, "dy": step}
    figure.add_heatmap(z=compact(surface), **grid, coloraxis="coloraxis", hoverinfo="skip", zsmooth="best", **where)
    figure.add_scatter(
        x=compact(xy[:, 0]),
        y=compact(xy[:, 1]),
        mode="markers+text" if len(names) * max(map(len, names)) <= _LETTERS else "markers",
        text=names,
        textposition="top center",
        textfont={"size": 9},
        marker={"size": 5, "color": "#777", "line": {"width": 1, "color": "white"}},  # visible on any colour
        customdata=compact(values),
        hovertemplate="%{text}: %{customdata:.3g}<extra></extra>",
        **where,
    )
    # Cover everything outside the head in the page colour. Reports find this shape by name to recolour it.
    outside = f"M -1.1 -1.1 H 1.1 V 1.1 H -1.1 Z M {_CIRCLE} Z"
    cover = {"fillrule": "evenodd", "fillcolor": "white", "line_width": 0, "layer": "above", "name": "ground"}
    figure.add_shape(type="path", path=outside, **cover, **where)
    line = {"color": "#888", "width": 1.5}
    figure.add_shape(type="circle", x0=-1, x1=1, y0=-1, y1=1, line=line, **where)
    figure.add_shape(type="path", path="M -0.12 0.99 L 0 1.13 L 0.12 0.99", line=line, **where)
    figure.add_annotation(text=axis.parts[part], x=0, y=1.2, yanchor="bottom", showarrow=False, **where)


def interpolated(places: NDArray[np.float64], values: NDArray[np.float64], size: int = 32) -> NDArray[np.float64]:
    """Interpolate values (n,) at electrodes (n, 2) on a square grid, from the back of the head: (size, size)."""
    from scipy.interpolate import RBFInterpolator

    distinct, rows = np.unique(places, axis=0, return_inverse=True)
    means = np.bincount(rows.ravel(), weights=values) / np.bincount(rows.ravel())
    line = np.linspace(-1.0, 1.0, size)
    grid = np.stack(np.meshgrid(line, line), axis=-1).reshape(-1, 2)
    # Smooth and, unlike a thin-plate spline, also defined if all electrodes lie on one line.
    surface = RBFInterpolator(distinct, means, kernel="multiquadric", epsilon=2.0, degree=0)(grid)
    # Do not extrapolate: clip to the range of the electrodes' values.
    picture: NDArray[np.float64] = np.clip(surface, means.min(), means.max()).reshape(size, size)
    return picture
