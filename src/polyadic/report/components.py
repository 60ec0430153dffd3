"""The description of each component in a report: share, channels, frequencies, times, classes and replicability."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyadic.core.tensorizer import Axis
from polyadic.explain.expression import alike
from polyadic.explain.replicability import Replicability
from polyadic.explain.spectra import band, count_peaks, effect_sizes, is_flat, shares
from polyadic.plot.electrodes import positions

__all__ = ["Component", "Place", "describe_components", "sentence", "strongest_class"]

_EXPRESSING = 3
_ENDS = (("highest", 1), ("lowest", -1))
_NOTABLE = 0.2
"""Cohen's d of a small effect; if all effects are smaller, no class is named."""
_RHYTHMS = {"slow": 0.0, "delta": 0.5, "theta": 4.0, "alpha": 8.0, "sigma": 12.0, "beta": 16.0, "gamma": 30.0}
"""Lower limits of the EEG bands in Hz; sigma is the band of sleep spindles, and slow the baseline."""
_EVERYWHERE = {"channel": "all channels", "frequency": "all frequencies", "time": "throughout"}
_MOST_NAMED = 3
_COARSE = 5.0
"""Step size of an axis from which positions are rounded to integers."""


class Place(NamedTuple):
    """Where a component peaks along one mode: as text, and as a value to sort by; a flat profile comes last."""

    text: str
    value: float | str


@dataclass(frozen=True)
class Component:
    """The description of one component. Values are relative expressions in dB or, if it has none, coefficients."""

    number: int  # from 1
    share: float | None  # of the explained variation, in percent; None without data
    places: list[Place]  # for each mode
    band: tuple[float, float, float] | None  # peak, lowest and highest frequency; None without a distinct peak
    means: list[float]  # mean value in each class
    effects: list[float]  # Cohen's d of each class against all other windows
    windows: NDArray[np.intp]  # rows of the sample with the largest values
    match: float | None  # median match in the refits; None if replicability has not been checked
    returned: float | None  # fraction of the refits with a match
    replicates: bool  # True if replicability has not been checked
    alike: tuple[int, ...] = ()  # numbers of components whose relative expressions correlate above 0.8 with this one

    @property
    def reliable_share(self) -> float:
        """The share times the match, by which components are sorted."""
        return (self.share or 0.0) * (1.0 if self.match is None else self.match)


def describe_components(
    model: Any,
    axes: list[Axis],
    x: NDArray[Any] | None = None,
    values: NDArray[Any] | None = None,
    label: NDArray[Any] | None = None,
    checked: Replicability | None = None,
) -> list[Component]:
    """Describe all components, sorted by share times match, with those that do not replicate last.

    Parameters
    ----------
    model : fitted, whose components are shown
    axes : axes of the model
    x : (n, rank), coefficients of windows, for the shares, or None
    values : (n, rank), relative expressions in dB of these windows; by default their coefficients
    label : (n,), classes of these windows, or None
    checked : replicability of the components, or None
    """
    components = []
    explained = None if x is None or not model.rank else shares(model, x)
    shown = x if values is None else values
    pairs = [] if values is None else alike(values)
    codes = np.empty(0, int) if label is None else np.unique(label[label >= 0])
    for r in range(model.rank):
        columns = [np.asarray(factor[:, r]) for factor in model.factors_]
        bands = [band(axis, column) for axis, column in zip(axes, columns, strict=True) if axis.kind == "frequency"]
        own = np.empty(0) if shown is None else np.nan_to_num(shown[:, r])
        # Coefficients without centring may mostly be negative.
        upright = -own if values is None and len(own) and own.mean() < -own.std() else own
        components.append(
            Component(
                number=r + 1,
                share=None if explained is None else float(explained[r]),
                places=[_place(axis, column, axes) for axis, column in zip(axes, columns, strict=True)],
                band=bands[0] if bands else None,
                means=[float(own[label == code].mean()) for code in codes],
                effects=[] if label is None else effect_sizes(own, label).tolist(),
                windows=np.argsort(-upright, kind="stable")[:_EXPRESSING],
                match=None if checked is None else float(checked.match[r]),
                returned=None if checked is None else float(checked.returned[r]),
                replicates=checked is None or bool(checked.replicates[r]),
                alike=tuple(sum(pair) - r - 1 for pair in pairs if r + 1 in pair),
            )
        )
    return sorted(components, key=lambda each: (not each.replicates, -each.reliable_share, each.number))


