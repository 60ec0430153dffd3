"""Replicability of the components of a model, as stored in the model and its file.

`polyadic.explain.replicability` computes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyadic.errors import ModelFileError, PolyadicError

__all__ = ["Replicability"]

_THRESHOLD = 0.9  # a common criterion for "same component" (Lorenzo-Seva and ten Berge, 2006: 0.95 and more for a mode)


@dataclass(frozen=True, eq=False)
class Replicability:
    """Which components of a model replicate when it is refitted to other subjects.

    Parameters
    ----------
    match : (R,), median over the refits of the factor match of each component, from 0 to 1
    returned : (R,), fraction of refits in which a component is found with a match of at least `threshold`
    refits : number of refits
    threshold : minimum match for a component to count as found
    halves : True for refits on halves of the subjects, False for halves of the windows

    Examples
    --------
    >>> found = Replicability(np.array([0.98, 0.6]), np.array([1.0, 0.25]), refits=4)
    >>> found.replicates
    array([ True, False])
    >>> found
    Replicability: 1 of 2 components replicate in 4 refits on halves of the subjects, mean match 0.79
    """

    match: NDArray[np.float64]
    returned: NDArray[np.float64]
    refits: int
    threshold: float = _THRESHOLD
    halves: bool = True

    def __post_init__(self) -> None:
        for name in ("match", "returned"):
            values = np.array(getattr(self, name), dtype=np.float64)
            if values.ndim != 1 or not len(values) or not bool(((values >= 0) & (values <= 1)).all()):
                raise PolyadicError(f"{name} must be one number from 0 to 1 for each component, but is {values!r}")
            values.setflags(write=False)
            object.__setattr__(self, name, values)
        if len(self.match) != len(self.returned) or self.refits < 1 or not 0 < self.threshold <= 1:
            raise PolyadicError(
                "match and returned must have equal length, refits must be at least 1 and threshold between 0 and 1, "
                f"but they are {len(self.match)}, {len(self.returned)}, {self.refits} and {self.threshold}"
            )

    @property
    def replicates(self) -> NDArray[np.bool_]:
        """Whether each component was found in at least half of the refits: (R,)."""
        replicates: NDArray[np.bool_] = self.returned >= 0.5
        return replicates

    @property
    def share(self) -> float:
        """Fraction of components that were found, over all components and refits."""
        return float(self.returned.mean())

    @property
    def score(self) -> float:
        """The mean of `match` over the components."""
        return float(self.match.mean())

    def __repr__(self) -> str:
        count, rank, of = int(self.replicates.sum()), len(self.match), "subjects" if self.halves else "windows"
        return (
            f"Replicability: {count} of {rank} component{'s' * (rank != 1)} replicate{'s' * (count == 1 == rank)} in "
            f"{self.refits} refit{'s' * (self.refits != 1)} on halves of the {of}, mean match {self.score:.2f}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Convert to a dictionary for JSON."""
        return {
            "match": self.match.tolist(),
            "returned": self.returned.tolist(),
            "refits": int(self.refits),
            "threshold": float(self.threshold),
            "halves": bool(self.halves),
        }

    @classmethod
    def from_dict(cls, values: Any, rank: int) -> Replicability:
        """Build from the output of `to_dict` for a model of this rank; raise ModelFileError if it is invalid."""
        names = ("match", "returned", "refits", "threshold", "halves")
        if not isinstance(values, dict) or set(values) != set(names):
            raise ModelFileError(f"the file's replicability must be null or have {', '.join(names)}, but is {values!r}")
        try:
            found = cls(**{**values, "refits": int(values["refits"]), "threshold": float(values["threshold"])})
        except (TypeError, ValueError, OverflowError) as error:
            raise ModelFileError(f"the file's replicability is damaged: {error}") from error
        if len(found.match) != rank:
            raise ModelFileError(f"the file's replicability is of {len(found.match)} components, but rank is {rank}")
        return found
