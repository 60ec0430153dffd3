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

Band = tuple[float, float]


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
    low_quality_bands: tuple[Band, Band] | None = None


PAPER = {
    "sleep_edf": Paper(100, (7, 3000), 256, 32, (14, 129, 86), 0.05, ((1, 30), (10, 49)), 128, 7328),
    "har": Paper(
        50,
        (9, 128),
        64,
        2,
        (18, 33, 33),
        0.002,
        ((1, 20), (5, 24.5)),
        128,
        2688,
        triads=((0, 1, 2), (3, 4, 5), (6, 7, 8)),
        low_quality_bands=((1, 5), (20, 24.5)),
    ),
    "ptb_xl": Paper(500, (12, 5000), 256, 64, (24, 129, 75), 0.001, ((1, 30), (10, 50)), 128, 7296),
    "mgh": Paper(
        200,
        (6, 6000),
        512,
        128,
        (12, 257, 43),
        0.01,
        ((1, 30), (10, 50)),
        512,
        9984,
        low_quality_bands=((1, 10), (30, 50)),
    ),
}

each_dataset = pytest.mark.parametrize("name", PAPER)
with_low_quality = pytest.mark.parametrize("name", ["har", "mgh"])


# ----------------------------------------------------------- the paper's numbers


@each_dataset
def test_frames_and_shapes_are_the_papers(name: str) -> None:
    paper, settings = PAPER[name], preset(name)
    assert (settings.name, settings.fs, settings.shape) == (name, paper.fs, paper.raw)
    assert (settings.tensorize.n_fft, settings.tensorize.hop) == (paper.n_fft, paper.hop)
    assert settings.tensorize.shape(*settings.shape) == paper.tensor
    assert settings.tensorize(torch.ones(1, *settings.shape)).shape == (1, *paper.tensor)


@each_dataset
def test_presets_have_the_stft_settings_of_the_papers_results(name: str) -> None:
    tensorize = preset(name).tensorize
    assert (tensorize.window, tensorize.parts, tensorize.floor) == ("rectangular", "log_re_im", "channel")


@each_dataset
def test_augmentations_are_the_papers_in_its_sequence(name: str) -> None:
    paper = PAPER[name]
    steps = [Jitter(paper.degree), Bandpass(paper.bands, paper.fs)]
    if name == "har":
        steps.append(Rotate3D(paper.triads))
    assert preset(name).augment == Compose(steps)


@each_dataset
def test_hyperparameters_are_the_papers(name: str) -> None:
    parameters = preset(name).parameters
    expected = {
        "rank": 32,
        "alpha": 1e-3,
        "beta": 2,
        "gamma": None,  # the size of the batch
        "rounds": 1,
        "solver": "blend",
        "learning_rate": 2e-3,
        "batch_size": PAPER[name].batch_size,
        "tol": 1e-3,
        "patience": 3,
        "readout": None,
        "nonnegative": False,
    }
    assert {key: parameters[key] for key in expected} == expected
    assert set(parameters) == {*expected, "max_sweeps"}


@each_dataset
def test_parameters_are_read_only(name: str) -> None:
    with pytest.raises(TypeError):
        preset(name).parameters["rank"] = 4
    assert preset(name).parameters["rank"] == 32


@each_dataset
def test_the_number_of_parameters_at_rank_32_is_the_papers(name: str) -> None:
    settings = preset(name)
    assert 32 * sum(settings.tensorize.shape(*settings.shape)) == PAPER[name].n_parameters


@each_dataset
def test_a_model_with_the_settings_of_a_preset_can_be_fitted(name: str) -> None:
    settings = preset(name)
    model = ATD(**settings.parameters, tensorize=settings.tensorize, augment=settings.augment)
    assert model.get_params()["batch_size"] == PAPER[name].batch_size
    X = torch.randn(3, *settings.shape, generator=torch.Generator().manual_seed(0))
    model.set_params(device="cpu", max_sweeps=1).fit(X)
    assert model.n_parameters_ == PAPER[name].n_parameters
    assert [factor.shape for factor in model.factors_] == [(size, 32) for size in PAPER[name].tensor]


# -------------------------------------------------------------------- low quality


@with_low_quality
@pytest.mark.parametrize(("quality", "noisy", "gap"), [("A", True, False), ("B", False, True), ("C", True, True)])
def test_low_quality_augmentations_are_the_papers(name: str, quality: str, noisy: bool, gap: bool) -> None:
    paper, settings = PAPER[name], preset(name, quality=quality)
    jitter, bandpass, *rest = settings.augment.steps
    assert jitter == Jitter(1 if noisy else paper.degree)
    assert bandpass == Bandpass(paper.low_quality_bands if gap else paper.bands, paper.fs)
    assert rest == ([Rotate3D(paper.triads)] if name == "har" else [])


