"""Choice of solver and batch size for "auto"."""

from __future__ import annotations

import math
from typing import Any

import torch

from polyadic.core.step import Objective
from polyadic.engine.second_moments import fits_budget
from polyadic.errors import PolyadicError

__all__ = ["SOLVERS", "choose_solver"]

SOLVERS = ("auto", "moments", "blend", "memory")
_CPU = torch.device("cpu")
_BATCH = 128
_WIDEST = 256
"""Maximum number of tensor entries, per component and restart, for second moments on a CPU: beyond, the pass over the
data costs more than the sweeps."""


def choose_solver(
    solver: str,
    batch_size: Any,
    shape: tuple[int, ...],
    rank: int,
    objective: Objective,
    n_views: int = 1,
    dtype: torch.dtype = torch.float32,
    device: torch.device = _CPU,
    restarts: int = 1,
) -> tuple[str, int | None]:
    """Resolve "auto" for solver and batch size.

    Second moments are used if they determine the loss and are cheap to compute; otherwise the paper's "blend" with
    batches of 128 windows.

    Parameters
    ----------
    solver, batch_size : parameters of the estimator
    shape : shape (I, J, …) of a window's tensor
    n_views : 2 with an augmentation, else 1
    dtype, device : type and device of the tensors
    restarts : number of fits that share the pass over the data

    Examples
    --------
    >>> choose_solver("auto", "auto", (9, 33, 9), 32, Objective(alpha=1e-3))
    ('moments', None)
    >>> choose_solver("auto", "auto", (9, 33, 9), 32, Objective(alpha=1e-3, beta=2.0), n_views=2)
    ('blend', 128)
    """
    full = batch_size is None or batch_size == "auto"
    suits = full and objective.separable and n_views == 1 and fits_budget(shape, dtype)
    if solver == "moments" and not suits:
        raise PolyadicError(
            "solver='moments' needs beta=0, no augmentation, no graph, batch_size=None and tensors whose second "
            f"moments fit 1 GiB, but beta={objective.beta:g}, batch_size={batch_size!r}, the number of views is "
            f"{n_views} and the tensors have shape {shape}: use solver='auto'"
        )
    cheap = device.type == "cuda" or math.prod(shape) <= _WIDEST * rank * restarts
    if solver == "moments" or (solver == "auto" and suits and (batch_size is None or cheap)):
        return "moments", None
    size = _BATCH if batch_size == "auto" else batch_size
    return "blend" if solver == "auto" else solver, None if size is None else int(size)
