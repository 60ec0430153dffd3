"""Plots of fits: loss and statistics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from polyadic.errors import PolyadicError
from polyadic.plot.style import NEUTRAL, PALETTE, SYMBOLS, compact, line_up, new_figure, panel, short

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


__all__ = ["statistics", "training"]

_MOST_STATISTICS = 16

_TERMS = {
    "loss": "loss",
    "fit": "fit",
    "fit_augmented": "fit, augmented view",
    "tikhonov": "Tikhonov",
    "self_supervised": "self-supervised",
    "graph": "graph",
}


def training(model: Any) -> Figure:
    """Plot the loss over sweeps and, below it, each of its terms on a logarithmic axis.

    The axis of the loss is scaled to the sweeps after the first, to make convergence visible: the first sweep usually
    decreases the loss much more than all others. Terms that are always zero are left out, except for the fit.

    Parameters
    ----------
    model : fitted

    Examples
    --------
    >>> from polyadic import SALS
    >>> model = SALS(rank=2, tensorize=None, max_sweeps=3).fit(np.random.default_rng(0).normal(size=(20, 3, 4)))
    >>> [trace.name for trace in training(model).data]
    ['loss', 'fit', 'Tikhonov']
    """
    check_is_fitted(model)
    history = {term: np.array(values) for term, values in model.history_.items()}
    count = len(history["loss"])
    figure = new_figure(height=440, showlegend=True)
    for number, (term, name) in enumerate(_TERMS.items()):
        values = history.get(term, np.empty(0))
        if not len(values) or (term not in ("loss", "fit") and not values.any()):
            continue
        sign = "" if term == "loss" or values.min() >= 0 else "−" if values.max() < 0 else "|"
        where = {"xaxis": "x", "yaxis": "y"} if term == "loss" else {"xaxis": "x2", "yaxis": "y2"}
        figure.add_scatter(
            x=np.arange(1, count + 1),
            # The self-supervised term is negative if views agree: the logarithmic axis shows its absolute value.
            y=values if term == "loss" else np.abs(values),
            mode="lines+markers",
            name=f"{sign}{name}{'|' * (sign == '|')}",
            showlegend=term != "loss",
            line={
                "color": PALETTE[number % len(PALETTE)],
                "width": 2.5 if term == "loss" else 1.5,
                # The fits of both views nearly coincide: dashes keep the other line visible.
                "dash": "dash" if term == "fit_augmented" else "solid",
            },
            marker={"size": 5, "symbol": SYMBOLS[number % len(SYMBOLS)]},
            hovertemplate="sweep %{x}: %{y:.5g}<extra>%{fullData.name}</extra>",
            **where,
        )
    loss, terms = history["loss"], np.concatenate([trace.y for trace in figure.data[1:]])
    low, high = float(loss.min()), float(loss[1 if len(loss) > 2 else 0 :].max())
    margin = 0.08 * (high - low)
    across = {"rangemode": "tozero", "dtick": max(1, -(-count // 10))}
    above = {"title": {"text": "loss"}, "domain": [0.56, 1]}
    above |= {"range": [low - margin, high + margin]} if margin > 0 else {}
    panel(figure, 0, across | {"matches": "x2", "showticklabels": False}, above)
    # Over several decades, label only powers of ten.
    decades = float(np.log10(terms.max() / terms[terms > 0].min())) if terms.any() else 0.0
    log = {"type": "log", "exponentformat": "power", "dtick": 1 if decades > 2 else "D2"}
    below = {"title": {"text": "terms"}, "domain": [0, 0.48]} | log
    panel(figure, 1, across | {"title": {"text": "sweep"}}, below)
    return figure


def statistics(model: Any, Z: ArrayLike, label: ArrayLike, classes: Sequence[str] = ()) -> Figure:
    """Plot the mean of statistics in each class, in standard deviations over all windows: those that differ most.

    Parameters
    ----------
    model : fitted, with statistics in its readout
    Z : (N, features), result of `model.transform`
    label : (N,), classes from 0; -1 for unlabelled windows
    classes : names of the classes

    Examples
    --------
    >>> from polyadic import CPD
    >>> from polyadic.data import synthetic
    >>> signals = synthetic(60, n_channels=2)
    >>> model = CPD(rank=3, max_sweeps=4).fit(signals)
    >>> len(statistics(model, model.transform(signals), signals.label).data)
    4
    """
    check_is_fitted(model)
    names = [str(name) for name in model.get_feature_names_out()]
    first = len(names) if getattr(model, "readout_", None) is None else model.readout_.rank
    if first == len(names):
        raise PolyadicError("the model has no statistics: its readout has statistics=0, or it has no readout")
    values, codes = np.asarray(Z, np.float64)[:, first:], np.asarray(label)
    if codes.dtype.kind not in "iu" or not (codes >= 0).any():
        raise PolyadicError("label must be class numbers from 0, such as Windows.label, and -1 without a label")
    spread = values.std(axis=0)
    scaled = (values - values.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    present = np.unique(codes[codes >= 0]).tolist()
    means = np.stack([scaled[codes == code].mean(axis=0) for code in present])
    rows = np.sort(np.argsort(-means.std(axis=0), kind="stable")[:_MOST_STATISTICS])
    figure = new_figure(height=80 + 24 * max(4, len(rows)))
    for code, mean in zip(present, means, strict=True):
        figure.add_scatter(
            x=compact(mean[rows]),
            y=list(range(len(rows))),
            mode="markers",
            name=short(classes[code]) if len(classes) else str(code),
            marker={"size": 9, "color": PALETTE[code % len(PALETTE)]},
            hovertemplate="%{y}: %{x:+.2f} SD<extra>%{fullData.name}</extra>",
        )
    figure.add_vline(x=0, line={"width": 1, "dash": "dot", "color": NEUTRAL})
    labels = line_up([short(names[first + row]) for row in rows])
    return figure.update_layout(xaxis_title_text="mean (SD)", yaxis=labels | {"showgrid": True})
