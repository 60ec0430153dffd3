"""Speed of random batches from a window store, compared with a bare memory map, and I/O wait of a fit.

    python -m paper.benchmarks.store [OUT.json] [--gib 2]

Batches have 128 windows of the Sleep-EDF size (7 channels, 3,000 samples, int16). The bare gather is numpy's fancy
indexing into one memory map of the same integers; the store returns the integers, or the values in float32. All three
are timed alternately in one process. Then ATD is fitted from the store for one sweep, and the time spent waiting for
the next batch is compared with the total.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from paper.results import provenance
from polyadic import ATD
from polyadic.data import Header, Recording, StoreWriter, WindowStore
from polyadic.presets import preset

CHANNELS, LENGTH, BATCH, NIGHT = 7, 3000, 128, 1200


def generate(path: Path, gib: float) -> WindowStore:
    """Write a store of about `gib` GiB, with a different night of noise for each recording."""
    names = tuple(f"channel {number + 1}" for number in range(CHANNELS))
    header = Header(100.0, names, ("uV",) * CHANNELS, LENGTH, "int16", ("a", "b"))
    size = NIGHT * CHANNELS * LENGTH * 2
    nights = max(2, round(gib * 2**30 / size))
    free = shutil.disk_usage(path.parent).free
    if free < 1.1 * nights * size:
        raise SystemExit(f"the disk is too small: {nights * size / 2**30:.1f} GiB needed, {free / 2**30:.1f} GiB free")
    rng = np.random.default_rng(0)
    noise = rng.integers(-2000, 2000, (CHANNELS, NIGHT * LENGTH), dtype=np.int16)
    starts = np.arange(NIGHT, dtype=np.int64) * LENGTH
    with StoreWriter(path, header) as writer:
        for night in range(nights):
            signal = np.roll(noise, 997 * night, axis=1)
            one = Recording(
                f"night {night}",
                f"subject {night // 2}",
                100.0,
                names,
                header.units,
                signal,
                np.full(CHANNELS, 0.1),
                np.zeros(CHANNELS),
            )
            writer.add(one, starts, (np.arange(NIGHT) % 2).astype(np.int32))
    return WindowStore(path)


def timed(call: Callable[[np.ndarray], object], batches: list[np.ndarray]) -> float:
    begun = time.perf_counter()
    for rows in batches:
        call(rows)
    return BATCH * len(batches) / (time.perf_counter() - begun)


def reading(store: WindowStore, bare: Path, rounds: int = 7, per_round: int = 20) -> dict[str, Any]:
    """Return windows per second of each way of reading (medians over rounds), and their ratios within rounds."""
    rng = np.random.default_rng(1)
    flat = np.memmap(bare, np.int16, "r", shape=store.shape)
    ways = {"bare": lambda rows: flat[rows], "digits": lambda rows: store.raw(rows)[0], "values": store.read}
    speeds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        batches = [rng.integers(0, len(store), BATCH) for _ in range(per_round)]
        for name, call in ways.items():
            speed = timed(call, batches)
            if number:  # the first round only fills the caches
                speeds[name].append(speed)
    ratios = {
        name: sorted(a / b for a, b in zip(speeds[name], speeds["bare"], strict=True)) for name in ("digits", "values")
    }
    return {
        "windows_per_second": {name: round(statistics.median(values)) for name, values in speeds.items()},
        "ratio_to_bare": {
            name: {"median": statistics.median(values), "lowest": values[0], "highest": values[-1]}
            for name, values in ratios.items()
        },
        "rounds": rounds,
    }


def waiting(store: WindowStore) -> dict[str, Any]:
    """Measure the I/O wait in one sweep of ATD from the store, with the paper's settings for Sleep-EDF."""
    paper = preset("sleep_edf")
    model = ATD(**{**paper.parameters, "max_sweeps": 1}, tensorize=paper.tensorize, augment=paper.augment)
    model.fit(store.windows[:: max(1, len(store) // 4096)])
    seconds = sum(model.history_["seconds"])
    return {"windows": model._n_seen, "seconds": seconds, "waited": model.waited_, "share": model.waited_ / seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", nargs="?")
    parser.add_argument("--gib", type=float, default=2.0, help="size of the store in GiB")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = generate(Path(folder) / "store", arguments.gib)
        bare = Path(folder) / "bare"
        with bare.open("wb") as file:
            for first in range(0, len(store), 1024):
                file.write(store.samples[first : first + 1024].tobytes())
        result = {
            **provenance("cpu"),
            "shape": list(store.shape),
            "reading": reading(store, bare),
            "fit": waiting(store),
        }
    text = json.dumps(result, indent=1) + "\n"
    print(text)
    if arguments.out:
        Path(arguments.out).write_text(text)


if __name__ == "__main__":
    main()
