"""`python -m paper components`: components for people of three data sets, coverage of their bands, and EEGMAT compared.

Sets are those of the development people. Rest and arithmetic of EEGMAT are compared for all people.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paper.labels.people import read_set
from paper.results import provenance, write_result
from polyadic import CPD, explain
from polyadic.scale import Moments

_Floats = NDArray[np.float64]
_SETS = ("har", "sisfall", "eegmat")
_SIZES = (6, 12, 5)


def run(out: Path, data: Path) -> None:
    """Write components.json and eegmat.json."""
    rows = []
    for name in _SETS:
        rows.append(describe_components(data, name))
        print(rows[-1], flush=True)
    write_result(out / "components.json", {**provenance("cpu"), "coverage": cover_planted(10), "rows": rows})
    _compare_eegmat(out, data)


def planted(seed: int, subjects: int = 40) -> tuple[list[_Floats], _Floats, NDArray[np.intp]]:
    """Return three non-negative components, tensors of 30 windows of each subject that express them, and subjects."""
    random = np.random.default_rng(seed)
    true = [np.exp(random.normal(size=(size, 3))) * (random.random((size, 3)) < 0.7) for size in _SIZES]
    true = [factor + 0.01 * (factor.sum(axis=0) == 0) for factor in true]
    subject = np.repeat(np.arange(subjects), 30)
    x = random.normal(size=(subjects, 3))[subject] + random.normal(size=(len(subject), 3))
    T = np.einsum("nr,ir,jr,kr->nijk", x, *true)
    return true, T + 0.5 * T.std() * random.normal(size=T.shape), subject


def cover_planted(repetitions: int) -> float:
    """Return the share of entries of planted profiles, those above 10 % of the maximum, within their 90 % bands."""
    covered = []
    for seed in range(repetitions):
        true, T, subject = planted(seed)
        found = explain.components(Moments.collect(T, tensorize=None, groups=subject), rank=3, restarts=3)
        assert found.model is not None
        assert found.bands is not None
        pairs = explain.match(found.model, true)
        for factor, (low, high) in zip(true, found.bands, strict=True):
            own = factor[:, pairs.b] / factor[:, pairs.b].sum(axis=0)
            large = own > 0.1 * own.max(axis=0)
            covered.append(((low <= own) & (own <= high))[:, pairs.a][large])
    return float(np.concatenate(covered).mean())


def describe_components(data: Path, name: str) -> dict[str, Any]:
    """Return rank, replication and bands of the components of one data set, and how they express its classes.

    `opposite_signs` counts class effects of at least half a standard deviation in dB for which the coefficient has the
    other sign.
    """
    windows = read_set(data, name).unlabelled()
    found = explain.components(CPD().fit_with_moments(windows, windows.subject))
    assert found.model is not None
    absolute, x = explain.expression(found.model, windows), found.model.coefficients(windows)
    relative = absolute - explain.level(found.model, windows)[:, None]
    effects = [_class_effects(values, windows.label) for values in (absolute, x)]
    large = np.abs(effects[0]) >= 0.5
    widths = [(high - low).mean() / (low + high).mean() for low, high in found.bands or ()]
    own = [float(np.corrcoef(absolute[:, r], x[:, r])[0, 1]) for r in range(x.shape[1])]
    return {
        "set": name,
        "groups": found.n_subjects,
        "rank": found.rank,
        "shown": found.model.rank,
        "tried": {str(rank): count for rank, count in found.tried.items()},
        "band_half_width": [round(float(width), 3) for width in widths],
        "correlation_of_expressions": _median_correlation(absolute),
        "correlation_of_relative_expressions": _median_correlation(relative),
        "correlation_with_coefficient": float(np.median(own)),
        "class_effects": int(large.sum()),
        "opposite_signs": int((large & (np.sign(effects[0]) != np.sign(effects[1]))).sum()),
    }


def _class_effects(values: _Floats, label: NDArray[Any]) -> _Floats:
    """Return the difference of means inside and outside each class, in standard deviations: (classes, R)."""
    gaps = [
        values[label == code].mean(axis=0) - values[label != code].mean(axis=0) for code in np.unique(label[label >= 0])
    ]
    return np.asarray(np.stack(gaps) / values.std(axis=0))


def _median_correlation(values: _Floats) -> float:
    return float(np.median(np.asarray(np.corrcoef(values.T))[np.triu_indices(values.shape[1], 1)]))


def _compare_eegmat(out: Path, data: Path) -> None:
    """Write eegmat.json: rest and arithmetic of the same people, with the components that replicate."""
    windows = read_set(data, "eegmat").windows
    found = explain.components(windows)
    assert found.model is not None
    assert found.bands is not None
    names = np.where(windows.label == 0, "rest", "arithmetic")
    compared = explain.compare(found.model, windows, names, paired=True)
    channel, frequency, _ = found.model.axes(windows)
    tops = [factor.argmax(axis=0) for factor in found.model.factors_[:2]]
    about: dict[str, Any] = {
        "rank": found.rank,
        "replicating": found.model.rank,
        "peaks": [{"channel": channel.labels[i], "hz": float(frequency.positions[j])} for i, j in np.transpose(tops)],
        "channels": channel.labels,
        "frequencies": frequency.positions.tolist(),
    }
    # Lower limit, estimate and upper limit of each entry, (3, I, R), in percent.
    for name, profile, (low, high) in zip(("by_channel", "by_frequency"), found.profiles, found.bands, strict=False):
        about[name] = (100 * np.stack([low, profile, high])).round(3).tolist()
    write_result(out / "eegmat.json", {**provenance("cpu"), **about, **compared.to_dict()})
    print(compared)
