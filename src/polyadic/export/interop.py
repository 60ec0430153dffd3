"""Conversion to and from TensorLy, and from MNE.

Each of these packages is imported only by the function that needs it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from polyadic._util.checks import check_number
from polyadic.core.solve import empty_history
from polyadic.data import Windows
from polyadic.data.readers.mne import from_epochs, from_raw
from polyadic.data.recordings import cut_windows, observed_windows, window_starts
from polyadic.errors import PolyadicError
from polyadic.estimators import CPD
from polyadic.export.onnx_graph import needed

__all__ = ["from_mne", "from_tensorly", "to_tensorly"]


def to_tensorly(model: CPD, X: Any = None) -> Any:
    """Convert a model to TensorLy's `CPTensor`.

    Parameters
    ----------
    model : fitted
    X : windows, as for `transform`; if given, their coefficients are the first factor, and the result is a model of
        their tensors

    Returns
    -------
    a CPTensor with factors (I, R), (J, R), … and weights of 1; with X, factors (N, R), (I, R), (J, R), …

    Examples
    --------
    >>> X = np.random.default_rng(0).normal(size=(50, 4, 6))
    >>> to_tensorly(CPD(rank=3, tensorize=None, max_sweeps=2).fit(X), X).shape
    (50, 4, 6)
    """
    cp_tensor = needed("tensorly.cp_tensor", "interop")
    check_is_fitted(model)
    factors = [factor.copy() for factor in model.factors_]
    if X is not None:
        x = model.coefficients(X)
        factors.insert(0, np.asarray(x.cpu() if hasattr(x, "cpu") else x))
    return cp_tensor.CPTensor((np.ones(model.factors_[0].shape[1], factors[0].dtype), factors))


def from_tensorly(cp_tensor: Any, *, samples: bool = False, like: CPD | None = None) -> CPD:
    """Create a model whose bases are the factors of TensorLy's `CPTensor`; components keep their order.

    Parameters
    ----------
    cp_tensor : a CPTensor, or weights (R,) or None, and a list of factors (I, R), (J, R), …
    samples : whether the first factor is that of the samples, as from `parafac` of a stack of tensors; it is dropped,
        because `coefficients` recomputes it
    like : a fitted model whose window shape, STFT, alpha and readout settings the new one takes; without it the input
        is tensors, and features are the coefficients. A readout must be fitted: `fit_readout(X)`

    Examples
    --------
    >>> X = np.random.default_rng(0).normal(size=(50, 4, 6))
    >>> model = CPD(rank=3, tensorize=None, max_sweeps=2).fit(X)
    >>> again = from_tensorly(to_tensorly(model, X), samples=True)
    >>> np.allclose(again.coefficients(X), model.coefficients(X))
    True
    """
    weights, given = cp_tensor
    factors = [_array(factor) for factor in given][int(samples) :]
    if not factors:
        raise PolyadicError(
            f"cp_tensor must have a factor in addition to that of the samples, but has {len(given)} in all"
        )
    rank = int(factors[0].shape[-1])
    if weights is not None:
        # Distribute the weights over all factors, so that none is much larger than the others.
        size = np.abs(_array(weights)) ** (1 / len(factors))
        factors = [factor * size for factor in factors]
        factors[0] = factors[0] * np.where(_array(weights) < 0, -1, 1)
    model = CPD(rank, tensorize=None, readout=None)
    if like is not None:
        model.set_params(tensorize=like.tensorize, readout=like.readout, alpha=like.alpha)
    model.tensorize_ = None if like is None else like.tensorize_
    shape = tuple(len(factor) for factor in factors) if like is None else like._sample_shape
    sizes = shape if like is None else tuple(len(factor) for factor in like.factors_)
    if [factor.shape for factor in factors] != [(size, rank) for size in sizes]:
        shapes = [factor.shape for factor in factors]
        raise PolyadicError(f"cp_tensor must have factors of one rank for a tensor {sizes}, but they are {shapes}")
    model._sample_shape, model.n_features_in_ = shape, shape[0]
    model.fs_, model.channel_names_ = getattr(like, "fs_", None), getattr(like, "channel_names_", ())
    model.units_, model.reading_, model.typical_ = getattr(like, "units_", ()), getattr(like, "reading_", {}), {}
    model.history_, model.seed_, model.split_, model._n_seen = empty_history(), 0, "", 0
    model._restore({f"factors.{mode}": factor for mode, factor in enumerate(factors)}, model._extra())
    return model


def from_mne(instance: Any, seconds: float | None = None) -> Windows:
    """Convert an `mne.Epochs`, or an `mne.io.Raw` cut into windows, to `Windows`.

    Epochs are labelled by their events. For a Raw, samples annotated as bad are missing (NaN). Select channels
    first, for example with `instance.pick("eeg")`.

    Parameters
    ----------
    instance : an mne.Epochs or an mne.io.Raw
    seconds : length of a window, for a Raw

    Examples
    --------
    >>> import mne
    >>> info = mne.create_info(["Fz", "Pz"], 100.0, "eeg")
    >>> raw = mne.io.RawArray(np.random.default_rng(0).normal(size=(2, 1000)) * 1e-5, info, verbose="ERROR")
    >>> from_mne(raw, seconds=2.5).shape
    (4, 2, 250)
    """
    if seconds is None:
        if hasattr(instance, "n_times"):
            raise PolyadicError("seconds must be the length of the windows for an mne.io.Raw, but is None")
        return from_epochs(instance)
    if not hasattr(instance, "n_times"):
        raise PolyadicError(f"seconds is for an mne.io.Raw, but instance is a {type(instance).__name__}")
    recording = from_raw(instance)
    check_number("seconds", seconds, 1 / recording.fs)
    length = round(seconds * recording.fs)
    starts = window_starts(recording, length)
    windows = cut_windows(recording.signal, starts, length)
    kept = observed_windows(windows)
    starts = starts[kept]
    return Windows(
        windows[kept],
        recording.fs,
        subject=[recording.subject] * len(starts),
        recording=[recording.name] * len(starts),
        start=starts,
        channels=recording.channels,
        units=recording.units,
    )


def _array(values: Any) -> NDArray[Any]:
    """Convert factors of any TensorLy backend to floating-point numpy arrays."""
    array = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
    return array if array.dtype.kind == "f" else array.astype(np.float64)
