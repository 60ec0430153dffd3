"""Plots of the replicability and shares of components, the spread of features, and the channel levels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from polyadic.errors import PolyadicError
from polyadic.explain import spectra
from polyadic.explain.replication import Replicability
from polyadic.plot.canvas import LESS, NEUTRAL, PALETTE, blank, compact, graph_objects, short

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

__all__ = ["levels", "readout", "replicability", "shares"]

_LEVEL = PALETTE[2]


def replicability(found: Any) -> Figure:
    """Plot the replicability of each component: its median match, and on hover the percentage of refits that match it.

    Parameters
    ----------
    found : a `polyadic.explain.replicability.Replicability`, or a model that has one

    Examples
    --------
    >>> figure = replicability(Replicability(np.array([0.98, 0.6]), np.array([1.0, 0.25]), refits=4))
    >>> [(trace.name, trace.x.tolist()) for trace in figure.data]
    [('replicates', [1]), ('does not replicate', [2])]
    """
    known = getattr(found, "replicability_", found)
    if not isinstance(known, Replicability):
        raise PolyadicError(
            "the model has no replicability_: run polyadic fit --check, or polyadic.explain.replicability"
        )
    go = graph_objects()
    number = np.arange(1, len(known.match) + 1)
    figure = blank(height=280)
    groups = (("replicates", known.replicates, LESS), ("does not replicate", ~known.replicates, NEUTRAL))
    for name, mine, colour in groups:
        if not mine.any():
            continue
        figure.add_trace(
            go.Scatter(
                x=number[mine],
                y=known.match[mine],
                mode="markers",
                name=name,
                marker={"size": 9, "color": colour, "symbol": "circle" if name == "replicates" else "circle-open"},
                customdata=100 * known.returned[mine],
                hovertemplate="component %{x}: match %{y:.2f}, in %{customdata:.0f} % of refits<extra></extra>",
            )
        )
    figure.add_hline(y=known.threshold, line={"width": 1, "dash": "dash", "color": NEUTRAL})
    figure.update_layout(
        xaxis={
            "title": {"text": "component"},
            "range": [0.4, len(number) + 0.6],
            "dtick": max(1, -(-len(number) // 16)),
            "tick0": 1,
        },
        yaxis={"title": {"text": f"median match in {known.refits} refits"}, "range": [0, 1.05]},
        showlegend=True,
    )
    return figure


def shares(model: Any, x: ArrayLike) -> Figure:
    """Plot the share of each component in the explained variation, largest first. Shares add up to 100 %.

    If the model has been checked for replicability, components that do not replicate are grey.

    Parameters
    ----------
    model : fitted
    x : (N, rank), result of `model.coefficients`

    Examples
    --------
    >>> from polyadic import SALS
    >>> X = np.random.default_rng(0).normal(size=(20, 3, 4))
    >>> model = SALS(rank=2, tensorize=None, max_sweeps=1).fit(X)
    >>> round(float(sum(shares(model, model.coefficients(X)).data[0].y)))
    100
    """
    percent = spectra.shares(model, np.asarray(x))
    known = getattr(model, "replicability_", None)
    back = np.ones(len(percent), bool) if known is None else known.replicates
    order = np.argsort(-percent, kind="stable")
    place = np.argsort(order)
    go, figure = graph_objects(), blank(height=260, showlegend=known is not None)
    for name, mine, colour in (("replicates", back, LESS), ("does not replicate", ~back, NEUTRAL)):
        if mine.any():
            figure.add_trace(
                go.Bar(
                    x=place[mine],
                    y=compact(percent[mine]),
                    name=name,
                    marker_color=colour,
                    customdata=np.flatnonzero(mine) + 1,
                    hovertemplate="component %{customdata}: %{y:.1f} %<extra></extra>",
                )
            )
    shown = range(0, len(order), -(-len(order) // 32))
    ticks = {"tickvals": list(shown), "ticktext": [str(order[number] + 1) for number in shown], "tickangle": 0}
    figure.update_layout(xaxis={"title": {"text": "component"}, **ticks}, yaxis_title_text="share (%)")
    return figure


def readout(model: Any, Z: ArrayLike) -> Figure:
    """Plot the standard deviation of each feature, which is its weight in distances between windows.

    Parameters
    ----------
    model : fitted
    Z : (N, features), result of `model.transform`

    Examples
    --------
    >>> from polyadic import ATD
    >>> from polyadic.data import synthetic
    >>> signals = synthetic(60, n_channels=2)
    >>> model = ATD(rank=3, max_sweeps=2).fit(signals)
    >>> [(trace.name, len(trace.y)) for trace in readout(model, model.transform(signals)).data]
    [('spectral', 3), ('level', 2)]
    """
    check_is_fitted(model)
    go = graph_objects()
    names = [str(name) for name in model.get_feature_names_out()]
    spread = np.asarray(Z, np.float64).std(axis=0)
    if len(spread) != len(names):
        raise PolyadicError(f"Z must have {len(names)} columns, as returned by transform, but has {len(spread)}")
    kinds = np.array(["level" if name.startswith("level ") else "spectral" for name in names])
    figure = blank(height=260, showlegend=len(set(kinds.tolist())) > 1)
    for kind, colour in (("spectral", PALETTE[0]), ("level", _LEVEL)):
        mine = np.flatnonzero(kinds == kind)
        if len(mine):
            figure.add_trace(
                go.Bar(
                    x=mine,
                    y=compact(spread[mine]),
                    name=kind,
                    marker_color=colour,
                    customdata=[short(names[number]) for number in mine],
                    hovertemplate="%{customdata}: %{y:.3g}<extra></extra>",
                )
            )
    shown = list(range(0, len(names), -(-len(names) // 16)))
    ticks = {"tickvals": shown, "ticktext": [short(names[number], 14) for number in shown], "tickangle": -90}
    figure.update_layout(xaxis=ticks | {"tickfont": {"size": 10}}, yaxis_title_text="standard deviation")
    return figure


def levels(model: Any, Z: ArrayLike, label: ArrayLike, classes: Any = ()) -> Figure:
    """Plot the mean level of each channel in each class, in standard deviations over all windows.

    Parameters
    ----------
    model : fitted, with levels in its readout
    Z : (N, features), result of `model.transform`
    label : (N,), classes from 0; -1 for unlabelled windows
    classes : names of the classes

    Examples
    --------
    >>> from polyadic import ATD
    >>> from polyadic.data import synthetic
    >>> signals = synthetic(60, n_channels=2)
    >>> model = ATD(rank=3, max_sweeps=2).fit(signals)
    >>> len(levels(model, model.transform(signals), signals.label).data)
    4
    """
    check_is_fitted(model)
    go = graph_objects()
    names = [str(name) for name in model.get_feature_names_out()]
    columns = [number for number, name in enumerate(names) if name.startswith("level ")]
    if not columns:
        raise PolyadicError("the model has no level features: its readout has levels=0, or it has no readout")
    values, codes = np.asarray(Z, np.float64)[:, columns], np.asarray(label)
    spread = values.std(axis=0)
    scaled = (values - values.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    figure = blank(height=80 + 24 * max(4, len(columns)))
    for code in np.unique(codes[codes >= 0]).tolist():
        figure.add_trace(
            go.Scatter(
                x=compact(scaled[codes == code].mean(axis=0)),
                y=list(range(len(columns))),
                mode="markers",
                name=short(classes[code]) if len(classes) else str(code),
                marker={"size": 9, "color": PALETTE[code % len(PALETTE)]},
                hovertemplate="%{y}: %{x:+.2f} SD<extra>%{fullData.name}</extra>",
            )
        )
    channels = [short(names[number].removeprefix("level ")) for number in columns]
    rows = {"tickvals": list(range(len(columns))), "ticktext": channels, "range": [len(columns) - 0.5, -0.5]}
    figure.add_vline(x=0, line={"width": 1, "dash": "dot", "color": NEUTRAL})
    figure.update_layout(xaxis_title_text="mean level (SD)", yaxis=rows | {"zeroline": False})
    return figure
