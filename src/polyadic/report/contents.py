"""Everything a report says, gathered from a model, its data and the result of a run; how it looks is for the page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats

from polyadic.algebra import gram
from polyadic.data.splits import Protocol
from polyadic.data.store import WindowStore
from polyadic.data.windows import Windows
from polyadic.errors import PolyadicError
from polyadic.evaluate.probe import AUTO
from polyadic.report.scores import ProbeResult, score_probe, thinned
from polyadic.tensorize import Axis

__all__ = [
    "Component",
    "Headline",
    "MethodScores",
    "ReportContents",
    "Sample",
    "collect_contents",
    "headline",
    "methods_of",
]

_SCORES = {
    "balanced_accuracy": "balanced accuracy",
    "accuracy": "accuracy",
    "standardised": "accuracy, standardised probe",
    "plain": "accuracy, plain probe",
}
"""The scores that a run may have, the first of them first."""

_SAMPLED = 4000
_SCORED = 1024
_EXPRESSING = 3


@dataclass(frozen=True)
class Sample:
    """Windows that were sampled: evenly from all, so that a large store takes no longer than a small one.

    windows : as `Windows`, or None for tensors of which nothing else is known
    x : (n, rank), their coefficients
    Z : (n, features), what the readout makes of them
    total : how many there are in all
    fit : 1 − relative error of the bases on the first 1,024 of them
    """

    windows: Windows | None
    x: NDArray[Any]
    Z: NDArray[Any]
    total: int
    fit: float


@dataclass(frozen=True)
class Component:
    """What is told of one component in the table, and which windows express it most.

    number : from 0
    share : its energy in percent of all components', or None without data
    peaks : for each mode the place of the largest weight
    means : by class the mean coefficient
    levels : the same in standard deviations from the mean over all windows
    windows : (3,), rows of the sample with its largest coefficients in size
    """

    number: int
    share: float | None
    peaks: list[int]
    means: list[float]
    levels: list[float]
    windows: NDArray[np.intp]


@dataclass(frozen=True)
class ReportContents:
    """All of it.

    store : where the windows are from, if it is a store
    classes : names of the classes that windows of the sample have
    trouble : why there is no probe, where there are labels but none could be trained
    """

    axes: list[Axis]
    sample: Sample | None
    components: list[Component]
    classes: list[str]
    probe: ProbeResult | None
    trouble: str
    store: WindowStore | None


def collect_contents(
    model: Any,
    data: Any = None,
    protocol: Protocol | None = None,
    seed: int = 0,
    probe_kind: str = AUTO,
    transductive: bool = False,
    on_fold: Callable[[int, int], None] | None = None,
) -> ReportContents:
    """Look at a model, and at the data it is given.

    Parameters
    ----------
    data : `Windows`, a `WindowStore`, or an array as for `model.transform`; None for the model alone
    protocol, seed, transductive : how the probe is trained and tested, as for `polyadic.report.scores.score_probe`
    probe_kind : of the probe, as for `polyadic.evaluate.probe`
    on_fold : called with the number of folds done and the number of all
    """
    windows = _as_windows(model, data)
    sample = None if data is None else _sample_data(model, data if windows is None else windows, windows)
    probe, trouble, store = None, "", None
    if windows is not None:
        labels = windows.label[windows.label >= 0]
        try:
            if len(np.unique(labels)) > 1:
                probe = score_probe(model, windows, protocol, seed, probe_kind, transductive, on_fold)
        except PolyadicError as error:
            trouble = str(error)
        samples = windows._samples
        store = samples if isinstance(samples, WindowStore) else None
    return ReportContents(
        axes=model.axes(windows),
        sample=sample,
        components=_describe_components(model, sample, model.axes(windows)),
        classes=[] if sample is None else [name for _, name in _found_classes(sample)],
        probe=probe,
        trouble=trouble,
        store=store,
    )


def _as_windows(model: Any, data: Any) -> Windows | None:
    """The data as windows, if it is signals: with a function before the bases, or said to be windows."""
    if data is None or isinstance(data, Windows):
        return data
    if isinstance(data, WindowStore):
        return data.windows
    if model.tensorize_ is not None and len(np.shape(data)) == 3:
        return Windows(np.asarray(data))
    return None


def _sample_data(model: Any, data: Any, windows: Windows | None) -> Sample:
    rows = thinned(np.arange(len(data)), _SAMPLED)
    chosen = data[rows]
    x, Z = (np.asarray(of(chosen), dtype=np.float64) for of in (model.coefficients, model.transform))
    fit = model.score(chosen[: min(len(rows), _SCORED)])
    return Sample(None if windows is None else chosen, x, Z, len(data), fit)


def _found_classes(sample: Sample) -> list[tuple[int, str]]:
    """Number and name of every class in the sample."""
    if sample.windows is None:
        return []
    codes = np.unique(sample.windows.label)
    return [(int(code), sample.windows.classes[code]) for code in codes if code >= 0]


def _describe_components(model: Any, sample: Sample | None, found: list[Axis]) -> list[Component]:
    peaks = [
        [mode.peak(factor[:, r]) for mode, factor in zip(found, model.factors_, strict=True)] for r in range(model.rank)
    ]
    if sample is None:
        nothing = np.empty(0, np.intp)
        return [Component(r, None, peaks[r], [], [], nothing) for r in range(model.rank)]
    x = sample.x
    sizes = gram([torch.as_tensor(factor, dtype=torch.float64) for factor in model.factors_]).diagonal().numpy()
    energy = (x**2).sum(axis=0) * sizes
    shares = 100 * energy / (energy.sum() or 1.0)
    spread = x.std(axis=0)
    scaled = (x - x.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    groups = [sample.windows.label == code for code, _ in _found_classes(sample)] if sample.windows is not None else []
    strongest = np.argsort(-np.abs(x), axis=0, kind="stable")[:_EXPRESSING]
    return [
        Component(
            number=r,
            share=float(shares[r]),
            peaks=peaks[r],
            means=[float(x[group, r].mean()) for group in groups],
            levels=[float(scaled[group, r].mean()) for group in groups],
            windows=strongest[:, r],
        )
        for r in range(model.rank)
    ]


@dataclass(frozen=True)
class MethodScores:
    """One line of a run's comparison: means over the seeds, with a 95 % interval of the first score's mean.

    measure : what the first score is: "balanced accuracy", or the "accuracy" of the standardised or plain probe
    accuracy : the first score, in percent
    other : a second one under its heading, or None
    """

    name: str
    protocol: str
    measure: str
    accuracy: float | None
    low: float | None
    high: float | None
    other: tuple[str, float] | None
    parameters: float
    seconds: float
    sweeps: float
    fit: float


def methods_of(result: dict[str, Any], first: str = "", probe: ProbeResult | None = None) -> list[MethodScores]:
    """The methods of a run, in its order but for the ones the report is about, which come first.

    Parameters
    ----------
    result : as `polyadic run` writes it to results.json
    first : the method of the report's model
    probe : whose protocol comes first
    """
    found = []
    try:
        for entry in result["summary"]:
            scored = [(name, float(entry[name])) for name in _SCORES if name in entry]
            key, score = scored[0] if scored else ("", None)
            same = [
                row[key]
                for row in result["rows"]
                if (row["method"], row["protocol"]) == (entry["method"], entry["protocol"]) and key in row
            ]
            numbers = (float(entry[name]) for name in ("parameters", "seconds_per_sweep", "sweeps", "fit"))
            about = str(entry["method"]), str(entry["protocol"]), _SCORES.get(key, "")
            other = (_SCORES[scored[1][0]], scored[1][1]) if len(scored) > 1 else None
            found.append(MethodScores(*about, score, *_mean_interval(same), other, *numbers))
    except (KeyError, TypeError, ValueError) as error:
        raise PolyadicError(f"result must be what `polyadic run` writes to results.json, but lacks {error}") from error
    protocol = "" if probe is None else probe.protocol
    return sorted(found, key=lambda method: (method.protocol != protocol, method.name != first))


def _mean_interval(values: list[float]) -> tuple[float | None, float | None]:
    """A 95 % interval of the mean by Student's t; nothing for a single value."""
    if len(values) < 2:
        return None, None
    half = float(stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values)))
    return float(np.mean(values)) - half, min(100.0, float(np.mean(values)) + half)


@dataclass(frozen=True)
class Headline:
    """The headline: a score in percent with its name and interval, and in words where the interval is from."""

    measure: str
    accuracy: float
    low: float | None
    high: float | None
    words: str


def headline(methods: list[MethodScores], seeds: int, probe: ProbeResult | None) -> Headline | None:
    """The first method of a run, or else the probe; None without labels."""
    if methods and methods[0].accuracy is not None:
        best = methods[0]
        count = f"{seeds} seed{'s' * (seeds != 1)}"
        words = f"mean over {count}, each with its own start and split" if seeds > 1 else f"{count}, no interval"
        return Headline(best.measure, methods[0].accuracy, best.low, best.high, words)
    if probe is None:
        return None
    whom = f"the {probe.groups} subjects" if probe.by_people else f"the {probe.groups:,} windows"
    words = f"{probe.how}; interval by resampling {whom} that were tested"
    score = 100 * probe.scores["balanced_accuracy"]
    return Headline("balanced accuracy", score, 100 * probe.low, 100 * probe.high, words)
