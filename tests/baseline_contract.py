"""What every baseline must do, of the library and of the paper: a base class of tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone

from polyadic.baselines import Baseline


class BaselineContract:
    """Tests of a baseline; a subclass sets `baseline`, with settings that train quickly.

    Attributes
    ----------
    baseline : the baseline to test; it is cloned before it is fitted
    shape : (windows, …) of the test input; every baseline gets the labels, of two classes
    tolerance : maximum difference of features, relative to the largest, if only the batch size differs
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
            type(self)._kept = self._fit()
        return type(self)._kept

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
        # Convolutions on GPUs round their inputs to 10 bits (TF32).
        self._assert_close(other.transform(self.windows()), self.fitted().transform(self.windows()), 5e-3)
