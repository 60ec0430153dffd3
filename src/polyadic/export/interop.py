"""Conversion to and from TensorLy, xarray, MNE, and the flat arrays of scikit-learn and aeon.

Each of these packages is imported only by the function that needs it.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from polyadic._util.checks import check_integer, check_number
from polyadic.core.solve import empty_history
from polyadic.data import Windows
from polyadic.data.readers.mne import from_epochs, from_raw
from polyadic.data.recordings import complete_windows, cut_windows, window_starts
from polyadic.errors import PolyadicError
from polyadic.estimators import CPD

__all__ = ["Unflatten", "from_mne", "from_tensorly", "to_tensorly", "to_xarray", "topomap"]


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
    cp_tensor = _needed("tensorly.cp_tensor", "interop")
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
    model.units_ = getattr(like, "units_", ())
    model.history_, model.seed_, model.split_ = empty_history(), 0, ""
    model.reading_, model.typical_ = {}, {}
    model._n_seen, model.n_sweeps_, model._memory = 0, 0, None
    model.factors_ = factors
    if model.readout is None:
        model.readout_ = None
    return model


def to_xarray(model: CPD, *, fs: float | None = None, channels: Sequence[str] = ()) -> Any:
    """Convert the bases of a model to labelled arrays: channels and parts by name, frequencies in Hz, times in seconds.

    Parameters
    ----------
    model : fitted
    fs, channels : sampling rate in Hz and names of the channels; by default those of the model. Without a rate,
        frequencies are in cycles per sample and times in samples; without names, channels are numbered

    Returns
    -------
    an xarray Dataset with a variable for each mode. With an STFT: `channels` (part, channel, component), `frequencies`
    (frequency, component) and `times` (time, component), where times are the centres of frames; else `mode1`,
    `mode2`, …

    Examples
    --------
    >>> from polyadic.spectral import STFT
    >>> X = np.random.default_rng(0).normal(size=(50, 2, 64))
    >>> model = CPD(rank=3, tensorize=STFT(n_fft=16, hop=8), max_sweeps=1).fit(X)
    >>> labelled = to_xarray(model, fs=64, channels=["Fz", "Pz"])
    >>> dict(labelled.channels.sizes), float(labelled.frequencies.frequency[1])
    ({'part': 2, 'channel': 2, 'component': 3}, 4.0)
    """
    xarray = _needed("xarray", "interop")
    check_is_fitted(model)
    components = {"component": np.arange(model.factors_[0].shape[1])}
    rate = getattr(model, "fs_", None) if fs is None else fs
    check_number("fs", rate, 0, none=True)
    known = _Known(rate, tuple(_channel_names(model, channels)))
    axes = model.axes(known)
    if [axis.kind for axis in axes] != ["channel", "frequency", "time"]:
        names = [f"mode{number}" for number in range(1, len(model.factors_) + 1)]
        arrays = {
            name: ((f"row{name[4:]}", "component"), factor) for name, factor in zip(names, model.factors_, strict=True)
        }
        return xarray.Dataset(arrays, components)
    channel, frequency, time = axes
    weights, frequencies, times = model.factors_
    units = {"cycles per sample": "cycles/sample"}
    return xarray.Dataset(
        {
            "channels": (
                ("part", "channel", "component"),
                weights.reshape(len(channel.parts), len(channel.labels), -1),
            ),
            "frequencies": (("frequency", "component"), frequencies),
            "times": (("time", "component"), times),
        },
        {
            "part": list(channel.parts),
            "channel": list(channel.labels),
            "frequency": ("frequency", frequency.positions, {"units": units.get(frequency.unit, frequency.unit)}),
            "time": ("time", time.positions, {"units": time.unit}),
            **components,
        },
    )


class _Known(NamedTuple):
    """The known properties of the windows of a model."""

    fs: float | None
    channels: tuple[str, ...]


def from_mne(instance: Any, seconds: float | None = None, step: float | None = None) -> Windows:
    """Convert an `mne.Epochs`, or an `mne.io.Raw` cut into windows, to `Windows`.

    Epochs are labelled by their events. For a Raw, windows with samples annotated as bad are left out. Select channels
    first, for example with `instance.pick("eeg")`.

    Parameters
    ----------
    instance : an mne.Epochs or an mne.io.Raw
    seconds : length of a window, for a Raw
    step : seconds from the start of one window to the next, for a Raw; `seconds` if None

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
    for name, value in (("seconds", seconds), ("step", step)):
        check_number(name, value, 1 / recording.fs, none=name == "step")
    length = round(seconds * recording.fs)
    starts = window_starts(recording, length, None if step is None else round(step * recording.fs))
    starts = starts[complete_windows(recording, starts, length)]
    return Windows(
        cut_windows(recording, starts, length),
        recording.fs,
        subject=[recording.subject] * len(starts),
        recording=[recording.name] * len(starts),
        start=starts,
        channels=recording.channels,
        units=recording.units,
    )


