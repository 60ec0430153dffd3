"""Which windows are unlabelled, which train the probe, which test it.

Two protocols: "subject" keeps every person on one side; "paper" draws windows at random, as the paper's numbers were
made, which flatters every method, since neighbouring windows of one person end up on both sides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from polyadic.errors import PolyadicError

__all__ = ["PROTOCOLS", "Protocol", "Split", "split_labelled", "split_windows"]

Protocol = Literal["subject", "paper"]
PROTOCOLS: tuple[Protocol, ...] = ("subject", "paper")

_Indices = NDArray[np.intp]


@dataclass(frozen=True)
class Split:
    """Row numbers of the three parts.

    unlabelled, train, test : (n,), increasing, without a common member
    """

    unlabelled: _Indices
    train: _Indices
    test: _Indices


def _parts(
    count: int, subject: NDArray[np.generic] | None, protocol: str, fractions: tuple[float, ...], seed: int
) -> list[_Indices]:
    """Random disjoint parts of about these shares: of the windows, or of the people where `protocol` is "subject"."""
    if protocol not in PROTOCOLS:
        raise PolyadicError(f"protocol must be one of {', '.join(PROTOCOLS)}, but is {protocol!r}")
    if protocol == "subject" and subject is None:
        raise PolyadicError("protocol='subject' needs to know who each window is of, but subject is missing")
    people, member = np.unique(
        np.arange(count) if protocol == "paper" or subject is None else subject, return_inverse=True
    )
    if len(people) < len(fractions):
        what = "subjects" if protocol == "subject" else "windows"
        raise PolyadicError(f"a split in {len(fractions)} parts needs as many {what}, but there are {len(people)}")
    edges = np.rint(np.cumsum(fractions) / np.sum(fractions) * len(people)).astype(int)
    # Every part gets someone, however few people there are.
    for part in range(len(edges) - 1):
        edges[part] = min(max(edges[part], part + 1), len(people) - (len(edges) - 1 - part))
    groups = np.split(np.random.default_rng(seed).permutation(len(people)), edges[:-1])
    return [np.flatnonzero(np.isin(member, group)) for group in groups]


def split_windows(
    count: int,
    subject: NDArray[np.generic] | None = None,
    protocol: Protocol = "subject",
    fractions: tuple[float, float, float] = (0.8, 0.1, 0.1),
    seed: int = 0,
) -> Split:
    """Unlabelled, training and test windows.

    Parameters
    ----------
    count : number of windows
    subject : (count,), who each window is of; needed for protocol "subject"
    protocol : "subject" keeps people apart; "paper" draws windows
    fractions : shares of the people, or of the windows

    Examples
    --------
    >>> s = split_windows(6, np.array([1, 1, 2, 2, 3, 3]), fractions=(1, 1, 1))
    >>> len(s.unlabelled), len(s.train), len(s.test)
    (2, 2, 2)
    """
    return Split(*_parts(count, subject, protocol, fractions, seed))


def split_labelled(
    count: int, subject: NDArray[np.generic] | None = None, protocol: Protocol = "subject", seed: int = 0
) -> tuple[_Indices, _Indices]:
    """Halves of windows that are all labelled: training and test.

    Parameters
    ----------
    count, subject, protocol, seed : as for `split_windows`

    Returns
    -------
    two increasing arrays of row numbers

    Examples
    --------
    >>> train, test = split_labelled(10, protocol="paper")
    >>> len(train), len(test)
    (5, 5)
    """
    train, test = _parts(count, subject, protocol, (0.5, 0.5), seed)
    return train, test
