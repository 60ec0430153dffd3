"""Which window to ask about next.

The first windows cover the data: each is the one farthest from all that were asked about (farthest-first), among the
subjects that were asked about least. Later ones are uncertain, every other one uncertain and far from the others (the
product of both). Every fifth window is drawn at random from all windows, because only these are a fair sample to
estimate the accuracy from. Chosen on development subjects by `python -m paper label`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["COVER", "EVERY", "SAMPLE", "Question", "Questions", "margin"]

SAMPLE = 3500
"""Maximum number of windows that are compared with each other: a fixed random sample, as large as the probe's graph."""
EVERY = 5
"""One window in this many is drawn at random."""
COVER = 10
"""Number of windows that cover the data before uncertainty counts."""
_STATISTICS = 0.5
"""Weight of the statistics in distances: that of a probe with few labels."""


class Question(NamedTuple):
    """A window to ask about, and why: "cover", "unsure", "random", "again" or "picked"."""

    row: int
    asked: str


def margin(probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how uncertain each prediction is: 1 less the lead of the most probable class, (n,).

    Examples
    --------
    >>> margin(np.array([[0.5, 0.5], [1.0, 0.0]]))
    array([1., 0.])
    """
    ordered = np.sort(probabilities, axis=1)
    return np.asarray(1.0 - (ordered[:, -1] - ordered[:, -2]))


class Questions:
    """The order of questions about windows.

    Parameters
    ----------
    Z : (N, F), features
    groups : (N,), subject of each window
    statistics : the columns of Z that are statistics
    random_state : of the random windows

    Attributes
    ----------
    sample : (n,), the windows that may be asked about unless drawn at random; all up to 3,500, sorted
    order : (N,), all windows in the order in which they are drawn at random

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> questions = Questions(rng.normal(size=(100, 3)), np.arange(100) % 4)
    >>> asked = []
    >>> for _ in range(5):
    ...     asked.append(questions.next([question.row for question in asked], drawn=0))
    >>> [question.asked for question in asked]
    ['cover', 'cover', 'cover', 'cover', 'random']
    """

    def __init__(self, Z: NDArray[Any], groups: ArrayLike, statistics: Any = (), random_state: int = 0) -> None:
        rng = np.random.default_rng(random_state)
        weight = np.ones(Z.shape[1])
        weight[list(statistics)] = _STATISTICS
        self._Z = np.asarray(Z * weight, np.float32)
        self._groups = np.unique(np.asarray(groups), return_inverse=True)[1]
        self.order: NDArray[np.intp] = rng.permutation(len(Z))
        self.sample: NDArray[np.intp] = np.sort(rng.permutation(len(Z))[:SAMPLE])
        self._near, self._of = np.full(len(self.sample), np.inf, np.float32), list[int]()

    def next(
        self,
        seen: Sequence[int],
        drawn: int,
        probabilities: NDArray[np.float64] | None = None,
        number: int | None = None,
    ) -> Question:
        """Return the next question.

        Parameters
        ----------
        seen : rows asked about so far, labelled or not
        drawn : how many of them were drawn at random
        probabilities : (n, K), predictions for `sample`, if there are any
        number : how many questions were answered; by default as many as rows were seen
        """
        number = len(seen) if number is None else number
        if number % EVERY == EVERY - 1 or len(set(seen)) >= len(self._Z):
            return Question(int(self.order[drawn % len(self.order)]), "random")
        if probabilities is None or number < COVER:
            return Question(self.cover(seen), "cover")
        return Question(self.unsure(seen, probabilities, far=number % 2 == 1), "unsure")

    def cover(self, seen: Sequence[int]) -> int:
        """Return the window farthest from those seen, of the subjects with the fewest seen; first a typical one."""
        if not seen:
            F = self._Z[self.sample]
            return int(self.sample[np.square(F - F.mean(axis=0)).sum(axis=1).argmin()])
        counts = np.bincount(self._groups[list(seen)], minlength=self._groups.max() + 1)[self._groups[self.sample]]
        free = ~np.isin(self.sample, seen)
        return self._best(np.where(counts == counts[free].min(initial=len(seen)), self.distances(seen), -1.0), seen)

    def unsure(self, seen: Sequence[int], probabilities: NDArray[np.float64], far: bool) -> int:
        """Return the most uncertain window; with `far`, that of the largest uncertainty times distance from those seen.

        `seen` and `probabilities` are as for `next`.
        """
        score = margin(probabilities)
        return self._best(score * self.distances(seen) if far else score, seen)

    def distances(self, seen: Sequence[int]) -> NDArray[np.float32]:
        """Return the distance of each window of the sample from the nearest one seen: (n,)."""
        if self._of != list(seen[: len(self._of)]):  # an answer was taken back
            self._near, self._of = np.full(len(self.sample), np.inf, np.float32), []
        for row in seen[len(self._of) :]:
            near = np.sqrt(np.square(self._Z[self.sample] - self._Z[row]).sum(axis=1))
            self._near = np.minimum(self._near, near)
        self._of = list(seen)
        return self._near

    def _best(self, score: NDArray[Any], seen: Sequence[int]) -> int:
        """Return the window with the largest score among those not seen."""
        free = ~np.isin(self.sample, seen)
        if free.any():
            return int(self.sample[np.where(free, score, -np.inf).argmax()])
        return int(np.setdiff1d(np.arange(len(self._Z)), seen)[0])  # the whole sample was asked about
