"""Threads that share the pieces of a batch, as many as torch may use.

torch divides large calls among threads of its own; numpy's and scipy's calls, and all small ones, leave the other cores
idle. Here each thread takes a whole piece of the batch through all its calls, and torch does each of them in the thread
that makes it. One must do without the other: torch's threads go on spinning for milliseconds after every call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from itertools import pairwise
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import torch

__all__ = ["for_each", "in_pool", "row_slices", "start", "thread_pool"]

_PATIENCE = 0.01
"""Seconds after which who waits for a piece of work looks for another: short waits are not worth the disturbance."""
_LEAST = 2**14
"""Numbers with which a thread has enough to do to be worth waking."""

_Piece = TypeVar("_Piece")
_Outcome = TypeVar("_Outcome")

# concurrent.futures would do, but takes several times as long to hand over a piece, and a step hands over four.
_Answer = SimpleQueue[tuple[Any, BaseException | None]]
_Tasks = SimpleQueue[Callable[[], None] | None]


class _Current(threading.local):
    """The crew of this thread: where its helpers take their work from, and how many they are with the thread itself."""

    tasks: _Tasks | None = None
    size: int = 1


_CURRENT = _Current()


@contextmanager
def thread_pool() -> Iterator[None]:
    """As many threads as torch has in this thread; torch itself has one meanwhile, and what it had afterwards.

    Where torch has one thread only, as in the workers of scikit-learn, or there is a crew already, nothing changes.
    Threads that begin meanwhile and ask torch for the first time have one, too.

    Examples
    --------
    >>> squares = [0, 0, 0]
    >>> with thread_pool():
    ...     for_each(lambda n: squares.__setitem__(n, n * n), range(3))
    >>> squares
    [0, 1, 4]
    """
    _keep_memory()
    threads = torch.get_num_threads()
    if threads == 1 or _CURRENT.tasks is not None:
        yield
        return
    tasks: _Tasks = SimpleQueue()
    helpers = [threading.Thread(target=_help, args=(tasks, threads), name="polyadic-crew") for _ in range(threads - 1)]
    for helper in helpers:
        helper.start()
    try:
        torch.set_num_threads(1)
        _CURRENT.tasks, _CURRENT.size = tasks, threads
        yield
    finally:
        _CURRENT.tasks, _CURRENT.size = None, 1
        for _ in helpers:
            tasks.put(None)
        for helper in helpers:
            helper.join()
        # Only now that the helpers are gone: the last number set anywhere is that of threads still to come.
        torch.set_num_threads(threads)


@cache
def _keep_memory() -> None:
    """Free a block of almost 32 MiB, once: from then on the C library of Linux keeps what is freed, up to that size.

    Every batch needs the same memory again, and the system takes as long to clear a fresh page as a filter to fill it.
    """
    torch.empty(2**25 - 2**14, dtype=torch.uint8)


def _help(tasks: _Tasks, size: int) -> None:
    """What a helper does until it is told that there is no more; it may ask others in turn, also one that waits."""
    torch.set_num_threads(1)
    _CURRENT.tasks, _CURRENT.size = tasks, max(size - 1, 2)
    while (task := tasks.get()) is not None:
        task()


def in_pool() -> bool:
    """Whether this thread has a crew.

    Examples
    --------
    >>> in_pool()
    False
    """
    return _CURRENT.tasks is not None


def start(work: Callable[[], _Outcome]) -> Callable[[], _Outcome]:
    """Begin some work in a thread of the crew, and return what waits for its outcome; without a crew, do it at once.

    Examples
    --------
    >>> with thread_pool():
    ...     outcome = start(lambda: 2 + 2)
    ...     outcome()
    4
    """
    if _CURRENT.tasks is None:
        outcome = work()
        return lambda: outcome
    tasks = _CURRENT.tasks
    answer: _Answer = SimpleQueue()
    place: list[None] = [None]

    def begin() -> None:
        if _taken(place):
            _answered(work, answer)

    def wait() -> _Outcome:
        # Helpers that all waited for what none of them has begun would wait for ever.
        if _taken(place):
            return work()
        value, error = _awaited(answer, tasks)
        if error is not None:
            raise error
        return value  # type: ignore[no-any-return]

    tasks.put(begin)
    return wait


def _awaited(answer: _Answer, tasks: _Tasks) -> tuple[Any, BaseException | None]:
    """An answer that is on its way; who has waited for it for a while does what others would have to do."""
    patience = _PATIENCE
    while True:
        with suppress(Empty):
            return answer.get(timeout=patience)
        patience = _PATIENCE
        with suppress(Empty):
            task = tasks.get_nowait()
            if task is None:
                tasks.put(None)  # that one was for a helper
            else:
                task()
                patience = 0.0


def _answered(work: Callable[[], object], answer: _Answer) -> None:
    try:
        answer.put((work(), None))
    except BaseException as error:
        answer.put((None, error))


def for_each(work: Callable[[_Piece], object], pieces: Sequence[_Piece]) -> None:
    """Do the work for every piece, in this thread and in those of its crew, whoever is free.

    Pieces must not depend on each other. Without a crew they are done in turn.
    """
    # A list's iterator gives every piece to one thread only, and a list every place to one helper, or back to us.
    waiting = iter(list(pieces))
    places = [None] * (0 if _CURRENT.tasks is None else min(_CURRENT.size, len(pieces)) - 1)
    answer: _Answer = SimpleQueue()

    def share() -> None:
        for piece in waiting:
            work(piece)

    def join() -> None:
        if _taken(places):
            _answered(share, answer)

    coming = len(places)
    for _ in range(coming):
        assert _CURRENT.tasks is not None
        _CURRENT.tasks.put(join)
    _answered(share, answer)
    # Who has not begun by now is busy with something else, and is not waited for.
    while _taken(places):
        coming -= 1
    errors = [error for _, error in (answer.get() for _ in range(coming + 1)) if error is not None]
    if errors:
        raise errors[0]


def _taken(places: list[None]) -> bool:
    try:
        places.pop()
    except IndexError:
        return False
    return True


def row_slices(count: int, size: int, fewest: int = 1) -> list[slice]:
    """So many rows in as many equal shares as there are threads in the crew, or fewer where there is little to do.

    Parameters
    ----------
    count : rows
    size : numbers in a row
    fewest : rows in a share

    Examples
    --------
    >>> row_slices(5, 2**20)
    [slice(0, 5, None)]
    """
    parts = max(1, min(_CURRENT.size, count // fewest, count * size // _LEAST))
    return [slice(begin, end) for begin, end in pairwise(count * part // parts for part in range(parts + 1))]
