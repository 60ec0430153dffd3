"""Plots of scores: confusion, calibration, scores by subject and by missing channels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from polyadic.errors import PolyadicError
from polyadic.evaluate import calibration
from polyadic.plot.style import NEUTRAL, PALETTE, dots, line_up, new_figure, short

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

__all__ = ["confusion", "missing_channels", "reliability", "subjects"]

_MOST_COUNTED = 12
_DOTTED, _DASHED = ({"width": 1, "dash": dash, "color": NEUTRAL} for dash in ("dot", "dash"))


def confusion(counts: ArrayLike, classes: Sequence[str]) -> Figure:
    """Plot a confusion matrix: numbers of windows, coloured by their share of the true class.

    Parameters
    ----------
    counts : (K, K), windows by true (rows) and predicted class, such as `CrossValidation.confusion`
    classes : (K,), their names

    Examples
    --------
    >>> confusion([[1, 1], [0, 2]], ["rest", "walk"]).data[0].z.tolist()
    [[50.0, 50.0], [0.0, 100.0]]
    """
    numbers, names = np.asarray(counts, np.float64), [short(name) for name in classes]
    if numbers.shape != (len(names), len(names)):
        raise PolyadicError(f"counts must have a row and a column for each class, but has shape {numbers.shape}")
    figure = new_figure(
        height=90 + max(160, 52 * len(names)),
        coloraxis={"cmin": 0, "cmax": 100, "autocolorscale": True, "showscale": False},
        xaxis=line_up(names) | {"range": None, "title": {"text": "predicted"}, "autotickangles": [0, -40, -90]},
        yaxis=line_up(names) | {"title": {"text": "true"}},
    )
    return figure.add_heatmap(
        z=100.0 * numbers / np.maximum(numbers.sum(axis=1, keepdims=True), 1),
        customdata=numbers,
        coloraxis="coloraxis",
        text=[[f"{count:,.1f}".removesuffix(".0") for count in row] for row in numbers.tolist()],
        texttemplate="%{text}" if len(names) <= _MOST_COUNTED else "",
        hovertemplate="%{y} as %{x}: %{text} windows, %{z:.1f} %<extra></extra>",
        xgap=2,
        ygap=2,
    )


def subjects(accuracy: Mapping[str, float], chance: float) -> Figure:
    """Plot the balanced accuracy of each subject in ascending order; the mean is dotted, the chance level dashed.

    Parameters
    ----------
    accuracy : score of each subject, between 0 and 1, for example from `polyadic.evaluate.cross_validate`
    chance : chance level, between 0 and 1

    Examples
    --------
    >>> subjects({"a": 1.0, "b": 0.5}, chance=0.25).data[0].x.tolist()
    [50.0, 100.0]
    """
    ordered = sorted(accuracy.items(), key=lambda item: (item[1], item[0]))
    percent = 100.0 * np.array([value for _, value in ordered])
    figure = dots([short(name) for name, _ in ordered], percent, [PALETTE[0]] * len(ordered), "balanced accuracy (%)")
    figure.add_vline(x=float(percent.mean()), line=_DOTTED).add_vline(x=100 * chance, line=_DASHED)
    return figure.update_layout(xaxis_range=[0, 101])


def missing_channels(accuracy: Mapping[int, float], channels: int, chance: float) -> Figure:
    """Plot the balanced accuracy against the number of missing channels; the chance level is dashed.

    Parameters
    ----------
    accuracy : score, between 0 and 1, by number of missing channels
    channels : number of all channels
    chance : chance level, between 0 and 1

    Examples
    --------
    >>> missing_channels({0: 0.9, 1: 0.8}, 4, chance=0.5).data[0].y.tolist()
    [90.0, 80.0]
    """
    hover = f"%{{x}} of {channels} missing: %{{y:.1f}} %<extra></extra>"
    figure = _curve(list(accuracy), list(accuracy.values()), 9, hover, "balanced accuracy (%)")
    figure.add_hline(y=100 * chance, line=_DASHED)
    return figure.update_layout(xaxis_title_text=f"missing channels, of {channels}", xaxis_tickvals=list(accuracy))


def reliability(confidence: ArrayLike, correct: ArrayLike) -> Figure:
    """Plot how often predictions are correct against their confidence; on the diagonal, probabilities are right.

    The area of a marker is the number of predictions.

    Parameters
    ----------
    confidence : (n,), probability of the predicted class
    correct : (n,), whether the prediction was right

    Examples
    --------
    >>> reliability([0.9, 0.9, 0.6], [True, False, True]).data[0].y.tolist()
    [100.0, 50.0]
    """
    found = calibration(confidence, correct)
    hover, sizes = (
        "confidence %{x:.0f} %: %{y:.1f} % correct<extra></extra>",
        np.sqrt(found.windows / found.windows.max()),
    )
    figure = _curve(100 * found.confidence, found.accuracy, 6 + 18 * sizes, hover, "correct (%)")
    figure.add_shape(type="line", x0=0, y0=0, x1=100, y1=100, line=_DASHED)
    lowest = max(0.0, 100 * float(found.confidence.min()) - 5)
    return figure.update_layout(xaxis_title_text="confidence (%)", xaxis_range=[lowest, 101])


def _curve(x: Any, shares: ArrayLike, size: Any, hover: str, title: str) -> Figure:
    """Return a figure of a line of markers; shares are from 0 to 1."""
    figure = new_figure(height=300, showlegend=False, yaxis={"title": {"text": title}, "range": [0, 101]})
    marker = {"size": size, "color": PALETTE[0]}
    y = 100 * np.asarray(shares)
    return figure.add_scatter(x=x, y=y, mode="lines+markers", marker=marker, cliponaxis=False, hovertemplate=hover)
