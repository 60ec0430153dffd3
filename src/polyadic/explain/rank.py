"""Choice of the rank: the largest at which most components replicate, and what a larger rank gains in accuracy.

The paper takes the rank above which plain decompositions of a part of the data hardly fit better (appendix D.4). But
fitness grows with the rank on any data, even noise, and says nothing about single components. So here each rank is also
fitted to halves of the subjects (`explain.replicability`) and, if there are labels, scored on left-out subjects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import _safe_indexing

from polyadic._util.checks import check_integer
from polyadic._util.torch_state import plain_torch
from polyadic.core.moments import sharing
from polyadic.data.batches import Samples
from polyadic.data.windows import Windows
from polyadic.errors import PolyadicError
from polyadic.estimators import CPD
from polyadic.evaluate.validation import cross_validate, subjects_to_test
from polyadic.explain.replicability import Replicability, replicability
from polyadic.scale.moments import Moments

__all__ = ["RankSuggestion", "core_consistency", "distinct_components", "suggest_rank"]

_RANKS = (1, 2, 4, 8, 16, 32, 64)
_FOLDS = 5

_Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class RankSuggestion:
    """The result of `suggest_rank`; `polyadic.plot.ranks` plots it.

    Parameters
    ----------
    rank : the recommended rank: the largest tried at which more than half of the components replicate; if there is
        none, the one with the largest share of them
    reason : why, and what a larger rank gains, in a few sentences
    ranks : (n,), the ranks tried
    fitness : (n,), 1 − ‖T − T̂‖ / ‖T‖
    replicability : (n,), the replicability of the components at each rank
    replicating : (n,), number of components that replicate, not counting near-copies of stronger ones that do
    accuracy : (n,), balanced accuracy of the features on left-out subjects, from 0 to 1; NaN without labels
    n_windows : how many windows were used
    """

    rank: int
    reason: str
    ranks: tuple[int, ...]
    fitness: _Floats
    replicability: tuple[Replicability, ...]
    replicating: NDArray[np.intp]
    accuracy: _Floats
    n_windows: int

    @property
    def share(self) -> _Floats:
        """(n,), the fraction of the components that replicate."""
        share: _Floats = self.replicating / np.array(self.ranks)
        return share

    @property
    def match(self) -> _Floats:
        """(n,), the mean over the components of their median match."""
        return np.array([checked.score for checked in self.replicability])

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain values for JSON, with None for missing ones."""
        columns = zip(self.ranks, self.fitness, self.replicability, self.replicating, self.accuracy, strict=True)
        return {
            "rank": self.rank,
            "reason": self.reason,
            "windows": self.n_windows,
            "tried": [
                {
                    "rank": rank,
                    "fitness": float(fitness),
                    "replicating": int(count),
                    "mean_match": checked.score,
                    "balanced_accuracy": None if np.isnan(accuracy) else float(accuracy),
                    "replicability": checked.to_dict(),
                }
                for rank, fitness, checked, count, accuracy in columns
            ],
        }

    def __repr__(self) -> str:
        lines = ["  rank  fitness  replicate  mean match  balanced accuracy"]
        for row in self.to_dict()["tried"]:
            accuracy = "–" if row["balanced_accuracy"] is None else f"{100 * row['balanced_accuracy']:.1f} %"
            mark, back = "→" if row["rank"] == self.rank else " ", f"{row['replicating']} of {row['rank']}"
            lines.append(
                f"{mark} {row['rank']:4d}  {row['fitness']:7.3f}  {back:>9}  {row['mean_match']:10.2f}  {accuracy:>17}"
            )
        return "\n".join([*lines, self.reason])


