"""The main job: ATD, SALS, GR-SALS and ATD_ss- on the same windows, judged by the same probe, over several seeds.

Every seed has its own start, order and augmentations, and its own split of the labelled windows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from sklearn.base import clone

from polyadic import ATD, GRSALS, SALS
from polyadic.data import Split, Windows, split
from polyadic.data.splits import Protocol
from polyadic.errors import PolyadicError
from polyadic.evaluate import PROBES, probe_accuracy

__all__ = ["compare", "parted", "summarise"]

_SCORED_WINDOWS = 1024

Row = dict[str, Any]


def parted(windows: Windows, protocol: Protocol, seed: int) -> Split:
    """The parts of the data for one seed; windows without labels are all there is to learn from."""
    if (windows.label >= 0).any():
        return split(windows, protocol, seed=seed)
    nothing = np.empty(0, dtype=np.intp)
    return Split(windows, np.arange(len(windows)), nothing, nothing)


def compare(
    windows: Windows,
    estimators: Mapping[str, ATD | SALS | GRSALS],
    protocols: Sequence[Protocol],
    seeds: Sequence[int],
    jobs: int = 1,
    on_fit: Callable[[str, int, ATD | SALS | GRSALS], None] | None = None,
) -> list[Row]:
    """Fit every method for every seed and judge it.

    Parameters
    ----------
    windows : with labels, or without for models and no accuracy
    estimators : unfitted, by name; their `random_state` is set to the seed
    protocols : how to split; where the data has an unlabelled part of its own, one fit serves all protocols
    jobs : processes at a time
    on_fit : called with the method's name, the seed and the fitted model when a method is done with a seed

    Returns
    -------
    a row for each method, seed and protocol: accuracies in percent by probe, seconds a sweep, sweeps, parameters, fit
    """
    for seed in seeds:
        for protocol in protocols:
            _check_classes(windows, parted(windows, protocol, seed))
    units = [(seed, name) for seed in seeds for name in estimators]
    work = (delayed(_rows)(windows, estimators[name], protocols, seed) for seed, name in units)
    rows: list[Row] = []
    for (seed, name), (found, model) in zip(units, Parallel(jobs, return_as="generator")(work), strict=True):
        rows += [{"method": name, "seed": seed, **row} for row in found]
        if on_fit is not None:
            on_fit(name, seed, model)
    return rows


def _rows(
    windows: Windows, estimator: ATD | SALS | GRSALS, protocols: Sequence[Protocol], seed: int
) -> tuple[list[Row], ATD | SALS | GRSALS]:
    """What one method achieves with one seed under each protocol, and its (last) model."""
    rows: list[Row] = []
    model, learned = None, np.empty(0, dtype=np.intp)
    for protocol in protocols:
        part = parted(windows, protocol, seed)
        if model is None or not np.array_equal(part.unlabelled, learned):
            learned, unlabelled = part.unlabelled, next(iter(part))
            model = clone(estimator).set_params(random_state=seed).fit(unlabelled)
        rows.append({"protocol": protocol, "split": part.hash, **_judge(model, windows, part)})
    assert model is not None
    return rows, model


def _check_classes(windows: Windows, part: Split) -> None:
    """Refuse labels that no classifier could learn, before anything is fitted."""
    if len(part.train) and len(np.unique(windows.label[part.train])) < 2:
        raise PolyadicError("label must have at least two classes among the training windows, but has one")


def _judge(model: ATD | SALS | GRSALS, windows: Windows, part: Split) -> Row:
    row: Row = {}
    if len(part.train):
        Z_train, Z_test = (model.transform(windows[rows]) for rows in (part.train, part.test))
        y_train, y_test = windows.label[part.train], windows.label[part.test]
        row = {kind: 100 * probe_accuracy(kind, Z_train, y_train, Z_test, y_test) for kind in PROBES}
    seconds = model.history_["seconds"]
    # The first sweep of a process also pays for memory and caches.
    row |= {"seconds_per_sweep": float(np.median(seconds[1:] or seconds)), "sweeps": model.n_sweeps_}
    some = part.unlabelled[:_SCORED_WINDOWS]
    return row | {"parameters": model.n_parameters_, "fit": model.score(windows[some])}


def summarise(rows: Sequence[Row]) -> list[Row]:
    """Mean and, over several seeds, standard deviation, for each method and protocol, in the order of the rows.

    Examples
    --------
    >>> summarise([{"method": "A", "protocol": "paper", "seed": s, "plain": 90.0 + s} for s in (0, 2)])
    [{'method': 'A', 'protocol': 'paper', 'plain': 91.0, 'plain_std': 1.4142135623730951}]
    """
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["protocol"], row["method"]), []).append(row)
    summary = []
    for (protocol, method), members in groups.items():
        entry: Row = {"method": method, "protocol": protocol}
        for key in members[0].keys() - {"method", "protocol", "seed", "split"}:
            values = [member[key] for member in members]
            entry[key] = float(np.mean(values))
            if len(values) > 1:
                entry[f"{key}_std"] = float(np.std(values, ddof=1))
        summary.append(dict(sorted(entry.items(), key=lambda item: (item[0] not in ("method", "protocol"), item[0]))))
    return summary
