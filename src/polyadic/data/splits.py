"""Split windows into an unlabelled, a training and a test part, or into cross-validation folds.

Protocol "subject" is a subject-wise split. Protocol "paper" splits as the counts in Table 1 of the paper (its text says
90/5/5 "by subjects" for all): by recording or, for HAR, by subject followed by random halves. If subjects have several
recordings, or windows overlap, results with protocol "paper" are too optimistic for every method.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyadic._util.checks import check_integer
from polyadic.data.windows import Windows
from polyadic.errors import PolyadicError

__all__ = ["PAPER", "PROTOCOLS", "Protocol", "Split", "contiguous_blocks", "group_folds", "refuse_copies", "split"]

Protocol = Literal["subject", "paper"]
PROTOCOLS: tuple[Protocol, ...] = ("subject", "paper")

_Rows = NDArray[np.intp]
_Fractions = tuple[float, float, float]

_DEFAULT: _Fractions = (0.8, 0.1, 0.1)
PAPER: dict[str, _Fractions] = {"sleep_edf": _DEFAULT, "ptb_xl": _DEFAULT, "mgh": (0.9, 0.05, 0.05)}
"""Datasets that the paper splits by recording, with the fractions of the three parts."""

_PARTS = ("unlabelled", "train", "test")
_CANDIDATES = 100
"""Number of random splits from which the most balanced subject-wise split is chosen."""


@dataclass(frozen=True, eq=False)
class Split:
    """Row numbers (n,) of the unlabelled, the training and the test part, which share no window and no subject.

    Parameters
    ----------
    shared_subjects : whether a subject may be in several parts
    purge : whether to remove windows that overlap a window of another part: from the unlabelled part if they overlap a
        training or test window, from the training part if they overlap a test window
    """

    windows: Windows
    unlabelled: _Rows
    train: _Rows
    test: _Rows
    shared_subjects: bool = field(default=False, kw_only=True)
    purge: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        windows, index = self.windows, self.windows.index
        given = [np.asarray(part) for part in (self.unlabelled, self.train, self.test)]
        for rows in given:
            if rows.size and not (rows.dtype.kind in "iu" and rows.min() >= 0 and rows.max() < len(windows)):
                raise PolyadicError(f"the parts of a split must be row numbers of windows from 0 to {len(windows) - 1}")
        parts = [np.unique(rows).astype(np.intp) for rows in given]
        sources = np.concatenate([np.unique(windows.source(part)) for part in parts])
        if len(np.unique(sources)) < len(sources):
            raise PolyadicError("the parts of a split must not share windows, but some are in two of them")
        subjects = [set(index.subjects[index.present(part)].tolist()) - {""} for part in parts]
        for first, second in () if self.shared_subjects else ((0, 1), (0, 2), (1, 2)):
            if common := sorted(subjects[first] & subjects[second]):
                others = f" (and {len(common) - 1} more)" if len(common) > 1 else ""
                raise PolyadicError(
                    f"a subject must be in one part of a split, but {common[0]!r}{others} is in {_PARTS[first]} and in "
                    f"{_PARTS[second]}; set shared_subjects=True to allow this"
                )
        if self.purge:
            unlabelled, train, test = parts
            train = train[~_overlapping(windows, train, test)]
            both = np.concatenate([train, test])
            parts = [unlabelled[~_overlapping(windows, unlabelled, both)], train, test]
        for name, part in zip(_PARTS, parts, strict=True):
            object.__setattr__(self, name, part)

    def __iter__(self) -> Iterator[Windows]:
        return (self.windows[getattr(self, name)] for name in _PARTS)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{len(getattr(self, name)):,} {name}" for name in _PARTS)
        way = "subjects may be in several parts" if self.shared_subjects else "no subject in two parts"
        return f"<Split of {len(self.windows):,} windows: {sizes}; {way}>"

    @cached_property
    def hash(self) -> str:
        """16 hexadecimal digits that change if any window, its recording or its part changes."""
        index, parts = self.windows.index, (self.unlabelled, self.train, self.test)
        # Recordings are numbered in alphabetical order, so that unused rows of the tables do not change the hash.
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


def _overlapping(windows: Windows, rows: _Rows, others: _Rows) -> NDArray[np.bool_]:
    """Return which of `rows` overlap one of `others`: less than a window length apart in the same recording."""
    index, length = windows.index, windows.shape[-1]
    others = others[index.start[others] >= 0]
    # All recordings on one axis, more than a window length apart.
    stride = int(index.start.max(initial=0)) + 2 * length + 1
    place = index.recording.astype(np.int64) * stride + index.start
    sorted_others = np.sort(place[others])
    after = np.searchsorted(sorted_others, place[rows] - length, side="right")
    before = np.searchsorted(sorted_others, place[rows] + length, side="left")
    return (before > after) & (index.start[rows] >= 0)


def split(
    windows: Windows, protocol: Protocol = "subject", fractions: _Fractions | None = None, random_state: int = 0
) -> Split:
    """Split windows into an unlabelled, a training and a test part.

    If the data have a published split ("train" and "test", as HAR has), its training part becomes the unlabelled part
    and its test part is halved into training and test, unless `fractions` are given. If some windows have labels,
    unlabelled windows are never used for training or testing, and subjects (or recordings) without labels stay in the
    unlabelled part.

    Parameters
    ----------
    windows : protocol "subject" needs their subjects, except in the unlabelled part of a published split
    protocol : "subject" is a subject-wise split: of 100 random splits, it takes those in which the fewest classes lack
        training or test windows and, of these, the one with the most even distribution of classes. "paper" splits by
        recording, or by window if the data have a published split or are not from the paper; without a published
        split, windows that overlap a window of another part are left out
    fractions : fractions of subjects, recordings or windows in the unlabelled, training and test part; by default
        80/10/10, and 90/5/5 for MGH with protocol "paper"
    random_state : random seed

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
    if protocol == "subject":
        refuse_copies(windows)
    index = windows.index
    learning, testing = ((index.parts == name)[index.recording] for name in ("train", "test"))
    official = fractions is None and bool(learning.any() and testing.any())
    free = np.flatnonzero(testing) if official else np.arange(len(windows))
    what, group = _group_rows(windows, free, protocol)
    default = PAPER.get(windows.dataset, _DEFAULT) if protocol == "paper" else _DEFAULT
    shares = (0.5, 0.5) if official else default if fractions is None else fractions
    train, test = (free[found] for found in _sample_parts(what, group, windows.label[free], shares, random_state))
    rest = learning if official else np.ones(len(windows), bool)
    rest[train] = rest[test] = False
    unlabelled = np.flatnonzero(rest)
    labelled = windows.label >= 0
    if labelled.any():
        train, test = train[labelled[train]], test[labelled[test]]
    # Windows of HAR overlap: purging half of them would no longer be the split of the paper.
    paper = protocol == "paper"
    kept = paper and (official or windows.dataset == "har")
    return Split(windows, unlabelled, train, test, shared_subjects=paper, purge=not kept)


