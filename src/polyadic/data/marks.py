"""Annotations without duration: marks of epochs, which last until the next, and moments within windows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from polyadic.data.labels import UNLABELLED
from polyadic.data.recordings import Annotation, Recording

__all__ = ["hold_marks", "is_moment", "label_by_moments"]

_LEAST = 3
"""Fewer marks than these say nothing about an epoch."""

_REGULAR = 0.9
"""The share of marks that must be a whole number of epochs apart."""

_SHORTEST = 1.0
"""Marks that follow each other faster, in seconds, are events such as heart beats, not epochs."""

_LONG = 5.0
"""Marks of a change, many epochs apart, are taken for such if an epoch has so many seconds or more."""


def is_moment(annotation: Annotation, fs: float) -> bool:
    """Whether an annotation has no duration; one sample, as some formats write it, is none."""
    return annotation.duration * fs <= 1 + 1e-6


def hold_marks(recording: Recording, wanted: Container[str] | None) -> tuple[Recording, float | None]:
    """A recording whose marks last, if none of its annotations does and they come at epochs.

    Nine of ten must be a whole number of epochs apart. If nine of ten follow the one before after one epoch, each lasts
    an epoch, and else until the next, as marks of a change do. Those in between stay moments.

    Parameters
    ----------
    wanted : texts that may be labels, all if None; annotations with others are left as they are

    Returns
    -------
    the recording, and the seconds of an epoch; the recording as it was, and None, if marks are not regular
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


def label_by_moments(
    recording: Recording,
    starts: NDArray[np.int64],
    length: int,
    classes: Mapping[str, int],
    min_share: float | None = None,
) -> NDArray[np.int32]:
    """The class of each window: that of most of the moments in it; else `UNLABELLED`, also if two have as many.

    Parameters
    ----------
    starts : (n,), first samples
    length : samples in a window
    classes : from an annotation's text to its class; texts it does not name are ignored
    min_share : the share of the moments in a window that must be of its class

    Returns
    -------
    (n,) int32
    """
    found = np.full(len(starts), UNLABELLED, np.int32)
    moments = [one for one in recording.annotations if one.text in classes and is_moment(one, recording.fs)]
    if not moments or not len(starts):
        return found
    places = np.array([one.onset * recording.fs for one in moments])
    # In samples since the start of the recording, with its gaps, as onsets are.
    begins = recording.elapsed_samples(starts)
    counts = []
    for number in sorted(set(classes.values())):
        own = np.sort(places[[classes[one.text] == number for one in moments]]) + 1e-6
        counts.append(np.searchsorted(own, begins + length) - np.searchsorted(own, begins))
    each = np.array(counts)
    most = each.max(axis=0)
    clear = (most > 0) & ((each == most).sum(axis=0) == 1) & (most >= (min_share or 0.0) * each.sum(axis=0) - 1e-9)
    return np.where(clear, np.array(sorted(set(classes.values())), np.int32)[each.argmax(axis=0)], found)
