"""Contract tests for tensorizers: inherit from the class and set the tensorizer to test.

They check what a fit relies on: the tensor of a window depends on that window alone, is finite and has a fixed shape,
and the metadata of the tensorizer (shape, axes, description) are correct.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from polyadic.core import persist
from polyadic.core.tensorizer import Tensorizer, tensor_shape
from polyadic.estimators import CPD
from polyadic.testing.augmentation import FLOATS, example_windows

__all__ = ["TensorizerContract"]


class TensorizerContract:
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

    def windows(self, dtype: torch.dtype = torch.float64) -> Tensor:
        """Return the test batch, on the CPU: (windows, channels, time)."""
        return example_windows(self.shape, dtype)

    def calibrated(self) -> Tensorizer:
        """Return the tensorizer, calibrated as in a fit."""
        return self.tensorizer.calibrated(self.windows())

    def test_every_window_becomes_a_finite_real_tensor(self) -> None:
        tensorizer, X = self.calibrated(), self.windows()
        kinds = {"noise": X, "silence": 0 * X, "a constant": 0 * X + 3, "volts": 1e-6 * X}
        for name, windows in kinds.items():
            for dtype in FLOATS:
                T = tensorizer.transform(windows.to(dtype))
                assert isinstance(T, Tensor), f"{name} became a {type(T).__name__}"
                assert T.ndim >= 2, f"{name} became a tensor of shape {tuple(T.shape)}"
                assert len(T) == len(X), f"{len(X)} windows became {len(T)} tensors"
                assert T.dtype == dtype, f"{name} in {dtype} became {T.dtype}"
                assert bool(torch.isfinite(T).all()), f"{name} in {dtype} became NaN or infinite"

    def test_a_window_becomes_the_same_tensor_whatever_its_batch(self) -> None:
        tensorizer, X = self.calibrated(), self.windows()
        T = tensorizer.transform(X)
        alone = torch.cat([tensorizer.transform(X[row : row + 1]) for row in range(len(X))])
        assert torch.allclose(alone, T, rtol=1e-9, atol=1e-9), "a tensor depends on the other windows of its batch"
        assert torch.allclose(tensorizer.transform(X.flip(0)).flip(0), T, rtol=1e-9, atol=1e-9), "it depends on order"

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
        given = None if persist.encode(self.tensorizer)["type"] == self.tensorizer.type_name() else self.tensorizer
        again = persist.load(path, tensorize=given)
        assert np.array_equal(again.transform(X), model.transform(X)), "a loaded model gives different features"
