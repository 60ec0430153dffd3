"""Simulate multichannel signals with known classes, by the data model of the paper (section 2.1, Eqn. classdist1).

A window is a sum of rank-one components, each a channel pattern times an oscillation times an envelope in time, with
coefficients that depend on the class; of nuisance components that do not depend on the class and that augmentations
such as a bandpass filter perturb; and of noise. The default strengths were chosen so that augmented views help: the
signals illustrate the method, but are not evidence for it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from polyadic.data.windows import Windows
from polyadic.errors import PolyadicError

__all__ = ["synthetic"]

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

    Each class has two components (4 to 20 Hz) that are strong in its windows and weak in the windows of other classes.
    Their phase and strength are random in each window, and the gain of each channel varies between subjects. Six
    nuisance components of random strength do not depend on the class. They lie below 1.5 Hz and above 26 Hz, where a
    bandpass filter attenuates them. With a large `nuisance`, bases fitted to filtered views capture less of them. With
    `nuisance=0`, augmentations do not help, and SALS, which fits only the original windows, does as well or better.

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
    for name, value, least in (("n_windows", n_windows, 1), ("n_channels", n_channels, 1), ("length", length, 2)):
        if value < least:
            raise PolyadicError(f"{name} must be at least {least}, but is {value}")
    if n_classes < 2 or nuisance < 0 or noise < 0:
        raise PolyadicError(
            f"n_classes must be at least 2, nuisance and noise at least 0, but got {n_classes}, {nuisance}, {noise}"
        )
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
