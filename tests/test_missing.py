"""Missing channels, gaps and dead electrodes: masks, coefficients, statistics, probabilities and fits."""

from __future__ import annotations

import tracemalloc
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from scipy.special import softmax
from sklearn.impute import KNNImputer

import polyadic
from paper.missing import means, nearest, page
from polyadic import CPD
from polyadic.core import moments as core_moments
from polyadic.core.algebra import khatri_rao
from polyadic.core.completion import NoiseFinder, Prior, Solver, observed_grams
from polyadic.core.missing import Flatness, MissingWarning, dead_channels, distinct_masks, fill_gaps, look
from polyadic.data import Windows, synthetic
from polyadic.errors import PolyadicError
from polyadic.evaluate import WindowClassifier
from polyadic.evaluate.probe import averaged_softmax
from polyadic.explain.expression import with_bases
from polyadic.readout import Readout
from polyadic.spectral import STFT
from polyadic.statistics import window_statistics

rng = np.random.default_rng(0)
WINDOWS = synthetic(200, n_channels=4, length=128)


@pytest.fixture(scope="module")
def model() -> CPD:
    return CPD(rank=6, device="cpu").fit(WINDOWS)


# ------------------------------------------------------------------------------------------- an oracle


def oracle(model: CPD, t: np.ndarray, observed: np.ndarray) -> np.ndarray:
    """x̂ of one tensor by dense least squares: missing entries are filled by the posterior mean, then solved for."""
    K = khatri_rao([torch.tensor(factor, dtype=torch.float64) for factor in model.factors_]).numpy()
    mean, C, noise = model.prior_.mean, model.prior_.covariance, float(model.prior_.noise[0])
    seen, t = np.broadcast_to(observed, t.shape).ravel(), t.ravel().astype(np.float64)
    # Condition the joint Gaussian of coefficients and observed entries.
    gain = C @ K[seen].T @ np.linalg.inv(K[seen] @ C @ K[seen].T + noise * np.eye(seen.sum())) if seen.any() else 0
    x_map = mean + (gain @ (t[seen] - K[seen] @ mean) if seen.any() else 0)
    filled = np.where(seen, t, K @ x_map)
    return np.linalg.solve(K.T @ K + model.alpha * np.eye(K.shape[1]), K.T @ filled)


@given(st.integers(0, 2**32 - 1), st.floats(0.0, 1.0))
@settings(max_examples=25, deadline=None)
def test_coefficients_are_those_of_a_dense_solution_for_any_mask(seed: int, share: float) -> None:
    draws = np.random.default_rng(seed)
    T = np.einsum("nr,ir,jr->nij", draws.normal(size=(30, 2)), *draws.random((2, 5, 2)))
    T += 0.1 * draws.normal(size=T.shape)
    model = CPD(2, tensorize=None, max_sweeps=3, tol=0.0).fit(T)
    masked = np.where(draws.random(T.shape) < share, np.nan, T)
    expected = [oracle(model, t, ~np.isnan(t)) for t in masked]
    np.testing.assert_allclose(model.coefficients(masked), expected, atol=1e-6 * np.abs(expected).max())


def test_coefficients_of_windows_with_a_dead_channel_are_those_of_a_dense_solution(model: CPD) -> None:
    X = WINDOWS.X[:3].copy()
    X[:, 1] = np.nan
    X[2, 0, 60:] = np.nan
    seen = look(torch.as_tensor(X), model.tensorize_, model.fs_)
    assert seen.gaps is not None
    expected = [oracle(model, t, o) for t, o in zip(seen.T.numpy(), seen.gaps.observed.numpy(), strict=True)]
    np.testing.assert_allclose(model.coefficients(X), expected, rtol=1e-3, atol=1e-4)


def test_grams_of_observed_entries_are_those_of_dense_rows() -> None:
    factors = [torch.rand(size, 3, dtype=torch.float64) for size in (4, 5, 6)]
    observed = torch.rand(7, 4, 1, 6) > 0.4
    K = khatri_rao(factors)
    for mask, G in zip(observed, observed_grams(observed, factors), strict=True):
        rows = K[mask.expand(4, 5, 6).flatten()]
        torch.testing.assert_close(G, rows.T @ rows)


