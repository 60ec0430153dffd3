"""Match channels by name and by unit: return windows as a model was fitted to them."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Sequence
from typing import Any

from polyadic.data.reading import close_match
from polyadic.data.windows import Windows
from polyadic.errors import DataError, PolyadicError

_SAME_RATE = 1e-6
"""Relative tolerance for equal sampling rates."""

_PREFIXES = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6}
_QUANTITIES = {
    "V": ("voltage", 1.0),
    "A": ("current", 1.0),
    "T": ("magnetic field", 1.0),
    "m/s2": ("acceleration", 1.0),
    "g": ("acceleration", 9.80665),
    "rad/s": ("angular velocity", 1.0),
    "deg/s": ("angular velocity", math.pi / 180),
    "dps": ("angular velocity", math.pi / 180),
}
"""Quantity of each unit without prefix, and its size in the first unit of this quantity."""

_SIZES = {
    f"{prefix}{base}": (quantity, size * factor)
    for base, (quantity, size) in _QUANTITIES.items()
    for prefix, factor in _PREFIXES.items()
}
_OTHER_UNITS = (
    *("%", "bpm", "Hz", "S", "uS", "°C", "degC", "C", "mmHg", "Pa", "hPa", "kPa", "cmH2O", "L/min", "l/min", "m/s"),
    *("m", "cm", "mm", "N", "Nm", "rpm", "lux", "deg", "°", "rad", "gauss", "G", "Ohm", "kOhm", "dB"),
)
"""Units that are recognised in the names of table columns, but not converted."""

_MICRO = str.maketrans(dict.fromkeys("\N{MICRO SIGN}\N{GREEK SMALL LETTER MU}", "u"))


def numbered_channels(count: int) -> tuple[str, ...]:
    """Return the names that a store gives to unnamed channels: "channel 1", "channel 2", …"""
    return tuple(f"channel {number + 1}" for number in range(count))


def as_unit(text: str) -> str:
    """Return a unit with "u" for the micro sign, as the standards write it."""
    return text.strip().translate(_MICRO)


def conversion_factor(unit: str, target: str) -> float | None:
    """Return the factor that converts values from a unit to another; None if they measure different quantities.

    Units that differ only in their spelling are equal; the factor between other units is known for voltage, current,
    magnetic field, acceleration and angular velocity.

    Examples
    --------
    >>> conversion_factor("mV", "µV"), conversion_factor("g", "m/s²"), conversion_factor("uV", "g")
    (1000.0, 9.80665, None)
    """
    first, second = _spelled(unit), _spelled(target)
    if first == second:
        return 1.0
    if first not in _SIZES or second not in _SIZES or _SIZES[first][0] != _SIZES[second][0]:
        return None
    return float(f"{_SIZES[first][1] / _SIZES[second][1]:.12g}")  # 1000, not 999.9999999999999


def _spelled(unit: str) -> str:
    """Return a unit in one spelling: "m/s^2", "m/s²" and "m/s/s" are "m/s2"."""
    plain = re.sub(r"[\s^*]", "", as_unit(unit)).replace("²", "2")
    return plain.replace("m/s/s", "m/s2").replace("°/s", "deg/s")


def split_unit(head: str) -> tuple[str, str]:
    """Split the name of a table column into the name of a channel and its unit, "" if there is no known unit.

    Examples
    --------
    >>> split_unit("ax [m/s2]"), split_unit("EEG Fpz-Cz (µV)"), split_unit("EEG (left)")
    (('ax', 'm/s2'), ('EEG Fpz-Cz', 'uV'), ('EEG (left)', ''))
    """
    match = re.fullmatch(r"(.*\S)\s*[\[(]([^\])]+)[\])]", head)
    unit = as_unit(match[2]) if match else ""
    known = unit in _OTHER_UNITS or _spelled(unit) in _SIZES
    return (match[1], unit) if match and known else (head, "")


def in_units(windows: Windows, units: Sequence[str], name: str, owner: str) -> Windows:
    """Return windows with their channels in other units, one per channel; where a unit is unknown, nothing changes.

    Error messages say what has the windows (`name`), and what has the other units (`owner`).
    """
    factors = []
    channels, own = windows.channels or numbered_channels(len(units)), windows.units or ("",) * len(units)
    for channel, unit, target in zip(channels, own, units, strict=True):
        factor = conversion_factor(unit, target) if unit and target else 1.0
        if factor is None:
            raise DataError(
                f"{name} has channel {channel!r} in {unit}, but {owner} {target}, and these units cannot be converted"
            )
        factors.append(factor)
    return windows if all(factor == 1 for factor in factors) else windows.with_gains(factors, tuple(units))


def recorded_signals(X: Any) -> tuple[float | None, tuple[str, ...]]:
    """Return the sampling rate in Hz and the channel names of X; None and () for an array, which has neither."""
    windows = getattr(X, "windows", X)  # of a store
    return (windows.fs, windows.channels) if isinstance(windows, Windows) else (None, ())


def match_signals(
    X: Any, fs: float | None, channels: Sequence[str], name: str = "X", *, units: Sequence[str] = ()
) -> Any:
    """Return X with its channels in the order and in the units in which a model was fitted.

    Channels that X lacks are missing (NaN), which a warning says; other channels of X are left out. Sampling rates,
    channel names and units are compared only if both the model and X have them.

    Parameters
    ----------
    X : any input of an estimator; arrays have no channel names and are returned unchanged
    fs, channels, units : sampling rate in Hz, channel names and units of the fit; None and () if unknown
    name : name of X in error messages

    Raises
    ------
    PolyadicError : if X has another sampling rate, none of the channels, or units of another quantity

    Examples
    --------
    >>> import numpy as np
    >>> windows = Windows(np.arange(8).reshape(1, 2, 4), fs=50, channels=["Fz", "Cz"])
    >>> match_signals(windows, 50, ["Cz", "Fz"]).X[0, :, 0]
    array([4, 0])
    """
    windows, wanted = getattr(X, "windows", X), tuple(channels)  # of a store
    if not isinstance(windows, Windows):
        return X
    if fs is not None and windows.fs is not None and abs(fs - windows.fs) > _SAME_RATE * fs:
        raise PolyadicError(
            f"{name} was sampled at {windows.fs:g} Hz, but the model was fitted to {fs:g} Hz: resample the recordings"
        )
    unnamed = any(not known or known == numbered_channels(len(known)) for known in (windows.channels, wanted))
    if windows.channels != wanted and not unnamed:
        lacking = [channel for channel in wanted if channel not in windows.channels]
        if lacking:
            extra = [channel for channel in windows.channels if channel not in wanted]
            close = {channel: hint for channel in lacking if (hint := close_match(channel, extra))}
            hints = "".join(f"; for {channel!r}, {hint.removeprefix('; ')}" for channel, hint in close.items())
            lacks = f"{name} lacks {', '.join(map(repr, lacking))}, which the model was fitted to"
            if len(lacking) == len(wanted):
                raise PolyadicError(f"{lacks}; it has {', '.join(windows.channels)}{hints}")
            warnings.warn(f"{lacks}: missing in all windows{hints}", UserWarning, stacklevel=2)
        X = windows = windows.with_channels(wanted, missing=True)
    if len(windows.units) != len(units) or windows.units == tuple(units):
        return X
    converted = in_units(windows, units, name, "the model was fitted to")
    return X if converted is windows else converted


def unknown_units(X: Any, units: Sequence[str], name: str, owner: str = "the fit") -> str:
    """Return a note if units are known on one side only, of X or of its `owner`; "" if both or neither have them."""
    there, channels = tuple(X.units) or ("",) * len(units), X.channels or numbered_channels(len(units))
    known = [pair for pair in zip(channels, there, units, strict=False) if bool(pair[1]) != bool(pair[2])]
    here = [f"{channel} is taken to be in {target}, as in {owner}" for channel, unit, target in known if not unit]
    fits = [f"{channel} in {unit} is taken to be in the unit of {owner}" for channel, unit, _ in known if unit]
    return f"{name}: unknown units: {', '.join(here + fits)}" if known else ""
