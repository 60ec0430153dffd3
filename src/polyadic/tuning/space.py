"""Search space of `tune`: the settings of a try, the values that each may take, and the available views."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from polyadic import ATD, CPD
from polyadic.augment import Augmentation, Bandpass, DropChannels, Jitter, Neighbour, Rotate3D, Scale, Shift
from polyadic.data import Windows
from polyadic.evaluate.classifier import FEWEST_WINDOWS
from polyadic.readout import Readout
from polyadic.spectral import SHORTEST_FRAME, STFT, recommended_stft

__all__ = ["NO_VIEW", "Settings", "Space", "views_for"]

NO_VIEW = "none"
_RANKS = (8, 16, 32, 64)
_SHRINKAGES = (0.3, 1.0, 3.0)
_MOST_FRAMES = 32
_DISTANCE = 4
"""Distance from a window to its distant neighbour, in window lengths."""


@dataclass(frozen=True)
class Settings:
    """The settings of one try.

    Parameters
    ----------
    n_fft, hop, parts : parameters of the STFT
    rank, nonnegative : parameters of the decomposition
    view : name of the second view used in the fit, or "none"
    whiten, shrinkage : parameters of the readout; `whiten` is the name of a view, or "none"
    recenter : whether features are recentred by subject
    """

    n_fft: int
    hop: int
    parts: str = "log_amplitude"
    rank: int = 32
    nonnegative: bool = True
    view: str = NO_VIEW
    whiten: str = NO_VIEW
    shrinkage: float = 1.0
    recenter: bool = False

    @property
    def fitted(self) -> tuple[Any, ...]:
        """The settings that the fit depends on; tries with equal values share a fit."""
        return (self.n_fft, self.hop, self.parts, self.rank, self.nonnegative, self.view)

    def estimator(self, views: Mapping[str, Augmentation], seed: int, device: Any) -> CPD:
        """Return an unfitted estimator with these settings."""
        frames = STFT(self.n_fft, self.hop, parts=self.parts, mean="auto")  # type: ignore[arg-type]
        shared: dict[str, Any] = {
            "tensorize": frames,
            "nonnegative": self.nonnegative,
            "readout": self.readout(views),
            "device": device,
            "random_state": seed,
        }
        if self.view == NO_VIEW:
            return CPD(self.rank, **shared)
        return ATD(self.rank, augment=views[self.view], beta=0.0, **shared)

    def readout(self, views: Mapping[str, Augmentation]) -> Readout:
        """Return the readout of these settings."""
        whiten = None if self.whiten == NO_VIEW else views[self.whiten]
        return Readout(whiten=whiten, shrinkage=self.shrinkage)

    def changed_from(self, other: Settings) -> dict[str, Any]:
        """Return the values that differ from other settings, by name.

        Examples
        --------
        >>> Settings(64, 8, rank=16).changed_from(Settings(64, 8))
        {'rank': 16}
        """
        return {name: value for name, value in asdict(self).items() if value != getattr(other, name)}


@dataclass(frozen=True)
class Space:
    """The values that settings may take for given windows, and the recommended settings.

    Parameters
    ----------
    recommended : the library's defaults
    values : for each setting, its possible values, including the recommended one
    views : augmentations by name
    length : number of samples of a window
    """

    recommended: Settings
    values: dict[str, tuple[Any, ...]]
    views: dict[str, Augmentation]
    length: int

    @classmethod
    def of(cls, windows: Windows) -> Space:
        """Build the search space for windows (N, channels, time)."""
        length, frames = windows.shape[2], recommended_stft(windows.shape[2], windows.fs)
        views = views_for(windows)
        sizes = [n for n in (frames.n_fft // 2, frames.n_fft, 2 * frames.n_fft) if SHORTEST_FRAME <= n <= length]
        _, counts = np.unique(windows.subject, return_counts=True)
        can_recenter = "" not in windows.subject and counts.min() >= FEWEST_WINDOWS
        values: dict[str, tuple[Any, ...]] = {
            "n_fft": tuple(sizes),
            "hop": tuple(sorted({hop for size in sizes for hop in _hops(size, length)})),
            "rank": _RANKS,
            "nonnegative": (True, False),
            "parts": ("log_amplitude", "log_re_im"),
            "view": (NO_VIEW, *views),
            "whiten": (NO_VIEW, *views),
            "shrinkage": _SHRINKAGES,
            "recenter": (False, True) if can_recenter else (False,),
        }
        return cls(Settings(frames.n_fft, frames.hop), values, views, length)

    def with_value(self, settings: Settings, name: str, value: Any) -> Settings:
        """Return settings with one value changed; changing `n_fft` also adapts `hop`."""
        if name != "n_fft":
            return replace(settings, **{name: value})
        return replace(settings, n_fft=value, hop=_hops(value, self.length)[0])

    def choices(self, settings: Settings, name: str) -> tuple[Any, ...]:
        """Return the values that a setting may take given the others: `hop` depends on `n_fft`."""
        if name != "hop":
            return self.values[name]
        return tuple(hop for hop in _hops(settings.n_fft, self.length) if hop in self.values["hop"])

    def neighbours(self, settings: Settings, names: tuple[str, ...]) -> Iterator[Settings]:
        """Yield settings that differ in one of these names, skipping changes without effect."""
        for name in names:
            if name == "shrinkage" and settings.whiten == NO_VIEW:
                continue
            for value in self.choices(settings, name):
                if value != getattr(settings, name):
                    yield self.with_value(settings, name, value)


def _hops(n_fft: int, length: int) -> tuple[int, ...]:
    """Return hops for a frame length: the recommended one, and two and four times that, up to half a frame.

    Examples
    --------
    >>> _hops(64, 128)
    (8, 16, 32)
    """
    first = max(n_fft // 8, -(-(length - n_fft) // (_MOST_FRAMES - 1)), 1)
    return (first, *(hop for hop in (2 * first, 4 * first) if hop <= n_fft // 2))


def views_for(windows: Windows) -> dict[str, Augmentation]:
    """Return views that suit windows, by name: rotations for three-axis sensors, filters if the sampling rate is known.

    Examples
    --------
    >>> list(views_for(Windows(np.zeros((2, 3, 64)), channels=["acc x", "acc y", "acc z"])))
    ['jitter 0.05', 'jitter 0.3', 'rotation 20°', 'dropped channels', 'shift', 'scale']
    """
    views: dict[str, Augmentation] = {"jitter 0.05": Jitter(0.05), "jitter 0.3": Jitter(0.3)}
    placed = windows.recording[(windows.recording != "") & (windows.start >= 0)]
    if len(np.unique(placed)) < len(placed):
        views["neighbour"] = Neighbour()
        if windows.fs is not None:
            views["distant neighbour"] = Neighbour(gap=_DISTANCE * windows.shape[2] / windows.fs)
    triads = _triads(windows.channels)
    if triads:
        views["rotation 20°"] = Rotate3D(triads, degrees=20.0)
    if windows.shape[1] > 1:
        views["dropped channels"] = DropChannels(0.2)
    views |= {"shift": Shift(0.1), "scale": Scale(1.25)}
    if windows.fs is not None:
        fs = windows.fs
        views["band-pass"] = Bandpass([(0.01 * fs, 0.3 * fs), (0.1 * fs, 0.49 * fs)], fs)
    return views


def _triads(channels: tuple[str, ...]) -> tuple[tuple[int, int, int], ...]:
    """Return indices (x, y, z) of channels whose names differ only in a final x, y or z."""
    sensors: dict[str, dict[str, int]] = {}
    for number, name in enumerate(channels):
        match = re.fullmatch(r"(.*?)[\s_.-]*([xyz])", name.lower())
        if match:
            sensors.setdefault(match[1], {})[match[2]] = number
    return tuple((axes["x"], axes["y"], axes["z"]) for axes in sensors.values() if len(axes) == 3)
