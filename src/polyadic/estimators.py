"""ATD, SALS and GR-SALS as scikit-learn transformers: raw windows or tensors in, features out.

The classes hold parameters and validate input; `als` does the computation.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor

from polyadic._util.checks import check_integer, check_memory, check_number
from polyadic._util.random_streams import integer_seed
from polyadic._util.torch_state import plain_torch
from polyadic.augment import Jitter
from polyadic.core import step as als
from polyadic.data.batches import WindowSource, check_modes
from polyadic.engine.cp_files import MOST_ROUNDS
from polyadic.engine.cp_model import CPModel
from polyadic.engine.estimator import all_or_nothing
from polyadic.engine.fit_identity import agreed_tensorizer, checkpoints_of, share_key
from polyadic.engine.graph import Graph
from polyadic.engine.loop import Fit, FitSettings, History, empty_history
from polyadic.engine.observers import observing
from polyadic.engine.outcome import warn_of_outcome
from polyadic.engine.solvers import SOLVERS, choose_solver
from polyadic.errors import PolyadicError
from polyadic.scale.checkpoints import Checkpoints
from polyadic.scale.gpu import cuda_graphs
from polyadic.team import ALONE, Team

__all__ = ["ATD", "GRSALS", "SALS"]

_JITTER = 0.05
_RESTART = 0x5E7A  # separates the random stream of further restarts from all others


class _CPEstimator(CPModel):
    """Base class of ATD, SALS and GR-SALS: everything but their objective."""

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
        solver: Literal["auto", "moments", "blend", "memory"] = "auto",
        learning_rate: float = 0.05,
        batch_size: int | Literal["auto"] | None = "auto",
        max_sweeps: int = 50,
        tol: float = 1e-3,
        patience: int = 3,
        device: str | torch.device = "auto",
        random_state: Any = 0,
        verbose: int = 0,
    ) -> None:
        self.rank = rank
        self.tensorize = tensorize
        self.readout = readout
        self.nonnegative = nonnegative
        self.restarts = restarts
        self.consensus = consensus
        self.alpha = alpha
        self.solver = solver
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.max_sweeps = max_sweeps
        self.tol = tol
        self.patience = patience
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    # ---------------------------------------------------------------- fitting

    @plain_torch()
    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        after_sweep: Callable[[Self], None] | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        resume: bool = False,
        checkpoint_every: float = 60.0,
        team: Team = ALONE,
    ) -> Self:
        """Learn the bases from unlabelled samples.

        Parameters
        ----------
        X : (N, channels, time), or (N, I, J, …) with `tensorize=None`; numpy, torch, a memory map, `Windows` or a
            `WindowStore`. Data on disk are read batch by batch, so memory does not grow with N
        y : ignored
        after_sweep : called with the estimator after every sweep; its `factors_` and `history_` are those of the
            current restart, whose number (from 1) is `attempt_`. The sweep of the consensus comes last
        checkpoint : folder in which to save the state of the fit from time to time
        resume : resume from the last checkpoint in that folder, if any. On a CPU the result is bit-identical to that
            of an uninterrupted fit. `max_sweeps`, `tol`, `patience`, `device` and `verbose` may change
        checkpoint_every : seconds between checkpoints
        team : the processes that fit in parallel, from `polyadic.engine.join`; all pass the same X and end with the
            same model

        Returns
        -------
        the estimator itself
        """
        with all_or_nothing(self):
            source, objective, settings = self._begin(X)
            source.tensorize = self.tensorize_ = agreed_tensorizer(self.tensorize_, team)
            self._n_seen = source.n_windows
            fit = Fit(source, als.State(self._initial_factors(source)), objective, settings, team=team)
            fit.share_key = share_key(self.tensorize_, source)
            fit.start = lambda attempt: self._initial_factors(source, attempt)
            kept = checkpoints_of(self, source, team, checkpoint, resume, checkpoint_every)
            with kept or nullcontext():
                self._run(fit, source, kept, after_sweep)
            self.n_sweeps_ = len(self.history_["loss"])
            self.attempt_ = settings.attempts if self.consensus else int(np.argmin(fit.progress.finished)) + 1
            self.fit_seconds_, self.waited_ = fit.progress.spent, source.waited
            self._keep(fit.state)
            warn_of_outcome(fit, self.nonnegative_)
            # After the last checkpoint: a fit that is interrupted here only repeats this pass on resume.
            self._fit_readout(source, team)
        return self

    def _run(
        self, fit: Fit, source: WindowSource, kept: Checkpoints | None, after_sweep: Callable[[Self], None] | None
    ) -> None:
        """Run a fit from its last checkpoint, by the fastest available path."""
        if kept is not None:
            fit.on_step, fit.on_pause = kept, kept.when_stopped
            fit.progress, fit.state = kept.load(fit.state) or (fit.progress, fit.state)
        if fit.team.size == 1:
            shape = tuple(len(factor) for factor in fit.state.factors)
            fit.fast_sweep = cuda_graphs.sweeps(source, fit.objective, fit.settings, shape)

        def show(history: History) -> None:
            assert after_sweep is not None
            self.history_, self.n_sweeps_ = history, len(history["loss"])
            self.attempt_ = fit.progress.attempt + 1
            self._keep(fit.state)
            after_sweep(self)

        bar, shown = bool(self.verbose and fit.team.index == 0), None if after_sweep is None else show
        with observing(type(self).__name__, self.max_sweeps, source.n_windows, bar, shown) as observer:
            fit.on_sweep = observer
            if observer is not None:
                source.on_batch = observer.windows
                fit.on_attempt = lambda attempt: observer.start(attempt + 1, fit.settings.attempts)
            with self._pool(source.device):
                self.history_ = fit.run()

    @plain_torch()
    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Take one step of Algorithm 2 on this batch; the first call starts a new model.

        Parameters
        ----------
        X : (b, channels, time), or (b, I, J, …) with `tensorize=None`
        y : ignored

        Returns
        -------
        the estimator itself
        """
        with all_or_nothing(self):
            new = not hasattr(self, "factors_")
            source, objective, settings = self._begin(X, reset=new)
            if new:
                self._n_seen, self.n_sweeps_ = 0, 0
                self._memory: als.Statistics | None = None
                self.history_ = empty_history()
                factors = self._initial_factors(source)
            else:
                self._check_rank()
                factors = self._factors(source.device, source.dtype)
            source = replace(source, first_id=self._n_seen)
            state = als.State(factors, _moved(self._memory, source.device, source.dtype))
            ids = torch.arange(len(source.samples), device="cpu")
            with self._pool(source.device):
                T = source.views(ids, 0)
                check_modes(T, factors)
                solver = "blend" if settings.solver == "moments" else settings.solver
                als.step(T, state, objective, source.n_views, solver, settings.learning_rate, ids, watch=True)
            self._n_seen += len(source.samples)
            self._keep(state)
        return self

    def _begin(self, X: Any, reset: bool = True) -> tuple[WindowSource, als.Objective, FitSettings]:
        """Validate parameters and input, and resolve what depends on both: solver, batch size, non-negativity."""
        self._check_parameters()
        source = self._source(X, reset)
        suits = self.tensorize_ is not None and self.tensorize_.suits_nonnegative
        self.nonnegative_ = suits if isinstance(self.nonnegative, str) else bool(self.nonnegative)
        objective = replace(self._objective(len(source.samples)), nonnegative=self.nonnegative_)
        shape = self._tensor_shape(source)
        where = source.n_views, source.dtype, source.device
        self.solver_, self.batch_size_ = choose_solver(
            self.solver, self.batch_size, shape, self.rank, objective, *where, restarts=int(self.restarts)
        )
        settings = FitSettings(
            solver=self.solver_,
            learning_rate=float(self.learning_rate),
            batch_size=self.batch_size_,
            max_sweeps=int(self.max_sweeps),
            tol=float(self.tol),
            patience=int(self.patience),
            seed=self.seed_,
            restarts=int(self.restarts),
            consensus=bool(self.consensus),
        )
        return source, objective, settings

    def _initial_factors(self, source: WindowSource, attempt: int = 0) -> list[Tensor]:
        """Return the initial bases of a restart; the order of windows and their views are the same in all restarts."""
        shape = self._tensor_shape(source)
        # The minimum of any fit: the bases and one Gram matrix in float64.
        check_memory(f"rank={self.rank:,}", 8 * self.rank * (sum(shape) + self.rank))
        seed = integer_seed(self.seed_, _RESTART, attempt) if attempt else self.seed_
        return als.initial_factors(shape, self.rank, seed, source.dtype, source.device, self.nonnegative_)

    def _keep(self, state: als.State) -> None:
        if not all(bool(torch.isfinite(factor).all()) for factor in state.factors):
            raise PolyadicError(
                "the bases did not stay finite: the values in X, or those that tensorize or augment compute from it, "
                "are too large; rescale X or pass it as float64"
            )
        self.factors_ = [factor.cpu().numpy() for factor in state.factors]
        self._memory = _moved(state.memory, torch.device("cpu"), state.factors[0].dtype)
        for name in ("readout_", "probe_", "replicability_"):  # they belong to the previous bases
            if hasattr(self, name):
                delattr(self, name)
        if self.readout is None:
            self.readout_ = None

    def _objective(self, count: int) -> als.Objective:
        return als.Objective(alpha=float(self.alpha))

    def _check_parameters(self) -> None:
        check_integer("rank", self.rank, 1)
        check_number("alpha", self.alpha, 0)
        if self.solver not in SOLVERS:
            raise PolyadicError(
                f"solver must be {', '.join(map(repr, SOLVERS[:-1]))} or 'memory', but is {self.solver!r}"
            )
        if self.nonnegative not in ("auto", True, False):
            raise PolyadicError(f"nonnegative must be 'auto', True or False, but is {self.nonnegative!r}")
        check_integer("restarts", self.restarts, 1)
        if not isinstance(self.consensus, bool | np.bool_):
            raise PolyadicError(f"consensus must be True or False, but is {self.consensus!r}")
        if self.consensus and self.restarts < 2:
            raise PolyadicError("consensus=True averages the components of several restarts, but restarts=1")
        self._check_readout()
        check_number("learning_rate", self.learning_rate, 0, 1)
        if self.learning_rate == 0:
            raise PolyadicError("learning_rate must be greater than 0, but is 0: the bases would never change")
        if self.batch_size != "auto":
            check_integer("batch_size", self.batch_size, 1, none=True)
        check_integer("max_sweeps", self.max_sweeps, 1)
        check_number("tol", self.tol, 0)
        check_integer("patience", self.patience, 1)
        if not isinstance(self.verbose, int | np.integer) or self.verbose < 0:
            raise PolyadicError(f"verbose must be a whole number >= 0, but is {self.verbose!r}")
        self._check_windows()


