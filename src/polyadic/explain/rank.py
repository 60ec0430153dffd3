"""Choosing the rank: fitness, core consistency and stability of CP decompositions of a subset (appendix D.4).

The paper runs plain CP decompositions of a small part of the data and takes the rank from which on the fitness does not
improve much. What is much is told by noise of the same shape: it, too, is fitted better by more components (Horn's
parallel analysis). Core consistency and the likeness of components over restarts say which components can be read one
by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyadic.checks import check_integer
from polyadic.draws import integer_seed
from polyadic.errors import PolyadicError
from polyadic.estimators import SALS
from polyadic.explain.matching import match
from polyadic.inputs import Samples
from polyadic.tensorize import as_tensorizer, tensors
from polyadic.torch_state import plain_torch

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["RankSuggestion", "core_consistency", "suggest_rank"]

_RANKS = (1, 2, 4, 8, 16, 32, 64)
_CONSISTENT, _STABLE = 50.0, 0.9  # what is commonly taken for consistent, and for the same components
_OVER_NOISE = 2.0  # how many times as much as that of noise the fit must improve
_NOTHING = 1e-3  # of fitness: what float32 can tell

_Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class RankSuggestion:
    """What `suggest_rank` found.

    Parameters
    ----------
    rank : the recommended rank: beyond it, the fit improves hardly more than that of noise
    readable : the largest rank at which components are stable and the core is consistent, or None if there is none
    reason : why, in a sentence
    ranks : (n,), those tried
    fitness : (n, restarts), 1 − ‖T − T̂‖ / ‖T‖ of each fit
    noise : (n,), the same of noise in the place of the windows
    consistency : (n,), core consistency of the best fit in percent; NaN where the rank exceeds the size of a mode
    stability : (n,), mean factor match score of the other restarts with the best one; NaN with a single start
    n_windows : how many windows the subset has
    """

    rank: int
    readable: int | None
    reason: str
    ranks: tuple[int, ...]
    fitness: _Floats
    noise: _Floats
    consistency: _Floats
    stability: _Floats
    n_windows: int

    @property
    def over_noise(self) -> _Floats:
        """(n - 1,), by how much more the fit improves from one rank to the next than that of noise."""
        gain, chance = _error_reductions(self.fitness.max(axis=1)), _error_reductions(self.noise)
        return np.array([gain[i, i + 1] / max(chance[i, i + 1], 1e-9) for i in range(len(self.ranks) - 1)])

    def plot(self) -> Figure:
        """Fitness, its gain over noise, core consistency, stability and the recommendation: a matplotlib figure."""
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            raise PolyadicError("matplotlib is needed for plots: pip install 'polyadic[report]'") from error

        figure = Figure(figsize=(9, 6.5), layout="constrained")
        (fit, gain), (core, stable) = figure.subplots(2, 2, sharex=True)
        fit.plot(self.ranks, self.fitness.max(axis=1), "o-", color="tab:blue", label="data")
        fit.plot(self.ranks, self.noise, "--", color="0.5", label="noise")
        fit.set_ylabel("fitness")
        fit.legend(frameon=False)
        gain.stairs(np.clip(self.over_noise, 0.5, 100), self.ranks, color="tab:purple", baseline=None)
        gain.axhline(_OVER_NOISE, color="0.6", linestyle=":")
        gain.set(ylabel="better fit from rank to rank,\nagainst noise (×, cut at 100)", yscale="log", ylim=(0.4, 120))
        gain.set_yticks([0.5, 1, 2, 5, 10, 100], ["0.5", "1", "2", "5", "10", "100"])
        core.plot(self.ranks, np.maximum(self.consistency, -20), "s-", color="tab:orange")
        core.axhline(_CONSISTENT, color="0.6", linestyle=":")
        core.set(ylabel="core consistency (%)\n(−20: or less)", ylim=(-25, 105))
        stable.plot(self.ranks, self.stability, "D-", color="tab:green")
        stable.axhline(_STABLE, color="0.6", linestyle=":")
        stable.set(ylabel="stability\n(factor match score)", ylim=(-0.05, 1.05), xscale="log")
        stable.set_xticks(self.ranks, [str(rank) for rank in self.ranks])
        for axes in (fit, gain, core, stable):
            axes.minorticks_off()
            axes.axvline(self.rank, color="tab:red", linewidth=1)
            axes.spines[["top", "right"]].set_visible(False)
        core.set_xlabel("rank")
        stable.set_xlabel("rank")
        figure.suptitle(_wrap(self.reason), fontsize=10)
        return figure

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain numbers for JSON, None where there is none."""
        best = self.fitness.max(axis=1)
        columns = zip(self.ranks, best, self.fitness, self.noise, self.consistency, self.stability, strict=True)
        return {
            "rank": self.rank,
            "readable": self.readable,
            "reason": self.reason,
            "windows": self.n_windows,
            "tried": [
                {
                    "rank": rank,
                    "fitness": float(top),
                    "fitness_of_restarts": fits.tolist(),
                    "fitness_of_noise": float(chance),
                    "core_consistency": None if np.isnan(core) else float(core),
                    "stability": None if np.isnan(stable) else float(stable),
                }
                for rank, top, fits, chance, core, stable in columns
            ],
        }

    def __repr__(self) -> str:
        lines = ["  rank  fitness  against noise  core consistency  stability"]
        over = ["–", *(f"{min(ratio, 999):.1f} ×" for ratio in self.over_noise)]
        for row, ratio in zip(self.to_dict()["tried"], over, strict=True):
            core = "–" if row["core_consistency"] is None else f"{max(row['core_consistency'], -999):.0f} %"
            stable = "–" if row["stability"] is None else f"{row['stability']:.2f}"
            mark = "→" if row["rank"] == self.rank else " "
            lines.append(f"{mark} {row['rank']:4d}  {row['fitness']:7.3f}  {ratio:>13}  {core:>16}  {stable:>9}")
        return "\n".join([*lines, self.reason])


