"""Split-half replicability: which components are found again in fits to halves of the subjects, with other seeds.

A component that reflects the data is found in either half of the subjects, from any initial values; one that fits noise
or a single subject is not. The components of each refit are matched with the model's, see `explain.matching`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import check_is_fitted

from polyadic._util.checks import check_integer, check_number
from polyadic._util.random_streams import integer_seed
from polyadic.data.batches import Samples
from polyadic.data.labels import known_labels
from polyadic.data.splits import contiguous_blocks, group_folds
from polyadic.errors import ModelFileError, PolyadicError
from polyadic.explain.matching import match
from polyadic.scale.moments import Moments

__all__ = ["REFITS", "Replicability", "replicability"]

REFITS = 10
"""Default number of refits: both halves of five splits of the subjects."""
_BLOCKS = 20


@dataclass(frozen=True, eq=False)
class Replicability:
    """Which components of a model replicate when it is refitted to other subjects.

    Parameters
    ----------
    match : (R,), median over the refits of the factor match of each component, from 0 to 1
    returned : (R,), fraction of refits in which a component is found with a match of at least `threshold`
    refits : number of refits
    threshold : minimum match for a component to count as found
    halves : True for refits on halves of the subjects, False for halves of the windows

    Examples
    --------
    >>> result = Replicability(np.array([0.98, 0.6]), np.array([1.0, 0.25]), refits=4)
    >>> result.replicates
    array([ True, False])
    >>> result
    Replicability: 1 of 2 components replicate in 4 refits on halves of the subjects, mean match 0.79
    """

    match: NDArray[np.float64]
    returned: NDArray[np.float64]
    refits: int
    threshold: float = 0.9  # a common criterion for the same component (Lorenzo-Seva and ten Berge, 2006)
    halves: bool = True

    def __post_init__(self) -> None:
        for name in ("match", "returned"):
            object.__setattr__(self, name, np.array(getattr(self, name), np.float64))

    @property
    def replicates(self) -> NDArray[np.bool_]:
        """Whether each component was found in at least half of the refits: (R,)."""
        replicates: NDArray[np.bool_] = self.returned >= 0.5
        return replicates

    @property
    def score(self) -> float:
        """The mean of `match` over the components."""
        return float(self.match.mean())

    def __repr__(self) -> str:
        count, rank, of = int(self.replicates.sum()), len(self.match), "subjects" if self.halves else "windows"
        return (
            f"Replicability: {count} of {rank} component{'s' * (rank != 1)} replicate{'s' * (count == 1 == rank)} in "
            f"{self.refits} refit{'s' * (self.refits != 1)} on halves of the {of}, mean match {self.score:.2f}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Convert to a dictionary for JSON."""
        return {**vars(self), "match": self.match.tolist(), "returned": self.returned.tolist()}

    @classmethod
    def from_dict(cls, values: Any, rank: int) -> Replicability:
        """Build from the output of `to_dict` for a model of this rank; raise ModelFileError if it is invalid."""
        try:
            found = cls(**values)
            columns, valid = np.stack([found.match, found.returned]), found.refits >= 1 and 0 < found.threshold <= 1
        except (TypeError, ValueError) as error:
            raise ModelFileError(f"the file's replicability is damaged: {error}") from error
        if not valid or columns.shape != (2, rank) or not ((columns >= 0) & (columns <= 1)).all():
            raise ModelFileError(f"the file's replicability does not fit rank {rank}: {values!r}")
        return found


