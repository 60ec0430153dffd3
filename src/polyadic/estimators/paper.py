"""The estimators of the paper on the front end of `CPD`: ATD and its baselines SALS and GR-SALS, by mini-batches."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import torch

from polyadic._util.checks import check_integer, check_number
from polyadic.augment import Jitter
from polyadic.core.solve import Settings, plain_sweep
from polyadic.core.step import Objective
from polyadic.data.batches import WindowSource
from polyadic.errors import PolyadicError
from polyadic.estimators.cpd import CPD, LEARNING_RATE, store_parameters

_BATCH_SIZE = 128
KEPT_BYTES = 2**30
"""Maximum size of the tensors and views that "auto" keeps in memory, for Algorithm 1."""


class SALS(CPD):
    """Stochastic alternating least squares for the CP decomposition, without augmentations: a baseline of the paper.

    Parameters
    ----------
    rank, tensorize, readout, nonnegative, restarts, consensus, alpha : as for `CPD`
    solver : how a mini-batch moves the bases. "blend" (default) moves them by `learning_rate` towards the batch's
        solution, our interpretation of the paper's Algorithm 2, which names a step size but does not use it; "memory"
        solves for exponentially weighted statistics of all batches
    learning_rate : step size η towards a batch's solution ("blend") or forgetting rate ("memory"); default 0.05
    batch_size : windows in a mini-batch; None for all windows at once. "auto" (default) is 128
    max_sweeps : maximum number of sweeps, default 50; `fit` warns if the loss has not converged by then. A sweep visits
        every window once
    tol, patience : stop when the relative change of the loss is below `tol` in `patience` sweeps in a row; default
        1e-3 and 3. tol=0 disables this
    device, random_state, verbose : as for `CPD`

    Attributes
    ----------
    factors_, history_, … : as for `CPD`

    Examples
    --------
    >>> X = np.random.default_rng(0).normal(size=(50, 4, 6))
    >>> SALS(rank=3, tensorize=None, max_sweeps=500).fit_transform(X).shape
    (50, 3)
    """

    _collects = False
    compression = None
    compression_ = None

    def __init__(
        self,
        rank: int = 32,
        *,
        tensorize: Any = "auto",
        readout: Any = "auto",
        nonnegative: bool | Literal["auto"] = "auto",
        restarts: int = 1,
        consensus: bool = False,
        alpha: float = 1e-3,
        solver: Literal["blend", "memory"] = "blend",
        learning_rate: float = LEARNING_RATE,
        batch_size: int | Literal["auto"] | None = "auto",
        max_sweeps: int = 50,
        tol: float = 1e-3,
        patience: int = 3,
        device: str | torch.device = "auto",
        random_state: Any = 0,
        verbose: int = 0,
    ) -> None:
        store_parameters(self, locals())

    def _choose_solver(self, source: WindowSource) -> tuple[str, int | None, float]:
        size = self._auto_batch_size(source) if self.batch_size == "auto" else self.batch_size
        return self.solver, None if size is None else int(size), float(self.learning_rate)

    def _auto_batch_size(self, source: WindowSource) -> int | None:
        return _BATCH_SIZE

    def _sweep(self, source: WindowSource, objective: Objective, settings: Settings) -> Any:
        """Return the function that runs a sweep, by the fastest available path."""
        plain = plain_sweep(source, objective, settings)
        if source.device.type != "cuda":
            return plain
        from polyadic.scale.gpu import kernels
        from polyadic.scale.gpu.cuda_graphs import captured_sweep

        if not kernels.available(source.device, source.dtype):
            return plain
        return captured_sweep(source, objective, settings, self._tensor_shape(source), int(self.rank), plain)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.solver not in ("blend", "memory"):
            raise PolyadicError(f"solver must be 'blend' or 'memory', but is {self.solver!r}")
        check_number("learning_rate", self.learning_rate, 0, 1)
        if self.learning_rate == 0:
            raise PolyadicError("learning_rate must be greater than 0, but is 0: the bases would never change")
        if self.batch_size != "auto":
            check_integer("batch_size", self.batch_size, 1, none=True)


class ATD(SALS):
    """Augmented tensor decomposition, the method of the paper, by default on the recommended front end of `CPD`.

    Windows and their augmented views are decomposed together, and a self-supervised loss pulls the coefficients of a
    window and its view towards each other. `polyadic.presets.preset` has the paper's settings for its data sets.

    Parameters
    ----------
    rank, tensorize, readout, nonnegative, restarts, consensus, alpha : as for `CPD`
    augment : maps a batch to an augmented view: an augmentation from `polyadic.augment`, or a function; None for no
        view, with beta=0. Default `Jitter(0.05)`
    beta : weight of the self-supervised loss; default 2. beta=0 with an augmentation is the paper's ATD_ss-
    gamma : weight of the random (negative) pairs; None (default) for the batch size, as in the paper
    rounds : number of fixed-point iterations for each view in each step; default 1
    solver, learning_rate, max_sweeps, tol, patience : as for `SALS`
    batch_size : windows in a mini-batch (Algorithm 2, with new views in every sweep); None for all windows at once
        (Algorithm 1, with one view of each window). "auto" (default) is None if all tensors and their views fit into
        1 GiB, else 128
    device, random_state, verbose : as for `CPD`. On a GPU, mini-batch sweeps over windows with an STFT hold tensors
        in float16, which halves the memory traffic; bases and sums stay in float64

    Attributes
    ----------
    factors_, history_, … : as for `CPD`

    Examples
    --------
    >>> X = np.random.default_rng(0).normal(size=(60, 3, 128)).astype(np.float32)
    >>> model = ATD(rank=4, max_sweeps=100).fit(X)
    >>> model.batch_size_, min(model.history_["self_supervised"]) < 0
    (None, True)
    """

    def __init__(
        self,
        rank: int = 32,
        *,
        tensorize: Any = "auto",
        augment: Any = Jitter(0.05),  # noqa: B008  immutable
        readout: Any = "auto",
        nonnegative: bool | Literal["auto"] = "auto",
        restarts: int = 1,
        consensus: bool = False,
        alpha: float = 1e-3,
        beta: float = 2.0,
        gamma: float | None = None,
        rounds: int = 1,
        solver: Literal["blend", "memory"] = "blend",
        learning_rate: float = LEARNING_RATE,
        batch_size: int | Literal["auto"] | None = "auto",
        max_sweeps: int = 50,
        tol: float = 1e-3,
        patience: int = 3,
        device: str | torch.device = "auto",
        random_state: Any = 0,
        verbose: int = 0,
    ) -> None:
        store_parameters(self, locals())

    def _auto_batch_size(self, source: WindowSource) -> int | None:
        size = source.n_windows * source.n_views * math.prod(self._tensor_shape(source)) * source.dtype.itemsize
        return None if size <= KEPT_BYTES else _BATCH_SIZE

    def _objective(self) -> Objective:
        if self.augment is None and self.beta > 0:
            raise PolyadicError(
                f"beta={self.beta:g} weights a loss between samples and their augmented views, but augment is None: "
                "pass an augmentation, or use CPD or SALS, which need none"
            )
        gamma = None if self.gamma is None else float(self.gamma)
        return Objective(alpha=float(self.alpha), beta=float(self.beta), gamma=gamma, rounds=int(self.rounds))

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_number("beta", self.beta, 0)
        check_number("gamma", self.gamma, 0, float(np.finfo(np.float32).max), none=True)
        check_integer("rounds", self.rounds, 1)


class GRSALS(SALS):
    """SALS with a graph regulariser w·Tr(XᵀLX) that pulls the coefficients of windows towards each other.

    L is the Laplacian of the complete graph, with equal weights 1/b among the b windows of a batch.

    Parameters
    ----------
    rank, tensorize, readout, nonnegative, restarts, consensus, alpha : as for `CPD`
    graph_weight : weight w of the regulariser; default 1e-3
    solver, learning_rate, batch_size, max_sweeps, tol, patience : as for `SALS`
    device, random_state, verbose : as for `CPD`

    Attributes
    ----------
    factors_, history_, … : as for `CPD`

    Examples
    --------
    >>> X = np.random.default_rng(0).normal(size=(50, 4, 6))
    >>> GRSALS(rank=3, tensorize=None, graph_weight=0.1, max_sweeps=500).fit_transform(X).shape
    (50, 3)
    """

    def __init__(
        self,
        rank: int = 32,
        *,
        tensorize: Any = "auto",
        readout: Any = "auto",
        nonnegative: bool | Literal["auto"] = "auto",
        restarts: int = 1,
        consensus: bool = False,
        alpha: float = 1e-3,
        graph_weight: float = 1e-3,
        solver: Literal["blend", "memory"] = "blend",
        learning_rate: float = LEARNING_RATE,
        batch_size: int | Literal["auto"] | None = "auto",
        max_sweeps: int = 50,
        tol: float = 1e-3,
        patience: int = 3,
        device: str | torch.device = "auto",
        random_state: Any = 0,
        verbose: int = 0,
    ) -> None:
        store_parameters(self, locals())

    def _objective(self) -> Objective:
        return Objective(alpha=float(self.alpha), graph_weight=float(self.graph_weight))

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_number("graph_weight", self.graph_weight, 0)
