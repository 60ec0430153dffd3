"""The classical baselines compared with slow loops, scikit-learn and TensorLy."""

from __future__ import annotations

from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.base import clone, is_classifier
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, RidgeClassifierCV

from polyadic import load
from polyadic.baselines import CPALS, STL, UMLDA, HandFeatures, MiniRocket, PCAFeatures, base
from polyadic.baselines.stl import _Problem, _rank_one
from polyadic.data.synthesis import synthetic
from polyadic.errors import ModelFileError, PolyadicError
from polyadic.evaluate import probe_accuracy
from polyadic.spectral import STFT
from polyadic.testing import BaselineContract

FRAMES = STFT(n_fft=16, hop=8)
SLOW = STFT(n_fft=32, hop=16, parts="log_amplitude")


class TestUMLDAKeepsTheContract(BaselineContract):
    baseline = UMLDA(dim=3, tensorize=FRAMES, device="cpu", n_init=2)
    tolerance = 1e-3


class TestSTLKeepsTheContract(BaselineContract):
    baseline = STL(tensorize=FRAMES, device="cpu", tol=1e-2)
    tolerance = 1e-3


class TestPCAFeaturesKeepTheContract(BaselineContract):
    baseline = PCAFeatures(dim=4, tensorize=FRAMES, device="cpu")
    tolerance = 1e-3


class TestCPALSKeepsTheContract(BaselineContract):
    baseline = CPALS(rank=2, tensorize=FRAMES, device="cpu", max_iter=5)
    tolerance = 1e-3


class TestMiniRocketKeepsTheContract(BaselineContract):
    baseline = MiniRocket(n_kernels=200, device="cpu")
    # A value as near a bias as rounding may count on either side of it.
    tolerance = 1.01 / 64


class TestHandFeaturesKeepTheContract(BaselineContract):
    baseline = HandFeatures(device="cpu")

    def test_damaged_files_are_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "model.safetensors"
        self.fitted().save(path)
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(ModelFileError):
            load(path)


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
    monkeypatch.setattr(base, "_KEPT_BYTES", 0)
    monkeypatch.setattr("polyadic.engine.window_model._BATCH_BYTES", 4000)


def classes_of_tensors(
    shape: tuple[int, ...] = (3, 4, 5), n_classes: int = 3, count: int = 90, seed: int = 0, strength: float = 0.5
) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = np.arange(count) % n_classes
    means = rng.normal(size=(n_classes, *shape))
    return rng.normal(size=(count, *shape)) + strength * means[y], y


# ------------------------------------------------------------------------ UMLDA


def fisher(coordinates: np.ndarray, y: np.ndarray, added: float = 0.0) -> float:
    """Between-class over within-class variance, term by term."""
    between = within = 0.0
    for label in np.unique(y):
        own = coordinates[y == label]
        between += len(own) / len(y) * (own.mean() - coordinates.mean()) ** 2
        within += sum((value - own.mean()) ** 2 for value in own) / len(y)
    return between / (within + added)


def test_first_projection_is_the_best_that_a_search_over_all_angles_finds() -> None:
    for seed in range(3):
        X, y = classes_of_tensors((2, 2), seed=seed, count=60)
        model = UMLDA(dim=1, ridge=0.0, tol=1e-12, max_iter=500, n_init=4).fit(X, y)
        angles = np.linspace(0, np.pi, 181)
        vectors = np.stack([np.cos(angles), np.sin(angles)])
        everywhere = np.einsum("nij,ia,jb->nab", X, vectors, vectors)
        means = np.stack([everywhere[y == c].mean(axis=0) for c in range(3)])
        best = (means.var(axis=0) / ((everywhere - means[y]) ** 2).mean(axis=0)).max()
        found = fisher(model.transform(X)[:, 0], y)
        assert found == pytest.approx(model.criterion_[0], rel=1e-9)
        assert best <= found <= best * 1.01


