"""Every number of the paper for its four datasets, typed from appendices D.2 to D.5, and other sampling rates.

MGH's batch of 512 windows is not from the text, which names 128 without loss of generality.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch

from polyadic import ATD
from polyadic.augment import Bandpass, Compose, Jitter, Rotate3D
from polyadic.errors import PolyadicError
from polyadic.presets import preset
from polyadic.spectral import STFT

Band = tuple[float, float]
TRIADS = ((0, 1, 2), (3, 4, 5), (6, 7, 8))


@dataclass(frozen=True)
class Paper:
    """A row of the paper: its tables and appendices."""

    fs: float
    raw: tuple[int, int]
    n_fft: int
    hop: int
    tensor: tuple[int, int, int]
    degree: float
    bands: tuple[Band, Band]
    batch_size: int
    n_parameters: int
    triads: tuple[tuple[int, int, int], ...] = ()


PAPER = {
    "sleep_edf": Paper(100, (7, 3000), 256, 32, (14, 129, 86), 0.05, ((1, 30), (10, 49)), 128, 7328),
    "har": Paper(50, (9, 128), 64, 2, (18, 33, 33), 0.002, ((1, 20), (5, 24.5)), 128, 2688, triads=TRIADS),
    "ptb_xl": Paper(500, (12, 5000), 256, 64, (24, 129, 75), 0.001, ((1, 30), (10, 50)), 128, 7296),
    "mgh": Paper(200, (6, 6000), 512, 128, (12, 257, 43), 0.01, ((1, 30), (10, 50)), 512, 9984),
}

each_dataset = pytest.mark.parametrize("name", PAPER)


# ----------------------------------------------------------- the paper's numbers


@each_dataset
def test_frames_augmentations_and_hyperparameters_are_the_papers(name: str) -> None:
    paper, settings = PAPER[name], preset(name)
    assert (settings.name, settings.fs, settings.shape) == (name, paper.fs, paper.raw)
    assert settings.tensorize == STFT(paper.n_fft, paper.hop, "rectangular", "log_re_im", floor="channel")
    assert settings.tensorize.shape(*settings.shape) == paper.tensor
    steps = [Jitter(paper.degree), Bandpass(paper.bands, paper.fs)]
    assert settings.augment == Compose([*steps, Rotate3D(paper.triads)] if name == "har" else steps)
    expected = {
        "rank": 32,
        "alpha": 1e-3,
        "beta": 2,
        "gamma": None,  # the size of the batch
        "rounds": 1,
        "solver": "blend",
        "learning_rate": 2e-3,
        "batch_size": paper.batch_size,
        "tol": 1e-3,
        "patience": 3,
        "readout": None,
        "nonnegative": False,
    }
    assert {key: settings.parameters[key] for key in expected} == expected
    assert set(settings.parameters) == {*expected, "max_sweeps"}
    assert preset(name, fs=paper.fs) == settings


@each_dataset
def test_a_fit_with_the_settings_of_a_preset_has_the_papers_number_of_parameters(name: str) -> None:
    settings = preset(name)
    model = ATD(**settings.parameters, tensorize=settings.tensorize, augment=settings.augment)
    X = torch.randn(3, *settings.shape, generator=torch.Generator().manual_seed(0))
    model.set_params(device="cpu", max_sweeps=1).fit(X)
    assert model.n_parameters_ == PAPER[name].n_parameters
    assert [factor.shape for factor in model.factors_] == [(size, 32) for size in PAPER[name].tensor]


# ------------------------------------------------------------------ sampling rates


@pytest.mark.parametrize(
    ("name", "fs", "n_fft", "hop", "raw"),
    [
        ("har", 100, 128, 4, (9, 256)),
        ("sleep_edf", 125, 320, 40, (7, 3750)),
        ("ptb_xl", 250, 128, 32, (12, 2500)),
        ("mgh", 400, 1024, 256, (6, 12_000)),
    ],
)
def test_another_sampling_rate_keeps_frames_in_seconds_and_bands_in_hertz(
    name: str, fs: float, n_fft: int, hop: int, raw: tuple[int, int]
) -> None:
    settings, paper = preset(name, fs=fs), PAPER[name]
    assert (settings.fs, settings.shape) == (fs, raw)
    assert (settings.tensorize.n_fft, settings.tensorize.hop) == (n_fft, hop)
    assert settings.tensorize.shape(*raw)[2] == paper.tensor[2]
    assert settings.augment.steps[:2] == (Jitter(paper.degree), Bandpass(paper.bands, fs))
    assert settings.parameters == preset(name).parameters


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("ptb_xl", {"fs": 100}, "^fs=100 Hz is too low for ptb_xl: its bands .* exceed the Nyquist frequency"),
        ("har", {"fs": math.nan}, "^fs must be a "),
        ("har", {"fs": "50"}, "^fs must be a "),
        ("HAR", {}, "^name must be one of sleep_edf, har, ptb_xl, ptb_xl_100hz, mgh, but is "),
    ],
)
def test_what_no_preset_has_is_refused(name: str, given: dict[str, object], message: str) -> None:
    with pytest.raises(PolyadicError, match=message):
        preset(name, **given)
