"""Statistics of raw windows against their definitions in float64, and the contract that each of them keeps."""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from polyadic import CPD, load
from polyadic.statistics import (
    FLOOR,
    IN_UNITS,
    SILENT,
    STATISTICS,
    Signals,
    band_edges,
    rounding,
    statistic_names,
    window_statistics,
)

steady = settings(derandomize=True, deadline=None, database=None, max_examples=40)

CHANNELS = ("ax", "ay", "az")
OFFSETS = {"mean": 1, "min": 1, "max": 1}
"""How much of an offset a statistic takes over; all others are invariant."""
SCALES = {"mean": "linear", "min": "linear", "max": "linear", "std": 1, "power": 2}
"""What becomes of a factor f: the statistic is multiplied by it, or n·log f is added; all others are invariant."""


def windows(shape: tuple[int, int, int] = (6, 3, 100), dtype: torch.dtype = torch.float64) -> Tensor:
    """Return correlated noise with drifts, skewed in one channel."""
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(shape, generator=generator, dtype=torch.float64)
    X[:, 0] = X[:, 0].exp() + 0.5 * X[:, -1]
    return (X + 0.2 * X.cumsum(dim=2)).to(dtype)


def by_name(X: Tensor) -> dict[str, np.ndarray]:
    """Return the statistics by name, (b,) each."""
    names = statistic_names(CHANNELS[: X.shape[1]], X.shape[2], 50.0)
    values = window_statistics(X)
    assert values.shape == (len(X), len(names))
    assert values.dtype == torch.float64
    return dict(zip(names, values.T.numpy(), strict=True))


# --------------------------------------------------------------------------------- definitions


def slow_statistics(window: np.ndarray, fs: float) -> dict[str, float]:
    """Compute the statistics of one window (channels, time), channel by channel."""
    largest = max(float(np.std(row)) for row in window)
    found: dict[str, float] = {}
    length = window.shape[1]
    padded = 2 ** int(np.ceil(np.log2(length)))
    for name, row in zip(CHANNELS, window, strict=True):
        floor = FLOOR * row.std() + SILENT * largest + 1e-30
        found |= {f"mean {name}": row.mean(), f"min {name}": row.min(), f"max {name}": row.max()}
        found[f"std {name}"] = np.log(row.std() + floor)
        found[f"skew {name}"] = scipy.stats.skew(row)
        found[f"kurt {name}"] = np.log(scipy.stats.kurtosis(row, fisher=False))
        found[f"crossings {name}"] = np.mean(np.diff(np.sign(row - row.mean())) != 0)
        power = np.abs(np.fft.rfft(row - row.mean(), padded)) ** 2 * 2 / (padded * length)
        for first, end in pairwise(band_edges(length)):
            low, high = ((edge - 0.5) / padded * fs for edge in (first, end))
            band = f"power {low:.2g}–{min(high, fs / 2):.2g} Hz {name}"
            found[band] = np.log(sum(power[first:end]) + floor**2)
    for (one, first), (other, second) in combinations(zip(CHANNELS, window, strict=True), 2):
        found[f"corr {one} {other}"] = np.corrcoef(first, second)[0, 1]
    return found


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 2e-4)])
@pytest.mark.parametrize("length", [100, 128, 7])
def test_each_statistic_follows_its_definition(dtype, tolerance, length):
    X = windows((6, 3, length), dtype)
    found = by_name(X)
    for number, window in enumerate(X.double().numpy()):
        expected = slow_statistics(window, 50.0)
        assert set(expected) == set(found)
        for name, value in expected.items():
            assert found[name][number] == pytest.approx(value, abs=tolerance, rel=tolerance), name


@given(st.integers(1, 3000))
@steady
def test_bands_cover_every_frequency_once_without_the_mean(length):
    edges = band_edges(length)
    bins = 2 ** int(np.ceil(np.log2(length))) // 2 + 1
    if length == 1:
        assert edges == []
        return
    assert (edges[0], edges[-1]) == (1, bins)
    assert all(first < end for first, end in pairwise(edges))
    assert len(edges) <= 9


def test_band_powers_add_up_to_the_variance():
    X = windows((4, 3, 128))
    powers = sum(np.exp(values) for name, values in by_name(X).items() if name.startswith("power") and "ax" in name)
    # The highest frequency counts twice.
    highest = torch.fft.rfft(X[:, 0], dim=1)[:, -1].abs().square().numpy() / 128**2
    np.testing.assert_allclose(powers, X[:, 0].var(dim=1, correction=0).numpy() + highest, rtol=1e-9)


# ------------------------------------------------------------------------------------ contract


