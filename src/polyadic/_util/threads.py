"""A thread pool that processes the pieces of a batch in parallel, with as many threads as torch may use.

torch parallelises large operations with its own threads, but numpy and scipy calls, and all small ones, leave the other
cores idle. Here each thread processes a whole piece of the batch, and torch runs each operation in the calling thread.
The two must not be mixed: torch's threads keep spinning for milliseconds after every operation.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, TypeVar

import torch

_SMALLEST_SLICE = 2**14
"""Minimum number of values in a slice for which waking a thread pays."""

_Piece = TypeVar("_Piece")
_Result = TypeVar("_Result")


class _Current(threading.local):
    """The pool that this thread belongs to, and its number of threads including this one."""

    pool: ThreadPoolExecutor | None = None
    size: int = 1


_CURRENT = _Current()


@contextmanager
def thread_pool() -> Iterator[None]:
    """Run a pool with as many threads as torch uses in this thread; torch itself uses one meanwhile.

    Does nothing if torch has only one thread, as in scikit-learn's workers, or if there already is a pool.
    """
    threads = torch.get_num_threads()
    if threads == 1 or in_pool():
        yield
        return

    def join() -> None:
        torch.set_num_threads(1)
        _CURRENT.pool, _CURRENT.size = pool, max(threads - 1, 2)

    pool: ThreadPoolExecutor = ThreadPoolExecutor(threads - 1, "polyadic-pool", join)
    with one_torch_thread():
        _CURRENT.pool, _CURRENT.size = pool, threads
        try:
            yield
        finally:
            _CURRENT.pool, _CURRENT.size = None, 1
            pool.shutdown()  # before torch gets its threads back: new threads inherit the last number set in any


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Make torch compute in this thread only, so that results do not depend on its number of threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def in_pool() -> bool:
    """Return whether this thread belongs to a pool."""
    return _CURRENT.pool is not None


def start(work: Callable[[], _Result]) -> Callable[[], _Result]:
    """Start a task in the pool, and return a function that waits for its result; without a pool, run it at once."""
    if _CURRENT.pool is None:
        value = work()
        return lambda: value
    future = _CURRENT.pool.submit(work)
    # A task that no thread has begun is run here: otherwise all threads could wait for such tasks, a deadlock.
    return lambda: work() if future.cancel() else future.result()


def for_each(work: Callable[[_Piece], _Result], pieces: Sequence[_Piece]) -> list[_Result]:
    """Call `work` for every piece, in parallel in this thread and those of its pool, and return the results in order.

    Without a pool, the pieces are processed in turn.
    """
    results: list[Any] = [None] * len(pieces)
    waiting = iter(list(enumerate(pieces)))  # a list's iterator is thread-safe: every piece goes to one thread only

    def take_pieces() -> None:
        for number, piece in waiting:
            results[number] = work(piece)

    helpers = min(_CURRENT.size, len(pieces)) - 1
    futures = [_CURRENT.pool.submit(take_pieces) for _ in range(helpers)] if _CURRENT.pool else []
    try:
        take_pieces()
    finally:
        # A helper that has not begun would find no piece left. All must end before an error is raised.
        errors = [future.exception() for future in futures if not future.cancel()]
    for error in filter(None, errors):
        raise error
    return results


def row_slices(count: int, size: int, fewest: int = 1) -> list[slice]:
    """Split rows of `size` values into as many equal slices as the pool has threads, of at least `fewest` rows each.

    There are fewer if there is little work.
    """
    parts = max(1, min(_CURRENT.size, count // fewest, count * size // _SMALLEST_SLICE))
    return [slice(begin, end) for begin, end in pairwise(count * part // parts for part in range(parts + 1))]
