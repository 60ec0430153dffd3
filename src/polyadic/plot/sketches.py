"""Small SVG pictures of components for notebooks and the report's table, without further dependencies.

Colours are CSS variables with fallbacks, so that a page's theme can set them.
"""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyadic.core.tensorizer import Axis
from polyadic.plot.electrodes import positions

__all__ = ["model_html", "picture"]

_WIDTH, _HEIGHT, _HEAD = 120, 36, 48
_SHOWN = 8
_MOST_BARS = 64
_PARTS = ("var(--part-1, #4477aa)", "var(--part-2, #ee6677)")
_SIGNS = ("var(--negative, #2166ac)", "var(--positive, #b2182b)")


def picture(axis: Axis, weights: NDArray[Any]) -> str:
    """Return the picture of one axis of a component as SVG: a head for electrodes, bars for channels, else a line.

    Weights are a column of the axis' basis. Of many channels without a position, only some are drawn.
    """
    parts = axis.by_part(np.asarray(weights, dtype=np.float64))
    if axis.kind == "channel" and (places := positions(axis.labels)):
        return "".join(_head(part, np.array(list(places.values()))) for part in parts[:, list(places)])
    shown = parts[:, :: -(-parts.shape[1] // _MOST_BARS)] if axis.kind == "channel" else parts[0]
    # All values and zero, from the top to the bottom of the picture.
    low, high = min(float(shown.min()), 0.0), max(float(shown.max()), 0.0)
    y = 2 + (_HEIGHT - 4) * (high - np.append(shown, 0.0)) / ((high - low) or 1.0)
    levels, zero = y[:-1].reshape(shown.shape), float(y[-1])
    rule = f'<line x1="0" x2="{_WIDTH}" y1="{zero:.1f}" y2="{zero:.1f}" stroke="currentColor" opacity=".25"/>'
    return _svg(_WIDTH, _HEIGHT, rule + (_bars(levels, zero) if axis.kind == "channel" else _line(levels, zero)))


def _svg(width: int, height: int, body: str) -> str:
    # Hidden from screen readers: the numbers are in the table next to it.
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" aria-hidden="true" '
        f'focusable="false">{body}</svg>'
    )


def _line(y: NDArray[Any], zero: float) -> str:
    x = np.linspace(1, _WIDTH - 1, len(y)) if len(y) > 1 else np.array([_WIDTH / 2])
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
    area = f"{x[0]:.1f},{zero:.1f} {points} {x[-1]:.1f},{zero:.1f}"
    return (
        f'<polygon points="{area}" fill="{_PARTS[0]}" opacity=".18"/>'
        f'<polyline points="{points}" fill="none" stroke="{_PARTS[0]}" stroke-width="1.5" stroke-linejoin="round"/>'
    )


def _bars(y: NDArray[Any], zero: float) -> str:
    """Draw a bar for each channel, with the parts next to each other."""
    slot = _WIDTH / y.shape[1]
    width = slot * 0.8 / len(y)
    return "".join(
        f'<rect x="{(channel + 0.1) * slot + part * width:.1f}" y="{min(level, zero):.1f}" '
        f'width="{max(width - 0.3, 0.3):.1f}" height="{abs(level - zero):.1f}" fill="{_PARTS[part]}"/>'
        for part, row in enumerate(y)
        for channel, level in enumerate(row)
    )


def _head(values: NDArray[Any], places: NDArray[Any]) -> str:
    """Draw electrodes from above, coloured by the sign of their weights, with opacity by magnitude."""
    centre, radius = _HEAD // 2, _HEAD * 0.4
    weights = values / max(float(np.abs(values).max()), 1e-30)
    size = min(4.5, 14 / np.sqrt(len(places)))
    head = (
        f'<circle cx="{centre}" cy="{centre + 1}" r="{radius:g}" fill="none" stroke="currentColor" opacity=".4"/>'
        f'<path d="M{centre - 4} {centre + 1.5 - radius:.1f} l4 -4.5 l4 4.5" fill="none" stroke="currentColor" '
        'opacity=".4"/>'
    )
    dots = [
        f'<circle cx="{centre + radius * x:.1f}" cy="{centre + 1 - radius * y:.1f}" r="{size:.1f}" '
        f'fill="{_SIGNS[int(weight > 0)]}" fill-opacity="{abs(weight):.2f}"/>'
        for weight, (x, y) in zip(weights, places, strict=True)
    ]
    return _svg(_HEAD, _HEAD, head + "".join(dots))


def model_html(model: Any, outcome: str = "") -> str:
    """Return HTML of a fitted model for notebooks: name, summary of the fit, and its first components."""
    axes = model.axes()
    cell = "padding:2px 10px;text-align:left;vertical-align:middle;border:0"
    heads = "".join(f'<th scope="col" style="{cell}">{escape(axis.title)}</th>' for axis in axes)
    rows = ""
    for r in range(min(model.rank, _SHOWN)):
        pictures = [picture(axis, factor[:, r]) for axis, factor in zip(axes, model.factors_, strict=True)]
        cells = "".join(f'<td style="{cell}">{drawn}</td>' for drawn in pictures)
        rows += f'<tr style="background:none"><th scope="row" style="{cell}">{r + 1}</th>{cells}</tr>'
    summary = f"<strong>{escape(type(model).__name__)}</strong>, rank {model.rank}, {model.n_parameters_:,} parameters"
    summary += f"; {escape(outcome)}" if outcome else ""
    more = ""
    if model.rank > _SHOWN:
        words = f"… and {model.rank - _SHOWN} more: <code>polyadic.plot.components(model)</code>"
        more = f'<p style="margin:4px 0">{words}</p>'
    return (
        f'<div class="polyadic-model"><p style="margin:4px 0">{summary}</p>'
        f'<table style="border-collapse:collapse;border:0"><thead><tr><th scope="col" style="{cell}">component</th>'
        f"{heads}</tr></thead><tbody>{rows}</tbody></table>{more}"
        f"<details><summary>settings</summary><pre>{escape(repr(model))}</pre></details></div>"
    )
