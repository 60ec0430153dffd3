"""The method on real recordings: HAR rebuilt from the HAPT raw recordings, where POLYADIC_DATA has it."""

from __future__ import annotations

import pytest
from problems import paper

from paper.scoring import make_probe
from polyadic import ATD
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
    probe = make_probe("standardised").fit(model.transform(train), train.label)
    return probe.score(model.transform(test), test.label)


@pytest.fixture(scope="module")
def model(har):
    settings = preset("har")
    frames = STFT(settings.tensorize.n_fft, settings.tensorize.hop)
    return paper(ATD, 32, tensorize=frames, augment=settings.augment, learning_rate=0.2, max_sweeps=3).fit(
        har.select(part="train")[::6]
    )


def test_a_short_fit_on_har_already_separates_activities(model, har):
    assert model.n_parameters_ == 2688
    assert accuracy(model, har, "paper") > 0.88
    assert accuracy(model, har, "subject") > 0.7
