"""The headline of a report, and the methods that a run compared."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from polyadic.errors import PolyadicError
from polyadic.report.probe import ProbeResult

__all__ = ["Headline", "headline", "methods_of"]

_SCORES = {
    "balanced_accuracy": "balanced accuracy",
    "accuracy": "accuracy",
    "standardised": "accuracy, standardised probe",
    "plain": "accuracy, plain probe",
}
"""The scores that a run may have, in order of preference."""

_FEW_TESTED = 100
"""Below this number of test windows, the headline is called uncertain."""


def methods_of(result: dict[str, Any], first: str = "", probe: ProbeResult | None = None) -> list[dict[str, Any]]:
    """Return the methods of a run in order, except that the protocol and method of the report come first.

    Parameters
    ----------
    result : content of the results.json of `polyadic run`
    first : the method of the report's model
    probe : the probe of the report, for its protocol

    Returns
    -------
    for each method and protocol means over the seeds: `measure` and `accuracy`, the first score in percent, with `low`
    and `high`, a 95 % interval of the mean; `other`, name and value of a second score; `parameters`, `seconds`,
    `sweeps` and `fit`. Unknown values are None
    """
    methods: list[dict[str, Any]] = []
    try:
        for entry in result["summary"]:
            about = {"name": str(entry["method"]), "protocol": str(entry["protocol"])}
            names = [name for name in _SCORES if name in entry]
            key, other = [*names, "", ""][:2]
            same = [row for row in result["rows"] if (row["method"], row["protocol"]) == tuple(about.values())]
            low, high = _mean_interval([row[key] for row in same if key in row])
            costs = {name: entry.get(name) for name in ("seconds", "sweeps", "fit")}
            methods.append(
                about
                | {"measure": _SCORES.get(key, ""), "accuracy": float(entry[key]) if key else None}
                | {"low": low, "high": high, "other": (_SCORES[other], float(entry[other])) if other else None}
                | {"parameters": float(entry["parameters"])}
                | {name: None if cost is None else float(cost) for name, cost in costs.items()}
            )
    except (KeyError, TypeError, ValueError) as error:
        raise PolyadicError(
            f"result must be the content of a results.json of `polyadic run`, but lacks {error}"
        ) from error
    protocol = "" if probe is None else probe.protocol
    return sorted(methods, key=lambda method: (method["protocol"] != protocol, method["name"] != first))


def _mean_interval(values: list[float]) -> tuple[float | None, float | None]:
    """Return a 95 % interval of the mean, in percent, by Student's t; None for a single value or for equal values."""
    if len(values) < 2 or np.ptp(values) == 0:
        return None, None
    low, high = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
    return max(0.0, float(low)), min(100.0, float(high))


class Headline(NamedTuple):
    """The headline of a report."""

    measure: str
    value: float  # in percent
    words: str  # its interval, how it was measured, and what makes it uncertain


def headline(methods: list[dict[str, Any]], seeds: int, probe: ProbeResult | None) -> Headline | None:
    """Return the score of the probe on unseen subjects, or else of the first method of a run; None without labels."""
    scored = [method for method in methods[:1] if method["accuracy"] is not None]
    if probe is not None and (probe.protocol == "subject" or not scored):
        return _probe_headline(probe)
    if not scored:
        return None
    best = scored[0]
    words = f"Mean over {seeds} seeds, each with its own random start and split" if seeds > 1 else "1 seed, no interval"
    ends = "" if best["low"] is None else f"; 95 % interval {best['low']:.1f} to {best['high']:.1f} %"
    return Headline(best["measure"], best["accuracy"], f"{words}{ends}.")


def _probe_headline(probe: ProbeResult) -> Headline:
    """Return the balanced accuracy over all windows, the first number of `polyadic evaluate`, with an interval."""
    few = f" Only {probe.n_test} windows were tested, so the score is uncertain." if probe.n_test < _FEW_TESTED else ""
    whom = f"{probe.groups} subjects" if probe.by_people else f"{probe.groups:,} windows"
    words = f"No interval: every resample of the {whom} gives the same score"
    if probe.low is not None and probe.high is not None:
        words = f"95 % interval {100 * probe.low:.1f} to {100 * probe.high:.1f} %, by resampling {whom}"
    score = 100 * probe.scores["balanced_accuracy"]
    return Headline("balanced accuracy", score, f"{words}; {probe.how}.{few}")
