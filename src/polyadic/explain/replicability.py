"""Which components come back when a model is fitted again to halves of the subjects, from other starts.

A component that is in the data is found in either half of the people, from any start; one that fits noise or a single
person is not. Each refit's components are matched with the model's, see `explain.matching`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import check_is_fitted

from polyadic.checks import check_integer, check_number
from polyadic.data.folds import contiguous_blocks, group_folds
from polyadic.data.labels import known_labels
from polyadic.draws import integer_seed
from polyadic.errors import PolyadicError
from polyadic.explain.matching import match
from polyadic.inputs import Samples
from polyadic.replication import Replicability

__all__ = ["REFITS", "Replicability", "estimate_seconds", "replicability"]

REFITS = 10
"""Refits where no number is given: both halves of five splits of the subjects."""
_BLOCKS = 20


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
    """Which components of a model come back when it is fitted again to halves of the subjects, each from another start.

    Subjects are split at random into two halves with about the same number of windows, and the model's settings are
    fitted to each half; then they are split another way. Where fewer than two subjects are known, blocks of
    neighbouring windows take their place. `model.replicability_ = replicability(model, X)` keeps it with the model.

    Parameters
    ----------
    model : a fitted `ATD`, `SALS` or `GRSALS`
    X : the windows it was fitted to; anything that `fit` takes
    groups : (N,), the subject of each window; by default those that X knows. "", None, NaN and -1 stand for unknown:
        such windows are left out
    refits : number of refits, two for each split of the subjects
    random_state : seed of the splits and of the starts
    progress : called after each refit with the refits done and the refits in all
    threshold : the match from which on a component counts as the same

    Examples
    --------
    >>> from polyadic import SALS
    >>> random = np.random.default_rng(0)
    >>> x, A, B = random.normal(size=(80, 2)), random.normal(size=(6, 2)), random.normal(size=(7, 2))
    >>> X = np.einsum("nr,ir,jr->nij", x, A, B)
    >>> model = SALS(rank=2, tensorize=None, batch_size=None).fit(X)
    >>> replicability(model, X, groups=np.repeat(np.arange(8), 10), refits=4)
    Replicability: 2 of 2 components replicate in 4 refits on halves of the subjects, mean match 1.00
    """
    check_is_fitted(model)
    if not hasattr(model, "factors_"):
        raise PolyadicError(f"model must be an ATD, SALS or GRSALS, but is a {type(model).__name__}")
    check_integer("refits", refits, 1)
    check_integer("random_state", random_state, 0)
    check_number("threshold", threshold, 0, 1)
    count = len(Samples(X))
    rows, members, halves = _members(X, groups, count)
    similarity = np.zeros((refits, model.factors_[0].shape[1]))
    for number, half in enumerate(_halves(members, refits, random_state)):
        found = match(model, _refitted(model, X, rows[half], count, integer_seed(random_state, 1 + number)))
        similarity[number, found.a] = found.similarity
        if progress is not None:
            progress(number + 1, refits)
    similarity = np.minimum(similarity, 1.0)
    returned = (similarity >= threshold).mean(axis=0)
    return Replicability(np.median(similarity, axis=0), returned, int(refits), float(threshold), halves)


def estimate_seconds(model: Any, X: Any, refits: int = REFITS) -> float:
    """About how many seconds `replicability` takes, from how long the model's own fit took; rather too many.

    Infinite for a model that does not know how long its fit took, such as one of `partial_fit`.

    Parameters
    ----------
    model, X, refits : as for `replicability`
    """
    seconds = float(getattr(model, "fit_seconds_", 0.0)) or sum(model.history_["seconds"])
    if not seconds > 0:
        return float("inf")
    # A refit has half of the windows, but sweeps over second moments take as long as those of the whole.
    share = 1.0 if getattr(model, "solver_", None) == "moments" else 0.5
    return refits * share * seconds * max(len(Samples(X)) / max(int(model._n_seen), 1), share)


def _members(X: Any, groups: ArrayLike | None, count: int) -> tuple[NDArray[np.intp], NDArray[Any], bool]:
    """The rows to refit, who or what each belongs to, and whether those are subjects."""
    given = getattr(X, "subject", None) if groups is None else groups
    rows = np.arange(count)
    if given is not None:
        known, subjects = known_labels(given, count, "groups")
        if len(np.unique(subjects)) > 1:
            return rows[known], subjects, True
        if groups is not None:
            raise PolyadicError(
                f"groups must name two subjects or more, but has {len(np.unique(subjects))}: leave it out to halve the "
                "windows"
            )
    if count < 2:
        raise PolyadicError(f"X must have two windows or more to be halved, but has {count}")
    return rows, contiguous_blocks(np.zeros(count), min(_BLOCKS, count)), False


def _halves(members: NDArray[Any], refits: int, seed: int) -> Iterator[NDArray[np.bool_]]:
    """Which rows are in each refit's half: both halves of one split after another."""
    for split in range(-(-refits // 2)):
        fold = group_folds(np.zeros(len(members)), members, 2, seed=(seed, split))
        yield from (fold == half for half in range(min(2, refits - 2 * split)))


def _refitted(model: Any, X: Any, rows: NDArray[np.intp], count: int, seed: int) -> Any:
    """A model with the same settings of some of the windows, from another start, and without a readout."""
    own = clone(model).set_params(random_state=seed % 2**31, verbose=0, readout=None)
    graph = getattr(own, "graph", "complete")
    if not isinstance(graph, str) and getattr(graph, "shape", None) == (count, count):
        own.set_params(graph=graph[rows][:, rows])
    with warnings.catch_warnings():
        # Of these fits nobody sees more than what comes back.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return own.fit(_safe_indexing(getattr(X, "windows", X), rows))
