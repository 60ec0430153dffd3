"""Speed-up by `polyadic.reuse_memory`: seconds per sweep with and without it, measured alternately in new processes.

python -m paper.benchmarks.reuse_memory docs/results/memory/reuse-cpu.json [--rounds 5]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

WINDOWS = {"har": 2_560, "sleep_edf": 384, "ptb_xl": 256, "mgh": 512}
SWEEPS = 4

PROGRAM = """
import json, sys
if sys.argv[2] == "with":
    import polyadic
    polyadic.reuse_memory()
import numpy as np
from polyadic import ATD
from polyadic.presets import preset
paper = preset(sys.argv[1])
X = np.random.default_rng(0).standard_normal((int(sys.argv[3]), *paper.shape), np.float32)
settings = {**paper.parameters, "max_sweeps": int(sys.argv[4]), "tol": 0.0, "device": "cpu"}
model = ATD(tensorize=paper.tensorize, augment=paper.augment, **settings).fit(X)
print(json.dumps(model.history_["seconds"][1:]))
"""


def seconds(name: str, how: str) -> float:
    """Return the median sweep time of a fit in a separate process, without the first sweep."""
    words = [sys.executable, "-W", "ignore", "-c", PROGRAM, name, how, str(WINDOWS[name]), str(SWEEPS)]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    return float(statistics.median(json.loads(done.stdout)))


def main() -> None:
    from paper.results import provenance, write_result

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    rows = []
    for name, count in WINDOWS.items():
        found: dict[str, list[float]] = {"without": [], "with": []}
        for _ in range(given.rounds):
            for how in found:
                found[how].append(seconds(name, how))
        ratios = [without / with_ for without, with_ in zip(found["without"], found["with"], strict=True)]
        rows.append({"dataset": name, "windows": count, "seconds_per_sweep": found, "gain": statistics.median(ratios)})
        print(f"{name}: {rows[-1]['gain']:.2f} times ({min(ratios):.2f} to {max(ratios):.2f})", flush=True)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    result = {"title": "Seconds per sweep without and with reuse_memory", **provenance("cpu"), "rows": rows}
    write_result(given.out, result)


if __name__ == "__main__":
    main()
