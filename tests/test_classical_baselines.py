"""The baselines of the library compared with slow loops and scikit-learn."""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
from problems import decaying
from scipy import stats
from sklearn.decomposition import PCA

from polyadic import CPD
from polyadic.baselines import HandFeatures, MiniRocket, PCAFeatures
from polyadic.data.synthesis import synthetic
from polyadic.errors import PolyadicError
from polyadic.spectral import STFT
from polyadic.testing import BaselineContract

FRAMES = STFT(n_fft=16, hop=8)


class TestPCAFeaturesKeepTheContract(BaselineContract):
    baseline = PCAFeatures(dim=4, tensorize=FRAMES, device="cpu")
    tolerance = 1e-3


class TestMiniRocketKeepsTheContract(BaselineContract):
    baseline = MiniRocket(n_kernels=200, device="cpu")
    # A value as near a bias as rounding may count on either side of it.
    tolerance = 1.01 / 64


class TestHandFeaturesKeepTheContract(BaselineContract):
    baseline = HandFeatures(device="cpu")


def test_windows_of_another_shape_or_not_finite_are_refused_and_a_failed_fit_changes_nothing():
    X = np.random.default_rng(0).normal(size=(20, 3, 64))
    model = PCAFeatures(dim=4, tensorize=FRAMES, device="cpu").fit(X)
    expected = model.transform(X)
    for wrong in (X[:, :-1], X[..., :-1], X[:, None]):
        with pytest.raises(PolyadicError, match="shape"):
            model.transform(wrong)
    wrong = X.copy()
    wrong[7, 0, 3] = np.nan
    for use in (model.transform, model.fit):
        with pytest.raises(PolyadicError, match="sample 7"):
            use(wrong)
    assert np.array_equal(model.transform(X), expected)


class Disk:
    """Samples that are only read in parts, and remember how large the largest was and how much they were in all."""

    on_disk = True

    def __init__(self, X: np.ndarray) -> None:
        self.X = X
        self.shape, self.dtype = X.shape, X.dtype
        self.most = self.total = 0

    def read(self, rows: np.ndarray) -> np.ndarray:
        self.most = max(self.most, len(rows))
        self.total += len(rows)
        return self.X[rows]


@pytest.fixture
def small_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """No tensors are kept, and batches are of some windows only."""
    monkeypatch.setattr("polyadic.baselines.base._KEPT_BYTES", 0)
    monkeypatch.setattr("polyadic.estimators.base._BATCH_BYTES", 4000)


# -------------------------------------------------------------------------- PCA


def assert_same_components(model: PCAFeatures, X: np.ndarray, atol: float) -> None:
    reference = PCA(model.dim, svd_solver="full").fit(X.reshape(len(X), -1))
    ours = model.components_.reshape(model.dim, -1)
    signs = np.sign(np.sum(ours * reference.components_, axis=1))
    np.testing.assert_allclose(ours, reference.components_ * signs[:, None], atol=atol)
    np.testing.assert_allclose(model.explained_variance_, reference.explained_variance_, rtol=max(atol, 1e-9))
    expected = reference.transform(X.reshape(len(X), -1)) * signs
    np.testing.assert_allclose(model.transform(X), expected, atol=10 * atol)


def test_components_are_those_of_scikit_learn() -> None:
    X = decaying()
    assert_same_components(PCAFeatures(dim=6).fit(X), X, 1e-9)


