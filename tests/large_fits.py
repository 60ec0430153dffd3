"""Peak memory of a fit from a store, which should not depend on the size of the store.

    python tests/large_fits.py OUT.json [--gib 12] [--hop 32]

Writes a store of the given size with windows of the Sleep-EDF shape to a temporary folder, fits ATD for one sweep with
the paper's augmentations, and reports the peak anonymous resident memory of the process, minus the memory used after
the imports. Pages of mapped files are not counted, because the system can reclaim them at any time.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polyadic import ATD
from polyadic.augment import Augmentation
from polyadic.data import Header, Recording, StoreWriter, WindowStore
from polyadic.presets import preset

sys.path.insert(0, str(Path(__file__).parents[1]))  # `paper` is in no installed package

from paper.results import provenance, write_result
from paper.speed.measure import Peak

CHANNELS, LENGTH, NIGHT = 7, 3000, 1200


@dataclasses.dataclass(frozen=True)
class Flip(Augmentation):
    """A change of sign, which is fast."""

    def apply(self, X: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        return -X


def generate(path: Path, gib: float) -> WindowStore:
    """Write a store of about `gib` GiB, with a different night of noise for each recording."""
    names = tuple(f"channel {number + 1}" for number in range(CHANNELS))
    header = Header(100.0, names, ("uV",) * CHANNELS, LENGTH, ("a", "b"))
    noise = np.random.default_rng(0).uniform(-200, 200, (CHANNELS, NIGHT * LENGTH)).astype(np.float32)
    starts, labels = np.arange(NIGHT) * LENGTH, np.arange(NIGHT) % 2
    with StoreWriter(path, header) as writer:
        for night in range(max(2, round(gib * 2**30 / noise.nbytes))):
            signal = np.roll(noise, 997 * night, axis=1)
            writer.add(Recording(f"{night}", f"{night // 2}", 100.0, names, header.units, signal), starts, labels)
    return WindowStore(path)


def measure(path: Path, hop: int, flip: bool) -> dict[str, Any]:
    """Return the peak memory of a fit and `transform` in this process; `flip` augments by a change of sign only."""
    paper = preset("sleep_edf")
    model = ATD(
        **{**paper.parameters, "max_sweeps": 1},
        tensorize=dataclasses.replace(paper.tensorize, hop=hop),
        augment=Flip() if flip else paper.augment,
        device="cpu",
    )
    begun = time.perf_counter()
    with Peak(torch.device("cpu")) as peak:
        store = WindowStore(path)
        model.fit(store)
        model.transform(store, out=path.parent / "features.npy")
    return {
        "windows": len(store),
        "stored_bytes": store.samples.nbytes,
        "own_bytes": peak.own,
        "after_imports_bytes": peak.first,
        "seconds": time.perf_counter() - begun,
        "hop": hop,
        "augment": "flip" if flip else "paper",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, nargs="?", help="result file; without it, the result is only printed")
    parser.add_argument("--gib", type=float, default=12.0, help="size of the store in GiB")
    parser.add_argument("--hop", type=int, default=32, help="hop length in samples; 32 in the paper")
    parser.add_argument("--flip", action="store_true", help="augment only by a change of sign, which is fast")
    parser.add_argument("--store", help="measure the fit from an existing store, in this process", type=Path)
    given = parser.parse_args()
    if given.store:
        sys.stdout.write(json.dumps(measure(given.store, given.hop, given.flip)) + "\n")
        return
    with tempfile.TemporaryDirectory() as folder:
        store = generate(Path(folder) / "store", given.gib)
        # Measure in a separate process, so that the memory for writing the store is not counted.
        command = [sys.executable, __file__, "--store", str(store.path), "--hop", str(given.hop)]
        answer = subprocess.run([*command, *["--flip"] * given.flip], check=True, capture_output=True, text=True)
    sys.stdout.write(answer.stdout)
    if given.out:
        write_result(given.out, {**provenance("cpu"), **json.loads(answer.stdout)})


if __name__ == "__main__":
    main()
