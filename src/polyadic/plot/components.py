"""Plots of components: profiles over frequency and time, typical spectra, and differences between classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from polyadic._util.checks import check_integer
from polyadic.core.tensorizer import Axis
from polyadic.errors import PolyadicError
from polyadic.explain.spectra import Typical, effect_sizes, is_flat
from polyadic.plot.canvas import LESS, MORE, NEUTRAL, PALETTE, blank, compact, graph_objects, short

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

__all__ = ["checked_axes", "class_means", "component", "components", "profile", "spectrum_by_class"]

_ROW = 96
_BAR = 24
_SLOPED = 3
_NAMED = 20
"""Maximum number of channel names below a column: with sloped labels, and with vertical ones."""


def components(model: Any, data: Any = None, count: int = 12) -> Figure:
    """Plot the first components: one row per component, one column per mode.

    Parameters
    ----------
    model : fitted
    data : `Windows` or a `WindowStore`, for the sampling rate and the names of the channels
    count : maximum number of components

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
    """Return the tick settings of a channel axis.

    Names are labels of numeric ticks, because plotly would parse some names as dates.
    """
    names = [short(name) for name in mode.labels]
    # Vertical labels need less space. If there are too many, only some are shown; hovering shows the others.
    shown = range(0, len(names), -(-len(names) // _NAMED))
    slope = {"tickangle": -40} if len(names) <= _SLOPED else {"tickangle": -90, "tickfont": {"size": 10}}
    return {"tickvals": list(shown), "ticktext": [names[number] for number in shown], **slope}


def _channel_bars(mode: Axis, weights: NDArray[Any], part: int, where: dict[str, Any]) -> Any:
    """Return a bar trace with one bar per channel."""
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
    """Plot the weights of one component in every mode, side by side.

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
    found = checked_axes(model, r, data)
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


def profile(model: Any, r: int, mode: int, data: Any = None, typical: Typical | None = None) -> Figure:
    """Plot the weights of one component along one mode, such as frequency or time, in physical units if known.

    With `typical`, the line shows how much one standard deviation of the component adds where the component is
    strongest. For a frequency mode, a panel above it shows the mean spectrum of the strongest channel, with ±1 SD of
    the component.

    Parameters
    ----------
    model : fitted
    r : number of the component, from 0
    mode : number of the mode, from 0
    data : as for `components`
    typical : result of `polyadic.explain.typical`

    Examples
    --------
    >>> from polyadic import SALS
    >>> model = SALS(rank=2, tensorize=None, max_sweeps=1).fit(np.random.default_rng(0).normal(size=(20, 3, 4)))
    >>> profile(model, 0, 1).layout.xaxis.title.text
    'mode 2'
    """
    found = checked_axes(model, r, data)
    check_integer("mode", mode, 0)
    if mode >= len(found):
        raise PolyadicError(f"mode must be below {len(found)}, the number of modes, but is {mode}")
    axis, weights = found[mode], np.asarray(model.factors_[mode][:, r])
    if typical is None:
        figure = blank(height=240, showlegend=False)
        figure.add_trace(_line(axis, weights, {}))
        figure.update_layout(xaxis_title_text=axis.title, yaxis_title_text="weight")
        _show_whole_window(figure, model, axis, data)
        return figure
    unit = typical.scale(typical.peak_row(model, r)).difference_unit
    if axis.kind == "frequency" and found[0].kind == "channel":
        figure = _over_typical_spectrum(model, r, mode, found, typical)
    else:
        figure = blank(height=240, showlegend=False)
        figure.add_trace(_line(axis, typical.effect(model, r, mode), {}))
        figure.update_layout(xaxis_title_text=axis.title, yaxis_title_text=_in_unit("added", unit))
    _show_whole_window(figure, model, axis, data)
    if is_flat(weights):
        figure.add_annotation(
            text="no distinct peak", x=1, y=0.02, xref="paper", yref="paper", xanchor="right", yanchor="bottom",
            showarrow=False, font={"size": 11},
        )  # fmt: skip
    figure.update_yaxes(rangemode="tozero", selector={"anchor": "x"})
    return figure


def _show_whole_window(figure: Figure, model: Any, axis: Axis, data: Any) -> None:
    """Extend a time axis to the whole window, because frame centres do not reach its ends."""
    if axis.kind == "time" and model.tensorize_ is not None:
        rate = getattr(data, "fs", None) or model.fs_ or 1.0
        figure.update_xaxes(range=[0, max(model._sample_shape[-1] / rate, float(axis.positions[-1]))])


def _in_unit(what: str, unit: str) -> str:
    return f"{what} ({unit})" if unit else what


def _over_typical_spectrum(model: Any, r: int, mode: int, axes: Sequence[Axis], typical: Typical) -> Figure:
    """Plot the mean spectrum of the strongest channel ±1 SD of a component, and below it what the component adds."""
    go = graph_objects()
    row = typical.peak_row(model, r)
    scale, where = typical.scale(row), compact(axes[mode].positions)
    middle, added = typical.spectrum(row, mode), typical.added(model, r, row, mode)
    figure = blank(height=380)
    lines = (
        ("1 SD less", middle - added, LESS, "solid", None),
        ("1 SD more", middle + added, MORE, "solid", "tonexty"),
        ("typical", middle, NEUTRAL, "dash", None),
    )
    for name, values, colour, dash, fill in lines:
        pen = {"color": colour, "width": 1.5, "dash": dash}
        hover = f"%{{x:.3g}} {axes[mode].unit}: %{{y:.3g}} {scale.unit}<extra>%{{fullData.name}}</extra>"
        shade = {"fill": fill, "fillcolor": "rgba(136,136,136,.18)"} if fill else {}
        figure.add_trace(
            go.Scatter(x=where, y=compact(values), mode="lines", name=name, line=pen, hovertemplate=hover,
                       xaxis="x2", yaxis="y2", **shade)
        )  # fmt: skip
    figure.add_trace(_line(axes[mode], typical.effect(model, r, mode), {"showlegend": False, "name": "added"}))
    channel = short(axes[0].labels[row % len(axes[0].labels)], 14)
    figure.update_layout(
        xaxis={"title": {"text": axes[mode].title}, "anchor": "y"},
        yaxis={"domain": [0, 0.36], "title": {"text": _in_unit("added", scale.difference_unit)}, "anchor": "x"},
        xaxis2={"anchor": "y2", "matches": "x", "showticklabels": False},
        yaxis2={"domain": [0.44, 1], "title": {"text": _in_unit(channel, scale.unit)}, "anchor": "x2"},
    )
    return figure


def spectrum_by_class(
    typical: Typical, channel: str | int = 0, part: int = 0, band: tuple[float, float] | None = None
) -> Figure:
    """Plot the mean spectrum of one channel in each class.

    Parameters
    ----------
    typical : result of `polyadic.explain.typical` on windows with labels
    channel : name of the channel, or its index
    part : index of the part, for an STFT with several parts such as amplitude and phase
    band : lowest and highest frequency of a band to shade

    Examples
    --------
    >>> from polyadic import ATD
    >>> from polyadic.data import synthetic
    >>> from polyadic.explain import typical
    >>> signals = synthetic(60, n_channels=2)
    >>> model = ATD(rank=2, max_sweeps=2).fit(signals)
    >>> [line.name for line in spectrum_by_class(typical(model, signals)).data]
    ['0', '1', '2', '3']
    """
    go = graph_objects()
    kinds = [axis.kind for axis in typical.axes]
    if "frequency" not in kinds or kinds[0] != "channel":
        raise PolyadicError("spectra need tensors of channels by frequencies, such as those of an STFT")
    if not typical.classes:
        raise PolyadicError("spectra by class need windows with labels, but no window has a label")
    labels = typical.axes[0].labels
    if isinstance(channel, str) and channel not in labels:
        raise PolyadicError(f"channel must be one of {', '.join(labels[:20])}, but is {channel!r}")
    number = labels.index(channel) if isinstance(channel, str) else int(channel)
    row, mode = part * len(labels) + number, kinds.index("frequency")
    axis, unit = typical.axes[mode], typical.scale(row).unit
    figure = blank(height=300)
    for code, name, line in zip(typical.codes, typical.classes, typical.spectra_by_class(row, mode), strict=True):
        hover = f"%{{x:.3g}} {axis.unit}: %{{y:.3g}} {unit}<extra>%{{fullData.name}}</extra>"
        pen = {"color": PALETTE[code % len(PALETTE)], "width": 2, "dash": "dash" if code >= len(PALETTE) else "solid"}
        figure.add_trace(
            go.Scatter(
                x=compact(axis.positions),
                y=compact(line),
                mode="lines",
                name=short(name),
                line=pen,
                hovertemplate=hover,
            )
        )
    if band is not None:
        figure.add_vrect(x0=band[0], x1=band[1], fillcolor="rgba(136,136,136,.18)", line_width=0, layer="below")
    figure.update_layout(
        xaxis_title_text=axis.title, yaxis_title_text=_in_unit(short(labels[number], 14), unit), showlegend=True
    )
    return figure


def class_means(Z: ArrayLike, label: ArrayLike, r: int, classes: Sequence[str] = ()) -> Figure:
    """Plot the mean strength of one component in each class, in standard deviations from the mean of all windows.

    Error bars show the standard deviation within the class. The label of a class includes its effect size, Cohen's d
    against all other labelled windows.

    Parameters
    ----------
    Z : (N, rank), coefficients
    label : (N,), classes from 0; -1 for unlabelled windows
    r : number of the component, from 0
    classes : names of the classes

    Examples
    --------
    >>> class_means([[1.0], [3.0], [5.0]], [0, 0, 1], 0).layout.yaxis.ticktext
    ('0, d −2.1', '1, d +2.1')
    """
    go = graph_objects()
    values, codes = np.asarray(Z, np.float64)[:, r], np.asarray(label)
    values = (values - values.mean()) / (values.std() or 1.0)
    present = np.unique(codes[codes >= 0]).tolist()
    groups = [values[codes == code] for code in present]
    effects = effect_sizes(values, codes)
    names = [
        f"{short(classes[code]) if len(classes) else code}, d {effect:+.1f}".replace("-", "−")
        for code, effect in zip(present, effects, strict=True)
    ]
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
    figure.add_vline(x=0, line={"width": 1, "dash": "dot", "color": NEUTRAL})
    figure.update_layout(
        xaxis_title_text="strength (SD)",
        yaxis={
            "tickvals": list(range(len(present))),
            "ticktext": names,
            "range": [len(present) - 0.5, -0.5],
            "showgrid": False,
            "zeroline": False,
        },
    )
    return figure


def checked_axes(model: Any, r: int, data: Any) -> list[Axis]:
    """Check that `r` is a component of the model, and return the model's axes."""
    check_is_fitted(model)
    check_integer("r", r, 0)
    if r >= model.rank:
        raise PolyadicError(f"r must be below {model.rank}, the rank of the model, but is {r}")
    axes: list[Axis] = model.axes(data)
    return axes