def hard_windows(dtype: torch.dtype, length: int, channels: int) -> dict[str, Tensor]:
    X = windows((4, 3, 200), dtype)[:, :channels, :length]
    return {
        "usual": X,
        "constant": torch.full_like(X, 5.0),
        "zero": torch.zeros_like(X),
        "one silent channel": torch.cat([X[:, 1:], torch.zeros_like(X[:, :1])], dim=1),
        "huge": X * 1e15,
        "tiny": X * 1e-20,
        "far": X + 1e6,
        "a click": torch.cat([X[:, :, :-1], torch.full_like(X[:, :, :1], 1e12)], dim=2),
        "two values": (X > 0).to(dtype),
    }


class StatisticContract:
    """What every statistic keeps; a subclass sets `name`, an entry of `STATISTICS`."""

    name: str

    def of(self, X: Tensor) -> Tensor:
        return STATISTICS[self.name](Signals(X)).double().flatten(1)

    @pytest.mark.parametrize(("channels", "length"), [(1, 1), (3, 2), (3, 50)])
    def test_it_is_finite_with_one_column_per_name(self, channels, length):
        names = statistic_names(CHANNELS[:channels], length)
        own = [name for name in names if name.split()[0] == self.name]
        for kind, X in hard_windows(torch.float32, length, channels).items():
            values = self.of(X)
            assert values.shape == (len(X), len(own)), kind
            assert bool(torch.isfinite(values).all()), kind

    def test_an_offset_changes_it_as_stated(self):
        X, offset = windows(), 1e4
        expected = self.of(X) + OFFSETS.get(self.name, 0) * offset
        torch.testing.assert_close(self.of(X + offset), expected, rtol=1e-8, atol=1e-8)

    @pytest.mark.parametrize("factor", [1e-20, 1e15])
    def test_a_factor_changes_it_as_stated(self, factor):
        X, law = windows(), SCALES.get(self.name, 0)
        expected = self.of(X) * factor if law == "linear" else self.of(X) + law * np.log(factor)
        torch.testing.assert_close(
            self.of(X * factor), expected, rtol=1e-6, atol=1e-6 * factor if law == "linear" else 1e-6
        )

    def test_windows_do_not_depend_on_each_other(self):
        X = windows()
        torch.testing.assert_close(torch.cat([self.of(X[row : row + 1]) for row in range(len(X))]), self.of(X))

    def test_float32_suffices_however_far_from_zero_the_signal_is(self):
        X = (windows(dtype=torch.float32) + 1000).double()  # rounded like float32
        exact, narrow = self.of(X), self.of(X.float())
        torch.testing.assert_close(narrow, exact, rtol=1e-4, atol=1e-4)

    def test_rounding_stays_below_its_bound(self):
        if self.name not in IN_UNITS:
            centred = windows((50, 3, 1000)) - 3
            z = (centred - centred.mean(dim=2, keepdim=True)) / centred.std(dim=2, keepdim=True)
            error = self.of(z.float()) - self.of(z.float().double())
            assert float(error.std(dim=0).max()) < rounding(3, 1000).max() / 2

    def test_a_gpu_gives_the_same(self, device):
        X = windows(dtype=torch.float32)
        values = self.of(X.to(device))
        assert values.device.type == torch.device(device).type
        torch.testing.assert_close(values.cpu(), self.of(X), rtol=1e-4, atol=1e-4)


def _contract_of(name: str) -> type[StatisticContract]:
    return type(f"Test{name.title()}", (StatisticContract,), {"name": name})


# Every entry of STATISTICS has its class of tests.
globals().update({f"Test{name.title()}": _contract_of(name) for name in STATISTICS})


@given(st.integers(1, 5), st.integers(1, 70), st.integers(0, 10**6))
@steady
def test_names_match_columns_for_any_shape(channels, length, seed):
    X = torch.randn(3, channels, length, generator=torch.Generator().manual_seed(seed))
    names = statistic_names([str(number) for number in range(channels)], length)
    assert len(set(names)) == len(names) == window_statistics(X).shape[1] == len(rounding(channels, length))


@pytest.mark.parametrize(("channels", "correlations"), [(32, 496), (33, 0)])
def test_more_than_32_channels_have_no_correlations(channels, correlations):
    names = statistic_names([str(number) for number in range(channels)], 64)
    assert sum(name.startswith("corr ") for name in names) == correlations
    X = torch.randn(3, channels, 64)
    for present in (None, torch.ones(3, channels, 64, dtype=torch.bool)):
        assert window_statistics(X, present).shape == (3, len(names))


# ------------------------------------------------------------------------------------- models


def model_of(X: Any, **parameters: Any) -> CPD:
    return CPD(3, max_sweeps=3, **parameters).fit(X)


def test_features_have_the_statistics_names_and_a_file_gives_them_back(tmp_path):
    X = windows((200, 3, 64)).numpy()
    model = model_of(X)
    model.save(tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors")
    assert list(again.get_feature_names_out()) == ["z1", "z2", "z3", *statistic_names("123", 64)]
    np.testing.assert_array_equal(again.transform(X), model.transform(X))
