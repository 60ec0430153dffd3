"""The contents of a report, collected from a model, its data and the result of a run; `page` does the layout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyadic.core.tensorizer import Axis
from polyadic.data.splits import Protocol
from polyadic.data.store import WindowStore
from polyadic.data.windows import Windows
from polyadic.errors import PolyadicError
from polyadic.evaluate.probe import AUTO
from polyadic.explain.spectra import Typical, typical
from polyadic.report.components import Component, describe_components
from polyadic.report.probe import ProbeResult, score_probe, thinned
from polyadic.report.timelines import Timeline, timelines

__all__ = ["ReportContents", "Sample", "as_windows", "collect_contents"]

_SAMPLED = 4000
_SCORED = 1024


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
    random_state: int = 0,
    probe_kind: str = AUTO,
    transductive: bool = False,
    on_fold: Callable[[int, int], None] | None = None,
) -> ReportContents:
    """Collect the contents of a report from a model and, if given, data.

    Parameters
    ----------
    data : `Windows`, a `WindowStore`, or an array as for `model.transform`; None for the model alone
    protocol, random_state, transductive : how the probe is trained and tested, as for `report.probe.score_probe`
    probe_kind : kind of probe, as for `polyadic.evaluate.probe.make_probe`
    on_fold : called with the number of folds done and the total
    """
    windows = as_windows(model, data)
    sample = mean = label = None
    classes: list[str] = []
    if data is not None:
        sample, mean = _sample_data(model, data if windows is None else windows)
    if sample is not None and sample.windows is not None:
        label = sample.windows.label
        classes = [sample.windows.classes[code] for code in np.unique(label[label >= 0])]
    probe, trouble = None, ""
    if windows is not None and len(np.unique(windows.label[windows.label >= 0])) > 1:
        try:
            probe = score_probe(model, windows, protocol, random_state, probe_kind, transductive, on_fold)
        except PolyadicError as error:
            trouble = str(error)
    axes = model.axes(windows)
    components = describe_components(model, axes, None if sample is None else sample.x, label)
    shown, recordings = ([], 0) if sample is None else timelines(model, windows, probe, components, sample.x)
    samples = None if windows is None else windows._samples
    return ReportContents(
        axes=axes,
        sample=sample,
        components=components,
        typical=mean,
        classes=classes,
        probe=probe,
        trouble=trouble,
        timelines=shown,
        recordings=recordings,
        store=samples if isinstance(samples, WindowStore) else None,
        converged=getattr(model, "converged_", None),
    )


def as_windows(model: Any, data: Any) -> Windows | None:
    """Return the data as `Windows`, or None if it is tensors rather than signals."""
    if data is None or isinstance(data, Windows):
        return data
    if isinstance(data, WindowStore):
        return data.windows
    if model.tensorize_ is not None and len(np.shape(data)) == 3:
        return Windows(np.asarray(data))
    return None


def _sample_data(model: Any, data: Any) -> tuple[Sample, Typical]:
    chosen = data[thinned(np.arange(len(data)), _SAMPLED)]
    x, Z = (np.asarray(of(chosen), dtype=np.float64) for of in (model.coefficients, model.transform))
    windows = chosen if isinstance(chosen, Windows) else None
    sample = Sample(windows, x, Z, len(data), model.score(chosen[:_SCORED]))
    return sample, typical(model, chosen[thinned(np.arange(len(x)), _SCORED)], x)
