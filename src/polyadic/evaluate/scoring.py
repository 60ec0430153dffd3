"""What a fitted model's features are worth on labelled windows: probes over splits, or the probe the model has."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from polyadic.data.splits import PROTOCOLS, Protocol, Split, split
from polyadic.data.windows import Windows
from polyadic.errors import PolyadicError
from polyadic.estimators import ATD, GRSALS, SALS
from polyadic.evaluate.classifier import WindowClassifier, labels_of
from polyadic.evaluate.metrics import scores
from polyadic.evaluate.probe import PROBES, probe, unthreaded
from polyadic.team import ALONE, Team

__all__ = ["judge_probe", "judge_splits", "own_split", "summary"]

_Rows = Callable[[int], None]
MEASURES = ("accuracy", "balanced_accuracy", "macro_f1", "kappa", "worst_subject")


def own_split(model: ATD | SALS | GRSALS, windows: Windows, protocols: Sequence[Protocol] = PROTOCOLS) -> Split | None:
    """The split of these windows of which the model learned the unlabelled part, or None if it did not.

    Parameters
    ----------
    model : fitted; by its `split_` and its seed it is known whether it learned from a part of these windows
    """
    for protocol in protocols if model.split_ else ():
        try:
            found = split(windows, protocol, seed=model.seed_)
        except PolyadicError:  # the windows cannot be split like this, and so have not been
            continue
        if model.split_ == f"{found.hash}:unlabelled":
            return found
    return None


def judge_splits(
    model: ATD | SALS | GRSALS,
    windows: Windows,
    protocol: Protocol,
    seeds: Sequence[int],
    on_rows: _Rows | None = None,
    team: Team = ALONE,
) -> list[dict[str, Any]]:
    """Train probes on the training part of splits, and test them on the test part.

    Parameters
    ----------
    model : fitted; it is not fitted again
    windows : with labels
    protocol, seeds : of the splits
    on_rows : called with the number of windows done, while their features are made
    team : the processes that make the features together, from `polyadic.engine.join`, in one folder that all of
        them work in; each returns the same

    Returns
    -------
    for each seed and probe what `scores` finds, with `probe`, `seed`, `split` (its hash), `trained` and `tested`
    """
    parts = {seed: split(windows, protocol, seed=seed) for seed in seeds}
    for part in parts.values():
        if len(np.unique(windows.label[part.train])) < 2 or not len(part.test):
            raise PolyadicError("a split must have two classes or more to train on, and windows to test, but has not")
    used = np.unique(np.concatenate([rows for part in parts.values() for rows in (part.train, part.test)]))
    Z = _features(model, windows[used], on_rows, team)
    labels = labels_of(windows)
    judged = []
    for seed, part in parts.items():
        Z_train, Z_test = (Z[np.searchsorted(used, rows)] for rows in (part.train, part.test))
        about = {"seed": seed, "split": part.hash, "trained": len(part.train), "tested": len(part.test)}
        for kind in PROBES:
            with unthreaded():
                fitted = probe(kind).fit(Z_train, labels[part.train])
            found = scores(labels[part.test], fitted.predict(Z_test), windows.subject[part.test])
            judged.append({"probe": kind, **about, **found})
    return judged


def judge_probe(
    model: ATD | SALS | GRSALS, windows: Windows, on_rows: _Rows | None = None, team: Team = ALONE
) -> list[dict[str, Any]]:
    """Test the probe within a model on all windows with labels; where it learned from a part of them, on the test part.

    Parameters
    ----------
    model : fitted, with a probe
    windows : with labels; those of a class that the probe does not know count as labelled wrongly
    on_rows, team : as for `judge_splits`

    Returns
    -------
    one entry, as `judge_splits` has them, without a seed
    """
    classifier = WindowClassifier.of(model)
    part = own_split(model, windows)
    rows = np.flatnonzero(windows.label >= 0) if part is None else part.test
    if not len(rows):
        raise PolyadicError("windows must have labels to be judged by, but none has one")
    tested = windows[rows]
    predicted = classifier.probe_.predict(_features(model, tested, on_rows, team)).astype(str)
    found = scores(labels_of(tested), predicted, tested.subject)
    return [{"probe": "the model's", "split": "" if part is None else part.hash, "tested": len(rows), **found}]


def _features(model: ATD | SALS | GRSALS, windows: Windows, on_rows: _Rows | None, team: Team) -> NDArray[np.float64]:
    if team.size == 1:
        return np.asarray(model.transform(windows, on_rows=on_rows), np.float64)
    folder = Path(team.once(lambda: tempfile.mkdtemp(prefix=".polyadic-", dir=".")))
    try:
        Z = np.array(model.transform(windows, out=folder / "features.npy", on_rows=on_rows, team=team), np.float64)
        team.sum(torch.zeros(1))  # all have read it
    finally:
        if team.index == 0:
            shutil.rmtree(folder, ignore_errors=True)
    return Z


def summary(judged: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean and, over several seeds, standard deviation of each measure, for each probe.

    Examples
    --------
    >>> summary([{"probe": "plain", "accuracy": 0.25}, {"probe": "plain", "accuracy": 0.25}])
    [{'probe': 'plain', 'accuracy': 0.25, 'accuracy_std': 0.0}]
    """
    entries = []
    for kind in dict.fromkeys(row["probe"] for row in judged):
        entry: dict[str, Any] = {"probe": kind}
        for name in MEASURES:
            values = [row[name] for row in judged if row["probe"] == kind and name in row]
            if values:
                entry[name] = float(np.mean(values))
            if len(values) > 1:
                entry[f"{name}_std"] = float(np.std(values, ddof=1))
        entries.append(entry)
    return entries