def _moved(memory: als.Statistics | None, device: torch.device, dtype: torch.dtype) -> als.Statistics | None:
    if memory is None:
        return None
    return als.Statistics(memory.Y.to(device, dtype), memory.S.to(device))


class SALS(_CPEstimator):
    """Stochastic alternating least squares for the CP decomposition with a Tikhonov term, without augmentations.

    Parameters
    ----------
    rank : number of components; default 32
    tensorize : maps a batch (b, channels, time) to tensors (b, I, J, …): a `Tensorizer` such as
        `polyadic.spectral.STFT`, a torch module or a function; None if X already holds tensors. "auto" (default)
        uses `polyadic.spectral.recommended_stft` for three-dimensional X and None otherwise
    readout : a `polyadic.readout.Readout`, which maps coefficients to features; None returns the coefficients
        themselves, as in the paper. "auto" (default) is `Readout()`
    nonnegative : constrain the bases to be non-negative; "auto" (default) does so for centred log amplitudes
    restarts : number of random initialisations, default 1; the fit with the lowest loss is kept
    consensus : average the components on which the restarts agree, then run one more sweep, instead of keeping the
        best restart (default False); the components replicate better and fit slightly worse
    alpha : weight of the Tikhonov (ridge) term; default 1e-3
    solver : "blend" moves the bases by `learning_rate` towards each batch's solution, as in the paper; "memory" solves
        for exponentially weighted statistics of all batches; "moments" reads the data once to compute its second
        moments and runs full-batch sweeps on those (no views, no graph, small tensors); "auto" (default) is
        "moments" where that is possible and faster, else "blend"
    learning_rate : step size η towards a batch's solution ("blend") or forgetting rate ("memory"); default 0.05
    batch_size : windows in a batch; None for full-batch updates; "auto" (default) is None for "moments", else 128
    max_sweeps : maximum number of passes over the data, default 50; `fit` warns if the loss has not converged by then
    tol, patience : stop when the relative change of the loss is below `tol` in `patience` sweeps in a row; default
        1e-3 and 3. tol=0 disables this
    device : "auto" (default; CUDA if available), "cpu", "cuda", …
    random_state : random seed of the initialisation, the order of the windows and the augmentations; default 0
    verbose : 1 shows a progress bar; default 0

    Attributes
    ----------
    factors_ : the bases, matrices of shapes (I, R), (J, R), …
    history_ : `loss`, its terms and `seconds`, one value per sweep
    n_sweeps_, n_parameters_, seed_ : number of sweeps, number of learned parameters, integer seed
    attempt_ : number of the restart that was kept, from 1; `restarts` + 1 for the consensus
    tensorize_, readout_ : the calibrated tensorizer and the fitted readout, or None
    solver_, batch_size_, nonnegative_ : the values in use, with "auto" resolved
    split_ : hash and part of the split that X belongs to, or ""
    fs_, channel_names_, units_ : sampling rate in Hz, channel names and units of X; None and () if unknown
    probe_ : the classifier stored in the model file, if any; see `polyadic.evaluate.WindowClassifier`
    replicability_ : which components replicate in other subjects, as found by `polyadic.explain.replicability`
    fit_seconds_, waited_ : total seconds of all sweeps and restarts, and the seconds of I/O wait among them

    Examples
    --------
    >>> X = np.random.default_rng(0).normal(size=(50, 4, 6))
    >>> SALS(rank=3, tensorize=None).fit_transform(X).shape
    (50, 3)
    """


