"""UMLDA and STL compared with searches and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from problems import classes_of_tensors
from scipy.special import softmax
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression

from paper.baselines import STL, UMLDA
from paper.baselines.stl import _Problem
from polyadic.spectral import STFT
from polyadic.testing import BaselineContract

FRAMES = STFT(n_fft=16, hop=8)


class TestUMLDAKeepsTheContract(BaselineContract):
    baseline = UMLDA(dim=3, tensorize=FRAMES, device="cpu")
    tolerance = 1e-3


class TestSTLKeepsTheContract(BaselineContract):
    baseline = STL(tensorize=FRAMES, device="cpu", tol=1e-2)
    tolerance = 1e-3


# ------------------------------------------------------------------------ UMLDA


def fisher(coordinates: np.ndarray, y: np.ndarray, added: float = 0.0) -> float:
    """Between-class over within-class variance, term by term."""
    between = within = 0.0
    for label in np.unique(y):
        own = coordinates[y == label]
        between += len(own) / len(y) * (own.mean() - coordinates.mean()) ** 2
        within += sum((value - own.mean()) ** 2 for value in own) / len(y)
    return between / (within + added)


def test_no_other_vector_of_one_mode_separates_the_classes_better() -> None:
    angles = np.linspace(0, np.pi, 181)
    others = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    for seed in range(3):
        X, y = classes_of_tensors((2, 2), seed=seed, count=60)
        model = UMLDA(dim=1, ridge=0.0, tol=1e-12, max_iter=500).fit(X, y)
        found = fisher(model.transform(X)[:, 0], y)
        assert found == pytest.approx(model.history_["criterion"][0], rel=1e-9)
        u, v = (factor[:, 0] for factor in model.factors_)
        tried = [fisher(X @ v @ other, y) for other in others] + [fisher(u @ X @ other, y) for other in others]
        assert found * 0.999 < max(tried) <= found * (1 + 1e-9)


@pytest.mark.parametrize("ridge", [0.0, 1.0])
def test_coordinates_of_the_training_windows_are_uncorrelated(ridge: float) -> None:
    X, y = classes_of_tensors((3, 4, 8), n_classes=4, count=200)
    X = X + 5.0
    Z = UMLDA(dim=8, ridge=ridge).fit(X, y).transform(X)
    correlation = np.corrcoef(Z.T)
    assert np.abs(correlation - np.eye(8)).max() < 1e-6
    Z32 = UMLDA(dim=8, ridge=ridge).fit(X.astype(np.float32), y).transform(X.astype(np.float32))
    assert np.abs(np.corrcoef(Z32.T) - np.eye(8)).max() < 1e-3


@pytest.mark.parametrize("shrinkage", [None, 0.3])
def test_two_classes_of_vectors_give_the_direction_of_linear_discriminant_analysis(shrinkage: float | None) -> None:
    X, y = classes_of_tensors((6,), n_classes=2, count=80)
    ridge = 0.0 if shrinkage is None else shrinkage / (1 - shrinkage)
    model = UMLDA(dim=1, ridge=ridge).fit(X, y)
    if shrinkage is None:
        direction = LinearDiscriminantAnalysis().fit(X, y).coef_[0]
    else:
        within = sum(np.cov(X[y == label].T, bias=True) for label in (0, 1)) / 2
        shrunk = (1 - shrinkage) * within + shrinkage * np.trace(within) / 6 * np.eye(6)
        direction = np.linalg.solve(shrunk, X[y == 1].mean(axis=0) - X[y == 0].mean(axis=0))
    cosine = direction @ model.factors_[0][:, 0] / np.linalg.norm(direction) / np.linalg.norm(model.factors_[0])
    assert abs(cosine) == pytest.approx(1.0, abs=1e-9)


# -------------------------------------------------------------------------- STL


def test_vectors_give_the_solution_of_multinomial_logistic_regression() -> None:
    X, y = classes_of_tensors((5,), n_classes=3, count=120)
    X = 3.0 * X + 10.0
    alpha = 0.05
    model = STL(alpha=alpha, tol=1e-9, max_iter=2000).fit(X, y)
    centred = X - X.mean(axis=0)
    scaled = centred / np.sqrt(np.mean(centred**2))
    reference = LogisticRegression(C=1 / (alpha * len(X)), tol=1e-10, max_iter=5000).fit(scaled, y)
    np.testing.assert_allclose(softmax(model.transform(X), axis=1), reference.predict_proba(scaled), atol=1e-5)


def test_gradient_is_that_of_the_objective() -> None:
    X, y = classes_of_tensors((2, 3, 2), count=20)
    problem = _Problem(lambda: [torch.from_numpy(X[:8]), torch.from_numpy(X[8:])], torch.eye(3)[y], alpha=0.3)
    rng = np.random.default_rng(0)
    theta = rng.normal(size=3 * (2 + 3 + 2) + 3)
    u, v, w = (part.reshape(-1, 3) for part in np.split(theta[:-3], [6, 15]))
    logits = np.einsum("nijk,ic,jc,kc->nc", X, u, v, w) + theta[-3:]
    ridge = 0.15 * np.sum(np.einsum("ic,jc,kc->cijk", u, v, w) ** 2)
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    value, gradient = problem(theta)
    assert value == pytest.approx(-log_p[np.arange(20), y].mean() + ridge, rel=1e-12)
    for place in range(len(theta)):
        step = np.zeros_like(theta)
        step[place] = 1e-6
        slope = (problem(theta + step)[0] - problem(theta - step)[0]) / 2e-6
        assert gradient[place] == pytest.approx(slope, rel=1e-5, abs=1e-7)
