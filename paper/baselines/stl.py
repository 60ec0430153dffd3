"""Supervised tensor learning (Tao et al. 2005) for several classes, one rank-one tensor each, as in appendix D.8."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from sklearn.base import ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from paper.baselines.shared import SupervisedTensorBaseline, labels_of
from polyadic.core.algebra import collect, contract, khatri_rao, project

_POWER_ROUNDS = 10


@dataclass(eq=False, repr=False)
class STL(ClassifierMixin, SupervisedTensorBaseline):  # type: ignore[misc]
    """Logistic regression with a rank-one weight tensor for each class: logits ⟨T, u∘v∘w⟩ + b.

    The mean cross-entropy plus α/2 times the squared norm of the weight tensors is minimised by L-BFGS over all vectors
    jointly, starting from the best rank-one approximation of each class mean. The fit works on centred tensors divided
    by their root mean square (one number for all entries); both are then folded into the vectors and biases.

    Parameters
    ----------
    tensorize : from a batch (b, channels, time) to tensors (b, I, J, …); None if the input already is a tensor
    alpha : weight of the ridge term, on the weights for the scaled tensors
    max_iter : maximum number of iterations
    tol : stop when no entry of the gradient exceeds this, or an iteration gains less than its square
    device : "auto", "cpu", "cuda", …
    random_state : not used, because nothing is random; accepted for consistency with other baselines

    Attributes
    ----------
    factors_ : the vectors as columns, matrices of shapes (I, C), (J, C), … for C classes
    bias_ : (C,)
    history_ : `loss`, one number per iteration
    """

    _: KW_ONLY
    tensorize: Any = None
    alpha: float = 1e-2
    max_iter: int = 500
    tol: float = 1e-3

    def _learn(self, source: Any, y: Any) -> None:
        self.classes_, codes = labels_of(y)
        mean, scale = _moments(lambda: self._tensors(source.samples))
        passes = self._passes(source.samples, lambda T: (T - mean.to(T)) / scale)
        problem = _Problem(passes, torch.eye(len(self.classes_))[torch.as_tensor(codes)], self.alpha)
        self.history_["loss"] = losses = []
        result = minimize(
            problem,
            problem.start(),
            jac=True,
            method="L-BFGS-B",
            callback=lambda theta: losses.append(problem.value),
            options={"maxiter": self.max_iter, "maxfun": 10**9, "gtol": self.tol, "ftol": self.tol**2},
        )
        if result.nit >= self.max_iter:
            warnings.warn(f"STL stopped after max_iter={self.max_iter} iterations", ConvergenceWarning, stacklevel=3)
        factors, bias = problem.parts(torch.as_tensor(result.x))
        factors[0] = factors[0] / scale
        self.bias_ = (bias - mean.cpu().flatten() @ khatri_rao(factors)).numpy()
        self.factors_ = [np.ascontiguousarray(factor.numpy()) for factor in factors]

    def predict(self, X: Any) -> NDArray[Any]:
        """Predict the most probable class of each window: (N,)."""
        best = torch.as_tensor(self.transform(X)).argmax(dim=1).cpu().numpy()
        chosen: NDArray[Any] = self.classes_[best]
        return chosen

    def _features(self, T: Tensor) -> Tensor:
        return super()._features(T) + torch.as_tensor(self.bias_, dtype=T.dtype, device=T.device)

    @property
    def n_parameters_(self) -> int:
        return super().n_parameters_ + len(self.bias_)


def _moments(passes: Callable[[], Iterable[Tensor]]) -> tuple[Tensor, float]:
    """Return the mean tensor, and the root mean square of the centred tensors (1 if they are all 0)."""
    total, count = torch.zeros(1, dtype=torch.float64), 0
    for T in passes():
        total = total.to(T.device) + T.sum(dim=0, dtype=torch.float64)
        count += len(T)
    mean = total / count
    square = sum(float((T - mean.to(T)).square().sum(dtype=torch.float64)) for T in passes())
    scale = float(np.sqrt(square / (count * mean.numel())))
    return mean, scale if scale > 0 else 1.0


class _Problem:
    """The objective and its gradient as a function of one vector with all factors and biases."""

    def __init__(self, passes: Callable[[], Iterable[Tensor]], members: Tensor, alpha: float) -> None:
        self.passes = passes
        self.members = members
        self.alpha = alpha
        self.shape = tuple(next(iter(passes())).shape[1:])
        self.value = 0.0

    def __call__(self, theta: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        variables = torch.tensor(theta, requires_grad=True)
        factors, bias = self.parts(variables)
        weights = khatri_rao(factors)
        fixed, offset = weights.detach(), bias.detach()
        entropy, slope, slope_bias = 0.0, torch.zeros_like(fixed), torch.zeros_like(offset)
        for T, members in self._batches():
            # In this order, products with few columns are several times faster.
            logits = (fixed.to(T).T @ T.flatten(1).T).T + offset.to(T)
            log_p = torch.log_softmax(logits, dim=1)
            entropy -= float((log_p * members).sum(dtype=torch.float64))
            error = log_p.exp() - members
            slope += (error.T @ T.flatten(1)).T.to(slope)
            slope_bias += error.sum(dim=0).to(slope_bias)
        ridge = self.alpha / 2 * weights.square().sum()
        # A surrogate with the same gradient, without all tensors in one autograd graph.
        (((weights * slope).sum() + (bias * slope_bias).sum()) / len(self.members) + ridge).backward()  # type: ignore[no-untyped-call]
        self.value = entropy / len(self.members) + float(ridge.detach())
        assert variables.grad is not None
        return self.value, variables.grad.numpy()

    def start(self) -> NDArray[np.float64]:
        """Return the rank-one approximation of each class mean, scaled to logits of mean square 1, without biases."""
        means = torch.zeros(self.members.shape[1], *self.shape, dtype=torch.float64)
        for T, members in self._batches():
            means += collect(members, T).to(means)
        factors = _rank_one(means)
        square = torch.zeros(self.members.shape[1], dtype=torch.float64)
        for T, _ in self._batches():
            logits = project(T, [factor.to(T) for factor in factors])
            square += logits.square().sum(dim=0).to(square)
        size = (square / len(self.members)).sqrt()
        size[size == 0] = 1.0
        columns = [factor * size ** (-1 / len(factors)) for factor in factors]
        packed: NDArray[np.float64] = torch.cat([part.flatten() for part in (*columns, torch.zeros_like(size))]).numpy()
        return packed

    def parts(self, theta: Tensor) -> tuple[list[Tensor], Tensor]:
        """Split a vector into factors (I, C), (J, C), … and biases (C,)."""
        n_classes = self.members.shape[1]
        pieces = torch.split(theta, [size * n_classes for size in (*self.shape, 1)])
        return [piece.reshape(-1, n_classes) for piece in pieces[:-1]], pieces[-1]

    def _batches(self) -> Iterable[tuple[Tensor, Tensor]]:
        done = 0
        for T in self.passes():
            yield T, self.members[done : done + len(T)].to(T)
            done += len(T)


def _rank_one(Y: Tensor) -> list[Tensor]:
    """Return the best rank-one approximations of tensors (C, I, J, …): unit vectors as columns, (I, C), (J, C), …"""
    factors = []
    for mode in range(1, Y.ndim):
        unfolded = Y.movedim(mode, 1).reshape(len(Y), Y.shape[mode], -1)
        factors.append(torch.linalg.eigh(unfolded @ unfolded.mT).eigenvectors[:, :, -1].T)
    for _ in range(_POWER_ROUNDS):
        for mode in range(len(factors)):
            rest = Y
            for factor in reversed(factors[mode + 1 :]):
                rest = contract(rest, rest.ndim - 2, factor)
            for factor in factors[:mode]:
                rest = contract(rest, 0, factor)
            norm = rest.norm(dim=1)
            factors[mode] = torch.where(norm > 0, rest.T / norm.clamp_min(torch.finfo(Y.dtype).tiny), factors[mode])
    return factors
