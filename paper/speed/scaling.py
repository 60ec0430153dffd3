"""Scaling of the time of a fit with the number of windows, each dimension of the tensor, and the rank."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from paper.speed.measure import repeat_in_turn, seconds_per_sweep, timed_calls
from paper.speed.sweeps import fit_quietly
from polyadic import ATD
from polyadic._util.threads import thread_pool
from polyadic.augment import Bandpass, Compose, Jitter
from polyadic.core import step as als
from polyadic.core.tensorizer import tensors
from polyadic.presets import PAPER_METHOD
from polyadic.spectral import STFT

_REPEATS = 5
_HOP = 4

Row = dict[str, Any]


@dataclass(frozen=True)
class ProblemSize:
    """A size of the problem: tensors of (2 · channels) × (n_fft / 2 + 1) × frames."""

    windows: int = 512
    channels: int = 6
    n_fft: int = 64
    frames: int = 32
    rank: int = 32

    @property
    def length(self) -> int:
        return self.n_fft + (self.frames - 1) * _HOP

    def dimensions(self) -> dict[str, int]:
        """Return the sizes in which cost should be linear, by name."""
        tensor = (2 * self.channels, self.n_fft // 2 + 1, self.frames)
        names = ("windows", "I (channels)", "J (frequencies)", "K (frames)", "rank")
        return dict(zip(names, (self.windows, *tensor, self.rank), strict=True))


SIZES: dict[str, list[ProblemSize]] = {
    "windows": [ProblemSize(windows=count) for count in (256, 512, 1024, 2048)],
    "I (channels)": [ProblemSize(channels=count) for count in (3, 6, 12, 24)],
    "J (frequencies)": [ProblemSize(n_fft=size) for size in (32, 64, 128, 256)],
    "K (frames)": [ProblemSize(frames=count) for count in (16, 32, 64, 128)],
    "rank": [ProblemSize(rank=rank) for rank in (16, 32, 64, 128)],
}


def exponent(sizes: ArrayLike, values: ArrayLike) -> float:
    """Return the slope of a straight line through the logarithms, which is 1 for linear growth.

    Examples
    --------
    >>> round(exponent([1, 2, 4], [3, 12, 48]), 6)
    2.0
    """
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def measure_growth(device: torch.device, quick: bool) -> list[Row]:
    """Measure a sweep of `ATD.fit`, and its steps alone, for several sizes of each dimension, and fit exponents."""
    rows = []
    for name, sizes in SIZES.items():
        # Smaller sizes do not saturate a GPU.
        scale = 1 / 64 if quick else 16 if device.type == "cuda" else 1
        chosen = [replace(size, windows=int(size.windows * scale)) for size in (sizes[:3] if quick else sizes)]
        times = [_measure_size(size, device, 2 if quick else _REPEATS) for size in chosen]
        numbers = [size.dimensions()[name] for size in chosen]
        row: Row = {"what": name, "sizes": numbers}
        for kind, values in zip(("sweep", "steps"), map(list, zip(*times, strict=True)), strict=True):
            row |= {f"{kind}_seconds": values, f"{kind}_exponent": exponent(numbers, values)}
        rows.append(row)
    return rows


def _measure_size(size: ProblemSize, device: torch.device, repeats: int) -> tuple[float, float]:
    """Return the seconds of a sweep of one size, and of its steps alone."""
    X = torch.randn(size.windows, size.channels, size.length, generator=torch.Generator().manual_seed(0)).to(device)
    batch = min(size.windows, 1024 if device.type == "cuda" else 128)
    settings = {**PAPER_METHOD, "rank": size.rank, "batch_size": batch, "max_sweeps": 1 + repeats, "tol": 0.0}
    views = Compose([Jitter(0.05), Bandpass([(1.0, 20.0), (5.0, 24.0)], 50.0)])
    model = ATD(tensorize=STFT(size.n_fft, _HOP, floor="channel"), augment=views, device=device, **settings)
    fit_quietly(model, X)
    T = tensors(model.tensorize_, torch.cat([X[:batch], X[:batch]]))
    objective = als.Objective(alpha=1e-3, beta=2.0)
    state = als.State([torch.as_tensor(factor, device=device) for factor in model.factors_])
    once = timed_calls({"step": lambda: als.step([T], state, objective, 2, learning_rate=1e-3)}, device)
    with thread_pool():
        step = float(np.median(repeat_in_turn([once], repeats)["step"]))
    return seconds_per_sweep(model.history_["seconds"]), step * (size.windows // batch)
