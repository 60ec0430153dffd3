"""Recentring by subject: subtract the mean over the subject's windows from features, in training and prediction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyadic.data.labels import as_column, as_text
from polyadic.errors import PolyadicError

__all__ = ["FEWEST_WINDOWS", "check_sizes", "group_names", "means_by_group", "recentred"]

FEWEST_WINDOWS = 20
"""Minimum number of windows in a group for a reliable mean."""

_Means = Mapping[str, NDArray[np.float64]]


def group_names(groups: Any, count: int) -> NDArray[np.str_]:
    """Return the group of each window, as strings: (count,).

    Raises
    ------
    PolyadicError : if groups is None, or the group of some window is unknown
    """
    if groups is None:
        raise PolyadicError(
            "recentring by subject needs the subject of every window: pass groups=, or Windows with subjects"
        )
    names = np.array([as_text(name) for name in as_column(groups, "groups", count).tolist()], np.str_)
    unknown = int((names == "").sum())
    if unknown:
        raise PolyadicError(
            f"recentring by subject needs the subject of every window, but {unknown:,} of {count:,} have none: leave "
            "them out, or pass groups="
        )
    return names


def check_sizes(names: NDArray[np.str_]) -> None:
    """Raise if a group has too few windows for a reliable mean; the error names it."""
    found, sizes = np.unique(names, return_counts=True)
    small = [
        f"{name!r} has {size}"
        for name, size in zip(found.tolist(), sizes.tolist(), strict=True)
        if size < FEWEST_WINDOWS
    ]
    if small:
        more = f", and {len(small) - 3} more are too small" if len(small) > 3 else ""
        raise PolyadicError(
            f"recentring by subject needs at least {FEWEST_WINDOWS} windows of every subject, but "
            f"{', '.join(small[:3])}{more}: leave these subjects out, or use a probe without recenter"
        )


def means_by_group(parts: Iterable[tuple[NDArray[Any], NDArray[np.str_]]]) -> dict[str, NDArray[np.float64]]:
    """Compute the mean features of each group.

    Parameters
    ----------
    parts : pairs of features (n, F) and group names (n,), one per batch of windows

    Returns
    -------
    the mean (F,) float64 of each group, by name

    Examples
    --------
    >>> means = means_by_group([(np.arange(40.0)[:, None], np.repeat(["a", "b"], 20))])
    >>> {name: float(mean[0]) for name, mean in means.items()}
    {'a': 9.5, 'b': 29.5}
    """
    sums: dict[str, NDArray[np.float64]] = {}
    seen: list[NDArray[np.str_]] = []
    for Z, names in parts:
        for name in np.unique(names).tolist():
            own = np.asarray(Z[names == name], np.float64).sum(axis=0)
            sums[name] = sums[name] + own if name in sums else own
        seen.append(names)
    every = np.concatenate(seen) if seen else np.empty(0, np.str_)
    check_sizes(every)
    return {name: total / int((every == name).sum()) for name, total in sums.items()}


def recentred(Z: NDArray[Any], names: NDArray[np.str_], means: _Means) -> NDArray[np.float64]:
    """Subtract the mean of each group from its features: (n, F).

    Parameters
    ----------
    Z : (n, F)
    names : (n,), from `group_names`
    means : from `means_by_group`
    """
    missing = sorted(set(names.tolist()) - means.keys())
    if missing:
        raise PolyadicError(f"means must have an entry for every subject, but has none for {missing[0]!r}")
    found = np.array(Z, np.float64)
    for name in np.unique(names).tolist():
        found[names == name] -= means[name]
    return found
