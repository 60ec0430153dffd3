"""Matching of the components of two models, and split-half replicability.

The order and the signs of CP components are arbitrary, so two fits are compared after the best one-to-one assignment
of components. The similarity of two columns is Tucker's congruence, their cosine; that of two components is the product
over the modes. The mean over the components is the factor match score.

A component that reflects the data is found in either half of the subjects, from any initial values; one that fits noise
or a single subject is not.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import check_is_fitted

from polyadic._util.checks import check_integer
from polyadic._util.random_streams import integer_seed
from polyadic.core.solve import pair_components
from polyadic.data.batches import Samples
from polyadic.data.labels import known_labels
from polyadic.data.splits import group_folds
from polyadic.errors import ModelFileError, PolyadicError
from polyadic.scale.moments import Moments

__all__ = ["SAME", "Match", "Replicability", "match", "replicability", "subjects_of"]

SAME = 0.9
"""Minimum match of the same component, a common criterion (Lorenzo-Seva and ten Berge, 2006)."""

_Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Match:
    """Matched components of two models, in the order of the first model's components."""

    a: NDArray[np.intp]  # (n,), columns in the bases of the first model, from 0 (the printed table counts from 1)
    b: NDArray[np.intp]  # (n,), columns in the bases of the second model
    congruence: _Floats  # (modes, n), the cosine between two columns in every mode, negative where signs differ
    aligned: tuple[NDArray[Any], ...]  # the second model's bases, in the first model's order and with its signs

    @property
    def feature_signs(self) -> _Floats:
        """(n,), 1 or -1: the factors that align the second model's features with `aligned`."""
        return np.asarray(np.where(self.congruence < 0, -1.0, 1.0).prod(axis=0))

    @property
    def similarity(self) -> _Floats:
        """(n,), from 0 to 1: the product of a pair's absolute congruences over the modes."""
        return np.asarray(np.abs(self.congruence).prod(axis=0))

    @property
    def score(self) -> float:
        """The factor match score, from 0 to 1: the mean of `similarity`."""
        return float(self.similarity.mean())

    def __repr__(self) -> str:
        import pandas as pd  # slow to import, and not needed to load a model

        modes = {f"mode {number}": cosines for number, cosines in enumerate(self.congruence, start=1)}
        table = pd.DataFrame({"a": self.a + 1, "b": self.b + 1, "similarity": self.similarity, **modes})
        return f"factor match score {self.score:.3f}\n{table.to_string(index=False, float_format='%.3f')}"


def match(model_a: Any, model_b: Any) -> Match:
    """Match the components of two models, or of lists of bases (I, R), (J, R), …, by maximum total similarity.

    The ranks may differ.

    Examples
    --------
    >>> A, B = np.eye(3)[:, :2], np.array([[1.0, 1.0], [0.0, 1.0]])
    >>> pairs = match([A, B], [-A[:, ::-1], B[:, ::-1]])
    >>> pairs.b
    array([1, 0])
    >>> pairs
    factor match score 1.000
     a  b  similarity  mode 1  mode 2
     1  2       1.000  -1.000   1.000
     2  1       1.000  -1.000   1.000
    """
    given = [getattr(model, "factors_", model) for model in (model_a, model_b)]
    if not all(isinstance(bases, list | tuple) for bases in given):
        kinds = " and ".join(type(bases).__name__ for bases in given)
        raise PolyadicError(f"match takes fitted models or lists of bases, but got {kinds}")
    first, second = ([np.asarray(factor, np.float64) for factor in bases] for bases in given)
    sizes = [[len(factor) for factor in bases] for bases in (first, second)]
    if sizes[0] != sizes[1]:
        raise PolyadicError(f"both models must have bases of the same sizes, but have {sizes[0]} and {sizes[1]}")
    a, b, congruence = pair_components(first, second)
    signs = np.where(congruence < 0, -1.0, 1.0)
    aligned = tuple(factor[:, b] * sign for factor, sign in zip(second, signs, strict=True))
    return Match(a, b, congruence, aligned)


