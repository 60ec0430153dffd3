"""Plots of channel weights: scalp maps for known electrodes, bars otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from polyadic.core.tensorizer import Axis
from polyadic.plot.components import checked_axes, error_bars, weights_of
from polyadic.plot.electrodes import positions, site
from polyadic.plot.style import PALETTE, compact, line_up, new_figure, panel, short

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

__all__ = ["channels", "interpolated"]

_CIRCLE = " L ".join(
    f"{np.cos(angle):.3f} {np.sin(angle):.3f}" for angle in np.linspace(0, 2 * np.pi, 72, endpoint=False)
)
_OUTSIDE_HEAD = f"M -1.1 -1.1 H 1.1 V 1.1 H -1.1 Z M {_CIRCLE} Z"
_LETTERS = 72
"""Maximum total length of the electrode names on a scalp map; above it, names are shown on hover only."""

_Places = dict[int, tuple[float, float]]


def channels(model: Any, r: int, data: Any = None) -> Figure:
    """Plot the weights of one component on the channels: scalp maps for known electrodes, bars otherwise.

    Parts of an STFT, such as amplitude and phase, are shown as separate maps or in separate colours. Channels that are
    not electrodes are shown as cells below the maps, on the same colour scale.

    Parameters
    ----------
    model : fitted
    r : number of the component, from 0
    data : as for `components`

    Examples
    --------
    >>> from polyadic import SALS
    >>> from polyadic.data import Windows
    >>> windows = Windows(np.eye(24).reshape(24, 4, 6), fs=100, channels=["Fz", "C3", "C4", "Pz"])
    >>> model = SALS(rank=2, tensorize=None, max_sweeps=1).fit(windows)
    >>> channels(model, 0, windows).data[0].type
    'heatmap'
    """
    axis = checked_axes(model, r, data)[0]
    weights, band, title = weights_of(model, r, 0)
    parts = axis.by_part(weights)
    places = positions(axis.labels) if axis.kind == "channel" else {}
    return _scalp_maps(axis, parts, places, title) if places else _bars(axis, parts, title, band)


def _bars(axis: Axis, parts: NDArray[Any], title: str, band: NDArray[np.float64] | None) -> Figure:
    count = parts.shape[1]
    figure = new_figure(height=70 + max(4, count) * max(24, 16 * len(parts)), barmode="group", bargap=0.25)
    for number, weights in enumerate(parts):
        figure.add_bar(
            x=compact(weights),
            orientation="h",
            name=axis.parts[number],
            marker_color=PALETTE[number],
            hovertemplate="%{y}: %{x:.3g}<extra>%{fullData.name}</extra>",
            **error_bars("error_x", weights, band),
        )
    names = [short(name) for name in axis.labels] or [f"{position:g}" for position in axis.positions]
    return figure.update_layout(xaxis_title_text=title, yaxis=line_up(names), showlegend=len(parts) > 1)


def _scalp_maps(axis: Axis, parts: NDArray[Any], places: _Places, title: str) -> Figure:
    rest = [number for number in range(parts.shape[1]) if number not in places]
    below = 50 + 30 * len(rest) if rest else 0
    height = 310 + below
    bottom = (below + 50) / height
    limit = float(np.abs(parts).max()) or 1.0
    low = -limit if float(parts.min()) < 0 else 0.0
    bar: dict[str, Any] = {"orientation": "h", "thickness": 8, "len": 0.5, "y": bottom, "yanchor": "top"}
    bar |= {"outlinewidth": 0, "tickvals": sorted({low, 0.0, limit}), "tickformat": ".2g"}
    bar |= {"title": {"text": title, "side": "top", "font": {"size": 12}}}
    colours = {"cmin": low, "cmax": limit, "autocolorscale": True, "colorbar": bar}
    figure = new_figure(height=height, showlegend=False, coloraxis=colours)
    for number, weights in enumerate(parts):
        x = {"domain": [number / len(parts), (number + 1) / len(parts)], "range": [-1.12, 1.12]}
        y = {"domain": [bottom + 0.04, 1], "range": [-1.12, 1.45], "scaleanchor": f"x{number + 1 if number else ''}"}
        hidden = {"visible": False, "constrain": "domain"}
        _add_map(figure, axis, number, weights, places, panel(figure, number, hidden | x, hidden | y))
    if rest:
        # Cells with values, on the colour scale of the maps.
        ticks = {"tickvals": list(range(len(parts))), "ticktext": list(axis.parts), "showticklabels": len(parts) > 1}
        rows = line_up([short(axis.labels[number]) for number in rest]) | {
            "domain": [0, max(bottom - 80 / height, 0.05)]
        }
        where = panel(figure, len(parts), ticks | {"showgrid": False, "zeroline": False}, rows)
        values = compact(parts[:, rest].T)
        cells = {"texttemplate": "%{z:.2g}", "coloraxis": "coloraxis", "hoverinfo": "skip", "xgap": 2, "ygap": 2}
        figure.add_heatmap(z=values, **cells, **where)
    return figure


def _add_map(
    figure: Figure, axis: Axis, part: int, weights: NDArray[Any], places: _Places, where: dict[str, str]
) -> None:
    """Add one scalp map with its electrodes, head and nose."""
    xy, names = np.array(list(places.values())), [short(site(axis.labels[channel])) for channel in places]
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
    refs = {"xref": where["xaxis"], "yref": where["yaxis"]}
    # Cover everything outside the head in the page colour. Reports find this shape by name to recolour it.
    cover = {"fillrule": "evenodd", "fillcolor": "white", "line_width": 0, "layer": "above", "name": "ground"}
    figure.add_shape(type="path", path=_OUTSIDE_HEAD, **cover, **refs)
    line = {"color": "#888", "width": 1.5}
    figure.add_shape(type="circle", x0=-1, x1=1, y0=-1, y1=1, line=line, **refs)
    figure.add_shape(type="path", path="M -0.12 0.99 L 0 1.13 L 0.12 0.99", line=line, **refs)
    if axis.parts[part]:
        figure.add_annotation(text=axis.parts[part], x=0, y=1.2, yanchor="bottom", showarrow=False, **refs)


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
