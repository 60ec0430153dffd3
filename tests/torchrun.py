"""Starting the processes of `teams.py` with torchrun, and comparing what they end with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from command_line import python

from polyadic.data import Header, StoreWriter, Windows, WindowStore, synthetic

SCRIPT = str(Path(__file__).parent / "teams.py")


def torchrun(*words: object, processes: int, code: int = 0, restarts: int = 0, cwd: Path | None = None) -> str:
    """Run a command in several processes, and return their output."""
    options = ["--standalone", "--nproc-per-node", str(processes), "--max-restarts", str(restarts)]
    command = [sys.executable, "-m", "torch.distributed.run", *options, *map(str, words)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TORCHELASTIC_ERROR_FILE": "", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, cwd=cwd)
    assert (done.returncode != 0) == (code != 0), done.stderr
    return done.stdout + done.stderr


def forked(*words: object, processes: int) -> None:
    """Run tasks in so many processes forked from one that has done the imports: by torchrun each does them anew."""
    python("import teams; teams.main()", *words, f"forks={processes}", cwd=Path.cwd())


def ended(task: str, folder: Path, processes: int) -> list[dict[str, np.ndarray]]:
    """Return the results of a task from each process."""
    return [dict(np.load(folder / task / f"{number}.npz")) for number in range(processes)]


def part_of(found: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): array for name, array in found.items() if name.startswith(prefix)}


def assert_close(found: dict[str, np.ndarray], expected: dict[str, np.ndarray], tolerance: float) -> None:
    """Histories are measured by the loss, of which their terms are parts."""
    for name, array in expected.items():
        size = np.abs(expected["history loss"]).max() if "history" in name else np.linalg.norm(array)
        assert np.linalg.norm(found[name] - array) <= tolerance * size, name


def written_store(folder: Path) -> WindowStore:
    """The store w.store in a folder, with recordings of very different sizes."""
    folder.mkdir(exist_ok=True)
    signals, names = synthetic(80, 3, 96), ("a", "b", "c")
    recording = np.repeat(["r0", "r1", "r2", "r3"], [50, 3, 20, 7])
    windows = Windows(signals.X, signals.fs, recording=recording, channels=names, units=["uV"] * 3)
    header = Header(signals.fs, names, ("uV",) * 3, 96, "float32")
    with StoreWriter(folder / "w.store", header) as writer:
        for name in np.unique(recording):
            writer.add_windows(windows.select(recording=str(name)))
    return WindowStore(folder / "w.store")
