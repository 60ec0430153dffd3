"""Inference from a model file gives the same numbers without importing scikit-learn's estimators."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from polyadic.engine.inference import StoredModel
from problems import paper
from scipy.special import expit, softmax

from polyadic import ATD, SALS, load
from polyadic.baselines import PCAFeatures
from polyadic.core.persist import load_for_inference
from polyadic.data import Windows, synthetic
from polyadic.errors import ModelFileError, PolyadicError
from polyadic.evaluate import Probe, WindowClassifier
from polyadic.evaluate.linear import LinearProbe
from polyadic.evaluate.predictor import WindowPredictor
from polyadic.spectral import STFT

SIGNALS = synthetic(120, 2, 64)
FRONT = STFT(n_fft=16, hop=8)
PROBES = {"auto": "auto", "fixed": Probe(C=2.0, class_weight=None), "plain": "plain", "standardised": "standardised"}


@pytest.fixture(scope="module")
def features() -> ATD:
    return ATD(rank=3, tensorize=FRONT, max_sweeps=2, device="cpu").fit(SIGNALS)


@pytest.mark.parametrize("readout", ["auto", None])
def test_a_stored_model_transforms_as_the_estimator_to_the_bit(tmp_path: Path, readout: str | None) -> None:
    model = SALS(rank=3, tensorize=FRONT, readout=readout, max_sweeps=2, device="cpu").fit(SIGNALS)
    model.save(tmp_path / "m.safetensors")
    stored = load_for_inference(tmp_path / "m.safetensors")
    assert type(stored) is StoredModel
    assert np.array_equal(stored.transform(SIGNALS), model.transform(SIGNALS))
    assert np.array_equal(stored.coefficients(SIGNALS.X), model.coefficients(SIGNALS.X))
    assert list(stored.get_feature_names_out()) == list(model.get_feature_names_out())
    written = stored.transform(SIGNALS, out=tmp_path / "Z.npy")
    assert np.array_equal(written, model.transform(SIGNALS))


@pytest.mark.parametrize(
    ("kind", "n_classes", "recenter"),
    [("auto", 3, True), ("fixed", 2, False), ("plain", 2, True), ("standardised", 3, False)],
)
def test_a_predictor_equals_the_classifier(
    features: ATD, tmp_path: Path, kind: str, n_classes: int, recenter: bool
) -> None:
    label = np.array(["a", "b", "c"])[np.arange(len(SIGNALS)) % n_classes]
    windows = Windows(SIGNALS.X, label=label, subject=np.arange(len(SIGNALS)) // 60, fs=SIGNALS.fs)
    path = tmp_path / "m.safetensors"
    WindowClassifier(features, PROBES[kind], recenter).fit(windows).save(path)
    classifier, predictor = WindowClassifier.load(path), WindowPredictor(load_for_inference(path))
    assert type(predictor.probe_) is LinearProbe
    assert predictor.recenter is recenter
    assert predictor.classes_.tolist() == classifier.classes_.tolist()
    assert predictor.predict(windows).tolist() == classifier.predict(windows).tolist()
    np.testing.assert_allclose(predictor.predict_proba(windows), classifier.predict_proba(windows), rtol=1e-12)
    if recenter:
        means = predictor.subject_means(windows)
        assert np.array_equal(predictor.predict_proba(windows[:5], means=means), predictor.predict_proba(windows)[:5])


def test_probabilities_are_those_of_logistic_function_and_softmax() -> None:
    probe, odds = LinearProbe(), np.array([-800.0, -40.0, -1.0, 0.0, 3.0, 40.0, 800.0])
    probe.coef_, probe.intercept_ = np.ones((1, 1)), np.zeros(1)
    expected = np.stack([expit(-odds), expit(odds)], axis=1)
    np.testing.assert_allclose(probe.predict_proba(odds[:, None]), expected, rtol=1e-13)
    scores = np.random.default_rng(0).normal(size=(20, 3)) * 300
    probe.coef_, probe.intercept_ = np.eye(3), np.zeros(3)
    np.testing.assert_allclose(probe.predict_proba(scores), softmax(scores, axis=1), rtol=1e-13)


def test_a_stored_model_refuses_other_windows_and_puts_channels_in_order(tmp_path: Path) -> None:
    named = Windows(SIGNALS.X, fs=SIGNALS.fs, channels=["Fz", "Cz"])
    features = ATD(rank=2, tensorize=FRONT, max_sweeps=1, device="cpu").fit(named)
    features.save(tmp_path / "m.safetensors")
    stored = load_for_inference(tmp_path / "m.safetensors")
    with pytest.raises(PolyadicError, match=r"X must have shape \(N, 2, 64\) as in fit, but has shape \(3, 2, 60\)"):
        stored.transform(np.zeros((3, 2, 60)))
    with pytest.raises(PolyadicError, match="was sampled at"):
        stored.transform(Windows(SIGNALS.X, fs=2 * SIGNALS.fs))
    assert np.array_equal(stored.transform(named.with_channels(["Cz", "Fz"])), features.transform(named))


def test_a_stored_matrix_model_refuses_other_columns(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(30, 4))
    paper(SALS, rank=2, tensorize=None, max_sweeps=2, device="cpu").fit(X).save(tmp_path / "m.safetensors")
    with pytest.raises(PolyadicError, match=r"X must have shape \(N, 4\) as in fit, but has shape \(30, 3\)"):
        load_for_inference(tmp_path / "m.safetensors").transform(X[:, :3])


def test_a_stored_model_whose_readout_was_never_fitted_says_so(tmp_path: Path) -> None:
    SALS(rank=2, tensorize=FRONT, device="cpu").partial_fit(SIGNALS.X).save(tmp_path / "m.safetensors")
    stored = load_for_inference(tmp_path / "m.safetensors")
    assert stored.coefficients(SIGNALS.X).shape == (120, 2)
    with pytest.raises(PolyadicError, match="the readout has not been fitted"):
        stored.transform(SIGNALS.X)


def test_a_baseline_is_loaded_for_inference_as_the_estimator_it_is(tmp_path: Path) -> None:
    PCAFeatures(dim=2, tensorize=FRONT).fit(SIGNALS).save(tmp_path / "m.safetensors")
    stored, model = load_for_inference(tmp_path / "m.safetensors", device="cpu"), load(tmp_path / "m.safetensors")
    assert type(stored) is PCAFeatures
    assert np.array_equal(stored.transform(SIGNALS), model.transform(SIGNALS))


def test_a_predictor_needs_a_probe(features: ATD, tmp_path: Path) -> None:
    features.save(tmp_path / "m.safetensors")
    with pytest.raises(ModelFileError, match=r"^m.safetensors has no probe: train one on labelled windows"):
        WindowPredictor(load_for_inference(tmp_path / "m.safetensors"), "m.safetensors")
