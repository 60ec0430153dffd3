"""ATD, SALS and GR-SALS as scikit-learn transformers: raw windows or tensors in, features out.

The classes hold parameters and check input; the work is done by `als`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np
import torch
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from polyadic import als, linear_probe, persist
from polyadic.algebra import gram, project, reconstruct, ridge_inverse, squared_error
from polyadic.engine import cuda_graphs
from polyadic.engine.batches import Augment, Graph, Transform, WindowSource, check_modes, tensors
from polyadic.engine.checkpoints import Checkpoints, check_alike, data_fingerprint, describe
from polyadic.engine.estimator import WindowEstimator, all_or_nothing
from polyadic.engine.processes import write_rows
from polyadic.errors import ModelFileError, PolyadicError
from polyadic.inputs import Readable, Samples, check_integer, check_number, choose_device
from polyadic.presets import Preset
from polyadic.progress import SweepProgress, sweep_bar
from polyadic.spectral import STFT
from polyadic.version import __version__

__all__ = ["ATD", "GRSALS", "SALS", "load", "paper_methods"]

_FREE = {"max_sweeps", "tol", "patience", "device", "verbose", "random_state"}
"""Parameters that may change when a fit is resumed; what became of `random_state` is in the seed."""


@dataclass(frozen=True)
class _Watch:
    """Called after every sweep with the history so far; `windows` wants to know of every batch, if it is there."""

    bar: SweepProgress | None
    show: Callable[[als.History], None]

    @property
    def windows(self) -> Callable[[int, int], None] | None:
        return None if self.bar is None else self.bar.windows

    def __call__(self, history: als.History) -> None:
        if self.bar is not None:
            self.bar(history)
        self.show(history)


class _CPFeatures(ClassNamePrefixFeaturesOutMixin, TransformerMixin, WindowEstimator):  # type: ignore[misc]
    """What ATD, SALS and GR-SALS share: everything but their objective."""

    def __init__(
        self,
        rank: int = 32,
        *,
        tensorize: Transform | None = None,
        alpha: float = 1e-3,
        solver: Literal["blend", "memory"] = "blend",
        learning_rate: float = 0.05,
        batch_size: int | None = 128,
        max_sweeps: int = 50,
        tol: float = 1e-3,
        patience: int = 3,
        device: str | torch.device = "auto",
        random_state: Any = 0,
        verbose: int = 0,
    ) -> None:
        self.rank = rank
        self.tensorize = tensorize
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

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        after_sweep: Callable[[Self], None] | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        resume: bool = False,
        checkpoint_every: float = 60.0,
        team: als.Team = als.ALONE,
    ) -> Self:
        """Learn the bases from unlabelled samples.

        Parameters
        ----------
        X : (N, channels, time), or (N, I, J, …) with `tensorize=None`; numpy, torch, a memory map, `Windows` or a
            `WindowStore`. What lies on a disk is read batch by batch, in memory that does not grow with it
        y : ignored
        after_sweep : called after every sweep with the estimator, whose `factors_` and `history_` are those so far
        checkpoint : a folder in which to write down, from time to time, how far the fit has come
        resume : go on from the last checkpoint in that folder, if there is one; on a CPU the outcome is, to the bit,
            that of a fit that was never stopped. `max_sweeps`, `tol`, `patience`, `device` and `verbose` may differ
        checkpoint_every : seconds from one checkpoint to the next
        team : the processes that fit together, from `polyadic.engine.join`; each gives the same X and ends with the
            same model

        Returns
        -------
        the estimator itself
        """
        with all_or_nothing(self):
            source, objective, settings = self._begin(X)
            if isinstance(self.tensorize_, STFT):
                source.tensorize = self.tensorize_ = team.once(lambda: self.tensorize_)
            state = als.State(self._initial_factors(source))
            kept = self._checkpoints(source, team, checkpoint, resume, checkpoint_every)
            progress, state = (kept and kept.load(state)) or (als.Progress(), state)
            self._n_seen = source.n_windows
            fast = None
            if team.size == 1:
                fast = cuda_graphs.sweeps(source, objective, settings, tuple(len(factor) for factor in state.factors))
            with self._watched(state, source.n_windows, team, after_sweep) as on_sweep, kept or nullcontext():
                source.on_batch = None if on_sweep is None else on_sweep.windows
                with self._crew(source.device):
                    self.history_ = als.fit(source, state, objective, settings, on_sweep, progress, kept, team, fast)
            self.n_sweeps_ = len(self.history_["loss"])
            self.waited_ = source.waited
            self._keep(team.whole(state, source.n_views))
        return self

    @contextmanager
    def _watched(
        self, state: als.State, count: int, team: als.Team, after_sweep: Callable[[Self], None] | None
    ) -> Iterator[_Watch | None]:
        """What is called during a fit: a progress bar, who wants to see the model, or nobody."""
        shows = self.verbose and team.rank == 0
        bar = sweep_bar(type(self).__name__, self.max_sweeps, count) if shows else nullcontext(None)

        def show(history: als.History) -> None:
            if after_sweep is not None:
                self.history_, self.n_sweeps_ = history, len(history["loss"])
                self._keep(state)
                after_sweep(self)

        with bar as shown:
            yield None if shown is None and after_sweep is None else _Watch(shown, show)

    def _checkpoints(
        self,
        source: WindowSource,
        team: als.Team,
        folder: str | os.PathLike[str] | None,
        resume: bool,
        every: float,
    ) -> Checkpoints | None:
        """The checkpoints in a folder, if one is named, of a fit of these parameters to these samples."""
        check_number("checkpoint_every", every, 0)
        if folder is None and resume:
            raise PolyadicError("resume=True needs the folder of the checkpoints, but checkpoint is None")
        if folder is None and team.size == 1:
            return None
        fingerprint = self._fingerprint(source)
        check_alike(team, fingerprint)
        return None if folder is None else Checkpoints(folder, fingerprint, every, resume, team, source.n_views)

    def _fingerprint(self, source: WindowSource) -> dict[str, Any]:
        """What a fit must have in common with another that goes on where it was."""
        parameters = self.get_params(deep=False)
        chosen = {name: describe(value) for name, value in parameters.items() if name not in _FREE}
        learned = {"tensorize": describe(self.tensorize_), "seed": self.seed_}
        return {"estimator": type(self).__name__, **chosen, **learned, "data": data_fingerprint(source.samples)}

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """One step of Algorithm 2 on exactly this batch; the first call starts a new model.

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
                self.history_ = {name: [] for name in ("loss", *als.TERMS, "seconds")}
                factors = self._initial_factors(source)
            else:
                self._check_rank()
                factors = self._factors(source.device, source.dtype)
            source = replace(source, first_id=self._n_seen)
            state = als.State(factors, _moved(self._memory, source.device, source.dtype))
            ids = torch.arange(len(source.samples))
            with self._crew(source.device):
                T = source.views(ids, 0)
                check_modes(T, factors)
                als.step(T, state, objective, source.n_views, settings.solver, settings.learning_rate, ids, watch=True)
            self._n_seen += len(source.samples)
            self._keep(state)
        return self

    def _begin(self, X: Any, reset: bool = True) -> tuple[WindowSource, als.Objective, als.Settings]:
        """Check parameters and input, and take over what a new model learns from the input at once."""
        self._check_parameters()
        source = self._source(X, reset)
        if reset:
            known = X if isinstance(X, Readable) else None  # a column of a table may have any name
            self.fs_ = getattr(known, "fs", None)
            self.channel_names_ = tuple(getattr(known, "channels", ()))
        settings = als.Settings(
            solver=self.solver,
            learning_rate=float(self.learning_rate),
            batch_size=None if self.batch_size is None else int(self.batch_size),
            max_sweeps=int(self.max_sweeps),
            tol=float(self.tol),
            patience=int(self.patience),
            seed=self.seed_,
        )
        return source, self._objective(len(source.samples)), settings

    def _initial_factors(self, source: WindowSource) -> list[Tensor]:
        shape = source.samples.shape[1:]
        if isinstance(self.tensorize_, STFT) and len(shape) == 2:
            shape = self.tensorize_.shape(*shape)
        elif self.tensorize_ is not None:
            shape = tensors(self.tensorize_, source.samples.take(slice(0, 1), source.device, source.dtype)).shape[1:]
        return als.initial_factors(shape, self.rank, self.seed_, source.dtype, source.device)

    def _keep(self, state: als.State) -> None:
        if not all(bool(torch.isfinite(factor).all()) for factor in state.factors):
            raise PolyadicError(
                "the bases did not stay finite: the numbers in X, or those tensorize or augment make of it, are too "
                "large; scale X or give it as float64"
            )
        self.factors_ = [factor.cpu().numpy() for factor in state.factors]
        self._memory = _moved(state.memory, torch.device("cpu"), state.factors[0].dtype)
        self._n_features_out = self.rank
        if hasattr(self, "probe_"):
            del self.probe_  # it was trained on features of other bases

    def _objective(self, count: int) -> als.Objective:
        return als.Objective(alpha=float(self.alpha))

    def _check_parameters(self) -> None:
        check_integer("rank", self.rank, 1)
        check_number("alpha", self.alpha, 0)
        if self.solver not in ("blend", "memory"):
            raise PolyadicError(f"solver must be 'blend' or 'memory', but is {self.solver!r}")
        check_number("learning_rate", self.learning_rate, 0, 1)
        if self.learning_rate == 0:
            raise PolyadicError("learning_rate must be more than 0, but is 0: nothing would be learned")
        check_integer("batch_size", self.batch_size, 1, none=True)
        check_integer("max_sweeps", self.max_sweeps, 1)
        check_number("tol", self.tol, 0)
        check_integer("patience", self.patience, 1)
        if not isinstance(self.verbose, int | np.integer) or self.verbose < 0:
            raise PolyadicError(f"verbose must be a whole number >= 0, but is {self.verbose!r}")
        self._check_windows()

    def _check_rank(self) -> None:
        if self.rank != self._n_features_out:
            raise PolyadicError(
                f"rank must stay {self._n_features_out} as in fit, but is {self.rank} now: fit again, or set it back"
            )

    # -------------------------------------------------------------- features

    def transform(
        self,
        X: Any,
        *,
        out: str | os.PathLike[str] | None = None,
        on_rows: Callable[[int], None] | None = None,
        team: als.Team = als.ALONE,
    ) -> Any:
        """Features of new samples in closed form, Eqn. feature_extractor.

        Parameters
        ----------
        X : (N, channels, time), or (N, I, J, …) with `tensorize=None`; anything that `fit` takes
        out : a `.npy` file to write the features to batch by batch; it is there whole or not at all
        on_rows : called with the number of samples done after each batch
        team : the processes that transform together, from `polyadic.engine.join`, each its share; it needs `out`,
            on a disk that all of them see

        Returns
        -------
        (N, rank), the same kind of array as X, or the memory map of `out`
        """
        check_is_fitted(self)
        samples = self._samples(X, reset=False)
        share = team.share(torch.arange(len(samples)))
        features = _counted((Z for _, Z, _, _ in self._batches(samples, share)), on_rows)
        if out is None and team.size > 1:
            raise PolyadicError("several processes write features to a file that they share, but out is None")
        if out is None:
            with self._crew(choose_device(self.device, samples.data)):
                return samples.like_input(torch.cat(list(features)))
        shape = (len(samples), self._n_features_out)
        dtype = np.dtype(np.float64 if samples.dtype == torch.float64 else np.float32)
        first = int(share[0]) if len(share) else 0
        with self._crew(choose_device(self.device, samples.data)):
            write_rows(team, out, shape, dtype, first, (Z.cpu().numpy() for Z in features))
        return np.load(out, mmap_mode="r")

    def inverse_transform(self, Z: Any) -> Any:
        """The tensors that features stand for (the STFT is not undone).

        Parameters
        ----------
        Z : (N, rank)

        Returns
        -------
        (N, I, J, …), the same kind of array as Z
        """
        check_is_fitted(self)
        samples = Samples(Z, "Z")
        if samples.shape[1:] != (self._n_features_out,):
            raise PolyadicError(f"Z must have shape (N, {self._n_features_out}), but has shape {samples.shape}")
        device = choose_device(self.device, samples.data)
        rows = samples.take(slice(None), device, samples.dtype)
        return samples.like_input(reconstruct(rows, self._factors(device, samples.dtype)))

    def score(self, X: Any, y: Any = None, *, team: als.Team = als.ALONE) -> float:
        """How well the bases fit: 1 − ‖T − T̂‖ / ‖T‖ over all samples, 1 at best.

        Parameters
        ----------
        X : as for `transform`
        y : ignored
        team : the processes that do it together, from `polyadic.engine.join`, each its share
        """
        check_is_fitted(self)
        error = norm = 0.0
        samples = self._samples(X, reset=False)
        for T, Z, M, G in self._batches(samples, team.share(torch.arange(len(samples)))):
            error += float(squared_error(T, Z, M, G))
            norm += float(torch.linalg.vector_norm(T, dtype=torch.float64)) ** 2
        error, norm = team.sum(torch.tensor([error, norm], dtype=torch.float64)).tolist()
        return 1.0 - float(np.sqrt(error / norm)) if norm > 0 else float(error == 0)

    def _batches(self, samples: Samples, ids: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Tensors T, features Z, projections M of some samples in order, with the Gram matrix G."""
        device = choose_device(self.device, samples.data)
        factors, closed_form = self._factors(device, samples.dtype), als.Objective(alpha=float(self.alpha))
        # The host has a small inverse before a GPU has loaded what it takes there.
        exact = gram([factor.double() for factor in self._factors(torch.device("cpu"), samples.dtype)])
        G, inverse = exact.to(device), ridge_inverse(exact, closed_form.alpha).to(device)
        for T in self._tensors(samples, int(np.prod([len(factor) for factor in factors])), ids):
            check_modes(T, factors)
            M = project(T, factors)
            Z = als.fixed_point(M, inverse, closed_form, 1)
            if not bool(torch.isfinite(Z).all()):
                raise PolyadicError(
                    "the features are not finite: the numbers in X or in the bases are too large; scale X or give it "
                    "as float64"
                )
            yield T, Z, M, G

    def _factors(self, device: torch.device, dtype: torch.dtype) -> list[Tensor]:
        return [torch.as_tensor(factor, dtype=dtype, device=device) for factor in self.factors_]

    @property
    def n_parameters_(self) -> int:
        """How many numbers the model learned: the size of its bases."""
        check_is_fitted(self)
        return sum(factor.size for factor in self.factors_)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "factors_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def _html_repr(self) -> str:
        """What a notebook shows: scikit-learn's diagram before the fit, pictures of the components after it."""
        if not hasattr(self, "factors_"):
            return str(super()._html_repr())
        from polyadic.thumbnails import model_html

        return model_html(self)

    # ----------------------------------------------------------------- files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one safetensors file, atomically; `polyadic.load` reads it back.

        Functions of your own, a given graph and a RandomState are not written: files hold no code and no data.

        Parameters
        ----------
        path : the file, by custom ending in .safetensors
        """
        check_is_fitted(self)
        self._check_rank()
        arrays = {f"factors.{mode}": factor for mode, factor in enumerate(self.factors_)}
        if self._memory is not None:
            arrays |= {"memory.Y": self._memory.Y.numpy(), "memory.S": self._memory.S.numpy()}
        trained = getattr(self, "probe_", None)
        of_probe, described = ({}, None) if trained is None else linear_probe.pack(trained)
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
            "n_seen": int(self._n_seen),
            "split": self.split_,
            "fs": self.fs_,
            "channels": list(self.channel_names_),
            "probe": described,
            "history": self.history_,
        }
        persist.write(path, arrays | of_probe, header)

    def _restore(self, arrays: dict[str, np.ndarray], header: dict[str, Any]) -> None:
        """Take over what `save` wrote, after checking that it fits together."""
        if self.tensorize_ is not None and not callable(self.tensorize_):
            raise ModelFileError(f"the file's tensorize must be null or an object, but is {self.tensorize_!r}")
        self._sample_shape = tuple(int(size) for size in header["sample_shape"])
        names = [f"factors.{mode}" for mode in range(sum(name.startswith("factors.") for name in arrays))]
        self.factors_ = [arrays[name] for name in names]
        shapes = [factor.shape for factor in self.factors_]
        tensor_shape = self._sample_shape
        if isinstance(self.tensorize_, STFT):
            tensor_shape = self.tensorize_.shape(*self._sample_shape)
            floor = self.tensorize_.floor
            if floor == "auto" or np.size(floor) not in (1, self._sample_shape[0]):
                raise ModelFileError(f"the file's STFT has floor {floor!r}, which does not fit {self._sample_shape}")
        if self.tensorize_ is not None and not isinstance(self.tensorize_, STFT):
            tensor_shape = tuple(shape[0] for shape in shapes)
        expected = [(size, self.rank) for size in tensor_shape]
        if shapes != expected or not expected:
            raise ModelFileError(f"the file's factors have shapes {shapes}, but its header calls for {expected}")
        if not all(array.dtype.kind == "f" and np.isfinite(array).all() for array in arrays.values()):
            raise ModelFileError("the file's arrays hold NaN, infinity or no floating-point numbers")
        self._memory = None
        if "memory.Y" in arrays:
            Y, S = arrays["memory.Y"], arrays["memory.S"]
            if Y.shape != (self.rank, *tensor_shape) or S.shape != (self.rank, self.rank):
                raise ModelFileError(f"the file's solver memory has shapes {Y.shape} and {S.shape}, which do not fit")
            self._memory = als.Statistics(torch.from_numpy(Y), torch.from_numpy(S))
        self.history_ = {str(name): [float(value) for value in values] for name, values in header["history"].items()}
        self.n_sweeps_ = len(self.history_["loss"])
        self.seed_, self._n_seen = int(header["seed"]), int(header["n_seen"])
        self.split_ = str(header.get("split", ""))
        self._restore_signals(header)
        if header.get("probe") is not None or any(name.startswith(linear_probe.PREFIX) for name in arrays):
            self.probe_ = linear_probe.unpack(arrays, header.get("probe"), self.rank)
        self.n_features_in_, self._n_features_out = self._sample_shape[0], self.rank
        columns = header["feature_names"]
        if not isinstance(columns, list) or len(columns) not in (0, self.n_features_in_):
            raise ModelFileError(f"the file names {columns!r} as columns, but the model has {self.n_features_in_}")
        if columns:
            self.feature_names_in_ = np.asarray(columns, dtype=object)

    def _restore_signals(self, header: dict[str, Any]) -> None:
        """The sampling rate and the channels, which older files do not have."""
        fs, names = header.get("fs"), header.get("channels", [])
        if fs is not None and not 0 < fs < np.inf:
            raise ModelFileError(f"the file's sampling rate must be a positive number of Hz, but is {fs!r}")
        if not isinstance(names, list) or len(names) not in (0, self._sample_shape[0]):
            raise ModelFileError(f"the file names {names!r} as channels, but the model has {self._sample_shape[0]}")
        self.fs_ = None if fs is None else float(fs)
        self.channel_names_ = tuple(str(name) for name in names)


def _counted(parts: Iterator[Tensor], on_rows: Callable[[int], None] | None) -> Iterator[Tensor]:
    done = 0
    for part in parts:
        yield part
        done += len(part)
        if on_rows is not None:
            on_rows(done)


def _moved(memory: als.Statistics | None, device: torch.device, dtype: torch.dtype) -> als.Statistics | None:
    if memory is None:
        return None
    return als.Statistics(memory.Y.to(device, dtype), memory.S.to(device))


class SALS(_CPFeatures):
    """Stochastic alternating least squares for the CP decomposition with a Tikhonov term, without augmentations.

    Parameters
    ----------
    rank : number of components, and of features
    tensorize : from a batch (b, channels, time) to tensors (b, I, J, …), as `polyadic.spectral.STFT`; None if the input
        already is a tensor
    alpha : weight of the Tikhonov term
    solver : "blend" moves the bases by `learning_rate` towards each batch's solution, as the paper; "memory" solves for
        exponentially forgotten statistics of all batches
    learning_rate : share η of a batch in the bases ("blend"), or of the old statistics forgotten at a step ("memory")
    batch_size : windows in a batch; None for full-batch alternating least squares
    max_sweeps : most passes over the data
    tol, patience : stop when the loss changed by less than `tol` of itself in each of `patience` sweeps
    device : "auto", "cpu", "cuda", …
    random_state : seed of the start, of the order of windows and of the augmentations
    verbose : 1 for a progress bar

    Attributes
    ----------
    factors_ : the bases, matrices of shapes (I, R), (J, R), …
    history_ : `loss`, its terms and `seconds`, one number for each sweep
    n_sweeps_, n_parameters_, seed_ : numbers
    tensorize_ : `tensorize` with what it learned from the data's scale
    split_ : hash and part of the split that X was of, or ""
    fs_, channel_names_ : sampling rate in Hz and channels of X, None and () where X does not say
    probe_ : the classifier of features that the model file holds, if there is one; see
        `polyadic.evaluate.WindowClassifier`
    waited_ : seconds in which the fit waited for a disk

    Examples
    --------
    >>> X = np.random.default_rng(0).normal(size=(50, 4, 6))
    >>> SALS(rank=3).fit_transform(X).shape
    (50, 3)
    """


class ATD(_CPFeatures):
    """Augmented tensor decomposition: CP bases that fit samples and their augmentations, and align the two.

    Parameters
    ----------
    rank : number of components, and of features
    tensorize : from a batch (b, channels, time) to tensors (b, I, J, …), as `polyadic.spectral.STFT`; None if the input
        already is a tensor
    augment : from a batch to its augmented view, as those of `polyadic.augment`, or any function (which
        should draw from torch's generator: it is seeded for each batch); needed unless beta=0
    alpha : weight of the Tikhonov term
    beta : weight of the self-supervised loss; 0 with an augmentation is the paper's ATD_ss-
    gamma : weight of the random pairs; None for the number of windows in the batch, as in the paper
    rounds : rounds of the fixed-point rule for each view in each step
    solver : "blend" moves the bases by `learning_rate` towards each batch's solution, as the paper; "memory" solves for
        exponentially forgotten statistics of all batches
    learning_rate : share η of a batch in the bases ("blend"), or of the old statistics forgotten at a step ("memory")
    batch_size : windows in a batch (Algorithm 2); None for full-batch alternating least squares (Algorithm 1)
    max_sweeps : most passes over the data
    tol, patience : stop when the loss changed by less than `tol` of itself in each of `patience` sweeps
    device : "auto", "cpu", "cuda", …
    random_state : seed of the start, of the order of windows and of the augmentations
    verbose : 1 for a progress bar

    Attributes
    ----------
    factors_ : the bases, matrices of shapes (I, R), (J, R), …
    history_ : `loss`, its terms and `seconds`, one number for each sweep
    n_sweeps_, n_parameters_, seed_ : numbers
    tensorize_ : `tensorize` with what it learned from the data's scale
    split_ : hash and part of the split that X was of, or ""
    fs_, channel_names_ : sampling rate in Hz and channels of X, None and () where X does not say
    probe_ : the classifier of features that the model file holds, if there is one; see
        `polyadic.evaluate.WindowClassifier`
    waited_ : seconds in which the fit waited for a disk

    Examples
    --------
    >>> from polyadic.augment import Jitter
    >>> from polyadic.spectral import STFT
    >>> X = np.random.default_rng(0).normal(size=(60, 3, 128)).astype(np.float32)
    >>> model = ATD(rank=4, tensorize=STFT(n_fft=32, hop=8), augment=Jitter(0.05), max_sweeps=2).fit(X)
    >>> [factor.shape for factor in model.factors_], model.transform(X).shape
    ([(6, 4), (17, 4), (13, 4)], (60, 4))
    """

    def __init__(
        self,
        rank: int = 32,
        *,
        tensorize: Transform | None = None,
        augment: Augment | None = None,
        alpha: float = 1e-3,
        beta: float = 2.0,
        gamma: float | None = None,
        rounds: int = 1,
        solver: Literal["blend", "memory"] = "blend",
        learning_rate: float = 0.05,
        batch_size: int | None = 128,
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

    def _augmentation(self) -> Augment | None:
        return self.augment

    def _objective(self, count: int) -> als.Objective:
        gamma = None if self.gamma is None else float(self.gamma)
        return als.Objective(alpha=float(self.alpha), beta=float(self.beta), gamma=gamma, rounds=int(self.rounds))

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_number("beta", self.beta, 0)
        check_number("gamma", self.gamma, 0, float(np.finfo(np.float32).max), none=True)
        check_integer("rounds", self.rounds, 1)
        if self.augment is None and self.beta > 0:
            raise PolyadicError(
                f"augment is None, but beta={self.beta:g} weighs a loss between samples and their augmentations: "
                "give an augmentation, or beta=0 for plain stochastic ALS"
            )


class GRSALS(_CPFeatures):
    """SALS with a graph regulariser w·Tr(XᵀLX) that draws the coefficients of connected windows together.

    Parameters
    ----------
    graph : "complete" for equal weights 1/b among the b windows of a batch, or a symmetric (N, N) array or sparse
        matrix of weights among the windows given to `fit`, of which each batch takes its part (with batch_size=None
        the whole is decomposed in every sweep, in time N³)
    graph_weight : weight w of the regulariser
    rank, tensorize, alpha, solver, learning_rate, batch_size : as for `SALS`
    max_sweeps, tol, patience, device, random_state, verbose : as for `SALS`

    Attributes
    ----------
    factors_, history_, n_sweeps_, n_parameters_, seed_, tensorize_ : as for `SALS`

    Examples
    --------
    >>> X = np.random.default_rng(0).normal(size=(50, 4, 6))
    >>> GRSALS(rank=3, graph_weight=0.1).fit_transform(X).shape
    (50, 3)
    """

    def __init__(
        self,
        rank: int = 32,
        *,
        tensorize: Transform | None = None,
        graph: Any = "complete",
        graph_weight: float = 1e-3,
        alpha: float = 1e-3,
        solver: Literal["blend", "memory"] = "blend",
        learning_rate: float = 0.05,
        batch_size: int | None = 128,
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
                "(model files hold no graph: set it again before fitting a loaded model)"
            )


def paper_methods(settings: Preset, **parameters: Any) -> dict[str, ATD | SALS | GRSALS]:
    """The four tensor methods with the same settings, unfitted, by their names in the paper.

    Parameters
    ----------
    settings : tensorizer, augmentation and parameters
    parameters : arguments of `ATD` that replace those of the settings, unless None; SALS and GR-SALS
        take those they know

    Examples
    --------
    >>> from polyadic.presets import preset
    >>> list(paper_methods(preset("har"), rank=8))
    ['ATD', 'ATD_ss-', 'GR-SALS', 'SALS']
    """
    given = {name: value for name, value in parameters.items() if value is not None}
    full = {**settings.parameters, **given, "tensorize": settings.tensorize}
    shared = {name: value for name, value in full.items() if name not in ("beta", "gamma", "rounds")}
    return {
        "ATD": ATD(**full, augment=settings.augment),
        "ATD_ss-": ATD(**{**full, "beta": 0.0}, augment=settings.augment),
        "GR-SALS": GRSALS(**shared),
        "SALS": SALS(**shared),
    }


_ESTIMATORS: dict[str, type[_CPFeatures]] = {kind.__name__: kind for kind in (ATD, SALS, GRSALS)}


def load(
    path: str | os.PathLike[str], *, tensorize: Transform | None = None, augment: Augment | None = None
) -> ATD | SALS | GRSALS:
    """A model from the file that `save` wrote.

    Parameters
    ----------
    path : the file
    tensorize, augment : the functions the model was made with, if they were functions of your own: files hold no code

    Returns
    -------
    the fitted estimator

    Raises
    ------
    ModelFileError : if the file is damaged, of a newer schema, or not a model

    Examples
    --------
    >>> import tempfile
    >>> model = SALS(rank=2, max_sweeps=1).fit(np.ones((5, 3, 4)))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model.save(f"{folder}/m.safetensors")
    ...     same = load(f"{folder}/m.safetensors")
    >>> np.array_equal(same.factors_[0], model.factors_[0])
    True
    """
    arrays, header = persist.read(path)
    given = {"tensorize": tensorize, "augment": augment}
    try:
        kind = _ESTIMATORS[header["estimator"]]
        parameters = dict(header["parameters"])
        decoded = {name: persist.decode(value, given.get(name)) for name, value in parameters.items()}
        model = kind(**decoded)
        check_integer("rank", parameters["rank"], 1)
        check_number("alpha", parameters["alpha"], 0)
        model.tensorize_ = persist.decode(header["tensorize"], tensorize, "tensorize")
        model._restore(arrays, header)
    except ModelFileError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise ModelFileError(f"{path} has a damaged header: {error!r}") from error
    for name, function in given.items():
        if function is not None and getattr(model, name, None) is not function:
            raise PolyadicError(f"{name} was given, but the model in {path} was not made with a function for it")
    return model