@plain_torch()
def suggest_rank(
    X: Any,
    ranks: Iterable[int] = _RANKS,
    *,
    tensorize: Any = None,
    n_windows: int = 256,
    restarts: int = 3,
    max_sweeps: int = 100,
    random_state: int = 0,
    on_fit: Callable[[int, int, int], None] | None = None,
) -> RankSuggestion:
    """Recommend a rank by plain CP decompositions of a subset of the data.

    Recommended is the smallest rank beyond which the fit does not improve much, as in the paper's appendix D.4: of the
    squared error, less than twice the share disappears that the same increase of the rank takes off noise. How many
    components can be read is another question: `readable` is the largest rank at which restarts find the same
    components (factor match score 0.9) and the core is consistent (50 %).

    Parameters
    ----------
    X : (N, channels, time), or (N, I, J, …) with `tensorize=None`; anything that `ATD.fit` takes
    ranks : those to try
    tensorize : as for `ATD`
    n_windows : size of the subset, spread evenly over X
    restarts : fits of each rank, from different starts
    max_sweeps : most sweeps of a fit
    random_state : seed of the starts
    on_fit : called after each fit with the work done and the work in all, counted in components, and the rank

    Examples
    --------
    >>> random = np.random.default_rng(0)
    >>> X, A, B = random.normal(size=(60, 2)), random.normal(size=(8, 2)), random.normal(size=(9, 2))
    >>> found = suggest_rank(np.einsum("nr,ir,jr->nij", X, A, B), ranks=[1, 2, 3])
    >>> found.rank
    2
    """
    wanted = _check_ranks(ranks)
    check_integer("n_windows", n_windows, 2)
    check_integer("restarts", restarts, 1)
    batch = _sample_evenly(X, n_windows)
    T, N = _tensors(batch, tensorize), _tensors(_noise(batch, random_state), tensorize)
    fitness: list[list[float]] = []
    noise, consistency, stability = [], [], []
    done, work = 0, sum(wanted) * (restarts + 1)
    for rank in wanted:
        models = []
        for restart in range(restarts + 1):
            # The last is of the noise.
            models.append(_fit_cp(T if restart < restarts else N, rank, max_sweeps, random_state + restart))
            done += rank
            if on_fit is not None:
                on_fit(done, work, rank)
        noise.append(models.pop().score(N))
        fits = [model.score(T) for model in models]
        best = models.pop(int(np.argmax(fits)))
        fitness.append(fits)
        consistency.append(core_consistency(T, [best.transform(T), *best.factors_]))
        stability.append(np.mean([match(best, other).score for other in models]) if models else np.nan)
    curves = np.array(fitness), np.array(noise), np.array(consistency), np.array(stability)
    rank, readable, reason = _recommend(wanted, *curves)
    return RankSuggestion(rank, readable, reason, wanted, *curves, len(T))


