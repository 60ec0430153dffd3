"""Threads that share the pieces of a batch, as many as torch may use.

torch divides large calls among threads of its own; numpy's and scipy's calls, and all small ones, leave the other cores
idle. Here each thread takes a whole piece of the batch through all its calls, and torch does each of them in the thread
that makes it. One must do without the other: torch's threads go on spinning for milliseconds after every call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from itertools import pairwise
from typing import TypeVar

import torch

__all__ = ["beside", "crew", "each", "shares"]

_LEAST = 2**14
"""Numbers with which a thread has enough to do to be worth waking."""

_Piece = TypeVar("_Piece")
_Outcome = TypeVar("_Outcome")


class _Current(threading.local):
    """The crew of this thread: its helpers, and how many they are with the thread itself."""

    helpers: ThreadPoolExecutor | None = None
    size: int = 1


_CURRENT = _Current()


@contextmanager
def crew() -> Iterator[None]:
    """As many threads as torch has in this thread; torch itself has one meanwhile, and what it had afterwards.

    Where torch has one thread only, as in the workers of scikit-learn, or there is a crew already, nothing changes.
    Threads that begin meanwhile and ask torch for the first time have one, too.

    Examples
    --------
    >>> squares = [0, 0, 0]
    >>> with crew():
    ...     each(lambda n: squares.__setitem__(n, n * n), range(3))
    >>> squares
    [0, 1, 4]
    """
    threads = torch.get_num_threads()
    if threads == 1 or _CURRENT.helpers is not None:
        yield
        return
    try:
        with ThreadPoolExecutor(threads - 1, "polyadic-crew", torch.set_num_threads, (1,)) as helpers:
            torch.set_num_threads(1)
            _CURRENT.helpers, _CURRENT.size = helpers, threads
            yield
    finally:
        _CURRENT.helpers, _CURRENT.size = None, 1
        # Only now that the helpers are gone: the last number set anywhere is that of threads still to come.
        torch.set_num_threads(threads)


def beside(work: Callable[[], _Outcome]) -> Callable[[], _Outcome]:
    """Begin some work in a thread of the crew, and return what waits for its outcome; without a crew, do it at once.

    For work of many small calls, which would stand in each other's way if several threads made them.

    Examples
    --------
    >>> with crew():
    ...     outcome = beside(lambda: 2 + 2)
    ...     outcome()
    4
    """
    if _CURRENT.helpers is not None:
        return _CURRENT.helpers.submit(work).result
    outcome = work()
    return lambda: outcome


def each(work: Callable[[_Piece], object], pieces: Sequence[_Piece]) -> None:
    """Do the work for every piece, in this thread and in those of its crew, whoever is free.

    Pieces must not depend on each other. Without a crew they are done in turn.
    """
    # A list's iterator gives every piece to one thread only.
    waiting = iter(list(pieces))

    def share() -> None:
        for piece in waiting:
            work(piece)

    helpers = _CURRENT.helpers
    others = [] if helpers is None else [helpers.submit(share) for _ in range(min(_CURRENT.size, len(pieces)) - 1)]
    try:
        share()
    finally:
        wait(others)
    for other in others:
        other.result()


def shares(count: int, size: int, fewest: int = 1) -> list[slice]:
    """So many rows in as many equal shares as there are threads in the crew, or fewer where there is little to do.

    Parameters
    ----------
    count : rows
    size : numbers in a row
    fewest : rows in a share

    Examples
    --------
    >>> shares(5, 2**20)
    [slice(0, 5, None)]
    """
    parts = max(1, min(_CURRENT.size, count // fewest, count * size // _LEAST))
    return [slice(begin, end) for begin, end in pairwise(count * part // parts for part in range(parts + 1))]
