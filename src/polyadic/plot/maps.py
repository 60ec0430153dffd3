"""Plots of channel weights: scalp maps for known electrodes, bars otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from polyadic.core.tensorizer import Axis
from polyadic.explain.scalp import interpolated
from polyadic.explain.spectra import Typical
from polyadic.plot.canvas import PALETTE, blank, compact, graph_objects, short
from polyadic.plot.components import checked_axes
from polyadic.plot.electrodes import positions, site

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

__all__ = ["channels"]

_CIRCLE = (
    "M "
    + " L ".join(f"{np.cos(angle):.3f} {np.sin(angle):.3f}" for angle in np.linspace(0, 2 * np.pi, 72, endpoint=False))
    + " Z"
)
_BAR = 24
_LETTERS = 72
"""Maximum total length of the electrode names on a scalp map; above it, names are shown on hover only."""


def channels(model: Any, r: int, data: Any = None, typical: Typical | None = None) -> Figure:
    """Plot the weights of one component on the channels: scalp maps for known electrodes, bars otherwise.

    Parts of an STFT, such as amplitude and phase, are shown as separate maps or in separate colours. Channels that are
    not electrodes are shown as cells below the maps, on the same colour scale.

    Parameters
    ----------
    model : fitted
    r : number of the component, from 0
    data : as for `components`
    typical : result of `polyadic.explain.typical`; if given, the plot shows how much one standard deviation of the
        component adds to each channel, where the component is strongest

    Examples
    --------
    >>> from polyadic import SALS
    >>> from polyadic.data import Windows
    >>> windows = Windows(np.eye(24).reshape(24, 4, 6), fs=100, channels=["Fz", "C3", "C4", "Pz"])
    >>> model = SALS(rank=2, tensorize=None, max_sweeps=1).fit(windows)
    >>> channels(model, 0, windows).data[0].type
    'heatmap'
    """
    mode = checked_axes(model, r, data)[0]
    parts = mode.by_part(model.factors_[0][:, r] if typical is None else typical.effect(model, r, 0))
    unit = "" if typical is None else typical.scale(typical.peak_row(model, r)).difference_unit
    title = "weight" if typical is None else f"added ({unit})" if unit else "added"
    places = positions(mode.labels) if mode.kind == "channel" else {}
    if not places:
        return _bar_figure(mode, parts, range(parts.shape[1]), title)
    rest = [number for number in range(parts.shape[1]) if number not in places]
    return _head_figure(mode, parts, places, rest, title)


def _bar_figure(mode: Axis, parts: NDArray[Any], shown: Sequence[int], title: str) -> Figure:
    figure = blank(height=70 + max(4, len(shown)) * max(_BAR, 16 * len(parts)), barmode="group", bargap=0.25)
    _add_bars(figure, mode, parts, shown, {})
    names = [short(mode.labels[number]) if mode.labels else f"{mode.positions[number]:g}" for number in shown]
    figure.update_layout(
        xaxis_title_text=title,
        yaxis={"tickvals": list(range(len(shown))), "ticktext": names, "autorange": "reversed", "showgrid": False},
        showlegend=len(parts) > 1,
    )
    return figure


def _add_bars(figure: Figure, mode: Axis, parts: NDArray[Any], shown: Sequence[int], where: dict[str, Any]) -> None:
    go = graph_objects()
    for number, weights in enumerate(parts):
        figure.add_trace(
            go.Bar(
                x=compact(weights[list(shown)]),
                orientation="h",
                name=mode.parts[number],
                marker_color=PALETTE[number],
                hovertemplate="%{y}: %{x:.3g}<extra>%{fullData.name}</extra>",
                **where,
            )
        )


def _head_figure(
    mode: Axis, parts: NDArray[Any], places: dict[int, tuple[float, float]], rest: list[int], title: str
) -> Figure:
    bars = 50 + 30 * len(rest) if rest else 0
    height = 310 + bars
    bottom = (bars + 50) / height
    limit = float(np.abs(parts).max()) or 1.0
    low = -limit if float(parts.min()) < 0 else 0.0
    colours = _colour_axis(low, limit, title, bottom)
    figure = blank(height=height, showlegend=False, coloraxis=colours)
    for number, weights in enumerate(parts):
        _add_map(figure, mode, weights, places, number)
        name = "" if number == 0 else str(number + 1)
        _draw_head(figure, name, number, len(parts), bottom, mode.parts[number])
    if rest:
        _add_other_channels(figure, mode, parts, rest, bottom - 80 / height)
    return figure


def _colour_axis(low: float, high: float, title: str, bottom: float) -> dict[str, Any]:
    bar: dict[str, Any] = {"orientation": "h", "thickness": 8, "len": 0.5, "y": bottom, "yanchor": "top"}
    bar |= {"outlinewidth": 0, "tickvals": sorted({low, 0.0, high}), "tickformat": ".2g"}
    bar |= {"title": {"text": title, "side": "top", "font": {"size": 12}}}
    return {"cmin": low, "cmax": high, "autocolorscale": True, "colorbar": bar}


def _add_map(
    figure: Figure, mode: Axis, weights: NDArray[Any], places: dict[int, tuple[float, float]], number: int
) -> None:
    """Add one scalp map with its electrodes."""
    go = graph_objects()
    xy, names = np.array(list(places.values())), [short(site(mode.labels[channel])) for channel in places]
    name = "" if number == 0 else str(number + 1)
    where = {"xaxis": f"x{name}", "yaxis": f"y{name}"}
    values = weights[list(places)]
    picture = interpolated(xy, values)
    step = 2 / (len(picture) - 1)
    figure.add_trace(
        go.Heatmap(z=compact(picture), x0=-1, dx=step, y0=-1, dy=step, coloraxis="coloraxis", hoverinfo="skip",
                   zsmooth="best", **where)
    )  # fmt: skip
    figure.add_trace(
        go.Scatter(
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
    )


def _add_other_channels(figure: Figure, mode: Axis, parts: NDArray[Any], rest: list[int], top: float) -> None:
    """Add cells with values for channels that are not electrodes, on the colour scale of the maps."""
    go = graph_objects()
    name, values = str(len(parts) + 1), compact(parts[:, rest].T)
    figure.add_trace(
        go.Heatmap(
            z=values,
            text=[[f"{value:.2g}" for value in row] for row in values.tolist()],
            texttemplate="%{text}",
            coloraxis="coloraxis",
            hoverinfo="skip",
            xgap=2,
            ygap=2,
            xaxis=f"x{name}",
            yaxis=f"y{name}",
        )
    )
    labels = {"tickvals": list(range(len(rest))), "ticktext": [short(mode.labels[number]) for number in rest]}
    figure.update_layout(
        {
            f"xaxis{name}": {
                "anchor": f"y{name}",
                "tickvals": list(range(len(parts))),
                "ticktext": list(mode.parts),
                "showticklabels": len(parts) > 1,
                "showgrid": False,
                "zeroline": False,
            },
            f"yaxis{name}": labels
            | {"domain": [0, max(top, 0.05)], "anchor": f"x{name}", "autorange": "reversed", "showgrid": False},
        }
    )


def _draw_head(figure: Figure, name: str, number: int, count: int, bottom: float, title: str) -> None:
    """Draw head and nose around a map, and set up its axes."""
    width = 1.0 / count
    hidden = {"visible": False, "range": [-1.12, 1.12]}
    figure.update_layout(
        {
            f"xaxis{name}": hidden | {"domain": [number * width, (number + 1) * width], "constrain": "domain"},
            f"yaxis{name}": hidden
            | {
                "anchor": f"x{name}",
                "domain": [bottom + 0.04, 1],
                "scaleanchor": f"x{name}",
                "constrain": "domain",
                "range": [-1.12, 1.45],
            },
        }
    )
    where = {"xref": f"x{name}", "yref": f"y{name}"}
    pen = {"line": {"color": "#888", "width": 1.5}, **where}
    # Cover everything outside the head in the page colour. Reports find this shape by name to recolour it.
    figure.add_shape(
        type="path",
        path=f"M -1.1 -1.1 H 1.1 V 1.1 H -1.1 Z {_CIRCLE}",
        fillrule="evenodd",
        fillcolor="white",
        line_width=0,
        layer="above",
        name="ground",
        **where,
    )
    figure.add_shape(type="circle", x0=-1, x1=1, y0=-1, y1=1, **pen)
    figure.add_shape(type="path", path="M -0.12 0.99 L 0 1.13 L 0.12 0.99", **pen)
    if title:
        figure.add_annotation(text=title, x=0, y=1.2, yanchor="bottom", showarrow=False, **where)
