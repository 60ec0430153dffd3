"""The description of each component in a report: share, channels, frequencies, times, classes and pictures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyadic.core.tensorizer import Axis
from polyadic.explain.electrodes import positions
from polyadic.explain.expression import alike
from polyadic.explain.replicability import Replicability
from polyadic.explain.spectra import effect_sizes, place, shares

_EXPRESSING = 3
_NOTABLE = 0.2
"""Cohen's d of a small effect; if all effects are smaller, no class is named."""
_WIDTH, _HEIGHT, _HEAD = 120, 36, 48
_MOST_BARS = 64
_PARTS = ("var(--part-1)", "var(--part-2)")


@dataclass(frozen=True)
class Component:
    """The description of one component. Values are relative expressions in dB, or coefficients in SD."""

    number: int  # from 1
    share: float | None  # of the explained variation, in percent; None without data
    places: list[str]  # where it peaks along each mode
    means: list[float]  # mean value in each class
    effects: list[float]  # Cohen's d of each class against all other windows
    windows: NDArray[np.intp]  # rows of the sample in which it is strongest
    match: float | None  # median match in the refits; None if replicability has not been checked
    returned: float | None  # fraction of the refits with a match
    replicates: bool  # True if replicability has not been checked
    alike: tuple[int, ...] = ()  # numbers of components whose relative expressions correlate above 0.8 with this one


def describe_components(
    model: Any,
    axes: list[Axis],
    x: NDArray[Any] | None = None,
    values: NDArray[Any] | None = None,
    label: NDArray[Any] | None = None,
    checked: Replicability | None = None,
    in_decibels: bool = True,
) -> list[Component]:
    """Describe all components, sorted by share times match, with those that do not replicate last.

    Parameters
    ----------
    model : fitted, whose components are shown
    axes : axes of the model
    x : (n, rank), coefficients of windows, for the shares, or None
    values : (n, rank), relative expressions of these windows in dB, or standardised coefficients; None as x
    label : (n,), classes of these windows, or None
    checked : replicability of the components, or None
    in_decibels : whether values are relative expressions; if not, a window's strength is the size of its coefficient,
        because signs are arbitrary
    """
    components = []
    explained = None if x is None or not model.rank else shares(model, x)
    pairs = alike(values) if values is not None and in_decibels else []
    codes = np.empty(0, int) if label is None else np.unique(label[label >= 0])
    for r in range(model.rank):
        own = np.empty(0) if values is None else np.nan_to_num(values[:, r])
        strength = own if in_decibels or x is None else np.abs(x[:, r])
        components.append(
            Component(
                number=r + 1,
                share=None if explained is None else float(explained[r]),
                places=[place(axis, factor[:, r], axes) for axis, factor in zip(axes, model.factors_, strict=True)],
                means=[float(own[label == code].mean()) for code in codes],
                effects=[] if label is None else effect_sizes(own, label).tolist(),
                windows=np.argsort(-strength, kind="stable")[:_EXPRESSING],
                match=None if checked is None else float(checked.match[r]),
                returned=None if checked is None else float(checked.returned[r]),
                replicates=checked is None or bool(checked.replicates[r]),
                alike=tuple(sum(pair) - r - 1 for pair in pairs if r + 1 in pair),
            )
        )

    def order(one: Component) -> tuple[bool, float, int]:
        return not one.replicates, -(one.share or 0.0) * (1.0 if one.match is None else one.match), one.number

    return sorted(components, key=order)


def sentence(component: Component, classes: list[str], unit: str = "dB") -> str:
    """Return what the numbers of a component say: where it is, and in which class it is highest and lowest.

    Examples
    --------
    >>> places = ["O1", "10 Hz (9–11)", "throughout"]
    >>> alpha = Component(1, 50.0, places, [1.5, -2.0], [0.9, -0.9], np.arange(3), None, None, True, (3,))
    >>> sentence(alpha, ["rest", "task"])
    'O1; 10 Hz (9–11); throughout. Highest in rest (+1.5 dB, d +0.9), lowest in task (−2.0 dB, d −0.9). Varies with 3.'
    """
    told = "; ".join(component.places) + "."
    if len(component.effects) > 1 and max(map(abs, component.effects)) < _NOTABLE:
        told += " No difference between classes."
    elif len(component.effects) > 1:
        best, worst = int(np.argmax(component.effects)), int(np.argmin(component.effects))
        ends = [f"{classes[row]} ({_effect(component, row, unit)})" for row in (best, worst)]
        told += f" Highest in {ends[0]}, lowest in {ends[1]}."
    return told + (f" Varies with {', '.join(map(str, component.alike))}." if component.alike else "")


