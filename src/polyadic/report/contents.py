"""The contents of a report, collected from a model, its data and the result of a run; `page` does the layout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from polyadic.core.tensorizer import Axis
from polyadic.data.splits import Protocol
from polyadic.data.store import WindowStore
from polyadic.data.windows import Windows
from polyadic.engine.outcome import is_converged
from polyadic.errors import PolyadicError
from polyadic.evaluate.probe import AUTO
from polyadic.explain.spectra import Typical, typical
from polyadic.report.components import Component, describe_components
from polyadic.report.scores import ProbeResult, score_probe, thinned
from polyadic.report.timelines import Timeline, timelines

__all__ = [
    "Headline",
    "MethodScores",
    "ReportContents",
    "Sample",
    "as_windows",
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
"""The scores that a run may have, in order of preference."""

_SAMPLED = 4000
_SCORED = 1024
_FEW_TESTED = 100
"""Below this number of test windows, the headline is called uncertain."""


@dataclass(frozen=True)
class Sample:
    """An evenly spaced sample of the windows, so that a large store takes no longer than a small one.

    windows : as `Windows`, or None for plain tensors
    x : (n, rank), their coefficients
    Z : (n, features), their features, after the readout
    total : number of windows in the data
    fit : 1 − relative error of the bases on the first 1,024 windows of the sample
    """

    windows: Windows | None
    x: NDArray[Any]
    Z: NDArray[Any]
    total: int
    fit: float


@dataclass(frozen=True)
class ReportContents:
    """Everything that a report shows.

    components : the components, in display order
    typical : the mean tensors of the sample, for units
    classes : names of the classes in the sample
    trouble : why no probe could be trained despite labels; "" if there was no problem
    timelines, recordings : timelines of some recordings, and the number of recordings that could be shown
    store : the store that contains the windows, or None
    converged : whether the fit converged; None if that is not known
    """

    axes: list[Axis]
    sample: Sample | None
    components: list[Component]
    typical: Typical | None
    classes: list[str]
    probe: ProbeResult | None
    trouble: str
    timelines: list[Timeline]
    recordings: int
    store: WindowStore | None
    converged: bool | None


def collect_contents(
    model: Any,
    data: Any = None,
    protocol: Protocol | None = None,
    seed: int = 0,
    probe_kind: str = AUTO,
    transductive: bool = False,
    on_fold: Callable[[int, int], None] | None = None,
) -> ReportContents:
    """Collect the contents of a report from a model and, if given, data.

    Parameters
    ----------
    data : `Windows`, a `WindowStore`, or an array as for `model.transform`; None for the model alone
    protocol, seed, transductive : how the probe is trained and tested, as for `polyadic.report.scores.score_probe`
    probe_kind : kind of probe, as for `polyadic.evaluate.probe.make_probe`
    on_fold : called with the number of folds done and the total
    """
    windows = as_windows(model, data)
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
    shown, recordings = list[Timeline](), 0
    axes, label = model.axes(windows), None if sample is None or sample.windows is None else sample.windows.label
    components = describe_components(model, axes, None if sample is None else sample.x, label)
    if sample is not None:
        shown, recordings = timelines(model, windows, probe, components, sample.x)
    return ReportContents(
        axes=axes,
        sample=sample,
        components=components,
        typical=None if sample is None else _typical(model, data, sample),
        classes=[] if sample is None else [name for _, name in _found_classes(sample)],
        probe=probe,
        trouble=trouble,
        timelines=shown,
        recordings=recordings,
        store=store,
        converged=is_converged(model),
    )


def _typical(model: Any, data: Any, sample: Sample) -> Typical:
    rows = thinned(np.arange(len(sample.x)), _SCORED)
    if sample.windows is not None:
        return typical(model, sample.windows[rows], sample.x)
    return typical(model, np.asarray(data)[thinned(np.arange(len(data)), _SAMPLED)][rows], sample.x)


def as_windows(model: Any, data: Any) -> Windows | None:
    """Return the data as `Windows`, or None if it is tensors rather than signals."""
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
    """Return the code and name of every class in the sample."""
    if sample.windows is None:
        return []
    codes = np.unique(sample.windows.label)
    return [(int(code), sample.windows.classes[code]) for code in codes if code >= 0]


@dataclass(frozen=True)
class MethodScores:
    """One row of a run's comparison: means over the seeds, with a 95 % interval of the mean of the first score.

    measure : name of the first score, such as "balanced accuracy"
    accuracy : the first score, in percent
    other : name and value of a second score, or None
    seconds : fit time; None in files written by version 0.1.0
    sweeps, fit : number of sweeps and fit of tensor methods; None for other methods
    """

    name: str
    protocol: str
    measure: str
    accuracy: float | None
    low: float | None
    high: float | None
    other: tuple[str, float] | None
    parameters: float
    seconds: float | None
    sweeps: float | None
    fit: float | None


def methods_of(result: dict[str, Any], first: str = "", probe: ProbeResult | None = None) -> list[MethodScores]:
    """Return the methods of a run in order, except that the protocol and method of the report come first.

    Parameters
    ----------
    result : content of the results.json of `polyadic run`
    first : the method of the report's model
    probe : the probe of the report, for its protocol
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
            numbers = (None if name not in entry else float(entry[name]) for name in ("seconds", "sweeps", "fit"))
            about = str(entry["method"]), str(entry["protocol"]), _SCORES.get(key, "")
            other = (_SCORES[scored[1][0]], scored[1][1]) if len(scored) > 1 else None
            size = float(entry["parameters"])
            found.append(MethodScores(*about, score, *_mean_interval(same), other, size, *numbers))
    except (KeyError, TypeError, ValueError) as error:
        raise PolyadicError(
            f"result must be the content of a results.json of `polyadic run`, but lacks {error}"
        ) from error
    protocol = "" if probe is None else probe.protocol
    return sorted(found, key=lambda method: (method.protocol != protocol, method.name != first))


