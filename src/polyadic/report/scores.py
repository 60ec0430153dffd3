"""What a report says of a probe: predictions, an interval of its accuracy, a curve over the number of labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import precision_recall_fscore_support

from polyadic.data.splits import Protocol, Split, split
from polyadic.data.windows import Windows
from polyadic.evaluate import low_label_rows, probe, probe_accuracy, scores
from polyadic.evaluate.scoring import default_protocol, predict_classes

__all__ = ["ProbeResult", "interval", "score_probe", "thinned"]

_MOST_WINDOWS = 4000
_DRAWS = 5
_RESAMPLED = 2000
_STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 500)


@dataclass(frozen=True)
class ProbeResult:
    """What a probe achieved on one split.

    protocol, split : by which the parts were drawn, and the parts
    n_train, n_test : windows the probe was trained and tested on
    y, predicted : (n_test,), true and predicted classes
    scores : as of `polyadic.evaluate.scores`
    low, high : limits of a 95 % interval of the accuracy
    groups : how many people (or windows, where people are not known) the interval was resampled from
    by_people : whether it was people
    guess : accuracy of always naming the most frequent class of the training windows
    classes : for each class its name, precision, recall, F1 and number of test windows
    curve : for each number of labels the accuracies of its draws, in percent
    """

    protocol: str
    split: Split
    n_train: int
    n_test: int
    y: NDArray[Any]
    predicted: NDArray[Any]
    scores: dict[str, Any]
    low: float
    high: float
    groups: int
    by_people: bool
    guess: float
    classes: list[dict[str, Any]]
    curve: dict[int, list[float]]


def thinned(rows: NDArray[np.intp], most: int) -> NDArray[np.intp]:
    """Return at most so many rows, evenly spread over all."""
    if len(rows) <= most:
        return rows
    return rows[np.linspace(0, len(rows) - 1, most).astype(np.intp)]


def score_probe(model: Any, windows: Windows, protocol: Protocol | None, seed: int) -> ProbeResult:
    """Train and test a probe on features of a split's labelled parts, at most 4,000 windows of each.

    Parameters
    ----------
    protocol : as for `polyadic.data.split`; None for "subject" where people are known, else "paper"
    """
    chosen = protocol or default_protocol(windows)
    parts = split(windows, chosen, seed=seed)
    train, test = (thinned(part, _MOST_WINDOWS) for part in (parts.train, parts.test))
    Z_train, Z_test = (np.asarray(model.transform(windows[rows])) for rows in (train, test))
    y_train, y_test = windows.label[train], windows.label[test]
    (predicted,) = predict_classes(probe(), Z_train, y_train, Z_test)
    people = windows.subject[test]
    by_people = bool((people != "").all()) and len(np.unique(people)) > 1
    low, high = interval(y_test == predicted, people if by_people else None)
    common = np.bincount(y_train).argmax()
    return ProbeResult(
        protocol=chosen,
        split=parts,
        n_train=len(train),
        n_test=len(test),
        y=y_test,
        predicted=predicted,
        scores=scores(y_test, predicted, people),
        low=low,
        high=high,
        groups=len(np.unique(people)) if by_people else len(test),
        by_people=by_people,
        guess=float((y_test == common).mean()),
        classes=_scores_by_class(y_test, predicted, windows.classes),
        curve=_low_label_curve(Z_train, y_train, Z_test, y_test),
    )


def interval(right: NDArray[np.bool_], group: NDArray[Any] | None = None, seed: int = 0) -> tuple[float, float]:
    """Return a 95 % interval of the accuracy, by resampling people, or windows where people are not known.

    Windows of one person are alike: resampling them one by one would promise more than is known.

    Parameters
    ----------
    right : (N,)
    group : (N,), whose windows they are

    Examples
    --------
    >>> interval(np.ones(5, bool))
    (1.0, 1.0)
    """
    _, member = np.unique(np.arange(len(right)) if group is None else group, return_inverse=True)
    hits, sizes = np.bincount(member, weights=right), np.bincount(member)
    rng = np.random.default_rng(seed)
    values = np.empty(_RESAMPLED)
    for number in range(_RESAMPLED):
        drawn = rng.integers(len(sizes), size=len(sizes))
        values[number] = hits[drawn].sum() / sizes[drawn].sum()
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)


def _scores_by_class(y: NDArray[Any], predicted: NDArray[Any], names: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return name, precision, recall, F1 and number of windows of every class that was there or predicted."""
    present = np.union1d(y, predicted)
    columns = precision_recall_fscore_support(y, predicted, labels=present, zero_division=0)
    keys = ("precision", "recall", "f1", "windows")
    return [
        {"name": names[code], **dict(zip(keys, (float(value) for value in row), strict=True))}
        for code, row in zip(present.tolist(), zip(*columns, strict=True), strict=True)
    ]


def _low_label_curve(
    Z: NDArray[Any], y: NDArray[Any], Z_test: NDArray[Any], y_test: NDArray[Any]
) -> dict[int, list[float]]:
    """Return the accuracies in percent of probes trained on a few of the labels, by their number."""
    classes = len(np.unique(y))
    counts = [classes * step for step in _STEPS if classes * step < 0.7 * len(y)] + [len(y)]
    curve: dict[int, list[float]] = {}
    for count in counts:
        # All labels can be drawn in one way only.
        draws = [low_label_rows(y, count, seed) for seed in range(_DRAWS if count < len(y) else 1)]
        curve[count] = [100 * probe_accuracy("standardised", Z[rows], y[rows], Z_test, y_test) for rows in draws]
    return curve
