"""What annotations say about windows: epochs and their starts, labels of windows, and annotations without duration."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from polyadic.data.labels import UNLABELLED
from polyadic.data.recordings import Annotation, Recording, nearest_sample

_LEAST = 3
"""Minimum number of annotations needed to infer the length of an epoch."""

_REGULAR = 0.9
"""Minimum share of annotations that last, or are apart, a whole number of epochs."""

_SHORTEST = 1.0
"""Minimum length of an epoch in seconds; annotations at shorter intervals are events such as heartbeats."""

_LONG = 5.0
"""Minimum length of an epoch in seconds if most annotations are several epochs apart, as marks of a change are."""


def annotated(recording: Recording, text: str) -> Recording:
    """Return a recording with one annotation that covers it, or with none if the text is empty."""
    return replace(recording, annotations=(Annotation(0.0, recording.duration, text),) if text else ())


def is_moment(annotation: Annotation, fs: float) -> bool:
    """Return whether an annotation has no duration; some formats write one sample instead."""
    return annotation.duration * fs <= 1 + 1e-6


def infer_durations(recording: Recording, wanted: Container[str] | None) -> tuple[Recording, float | None]:
    """Give annotations that mark epochs a duration, if none has one and the marks are regular.

    At least 90 % of the marks must be a whole number of epochs apart. If at least 90 % follow the previous mark after
    one epoch, each mark lasts one epoch. Otherwise each lasts until the next, as marks of a change do. Marks between
    epochs and texts that are not `wanted` stay. Returns the epoch length in seconds as well, None if irregular.
    """
    marks = [one for one in recording.annotations if wanted is None or one.text in wanted]
    if not marks or not all(is_moment(one, recording.fs) for one in marks):
        return recording, None
    places = np.array([round(one.onset * recording.fs) for one in marks], np.int64)
    steps = np.diff(np.unique(places))
    if len(steps) < _LEAST - 1:
        return recording, None
    epoch, often = Counter(steps.tolist()).most_common(1)[0]
    phase = Counter((places % epoch).tolist()).most_common(1)[0][0]
    regular = places % epoch == phase
    least = (_SHORTEST if 2 * often >= len(steps) else _LONG) * recording.fs
    if regular.mean() < _REGULAR or epoch < least - 1e-6:
        return recording, None
    edges = np.unique(places[regular])
    ends = np.append(edges[1:], edges[-1] + epoch)
    if often >= _REGULAR * len(steps):
        ends = np.minimum(ends, edges + epoch)
    durations = dict(zip(edges.tolist(), ((ends - edges) / recording.fs).tolist(), strict=True))
    annotations = tuple(
        one._replace(duration=durations.get(round(one.onset * recording.fs), one.duration))
        if wanted is None or one.text in wanted
        else one
        for one in recording.annotations
    )
    return replace(recording, annotations=annotations), float(epoch / recording.fs)


def scored_phase(recording: Recording, length: int, step: int | None = None) -> float | None:
    """Return the time in seconds of a scored epoch at which windows can begin, or None if annotations are irregular.

    Annotations are regular if at least 90 % last a whole number of epochs, and windows (of `length` samples, `step`
    apart) fit into epochs or vice versa.
    """
    lasting = [one for one in recording.annotations if one.duration * recording.fs > 1]
    if not lasting:
        return None
    durations = np.array([nearest_sample(one.duration * recording.fs) for one in lasting], np.int64)
    epochs = sorted({*(size for size in durations.tolist() if 10 * size >= length), length})
    regular = (size for size in epochs if size % length == 0 or length % size == 0)
    if not any((durations % size == 0).mean() >= _REGULAR for size in regular):
        return None
    places = Counter(nearest_sample(one.onset * recording.fs) % (step or length) for one in lasting)
    return min(places, key=lambda place: (-places[place], place)) / recording.fs


def label_windows(
    recording: Recording,
    starts: NDArray[np.int64],
    length: int,
    classes: Mapping[str, int],
    min_share: float | None = None,
    *,
    by_moments: bool = False,
) -> NDArray[np.int32]:
    """Return the class of each window of `length` at `starts`, or `UNLABELLED`: (n,).

    It is the class that covers most of the window, at least `min_share` of it (by default all), or with `by_moments`
    the class of most annotations without duration in it, at least `min_share` of them (by default any). No other class
    may have as much. `classes` are the class numbers of annotation texts; other texts are ignored.
    """
    numbers = np.array(sorted(set(classes.values())), np.int32)
    if not len(numbers) or not len(starts):
        return np.full(len(starts), UNLABELLED, np.int32)
    edges, before = _amounts_before(recording, classes, by_moments)
    amounts = np.array([np.interp(starts + length, edges, row) - np.interp(starts, edges, row) for row in before])
    amounts = np.rint(amounts)  # whole samples, or moments
    if by_moments:
        needed = (min_share or 0.0) * amounts.sum(axis=0)
    else:
        needed = np.full(len(starts), (min_share or 1.0) * length)
    most = amounts.max(axis=0)
    clear = (most > 0) & ((amounts == most).sum(axis=0) == 1) & (most >= needed - 1e-9)
    return np.where(clear, numbers[amounts.argmax(axis=0)], UNLABELLED).astype(np.int32)


def _amounts_before(
    recording: Recording, classes: Mapping[str, int], by_moments: bool = False
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return positions, (m,), and the number of samples (or moments) of each class before them, (classes, m).

    Between these positions, all samples have the same class or none. Samples with conflicting annotations have none.
    """
    places = {number: row for row, number in enumerate(sorted(set(classes.values())))}
    rows, firsts, ends = [], [], []
    for annotation in recording.annotations:
        if annotation.text not in classes or (by_moments and not is_moment(annotation, recording.fs)):
            continue
        for first, end, onset in recording.spans:
            begin = first + nearest_sample((annotation.onset - onset) * recording.fs)
            stop = first + nearest_sample((annotation.onset + annotation.duration - onset) * recording.fs)
            if by_moments:  # the sample during which it happens
                begin = first + math.floor((annotation.onset - onset) * recording.fs + 1e-6)
                stop = begin + 1
            if max(begin, first) < min(stop, end):
                rows.append(places[classes[annotation.text]])
                firsts.append(max(begin, first))
                ends.append(min(stop, end))
    edges = np.unique(np.array([0, recording.signal.shape[1], *firsts, *ends], np.int64))
    change = np.zeros((len(places), len(edges)), np.int64)
    for row, first, end in zip(rows, np.searchsorted(edges, firsts), np.searchsorted(edges, ends), strict=True):
        change[row, first] += 1
        change[row, end] -= 1
    active = np.cumsum(change, axis=1)[:, :-1]
    if not by_moments:
        active = (active > 0) & ((active > 0).sum(axis=0) == 1)
    counts = np.cumsum(active * np.diff(edges), axis=1)
    return edges, np.pad(counts, ((0, 0), (1, 0)))