class ATD(_CPEstimator):
    """Learn components of multichannel windows without labels, and compute features of new windows from them.

    With beta > 0 this is the paper's augmented tensor decomposition. The default, beta=0, uses no augmented views.

    Parameters
    ----------
    rank : number of components; default 32
    tensorize : maps a batch (b, channels, time) to tensors (b, I, J, …): a `Tensorizer` such as
        `polyadic.spectral.STFT`, a torch module or a function; None if X already holds tensors. "auto" (default)
        uses `polyadic.spectral.recommended_stft` for three-dimensional X and None otherwise
    augment : maps a batch to an augmented view: an augmentation from `polyadic.augment` or any function (which should
        use torch's generator: it is seeded for each batch); None for no view. "auto" (default) is None if
        beta=0, else `Jitter(0.05)`
    readout : a `polyadic.readout.Readout`, which maps coefficients to features; None returns the coefficients
        themselves, as in the paper. "auto" (default) is `Readout()`
    nonnegative : constrain the bases to be non-negative; "auto" (default) does so for centred log amplitudes
    restarts : number of random initialisations, default 1; the fit with the lowest loss is kept
    consensus : average the components on which the restarts agree, then run one more sweep, instead of keeping the
        best restart (default False); the components replicate better and fit slightly worse
    alpha : weight of the Tikhonov (ridge) term; default 1e-3
    beta : weight of the self-supervised loss; default 0, which with an augmentation is the paper's ATD_ss-
    gamma : weight of the random (negative) pairs; None (default) for the batch size, as in the paper
    rounds : number of fixed-point iterations for each view in each step; default 1
    solver : "blend" moves the bases by `learning_rate` towards each batch's solution, as in the paper; "memory" solves
        for exponentially weighted statistics of all batches; "moments" reads the data once to compute its second
        moments and runs full-batch sweeps on those (no views, no graph, small tensors); "auto" (default) is
        "moments" where that is possible and faster, else "blend"
    learning_rate : step size η towards a batch's solution ("blend") or forgetting rate ("memory"); default 0.05
    batch_size : windows in a batch (Algorithm 2); None for full-batch alternating least squares (Algorithm 1); "auto"
        (default) is None for "moments", else 128
    max_sweeps : maximum number of passes over the data, default 50; `fit` warns if the loss has not converged by then
    tol, patience : stop when the relative change of the loss is below `tol` in `patience` sweeps in a row; default
        1e-3 and 3. tol=0 disables this
    device : "auto" (default; CUDA if available), "cpu", "cuda", …
    random_state : random seed of the initialisation, the order of the windows and the augmentations; default 0
    verbose : 1 shows a progress bar; default 0

    Attributes
    ----------
    factors_ : the bases, matrices of shapes (I, R), (J, R), …
    history_ : `loss`, its terms and `seconds`, one value per sweep
    n_sweeps_, n_parameters_, seed_ : number of sweeps, number of learned parameters, integer seed
    attempt_ : number of the restart that was kept, from 1; `restarts` + 1 for the consensus
    tensorize_, readout_ : the calibrated tensorizer and the fitted readout, or None
    solver_, batch_size_, nonnegative_ : the values in use, with "auto" resolved
    split_ : hash and part of the split that X belongs to, or ""
    fs_, channel_names_, units_ : sampling rate in Hz, channel names and units of X; None and () if unknown
    probe_ : the classifier stored in the model file, if any; see `polyadic.evaluate.WindowClassifier`
    replicability_ : which components replicate in other subjects, as found by `polyadic.explain.replicability`
    fit_seconds_, waited_ : total seconds of all sweeps and restarts, and the seconds of I/O wait among them

    Examples
    --------
    >>> X = np.random.default_rng(0).normal(size=(60, 3, 128)).astype(np.float32)
    >>> model = ATD(rank=4).fit(X)
    >>> [factor.shape for factor in model.factors_], model.coefficients(X).shape
    ([(3, 4), (33, 4), (9, 4)], (60, 4))
    >>> list(model.get_feature_names_out())
    ['z1', 'z2', 'z3', 'z4', 'level 1', 'level 2', 'level 3']
    """

    def __init__(
        self,
        rank: int = 32,
        *,
        tensorize: Any = "auto",
        augment: Any = "auto",
        readout: Any = "auto",
        nonnegative: bool | Literal["auto"] = "auto",
        restarts: int = 1,
        consensus: bool = False,
        alpha: float = 1e-3,
        beta: float = 0.0,
        gamma: float | None = None,
        rounds: int = 1,
        solver: Literal["auto", "moments", "blend", "memory"] = "auto",
        learning_rate: float = 0.05,
        batch_size: int | Literal["auto"] | None = "auto",
        max_sweeps: int = 50,
        tol: float = 1e-3,
        patience: int = 3,
        device: str | torch.device = "auto",
        random_state: Any = 0,
        verbose: int = 0,
    ) -> None:
        super().__init__(
            rank,
            tensorize=tensorize,
            readout=readout,
            nonnegative=nonnegative,
            restarts=restarts,
            consensus=consensus,
            alpha=alpha,
            solver=solver,
            learning_rate=learning_rate,
            batch_size=batch_size,
            max_sweeps=max_sweeps,
            tol=tol,
            patience=patience,
            device=device,
            random_state=random_state,
            verbose=verbose,
        )
        self.augment = augment
        self.beta = beta
        self.gamma = gamma
        self.rounds = rounds

    def _augmentation(self) -> Any:
        if isinstance(self.augment, str) and self.augment == "auto":
            return Jitter(_JITTER) if self.beta > 0 else None
        return self.augment

    def _begin(self, X: Any, reset: bool = True) -> tuple[WindowSource, als.Objective, FitSettings]:
        begun = super()._begin(X, reset)
        self.augment_ = self._augmentation()
        return begun

    def _objective(self, count: int) -> als.Objective:
        gamma = None if self.gamma is None else float(self.gamma)
        return als.Objective(alpha=float(self.alpha), beta=float(self.beta), gamma=gamma, rounds=int(self.rounds))

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_number("beta", self.beta, 0)
        check_number("gamma", self.gamma, 0, float(np.finfo(np.float32).max), none=True)
        check_integer("rounds", self.rounds, 1)
        if self.rounds > MOST_ROUNDS:
            raise PolyadicError(f"rounds must be at most {MOST_ROUNDS:,}, but is {self.rounds}")
        if self.augment is None and self.beta > 0:
            raise PolyadicError(
                f"beta={self.beta:g} weights a loss between samples and their augmented views, but augment is None: "
                "pass an augmentation, or beta=0 for plain stochastic ALS"
            )


