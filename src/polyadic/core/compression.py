"""Compression of tensors to the leading axes of each mode, so that second moments of windows fit into memory.

The first pass over the data sums, for each mode, the scatter matrix of its unfolding (`mode_sums`). Their leading
eigenvectors are the axes onto which the second pass projects every window: a truncated higher-order singular value
decomposition (De Lathauwer et al., 2000). Bases stay in the original modes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyadic.errors import PolyadicError

BUDGET = 2**22
"""Maximum number of entries of the second moments, or of the compressed windows if there are fewer of them."""
_LOST = 0.03
"""Share of the energy that compression may lose even if the core fits the budget; see `choose_ranks`."""
_SMALL = 512
"""Number of entries of a core that is small enough."""
_FIRST_MODE = 2.0
"""Weight of energy lost in the first mode. Its entries are channels, which no smooth profile connects."""


class Sums(dict[str, Tensor]):
    """Sums over windows by name, on the CPU.

    `windows` (1,) is their number. Those of the first pass are `floors`, and `counts`, the windows in each of these;
    those of the second are listed at `mode_sums`.
    """

    @property
    def count(self) -> int:
        """Number of windows."""
        return int(self.get("windows", 0))

    def merge(self, other: Sums) -> None:
        """Add the sums of other windows."""
        for name, value in other.items():
            self[name] = self[name] + value if name in self else value

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the sums as arrays, to save them."""
        return {name: value.numpy() for name, value in self.items()}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Set the sums to those of `arrays`."""
        self.update((name, torch.from_numpy(array.copy())) for name, array in arrays.items())


def mode_sums(T: Tensor, baseline: Tensor | None = None) -> Sums:
    """Return the sums of a block of tensors (b, I, J, …), from which the mean and the leading axes of each mode follow.

    `total` is the sum of the tensors, which may be stored with the modes in any order; `scatter.m` the product of the
    unfolding of mode m with itself; `baseline` that of `Tensorizer.baseline_sums`.
    """
    sums = Sums(windows=torch.tensor([len(T)]), total=T.sum(dim=0).cpu().double())
    if baseline is not None:
        sums["baseline"] = baseline
    for mode in range(T.ndim - 1):
        if mode == 0 and T.is_contiguous():
            slices = T.flatten(2) if T.ndim > 2 else T[..., None]
            product = torch.bmm(slices, slices.mT).sum(dim=0)
        elif mode == T.ndim - 2 and T.is_contiguous():
            rows = T.flatten(1, -2)
            if T.is_cuda and rows.shape[1] >= rows.shape[2]:  # one tall product would leave most of a GPU idle
                product = torch.bmm(rows.mT, rows).sum(dim=0)
            else:
                product = rows.flatten(0, 1).T @ rows.flatten(0, 1)
        else:
            rows = T.movedim(1 + mode, 0).flatten(1)
            product = rows @ rows.T
        sums[f"scatter.{mode}"] = product.cpu().double()
    return sums


def mode_sums_with_gaps(T: Tensor, rows: Tensor, observed: Tensor, baseline: Callable[[Tensor], Tensor | None]) -> Sums:
    """Return the sums of tensors (b, I, J, …); entries that some rows (n,) lack take the mean of the others.

    `observed` (n, I, J, …) has size 1 in modes that are not masked; `baseline` is `Tensorizer.baseline_sums`. Further
    sums are `incomplete`, the number of these rows, how often each entry is `lost`, what it was filled with (`fills`),
    and how often two entries of mode m were observed together (`together.m`).
    """
    whole = observed.expand(len(rows), *T.shape[1:])
    filled = T.clone()
    filled[rows] = T[rows].where(whole, 0.0)
    lost = (~whole).sum(dim=0).double()
    mean = _mean_of_observed(filled.sum(dim=0).double(), len(T) - lost)
    filled[rows] = filled[rows].where(whole, mean.to(T))
    sums = mode_sums(filled, baseline(filled))
    sums |= {"incomplete": torch.tensor([len(rows)]), "lost": lost.cpu(), "fills": (lost * mean).cpu()}
    for mode in range(T.ndim - 1):
        if observed.shape[1 + mode] > 1:
            unfolded = observed.double().movedim(1 + mode, 0).flatten(1)
            sums[f"together.{mode}"] = (unfolded @ unfolded.T).cpu()
    return sums


def mean_of(sums: Sums) -> Tensor:
    """Return the mean tensor of what was observed: (I, J, …) float64."""
    if "lost" not in sums:
        return sums["total"] / sums["windows"]
    return _mean_of_observed(sums["total"] - sums["fills"], sums["windows"] - sums["lost"])


def unseen_modes(sums: Sums) -> list[int]:
    """Return the modes with pairs of entries that were never observed together, of which no axes can be found."""
    if "lost" not in sums or sums["windows"] > sums["incomplete"]:
        return []
    masks = {mode: sums.get(f"together.{mode}") for mode in range(sums["total"].ndim)}
    return [mode for mode, mask in masks.items() if mask is not None and bool((mask == 0).any())]


def centred_scatter(sums: Sums, centre: Tensor) -> list[Tensor]:
    """Return the scatter matrix of each mode after subtracting a tensor (I, J, …) from every window.

    Σ(T − C)(T − C)ᵀ = ΣTTᵀ − N(MCᵀ + CMᵀ − CCᵀ), with the unfoldings of the mean M and of C.
    """
    result = []
    average = sums["total"] / sums["windows"]  # with missing entries as they were filled
    for mode, size in enumerate(average.shape):
        M, C = (values.movedim(mode, 0).reshape(size, -1) for values in (average, centre))
        cross = M @ C.T
        result.append(sums[f"scatter.{mode}"] - sums["windows"] * (cross + cross.T - C @ C.T))
    return result


def _mean_of_observed(total: Tensor, count: Tensor) -> Tensor:
    """Return the mean of each entry; of one never observed, the mean over the last mode, or 0."""
    mean = total / count.clamp_min(1)
    seen = (count > 0).double()
    along = (mean * seen).sum(dim=-1, keepdim=True) / seen.sum(dim=-1, keepdim=True).clamp_min(1)
    return mean.where(count > 0, along)


@dataclass(frozen=True, eq=False)
class Compression:
    """Projection of tensors onto the leading axes of each mode.

    Parameters
    ----------
    axes : (I, p), (J, q), …, with orthonormal columns; None for a mode that is not compressed
    shape : (I, J, …)

    Examples
    --------
    >>> compression = Compression([torch.eye(3)[:, :2], None], (3, 4))
    >>> compression.ranks, compression.compress(torch.ones(5, 3, 4)).shape
    ((2, 4), torch.Size([5, 8]))
    """

    axes: Sequence[Tensor | None]
    shape: tuple[int, ...]

    @classmethod
    def none(cls, shape: Sequence[int]) -> Compression:
        """Return the identity."""
        return cls([None] * len(shape), tuple(shape))

    @classmethod
    def from_scatter(
        cls,
        scatter: Sequence[Tensor],
        size: int,
        ranks: Sequence[int] | None = None,
        dtype: torch.dtype = torch.float32,
        whole: Sequence[int] = (),
    ) -> Compression:
        """Choose the axes from the scatter matrix of each mode, by default as many as `choose_ranks`.

        A compressed window has at most `size` entries; modes in `whole` are not compressed.
        """
        spectra = [torch.linalg.eigh((matrix + matrix.T) / 2) for matrix in scatter]
        if ranks is None:
            ranks = choose_ranks([values.flip(0).clamp_min(0).numpy() for values, _ in spectra], size, whole)
        axes = [
            None if rank >= len(vectors) else vectors.flip(1)[:, :rank].to(dtype).contiguous()
            for rank, (_, vectors) in zip(ranks, spectra, strict=True)
        ]
        return cls(axes, tuple(len(matrix) for matrix in scatter))

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the axes as arrays, to save them with the shape."""
        return {f"axes.{mode}": matrix.numpy() for mode, matrix in enumerate(self.axes) if matrix is not None}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], shape: Sequence[int]) -> Compression:
        """Return the compression that `arrays` returned, for tensors (I, J, …)."""
        axes = [arrays.get(f"axes.{mode}") for mode in range(len(shape))]
        return cls([None if matrix is None else torch.from_numpy(matrix.copy()) for matrix in axes], tuple(shape))

    @property
    def ranks(self) -> tuple[int, ...]:
        """Number of axes of each mode."""
        return tuple(size if axes is None else axes.shape[1] for axes, size in zip(self.axes, self.shape, strict=True))

    @property
    def size(self) -> int:
        """Number of entries of a compressed window."""
        return math.prod(self.ranks)

    def compress(self, T: Tensor) -> Tensor:
        """Project tensors (b, I, J, …) onto the axes: (b, p·q·…)."""
        # From the last mode in memory to the first: each product then copies only what the last one left.
        strides = T.stride()
        for mode in sorted(range(len(self.shape)), key=lambda mode: strides[1 + mode]):
            axes = self.axes[mode]
            if axes is not None:
                T = (T.movedim(1 + mode, -1) @ axes.to(T)).movedim(-1, 1 + mode)
        return T.reshape(len(T), -1)

    def project(self, factors: Sequence[Tensor]) -> list[Tensor]:
        """Return the bases in the compressed modes: (p, R), (q, R), …"""
        return [
            factor if axes is None else axes.to(factor).T @ factor
            for axes, factor in zip(self.axes, factors, strict=True)
        ]


