"""The method on real recordings: HAR rebuilt from the HAPT raw recordings, where POLYADIC_DATA has it."""

from __future__ import annotations

import numpy as np
import pytest
from problems import paper

from paper.scoring import probe_accuracy
from polyadic import ATD, SALS
from polyadic.data import split
from polyadic.data.readers.arrays import open_windows
from polyadic.presets import preset
from polyadic.spectral import STFT


@pytest.fixture(scope="module")
def har(data_folder):
    path = data_folder / "har.npz"
    if not path.exists():
        pytest.skip("POLYADIC_DATA has no har.npz")
    return open_windows(path)


def accuracy(model, har, protocol):
    _, train, test = split(har, protocol)
    return probe_accuracy("standardised", model.transform(train), train.label, model.transform(test), test.label)


@pytest.fixture(scope="module")
def model(har):
    settings = preset("har")
    frames = STFT(settings.tensorize.n_fft, settings.tensorize.hop)
    return paper(ATD, 32, tensorize=frames, augment=settings.augment, learning_rate=0.2, max_sweeps=3).fit(
        har.select(part="train")[::3]
    )


def test_a_short_fit_on_har_already_separates_activities(model, har):
    assert model.n_parameters_ == 2688
    assert accuracy(model, har, "paper") > 0.88
    assert accuracy(model, har, "subject") > 0.7


def test_the_loss_on_har_falls_and_every_term_is_there(model):
    assert model.history_["loss"][-1] < model.history_["loss"][0]
    for term in ("fit", "fit_augmented", "tikhonov"):
        assert model.history_[term][-1] > 0
    assert abs(model.history_["self_supervised"][-1]) < 1e-2 * model.history_["fit"][-1]


def test_the_log_floor_follows_the_unit_of_the_recordings(har):
    X = har.X[:256]
    frames = STFT(64, 8)
    volts, microvolts = (paper(SALS, 4, tensorize=frames, max_sweeps=2).fit(scale * X) for scale in (1e-6, 1.0))
    shift = np.log(1e-6)
    a, b = volts.tensorize_.floor, microvolts.tensorize_.floor
    np.testing.assert_allclose(np.log(a) - np.log(b), shift, atol=1e-3)
