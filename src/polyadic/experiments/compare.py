"""The main job: ATD, SALS, GR-SALS and ATD_ss- on the same windows, judged by the same probe, over several seeds.

Every seed has its own start, order and augmentations, and its own split of the labelled windows.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray
from sklearn.base import clone

from polyadic import ATD, GRSALS, SALS
from polyadic.augment import Augmentation
from polyadic.data.splits import Protocol, Split, split_labelled, split_windows
from polyadic.errors import PolyadicError
from polyadic.evaluate import PROBES, probe_accuracy
from polyadic.spectral import STFT

__all__ = ["Recordings", "compare", "methods", "read_npz", "split", "summarise"]

_SCORED_WINDOWS = 1024

Row = dict[str, Any]


@dataclass(frozen=True)
class Recordings:
    """Windows with what is known of them.

    name : for titles
    X : (N, channels, time)
    y : (N,) labels, or None
    subject : (N,) people, or None
    unlabelled : (N,) True for the windows that the data itself sets aside as unlabelled, or None
    fs : sampling rate in Hz, or None
    """

    name: str
    X: NDArray[Any]
    y: NDArray[Any] | None = None
    subject: NDArray[Any] | None = None
    unlabelled: NDArray[np.bool_] | None = None
    fs: float | None = None


def read_npz(path: str | os.PathLike[str]) -> Recordings:
    """Windows from a `.npz` file, or from a `.npy` file that holds nothing but X.

    Either `X` (N, channels, time) with optional `y` and `subject` (N,), or, where the data has a split of its own,
    `X_train` for the unlabelled windows and `X_test`, `y_test`, `subject_test` for the labelled ones. `fs` is optional.
    """
    name = Path(path).name
    try:
        file = np.load(path, allow_pickle=False)
        arrays = {"X": file} if isinstance(file, np.ndarray) else {key: file[key] for key in file.files}
    except OSError as error:
        if error.errno is not None:  # the system's own, such as a missing permission
            raise
        raise PolyadicError(f"{name} cannot be read as a .npz file: {error}") from error
    except (ValueError, KeyError, EOFError, BadZipFile, zlib.error, NotImplementedError, struct.error) as error:
        raise PolyadicError(f"{name} cannot be read as a .npz file: {error}") from error
    fs = _rate(arrays.get("fs"), name)
    if "X" in arrays:
        recordings = Recordings(name, arrays["X"], arrays.get("y"), arrays.get("subject"), None, fs)
    elif "X_train" in arrays and "X_test" in arrays:
        if arrays["X_train"].shape[1:] != arrays["X_test"].shape[1:]:
            shapes = arrays["X_train"].shape, arrays["X_test"].shape
            raise PolyadicError(f"{name}: X_train and X_test must have windows of one shape, but have {shapes}")
        n_train, n_test = len(arrays["X_train"]), len(arrays["X_test"])

        def joined(key: str) -> NDArray[Any] | None:
            if f"{key}_test" not in arrays:
                return None
            test = arrays[f"{key}_test"]
            train = arrays.get(f"{key}_train")
            return np.concatenate([np.full(n_train, -1, test.dtype) if train is None else train, test])

        X = np.concatenate([arrays["X_train"], arrays["X_test"]])
        unlabelled = np.arange(n_train + n_test) < n_train
        recordings = Recordings(name, X, joined("y"), joined("subject"), unlabelled, fs)
    else:
        raise PolyadicError(f"{name} must hold X, or X_train and X_test, but holds {', '.join(arrays) or 'nothing'}")
    for key in ("y", "subject"):
        column = getattr(recordings, key)
        if column is not None and column.shape != recordings.X.shape[:1]:
            expected = len(recordings.X)
            raise PolyadicError(f"{name}: {key} must have shape ({expected},), one a window, but has {column.shape}")
    return recordings


def _rate(value: NDArray[Any] | None, name: str) -> float | None:
    if value is None:
        return None
    if value.shape != () or value.dtype.kind not in "fiu" or not 0 < value < np.inf:
        raise PolyadicError(f"{name}: fs must be one positive number in Hz, but is {value!r}")
    return float(value)


def split(recordings: Recordings, protocol: Protocol, seed: int) -> Split:
    """The parts of the data for one seed; the data's own unlabelled part, if it has one, is kept."""
    if recordings.y is None:
        nothing = np.empty(0, dtype=np.intp)
        return Split(np.arange(len(recordings.X)), nothing, nothing)
    if recordings.unlabelled is None:
        return split_windows(len(recordings.X), recordings.subject, protocol, seed=seed)
    labelled = np.flatnonzero(~recordings.unlabelled)
    subject = None if recordings.subject is None else recordings.subject[labelled]
    train, test = split_labelled(len(labelled), subject, protocol, seed)
    return Split(np.flatnonzero(recordings.unlabelled), labelled[train], labelled[test])


