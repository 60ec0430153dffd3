"""Plots of what a model learned: channels as heads or bars, frequencies in Hz, times in seconds, means by class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from polyadic.checks import check_integer
from polyadic.electrodes import positions, site
from polyadic.errors import PolyadicError
from polyadic.explain.scalp import interpolated
from polyadic.plot.canvas import PALETTE, blank, compact, graph_objects, short
from polyadic.tensorize import Axis

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

__all__ = ["channels", "class_means", "component", "components", "profile"]

_CIRCLE = (
    "M "
    + " L ".join(f"{np.cos(angle):.3f} {np.sin(angle):.3f}" for angle in np.linspace(0, 2 * np.pi, 72, endpoint=False))
    + " Z"
)
_ROW = 96
_BAR = 24
_SLOPED = 3
_NAMED = 20
"""So many names of channels fit below a column sloped, and upright."""
_LETTERS = 72
"""So many letters of names fit on a head."""


def components(model: Any, data: Any = None, count: int = 12) -> Figure:
    """The first components, one below the other: a row for each, a column for each mode.

    Parameters
    ----------
    model : fitted
    data : `Windows` or a `WindowStore`, for the sampling rate and the names of the channels
    count : how many components, at most

    Examples
    --------
    >>> from polyadic import SALS
    >>> model = SALS(rank=2, tensorize=None, max_sweeps=1).fit(np.random.default_rng(0).normal(size=(20, 3, 4)))
    >>> len(components(model).data)
    4
    """
    check_is_fitted(model)
    check_integer("count", count, 1)
    found, rows = model.axes(data), min(int(count), model.rank)
    figure = blank(height=60 + _ROW * rows, showlegend=False)
    width, height = 1.0 / len(found), 1.0 / rows
    for r in range(rows):
        for column, (mode, factor) in enumerate(zip(found, model.factors_, strict=True)):
            number = r * len(found) + column + 1
            name = "" if number == 1 else str(number)
            bottom = 1 - (r + 1) * height
            last = r == rows - 1
            figure.update_layout(
                {
                    f"xaxis{name}": _x_axis(mode, column, width) | {"anchor": f"y{name}", "showticklabels": last},
                    f"yaxis{name}": {
                        "domain": [bottom + 0.12 * height, bottom + height],
                        "anchor": f"x{name}",
                        "showticklabels": False,
                        "title": {"text": str(r + 1) if column == 0 else ""},
                    },
                }
            )
            if last:
                figure.layout[f"xaxis{name}"].title = {"text": mode.title}
            for part, weights in enumerate(mode.by_part(factor[:, r])):
                where = {"xaxis": f"x{name}", "yaxis": f"y{name}", "name": mode.parts[part]}
                if mode.kind == "channel":
                    figure.add_trace(_channel_bars(mode, weights, part, where))
                else:
                    figure.add_trace(_line(mode, weights, where))
    return figure


def _x_axis(mode: Axis, column: int, width: float) -> dict[str, Any]:
    axis: dict[str, Any] = {"domain": [(column + 0.16 * (column > 0)) * width, (column + 1) * width]}
    return axis | (_channel_ticks(mode) if mode.kind == "channel" else {})


def _channel_ticks(mode: Axis) -> dict[str, Any]:
    """An axis of channels. The names stand at numbers, for plotly would take some names for dates."""
    names = [short(name) for name in mode.labels]
    # Upright there is room for more; of very many some are named, and the pointer tells the others.
    shown = range(0, len(names), -(-len(names) // _NAMED))
    slope = {"tickangle": -40} if len(names) <= _SLOPED else {"tickangle": -90, "tickfont": {"size": 10}}
    return {"tickvals": list(shown), "ticktext": [names[number] for number in shown], **slope}


def _channel_bars(mode: Axis, weights: NDArray[Any], part: int, where: dict[str, Any]) -> Any:
    """A bar for each channel."""
    return graph_objects().Bar(
        y=compact(weights),
        marker_color=PALETTE[part],
        customdata=[short(name) for name in mode.labels],
        hovertemplate="%{customdata}: %{y:.3g}<extra></extra>",
        **where,
    )


def _line(mode: Axis, weights: NDArray[Any], where: dict[str, Any]) -> Any:
    go = graph_objects()
    return go.Scatter(
        x=compact(mode.positions),
        y=compact(weights),
        mode="lines",
        line={"color": PALETTE[0], "width": 2},
        fill="tozeroy",
        fillcolor="rgba(68,119,170,.15)",
        hovertemplate=f"%{{x:.3g}} {mode.unit}: %{{y:.3g}}<extra></extra>",
        **where,
    )


def component(model: Any, r: int, data: Any = None) -> Figure:
    """One component: its weights in every mode, side by side.

    Parameters
    ----------
    model : fitted
    r : number of the component, from 0
    data : as for `components`

    Examples
    --------
    >>> from polyadic import SALS
    >>> model = SALS(rank=2, tensorize=None, max_sweeps=1).fit(np.random.default_rng(0).normal(size=(20, 3, 4)))
    >>> [axis.title.text for axis in component(model, 1).select_xaxes()]
    ['mode 1', 'mode 2']
    """
    found = _checked_axes(model, r, data)
    figure = blank(height=300)
    width = 1.0 / len(found)
    for column, (mode, factor) in enumerate(zip(found, model.factors_, strict=True)):
        name = "" if column == 0 else str(column + 1)
        figure.update_layout(
            {
                f"xaxis{name}": _x_axis(mode, column, width) | {"anchor": f"y{name}", "title": {"text": mode.title}},
                f"yaxis{name}": {"anchor": f"x{name}"},
            }
        )
        for part, weights in enumerate(mode.by_part(factor[:, r])):
            where = {"xaxis": f"x{name}", "yaxis": f"y{name}", "name": mode.parts[part]}
            if mode.kind == "channel":
                show = len(mode.parts) > 1
                figure.add_trace(_channel_bars(mode, weights, part, where | {"showlegend": show}))
            else:
                figure.add_trace(_line(mode, weights, where | {"showlegend": False}))
    return figure


def profile(model: Any, r: int, mode: int, data: Any = None) -> Figure:
    """The weights of one component along one mode, as over frequency or time.

    Parameters
    ----------
    model : fitted
    r : number of the component, from 0
    mode : number of the mode, from 0
    data : as for `components`

    Examples
    --------
    >>> from polyadic import SALS
    >>> model = SALS(rank=2, tensorize=None, max_sweeps=1).fit(np.random.default_rng(0).normal(size=(20, 3, 4)))
    >>> profile(model, 0, 1).layout.xaxis.title.text
    'mode 2'
    """
    found = _checked_axes(model, r, data)
    check_integer("mode", mode, 0)
    if mode >= len(found):
        raise PolyadicError(f"mode must be below {len(found)}, the number of modes, but is {mode}")
    figure = blank(height=240, showlegend=False)
    figure.add_trace(_line(found[mode], model.factors_[mode][:, r], {}))
    figure.update_layout(xaxis_title_text=found[mode].title, yaxis_title_text="weight")
    return figure


def channels(model: Any, r: int, data: Any = None) -> Figure:
    """The weights of one component on the channels: maps of the head where electrodes are known, else bars.

    The parts of an STFT, as amplitude and phase, have a map or a colour each. Channels that are no electrodes have bars
    below the maps.

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
    mode = _checked_axes(model, r, data)[0]
    parts = mode.by_part(model.factors_[0][:, r])
    places = positions(mode.labels) if mode.kind == "channel" else {}
    if not places:
        return _bar_figure(mode, parts, range(parts.shape[1]))
    rest = [number for number in range(parts.shape[1]) if number not in places]
    return _head_figure(mode, parts, places, rest)


