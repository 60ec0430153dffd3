"""The description of each component in a report: share, channels, frequencies, times, classes and replicability."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyadic.core.tensorizer import Axis
from polyadic.explain.spectra import band, count_peaks, effect_sizes, is_flat, shares
from polyadic.plot.electrodes import positions

__all__ = [
    "Component",
    "Place",
    "describe_components",
    "large_but_not_replicating",
    "rhythm",
    "strongest_class",
]

_EXPRESSING = 3
_NOTABLE = 0.2
"""Cohen's d of a small effect; if all effects are smaller, no class is named."""
_RHYTHMS = ((0.0, "delta"), (4.0, "theta"), (8.0, "alpha"), (12.0, "sigma"), (16.0, "beta"), (30.0, "gamma"))
"""Lower limits of the EEG bands in Hz; sigma is the band of sleep spindles."""
_EVERYWHERE = {"channel": "all channels", "frequency": "all frequencies", "time": "throughout"}
_MOST_NAMED = 3
_LARGE = 10.0
"""Smallest share, in percent, of a component that the report mentions although it does not replicate."""
_COARSE = 5.0
"""Step size of an axis from which positions are rounded to integers."""


@dataclass(frozen=True)
class Place:
    """Where a component peaks along one mode: as text, and as a value to sort by, which is NaN for a flat profile."""

    text: str
    value: float | str


@dataclass(frozen=True)
class Component:
    """The description of one component.

    number : from 1
    share : of the explained variation, in percent, or None without data; the shares of all components add up to 100
    places : for each mode, where the component peaks
    band : peak, lowest and highest frequency in Hz; None without a distinct peak or a frequency mode
    means : the mean coefficient of each class
    levels : the same, in standard deviations from the mean over all windows
    effects : Cohen's d of each class against all other windows
    windows : (3,), rows of the sample with the largest coefficients
    match, returned : median match and fraction of refits with a match; None if replicability has not been checked
    replicates : whether the component replicates; if not, it is hidden at first. True if replicability has not been
        checked
    """

    number: int
    share: float | None
    places: list[Place]
    band: tuple[float, float, float] | None
    means: list[float]
    levels: list[float]
    effects: list[float]
    windows: NDArray[np.intp]
    match: float | None
    returned: float | None
    replicates: bool

    @property
    def index(self) -> int:
        """The column of the component in the coefficients."""
        return self.number - 1


def describe_components(
    model: Any, axes: list[Axis], x: NDArray[Any] | None, label: NDArray[Any] | None
) -> list[Component]:
    """Describe all components, sorted by share times match, with those that do not replicate last.

    Parameters
    ----------
    model : fitted
    axes : axes of the model
    x : (n, rank), coefficients of windows, or None
    label : (n,), classes of these windows, or None
    """
    checked = getattr(model, "replicability_", None)
    found = []
    explained = None if x is None else shares(model, x)
    for r in range(model.rank):
        columns = [np.asarray(factor[:, r]) for factor in model.factors_]
        found.append(
            Component(
                number=r + 1,
                share=None if explained is None else float(explained[r]),
                places=[_place(axis, column, axes) for axis, column in zip(axes, columns, strict=True)],
                band=_frequency_band(axes, columns),
                **_by_class(x, label, r),
                match=None if checked is None else float(checked.match[r]),
                returned=None if checked is None else float(checked.returned[r]),
                replicates=checked is None or bool(checked.replicates[r]),
            )
        )
    return sorted(found, key=lambda each: (not each.replicates, -_reliable_share(each), each.number))


def large_but_not_replicating(components: list[Component]) -> list[Component]:
    """Return the components that do not replicate despite a large share.

    Their share is at least 10 %, and their share times match at least the mean share.

    If the rank is too high, each fit may split a real rhythm differently between components, so that none of them
    replicates. The report mentions these components, because its table hides them at first.
    """
    hidden = [each for each in components if not each.replicates and (each.share or 0.0) >= _LARGE]
    return [each for each in hidden if _reliable_share(each) >= 100 / len(components)]


def _reliable_share(component: Component) -> float:
    return (component.share or 0.0) * (1.0 if component.match is None else component.match)