@plain_torch()
@sharing()
def suggest_rank(
    X: Any,
    ranks: Iterable[int] = _RANKS,
    *,
    groups: ArrayLike | None = None,
    tensorize: Any = "auto",
    n_windows: int = 2048,
    refits: int = 4,
    restarts: int = 1,
    consensus: bool = False,
    max_sweeps: int = 50,
    random_state: int = 0,
    on_fit: Callable[[int, int, int], None] | None = None,
) -> RankSuggestion:
    """Recommend the largest rank at which most components replicate, and say what a larger one gains in accuracy.

    At each rank `CPD` is fitted to the windows and, `refits` times, to half of the subjects. A component replicates if
    it is found again in at least half of those refits (`polyadic.explain.replicability`). If windows have labels and
    subjects, features are also scored by balanced accuracy on left-out subjects, with components learned from all.

    Parameters
    ----------
    X : (N, channels, time), or (N, I, J, …) with `tensorize=None`; anything that `CPD.fit` takes. `Windows` and stores
        provide subjects and labels. `polyadic.scale.Moments` of groups of subjects are used whole, without labels
    ranks : the ranks to try
    groups : (N,), the subject of each window, if X does not provide it; without subjects, blocks of windows are halved
    tensorize : as for `CPD`
    n_windows : maximum number of windows to use, evenly spaced in X
    refits : number of fits to halves of the subjects at each rank
    restarts, consensus, max_sweeps : as for `CPD`, for every fit
    random_state : seed of the initial values and of the halves
    on_fit : called after each fit with the work done and the total work (both in components), and the rank

    Examples
    --------
    >>> random = np.random.default_rng(0)
    >>> X, A, B = random.normal(size=(60, 2)), random.normal(size=(8, 2)), random.normal(size=(9, 2))
    >>> suggest_rank(np.einsum("nr,ir,jr->nij", X, A, B), ranks=[1, 2], tensorize=None).rank
    2
    """
    wanted = tuple(sorted(set(ranks)))
    if not wanted:
        raise PolyadicError("ranks must have at least one rank, but is empty")
    for name, value, least in (
        *(("ranks", rank, 1) for rank in wanted),
        ("n_windows", n_windows, 2),
        ("refits", refits, 1),
    ):
        check_integer(name, value, least)
    part, part_groups = _sample_evenly(X, groups, n_windows)
    folds = _count_folds(part)
    done, work = 0, sum(wanted) * (refits + 1)
    fitness, checks, counts, accuracy = [], [], [], []
    for rank in wanted:

        def note(number: int = 0, total: int = 0, rank: int = rank) -> None:
            nonlocal done
            done += rank
            if on_fit is not None:
                on_fit(done, work, rank)

        model = CPD(
            rank,
            tensorize=tensorize,
            readout="auto" if folds else None,
            restarts=restarts,
            consensus=consensus,
            max_sweeps=max_sweeps,
            random_state=random_state,
        ).fit(part)
        note()
        fitness.append(_fitness(model, part))
        checks.append(replicability(model, part, part_groups, refits, random_state, note))
        counts.append(len(distinct_components(model.factors_, checks[-1])))
        scored = folds and cross_validate(model, part, folds, transductive=True, random_state=random_state)
        accuracy.append(scored.balanced_accuracy if scored else np.nan)
    replicating, accuracies = np.array(counts), np.array(accuracy)
    rank, reason = _recommend(wanted, replicating, accuracies, "subjects" if checks[0].halves else "windows")
    n_used = part.n_windows if isinstance(part, Moments) else len(Samples(part))
    return RankSuggestion(rank, reason, wanted, np.array(fitness), tuple(checks), replicating, accuracies, n_used)


@plain_torch()
def core_consistency(T: Any, factors: Sequence[Any]) -> float:
    """Compute the core consistency diagnostic (CORCONDIA) of a CP model, in percent.

    With the factors held fixed, the least-squares Tucker core G of an exact model is the superdiagonal tensor I; this
    is 100·(1 − ‖G − I‖² / R). 100 is ideal, below 50 the model is doubtful, and there is no lower bound. The core is
    computed slice by slice from the factors' pseudo-inverses, without a Kronecker product.

    Parameters
    ----------
    T : (N, I, J, …)
    factors : matrices of shapes (N, R), (I, R), (J, R), …, starting with that of the samples

    Returns
    -------
    at most 100; NaN if R exceeds the size of a mode, because the core is then not unique

    Examples
    --------
    >>> x, a, b = np.eye(4)[:, :2], np.eye(3)[:, :2], np.eye(5)[:, 1:3]
    >>> round(core_consistency(np.einsum("nr,ir,jr->nij", x, a, b), [x, a, b]), 6)
    100.0
    """
    tensor = torch.as_tensor(T)
    matrices = [torch.as_tensor(factor, dtype=torch.float64, device=tensor.device) for factor in factors]
    shape = tuple(len(matrix) for matrix in matrices)
    rank = matrices[0].shape[1]
    if shape != tuple(tensor.shape) or any(matrix.shape[1:] != (rank,) for matrix in matrices):
        shapes = [tuple(matrix.shape) for matrix in matrices]
        raise PolyadicError(f"factors must have shapes (size, R) for T's {tuple(tensor.shape)}, but have {shapes}")
    if rank > min(shape):
        return float("nan")
    first, *others = (torch.linalg.pinv(matrix) for matrix in matrices)
    slices = (first @ tensor.flatten(1).double()).reshape(rank, *shape[1:])
    energy = diagonal = 0.0
    for number, core in enumerate(slices):
        for inverse in others:
            # The leading mode is contracted and moved last: after all modes, the order is restored.
            core = torch.tensordot(core, inverse, dims=([0], [1]))
        energy += float(core.square().sum())
        diagonal += float(core[(number,) * len(others)])
    return 100.0 * (1.0 - (energy - 2.0 * diagonal + rank) / rank)


