"""The STFT against explicit frames and numpy's FFT, the paper's shapes, and a log floor that follows the data.

Appendix D.2 of the paper says which frames its four datasets have.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import paper
from scipy.signal import get_window

from polyadic import SALS, load
from polyadic.errors import PolyadicError
from polyadic.spectral import PARTS, STFT, recommended_stft

WINDOWS = {"rectangular": "boxcar", "hann": "hann", "hamming": "hamming", "blackman": "blackman"}
LOGARITHMIC = ["log_re_im", "log_amplitude", "log_amplitude_phase"]

Maker = Callable[[np.ndarray, np.ndarray], list[np.ndarray]]
ORACLES: dict[str, Maker] = {
    "log_re_im": lambda Z, floor: [np.log(np.abs(Z.real) + floor), np.log(np.abs(Z.imag) + floor)],
    "re_im": lambda Z, floor: [Z.real, Z.imag],
    "amplitude_phase": lambda Z, floor: [np.abs(Z), np.angle(Z)],
    "log_amplitude_phase": lambda Z, floor: [np.log(np.abs(Z) + floor), np.angle(Z)],
    "log_amplitude": lambda Z, floor: [np.log(np.abs(Z) + floor)],
    "amplitude": lambda Z, floor: [np.abs(Z)],
}


def recordings(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def frames(X: torch.Tensor, n_fft: int, hop: int, window: str) -> np.ndarray:
    """Complex coefficients, one frame at a time: (N, channels, frequencies, frames)."""
    weights = get_window(WINDOWS[window], n_fft)
    starts = range(0, X.shape[2] - n_fft + 1, hop)
    signals = X.double().numpy()
    return np.array(
        [
            [np.stack([np.fft.rfft(channel[s : s + n_fft] * weights) for s in starts], axis=-1) for channel in sample]
            for sample in signals
        ]
    )


def assert_parts_are(result: torch.Tensor, Z: np.ndarray, parts: str, floor: np.ndarray) -> None:
    """The result is the oracle's parts, stacked along the channels; phases are compared around the circle."""
    channels = Z.shape[1]
    expected = ORACLES[parts](Z, floor[:, None, None])
    assert result.shape == (Z.shape[0], len(expected) * channels, *Z.shape[2:])
    for number, part in enumerate(expected):
        came = result[:, number * channels : (number + 1) * channels].numpy()
        if PARTS[parts][number].name == "phase":
            assert np.abs(came).max() <= math.pi + 1e-12
            came, part = np.abs(Z) * np.exp(1j * came), np.abs(Z) * np.exp(1j * part)
        np.testing.assert_allclose(came, part, rtol=1e-9, atol=1e-9)


# -------------------------------------------------------------------- shapes


@pytest.mark.parametrize(
    ("raw", "n_fft", "hop", "tensor"),
    [
        pytest.param((7, 3000), 256, 32, (14, 129, 86), id="Sleep-EDF"),
        pytest.param((9, 128), 64, 2, (18, 33, 33), id="HAR"),
        pytest.param((12, 5000), 256, 64, (24, 129, 75), id="PTB-XL"),
        pytest.param((6, 6000), 512, 128, (12, 257, 43), id="MGH"),
    ],
)
def test_the_papers_four_shapes_come_out(
    raw: tuple[int, int], n_fft: int, hop: int, tensor: tuple[int, int, int], device: torch.device
) -> None:
    stft = STFT(n_fft=n_fft, hop=hop)
    T = stft(recordings(2, *raw).float().to(device))
    assert T.shape == (2, *tensor)
    assert stft.shape(*raw) == tensor
    assert T.dtype == torch.float32
    assert T.device.type == device.type
    assert bool(torch.isfinite(T).all())


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize(
    ("channels", "time", "n_fft", "hop"), [(1, 8, 8, 3), (1, 21, 1, 2), (3, 20, 7, 1), (2, 9, 2, 9)]
)
def test_shape_predicts_the_shape_of_the_transform_which_is_contiguous(
    parts: str, channels: int, time: int, n_fft: int, hop: int
) -> None:
    stft = STFT(n_fft=n_fft, hop=hop, parts=parts)
    T = stft(recordings(2, channels, time))
    assert tuple(T.shape[1:]) == stft.shape(channels, time)
    assert T.is_contiguous()


