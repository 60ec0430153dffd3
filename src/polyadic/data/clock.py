"""Start times of recordings in ISO 8601: date and time, only the time if the date is unknown, "" if both are."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta

__all__ = ["clock_start", "clock_time", "unix_time"]

_ANY_DAY = date(2000, 1, 1)
_EARLIEST, _LATEST = 5e8, 5e9
"""Range of Unix times, in seconds, that are accepted as dates: from 1985 to 2128."""


def clock_start(day: date | None, at: time, seconds: float = 0.0) -> str:
    """Return the start time of a recording in ISO 8601.

    Parameters
    ----------
    day : date, or None if it is unknown
    at : time of day
    seconds : seconds to add, for example a fraction that a header stores in another field

    Examples
    --------
    >>> clock_start(date(2024, 5, 1), time(22, 30)), clock_start(None, time(22, 30), 0.5)
    ('2024-05-01T22:30:00.000', '22:30:00.500')
    """
    moment = datetime.combine(day or _ANY_DAY, at)
    return clock_time(moment.isoformat() if day is not None else at.isoformat(), seconds)


def unix_time(seconds: float) -> str:
    """Return the date and time of a Unix time in UTC, or "" if the date is implausible.

    Examples
    --------
    >>> unix_time(1714557600.0), unix_time(3.5)
    ('2024-05-01T10:00:00.000+00:00', '')
    """
    if not _EARLIEST <= seconds < _LATEST:
        return ""
    return clock_time("1970-01-01T00:00:00+00:00", seconds)


def clock_time(start: str, seconds: float) -> str:
    """Return the time `seconds` after `start`, to the millisecond, or "" if `start` is unknown or invalid.

    Examples
    --------
    >>> clock_time("2024-05-01T23:59:50.000", 30), clock_time("23:59:50", 30), clock_time("", 30)
    ('2024-05-02T00:00:20.000', '00:00:20.000', '')
    """
    if not start:
        return ""
    alone = "T" not in start
    try:
        moment = datetime.combine(_ANY_DAY, time.fromisoformat(start)) if alone else datetime.fromisoformat(start)
        moment += timedelta(seconds=seconds, microseconds=500)  # isoformat truncates, so this rounds
    except (ValueError, OverflowError):  # values from a damaged file
        return ""
    return (moment.timetz() if alone else moment).isoformat(timespec="milliseconds")
