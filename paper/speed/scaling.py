"""Scaling of the time and memory of a fit with the number of windows, each dimension of the tensor, and the rank.

    python -m paper.speed.scaling WINDOWS.npy

measures the memory of one fit from a file in a separate process, and prints bytes and windows as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from paper.speed.measure import Peak, repeat_in_turn, timed_calls
from paper.speed.stages import build_model, fit_quietly
from paper.timing import seconds_per_sweep
from polyadic import ATD
from polyadic._util.threads import thread_pool
from polyadic.augment import Bandpass, Compose, Jitter
from polyadic.core import step as als
from polyadic.core.tensorizer import tensors
from polyadic.presets import preset
from polyadic.spectral import STFT

_REPEATS = 5

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
    def hop(self) -> int:
        return 4

    @property
    def length(self) -> int:
        return self.n_fft + (self.frames - 1) * self.hop

    def dimensions(self) -> dict[str, int]:
        """Return the sizes in which cost should be linear, by name."""
        return {
            "windows": self.windows,
            "I (channels)": 2 * self.channels,
            "J (frequencies)": self.n_fft // 2 + 1,
            "K (frames)": self.frames,
            "rank": self.rank,
        }


_BASE = ProblemSize()
_SIZES: dict[str, list[ProblemSize]] = {
    "windows": [replace(_BASE, windows=count) for count in (256, 512, 1024, 2048)],
    "I (channels)": [replace(_BASE, channels=count) for count in (3, 6, 12, 24)],
    "J (frequencies)": [replace(_BASE, n_fft=size) for size in (32, 64, 128, 256)],
    "K (frames)": [replace(_BASE, frames=count) for count in (16, 32, 64, 128)],
    "rank": [replace(_BASE, rank=rank) for rank in (16, 32, 64, 128)],
}
_MEMORY_WINDOWS = (4_000, 16_000, 64_000)


def exponent(sizes: ArrayLike, values: ArrayLike) -> float:
    """Return the slope of a straight line through the logarithms, which is 1 for linear growth.

    Examples
    --------
    >>> round(exponent([1, 2, 4], [3, 12, 48]), 6)
    2.0
    """
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def measure_seconds(device: torch.device, quick: bool) -> list[Row]:
    """Measure a sweep of `ATD.fit`, and its steps alone, for several sizes of each dimension, and fit exponents."""
    rows = []
    for name, sizes in _SIZES.items():
        # Smaller sizes do not saturate a GPU.
        scale = 1 / 64 if quick else 16 if device.type == "cuda" else 1
        chosen = [replace(size, windows=int(size.windows * scale)) for size in (sizes[:3] if quick else sizes)]
        found = [_measure_size(size, device, quick) for size in chosen]
        numbers = [size.dimensions()[name] for size in chosen]
        row: Row = {"what": name, "sizes": numbers}
        for kind in ("sweep", "steps"):
            values = [one[kind] for one in found]
            row |= {f"{kind}_seconds": values, f"{kind}_exponent": exponent(numbers, values)}
        rows.append(row)
    return rows


def _measure_size(size: ProblemSize, device: torch.device, quick: bool) -> dict[str, float]:
    """Return the seconds of a sweep of one size, and of its steps alone."""
    X = torch.randn(size.windows, size.channels, size.length, generator=torch.Generator().manual_seed(0)).to(device)
    repeats = 2 if quick else _REPEATS
    batch = min(size.windows, 1024 if device.type == "cuda" else 128)
    model = ATD(
        size.rank,
        readout=None,
        nonnegative=False,
        beta=2.0,
        solver="blend",
        tensorize=STFT(size.n_fft, size.hop, floor="channel"),
        augment=Compose([Jitter(0.05), Bandpass([(1.0, 20.0), (5.0, 24.0)], 50.0)]),
        batch_size=batch,
        max_sweeps=1 + repeats,
        tol=0.0,
        device=device,
    )
    fit_quietly(model, X)
    views = tensors(model.tensorize_, torch.cat([X[:batch], X[:batch]]))
    objective = als.Objective(alpha=1e-3, beta=2.0)
    state = als.State([torch.as_tensor(factor, device=device) for factor in model.factors_])
    once = timed_calls({"step": lambda: als.step([views], state, objective, 2, learning_rate=1e-3)}, device)
    with thread_pool():
        step = float(np.median(repeat_in_turn([once], repeats)["step"]))
    return {"sweep": seconds_per_sweep(model.history_["seconds"]), "steps": step * (size.windows // batch)}


def measure_memory(quick: bool) -> Row:
    """Measure the peak memory of a fit from a file of windows, for several lengths of the file.

    Each fit runs in a separate process (except in a quick run), on HAR windows in a memory-mapped `.npy` file.
    """
    counts = (256, 512) if quick else _MEMORY_WINDOWS
    with tempfile.TemporaryDirectory() as folder:
        found = [_measure_file(Path(folder) / "windows.npy", count, quick) for count in counts]
    values = [one["own_bytes"] for one in found]
    return {
        "windows": list(counts),
        "file_bytes": [one["file_bytes"] for one in found],
        "own_bytes": values,
        "exponent": exponent(counts, np.maximum(values, 1)),
    }


def _measure_file(path: Path, count: int, quick: bool) -> Row:
    """Write `count` windows to a file, and return the memory of one fit from it."""
    shape = (count, *preset("har").shape)
    np.save(path, np.random.default_rng(0).standard_normal(shape, np.float32))
    if quick:
        return _fit_from_file(path)
    words = [sys.executable, "-m", "paper.speed.scaling", str(path)]
    answer = subprocess.run(words, check=True, capture_output=True, text=True)
    row: Row = json.loads(answer.stdout)
    return row


def _fit_from_file(path: Path) -> Row:
    """Return the peak memory of one fit from a file."""
    X = np.load(path, mmap_mode="r")
    model = build_model(preset("har"), torch.device("cpu"), max_sweeps=1)
    with Peak(torch.device("cpu")) as peak:
        fit_quietly(model, X)
    return {"windows": len(X), "file_bytes": path.stat().st_size, "own_bytes": peak.own}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_fit_from_file(Path(sys.argv[1]))) + "\n")
