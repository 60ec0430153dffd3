"""Readouts against slow oracles: dense reconstructions and their principal components, loops over windows, two passes.

The oracles never use the Gram matrix: a feature is the inner product of a window's dense reconstruction with a pattern.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from polyadic._util import model_files
from polyadic.core.algebra import khatri_rao
from polyadic.core.compression import Compression
from polyadic.core.moments import SAMPLED, Block, Coefficients, Moments
from polyadic.readout import FittedReadout, Readout
from polyadic.statistics import rounding, statistic_names, window_statistics

COUNT = len(statistic_names("abc", 20))


steady = settings(derandomize=True, deadline=None, database=None, max_examples=20)


# ------------------------------------------------------------------------ problems and oracles


@dataclass(frozen=True)
class Problem:
    """Coefficients with their factors and raw windows."""

    factors: list[Tensor]
    x: Tensor
    windows: Tensor
    residuals: Tensor

    @property
    def rank(self) -> int:
        return self.x.shape[1]

    @property
    def patterns(self) -> Tensor:
        """K, the components as columns."""
        return khatri_rao(self.factors)

    @property
    def statistics(self) -> Tensor:
        return window_statistics(self.windows)

    @property
    def reconstructions(self) -> Tensor:
        return self.x @ self.patterns.T


def problem(count: int = 60, sizes: tuple[int, ...] = (3, 4, 5), rank: int = 4, seed: int = 0, spread: float = 1.0):
    """Random factors and correlated coefficients that are far from 0, with channels of unlike level."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    factors = [normal(size, rank) + 0.3 for size in sizes]
    # Variances far enough apart that each axis is well defined.
    scales = torch.linspace(2.0, 0.3, rank, dtype=torch.float64).pow(2)
    x = spread * (normal(count, rank) * scales) @ (torch.eye(rank, dtype=torch.float64) + 0.4 * normal(rank, rank)) + 3
    windows = normal(count, 3, 20) + normal(count, 3, 1) * torch.tensor([[1.0], [5.0], [0.2]]) + 7
    return Problem(factors, x, windows, normal(count).square())


def collected(case: Problem, readout: Readout, batch: int = 17) -> Coefficients:
    count = case.statistics.shape[1] if readout.statistics else 0
    moments = Moments(Compression.none((case.rank,)), len(case.x), count, torch.float64)
    for ids in torch.arange(len(case.x)).split(batch):
        moments.add(Block(ids, case.x[ids], case.residuals[ids], case.statistics[ids][:, :count]))
    moments.finish()
    return moments.coefficients()


def fitted(case: Problem, readout: Readout | None = None) -> FittedReadout:
    readout = Readout() if readout is None else readout
    return readout.fitted(collected(case, readout), case.factors, rounding(*case.windows.shape[1:]))


def spectral(case: Problem, readout: Readout | None = None) -> Tensor:
    """The spectral features of the windows the readout was fitted on: (N, R)."""
    return fitted(case, readout).features(case.x, case.windows)[:, : case.rank]


def dense_features(case: Problem, x: Tensor | None = None) -> np.ndarray:
    """z by its definition: principal components of the dense reconstructions, with patterns of positive sum."""
    T = case.reconstructions.numpy()
    centred = T - T.mean(axis=0)
    _, singular, patterns = np.linalg.svd(centred, full_matrices=False)
    patterns = patterns[: case.rank] * np.where(patterns[: case.rank].sum(axis=1) < 0, -1, 1)[:, None]
    scale = math.sqrt(case.rank / (singular**2).sum() * len(T))
    wanted = T if x is None else (x @ case.patterns.T).numpy()
    return scale * (wanted - T.mean(axis=0)) @ patterns.T


def assert_close(result: Tensor | np.ndarray, expected: Tensor | np.ndarray, tolerance: float = 1e-9) -> None:
    result, expected = np.asarray(result, np.float64), np.asarray(expected, np.float64)
    assert result.shape == expected.shape
    error = np.abs(result - expected).max(initial=0)
    # Not "above the limit": a NaN is above nothing.
    assert error <= tolerance * max(np.abs(expected).max(initial=0), 1e-300), f"differs by up to {error:.1e}"


problems = st.builds(
    problem,
    count=st.integers(30, 80),
    sizes=st.lists(st.integers(2, 4), max_size=3).map(lambda sizes: (7, *sizes)),
    rank=st.integers(1, 6),
    seed=st.integers(0, 10**6),
)


