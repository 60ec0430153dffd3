"""Numerically difficult data and settings: a fit ends with finite bases and features, or with a clear error."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from problems import paper
from sklearn.exceptions import ConvergenceWarning

from polyadic import ATD, GRSALS, SALS
from polyadic.augment import Jitter
from polyadic.errors import PolyadicError
from polyadic.spectral import STFT

ROWS, CHANNELS, TIME = 12, 3, 32


def plain(rng: np.random.Generator) -> np.ndarray:
    return rng.normal(size=(ROWS, CHANNELS, TIME))


def constant_channel(rng: np.random.Generator) -> np.ndarray:
    X = plain(rng)
    X[:, 1] = 7.0
    return X


def duplicated(rng: np.random.Generator) -> np.ndarray:
    return np.repeat(plain(rng)[:1], ROWS, axis=0)


def uneven_scales(rng: np.random.Generator) -> np.ndarray:
    return plain(rng) * np.array([1e9, 1.0, 1e-9])[:, None]


def some_zero_windows(rng: np.random.Generator) -> np.ndarray:
    X = plain(rng)
    X[::2] = 0.0
    return X


def all_zero(rng: np.random.Generator) -> np.ndarray:
    return np.zeros((ROWS, CHANNELS, TIME))


def rank_one(rng: np.random.Generator) -> np.ndarray:
    return np.einsum("n,i,t->nit", rng.normal(size=ROWS), rng.normal(size=CHANNELS), rng.normal(size=TIME))


def one_number(rng: np.random.Generator) -> np.ndarray:
    return rng.normal(size=(1, 1, 1))


def tiny(rng: np.random.Generator) -> np.ndarray:
    return plain(rng) * 1e-30


def huge(rng: np.random.Generator) -> np.ndarray:
    return plain(rng) * 1e18


ORDINARY = (plain, constant_channel, duplicated, some_zero_windows, all_zero, rank_one, one_number)
DATA = (*ORDINARY, uneven_scales, tiny, huge)
METHODS = {
    "ATD": lambda beta, gamma: {"augment": Jitter(0.05), "beta": beta, "gamma": gamma},
    "SALS": lambda beta, gamma: {},
    "GRSALS": lambda beta, gamma: {"graph_weight": beta},
}
KINDS: dict[str, Any] = {"ATD": ATD, "SALS": SALS, "GRSALS": GRSALS}


OVERFLOW = re.compile(
    r"(G must be finite, but holds NaN or infinity .*: the data or the factors have overflowed; scale the data"
    r"|G must be finite, but holds NaN or infinity .*: with alpha=0 the bases grow .*; a positive alpha .* scale them"
    r"|the features are not finite: the values in X or in the bases are too large; rescale X) or .*float64"
)


def assert_clear(message: str, X: np.ndarray) -> None:
    """The message names a sample that is not finite where there is one, and otherwise what to do about an overflow."""
    infinite = np.flatnonzero(~np.isfinite(X).all(axis=(1, 2)))
    if len(infinite):
        named = re.match(r"X must be finite, but sample (\d+) contains infinity", message)
        assert named, message
        assert int(named[1]) in infinite, message
    else:
        assert OVERFLOW.fullmatch(message), message


def fitted_or_told(model: Any, X: np.ndarray) -> bool:
    """Return whether the fit ended with finite bases and features; if not, its error names the cause and the remedy."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # of a beta that is far too large
            warnings.filterwarnings("ignore", "the .* Gram matrix is singular", RuntimeWarning)
            warnings.filterwarnings("ignore", "the reconstructions of all unlabelled windows are equal", RuntimeWarning)
            features = model.fit(X).transform(X)
    except PolyadicError as error:
        assert_clear(str(error), X)
        return False
    assert all(np.isfinite(factor).all() for factor in model.factors_)
    assert np.isfinite(features).all()
    assert features.shape == (len(X), len(model.get_feature_names_out()))
    return True


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    method=st.sampled_from(sorted(METHODS)),
    data=st.sampled_from(DATA),
    dtype=st.sampled_from([np.float64, np.float32, np.float16]),
    rank=st.sampled_from([1, 4, 40]),
    alpha=st.sampled_from([0.0, 1e-3, 1e6]),
    beta=st.sampled_from([0.0, 2.0, 1e8, 1e300]),
    gamma=st.sampled_from([0.0, 1.0, 1e6]),
    solver=st.sampled_from(["blend", "memory"]),
    batch_size=st.sampled_from([None, 1, 5, 100]),
    frames=st.booleans(),
    seed=st.integers(0, 3),
)
def test_a_fit_ends_finite_or_with_a_clear_error(
    method: str,
    data: Any,
    dtype: Any,
    rank: int,
    alpha: float,
    beta: float,
    gamma: float,
    solver: str,
    batch_size: int | None,
    frames: bool,
    seed: int,
) -> None:
    with np.errstate(over="ignore"):
        X = data(np.random.default_rng(seed)).astype(dtype)
    frames = frames and data is not one_number
    model = paper(
        KINDS[method],
        rank,
        alpha=alpha,
        solver=solver,
        batch_size=batch_size,
        max_sweeps=4,
        tensorize=STFT(16, 8) if frames else None,
        device="cpu",
        random_state=seed,
        **METHODS[method](beta, gamma),
    )
    fitted = fitted_or_told(model, X)
    reasonable = data in ORDINARY and dtype is not np.float16 and beta < 1e6 and gamma < 1e6
    assert fitted or not reasonable, "what is merely unusual must be fitted"


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_kind_of_data_is_fitted_by_every_method(data: Any, method: str) -> None:
    X = data(np.random.default_rng(0))
    given = METHODS[method](2.0, 1.0)
    for solver, size in (("blend", None), ("memory", 5)):
        model = paper(KINDS[method], 4, solver=solver, batch_size=size, max_sweeps=3, device="cpu", **given)
        assert fitted_or_told(model, X)
