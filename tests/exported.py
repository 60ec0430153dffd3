"""Models exported as C or ONNX and run from Python, and signals for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from c_code import CLibrary, missing

from polyadic import CPD, export
from polyadic.data import Windows
from polyadic.evaluate import Probe, WindowClassifier

CLASSES = np.array(["rest", "walk", "run"])


class Exported:
    """A model exported as "c" or "onnx"; with `masked`, NaN in windows means missing."""

    def __init__(self, form: str, model, folder: Path, masked: bool = False, **options) -> None:
        if form == "onnx":
            pytest.importorskip("onnx")
            pytest.importorskip("onnxruntime")
            export.onnx(model, folder / "model.onnx", **options)
            self.features = run = export.Features(folder / "model.onnx")
            self.probabilities = run.probabilities
            return
        if missing("gcc"):
            pytest.skip(missing("gcc"))
        code = CLibrary(export.c(model, folder / "model.c", **options))
        assert code.selftest() == 0
        self.written, self.features = code.written, code.features_masked if masked else code.features
        self._predict = code.predict_masked if masked else code.predict

    def probabilities(self, X) -> np.ndarray:
        best, P = self._predict(X)
        assert (best == P.argmax(axis=1)).all()
        return P


def largest_difference(found, expected) -> float:
    """Return the largest difference, relative to the scale of the features."""
    assert found.shape == expected.shape
    return np.abs(found - expected).max() / np.sqrt(np.mean(np.square(expected)))


def signals(shape, count=24, seed=0, scale=1.0) -> np.ndarray:
    """Return oscillations in noise with an offset: (count, channels, time) float32."""
    random = np.random.default_rng(seed)
    each = (count, shape[0], 1)
    waves = np.sin(random.uniform(0.05, 1.5, each) * np.arange(shape[1]) + random.uniform(0, 6, each))
    return ((waves + 0.5 * random.normal(size=(count, *shape)) + 0.5) * scale).astype(np.float32)


def recordings(channels=4, samples=96, classes=3, count=120) -> Windows:
    """Return windows of classes that differ in frequency and level, with channels that are correlated."""
    random = np.random.default_rng(5)
    codes, time = np.arange(count) % classes, np.arange(samples)
    rates = (0.25 + 0.3 * codes)[:, None, None] + 0.1 * random.normal(size=(count, 1, 1))
    waves = np.sin(rates * time + random.uniform(0, 6, (count, 1, 1))) * (1 + 0.7 * random.random((count, 1, 1)))
    mixed = waves * random.uniform(0.5, 2, (1, channels, 1)) + 0.3 * random.normal(size=(count, channels, samples))
    X = (mixed + codes[:, None, None] * 0.3 + 0.5).astype(np.float32)
    return Windows(X, fs=50.0, channels=[f"c{n + 1}" for n in range(channels)], label=CLASSES[codes])


def trained(windows, rank=5, **parameters) -> WindowClassifier:
    model = CPD(rank, device="cpu", max_sweeps=15, **parameters).fit(windows)
    return WindowClassifier(model, probe=Probe(C=1.0, scale="plain", statistics=1.0, unlabelled=False)).fit(windows)


def with_gaps(X, how) -> np.ndarray:
    """Return windows in which something is missing."""
    random, X = np.random.default_rng(0), X.copy()
    if how == "whole channels":
        X[:, 1] = X[:6, 3] = np.nan
    elif how == "a gap in all channels":
        X[:, :, 30:60] = np.nan
    elif how == "gaps":
        X[:, 0, 20:70] = X[:, 1, :40] = X[:, 2, 60:] = np.nan
    elif how == "short gaps":
        X[:, 0, :3] = X[:, 1, 50:53] = X[:, 2, 95:] = np.nan
    elif how == "any samples":
        X[random.random(X.shape) < 0.3] = np.nan
    elif how == "any channels":
        X[random.random(X.shape[:2]) < 0.5] = np.nan
    elif how == "dead, stuck and clipped":
        X[:4, 0], X[4:8, 1] = 0, X[4:8, 1, :1]
        X[8:10, 2] *= 1e-4
        X[10:, 3] = np.minimum(X[10:, 3], np.quantile(X[10:, 3], 0.3)) + 100
    elif how == "all but one sample":
        X[:, :, 1:] = X[:, 1:] = np.nan
    elif how == "everything":
        X[:] = np.nan
    return X


def check(classifier, X, features, probabilities, tolerance=1e-3) -> None:
    """Assert that results are those of the model in float64."""
    exact, model = X.astype(np.float64), classifier.features_
    Z, P = np.asarray(model.transform(exact)), classifier.predict_proba(exact)
    # The readout has features with a mean square of 1 or 2 over unlabelled windows.
    assert np.abs(features - Z).max() < tolerance * 5
    assert np.abs(probabilities - P).max() < tolerance
    ordered = np.sort(P, axis=1)
    clear = ordered[:, -1] - ordered[:, -2] > 2 * tolerance
    assert (probabilities.argmax(axis=1) == P.argmax(axis=1))[clear].all()
    assert np.allclose(probabilities.sum(axis=1), 1, atol=1e-5)
