"""The paper's settings for its four datasets (appendices D.2 to D.5), and settings for other windows.

Not from the paper: "ptb_xl_100hz", for the records at 100 Hz, and the limit of 50 sweeps. The paper's text describes
amplitude and phase, but its results were computed with log|Re| and log|Im|, which the presets use. Appendix D.3 adds
noise d·s to a signal without saying in which unit s is; `Jitter` scales d by half the channel's range, so that the
degrees of the appendix mean the same share of the signal for channels of any unit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from polyadic._util.checks import check_number
from polyadic.augment import Augmentation, Bandpass, Compose, Jitter, Rotate3D
from polyadic.errors import PolyadicError
from polyadic.spectral import STFT, recommended_stft

__all__ = ["PAPER_METHOD", "Preset", "paper_settings", "preset"]

PAPER_METHOD: Mapping[str, Any] = MappingProxyType(
    {"readout": None, "nonnegative": False, "beta": 2.0, "solver": "blend", "batch_size": 128}
)
"""Arguments that turn `ATD` into the paper's method, where they differ from the library's defaults."""

_Band = tuple[float, float]


@dataclass(frozen=True)
class _Dataset:
    fs: float
    channels: int
    length: int
    n_fft: int
    hop: int
    bands: tuple[_Band, _Band]
    degree: float
    batch_size: int = 128
    triads: tuple[tuple[int, int, int], ...] = ()


_DATASETS = {
    "sleep_edf": _Dataset(100, 7, 3000, 256, 32, ((1, 30), (10, 49)), 0.05),
    "har": _Dataset(50, 9, 128, 64, 2, ((1, 20), (5, 24.5)), 0.002, triads=((0, 1, 2), (3, 4, 5), (6, 7, 8))),
    "ptb_xl": _Dataset(500, 12, 5000, 256, 64, ((1, 30), (10, 50)), 0.001),
    "ptb_xl_100hz": _Dataset(100, 12, 1000, 64, 13, ((1, 30), (10, 49)), 0.001),
    "mgh": _Dataset(200, 6, 6000, 512, 128, ((1, 30), (10, 50)), 0.01, batch_size=512),
}


@dataclass(frozen=True)
class Preset:
    """Settings for one dataset.

    Parameters
    ----------
    name : name of the dataset, or ""
    fs : sampling rate in Hz, None if unknown
    shape : (channels, time) of a raw window
    tensorize, augment : the arguments of `ATD` with these names
    parameters : the other keyword arguments of `ATD`
    """

    name: str
    fs: float | None
    shape: tuple[int, int]
    tensorize: STFT
    augment: Any
    parameters: Mapping[str, Any]


def preset(name: str, fs: float | None = None) -> Preset:
    """Return the paper's settings for a dataset.

    Parameters
    ----------
    name : "sleep_edf", "har", "ptb_xl", "ptb_xl_100hz" or "mgh"
    fs : sampling rate in Hz, if it differs from the dataset's; frame lengths in seconds and bands in Hz stay the same

    Examples
    --------
    >>> preset("har").tensorize.shape(*preset("har").shape)
    (18, 33, 33)
    >>> preset("har").parameters["learning_rate"]
    0.002
    """
    if name not in _DATASETS:
        raise PolyadicError(f"name must be one of {', '.join(_DATASETS)}, but is {name!r}")
    check_number("fs", fs, 0, none=True)
    data = _DATASETS[name]
    rate = data.fs if fs is None else float(fs)
    ratio = rate / data.fs
    n_fft, hop = 2 * round(data.n_fft * ratio / 2), round(data.hop * ratio)
    if max(high for _, high in data.bands) >= rate / 2:
        raise PolyadicError(
            f"fs={rate:g} Hz is too low for {name}: its bands {data.bands} exceed the Nyquist frequency; "
            "pass your own STFT and augmentations"
        )
    steps: list[Augmentation] = [Jitter(data.degree), Bandpass(data.bands, rate)]
    if data.triads:
        steps.append(Rotate3D(data.triads))
    parameters = {
        **PAPER_METHOD,
        "rank": 32,
        "alpha": 1e-3,
        "gamma": None,
        "rounds": 1,
        "learning_rate": 2e-3,
        "batch_size": data.batch_size,
        "max_sweeps": 50,
        "tol": 1e-3,
        "patience": 3,
    }
    shape = (data.channels, round(data.length * ratio))
    tensorize = STFT(n_fft=n_fft, hop=hop, window="rectangular", parts="log_re_im", floor="channel")
    return Preset(name, rate, shape, tensorize, Compose(steps), MappingProxyType(parameters))


def paper_settings(length: int, fs: float | None) -> dict[str, Any]:
    """Return arguments of `ATD` for the paper's method on windows of this length, with the library's frames.

    Views are jittered and, if the sampling rate is known, filtered to the lower or the upper half of the spectrum.
    """
    frames, views = recommended_stft(length, fs), Jitter(0.05)
    augment = views if fs is None else Compose([views, Bandpass([(0.01 * fs, 0.3 * fs), (0.1 * fs, 0.49 * fs)], fs)])
    return {**PAPER_METHOD, "tensorize": STFT(frames.n_fft, frames.hop, floor="channel"), "augment": augment}