def test_no_step_from_a_projection_that_keeps_it_uncorrelated_raises_its_criterion() -> None:
    X, y = classes_of_tensors()
    model = UMLDA(dim=2, ridge=0.0, tol=1e-13, max_iter=2000).fit(X, y)
    earlier = model.transform(X)[:, 0]
    vectors = [factor[:, 1] for factor in model.factors_]
    rng = np.random.default_rng(0)
    for mode, subscripts in enumerate(("nijk,j,k->ni", "nijk,i,k->nj", "nijk,i,j->nk")):
        others = [vector for place, vector in enumerate(vectors) if place != mode]
        Y = np.einsum(subscripts, X, *others)
        constraint = (Y - Y.mean(axis=0)).T @ earlier
        for _ in range(20):
            step = 1e-2 * rng.normal(size=len(constraint))
            step -= constraint * (constraint @ step) / (constraint @ constraint)
            assert fisher(Y @ (vectors[mode] + step), y) <= model.criterion_[1] * (1 + 1e-6)


@pytest.mark.parametrize("ridge", [0.0, 1.0])
def test_coordinates_of_the_training_windows_are_uncorrelated(ridge: float) -> None:
    X, y = classes_of_tensors((3, 4, 8), n_classes=4, count=200)
    X = X + 5.0
    Z = UMLDA(dim=8, ridge=ridge, n_init=2).fit(X, y).transform(X)
    correlation = np.corrcoef(Z.T)
    assert np.abs(correlation - np.eye(8)).max() < 1e-6
    Z32 = UMLDA(dim=8, ridge=ridge).fit(X.astype(np.float32), y).transform(X.astype(np.float32))
    assert np.abs(np.corrcoef(Z32.T) - np.eye(8)).max() < 1e-3


@pytest.mark.parametrize("shrinkage", [None, 0.3])
def test_two_classes_of_vectors_give_the_direction_of_linear_discriminant_analysis(shrinkage: float | None) -> None:
    X, y = classes_of_tensors((6,), n_classes=2, count=80)
    ridge = 0.0 if shrinkage is None else shrinkage / (1 - shrinkage)
    model = UMLDA(dim=1, ridge=ridge).fit(X, y)
    if shrinkage is None:
        direction = LinearDiscriminantAnalysis().fit(X, y).coef_[0]
    else:
        within = sum(np.cov(X[y == label].T, bias=True) for label in (0, 1)) / 2
        shrunk = (1 - shrinkage) * within + shrinkage * np.trace(within) / 6 * np.eye(6)
        direction = np.linalg.solve(shrunk, X[y == 1].mean(axis=0) - X[y == 0].mean(axis=0))
    cosine = direction @ model.factors_[0][:, 0] / np.linalg.norm(direction) / np.linalg.norm(model.factors_[0])
    assert abs(cosine) == pytest.approx(1.0, abs=1e-9)


def test_several_classes_of_vectors_give_the_space_of_linear_discriminant_analysis() -> None:
    X, y = classes_of_tensors((6,), n_classes=4, count=120)
    Z = UMLDA(dim=3, ridge=0.0).fit(X, y).transform(X)
    expected = LinearDiscriminantAnalysis().fit(X, y).transform(X)
    for ours, theirs in zip(Z.T, expected.T, strict=True):
        assert abs(np.corrcoef(ours, theirs)[0, 1]) == pytest.approx(1.0, abs=1e-9)


def test_features_have_unit_variance_within_the_classes_and_vectors_unit_norm() -> None:
    X, y = classes_of_tensors()
    model = UMLDA(dim=3, ridge=0.0).fit(7.0 * X, y)
    Z = model.transform(7.0 * X)
    within = [sum(((Z[y == c, p] - Z[y == c, p].mean()) ** 2).sum() for c in range(3)) / len(y) for p in range(3)]
    np.testing.assert_allclose(within, 1.0, rtol=1e-9)
    for factor in model.factors_[:-1]:
        np.testing.assert_allclose(np.linalg.norm(factor, axis=0), 1.0, rtol=1e-12)