def test_every_named_part_is_a_channel_of_its_own() -> None:
    for parts, names in PARTS.items():
        assert STFT(n_fft=4, hop=2, parts=parts).shape(3, 8)[0] == 3 * len(names)


# --------------------------------------------------------------- coefficients


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("parts", PARTS)
def test_stft_equals_explicit_frames_and_numpys_fft(parts: str, window: str, device: torch.device) -> None:
    X = recordings(3, 2, 50)
    floor = np.array([0.01, 0.3])
    T = STFT(n_fft=16, hop=5, window=window, parts=parts, floor=floor.tolist())(X.to(device))
    assert_parts_are(T.cpu(), frames(X, 16, 5, window), parts, floor)


def test_oracles_cover_every_window_and_all_parts() -> None:
    assert set(ORACLES) == set(PARTS)
    for window in WINDOWS:
        STFT(n_fft=4, hop=1, window=window)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    n_fft=st.integers(1, 20),
    hop=st.integers(1, 25),
    extra=st.integers(0, 40),
    channels=st.integers(1, 3),
    window=st.sampled_from(sorted(WINDOWS)),
    parts=st.sampled_from(sorted(ORACLES)),
)
def test_stft_equals_its_oracle_at_any_size(
    n_fft: int, hop: int, extra: int, channels: int, window: str, parts: str
) -> None:
    X = recordings(2, channels, n_fft + extra)
    T = STFT(n_fft=n_fft, hop=hop, window=window, parts=parts, floor=0.02)(X)
    assert_parts_are(T, frames(X, n_fft, hop, window), parts, np.full(channels, 0.02))


def test_first_parts_of_all_channels_come_before_second_parts() -> None:
    X = recordings(2, 3, 16)
    re, im = STFT(n_fft=8, hop=4, parts="re_im")(X).chunk(2, dim=1)
    for channel in range(3):
        alone = STFT(n_fft=8, hop=4, parts="re_im")(X[:, channel : channel + 1])
        torch.testing.assert_close(alone, torch.stack([re[:, channel], im[:, channel]], dim=1))


def test_samples_after_the_last_full_frame_are_not_used() -> None:
    stft = STFT(n_fft=8, hop=5, parts="re_im")
    X = recordings(1, 1, 22)
    torch.testing.assert_close(stft(X), stft(X[..., :18]))


@pytest.mark.parametrize("parts", PARTS)
def test_float32_equals_float64_to_rounding(parts: str) -> None:
    X = recordings(4, 3, 64)
    stft = STFT(n_fft=16, hop=4, window="hann", parts=parts)
    single, double = stft(X.float()), stft(X)
    assert single.dtype == torch.float32
    if "phase" in parts:
        single, double = torch.polar(torch.ones_like(single), single), torch.polar(torch.ones_like(double), double)
    # Logarithms near the floor, far below the signal, multiply its rounding errors.
    torch.testing.assert_close(single.to(double.dtype), double, rtol=1e-4, atol=1e-3)


def test_the_input_is_not_changed_and_its_memory_layout_does_not_matter() -> None:
    X = recordings(4, 3, 64)
    before = X.clone()
    stft = STFT(n_fft=16, hop=4)
    expected = stft(X)
    assert torch.equal(X, before)
    torch.testing.assert_close(stft(X.permute(2, 0, 1).contiguous().permute(1, 2, 0)), expected)
    torch.testing.assert_close(stft(torch.stack([X, -X], dim=3).flatten(2)[..., ::2]), expected)


# ----------------------------------------------------------------- log floor