def _by_class(x: NDArray[Any] | None, label: NDArray[Any] | None, r: int) -> dict[str, Any]:
    """Return the fields of a component that describe classes, and the windows with its largest coefficients."""
    if x is None:
        return {"means": [], "levels": [], "effects": [], "windows": np.empty(0, np.intp)}
    own = x[:, r]
    scaled = (own - own.mean()) / (own.std() or 1.0)
    codes = np.empty(0, int) if label is None else np.unique(label[label >= 0])
    return {
        "means": [float(own[label == code].mean()) for code in codes],
        "levels": [float(scaled[label == code].mean()) for code in codes],
        "effects": [] if label is None else effect_sizes(own, label).tolist(),
        "windows": np.argsort(-_upright(own), kind="stable")[:_EXPRESSING],
    }


def _upright(values: NDArray[Any]) -> NDArray[Any]:
    """Flip the sign of coefficients if most are negative, which can happen without centring."""
    return -values if values.mean() < -values.std() else values


def _frequency_band(axes: list[Axis], columns: list[NDArray[Any]]) -> tuple[float, float, float] | None:
    for axis, column in zip(axes, columns, strict=True):
        if axis.kind == "frequency":
            return band(axis, column)
    return None


def _place(axis: Axis, weights: NDArray[Any], axes: list[Axis]) -> Place:
    if axis.kind == "channel":
        return _channel_place(axis, weights)
    found = band(axis, weights)
    if found is None:
        return Place(_EVERYWHERE.get(axis.kind, "flat"), float("nan"))
    peak, low, high = (_rounded(axis, value) for value in found)
    ends = f" ({low}–{high})" if low != high else ""
    more = count_peaks(weights) - 1
    text = f"{peak} {axis.unit}".strip() + ends + (f" and {more} more" if more else "")
    if axis.kind == "frequency" and axis.unit == "Hz" and positions(axes[0].labels):
        text = f"{rhythm(found[0])}, {text}"
    return Place(text, found[0])


def _channel_place(axis: Axis, weights: NDArray[Any]) -> Place:
    """Name the strongest channels, those with at least 70 % of the largest weight."""
    sizes = np.abs(axis.by_part(weights)).max(axis=0)
    if len(sizes) > 1 and is_flat(sizes):
        return Place(_EVERYWHERE["channel"], "")
    order = np.argsort(-sizes, kind="stable")
    near = [number for number in order.tolist() if sizes[number] >= 0.7 * sizes[order[0]]]
    more = f" and {len(near) - _MOST_NAMED} more" if len(near) > _MOST_NAMED else ""
    names = [axis.labels[number] for number in near[:_MOST_NAMED]]
    return Place(", ".join(names) + more, axis.labels[order[0]])


def _rounded(axis: Axis, value: float) -> str:
    """Format a position with enough decimals to distinguish it from its neighbours.

    Examples
    --------
    >>> _rounded(Axis("frequency", "frequency", np.arange(9) * 0.78125, "Hz"), 10.15625)
    '10.2'
    """
    steps = np.diff(axis.positions)
    step = float(np.abs(steps).min()) if len(steps) else 1.0
    digits = max(0 if step >= _COARSE else 1, int(np.ceil(-np.log10(step)))) if step > 0 else 3
    if bool((axis.positions == np.rint(axis.positions)).all()):
        digits = 0
    return f"{value:.{digits}f}"


def rhythm(frequency: float) -> str:
    """Return the name of the EEG band of a frequency in Hz.

    Examples
    --------
    >>> rhythm(10.0), rhythm(13.0)
    ('alpha', 'sigma')
    """
    return [name for least, name in _RHYTHMS if frequency >= least][-1]


def strongest_class(component: Component, classes: list[str]) -> tuple[str, str]:
    """Return the class with the largest effect size, and a text with both; "" and "no class" if no class stands out."""
    if not component.effects or max(component.effects) < _NOTABLE:
        return "", "no class" if component.effects else ""
    best = int(np.argmax(component.effects))
    effect = component.effects[best]
    return classes[best], f"{classes[best]}, d {effect:+.1f}"