def test_scale_of_the_input_does_not_matter_to_umlda() -> None:
    X, y = classes_of_tensors()
    Z, scaled = (UMLDA(dim=3).fit(factor * X, y).transform(factor * X) for factor in (1.0, 1e-5))
    np.testing.assert_allclose(scaled, Z, rtol=1e-6, atol=1e-8)


def test_more_starts_are_never_worse_for_the_first_projection() -> None:
    X, y = classes_of_tensors((5, 5, 5), strength=0.1)
    one, many = (UMLDA(dim=1, n_init=count).fit(X, y).criterion_[0] for count in (1, 6))
    assert many >= one


def test_umlda_counts_the_numbers_of_its_vectors() -> None:
    X, y = classes_of_tensors()
    assert UMLDA(dim=4).fit(X, y).n_parameters_ == 4 * (3 + 4 + 5)


@pytest.mark.parametrize(
    ("shape", "count", "dim", "said"),
    [((3, 4, 5), 90, 6, "at most 5"), ((6,), 90, 3, "at most 2"), ((9, 9), 6, 6, "at most 5")],
)
def test_more_projections_than_can_be_uncorrelated_are_refused(
    shape: tuple[int, ...], count: int, dim: int, said: str
) -> None:
    X, y = classes_of_tensors(shape, count=count)
    with pytest.raises(PolyadicError, match=said):
        UMLDA(dim=dim).fit(X, y)
    assert UMLDA(dim=dim - 1).fit(X, y).transform(X).shape == (count, dim - 1)


def test_singular_scatter_without_a_ridge_is_refused_with_the_remedy() -> None:
    X, y = classes_of_tensors()
    X[:, :, :, 2] = 0.0
    with pytest.raises(PolyadicError, match="ridge"):
        UMLDA(dim=1, ridge=0.0).fit(X, y)


@pytest.mark.parametrize("kind", [UMLDA, STL])
def test_supervised_baselines_ask_for_labels(kind: Any) -> None:
    X, y = classes_of_tensors()
    with pytest.raises(PolyadicError, match="supervised"):
        kind().fit(X)
    with pytest.raises(PolyadicError, match="one entry per window"):
        kind().fit(X, y[:-1])
    with pytest.raises(PolyadicError, match="two classes"):
        kind().fit(X, np.zeros(len(X)))


# -------------------------------------------------------------------------- STL


def test_vectors_give_the_solution_of_multinomial_logistic_regression() -> None:
    X, y = classes_of_tensors((5,), n_classes=3, count=120)
    X = 3.0 * X + 10.0
    alpha = 0.05
    model = STL(alpha=alpha, tol=1e-9, max_iter=2000).fit(X, y)
    centred = X - X.mean(axis=0)
    scaled = centred / np.sqrt(np.mean(centred**2))
    reference = LogisticRegression(C=1 / (alpha * len(X)), tol=1e-10, max_iter=5000).fit(scaled, y)
    np.testing.assert_allclose(model.predict_proba(X), reference.predict_proba(scaled), atol=1e-5)


def test_gradient_is_that_of_the_objective() -> None:
    X, y = classes_of_tensors((2, 3, 2), count=20)
    problem = _Problem(lambda: [torch.from_numpy(X[:8]), torch.from_numpy(X[8:])], torch.eye(3)[y], alpha=0.3)
    rng = np.random.default_rng(0)
    theta = rng.normal(size=3 * (2 + 3 + 2) + 3)
    u, v, w = (part.reshape(-1, 3) for part in np.split(theta[:-3], [6, 15]))
    logits = np.einsum("nijk,ic,jc,kc->nc", X, u, v, w) + theta[-3:]
    ridge = 0.15 * np.sum(np.einsum("ic,jc,kc->cijk", u, v, w) ** 2)
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    value, gradient = problem(theta)
    assert value == pytest.approx(-log_p[np.arange(20), y].mean() + ridge, rel=1e-12)
    for place in range(len(theta)):
        step = np.zeros_like(theta)
        step[place] = 1e-6
        slope = (problem(theta + step)[0] - problem(theta - step)[0]) / 2e-6
        assert gradient[place] == pytest.approx(slope, rel=1e-5, abs=1e-7)


