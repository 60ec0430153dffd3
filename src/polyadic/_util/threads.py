"""A thread pool that processes the pieces of a batch in parallel, with as many threads as torch may use.

torch parallelises large operations with its own threads, but numpy and scipy calls, and all small ones, leave the other
cores idle. Here each thread processes a whole piece of the batch, and torch runs each operation in the calling thread.
The two must not be mixed: torch's threads keep spinning for milliseconds after every operation.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

import torch

__all__ = ["for_each", "in_pool", "one_torch_thread", "row_slices", "start", "thread_pool"]

_PATIENCE = 0.01
"""Seconds after which a thread that waits for a result takes on other work; for shorter waits that does not pay."""
_SMALLEST_SLICE = 2**14
"""Minimum number of values in a slice for which waking a thread pays."""

_Piece = TypeVar("_Piece")
_Result = TypeVar("_Result")


class _Task(Generic[_Result]):
    """A task that runs in whichever thread claims it first: one of the pool, or the one that needs the result."""

    # concurrent.futures would work, but takes several times as long to submit a task, and a step submits four.
    __slots__ = ("_answer", "_claims", "_work")

    def __init__(self, work: Callable[[], _Result]) -> None:
        self._work = work
        self._claims = [True]
        self._answer: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()

    def _claim(self) -> bool:
        with suppress(IndexError):
            return self._claims.pop()  # atomic
        return False

    def run(self) -> None:
        """Run the task unless another thread has claimed it."""
        if not self._claim():
            return
        try:
            self._answer.put((self._work(), None))
        except BaseException as error:
            self._answer.put((None, error))

    def result(self, others: _Queue | None = None) -> _Result:
        """Return the result; run the task here if unclaimed, and tasks from `others` during long waits."""
        # Otherwise all threads could wait for unclaimed tasks, a deadlock.
        if self._claim():
            return self._work()
        value, error = self._answer.get() if others is None else self._work_until_answered(others)
        if error is not None:
            raise error
        return value  # type: ignore[no-any-return]

    def _work_until_answered(self, others: _Queue) -> tuple[Any, BaseException | None]:
        patience = _PATIENCE
        while True:
            with suppress(Empty):
                return self._answer.get(timeout=patience)
            patience = _PATIENCE
            with suppress(Empty):
                task = others.get_nowait()
                if task is None:
                    others.put(None)  # the stop signal for a thread of the pool
                else:
                    task.run()
                    patience = 0.0


_Queue = SimpleQueue[_Task[Any] | None]


class _Current(threading.local):
    """The pool that this thread belongs to: its queue, and its number of threads including this one."""

    queue: _Queue | None = None
    size: int = 1


_CURRENT = _Current()


@contextmanager
def thread_pool() -> Iterator[None]:
    """Run a pool with as many threads as torch uses in this thread; torch itself uses one meanwhile.

    Does nothing if torch has only one thread, as in scikit-learn's workers, or if there already is a pool. Threads that
    first use torch while the pool runs also get one torch thread.

    Examples
    --------
    >>> squares = [0, 0, 0]
    >>> with thread_pool():
    ...     for_each(lambda n: squares.__setitem__(n, n * n), range(3))
    >>> squares
    [0, 1, 4]
    """
    threads = torch.get_num_threads()
    if threads == 1 or in_pool():
        yield
        return
    queue: _Queue = SimpleQueue()
    workers = [threading.Thread(target=_work, args=(queue, threads), name="polyadic-pool") for _ in range(threads - 1)]
    for worker in workers:
        worker.start()
    try:
        torch.set_num_threads(1)
        _CURRENT.queue, _CURRENT.size = queue, threads
        yield
    finally:
        _CURRENT.queue, _CURRENT.size = None, 1
        for _ in workers:
            queue.put(None)
        for worker in workers:
            worker.join()
        # Only after the workers have ended: new threads inherit the last number set in any thread.
        torch.set_num_threads(threads)


def _work(queue: _Queue, size: int) -> None:
    """Run tasks until the stop signal; a task may start further tasks, also for a waiting thread."""
    torch.set_num_threads(1)
    _CURRENT.queue, _CURRENT.size = queue, max(size - 1, 2)
    while (task := queue.get()) is not None:
        task.run()


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Make torch compute in this thread only, so that results do not depend on its number of threads."""
    threads = torch.get_num_threads()
    if threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def in_pool() -> bool:
    """Return whether this thread belongs to a pool.

    Examples
    --------
    >>> in_pool()
    False
    """
    return _CURRENT.queue is not None


def start(work: Callable[[], _Result]) -> Callable[[], _Result]:
    """Start a task in the pool, and return a function that waits for its result; without a pool, run it at once.

    Examples
    --------
    >>> with thread_pool():
    ...     result = start(lambda: 2 + 2)
    ...     result()
    4
    """
    queue = _CURRENT.queue
    if queue is None:
        value = work()
        return lambda: value
    task = _Task(work)
    queue.put(task)
    return lambda: task.result(queue)


def for_each(work: Callable[[_Piece], object], pieces: Sequence[_Piece]) -> None:
    """Call `work` for every piece, in parallel in this thread and those of its pool.

    Pieces must be independent. Without a pool they are processed in turn.
    """
    waiting = iter(list(pieces))  # a list's iterator is thread-safe: every piece goes to one thread only

    def take_pieces() -> None:
        for piece in waiting:
            work(piece)

    queue = _CURRENT.queue
    tasks = [_Task(take_pieces) for _ in range(0 if queue is None else min(_CURRENT.size, len(pieces)) - 1)]
    for task in tasks:
        assert queue is not None
        queue.put(task)
    errors = []
    # A task that is still unclaimed at the end finds no piece left, and returns at once.
    for finish in (take_pieces, *(task.result for task in tasks)):
        try:
            finish()
        except BaseException as error:
            errors.append(error)
    if errors:
        raise errors[0]


def row_slices(count: int, size: int, fewest: int = 1) -> list[slice]:
    """Split `count` rows into as many equal slices as the pool has threads, or fewer if there is little work.

    Parameters
    ----------
    count : number of rows
    size : number of values in a row
    fewest : minimum number of rows in a slice

    Examples
    --------
    >>> row_slices(5, 2**20)
    [slice(0, 5, None)]
    """
    parts = max(1, min(_CURRENT.size, count // fewest, count * size // _SMALLEST_SLICE))
    return [slice(begin, end) for begin, end in pairwise(count * part // parts for part in range(parts + 1))]
