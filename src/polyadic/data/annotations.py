"""What annotations say about windows: epochs and their starts, labels of windows, and annotations without duration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from polyadic.data.labels import UNLABELLED
from polyadic.data.recordings import Annotation, Recording, nearest_sample

__all__ = [
    "annotated",
    "infer_durations",
    "is_moment",
    "label_by_moments",
    "label_windows",
    "labelled_share",
    "scored_phase",
]

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
    epochs stay moments.

    Parameters
    ----------
    wanted : texts that may be labels, or None for all; annotations with other texts are not changed

    Returns
    -------
    the recording and the length of an epoch in seconds; the unchanged recording and None if the marks are not regular
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
    lasting = {int(edge): float(end - edge) / recording.fs for edge, end in zip(edges, ends, strict=True)}
    annotations = []
    for one in recording.annotations:
        place = round(one.onset * recording.fs)
        held = place in lasting and (wanted is None or one.text in wanted)
        annotations.append(one._replace(duration=lasting[place]) if held else one)
    return replace(recording, annotations=tuple(annotations)), float(epoch / recording.fs)


def scored_phase(recording: Recording, length: int, step: int | None = None) -> float | None:
    """Return the time in seconds of a scored epoch at which windows can begin, or None if annotations are irregular.

    Annotations are regular if at least 90 % last a whole number of epochs, and windows fit into epochs or vice versa.

    Parameters
    ----------
    length, step : samples in a window, and from one window to the next
    """
    lasting = [one for one in recording.annotations if one.duration * recording.fs > 1]
    if not lasting:
        return None
    step = step or length
    durations = np.array([nearest_sample(one.duration * recording.fs) for one in lasting], np.int64)
    epochs = sorted({*(size for size in durations.tolist() if 10 * size >= length), length})
    regular = (size for size in epochs if size % length == 0 or length % size == 0)
    if not any((durations % size == 0).mean() >= _REGULAR for size in regular):
        return None
    places = np.array([nearest_sample(one.onset * recording.fs) % step for one in lasting], np.int64)
    found, counts = np.unique(places, return_counts=True)
    return float(found[counts.argmax()] / recording.fs)


def label_windows(
    recording: Recording,
    starts: NDArray[np.int64],
    length: int,
    classes: Mapping[str, int],
    min_share: float | None = None,
) -> NDArray[np.int32]:
    """Return the class of the annotations that cover each window, if they agree; otherwise `UNLABELLED`.

    Parameters
    ----------
    starts : (n,), first samples
    length : samples in a window
    classes : class number of each annotation text; other texts are ignored
    min_share : minimum share of a window that its class must cover, and more than any other; the whole window if None

    Returns
    -------
    (n,) int32
    """
    if not classes:
        return np.full(len(starts), UNLABELLED, np.int32)
    sample_labels = _sample_labels(recording, classes)
    ends = starts + length - 1
    if min_share is None or min_share == 1 or not len(starts):
        changes = np.concatenate([[0], np.cumsum(sample_labels[1:] != sample_labels[:-1])])
        return np.where(changes[starts] == changes[ends], sample_labels[starts], UNLABELLED).astype(np.int32)
    numbers = sorted(set(classes.values()))
    covered = np.empty((len(numbers), len(starts)), np.int64)
    for row, number in enumerate(numbers):
        total = np.concatenate([[0], np.cumsum(sample_labels == number)])
        covered[row] = total[starts + length] - total[starts]
    best = covered.argmax(axis=0)
    most = covered.max(axis=0)
    clear = (covered == most).sum(axis=0) == 1
    enough = clear & (most >= min_share * length - 1e-9)
    return np.where(enough, np.array(numbers, np.int32)[best], UNLABELLED).astype(np.int32)


def labelled_share(
    recording: Recording, starts: NDArray[np.int64], labels: NDArray[np.int32], length: int, classes: Mapping[str, int]
) -> tuple[int, int]:
    """Return how many samples have a class, and how many of these are in labelled windows."""
    inside = np.zeros(recording.signal.shape[1], bool)
    for start in starts[labels != UNLABELLED].tolist():
        inside[start : start + length] = True
    labelled = _sample_labels(recording, classes) != UNLABELLED
    return int(labelled.sum()), int((labelled & inside).sum())


def _sample_labels(recording: Recording, classes: Mapping[str, int]) -> NDArray[np.int32]:
    """Return the class of each sample; samples without an annotation, or with conflicting ones, are unlabelled."""
    size = recording.signal.shape[1]
    sample_labels = np.full(size, UNLABELLED, np.int32)
    conflicting = np.zeros(size, bool)
    for annotation in recording.annotations:
        label = classes.get(annotation.text)
        if label is None:
            continue
        for first, last in _covered_samples(recording, annotation):
            part = sample_labels[first:last]
            conflicting[first:last] |= (part != UNLABELLED) & (part != label)
            part[:] = label
    sample_labels[conflicting] = UNLABELLED
    return sample_labels


def _covered_samples(recording: Recording, annotation: Annotation) -> list[tuple[int, int]]:
    """Return the first sample and the end of the interval that an annotation covers in each segment."""
    covered = []
    for first, end, onset in recording.spans:
        begin = first + nearest_sample((annotation.onset - onset) * recording.fs)
        stop = first + nearest_sample((annotation.onset + annotation.duration - onset) * recording.fs)
        if max(begin, first) < min(stop, end):
            covered.append((max(begin, first), min(stop, end)))
    return covered


def label_by_moments(
    recording: Recording,
    starts: NDArray[np.int64],
    length: int,
    classes: Mapping[str, int],
    min_share: float | None = None,
) -> NDArray[np.int32]:
    """Return the class of most moments in each window; `UNLABELLED` if there are no moments or two classes tie.

    Parameters
    ----------
    starts : (n,), first samples
    length : samples in a window
    classes : class number of each annotation text; other texts are ignored
    min_share : minimum share of the moments in a window that must have its class

    Returns
    -------
    (n,) int32
    """
    found = np.full(len(starts), UNLABELLED, np.int32)
    moments = [one for one in recording.annotations if one.text in classes and is_moment(one, recording.fs)]
    if not moments or not len(starts):
        return found
    places = np.array([one.onset * recording.fs for one in moments])
    # In samples from the start of the recording including gaps, like onsets.
    begins = recording.elapsed_samples(starts)
    counts = []
    for number in sorted(set(classes.values())):
        own = np.sort(places[[classes[one.text] == number for one in moments]]) + 1e-6
        counts.append(np.searchsorted(own, begins + length) - np.searchsorted(own, begins))
    each = np.array(counts)
    most = each.max(axis=0)
    clear = (most > 0) & ((each == most).sum(axis=0) == 1) & (most >= (min_share or 0.0) * each.sum(axis=0) - 1e-9)
    return np.where(clear, np.array(sorted(set(classes.values())), np.int32)[each.argmax(axis=0)], found)
