"""A plot of one recording over time: predicted and true classes, probabilities and component strengths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyadic.errors import PolyadicError
from polyadic.plot.style import PALETTE, compact, line_up, new_figure, panel, short

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

__all__ = ["timeline"]

_ROW, _BAND, _GAP = 17, 110, 34
_STRONG = 3.0
"""Smallest limit of the colour scale of strengths."""
_FAINT = 0.35
"""Opacity of the classes of windows by themselves, behind those along the recording."""
_UNITS = (("h", 3600.0), ("min", 60.0), ("s", 1.0))


def timeline(
    windows: Any,
    predicted: ArrayLike | None = None,
    probability: ArrayLike | None = None,
    strengths: ArrayLike | None = None,
    names: Sequence[str] = (),
    alone: ArrayLike | None = None,
    unit: str = "dB",
) -> Figure:
    """Plot one recording over time: a hypnogram for sleep data, an activity strip for wearables.

    The panels, from top to bottom and as far as given, show the predicted class of each window, the true class, the
    stacked class probabilities, and the component strengths.

    Parameters
    ----------
    windows : `Windows` of one recording, in any order
    predicted : (N,), classes from 0; -1 for windows without a prediction
    probability : (N, classes), probability of each class of `windows.classes`; NaN for windows without a prediction
    strengths : (N, n), the level and relative expressions of components
    names : names of these columns
    alone : (N,), with `predicted` along the recording: the class of each window by itself, drawn faintly behind
    unit : unit of the strengths

    Examples
    --------
    >>> from polyadic.data import Windows
    >>> windows = Windows(np.zeros((4, 1, 8)), fs=8, start=np.arange(4) * 8, label=[0, 0, 1, 1], classes=["W", "N2"])
    >>> figure = timeline(windows, predicted=[0, 1, 1, 1])
    >>> [axis.title.text for axis in figure.select_yaxes()]
    ['predicted', 'true']
    """
    count, classes = len(windows), [short(name) for name in windows.classes]
    if count == 0:
        raise PolyadicError("windows must have at least one window, but is empty")
    true = windows.label if (windows.label >= 0).any() else None
    given = {"predicted": predicted, "true": true, "probability": probability, "strengths": strengths}
    columns = {"probability": (len(classes),), "strengths": (len(names),)}
    panels = {kind: np.asarray(values) for kind, values in given.items() if values is not None}
    for kind, values in panels.items():
        shape = (count, *columns.get(kind, ()))
        if values.shape != shape:
            raise PolyadicError(f"{kind} must have shape {shape}, but has shape {values.shape}")
    if "predicted" in panels and panels["predicted"].max() >= len(classes):
        raise PolyadicError(f"predicted must be below {len(classes)}, the number of classes of the windows")
    if not panels:
        raise PolyadicError("a timeline needs predictions, labels or strengths, but none was given")
    slots, first, step, title = _time_grid(windows)
    sizes = {"probability": _BAND, "strengths": _ROW * len(names)}
    height = sum(sizes.get(kind, _ROW * len(classes)) for kind in panels) + _GAP * (len(panels) - 1)
    figure = new_figure(height=height + 110, showlegend="probability" in panels, legend_traceorder="normal")
    cells = {"x0": first + step / 2, "dx": step, "y0": 0, "dy": 1}
    top = 1.0
    for number, (kind, values) in enumerate(panels.items(), start=1):
        bottom, last = max(0.0, top - sizes.get(kind, _ROW * len(classes)) / height), number == len(panels)
        x = {"showticklabels": last, "title": {"text": title if last else ""}, "zeroline": False}
        x |= {"showgrid": False} | ({} if last else {"matches": f"x{len(panels)}"})
        y: dict[str, Any] = {"range": [0, 1], "title": {"text": "" if kind == "strengths" else kind}}
        if kind != "probability":
            rows = [short(name) for name in names] if kind == "strengths" else classes
            y |= line_up(rows) | {"tickfont": {"size": 11}}
        where = panel(figure, number - 1, x, y | {"domain": [bottom, top]})
        # The rows of each window in its slot; NaN where there is no window.
        by_class = values[:, None] if values.ndim == 1 else values
        on_grid = np.full((int(slots.max()) + 1, by_class.shape[1]), np.nan)
        on_grid[slots] = by_class
        if kind == "probability":
            _add_probabilities(figure, on_grid, first, step, classes, where)
        elif kind == "strengths":
            bar = {"thickness": 8, "y": (bottom + top) / 2, "lenmode": "pixels", "len": 100, "outlinewidth": 0}
            limit = max(_STRONG, float(np.ceil(np.nanpercentile(np.abs(values), 98)))) if values.size else _STRONG
            bar |= {"tickvals": [-limit, 0, limit], "ticktext": [f"−{limit:g} {unit}", "0", f"+{limit:g} {unit}"]}
            figure.update_layout(coloraxis={"cmin": -limit, "cmax": limit, "autocolorscale": True, "colorbar": bar})
            hover = {"hovertemplate": f"%{{y}}: %{{z:+.1f}} {unit}<extra></extra>", "hoverongaps": False}
            figure.add_heatmap(z=compact(on_grid.T), **cells, coloraxis="coloraxis", **hover, **where)
        else:
            codes, layers = np.arange(len(classes))[:, None], [(on_grid, 1.0)]
            if kind == "predicted" and alone is not None:
                behind = np.full_like(on_grid, np.nan)
                behind[slots, 0] = np.asarray(alone)
                layers.insert(0, (behind, _FAINT))
            for layer, opacity in layers:
                figure.add_heatmap(
                    z=compact(np.where(codes == layer.T, codes, np.nan)),
                    **cells,
                    **_class_colours(len(classes)),
                    hoverinfo="skip",
                    hoverongaps=False,
                    opacity=opacity,
                    **where,
                )
        top = bottom - _GAP / height
    return figure


def _class_colours(count: int) -> dict[str, Any]:
    """Return a colour scale with one colour for each class."""
    colours = [PALETTE[code % len(PALETTE)] for code in range(count)]
    scale = [[(code + end) / count, colour] for code, colour in enumerate(colours) for end in (0, 1)]
    return {"zmin": -0.5, "zmax": count - 0.5, "colorscale": scale, "showscale": False}


def _time_grid(windows: Any) -> tuple[NDArray[np.intp], float, float, str]:
    """Return a regular grid: the slot of each window, the start of the first, their width, and a title of the axis."""
    start = np.asarray(windows.start)
    if (start < 0).any() or len(np.unique(start)) < len(start):
        return np.arange(len(start)), 0.5, 1.0, "window"
    between = np.diff(np.sort(start))
    step = int(np.median(between)) if len(between) else windows.shape[2]
    slots = np.rint((start - start.min()) / step).astype(np.intp)
    if len(np.unique(slots)) < len(slots) or slots.max() > 50 * len(slots):
        return np.argsort(np.argsort(start)), 0.5, 1.0, "window"
    if not windows.fs:
        return slots, float(start.min()), float(step), "time (samples)"
    seconds = step / windows.fs
    whole = seconds * (int(slots.max()) + 1)
    unit, size = next((unit, size) for unit, size in _UNITS if whole >= 3 * size or size == 1.0)
    return slots, float(start.min()) / windows.fs / size, seconds / size, f"time ({unit})"


def _add_probabilities(
    figure: Figure, values: NDArray[np.float64], first: float, step: float, classes: list[str], where: dict[str, str]
) -> None:
    """Draw the class probabilities as a stacked area; empty for windows without a prediction."""
    # Steps are drawn from each window's start to the next one's; repeating the last value extends it to its end.
    steps = np.nan_to_num(np.concatenate([values, values[-1:]]))
    for code, name in enumerate(classes):
        colour = PALETTE[code % len(PALETTE)]
        figure.add_scatter(
            x0=first,
            dx=step,
            y=compact(steps[:, code]),
            mode="lines",
            line={"width": 0, "color": colour, "shape": "hv"},
            stackgroup="probability",
            fillcolor=colour,
            name=name,
            hovertemplate="%{y:.2f}<extra>%{fullData.name}</extra>",
            **where,
        )
