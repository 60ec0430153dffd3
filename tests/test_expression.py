"""Expression in dB: what it means for log amplitudes, for raw signals, for one channel, and where it does not exist."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from paper.labels.people import read_set
from polyadic import ATD, CPD, load
from polyadic.core.missing import MissingWarning
from polyadic.data import Windows, synthetic
from polyadic.errors import PolyadicError
from polyadic.explain import components, expression, level
from polyadic.explain.expression import profiles, shown, with_bases
from polyadic.readout import Readout
from polyadic.scale import Moments
from polyadic.spectral import STFT

DOUBLE = 10 * np.log10(2)


@pytest.fixture(scope="module")
def windows() -> Windows:
    return synthetic(80, n_channels=4, length=160)


@pytest.fixture(scope="module")
def model(windows):
    return CPD(rank=3).fit(windows)


def weights_of(model) -> np.ndarray:
    return np.einsum("ir,jr,kr->ijkr", *(profiles(factor) for factor in model.factors_))


def log_amplitudes(model, X) -> np.ndarray:
    """Log amplitudes with a thousandth of the floor, from a Fourier transform of every frame."""
    stft = model.tensorize_
    frames = np.lib.stride_tricks.sliding_window_view(np.asarray(X, float), stft.n_fft, axis=2)[:, :, :: stft.hop]
    Z = np.fft.rfft(frames * torch.hann_window(stft.n_fft, dtype=torch.float64).numpy())
    floors = np.broadcast_to(np.atleast_1d(stft.floor), X.shape[1])[:, None, None]
    return np.log(np.abs(Z) + floors / 1000).swapaxes(2, 3)


def test_expression_is_the_weighted_mean_of_centred_log_amplitudes(model, windows):
    logs = log_amplitudes(model, windows.X)
    centred = logs - logs.mean(axis=(0, 3), keepdims=True)
    expected = 20 / np.log(10) * np.einsum("nijk,ijkr->nr", centred, weights_of(model))
    assert expression(model, windows) == pytest.approx(expected, abs=1e-3)
    assert level(model, windows) == pytest.approx(20 / np.log(10) * centred.mean(axis=(1, 2, 3)), abs=1e-3)
    assert expression(model, windows, relative=True) == pytest.approx(
        expression(model, windows) - level(model, windows)[:, None], abs=1e-9
    )


def test_entries_with_twice_the_power_add_three_decibels_times_their_weight(model, windows, monkeypatch):
    X, entries = windows.X.astype(np.float64), np.random.default_rng(0).random((4, 33, 13)) < 0.3
    before, louder = expression(model, X), torch.from_numpy(np.log(np.sqrt(2)) * entries)
    transform = STFT.transform
    monkeypatch.setattr(STFT, "transform", lambda self, X: transform(self, X) + louder)
    gain = DOUBLE * np.einsum("ijk,ijkr->r", entries, weights_of(model))
    assert expression(model, X) - before == pytest.approx(np.tile(gain, (80, 1)), abs=1e-6)


@pytest.mark.parametrize("name", ["har", "sisfall", "eegmat"])
def test_twice_the_power_is_three_decibels_on_real_recordings(data_folder, name):
    signals = read_set(data_folder, name).windows
    signals = signals[:: len(signals) // 200]
    X, model = signals.X.astype(np.float64), CPD(rank=4, max_sweeps=40).fit(signals)
    gain = expression(model, np.sqrt(2) * X) - expression(model, X)
    assert gain.mean(axis=0).min() >= 2.85
    assert gain.mean(axis=0).max() <= 3.02


def test_the_typical_level_is_that_of_all_windows_however_they_are_fitted(model, windows, tmp_path):
    logs = log_amplitudes(model, windows.X).mean(axis=(0, 3))
    assert np.array(model.tensorize_.baseline) == pytest.approx(logs, abs=1e-4)
    model.save(tmp_path / "model.safetensors")
    assert np.array_equal(expression(load(tmp_path / "model.safetensors"), windows), expression(model, windows))
    by_moments = CPD(rank=3).fit(Moments.collect(windows))
    assert np.array(by_moments.tensorize_.baseline) == pytest.approx(logs, abs=1e-4)
    assert np.array(ATD(rank=3, max_sweeps=1).fit(windows).tensorize_.baseline) == pytest.approx(logs, abs=1e-4)


def test_missing_channels_and_times_leave_the_weights_of_the_rest(model, windows):
    X = windows.X.astype(np.float64)
    X[:, 2] = np.nan
    X[0, :, :40] = np.nan
    logs = log_amplitudes(model, windows.X)
    centred = logs - np.array(model.tensorize_.baseline)[:, :, None]
    centred[:, 2] = np.nan
    centred[0, ..., : 1 + 39 // model.tensorize_.hop] = np.nan
    known = ~np.isnan(centred)
    weights = weights_of(model)
    sums = np.einsum("nijk,ijkr->nr", np.where(known, centred, 0), weights)
    expected = 20 / np.log(10) * sums / np.einsum("nijk,ijkr->nr", known, weights)
    assert expression(model, X) == pytest.approx(expected, abs=1e-3)
    assert np.isnan(level(model, np.full((1, 4, X.shape[2]), np.nan))).all()


def test_a_dead_channel_is_missing_also_in_components_for_people(model, windows):
    """A channel of zeros is not a very quiet one: level and expression are those without it."""
    lacking, dead = windows.X.astype(np.float64), windows.X.astype(np.float64)
    lacking[:5, 2], dead[:5, 2] = np.nan, 0.0
    with pytest.warns(MissingWarning, match="3 in 5 of 80 windows"):
        assert np.array_equal(expression(model, dead), expression(model, lacking))
    with pytest.warns(MissingWarning):
        assert np.array_equal(level(model, dead), level(model, lacking))
    part = with_bases(model, model.factors_, None)
    with pytest.warns(MissingWarning):
        assert np.array_equal(expression(part, dead), expression(model, lacking))
    fitted = CPD(rank=3, random_state=0)
    fitted.components_ = components(fitted.fit_with_moments(windows, windows.subject))
    with pytest.warns(MissingWarning, match="3 in 5 of 80 windows"):
        assert np.array_equal(expression(fitted, dead), expression(fitted, lacking), equal_nan=True)
    with pytest.warns(MissingWarning):
        strengths = shown(fitted).coefficients(dead)
    np.testing.assert_array_equal(strengths, shown(fitted).coefficients(lacking))
    kept = CPD(rank=3, readout=Readout(keep_flat=True)).fit(windows)
    assert expression(kept, dead)[:5].max() < expression(kept, lacking)[:5].min()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"nonnegative": False}, "not negative"),
        ({"tensorize": STFT(64, 32), "nonnegative": True}, "log_re_im"),
        ({"tensorize": STFT(64, 32, parts="log_amplitude"), "nonnegative": True, "compression": None}, "typical level"),
        ({"tensorize": None}, "model has none"),
    ],
)
def test_models_without_an_expression_say_why(windows, settings, reason):
    fitted = CPD(rank=2, max_sweeps=2, **settings).fit(windows.X[:, :, :128])
    with pytest.raises(PolyadicError, match=reason):
        expression(fitted, windows.X[:, :, :128])


def test_one_channel_with_twice_the_power_raises_components_by_their_weight_there(model, windows):
    X = windows.X.astype(np.float64)
    louder = X.copy()
    louder[:, 1] *= np.sqrt(2)
    gain = (expression(model, louder) - expression(model, X)).mean(axis=0)
    assert gain == pytest.approx(DOUBLE * profiles(model.factors_[0])[1], abs=0.03)
    assert (level(model, louder) - level(model, X)).mean() == pytest.approx(DOUBLE / 4, abs=0.03)


def test_channels_in_another_order_or_number_are_matched_or_refused(windows):
    named = Windows(windows.X, windows.fs, channels=["a", "b", "c", "d"])
    fitted = CPD(rank=2).fit(named)
    turned = Windows(windows.X[:, ::-1], windows.fs, channels=["d", "c", "b", "a"])
    assert expression(fitted, turned) == pytest.approx(expression(fitted, named), abs=1e-9)
    with pytest.raises(PolyadicError, match="shape"):
        expression(fitted, windows.X[:, :2])
