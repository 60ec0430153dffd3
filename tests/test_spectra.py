"""Components in physical units: levels in dB, the effect of a component, shares that add up, flat profiles."""

from __future__ import annotations

import numpy as np
import pytest
from problems import paper

from polyadic import ATD, SALS, plot
from polyadic.data import Windows
from polyadic.errors import PolyadicError
from polyadic.explain import typical
from polyadic.explain.spectra import effect_sizes, greedy_shares, where_strongest
from polyadic.spectral import STFT

FS = 64.0


@pytest.fixture(scope="module")
def rhythm() -> Windows:
    """A sine of 8 Hz in the second of two channels, 10 µV in the first class and 20 µV in the second."""
    rng = np.random.default_rng(0)
    label = np.arange(60) % 2
    time = np.arange(256) / FS
    phase = rng.uniform(0, 2 * np.pi, (60, 1))
    X = 0.05 * rng.normal(size=(60, 2, 256))
    X[:, 1] += np.array([10.0, 20.0])[label][:, None] * np.sin(2 * np.pi * 8 * time + phase)
    return Windows(X, FS, channels=["Cz", "O1"], units=["µV", "µV"], label=label, classes=["open", "closed"])


@pytest.fixture(scope="module")
def model(rhythm):
    stft = STFT(64, 32, parts="log_amplitude", floor=1.0, mean="auto")
    return paper(SALS, rank=1, tensorize=stft, max_sweeps=30, batch_size=None, nonnegative=True).fit(rhythm)


def test_a_sine_has_its_amplitude_in_decibels(model, rhythm):
    found = typical(model, rhythm)
    assert found.scale(1).unit == "dB re 1 µV"
    spectra = found.spectra_by_class(1)
    assert spectra[:, 8] == pytest.approx([20.0, 20 * np.log10(20)], abs=0.1)
    assert found.spectrum(1)[8] == pytest.approx(spectra[:, 8].mean(), abs=0.05)


def test_classes_have_their_own_spectra(model, rhythm):
    figure = plot.spectrum_by_class(typical(model, rhythm), "O1", band=(7.0, 9.0))
    assert [trace.name for trace in figure.data] == ["open", "closed"]
    assert [float(trace.y[8]) for trace in figure.data] == pytest.approx([20.0, 26.02], abs=0.1)
    assert (figure.layout.shapes[0].x0, figure.layout.shapes[0].x1) == (7.0, 9.0)
    with pytest.raises(PolyadicError, match="channel must be one of Cz, O1, but is 'Oz'"):
        plot.spectrum_by_class(typical(model, rhythm), "Oz")
    with pytest.raises(PolyadicError, match="windows with labels"):
        plot.spectrum_by_class(typical(model, rhythm.X))


# --------------------------------------------------------------------- profiles


def test_components_are_found_in_the_stretch_where_they_are(rhythm):
    X = 0.05 * np.random.default_rng(0).normal(size=(40, 2, 256))
    first = np.random.default_rng(1).integers(0, 192, 40)
    for window, begin in zip(X, first, strict=True):
        window[0, begin : begin + 64] += 10 * np.sin(2 * np.pi * 8 * np.arange(64) / FS)
    windows = Windows(X, FS)
    model = ATD(rank=1, tensorize=STFT(32, 16, parts="log_amplitude", mean="auto")).fit(windows)
    assert np.abs(where_strongest(model, windows, 0) - (first + 32)).max() < 33


# ----------------------------------------------------------------------- shares


def test_shares_are_the_additional_variation_explained_by_each_component():
    rng = np.random.default_rng(0)
    K, x = np.abs(rng.normal(size=(50, 6))), rng.normal(size=(500, 6)) @ rng.normal(size=(6, 6))
    T = x @ K.T
    T -= T.mean(axis=0)
    left, chosen, before, expected = list(range(6)), [], 0.0, np.zeros(6)
    while left:
        explained = []
        for r in left:
            part = K[:, [*chosen, r]]
            explained.append(float(np.sum((T @ part @ np.linalg.pinv(part)) ** 2)))
        best = left[int(np.argmax(explained))]
        expected[best], before = max(explained) - before, max(explained)
        chosen.append(best)
        left.remove(best)
    shares = greedy_shares(K.T @ K, np.cov(x.T, bias=True))
    assert shares == pytest.approx(100 * expected / expected.sum(), rel=1e-6)
    assert shares.sum() == pytest.approx(100)


def test_effect_sizes_are_cohens():
    rng = np.random.default_rng(0)
    a, b = rng.normal(0, 1, 30), rng.normal(1, 2, 50)
    pooled = np.sqrt((29 * a.var(ddof=1) + 49 * b.var(ddof=1)) / 78)
    found = effect_sizes(np.concatenate([a, b, [99.0]]), np.repeat([0, 1, -1], [30, 50, 1]))
    assert found == pytest.approx([(a.mean() - b.mean()) / pooled, (b.mean() - a.mean()) / pooled])