@pytest.mark.parametrize("exact", [0, 1024])
def test_components_are_learned_from_a_disk_in_parts(
    exact: int, small_memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polyadic.baselines.simple._EXACT_ENTRIES", exact)
    X = decaying()
    disk = Disk(X)
    assert_same_components(PCAFeatures(dim=5, n_passes=12).fit(disk), X, 1e-7)
    assert disk.most < 10
    assert disk.total >= 2 * len(X)


@pytest.mark.parametrize("tensorize", [None, "auto"])
def test_by_default_components_are_those_of_the_spectra_that_cpd_decomposes(tensorize: Any) -> None:
    windows = synthetic(60, n_channels=2)
    default = PCAFeatures(3).fit(windows)
    assert repr(default.tensorize_) == repr(CPD(2, max_sweeps=1).fit(windows).tensorize_)
    Z = PCAFeatures(3, tensorize=tensorize).fit(windows).transform(windows)
    assert np.array_equal(Z, default.transform(windows)) == (tensorize == "auto")


# ---------------------------------------------------------------- hand features


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


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_constant_channels_have_finite_features_and_no_correlations(dtype: Any) -> None:
    X = np.random.default_rng(0).normal(size=(3, 3, 61)).astype(dtype)
    X[0, 1] = 1e5 / 7  # in double precision its mean is not quite itself
    X[1] = 0.0
    Z = HandFeatures().fit_transform(X)
    assert np.isfinite(Z).all()
    std, skewness, kurtosis, crossings = Z[0, [13 + 1, 13 + 9, 13 + 10, 13 + 11]]
    assert (std, skewness, kurtosis, crossings) == (0, 0, 0, 0)
    assert Z[0, [-3, -1]].tolist() == [0, 0]
    assert Z[0, -2] != 0


def test_hand_features_learn_nothing() -> None:
    X = np.random.default_rng(0).normal(size=(3, 2, 64))
    assert HandFeatures().fit(X).n_parameters_ == 0
    with pytest.raises(PolyadicError, match="raw windows"):
        HandFeatures().fit(X[:, 0])


# ------------------------------------------------------------------- MiniRocket


def shares(model: MiniRocket, window: np.ndarray) -> list[float]:
    """The features of one window, by loops over dilations, kernels, positions, channels and weights."""
    features: list[float] = []
    biases = iter(model.biases_.tolist())
    length = window.shape[1]
    counts = np.diff([0, *np.cumsum(model._plan.counts)])
    for number, dilation in enumerate(model.dilations_.tolist()):
        for kernel, twos in enumerate(combinations(range(9), 3)):
            output = []
            for t in range(length):
                total = 0.0
                for tap in range(9):
                    place = t + (tap - 4) * dilation
                    if 0 <= place < length:
                        weight = 2.0 if tap in twos else -1.0
                        total += weight * window[model.channels_[number, kernel], place].sum()
                output.append(total)
            if (number + kernel) % 2:
                output = output[4 * dilation : length - 4 * dilation]
            for _ in range(counts[number]):
                bias = next(biases)
                features.append(sum(value > bias for value in output) / len(output))
    return features


def test_shares_are_those_of_slow_loops() -> None:
    X = np.random.default_rng(0).normal(size=(6, 3, 30))
    model = MiniRocket(n_kernels=84 * 5).fit(X)
    np.testing.assert_allclose(model.transform(X[:2]), [shares(model, window) for window in X[:2]], atol=1e-12)


def test_ten_thousand_kernels_are_9996_features_and_as_many_biases() -> None:
    X = np.random.default_rng(0).normal(size=(3, 2, 128)).astype(np.float32)
    model = MiniRocket().fit(X)
    Z = model.transform(X)
    assert Z.shape == (3, 9996)
    assert model.n_parameters_ == model.biases_.size == 9996
    assert model.dilations_[0] == 1
    assert model.dilations_[-1] == 15
    assert len(model.dilations_) <= 32
    assert Z.min() >= 0
    assert Z.max() <= 1


def test_biases_of_one_training_window_are_its_own_quantiles() -> None:
    X = np.random.default_rng(0).normal(size=(1, 1, 200))
    model = MiniRocket(n_kernels=84 * 30).fit(X)
    golden = (1 + 5**0.5) / 2
    levels = np.array([(number + 1) * golden % 1 for number in range(84 * 30)])
    Z = model.transform(X)[0]
    padded = np.concatenate(
        [np.repeat((np.arange(84) + d) % 2 == 0, count) for d, count in enumerate(model._plan.counts)]
    )
    assert np.abs(Z - (1 - levels))[padded].max() <= 1 / 200


def test_kernels_see_one_to_nine_channels_few_more_often() -> None:
    X = np.random.default_rng(0).normal(size=(2, 14, 300)).astype(np.float32)
    sizes = MiniRocket(n_kernels=84 * 32).fit(X).channels_.sum(axis=2).ravel()
    assert sizes.min() == 1
    assert sizes.max() == 9
    assert 0.2 < np.mean(sizes == 1) < 0.4  # log 2 / log 10
    assert np.mean(sizes == 9) < 0.1


@pytest.mark.parametrize(
    ("model", "X", "said"),
    [
        (MiniRocket(83), np.ones((2, 1, 20)), "n_kernels"),
        (MiniRocket(), np.ones((2, 1, 8)), "at least 9 samples"),
        (MiniRocket(), np.ones((2, 20)), "raw windows"),
        (MiniRocket(max_dilations=0), np.ones((2, 1, 20)), "max_dilations"),
        (PCAFeatures(dim=1.5), np.ones((2, 3)), "dim"),  # type: ignore[arg-type]
        (PCAFeatures(n_passes=0), np.ones((2, 3)), "n_passes"),
        (PCAFeatures(tensorize=3), np.ones((2, 3)), "tensorize"),  # type: ignore[arg-type]
    ],
)
def test_impossible_settings_are_refused_by_name(model: Any, X: np.ndarray, said: str) -> None:
    with pytest.raises(PolyadicError, match=said):
        model.fit(X, np.array([0, 1]))
