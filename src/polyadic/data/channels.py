"""Match channels by name: reorder the channels of windows to the order in which a model was fitted."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from polyadic.data.store import WindowStore
from polyadic.data.windows import Windows
from polyadic.errors import PolyadicError

__all__ = ["match_signals", "numbered_channels", "recorded_signals"]

_SAME_RATE = 1e-6
"""Relative tolerance for equal sampling rates."""


def numbered_channels(count: int) -> tuple[str, ...]:
    """Return the names that a store gives to unnamed channels.

    Examples
    --------
    >>> numbered_channels(2)
    ('channel 1', 'channel 2')
    """
    return tuple(f"channel {number + 1}" for number in range(count))


def recorded_signals(X: Any) -> tuple[float | None, tuple[str, ...]]:
    """Return the sampling rate in Hz and the channel names of X, or None and () if X does not have them, like an array.

    Examples
    --------
    >>> import numpy as np
    >>> recorded_signals(Windows(np.zeros((2, 2, 8)), fs=50, channels=["Fz", "Cz"]))
    (50.0, ('Fz', 'Cz'))
    """
    if not isinstance(X, Windows | WindowStore):
        return None, ()
    return X.fs, tuple(X.channels)


def match_signals(X: Any, fs: float | None, channels: Sequence[str], name: str = "X") -> Any:
    """Return X with its channels in the order in which a model was fitted.

    Sampling rates and channel names are compared only if both the model and X have them.

    Parameters
    ----------
    X : any input of an estimator; arrays have no channel names and are returned unchanged
    fs, channels : sampling rate in Hz and channel names that the model was fitted to; None and () if unknown
    name : name of X in error messages

    Raises
    ------
    PolyadicError : if X has another sampling rate or other channels

    Examples
    --------
    >>> import numpy as np
    >>> windows = Windows(np.arange(8).reshape(1, 2, 4), fs=50, channels=["Fz", "Cz"])
    >>> match_signals(windows, 50, ["Cz", "Fz"]).X[0, :, 0]
    array([4, 0])
    """
    rate, names = recorded_signals(X)
    if fs is not None and rate is not None and abs(fs - rate) > _SAME_RATE * fs:
        raise PolyadicError(
            f"{name} was sampled at {rate:g} Hz, but the model was fitted to {fs:g} Hz: resample the recordings"
        )
    wanted = tuple(channels)
    if names == wanted or any(not known or known == numbered_channels(len(known)) for known in (names, wanted)):
        return X
    if set(names) != set(wanted):
        raise PolyadicError(_difference(name, names, wanted))
    windows = X if isinstance(X, Windows) else X.windows
    return windows.with_channels(wanted)


def _difference(name: str, names: tuple[str, ...], wanted: tuple[str, ...]) -> str:
    """Return an error message that names the missing channels, or the channels to select if X has too many."""
    missing = [channel for channel in wanted if channel not in names]
    if not missing:
        return (
            f"{name} has {len(names)} channels ({', '.join(names)}), but the model was fitted to {len(wanted)}: select "
            f"{', '.join(wanted)} using with_channels, or using --channel when the recordings are read"
        )
    extra = [channel for channel in names if channel not in wanted]
    close = {channel: guess for channel in missing if (guess := _close_name(channel, extra))}
    hint = "".join(f"; for {channel!r}, did you mean {guess!r}?" for channel, guess in close.items())
    listed = " and ".join(filter(None, [", ".join(map(repr, missing[:-1])), repr(missing[-1])]))
    return f"{name} lacks {listed}, which the model was fitted to; it has {', '.join(names)}{hint}"


def _close_name(channel: str, names: Sequence[str]) -> str | None:
    """Return the name that most likely refers to the same channel, or None if no name is similar."""
    folded = {name.casefold(): name for name in names}
    found = difflib.get_close_matches(channel.casefold(), list(folded), 1)
    return folded[found[0]] if found else None
