"""CPD, ATD, SALS and GR-SALS as scikit-learn transformers: raw windows or tensors in, features out.

The classes hold parameters, check input and call `core`; `WindowEstimator` is also the base class of the baselines.
"""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
from torch import Tensor

from polyadic._util import model_files
from polyadic._util.checks import check_integer, check_memory, check_number
from polyadic._util.files import write_array
from polyadic._util.immutable import Immutable
from polyadic._util.random_streams import integer_seed
from polyadic._util.threads import thread_pool
from polyadic._util.torch_state import plain_torch
from polyadic._util.version import __version__
from polyadic.augment import Augmentation, Jitter, as_augmentation
from polyadic.core import persist
from polyadic.core.algebra import reconstruct
from polyadic.core.completion import (
    CALIBRATION,
    FEWEST_CHANNELS,
    CompletedMoments,
    NoiseFinder,
    Prior,
    Solver,
    Spectra,
)
from polyadic.core.graph import Graph
from polyadic.core.missing import Gaps, Tally, distinct_masks, look
from polyadic.core.moments import Moments
from polyadic.core.passes import Missing, Passes
from polyadic.core.solve import KEPT_BYTES, Progress, Settings, empty_history, plain_sweep, solve, warn_of_vanished
from polyadic.core.step import Objective, State, Statistics, feature_extractor, initial_factors, step
from polyadic.core.tensorizer import (
    Axis,
    Tensorizer,
    as_tensorizer,
    channel_axis,
    numbered_axes,
    tensor_shape,
    tensors,
    time_axis,
)
from polyadic.data.batches import Samples, WindowSource, check_modes, choose_device, integer_random_state, prefetch
from polyadic.data.channels import match_signals, recorded_signals
from polyadic.data.labels import known_labels
from polyadic.data.reading import Reading
from polyadic.errors import ModelFileError, PolyadicError
from polyadic.readout import PREFIX, FittedReadout, Readout
from polyadic.scale.cluster import ChunkSource, chunks_of, lazily
from polyadic.scale.moments import Moments as SavedMoments
from polyadic.scale.moments import MomentsSource, group_masks, most_groups
from polyadic.spectral import recommended_stft
from polyadic.statistics import levels, rounding, statistic_names, window_statistics

__all__ = ["ATD", "CPD", "GRSALS", "SALS", "WindowEstimator", "all_or_nothing", "describe_fit", "labelled_windows"]

MORE_SWEEPS = "Increase max_sweeps, or set tol=0 if exactly this many sweeps are intended."
"""Advice for a loss that has not converged; commands name their own option instead."""

_CALIBRATION_WINDOWS = 1024
_BATCH_BYTES = 2**25
_GPU_BATCHES = 32
_BATCH_SIZE = 128
_LEARNING_RATE = 0.05
_MOST_ROUNDS = 10_000
"""Maximum number of fixed-point iterations per step; the paper uses 1, and 100 are more than enough to converge."""
_RESTART = 0x5E7A  # separates the random stream of further restarts from all others
_RESUMABLE_CHANGES = {"max_sweeps", "tol", "patience", "device", "verbose", "random_state"}
"""Parameters that may change when a fit is resumed; `random_state` is compared by its seed."""
_FEWEST_GROUPS = 10
"""With less room for moments of groups, a pass of their own collects smaller ones."""
_RESOLVED = ("solver_", "batch_size_", "nonnegative_", "compression_", "attempt_", "converged_")
"""Values of "auto" parameters and the outcome of the fit, stored for information only."""


@contextmanager
def all_or_nothing(model: object) -> Iterator[None]:
    """Restore the previous state of a model if its fit fails."""
    before = dict(vars(model))
    try:
        yield
    except BaseException:
        vars(model).clear()
        vars(model).update(before)
        raise


def labelled_windows(X: Any, y: Any) -> tuple[Any, np.ndarray]:
    """Return the windows that have a label, and their labels; X itself if all have one.

    Parameters
    ----------
    X : (N, …), any input of an estimator
    y : (N,), with unknown labels as in `polyadic.data.labels`; a column (N, 1) is raveled with scikit-learn's warning
    """
    flat = column_or_1d(y, warn=True) if getattr(y, "ndim", 1) == 2 else y
    known, labels = known_labels(flat, len(Samples(X)))
    if known.all():
        return X, labels
    return _safe_indexing(getattr(X, "windows", X), np.flatnonzero(known)), labels


def _store_parameters(model: object, arguments: dict[str, Any]) -> None:
    """Set the arguments of a constructor, its `locals()`, as attributes, as scikit-learn expects."""
    vars(model).update({name: value for name, value in arguments.items() if name not in ("self", "__class__")})


# ------------------------------------------------------------------ base class


