"""Plots of scores: comparison of methods, confusion matrix, scores by subject, learning curve, and training loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from polyadic.errors import PolyadicError
from polyadic.plot.canvas import PALETTE, SYMBOLS, blank, graph_objects, short

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

__all__ = ["comparison", "confusion", "low_label", "subjects", "training"]

_TERMS = {
    "loss": "loss",
    "fit": "fit",
    "fit_augmented": "fit, augmented view",
    "tikhonov": "Tikhonov",
    "self_supervised": "self-supervised",
    "graph": "graph",
}
_MOST_COUNTED = 12
_MOST_LETTERS = 40


def comparison(values: Mapping[str, tuple[float, float, float]], measure: str = "accuracy") -> Figure:
    """Plot the scores of several methods with their intervals, the first one highlighted.

    Parameters
    ----------
    values : for each method, its score and the limits of its interval, in percent
    measure : name of the score, for the axis

    Examples
    --------
    >>> comparison({"ATD": (93.0, 92.1, 93.9), "SALS": (92.0, 91.0, 93.0)}).data[0].x.tolist()
    [93.0, 92.0]
    """
    go = graph_objects()
    names = [short(name) for name in values]
    middle, low, high = np.array(list(values.values()), dtype=np.float64).reshape(-1, 3).T
    figure = blank(height=56 + 30 * len(names), showlegend=False)
    figure.add_trace(
        go.Scatter(
            x=middle,
            y=list(range(len(names))),
            mode="markers",
            marker={"size": 10, "color": [PALETTE[0]] + [PALETTE[-1]] * (len(names) - 1)},
            error_x={"type": "data", "array": high - middle, "arrayminus": middle - low, "thickness": 1.5},
            hovertemplate="%{x:.2f} %<extra></extra>",
        )
    )
    figure.update_layout(
        xaxis_title_text=f"{measure} (%)",
        yaxis={
            "tickvals": list(range(len(names))),
            "ticktext": names,
            "range": [len(names) - 0.5, -0.5],
            "showgrid": False,
            "zeroline": False,
        },
    )
    return figure


def confusion(y: ArrayLike, predicted: ArrayLike, classes: Sequence[str] = ()) -> Figure:
    """Plot the confusion matrix: counts, coloured by their share of the true class.

    Parameters
    ----------
    y, predicted : (N,), classes from 0
    classes : names of the classes

    Examples
    --------
    >>> confusion([0, 0, 1, 1], [0, 1, 1, 1]).data[0].z.tolist()
    [[50.0, 50.0], [0.0, 100.0]]
    """
    go = graph_objects()
    truth, guess = np.asarray(y), np.asarray(predicted)
    if truth.shape != guess.shape or truth.ndim != 1 or not len(truth):
        raise PolyadicError(
            f"y and predicted must have the same shape (N,), but have shapes {truth.shape} and {guess.shape}"
        )
    present = np.union1d(truth, guess)
    counts = np.zeros((len(present), len(present)), dtype=np.int64)
    np.add.at(counts, (np.searchsorted(present, truth), np.searchsorted(present, guess)), 1)
    shares = 100.0 * counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    names = [short(classes[code]) if len(classes) else str(code) for code in present.tolist()]
    axis = {"tickvals": list(range(len(names))), "ticktext": names, "showgrid": False, "zeroline": False}
    # Long names do not fit side by side, and plotly would omit some.
    slant = -40 if sum(map(len, names)) > _MOST_LETTERS else 0
    figure = blank(
        height=90 + max(160, 52 * len(names)),
        coloraxis={"cmin": 0, "cmax": 100, "autocolorscale": True, "showscale": False},
        xaxis=axis | {"title": {"text": "predicted"}, "tickangle": slant},
        yaxis=axis | {"title": {"text": "true"}, "autorange": "reversed"},
    )
    figure.add_trace(
        go.Heatmap(
            z=shares,
            customdata=counts,
            coloraxis="coloraxis",
            text=[[f"{count:,}" for count in row] for row in counts.tolist()],
            texttemplate="%{text}" if len(names) <= _MOST_COUNTED else "",
            hovertemplate="%{y} as %{x}: %{customdata:,} windows, %{z:.1f} %<extra></extra>",
            xgap=2,
            ygap=2,
        )
    )
    return figure


def subjects(accuracy: Mapping[str, float], measure: str = "accuracy", chance: float | None = None) -> Figure:
    """Plot the score of each subject in ascending order, with the mean as a dotted line.

    Parameters
    ----------
    accuracy : score of each subject, between 0 and 1, for example from `polyadic.evaluate.cross_validate`
    measure : name of the score, for the axis
    chance : chance level, for a dashed line

    Examples
    --------
    >>> subjects({"a": 1.0, "b": 0.5}).data[0].x.tolist()
    [50.0, 100.0]
    """
    go = graph_objects()
    ordered = sorted(accuracy.items(), key=lambda item: (item[1], item[0]))
    percent = 100.0 * np.array([value for _, value in ordered])
    figure = blank(height=70 + 20 * max(4, len(ordered)), showlegend=False)
    figure.add_trace(
        go.Bar(
            x=percent,
            orientation="h",
            marker_color=PALETTE[0],
            hovertemplate="%{y}: %{x:.1f} %<extra></extra>",
        )
    )
    figure.add_vline(x=float(percent.mean()), line={"width": 1, "dash": "dot", "color": "#888"})
    if chance is not None:
        figure.add_vline(x=100 * chance, line={"width": 1, "dash": "dash", "color": "#888"})
    names = [short(name) for name, _ in ordered]
    figure.update_layout(
        xaxis={"title": {"text": f"{measure} (%)"}, "range": [0, 100]},
        margin_r=16,  # room for the tick label "100"
        yaxis={"tickvals": list(range(len(names))), "ticktext": names, "showgrid": False},
    )
    return figure


def low_label(curve: Mapping[int, Sequence[float]]) -> Figure:
    """Plot accuracy against the number of labelled windows: mean and standard deviation over random draws.

    Parameters
    ----------
    curve : for each number of labels, the accuracies of its draws, in percent

    Examples
    --------
    >>> low_label({10: [60.0, 70.0], 100: [90.0, 90.0]}).data[0].y.tolist()
    [65.0, 90.0]
    """
    go = graph_objects()
    counts = sorted(curve)
    mean = np.array([np.mean(curve[count]) for count in counts])
    spread = np.array([np.std(curve[count], ddof=1) if len(curve[count]) > 1 else 0.0 for count in counts])
    # Mean plus standard deviation can exceed 100 %, so clip the error bar.
    bars = {"type": "data", "array": np.minimum(spread, 100 - mean), "arrayminus": spread, "thickness": 1.2}
    figure = blank(height=300, showlegend=False)
    figure.add_trace(
        go.Scatter(
            x=counts,
            y=mean,
            mode="lines+markers",
            line={"color": PALETTE[0], "width": 2},
            marker={"size": 7},
            error_y=bars,
            cliponaxis=False,
            customdata=spread,
            hovertemplate="%{x} labels: %{y:.1f} ± %{customdata:.1f} %<extra></extra>",
        )
    )
    figure.update_layout(
        xaxis={
            "title": {"text": "labelled windows"},
            "type": "log",
            "tickvals": counts,
            "ticktext": [f"{count:,}" for count in counts],
            "tickangle": 0,
        },
        yaxis={"title": {"text": "accuracy (%)"}, "range": [max(0.0, float((mean - spread).min()) - 5), 100]},
    )
    return figure


def training(model: Any, x: Literal["sweeps", "seconds"] = "sweeps") -> Figure:
    """Plot the loss over sweeps or seconds and, below it, each of its terms on a logarithmic axis.

    The axis of the loss is scaled to the sweeps after the first, to make convergence visible: the first sweep usually
    decreases the loss much more than all others. Terms that are always zero are left out, except for the fit.

    Parameters
    ----------
    model : fitted
    x : "sweeps", or "seconds" since the fit began

    Examples
    --------
    >>> from polyadic import SALS
    >>> model = SALS(rank=2, tensorize=None, max_sweeps=3).fit(np.random.default_rng(0).normal(size=(20, 3, 4)))
    >>> [trace.name for trace in training(model).data]
    ['loss', 'fit', 'Tikhonov']
    """
    check_is_fitted(model)
    if x not in ("sweeps", "seconds"):
        raise PolyadicError(f"x must be 'sweeps' or 'seconds', but is {x!r}")
    go = graph_objects()
    history = model.history_
    place = np.cumsum(history["seconds"]) if x == "seconds" else np.arange(1, len(history["seconds"]) + 1)
    figure = blank(height=440, showlegend=True)
    for number, (term, name) in enumerate(_TERMS.items()):
        values = np.array(history.get(term, []))
        if not len(values) or (term not in ("loss", "fit") and not values.any()):
            continue
        panel = "" if term == "loss" else "2"
        # The fits of both views nearly coincide: dashes keep the other line visible.
        dash = "dash" if term == "fit_augmented" else "solid"
        figure.add_trace(
            go.Scatter(
                x=place,
                # The self-supervised term is negative if views agree: the logarithmic axis shows its absolute value.
                y=values if term == "loss" else np.abs(values),
                mode="lines+markers",
                name=name if term == "loss" or values.min() >= 0 else f"−{name}" if values.max() < 0 else f"|{name}|",
                showlegend=term != "loss",
                xaxis=f"x{panel}",
                yaxis=f"y{panel}",
                line={"color": PALETTE[number % len(PALETTE)], "width": 2.5 if term == "loss" else 1.5, "dash": dash},
                marker={"size": 5, "symbol": SYMBOLS[number % len(SYMBOLS)]},
                hovertemplate=f"%{{x:.3g}} {x}: %{{y:.5g}}<extra>%{{fullData.name}}</extra>",
            )
        )
    across = {"rangemode": "tozero"} | ({"dtick": max(1, -(-len(place) // 10))} if x == "sweeps" else {})
    terms = np.concatenate([trace.y for trace in figure.data[1:]])
    decades = float(np.log10(terms.max() / terms[terms > 0].min())) if terms.any() else 0.0
    figure.update_layout(
        xaxis=across | {"anchor": "y", "matches": "x2", "showticklabels": False},
        xaxis2=across | {"anchor": "y2", "title": {"text": "sweep" if x == "sweeps" else "seconds"}},
        yaxis={"title": {"text": "loss"}, "domain": [0.56, 1], "range": _loss_range(np.array(history["loss"]))},
        # Over several decades, label only powers of ten.
        yaxis2={
            "title": {"text": "terms"},
            "domain": [0, 0.48],
            "anchor": "x2",
            "type": "log",
            "exponentformat": "power",
            "dtick": 1 if decades > 2 else "D2",
        },
    )
    return figure


def _loss_range(loss: NDArray[Any]) -> list[float] | None:
    """Return the range of the loss after the first sweep with a margin, or None if plotly should choose a range."""
    low, high = float(loss.min()), float(loss[1 if len(loss) > 2 else 0 :].max())
    margin = 0.08 * (high - low)
    return [low - margin, high + margin] if margin > 0 else None