@pytest.mark.parametrize("parts", LOGARITHMIC)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("unit", [1e-6, 1e-12, 1e6])
def test_the_unit_of_the_recording_only_shifts_log_features(parts: str, dtype: torch.dtype, unit: float) -> None:
    X = recordings(5, 3, 60).to(dtype)
    stft = STFT(n_fft=16, hop=4, parts=parts)
    shift = stft(unit * X)[:, :3] - stft(X)[:, :3]
    atol = 1e-3 if dtype == torch.float32 else 1e-9
    torch.testing.assert_close(shift, torch.full_like(shift, math.log(unit)), rtol=0, atol=atol)


@settings(derandomize=True, deadline=None, max_examples=40)
@given(exponents=st.lists(st.floats(-15, 12), min_size=3, max_size=3))
def test_channels_with_different_units_each_have_their_own_floor(exponents: list[float]) -> None:
    X = recordings(5, 3, 60)
    units = torch.tensor([10.0**exponent for exponent in exponents], dtype=torch.float64)
    stft = STFT(n_fft=16, hop=4, floor="channel")
    expected = stft(X) + units.log().repeat(2)[:, None, None]
    torch.testing.assert_close(stft(units[:, None] * X), expected, rtol=0, atol=1e-9)


def test_eeg_in_volts_is_not_flattened_as_it_is_by_a_fixed_floor() -> None:
    microvolts = 10 * recordings(5, 2, 300)
    volts = (1e-6 * microvolts).float()
    followed, fixed = (STFT(n_fft=64, hop=16, floor=floor)(volts).std() for floor in ("auto", 1e-3))
    assert followed > 0.5
    assert fixed < 0.05


@pytest.mark.parametrize("window", WINDOWS)
def test_the_channel_floor_is_a_hundredth_of_each_channels_root_mean_square(window: str) -> None:
    X = torch.tensor([[1.0], [1e-5], [40.0]]) * recordings(4, 3, 60)
    Z = frames(X, 16, 4, window)
    expected = 1e-2 * np.sqrt(np.mean(np.stack([Z.real, Z.imag]) ** 2, axis=(0, 1, 3, 4)))
    np.testing.assert_allclose(
        STFT(n_fft=16, hop=4, window=window, floor="channel").calibrated(X).floor, expected, rtol=1e-12
    )