@dataclass(frozen=True, eq=False)
class Replicability:
    """Which components of a model replicate when it is refitted to other subjects.

    Examples
    --------
    >>> result = Replicability(np.array([0.98, 0.6]), np.array([1.0, 0.25]), refits=4)
    >>> result.replicates
    array([ True, False])
    >>> result
    Replicability: 1 of 2 components replicate in 4 refits on halves of the subjects, mean match 0.79
    """

    match: _Floats  # (R,), median over the refits of the factor match of each component, from 0 to 1
    returned: _Floats  # (R,), fraction of refits in which a component is found with a match of at least 0.9
    refits: int

    @property
    def replicates(self) -> NDArray[np.bool_]:
        """Whether each component was found in at least half of the refits: (R,)."""
        return np.asarray(self.returned) >= 0.5

    @property
    def score(self) -> float:
        """The mean of `match` over the components."""
        return float(self.match.mean())

    def __repr__(self) -> str:
        return (
            f"Replicability: {int(self.replicates.sum())} of {len(self.match)} components replicate in {self.refits} "
            f"refits on halves of the subjects, mean match {self.score:.2f}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Convert to a dictionary for JSON."""
        return {**vars(self), "match": self.match.tolist(), "returned": self.returned.tolist()}

    @classmethod
    def from_dict(cls, values: Any, rank: int) -> Replicability:
        """Build from the output of `to_dict` for a model of this rank; raise ModelFileError if it is invalid."""
        columns = np.array([values["match"], values["returned"]], np.float64)
        if columns.shape != (2, rank) or not ((columns >= 0) & (columns <= 1)).all():
            raise ModelFileError(f"the file's replicability does not fit rank {rank}: {values!r}")
        return cls(columns[0], columns[1], int(values["refits"]))


def replicability(
    model: Any, X: Any, groups: ArrayLike | None = None, refits: int = 10, random_state: int = 0
) -> Replicability:
    """Check which components of a model are found again in refits to halves of the subjects, each with another seed.

    Subjects are split at random into two halves with about the same number of windows, and a model with the same
    settings is fitted to each half; this is repeated with other splits. To store the result with the model, set
    `model.replicability_`.

    Parameters
    ----------
    model : a fitted `CPD`, `ATD`, `SALS` or `GRSALS`
    X : the windows it was fitted to; anything that `fit` takes, or moments of groups of subjects
    groups : (N,), the subject of each window, by default those of X; windows of unknown ones are left out
    refits : number of refits, two for each split of the subjects
    random_state : seed of the splits and of the initial values

    Examples
    --------
    >>> from polyadic import CPD
    >>> random = np.random.default_rng(0)
    >>> x, A, B = random.normal(size=(80, 2)), random.normal(size=(6, 2)), random.normal(size=(7, 2))
    >>> X = np.einsum("nr,ir,jr->nij", x, A, B)
    >>> model = CPD(rank=2, tensorize=None).fit(X)
    >>> replicability(model, X, groups=np.repeat(np.arange(8), 10), refits=4)
    Replicability: 2 of 2 components replicate in 4 refits on halves of the subjects, mean match 1.00
    """
    check_is_fitted(model)
    check_integer("refits", refits, 1)
    groups = X.groups if isinstance(X, Moments) else groups
    count = len(X.groups if isinstance(X, Moments) else Samples(X))
    known, members = known_labels(subjects_of(X, groups), count, "groups")
    rows, parts = np.flatnonzero(known), []
    for number in range(refits):  # both halves of a split, one split after the other
        fold = group_folds(np.zeros(len(members)), members, 2, seed=(random_state, number // 2))
        parts.append(np.isin(np.arange(count), rows[fold == number % 2]))
    seeds = [integer_seed(random_state, 1 + number) % 2**31 for number in range(refits)]
    similarity = np.zeros((refits, model.factors_[0].shape[1]))
    with warnings.catch_warnings():
        # Warnings about these fits would not help: only their components are used.
        warnings.simplefilter("ignore", ConvergenceWarning)
        if getattr(model, "_collects", False):  # from one pass over the windows
            refitted = iter(model.refit_parts(X, parts, seeds))
        else:
            refitted = (_refitted(model, X, part, seed) for part, seed in zip(parts, seeds, strict=True))
        for row, bases in zip(similarity, refitted, strict=True):
            pairs = match(model, bases)
            row[pairs.a] = np.minimum(pairs.similarity, 1.0)
    return Replicability(np.median(similarity, axis=0), (similarity >= SAME).mean(axis=0), int(refits))


def subjects_of(windows: Any, groups: ArrayLike | None) -> Any:
    """Return the subject of each window, as given or as the windows have it; raise if fewer than two are known."""
    subjects = getattr(windows, "subject", None) if groups is None else groups
    known = () if subjects is None else known_labels(subjects, len(np.asarray(subjects)), "groups")[1]
    if len(np.unique(known)) < 2:
        raise PolyadicError(
            "components must replicate in other subjects, but fewer than two are known: pass groups, or --subject"
        )
    return subjects


def _refitted(model: Any, X: Any, part: NDArray[np.bool_], seed: int) -> Any:
    """Fit a model with the same settings, but another seed and no readout, to a part (N,) of the windows."""
    refit = clone(model).set_params(random_state=seed, verbose=0, readout=None)
    return refit.fit(_safe_indexing(getattr(X, "windows", X), np.flatnonzero(part)))