def methods(tensorize: STFT, augment: Augmentation, parameters: Mapping[str, Any]) -> dict[str, ATD | SALS | GRSALS]:
    """The four tensor methods with the same settings, by their names in the paper.

    Parameters
    ----------
    tensorize, augment : as for `ATD`
    parameters : further arguments of `ATD`; SALS and GR-SALS take those they know
    """
    own = {"augment", "beta", "gamma", "rounds"}
    shared = {"tensorize": tensorize, **{key: value for key, value in parameters.items() if key not in own}}
    full = {**parameters, "tensorize": tensorize, "augment": augment}
    return {
        "ATD": ATD(**full),
        "ATD_ss-": ATD(**{**full, "beta": 0.0}),
        "GR-SALS": GRSALS(**shared),
        "SALS": SALS(**shared),
    }


def compare(
    recordings: Recordings,
    estimators: Mapping[str, ATD | SALS | GRSALS],
    protocols: Sequence[Protocol],
    seeds: Sequence[int],
    jobs: int = 1,
    on_fit: Callable[[str, int, ATD | SALS | GRSALS], None] | None = None,
) -> list[Row]:
    """Fit every method for every seed and judge it.

    Parameters
    ----------
    recordings : the windows
    estimators : unfitted, by name; their `random_state` is set to the seed
    protocols : how to split; where the data has an unlabelled part of its own, one fit serves all protocols
    jobs : processes at a time
    on_fit : called with the method's name, the seed and the fitted model when a method is done with a seed

    Returns
    -------
    a row for each method, seed and protocol: accuracies in percent by probe, seconds a sweep, sweeps, parameters, fit
    """
    for seed in seeds:
        for protocol in protocols:
            _check_classes(recordings, split(recordings, protocol, seed))
    units = [(seed, name) for seed in seeds for name in estimators]
    work = (delayed(_rows)(recordings, estimators[name], protocols, seed) for seed, name in units)
    rows: list[Row] = []
    for (seed, name), (found, model) in zip(units, Parallel(jobs, return_as="generator")(work), strict=True):
        rows += [{"method": name, "seed": seed, **row} for row in found]
        if on_fit is not None:
            on_fit(name, seed, model)
    return rows


def _rows(
    recordings: Recordings, estimator: ATD | SALS | GRSALS, protocols: Sequence[Protocol], seed: int
) -> tuple[list[Row], ATD | SALS | GRSALS]:
    """What one method achieves with one seed under each protocol, and its (last) model."""
    rows, model = [], None
    for protocol in protocols:
        part = split(recordings, protocol, seed)
        if model is None or recordings.unlabelled is None:
            model = clone(estimator).set_params(random_state=seed).fit(recordings.X[part.unlabelled])
        rows.append({"protocol": protocol, **_judge(model, recordings, part)})
    assert model is not None
    return rows, model


def _check_classes(recordings: Recordings, part: Split) -> None:
    """Refuse labels that no classifier could learn, before anything is fitted."""
    if recordings.y is None:
        return
    if recordings.y.dtype.kind == "f" and not np.array_equal(recordings.y, np.rint(recordings.y)):
        raise PolyadicError("y must hold classes (whole numbers or names), but holds fractions")
    if len(np.unique(recordings.y[part.train])) < 2:
        raise PolyadicError("y must have at least two classes among the training windows, but has one")


def _judge(model: ATD | SALS | GRSALS, recordings: Recordings, part: Split) -> Row:
    row: Row = {}
    if recordings.y is not None:
        Z_train, Z_test = (model.transform(recordings.X[rows]) for rows in (part.train, part.test))
        y_train, y_test = recordings.y[part.train], recordings.y[part.test]
        row = {kind: 100 * probe_accuracy(kind, Z_train, y_train, Z_test, y_test) for kind in PROBES}
    seconds = model.history_["seconds"]
    # The first sweep of a process also pays for memory and caches.
    row |= {"seconds_per_sweep": float(np.median(seconds[1:] or seconds)), "sweeps": model.n_sweeps_}
    some = part.unlabelled[:_SCORED_WINDOWS]
    return row | {"parameters": model.n_parameters_, "fit": model.score(recordings.X[some])}


def summarise(rows: Sequence[Row]) -> list[Row]:
    """Mean and, over several seeds, standard deviation, for each method and protocol, in the order of the rows.

    Examples
    --------
    >>> summarise([{"method": "A", "protocol": "paper", "seed": s, "plain": 90.0 + s} for s in (0, 2)])
    [{'method': 'A', 'protocol': 'paper', 'plain': 91.0, 'plain_std': 1.4142135623730951}]
    """
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["protocol"], row["method"]), []).append(row)
    summary = []
    for (protocol, method), members in groups.items():
        entry: Row = {"method": method, "protocol": protocol}
        for key in members[0].keys() - {"method", "protocol", "seed"}:
            values = [member[key] for member in members]
            entry[key] = float(np.mean(values))
            if len(values) > 1:
                entry[f"{key}_std"] = float(np.std(values, ddof=1))
        summary.append(dict(sorted(entry.items(), key=lambda item: (item[0] not in ("method", "protocol"), item[0]))))
    return summary