class WindowEstimator(BaseEstimator):  # type: ignore[misc]
    """Base class of estimators with the parameters `tensorize`, `device`, `random_state` and, with views, `augment`.

    It checks input, calibrates the tensorizer, yields batches and writes model files. For model files, a subclass
    implements `_arrays` and `_extra`, which return its state, and `_restore`.
    """

    tensorize: Any
    random_state: Any
    device: str | torch.device
    tensorize_: Tensorizer | None
    history_: dict[str, list[float]]
    fs_: float | None
    channel_names_: tuple[str, ...]
    units_: tuple[str, ...]
    _sample_shape: tuple[int, ...]
    _kinds: ClassVar[dict[str, type[WindowEstimator]]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        WindowEstimator._kinds[cls.__name__] = cls

    def set_params(self, **params: Any) -> Self:
        """Set parameters; a nested one, such as `tensorize__n_fft`, replaces the immutable object by a changed copy."""
        nested: dict[str, dict[str, Any]] = {}
        for name in list(params):
            owner, _, inner = name.partition("__")
            if inner and owner in ("tensorize", "augment", "readout"):
                nested.setdefault(owner, {})[inner] = params.pop(name)
        super().set_params(**params)
        for owner, changes in nested.items():
            held = getattr(self, owner, None)
            if not isinstance(held, Immutable):
                raise PolyadicError(
                    f"{owner} is {held!r}, which has no parameters to set: {', '.join(changes)}; first set {owner} to "
                    "an object that has them, such as tensorize=STFT(...)"
                )
            setattr(self, owner, held.with_params(**changes))
        return self

    # ------------------------------------------------------------------ input

    def _tensorizer(self, shape: tuple[int, ...]) -> Tensorizer | None:
        """Return the tensorizer for samples of this shape (N, …), not yet calibrated."""
        if not (isinstance(self.tensorize, str) and self.tensorize == "auto"):
            return as_tensorizer(self.tensorize)
        if len(shape) == 2:
            raise PolyadicError(
                f"X must be windows (N, channels, time), but has shape {shape}: cut one recording (time, channels) "
                "into windows first, a data frame with Windows.from_dataframe(df, fs=…, seconds=…), or pass "
                "tensorize=None to factorise a table as it is"
            )
        # Three-dimensional input is windows of channels by time; any other already holds tensors.
        return recommended_stft(shape[-1], self.fs_) if len(shape) == 3 else None

    def _augmentation(self) -> Augmentation | None:
        """Return the augmentation of an estimator that has one."""
        augment = getattr(self, "augment", None)
        return None if augment is None else as_augmentation(augment)

    def _check_windows(self) -> None:
        """Raise if `tensorize` or `augment` is invalid."""
        self._tensorizer(())
        self._augmentation()

    def _samples(self, X: Any, reset: bool = False) -> Samples:
        """Return X as samples, checked against the windows of the fit; with `reset`, they define those of a new fit."""
        has_signals = hasattr(X, "fs")
        if reset:
            self.fs_, self.channel_names_ = recorded_signals(X) if has_signals else (None, ())
        elif has_signals:
            known = (getattr(self, "fs_", None), getattr(self, "channel_names_", ()))
            X = match_signals(X, *known, units=getattr(self, "units_", ()))
        samples = Samples(X)
        # Leave a wrong number of columns to scikit-learn, whose error message users know.
        flat = not reset and len(samples.shape) == 1 + len(self._sample_shape) == 2
        if not reset and not flat and samples.shape[1:] != self._sample_shape:
            expected = ", ".join(str(size) for size in self._sample_shape)
            raise PolyadicError(f"X must have shape (N, {expected}) as in fit, but has shape {samples.shape}")
        validate_data(self, X if hasattr(X, "columns") else samples.data, reset=reset, skip_check_array=True)
        return samples

    def _source(self, X: Any, reset: bool = True, calibrate: bool = True) -> WindowSource:
        """Return the source of batches of X; with `reset`, also set seed, shape, calibration and axes of the model."""
        samples = self._samples(X, reset)
        device = choose_device(self.device, samples.data)
        if reset:
            self.seed_ = integer_random_state(self.random_state)
            self.units_ = tuple(str(unit) for unit in getattr(X, "units", ()))
            tensorizer = self._tensorizer(samples.shape)
            if tensorizer is not None and (calibrate or type(tensorizer).measured is Tensorizer.measured):
                count = min(len(samples), _CALIBRATION_WINDOWS)
                ids = torch.linspace(0, len(samples) - 1, count, dtype=torch.float64).long()
                evenly_spaced = samples.take(ids, torch.device("cpu"), samples.dtype)
                # Always in the pool: otherwise the last digits of the floors would depend on device and augmentation.
                with thread_pool():
                    tensorizer = tensorizer.calibrated(evenly_spaced, self.units_)
            self.tensorize_ = tensorizer
            self._sample_shape = samples.shape[1:]
            self.split_ = str(getattr(X, "split", ""))
            self.reading_: dict[str, Any] = dict(getattr(X, "reading", {}))
            self.typical_: dict[str, Any] = {}
        return WindowSource(samples, self.tensorize_, self._augmentation(), self.seed_, device, samples.dtype)

    def _pool(self, device: torch.device) -> AbstractContextManager[None]:
        """Return the thread pool for batches on a CPU; a user's functions and modules use torch's threads instead."""
        tensorize, augment = self.tensorize_, self._augmentation()
        ours = (tensorize is None or tensorize.threaded) and (augment is None or augment.per_window)
        return thread_pool() if ours and device.type == "cpu" else nullcontext()

    def _tensor_shape(self, source: WindowSource) -> tuple[int, ...]:
        """Return the shape (I, J, …) of one sample's tensor."""
        return tensor_shape(source.tensorize, source.example())

    def _raw_batches(
        self, samples: Samples, size: int | None = None, missing: bool = False
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield indices (b,) and samples (b, …) in order, in batches of some MiB.

        Parameters
        ----------
        size : number of values in one sample's tensor, if known
        missing : whether samples may hold NaN
        """
        device = choose_device(self.device, samples.data)
        if size is None:
            known = None if self.tensorize_ is None else self.tensorize_.shape(*samples.shape[1:])
            size = math.prod(known or (1,))
        largest = max(size, math.prod(samples.shape[1:])) * samples.dtype.itemsize
        rows = max(1, _BATCH_BYTES * (_GPU_BATCHES if device.type == "cuda" else 1) // largest)
        for part, batch, _ in prefetch(samples, torch.split(torch.arange(len(samples)), rows)):
            yield part, samples.checked(batch, part, device, samples.dtype, missing)

    def _tensors(self, samples: Samples) -> Iterator[Tensor]:
        """Yield samples in order as tensors (b, I, J, …), in batches."""
        for _, batch in self._raw_batches(samples):
            yield tensors(self.tensorize_, batch)

    def _channel_labels(self, data: Any = None) -> tuple[str, ...]:
        """Return the names of the channels: from the data, the fit or a table's columns, else numbers from 1."""
        count = self._sample_shape[0]
        given = tuple(str(name) for name in getattr(data, "channels", ()) or getattr(self, "channel_names_", ()))
        if len(given) not in (0, count):
            raise PolyadicError(f"data must have {count} channels like the model, but has {len(given)}")
        columns = tuple(str(name) for name in getattr(self, "feature_names_in_", ()))
        return given or columns or tuple(str(number + 1) for number in range(count))

    # ------------------------------------------------------------------ files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the fitted model to one safetensors file, atomically; `polyadic.load` loads it.

        Your own functions and modules, a given graph and a RandomState are not saved: files contain no code and no
        data. For a module, the file contains a hash of its weights.

        Parameters
        ----------
        path : the file, conventionally with the extension .safetensors
        """
        check_is_fitted(self)
        parameters = {name: persist.encode(value) for name, value in self.get_params(deep=False).items()}
        parameters["device"] = str(self.device)
        header = {
            "version": __version__,
            "estimator": type(self).__name__,
            "parameters": parameters,
            "tensorize": persist.encode(self.tensorize_),
            "sample_shape": [int(size) for size in self._sample_shape],
            "feature_names": [str(name) for name in getattr(self, "feature_names_in_", [])],
            "seed": int(self.seed_),
            "split": self.split_,
            "fs": self.fs_,
            "channels": list(self.channel_names_),
            "units": list(self.units_),
            "reading": self.reading_,
            "typical": self.typical_,
            "history": self.history_,
            **self._extra(),
        }
        model_files.write(path, self._arrays(), header)

    @classmethod
    def _from_file(
        cls, arrays: dict[str, np.ndarray], header: dict[str, Any], tensorize: Any, augment: Any
    ) -> WindowEstimator:
        """Build the model that `save` wrote, and check that its parts are consistent."""
        given = {"tensorize": tensorize, "augment": augment}
        model = cls(**{name: persist.decode(value, given.get(name)) for name, value in header["parameters"].items()})
        model.tensorize_ = persist.decode_tensorizer(header["tensorize"], tensorize)
        model._sample_shape = tuple(int(size) for size in header["sample_shape"])
        if model.tensorize_ is not None:
            model.tensorize_.check(model._sample_shape)
        model.n_features_in_ = model._sample_shape[0]
        columns, names, units = (tuple(map(str, header[name])) for name in ("feature_names", "channels", "units"))
        if any(len(values) not in (0, model.n_features_in_) for values in (columns, names, units)):
            raise ModelFileError(f"the file's names and units {columns + names + units} do not match its channels")
        if columns:
            model.feature_names_in_ = np.asarray(columns, dtype=object)
        model.fs_ = None if header["fs"] is None else float(header["fs"])
        model.channel_names_, model.units_ = names, units
        model.reading_ = header["reading"] and Reading.from_json(header["reading"]).to_json()
        model.typical_ = dict(header["typical"])
        model.history_ = {str(name): [float(v) for v in values] for name, values in header["history"].items()}
        model.seed_, model.split_ = int(header["seed"]), str(header["split"])
        if not all(array.dtype.kind != "f" or np.isfinite(array).all() for array in arrays.values()):
            raise ModelFileError("the file's arrays hold NaN or infinity")
        model._restore(arrays, header)
        return model

    def _arrays(self) -> dict[str, np.ndarray]:
        """Return the learned arrays, by name."""
        raise NotImplementedError

    def _extra(self) -> dict[str, Any]:
        """Return further state to save, as JSON."""
        return {}

    def _restore(self, arrays: dict[str, np.ndarray], header: dict[str, Any]) -> None:
        """Restore the state from `_arrays` and `_extra`; raise ValueError, KeyError or TypeError if invalid."""
        raise NotImplementedError

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags


# ------------------------------------------------------------------------- CPD


class _Batch(NamedTuple):
    """Raw windows (b, …), tensors (b, I, J, …), coefficients (b, R), squared residuals (b,) and, if wanted, features.

    Windows and tensors hold no NaN. Tensors are 0 where something is missing, of which residuals know nothing. Features
    are (b, F); the covariance of linear functions of them is (b, k, k).
    """

    windows: Tensor
    T: Tensor
    x: Tensor
    residuals: Tensor
    Z: Tensor
    covariance: Tensor
    gaps: Gaps | None


class Inferred(NamedTuple):
    """Features (N, F), the covariance of linear functions of them (N, k, k), and what is missing (N, C) as a share."""

    Z: np.ndarray
    covariance: np.ndarray
    missing: np.ndarray


class CPD(TransformerMixin, WindowEstimator):  # type: ignore[misc]
    """Learn components of multichannel windows without labels, and compute features of new windows from them.

    This is the CP decomposition of centred log spectra, with non-negative components and isometric features. It is the
    default of every command.

    Parameters
    ----------
    rank : number of components; default 32
    tensorize : maps a batch (b, channels, time) to tensors (b, I, J, …): a `Tensorizer` such as
        `polyadic.spectral.STFT`, a torch module or a function; None if X already holds tensors. "auto" (default)
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
    split_ : hash and part of the split that X belongs to, or ""
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

    factors_: list[np.ndarray]
    readout_: FittedReadout | None
    n_sweeps_: int
    probe_: Any
    _memory: Statistics | None
    _n_seen: int
    compression_: dict[str, Any] | None
    _collects: ClassVar[bool] = True
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
        _store_parameters(self, locals())

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
    ) -> Self:
        """Learn the bases from unlabelled samples.

        Parameters
        ----------
        X : (N, channels, time), or (N, I, J, …) with `tensorize=None`; numpy, torch, a memory map, `Windows` or a
            `WindowStore`. Data on disk are read batch by batch, so memory does not grow with N. `CPD` also takes a
            `dask.array` or a list of paths of stores and of folders of recordings, whose chunks Dask workers read (see
            `polyadic.scale.recordings`); and `polyadic.scale.Moments`, for which no data are read
        y : ignored
        after_sweep : called with the estimator after every sweep; its `factors_` and `history_` are those of the
            current restart, whose number (from 1) is `attempt_`. The sweep of the consensus comes last
        checkpoint : file in which to save the state of the fit from time to time
        resume : resume from that file, if it exists. On a CPU the result is bit-identical to that of an
            uninterrupted fit. `max_sweeps`, `tol`, `patience`, `device` and `verbose` may change
        checkpoint_every : seconds between checkpoints, which are written after a sweep

        Returns
        -------
        the estimator itself
        """
        self._fit(X, after_sweep, checkpoint, resume, checkpoint_every)
        return self

    def _fit(
        self,
        X: Any,
        after_sweep: Callable[[Self], None] | None = None,
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
            if after_sweep is not None:
                observers.append(lambda current: after_sweep(self._at(current)))

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
        if not self._collects or isinstance(X, SavedMoments | list):
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
        self.seed_, self.tensorize_ = integer_random_state(self.random_state), X.tensorize
        self._sample_shape, self.n_features_in_ = source.window, source.window[0]
        self.fs_, self.channel_names_ = X.windows["fs"], tuple(X.windows["channels"])
        self.units_, self.reading_ = tuple(X.windows["units"]), dict(X.reading)
        self.split_, self.typical_ = "", {}
        return source

    def _collect(
        self, source: WindowSource, saved: Any = None, masks_of: Callable[[int], list[Tensor]] | None = None
    ) -> tuple[Moments | CompletedMoments, Passes | None]:
        """Collect the moments of the windows in two passes, and calibrate the tensorizer on the way."""
        moments: Moments | CompletedMoments
        if isinstance(source, MomentsSource):
            moments, passes = source.moments, None
        else:
            words = self.tensorize_, self.units_, self.compression, self._statistics(source)
            passes = Passes(source, *words, missing=Missing(self.fs_, self._keeps_flat), apart=True, masks_of=masks_of)
            if saved is not None:
                saved.load_passes(passes)
                passes.after_block = saved.save_passes
            with self._pool(source.device):
                passes.run()
            moments = passes.moments
            if 0 < moments.n_incomplete <= moments.lost and not moments.count:
                raise PolyadicError("X has nothing to fit: all channels of all windows are missing (NaN) or constant")
            if saved is not None:
                saved.save_passes(passes, now=True)
            self.tensorize_ = source.tensorize = passes.tensorize
            if moments.n_incomplete:
                redundancy = 1.0 if self.tensorize_ is None else self.tensorize_.redundancy
                with thread_pool():
                    moments = CompletedMoments(moments, redundancy, passes.filled_by)
        self.compression_ = {"ranks": list(moments.compression.ranks), "energy": moments.kept_energy}
        return moments, passes

    def _statistics(self, source: WindowSource) -> Callable[..., Tensor] | None:
        """Return the function that computes the statistics of raw windows, or None if the readout has none."""
        has_windows = source.tensorize is not None and source.example().ndim == 3
        has_statistics = self._readout is not None and self._readout.statistics > 0
        return window_statistics if has_windows and has_statistics else None

    @property
    def _readout(self) -> Readout | None:
        """The settings of the readout, with "auto" resolved."""
        return Readout() if isinstance(self.readout, str) else self.readout

    @property
    def _keeps_flat(self) -> bool:
        """Whether dead channels are taken as they are; without a readout they are, as in the paper."""
        return True if self._readout is None else bool(self._readout.keep_flat)

    @plain_torch()
    def refit_parts(self, X: Any, parts: Sequence[np.ndarray], random_states: Sequence[int]) -> list[list[np.ndarray]]:
        """Return the bases of fits to several parts of the windows, with the tensorizer of this model.

        The windows are read once for the axes of the modes and once for the moments of all parts.

        Parameters
        ----------
        X : as for `fit`
        parts : masks (N,), one for each fit; of the groups, if X is `polyadic.scale.Moments`
        random_states : the seed of each fit

        Returns
        -------
        for each fit, matrices of shapes (I, R), (J, R), …
        """
        check_is_fitted(self)
        source, objective, settings = self._begin(X, reset=False)
        if isinstance(X, SavedMoments):
            collected = [X.of([name for name, inside in zip(X.groups, part, strict=True) if inside]) for part in parts]
        else:
            passes = Passes(source, self.tensorize_, self.units_, self.compression)
            if hasattr(self, "prior_"):
                passes.missing, passes.fill = Missing(self.fs_, self._keeps_flat), self._solver(source.device)
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
        objective = replace(self._objective(source.n_windows), nonnegative=self.nonnegative_)
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

    def _objective(self, count: int) -> Objective:
        """Return the objective for this number of windows.

        What a model file does not contain (a function of your own, a graph) is checked here: only a fit needs it.
        """
        return Objective(alpha=float(self.alpha))

    def _choose_solver(self, source: WindowSource) -> tuple[str, int | None, float]:
        """Return solver, batch size and learning rate."""
        return "moments", None, 1.0

    def _initial_factors(self, source: WindowSource, attempt: int = 0, seed: int | None = None) -> list[Tensor]:
        """Return the initial bases of a restart; the order of windows and their views are the same in all restarts."""
        shape = self._tensor_shape(source)
        # The minimum of any fit: the bases and one Gram matrix in float64.
        check_memory(f"rank={self.rank:,}", 8 * self.rank * (sum(shape) + self.rank))
        seed = self.seed_ if seed is None else seed
        seed = integer_seed(seed, _RESTART, attempt) if attempt else seed
        # Sweeps on moments are too small for a GPU.
        device = torch.device("cpu") if self._collects else source.device
        return initial_factors(shape, self.rank, seed, source.dtype, device, self.nonnegative_)

    @contextmanager
    def _bar(self, source: WindowSource, settings: Settings) -> Iterator[Callable[[Progress], None]]:
        """Yield an observer that shows a progress bar."""
        from polyadic._util.progress import sweep_bar

        # A default fit reads all windows before its first sweep: for floors, axes and moments.
        reads = 3 if self._collects else 1
        with sweep_bar(type(self).__name__, settings.max_sweeps, reads * source.n_windows) as bar:
            source.on_batch = bar.windows

            def show(progress: Progress) -> None:
                if progress.attempt and len(progress.history["loss"]) == 1:
                    bar.start(progress.attempt + 1, settings.attempts)
                bar(progress.history)

            yield show

    def _checkpoints(self, source: WindowSource, path: Any, resume: bool, every: float) -> Any:
        from polyadic.scale.checkpoints import Checkpoints, data_fingerprint, describe

        if isinstance(source, MomentsSource):
            raise PolyadicError("a fit to moments reads no data and needs no checkpoint: leave checkpoint out")
        check_number("checkpoint_every", every, 0)
        parameters = self.get_params(deep=False)
        fingerprint = {
            "estimator": type(self).__name__,
            **{name: describe(value) for name, value in parameters.items() if name not in _RESUMABLE_CHANGES},
            "tensorize": describe(self.tensorize_),
            "seed": self.seed_,
            "data": data_fingerprint(source.samples),
        }
        return Checkpoints(path, fingerprint, every, resume)

    def _at(self, progress: Progress) -> Self:
        """Set the model to the current sweep, for `after_sweep`."""
        self.history_, self.n_sweeps_ = progress.history, len(progress.history["loss"])
        self.attempt_ = progress.attempt + 1
        self._keep(progress.state)
        return self

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
            rate = float(getattr(self, "learning_rate", _LEARNING_RATE))
            with self._pool(source.device):
                T = source.views(ids, 0)
                check_modes(T, factors)
                step([T], state, objective, source.n_views, solver=solver, learning_rate=rate, ids=ids, watch=True)
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

    # --------------------------------------------------------------- features

    @lazily
    @plain_torch()
    def transform(
        self, X: Any, *, out: str | os.PathLike[str] | None = None, on_rows: Callable[[int], None] | None = None
    ) -> Any:
        """Compute features of new samples: coefficients, mapped by the readout.

        Parameters
        ----------
        X : (N, channels, time), or (N, I, J, …) with `tensorize=None`; any input of `fit` but `Moments`. For a
            `dask.array` or a list of paths, the result is a lazy `dask.array`
        out : a `.npy` file to write the features to, batch by batch and atomically
        on_rows : called after each batch with the number of samples done

        Returns
        -------
        (N, features), the same kind of array as X, or the memory map of `out`
        """
        check_is_fitted(self)
        samples = self._samples(X)

        def features() -> Iterator[Tensor]:
            done = 0
            for batch in self._batches(samples, features=True):
                yield batch.Z
                done += len(batch.x)
                if on_rows is not None:
                    on_rows(done)

        with self._pool(choose_device(self.device, samples.data)):
            if out is None:
                return samples.like_input(torch.cat(list(features())))
            dtype = np.dtype(np.float64 if samples.dtype == torch.float64 else np.float32)
            write_array(out, (len(samples), self._n_features_out), dtype, (Z.cpu().numpy() for Z in features()))
        return np.load(out, mmap_mode="r")

    @lazily
    @plain_torch()
    def coefficients(self, X: Any) -> Any:
        """Compute coefficients of new samples in closed form (Eqn. feature_extractor), without the readout.

        Parameters
        ----------
        X : as for `transform`

        Returns
        -------
        (N, rank), the same kind of array as X
        """
        check_is_fitted(self)
        samples = self._samples(X)
        with self._pool(choose_device(self.device, samples.data)):
            return samples.like_input(torch.cat([batch.x for batch in self._batches(samples)]))

    @plain_torch()
    def features_and_spread(self, X: Any, weights: Any) -> Inferred:
        """Compute features and, from what is missing, how uncertain linear functions of them are.

        Parameters
        ----------
        X : as for `transform`, but not in chunks
        weights : (k, F), the linear functions, for example the coefficients of a logistic regression

        Returns
        -------
        the features (N, F); the covariance of features · weightsᵀ (N, k, k), 0 for windows in which nothing is missing;
        and the share of samples that is missing in each channel (N, C), (N, 1) if X holds tensors
        """
        check_is_fitted(self)
        samples, parts = self._samples(X), []
        with self._pool(choose_device(self.device, samples.data)):
            for batch in self._batches(samples, features=True, weights=weights):
                share = np.zeros((len(batch.Z), self._sample_shape[0] if self.tensorize_ is not None else 1))
                if batch.gaps is not None:
                    rows, observed, present = batch.gaps
                    known = observed.flatten(1)[:, None] if present is None else present
                    share[rows.cpu()] = 1 - known.double().mean(dim=2).cpu().numpy()
                parts.append((batch.Z.double().cpu().numpy(), batch.covariance.cpu().numpy(), share))
        return Inferred(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def _batches(self, samples: Samples, features: bool = False, weights: Any = None) -> Iterator[_Batch]:
        """Yield samples in order, with their tensors, coefficients, residuals and, if wanted, `features`.

        With `weights` (k, F), also the covariance of features · weightsᵀ.
        """
        device = choose_device(self.device, samples.data)
        extract, tally, solver, finder = self._extractor(device, samples.dtype), Tally(), None, None
        prior = getattr(self, "prior_", None)
        readout = self._fitted_readout() if features else getattr(self, "readout_", None)
        limits, keep_flat = (None, True) if prior is None else (prior.limits, self._keeps_flat)
        if prior is not None and prior.spectra.shape[1] and not keep_flat:
            solver = self._solver(device)
            finder = NoiseFinder(solver, Spectra(*torch.tensor(prior.spectra)))
        for _, windows in self._raw_batches(samples, math.prod(len(factor) for factor in self.factors_), missing=True):
            seen = look(windows, self.tensorize_, self.fs_, limits, keep_flat)
            noisy = None if finder is None else finder.in_complete_windows(seen)
            if noisy is not None:
                dead = noisy if seen.dead is None else noisy | seen.dead
                windows = windows.masked_fill(noisy[:, :, None], torch.nan)
                seen = look(windows, self.tensorize_, self.fs_, limits, keep_flat)._replace(dead=dead)
            tally.add(seen)
            (x, residuals), T, gaps, statistics = extract(seen.T), seen.T, seen.gaps, None
            if gaps is not None:
                rows, observed, present = gaps
                solver = solver or self._solver(device)
                if readout is not None and readout.n_statistics and present is not None:
                    statistics = window_statistics(seen.windows[rows], present)
                first, number = distinct_masks(observed, *(() if statistics is None else (torch.isnan(statistics),)))
                solved = solver.coefficients(T[rows], observed, number, first)
                x[rows], residuals[rows] = solved.x.to(x.dtype), solved.residuals
                T = T.clone()
                T[rows] *= observed
            Z = readout.features(x, seen.windows) if features and readout is not None else x
            given = np.zeros((0, Z.shape[1])) if weights is None else np.asarray(weights)
            W = torch.as_tensor(given).to(device, torch.float64)
            covariance = W.new_zeros(len(Z), len(W), len(W))
            if gaps is not None and solver is not None and features:
                regression = None
                if readout is not None and statistics is not None:
                    z, regression = solver.statistics(solved, readout.standardised(statistics), number, first)
                    Z[rows] = readout.joined(solved.x, z).to(Z.dtype)
                if len(W):
                    known, block = (W, W[:, :0]) if readout is None else readout.pulled_back(W)
                    covariance[rows] = solver.spread(solved, regression, known, block)[number.to(W.device)]
            yield _Batch(seen.windows, T, x, residuals, Z, covariance, gaps)
        tally.warn(self._channel_labels())

    def _solver(self, device: torch.device) -> Solver:
        """Return the solver of windows in which something is missing."""
        prior = getattr(self, "prior_", None)
        if prior is None:
            raise PolyadicError(
                "X has missing values, but the model does not know the distribution of coefficients to fill them from: "
                "call fit_readout(X) with unlabelled windows"
            )
        return Solver(prior, self._factors(device, torch.float64), float(self.alpha))

    def _extractor(self, device: torch.device, dtype: torch.dtype) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        """Return a function that maps tensors (b, I, J, …) to coefficients (b, R) and squared residuals (b,)."""
        check_number("alpha", self.alpha, 0)
        factors = self._factors(device, dtype)
        extract = feature_extractor(factors, float(self.alpha))

        def checked(T: Tensor) -> tuple[Tensor, Tensor]:
            check_modes(T, factors)
            x, residuals = extract(T)
            if not bool(torch.isfinite(x).all()):
                raise PolyadicError(
                    "the features are not finite: the values in X or in the bases are too large; rescale X or pass it "
                    "as float64"
                )
            return x, residuals

        return checked

    def _factors(self, device: torch.device, dtype: torch.dtype) -> list[Tensor]:
        return [torch.as_tensor(factor, dtype=dtype, device=device) for factor in self.factors_]

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Return the names of the features: z1, z2, … and the statistics, or x1, x2, … without a readout.

        Parameters
        ----------
        input_features : ignored

        Returns
        -------
        (features,) of strings
        """
        check_is_fitted(self)
        readout = self._fitted_readout()
        if readout is None:
            return np.array([f"x{number + 1}" for number in range(self._n_features_out)], dtype=object)
        return np.array(readout.feature_names(self._statistic_names() if readout.n_statistics else ()), dtype=object)

    def _statistic_names(self) -> list[str]:
        return statistic_names(self._channel_labels(), self._sample_shape[1], self.fs_)

    @property
    def _n_features_out(self) -> int:
        readout = getattr(self, "readout_", None)
        return int(self.factors_[0].shape[1]) if readout is None else readout.n_features

    # --------------------------------------------------------- reconstruction

    @plain_torch()
    def inverse_transform(self, Z: Any) -> Any:
        """Reconstruct tensors from features, including the mean that the tensorizer subtracted.

        The result is in tensor space: an STFT is not inverted to signals.

        Parameters
        ----------
        Z : (N, features), as returned by `transform`

        Returns
        -------
        (N, I, J, …), the same kind of array as Z
        """
        check_is_fitted(self)
        readout = self._fitted_readout()
        return self._reconstructed(Z, "Z", self._n_features_out, None if readout is None else readout.inverse)

    @plain_torch()
    def reconstruct(self, x: Any) -> Any:
        """Reconstruct tensors from coefficients, including the mean that the tensorizer subtracted.

        Parameters
        ----------
        x : (N, rank), as returned by `coefficients`

        Returns
        -------
        (N, I, J, …), the same kind of array as x
        """
        check_is_fitted(self)
        return self._reconstructed(x, "x", self.factors_[0].shape[1])

    def _reconstructed(
        self, values: Any, name: str, columns: int, inverse: Callable[[Tensor], Tensor] | None = None
    ) -> Any:
        """Return the tensors of coefficients, or of what `inverse` maps to coefficients."""
        samples = Samples(values, name)
        if samples.shape[1:] != (columns,):
            raise PolyadicError(f"{name} must have shape (N, {columns}), but has shape {samples.shape}")
        x = samples.take(slice(None), choose_device(self.device, samples.data), samples.dtype)
        x = x if inverse is None else inverse(x)
        T = reconstruct(x, self._factors(x.device, x.dtype))
        return samples.like_input(T if self.tensorize_ is None else self.tensorize_.uncentred(T))

    @plain_torch()
    def score(self, X: Any, y: Any = None) -> float:
        """Return the goodness of fit of the bases: 1 − ‖T − T̂‖ / ‖T‖ over all samples, at most 1.

        Parameters
        ----------
        X : as for `transform`
        y : ignored
        """
        check_is_fitted(self)
        error = norm = 0.0
        for batch in self._batches(self._samples(X)):
            error += float(batch.residuals.sum())
            norm += float(torch.linalg.vector_norm(batch.T, dtype=torch.float64)) ** 2
        error = max(error, 0.0)
        return 1.0 - float(np.sqrt(error / norm)) if norm > 0 else float(error == 0)

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
            collected = moments.accumulator(self._factors(torch.device("cpu"), source.dtype), float(self.alpha))
        elif readout is None:
            return
        else:
            n_statistics = 0 if describe is None else describe(source.example()).shape[1]
            collected = readout.accumulator(self.factors_[0].shape[1], source.n_windows, n_statistics)
            extract = self._extractor(choose_device(self.device, source.samples.data), source.dtype)
            for ids, X in self._raw_batches(source.samples, entries):
                x, residuals = extract(tensors(source.tensorize, X))
                collected.add(ids, x, residuals, None if describe is None else describe(X))
        if readout is not None:
            limits = None if describe is None else rounding(*source.example().shape[1:])
            self.readout_ = readout.fitted(collected, self.factors_, limits)
        scale = np.zeros(0) if self.readout_ is None else self.readout_.statistic_scale
        known = levels(collected.sample().statistics, self._sample_shape[0]) if len(scale) else ()
        redundancy = 1.0 if self.tensorize_ is None else self.tensorize_.redundancy
        self.prior_ = Prior.fitted(collected, entries / redundancy, scale, known)
        spectra = self._spectra(source)
        if spectra is not None:
            self.prior_ = replace(self.prior_, spectra=torch.stack([*spectra]).cpu().numpy())

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

    def _fitted_readout(self) -> FittedReadout | None:
        """Return the readout, or None if the features are the coefficients."""
        if self.readout is not None and not hasattr(self, "readout_"):
            raise PolyadicError(
                "the readout has not been fitted to these components: call fit_readout(X) with unlabelled windows, or "
                "coefficients(X) for the coefficients alone"
            )
        return getattr(self, "readout_", None)

    # ------------------------------------------------------------ description

    @property
    def n_parameters_(self) -> int:
        """Number of learned parameters: those of the bases, the tensorizer's mean and the readout."""
        check_is_fitted(self)
        readout = getattr(self, "readout_", None)
        front = 0 if self.tensorize_ is None else self.tensorize_.n_parameters
        return front + sum(factor.size for factor in self.factors_) + (0 if readout is None else readout.n_parameters)

    def axes(self, data: Any = None) -> list[Axis]:
        """Return the axes of the bases: channels, frequencies in Hz, times in seconds.

        Parameters
        ----------
        data : `Windows` or a `WindowStore` with the sampling rate and channel names; by default those of the fit

        Examples
        --------
        >>> from polyadic.data import synthetic
        >>> from polyadic.spectral import STFT
        >>> model = CPD(rank=2, tensorize=STFT(n_fft=32, hop=16), max_sweeps=1).fit(synthetic(20, n_channels=2))
        >>> [axis.title for axis in model.axes()], model.axes()[0].labels
        (['channel', 'frequency (Hz)', 'time (s)'], ('1', '2'))
        """
        check_is_fitted(self)
        shape, labels = self._sample_shape, self._channel_labels(data)
        fs = getattr(data, "fs", None) or getattr(self, "fs_", None)
        numbered = numbered_axes([len(factor) for factor in self.factors_])
        if self.tensorize_ is not None and len(shape) == 2:
            return self.tensorize_.axes(shape, labels, fs) or numbered
        # Only `Windows` are known to be channels by time; the modes of other tensors are unknown.
        if self.tensorize_ is None and len(shape) == 2 and hasattr(data, "fs"):
            return [channel_axis(labels), time_axis(np.arange(shape[1]), fs)]
        return numbered

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "factors_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        tags.input_tags.allow_nan = self._collects
        return tags

    def _html_repr(self) -> str:
        """Return HTML for notebooks: scikit-learn's diagram before the fit, pictures of the components after it."""
        if not hasattr(self, "factors_"):
            return str(super()._html_repr())
        from polyadic.plot.sketches import model_html

        return model_html(self, describe_fit(self))

    def __str__(self) -> str:
        """Return the settings and, if fitted, a one-line summary of the fit."""
        settings = repr(self)
        return f"{settings}\n{describe_fit(self)}" if hasattr(self, "factors_") else settings

    # ------------------------------------------------------------------ files

    def _arrays(self) -> dict[str, np.ndarray]:
        self._check_rank()
        arrays = {f"factors.{mode}": factor for mode, factor in enumerate(self.factors_)}
        if self._memory is not None:
            arrays |= {"memory.Y": self._memory.Y.numpy(), "memory.S": self._memory.S.numpy()}
        if not all(np.isfinite(array).all() for array in arrays.values()):
            raise PolyadicError("the model's bases contain NaN or infinity: fit it again")
        readout = getattr(self, "readout_", None)
        arrays |= {} if readout is None else readout.arrays()
        arrays |= self.prior_.arrays() if hasattr(self, "prior_") else {}
        arrays |= self.components_.arrays() if hasattr(self, "components_") else {}
        return arrays | self._packed_probe()[0]

    def _extra(self) -> dict[str, Any]:
        readout, replicability = getattr(self, "readout_", None), getattr(self, "replicability_", None)
        return {
            "n_seen": int(self._n_seen),
            "fit_seconds": float(getattr(self, "fit_seconds_", 0.0)),
            "resolved": {name: getattr(self, name, None) for name in _RESOLVED},
            "readout": None if readout is None else persist.encode(readout.readout),
            "probe": self._packed_probe()[1],
            "replicability": None if replicability is None else replicability.to_dict(),
            "components": self.components_.to_dict() if hasattr(self, "components_") else None,
        }

    def _restore(self, arrays: dict[str, np.ndarray], header: dict[str, Any]) -> None:
        self._check_parameters()
        count = sum(name.startswith("factors.") for name in arrays)
        self.factors_ = [arrays[f"factors.{mode}"] for mode in range(count)]
        known = self._sample_shape if self.tensorize_ is None else self.tensorize_.shape(*self._sample_shape)
        expected = [(size, self.rank) for size in known or (len(factor) for factor in self.factors_)]
        shapes = [factor.shape for factor in self.factors_]
        if shapes != expected or not expected:
            raise ModelFileError(f"the file's factors have shapes {shapes}, but its header calls for {expected}")
        self._memory = None
        if "memory.Y" in arrays:
            Y, S = arrays["memory.Y"], arrays["memory.S"]
            if Y.shape != (self.rank, *(size for size, _ in shapes)) or S.shape != (self.rank, self.rank):
                raise ModelFileError(f"the file's solver memory has shapes {Y.shape} and {S.shape}, which do not match")
            self._memory = Statistics(torch.from_numpy(Y), torch.from_numpy(S))
        n_statistics = 0
        if header["readout"] is not None:
            count = 0 if self.tensorize_ is None else len(self._statistic_names())
            self.readout_ = FittedReadout.from_arrays(persist.decode(header["readout"]), arrays, self.rank, count)
            n_statistics = self.readout_.n_statistics
        elif any(name.startswith(PREFIX) for name in arrays):
            raise ModelFileError("the file has arrays of a readout, but no description of one")
        elif self.readout is None:
            self.readout_ = None
        frequencies = len(self.factors_[1]) if len(self.factors_) > 1 else 0
        prior = Prior.from_arrays(arrays, self.rank, n_statistics, self._sample_shape[0], frequencies)
        if prior is not None:
            self.prior_ = prior
        self._n_seen, self.n_sweeps_ = int(header["n_seen"]), len(self.history_["loss"])
        self.fit_seconds_ = float(header["fit_seconds"])
        for name in _RESOLVED:
            setattr(self, name, header["resolved"][name])
        if header["probe"] is not None:
            from polyadic.evaluate.probe import Probe

            self.probe_ = Probe.unpack(arrays, header["probe"], self._n_features_out)
        if header["replicability"] is not None:
            from polyadic.explain.replicability import Replicability

            self.replicability_ = Replicability.from_dict(header["replicability"], self.rank)
        if header["components"] is not None:
            from polyadic.explain.components import Components

            self.components_ = Components.restore(self, arrays, header["components"])

    def _packed_probe(self) -> tuple[dict[str, np.ndarray], dict[str, Any] | None]:
        """Return arrays and header of the probe, if there is one."""
        if not hasattr(self, "probe_"):
            return {}, None
        from polyadic.evaluate.probe import Probe

        return Probe.of(self.probe_).pack()

    def _check_rank(self) -> None:
        rank = self.factors_[0].shape[1]
        if self.rank != rank:
            raise PolyadicError(f"rank must stay {rank} as in fit, but is now {self.rank}: fit again, or reset it")


def _moved(memory: Statistics | None, device: torch.device, dtype: torch.dtype) -> Statistics | None:
    return None if memory is None else Statistics(memory.Y.to(device, dtype), memory.S.to(device))


def describe_fit(model: CPD) -> str:
    """Summarise a fitted model in one line: windows, tensor shape, size, sweeps, loss and convergence.

    Examples
    --------
    >>> from polyadic.data import synthetic
    >>> describe_fit(CPD(rank=2, max_sweeps=500).fit(synthetic(50)))  # doctest: +ELLIPSIS
    'fitted to 50 windows of 8 × 256, as tensors 8 × 33 × 25; rank 2, ... parameters; ... sweeps, loss ..., converged'
    """
    sizes = " × ".join(str(len(factor)) for factor in model.factors_)
    count, sweeps, losses = model._n_seen, model.n_sweeps_, model.history_["loss"]
    shape = " × ".join(str(size) for size in model._sample_shape)
    as_tensors = f", as tensors {sizes}" if sizes != shape else ""
    parts = [f"fitted to {count:,} window{'s' * (count != 1)} of {shape}{as_tensors}"]
    parts.append(f"rank {model.factors_[0].shape[1]}, {model.n_parameters_:,} parameters")
    readout = getattr(model, "readout_", None)
    if readout is not None and readout.n_block < readout.n_statistics:
        parts.append(readout.describe_block())
    if losses:
        converged = {True: ", converged", False: ", not converged", None: ""}[getattr(model, "converged_", None)]
        parts.append(f"{sweeps} sweep{'s' * (sweeps != 1)}, loss {losses[-1]:.4g}{converged}")
    return "; ".join(parts)


# ----------------------------------------------------- the paper's estimators


class _StochasticCPD(CPD):
    """Base class of the paper's estimators: mini-batches with a step size."""

    _collects = False
    compression = None
    compression_ = None

    solver: Literal["auto", "blend", "memory"]
    learning_rate: float
    batch_size: int | Literal["auto"] | None

    def _choose_solver(self, source: WindowSource) -> tuple[str, int | None, float]:
        size = self._auto_batch_size(source) if self.batch_size == "auto" else self.batch_size
        solver = "blend" if self.solver == "auto" else self.solver
        return solver, None if size is None else int(size), float(self.learning_rate)

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

        return captured_sweep(source, objective, settings, self._tensor_shape(source), plain)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.solver not in ("auto", "blend", "memory"):
            raise PolyadicError(f"solver must be 'auto', 'blend' or 'memory', but is {self.solver!r}")
        check_number("learning_rate", self.learning_rate, 0, 1)
        if self.learning_rate == 0:
            raise PolyadicError("learning_rate must be greater than 0, but is 0: the bases would never change")
        if self.batch_size != "auto":
            check_integer("batch_size", self.batch_size, 1, none=True)


class ATD(_StochasticCPD):
    """Augmented tensor decomposition, the method of the paper, by default on the recommended front end of `CPD`.

    Windows and their augmented views are decomposed together, and a self-supervised loss pulls the coefficients of a
    window and its view towards each other. `polyadic.presets.preset` has the paper's settings for its data sets.

    Parameters
    ----------
    rank, tensorize, readout, nonnegative, restarts, consensus, alpha : as for `CPD`
    augment : maps a batch to an augmented view: an augmentation from `polyadic.augment` or any function (which should
        use torch's generator: it is seeded for each batch); None for no view, with beta=0. Default `Jitter(0.05)`
    beta : weight of the self-supervised loss; default 2. beta=0 with an augmentation is the paper's ATD_ss-
    gamma : weight of the random (negative) pairs; None (default) for the batch size, as in the paper
    rounds : number of fixed-point iterations for each view in each step; default 1
    solver : how a mini-batch moves the bases. "blend" moves them by `learning_rate` towards the batch's solution, our
        interpretation of the paper's Algorithm 2, which names a step size but does not use it; "memory" solves for
        exponentially weighted statistics of all batches. "auto" (default) is "blend"
    learning_rate : step size η towards a batch's solution ("blend") or forgetting rate ("memory"); default 0.05
    batch_size : windows in a mini-batch (Algorithm 2, with new views in every sweep); None for all windows at once
        (Algorithm 1, with one view of each window). "auto" (default) is None if all tensors and their views fit into
        1 GiB, else 128
    max_sweeps : maximum number of sweeps, default 50; `fit` warns if the loss has not converged by then. A sweep visits
        every window once
    tol, patience : stop when the relative change of the loss is below `tol` in `patience` sweeps in a row; default
        1e-3 and 3. tol=0 disables this
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
        solver: Literal["auto", "blend", "memory"] = "auto",
        learning_rate: float = _LEARNING_RATE,
        batch_size: int | Literal["auto"] | None = "auto",
        max_sweeps: int = 50,
        tol: float = 1e-3,
        patience: int = 3,
        device: str | torch.device = "auto",
        random_state: Any = 0,
        verbose: int = 0,
    ) -> None:
        _store_parameters(self, locals())

    def _auto_batch_size(self, source: WindowSource) -> int | None:
        size = source.n_windows * source.n_views * math.prod(self._tensor_shape(source)) * source.dtype.itemsize
        return None if size <= KEPT_BYTES else _BATCH_SIZE

    def _objective(self, count: int) -> Objective:
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
        if self.rounds > _MOST_ROUNDS:
            raise PolyadicError(f"rounds must be at most {_MOST_ROUNDS:,}, but is {self.rounds}")


class SALS(_StochasticCPD):
    """Stochastic alternating least squares for the CP decomposition, without augmentations: a baseline of the paper.

    Parameters
    ----------
    rank, tensorize, readout, nonnegative, restarts, consensus, alpha : as for `CPD`
    solver, learning_rate : as for `ATD`
    batch_size : windows in a mini-batch; None for all windows at once. "auto" (default) is 128
    max_sweeps, tol, patience : as for `ATD`
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
        solver: Literal["auto", "blend", "memory"] = "auto",
        learning_rate: float = _LEARNING_RATE,
        batch_size: int | Literal["auto"] | None = "auto",
        max_sweeps: int = 50,
        tol: float = 1e-3,
        patience: int = 3,
        device: str | torch.device = "auto",
        random_state: Any = 0,
        verbose: int = 0,
    ) -> None:
        _store_parameters(self, locals())


class GRSALS(_StochasticCPD):
    """SALS with a graph regulariser w·Tr(XᵀLX) that pulls the coefficients of connected windows towards each other.

    Parameters
    ----------
    rank, tensorize, readout, nonnegative, restarts, consensus, alpha : as for `CPD`
    graph : "complete" (default) for equal weights 1/b among the b windows of a batch, or a symmetric (N, N) array or
        sparse matrix of weights between the windows passed to `fit`. Each batch uses its submatrix; with
        batch_size=None the whole matrix is decomposed in every sweep, in O(N³) time
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
        graph: Any = "complete",
        graph_weight: float = 1e-3,
        solver: Literal["auto", "blend", "memory"] = "auto",
        learning_rate: float = _LEARNING_RATE,
        batch_size: int | Literal["auto"] | None = "auto",
        max_sweeps: int = 50,
        tol: float = 1e-3,
        patience: int = 3,
        device: str | torch.device = "auto",
        random_state: Any = 0,
        verbose: int = 0,
    ) -> None:
        _store_parameters(self, locals())

    def _objective(self, count: int) -> Objective:
        if self.graph is None or (isinstance(self.graph, str) and self.graph != "complete"):
            raise PolyadicError(
                f"graph must be 'complete' or an (N, N) array of weights, but is {self.graph!r} "
                "(model files do not store the graph: set it again before refitting a loaded model)"
            )
        graph = None if isinstance(self.graph, str) else Graph.of(self.graph, count)
        return Objective(alpha=float(self.alpha), graph_weight=float(self.graph_weight), graph=graph)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_number("graph_weight", self.graph_weight, 0)