@plain_torch()
def core_consistency(T: Any, factors: Sequence[Any]) -> float:
    """How well the components explain a tensor without each other: CORCONDIA, in percent.

    With the factors held fixed, the least-squares Tucker core of the tensor would be the identity if the model were
    exact; this is 100·(1 − ‖G − I‖² / R). 100 is ideal, below 50 the model is doubtful, and it has no lower bound. The
    core is made slice by slice from the factors' pseudo-inverses: no Kronecker product, no more than R slices' memory.

    Parameters
    ----------
    T : (N, I, J, …)
    factors : matrices of shapes (N, R), (I, R), (J, R), …, those of the samples first

    Returns
    -------
    at most 100; NaN where R exceeds the size of a mode, for then the core is not unique

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
            # The mode in front is contracted and comes back last: after all of them they are in order again.
            core = torch.tensordot(core, inverse, dims=([0], [1]))
        energy += float(core.square().sum())
        diagonal += float(core[(number,) * len(others)])
    return 100.0 * (1.0 - (energy - 2.0 * diagonal + rank) / rank)


def _check_ranks(ranks: Iterable[int]) -> tuple[int, ...]:
    given = list(ranks)
    for rank in given:
        check_integer("ranks", rank, 1)
    if not given:
        raise PolyadicError("ranks must name at least one rank, but is empty")
    return tuple(sorted({int(rank) for rank in given}))


def _sample_evenly(X: Any, count: int) -> Tensor:
    """Windows spread evenly over X: (n, …)."""
    samples = Samples(X)
    ids = torch.linspace(0, len(samples) - 1, min(len(samples), count), dtype=torch.float64).long()
    batch = samples.take(ids, torch.device("cpu"), samples.dtype)
    if not bool(batch.any()):
        raise PolyadicError("X must not be zero everywhere: there is nothing to decompose")
    return batch


def _noise(batch: Tensor, seed: int) -> Tensor:
    """White noise in the shape of the windows, with the power of each channel."""
    generator = torch.Generator().manual_seed(integer_seed(seed, 0x01CE))
    noise = torch.randn(batch.shape, dtype=batch.dtype, generator=generator)
    return noise * batch.square().mean(dim=[0, *range(2, batch.ndim)], keepdim=True).sqrt()


def _tensors(batch: Tensor, tensorize: Any) -> Tensor:
    """Tensors of root mean square 1: (n, I, J, …)."""
    tensorizer = as_tensorizer(tensorize)
    T = tensors(tensorizer and tensorizer.calibrated(batch), batch)
    scale = float(torch.linalg.vector_norm(T, dtype=torch.float64)) / T.numel() ** 0.5
    return T / (scale or 1.0)


def _fit_cp(T: Tensor, rank: int, max_sweeps: int, seed: int) -> SALS:
    """A plain CP decomposition by alternating least squares."""
    # The weight is small against entries of size 1; without any, collinear components would run away.
    return SALS(
        rank,
        tensorize=None,
        readout=None,
        solver="blend",
        batch_size=None,
        max_sweeps=max_sweeps,
        tol=1e-5,
        random_state=seed,
    ).fit(T)


def _error_reductions(fitness: _Floats) -> _Floats:
    """Which share of the squared error of rank i is gone at rank j: (n, n), of use where j > i."""
    error = (1.0 - np.maximum.accumulate(fitness)) ** 2
    return 1.0 - error / np.maximum(error, 1e-12)[:, None]


def _recommend(
    ranks: Sequence[int], fitness: _Floats, noise: _Floats, consistency: _Floats, stability: _Floats
) -> tuple[int, int | None, str]:
    """The rank, the rank at which components can be read, and the reason."""
    best = fitness.max(axis=1)
    # Against every larger rank, not the next alone: that one's restarts may all have ended in a poor minimum.
    much = (_error_reductions(best) > _OVER_NOISE * _error_reductions(noise)) & (best - best[:, None] > _NOTHING)
    enough = next(i for i in range(len(ranks)) if not much[i, i + 1 :].any())
    rank, still = ranks[enough], f"fitness {best[enough]:.2f}"
    if len(ranks) == 1:
        why = f"Rank {rank} is the only one tried ({still})"
    elif enough < len(ranks) - 1:
        why = (
            f"Rank {rank}: beyond it, the fit improves by {100 * max(best.max() - best[enough], 0.0):.1f} points, less "
            f"than twice as much as that of noise ({still})"
        )
    elif best[enough] > 1 - 10 * _NOTHING:
        why = f"Rank {rank}: only this one, the largest tried, fits nearly everything ({still})"
    else:
        why = (
            f"Rank {rank}, the largest tried: up to it, the fit improves more than twice as much as that of noise "
            f"({still}), so try larger ranks, too"
        )
    sound = (np.isnan(stability) | (stability >= _STABLE)) & (consistency >= _CONSISTENT)
    readable = max((r for r, ok in zip(ranks, sound, strict=True) if ok), default=None)
    return rank, readable, f"{why}; {_describe_stability(rank, readable)}."


def _describe_stability(rank: int, readable: int | None) -> str:
    """What stability and core consistency say about components."""
    if readable is None or (readable == 1 and rank > 1):
        which = "at no rank" if readable is None else "at no rank above 1"
        return (
            f"{which} are components both stable over restarts and consistent, so use them as features and do not read "
            "much into single ones"
        )
    if readable >= rank:
        return f"at rank {readable} components are stable over restarts and the core is consistent"
    return (
        f"at no rank above {readable} are components both stable over restarts and consistent, so take {readable} to "
        "read components singly"
    )


def _wrap(text: str) -> str:
    import textwrap

    return "\n".join(textwrap.wrap(text, 110))
