"""Peak memory of a fit from a store, which should not depend on the size of the store.

    python -m paper.benchmarks.memory [OUT.json] [--gib 12] [--hop 32]

Writes a store of the given size with windows of the Sleep-EDF shape to a temporary folder (or to --folder), fits ATD
for one sweep with the paper's augmentations, and reports the peak anonymous resident memory of the process, minus the
memory used after the imports. Pages of mapped files are not counted, because the system can reclaim them at any time.
Exits with a message if the disk is too small.
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

import torch

from paper.results import provenance
from paper.speed.measure import Peak
from polyadic import ATD
from polyadic.data import WindowStore
from polyadic.presets import preset


def measure(store: Path, hop: int, flip: bool) -> dict[str, Any]:
    paper = preset("sleep_edf")
    model = ATD(
        **{**paper.parameters, "max_sweeps": 1},
        tensorize=dataclasses.replace(paper.tensorize, hop=hop),
        augment=torch.neg if flip else paper.augment,
        device="cpu",
    )
    begun = time.perf_counter()
    with Peak(torch.device("cpu")) as peak:
        opened = WindowStore(store)
        model.fit(opened)
        model.transform(opened, out=store.parent / "features.npy")
    return {
        "windows": len(opened),
        "stored_bytes": opened.samples.nbytes,
        "own_bytes": peak.own,
        "after_imports_bytes": peak.first,
        "seconds": time.perf_counter() - begun,
        "waited_seconds": model.waited_,
        "hop": hop,
        "augment": "flip" if flip else "paper",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", nargs="?")
    parser.add_argument("--gib", type=float, default=12.0, help="size of the store in GiB")
    parser.add_argument("--hop", type=int, default=32, help="hop length in samples; 32 in the paper")
    parser.add_argument("--flip", action="store_true", help="augment only by a change of sign, which is fast")
    parser.add_argument("--folder", help="folder for the temporary store")
    parser.add_argument("--store", help="measure the fit from an existing store, in this process", type=Path)
    arguments = parser.parse_args()
    if arguments.store:
        print(json.dumps(measure(arguments.store, arguments.hop, arguments.flip)))
        return
    from paper.benchmarks.store import generate

    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        store = generate(Path(folder) / "store", arguments.gib)
        # Measure in a separate process, so that the memory for writing the store is not counted.
        command = [
            sys.executable,
            "-m",
            "paper.benchmarks.memory",
            "--store",
            str(store.path),
            "--hop",
            str(arguments.hop),
        ]
        command += ["--flip"] * arguments.flip
        found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    text = json.dumps({**provenance("cpu"), **json.loads(found)}, indent=1) + "\n"
    print(text)
    if arguments.out:
        Path(arguments.out).write_text(text)


if __name__ == "__main__":
    main()
