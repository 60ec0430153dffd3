"""Contract tests for baselines: inherit from the class and set the baseline to test.

They check what a comparison relies on: the same seed gives the same features, the features of a window depend on that
window alone, and a model file restores what was saved.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone

from polyadic._util import model_files
from polyadic.baselines.base import Baseline
from polyadic.core.persist import load
from polyadic.errors import ModelFileError

__all__ = ["BaselineContract"]

# Convolutions on GPUs round their inputs to 10 bits (TF32).
_GPU_TOLERANCE = 5e-3


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
        rng = np.random.default_rng(0)
        X = rng.normal(size=self.shape)
        X[::2] += 2 * np.sin(np.arange(self.shape[-1]) / 2)
        return X.astype(np.float32)

    def labels(self) -> np.ndarray:
        """Return the classes of the windows: (windows,)."""
        return np.array(["still", "wave"])[(np.arange(self.shape[0]) + 1) % 2]

    def fitted(self) -> Any:
        """Return the baseline, fitted once for all tests, which must not modify it."""
        if "_kept" not in vars(type(self)):
            type(self)._kept = self._fit(self.windows())  # type: ignore[attr-defined]
        return type(self)._kept  # type: ignore[attr-defined]

    def _fit(self, X: Any) -> Any:
        return clone(self.baseline).fit(X, self.labels())

    def test_parameters_are_stored_as_they_are_given(self) -> None:
        given = self.baseline.get_params(deep=False)
        assert {"tensorize", "device", "random_state"} <= set(given)
        model = type(self.baseline)(**given)
        X = self.windows()
        assert model.fit(X, self.labels()) is model
        assert all(value is given[name] for name, value in model.get_params(deep=False).items())
        assert np.array_equal(X, self.windows()), "the input was changed"

    def test_same_seed_gives_the_same_model_whatever_the_global_random_state(self) -> None:
        kept = np.random.get_state()  # noqa: NPY002
        expected = self.fitted().transform(self.windows())
        with torch.random.fork_rng():
            torch.manual_seed(20_221)
            np.random.seed(20_221)  # noqa: NPY002
            torch_state, numpy_state = torch.get_rng_state(), str(np.random.get_state())  # noqa: NPY002
            Z = self._fit(self.windows()).transform(self.windows())
            assert torch.equal(torch.get_rng_state(), torch_state), "torch's global random state was changed"
            assert str(np.random.get_state()) == numpy_state, "numpy's global random state was changed"  # noqa: NPY002
        np.random.set_state(kept)  # noqa: NPY002
        assert np.array_equal(Z, expected), "two fits gave different features"

    def test_features_are_finite_numbers_one_row_for_each_window(self) -> None:
        X = self.windows()
        Z = self.fitted().transform(X)
        assert isinstance(Z, np.ndarray)
        assert Z.shape == (self.shape[0], len(self.fitted().get_feature_names_out()))
        assert Z.dtype.kind == "f"
        assert np.isfinite(Z).all()
        assert Z.std(axis=0).max() > 0, "all windows have the same features"
        assert np.array_equal(X, self.windows()), "the input was changed"
        assert np.array_equal(self.fitted().transform(X), Z), "two identical calls gave different features"

    def test_kind_and_precision_of_the_input_do_not_matter(self, tmp_path: Path) -> None:
        X = self.windows()
        expected = self.fitted().transform(X)
        tensor = self.fitted().transform(torch.from_numpy(X))
        assert isinstance(tensor, torch.Tensor)
        self._assert_close(tensor.numpy(), expected)
        self._assert_close(self.fitted().transform(X.astype(np.float64)), expected)
        np.save(tmp_path / "windows.npy", X)
        self._assert_close(self._fit(np.load(tmp_path / "windows.npy", mmap_mode="r")).transform(X), expected)

    def test_features_of_a_window_do_not_depend_on_other_windows(self) -> None:
        X = self.windows()
        Z = self.fitted().transform(X)
        self._assert_close(self.fitted().transform(X[:1]), Z[:1])
        self._assert_close(self.fitted().transform(X[::-1]), Z[::-1])
        changed = np.concatenate([X[:5], -3 * X[5:]])
        self._assert_close(self.fitted().transform(changed)[:5], Z[:5])

    def test_cpu_and_cuda_agree(self) -> None:
        if not torch.cuda.is_available():
            pytest.skip("no CUDA device")
        other = self._fit(self.windows()).set_params(device="cuda")
        self._assert_close(other.transform(self.windows()), self.fitted().transform(self.windows()), _GPU_TOLERANCE)

    def test_file_gives_back_what_was_saved(self, tmp_path: Path) -> None:
        model, X = self.fitted(), self.windows()
        model.save(tmp_path / "model.safetensors")
        same = load(tmp_path / "model.safetensors")
        assert type(same) is type(model)
        assert np.array_equal(same.transform(X), model.transform(X))
        assert (same.n_parameters_, same.history_, same.seed_) == (model.n_parameters_, model.history_, model.seed_)

    def test_damaged_files_are_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "model.safetensors"
        self.fitted().save(path)
        arrays, header = model_files.read(path)
        for name in [name for name, array in arrays.items() if array.dtype.kind == "f"][:1]:
            damaged = {**arrays, name: np.full_like(arrays[name], np.nan)}
            for wrong in (damaged, {other: array for other, array in arrays.items() if other != name}):
                model_files.write(path, wrong, header)
                with pytest.raises(ModelFileError):
                    load(path)

    def _assert_close(self, result: np.ndarray, expected: np.ndarray, least: float = 0.0) -> None:
        assert result.shape == expected.shape, f"shape {result.shape} instead of {expected.shape}"
        error = np.abs(result.astype(np.float64) - expected).max()
        # Not "above the limit": comparisons with NaN are false.
        assert error <= max(self.tolerance, least) * np.abs(expected).max(), f"features differ by up to {error:.1e}"
