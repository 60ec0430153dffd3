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

_WIDTH, _HEIGHT = 120, 36
_DOTS = 48
_SHOWN = 8
_MOST_BARS = 64
_PARTS = ("var(--part-1, #4477aa)", "var(--part-2, #ee6677)")
_SIGNS = ("var(--negative, #2166ac)", "var(--positive, #b2182b)")


def picture(axis: Axis, weights: NDArray[Any]) -> str:
    """Return the picture of one axis of a component as SVG: a head for electrodes, bars for channels, else a line.

    Of many channels without a position, only some are drawn.

    Parameters
    ----------
    weights : (n,), a column of the axis' basis

    Examples
    --------
    >>> frequency = Axis("frequency", "frequency", np.arange(3.0), "Hz")
    >>> picture(frequency, np.array([0.0, 1.0, 0.5]))[:4]
    '<svg'
    """
    parts = axis.by_part(np.asarray(weights, dtype=np.float64))
    if axis.kind != "channel":
        return _line(parts[0])
    places = positions(axis.labels)
    if not places:
        return _bars(parts[:, :: -(-parts.shape[1] // _MOST_BARS)])
    return "".join(_head(part, np.array(list(places.values()))) for part in parts[:, list(places)])


def _svg(width: float, height: float, body: str) -> str:
    # Hidden from screen readers: the numbers are in the table next to it.
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" aria-hidden="true" '
        f'focusable="false">{body}</svg>'
    )


def _levels(values: NDArray[Any], height: float) -> tuple[NDArray[Any], float]:
    """Return the vertical positions of values, scaled to show all of them and zero, and the position of zero."""
    low, high = min(float(values.min()), 0.0), max(float(values.max()), 0.0)
    span = (high - low) or 1.0
    inner = height - 4
    return 2 + inner * (high - values) / span, 2 + inner * high / span


def _line(values: NDArray[Any]) -> str:
    y, zero = _levels(values, _HEIGHT)
    x = np.linspace(1, _WIDTH - 1, len(values)) if len(values) > 1 else np.array([_WIDTH / 2])
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
    area = f"{x[0]:.1f},{zero:.1f} {points} {x[-1]:.1f},{zero:.1f}"
    return _svg(
        _WIDTH,
        _HEIGHT,
        f'<polygon points="{area}" fill="{_PARTS[0]}" opacity=".18"/>'
        f'<line x1="0" x2="{_WIDTH}" y1="{zero:.1f}" y2="{zero:.1f}" stroke="currentColor" opacity=".25"/>'
        f'<polyline points="{points}" fill="none" stroke="{_PARTS[0]}" stroke-width="1.5" stroke-linejoin="round"/>',
    )


def _bars(parts: NDArray[Any]) -> str:
    """Draw a bar for each channel, with the parts next to each other."""
    y, zero = _levels(parts, _HEIGHT)
    slot = _WIDTH / parts.shape[1]
    width = slot * 0.8 / len(parts)
    bars = []
    for number, row in enumerate(y):
        for channel, level in enumerate(row):
            left = channel * slot + slot * 0.1 + number * width
            top, height = min(level, zero), abs(level - zero)
            bars.append(
                f'<rect x="{left:.1f}" y="{top:.1f}" width="{max(width - 0.3, 0.3):.1f}" height="{height:.1f}" '
                f'fill="{_PARTS[number]}"/>'
            )
    rule = f'<line x1="0" x2="{_WIDTH}" y1="{zero:.1f}" y2="{zero:.1f}" stroke="currentColor" opacity=".25"/>'
    return _svg(_WIDTH, _HEIGHT, rule + "".join(bars))


def _head(values: NDArray[Any], places: NDArray[Any]) -> str:
    """Draw electrodes from above, coloured by the sign of their weights, with opacity by magnitude."""
    centre, radius = _DOTS / 2, _DOTS * 0.4
    largest = max(float(np.abs(values).max()), 1e-30)
    size = min(4.5, 14 / np.sqrt(len(places)))
    body = [
        f'<circle cx="{centre:g}" cy="{centre + 1:g}" r="{radius:g}" fill="none" stroke="currentColor" opacity=".4"/>',
        f'<path d="M{centre - 4:g} {centre + 1.5 - radius:.1f} l4 -4.5 l4 4.5" fill="none" stroke="currentColor" '
        'opacity=".4"/>',
    ]
    for value, (x, y) in zip(values, places, strict=True):
        weight = float(value) / largest
        at = f'cx="{centre + radius * x:.1f}" cy="{centre + 1 - radius * y:.1f}" r="{size:.1f}"'
        body.append(f'<circle {at} fill="{_SIGNS[int(weight > 0)]}" fill-opacity="{abs(weight):.2f}"/>')
    return _svg(_DOTS, _DOTS, "".join(body))


def model_html(model: Any, outcome: str = "") -> str:
    """Return HTML of a fitted model for notebooks: name, summary of the fit, and its first components.

    Examples
    --------
    >>> from polyadic import SALS
    >>> model = SALS(rank=2, tensorize=None, max_sweeps=1).fit(np.random.default_rng(0).normal(size=(20, 3, 4)))
    >>> "rank 2" in model_html(model)
    True
    """
    axes = model.axes()
    cell = "padding:2px 10px;text-align:left;vertical-align:middle;border:0"
    heads = "".join(f'<th scope="col" style="{cell}">{escape(axis.title)}</th>' for axis in axes)
    rows = []
    for r in range(min(model.rank, _SHOWN)):
        cells = "".join(
            f'<td style="{cell}">{picture(axis, factor[:, r])}</td>'
            for axis, factor in zip(axes, model.factors_, strict=True)
        )
        rows.append(f'<tr style="background:none"><th scope="row" style="{cell}">{r + 1}</th>{cells}</tr>')
    summary = (
        f"<strong>{escape(type(model).__name__)}</strong>, rank {model.rank}, {model.n_parameters_:,} parameters"
        f"{f'; {escape(outcome)}' if outcome else ''}"
    )
    more = model.rank - len(rows)
    rest = (
        f'<p style="margin:4px 0">… and {more} more: <code>polyadic.plot.components(model)</code></p>' if more else ""
    )
    settings = escape(repr(model))
    return (
        f'<div class="polyadic-model"><p style="margin:4px 0">{summary}</p>'
        f'<table style="border-collapse:collapse;border:0"><thead><tr><th scope="col" style="{cell}">component</th>'
        f"{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>{rest}"
        f"<details><summary>settings</summary><pre>{settings}</pre></details></div>"
    )
