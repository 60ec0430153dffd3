"""Start-up time of small commands in new processes, compared with a bare `import torch`.

    python -m paper.benchmarks.startup docs/results/startup/cpu.json [--before TREE] [--rounds 7]

Each round runs every command once with this source tree and once with another one, so that both see the same load. Each
tree creates its own files. They are small (240 windows of three channels, a model of rank 8), so imports dominate the
time. CPU seconds correspond to wall time on an idle machine, because imports run in one thread.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[2]
COMMANDS = {
    "--help": ["--help"],
    "info model": ["info", "model.safetensors"],
    "info arrays": ["info", "windows.npz"],
    "predict": ["predict", "model.safetensors", "windows.npz", "-o", "labels.csv"],
}
BARE = {"import torch": "import torch", "import torch, sklearn.base": "import torch, sklearn.base"}

FILES = """
import numpy as np
X = np.random.default_rng(0).standard_normal((240, 3, 256)).astype(np.float32)
numbers = np.arange(240)
X[numbers % 2 == 0] *= 2
np.savez("windows.npz", X=X, y=np.array(["rest", "walk"])[numbers % 2], subject=numbers // 20, fs=100.0)
"""


def run(words: list[str], folder: Path, tree: Path) -> tuple[float, float]:
    """Run a new Python process with a source tree, and return its wall time and CPU time in seconds."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # compile modules once, as in an installed package
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    (Path(folder) / "labels.csv").unlink(missing_ok=True)  # outputs are not overwritten
    subprocess.run([sys.executable, *words], cwd=folder, env=environment, check=True, capture_output=True)
    took, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def prepare(folder: Path, tree: Path) -> None:
    """Write the files that the commands read."""
    folder.mkdir()
    run(["-c", FILES], folder, tree)
    words = "fit windows.npz --probe --rank 8 --sweeps 3 --quiet -o model.safetensors"
    run(["-W", "ignore", "-m", "polyadic", *words.split()], folder, tree)


def measure(trees: dict[str, Path], folder: Path, rounds: int) -> list[dict[str, Any]]:
    """Return rows of medians; the first round only fills the disk cache."""
    calls = {("bare", name): (["-c", code], folder, HERE) for name, code in BARE.items()}
    for side, tree in trees.items():
        prepare(folder / side, tree)
        for name, words in COMMANDS.items():
            calls[side, name] = (["-W", "ignore", "-m", "polyadic", *words], folder / side, tree)
    seconds: dict[tuple[str, str], list[tuple[float, float]]] = {key: [] for key in calls}
    for number in range(rounds + 1):
        for key, call in calls.items():
            took = run(*call)
            if number:
                seconds[key].append(took)
    return [
        {
            "tree": side,
            "command": name,
            "seconds": [round(wall, 3) for wall, _ in took],
            "processor_seconds": [round(processor, 3) for _, processor in took],
            "median_seconds": round(statistics.median(wall for wall, _ in took), 3),
            "median_processor_seconds": round(statistics.median(processor for _, processor in took), 3),
        }
        for (side, name), took in seconds.items()
    ]


def main() -> None:
    from paper.results import provenance, write_result

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--before", type=Path, help="source tree to compare with")
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    trees = {"this": HERE} | ({"before": given.before.resolve()} if given.before else {})
    words = ["git", "rev-parse", "--short=12", "HEAD"]
    commits = {
        side: subprocess.run(words, cwd=tree, capture_output=True, text=True).stdout.strip()
        for side, tree in trees.items()
    }
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(trees, Path(folder), given.rounds)
    for row in rows:
        wall, processor = row["median_seconds"], row["median_processor_seconds"]
        print(f"{row['tree']:>7}  {row['command']:<27} {wall:.2f} s, {processor:.2f} s CPU")
    result = {
        "title": "Seconds of small commands in fresh processes",
        **provenance("cpu"),
        "commits": commits,
        "rounds": given.rounds,
        "rows": rows,
    }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    write_result(given.out, result)


if __name__ == "__main__":
    main()