def test_start_is_the_rank_one_part_of_a_tensor_that_has_rank_one() -> None:
    rng = np.random.default_rng(0)
    u, v, w = rng.normal(size=(4, 2)), rng.normal(size=(3, 2)), rng.normal(size=(5, 2))
    Y = torch.from_numpy(np.einsum("ic,jc,kc->cijk", u, v, w))
    factors = _rank_one(Y)
    for c in range(2):
        unit = torch.einsum("i,j,k->ijk", *(factor[:, c] for factor in factors))
        torch.testing.assert_close(unit * Y[c].norm(), Y[c])


def test_classes_that_differ_by_rank_one_tensors_are_separated() -> None:
    rng = np.random.default_rng(0)
    y = np.array(["a", "b", "c"])[np.arange(300) % 3]
    parts = np.einsum("ci,cj,ck->cijk", *(rng.normal(size=(3, size)) for size in (4, 5, 6)))
    X = rng.normal(size=(300, 4, 5, 6)) + 0.7 * parts[np.arange(300) % 3]
    model = STL().fit(X[:200], y[:200])
    assert is_classifier(model)
    assert model.score(X[200:], y[200:]) > 0.95
    assert model.n_parameters_ == 3 * (4 + 5 + 6) + 3
    np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1.0)
    assert np.array_equal(model.predict(X), model.classes_[model.transform(X).argmax(axis=1)])


def test_logits_are_inner_products_with_the_vectors_plus_the_biases() -> None:
    X, y = classes_of_tensors()
    model = STL().fit(X + 3.0, y)
    expected = np.einsum("nijk,ic,jc,kc->nc", X + 3.0, *model.factors_) + model.bias_
    np.testing.assert_allclose(model.transform(X + 3.0), expected, rtol=1e-9)


def test_scale_and_offset_of_the_input_do_not_matter_to_stl() -> None:
    X, y = classes_of_tensors()
    p, moved = (STL().fit(f * X + o, y).predict_proba(f * X + o) for f, o in ((1.0, 0.0), (1e-4, 1.0)))
    np.testing.assert_allclose(moved, p, atol=1e-3)


def test_loss_of_stl_falls_and_too_few_iterations_give_a_warning() -> None:
    X, y = classes_of_tensors()
    losses = STL().fit(X, y).history_["loss"]
    assert all(later <= earlier for earlier, later in pairwise(losses))
    assert losses[-1] < np.log(3)
    with pytest.warns(ConvergenceWarning, match="max_iter=2"):
        STL(max_iter=2, tol=1e-9).fit(X, y)


def test_identical_windows_give_the_shares_of_the_classes() -> None:
    y = np.array([0, 0, 0, 1])
    model = STL(tol=1e-7).fit(np.ones((4, 2, 3)), y)
    np.testing.assert_allclose(model.predict_proba(np.ones((1, 2, 3))), [[0.75, 0.25]], atol=1e-5)


def test_labels_of_any_kind_are_restored_from_a_file(tmp_path: Path) -> None:
    X, y = classes_of_tensors()
    for labels in (y + 5, np.array(["x", "why", "z"])[y], y == 1, y.astype(float)):
        model = STL(tol=0.1).fit(X, labels)
        model.save(tmp_path / "m.safetensors")
        same = load(tmp_path / "m.safetensors")
        assert isinstance(same, STL)
        assert np.array_equal(same.predict(X), model.predict(X))
        assert same.classes_.dtype == model.classes_.dtype


# -------------------------------------------------------------------------- PCA