def strongest_class(component: Component, classes: list[str], unit: str = "dB") -> str:
    """Return the class with the largest effect size, its mean and this size; "no class" if all sizes are small."""
    if not component.effects or max(component.effects) < _NOTABLE:
        return "no class" if component.effects else ""
    best = int(np.argmax(component.effects))
    return f"{classes[best]} {_effect(component, best, unit)}"


def _effect(component: Component, row: int, unit: str) -> str:
    return f"{component.means[row]:+z.1f} {unit}, d {component.effects[row]:+.1f}".replace("-", "−")


# -------------------------------------------------------------------------------------------------------- pictures


def picture(axis: Axis, weights: NDArray[Any]) -> str:
    """Return a small picture of one axis of a component as SVG: a head for electrodes, bars for channels, else a line.

    Weights are a column of the axis' basis. Of many channels without a position, only some are drawn.
    """
    parts = axis.by_part(np.asarray(weights, dtype=np.float64))
    if places := positions(axis.labels):
        shares = parts[:, list(places)] / max(float(np.abs(parts).max()), 1e-30)
        return "".join(_head(part, np.array(list(places.values()))) for part in shares)
    shown = parts[:, :: -(-parts.shape[1] // _MOST_BARS)] if axis.kind == "channel" else parts[:1]
    # All values and zero, from the top to the bottom of the picture.
    low, high = min(float(shown.min()), 0.0), max(float(shown.max()), 0.0)
    y = 2 + (_HEIGHT - 4) * (high - np.append(shown, 0.0)) / ((high - low) or 1.0)
    levels: NDArray[Any] = y[:-1].reshape(shown.shape)
    zero = float(y[-1])
    drawn = [f'<line x1="0" x2="{_WIDTH}" y1="{zero:.1f}" y2="{zero:.1f}" stroke="currentColor" opacity=".25"/>']
    if axis.kind == "channel":
        slot = _WIDTH / levels.shape[1]
        for part, row in enumerate(levels):
            x = slot * (np.arange(len(row)) + 0.1 + 0.8 * (part + 0.5) / len(levels))
            bars = "".join(f"M{a:.1f} {zero:.1f}V{b:.1f}" for a, b in zip(x, row, strict=True))
            drawn.append(f'<path d="{bars}" stroke="{_PARTS[part]}" stroke-width="{0.7 * slot / len(levels):.1f}"/>')
    else:
        x = np.linspace(1, _WIDTH - 1, levels.shape[1])
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, levels[0], strict=True))
        area = f"{x[0]:.1f},{zero:.1f} {points} {x[-1]:.1f},{zero:.1f}"
        drawn.append(f'<polyline points="{area}" fill="{_PARTS[0]}" fill-opacity=".18" stroke="{_PARTS[0]}"/>')
    return _svg(_WIDTH, _HEIGHT, drawn)


def _head(values: NDArray[Any], places: NDArray[Any]) -> str:
    """Draw electrodes from above, coloured by the sign of their weights (-1 to 1), with opacity by magnitude."""
    centre, radius = _HEAD // 2, _HEAD * 0.4
    size = min(4.5, 14 / np.sqrt(len(places)))
    line = 'fill="none" stroke="currentColor" opacity=".4"'
    drawn = [
        f'<circle cx="{centre}" cy="{centre + 1}" r="{radius:g}" {line}/>',
        f'<path d="M{centre - 4} {centre + 1.5 - radius:.1f} l4 -4.5 l4 4.5" {line}/>',
    ]
    for weight, (x, y) in zip(values, places, strict=True):
        fill = f'fill="var(--{"positive" if weight > 0 else "negative"})" fill-opacity="{abs(weight):.2f}"'
        at = f'cx="{centre + radius * x:.1f}" cy="{centre + 1 - radius * y:.1f}"'
        drawn.append(f'<circle {at} r="{size:.1f}" {fill}/>')
    return _svg(_HEAD, _HEAD, drawn)


def _svg(width: int, height: int, drawn: list[str]) -> str:
    # Hidden from screen readers: the numbers are in the table next to it.
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return f'<svg {size} aria-hidden="true" focusable="false">{"".join(drawn)}</svg>'
