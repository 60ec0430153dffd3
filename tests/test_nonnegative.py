"""Non-negative profiles: the solver compared with exact least squares, and the guarantees in every kind of fit."""

from __future__ import annotations

import warnings
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls
from sklearn.exceptions import ConvergenceWarning

from polyadic import ATD, CPD, GRSALS, SALS, load
from polyadic.core.algebra import nonnegative_solve
from polyadic.explain import match
from polyadic.spectral import STFT

FRAMES = STFT(16, 8, parts="log_amplitude", mean="auto")
SIGNALS = np.random.default_rng(0).normal(size=(70, 3, 64)).cumsum(axis=2)
FITS = {
    "moments": lambda: CPD(4),
    "full batch": lambda: SALS(4, batch_size=None),
    "blend": lambda: SALS(4),
    "memory": lambda: SALS(4, solver="memory"),
    "alignment": lambda: ATD(4, beta=0.05, batch_size=128),
    "alignment, full batch": lambda: ATD(4, beta=0.05),
    "graph, full batch": lambda: GRSALS(4, graph_weight=0.1, batch_size=None),
}


def problem(seed: int, size: int = 6, rank: int = 4) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    random = np.random.default_rng(seed)
    K = random.normal(size=(20, rank))
    return tuple(map(torch.from_numpy, (K.T @ K, random.normal(size=(size, 20)) @ K, random.random((size, rank)))))


def value(G: torch.Tensor, M: torch.Tensor, F: torch.Tensor, alpha: float) -> float:
    return float(0.5 * torch.trace(F @ (G + alpha * torch.eye(len(G))) @ F.T) - torch.trace(F @ M.T))


@given(seed=st.integers(0, 10_000), alpha=st.sampled_from([0.0, 1e-3, 1.0]))
def test_many_passes_are_exact_least_squares_and_none_raises_the_objective(seed: int, alpha: float) -> None:
    G, M, start = problem(seed)
    root = np.linalg.cholesky((G + alpha * torch.eye(4)).numpy()).T
    exact = np.stack([nnls(root, np.linalg.solve(root.T, row))[0] for row in M.numpy()])
    np.testing.assert_allclose(nonnegative_solve(G, M, start, alpha, passes=2000), exact, atol=1e-6)
    values = [value(G, M, nonnegative_solve(G, M, start, alpha, passes), alpha) for passes in range(6)]
    assert all(after <= before + 1e-9 * abs(before) for before, after in pairwise(values))


@pytest.mark.parametrize("kind", FITS)
def test_profiles_have_no_entry_below_zero_and_coefficients_have_a_sign(kind: str) -> None:
    model = FITS[kind]().set_params(tensorize=FRAMES, max_sweeps=4, tol=0.0, device="cpu").fit(SIGNALS)
    assert model.nonnegative_ is True
    assert all((factor >= 0).all() for factor in model.factors_)
    assert (model.coefficients(SIGNALS) < 0).any()
    assert np.isfinite(model.transform(SIGNALS)).all()


@pytest.mark.parametrize("kind", ["moments", "full batch"])
def test_planted_factors_are_recovered(kind: str) -> None:
    random = np.random.default_rng(3)
    planted = [random.random((size, 3)) * (random.random((size, 3)) > 0.4) for size in (6, 9, 7)]
    x = random.normal(size=(60, 3))
    T = np.einsum("nr,ir,jr,kr->nijk", x, *planted)
    settings = {"nonnegative": True, "alpha": 1e-9, "max_sweeps": 400, "tol": 1e-8, "random_state": 0}
    model = FITS[kind]().set_params(rank=3, **settings).fit(T)
    assert match(model, planted).score > 0.999


def test_auto_follows_the_tensorizer_and_the_presets_stay_signed() -> None:
    other = STFT(16, 8, parts="log_amplitude")
    for tensorize, expected in ((FRAMES, True), (other, False), (None, False), ("auto", True)):
        assert CPD(2, tensorize=tensorize, max_sweeps=1, device="cpu").fit(SIGNALS).nonnegative_ is expected
    assert CPD(2, tensorize=FRAMES, nonnegative=False, max_sweeps=1).fit(SIGNALS).factors_[0].min() < 0


def test_a_vanishing_component_gives_a_warning_and_breaks_nothing(tmp_path) -> None:
    random = np.random.default_rng(0)
    # One non-negative component and its opposite sign in the coefficients: the others have nothing to do.
    T = np.einsum("n,i,j->nij", random.normal(size=50), random.random(5), random.random(6))
    model = CPD(4, tensorize=None, nonnegative=True, alpha=1.0, max_sweeps=1200, tol=0.0)
    with pytest.warns(ConvergenceWarning, match=r"of 4 components vanished, .* A smaller rank gives the same fit"):
        model.fit(T)
    Z = model.transform(T)
    assert np.isfinite(Z).all()
    model.save(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(load(tmp_path / "m.safetensors").transform(T), Z)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.partial_fit(T)
    assert model.score(T) > 0.5
