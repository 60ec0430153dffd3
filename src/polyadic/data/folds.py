"""Cross-validation folds that keep groups (subjects) together, and blocks of rows if groups are unknown."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyadic._util.checks import check_integer
from polyadic.errors import PolyadicError

__all__ = ["contiguous_blocks", "group_folds"]


def group_folds(
    y: ArrayLike, groups: ArrayLike, count: int, seed: int | Sequence[int] | None = None
) -> NDArray[np.intp]:
    """Assign whole groups to folds so that classes are spread over the folds as evenly as possible.

    Groups are assigned one by one, each to the fold in which its classes are rarest so far.

    Parameters
    ----------
    y : (N,), classes
    groups : (N,), group of each row
    count : number of folds, reduced to the number of groups if there are fewer; no fold is empty
    seed : random seed of the order in which groups are assigned; None assigns the largest group first

    Returns
    -------
    (N,), the fold of each row, from 0 on

    Examples
    --------
    >>> group_folds(["rest", "walk"] * 3, ["a", "a", "b", "b", "c", "c"], count=3)
    array([0, 0, 1, 1, 2, 2])
    """
    check_integer("count", count, 2)
    _, code = np.unique(np.asarray(y), return_inverse=True)
    _, member = np.unique(np.asarray(groups), return_inverse=True)
    if code.ndim != 1 or code.shape != member.shape or not len(code):
        raise PolyadicError(f"y and groups must have one entry per row, but have shapes {code.shape}, {member.shape}")
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
    """Divide the rows of each class, in their given order, into blocks that stand in for unknown groups.

    Neighbouring windows overlap or resemble each other. Shuffled folds would put them into both the training and the
    test set; blocks do so only at their ends.

    Parameters
    ----------
    y : (N,), classes
    count : number of blocks; the k-th block holds the k-th part of every class

    Returns
    -------
    (N,), the block of each row, from 0 on

    Examples
    --------
    >>> contiguous_blocks([0, 0, 1, 1, 0, 0, 1, 1], count=2)
    array([0, 0, 0, 0, 1, 1, 1, 1])
    """
    check_integer("count", count, 1)
    labels = np.asarray(y)
    if labels.ndim != 1:
        raise PolyadicError(f"y must have shape (N,), one class per row, but has shape {labels.shape}")
    _, code, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    block = np.empty(len(labels), np.intp)
    for number, size in enumerate(sizes):
        block[code == number] = np.arange(size) * int(count) // size
    return block