def decaying(count: int = 60, shape: tuple[int, ...] = (4, 5, 6)) -> np.ndarray:
    rng = np.random.default_rng(0)
    size = int(np.prod(shape))
    spread = 0.8 ** np.arange(min(count, size))
    left = np.linalg.qr(rng.normal(size=(count, len(spread)))).Q
    right = np.linalg.qr(rng.normal(size=(size, len(spread)))).Q
    return ((left * spread) @ right.T + 2.0).reshape(count, *shape)


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


def test_components_of_large_tensors_are_those_of_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyadic.baselines.simple._EXACT_ENTRIES", 0)
    X = decaying()
    assert_same_components(PCAFeatures(dim=6, n_passes=12).fit(X), X, 1e-8)
    few = PCAFeatures(dim=6).fit(X)
    best = PCAFeatures(dim=6, n_passes=12).fit(X).explained_variance_.sum()
    assert best * (1 - 1e-4) <= few.explained_variance_.sum() <= best * (1 + 1e-12)


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


def test_components_and_mean_are_counted_and_signs_fixed() -> None:
    model = PCAFeatures(dim=3).fit(decaying())
    assert model.n_parameters_ == (3 + 1) * 4 * 5 * 6
    for component in model.components_.reshape(3, -1):
        assert component[np.abs(component).argmax()] > 0


def test_more_components_than_there_are_windows_are_refused() -> None:
    with pytest.raises(PolyadicError, match="at most 10, the smaller of 10 windows"):
        PCAFeatures(dim=11).fit(decaying(10))


@pytest.mark.parametrize("kind", [UMLDA(dim=2), STL(tol=1e-4)])
def test_supervised_baselines_learn_from_a_disk_in_parts(kind: Any, small_memory: None) -> None:
    X, y = classes_of_tensors()
    disk = Disk(X)
    Z = clone(kind).fit(disk, y).transform(X)
    assert disk.most < 10
    assert disk.total > 3 * len(X)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "_KEPT_BYTES", 2**30)
        disk = Disk(X)
        expected = clone(kind).fit(disk, y).transform(X)
    assert disk.total < 4 * len(X)
    np.testing.assert_allclose(Z, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (UMLDA(dim=2), "factors.1"),
        (STL(tol=0.1), "factors.0"),
        (STL(tol=0.1), "bias"),
        (PCAFeatures(dim=2), "mean"),
        (PCAFeatures(dim=2), "components"),
        (CPALS(rank=2, max_iter=1), "factors.2"),
        (MiniRocket(84), "biases"),
        (MiniRocket(84), "channels"),
    ],
)
def test_files_whose_arrays_do_not_fit_are_refused(model: Any, name: str, tmp_path: Path) -> None:
    X, y = classes_of_tensors((3, 12) if isinstance(model, MiniRocket) else (3, 4, 5))
    model = clone(model).fit(X, y)
    arrays = model._arrays()
    model._arrays = lambda: {**arrays, name: np.concatenate([arrays[name], arrays[name]])}
    model.save(tmp_path / "m.safetensors")
    with pytest.raises(ModelFileError, match="do not fit"):
        load(tmp_path / "m.safetensors")


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


def test_band_powers_add_up_to_the_variance() -> None:
    X = np.random.default_rng(0).normal(size=(5, 1, 128))
    Z = HandFeatures().fit_transform(X)
    np.testing.assert_allclose(np.exp(Z[:, 13:]).sum(axis=1), X.var(axis=2)[:, 0], rtol=1e-6)


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


def test_unit_of_the_recording_only_moves_logarithms() -> None:
    X = np.random.default_rng(0).normal(size=(3, 2, 64))
    Z, tiny = HandFeatures().fit_transform(X), HandFeatures().fit_transform(1e-6 * X)
    bands = slice(26, -1)
    np.testing.assert_allclose(tiny[:, bands], Z[:, bands] + 2 * np.log(1e-6), rtol=1e-9)
    np.testing.assert_allclose(tiny[:, -1], Z[:, -1], rtol=1e-9)


