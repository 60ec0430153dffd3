"""A thread pool that shares the pieces of a batch, with as many threads as torch may use.

torch divides large calls among threads of its own; numpy's and scipy's calls, and all small ones, leave the other cores
idle. Here each thread takes a whole piece of the batch through all its calls, and torch runs each call in the thread
that makes it. The two do not mix: torch's threads go on spinning for milliseconds after every call.
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
"""Seconds after which a thread that waits for a result does other work: shorter waits are not worth the disturbance."""
_SMALLEST_SLICE = 2**14
"""Numbers that give a thread enough to do to be worth waking."""

_Piece = TypeVar("_Piece")
_Result = TypeVar("_Result")


class _Task(Generic[_Result]):
    """Work for whichever thread claims it first: one of the pool, or the one that needs the result."""

    # concurrent.futures would do, but takes several times as long to hand over a task, and a step hands over four.
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
        """Do the work unless another thread has claimed it."""
        if not self._claim():
            return
        try:
            self._answer.put((self._work(), None))
        except BaseException as error:
            self._answer.put((None, error))

    def result(self, others: _Queue | None = None) -> _Result:
        """The result; work that nobody has begun is done here, and long waits are filled with `others`' work."""
        # Threads that all waited for what none of them has begun would wait for ever.
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
                    others.put(None)  # that was for a thread of the pool to end
                else:
                    task.run()
                    patience = 0.0


_Queue = SimpleQueue[_Task[Any] | None]


class _Current(threading.local):
    """The pool this thread belongs to: its queue, and its number of threads with this one."""

    queue: _Queue | None = None
    size: int = 1


_CURRENT = _Current()


@contextmanager
def thread_pool() -> Iterator[None]:
    """Run a pool of as many threads as torch has in this thread; torch itself has one meanwhile.

    Where torch has one thread only, as in the workers of scikit-learn, or there is a pool already, nothing changes.
    Threads that begin meanwhile and ask torch for the first time have one, too.

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
        # Only now that the workers are gone: the last number set anywhere is that of threads still to come.
        torch.set_num_threads(threads)


def _work(queue: _Queue, size: int) -> None:
    """Run tasks until there are no more; a task may start others in turn, also for a thread that waits."""
    torch.set_num_threads(1)
    _CURRENT.queue, _CURRENT.size = queue, max(size - 1, 2)
    while (task := queue.get()) is not None:
        task.run()


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Have torch compute in this thread alone, so that results do not depend on the number of its threads."""
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
    """Whether this thread belongs to a pool.

    Examples
    --------
    >>> in_pool()
    False
    """
    return _CURRENT.queue is not None


def start(work: Callable[[], _Result]) -> Callable[[], _Result]:
    """Start some work in the pool, and return a function that waits for its result; without a pool, do it at once.

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
    """Do the work for every piece, in this thread and in those of its pool, whichever is free.

    Pieces must not depend on each other. Without a pool they are done in turn.
    """
    waiting = iter(list(pieces))  # a list's iterator gives every piece to one thread only

    def take_pieces() -> None:
        for piece in waiting:
            work(piece)

    queue = _CURRENT.queue
    tasks = [_Task(take_pieces) for _ in range(0 if queue is None else min(_CURRENT.size, len(pieces)) - 1)]
    for task in tasks:
        assert queue is not None
        queue.put(task)
    errors = []
    # A task that no thread has begun by the end finds no piece left, and is done at once.
    for finish in (take_pieces, *(task.result for task in tasks)):
        try:
            finish()
        except BaseException as error:
            errors.append(error)
    if errors:
        raise errors[0]


def row_slices(count: int, size: int, fewest: int = 1) -> list[slice]:
    """`count` rows in as many equal slices as the pool has threads, or fewer where there is little to do.

    Parameters
    ----------
    count : rows
    size : numbers in a row
    fewest : rows in a slice

    Examples
    --------
    >>> row_slices(5, 2**20)
    [slice(0, 5, None)]
    """
    parts = max(1, min(_CURRENT.size, count // fewest, count * size // _SMALLEST_SLICE))
    return [slice(begin, end) for begin, end in pairwise(count * part // parts for part in range(parts + 1))]
