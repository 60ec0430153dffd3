"""Plots of components: profiles over channels, frequency and time, maps of the head, and means by class."""

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
from polyadic.plot.electrodes import head_maps, positions
from polyadic.plot.style import NEUTRAL, PALETTE, compact, dots, new_figure, panel, short

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

__all__ = ["channels", "class_means", "components", "profile"]

_ROW = 96
_MOST_NAMED = 20
"""Maximum number of channel names below a column."""
_BAND = "rgba(68,119,170,.3)"
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
        y = {"domain": [1 - (row + 0.88) / rows, 1 - row / rows], "showticklabels": False}
        y |= {"title": {"text": str(row + 1)}} if column == 0 else {}
        weights, band, _ = _weights(model, row, column)
        _add_profile(figure, axis, weights, band, **panel(figure, row * len(axes) + column, _ticks(axis) | x, y))
    return figure


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
    axis, weights, band, title = _checked_profile(model, r, mode, data)
    figure = new_figure(height=240, showlegend=len(axis.parts) > 1)
    figure.update_layout(xaxis=_ticks(axis) | {"title": {"text": axis.title}})
    figure.update_layout(yaxis={"title": {"text": title}, "rangemode": "tozero"})
    _add_profile(figure, axis, weights, band)
    return figure


def channels(model: Any, r: int, data: Any = None) -> Figure:
    """Plot the weights of one component on the channels: maps of the head for known electrodes, bars otherwise.

    Parts of an STFT, such as log|Re| and log|Im|, are shown as separate maps or in separate colours. Channels that are
    not electrodes are named below the maps with their weights.

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
    axis, weights, _, title = _checked_profile(model, r, 0, data)
    places = positions(axis.labels)
    return head_maps(axis, axis.by_part(weights), places, title) if places else profile(model, r, 0, data)


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
        f"{short(classes[code]) if len(classes) else code}, d {effect:+z.1f}".replace("-", "−")
        for code, effect in zip(present, effect_sizes(column, codes), strict=True)
    ]
    colours = [PALETTE[code % len(PALETTE)] for code in present]
    figure = dots(names, [group.mean() for group in groups], colours, title, array=[group.std() for group in groups])
    return figure.add_vline(x=0, line={"width": 1, "dash": "dot", "color": NEUTRAL})


def _checked_profile(model: Any, r: int, mode: int, data: Any) -> tuple[Axis, _Floats, _Floats | None, str]:
    """Return the axis of a mode and what `_weights` does, or raise if there is no such component or mode."""
    check_is_fitted(model)
    check_integer("r", r, 0)
    check_integer("mode", mode, 0)
    rank, axes = shown(model).rank, model.axes(data)
    if r >= rank or mode >= len(axes):
        raise PolyadicError(
            f"r must be below {rank}, the number of components, and mode below {len(axes)}, but they are {r} and {mode}"
        )
    return axes[mode], *_weights(model, r, mode)


def _weights(model: Any, r: int, mode: int) -> tuple[_Floats, _Floats | None, str]:
    """Return a profile (I,), its 90 % band (2, I) if known, and a title of their axis.

    Non-negative profiles are in percent of the total weight, others as they are in the bases.
    """
    people = shown(model)
    if any((factor < 0).any() for factor in people.factors_):
        return np.asarray(people.factors_[mode][:, r], np.float64), None, "weight"
    bands = getattr(getattr(model, "components_", None), "bands", None)
    band = None if bands is None else 100 * bands[mode][:, :, r]
    return 100 * profiles(people.factors_[mode])[:, r], band, "weight (%)"


def _ticks(axis: Axis) -> dict[str, Any]:
    """Return the settings of an axis with the names of channels: of many, only some are shown; hovering shows all."""
    names = [short(name) for name in axis.labels]
    shown = range(0, len(names), -(-len(names) // _MOST_NAMED) or 1)
    return {"tickvals": list(shown), "ticktext": [names[n] for n in shown], "tickangle": -90} if names else {}


def _add_profile(figure: Figure, axis: Axis, weights: _Floats, band: _Floats | None, **where: Any) -> None:
    """Add bars for channels, one colour for each part, and a line for other modes, with the band if it is known."""
    if axis.kind == "channel":
        error = {}
        if band is not None:
            low, high = np.maximum(weights - band[0], 0), np.maximum(band[1] - weights, 0)
            error = {"type": "data", "array": compact(high), "arrayminus": compact(low), "thickness": 1, "width": 0}
        hover = {"hovertemplate": "%{customdata}: %{y:.3g}<extra>%{fullData.name}</extra>"}
        names = [short(name) for name in axis.labels]
        for colour, name, values in zip(PALETTE, axis.parts, axis.by_part(weights), strict=False):
            figure.add_bar(
                y=compact(values), customdata=names, marker_color=colour, name=name, error_y=error, **hover, **where
            )
        return
    x, fill = compact(axis.positions), {"fill": "tozeroy", "fillcolor": "rgba(68,119,170,.15)"}
    if band is not None:
        quiet: dict[str, Any] = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip"}
        figure.add_scatter(x=x, y=compact(band[0]), **quiet, **where)
        figure.add_scatter(x=x, y=compact(band[1]), fill="tonexty", fillcolor=_BAND, **quiet, **where)
        fill = {}
    hover = {"hovertemplate": f"%{{x:.3g}} {axis.unit}: %{{y:.3g}}<extra></extra>"}
    line = {"color": PALETTE[0], "width": 2}
    figure.add_scatter(x=x, y=compact(weights), mode="lines", line=line, **hover, **fill, **where)