# ----------------------------------------------------------------------------------------- what is missing


def test_complete_windows_are_the_same_to_the_bit_beside_incomplete_ones(model: CPD) -> None:
    X = WINDOWS.X[:20].copy()
    X[3, 2] = np.nan
    others = np.arange(20) != 3
    assert np.array_equal(model.transform(X)[others], model.transform(WINDOWS.X[:20])[others])


def test_everything_missing_is_the_mean_of_unlabelled_windows(model: CPD) -> None:
    X = np.full((2, 4, 128), np.nan, np.float32)
    np.testing.assert_allclose(model.coefficients(X)[0], model.prior_.mean, rtol=0.05, atol=0.02)
    assert np.abs(model.transform(X)).max() < 0.1
    assert np.isnan(model.transform(X)).sum() == 0


def test_one_sample_is_as_good_as_none(model: CPD) -> None:
    X = np.full((1, 4, 128), np.nan, np.float32)
    X[0, 1, 40] = 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MissingWarning)  # one sample is constant
        np.testing.assert_allclose(model.transform(X), model.transform(np.full_like(X, np.nan)), atol=1e-6)


def test_a_short_gap_is_interpolated_and_a_long_one_masked() -> None:
    X = torch.linspace(0, 1, 128, dtype=torch.float64).expand(1, 2, 128).clone()
    X[0, 0, 10:13] = torch.nan
    X[0, 1, 20:80] = torch.nan
    filled, present = fill_gaps(X, 3)
    torch.testing.assert_close(filled, torch.linspace(0, 1, 128, dtype=torch.float64).expand(1, 2, 128))
    assert bool(present[0, 0].all())
    assert present[0, 1].nonzero()[:, 0].tolist() == [*range(20), *range(80, 128)]


def test_frames_that_lack_a_third_of_their_energy_are_masked() -> None:
    stft = STFT(n_fft=32, hop=16, parts="log_amplitude", floor=1.0)
    present = torch.ones(1, 2, 128, dtype=torch.bool)
    present[0, 1, 60:] = False
    observed = stft.observed(present)[0, :, 0]
    energy = torch.hann_window(32).square()
    for frame in range(7):
        lost = energy[~present[0, 1, 16 * frame : 16 * frame + 32]].sum() / energy.sum()
        assert bool(observed[1, frame]) == bool(lost <= 1 / 3)
    assert bool(observed[0].all())


def test_dead_channels_are_constant_faint_or_clipped() -> None:
    X = torch.randn(1, 5, 200)
    X[0, 1] = 3.0
    X[0, 2] *= 1e-4
    X[0, 3] = X[0, 3].clamp_min(0.5)
    X[0, 4, 100:] = torch.nan
    limits = Flatness(torch.full((5,), 0.05), torch.tensor([-4.0, -4, -4, 0.5, -4]), torch.full((5,), 9.0))
    assert dead_channels(X, limits).tolist() == [[False, True, True, True, False]]
    assert dead_channels(X).tolist() == [[False, True, False, False, False]]


def test_a_few_faint_windows_of_the_fit_do_not_hide_later_ones() -> None:
    X = torch.randn(600, 3, 100)
    levels = [X.std(dim=2), X.amin(dim=2), X.amax(dim=2)]
    usual = Flatness.of(*levels)
    levels[0][:5, 1] *= 1e-3
    assert Flatness.of(*levels).below == pytest.approx(usual.below, rel=0.05)
    assert dead_channels(1e-3 * X, Flatness.of(*levels)).all()


@pytest.mark.parametrize("value", [0.0, 7.5])
def test_a_dead_channel_counts_as_missing_and_is_named(model: CPD, value: float) -> None:
    X = WINDOWS.X[:30].copy()
    X[:, 2] = np.nan
    missing = model.transform(X)
    X[:, 2] = value
    with pytest.warns(MissingWarning, match=r"3 in 30 of 30 windows"):
        np.testing.assert_allclose(model.transform(X), missing)


def test_keep_flat_takes_dead_channels_as_they_are() -> None:
    X = WINDOWS.X.copy()
    X[::2, 2] = 0.0
    model = CPD(rank=3, readout=Readout(keep_flat=True), device="cpu").fit(X)
    assert polyadic.estimators.describe_fit(model)  # without a warning


