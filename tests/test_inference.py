"""Prediction from a model file equals that of the classifier."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.special import expit, softmax

from polyadic import CPD, load
from polyadic.data import Windows, synthetic
from polyadic.errors import ModelFileError
from polyadic.evaluate import Probe, WindowClassifier
from polyadic.evaluate.linear import LinearProbe
from polyadic.evaluate.predictor import WindowPredictor
from polyadic.spectral import STFT

SIGNALS = synthetic(120, 2, 64)
FRONT = STFT(n_fft=16, hop=8)
PROBES = {"auto": "auto", "fixed": Probe(C=2.0, class_weight=None), "plain": "plain", "standardised": "standardised"}


@pytest.fixture(scope="module")
def features() -> CPD:
    return CPD(rank=3, tensorize=FRONT, max_sweeps=2, device="cpu").fit(SIGNALS)


@pytest.mark.parametrize(
    ("kind", "n_classes", "recenter"),
    [("auto", 3, True), ("fixed", 2, False), ("plain", 2, True), ("standardised", 3, False)],
)
def test_a_predictor_equals_the_classifier(
    features: CPD, tmp_path: Path, kind: str, n_classes: int, recenter: bool
) -> None:
    label = np.array(["a", "b", "c"])[np.arange(len(SIGNALS)) % n_classes]
    windows = Windows(SIGNALS.X, label=label, subject=np.arange(len(SIGNALS)) // 60, fs=SIGNALS.fs)
    path = tmp_path / "m.safetensors"
    WindowClassifier(features, PROBES[kind], recenter).fit(windows).save(path)
    classifier, predictor = WindowClassifier.load(path), WindowPredictor(load(path))
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


def test_a_predictor_needs_a_probe(features: CPD, tmp_path: Path) -> None:
    features.save(tmp_path / "m.safetensors")
    with pytest.raises(ModelFileError, match=r"^m.safetensors has no probe: train one on labelled windows"):
        WindowPredictor(load(tmp_path / "m.safetensors"), "m.safetensors")
