"""Which windows are unlabelled, which train the probe, which test it.

Protocol "subject" keeps every person on one side. Protocol "paper" splits as the paper's numbers were made: the counts
of its Table 1 are 80/10/10 by recording for Sleep-EDF and by record for PTB-XL and 90/5/5 by recording for MGH (its
text says 90/5/5 for all, and "by subjects"), and for HAR the official people split followed by random halves. Where
people have several recordings, or windows overlap, that flatters every method.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

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
        parts = [np.unique(np.asarray(part, np.intp)) for part in (self.unlabelled, self.train, self.test)]
        together = np.concatenate(parts)
        if len(together) and not (together.min() >= 0 and together.max() < len(self.windows)):
            raise PolyadicError(f"the parts of a split must number windows from 0 to {len(self.windows) - 1}")
        if len(np.unique(together)) != len(together):
            raise PolyadicError("the parts of a split must not share windows, but some are in two of them")
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
        index = self.windows.index
        state = hashlib.sha256()
        for table in (index.names, index.subjects):
            state.update("\x1f".join(table.tolist()).encode() + b"\x1e")
        for part in (self.unlabelled, self.train, self.test):
            for column in (part, index.recording[part], index.start[part]):
                state.update(np.ascontiguousarray(column, "<i8").tobytes() + b"\x1e")
        return state.hexdigest()[:16]


def _check_people(windows: Windows, parts: list[_Rows]) -> None:
    names = ("unlabelled", "train", "test")
    people = [set(np.unique(windows.subject[part]).tolist()) - {""} for part in parts]
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
    his test part is halved, unless `fractions` are given. Windows without a label are never trained or tested on.

    Parameters
    ----------
    windows : with subjects for protocol "subject"
    protocol : "subject" keeps people apart and, of 100 random ways, takes the one in which classes are spread most
        evenly; "paper" splits by recording, or by window where the data has an official part or is none of the paper's
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
    rows = np.arange(len(windows))
    official = fractions is None and {"train", "test"} <= set(np.unique(windows.part).tolist())
    free = rows[windows.part == "test"] if official else rows
    what, group = _groups(windows, free, protocol)
    shares = (0.5, 0.5) if official else fractions or _shares(windows, protocol)
    parts = [free[found] for found in _parts(what, group, windows.label[free], shares, seed)]
    if official:
        parts.insert(0, rows[windows.part == "train"])
    unlabelled, train, test = parts
    labelled = windows.label >= 0
    if labelled.any():
        train, test = train[labelled[train]], test[labelled[test]]
    # What the paper did is asked for by its name; to purge half of its random windows would be another protocol.
    paper = protocol == "paper"
    return Split(windows, unlabelled, train, test, shared_subjects=paper, purge=not (paper and what == "windows"))


def _shares(windows: Windows, protocol: Protocol) -> _Fractions:
    return PAPER.get(windows.dataset, _DEFAULT) if protocol == "paper" else _DEFAULT


def _groups(windows: Windows, rows: _Rows, protocol: Protocol) -> tuple[str, NDArray[np.generic]]:
    """What stays together, and to which such group each of the windows belongs."""
    if protocol == "paper":
        by_recording = windows.dataset in PAPER
        return ("recordings", windows.recording[rows]) if by_recording else ("windows", rows)
    nameless = int((windows.subject[rows] == "").sum())
    if nameless:
        raise PolyadicError(
            f"protocol='subject' needs to know who each window is of, but subject is missing for {nameless}"
        )
    return "subjects", windows.subject[rows]


def _parts(
    what: str, group: NDArray[np.generic], label: NDArray[np.int32], shares: tuple[float, ...], seed: int
) -> list[_Rows]:
    """Random disjoint parts of about these shares of the groups; of people the most even of many draws."""
    known, member = np.unique(group, return_inverse=True)
    if len(known) < len(shares):
        raise PolyadicError(f"a split in {len(shares)} parts needs as many {what}, but there are {len(known)}")
    edges = np.rint(np.cumsum(shares) / np.sum(shares) * len(known)).astype(int)
    # Every part gets someone, however few people there are.
    for part in range(len(edges) - 1):
        edges[part] = min(max(edges[part], part + 1), len(known) - (len(edges) - 1 - part))
    rng = np.random.default_rng(seed)
    draws = [np.split(rng.permutation(len(known)), edges[:-1]) for _ in range(_CANDIDATES if what == "subjects" else 1)]
    if what == "subjects":
        counts = np.zeros((len(known), int(label.max(initial=0)) + 1))
        np.add.at(counts, (member[label >= 0], label[label >= 0]), 1)
        draws.sort(key=lambda groups: _unevenness(counts, groups))
    return [np.flatnonzero(np.isin(member, chosen)) for chosen in draws[0]]


def _unevenness(counts: NDArray[np.float64], groups: list[_Rows]) -> float:
    """How far the classes' shares in the parts are from those in the whole; a class that is absent counts as far."""
    total = counts.sum(axis=0)
    whole = total / max(total.sum(), 1)
    gaps = []
    for chosen in groups:
        found = counts[chosen].sum(axis=0)
        gaps.append(np.abs(found / max(found.sum(), 1) - whole).sum() + ((found == 0) & (total > 0)).sum())
    return float(max(gaps))
