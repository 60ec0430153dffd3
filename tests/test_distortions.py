"""Dropped channels, shifted and scaled windows, and rotations by a limited angle: contracts and distributions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from polyadic.augment import DropChannels, Rotate3D, Scale, Shift
from polyadic.testing import AugmentationContract

TRIADS = ((0, 1, 2), (3, 4, 5), (6, 7, 8))


class TestDropChannels(AugmentationContract):
    augmentation = DropChannels(0.5)


class TestShift(AugmentationContract):
    augmentation = Shift(0.3)


class TestScale(AugmentationContract):
    @pytest.fixture(autouse=True, params=[False, True], ids=["shared", "independent"])
    def _choose(self, request: pytest.FixtureRequest) -> None:
        self.augmentation = Scale(2.0, independent=request.param)


class TestSmallRotations(AugmentationContract):
    augmentation = Rotate3D(TRIADS, degrees=20)


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_channels_are_dropped_with_their_chance_and_keep_their_mean() -> None:
    X = noise(2000, 4, 16) + 3
    view = DropChannels(0.3)(X)
    dropped = (view != X).any(dim=2)
    assert abs(dropped.double().mean().item() - 0.3) < 4 * math.sqrt(0.3 * 0.7 / dropped.numel())
    # Channels are dropped independently: so often both of two.
    assert abs((dropped[:, 0] & dropped[:, 1]).double().mean().item() - 0.09) < 4 * math.sqrt(0.09 * 0.91 / 2000)
    torch.testing.assert_close(view.mean(dim=2), X.mean(dim=2))
    assert (view[dropped].std(dim=1) < 1e-12).all()
    assert torch.equal(DropChannels(0.0)(X), X)


def test_windows_are_shifted_by_every_number_of_samples_up_to_the_most() -> None:
    X = torch.arange(20.0)[None, None].expand(4000, 2, 20).contiguous()
    view = Shift(0.15)(X)
    first = view[:, :, 0]
    assert torch.equal(first[:, 0], first[:, 1])
    steps = (-first[:, 0]).long() % 20
    counts = torch.bincount(torch.where(steps > 10, steps - 20, steps) + 3, minlength=7)
    assert counts.sum() == 4000
    assert len(counts) == 7
    assert (counts.double() / 4000 - 1 / 7).abs().max() < 4 * math.sqrt(1 / 7 * 6 / 7 / 4000)
    for row, step in zip(view[:5, 0], steps[:5].tolist(), strict=True):
        assert torch.equal(row, torch.roll(X[0, 0], step))


@pytest.mark.parametrize("independent", [False, True])
def test_factors_are_uniform_on_a_logarithmic_scale(independent: bool) -> None:
    X = noise(3000, 3, 8)
    ratio = (Scale(4.0, independent=independent)(X) / X).mean(dim=2)
    assert torch.allclose(ratio, ratio[:, :1].expand_as(ratio)) == (not independent)
    assert kstest(np.log(ratio[:, 0].numpy()) / math.log(4), "uniform", (-1, 2)).pvalue > 0.001


@pytest.mark.parametrize("degrees", [10.0, 179.0])
def test_limited_rotations_are_uniform_among_those_within_the_limit(degrees: float) -> None:
    basis = torch.eye(3, dtype=torch.float64).repeat(3, 1)[None].expand(4000, 9, 3).contiguous()
    R = Rotate3D(TRIADS, degrees=degrees)(basis, seed=3)[:, :3]
    torch.testing.assert_close(R @ R.mT, torch.eye(3, dtype=torch.float64).expand_as(R), rtol=0, atol=1e-12)
    angle = torch.arccos(((R.diagonal(dim1=1, dim2=2).sum(dim=1) - 1) / 2).clamp(-1, 1)).numpy()
    limit = math.radians(degrees)
    assert angle.max() <= limit + 1e-6
    assert kstest(angle, lambda x: (x - np.sin(x)) / (limit - math.sin(limit))).pvalue > 0.001
    axis = torch.stack([R[:, 2, 1] - R[:, 1, 2], R[:, 0, 2] - R[:, 2, 0], R[:, 1, 0] - R[:, 0, 1]], dim=1)
    axis /= axis.norm(dim=1, keepdim=True)
    for part in axis.T.numpy():  # each coordinate of a uniform point on the sphere is uniform
        assert kstest(part, "uniform", (-1, 2)).pvalue > 0.001
