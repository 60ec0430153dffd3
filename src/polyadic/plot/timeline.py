"""A plot of one recording over time: predicted and true classes, probabilities and component strengths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyadic.errors import PolyadicError
from polyadic.plot.style import PALETTE, compact, line_up, new_figure, panel, short

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

__all__ = ["timeline"]

_ROW, _BAND, _GAP = 17, 110, 34
_STRONG = 3.0
"""Limit of the colour scale of strengths, in standard deviations."""
_UNITS = (("h", 3600.0), ("min", 60.0), ("s", 1.0))


def timeline(
    windows: Any,
    predicted: ArrayLike | None = None,
    probability: ArrayLike | None = None,
    strengths: ArrayLike | None = None,
    names: Sequence[str] = (),
) -> Figure:
    """Plot one recording over time: a hypnogram for sleep data, an activity strip for wearables.

    The panels, from top to bottom and as far as given, show the predicted class of each window, the true class, the
    stacked class probabilities, and the component strengths.

    Parameters
    ----------
    windows : `Windows` of one recording, in any order
    predicted : (N,), classes from 0; -1 for windows without a prediction
    probability : (N, classes), probability of each class of `windows.classes`; NaN for windows without a prediction
    strengths : (N, n), strengths of components, in standard deviations
    names : names of these components

    Examples
    --------
    >>> from polyadic.data import Windows
    >>> windows = Windows(np.zeros((4, 1, 8)), fs=8, start=np.arange(4) * 8, label=[0, 0, 1, 1], classes=["W", "N2"])
    >>> figure = timeline(windows, predicted=[0, 1, 1, 1])
    >>> [axis.title.text for axis in figure.select_yaxes()]
    ['predicted', 'true']
    """
    count = len(windows)
    if count == 0:
        raise PolyadicError("windows must have at least one window, but is empty")
    grid = _time_grid(windows)
    classes = [short(name) for name in windows.classes]
    panels: list[tuple[str, int, Any]] = []
    if predicted is not None:
        panels.append(("predicted", _ROW * len(classes), _codes(predicted, count, len(classes))))
    if (windows.label >= 0).any():
        panels.append(("true", _ROW * len(classes), np.asarray(windows.label)))
    if probability is not None:
        panels.append(("probability", _BAND, _matrix("probability", probability, count, len(classes))))
    if strengths is not None:
        panels.append(("components", _ROW * len(names), _matrix("strengths", strengths, count, len(names))))
    if not panels:
        raise PolyadicError("a timeline needs predictions, labels or strengths, but none was given")
    return _stacked(panels, grid, classes, [short(name) for name in names])


def _codes(values: ArrayLike, count: int, classes: int) -> NDArray[Any]:
    codes = np.asarray(values)
    if codes.shape != (count,) or codes.max(initial=-1) >= classes:
        raise PolyadicError(
            f"predicted must have shape ({count},) and codes below {classes}, but has shape {codes.shape}"
        )
    return codes


def _matrix(name: str, values: ArrayLike, count: int, columns: int) -> NDArray[np.float64]:
    matrix = np.asarray(values, np.float64)
    if matrix.shape != (count, columns):
        raise PolyadicError(f"{name} must have shape ({count}, {columns}), but has shape {matrix.shape}")
    return matrix


class _TimeGrid(NamedTuple):
    """A regular time grid: the slot of each window (N,), the width of a slot, the start of the first, an axis title."""

    slots: NDArray[np.intp]
    step: float
    first: float
    title: str

    @property
    def cells(self) -> dict[str, float]:
        """The centres of the cells of a heat map, in plotly's format."""
        return {"x0": self.first + self.step / 2, "dx": self.step, "y0": 0, "dy": 1}


def _time_grid(windows: Any) -> _TimeGrid:
    start = np.asarray(windows.start)
    if (start < 0).any() or len(np.unique(start)) < len(start):
        return _TimeGrid(np.arange(len(start)), 1.0, 0.5, "window")
    between = np.diff(np.sort(start))
    step = int(np.median(between)) if len(between) else windows.shape[2]
    slots = np.rint((start - start.min()) / step).astype(np.intp)
    if len(np.unique(slots)) < len(slots) or slots.max(initial=0) > 50 * len(slots):
        return _TimeGrid(np.argsort(np.argsort(start)), 1.0, 0.5, "window")
    if not windows.fs:
        return _TimeGrid(slots, float(step), float(start.min()), "time (samples)")
    seconds = step / windows.fs
    whole = seconds * (int(slots.max(initial=0)) + 1)
    unit, size = next((unit, size) for unit, size in _UNITS if whole >= 3 * size or size == 1.0)
    return _TimeGrid(slots, seconds / size, float(start.min()) / windows.fs / size, f"time ({unit})")


