"""The hand-crafted features of the tables compared with slow loops."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from scipy import stats

from paper.baselines import HandFeatures


def hand(window: np.ndarray) -> list[float]:
    """The features of one window, one channel and one sample after the other."""
    features: list[float] = []
    length = window.shape[1]
    for x in window:
        crossings = sum((x[t] >= x.mean()) != (x[t - 1] >= x.mean()) for t in range(1, length))
        moves = sum(abs(x[t] - x[t - 1]) for t in range(1, length))
        features += [x.mean(), x.std(), x.min(), x.max()]
        features += [float(np.quantile(x, level)) for level in (0.05, 0.25, 0.5, 0.75, 0.95)]
        features += [stats.skew(x), stats.kurtosis(x), crossings / (length - 1), moves / (length - 1)]
    edges = sorted({round((length // 2 + 1) ** (place / 8)) for place in range(9)})
    powers = []
    for x in window:
        bins = []
        for k in range(length // 2 + 1):
            wave = sum(x[t] * np.exp(-2j * np.pi * k * t / length) for t in range(length))
            both = 1 if 2 * k == length else 2
            bins.append(both * abs(wave / length) ** 2)
        powers.append([sum(bins[a:b]) for a, b in pairwise(edges)])
    floor = 1e-9 * np.sum(powers)
    features += [float(np.log(power + floor)) for row in powers for power in row]
    features += [float(np.corrcoef(window[a], window[b])[0, 1]) for a, b in combinations(range(len(window)), 2)]
    return features


@pytest.mark.parametrize("length", [40, 17])
def test_hand_features_are_those_of_slow_loops(length: int) -> None:
    X = np.random.default_rng(0).normal(size=(4, 3, length)) ** 3 + 1.0
    Z = HandFeatures().fit_transform(X)
    np.testing.assert_allclose(Z, [hand(window) for window in X], rtol=1e-8, atol=1e-10)


def test_constant_channels_have_finite_features_and_no_correlations() -> None:
    X = np.random.default_rng(0).normal(size=(3, 3, 61))
    X[0, 1] = 1e5 / 7  # in double precision its mean is not quite itself
    X[1] = 0.0
    Z = HandFeatures().fit_transform(X)
    assert np.isfinite(Z).all()
    std, skewness, kurtosis, crossings = Z[0, [13 + 1, 13 + 9, 13 + 10, 13 + 11]]
    assert (std, skewness, kurtosis, crossings) == (0, 0, 0, 0)
    assert Z[0, [-3, -1]].tolist() == [0, 0]
    assert Z[0, -2] != 0
