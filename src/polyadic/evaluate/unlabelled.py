"""Unlabelled windows in the probe: label spreading on a graph of nearest neighbours (Zhou et al., 2004).

Labels spread from labelled windows along a graph of similar windows. The probe is then refitted with the spread labels
that can be trusted. Components and statistics have a graph each, and labels spread along both. Windows also have
neighbours of other subjects, to whom labels are to spread.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from sklearn.metrics import pairwise_distances_chunked

__all__ = ["FEWEST", "MOST", "neighbour_graph", "pool_rows", "spread", "trusted_labels"]

MOST = 3500
"""Maximum number of unlabelled windows in the graph."""
FEWEST = 250
"""Minimum number of unlabelled windows: of fewer, the nearest neighbours are not near."""

_NEIGHBOURS, _LOCAL = 10, 7
_OUTSIDE = 0.25
"""Weight of neighbours in other groups; on development subjects, ½ and 1 gain as much with few labels, less with 10."""
_SMALLEST_SCALE = 1e-6
"""Smallest local scale, relative to the mean distance of neighbours."""
_ALPHA, _STEPS = 0.9, 60
_SMOOTHING = 0.05
_FEW_LABELS = 3
_TOTAL = 3.0
"""Total weight of the spread labels of a class, relative to that of its true labels."""

_Floats = NDArray[np.float64]
_Rows = NDArray[np.intp]


def pool_rows(known: NDArray[np.bool_], groups: NDArray[Any] | None, most: int = MOST) -> _Rows:
    """Choose rows that are not `known` (N,) at random, as many of each group (N,) as possible: (n,), sorted."""
    rows = np.random.default_rng(0).permutation(np.flatnonzero(~known))
    if len(rows) > most and groups is not None:
        # The first row of every group, then the second of every group that has one, and so on.
        codes = np.unique(groups[rows], return_inverse=True)[1]
        order = np.argsort(codes, kind="stable")
        place = np.empty(len(rows), np.intp)
        place[order] = np.arange(len(rows)) - np.searchsorted(codes[order], codes[order])
        rows = rows[np.argsort(place, kind="stable")]
    return np.sort(rows[:most])


def neighbour_graph(Z: _Floats, is_statistic: NDArray[np.bool_], groups: _Rows | None = None) -> Any:
    """Return the graph of nearest neighbours of features (n, F), a sparse matrix (n, n).

    Each window is joined to its ten nearest neighbours and, if groups (n,) are known, to the ten nearest windows of
    other groups: otherwise nearly all neighbours belong to the same subject, and labels hardly reach other subjects.
    Components and statistics have graphs of their own, which are added, so that the weight of one against the other is
    irrelevant.
    """
    blocks = [Z[:, columns] for columns in (~is_statistic, is_statistic) if columns.any()]
    return sum(_graph_of_block(block, groups) for block in blocks)


def _graph_of_block(Z: _Floats, groups: _Rows | None) -> Any:
    """Return the symmetric graph of nearest neighbours, plus that of neighbours in other groups with a smaller weight.

    Weights are Gaussian, with the distance to the seventh neighbour as local scale (Zelnik-Manor and Perona, 2004).
    """
    count = min(_NEIGHBOURS, len(Z) - 1)
    outside = 0 if groups is None else min(count, len(Z) - int(np.bincount(groups).max()))

    def nearest(distance: _Floats, begin: int) -> tuple[NDArray[Any], ...]:
        rows = np.arange(begin, begin + len(distance))
        distance[rows - begin, rows] = np.inf
        found = _smallest(distance, count)
        if not outside:
            return found
        distance[groups[rows, None] == groups] = np.inf  # type: ignore[index]
        return found + _smallest(distance, outside)

    parts = zip(*pairwise_distances_chunked(Z, reduce_func=nearest), strict=True)
    distance, neighbour, *others = (np.concatenate(part) for part in parts)
    graph = _weighted(distance, neighbour)
    return graph + _OUTSIDE * _weighted(*others) if others else graph


def _smallest(distance: _Floats, count: int) -> tuple[_Floats, _Rows]:
    """Return the smallest distances of each row, ascending, and their columns: (n, count) each."""
    columns = np.argpartition(distance, count - 1, axis=1)[:, :count]
    order = np.take_along_axis(distance, columns, axis=1).argsort(axis=1)
    columns = np.take_along_axis(columns, order, axis=1)
    return np.take_along_axis(distance, columns, axis=1), columns


def _weighted(distance: _Floats, neighbour: _Rows) -> Any:
    """Return the symmetric graph of neighbours at these distances, (n, k) each."""
    n, count = distance.shape
    # Among equal windows, such as silent ones, the local scale is 0.
    scale = np.maximum(distance[:, min(_LOCAL, count) - 1], _SMALLEST_SCALE * (distance.mean() or 1.0))
    weight = np.exp(-np.square(distance) / (scale[:, None] * scale[neighbour]))
    graph = scipy.sparse.csr_matrix((weight.ravel(), (np.repeat(np.arange(n), count), neighbour.ravel())), (n, n))
    return graph.maximum(graph.T)


def spread(graph: Any, codes: _Rows, proportions: _Floats) -> _Floats:
    """Spread labels, codes (n,) from 0 or −1, along a graph: class probabilities of all rows, (n, K).

    The total mass of each class is scaled to its expected share, `proportions` (K,).
    """
    degree = np.asarray(graph.sum(axis=1)).ravel()
    root = scipy.sparse.diags(1 / np.sqrt(np.maximum(degree, np.finfo(float).tiny)))
    step = root @ graph @ root
    labels = np.zeros((len(codes), len(proportions)))
    labelled = np.flatnonzero(codes >= 0)
    labels[labelled, codes[labelled]] = 1.0
    labels /= np.maximum(labels.sum(axis=0), 1.0)
    mass = labels
    for _ in range(_STEPS):
        mass = _ALPHA * (step @ mass) + (1 - _ALPHA) * labels
    mass = mass * (proportions / np.maximum(mass.sum(axis=0), np.finfo(float).tiny))
    total = mass.sum(axis=1, keepdims=True)
    return np.asarray(np.divide(mass, total, out=np.zeros_like(mass), where=total > 0))


def trusted_labels(graph: Any, codes: _Rows, probabilities: _Floats) -> tuple[_Rows, _Floats]:
    """Return the spread label of each row and its weight: 0 for one that is not trusted, and 1 for a true label.

    Classes have the proportions that the probe predicts by its probabilities (n, K), smoothed. A spread label is
    trusted if the probe predicts it, too; if no class has more than three labels, all are. In each class, spread labels
    together weigh three times as much as true ones.
    """
    unlabelled = codes < 0
    predicted = probabilities.argmax(axis=1)
    count = probabilities.shape[1]
    shares = np.bincount(predicted[unlabelled], minlength=count) / max(int(unlabelled.sum()), 1) + _SMOOTHING
    mass = spread(graph, codes, shares)
    best = np.where(unlabelled, mass.argmax(axis=1), codes)
    weight = mass.max(axis=1) * unlabelled
    if np.bincount(codes[~unlabelled]).max() > _FEW_LABELS:
        weight *= best == predicted
    for code in range(count):
        own = unlabelled & (best == code)
        total = weight[own].sum()
        if total > 0:
            weight[own] *= _TOTAL * (codes == code).sum() / total
    weight[~unlabelled] = 1.0
    return best, weight
