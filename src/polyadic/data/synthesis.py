"""Simulate multichannel signals: windows by the data model of the paper (`synthetic`), and whole nights of sleep.

Windows follow section 2.1 of the paper (Eqn. classdist1). A window is a sum of rank-one components, each a channel
pattern times an oscillation times an envelope in time, with coefficients that depend on the class; of nuisance
components that do not depend on the class; and of noise. The default strengths were chosen so that augmented views
help: the signals illustrate the method, but are not evidence for it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from polyadic._util.checks import check_number
from polyadic.data.windows import Windows

__all__ = ["synthetic", "synthetic_nights"]

_FS = 64.0
_BAND = (4.0, 20.0)
_NUISANCE_BANDS = ((0.4, 1.5), (26.0, 31.0))
_COMPONENTS_PER_CLASS = 2
_NUISANCES = 6
_SUBJECTS = 30
_SPREAD = 0.45
_GAIN = 0.25


def synthetic(
    n_windows: int = 1200,
    n_channels: int = 8,
    length: int = 256,
    n_classes: int = 4,
    nuisance: float = 0.8,
    noise: float = 0.5,
    random_state: int = 0,
) -> Windows:
    """Simulate signals with known classes.

    Each class has two components (4 to 20 Hz) that are strong in its windows and weak in others, of random phase and
    strength; the gain of each channel varies between subjects. Six nuisance components do not depend on the class: they
    lie below 1.5 Hz and above 26 Hz, where a bandpass filter attenuates them. With `nuisance=0`, augmentations do not
    help, and SALS, which fits only the original windows, does as well or better.

    Parameters
    ----------
    n_windows, n_channels, length, n_classes : sizes; windows have `length` samples at 64 Hz
    nuisance : amplitude of the nuisance components, relative to the class components
    noise : standard deviation of the white noise, in the same units
    random_state : random seed

    Examples
    --------
    >>> signals = synthetic(n_windows=10)
    >>> signals.shape, sorted(set(signals.label.tolist()))
    ((10, 8, 256), [0, 1, 2, 3])
    """
    for name, value, least in (
        *(("n_windows", n_windows, 1), ("n_channels", n_channels, 1), ("length", length, 2)),
        *(("n_classes", n_classes, 2), ("nuisance", nuisance, 0), ("noise", noise, 0)),
    ):
        check_number(name, value, least)
    rng = np.random.default_rng(random_state)
    y = rng.permutation(np.arange(n_windows) % n_classes)
    subject = rng.permutation(np.arange(n_windows) % _SUBJECTS)
    count = n_classes * _COMPONENTS_PER_CLASS
    own = np.repeat(np.arange(n_classes), _COMPONENTS_PER_CLASS)
    level = np.where(y[:, None] == own, 1.0, 0.35)
    strength = level * rng.lognormal(0.0, _SPREAD, (n_windows, count))
    X = _oscillations(rng, strength, rng.uniform(*_BAND, count), n_channels, length)
    bands = [_NUISANCE_BANDS[number % len(_NUISANCE_BANDS)] for number in range(_NUISANCES)]
    frequencies = np.array([rng.uniform(*band) for band in bands])
    irrelevant = nuisance * rng.lognormal(0.0, _SPREAD, (n_windows, _NUISANCES))
    X += _oscillations(rng, irrelevant, frequencies, n_channels, length)
    X += noise * rng.normal(size=X.shape)
    X *= rng.lognormal(0.0, _GAIN, (_SUBJECTS, n_channels, 1))[subject]
    return Windows(X.astype(np.float32), _FS, subject=subject, label=y, dataset="synthetic")


def _oscillations(
    rng: np.random.Generator,
    strength: NDArray[np.float64],
    frequency: NDArray[np.float64],
    n_channels: int,
    length: int,
) -> NDArray[np.float64]:
    """Sum components of given strengths (N, R) and frequencies (R,), with random phases: (N, channels, time)."""
    n_windows, count = strength.shape
    time = np.arange(length) / _FS
    pattern = rng.normal(size=(count, n_channels))
    pattern /= np.sqrt(np.mean(pattern**2, axis=1, keepdims=True))
    centre, width = rng.uniform(0.2, 0.8, (count, 1)), rng.uniform(0.2, 0.5, (count, 1))
    envelope = np.exp(-0.5 * ((time / time[-1] - centre) / width) ** 2)
    phase = rng.uniform(0, 2 * np.pi, (n_windows, count))
    X = np.zeros((n_windows, n_channels, length))
    for r in range(count):
        wave = envelope[r] * np.cos(2 * np.pi * frequency[r] * time + phase[:, r, None])
        X += pattern[r][None, :, None] * (strength[:, r, None] * wave)[:, None, :]
    return X


_NIGHT_FS, _EPOCH = 50.0, 10
_CHANNELS = ("F3", "F4", "C3", "C4", "O1", "O2", "EOG", "EMG")
_STAGES = ("wake", "light", "deep", "rem")
_STAY = (0.90, 0.90, 0.93, 0.93)
_NEXT = ((0, 0.9, 0, 0.1), (0.2, 0, 0.55, 0.25), (0.05, 0.95, 0, 0), (0.35, 0.65, 0, 0))
_RHYTHMS = (
    # Hz, its spread between subjects, share on each channel, and strength in wake, light, deep and rem, in microvolts
    (10.0, 0.06, (0.3, 0.3, 0.6, 0.6, 1.0, 1.0, 0.1, 0.0), (16, 5, 2, 5)),  # alpha
    (1.2, 0.15, (1.0, 1.0, 0.8, 0.8, 0.5, 0.5, 0.5, 0.0), (8, 16, 40, 10)),  # slow waves
    (13.0, 0.05, (0.5, 0.5, 1.0, 1.0, 0.3, 0.3, 0.0, 0.0), (2, 10, 5, 2)),  # spindles
    (6.0, 0.10, (0.7, 0.7, 1.0, 1.0, 0.6, 0.6, 0.1, 0.0), (5, 9, 5, 10)),  # theta
    (0.6, 0.30, (0.25, 0.25, 0.05, 0.05, 0.0, 0.0, 1.0, 0.0), (30, 8, 5, 32)),  # eyes
    (20.0, 0.20, (0.1, 0.1, 0.05, 0.05, 0.05, 0.05, 0.1, 1.0), (20, 9, 7, 4)),  # muscles
)
_BACKGROUND = 6.0


def synthetic_nights(n_subjects: int = 12, n_windows: int = 60, n_dead: int = 2, random_state: int = 0) -> Windows:
    """Simulate short nights of several subjects, to try the library with: stages that last, and electrodes that fail.

    Stages follow a Markov chain. Rhythms have a frequency, a topography and a strength of their own in every subject,
    over noise with a 1/f spectrum. In some subjects one electrode is dead for the second half of the night.

    Parameters
    ----------
    n_subjects, n_windows : number of subjects, and of windows of 10 s at 50 Hz of each
    n_dead : number of subjects with an electrode that fails
    random_state : random seed

    Examples
    --------
    >>> nights = synthetic_nights(4, 20)
    >>> nights.shape, nights.classes
    ((80, 8, 500), ('wake', 'light', 'deep', 'rem'))
    """
    rng = np.random.default_rng(random_state)
    stages = np.zeros((n_subjects, n_windows), np.intp)
    for night in stages:
        for window in range(n_windows):
            stage = night[window]
            moves = rng.random() > _STAY[stage]
            night[window + 1 : window + 2] = rng.choice(len(_STAGES), p=_NEXT[stage]) if moves else stage
    X = np.stack([_night(rng, night) for night in stages])
    for subject in range(min(n_dead, n_subjects)):
        X[subject, n_windows // 2 :, rng.integers(len(_CHANNELS) - 2)] = 0.0
    names = np.array([f"s{number + 1:02d}" for number in range(n_subjects)])
    return Windows(
        X.reshape(-1, *X.shape[2:]),
        _NIGHT_FS,
        channels=_CHANNELS,
        units=["uV"] * len(_CHANNELS),
        label=stages.ravel(),
        classes=_STAGES,
        subject=np.repeat(names, n_windows),
        recording=np.repeat(names, n_windows),
        start=np.tile(np.arange(n_windows) * int(_NIGHT_FS * _EPOCH), n_subjects),
    )


def _night(rng: np.random.Generator, stages: NDArray[np.intp]) -> NDArray[np.float32]:
    """Simulate the windows of one subject: (N, channels, time)."""
    count, channels, length = len(stages), len(_CHANNELS), int(_NIGHT_FS * _EPOCH)
    spectrum = np.fft.rfft(rng.normal(size=(count, channels, length)), axis=-1)
    noise = np.fft.irfft(spectrum / np.sqrt(np.maximum(np.arange(spectrum.shape[-1]), 1)), n=length, axis=-1)
    X = noise / noise.std() * (_BACKGROUND * rng.lognormal(0, 0.2, (channels, 1)))
    time = np.arange(length) / _NIGHT_FS
    for hertz, spread, topography, strengths in _RHYTHMS:
        pattern = np.array(topography) * rng.lognormal(0, 0.3, channels)
        strength = np.array(strengths)[stages] * rng.lognormal(0, 0.2) * rng.lognormal(0, 0.4, count)
        centre, width = rng.uniform(0, _EPOCH, (count, 1)), rng.uniform(1.5, 6, (count, 1))
        drift = 2 * np.pi * np.cumsum(rng.normal(0, 0.15 / np.sqrt(_NIGHT_FS), (count, length)), axis=1)
        phase = 2 * np.pi * hertz * rng.lognormal(0, spread) * time + drift + rng.uniform(0, 2 * np.pi, (count, 1))
        wave = strength[:, None] * np.exp(-0.5 * ((time - centre) / width) ** 2) * np.cos(phase)
        X += pattern[None, :, None] * wave[:, None, :]
    return np.asarray(X * rng.lognormal(0, 0.25), np.float32)
