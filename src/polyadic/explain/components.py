"""Components for a person: a fit of their own, at the largest rank at which they replicate in other subjects.

Features for a classifier gain from a rank of 32, at which few components replicate. Here the rank is the largest at
which most components are found again in halves of the subjects and vary more than noise does. Everything is computed
from moments of the subjects, without another pass over the data.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.exceptions import ConvergenceWarning

from polyadic._util.threads import thread_pool
from polyadic._util.torch_state import plain_torch
from polyadic.core.algebra import khatri_rao
from polyadic.core.step import Objective, State
from polyadic.errors import ModelFileError
from polyadic.estimators import CPD
from polyadic.explain.expression import profiles, with_bases
from polyadic.explain.replicability import SAME, Replicability, match, replicability, subjects_of
from polyadic.scale.moments import SHARED, Moments
from polyadic.spectral import STFT

__all__ = ["Components", "components"]

_RANKS = (16, 12, 8, 6, 4, 3, 2, 1)
_SHARE = 0.7  # share of the components that must replicate
_NOISE = 3.0  # how many times more than noise of the same spectrum a component must vary
_FEWEST = 10  # minimum number of subjects for a bootstrap
_SWEEPS = 10
_NOISE_WINDOWS = 512
_EULER = 0.5772156649015329
_TENTHS = 10
_PREFIX = "components."

_Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Components:
    """Components that replicate in other subjects, the result of `components`."""

    model: CPD | None  # with the replicating components only, for `expression`, `plot` and `save`; None without any
    rank: int  # of the fit that they are from; 0 if there is none at which enough components replicate
    left_out: int  # number of components of this fit that do not replicate, or are near-copies of one that does
    tried: dict[int, int]  # number of replicating components at each rank that was tried
    n_subjects: int  # number of subjects, or groups of subjects, with moments of their own
    bands: list[_Floats] | None  # limits (2, I, R) of 90 % bands of `profiles`, by mode; None below 10 subjects
    grouped: bool = False  # whether several subjects share moments, because they are too many for moments of their own

    @property
    def profiles(self) -> list[_Floats]:
        """Profiles (I, R), (J, R), … of the components, scaled to sum 1."""
        return [] if self.model is None else [profiles(factor) for factor in self.model.factors_]

    @property
    def units(self) -> str:
        """What the halves and the bootstrap consist of."""
        return "groups of subjects" if self.grouped else "subjects"

    def __repr__(self) -> str:
        found = "none" if self.model is None else f"{self.model.rank} of {self.rank}"
        bands = ", with 90 % bands" if self.bands is not None else ""
        return f"Components: {found} replicate in halves of the {self.n_subjects} {self.units}{bands}"

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers about the components for the header of a model file, and for JSON."""
        about = {name: getattr(self, name) for name in ("rank", "left_out", "n_subjects", "grouped")}
        about["tried"] = {str(rank): count for rank, count in self.tried.items()}
        return {**about, "replicability": None if self.model is None else self.model.replicability_.to_dict()}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return bases and bands for a model file."""
        parts = {"factors": [] if self.model is None else self.model.factors_, "bands": self.bands or []}
        return {f"{_PREFIX}{name}.{mode}": array for name, arrays in parts.items() for mode, array in enumerate(arrays)}

    @classmethod
    def restore(cls, model: CPD, arrays: Mapping[str, NDArray[Any]], header: dict[str, Any]) -> Components:
        """Build from `to_dict` and `arrays`, for the model of a file; raise ModelFileError if they do not fit."""
        modes = range(len(model.factors_))
        factors, bands = (
            [arrays[key] for mode in modes if (key := f"{_PREFIX}{name}.{mode}") in arrays]
            for name in ("factors", "bands")
        )
        rank = factors[0].shape[-1] if factors else 0
        shapes = [(len(factor), rank) for factor in model.factors_]
        found, around = ([array.shape for array in arrays] for arrays in (factors, bands))
        if found not in ([], shapes) or around not in ([], [(2, *shape) for shape in shapes]):
            raise ModelFileError("the file's components do not have the shapes of its model")
        part = None
        if factors:
            part = with_bases(model, factors, Replicability.from_dict(header["replicability"], rank))
        tried = {int(rank): int(count) for rank, count in header["tried"].items()}
        about = header["rank"], header["left_out"], tried, header["n_subjects"]
        return cls(part, *about, bands or None, header["grouped"])


@plain_torch()
def components(
    source: Any,
    groups: ArrayLike | None = None,
    *,
    rank: int | None = None,
    restarts: int = 8,
    refits: int = 4,
    replicates: int = 100,
    random_state: int = 0,
    progress: Callable[[int, int, str], None] | None = None,
) -> Components:
    """Find the components that replicate in other subjects, at the largest rank at which at least 70 % of them do.

    At each rank, from 16 down, components are the consensus of several starts. They replicate if they are found with a
    match of at least 0.9 in at least half of the refits to halves of the subjects, and if they vary at least 3 times
    as much between windows as in stationary Gaussian noise with the same mean spectrum, whose strongest components may
    replicate, too. Components that do not replicate are counted, but left out, and so are near-copies of others.

    Parameters
    ----------
    source : windows as for `CPD.fit`; or moments of the subjects, of `polyadic.scale.Moments.collect` with groups or of
        `CPD.fit_with_moments`, for which no data are read
    groups : (N,), the subject of each window; by default the subjects of the windows
    rank : use this rank and all of its components that replicate, however few
    restarts, refits : number of starts of each consensus, and of refits to halves of the subjects, two for each split
    replicates : number of bootstrap samples of the subjects for 90 % bands; 0 for none
    random_state : seed of starts, halves and bootstrap
    progress : called with the number of parts done, the total, and what is done next

    Examples
    --------
    >>> from polyadic.data import synthetic
    >>> found = components(synthetic(60, n_channels=2), rank=2, restarts=2, replicates=0)
    >>> found.rank, [profile.sum(axis=0).round(6).max() for profile in found.profiles]
    (2, [np.float64(1.0), np.float64(1.0), np.float64(1.0)])
    """
    moments = source
    if not isinstance(source, Moments):
        moments = Moments.collect(source, groups=subjects_of(source, groups))
    whole, noise = moments.of(), _noise_tensors(moments)
    tried: dict[int, int] = {}
    grouped = SHARED.format(1) in moments.groups

    def tell(done: int, what: str) -> None:
        if progress is not None:
            progress(done, len(_RANKS) + _TENTHS, what)

    for place, wanted in enumerate(_RANKS if rank is None else (int(rank),)):
        tell(place, f"rank {wanted}")
        model, varies = _consensus(moments, whole, noise, wanted, restarts, random_state)
        tried[wanted] = int(varies.sum())
        least = _SHARE * wanted if rank is None else 1.0
        if tried[wanted] < least:
            continue
        found = replicability(model, moments, refits=refits, random_state=random_state)
        found = replace(found, returned=np.where(varies, found.returned, 0.0))
        kept = np.array(distinct_components(model.factors_, found), np.intp)
        tried[wanted] = len(kept)
        if tried[wanted] >= least:
            found = replace(found, match=found.match[kept], returned=found.returned[kept])
            part = with_bases(model, [np.ascontiguousarray(factor[:, kept]) for factor in model.factors_], found)
            bands = _bands(model, moments, kept, replicates, random_state, tell)
            return Components(part, wanted, wanted - len(kept), tried, len(moments.groups), bands, grouped)
    return Components(None, 0, 0, tried, len(moments.groups), None, grouped)


def _consensus(
    moments: Moments, whole: Any, noise: torch.Tensor | None, rank: int, restarts: int, seed: int
) -> tuple[CPD, NDArray[np.bool_]]:
    """Return the consensus of several starts, and which of its components vary more than noise: (R,)."""
    model = CPD(rank, readout=None, nonnegative=True, restarts=restarts, consensus=restarts > 1, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(moments)
    if noise is None:
        return model, np.ones(rank, np.bool_)
    unit = [torch.from_numpy(factor / np.maximum(np.linalg.norm(factor, axis=0), 1e-30)) for factor in model.factors_]
    K = khatri_rao(whole.compression.project(unit))
    variance = (K * whole.times(K)).sum(dim=0) / whole.count
    return model, (variance > _NOISE * (noise @ khatri_rao(unit).to(noise.dtype)).square().mean(dim=0)).numpy()


def distinct_components(bases: Sequence[NDArray[Any]], checked: Replicability) -> list[int]:
    """Return the components that replicate, without near-copies of stronger ones that do."""
    unit = [basis / np.maximum(np.linalg.norm(basis, axis=0), 1e-300) for basis in bases]
    alike = np.abs(np.prod([basis.T @ basis for basis in unit], axis=0)) >= SAME
    counted: list[int] = []
    for component in np.flatnonzero(checked.replicates):
        if not alike[component, counted].any():
            counted.append(int(component))
    return counted


def _noise_tensors(moments: Moments) -> torch.Tensor | None:
    """Return centred tensors (n, I·J·K) of Gaussian noise with the mean spectrum of each channel.

    The mean of ln|Z| of Gaussian noise is ln √P − γ/2, with P the power and γ Euler's constant.
    """
    stft = moments.stage.tensorize
    if not isinstance(stft, STFT) or stft.baseline is None:
        return None
    (channels, length), random = moments.windows["shape"], np.random.default_rng(0)
    # Twice the length, so that the ends of a window are independent.
    spectra = np.fft.rfft(random.normal(size=(_NOISE_WINDOWS, channels, 2 * length)))
    places = np.linspace(0, stft.n_fft // 2, spectra.shape[2])
    logs = [np.interp(places, np.arange(stft.n_fft // 2 + 1), row) for row in np.array(stft.baseline)]
    gain = np.exp(np.array(logs) + _EULER / 2) / float(torch.linalg.vector_norm(stft._weights(torch.zeros(1))))
    signals = np.fft.irfft(spectra * gain)[..., :length]
    T = stft.transform(torch.as_tensor(signals, dtype=torch.float32))
    return (T - T.mean(dim=(0, 3), keepdim=True)).flatten(1)


def _bands(
    model: CPD, moments: Moments, kept: NDArray[np.intp], replicates: int, seed: int, tell: Callable[[int, str], None]
) -> list[_Floats] | None:
    """Return 90 % bands of the profiles, (2, I, R) for each mode, from refits to bootstrap samples of the subjects.

    Each refit starts from the consensus and is matched with it. At an entry of zero the band is one-sided.
    """
    names = moments.groups
    if len(names) < _FEWEST or not replicates:
        return None
    random, objective = np.random.default_rng([seed, 1]), Objective(float(model.alpha), nonnegative=True)
    drawn: list[list[_Floats]] = []
    counts = random.multinomial(len(names), np.full(len(names), 1 / len(names)), size=replicates)
    with thread_pool():
        for number, sample in enumerate(moments.resampled(counts)):
            tell(len(_RANKS) + _TENTHS * number // replicates, "bands")
            state = State([torch.from_numpy(factor.copy()) for factor in model.factors_])
            for _ in range(_SWEEPS):
                sample.sweep(state, objective)
            aligned = match(model, [factor.numpy() for factor in state.factors]).aligned
            drawn.append([profiles(factor) for factor in aligned])
    return [
        _band(profiles(factor), samples)[:, :, kept]
        for factor, samples in zip(model.factors_, zip(*drawn, strict=True), strict=True)
    ]


def _band(estimate: _Floats, samples: Sequence[_Floats]) -> _Floats:
    """Return the limits (2, I, R) of the central 90 % of samples (I, R); the lowest 90 % where the estimate is zero."""
    low, high, one_sided = np.percentile(np.stack(samples), [5, 95, 90], axis=0)
    zero = estimate <= 0
    return np.stack([np.where(zero, 0.0, low), np.where(zero, one_sided, high)])
