"""Contract tests for augmentations, tensorizers and baselines of your own: subclass one to run its tests with pytest.

They check what training and comparisons rely on: the augmentation of a window depends only on (seed, sweep, window id),
its tensor and its features on that window alone, and the same seed gives the same result.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from torch import Tensor

from polyadic._util.random_streams import window_keys
from polyadic.augment import Augmentation
from polyadic.baselines import Baseline
from polyadic.core.tensorizer import Tensorizer, tensor_shape
from polyadic.estimators import CPD, load

__all__ = ["AugmentationContract", "BaselineContract", "TensorizerContract"]

_FLOATS = (torch.float32, torch.float64)
# Convolutions on GPUs round their inputs to 10 bits (TF32).
_GPU_TOLERANCE = 5e-3


class _WindowContract:
    shape: tuple[int, int, int]

    def windows(self, dtype: torch.dtype = torch.float64) -> Tensor:
        """Return the test batch, on the CPU: a slow wave, noise and an offset on each channel."""
        generator = torch.Generator().manual_seed(0)
        noise = torch.randn(self.shape, generator=generator, dtype=torch.float64)
        phase, offset = torch.rand((2, *self.shape[:2], 1), generator=generator, dtype=torch.float64)
        time = torch.arange(self.shape[2], dtype=torch.float64)
        X: Tensor = torch.sin(time / 10 + 6 * phase) + 0.5 * noise + offset
        return X.to(dtype)


def _kinds(X: Tensor) -> dict[str, Tensor]:
    """Return windows that are hard to keep finite, by name."""
    spike = torch.zeros_like(X)
    spike[..., X.shape[2] // 2] = 1.0
    return {"noise": X, "silence": 0 * X, "a constant": 0 * X + 3, "a spike": spike, "volts": 1e-6 * X}


class AugmentationContract(_WindowContract):
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

    def _apply(self, X: Tensor) -> Tensor:
        """Return the raw output of the augmentation, before validation."""
        return self.augmentation.apply(X, window_keys(0, 0, torch.arange(len(X))).to(X.device))

    def _ids(self) -> Tensor:
        """Return window ids as in a shuffled batch: neither sorted nor starting at 0."""
        return (torch.arange(self.shape[0]) * 7919 + 17) % 1_000_003

    def test_shape_type_and_device_stay_the_same(self) -> None:
        for device in ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]:
            for dtype in _FLOATS:
                X = self.windows(dtype).to(device)
                result, expected = [(tuple(Y.shape), Y.dtype, Y.device) for Y in (self._apply(X), X)]
                assert result == expected, f"a batch {expected} became {result}"

    def test_finite_windows_stay_finite(self) -> None:
        for name, windows in _kinds(self.windows()).items():
            for dtype in _FLOATS:
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
        view = self.windows().permute(2, 1, 0).contiguous().permute(2, 1, 0)
        _assert_close(self.augmentation(view), self.augmentation(self.windows()), 100)

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
        X, ids = self.windows(), self._ids()
        expected = self.augmentation(X, ids, seed=2, sweep=1)
        single = [self.augmentation(X[n : n + 1], ids[n : n + 1], seed=2, sweep=1) for n in range(len(X))]
        _assert_close(torch.cat(single), expected, 100)
        half = len(X) // 2
        others = torch.cat([X[:half], 100 * X[half:].flip(2)])
        _assert_close(self.augmentation(others, ids, seed=2, sweep=1)[:half], expected[:half], 100)

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
    def test_cpu_and_cuda_agree(self) -> None:
        X, ids = self.windows(), self._ids()
        expected = self.augmentation(X, ids, seed=1, sweep=2)
        _assert_close(self.augmentation(X.cuda(), ids, seed=1, sweep=2).cpu(), expected, 1000)


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


class TensorizerContract(_WindowContract):
    """A base class of pytest tests; a subclass sets `tensorizer`, as an attribute or a fixture.

    Attributes
    ----------
    tensorizer : the tensorizer to test, uncalibrated; the tests calibrate it on `windows`
    shape : (windows, channels, time) of the test batches

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Halves(Tensorizer):
    ...     def transform(self, X):
    ...         return X.reshape(*X.shape[:2], 2, -1)
    >>> class TestHalves(TensorizerContract):
    ...     tensorizer = Halves()
    >>> TestHalves().test_input_is_not_changed()
    """

    tensorizer: Tensorizer
    shape: tuple[int, int, int] = (12, 3, 160)

    def calibrated(self) -> Tensorizer:
        """Return the tensorizer, calibrated as in a fit."""
        return self.tensorizer.calibrated(self.windows())

    def test_every_window_becomes_a_finite_real_tensor(self) -> None:
        tensorizer, X = self.calibrated(), self.windows()
        for name, windows in _kinds(X).items():
            for dtype in _FLOATS:
                T = tensorizer.transform(windows.to(dtype))
                assert isinstance(T, Tensor), f"{name} became a {type(T).__name__}"
                assert T.ndim >= 2, f"{name} became a tensor of shape {tuple(T.shape)}"
                assert len(T) == len(X), f"{len(X)} windows became {len(T)} tensors"
                assert T.dtype == dtype, f"{name} in {dtype} became {T.dtype}"
                assert bool(torch.isfinite(T).all()), f"{name} in {dtype} became NaN or infinite"

    def test_a_window_becomes_the_same_tensor_whatever_its_batch(self) -> None:
        tensorizer, X = self.calibrated(), self.windows()
        alone = torch.cat([tensorizer.transform(X[row : row + 1]) for row in range(len(X))])
        same = torch.allclose(alone, tensorizer.transform(X), rtol=1e-9, atol=1e-9)
        assert same, "a tensor depends on the other windows of its batch"

    def test_input_is_not_changed(self) -> None:
        tensorizer, X = self.calibrated(), self.windows()
        tensorizer.transform(X)
        assert torch.equal(X, self.windows()), "the input was changed"

    def test_into_fills_what_transform_returns(self) -> None:
        tensorizer, X = self.calibrated(), self.windows()
        expected = tensorizer.transform(X)
        T = torch.full_like(expected, torch.nan)
        squares = tensorizer.into(X, T)
        assert torch.allclose(T, expected, rtol=1e-9, atol=1e-9), "into and transform give different tensors"
        if squares is not None:
            assert torch.allclose(squares, T.flatten(1).square().sum(dim=1)), "into gives wrong squared norms"

    def test_shape_and_axes_fit_the_tensors(self) -> None:
        tensorizer, X = self.calibrated(), self.windows()
        came = tuple(tensorizer.transform(X[:1]).shape[1:])
        said = tensorizer.shape(*self.shape[1:])
        assert said in (None, came), f"shape says {said}, but tensors have {came}"
        assert tensor_shape(tensorizer, X[:1]) == came
        labels = tuple(f"channel {number}" for number in range(self.shape[1]))
        for fs in (100.0, None):
            axes = tensorizer.axes(self.shape[1:], list(labels), fs)
            if axes is not None:
                entries = tuple(len(axis.parts) * len(axis.positions) for axis in axes)
                assert entries == came, f"axes have {entries} entries, but tensors have {came}"
                assert all(axis.labels == labels for axis in axes if axis.kind == "channel"), "channels are not named"

    def test_it_is_calibrated_once(self) -> None:
        tensorizer, X = self.calibrated(), self.windows()
        assert tensorizer.is_calibrated, "calibrated returns a tensorizer that is not calibrated"
        again = tensorizer.calibrated(1000 * X)
        assert torch.equal(again.transform(X), tensorizer.transform(X)), "a calibrated tensorizer was calibrated again"

    def test_a_model_is_fitted_saved_and_loaded_with_it(self, tmp_path: Path) -> None:
        X, path = self.windows().numpy(), tmp_path / "model.safetensors"
        model = CPD(rank=2, tensorize=self.tensorizer, max_sweeps=2, device="cpu").fit(X)
        model.save(path)
        again = load(path)
        assert np.array_equal(again.transform(X), model.transform(X)), "a loaded model gives different features"


class BaselineContract:
    """A base class of pytest tests; a subclass sets `baseline`, with settings that train quickly.

    Attributes
    ----------
    baseline : the baseline to test; it is cloned before it is fitted
    shape : (windows, …) of the test input; every baseline gets the labels, of two classes
    tolerance : maximum difference of features, relative to the largest, if only the batch size differs

    Examples
    --------
    >>> from polyadic.baselines import PCAFeatures
    >>> class TestPCA(BaselineContract):
    ...     baseline = PCAFeatures(dim=4)
    >>> TestPCA().test_features_of_a_window_do_not_depend_on_other_windows()
    """

    baseline: Baseline
    shape: tuple[int, ...] = (24, 3, 64)
    tolerance: float = 1e-4

    def windows(self) -> np.ndarray:
        """Return the test input, float32: noise, and a wave in every other window."""
        X = np.random.default_rng(0).normal(size=self.shape)
        X[::2] += 2 * np.sin(np.arange(self.shape[-1]) / 2)
        return X.astype(np.float32)

    def fitted(self) -> Any:
        """Return the baseline, fitted once for all tests, which must not modify it."""
        if "_kept" not in vars(type(self)):
            type(self)._kept = self._fit()  # type: ignore[attr-defined]
        return type(self)._kept  # type: ignore[attr-defined]

    def _fit(self) -> Any:
        labels = np.array(["still", "wave"])[(np.arange(self.shape[0]) + 1) % 2]
        return clone(self.baseline).fit(self.windows(), labels)

    def _assert_close(self, result: np.ndarray, expected: np.ndarray, least: float = 0.0) -> None:
        tolerance = max(self.tolerance, least) * np.abs(expected).max()
        np.testing.assert_allclose(result, expected, rtol=0, atol=tolerance)

    def test_parameters_are_stored_as_they_are_given(self) -> None:
        given = self.baseline.get_params(deep=False)
        assert {"device", "random_state"} <= set(given)
        model = type(self.baseline)(**given)
        assert all(value is given[name] for name, value in model.get_params(deep=False).items())

    def test_same_seed_gives_the_same_model_whatever_the_global_random_state(self) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(20_221)
            before = torch.get_rng_state()
            Z = self._fit().transform(self.windows())
            assert torch.equal(torch.get_rng_state(), before), "torch's global random state was changed"
        assert np.array_equal(Z, self.fitted().transform(self.windows())), "two fits gave different features"

    def test_features_are_finite_numbers_one_row_for_each_window_whatever_its_type(self) -> None:
        X, model = self.windows(), self.fitted()
        Z = model.transform(X)
        assert Z.shape == (self.shape[0], len(model.get_feature_names_out()))
        assert np.isfinite(Z).all()
        assert Z.std(axis=0).max() > 0, "all windows have the same features"
        assert np.array_equal(X, self.windows()), "the input was changed"
        tensor = model.transform(torch.from_numpy(X))
        assert isinstance(tensor, torch.Tensor)
        self._assert_close(tensor.numpy(), Z)
        self._assert_close(model.transform(X.astype(np.float64)), Z)

    def test_features_of_a_window_do_not_depend_on_other_windows(self) -> None:
        X, model = self.windows(), self.fitted()
        Z = model.transform(X)
        self._assert_close(model.transform(X[:1]), Z[:1])
        changed = np.concatenate([X[:5], -3 * X[5:]])
        self._assert_close(model.transform(changed)[:5], Z[:5])

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
    def test_cpu_and_cuda_agree(self) -> None:
        other = self._fit().set_params(device="cuda")
        self._assert_close(other.transform(self.windows()), self.fitted().transform(self.windows()), _GPU_TOLERANCE)