def topomap(model: CPD, info: Any, components: Sequence[int] | None = None, *, channels: Sequence[str] = ()) -> Any:
    """Plot the channel weights of components as scalp maps with MNE: one column per component, one row per STFT part.

    Channels without a position, such as EOG or ECG, are left out.

    Parameters
    ----------
    model : fitted
    info : an `mne.Info` with positions, as set by `info.set_montage`, and the model's channels by name
    components : numbers of the components, from 0; by default the first eight
    channels : names of the model's channels; by default those of the model if known, else those of `info`

    Returns
    -------
    a matplotlib figure
    """
    _needed("mne", "mne")
    from matplotlib.figure import Figure
    from mne.viz import plot_topomap

    labelled = to_xarray(model, channels=_channel_names(model, channels) or info.ch_names)
    if "channels" not in labelled:
        raise PolyadicError(
            f"model must have tensors of channels, frequencies and times, as from STFT, but has {model.tensorize_!r}"
        )
    placed = [name for name in labelled.channel.values.tolist() if _has_place(info, name)]
    if len(placed) < 4:
        raise PolyadicError(
            f"info must have positions of at least four of the channels, but has {len(placed)}: "
            "use info.set_montage, and the channel names of the montage"
        )
    chosen = list(range(min(8, labelled.sizes["component"]))) if components is None else [int(c) for c in components]
    for number in chosen:
        if not 0 <= number < labelled.sizes["component"]:
            raise PolyadicError(f"components must be from 0 to {labelled.sizes['component'] - 1}, but one is {number}")
    places = _needed("mne", "mne").pick_info(info, [info.ch_names.index(name) for name in placed])
    weights = labelled.channels.sel(channel=placed)
    rows = labelled.sizes["part"]
    figure = Figure(figsize=(1.6 * len(chosen) + 0.6, 1.8 * rows + 0.2), layout="constrained")
    axes = figure.subplots(rows, len(chosen), squeeze=False)
    for column, number in enumerate(chosen):
        # One symmetric scale for all parts of a component, so that colours are comparable.
        limit = float(np.abs(weights[..., number]).max()) or 1.0
        axes[0, column].set_title(f"component {number}", fontsize=9)
        for row in range(rows):
            values = weights.values[row, :, number]
            plot_topomap(values, places, axes=axes[row, column], show=False, vlim=(-limit, limit), cmap="RdBu_r")
    for row, part in enumerate(labelled.part.values):
        axes[row, 0].set_ylabel(part)
    return figure


class Unflatten(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Reshape flat rows to windows, (N, C·T) to (N, C, T), for pipelines of tools that only handle matrices.

    Parameters
    ----------
    channels : number of channels; 1 for univariate series (N, T)

    Examples
    --------
    >>> Unflatten(3).fit_transform(np.zeros((5, 12))).shape
    (5, 3, 4)
    """

    def __init__(self, channels: int = 1) -> None:
        self.channels = channels

    def fit(self, X: ArrayLike, y: Any = None) -> Self:
        """Do nothing; there are no parameters to learn."""
        return self

    def transform(self, X: ArrayLike) -> NDArray[Any]:
        """Reshape rows (N, C·T), in the order of `X.reshape(len(X), -1)`, to windows (N, C, T)."""
        check_integer("channels", self.channels, 1)
        rows = np.asarray(X)
        if rows.ndim != 2 or rows.shape[1] % self.channels:
            raise PolyadicError(f"X must have shape (N, {self.channels}·T), but has shape {rows.shape}")
        return rows.reshape(len(rows), self.channels, -1)

    def __sklearn_is_fitted__(self) -> bool:
        return True


def _array(values: Any) -> NDArray[Any]:
    """Convert factors of any TensorLy backend to floating-point numpy arrays."""
    array = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
    return array if array.dtype.kind == "f" else array.astype(np.float64)


def _channel_names(model: CPD, channels: Sequence[str]) -> list[str]:
    names = [str(name) for name in (channels or getattr(model, "channel_names_", ()))]
    if len(names) not in (0, model._sample_shape[0]):
        raise PolyadicError(f"channels must name {model._sample_shape[0]} channels, but names {len(names)}")
    return names


def _has_place(info: Any, name: str) -> bool:
    if name not in info.ch_names:
        return False
    place = info["chs"][info.ch_names.index(name)]["loc"][:3]
    return bool(np.isfinite(place).all() and np.any(place))


def _needed(package: str, extra: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise PolyadicError(
            f"{package.partition('.')[0]} is needed for this: pip install 'polyadic[{extra}]'"
        ) from error
