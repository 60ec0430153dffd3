"""Positions of electrodes of the 10-20 and 10-10 systems by name, seen from above.

On a sphere with Cz at the top, the outer ring (Fpz, T7, Oz, T8) is 72° away from it, and electrodes in between divide
the arcs from the midline to the ring into quarters. The projection is azimuthal equidistant: the angle from the top
becomes the distance, with the ears and the bridge of the nose on the unit circle.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

__all__ = ["position", "positions", "site"]

_RING = 72.0
_LOW_RING = 90.0
_EAR = 100.0
_FEWEST = 4

# For each row of electrodes: degrees from Cz to the midline electrode (front positive), and from the nose to the
# electrode on the ring.
_ROWS = {
    "FP": (72.0, 18.0),
    "AF": (54.0, 36.0),
    "F": (36.0, 54.0),
    "FC": (18.0, 72.0),
    "FT": (18.0, 72.0),
    "C": (0.0, 90.0),
    "T": (0.0, 90.0),
    "CP": (-18.0, 108.0),
    "TP": (-18.0, 108.0),
    "P": (-36.0, 126.0),
    "PO": (-54.0, 144.0),
    "O": (-72.0, 162.0),
}
_FURTHER = {"NZ": (90.0, 0.0), "IZ": (90.0, 180.0), "A1": (_EAR, -90.0), "A2": (_EAR, 90.0)}
_FURTHER |= {"M1": (_EAR, -105.0), "M2": (_EAR, 105.0)}
_OLD_NAMES = {"T3": "T7", "T4": "T8", "T5": "P7", "T6": "P8"}
# The frontmost and rearmost rows have one electrode on each side of the midline, on the ring; rows at the sides of
# the head have other names.
_NUMBERS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("FP", "O"), (0, 1)),
    **dict.fromkeys(("T", "FT", "TP"), (7, 9)),
    **dict.fromkeys(("C", "FC", "CP"), (0, 1, 3, 5)),
}
_STEPS = {1: 0.25, 3: 0.5, 5: 0.75, 7: 1.0}
_REFERENCES = {"REF", "LE", "AVG", "AV", "AR", "A1", "A2", "M1", "M2", "A1A2", "M1M2"}

_Point = tuple[float, float]


def position(name: str) -> _Point | None:
    """Return the position of an electrode, with the nose up and the left ear left; None for an unknown name.

    A prefix "EEG " and a reference suffix ("-REF", "-M1") are ignored; a bipolar channel ("Fpz-Cz") is placed midway
    between its electrodes.

    Examples
    --------
    >>> position("Cz"), position("EEG T7-REF"), position("GSR")
    ((0.0, 0.0), (-0.8, 0.0), None)
    """
    places = [_electrode(word.upper()) for word in _sites(name)]
    if len(places) > 2 or any(place is None for place in places):
        return None
    x, y = np.mean([place for place in places if place is not None], axis=0)
    return round(float(x), 6) + 0.0, round(float(y), 6) + 0.0


def site(name: str) -> str:
    """Return the short name of a channel for maps: without the prefix "EEG " and the reference.

    Examples
    --------
    >>> site("EEG Fp1-REF"), site("EEG Fpz-Cz"), site("A1")
    ('Fp1', 'Fpz-Cz', 'A1')
    """
    return "-".join(_sites(name))


def _sites(name: str) -> list[str]:
    """Return the electrodes of a channel, without references; a lone reference counts as an electrode."""
    bare = re.sub(r"^EEG[\s_.:]*", "", name.strip(), flags=re.IGNORECASE)
    return [word for word in re.split(r"\s*[-/]\s*", bare) if word.upper() not in _REFERENCES] or [bare]


def _electrode(name: str) -> _Point | None:
    name = _OLD_NAMES.get(name, name)
    if name in _FURTHER:
        angle, azimuth = _FURTHER[name]
        return _seen_from_above(_direction(angle, azimuth))
    found = re.fullmatch(r"([A-Z]+?)(Z|10|[1-9])", name)
    if found is None or found[1] not in _ROWS:
        return None
    row, number = found[1], 0 if found[2] == "Z" else int(found[2])
    midline, azimuth = _ROWS[row]
    middle = _direction(midline, 0.0)
    left = number % 2 == 1
    step = number if left or number == 0 else number - 1
    side = -azimuth if left else azimuth
    if step not in _NUMBERS.get(row, (0, 1, 3, 5, 7, 9)):
        return None
    if step == 0:
        return _seen_from_above(middle)
    if step == 9:
        return _seen_from_above(_direction(_LOW_RING, side))
    share = 1.0 if row in ("FP", "O") else _STEPS[step]
    return _seen_from_above(_between(middle, _direction(_RING, side), share))


def _direction(angle: float, azimuth: float) -> NDArray[np.float64]:
    """Return the unit vector at an angle from the top and an azimuth from the nose to the right, in degrees."""
    a, b = np.radians([angle, azimuth])
    return np.array([np.sin(a) * np.sin(b), np.sin(a) * np.cos(b), np.cos(a)])


def _between(first: NDArray[np.float64], second: NDArray[np.float64], share: float) -> NDArray[np.float64]:
    """Return a point on the great circle from one direction to another."""
    angle = np.arccos(np.clip(first @ second, -1.0, 1.0))
    point: NDArray[np.float64] = (np.sin((1 - share) * angle) * first + np.sin(share * angle) * second) / np.sin(angle)
    return point


def _seen_from_above(direction: NDArray[np.float64]) -> _Point:
    x, y, z = direction
    across = float(np.hypot(x, y))
    if across < 1e-12:
        return 0.0, 0.0
    radius = float(np.degrees(np.arccos(np.clip(z, -1.0, 1.0)))) / 90.0
    return radius * float(x) / across, radius * float(y) / across


def positions(names: tuple[str, ...]) -> dict[int, _Point]:
    """Return the positions of channels with known electrodes, by index; empty if too few for a map.

    Examples
    --------
    >>> positions(("Fz", "Cz", "Pz")), sorted(positions(("Fz", "Cz", "C3", "C4", "EMG")))
    ({}, [0, 1, 2, 3])
    """
    known = {number: place for number, name in enumerate(names) if (place := position(name)) is not None}
    return known if len(set(known.values())) >= _FEWEST else {}