def replicability(
    model: Any,
    X: Any,
    groups: ArrayLike | None = None,
    refits: int = REFITS,
    random_state: int = 0,
    progress: Callable[[int, int], None] | None = None,
    *,
    threshold: float = 0.9,
) -> Replicability:
    """Check which components of a model are found again in refits to halves of the subjects, each with another seed.

    Subjects are split at random into two halves with about the same number of windows, and a model with the same
    settings is fitted to each half; this is repeated with other splits. If fewer than two subjects are known,
    contiguous blocks of windows are split instead. `model.replicability_ = replicability(model, X)` stores the result
    with the model.

    Parameters
    ----------
    model : a fitted `CPD`, `ATD`, `SALS` or `GRSALS`
    X : the windows it was fitted to; anything that `fit` takes
    groups : (N,), the subject of each window; by default the subjects of X. "", None, NaN and -1 mark unknown subjects,
        whose windows are left out
    refits : number of refits, two for each split of the subjects
    random_state : seed of the splits and of the initial values
    progress : called after each refit with the number of refits done and the total
    threshold : minimum match of components that count as the same

    Examples
    --------
    >>> from polyadic import CPD
    >>> random = np.random.default_rng(0)
    >>> x, A, B = random.normal(size=(80, 2)), random.normal(size=(6, 2)), random.normal(size=(7, 2))
    >>> X = np.einsum("nr,ir,jr->nij", x, A, B)
    >>> model = CPD(rank=2, tensorize=None).fit(X)
    >>> replicability(model, X, groups=np.repeat(np.arange(8), 10), refits=4)
    Replicability: 2 of 2 components replicate in 4 refits on halves of the subjects, mean match 1.00
    """
    check_is_fitted(model)
    if not hasattr(model, "factors_"):
        raise PolyadicError(f"model must be a CPD, ATD, SALS or GRSALS, but is a {type(model).__name__}")
    check_integer("refits", refits, 1)
    check_integer("random_state", random_state, 0)
    check_number("threshold", threshold, 0, 1)
    count = len(X.groups if isinstance(X, Moments) else Samples(X))
    rows, members, halves = _members(X, groups, count)
    parts = []
    for number in range(refits):  # both halves of a split, one split after the other
        fold = group_folds(np.zeros(len(members)), members, 2, seed=(random_state, number // 2))
        parts.append(np.isin(np.arange(count), rows[fold == number % 2]))
    seeds = [integer_seed(random_state, 1 + number) % 2**31 for number in range(refits)]
    similarity = np.zeros((refits, model.factors_[0].shape[1]))
    with warnings.catch_warnings():
        # Warnings about these fits would not help: only their components are used.
        warnings.simplefilter("ignore", ConvergenceWarning)
        if getattr(model, "_collects", False):  # from one pass over the windows
            refitted = iter(model.refit_parts(X, parts, seeds))
        else:
            refitted = (_refitted(model, X, part, seed) for part, seed in zip(parts, seeds, strict=True))
        for number, bases in enumerate(refitted):
            pairs = match(model, bases)
            similarity[number, pairs.a] = pairs.similarity
            if progress is not None:
                progress(number + 1, refits)
    similarity = np.minimum(similarity, 1.0)
    returned = (similarity >= threshold).mean(axis=0)
    return Replicability(np.median(similarity, axis=0), returned, int(refits), float(threshold), halves)


def _members(X: Any, groups: ArrayLike | None, count: int) -> tuple[NDArray[np.intp], NDArray[Any], bool]:
    """Return the rows to refit, the group of each, and whether groups are subjects."""
    rows = np.arange(count)
    if isinstance(X, Moments):
        if count < 2:
            raise PolyadicError("moments must be those of two groups or more to be halved: collect them with groups=")
        return rows, np.array(X.groups), True
    given = getattr(X, "subject", None) if groups is None else groups
    if given is not None:
        known, subjects = known_labels(given, count, "groups")
        distinct = len(np.unique(subjects))
        if distinct > 1:
            return rows[known], subjects, True
        if groups is not None:
            raise PolyadicError(
                f"groups must name two subjects or more, but has {distinct}: leave it out to halve the windows"
            )
    if count < 2:
        raise PolyadicError(f"X must have two windows or more to be halved, but has {count}")
    return rows, contiguous_blocks(np.zeros(count), min(_BLOCKS, count)), False


def _refitted(model: Any, X: Any, part: NDArray[np.bool_], seed: int) -> Any:
    """Fit a model with the same settings, but another seed and no readout, to a part (N,) of the windows."""
    refit, rows = clone(model).set_params(random_state=seed, verbose=0, readout=None), np.flatnonzero(part)
    graph = getattr(refit, "graph", "complete")
    if not isinstance(graph, str) and getattr(graph, "shape", None) == (len(part), len(part)):
        refit.set_params(graph=graph[rows][:, rows])
    return refit.fit(_safe_indexing(getattr(X, "windows", X), rows))