def _bar_figure(mode: Axis, parts: NDArray[Any], shown: Sequence[int]) -> Figure:
    figure = blank(height=70 + max(4, len(shown)) * max(_BAR, 16 * len(parts)), barmode="group", bargap=0.25)
    _add_bars(figure, mode, parts, shown, {})
    names = [short(mode.labels[number]) if mode.labels else f"{mode.positions[number]:g}" for number in shown]
    figure.update_layout(
        xaxis_title_text="weight",
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


def _head_figure(mode: Axis, parts: NDArray[Any], places: dict[int, tuple[float, float]], rest: list[int]) -> Figure:
    go = graph_objects()
    bars = 70 + 34 * len(rest) if rest else 0
    height = 300 + bars
    bottom = (bars + 40) / height
    limit = float(np.abs(parts).max()) or 1.0
    figure = blank(
        height=height,
        showlegend=False,
        coloraxis={
            "cmin": -limit,
            "cmax": limit,
            "autocolorscale": True,
            "colorbar": {
                "orientation": "h",
                "thickness": 8,
                "len": 0.5,
                "y": bottom,
                "yanchor": "top",
                "outlinewidth": 0,
                "tickvals": [-limit, 0, limit],
                "tickformat": ".2g",
            },
        },
    )
    xy, names = np.array(list(places.values())), [short(site(mode.labels[channel])) for channel in places]
    for number, weights in enumerate(parts):
        name = "" if number == 0 else str(number + 1)
        where = {"xaxis": f"x{name}", "yaxis": f"y{name}"}
        values = weights[list(places)]
        picture = interpolated(xy, values)
        step = 2 / (len(picture) - 1)
        figure.add_trace(
            go.Heatmap(
                z=compact(picture),
                x0=-1,
                dx=step,
                y0=-1,
                dy=step,
                coloraxis="coloraxis",
                hoverinfo="skip",
                zsmooth="best",
                **where,
            )
        )
        figure.add_trace(
            go.Scatter(
                x=compact(xy[:, 0]),
                y=compact(xy[:, 1]),
                mode="markers+text" if len(names) * max(map(len, names)) <= _LETTERS else "markers",
                text=names,
                textposition="top center",
                textfont={"size": 9},
                marker={"size": 4, "color": "#777"},
                customdata=compact(values),
                hovertemplate="%{text}: %{customdata:.3g}<extra></extra>",
                **where,
            )
        )
        _draw_head(figure, name, number, len(parts), bottom, mode.parts[number])
    if rest:
        name = str(len(parts) + 1)
        _add_bars(figure, mode, parts, rest, {"xaxis": f"x{name}", "yaxis": f"y{name}"})
        labels = {"tickvals": list(range(len(rest))), "ticktext": [short(mode.labels[number]) for number in rest]}
        figure.update_layout(
            {
                f"xaxis{name}": {"anchor": f"y{name}", "title": {"text": "weight"}},
                f"yaxis{name}": labels
                | {"domain": [0, bottom - 80 / height], "anchor": f"x{name}", "autorange": "reversed"},
            }
        )
    return figure


def _draw_head(figure: Figure, name: str, number: int, count: int, bottom: float, title: str) -> None:
    """Head and nose around a map, and its axes."""
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
    # What lies around the head is covered in the colour of the page, named so that another theme finds it.
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


def class_means(Z: ArrayLike, label: ArrayLike, r: int, classes: Sequence[str] = ()) -> Figure:
    """The mean coefficient of one component in each class, with the standard deviation within the class.

    Parameters
    ----------
    Z : (N, rank), coefficients
    label : (N,), classes from 0 on; -1 where none is known
    r : number of the component, from 0
    classes : their names

    Examples
    --------
    >>> class_means([[1.0], [3.0], [5.0]], [0, 0, 1], 0).data[0].x.tolist()
    [2.0, 5.0]
    """
    go = graph_objects()
    values, codes = np.asarray(Z)[:, r], np.asarray(label)
    present = np.unique(codes[codes >= 0]).tolist()
    groups = [values[codes == code] for code in present]
    names = [short(classes[code]) if len(classes) else str(code) for code in present]
    figure = blank(height=70 + _BAR * max(4, len(present)), showlegend=False)
    figure.add_trace(
        go.Scatter(
            x=compact([group.mean() for group in groups]),
            y=list(range(len(present))),
            mode="markers",
            marker={"size": 10, "color": [PALETTE[code % len(PALETTE)] for code in present]},
            error_x={"type": "data", "array": compact([group.std() for group in groups]), "thickness": 1.2},
            hovertemplate="%{y}: %{x:.3g} ± %{error_x.array:.2g}<extra></extra>",
        )
    )
    figure.update_layout(
        xaxis_title_text="mean coefficient ± standard deviation",
        yaxis={
            "tickvals": list(range(len(present))),
            "ticktext": names,
            "range": [len(present) - 0.5, -0.5],
            "showgrid": False,
            "zeroline": False,
        },
    )
    return figure


def _checked_axes(model: Any, r: int, data: Any) -> list[Axis]:
    check_is_fitted(model)
    check_integer("r", r, 0)
    if r >= model.rank:
        raise PolyadicError(f"r must be below {model.rank}, the rank of the model, but is {r}")
    axes: list[Axis] = model.axes(data)
    return axes
