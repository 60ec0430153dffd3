"""Matching of the components of two models, and the factor match score.

The order and the signs of CP components are arbitrary, so two fits are compared after the best one-to-one assignment
of components. The similarity of two columns is Tucker's congruence, their cosine; that of two components is the product
over the modes. The mean over the components is the factor match score.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyadic.core.solve import pair_components
from polyadic.errors import PolyadicError

__all__ = ["Match", "match"]

_Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Match:
    """Matched components of two models, in the order of the first model's components.

    Parameters
    ----------
    a, b : (n,), columns of the paired components in the bases of the two models, from 0 (the printed table counts from
        1); n is the smaller of the two ranks
    congruence : (modes, n), the cosine between the two columns of a pair in every mode, negative where signs differ
    aligned : the second model's bases, in the first model's order and with its signs: (I, n), (J, n), …
    """

    a: NDArray[np.intp]
    b: NDArray[np.intp]
    congruence: _Floats
    aligned: tuple[NDArray[Any], ...]

    @property
    def signs(self) -> _Floats:
        """(modes, n), 1 or -1: the factors that align the second model's columns with the first model's."""
        return np.where(self.congruence < 0, -1.0, 1.0)

    @property
    def feature_signs(self) -> _Floats:
        """(n,), 1 or -1: the factors that align the second model's features with `aligned`."""
        return np.asarray(self.signs.prod(axis=0))

    @property
    def similarity(self) -> _Floats:
        """(n,), from 0 to 1: the product of a pair's absolute congruences over the modes."""
        return np.asarray(np.abs(self.congruence).prod(axis=0))

    @property
    def score(self) -> float:
        """The factor match score, from 0 to 1: the mean of `similarity`."""
        return float(self.similarity.mean())

    def __repr__(self) -> str:
        heads = "".join(f"  mode {mode}" for mode in range(1, len(self.congruence) + 1))
        lines = [f"{len(self.a)} pair{'s' * (len(self.a) != 1)} of components, factor match score {self.score:.3f}"]
        lines.append(f"   a    b  similarity{heads}")
        for first, second, similarity, row in zip(self.a, self.b, self.similarity, self.congruence.T, strict=True):
            values = "".join(f"  {value:6.3f}" for value in row)
            lines.append(f"{first + 1:4d} {second + 1:4d}  {similarity:10.3f}{values}")
        return "\n".join(lines)


def match(model_a: Any, model_b: Any) -> Match:
    """Match the components of two models by maximum total similarity.

    Parameters
    ----------
    model_a, model_b : fitted models with tensors of the same shape, or lists of bases (I, R), (J, R), …; the ranks may
        differ

    Examples
    --------
    >>> A, B = np.eye(3)[:, :2], np.array([[1.0, 1.0], [0.0, 1.0]])
    >>> pairs = match([A, B], [-A[:, ::-1], B[:, ::-1]])
    >>> pairs.b
    array([1, 0])
    >>> pairs
    2 pairs of components, factor match score 1.000
       a    b  similarity  mode 1  mode 2
       1    2       1.000  -1.000   1.000
       2    1       1.000  -1.000   1.000
    """
    first, second = _bases("model_a", model_a), _bases("model_b", model_b)
    sizes = [len(factor) for factor in first], [len(factor) for factor in second]
    if sizes[0] != sizes[1]:
        raise PolyadicError(
            f"model_a and model_b must have bases of the same sizes, but have {sizes[0]} and {sizes[1]}"
        )
    a, b, congruence = pair_components(first, second)
    signs = np.where(congruence < 0, -1.0, 1.0)
    aligned = tuple(factor[:, b] * sign for factor, sign in zip(second, signs, strict=True))
    return Match(a, b, congruence, aligned)


def _bases(name: str, model: Any) -> list[_Floats]:
    """Return the bases of a model, or the given list of bases, validated."""
    given: Sequence[Any] | None = getattr(model, "factors_", model)
    if not isinstance(given, list | tuple) or not given:
        raise PolyadicError(f"{name} must be a fitted model or a list of bases, but is a {type(model).__name__}")
    bases = [np.asarray(factor, np.float64) for factor in given]
    shapes = [factor.shape for factor in bases]
    if any(len(shape) != 2 for shape in shapes) or len({shape[-1] for shape in shapes}) != 1:
        raise PolyadicError(f"{name} must have bases (I, R), (J, R), … of one rank R, but they have shapes {shapes}")
    return bases