# ------------------------------------------------------------------------------ isometric


@given(problems)
@steady
def test_features_are_scaled_principal_components_of_the_dense_reconstructions(case):
    assert_close(spectral(case), dense_features(case), 1e-7)


def test_weak_components_with_large_coefficients_are_not_lost_to_rounding():
    case = problem()
    gains = torch.tensor([1e-12, 1.0, 1.0, 1e12], dtype=torch.float64)
    moved = replace(case, factors=[case.factors[0] * gains, *case.factors[1:]], x=case.x / gains)
    assert_close(spectral(moved), spectral(case), 1e-7)


def test_a_dead_component_leaves_an_axis_at_zero_and_the_others_unchanged():
    case = problem(rank=3)
    without = spectral(case)
    zero, noise = torch.zeros(3, 1, dtype=torch.float64), problem(seed=5).x[:, :1]
    factors = [torch.cat([case.factors[0], zero], dim=1), *(torch.cat([f, f[:, :1]], dim=1) for f in case.factors[1:])]
    z = spectral(replace(case, factors=factors, x=torch.cat([case.x, noise], dim=1)))
    assert torch.equal(z[:, 3], torch.zeros(len(z), dtype=torch.float64))
    assert_close(z[:, :3], without * math.sqrt(4 / 3))


def test_collinear_components_count_as_one():
    case = problem(rank=3)
    # The third component is the second, twice as strong, in halves: their coefficients add up.
    factors = [torch.cat([factor, factor[:, 1:2]], dim=1) for factor in case.factors]
    factors[0] = factors[0] * torch.tensor([1.0, 1.0, 1.0, -2.0])
    share = problem(seed=3).x[:, :1]
    x = torch.cat([case.x, share], dim=1)
    x[:, 1:2] += 2 * share
    z = spectral(replace(case, factors=factors, x=x))
    assert_close(z[:, :3], spectral(case) * math.sqrt(4 / 3), 1e-7)
    assert torch.equal(z[:, 3], torch.zeros(len(z), dtype=torch.float64))


# ----------------------------------------------------------------------------- statistics


def standardised(statistics: np.ndarray) -> np.ndarray:
    return np.clip((statistics - statistics.mean(axis=0)) / statistics.std(axis=0), -6, 6)


def test_statistics_are_standardised_and_limited_with_the_total_variance_of_the_other_features():
    case = problem()
    case.windows[7, 0, 3] += 1e3  # an outlier, limited to six deviations
    found = fitted(case, Readout(statistics=0.5)).features(case.x, case.windows)[:, case.rank :].numpy()
    expected = standardised(case.statistics.numpy())
    assert np.abs(expected).max() == 6
    assert_close(found, 0.5 * math.sqrt(case.rank / expected.shape[1]) * expected, 1e-8)
    usual = fitted(problem(), Readout(statistics=0.5)).features(problem().x, problem().windows)[:, case.rank :]
    assert float((usual**2).mean(dim=0).sum()) == pytest.approx(0.25 * case.rank, rel=0.02)


@pytest.mark.parametrize("value", [0.0, 1 / 3, 1e5 / 3], ids=["silent", "constant", "large constant"])
def test_statistics_of_a_channel_that_never_changes_are_zero_and_do_not_dilute_the_others(value):
    case = problem()
    case.windows[:, 2] = value
    model = fitted(case)
    features = model.features(case.x, case.windows)[:, case.rank :]
    own = np.array([name.endswith("2") for name in names(3, 20)])
    # The floor of a silent channel's powers follows the loudest channel.
    own &= ~np.array([name.startswith(("power", "std")) for name in names(3, 20)])
    assert not features[:, own].any()
    assert (model.statistic_gain[own] == 0).all()
    assert (model.statistic_scale[own] == 0).all()
    live = model.statistic_scale > 0
    expected = math.sqrt(case.rank / live.sum()) * standardised(case.statistics.numpy()[:, live])
    assert_close(features[:, live], expected, 1e-8)


