"""Which windows are unlabelled, which train the probe, which test it.

Protocol "subject" keeps every person on one side. Protocol "paper" splits as the paper's numbers were made: the counts
of its Table 1 are 80/10/10 by recording for Sleep-EDF and by record for PTB-XL and 90/5/5 by recording for MGH (its
text says 90/5/5 for all, and "by subjects"), and for HAR the official people split followed by random halves. Where
people have several recordings, or windows overlap, that flatters every method.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyadic.data.windows import Windows
from polyadic.errors import PolyadicError

__all__ = ["PAPER", "PROTOCOLS", "Protocol", "Split", "split"]

Protocol = Literal["subject", "paper"]
PROTOCOLS: tuple[Protocol, ...] = ("subject", "paper")

_Rows = NDArray[np.intp]
_Fractions = tuple[float, float, float]

_DEFAULT: _Fractions = (0.8, 0.1, 0.1)
PAPER: dict[str, _Fractions] = {"sleep_edf": _DEFAULT, "ptb_xl": _DEFAULT, "mgh": (0.9, 0.05, 0.05)}
"""Datasets that the paper splits by recording, and its shares."""

_CANDIDATES = 100


@dataclass(frozen=True, eq=False)
class Split:
    """Row numbers of the three parts.

    Parameters
    ----------
    windows : what is split
    unlabelled, train, test : (n,), increasing, without a common member
    shared_subjects : whether a person may be on several sides
    purge : whether windows that overlap one on another side are removed: from the unlabelled ones where they overlap a
        training or test window, from the training ones where they overlap a test window

    Raises
    ------
    PolyadicError : if parts share windows, or people without `shared_subjects`
    """

    windows: Windows
    unlabelled: _Rows
    train: _Rows
    test: _Rows
    shared_subjects: bool = field(default=False, kw_only=True)
    purge: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        parts = [_increasing(part, len(self.windows)) for part in (self.unlabelled, self.train, self.test)]
        sources = [self.windows.source(part) for part in parts]
        taken = np.zeros(1 + max(int(source.max(initial=-1)) for source in sources), bool)
        for source in sources:
            if taken[source].any():
                raise PolyadicError("the parts of a split must not share windows, but some are in two of them")
            taken[source] = True
        if not self.shared_subjects:
            _check_people(self.windows, parts)
        if self.purge:
            parts = _purged(self.windows, parts)
        for name, part in zip(("unlabelled", "train", "test"), parts, strict=True):
            object.__setattr__(self, name, part)

    def __iter__(self) -> Iterator[Windows]:
        """The three parts as `Windows` that know which split they are of."""
        for name in ("unlabelled", "train", "test"):
            part = self.windows[getattr(self, name)]
            part.split = f"{self.hash}:{name}"
            yield part

    @cached_property
    def hash(self) -> str:
        """16 hexadecimal digits that change with any window, its origin or its side."""
        index, parts = self.windows.index, (self.unlabelled, self.train, self.test)
        # Recordings by their names in alphabetical order: which others the tables name, and where, does not matter.
        used = index.present(np.concatenate(parts))
        origins = [
            json.dumps(pair) for pair in zip(index.names[used].tolist(), index.subjects[used].tolist(), strict=True)
        ]
        place = np.full(len(used), -1)
        known, place[used] = np.unique(np.array(origins, np.str_), return_inverse=True)
        state = hashlib.sha256("\n".join(known.tolist()).encode())
        for part in parts:
            for column in (self.windows.source(part), place[index.recording[part]], index.start[part]):
                state.update(len(part).to_bytes(8, "little") + np.ascontiguousarray(column, "<i8").tobytes())
        return state.hexdigest()[:16]


def _increasing(part: ArrayLike, count: int) -> _Rows:
    """Row numbers of a part, checked, each once."""
    rows = np.asarray(part)
    if rows.size and not (rows.dtype.kind in "iu" and rows.min() >= 0 and rows.max() < count):
        raise PolyadicError(f"the parts of a split must be row numbers of windows from 0 to {count - 1}")
    taken = np.zeros(count, bool)
    taken[rows.astype(np.intp)] = True
    return np.flatnonzero(taken)


def _check_people(windows: Windows, parts: list[_Rows]) -> None:
    names = ("unlabelled", "train", "test")
    index = windows.index
    people = [set(index.subjects[index.present(part)].tolist()) - {""} for part in parts]
    for first, second in ((0, 1), (0, 2), (1, 2)):
        common = sorted(people[first] & people[second])
        if common:
            raise PolyadicError(
                f"a subject must be on one side of a split, but {common[0]!r} is in {names[first]} and in "
                f"{names[second]} ({len(common)} such); allow it by shared_subjects=True"
            )


def _purged(windows: Windows, parts: list[_Rows]) -> list[_Rows]:
    unlabelled, train, test = parts
    train = train[~_overlapping(windows, train, test)]
    return [unlabelled[~_overlapping(windows, unlabelled, np.concatenate([train, test]))], train, test]


def _overlapping(windows: Windows, rows: _Rows, others: _Rows) -> NDArray[np.bool_]:
    """Which of `rows` share samples with one of `others`: windows of one recording less than a length apart."""
    index, length = windows.index, windows.shape[-1]
    others = others[index.start[others] >= 0]
    # One line for all recordings, with more than a window's length between them.
    stride = int(index.start.max(initial=0)) + 2 * length + 1
    place = index.recording.astype(np.int64) * stride + index.start
    sorted_others = np.sort(place[others])
    after = np.searchsorted(sorted_others, place[rows] - length, side="right")
    before = np.searchsorted(sorted_others, place[rows] + length, side="left")
    return (before > after) & (index.start[rows] >= 0)


def split(
    windows: Windows, protocol: Protocol = "subject", fractions: _Fractions | None = None, seed: int = 0
) -> Split:
    """Unlabelled, training and test windows.

    Where the publisher has parted the data ("train" and "test", as HAR), his training part is the unlabelled one and
    his test part is halved, unless `fractions` are given. Where some windows have a label, those without are never
    trained or tested on, and a subject (or recording) without any is not drawn but stays with the unlabelled part.

    Parameters
    ----------
    windows : with subjects for protocol "subject", save in an unlabelled part of the publisher
    protocol : "subject" keeps people apart and, of 100 random ways, takes one in which the fewest classes lack training
        or test windows and, of such, the one in which classes are spread most evenly; "paper" splits by recording, or
        by window where the data has an official part or is none of the paper's
    fractions : shares of people, recordings or windows; by default 80/10/10, and 90/5/5 for MGH with protocol "paper"
    seed : for the draw

    Examples
    --------
    >>> s = split(Windows(np.zeros((6, 2, 8)), subject=[1, 1, 2, 2, 3, 3], label=[0, 1] * 3), fractions=(1, 1, 1))
    >>> len(s.unlabelled), len(s.train), len(s.test)
    (2, 2, 2)
    """
    if protocol not in PROTOCOLS:
        raise PolyadicError(f"protocol must be one of {', '.join(PROTOCOLS)}, but is {protocol!r}")
    if fractions is not None and (len(fractions) != 3 or not all(0 < share < np.inf for share in fractions)):
        raise PolyadicError(f"fractions must be three positive numbers, but are {fractions!r}")
    index = windows.index
    learning, testing = ((index.parts == name)[index.recording] for name in ("train", "test"))
    official = fractions is None and bool(learning.any() and testing.any())
    free = np.flatnonzero(testing) if official else np.arange(len(windows))
    what, group = _groups(windows, free, protocol)
    shares = (0.5, 0.5) if official else _shares(windows, protocol) if fractions is None else fractions
    train, test = (free[found] for found in _drawn(what, group, windows.label[free], shares, seed))
    rest = learning if official else np.ones(len(windows), bool)
    rest[train] = rest[test] = False
    unlabelled = np.flatnonzero(rest)
    labelled = windows.label >= 0
    if labelled.any():
        train, test = train[labelled[train]], test[labelled[test]]
    # What the paper did is asked for by its name; to purge half of its random windows would be another protocol.
    paper = protocol == "paper"
    return Split(windows, unlabelled, train, test, shared_subjects=paper, purge=not (paper and what == "windows"))


def _shares(windows: Windows, protocol: Protocol) -> _Fractions:
    return PAPER.get(windows.dataset, _DEFAULT) if protocol == "paper" else _DEFAULT


def _groups(windows: Windows, rows: _Rows, protocol: Protocol) -> tuple[str, _Rows]:
    """What stays together, and to which such group each of the windows belongs."""
    index = windows.index
    if protocol == "paper" and windows.dataset not in PAPER:
        return "windows", windows.source(rows)
    if protocol == "paper":
        what, table = "recordings", index.names
    else:
        what, table = "subjects", index.subjects
        nameless = int((table == "")[index.recording[rows]].sum())
        if nameless:
            raise PolyadicError(
                f"protocol='subject' needs to know who each window is of, but subject is missing for {nameless}"
            )
    return what, np.unique(table, return_inverse=True)[1][index.recording[rows]]


def _drawn(what: str, group: _Rows, label: NDArray[np.int32], shares: tuple[float, ...], seed: int) -> list[_Rows]:
    """The last two of random disjoint parts of about these shares of the groups that have labels, if any has.

    Of people the most even of many draws.
    """
    _, member = np.unique(group, return_inverse=True)
    count, labelled = int(member.max(initial=-1)) + 1, label >= 0
    has = np.zeros(count, bool)
    has[member[labelled]] = True
    pool = np.flatnonzero(has if has.any() else ~has)
    if len(pool) < len(shares):
        which = "" if len(pool) == count else " with labels"
        raise PolyadicError(f"a split in {len(shares)} parts needs as many {what}, but there are {len(pool)}{which}")
    edges = _edges(shares, len(pool))
    rng = np.random.default_rng(seed)
    draws = (np.split(rng.permutation(len(pool)), edges) for _ in range(_CANDIDATES))
    if what == "subjects":
        classes = int(label.max(initial=0)) + 1
        counts = np.bincount(member[labelled] * classes + label[labelled], minlength=count * classes)
        best = min(draws, key=partial(_unevenness, counts.reshape(count, classes)[pool]))
    else:
        best = next(draws)
    side = np.full(count, -1, np.int8)
    for number, chosen in enumerate(best):
        side[pool[chosen]] = number
    return [np.flatnonzero(side[member] == number) for number in (len(best) - 2, len(best) - 1)]


def _edges(shares: tuple[float, ...], count: int) -> list[int]:
    """Where to cut a row of `count`, so that every part gets someone, however few there are."""
    edges: list[int] = []
    for number, share in enumerate(np.cumsum(shares)[:-1] / np.sum(shares), start=1):
        least, most = (edges[-1] if edges else 0) + 1, count - (len(shares) - number)
        edges.append(min(max(round(share * count), least), most))
    return edges


def _unevenness(counts: NDArray[np.intp], groups: list[_Rows]) -> tuple[int, float]:
    """How many classes training and test (the last two groups) lack, and how far the classes' shares in a group are
    from those in the whole.
    """
    total = counts.sum(axis=0)
    found = np.array([counts[chosen].sum(axis=0) for chosen in groups])
    lacking = int(((found[-2:] == 0) & (total > 0)).sum())
    gaps = np.abs(found / np.maximum(found.sum(axis=1, keepdims=True), 1) - total / max(total.sum(), 1)).sum(axis=1)
    return lacking, float(gaps.max())
