"""Channels by name: windows with the same channels in another order are put into the order that a model learned."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from polyadic.data.store import WindowStore
from polyadic.data.windows import Windows
from polyadic.errors import PolyadicError

__all__ = ["match_signals", "numbered_channels", "recorded_signals"]

_SAME_RATE = 1e-6


def numbered_channels(count: int) -> tuple[str, ...]:
    """The names that a store gives to channels which have none.

    Examples
    --------
    >>> numbered_channels(2)
    ('channel 1', 'channel 2')
    """
    return tuple(f"channel {number + 1}" for number in range(count))


def recorded_signals(X: Any) -> tuple[float | None, tuple[str, ...]]:
    """The sampling rate in Hz and the channel names of X; None and () where X does not say, as an array.

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
    """X with its channels in the order a model was fitted to; checked where both the model and X know rate and names.

    Parameters
    ----------
    X : anything that an estimator takes; arrays have no names and pass as they are
    fs, channels : sampling rate in Hz and channel names that the model learned from; None and () if it does not know
    name : what X is called in messages

    Raises
    ------
    PolyadicError : if X was sampled at another rate, or has other channels

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
    """A sentence that says which channels of the model are absent, or which are too many."""
    missing = [channel for channel in wanted if channel not in names]
    if not missing:
        return (
            f"{name} has {len(names)} channels ({', '.join(names)}), but the model was fitted to {len(wanted)}: choose "
            f"{', '.join(wanted)} by with_channels, or by --channel where the recordings are read"
        )
    extra = [channel for channel in names if channel not in wanted]
    close = {channel: guess for channel in missing if (guess := _close_name(channel, extra))}
    hint = "".join(f"; for {channel!r}, did you mean {guess!r}?" for channel, guess in close.items())
    listed = " and ".join(filter(None, [", ".join(map(repr, missing[:-1])), repr(missing[-1])]))
    return f"{name} lacks {listed}, to which the model was fitted; it has {', '.join(names)}{hint}"


def _close_name(channel: str, names: Sequence[str]) -> str | None:
    """The name that most likely means the same channel."""
    folded = {name.casefold(): name for name in names}
    found = difflib.get_close_matches(channel.casefold(), list(folded), 1)
    return folded[found[0]] if found else None
