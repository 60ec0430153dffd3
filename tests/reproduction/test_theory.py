"""The paper's theorem on its self-supervised loss: every round contracts (appendix B)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from polyadic.core.algebra import gram, project, ridge_inverse
from polyadic.core.alignment import pull, row_update


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def contraction_factor(iterates: Sequence[Tensor], v2: Tensor, V: Tensor, beta: float) -> Tensor:
    """The factor of the Theorem, β(2m + M)‖v₂‖‖V₃‖_F / m³, for every row; m and M are its least and largest norm."""
    norms = torch.stack([torch.linalg.vector_norm(X, dim=1) for X in iterates])
    m, M = norms.amin(dim=0), norms.amax(dim=0)
    size: Tensor = torch.linalg.vector_norm(v2, dim=1) * torch.linalg.matrix_norm(V)
    return beta * (2 * m + M) * size / m**3


@pytest.mark.parametrize("seed", range(3))
def test_every_round_contracts_within_the_bound_of_the_theorem(seed):
    beta, bases = 2.0, [normal(size, 3, seed=seed + mode + 1) for mode, size in enumerate((4, 3, 5))]
    bases = [basis / basis.norm(dim=0) for basis in bases]
    V = ridge_inverse(gram(bases), 0.1)
    X_ls = project(5 * normal(6, 4, 3, 5, seed=seed), bases) @ V
    v2 = pull(normal(6, 3, seed=seed + 99), 6.0)
    guesses = [X_ls]
    for _ in range(200):
        guesses.append(row_update(X_ls, V, guesses[-1], v2, beta)[0])
    errors = torch.stack([torch.linalg.vector_norm(X - guesses[-1], dim=1) for X in guesses[:12]])
    factor = contraction_factor(guesses, v2, V, beta)
    # The bound must say something in at least one row of every problem.
    assert float(factor.min()) < 1
    measurable = errors[:-1] > 1e-11
    assert bool(measurable[:3].any())
    assert bool((errors[1:] <= factor * errors[:-1])[measurable].all())
