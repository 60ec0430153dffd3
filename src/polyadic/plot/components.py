"""Plots of components: profiles over channels, frequency and time, and differences between classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from polyadic._util.checks import check_integer
from polyadic.core.tensorizer import Axis
from polyadic.errors import PolyadicError
from polyadic.explain.expression import profiles, shown
from polyadic.explain.spectra import effect_sizes
from polyadic.plot.style import NEUTRAL, PALETTE, compact, line_up, new_figure, panel, short

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

__all__ = ["checked_axes", "class_means", "components", "error_bars", "profile", "weights_of"]

_ROW = 96
_BAR = 20
_MOST_SLOPED, _MOST_NAMED = 3, 20
"""Maximum number of channel names below a column: with sloped labels, and with vertical ones."""
_SHADE, _BAND = "rgba(136,136,136,.18)", "rgba(68,119,170,.3)"
_Floats = NDArray[np.float64]


def components(model: Any, data: Any = None, count: int = 12) -> Figure:
    """Plot the first components: one row per component, one column per mode, with 90 % bands where the model has them.

    Of a model with `components_`, these are shown.

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
    axes, rows = model.axes(data), min(int(count), shown(model).rank)
    if not rows:
        raise PolyadicError("no component of this model replicates, so there is none to plot")
    figure = new_figure(height=60 + _ROW * rows, showlegend=False)
    width = 1 / len(axes)
    for row, column in np.ndindex(rows, len(axes)):
        axis, last = axes[column], row == rows - 1
        x = {"domain": [(column + 0.16 * (column > 0)) * width, (column + 1) * width], "showticklabels": last}
        x |= {"title": {"text": axis.title if last else ""}}
        if axis.kind == "channel":
            # Of many names only some are shown; hovering shows the others.
            names = [short(name) for name in axis.labels]
            ticks = range(0, len(names), -(-len(names) // _MOST_NAMED))
            slope = {"tickangle": -40} if len(names) <= _MOST_SLOPED else {"tickangle": -90, "tickfont": {"size": 10}}
            x |= {"tickvals": list(ticks), "ticktext": [names[number] for number in ticks], **slope}
        y = {"domain": [1 - (row + 0.88) / rows, 1 - row / rows], "showticklabels": False}
        y |= {"title": {"text": str(row + 1)}} if column == 0 else {}
        where = panel(figure, row * len(axes) + column, x, y)
        weights, band, _ = weights_of(model, row, column)
        for part, values in enumerate(axis.by_part(weights)):
            if axis.kind == "channel":
                figure.add_bar(
                    y=compact(values),
                    marker_color=PALETTE[part],
                    customdata=names,
                    hovertemplate="%{customdata}: %{y:.3g}<extra></extra>",
                    name=axis.parts[part],
                    **error_bars("error_y", values, band),
                    **where,
                )
            else:
                _add_line(figure, axis, values, band, name=axis.parts[part], **where)
    return figure


def weights_of(model: Any, r: int, mode: int) -> tuple[_Floats, _Floats | None, str]:
    """Return a profile (I,), its 90 % band (2, I) if known, and a title of their axis.

    Non-negative profiles are in percent of the total weight, others as they are in the bases.
    """
    people = shown(model)
    if any((factor < 0).any() for factor in people.factors_):
        return np.asarray(people.factors_[mode][:, r], np.float64), None, "weight"
    bands = getattr(getattr(model, "components_", None), "bands", None)
    band = None if bands is None else 100 * bands[mode][:, :, r]
    return 100 * profiles(people.factors_[mode])[:, r], band, "weight (%)"


def error_bars(name: str, weights: NDArray[Any], band: _Floats | None) -> dict[str, Any]:
    """Return the argument that adds the band of a profile to its bars, if there is one."""
    if band is None:
        return {}
    low, high = np.maximum(weights - band[0], 0), np.maximum(band[1] - weights, 0)
    return {name: {"type": "data", "array": compact(high), "arrayminus": compact(low), "thickness": 1, "width": 0}}


def _add_line(figure: Figure, axis: Axis, weights: NDArray[Any], band: _Floats | None, **settings: Any) -> None:
    x, line = compact(axis.positions), {"color": PALETTE[0], "width": 2}
    if band is not None:
        quiet: dict[str, Any] = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
        figure.add_scatter(x=x, y=compact(band[0]), **quiet, **settings)
        figure.add_scatter(x=x, y=compact(band[1]), fill="tonexty", fillcolor=_BAND, **quiet, **settings)
    fill = {"fill": "tozeroy", "fillcolor": "rgba(68,119,170,.15)"} if band is None else {}
    hover = f"%{{x:.3g}} {axis.unit}: %{{y:.3g}}<extra></extra>"
    figure.add_scatter(x=x, y=compact(weights), mode="lines", line=line, hovertemplate=hover, **fill, **settings)


def profile(model: Any, r: int, mode: int, data: Any = None) -> Figure:
    """Plot the weights of one component along one mode, such as frequency or time, with a 90 % band if it is known.

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
    axes = checked_axes(model, r, data)
    check_integer("mode", mode, 0)
    if mode >= len(axes):
        raise PolyadicError(f"mode must be below {len(axes)}, the number of modes, but is {mode}")
    axis, (weights, band, title) = axes[mode], weights_of(model, r, mode)
    figure = new_figure(height=240, showlegend=False)
    figure.update_layout(xaxis_title_text=axis.title, yaxis={"title": {"text": title}, "rangemode": "tozero"})
    _add_line(figure, axis, weights, band)
    if axis.kind == "time" and model.tensorize_ is not None:
        # The whole window, because the centres of frames do not reach its ends.
        rate = getattr(data, "fs", None) or model.fs_ or 1.0
        figure.update_xaxes(range=[0, max(model._sample_shape[-1] / rate, float(axis.positions[-1]))])
    return figure


def class_means(
    values: ArrayLike, label: ArrayLike, classes: Sequence[str] = (), title: str = "relative expression (dB)"
) -> Figure:
    """Plot the mean of a component, or of the level, in each class.

    Error bars show the standard deviation within the class. The label of a class includes its effect size, Cohen's d
    against all other labelled windows.

    Parameters
    ----------
    values : (N,), a column of `expression(model, X, relative=True)`, or `level(model, X)`
    label : (N,), classes from 0; -1 for unlabelled windows
    classes : names of the classes
    title : what the values are

    Examples
    --------
    >>> class_means([1.0, 3.0, 5.0], [0, 0, 1]).layout.yaxis.ticktext
    ('0, d −2.1', '1, d +2.1')
    """
    column, codes = np.asarray(values, np.float64), np.asarray(label)
    present = np.unique(codes[codes >= 0]).tolist()
    groups = [column[codes == code] for code in present]
    names = [
        f"{short(classes[code]) if len(classes) else code}, d {effect:+.1f}".replace("-", "−")
        for code, effect in zip(present, effect_sizes(column, codes), strict=True)
    ]
    figure = new_figure(height=56 + _BAR * max(4, len(present)), showlegend=False)
    figure.add_scatter(
        x=compact([group.mean() for group in groups]),
        y=list(range(len(present))),
        mode="markers",
        marker={"size": 10, "color": [PALETTE[code % len(PALETTE)] for code in present]},
        error_x={"type": "data", "array": compact([group.std() for group in groups]), "thickness": 1.2},
        hovertemplate="%{y}: %{x:.3g} ± %{error_x.array:.2g}<extra></extra>",
    )
    figure.add_vline(x=0, line={"width": 1, "dash": "dot", "color": NEUTRAL})
    return figure.update_layout(xaxis_title_text=title, yaxis=line_up(names))


def checked_axes(model: Any, r: int, data: Any) -> list[Axis]:
    """Check that `r` is a component of the model, and return the model's axes."""
    check_is_fitted(model)
    check_integer("r", r, 0)
    if r >= (rank := shown(model).rank):
        raise PolyadicError(f"r must be below {rank}, the rank of the model, but is {r}")
    axes: list[Axis] = model.axes(data)
    return axes
