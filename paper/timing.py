"""Seconds per sweep (or epoch), as defined in appendix D.7 of the paper."""

from __future__ import annotations

from collections.abc import Sequence

from polyadic.errors import PolyadicError

_UNSTABLE, _RECORDED = 3, 8


def seconds_per_sweep(seconds: Sequence[float]) -> float:
    """Return the mean duration of sweeps 4 to 8: the paper records eight and drops the first three as unstable.

    For a shorter fit, it is the mean over all sweeps but the first, which includes allocation and cold caches. For a
    fit of one sweep, it is the duration of that sweep.

    Parameters
    ----------
    seconds : the duration of each sweep (or epoch), in order, as in `history_["seconds"]`

    Examples
    --------
    >>> seconds_per_sweep([9, 8, 7, 1, 1, 1, 1, 2, 50])
    1.2
    >>> seconds_per_sweep([9, 1, 2])
    1.5
    """
    if not len(seconds):
        raise PolyadicError("seconds must have at least one entry, but is empty")
    chosen = seconds[_UNSTABLE:_RECORDED] if len(seconds) >= _RECORDED else seconds[1:] if len(seconds) > 1 else seconds
    return float(sum(chosen) / len(chosen))
