"""Dropped channels, shifted and scaled windows: contracts and distributions."""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.stats import kstest

from polyadic.augment import DropChannels, Scale, Shift
from polyadic.testing import AugmentationContract


class TestDropChannels(AugmentationContract):
    augmentation = DropChannels(0.5)


class TestShift(AugmentationContract):
    augmentation = Shift(0.3)


class TestScale(AugmentationContract):
    augmentation = Scale(2.0)


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


def test_factors_are_uniform_on_a_logarithmic_scale() -> None:
    X = noise(3000, 3, 8)
    ratio = (Scale(4.0)(X) / X).mean(dim=2)
    assert torch.allclose(ratio, ratio[:, :1].expand_as(ratio))
    assert kstest(np.log(ratio[:, 0].numpy()) / math.log(4), "uniform", (-1, 2)).pvalue > 0.001