@with_low_quality
def test_low_quality_changes_the_augmentations_alone(name: str) -> None:
    good, poor = preset(name), preset(name, quality="C")
    assert (good.fs, good.shape, good.tensorize, good.parameters) == (
        poor.fs,
        poor.shape,
        poor.tensorize,
        poor.parameters,
    )
    assert good.augment != poor.augment


@pytest.mark.parametrize("name", ["sleep_edf", "ptb_xl"])
@pytest.mark.parametrize("quality", ["A", "B", "C"])
def test_low_quality_is_refused_where_the_paper_has_none(name: str, quality: str) -> None:
    with pytest.raises(
        PolyadicError, match=f"^quality='{quality}' is defined for har and mgh only, but name is '{name}'"
    ):
        preset(name, quality=quality)


@each_dataset
@pytest.mark.parametrize("quality", ["D", "a", "", 1])
def test_unknown_qualities_are_refused(name: str, quality: object) -> None:
    with pytest.raises(PolyadicError, match=r"^quality must be None, 'A', 'B' or 'C', but is "):
        preset(name, quality=quality)


# ------------------------------------------------------------------ sampling rates


@pytest.mark.parametrize(
    ("name", "fs", "n_fft", "hop", "raw"),
    [
        ("har", 100, 128, 4, (9, 256)),
        ("har", 200, 256, 8, (9, 512)),
        ("sleep_edf", 200, 512, 64, (7, 6000)),
        ("sleep_edf", 125, 320, 40, (7, 3750)),
        ("ptb_xl", 250, 128, 32, (12, 2500)),
        ("ptb_xl", 1000, 512, 128, (12, 10_000)),
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
    assert settings.augment.steps[1] == Bandpass(paper.bands, fs)
    assert settings.augment.steps[0] == Jitter(paper.degree)
    assert settings.parameters == preset(name).parameters


@each_dataset
def test_the_papers_own_sampling_rate_changes_nothing(name: str) -> None:
    assert preset(name, fs=PAPER[name].fs) == preset(name)


def test_odd_sampling_rates_give_even_frames_and_whole_hops() -> None:
    settings = preset("sleep_edf", fs=256)
    assert (settings.tensorize.n_fft, settings.tensorize.hop, settings.shape) == (656, 82, (7, 7680))
    for fs in range(101, 140):
        assert preset("sleep_edf", fs=fs).tensorize.n_fft % 2 == 0


@pytest.mark.parametrize(
    ("name", "fs"),
    [("ptb_xl", 100), ("mgh", 100), ("sleep_edf", 98), ("sleep_edf", 64), ("har", 49), ("har", 25)],
)
def test_sampling_rates_at_which_a_band_reaches_nyquist_are_refused(name: str, fs: float) -> None:
    with pytest.raises(
        PolyadicError, match=rf"^fs={fs} Hz is too low for {name}: its bands .* exceed the Nyquist frequency"
    ):
        preset(name, fs=fs)


@pytest.mark.parametrize(("name", "fs"), [("ptb_xl", 100.5), ("mgh", 100.5), ("sleep_edf", 98.5), ("har", 49.5)])
def test_sampling_rates_just_above_that_are_taken(name: str, fs: float) -> None:
    X = torch.ones(2, *preset(name, fs=fs).shape)
    assert bool(torch.isfinite(preset(name, fs=fs).augment(X)).all())


@pytest.mark.parametrize(("name", "fs"), [("har", 12), ("har", 1), ("sleep_edf", 1), ("ptb_xl", 2), ("mgh", 0.1)])
def test_sampling_rates_too_slow_for_a_hop_are_refused(name: str, fs: float) -> None:
    with pytest.raises(PolyadicError, match=rf"^fs={fs:g} Hz is too low for {name}: the hop would be shorter"):
        preset(name, fs=fs)


@each_dataset
@pytest.mark.parametrize("fs", [0, -50, math.nan, math.inf, "50", True])
def test_sampling_rates_that_are_not_positive_numbers_are_refused(name: str, fs: object) -> None:
    with pytest.raises(PolyadicError, match=r"^fs must be a "):
        preset(name, fs=fs)


@pytest.mark.parametrize("name", ["HAR", "sleep-edf", "", None])
def test_unknown_datasets_are_refused_with_those_that_are_known(name: object) -> None:
    with pytest.raises(PolyadicError, match=r"^name must be one of sleep_edf, har, ptb_xl, ptb_xl_100hz, mgh, but is "):
        preset(name)
