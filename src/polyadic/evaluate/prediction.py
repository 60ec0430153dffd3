"""Class predictions for windows from fitted features and a fitted probe, with torch and numpy only.

Used by `polyadic.evaluate.WindowClassifier`, and by commands that only read a model file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyadic.core.persist import load
from polyadic.data.labels import as_column
from polyadic.data.store import WindowStore
from polyadic.data.windows import Windows
from polyadic.errors import ModelFileError
from polyadic.evaluate.recentring import check_sizes, group_names, means_by_group, recentred

__all__ = ["WindowPredictor", "check_probe", "groups_of"]

_STEP = 4096


def groups_of(windows: Any, groups: ArrayLike | None) -> NDArray[Any] | None:
    """Return the group of each window: as given, else the subjects of the windows if any is known: (N,)."""
    if groups is not None:
        return as_column(groups, "groups", len(windows))
    if isinstance(windows, Windows) and (windows.subject != "").any():
        return windows.subject
    return None


def check_probe(model: Any, name: str = "the model") -> None:
    """Raise if a model has no probe."""
    if not hasattr(model, "probe_"):
        raise ModelFileError(f"{name} has no probe: train one on labelled windows with polyadic fit --probe")


class WindowPredictor:
    """Predict windows with features and a probe, with recentring by subject if the probe was trained with it.

    Parameters
    ----------
    features : a fitted feature extractor with a method `transform`
    probe : a fitted classifier of features
    recenter : whether to subtract from the features of each window the mean over all windows of its subject
    """

    def __init__(self, features: Any, probe: Any, recenter: bool = False) -> None:
        self.features = features
        self.probe = probe
        self.recenter = recenter

    def __repr__(self) -> str:
        classes = ", ".join(map(str, self.probe.classes_))
        return f"<WindowPredictor of {type(self.features).__name__}: {classes}{'; recentred' * self.recenter}>"

    @classmethod
    def load(cls, path: str | os.PathLike[str], device: str = "auto") -> WindowPredictor:
        """Load the predictor of a model file with a probe.

        Parameters
        ----------
        device : device to compute features on

        Raises
        ------
        ModelFileError : if the file is damaged, or has no probe
        """
        model = load(path)
        model.device = device
        check_probe(model, os.path.basename(path))  # noqa: PTH119
        return cls(model, model.probe_, bool(getattr(model.probe_, "recenter_", False)))

    @property
    def classes_(self) -> NDArray[Any]:
        classes: NDArray[Any] = self.probe.classes_
        return classes

    def predict(self, X: Any, groups: ArrayLike | None = None, means: Any = None) -> NDArray[Any]:
        """Return the most probable class of each window: (N,); parameters as for `WindowClassifier.predict`."""
        predicted: NDArray[Any] = self.probe.predict(self._features(X, groups, means))
        return predicted

    def predict_proba(self, X: Any, groups: ArrayLike | None = None, means: Any = None) -> NDArray[np.float64]:
        """Return the probability of each class, in the order of `classes_`: (N, classes)."""
        found: NDArray[np.float64] = self.probe.predict_proba(self._features(X, groups, means))
        return found

    def subject_means(
        self, X: Any, groups: ArrayLike | None = None, on_rows: Callable[[int], None] | None = None
    ) -> dict[str, NDArray[np.float64]]:
        """Return the mean features of each subject, for `means`; parameters as for `WindowClassifier.subject_means`."""
        windows = X.windows if isinstance(X, WindowStore) else X
        names = group_names(groups_of(windows, groups), len(windows))
        check_sizes(names)

        def parts() -> Iterator[tuple[NDArray[Any], NDArray[np.str_]]]:
            for first in range(0, len(windows), _STEP):
                rows = slice(first, first + _STEP)
                yield np.asarray(self.features.transform(windows[rows]), np.float64), names[rows]
                if on_rows is not None:
                    on_rows(min(first + _STEP, len(windows)))

        return means_by_group(parts())

    def _features(self, X: Any, groups: ArrayLike | None, means: Any) -> NDArray[Any]:
        windows = X.windows if isinstance(X, WindowStore) else X
        if not self.recenter:
            return np.asarray(self.features.transform(windows), np.float64)
        names = group_names(groups_of(windows, groups), len(windows))
        if means is None:
            check_sizes(names)
        Z = np.asarray(self.features.transform(windows), np.float64)
        return recentred(Z, names, means_by_group([(Z, names)]) if means is None else means)
