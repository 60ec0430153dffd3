"""Measurement of time and memory, and the random windows to measure on."""

from __future__ import annotations

import ctypes
import math
import re
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.exceptions import ConvergenceWarning

from polyadic import CPD


def seconds_per_sweep(seconds: Sequence[float]) -> float:
    """Return the mean duration of sweeps (or epochs) 4 to 8: the paper records eight and drops the first three (D.7).

    For a shorter fit, it is the mean over all sweeps but the first, which includes allocation and cold caches. For a
    fit of one sweep, it is the duration of that sweep.

    Examples
    --------
    >>> seconds_per_sweep([9, 8, 7, 1, 1, 1, 1, 2, 50])
    1.2
    >>> seconds_per_sweep([9, 1, 2])
    1.5
    """
    return float(np.mean(seconds[3:8] if len(seconds) >= 8 else seconds[1:] if len(seconds) > 1 else seconds))


def seconds_of(work: Callable[..., object], device: torch.device, *arguments: Any, **options: Any) -> float:
    """Return the seconds of one call, including what it started on a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    begun = time.perf_counter()
    work(*arguments, **options)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begun


def fit_quietly(model: CPD, X: Any) -> CPD:
    """Fit without convergence warnings, which are expected on random windows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(X)


def random_windows(shape: tuple[int, ...], device: torch.device, seed: int = 0) -> Any:
    """Return random walks (N, channels, time), whose spectra fall like real ones, as stored in 16 bits.

    They are a numpy array, or a tensor on a GPU.
    """
    generator = torch.Generator(device).manual_seed(seed)
    X = torch.empty(shape, dtype=torch.int16, device=device)
    for block in torch.split(X, max(1, 2**26 // math.prod(shape[1:]))):
        steps = torch.randint(-20, 21, block.shape, generator=generator, device=device, dtype=torch.int16)
        block.copy_(torch.cumsum(steps, dim=2, dtype=torch.float32))
    return X if device.type == "cuda" else X.numpy()


def median_and_range(values: Sequence[float]) -> dict[str, float]:
    """Return median, minimum and maximum."""
    return {"median": float(np.median(values)), "least": float(np.min(values)), "most": float(np.max(values))}


def exponent(sizes: ArrayLike, values: ArrayLike) -> float:
    """Return the slope of a straight line through the logarithms, which is 1 for linear growth.

    Examples
    --------
    >>> round(exponent([1, 2, 4], [3, 12, 48]), 6)
    2.0
    """
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


class Peak(threading.Thread):
    """Measures the peak memory of a block of code, and of the process before it.

    On a CPU, it is the anonymous resident memory, without pages of mapped files, sampled every few milliseconds; it
    needs Linux. `first` and `highest` are the bytes before the block and at the peak.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(daemon=True)
        self.device = device
        self.done = threading.Event()
        if device.type != "cuda":
            ctypes.CDLL(None).malloc_trim(0)  # return freed memory, so that it does not count as used
        self.highest = self.first = self._now()

    def _now(self) -> int:
        if self.device.type == "cuda":
            return torch.cuda.memory_allocated(self.device)
        status = Path("/proc/self/status").read_text()
        return 1024 * sum(map(int, re.findall(r"^Rss(?:Anon|Shmem):\s+(\d+) kB", status, re.MULTILINE)))

    def run(self) -> None:
        while self.device.type != "cuda" and not self.done.wait(0.005):
            self.highest = max(self.highest, self._now())

    @property
    def own(self) -> int:
        """Peak memory in bytes, in addition to the memory used before the block."""
        return self.highest - self.first

    def __enter__(self) -> Peak:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.done.set()
        self.join()
        if self.device.type == "cuda":
            self.highest = torch.cuda.max_memory_allocated(self.device)
