"""CPD, the default estimator: its parameters and its fit. `polyadic.estimators.model` has what it does when fitted.

A fit checks its input, reads the windows in passes (`core.passes`) that collect moments (`core.moments`), sweeps over
these until the loss settles (`core.solve`), and fits the readout.
"""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Self

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from polyadic._util.checks import check_integer, check_number
from polyadic._util.random_streams import integer_seed
from polyadic._util.threads import thread_pool
from polyadic._util.torch_state import plain_torch
from polyadic.core import persist
from polyadic.core.algebra import initial_factors
from polyadic.core.completion import CALIBRATION, FEWEST_CHANNELS, CompletedMoments, NoiseFinder, Prior, Spectra
from polyadic.core.compression import Compression
from polyadic.core.missing import look
from polyadic.core.moments import Block, Moments
from polyadic.core.passes import Passes, Stage
from polyadic.core.solve import Progress, Settings, empty_history, solve, warn_of_vanished
from polyadic.core.step import Objective, State, Statistics, step
from polyadic.core.tensorizer import tensors
from polyadic.data.batches import WindowSource, check_modes, choose_device, integer_random_state
from polyadic.errors import PolyadicError
from polyadic.estimators.base import all_or_nothing
from polyadic.estimators.model import CPModel
from polyadic.readout import Readout
from polyadic.scale.cluster import ChunkSource, chunks_of
from polyadic.scale.moments import Moments as SavedMoments
from polyadic.scale.moments import MomentsSource, group_masks, most_groups
from polyadic.statistics import levels, rounding, window_statistics

MORE_SWEEPS = "Increase max_sweeps, or set tol=0 if exactly this many sweeps are intended."
"""Advice for a loss that has not converged; commands name their own option instead."""
LEARNING_RATE = 0.05
_RESTART = 0x5E7A  # separates the random stream of further restarts from all others
_RESUMABLE_CHANGES = {"max_sweeps", "tol", "patience", "device", "verbose", "random_state"}
"""Parameters that may change when a fit is resumed; `random_state` is compared by its seed."""
_FEWEST_GROUPS = 10
"""With less room for moments of groups, a pass of their own collects smaller ones."""


def store_parameters(model: object, arguments: dict[str, Any]) -> None:
    """Set the arguments of a constructor, its `locals()`, as attributes, as scikit-learn expects."""
    vars(model).update({name: value for name, value in arguments.items() if name not in ("self", "__class__")})