@pytest.mark.parametrize("window", WINDOWS)
def test_the_auto_floor_is_a_share_of_the_amplitude_of_white_noise_of_the_same_power_by_unit(window: str) -> None:
    X = torch.tensor([[1.0], [1e-3], [40.0]]) * recordings(4, 3, 60) + torch.tensor([[5.0], [0.0], [-9.0]])
    signals = X.numpy() - X.numpy().mean(axis=2, keepdims=True)
    weight = np.linalg.norm(STFT(16, 4, window=window)._weights(X).numpy())
    stft = STFT(n_fft=16, hop=4, window=window)
    for units, groups in (((), [[0, 1, 2]]), (("", "", ""), [[0, 1, 2]]), (("g", "g", "V"), [[0, 1], [2]])):
        expected = np.empty(3)
        for group in groups:
            expected[group] = 0.3 * weight * np.sqrt(np.mean(signals[:, group] ** 2))
        np.testing.assert_allclose(stft.calibrated(X, units).floor, expected, rtol=1e-12)
    noise = torch.randn(200, 2, 256, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    loudness = STFT(64, 16, window=window, parts="amplitude")(noise).square().mean().sqrt()
    assert STFT(64, 16, window=window).calibrated(noise).floor[0] == pytest.approx(0.3 * float(loudness), rel=0.02)


def test_units_of_other_channels_are_refused() -> None:
    with pytest.raises(PolyadicError, match="units must have one entry per channel, 3, but has 2"):
        STFT(n_fft=16, hop=4).calibrated(recordings(4, 3, 60), ("g", "g"))


# ------------------------------------------------------------------- centring


@pytest.mark.parametrize("parts", PARTS)
def test_the_mean_is_that_of_the_tensors_over_windows_and_frames(parts: str) -> None:
    X = recordings(7, 3, 60)
    plain = STFT(n_fft=16, hop=4, parts=parts).calibrated(X)
    centred = STFT(n_fft=16, hop=4, parts=parts, mean="auto").calibrated(X)
    mean = plain(X).numpy().mean(axis=(0, 3))
    np.testing.assert_allclose(np.array(centred.mean), mean, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(centred(X), plain(X) - torch.from_numpy(mean)[:, :, None])
    torch.testing.assert_close(centred.uncentred(centred(X)), plain(X))
    torch.testing.assert_close(STFT(n_fft=16, hop=4, parts=parts, mean="auto")(X), centred(X))
    assert centred.n_parameters == mean.size
    assert plain.n_parameters == 0
    # In memory as transforms leave it, too.
    T = torch.empty(7, mean.shape[0], 12, 9, dtype=torch.float64).transpose(2, 3)
    centred.into(X, T)
    torch.testing.assert_close(T, centred(X))


@settings(derandomize=True, deadline=None, max_examples=30)
@given(gains=st.lists(st.floats(-6, 6), min_size=2, max_size=2))
def test_a_gain_of_all_channels_of_a_unit_changes_nothing_after_centring(gains: list[float]) -> None:
    X, units = recordings(5, 3, 60), ("g", "V", "g")
    first, second = (10.0**gain for gain in gains)
    louder = torch.tensor([first, second, first], dtype=torch.float64)[:, None] * X
    stft = STFT(n_fft=16, hop=4, parts="log_amplitude", mean="auto")
    torch.testing.assert_close(stft.calibrated(louder, units)(louder), stft.calibrated(X, units)(X), rtol=0, atol=1e-9)


def test_means_of_another_shape_are_refused() -> None:
    for mean in ("none", [1.0], [[1.0, math.nan, 0.0, 0.0, 0.0]], [[1.0] * 4], object()):
        with pytest.raises(PolyadicError, match=r"^mean must be None, 'auto' or "):
            STFT(n_fft=8, hop=2, mean=mean)
    with pytest.raises(PolyadicError, match=r"^mean must have 3 rows for 3 channels, but has 2"):
        STFT(n_fft=8, hop=2, parts="amplitude", mean=np.zeros((2, 5)))(recordings(4, 3, 60))


@pytest.mark.parametrize(
    ("length", "fs", "n_fft", "hop"),
    [
        (128, 50, 64, 8),
        (1000, 100, 128, 29),
        (3000, 100, 128, 93),
        (6000, 100, 128, 128),  # a hop is never longer than a frame
        (5000, 500, 512, 145),
        (32, None, 16, 2),
        (300, None, 128, 16),
        (40, 1000, 16, 2),
        (100_000, 20_000, 1024, 1024),
        (1000, 1.0, 16, 16),
    ],
)
def test_frames_by_the_rule(length: int, fs: float | None, n_fft: int, hop: int) -> None:
    found = recommended_stft(length, fs)
    assert (found.n_fft, found.hop) == (n_fft, hop)
    assert (found.parts, found.mean, found.floor, found.window) == ("log_amplitude", "auto", "auto", "hann")


def test_the_error_for_windows_too_short_for_frames_mentions_tensorize_none() -> None:
    with pytest.raises(PolyadicError, match="at least 32 samples, but they have 31: pass tensorize=None if X already"):
        recommended_stft(31)


@pytest.mark.parametrize("parts", LOGARITHMIC)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_silent_channels_stay_finite_and_leave_the_others_alone(parts: str, dtype: torch.dtype) -> None:
    X = 1e-6 * recordings(4, 3, 60).to(dtype)
    X[:, 1] = 0
    stft = STFT(n_fft=16, hop=4, parts=parts, floor="channel")
    T = stft(X)
    assert bool(torch.isfinite(T).all())
    torch.testing.assert_close(T[:, :3:2], stft(X[:, ::2])[:, :2])
    floors = stft.calibrated(X).floor
    assert min(floors) <= floors[1] <= max(floors)


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_silence_everywhere_stays_finite(parts: str, dtype: torch.dtype) -> None:
    stft = STFT(n_fft=16, hop=4, parts=parts)
    silence = torch.zeros(2, 3, 60, dtype=dtype)
    assert bool(torch.isfinite(stft(silence)).all())
    assert bool(torch.isfinite(stft.calibrated(silence)(silence)).all())


def test_one_silent_window_among_others_stays_finite() -> None:
    X = recordings(3, 2, 60)
    X[1] = 0
    assert bool(torch.isfinite(STFT(n_fft=16, hop=4)(X)).all())


@pytest.mark.parametrize("parts", LOGARITHMIC)
def test_a_fitted_floor_is_the_same_for_later_batches(parts: str) -> None:
    X = recordings(6, 2, 60) * torch.logspace(-3, 0, 6, dtype=torch.float64)[:, None, None]
    stft = STFT(n_fft=16, hop=4, parts=parts)
    fitted = stft.calibrated(X)
    alone = torch.cat([fitted(window[None]) for window in X])
    torch.testing.assert_close(alone, fitted(X))
    torch.testing.assert_close(fitted(X), stft(X))
    # Without fitting, each batch has a floor of its own.
    assert (torch.cat([stft(window[None]) for window in X]) - alone).abs().max() > 0.1


def test_fitting_changes_the_floor_alone_and_returns_a_copy() -> None:
    stft = STFT(n_fft=16, hop=4, window="hann", parts="log_amplitude")
    fitted = stft.calibrated(recordings(4, 3, 60))
    assert stft.floor == "auto"
    assert isinstance(fitted.floor, tuple)
    assert len(fitted.floor) == 3
    assert (fitted.n_fft, fitted.hop, fitted.window, fitted.parts) == (16, 4, "hann", "log_amplitude")


def test_a_floor_that_is_given_is_not_fitted() -> None:
    for floor in (0.25, (0.25, 0.5)):
        stft = STFT(n_fft=16, hop=4, floor=floor)
        assert stft.calibrated(recordings(4, 2, 60)) == stft
        assert stft.calibrated(1000 * recordings(4, 2, 60)).floor == floor


def test_one_given_floor_serves_all_channels() -> None:
    X = recordings(4, 3, 60)
    assert torch.equal(STFT(n_fft=16, hop=4, floor=0.1)(X), STFT(n_fft=16, hop=4, floor=[0.1, 0.1, 0.1])(X))


def test_equal_floors_make_equal_settings_however_they_are_given() -> None:
    given_as = [(0.5, 2.0), [0.5, 2], np.array([0.5, 2.0]), torch.tensor([0.5, 2.0])]
    assert len({STFT(n_fft=8, hop=2, floor=floor) for floor in given_as}) == 1
    one = [0.5, [0.5], np.float32(0.5), np.array(0.5), np.float64(0.5)]
    assert len({STFT(n_fft=8, hop=2, floor=floor) for floor in one}) == 1


def test_whole_numbers_of_numpy_are_whole_numbers() -> None:
    assert STFT(n_fft=np.int64(8), hop=np.int32(2)) == STFT(n_fft=8, hop=2)


def test_the_floor_is_stored_in_the_model_and_in_its_file(tmp_path: Path) -> None:
    X = 1e-5 * recordings(12, 2, 40).numpy()
    model = paper(SALS, rank=2, tensorize=STFT(n_fft=8, hop=4), max_sweeps=2, device="cpu").fit(X)
    stored = model.tensorize_
    assert stored == STFT(n_fft=8, hop=4).calibrated(torch.from_numpy(X))
    assert model.tensorize.floor == "auto"
    model.save(tmp_path / "model.safetensors")
    loaded = load(tmp_path / "model.safetensors")
    assert loaded.tensorize_ == stored
    # A louder batch is measured with the floor of the fit.
    np.testing.assert_array_equal(loaded.transform(50 * X), model.transform(50 * X))
    np.testing.assert_allclose(model.transform(np.concatenate([50 * X, X]))[12:], model.transform(X), rtol=1e-9)


# -------------------------------------------------------------------- errors


@pytest.mark.parametrize("argument", ["n_fft", "hop"])
@pytest.mark.parametrize("value", [0, -4, 2.0, "8", None, True])
def test_lengths_that_are_not_whole_numbers_of_samples_are_refused(argument: str, value: object) -> None:
    with pytest.raises(PolyadicError, match=rf"^{argument} must be .*but is {value!r}"):
        STFT(**{"n_fft": 8, "hop": 2, argument: value})


@pytest.mark.parametrize("argument", ["window", "parts"])
@pytest.mark.parametrize("value", ["kaiser", "", None, ["hann"]])
def test_unknown_windows_and_parts_are_refused_with_those_that_are_known(argument: str, value: object) -> None:
    known = ", ".join({"window": list(WINDOWS), "parts": list(PARTS)}[argument])
    with pytest.raises(PolyadicError, match=rf"^{argument} must be one of {known}, but is "):
        STFT(n_fft=8, hop=2, **{argument: value})


@pytest.mark.parametrize(
    "floor", [0, -1.0, math.nan, math.inf, "low", "", None, [], [1.0, 0.0], [1.0, math.nan], ["a"], object()]
)
def test_floors_that_are_not_positive_numbers_are_refused(floor: object) -> None:
    with pytest.raises(PolyadicError, match=r"^floor must be 'auto', 'channel' or positive numbers, but is "):
        STFT(n_fft=8, hop=2, floor=floor)


def test_floors_for_another_number_of_channels_are_refused() -> None:
    stft = STFT(n_fft=8, hop=2, floor=[0.1, 0.2])
    for use in (stft, stft.calibrated):
        with pytest.raises(PolyadicError, match=r"^floor must be .*each of the 3 channels, but has 2"):
            use(recordings(1, 3, 20))


@pytest.mark.parametrize("floor", ["auto", 0.1])
def test_windows_shorter_than_a_frame_are_refused(floor: float | str) -> None:
    stft = STFT(n_fft=64, hop=2, floor=floor)
    for use in (stft, stft.calibrated):
        with pytest.raises(
            PolyadicError, match=r"^X must have windows of at least n_fft=64 samples, but they have 63 "
        ):
            use(recordings(2, 3, 63))
    with pytest.raises(PolyadicError, match="n_fft=64 samples, but have 63"):
        stft.shape(3, 63)
    assert stft.shape(3, 64) == (6, 33, 1)
    assert stft(recordings(2, 3, 64)).shape == (2, 6, 33, 1)


@pytest.mark.parametrize("shape", [(64,), (3, 64), (1, 2, 3, 64)])
def test_input_of_other_dimensions_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(PolyadicError, match=r"^X must .*three dimensions \(windows, channels, time\).*has shape"):
        STFT(n_fft=8, hop=2)(recordings(*shape))


@pytest.mark.parametrize("dtype", [torch.int16, torch.int64, torch.bool, torch.complex64])
def test_input_that_is_not_floating_point_is_refused(dtype: torch.dtype) -> None:
    with pytest.raises(PolyadicError, match=r"^X must be floating point .*type torch"):
        STFT(n_fft=8, hop=2)(torch.ones(2, 3, 20).to(dtype))


@pytest.mark.parametrize("parts", list(PARTS))
@pytest.mark.parametrize("window", ["rectangular", "hann"])
def test_a_tensor_may_lie_in_memory_as_the_transform_leaves_it(parts: str, window: str) -> None:
    X, stft = torch.randn(3, 2, 50), STFT(n_fft=12, hop=7, window=window, parts=parts, floor=0.1)  # type: ignore[arg-type]
    expected = stft(X)
    found = torch.full_like(expected.transpose(2, 3).contiguous(), torch.nan).transpose(2, 3)
    stft.into(X, found)
    torch.testing.assert_close(found, expected)