def _stacked(panels: list[tuple[str, int, Any]], grid: _TimeGrid, classes: list[str], names: list[str]) -> Figure:
    height = sum(size for _, size, _ in panels) + _GAP * (len(panels) - 1)
    figure = new_figure(height=height + 110, showlegend=any(kind == "probability" for kind, _, _ in panels))
    figure.update_layout(legend_traceorder="normal")
    top = 1.0
    for number, (kind, size, values) in enumerate(panels, start=1):
        bottom, last = max(0.0, top - size / height), number == len(panels)
        x = {"showticklabels": last, "title": {"text": grid.title if last else ""}, "zeroline": False}
        x |= {"showgrid": False} | ({} if last else {"matches": f"x{len(panels)}"})
        y: dict[str, Any] = {"range": [0, 1]}
        if kind != "probability":
            y = line_up(names if kind == "components" else classes) | {"tickfont": {"size": 11}}
        where = panel(figure, number - 1, x, y | {"domain": [bottom, top], "title": {"text": kind}})
        if kind == "probability":
            _add_probabilities(figure, _gridded(values, grid), grid, classes, where)
        elif kind == "components":
            _add_strengths(figure, _gridded(values, grid), grid, where, (bottom + top) / 2)
        else:
            _add_classes(figure, values, grid, classes, where)
        top = bottom - _GAP / height
    return figure


def _gridded(values: NDArray[np.float64], grid: _TimeGrid) -> NDArray[np.float64]:
    """Place values (N, n) on the time grid, with NaN where there is no window: (slots, n)."""
    slots = np.full((int(grid.slots.max()) + 1, values.shape[1]), np.nan)
    slots[grid.slots] = values
    return slots


def _add_classes(
    figure: Figure, codes: NDArray[Any], grid: _TimeGrid, classes: list[str], where: dict[str, str]
) -> None:
    """Draw a cell for each window, in the row and the colour of its class."""
    cells = np.full((len(classes), int(grid.slots.max()) + 1), np.nan, np.float32)
    known = codes >= 0
    cells[codes[known], grid.slots[known]] = codes[known]
    count, scale = max(len(classes), 1), []
    for code in range(count):
        colour = PALETTE[code % len(PALETTE)]
        scale += [[code / count, colour], [(code + 1) / count, colour]]
    colours = {"zmin": -0.5, "zmax": count - 0.5, "colorscale": scale, "showscale": False}
    figure.add_heatmap(z=cells, **grid.cells, **colours, hoverinfo="skip", hoverongaps=False, **where)


def _add_probabilities(
    figure: Figure, values: NDArray[np.float64], grid: _TimeGrid, classes: list[str], where: dict[str, str]
) -> None:
    """Draw the class probabilities as a stacked area; empty for windows without a prediction."""
    # Steps are drawn from each window's start to the next one's; repeating the last value extends it to its end.
    steps = np.nan_to_num(np.concatenate([values, values[-1:]]))
    for code, name in enumerate(classes):
        colour = PALETTE[code % len(PALETTE)]
        figure.add_scatter(
            x0=grid.first,
            dx=grid.step,
            y=compact(steps[:, code]),
            mode="lines",
            line={"width": 0, "color": colour, "shape": "hv"},
            stackgroup="probability",
            fillcolor=colour,
            name=name,
            hovertemplate="%{y:.2f}<extra>%{fullData.name}</extra>",
            **where,
        )


def _add_strengths(
    figure: Figure, values: NDArray[np.float64], grid: _TimeGrid, where: dict[str, str], middle: float
) -> None:
    """Draw a row for each component, coloured by its strength."""
    bar = {"thickness": 8, "y": middle, "lenmode": "pixels", "len": 100, "outlinewidth": 0}
    bar |= {"tickvals": [-_STRONG, 0, _STRONG], "ticktext": [f"−{_STRONG:g} SD", "0", f"+{_STRONG:g} SD"]}
    figure.update_layout(coloraxis={"cmin": -_STRONG, "cmax": _STRONG, "autocolorscale": True, "colorbar": bar})
    hover = {"hovertemplate": "%{y}: %{z:+.1f} SD<extra></extra>", "hoverongaps": False}
    figure.add_heatmap(z=compact(values.T), **grid.cells, coloraxis="coloraxis", **hover, **where)
