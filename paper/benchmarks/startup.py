"""Start-up time of small commands in new processes, compared with a bare `import torch`.

    python -m paper.benchmarks.startup docs/results/startup/cpu.json

The files are small (240 windows of three channels, a model of rank 8), so imports dominate the time. CPU seconds
correspond to wall time on an idle machine, because imports run in one thread.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from paper.results import provenance, write_result

ROUNDS = 7
COMMANDS = {
    "--help": "--help",
    "info model": "info model.safetensors",
    "info arrays": "info windows.npz",
    "predict": "predict model.safetensors windows.npz -o labels.csv",
}
FIT = "fit windows.npz --probe --rank 8 --sweeps 3 --quiet -o model.safetensors"
BARE = {"import torch": "import torch", "import torch, sklearn.base": "import torch, sklearn.base"}

FILES = """
import numpy as np
X = np.random.default_rng(0).standard_normal((240, 3, 256)).astype(np.float32)
numbers = np.arange(240)
X[numbers % 2 == 0] *= 2
np.savez("windows.npz", X=X, y=np.array(["rest", "walk"])[numbers % 2], subject=numbers // 20, fs=100.0)
"""


def run(words: list[str], folder: Path) -> tuple[float, float]:
    """Run a new Python process, and return its wall time and CPU time in seconds."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-W", "ignore", *words], cwd=folder, check=True, capture_output=True)
    wall, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def main(out: Path) -> None:
    calls = {("bare", name): ["-c", code] for name, code in BARE.items()}
    calls |= {("this", name): ["-m", "polyadic", *words.split()] for name, words in COMMANDS.items()}
    seconds: dict[tuple[str, str], list[tuple[float, float]]] = {key: [] for key in calls}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(["-c", FILES], folder)
        run(["-m", "polyadic", *FIT.split()], folder)
        for number in range(1 + ROUNDS):
            for key, words in calls.items():
                (folder / "labels.csv").unlink(missing_ok=True)  # outputs are not overwritten
                times = run(words, folder)
                if number:  # the first round only fills the disk cache
                    seconds[key].append(times)
    rows = [
        {
            "tree": side,
            "command": command,
            "median_seconds": round(statistics.median(wall for wall, _ in times), 3),
            "median_processor_seconds": round(statistics.median(processor for _, processor in times), 3),
        }
        for (side, command), times in seconds.items()
    ]
    title = "Seconds of small commands in fresh processes"
    write_result(out, {"title": title, **provenance("cpu"), "rounds": ROUNDS, "rows": rows})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