def test_hand_features_learn_nothing_and_do_not_use_tensorize(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(3, 2, 64))
    model = HandFeatures(tensorize=FRAMES).fit(X)
    assert model.n_parameters_ == 0
    assert np.array_equal(model.transform(X), HandFeatures().fit_transform(X))
    with pytest.raises(PolyadicError, match="raw windows"):
        HandFeatures().fit(X[:, 0])


# ----------------------------------------------------------------------- CP-ALS


def test_error_of_cp_is_that_of_tensorly_and_of_the_features() -> None:
    tensorly = pytest.importorskip("tensorly")
    from tensorly.decomposition import parafac

    X = decaying() + 0.1 * np.random.default_rng(1).normal(size=(60, 4, 5, 6))
    model = CPALS(rank=3, alpha=0.0, max_iter=200, tol=1e-10, random_state=4).fit(X)
    reference = parafac(X, 3, n_iter_max=200, init="random", tol=1e-10, random_state=4)
    expected = tensorly.norm(X - tensorly.cp_to_tensor(reference)) / tensorly.norm(X)
    assert model.history_["error"][-1] == pytest.approx(float(expected), rel=1e-6)
    rebuilt = np.einsum("nr,ir,jr,kr->nijk", model.transform(X), *model.factors_)
    # The last half step of the features can only do better.
    assert np.linalg.norm(X - rebuilt) / np.linalg.norm(X) == pytest.approx(float(expected), rel=1e-5)
    assert model.n_parameters_ == 3 * (4 + 5 + 6)


def test_features_of_cp_are_ridge_least_squares_on_bases_of_norm_one() -> None:
    X = decaying()
    model = CPALS(rank=3, alpha=0.7, max_iter=5, tol=0).fit(X)
    assert len(model.history_["error"]) == 5
    for factor in model.factors_:
        np.testing.assert_allclose(np.linalg.norm(factor, axis=0), 1.0)
    K = np.einsum("ir,jr,kr->ijkr", *model.factors_).reshape(-1, 3)
    expected = X.reshape(60, -1) @ K @ np.linalg.inv(K.T @ K + 0.7 * np.eye(3))
    np.testing.assert_allclose(model.transform(X), expected, rtol=1e-9)


def test_tensor_beyond_the_memory_allowed_is_refused() -> None:
    with pytest.raises(PolyadicError, match="57,600 bytes, more than max_bytes=57,599"):
        CPALS(rank=2, max_bytes=57_599).fit(decaying())
    CPALS(rank=2, max_bytes=57_600, max_iter=1).fit(decaying())


def test_the_error_for_a_matrix_that_tensorly_finds_singular_names_the_remedy() -> None:
    with pytest.raises(PolyadicError, match="smaller rank"):
        CPALS(rank=2, max_iter=3).fit(np.zeros((5, 3, 4)))


def test_backend_that_the_user_chose_for_tensorly_stays() -> None:
    tensorly = pytest.importorskip("tensorly")
    with tensorly.backend_context("pytorch", local_threadsafe=True):
        CPALS(rank=2, max_iter=2).fit(decaying())
        assert tensorly.get_backend() == "pytorch"


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


@pytest.mark.parametrize("length", [9, 10, 17, 1000])
def test_longest_kernel_fits_into_a_window_of_any_length(length: int) -> None:
    X = np.random.default_rng(0).normal(size=(3, 1, length))
    model = MiniRocket(n_kernels=84 * 40).fit(X)
    assert 8 * model.dilations_.max() < length
    assert (model.dilations_.max() + 1) * 8 >= length - 1
    assert np.isfinite(model.transform(X)).all()
    assert model.transform(X).shape == (3, 84 * 40)


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