def sentence(component: Component, classes: list[str], unit: str = "dB") -> str:
    """Return what the numbers of a component say: where it is, and in which class it is highest and lowest.

    Examples
    --------
    >>> places = [Place("O1", "O1"), Place("10 Hz (9–11)", 10.0), Place("throughout", -1.0)]
    >>> rows = np.arange(3)
    >>> alpha = Component(1, 50.0, places, None, [1.5, -2.0], [0.9, -0.9], rows, None, None, True, (3,))
    >>> sentence(alpha, ["rest", "task"])
    'O1; 10 Hz (9–11); throughout. Highest in rest (+1.5 dB, d +0.9), lowest in task (−2.0 dB, d −0.9). Varies with 3.'
    """
    told = "; ".join(place.text for place in component.places) + "."
    if component.effects and len(component.effects) > 1:
        if max(map(abs, component.effects)) < _NOTABLE:
            told += " No difference between classes."
        else:
            ends = [(name, int(np.argmax(sign * np.array(component.effects)))) for name, sign in _ENDS]
            parts = [
                f"{word} in {classes[row]} ({component.means[row]:+.1f} {unit}, d {component.effects[row]:+.1f})"
                for word, row in ends
            ]
            told += f" {', '.join(parts)}.".replace("(-", "(−").replace("d -", "d −")
            told = told.replace(" highest", " Highest")
    if component.alike:
        told += f" Varies with {', '.join(map(str, component.alike))}."
    return told


def _place(axis: Axis, weights: NDArray[Any], axes: list[Axis]) -> Place:
    """Describe the peak of a profile, its width and other peaks; of channels, those near the largest weight."""
    if axis.kind == "channel":
        sizes = np.abs(axis.by_part(weights)).max(axis=0)
        if len(sizes) > 1 and is_flat(sizes):
            return Place(_EVERYWHERE["channel"], "")
        order = np.argsort(-sizes, kind="stable")
        near = [axis.labels[number] for number in order.tolist() if sizes[number] >= 0.7 * sizes[order[0]]]
        more = f" and {len(near) - _MOST_NAMED} more" if len(near) > _MOST_NAMED else ""
        return Place(", ".join(near[:_MOST_NAMED]) + more, near[0])
    peak_and_ends = band(axis, weights)
    if peak_and_ends is None:
        return Place(_EVERYWHERE.get(axis.kind, "flat"), -1.0)
    peak, low, high = (_rounded(axis, value) for value in peak_and_ends)
    ends = f" ({low}–{high})" if low != high else ""
    others = count_peaks(weights) - 1
    text = f"{peak} {axis.unit}".strip() + ends + (f" and {others} more" if others else "")
    if axis.kind == "frequency" and axis.unit == "Hz" and positions(axes[0].labels):
        rhythm = [name for name, lowest in _RHYTHMS.items() if peak_and_ends[0] >= lowest][-1]
        text = f"{rhythm}, {text}"
    return Place(text, peak_and_ends[0])


def _rounded(axis: Axis, value: float) -> str:
    """Format a position with enough decimals to distinguish it from its neighbours."""
    if value == 0:
        return "0"
    steps = np.abs(np.diff(axis.positions))
    step = float(steps.min()) if len(steps) else 1.0
    digits = max(0 if step >= _COARSE else 1, int(np.ceil(-np.log10(step)))) if step > 0 else 3
    return f"{value:.0f}" if (axis.positions == np.rint(axis.positions)).all() else f"{value:.{digits}f}"


def strongest_class(component: Component, classes: list[str]) -> str:
    """Return the class with the largest effect size, and this; "no class" if all are small."""
    if not component.effects or max(component.effects) < _NOTABLE:
        return "no class" if component.effects else ""
    best = int(np.argmax(component.effects))
    return f"{classes[best]}, d {component.effects[best]:+.1f}".replace("d -", "d −")