# ------------------------------------------------------------------------------------------- noise


def slow_windows(count: int, seed: int) -> np.ndarray:
    """Five channels that share a slow oscillation of random strength and frequency."""
    draws = np.random.default_rng(seed)
    phase = 2 * np.pi * (draws.uniform(0.02, 0.05, (count, 1)) * np.arange(128) + draws.random((count, 1)))
    wave = draws.lognormal(0, 0.5, (count, 1)) * np.sin(phase)
    return wave[:, None] * np.linspace(1, 2, 5)[:, None] + 0.02 * draws.normal(size=(count, 5, 128))


@pytest.fixture(scope="module")
def slow() -> CPD:
    return CPD(rank=2, device="cpu").fit(slow_windows(300, 0))


def test_spectra_are_predicted_from_the_other_channels_as_by_dense_conditioning(slow: CPD) -> None:
    X = torch.as_tensor(slow_windows(3, 1))
    T = look(X, slow.tensorize_, slow.fs_).T
    K = khatri_rao([torch.tensor(factor, dtype=torch.float64) for factor in slow.factors_]).numpy()
    mean, C, noise = slow.prior_.mean, slow.prior_.covariance, float(slow.prior_.noise[0])
    expected = np.zeros(T.shape[:3])
    for channel in range(5):
        seen = np.broadcast_to((np.arange(5) != channel)[:, None, None], T.shape[1:]).ravel()
        gain = C @ K[seen].T @ np.linalg.inv(K[seen] @ C @ K[seen].T + noise * np.eye(seen.sum()))
        for window, t in enumerate(T.numpy()):
            x = mean + gain @ (t.ravel()[seen] - K[seen] @ mean)
            expected[window, channel] = (t - (K @ x).reshape(t.shape))[channel].mean(axis=-1)
    finder = NoiseFinder(Solver(slow.prior_, [torch.tensor(factor) for factor in slow.factors_], float(slow.alpha)))
    np.testing.assert_allclose(finder.differences(T), expected, atol=1e-3 * np.abs(expected).max())


