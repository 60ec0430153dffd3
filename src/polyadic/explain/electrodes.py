"""Positions of the electrodes of the 10-20 and 10-10 systems by name, seen from above.

On a sphere with Cz at the top, the outer ring (Fpz, T7, Oz, T8) is 72° away from it, and electrodes in between divide
the arcs from the midline to the ring into quarters. The projection is azimuthal equidistant: the angle from the top
becomes the distance, with the ears and the bridge of the nose on the unit circle.
"""

from __future__ import annotations

import re

import numpy as np

__all__ = ["Places", "position", "positions", "sites"]

_FEWEST = 4
# The left front quarter of the head, x to the left, by row and number; other electrodes are its mirror images.
_QUARTER: dict[str, dict[int, tuple[float, float]]] = {
    "N": {0: (0.0, 1.0)},
    "FP": {0: (0.0, 0.8), 1: (0.247, 0.761)},
    "AF": {0: (0.0, 0.6), 1: (0.113, 0.629), 3: (0.229, 0.648), 5: (0.349, 0.654), 7: (0.47, 0.647), 9: (0.588, 0.809)},
    "F": {0: (0.0, 0.4), 1: (0.156, 0.443), 3: (0.316, 0.471), 5: (0.48, 0.481), 7: (0.647, 0.47), 9: (0.809, 0.588)},
    "FC": {0: (0.0, 0.2), 1: (0.188, 0.232), 3: (0.377, 0.251), 5: (0.568, 0.258)},
    "FT": {7: (0.761, 0.247), 9: (0.951, 0.309)},
    "C": {0: (0.0, 0.0), 1: (0.2, 0.0), 3: (0.4, 0.0), 5: (0.6, 0.0)},
    "T": {7: (0.8, 0.0), 9: (1.0, 0.0)},
    "A": {1: (1.111, 0.0)},
    "M": {1: (1.073, -0.288)},
}
_FRONT_OF_REAR = {"CP": "FC", "TP": "FT", "P": "F", "PO": "AF", "O": "FP", "I": "N"}
_OLD_NAMES = {"T3": "T7", "T4": "T8", "T5": "P7", "T6": "P8"}
_REFERENCES = {"REF", "LE", "AVG", "AV", "AR", "A1", "A2", "M1", "M2", "A1A2", "M1M2"}

Places = dict[int, tuple[float, float]]


def position(name: str) -> tuple[float, float] | None:
    """Return the position of an electrode, with the nose up and the left ear left; None for an unknown name.

    A prefix "EEG " and a reference suffix ("-REF", "-M1") are ignored; a bipolar channel ("Fpz-Cz") is placed midway
    between its electrodes.

    Examples
    --------
    >>> position("Cz"), position("EEG T7-REF"), position("GSR")
    ((0.0, 0.0), (-0.8, 0.0), None)
    """
    places = [_electrode(word.upper()) for word in sites(name)]
    known = [place for place in places if place is not None]
    if len(places) > 2 or len(known) < len(places):
        return None
    x, y = np.mean(known, axis=0)
    return float(x) + 0.0, float(y) + 0.0


def positions(names: tuple[str, ...]) -> Places:
    """Return the positions of channels with known electrodes, by index; empty if too few for a map.

    Examples
    --------
    >>> positions(("Fz", "Cz", "Pz")), sorted(positions(("Fz", "Cz", "C3", "C4", "EMG")))
    ({}, [0, 1, 2, 3])
    """
    known = {number: place for number, name in enumerate(names) if (place := position(name)) is not None}
    return known if len(set(known.values())) >= _FEWEST else {}


def sites(name: str) -> list[str]:
    """Return the electrodes of a channel, without references; a lone reference counts as an electrode."""
    bare = re.sub(r"^EEG[\s_.:]*", "", name.strip(), flags=re.IGNORECASE)
    return [word for word in re.split(r"\s*[-/]\s*", bare) if word.upper() not in _REFERENCES] or [bare]


def _electrode(name: str) -> tuple[float, float] | None:
    parsed = re.fullmatch(r"([A-Z]+)(Z|10|[1-9])", _OLD_NAMES.get(name, name))
    if parsed is None:
        return None
    row, number = parsed[1], 0 if parsed[2] == "Z" else int(parsed[2])
    right = number > 0 and number % 2 == 0  # 4 is the mirror image of 3
    place = _QUARTER.get(_FRONT_OF_REAR.get(row, row), {}).get(number - right)
    if place is None:
        return None
    return place[0] * (1 if right else -1), place[1] * (-1 if row in _FRONT_OF_REAR else 1)
