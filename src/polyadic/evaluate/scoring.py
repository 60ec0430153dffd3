"""Train probes on features of labelled windows, and score their predictions for other windows.

`score_features` takes features, `score_splits` a fitted model and the seeds of several splits, `score_own_probe` a
model with a probe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyadic._util.checks import check_integer
from polyadic._util.random_streams import permutation
from polyadic.data.splits import PROTOCOLS, Protocol, Split, split
from polyadic.data.windows import Windows
from polyadic.errors import PolyadicError
from polyadic.estimators import CPD
from polyadic.evaluate.classifier import labels_of
from polyadic.evaluate.metrics import scores
from polyadic.evaluate.predictor import WindowPredictor, group_names, groups_of, means_by_group, recentred
from polyadic.evaluate.probe import PROBES, level_columns, train_probe, unthreaded

__all__ = [
    "default_protocol",
    "features_of",
    "low_label_rows",
    "own_split",
    "probe_accuracy",
    "score_features",
    "score_own_probe",
    "score_splits",
    "summarise",
]

_OnRows = Callable[[int], None]

_MEASURES = ("accuracy", "balanced_accuracy", "macro_f1", "kappa", "worst_subject")


def score_features(
    probes: Mapping[str, Any],
    Z_train: NDArray[Any],
    y_train: NDArray[Any],
    Z_test: NDArray[Any],
    y_test: NDArray[Any],
    subject: NDArray[Any] | None = None,
    groups: NDArray[Any] | None = None,
    levels: Any = None,
) -> dict[str, dict[str, Any]]:
    """Train every probe on features of training windows and score its predictions for test windows.

    Parameters
    ----------
    probes : classifiers by name, as for `make_probe`
    Z_train, Z_test : (n, R), features
    y_train, y_test : (n,), labels
    subject : (n,), the subject of each test window, for the accuracy of each subject
    groups : (n,), the subject of each training window, for probes that are selected by leaving groups out
    levels : columns of the level block, as for `Probe.fit`

    Returns
    -------
    for each probe, by name, what `polyadic.evaluate.scores` returns, and the `reason` for its settings if it has one

    Examples
    --------
    >>> Z, y = np.array([[0.0], [0.1], [1.0], [1.1]]), np.array([0, 0, 1, 1])
    >>> score_features({"plain": "plain"}, Z, y, Z, y)["plain"]["accuracy"]
    1.0
    """
    results = {}
    for name, kind in probes.items():
        with unthreaded():
            fitted = train_probe(kind, Z_train, y_train, groups, levels)
            results[name] = scores(y_test, fitted.predict(Z_test), subject)
        if hasattr(fitted, "reason_"):
            results[name]["reason"] = fitted.reason_
    return results


def probe_accuracy(
    kind: str, Z_train: NDArray[Any], y_train: NDArray[Any], Z_test: NDArray[Any], y_test: NDArray[Any]
) -> float:
    """Return the share of test windows that a probe labels correctly.

    Parameters
    ----------
    kind : as for `make_probe`
    Z_train, Z_test : (n, R), features
    y_train, y_test : (n,), labels
    """
    return float(score_features({kind: kind}, Z_train, y_train, Z_test, y_test)[kind]["accuracy"])


def default_protocol(windows: Windows) -> Protocol:
    """Return "subject" if the subject of every window is known, else "paper"."""
    return "paper" if (windows.subject == "").any() else "subject"


def own_split(model: CPD, windows: Windows, protocols: Sequence[Protocol] = PROTOCOLS) -> Split | None:
    """Find the split of these windows whose unlabelled part the model was fitted to; None if there is no such split.

    Parameters
    ----------
    model : fitted; its `split_` and its seed identify the split
    """
    if not getattr(model, "split_", "") or not hasattr(model, "seed_"):
        return None
    for protocol in protocols:
        try:
            part = split(windows, protocol, seed=model.seed_)
        except PolyadicError:  # the windows do not allow this protocol
            continue
        if model.split_ == f"{part.hash}:unlabelled":
            return part
    return None


def score_splits(
    model: CPD,
    windows: Windows,
    protocol: Protocol,
    seeds: Sequence[int],
    on_rows: _OnRows | None = None,
    kinds: Sequence[str] = PROBES,
) -> list[dict[str, Any]]:
    """Train probes on the training part of several splits, and score them on the test part of each.

    Parameters
    ----------
    model : fitted; it is not refitted
    windows : with labels
    protocol, seeds : protocol and seeds of the splits
    on_rows : called with the number of windows done, while their features are computed
    kinds : kinds of probes, as for `make_probe`

    Returns
    -------
    for each seed and probe what `scores` returns, with `probe`, `seed`, `split` (its hash), `trained` and `tested`
    """
    parts = {seed: split(windows, protocol, seed=seed) for seed in seeds}
    for part in parts.values():
        if len(np.unique(windows.label[part.train])) < 2 or not len(part.test):
            raise PolyadicError(
                "a split must have test windows, and training windows of at least two classes: add labels"
            )
    used = np.unique(np.concatenate([rows for part in parts.values() for rows in (part.train, part.test)]))
    Z = features_of(model, windows[used], on_rows)
    labels, levels = labels_of(windows), level_columns(model)
    results = []
    for seed, part in parts.items():
        train, test = ((Z[np.searchsorted(used, rows)], labels[rows]) for rows in (part.train, part.test))
        about = {"seed": seed, "split": part.hash, "trained": len(part.train), "tested": len(part.test)}
        subject, groups = windows.subject[part.test], groups_of(windows[part.train])
        by_probe = score_features(dict(zip(kinds, kinds, strict=True)), *train, *test, subject, groups, levels)
        results += [{"probe": kind, **about, **result} for kind, result in by_probe.items()]
    return results


def score_own_probe(model: CPD, windows: Windows, on_rows: _OnRows | None = None) -> list[dict[str, Any]]:
    """Score a model's own probe on all labelled windows, or only on the test part of the split it was fitted to.

    Parameters
    ----------
    model : fitted, with a probe
    windows : with labels; those of a class that the probe does not know count as labelled wrongly
    on_rows : as for `score_splits`

    Returns
    -------
    one entry like those of `score_splits`, without a seed
    """
    predictor = WindowPredictor(model)
    part = own_split(model, windows)
    rows = np.flatnonzero(windows.label >= 0) if part is None else part.test
    if not len(rows):
        raise PolyadicError("windows must have labels to be scored, but none has one")
    tested = windows[rows]
    Z = features_of(model, tested, on_rows)
    if predictor.recenter:
        names = group_names(tested.subject, len(tested))
        Z = recentred(Z, names, means_by_group([(Z, names)]))
    result = scores(labels_of(tested), predictor.probe_.predict(Z).astype(str), tested.subject)
    return [{"probe": "the model's", "split": "" if part is None else part.hash, "tested": len(rows), **result}]


def features_of(model: Any, windows: Windows, on_rows: _OnRows | None = None) -> NDArray[np.float64]:
    """Compute features in double precision: (N, F); `on_rows` is called with the number of windows done."""
    words = {} if on_rows is None else {"on_rows": on_rows}  # other feature extractors do not take it
    return np.asarray(model.transform(windows, **words), np.float64)


def low_label_rows(y: ArrayLike, count: int, seed: int = 0) -> NDArray[np.intp]:
    """Choose some of the labelled windows, for a learning curve over the number of labels.

    The choice is stratified: classes keep their proportions, and each has at least one window if `count` allows it
    (else the most frequent ones do). With the same seed, a smaller count gives a subset of a larger one.

    Parameters
    ----------
    y : (N,), the labels of all
    count : how many to choose

    Returns
    -------
    (count,), row numbers in ascending order

    Examples
    --------
    >>> y = np.array([0] * 80 + [1] * 20)
    >>> np.bincount(y[low_label_rows(y, 10)])
    array([8, 2])
    """
    labels = np.asarray(y)
    if labels.ndim != 1:
        raise PolyadicError(f"y must have shape (N,), one label per window, but has shape {labels.shape}")
    check_integer("count", count, 1)
    if count > len(labels):
        raise PolyadicError(f"count must be at most the number of labelled windows, {len(labels)}, but is {count}")
    shuffled = permutation(len(labels), seed, 0).numpy()
    _, codes, sizes = np.unique(labels[shuffled], return_inverse=True, return_counts=True)
    # An order of all windows whose every prefix is stratified: the k-th window of a class of n is placed at (k+½)/n,
    # except that the first window of each class precedes all others.
    turn = np.empty(len(labels))
    for code, size in enumerate(sizes):
        turn[codes == code] = [-size, *((np.arange(1, size) + 0.5) / size)]
    chosen: NDArray[np.intp] = np.sort(shuffled[np.argsort(turn, kind="stable")[: int(count)]])
    return chosen


def summarise(
    rows: Sequence[Mapping[str, Any]], by: Sequence[str] = ("probe",), measures: Sequence[str] = _MEASURES
) -> list[dict[str, Any]]:
    """Return the mean and, for several rows, the standard deviation of each measure, for each group of rows.

    Parameters
    ----------
    rows : as returned by `score_splits`
    by : the keys to group rows by; groups are in the order of their first rows
    measures : the keys to average, if rows have them

    Examples
    --------
    >>> summarise([{"probe": "plain", "accuracy": 0.25}, {"probe": "plain", "accuracy": 0.25}])
    [{'probe': 'plain', 'accuracy': 0.25, 'accuracy_std': 0.0}]
    """
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in by), []).append(row)
    entries = []
    for key, members in groups.items():
        entry: dict[str, Any] = dict(zip(by, key, strict=True))
        for name in measures:
            values = [row[name] for row in members if name in row]
            if values:
                entry[name] = float(np.mean(values))
            if len(values) > 1:
                entry[f"{name}_std"] = float(np.std(values, ddof=1))
        entries.append(entry)
    return entries
