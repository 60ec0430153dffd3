"""Annotations without duration: marks of epochs, which last until the next mark, and moments within windows."""

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
"""Minimum number of marks needed to infer the length of an epoch."""

_REGULAR = 0.9
"""Minimum share of marks that are a whole number of epochs apart."""

_SHORTEST = 1.0
"""Minimum length of an epoch in seconds; marks at shorter intervals are events such as heartbeats."""

_LONG = 5.0
"""Minimum length of an epoch in seconds if most marks are several epochs apart, as marks of a change are."""


def is_moment(annotation: Annotation, fs: float) -> bool:
    """Return whether an annotation has no duration; some formats write one sample instead."""
    return annotation.duration * fs <= 1 + 1e-6


def hold_marks(recording: Recording, wanted: Container[str] | None) -> tuple[Recording, float | None]:
    """Give marks of epochs a duration, if no annotation has one and the marks are regular.

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
