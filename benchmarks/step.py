"""One mini-batch step against TensorLy's MTTKRP of the same modes on the same tensors, in one run.

TensorLy computes what a step of alternating least squares cannot do without: the matricised tensor times Khatri-Rao
product of every mode; it is timed on both its numpy backend, the one it has by default, and its torch backend. We are
timed twice: for the same products of the same modes, and for the whole step with alignment, all solves and loss terms.

    python benchmarks/step.py docs/results/step/cpu.json
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np
import tensorly
import torch
from tensorly.tenalg import unfolding_dot_khatri_rao

from polyadic import als
from polyadic.algebra import collect, contract, project
from polyadic.provenance import provenance
from polyadic.threads import thread_pool

SHAPES = {"HAR": (128, 18, 33, 33), "Sleep-EDF": (128, 14, 129, 86)}
RANK = 32
ROUNDS, WARM_UP, REPEATS = 7, 3, 9


def ours(T: torch.Tensor, factors: list[torch.Tensor]) -> None:
    """A step of ATD on two stacked views."""
    als.step(T, als.State(list(factors)), als.Objective(alpha=1e-3, beta=2.0), n_views=2, learning_rate=0.05)


def our_mttkrps(T: torch.Tensor, X: torch.Tensor, factors: list[torch.Tensor]) -> list[torch.Tensor]:
    """The MTTKRP of every mode at the same factors."""
    A, B, C = factors
    Y = collect(X, T)
    left = contract(Y, 2, C)
    return [
        project(T, factors),
        contract(left, 1, B).T,
        contract(left, 0, A).T,
        contract(contract(Y, 0, A), 0, B).T,
    ]


def theirs(T: torch.Tensor, X: torch.Tensor, factors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [unfolding_dot_khatri_rao(T, (None, [X, *factors]), mode) for mode in range(4)]


def milliseconds(work: Callable[[], object], threads: Callable[[], AbstractContextManager]) -> float:
    """Median time of one call among many, as in a fit, with a library's own threads."""
    # Each library has a thread pool that goes on spinning for a while: let the last one's come to rest.
    time.sleep(1)
    times = []
    with threads():
        for _ in range(WARM_UP + REPEATS):
            begun = time.perf_counter()
            work()
            times.append(time.perf_counter() - begun)
    return 1e3 * float(np.median(times[WARM_UP:]))


def with_backend(name: str, T: torch.Tensor, X: torch.Tensor, factors: list[torch.Tensor]) -> Callable[[], list]:
    """TensorLy's part of the race, on one of its backends."""
    own = (lambda tensor: tensor.numpy()) if name == "numpy" else (lambda tensor: tensor)
    arrays = own(T), own(X), [own(factor) for factor in factors]

    def work() -> list:
        tensorly.set_backend(name)
        return theirs(*arrays)

    return work


def ratio(values: np.ndarray) -> dict[str, float]:
    return {
        name: round(float(f(values)), 1) for name, f in (("median", np.median), ("least", np.min), ("most", np.max))
    }


def race(name: str, batch: int, dims: list[int]) -> dict:
    generator = torch.Generator().manual_seed(0)
    T = torch.randn(2 * batch, *dims, generator=generator)
    factors = als.initial_factors(dims, RANK, 0, T.dtype, T.device)
    X = torch.randn(2 * batch, RANK, generator=generator)
    on_numpy, on_torch = (with_backend(backend, T, X, factors) for backend in ("numpy", "pytorch"))
    pairs = zip(our_mttkrps(T, X, factors), on_torch(), strict=True)
    difference = max(float(torch.linalg.norm(a - b) / torch.linalg.norm(b)) for a, b in pairs)
    if difference > 1e-5:
        raise SystemExit(f"results differ by {difference:.1e}, more than 1e-5")
    # A shared machine is faster at one moment than at another: several rounds, and the ratios of each.
    works = (
        (lambda: ours(T, factors), thread_pool),
        (lambda: our_mttkrps(T, X, factors), thread_pool),
        (on_numpy, nullcontext),
        (on_torch, nullcontext),
    )
    step, products, numpy, pytorch = np.array([[milliseconds(*work) for work in works] for _ in range(ROUNDS)]).T
    return {
        "shape": name,
        "tensor": [2, batch, *dims],
        "rank": RANK,
        "rounds": ROUNDS,
        "polyadic_step_ms": round(float(np.median(step)), 2),
        "polyadic_mttkrp_ms": round(float(np.median(products)), 2),
        "tensorly_numpy_ms": round(float(np.median(numpy)), 2),
        "tensorly_torch_ms": round(float(np.median(pytorch)), 2),
        "step_ratio_to_numpy": ratio(numpy / step),
        "step_ratio_to_torch": ratio(pytorch / step),
        "mttkrp_ratio_to_numpy": ratio(numpy / products),
        "mttkrp_ratio_to_torch": ratio(pytorch / products),
        "largest_relative_difference": difference,
    }


def main(out: str) -> None:
    rows = []
    for name, (batch, *dims) in SHAPES.items():
        rows.append(race(name, batch, dims))
        print(rows[-1])
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    Path(out).write_text(json.dumps({**provenance("cpu"), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