def _mean_interval(values: list[float]) -> tuple[float | None, float | None]:
    """Return a 95 % interval of the mean, in percent, by Student's t; None for a single value or for equal values."""
    if len(values) < 2 or np.ptp(values) == 0:
        return None, None
    half = float(stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values)))
    mean = float(np.mean(values))
    return max(0.0, mean - half), min(100.0, mean + half)


@dataclass(frozen=True)
class Headline:
    """The headline of a report: a score in percent with its name, spread and origin.

    value : in percent
    spread : standard deviation over subjects, or None
    words : description of the spread and of how the score was measured, with what makes it uncertain
    """

    measure: str
    value: float
    spread: float | None
    words: str


def headline(methods: list[MethodScores], seeds: int, probe: ProbeResult | None) -> Headline | None:
    """Return the score of the probe on unseen subjects, or else of the first method of a run; None without labels."""
    if probe is not None and (probe.over_subjects or not methods):
        return _probe_headline(probe)
    if not methods or methods[0].accuracy is None:
        return None if probe is None else _probe_headline(probe)
    best = methods[0]
    count = f"{seeds} seed{'s' * (seeds != 1)}"
    words = f"Mean over {count}, each with its own random start and split" if seeds > 1 else f"{count}, no interval"
    ends = "" if best.low is None else f"; 95 % interval {best.low:.1f} to {best.high:.1f} %"
    return Headline(best.measure, methods[0].accuracy, None, f"{words}{ends}.")


def _probe_headline(probe: ProbeResult) -> Headline:
    few = f" Only {probe.n_test} windows were tested, so the score is uncertain." if probe.n_test < _FEW_TESTED else ""
    over = {name: 100 * value for name, value in probe.over_subjects.items()}
    if over:
        spread = over["std"] if over["std"] > 0 else None
        counted = probe.spread_over or probe.groups
        whom = f"{counted} subjects" + (" with two classes or more" if counted < probe.groups else "")
        told = (
            f"Mean and standard deviation over {whom}, from {over['min']:.1f} to {over['max']:.1f} %"
            if spread is not None
            else f"Equal for all {whom}"
        )
        lacking = (
            " Not every subject has every class: each is scored on its own classes, so this number gives a class of "
            "few subjects less weight than the score over all windows."
            if probe.classes_differ
            else ""
        )
        return Headline("balanced accuracy", over["mean"], spread, f"{told}; {probe.how}.{lacking}{few}")
    whom = f"{probe.groups} subjects" if probe.by_people else f"{probe.groups:,} windows"
    told = (
        f"95 % interval {100 * probe.low:.1f} to {100 * probe.high:.1f} %, by resampling {whom}"
        if probe.low is not None and probe.high is not None
        else f"No interval: every resample of the {whom} gives the same score"
    )
    words = f"{told}; {probe.how}.{few}"
    return Headline("balanced accuracy", 100 * probe.scores["balanced_accuracy"], None, words)
