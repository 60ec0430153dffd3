"""The STFT against explicit frames and numpy's FFT, the paper's shapes, and a log floor that follows the data.

Appendix D.2 of the paper says which frames its four datasets have.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.signal import get_window

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
    expected = ORACLES[parts](Z, floor[:, None, None])
    for name, part, found in zip(PARTS[parts], expected, np.split(result.numpy(), len(expected), axis=1), strict=True):
        if name == "phase":
            assert np.abs(found).max() <= math.pi + 1e-12
            found, part = np.abs(Z) * np.exp(1j * found), np.abs(Z) * np.exp(1j * part)
        np.testing.assert_allclose(found, part, rtol=1e-9, atol=1e-9)


# --------------------------------------------------------------- coefficients


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
    floor = np.linspace(0.01, 0.3, channels)
    stft = STFT(n_fft=n_fft, hop=hop, window=window, parts=parts, floor=floor)
    T = stft(X)
    assert T.is_contiguous()
    assert tuple(T.shape[1:]) == stft.shape(*X.shape[1:])
    assert_parts_are(T, frames(X, n_fft, hop, window), parts, floor)


# ----------------------------------------------------------------- log floor


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


@given(gains=st.lists(st.floats(-6, 6), min_size=2, max_size=2))
def test_a_gain_of_all_channels_of_a_unit_changes_nothing_after_centring(gains: list[float]) -> None:
    X, units = recordings(5, 3, 60), ("g", "V", "g")
    first, second = (10.0**gain for gain in gains)
    louder = torch.tensor([first, second, first], dtype=torch.float64)[:, None] * X
    stft = STFT(n_fft=16, hop=4, parts="log_amplitude", mean="auto")
    torch.testing.assert_close(stft.calibrated(louder, units)(louder), stft.calibrated(X, units)(X), rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("length", "fs", "n_fft", "hop"),
    [
        (128, 50, 64, 8),
        (1000, 100, 128, 29),
        (3000, 100, 128, 93),
        (6000, 100, 128, 128),  # a hop is never longer than a frame
        (32, None, 16, 2),
        (300, None, 128, 16),
        (100_000, 20_000, 1024, 1024),
    ],
)
def test_frames_by_the_rule(length: int, fs: float | None, n_fft: int, hop: int) -> None:
    found = recommended_stft(length, fs)
    assert (found.n_fft, found.hop) == (n_fft, hop)
    assert (found.parts, found.mean, found.floor, found.window) == ("log_amplitude", "auto", "auto", "hann")


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


# -------------------------------------------------------------------- errors


REFUSED = [
    ({"n_fft": 2.0}, r"n_fft must be .*but is 2.0"),
    ({"hop": 0}, r"hop must be .*but is 0"),
    ({"window": "kaiser"}, r"window must be one of rectangular, hann, hamming, blackman, but is 'kaiser'"),
    ({"parts": None}, r"parts must be one of log_re_im, re_im, .*, but is None"),
    *(({"floor": floor}, r"floor must be 'auto', 'channel' or positive numbers, but is ")
      for floor in (0, math.inf, "low", [1.0, math.nan])),
    *(({"mean": mean}, r"mean must be None, 'auto' or finite numbers of shape \(channels, 5\), but ")
      for mean in ("none", [[1.0, math.nan, 0.0, 0.0, 0.0]], [[1.0] * 4])),
    ({"floor": [0.1, 0.2]}, r"floor must be .*each of the 3 channels, but has 2"),
    ({"parts": "amplitude", "mean": np.zeros((2, 5))}, r"mean must have 3 rows for 3 channels, but has 2"),
    ({"n_fft": 61}, r"windows must have at least n_fft=61 samples, but have 60: use longer windows or a smaller n_fft"),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "message"), REFUSED)
def test_settings_that_make_no_sense_or_do_not_fit_the_windows_are_refused(settings: Any, message: str) -> None:
    with pytest.raises(PolyadicError, match=f"^{message}"):
        STFT(**{"n_fft": 8, "hop": 2} | settings)(recordings(4, 3, 60))
