"""Many fits, and one long fit, whose memory must not grow; for the tests and for the command line.

    python tests/endurance.py [--fits 200] [--seconds 60]

The exit status is 0 if it did not.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from problems import paper

from polyadic import ATD, GRSALS, SALS
from polyadic.augment import Jitter
from polyadic.core import solve
from polyadic.spectral import STFT

WINDOWS = np.random.default_rng(0).normal(size=(60, 3, 96)).astype(np.float32)
FIXED: dict[str, Any] = {"batch_size": 16, "max_sweeps": 2, "tol": 0.0, "device": "cpu", "random_state": 0}
FRAMES: dict[str, Any] = {"tensorize": STFT(32, 8, floor="channel"), "augment": Jitter(0.05)}
KINDS: dict[str, Callable[[], ATD | GRSALS | SALS]] = {
    "blend": lambda: paper(ATD, 4, **FRAMES, **FIXED),
    "memory": lambda: paper(ATD, 4, solver="memory", **FRAMES, **FIXED),
    "full batch": lambda: paper(ATD, 4, **FRAMES, **FIXED | {"batch_size": None}),
    "own function": lambda: paper(ATD, 4, **FIXED, augment=noisy),
    "one view": lambda: paper(SALS, 4, **FIXED),
    "graph": lambda: paper(GRSALS, 4, graph_weight=0.5, **FIXED),
}
ALLOWED = 8 * 2**20
"""Bytes by which memory may differ from one moment to another without growing."""


def noisy(batch: torch.Tensor) -> torch.Tensor:
    """An augmentation that uses torch's random generator."""
    return batch + 0.1 * torch.randn_like(batch)


def outcome(kind: str) -> list[bytes]:
    """Bases and features of a fit, to the bit."""
    model = KINDS[kind]().fit(WINDOWS)
    return [*(factor.tobytes() for factor in model.factors_), model.transform(WINDOWS).tobytes()]


def own_memory() -> int:
    """Return the bytes of memory of this process, without mapped files."""
    gc.collect()
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


def many_fits(fits: int) -> dict[str, int]:
    """So many fits of all kinds, after as many as it takes to warm up; the bytes by which memory grew."""
    kinds = list(KINDS)
    for number in range(4 * len(kinds)):
        outcome(kinds[number % len(kinds)])
    before = own_memory()
    for number in range(fits):
        outcome(kinds[number % len(kinds)])
    return {"fits": fits, "grew_bytes": own_memory() - before}


class EnoughError(Exception):
    """Ends a long fit."""


def soak(seconds: float) -> dict[str, float]:
    """Sweeps for so many seconds; the bytes between the memory after a tenth of them and the highest after that."""
    X = np.random.default_rng(1).normal(size=(1500, 3, 96)).astype(np.float32)
    begun, sweeps = time.monotonic(), 0
    early, highest, plain = 0, 0, solve._run_sweep

    def run_sweep(*arguments: Any) -> None:
        nonlocal sweeps, early, highest
        plain(*arguments)
        sweeps += 1
        gone = time.monotonic() - begun
        if sweeps % 10 == 0 or gone > seconds:
            here = own_memory()
            early = here if not early and gone > seconds / 10 else early
            highest = max(highest, here) if early else 0
        if gone > seconds:
            raise EnoughError

    model = paper(ATD, 8, solver="memory", **FRAMES, **FIXED | {"batch_size": 128, "max_sweeps": 10**9})
    with suppress(EnoughError), patch.object(solve, "_run_sweep", run_sweep):
        model.fit(X)
    return {"seconds": seconds, "sweeps": sweeps, "grew_bytes": highest - early}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fits", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60.0, help="of sweeps")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = {"fits": many_fits(given.fits), "soak": soak(given.seconds)}
    sys.stdout.write(json.dumps({**found, "allowed_bytes": ALLOWED}, indent=1) + "\n")
    if max(each["grew_bytes"] for each in found.values()) > ALLOWED:
        sys.exit(1)


if __name__ == "__main__":
    main()
