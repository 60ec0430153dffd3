"""The methods with the settings of a command: those of a preset, or what suits the windows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from polyadic import ATD, GRSALS, SALS
from polyadic.augment import Augmentation, Bandpass, Compose, Jitter
from polyadic.data import Windows
from polyadic.errors import PolyadicError
from polyadic.presets import preset as paper_preset
from polyadic.spectral import STFT

__all__ = ["configured", "methods"]

_BUILT_IN_RANK = 8
_BUILT_IN_SWEEPS = 15
_BUILT_IN_FRAMES = STFT(n_fft=64, hop=16, window="hann", parts="amplitude")
_BUILT_IN_BANDS = [(2.0, 24.0), (4.0, 20.0)]
_LONGEST_FRAME = 256


def configured(
    windows: Windows,
    *,
    preset: str | None = None,
    defaults: bool = False,
    n_fft: int | None = None,
    hop: int | None = None,
    **parameters: Any,
) -> dict[str, ATD | SALS | GRSALS]:
    """The four tensor methods, unfitted, by their names in the paper.

    Parameters
    ----------
    windows : what they will be fitted to
    preset : name of the paper's settings for a dataset
    defaults : with a preset, take only its frames and augmentations, and the library's settings for the rest
    n_fft, hop : frames other than those
    parameters : arguments of `ATD` other than those; None for none
    """
    if defaults and preset is None:
        raise PolyadicError("--defaults goes with --preset; without a preset the library's settings are used anyway")
    tensorize, augment, chosen = _settings(windows, preset, defaults)
    if n_fft is not None or hop is not None:
        tensorize = replace(tensorize, n_fft=n_fft or tensorize.n_fft, hop=hop or tensorize.hop)
    given = {name: value for name, value in parameters.items() if value is not None}
    return methods(tensorize, augment, {**chosen, **given})


def _settings(windows: Windows, preset: str | None, defaults: bool) -> tuple[STFT, Augmentation, dict[str, Any]]:
    """Frames, augmentations and other settings."""
    if preset is not None:
        paper = paper_preset(preset, windows.fs)
        if defaults:
            return STFT(paper.tensorize.n_fft, paper.tensorize.hop), paper.augment, {}
        return paper.tensorize, paper.augment, dict(paper.parameters)
    if windows.dataset == "synthetic":
        views = Compose([Jitter(0.05), Bandpass(_BUILT_IN_BANDS, windows.fs or 64.0)])
        return _BUILT_IN_FRAMES, views, {"rank": _BUILT_IN_RANK, "max_sweeps": _BUILT_IN_SWEEPS}
    return _frames(windows.shape), _views(windows.fs), {}


def _frames(shape: tuple[int, ...]) -> STFT:
    """Frames of a quarter of the window or 256 samples, a power of two, that overlap by three quarters."""
    if len(shape) != 3:
        raise PolyadicError(f"X must have three dimensions (windows, channels, time), but has shape {shape}")
    n_fft = max(2, min(_LONGEST_FRAME, 1 << max(shape[2] // 4, 2).bit_length() - 1))
    return STFT(n_fft=n_fft, hop=max(1, n_fft // 4))


def _views(fs: float | None) -> Augmentation:
    """Jitter and, where the sampling rate is known, a filter for the lower or the upper half of the spectrum."""
    if fs is None:
        return Jitter(0.05)
    return Compose([Jitter(0.05), Bandpass([(0.01 * fs, 0.3 * fs), (0.1 * fs, 0.49 * fs)], fs)])


def methods(tensorize: STFT, augment: Augmentation, parameters: Mapping[str, Any]) -> dict[str, ATD | SALS | GRSALS]:
    """The four tensor methods with the same settings, by their names in the paper.

    Parameters
    ----------
    tensorize, augment : as for `ATD`
    parameters : further arguments of `ATD`; SALS and GR-SALS take those they know
    """
    own = {"augment", "beta", "gamma", "rounds"}
    shared = {"tensorize": tensorize, **{key: value for key, value in parameters.items() if key not in own}}
    full = {**parameters, "tensorize": tensorize, "augment": augment}
    return {
        "ATD": ATD(**full),
        "ATD_ss-": ATD(**{**full, "beta": 0.0}),
        "GR-SALS": GRSALS(**shared),
        "SALS": SALS(**shared),
    }
