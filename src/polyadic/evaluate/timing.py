"""The one definition of seconds per sweep (or epoch), by the rule of appendix D.7."""

from __future__ import annotations

from collections.abc import Sequence

from polyadic.errors import PolyadicError

__all__ = ["seconds_per_sweep"]

_UNSTABLE, _RECORDED = 3, 8


def seconds_per_sweep(seconds: Sequence[float]) -> float:
    """Return the mean of sweeps 4 to 8: the paper records eight and drops the first three, which might be unstable.

    For a fit that stopped earlier it is the mean of all sweeps after the first, which also pays for memory and caches,
    and for a fit of one sweep that one.

    Parameters
    ----------
    seconds : how long each sweep (or epoch) took, in order, as `history_["seconds"]`

    Examples
    --------
    >>> seconds_per_sweep([9, 8, 7, 1, 1, 1, 1, 2, 50])
    1.2
    >>> seconds_per_sweep([9, 1, 2])
    1.5
    """
    if not len(seconds):
        raise PolyadicError("seconds must have at least one sweep, but is empty")
    chosen = seconds[_UNSTABLE:_RECORDED] if len(seconds) >= _RECORDED else seconds[1:] if len(seconds) > 1 else seconds
    return float(sum(chosen) / len(chosen))
