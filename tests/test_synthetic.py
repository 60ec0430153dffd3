"""The built-in signals have their documented properties."""

from __future__ import annotations

import numpy as np

from polyadic.data import synthetic


def test_the_same_seed_gives_the_same_signals_and_another_seed_others():
    first, again, other = synthetic(50), synthetic(50), synthetic(50, random_state=1)
    assert np.array_equal(first.X, again.X)
    assert np.array_equal(first.label, again.label)
    assert not np.array_equal(first.X, other.X)


def test_classes_and_subjects_are_balanced():
    signals = synthetic(600, n_classes=3)
    assert np.bincount(signals.label).tolist() == [200, 200, 200]
    assert np.unique(signals.subject, return_counts=True)[1].tolist() == [20] * 30


def test_nuisance_lies_outside_the_band_of_the_classes_and_noise_everywhere():
    quiet, loud = (synthetic(200, nuisance=nuisance, noise=0.0).X for nuisance in (0.0, 5.0))
    frequency = np.fft.rfftfreq(quiet.shape[2], 1 / 64)
    low_or_high = (frequency < 2) | (frequency > 25)

    def share_outside(X):
        power = np.abs(np.fft.rfft(X * np.hanning(X.shape[2]))) ** 2
        return power[..., low_or_high].sum() / power.sum()

    assert share_outside(quiet) < 0.02
    assert share_outside(loud) > 0.9


def test_the_class_decides_how_strong_its_own_components_are():
    signals = synthetic(400, nuisance=0.0, noise=0.0, n_classes=2)
    power = (np.abs(np.fft.rfft(signals.X)) ** 2).mean(axis=1)
    per_class = np.stack([np.log(power[signals.label == label]).mean(axis=0) for label in (0, 1)])
    assert np.abs(per_class[0] - per_class[1]).max() > 1
