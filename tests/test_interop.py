"""Epochs and recordings of MNE become windows."""

from __future__ import annotations

import numpy as np
import pytest
from problems import paper

from polyadic import ATD
from polyadic.augment import Jitter
from polyadic.errors import PolyadicError
from polyadic.export import from_mne
from polyadic.spectral import STFT

mne = pytest.importorskip("mne")
FS = 50.0


def raw_of(seconds=60):
    info = mne.create_info(["Fz", "HEOG", "Cz", "Pz", "C3", "C4"], FS, ["eeg", "eog"] + ["eeg"] * 4, verbose="ERROR")
    values = np.random.default_rng(0).normal(size=(6, int(seconds * FS))) * 1e-5
    return mne.io.RawArray(values, info, verbose="ERROR"), values


def test_epochs_go_into_a_fit_with_names_and_labels():
    raw, values = raw_of()
    events = np.array([[100 * number, 0, 1 + number % 2] for number in range(1, 25)])
    epochs = mne.Epochs(raw, events, {"go": 1, "stop": 2}, tmin=0, tmax=1, baseline=None, preload=True, verbose="ERROR")
    found = from_mne(epochs)
    assert found.shape == (24, 6, 51)
    assert found.channels == tuple(raw.ch_names)
    assert found.classes == ("go", "stop")
    assert np.allclose(found.X[0], values[:, 100:151], rtol=1e-6)
    model = paper(ATD, rank=3, tensorize=STFT(16, 8), augment=Jitter(0.1), max_sweeps=2).fit(found)
    assert np.array_equal(model.transform(found), model.transform(epochs.get_data(verbose="ERROR").astype(np.float32)))
    # Epochs as they are do as well, but say neither names nor rate.
    assert np.allclose(model.transform(epochs), model.transform(found), rtol=1e-3, atol=1e-3)
    for wrong, seconds in ((epochs, 2), (raw, None)):
        with pytest.raises(PolyadicError, match="seconds must be the length of the windows of an mne"):
            from_mne(wrong, seconds)


def test_bad_stretches_of_a_raw_are_missing_in_its_windows():
    raw, values = raw_of(10)
    raw.set_annotations(mne.Annotations([4.5], [0.2], ["BAD_movement"]), verbose="ERROR")
    found = from_mne(raw, seconds=2)
    assert found.start.tolist() == [0, 100, 200, 300, 400]
    assert found.fs == FS
    missing = np.isnan(found.X)
    assert np.argwhere(missing.any(axis=(1, 2))).ravel().tolist() == [2]
    assert np.flatnonzero(missing[2, 0]).tolist() == list(range(25, 35))
    expected = np.stack([values[:, start : start + 100] for start in found.start])
    assert np.allclose(found.X[~missing], expected[~missing], rtol=1e-6)