def test_more_than_256_statistics_are_reduced_to_64_principal_axes():
    case = problem(count=300)
    generator = torch.Generator().manual_seed(1)
    case = replace(case, windows=torch.randn(300, 16, 30, generator=generator, dtype=torch.float64).cumsum(dim=2))
    model = fitted(case, Readout(statistics=0.5))
    features = model.features(case.x, case.windows)[:, case.rank :].numpy()
    z = (case.statistics - case.statistics.mean(dim=0)).numpy() / case.statistics.numpy().std(axis=0)
    _, _, axes = np.linalg.svd(z, full_matrices=False)
    axes = axes[:64] * np.where(axes[:64].sum(axis=1) < 0, -1, 1)[:, None]
    gain = 0.5 * math.sqrt(case.rank / ((z @ axes.T) ** 2).mean(axis=0).sum())
    assert features.shape == (300, 64)
    assert_close(features, gain * np.clip(z, -6, 6) @ axes.T, 1e-7)
    assert model.feature_names(names(16, 30))[case.rank :] == [f"s{number}" for number in range(1, 65)]
    assert "64 axes of " in repr(model)


def names(channels: int, length: int) -> list[str]:
    return statistic_names([str(channel) for channel in range(channels)], length)


# ------------------------------------------------------------------------------- one pass


@given(problems, st.integers(1, 80), st.sampled_from([0.0, 1e3, 1e6]))
@steady
def test_one_pass_in_batches_equals_two_passes_even_far_from_zero(case, batch, offset):
    case = replace(case, x=case.x + offset)
    moments = collected(case, Readout(), batch)
    rows = np.hstack([case.x.numpy(), case.statistics.numpy()])
    assert moments.count == len(rows)
    assert_close(moments.mean, rows.mean(axis=0), 1e-13)
    assert_close(moments.covariance, np.atleast_2d(np.cov(rows.T, bias=True)), 1e-8)


# -------------------------------------------------------------------------------- inverse


@given(problems)
@steady
def test_inverse_gives_back_the_coefficients(case):
    model = fitted(case, Readout())
    x = model.inverse(model.features(case.x, case.windows))
    assert_close(x @ case.patterns.T, case.reconstructions, 1e-8)
    assert_close(x, case.x, 1e-5)


def test_inverse_gives_the_smallest_coefficients_with_the_exact_reconstruction():
    case = problem(rank=3)
    factors = [torch.cat([factor, factor[:, 1:2], 0 * factor[:, :1]], dim=1) for factor in case.factors]
    factors[0] = factors[0] * torch.tensor([1.0, 1.0, 1.0, -3.0, 1.0])
    spare = problem(rank=2, seed=7).x
    case = replace(case, factors=factors, x=torch.cat([case.x, spare], dim=1))
    model = fitted(case, Readout())
    x = model.inverse(model.features(case.x, case.windows))
    K = case.patterns
    assert_close(x @ K.T, case.reconstructions, 1e-8)
    assert_close(x, case.reconstructions @ torch.linalg.pinv(K).T, 1e-7)


# ----------------------------------------------------------------------- unusual windows


@pytest.mark.parametrize("count", [1, SAMPLED + 1, 10 * SAMPLED + 7])
def test_the_sample_is_bounded_and_spread_evenly_over_the_data(count):
    moments = Moments(Compression.none((1,)), count, 1, torch.float64)
    ids = torch.arange(count, dtype=torch.float64)
    moments.add(Block(torch.arange(count), ids[:, None], ids, 2 * ids[:, None]))
    moments.finish()
    sample = moments.coefficients()
    kept, sampled = min(count, SAMPLED), sample.residuals
    assert torch.equal(sample.statistics, 2 * sampled[:, None])
    # One window out of each equal stretch, to one window.
    assert bool((sampled.diff() >= 1).all())
    assert float((sampled - torch.arange(kept) * count / kept).abs().max()) <= count / kept + 1


@pytest.mark.parametrize("readout", [Readout(), Readout(statistics=0.0)])
def test_a_model_file_gives_back_the_same_features(readout, tmp_path: Path):
    case = problem()
    model = fitted(case, readout)
    model_files.write(tmp_path / "m.safetensors", {**model.arrays(), "other": np.zeros(2)}, {})
    arrays, _ = model_files.read(tmp_path / "m.safetensors")
    same = FittedReadout.from_arrays(readout, arrays, rank=4, n_statistics=COUNT)
    features = model.features(case.x, case.windows)
    assert torch.equal(same.features(case.x, case.windows), features)
    assert torch.equal(same.inverse(features), model.inverse(features))
    assert same.readout == readout
    assert same.n_features == len(same.feature_names()) == features.shape[1]
    with pytest.raises(ValueError, match="read-only"):
        same.matrix[...] = 0