def _sample_evenly(X: Any, groups: ArrayLike | None, count: int) -> tuple[Any, NDArray[Any] | None]:
    """Return evenly spaced windows of X, and their groups; moments are those of all windows."""
    if isinstance(X, Moments):
        return X, None
    samples = Samples(X)
    ids = np.linspace(0, len(samples) - 1, min(len(samples), count)).astype(np.intp)
    if not bool(samples.take(torch.from_numpy(ids), torch.device("cpu"), samples.dtype).any()):
        raise PolyadicError("X must not be zero everywhere: there is nothing to decompose")
    groups = None if groups is None else np.asarray(groups)
    if groups is not None and groups.shape != (len(samples),):
        raise PolyadicError(f"groups must have shape ({len(samples)},), one per window, but has shape {groups.shape}")
    return _safe_indexing(getattr(X, "windows", X), ids), None if groups is None else groups[ids]


def _fitness(model: CPD, X: Any) -> float:
    """Return 1 − ‖T − T̂‖ / ‖T‖ over all windows."""
    if not isinstance(X, Moments):
        return model.score(X)
    energy = X.of().energy
    return 1.0 - float(np.sqrt(model.history_["fit"][-1] / energy)) if energy > 0 else 1.0


def _count_folds(windows: Any) -> int:
    """Return the number of folds to score features on left-out subjects; 0 without labels of several subjects."""
    try:
        count = subjects_to_test(windows) if isinstance(windows, Windows) else 0
    except PolyadicError:
        return 0
    return min(_FOLDS, count) if count > 1 else 0


def distinct_components(bases: Sequence[NDArray[Any]], checked: Replicability) -> list[int]:
    """Return the components that replicate, without near-copies of stronger ones that do."""
    unit = [basis / np.maximum(np.linalg.norm(basis, axis=0), 1e-300) for basis in bases]
    alike = np.abs(np.prod([basis.T @ basis for basis in unit], axis=0)) >= checked.threshold
    counted: list[int] = []
    for component in np.flatnonzero(checked.replicates):
        if not alike[component, counted].any():
            counted.append(int(component))
    return counted


def _recommend(
    ranks: Sequence[int], replicating: Sequence[int] | NDArray[np.intp], accuracy: _Floats, halves: str
) -> tuple[int, str]:
    """Return the recommended rank, and the reason for it; `halves` says what was halved, "subjects" or "windows"."""
    share = np.array(replicating) / np.array(ranks)
    most = np.flatnonzero(share > 0.5)
    chosen = int(most[-1]) if len(most) else int(np.argmax(share))
    rank, count = ranks[chosen], replicating[chosen]
    reason = (
        f"Rank {rank} is the largest tried at which most components replicate: {count} of {rank} replicate in halves "
        f"of the {halves}{'; larger ranks may, too.' if chosen == len(ranks) - 1 else '.'}"
    )
    if not len(most):
        reason = (
            f"At no rank tried do most components replicate in halves of the {halves}. Rank {rank} comes closest "
            f"({count} of {rank}): use the features, but do not interpret single components."
        )
    larger = 100 * accuracy[chosen + 1 :]
    if np.isnan(accuracy).any() or not len(larger):
        return rank, reason
    here, there = round(100 * accuracy[chosen], 1), round(larger.max(), 1)
    if there <= here:
        return rank, f"{reason} No larger rank is more accurate than its {here:.1f} % (balanced accuracy)."
    return rank, (
        f"{reason} Rank {ranks[chosen + 1 + int(np.argmax(larger))]} gains {there - here:.1f} points of balanced "
        f"accuracy ({there:.1f} against {here:.1f} %)."
    )
