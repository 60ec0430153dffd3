"""The baselines of the library compared with slow loops and scikit-learn."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from problems import decaying
from sklearn.decomposition import PCA

from polyadic import CPD
from polyadic.baselines import MiniRocket, PCAFeatures, StatisticsFeatures
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


class TestStatisticsFeaturesKeepTheContract(BaselineContract):
    baseline = StatisticsFeatures(device="cpu")


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
    assert_same_components(PCAFeatures(dim=5).fit(disk), X, 1e-7 if exact else 1e-4)
    assert disk.most < 10
    assert disk.total >= 2 * len(X)


@pytest.mark.parametrize("tensorize", [None, "auto"])
def test_by_default_components_are_those_of_the_spectra_that_cpd_decomposes(tensorize: Any) -> None:
    windows = synthetic(60, n_channels=2)
    default = PCAFeatures(3).fit(windows)
    assert repr(default.tensorize_) == repr(CPD(2, max_sweeps=1).fit(windows).tensorize_)
    Z = PCAFeatures(3, tensorize=tensorize).fit(windows).transform(windows)
    assert np.array_equal(Z, default.transform(windows)) == (tensorize == "auto")


# ------------------------------------------------------------------- MiniRocket


def shares(model: MiniRocket, window: np.ndarray) -> list[float]:
    """The features of one window, by loops over dilations, kernels, positions, channels and weights."""
    features: list[float] = []
    biases = iter(model.biases_.tolist())
    length = window.shape[1]
    counts = np.diff([0, *np.cumsum(model.counts_)])
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
    padded = np.concatenate([np.repeat((np.arange(84) + d) % 2 == 0, count) for d, count in enumerate(model.counts_)])
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
        (PCAFeatures(dim=1.5, tensorize=None), np.ones((2, 3)), "dim"),  # type: ignore[arg-type]
        (PCAFeatures(tensorize=3), np.ones((2, 3)), "tensorize"),  # type: ignore[arg-type]
    ],
)
def test_impossible_settings_are_refused_by_name(model: Any, X: np.ndarray, said: str) -> None:
    with pytest.raises(PolyadicError, match=said):
        model.fit(X, np.array([0, 1]))