class CPD(CPModel):
    """Learn components of multichannel windows without labels, and compute features of new windows from them.

    This is the CP decomposition of centred log spectra, with non-negative components and isometric features. It is the
    default of every command.

    Parameters
    ----------
    rank : number of components; default 32
    tensorize : maps a batch (b, channels, time) to tensors (b, I, J, …): a `Tensorizer` such as
        `polyadic.spectral.STFT`, or a function; None if X already holds tensors. "auto" (default)
        uses `polyadic.spectral.recommended_stft` for windows, and None for X with more than three dimensions
    readout : a `polyadic.readout.Readout`, which maps coefficients to features; None returns the coefficients
        themselves, as in the paper. "auto" (default) is `Readout()`
    nonnegative : constrain the bases to be non-negative; "auto" (default) does so for centred log amplitudes
    restarts : number of random initialisations, default 1; the fit with the lowest loss is kept
    consensus : average the components on which the restarts agree, then sweep until the next check of the loss,
        instead of keeping the best restart (default False); the components replicate better and fit slightly worse
    alpha : weight of the Tikhonov (ridge) term; default 1e-3
    compression : the fit reads the data twice: to find the leading axes of each mode, and for the second moments of
        windows compressed to them, from which all sweeps are computed. "auto" (default) drops axes until the rest
        loses 3 % of the energy or, if necessary, until second moments have at most 2,048 × 2,048 entries; a tuple
        gives the number of axes of each mode; None compresses nothing (tensors of up to 16,384 entries)
    max_sweeps : maximum number of sweeps, default 200; `fit` warns if the loss has not converged by then. A sweep
        updates the coefficients of all windows and each basis, and reads no data
    tol, patience : stop when the relative change of the loss is below `tol` in `patience` checks in a row; default
        1e-3 and 3. The loss is checked after every fourth sweep. tol=0 disables this
    device : "auto" (default; CUDA if available), "cpu", "cuda", …
    random_state : random seed of the initialisation, the order of the windows and the augmentations; default 0
    verbose : 1 shows a progress bar; default 0

    Attributes
    ----------
    factors_ : the bases, matrices of shapes (I, R), (J, R), …
    history_ : `loss`, its terms and `seconds`, one value per sweep
    n_sweeps_, n_parameters_, seed_ : number of sweeps, number of learned parameters, integer seed
    converged_ : whether the loss converged; with a consensus, the losses of all restarts
    attempt_ : number of the restart that was kept, from 1; `restarts` + 1 for the consensus
    tensorize_, readout_ : the calibrated tensorizer and the fitted readout, or None
    solver_, batch_size_, nonnegative_ : the values in use, with "auto" resolved
    compression_ : `ranks`, the number of axes kept of each mode, and `energy`, the share of ‖T‖² that they hold
    fs_, channel_names_, units_ : sampling rate in Hz, channel names and units of X; None and () if unknown
    probe_ : the classifier stored in the model file, if any; see `polyadic.evaluate.WindowClassifier`
    replicability_ : which components replicate in other subjects, as found by `polyadic.explain.replicability`
    components_ : components for people, as found by `polyadic.explain.components`; the command `fit` sets it
    fit_seconds_, waited_ : total seconds of all sweeps and restarts, and the seconds of I/O wait among them

    Examples
    --------
    >>> X = np.random.default_rng(0).normal(size=(60, 3, 128)).astype(np.float32)
    >>> model = CPD(rank=4).fit(X)
    >>> [factor.shape for factor in model.factors_], model.coefficients(X).shape
    ([(3, 4), (33, 4), (9, 4)], (60, 4))
    >>> list(model.get_feature_names_out())[:6]
    ['z1', 'z2', 'z3', 'z4', 'mean 1', 'mean 2']
    """

    _collects = True
    """Whether a fit collects moments in two passes; otherwise its sweeps read the data."""

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
        compression: Literal["auto"] | tuple[int, ...] | None = "auto",
        max_sweeps: int = 200,
        tol: float = 1e-3,
        patience: int = 3,
        device: str | torch.device = "auto",
        random_state: Any = 0,
        verbose: int = 0,
    ) -> None:
        store_parameters(self, locals())

    # ---------------------------------------------------------------- fitting

    @plain_torch()
    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        checkpoint: str | os.PathLike[str] | None = None,
        resume: bool = False,
        checkpoint_every: float = 60.0,
    ) -> Self:
        """Learn the bases from unlabelled samples.

        Parameters
        ----------
        X : (N, channels, time), or (N, I, J, …) with `tensorize=None`; numpy, torch, a memory map, `Windows` or a
            `WindowStore`. Data on disk are read batch by batch, so memory does not grow with N. `CPD` also takes a
            `dask.array` or a list of paths of stores and of folders of recordings, whose chunks Dask workers read (see
            `polyadic.scale.recordings`); and `polyadic.scale.Moments`, for which no data are read
        y : ignored
        checkpoint : file in which to save the state of the fit from time to time
        resume : resume from that file, if it exists. On a CPU the result is bit-identical to that of an
            uninterrupted fit. `max_sweeps`, `tol`, `patience`, `device` and `verbose` may change
        checkpoint_every : seconds between checkpoints, which are written after a sweep

        Returns
        -------
        the estimator itself
        """
        self._fit(X, checkpoint, resume, checkpoint_every)
        return self

    def _fit(
        self,
        X: Any,
        checkpoint: str | os.PathLike[str] | None = None,
        resume: bool = False,
        checkpoint_every: float = 60.0,
        masks_of: Callable[[int], list[Tensor]] | None = None,
    ) -> Passes | None:
        """Fit, and return the passes over the windows, if any; `masks_of` is that of `Passes`."""
        if checkpoint is None and resume:
            raise PolyadicError("resume=True needs the file of the checkpoint, but checkpoint is None: pass checkpoint")
        with all_or_nothing(self), ExitStack() as stack:
            source, objective, settings = self._begin(X, calibrate=not self._collects)
            self._n_seen = source.n_windows
            observers: list[Callable[[Progress], None]] = []
            progress = saved = moments = passes = None
            if self.verbose:
                observers.append(stack.enter_context(self._bar(source, settings)))
            if checkpoint is not None:
                saved = stack.enter_context(self._checkpoints(source, checkpoint, resume, checkpoint_every))
                if not self._collects:
                    progress = saved.load(source.device)
                    observers.insert(0, saved)  # a sweep that was reported is not lost

            def observe(current: Progress) -> None:
                for observer in observers:
                    observer(current)

            begun = time.perf_counter()
            if self._collects:
                moments, passes = self._collect(source, saved, masks_of)
            reading = time.perf_counter() - begun
            stack.enter_context(self._pool(source.device) if moments is None else thread_pool())
            progress = solve(
                lambda attempt: self._initial_factors(source, attempt),
                self._sweep(source, objective, settings) if moments is None else moments.sweep_of(objective),
                objective,
                settings,
                observe if observers else None,
                progress,
            )
            assert progress.best is not None
            self.history_, self.n_sweeps_ = progress.best_history, len(progress.best_history["loss"])
            self.attempt_ = settings.attempts if self.consensus else int(np.argmin(progress.finished)) + 1
            self.fit_seconds_, self.waited_ = progress.spent + reading, source.waited
            self.converged_ = progress.all_converged if self.consensus else settings.is_converged(self.history_["loss"])
            self._keep(progress.best)
            if self.nonnegative_:
                warn_of_vanished(progress.best.factors)
            if not self.converged_ and self.tol > 0:  # with tol=0, max_sweeps is the intended number
                warnings.warn(
                    f"The fit stopped at max_sweeps={self.max_sweeps} before the loss converged. {MORE_SWEEPS}",
                    ConvergenceWarning,
                    stacklevel=4,  # the line that called `fit`
                )
            # After the last checkpoint: a fit that is interrupted here only repeats this on resume.
            self._fit_readout(source, moments)
        return passes

    @plain_torch()
    def fit_with_moments(self, X: Any, groups: Any, **options: Any) -> SavedMoments:
        """Fit as `fit` does, and return moments of the subjects from the same passes, for `explain.components`.

        Parameters
        ----------
        X, options : as for `fit`, but no Dask arrays, stores in lists or moments
        groups : (N,), the subject of each window

        Examples
        --------
        >>> from polyadic.data import synthetic
        >>> windows = synthetic(60, n_channels=2)
        >>> CPD(rank=2).fit_with_moments(windows, windows.subject)
        <Moments of stage 'core', 60 windows>
        """
        if not self._collects or isinstance(X, SavedMoments | list) or chunks_of(X) is not None:
            raise PolyadicError("fit_with_moments needs a CPD and windows that it reads itself")
        names: list[str] = []

        def masks_of(width: int) -> list[Tensor]:
            # Of few windows the fit keeps more axes than moments of subjects have room for.
            found, masks = group_masks(groups, self._n_seen, most_groups(width))
            names[:] = found if most_groups(width) >= _FEWEST_GROUPS else []
            return masks[: len(names)]

        passes = self._fit(X, masks_of=masks_of, **options)
        if not names:
            return SavedMoments.collect(X, tensorize=self.tensorize_, groups=groups)
        assert passes is not None
        return SavedMoments.of_fit(self, passes, names)

    def _source(self, X: Any, reset: bool = True, calibrate: bool = True) -> Any:
        if isinstance(X, SavedMoments):
            return self._known_by_moments(X)
        # A Dask array, a list of paths or windows may be in chunks; arrays in memory are not.
        chunks = chunks_of(X) if self._collects and not isinstance(X, np.ndarray | Tensor) else None
        source = super()._source(X if chunks is None else chunks, reset, calibrate)
        return source if chunks is None else ChunkSource.of(source, self.device)

    def _known_by_moments(self, X: SavedMoments) -> MomentsSource:
        """Return the source of a fit to saved moments, and set seed, shape, tensorizer and channels of the model."""
        if not self._collects:
            raise PolyadicError(
                f"{type(self).__name__} must read the windows themselves, but X is their moments: use CPD"
            )
        for name, known in X.settings.items():
            given = getattr(self, name)
            if not (isinstance(given, str) and given == "auto") and persist.encode(given) != known:
                raise PolyadicError(f"{name} must be 'auto' or that of the moments, {known!r}, but is {given!r}")
        source = X.source()
        self.seed_, self.tensorize_ = integer_random_state(self.random_state), X.stage.tensorize
        self._sample_shape, self.n_features_in_ = source.window, source.window[0]
        self.fs_, self.channel_names_ = X.windows["fs"], tuple(X.windows["channels"])
        self.units_, self.reading_ = tuple(X.windows["units"]), dict(X.reading)
        self.typical_ = {}
        return source

    def _collect(
        self, source: WindowSource, saved: Any = None, masks_of: Callable[[int], list[Tensor]] | None = None
    ) -> tuple[Moments | CompletedMoments, Passes | None]:
        """Collect the moments of the windows in two passes, and calibrate the tensorizer on the way."""
        moments: Moments | CompletedMoments
        if isinstance(source, MomentsSource):
            moments, passes = source.moments, None
        else:
            stage = replace(self._first_stage(source), statistics=self._statistics(source), apart=True)
            passes = Passes(source, stage, self.compression, masks_of=masks_of)
            if saved is not None:
                saved.load_passes(passes)
                passes.after_block = saved.save_passes
            with self._pool(source.device):
                moments = passes.run()
            if 0 < moments.n_incomplete <= moments.lost and not moments.count:
                raise PolyadicError("X has nothing to fit: all channels of all windows are missing (NaN) or constant")
            if saved is not None:
                saved.save_passes(passes, now=True)
            self.tensorize_ = source.tensorize = passes.stage.tensorize
            if moments.n_incomplete:
                redundancy = 1.0 if self.tensorize_ is None else self.tensorize_.redundancy
                with thread_pool():
                    moments = CompletedMoments(moments, redundancy, passes.filled_by)
        self.compression_ = {"ranks": list(moments.compression.ranks), "energy": moments.kept_energy}
        return moments, passes

    def _first_stage(self, source: WindowSource) -> Stage:
        """Return the first pass over the windows."""
        return Stage(
            "floor", self.tensorize_, self.units_, self.fs_, keep_flat=self._keeps_flat, n_windows=source.n_windows
        )

    def _statistics(self, source: WindowSource) -> Callable[..., Tensor] | None:
        """Return the function that computes the statistics of raw windows, or None if the readout has none."""
        has_windows = source.tensorize is not None and source.example().ndim == 3
        has_statistics = self._readout is not None and self._readout.statistics > 0
        return window_statistics if has_windows and has_statistics else None

    @plain_torch()
    def refit_parts(self, X: Any, parts: Sequence[np.ndarray], random_states: Sequence[int]) -> list[list[np.ndarray]]:
        """Return the bases of fits to several parts of the windows, with the tensorizer of this model.

        The windows are read once for the axes of the modes and once for the moments of all parts.

        Parameters
        ----------
        X : as for `fit`, but not in chunks for Dask
        parts : masks (N,), one for each fit; of the groups, if X is `polyadic.scale.Moments`
        random_states : the seed of each fit

        Returns
        -------
        for each fit, matrices of shapes (I, R), (J, R), …
        """
        check_is_fitted(self)
        source, objective, settings = self._begin(X, reset=False)
        if isinstance(source, ChunkSource):
            raise PolyadicError(
                "parts of windows in Dask chunks cannot be fitted: pass a WindowStore or an array of the same windows"
            )
        if isinstance(X, SavedMoments):
            collected = [X.of([name for name, inside in zip(X.groups, part, strict=True) if inside]) for part in parts]
        else:
            fill = self._solver(source.device) if hasattr(self, "prior_") else None
            passes = Passes(source, replace(self._first_stage(source), fill=fill), self.compression)
            with self._pool(source.device):
                collected = passes.of_parts([torch.from_numpy(part) for part in parts])
        bases = []
        with thread_pool():
            for moments, seed in zip(collected, random_states, strict=True):
                progress = solve(
                    partial(self._initial_factors, source, seed=seed),
                    moments.sweep_of(objective),
                    objective,
                    settings,
                )
                assert progress.best is not None
                bases.append([factor.numpy() for factor in progress.best.factors])
        return bases

    def _begin(self, X: Any, reset: bool = True, calibrate: bool = True) -> tuple[WindowSource, Objective, Settings]:
        """Check parameters and input, and resolve what depends on both: non-negativity, solver, batch size."""
        self._check_parameters()
        source = self._source(X, reset, calibrate)
        suits = self.tensorize_ is not None and self.tensorize_.suits_nonnegative
        self.nonnegative_ = suits if isinstance(self.nonnegative, str) else bool(self.nonnegative)
        objective = replace(self._objective(), nonnegative=self.nonnegative_)
        self.solver_, self.batch_size_, learning_rate = self._choose_solver(source)
        settings = Settings(
            solver=self.solver_,
            learning_rate=learning_rate,
            batch_size=self.batch_size_,
            max_sweeps=int(self.max_sweeps),
            tol=float(self.tol),
            patience=int(self.patience),
            seed=self.seed_,
            restarts=int(self.restarts),
            consensus=bool(self.consensus),
        )
        return source, objective, settings

    def _objective(self) -> Objective:
        """Return the objective."""
        return Objective(alpha=float(self.alpha))

    def _choose_solver(self, source: WindowSource) -> tuple[str, int | None, float]:
        """Return solver, batch size and learning rate."""
        return "moments", None, 1.0

    def _initial_factors(self, source: WindowSource, attempt: int = 0, seed: int | None = None) -> list[Tensor]:
        """Return the initial bases of a restart; the order of windows and their views are the same in all restarts."""
        seed = self.seed_ if seed is None else seed
        seed = integer_seed(seed, _RESTART, attempt) if attempt else seed
        # Sweeps on moments are too small for a GPU.
        device = torch.device("cpu") if self._collects else source.device
        shape = self._tensor_shape(source)
        return initial_factors(shape, self.rank, seed, source.dtype, device, self.nonnegative_)

    @contextmanager
    def _bar(self, source: WindowSource, settings: Settings) -> Iterator[Callable[[Progress], None]]:
        """Yield an observer that shows a progress bar."""
        from polyadic._util.progress import sweep_bar

        # A default fit reads all windows before its first sweep: for floors, axes and moments.
        reads = 3 if self._collects else 1
        with sweep_bar(type(self).__name__, settings.max_sweeps, reads * source.n_windows) as (on_sweep, on_batch):
            source.on_batch = on_batch

            def show(progress: Progress) -> None:
                attempt = f", start {progress.attempt + 1} of {settings.attempts}" if progress.attempt else ""
                on_sweep(progress.history, attempt)

            yield show

    def _checkpoints(self, source: WindowSource, path: Any, resume: bool, every: float) -> Any:
        from polyadic.scale.checkpoints import Checkpoints, data_fingerprint

        if isinstance(source, MomentsSource):
            raise PolyadicError("a fit to moments reads no data and needs no checkpoint: leave checkpoint out")
        check_number("checkpoint_every", every, 0)
        parameters = self.get_params(deep=False)
        fingerprint = {
            "estimator": type(self).__name__,
            **{name: persist.encode(value) for name, value in parameters.items() if name not in _RESUMABLE_CHANGES},
            "tensorize": persist.encode(self.tensorize_),
            "seed": self.seed_,
            "data": data_fingerprint(source.samples),
        }
        return Checkpoints(path, fingerprint, every, resume)

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
            source, objective, _ = self._begin(X, reset=new)
            self.compression_ = None
            if new:
                self._n_seen, self.n_sweeps_ = 0, 0
                self._memory = None
                self.history_ = empty_history()
                factors = self._initial_factors(source)
            else:
                self._check_rank()
                factors = self._factors(source.device, source.dtype)
            source = replace(source, first_id=self._n_seen)
            state = State(factors, _moved(self._memory, source.device, source.dtype))
            ids = torch.arange(len(source.samples), device="cpu")
            # Second moments and Algorithm 1 need all windows; a batch has the step size of Algorithm 2.
            solver = "blend" if self.solver_ == "moments" else self.solver_
            rate = float(getattr(self, "learning_rate", LEARNING_RATE))
            with self._pool(source.device):
                T = source.views(ids, 0)
                check_modes(T, factors)
                step(T, state, objective, source.n_views, solver=solver, learning_rate=rate, watch=True)
            self._n_seen += len(source.samples)
            self._keep(state)
        return self

    def _keep(self, state: State) -> None:
        if not all(bool(torch.isfinite(factor).all()) for factor in state.factors):
            raise PolyadicError(
                "the bases did not stay finite: the values in X, or those that tensorize or augment compute from it, "
                "are too large; rescale X or pass it as float64"
            )
        self.factors_ = [factor.cpu().numpy() for factor in state.factors]
        self._memory = _moved(state.memory, torch.device("cpu"), state.factors[0].dtype)
        # They belong to the previous bases.
        for name in ("readout_", "prior_", "probe_", "replicability_", "components_"):
            if hasattr(self, name):
                delattr(self, name)
        if self.readout is None:
            self.readout_ = None

    def _check_parameters(self) -> None:
        check_integer("rank", self.rank, 1)
        check_number("alpha", self.alpha, 0)
        if self.nonnegative not in ("auto", True, False):
            raise PolyadicError(f"nonnegative must be 'auto', True or False, but is {self.nonnegative!r}")
        check_integer("restarts", self.restarts, 1)
        if not isinstance(self.consensus, bool | np.bool_):
            raise PolyadicError(f"consensus must be True or False, but is {self.consensus!r}")
        if self.consensus and self.restarts < 2:
            raise PolyadicError("consensus=True averages the components of several restarts, but restarts=1")
        self._check_readout()
        check_integer("max_sweeps", self.max_sweeps, 1)
        check_number("tol", self.tol, 0)
        check_integer("patience", self.patience, 1)
        if not isinstance(self.verbose, int | np.integer) or self.verbose < 0:
            raise PolyadicError(f"verbose must be a whole number >= 0, but is {self.verbose!r}")
        self._check_windows()

    # ---------------------------------------------------------------- readout

    @plain_torch()
    def fit_readout(self, X: Any, readout: Any = None) -> Self:
        """Fit the readout to unlabelled samples, with fixed components.

        `fit` does this at its end. Call it after `partial_fit`, for an imported model, or to try another readout
        without refitting the components. A probe trained on the previous features is dropped.

        Parameters
        ----------
        X : as for `transform`
        readout : the new `polyadic.readout.Readout`; by default the model's `readout` parameter

        Returns
        -------
        the model itself
        """
        check_is_fitted(self)
        with all_or_nothing(self):
            if readout is not None:
                self.readout = readout
            self._check_readout()
            source = self._source(X, reset=False)
            with self._pool(source.device):
                self._fit_readout(source)
        return self

    def _check_readout(self) -> None:
        known = self.readout is None or isinstance(self.readout, Readout)
        if not known and not (isinstance(self.readout, str) and self.readout == "auto"):
            raise PolyadicError(f"readout must be 'auto', None or a polyadic.readout.Readout, but is {self.readout!r}")

    def _fit_readout(self, source: WindowSource, moments: Moments | CompletedMoments | None = None) -> None:
        """Fit readout and prior, from moments or in one pass over the windows, in batches and constant memory."""
        if hasattr(self, "probe_"):
            del self.probe_
        self.readout_ = None
        readout, describe = self._readout, self._statistics(source)
        entries = math.prod(len(factor) for factor in self.factors_)
        if moments is not None:
            factors = self._factors(torch.device("cpu"), source.dtype)
            collected = moments.coefficients(factors, float(self.alpha))
        elif readout is not None:
            collected = self._coefficient_moments(source, describe, entries)
        else:
            return
        if readout is not None:
            limits = None if describe is None else rounding(*source.example().shape[1:])
            self.readout_ = readout.fitted(collected, self.factors_, limits)
        scale = np.zeros(0) if self.readout_ is None else self.readout_.statistic_scale
        known = levels(collected.statistics, self._sample_shape[0]) if len(scale) else ()
        redundancy = 1.0 if self.tensorize_ is None else self.tensorize_.redundancy
        self.prior_ = Prior.fitted(collected, entries / redundancy, scale, known)
        spectra = self._spectra(source)
        if spectra is not None:
            self.prior_ = replace(self.prior_, spectra=torch.stack([*spectra]).cpu().numpy())

    def _coefficient_moments(self, source: WindowSource, describe: Callable[..., Tensor] | None, entries: int) -> Any:
        """Return the moments of coefficients and statistics, in a pass over the windows."""
        count = 0 if describe is None else describe(source.example()).shape[1]
        collected = Moments(Compression.none((self.factors_[0].shape[1],)), source.n_windows, count, torch.float64)
        extract = self._extractor(choose_device(self.device, source.samples.data), source.dtype)
        for ids, X in self._raw_batches(source.samples, entries):
            x, residuals = extract(tensors(source.tensorize, X))
            statistics = x[:, :0] if describe is None else describe(X)
            c, squares, statistics = (part.to("cpu", torch.float64) for part in (x, residuals, statistics))
            collected.add(Block(ids, c, squares, statistics))
        collected.finish()
        return collected.coefficients()

    def _spectra(self, source: WindowSource) -> Spectra | None:
        """Return what tells channels of noise, from complete windows of the fit; None if these cannot be read."""
        tensorize, channels = self.tensorize_, self._sample_shape[0]
        if tensorize is None or self._keeps_flat or isinstance(source, MomentsSource | ChunkSource):
            return None
        if channels < FEWEST_CHANNELS or len(self.factors_) < 2 or len(self.factors_[0]) != channels:
            return None
        size = min(source.n_windows, CALIBRATION)
        ids = torch.arange(size) * source.n_windows // size
        seen = look(source.samples.take(ids, source.device, source.dtype, missing=True), tensorize, self.fs_)
        return Spectra.of(NoiseFinder(self._solver(source.device)).differences(seen.T[seen.complete]))


def _moved(memory: Statistics | None, device: torch.device, dtype: torch.dtype) -> Statistics | None:
    return None if memory is None else Statistics(memory.Y.to(device, dtype), memory.S.to(device))
