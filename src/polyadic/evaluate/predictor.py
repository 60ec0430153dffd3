"""Class predictions for windows from fitted features and a fitted probe, with recentring by subject.

Uses torch and numpy only, as `polyadic predict` needs no more; `polyadic.evaluate.WindowClassifier` adds the training.
Recentring subtracts the mean features of each subject from its features, in training and in prediction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyadic.data.labels import as_column, as_text
from polyadic.data.store import WindowStore
from polyadic.data.windows import Windows
from polyadic.errors import ModelFileError, PolyadicError

__all__ = [
    "FEWEST_WINDOWS",
    "WindowPredictor",
    "check_sizes",
    "group_names",
    "groups_of",
    "means_by_group",
    "recentred",
]

FEWEST_WINDOWS = 20
"""Minimum number of windows of a subject for a reliable mean."""

_STEP = 4096


class WindowPredictor:
    """Predict windows with a model and its probe.

    Parameters
    ----------
    model : a fitted feature extractor with a probe, `model.probe_`
    name : name of the model, for the error message if it has no probe
    """

    features_: Any
    probe_: Any
    classes_: NDArray[Any]
    recenter: bool

    def __init__(self, model: Any, name: str = "the model") -> None:
        if not hasattr(model, "probe_"):
            raise ModelFileError(f"{name} has no probe: train one on labelled windows with polyadic fit --probe")
        self.features_, self.probe_, self.classes_ = model, model.probe_, model.probe_.classes_
        self.recenter = bool(getattr(model.probe_, "recenter_", False))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {type(self.features_).__name__}: {', '.join(map(str, self.classes_))}>"

    def predict(self, X: Any, groups: ArrayLike | None = None, means: Any = None) -> NDArray[Any]:
        """Predict the most probable class of each window: (N,).

        Parameters
        ----------
        X : (N, channels, time)
        groups : (N,), the subject of each window, needed with `recenter=True`; by default `X.subject`
        means : the mean features of each subject, from `subject_means`, with `recenter=True`; by default computed
            from X
        """
        predicted: NDArray[Any] = self.probe_.predict(self._features(X, groups, means))
        return predicted

    def predict_proba(self, X: Any, groups: ArrayLike | None = None, means: Any = None) -> NDArray[np.float64]:
        """Predict the probability of each class, in the order of `classes_`: (N, classes).

        A `Probe` weights classes equally, so its probabilities assume equally frequent classes. Use
        `probe=Probe(class_weight=None)` if they must reflect the class frequencies of the training data.

        Parameters
        ----------
        X, groups, means : as for `predict`
        """
        probabilities: NDArray[np.float64] = self.probe_.predict_proba(self._features(X, groups, means))
        return probabilities

    def subject_means(
        self, X: Any, groups: ArrayLike | None = None, on_rows: Callable[[int], None] | None = None
    ) -> dict[str, NDArray[np.float64]]:
        """Return the mean features of each subject, which `recenter` subtracts; each subject needs at least 20 windows.

        For online prediction, compute the means once from the windows recorded so far and pass them to `predict`.

        Parameters
        ----------
        X, groups : as for `predict`
        on_rows : called with the number of windows done

        Returns
        -------
        for each subject, the mean features (F,)
        """
        windows = X.windows if isinstance(X, WindowStore) else X
        names = group_names(groups_of(windows, groups), len(windows))
        check_sizes(Counter(names.tolist()))

        def parts() -> Iterator[tuple[NDArray[Any], NDArray[np.str_]]]:
            for first in range(0, len(windows), _STEP):
                rows = slice(first, first + _STEP)
                yield self._transform(windows[rows]), names[rows]
                if on_rows is not None:
                    on_rows(min(first + _STEP, len(windows)))

        return means_by_group(parts())

    def _features(self, X: Any, groups: ArrayLike | None, means: Any) -> NDArray[np.float64]:
        windows = X.windows if isinstance(X, WindowStore) else X
        if not self.recenter:
            return self._transform(windows)
        names = group_names(groups_of(windows, groups), len(windows))
        if means is None:
            check_sizes(Counter(names.tolist()))
        Z = self._transform(windows)
        return recentred(Z, names, means_by_group([(Z, names)]) if means is None else means)

    def _transform(self, windows: Any) -> NDArray[np.float64]:
        return np.asarray(self.features_.transform(windows), np.float64)


def groups_of(windows: Any, groups: ArrayLike | None = None) -> NDArray[Any] | None:
    """Return the group of each window: as given, else the subjects of the windows if any is known: (N,)."""
    if groups is not None:
        return as_column(groups, "groups", len(windows))
    if isinstance(windows, Windows) and (windows.subject != "").any():
        return windows.subject
    return None


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


def check_sizes(sizes: Mapping[str, int]) -> None:
    """Raise if a group has too few windows for a reliable mean; the error names it."""
    small = [f"{name!r} has {size}" for name, size in sorted(sizes.items()) if size < FEWEST_WINDOWS]
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
    sums: dict[str, Any] = {}
    sizes: Counter[str] = Counter()
    for Z, names in parts:
        for name in np.unique(names).tolist():
            sums[name] = sums.get(name, 0.0) + np.asarray(Z[names == name], np.float64).sum(axis=0)
        sizes.update(names.tolist())
    check_sizes(sizes)
    return {name: total / sizes[name] for name, total in sums.items()}


def recentred(Z: NDArray[Any], names: NDArray[np.str_], means: Mapping[str, Any]) -> NDArray[np.float64]:
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
    centred = np.array(Z, np.float64)
    for name in np.unique(names).tolist():
        centred[names == name] -= means[name]
    return centred
