"""One mini-batch step against TensorLy's MTTKRP of the same modes on the same tensors, in one run.

TensorLy computes what a step of alternating least squares cannot do without: the matricised tensor times Khatri-Rao
product of every mode. Our time is that of the whole step: projection, alignment, statistics, all solves, loss terms.

    python benchmarks/step.py docs/results/step/cpu.json
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tensorly
import torch
from tensorly.tenalg import unfolding_dot_khatri_rao

from polyadic import als
from polyadic.algebra import collect, contract_first, contract_last, project
from polyadic.experiments.provenance import provenance

SHAPES = {"HAR": (128, 18, 33, 33), "Sleep-EDF": (128, 14, 129, 86)}
RANK = 32
REPEATS = 15


def ours(T: torch.Tensor, factors: list[torch.Tensor]) -> None:
    """A step of ATD on two stacked views."""
    als.step(T, als.State(list(factors)), als.Objective(alpha=1e-3, beta=2.0), n_views=2, learning_rate=0.05)


def our_mttkrps(T: torch.Tensor, X: torch.Tensor, factors: list[torch.Tensor]) -> list[torch.Tensor]:
    """The MTTKRP of every mode at the same factors."""
    A, B, C = factors
    Y = collect(X, T)
    left = contract_last(Y, C)
    return [
        project(T, factors),
        contract_last(left, B).T,
        contract_first(left, A).T,
        contract_first(contract_first(Y, A), B).T,
    ]


def theirs(T: torch.Tensor, X: torch.Tensor, factors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [unfolding_dot_khatri_rao(T, (None, [X, *factors]), mode) for mode in range(4)]


def seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def main(out: str) -> None:
    tensorly.set_backend("pytorch")
    rows = []
    for name, (batch, *dims) in SHAPES.items():
        generator = torch.Generator().manual_seed(0)
        T = torch.randn(2 * batch, *dims, generator=generator)
        factors = als.initial_factors(dims, RANK, 0, T.dtype, T.device)
        X = torch.randn(2 * batch, RANK, generator=generator)
        pairs = zip(our_mttkrps(T, X, factors), theirs(T, X, factors), strict=True)
        difference = max(float(torch.linalg.norm(a - b) / torch.linalg.norm(b)) for a, b in pairs)
        # One after the other in each repeat, so that both meet the same machine.
        times = np.array(
            [(seconds(lambda: ours(T, factors)), seconds(lambda: theirs(T, X, factors))) for _ in range(REPEATS + 2)]  # noqa: B023
        )[2:]
        row = {
            "shape": name,
            "tensor": [2, batch, *dims],
            "rank": RANK,
            "polyadic_step_ms": round(1e3 * statistics.median(times[:, 0]), 2),
            "tensorly_mttkrp_ms": round(1e3 * statistics.median(times[:, 1]), 2),
            "ratio": round(float(np.median(times[:, 1] / times[:, 0])), 1),
            "largest_relative_difference": difference,
        }
        print(row)
        rows.append(row)
        if difference > 1e-5:
            raise SystemExit(f"results differ by {difference:.1e}, more than 1e-5")
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    Path(out).write_text(json.dumps({**provenance("cpu"), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