def refuse_copies(windows: Windows) -> None:
    """Raise if one recording of a store belongs to two subjects: it could be in the training and the test part."""
    if getattr(windows, "store", None) is None:
        return
    present = set(windows.index.names[windows.index.present()].tolist())
    whose = {str(entry["name"]): str(entry["subject"]) for entry in windows.store.recordings}
    for names in windows.store.identical():
        used = [name for name in names if name in present]
        if len({whose[name] for name in used}) > 1:
            raise PolyadicError(
                f"{' and '.join(used[:2])} are the same recording with two subjects, so scores would be too high: "
                "remove one of them, or set the subjects with --subject"
            )


def _group_rows(windows: Windows, rows: _Rows, protocol: Protocol) -> tuple[str, _Rows]:
    """Return what a split keeps in one part (subjects, recordings or windows), and the group of each window."""
    index = windows.index
    if protocol == "paper" and windows.dataset not in PAPER:
        return "windows", windows.source(rows)
    what, table = ("recordings", index.names) if protocol == "paper" else ("subjects", index.subjects)
    unknown = int((table == "")[index.recording[rows]].sum())
    if protocol == "subject" and unknown:
        raise PolyadicError(
            f"protocol='subject' needs the subject of every window, but subject is missing for {unknown:,} of "
            f"{len(rows):,}"
        )
    return what, np.unique(table, return_inverse=True)[1][index.recording[rows]]


