"""Contract tests for augmentations and pairings: inherit from the class and set what to test.

They check what training relies on: the augmentation of a window depends only on (seed, sweep, window id); its partner
is another window of the same recording and depends only on the index.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from polyadic._util.random_streams import window_keys
from polyadic.augment import Augmentation, Pairing, WindowIndex

__all__ = ["FLOATS", "AugmentationContract", "PairingContract", "example_windows"]

FLOATS = (torch.float32, torch.float64)


def example_windows(shape: tuple[int, int, int], dtype: torch.dtype) -> Tensor:
    """Return windows (windows, channels, time), on the CPU: a slow wave, noise and an offset on each channel."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(shape, generator=generator, dtype=torch.float64)
    phase, offset = torch.rand((2, *shape[:2], 1), generator=generator, dtype=torch.float64)
    X: Tensor = torch.sin(torch.arange(shape[2], dtype=torch.float64) / 10 + 6 * phase) + 0.5 * noise + offset
    return X.to(dtype)


class AugmentationContract:
    """A base class of pytest tests; a subclass sets `augmentation`, as an attribute or a fixture.

    Attributes
    ----------
    augmentation : the augmentation to test
    shape : (windows, channels, time) of the test batches

    Examples
    --------
    >>> from polyadic._util.random_streams import uniform
    >>> class Flip(Augmentation):
    ...     def apply(self, X, keys):
    ...         return torch.where(uniform(keys, (1, 1)) < 0.5, X, -X)
    >>> class TestFlip(AugmentationContract):
    ...     augmentation = Flip()
    >>> TestFlip().test_input_is_not_changed()
    """

    augmentation: Augmentation
    shape: tuple[int, int, int] = (16, 9, 160)

    def windows(self, dtype: torch.dtype = torch.float64) -> Tensor:
        """Return the test batch, on the CPU: (windows, channels, time)."""
        return example_windows(self.shape, dtype)

    def _apply(self, X: Tensor) -> Tensor:
        """Return the raw output of the augmentation, before validation."""
        return self.augmentation.apply(X, window_keys(0, 0, torch.arange(len(X))).to(X.device))

    def test_shape_type_and_device_stay_the_same(self) -> None:
        for device in ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]:
            for dtype in FLOATS:
                X = self.windows(dtype).to(device)
                result, expected = [(tuple(Y.shape), Y.dtype, Y.device) for Y in (self._apply(X), X)]
                assert result == expected, f"a batch {expected} became {result}"

    def test_finite_windows_stay_finite(self) -> None:
        X = self.windows()
        spike = torch.zeros_like(X)
        spike[..., X.shape[2] // 2] = 1.0
        kinds = {"noise": X, "silence": 0 * X, "a constant": 0 * X + 3, "a spike": spike, "volts": 1e-6 * X}
        for name, windows in kinds.items():
            for dtype in FLOATS:
                result = self._apply(windows.to(dtype))
                assert bool(torch.isfinite(result).all()), f"{name} in {dtype} became NaN or infinite"

    def test_single_and_double_precision_agree(self) -> None:
        single = self.augmentation(self.windows(torch.float32))
        _assert_close(single, self.augmentation(self.windows(torch.float32).double()), 1000)

    def test_input_is_not_changed(self) -> None:
        X = self.windows()
        self.augmentation(X)
        assert torch.equal(X, self.windows()), "the input was changed"

    def test_memory_layout_of_the_input_does_not_matter(self) -> None:
        X = self.windows()
        time_first = X.permute(2, 1, 0).contiguous().permute(2, 1, 0)
        every_other_sample = torch.stack([X, -X], dim=3).flatten(2)[..., ::2]
        repeated = X[:1].expand_as(X)
        for view in (time_first, every_other_sample, repeated):
            _assert_close(self.augmentation(view), self.augmentation(view.contiguous()), 100)

    def test_same_seed_sweep_and_ids_give_the_same_result(self) -> None:
        X, ids = self.windows(), self._ids()
        first = self.augmentation(X, ids, seed=3, sweep=5)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            before = torch.get_rng_state()
            second = self.augmentation(X, ids, seed=3, sweep=5)
            assert torch.equal(torch.get_rng_state(), before), "torch's global random state was changed"
        assert torch.equal(first, second), "two identical calls gave different results"

    def test_another_seed_sweep_or_window_id_gives_another_result(self) -> None:
        X = self.windows()[:1].repeat(self.shape[0], 1, 1)
        result = self.augmentation(X)
        assert not torch.equal(result, result[:1].expand_as(result)), "all windows got the same augmentation"
        for other in (self.augmentation(X, seed=1), self.augmentation(X, sweep=1), self.augmentation(X, self._ids())):
            assert not torch.equal(result, other)

    def test_rest_of_the_batch_does_not_matter(self) -> None:
        for dtype in FLOATS:
            X, ids = self.windows(dtype), self._ids()
            expected = self.augmentation(X, ids, seed=2, sweep=1)
            single = [self.augmentation(X[n : n + 1], ids[n : n + 1], seed=2, sweep=1) for n in range(len(X))]
            _assert_close(torch.cat(single), expected, 100)
            order = torch.arange(len(X)).roll(3).flip(0)
            _assert_close(self.augmentation(X[order], ids[order], seed=2, sweep=1), expected[order], 100)
            half = len(X) // 2
            others = torch.cat([X[:half], 100 * X[half:].flip(2)])
            _assert_close(self.augmentation(others, ids, seed=2, sweep=1)[:half], expected[:half], 100)

    def test_cpu_and_cuda_agree(self) -> None:
        if not torch.cuda.is_available():
            pytest.skip("no CUDA device")
        for dtype in FLOATS:
            X, ids = self.windows(dtype), self._ids()
            expected = self.augmentation(X, ids, seed=1, sweep=2)
            for keys in (ids, ids.cuda()):
                _assert_close(self.augmentation(X.cuda(), keys, seed=1, sweep=2).cpu(), expected, 1000)

    def _ids(self) -> Tensor:
        """Return window ids as in a shuffled batch: neither sorted nor starting at 0."""
        return (torch.arange(self.shape[0]) * 7919 + 17) % 1_000_003


def _assert_close(result: Tensor, expected: Tensor, rounding_errors: int) -> None:
    """Assert equality up to rounding errors of the coarser type at the largest value of each window."""
    assert result.shape == expected.shape, f"shape {tuple(result.shape)} instead of {tuple(expected.shape)}"
    eps = max(torch.finfo(Y.dtype).eps for Y in (result, expected))
    largest = expected.double().abs().flatten(1).amax(dim=1)
    error = (result.double() - expected.double()).abs().flatten(1).amax(dim=1)
    # Not "any above the limit": comparisons with NaN are false.
    assert bool((error <= rounding_errors * eps * largest).all()), (
        f"windows differ by up to {float((error / largest).max()):.1e} of their largest value"
    )


class PairingContract:
    """A base class of pytest tests; a subclass sets `pairing`, as an attribute or a fixture.

    Attributes
    ----------
    pairing : the pairing to test

    Examples
    --------
    >>> from polyadic.augment import Neighbour
    >>> class TestNeighbour(PairingContract):
    ...     pairing = Neighbour()
    >>> TestNeighbour().test_partners_are_other_windows_of_the_same_recording()
    """

    pairing: Pairing

    def index(self) -> WindowIndex:
        """Return the test windows, shuffled: half-overlapping ones of three recordings, and some without a position."""
        recording = np.repeat([0, 1, 5, -1, 2], [30, 20, 10, 3, 3])
        start = np.concatenate([np.arange(count) * 50 for count in (30, 20, 10, 3, 3)])
        start[-3:] = -1
        order = np.random.default_rng(0).permutation(len(recording))
        return WindowIndex(recording[order], start[order], length=100, fs=100.0)

    def _partners(self) -> tuple[WindowIndex, Tensor, Tensor]:
        index = self.index()
        ids = torch.arange(len(index))
        return index, ids, self.pairing.partners(index, ids)

    def test_partners_are_numbers_of_windows_or_minus_one(self) -> None:
        index, ids, partners = self._partners()
        assert partners.dtype == torch.int64, f"partners have type {partners.dtype}"
        assert partners.shape == ids.shape, f"{len(ids)} windows have partners of shape {tuple(partners.shape)}"
        assert -1 <= int(partners.min()) <= int(partners.max()) < len(index)
        assert self.pairing.partners(index, ids[:0]).shape == (0,)

    def test_partners_are_other_windows_of_the_same_recording(self) -> None:
        index, ids, partners = self._partners()
        paired = (partners >= 0).numpy()
        assert bool(paired.any()), "no window has a partner"
        assert not bool((partners == ids).any()), "a window is its own partner"
        same = index.recording[partners.numpy()[paired]] == index.recording[paired]
        assert bool(same.all()), "partners are of different recordings"

    def test_windows_without_recording_or_start_have_no_partner(self) -> None:
        index, _, partners = self._partners()
        unknown = np.flatnonzero((index.recording < 0) | (index.start < 0))
        assert bool((partners.numpy()[unknown] == -1).all())
        assert not np.isin(partners.numpy(), unknown).any()

    def test_partners_depend_on_the_index_alone(self) -> None:
        index, ids, partners = self._partners()
        assert torch.equal(self.pairing.partners(self.index(), ids), partners)
        for part in (ids[:7], ids[7:9], ids.flip(0), ids[::3]):
            assert torch.equal(self.pairing.partners(index, part), partners[part])

    def test_ids_and_index_are_not_changed(self) -> None:
        index, ids, _ = self._partners()
        assert torch.equal(ids, torch.arange(len(index))), "the ids were changed"
        for name in ("recording", "start"):
            assert np.array_equal(getattr(index, name), getattr(self.index(), name)), "the index was changed"
