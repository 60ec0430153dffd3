"""Measurement of time, memory and machine limits for `python -m paper speed`."""

from __future__ import annotations

import ctypes
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch


class Laps:
    """Measures the seconds between marks, on a GPU by CUDA events."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.marks: list[tuple[str, Any]] = []
        self.mark("")

    def mark(self, name: str) -> None:
        """End the current lap, and give it this name."""
        moment: Any = time.perf_counter()
        if self.device.type == "cuda":
            moment = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            moment.record()
        self.marks.append((name, moment))

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each lap by name, after waiting for the device."""
        if self.device.type != "cuda":
            return {name: after - before for (_, before), (name, after) in pairwise(self.marks)}
        torch.cuda.synchronize(self.device)
        return {name: before.elapsed_time(after) / 1e3 for (_, before), (name, after) in pairwise(self.marks)}


def repeat_in_turn(
    measurements: Sequence[Callable[[], Mapping[str, float]]], repeats: int, warm_up: int = 1
) -> dict[str, list[float]]:
    """Repeat several measurements alternately, so that disturbances of the machine affect all of them.

    Parameters
    ----------
    measurements : functions that measure something and return seconds by name
    repeats, warm_up : number of measured rounds, and of rounds before them that are discarded

    Returns
    -------
    for each name, the seconds of every repeat

    Examples
    --------
    >>> repeat_in_turn([lambda: {"a": 1.0}, lambda: {"b": 2.0}], repeats=2)
    {'a': [1.0, 1.0], 'b': [2.0, 2.0]}
    """
    times: dict[str, list[float]] = {}
    for number in range(warm_up + repeats):
        for measure in measurements:
            for name, seconds in measure().items():
                if number >= warm_up:
                    times.setdefault(name, []).append(seconds)
    return times


def timed_calls(functions: Mapping[str, Callable[[], object]], device: torch.device) -> Callable[[], dict[str, float]]:
    """Return a measurement for `repeat_in_turn` that calls each of the functions once."""

    def once() -> dict[str, float]:
        laps = Laps(device)
        for name, function in functions.items():
            function()
            laps.mark(name)
        return laps.seconds()

    return once


def median_and_range(values: Sequence[float]) -> dict[str, float]:
    """Return median, minimum and maximum."""
    return {"median": float(np.median(values)), "least": float(np.min(values)), "most": float(np.max(values))}


def ceiling_calls(device: torch.device, quick: bool) -> tuple[dict[str, Callable[[], object]], dict[str, float]]:
    """Return functions that measure the limits of the machine: a large float32 matrix product and a large copy.

    Returns
    -------
    the functions by name, and the flops or bytes of each (a copy reads and writes)
    """
    cuda = device.type == "cuda"
    size = 256 if quick else 8192 if cuda else 2048
    count = 2**20 if quick else 2**29 if cuda else 2**26
    A, B, C = (torch.ones(size, size, device=device) for _ in range(3))
    source, target = (torch.ones(count, device=device) for _ in range(2))
    calls: dict[str, Callable[[], object]] = {
        "matmul": lambda: torch.mm(A, B, out=C),
        "copy": lambda: target.copy_(source),
    }
    return calls, {"matmul": 2.0 * size**3, "copy": 8.0 * count}


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