def test_unit_of_windows_does_not_matter_nor_their_level_where_kernels_are_not_padded() -> None:
    X = np.random.default_rng(0).normal(size=(5, 2, 60))
    model = MiniRocket(n_kernels=84).fit(X)
    Z = model.transform(X)
    np.testing.assert_allclose(MiniRocket(n_kernels=84).fit_transform(4.0 * X), Z, atol=1e-12)
    moved = model.transform(X + 100.0)
    np.testing.assert_allclose(moved[:, 1::2], Z[:, 1::2], atol=1e-12)
    assert not np.allclose(moved[:, ::2], Z[:, ::2])


def test_kernels_see_one_to_nine_channels_few_more_often() -> None:
    X = np.random.default_rng(0).normal(size=(2, 14, 300)).astype(np.float32)
    sizes = MiniRocket(n_kernels=84 * 32).fit(X).channels_.sum(axis=2).ravel()
    assert sizes.min() == 1
    assert sizes.max() == 9
    assert 0.2 < np.mean(sizes == 1) < 0.4  # log 2 / log 10
    assert np.mean(sizes == 9) < 0.1


def test_other_seeds_give_other_features() -> None:
    X = np.random.default_rng(0).normal(size=(6, 3, 30))
    assert not np.array_equal(MiniRocket(84).fit_transform(X), MiniRocket(84, random_state=1).fit_transform(X))


@pytest.mark.parametrize(
    ("model", "X", "said"),
    [
        (MiniRocket(83), np.ones((2, 1, 20)), "n_kernels"),
        (MiniRocket(), np.ones((2, 1, 8)), "at least 9 samples"),
        (MiniRocket(), np.ones((2, 20)), "raw windows"),
        (MiniRocket(max_dilations=0), np.ones((2, 1, 20)), "max_dilations"),
        (UMLDA(dim=0), np.ones((2, 3)), "dim"),
        (UMLDA(ridge=-1), np.ones((2, 3)), "ridge"),
        (UMLDA(n_init=0), np.ones((2, 3)), "n_init"),
        (STL(alpha=-1), np.ones((2, 3)), "alpha"),
        (STL(max_iter=0), np.ones((2, 3)), "max_iter"),
        (PCAFeatures(dim=1.5), np.ones((2, 3)), "dim"),  # type: ignore[arg-type]
        (PCAFeatures(n_passes=0), np.ones((2, 3)), "n_passes"),
        (CPALS(rank=0), np.ones((2, 3)), "rank"),
        (CPALS(tol=-1), np.ones((2, 3)), "tol"),
        (STL(tensorize=3), np.ones((2, 3)), "tensorize"),  # type: ignore[arg-type]
    ],
)
def test_impossible_settings_are_refused_by_name(model: Any, X: np.ndarray, said: str) -> None:
    with pytest.raises(PolyadicError, match=said):
        model.fit(X, np.array([0, 1]))


# ---------------------------------------------------------------- all together


@pytest.mark.parametrize(
    ("model", "least"),
    [
        (UMLDA(dim=8, tensorize=SLOW, device="cpu"), 0.7),
        (STL(tensorize=SLOW, device="cpu"), 0.7),
        (PCAFeatures(dim=16, tensorize=SLOW, device="cpu"), 0.7),
        (HandFeatures(device="cpu"), 0.7),
        (CPALS(rank=16, tensorize=SLOW, device="cpu", max_iter=20), 0.7),
        (MiniRocket(n_kernels=840, device="cpu"), 0.7),
    ],
    ids=lambda value: type(value).__name__,
)
def test_classes_of_synthetic_signals_are_learned(model: Any, least: float) -> None:
    signals = synthetic(n_windows=400, n_channels=4)
    train, test = np.arange(250), np.arange(250, 400)
    X, y = signals.X, signals.label
    Z = clone(model).fit(X[train], y[train]).transform(X)
    if isinstance(model, MiniRocket):
        accuracy = RidgeClassifierCV(np.logspace(-3, 3, 7)).fit(Z[train], y[train]).score(Z[test], y[test])
    else:
        accuracy = probe_accuracy("standardised", Z[train], y[train], Z[test], y[test])
    assert accuracy > least
