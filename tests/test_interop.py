"""Conversion to and from TensorLy, and from MNE, preserves models."""

from __future__ import annotations

import numpy as np
import pytest
from problems import paper

from polyadic import ATD, SALS, load
from polyadic.augment import Jitter
from polyadic.export.interop import from_mne, from_tensorly, to_tensorly
from polyadic.spectral import STFT

FS = 50.0


def windows(count=40, channels=3, time=64, seed=0):
    return np.random.default_rng(seed).normal(size=(count, channels, time)).astype(np.float32)


def framed(X=None, **settings):
    """A model behind an STFT."""
    stft = STFT(n_fft=16, hop=8, **settings)
    return paper(SALS, rank=4, tensorize=stft, max_sweeps=2).fit(windows() if X is None else X)


# ------------------------------------------------------------------------------------------------------- TensorLy


def test_tensorly_reconstructs_the_same_tensor_as_the_model():
    tensorly = pytest.importorskip("tensorly")
    X = np.random.default_rng(0).normal(size=(30, 4, 5, 6))
    model = paper(SALS, rank=3, max_sweeps=3).fit(X)
    cp = to_tensorly(model, X)
    assert np.allclose(tensorly.cp_to_tensor(cp), model.inverse_transform(model.transform(X)))
    bases = to_tensorly(model)
    assert np.allclose(tensorly.cp_to_tensor(bases), model.inverse_transform(np.ones((1, 3)))[0])
    bases.factors[0][:] = 0  # the model's own bases are not handed out
    assert np.any(model.factors_[0])


def test_there_and_back_the_features_are_the_same(tmp_path):
    cp_tensor = pytest.importorskip("tensorly.cp_tensor")
    X = windows()
    model = framed(X)
    for cp in (to_tensorly(model), cp_tensor.cp_normalize(to_tensorly(model))):
        again = from_tensorly(cp, like=model)
        assert np.allclose(again.transform(X), model.transform(X), rtol=1e-3, atol=1e-4)
        assert again.score(X) == pytest.approx(model.score(X), abs=1e-5)
    again.save(tmp_path / "m.safetensors")
    assert np.array_equal(load(tmp_path / "m.safetensors").transform(X), again.transform(X))
    again.partial_fit(X)


def test_a_decomposition_by_tensorly_becomes_a_model():
    decomposition = pytest.importorskip("tensorly.decomposition")
    random = np.random.default_rng(0)
    X = np.einsum("nr,ir,jr->nij", *(random.normal(size=(size, 2)) for size in (30, 5, 6)))
    cp = decomposition.parafac(X, 2, init="random", random_state=0, n_iter_max=200, normalize_factors=True)
    model = from_tensorly(cp, samples=True)
    model.alpha = 0.0
    assert [factor.shape for factor in model.factors_] == [(5, 2), (6, 2)]
    # The weights went into the bases: what is left for the coefficients is TensorLy's first factor.
    assert np.allclose(model.transform(X), cp.factors[0], atol=1e-4)
    assert model.score(X) > 0.999


# ------------------------------------------------------------------------------------------------------------ MNE


def raw_of(seconds=60):
    mne = pytest.importorskip("mne")
    info = mne.create_info(["Fz", "HEOG", "Cz", "Pz", "C3", "C4"], FS, ["eeg", "eog"] + ["eeg"] * 4, verbose="ERROR")
    values = np.random.default_rng(0).normal(size=(6, int(seconds * FS))) * 1e-5
    return mne.io.RawArray(values, info, verbose="ERROR"), values


def test_epochs_go_into_a_fit_with_names_and_labels():
    mne = pytest.importorskip("mne")
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


def test_bad_stretches_of_a_raw_are_missing_in_its_windows():
    mne = pytest.importorskip("mne")
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