def largest_core(count: int) -> int:
    """Return the maximum number of entries of a compressed window, for this number of windows.

    Second moments of P entries are a P × P matrix; fewer than P windows are kept themselves. Either must fit `BUDGET`.

    Examples
    --------
    >>> largest_core(1_000_000), largest_core(200)
    (2048, 20971)
    """
    return max(math.isqrt(BUDGET), BUDGET // count)


def choose_ranks(spectra: Sequence[np.ndarray], size: int, whole: Sequence[int] = ()) -> tuple[int, ...]:
    """Choose how many axes of each mode to keep.

    One axis after the other is dropped, always the one that loses least energy for the entries it saves. This ends
    when the core has at most 512 entries, or when it has at most `size` and the next axis would bring the energy lost,
    summed over the modes with the first counted twice, above 3 %.

    Parameters
    ----------
    spectra : eigenvalues of each mode's scatter matrix, largest first
    whole : modes of which all axes are kept

    Examples
    --------
    >>> choose_ranks([np.array([5.0, 5.0]), np.array([9.9, 0.1, 0.0])], size=2)
    (2, 1)
    """
    weights = [_FIRST_MODE] + [1.0] * (len(spectra) - 1)
    total = [max(float(values.sum()), np.finfo(float).tiny) for values in spectra]
    ranks, lost = [len(values) for values in spectra], 0.0
    while math.prod(ranks) > min(size, _SMALL):
        losses = [
            weight * float(values[rank - 1]) / energy if rank > 1 else math.inf
            for weight, values, rank, energy in zip(weights, spectra, ranks, total, strict=True)
        ]
        costs = [
            loss / math.log(rank / (rank - 1)) if rank > 1 and mode not in whole else math.inf
            for mode, (loss, rank) in enumerate(zip(losses, ranks, strict=True))
        ]
        mode = int(np.argmin(costs))
        if math.isinf(costs[mode]):
            break
        if math.prod(ranks) <= size and lost + losses[mode] > _LOST:
            break
        lost += losses[mode]
        ranks[mode] -= 1
    return tuple(ranks)


def check_ranks(setting: Any, shape: Sequence[int], size: int) -> tuple[int, ...] | None:
    """Return the ranks of the parameter `compression`, limited to the sizes of the modes; None if it gives none.

    Raises
    ------
    PolyadicError : if they do not fit tensors (I, J, …), or if a compressed window has more than `size` entries
    """
    if isinstance(setting, str):
        return None
    if setting is None:
        if math.prod(shape) > size:
            raise PolyadicError(
                f"compression=None keeps all {math.prod(shape):,} entries of a window's tensor, but second moments of "
                f"at most {size:,} entries fit into memory: use compression='auto'"
            )
        return None
    if len(setting) != len(shape) or any(rank < 1 for rank in setting):
        raise PolyadicError(
            f"compression must have a rank of at least 1 for each of the {len(shape)} modes of {tuple(shape)}, but is "
            f"{tuple(setting)}"
        )
    limited = tuple(min(int(rank), length) for rank, length in zip(setting, shape, strict=True))
    if math.prod(limited) > size:
        raise PolyadicError(
            f"compression={limited} leaves {math.prod(limited):,} entries per window, but second moments of at most "
            f"{size:,} entries fit into memory: use smaller ranks, or compression='auto'"
        )
    return limited
