"""What the rows of a model's bases stand for: channels and their parts, frequencies in Hz, times in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from polyadic.errors import PolyadicError
from polyadic.spectral import PARTS, STFT

__all__ = ["Mode", "modes"]

Kind = Literal["channel", "frequency", "time", "other"]


@dataclass(frozen=True, eq=False)
class Mode:
    """One mode of the tensors, as a reader wants to see it.

    Parameters
    ----------
    kind : "channel", "frequency", "time", or "other" where nothing is known
    name : for headings
    positions : (n,), where each row lies along an axis, in `unit`; the number of a channel
    unit : "Hz", "s", or what is left where the sampling rate is not known
    labels : names of the channels, else empty
    parts : names of the parts of the STFT that are stacked along the channels, one after the other
    """

    kind: Kind
    name: str
    positions: NDArray[np.float64]
    unit: str = ""
    labels: tuple[str, ...] = ()
    parts: tuple[str, ...] = ("",)

    @property
    def axis(self) -> str:
        """The name with its unit."""
        return f"{self.name} ({self.unit})" if self.unit else self.name

    def parted(self, weights: NDArray[Any]) -> NDArray[Any]:
        """The weights of one component by part: (parts, n)."""
        return weights.reshape(len(self.parts), -1)

    def peak(self, weights: NDArray[Any]) -> int:
        """Which position (or channel) has the largest weight in size, whatever its part."""
        return int(np.abs(self.parted(weights)).max(axis=0).argmax())

    def at(self, place: int) -> str:
        """A position in words.

        Examples
        --------
        >>> Mode("frequency", "frequency", np.array([0.0, 12.5]), "Hz").at(1)
        '12.5 Hz'
        """
        if self.kind == "channel":
            return self.labels[place]
        number = f"{self.positions[place]:.3g}" if self.unit else f"{self.positions[place]:g}"
        return f"{number} {self.unit}".strip()


def modes(model: Any, data: Any = None) -> list[Mode]:
    """The modes of a fitted model.

    Parameters
    ----------
    model : fitted
    data : what has a sampling rate and names of channels, as `Windows` or a `WindowStore`, if not the model's own

    Returns
    -------
    one for each basis, in their order

    Examples
    --------
    >>> from polyadic import SALS
    >>> from polyadic.data import synthetic
    >>> signals = synthetic(20, n_channels=2)
    >>> model = SALS(rank=2, tensorize=STFT(n_fft=32, hop=16), max_sweeps=1).fit(signals)
    >>> [mode.axis for mode in modes(model, signals)], modes(model, signals)[0].labels
    (['channel', 'frequency (Hz)', 'time (s)'], ('1', '2'))
    """
    shape = model._sample_shape
    fs = getattr(data, "fs", None) or getattr(model, "fs_", None)
    names = getattr(data, "channels", ()) or getattr(model, "channel_names_", ())
    channels = tuple(str(name) for name in names)
    if len(channels) not in (0, shape[0]):
        raise PolyadicError(f"data must have {shape[0]} channels as the model has, but has {len(channels)}")
    if not channels:
        channels = tuple(str(name) for name in getattr(model, "feature_names_in_", ()))
    labels = channels or tuple(str(number + 1) for number in range(shape[0]))
    if isinstance(model.tensorize_, STFT):
        return _of_frames(model.tensorize_, shape, labels, fs)
    # Only windows are known to be channels by time; a tensor may be anything.
    if model.tensorize_ is None and len(shape) == 2 and hasattr(data, "fs"):
        return [_channels(labels), _time(np.arange(shape[1]), fs)]
    sizes = [len(factor) for factor in model.factors_]
    return [Mode("other", f"mode {number}", np.arange(1.0, size + 1)) for number, size in enumerate(sizes, start=1)]


def _of_frames(stft: STFT, shape: tuple[int, ...], labels: tuple[str, ...], fs: float | None) -> list[Mode]:
    _, frequencies, frames = stft.shape(*shape)
    rate, unit = (1.0, "cycles per sample") if fs is None else (fs, "Hz")
    centres = np.arange(frames) * stft.hop + (stft.n_fft - 1) / 2
    return [
        _channels(labels, tuple(part.name for part in PARTS[stft.parts])),
        Mode("frequency", "frequency", np.arange(frequencies) * rate / stft.n_fft, unit),
        _time(centres, fs),
    ]


def _channels(labels: tuple[str, ...], parts: tuple[str, ...] = ("",)) -> Mode:
    return Mode("channel", "channel", np.arange(1.0, len(labels) + 1), labels=labels, parts=parts)


def _time(samples: NDArray[Any], fs: float | None) -> Mode:
    return Mode("time", "time", samples / (fs or 1.0), "samples" if fs is None else "s")