def test_a_channel_of_noise_counts_as_missing_and_is_named(slow: CPD) -> None:
    X = slow_windows(40, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", MissingWarning)
        slow.transform(X)  # clean
    X[:, 3] = np.nan
    missing = slow.transform(X)
    X[:, 3] = np.random.default_rng(0).normal(size=(40, 128))
    with pytest.warns(MissingWarning, match=r"channels of noise.*4 in 40 of 40 windows"):
        np.testing.assert_allclose(slow.transform(X), missing)


def test_noise_is_found_in_complete_windows_beside_incomplete_ones(slow: CPD) -> None:
    X = slow_windows(6, 1)
    X[0, 3], X[1, 1] = np.random.default_rng(0).normal(size=128), np.nan
    with pytest.warns(MissingWarning, match=r"4 in 1 of 6 windows"):
        together = slow.transform(X)
    with pytest.warns(MissingWarning, match=r"4 in 1 of 1 windows"):
        np.testing.assert_allclose(slow.transform(X[:1]), together[:1], rtol=1e-5, atol=1e-5)


def test_windows_that_differ_as_a_whole_are_kept(slow: CPD) -> None:
    X = np.random.default_rng(0).normal(size=(20, 5, 128))
    with warnings.catch_warnings():
        warnings.simplefilter("error", MissingWarning)
        slow.transform(X)


def test_infinity_is_an_error(model: CPD) -> None:
    X = WINDOWS.X[:3].copy()
    X[1, 0, 3] = np.inf
    X[1, 2] = np.nan
    for method in (model.transform, model.fit, model.coefficients):
        with pytest.raises(PolyadicError, match=r"sample 1 contains infinity \(X\[1, 0, 3\]\): .* set it to NaN"):
            method(X)
    with pytest.raises(PolyadicError, match=r"in channel 'Cz', X\[1, 0, 3\]"):
        CPD(rank=2).fit(Windows(X, 100.0, channels=["Cz", "Fz", "Oz", "Pz"]))


def test_statistics_use_the_samples_that_are_present() -> None:
    X = torch.randn(3, 2, 400)
    present = torch.ones_like(X, dtype=torch.bool)
    present[:, 0, 300:] = False
    found, cut = window_statistics(X, present), window_statistics(X[:, :, :300])
    same = [*range(11), 12]  # levels, moments and crossings of channel 1; extremes are per channel
    expected = window_statistics(X)
    for column in same:
        torch.testing.assert_close(
            found[:, column], (cut if column % 2 == 0 else expected)[:, column], rtol=1e-4, atol=1e-5
        )
    torch.testing.assert_close(window_statistics(X, torch.ones_like(present)), expected, rtol=1e-5, atol=1e-6)
    present[:, 0, 20:] = False
    assert torch.isnan(window_statistics(X, present)[0]).sum() == 7 + 8 + 1


# ------------------------------------------------------------------------------------------- confidence


def test_averaged_probabilities_are_close_to_those_of_samples() -> None:
    draws = np.random.default_rng(1)
    for classes in (2, 3, 6):
        mean, root = 2 * draws.normal(size=(20, classes)), 1.5 * draws.normal(size=(20, classes, classes))
        covariance = root @ root.transpose(0, 2, 1) / classes
        noise = draws.normal(size=(20_000, 20, classes))
        sampled = softmax(
            mean + np.einsum("nij,snj->sni", np.linalg.cholesky(covariance + 1e-9 * np.eye(classes)), noise), -1
        )
        assert np.abs(averaged_softmax(mean, covariance) - sampled.mean(axis=0)).max() < 0.05
    np.testing.assert_allclose(averaged_softmax(mean, 0 * covariance), softmax(mean, axis=1))


def test_the_covariance_of_coefficients_is_that_of_samples_from_the_posterior() -> None:
    draws = np.random.default_rng(2)
    factors = [torch.tensor(draws.random((n, 2))) for n in (4, 5)]
    prior = Prior(
        np.array([1.0, -1.0]), np.array([[1.0, 0.3], [0.3, 0.5]]), np.array([0.04]), np.zeros((2, 0)), np.zeros((3, 0))
    )
    solver, K = Solver(prior, factors, 1e-3), khatri_rao(factors).numpy()
    x = draws.multivariate_normal(prior.mean, prior.covariance, 50_000)
    T = x @ K.T + 0.2 * draws.normal(size=(50_000, 20))
    observed = torch.ones(1, 4, 5, dtype=torch.bool)
    observed[0, 2:] = False
    number, first = torch.zeros(50_000, dtype=torch.int64), torch.tensor([0])
    solved = solver.coefficients(torch.tensor(T).reshape(-1, 4, 5), observed.expand(50_000, 4, 5), number, first)
    complete = T @ K @ np.linalg.inv(K.T @ K + 1e-3 * np.eye(2))
    np.testing.assert_allclose(np.cov((complete - solved.x.numpy()).T), solved.covariance[0], rtol=0.05, atol=1e-4)


def test_missing_statistics_are_the_conditional_mean_of_their_factor_model() -> None:
    draws = np.random.default_rng(3)
    L = torch.tensor(0.6 * draws.normal(size=(6, 2)))
    L = L / L.square().sum(dim=1, keepdim=True).add(0.3).sqrt()
    prior = Prior(np.zeros(2), np.eye(2), np.array([0.1]), L.numpy(), np.zeros((3, 0)))
    solver = Solver(prior, [torch.rand(3, 2), torch.rand(4, 2)], 1e-3)
    joint = L @ L.T + torch.diag(1 - L.square().sum(dim=1))
    x, z = torch.tensor(draws.normal(size=(1, 2))), torch.tensor(draws.normal(size=(1, 4)))
    z[0, 1] = z[0, 3] = torch.nan
    solved = polyadic.core.completion.Masked(x, torch.zeros(1), torch.zeros(1, 2, 2, dtype=torch.float64))
    zero = torch.zeros(1, dtype=torch.int64)
    filled, regression = solver.statistics(solved, z, zero, zero)
    known, lost = [0, 1, 2, 4], [3, 5]
    given_known = torch.cat([x, z], dim=1)[0, known]
    weights = joint[lost][:, known] @ torch.linalg.inv(joint[known][:, known])
    torch.testing.assert_close(filled[0, [1, 3]], weights @ given_known)
    D, D_statistics = torch.zeros(1, 2, dtype=torch.float64), torch.tensor([[0.0, 1.0, 0.0, -2.0]], dtype=torch.float64)
    conditional = joint[lost][:, lost] - weights @ joint[known][:, lost]
    direction = torch.tensor([1.0, -2.0], dtype=torch.float64)
    torch.testing.assert_close(
        solver.spread(solved, regression, D, D_statistics)[0, 0, 0], direction @ conditional @ direction
    )


def test_a_prediction_is_less_certain_the_more_is_missing(model: CPD) -> None:
    classifier = WindowClassifier(model).fit(WINDOWS)
    X, certainty = WINDOWS.X.copy(), []
    for channel in (None, 0, 1, 2, 3):
        if channel is not None:
            X[:, channel] = np.nan
        probabilities = classifier.predict_proba(X)
        np.testing.assert_allclose(probabilities.sum(axis=1), 1)
        assert np.array_equal(classifier.predict(X), classifier.classes_[probabilities.argmax(axis=1)])
        certainty.append(probabilities.max(axis=1).mean())
    assert certainty == sorted(certainty, reverse=True)


def test_a_model_file_keeps_the_prior(model: CPD, tmp_path: Any) -> None:
    X = WINDOWS.X[:9].copy()
    X[:, 3] = np.nan
    model.save(tmp_path / "model.safetensors")
    loaded = polyadic.load(tmp_path / "model.safetensors")
    assert np.array_equal(loaded.transform(X), model.transform(X))
    assert loaded.prior_.spectra.shape == (2, 4, len(model.factors_[1]))
    inferred = model.features_and_spread(X, np.ones((1, model.transform(X).shape[1])))
    assert inferred.missing.tolist() == [[0.0, 0.0, 0.0, 1.0]] * 9


# -------------------------------------------------------------------------------------------------- fits


def planted(count: int = 400) -> tuple[np.ndarray, list[np.ndarray]]:
    draws = np.random.default_rng(0)
    factors = [draws.random((size, 3)) ** 2 for size in (8, 12, 9)]
    T = np.einsum("nr,ir,jr,kr->nijk", draws.gamma(2, 1, (count, 3)), *factors)
    return T + 0.05 * T.std() * draws.normal(size=T.shape), factors


def matches(model: CPD, factors: list[np.ndarray]) -> np.ndarray:
    found, true = ([F / np.linalg.norm(F, axis=0) for F in some] for some in (model.factors_, factors))
    similarity = np.abs(np.prod([F.T @ G for F, G in zip(found, true, strict=True)], axis=0))
    return similarity[linear_sum_assignment(-similarity)]


@pytest.mark.parametrize("kept", [2**30, 1000])
def test_planted_factors_are_found_with_a_fifth_of_the_channels_missing(kept: int, monkeypatch: Any) -> None:
    monkeypatch.setattr(core_moments, "_INCOMPLETE_BYTES", kept)  # 1000: the data are read again
    T, factors = planted()
    T[np.random.default_rng(1).random((400, 8)) < 0.2] = np.nan
    model = CPD(3, tensorize=None, max_sweeps=500, device="cpu").fit(T)
    assert matches(model, factors).min() > 0.99


def test_planted_factors_are_found_if_every_window_has_another_mask() -> None:
    T, factors = planted()
    T[np.random.default_rng(1).random(T.shape) < 0.3] = np.nan
    assert len(distinct_masks(~torch.isnan(torch.tensor(T)))[0]) == 400
    model = CPD(3, tensorize=None, max_sweeps=500, device="cpu").fit(T)
    assert matches(model, factors).min() > 0.99


def test_channels_that_are_never_observed_together_are_fitted() -> None:
    X = WINDOWS.X.copy()
    X[:100, :2], X[100:, 2:] = np.nan, np.nan
    model = CPD(rank=3, device="cpu").fit(X)
    assert model.compression_ is not None
    assert model.compression_["ranks"][0] == 4
    assert np.isfinite(model.transform(X)).all()


def test_a_channel_that_is_never_observed_does_no_harm() -> None:
    X = WINDOWS.X.copy()
    X[:, 2] = np.nan
    Z = CPD(rank=3, device="cpu").fit(X).transform(X)
    assert np.isfinite(Z).all()


def test_a_fit_with_missing_channels_is_close_to_the_complete_one() -> None:
    X = WINDOWS.X.copy()
    X[np.random.default_rng(1).random((200, 4)) < 0.1] = np.nan
    complete, model = (CPD(rank=3, device="cpu").fit(windows) for windows in (WINDOWS.X, X))
    np.testing.assert_allclose(model.tensorize_.floor, complete.tensorize_.floor, rtol=0.05)  # type: ignore[union-attr]
    assert model.score(WINDOWS.X) > complete.score(WINDOWS.X) - 0.02


def test_memory_does_not_grow_with_the_number_of_masks(model: CPD) -> None:
    X = np.tile(WINDOWS.X, (4, 1, 1))
    X[np.random.default_rng(1).random(X.shape) < 0.02] = np.nan
    peaks = []
    for count in (200, 800):
        tracemalloc.start()
        model.coefficients(X[:count])
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 4 * peaks[0]


def test_windows_along_recordings_with_gaps_are_classified() -> None:
    X = WINDOWS.X.copy()
    X[np.random.default_rng(1).random((200, 4)) < 0.1] = np.nan
    windows = Windows(X, fs=WINDOWS.fs, label=WINDOWS.label, subject=WINDOWS.subject)
    classifier = WindowClassifier(CPD(rank=4, device="cpu")).fit(windows)
    assert classifier.score(windows) > 0.5


def test_the_prior_on_other_bases_is_that_of_the_coefficients_of_reconstructions() -> None:
    rng = np.random.default_rng(0)
    bases = [rng.normal(size=(size, 3)) for size in (4, 5, 6)]
    others = [rng.normal(size=(size, 2)) for size in (4, 5, 6)]
    root = rng.normal(size=(3, 3))
    prior = Prior(rng.normal(size=3), root @ root.T, np.array([0.1]), np.zeros((3, 0)), np.zeros((3, 0)))
    found = prior.of_bases(bases, others, 0.5)
    K, other = (np.einsum("ir,jr,kr->ijkr", *each).reshape(120, -1) for each in (bases, others))
    extract = np.linalg.solve(other.T @ other + 0.5 * np.eye(2), other.T)
    np.testing.assert_allclose(found.mean, extract @ K @ prior.mean)
    entries = K @ prior.covariance @ K.T + 0.1 * np.eye(120)
    np.testing.assert_allclose(found.covariance, extract @ entries @ extract.T)


def test_components_for_people_have_coefficients_of_windows_with_missing_channels(model: CPD) -> None:
    part = with_bases(model, [factor[:, :2].copy() for factor in model.factors_], None)
    X = np.array(WINDOWS.X[:20])
    X[:, 0] = np.nan
    assert np.isfinite(part.coefficients(X)).all()


# ----------------------------------------------------------------------------------------- the experiment


def test_the_nearest_windows_are_those_of_scikit_learns_imputer() -> None:
    draws = np.random.default_rng(0)
    known, X = draws.normal(size=(60, 12)), draws.normal(size=(30, 12))
    X[:, 1:][draws.random((30, 11)) < 0.3] = np.nan
    np.testing.assert_allclose(nearest(X, known), KNNImputer(n_neighbors=5).fit(known).transform(X))


def test_the_table_of_missing_values_has_the_mean_over_splits_and_what_is_lost() -> None:
    faults = {f"{part}, {kind}": 80.0 for part in ("one channel", "a quarter") for kind in ("zero", "NaN", "stuck")}
    rows = [
        {"set": "har", "split": split, "method": method, "scores": {by: {"clean": clean + split, **faults}}}
        for method, by, clean in (("polyadic", "", 89.0), ("PCA", "mean", 94.0))
        for split in (0, 2)
    ]
    assert means(rows, "har")["PCA, mean imputation"]["clean"] == 95.0
    assert "| har, one channel | 90.0 → 80.0 | 10.0 | PCA, mean imputation | 95.0 → 80.0 | 15.0 |" in page(rows)