def _sample_parts(
    what: str, group: _Rows, label: NDArray[np.int32], shares: tuple[float, ...], seed: int
) -> list[_Rows]:
    """Assign groups at random to parts of about these shares, and return the rows of the last two parts.

    If some groups have labels, only these are assigned. For subjects, the most balanced of many random splits is used.
    """
    _, member = np.unique(group, return_inverse=True)
    count, labelled = int(member.max(initial=-1)) + 1, label >= 0
    has = np.zeros(count, bool)
    has[member[labelled]] = True
    pool = np.flatnonzero(has if has.any() else ~has)
    if len(pool) < len(shares):
        which = "" if len(pool) == count else " with labels"
        raise PolyadicError(
            f"a split into {len(shares)} parts needs at least {len(shares)} {what}{which}, but got {len(pool)}"
        )
    edges: list[int] = []  # where parts of these shares end, so that none is empty
    for number, share in enumerate(np.cumsum(shares)[:-1] / np.sum(shares), start=1):
        least, most = (edges[-1] if edges else 0) + 1, len(pool) - (len(shares) - number)
        edges.append(min(max(round(share * len(pool)), least), most))
    rng = np.random.default_rng(seed)
    draws = (np.split(rng.permutation(len(pool)), edges) for _ in range(_CANDIDATES))
    best = next(draws) if what != "subjects" else None
    if best is None:
        classes = int(label.max(initial=0)) + 1
        counts = np.bincount(member[labelled] * classes + label[labelled], minlength=count * classes)
        best = min(draws, key=partial(_imbalance, counts.reshape(count, classes)[pool]))
    return [np.flatnonzero(np.isin(member, pool[chosen])) for chosen in best[-2:]]


def _imbalance(counts: NDArray[np.intp], groups: list[_Rows]) -> tuple[int, float]:
    """Return how many classes are missing in the training and test parts (the last two groups), and the largest
    distance between the class distribution of a group and that of all groups.
    """
    total = counts.sum(axis=0)
    found = np.array([counts[chosen].sum(axis=0) for chosen in groups])
    lacking = int(((found[-2:] == 0) & (total > 0)).sum())
    gaps = np.abs(found / np.maximum(found.sum(axis=1, keepdims=True), 1) - total / max(total.sum(), 1)).sum(axis=1)
    return lacking, float(gaps.max())


def group_folds(
    y: ArrayLike, groups: ArrayLike, count: int, seed: int | Sequence[int] | None = None
) -> NDArray[np.intp]:
    """Assign whole groups to folds, one by one, each to the fold in which its classes are rarest so far.

    Parameters
    ----------
    y, groups : (N,), class and group of each row
    count : number of folds, reduced to the number of groups if there are fewer; no fold is empty
    seed : random seed of the order in which groups are assigned; None assigns the largest group first

    Examples
    --------
    >>> group_folds(["rest", "walk"] * 3, ["a", "a", "b", "b", "c", "c"], count=3)
    array([0, 0, 1, 1, 2, 2])
    """
    check_integer("count", count, 2)
    _, code = np.unique(np.asarray(y), return_inverse=True)
    _, member = np.unique(np.asarray(groups), return_inverse=True)
    sizes = np.zeros((member.max() + 1, code.max() + 1))
    np.add.at(sizes, (member, code), 1)
    shares = sizes / sizes.sum(axis=0) ** 2
    if seed is None:
        order = np.argsort(-sizes.sum(axis=1), kind="stable")
    else:
        order = np.random.default_rng(seed).permutation(len(sizes))
    filled = np.zeros((min(int(count), len(sizes)), sizes.shape[1]))
    fold = np.empty(len(sizes), np.intp)
    for group in order:
        # The increase of the sum of squared class shares, rounded so that the size of the folds breaks ties.
        crowding = (filled @ shares[group]).round(12)
        fold[group] = np.lexsort((filled.sum(axis=1), crowding))[0]
        filled[fold[group]] += sizes[group]
    return fold[member]


def contiguous_blocks(y: ArrayLike, count: int = 5) -> NDArray[np.intp]:
    """Divide the rows of each class of y (N,), in their order, into blocks that stand in for unknown groups.

    Neighbouring windows overlap or resemble each other. Shuffled folds would put them into both the training and the
    test set; blocks do so only at their ends. The k-th of `count` blocks holds the k-th part of every class.

    Examples
    --------
    >>> contiguous_blocks([0, 0, 1, 1, 0, 0, 1, 1], count=2)
    array([0, 0, 0, 0, 1, 1, 1, 1])
    """
    check_integer("count", count, 1)
    _, code, sizes = np.unique(np.asarray(y), return_inverse=True, return_counts=True)
    block = np.empty(len(code), np.intp)
    for number, size in enumerate(sizes):
        block[code == number] = np.arange(size) * int(count) // size
    return block