class GRSALS(_CPEstimator):
    """SALS with a graph regulariser w·Tr(XᵀLX) that pulls the coefficients of connected windows towards each other.

    Parameters
    ----------
    graph : "complete" (default) for equal weights 1/b among the b windows of a batch, or a symmetric (N, N) array or
        sparse matrix of weights between the windows passed to `fit`. Each batch uses its submatrix; with
        batch_size=None the whole matrix is decomposed in every sweep, in O(N³) time
    graph_weight : weight w of the regulariser; default 1e-3
    rank, tensorize, readout, nonnegative, restarts, consensus, alpha, solver, learning_rate : as for `SALS`
    batch_size, max_sweeps, tol, patience, device, random_state, verbose : as for `SALS`

    Attributes
    ----------
    factors_, history_, n_sweeps_, n_parameters_, seed_, tensorize_, readout_ : as for `SALS`

    Examples
    --------
    >>> X = np.random.default_rng(0).normal(size=(50, 4, 6))
    >>> GRSALS(rank=3, tensorize=None, graph_weight=0.1).fit_transform(X).shape
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
        graph: Any = "complete",
        graph_weight: float = 1e-3,
        alpha: float = 1e-3,
        solver: Literal["auto", "moments", "blend", "memory"] = "auto",
        learning_rate: float = 0.05,
        batch_size: int | Literal["auto"] | None = "auto",
        max_sweeps: int = 50,
        tol: float = 1e-3,
        patience: int = 3,
        device: str | torch.device = "auto",
        random_state: Any = 0,
        verbose: int = 0,
    ) -> None:
        super().__init__(
            rank,
            tensorize=tensorize,
            readout=readout,
            nonnegative=nonnegative,
            restarts=restarts,
            consensus=consensus,
            alpha=alpha,
            solver=solver,
            learning_rate=learning_rate,
            batch_size=batch_size,
            max_sweeps=max_sweeps,
            tol=tol,
            patience=patience,
            device=device,
            random_state=random_state,
            verbose=verbose,
        )
        self.graph = graph
        self.graph_weight = graph_weight

    def _objective(self, count: int) -> als.Objective:
        graph = None if isinstance(self.graph, str) else Graph.of(self.graph, count)
        return als.Objective(alpha=float(self.alpha), graph_weight=float(self.graph_weight), graph=graph)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_number("graph_weight", self.graph_weight, 0)
        if self.graph is None or (isinstance(self.graph, str) and self.graph != "complete"):
            raise PolyadicError(
                f"graph must be 'complete' or an (N, N) array of weights, but is {self.graph!r} "
                "(model files do not store the graph: set it again before refitting a loaded model)"
            )
