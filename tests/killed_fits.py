"""Fits that are killed at seeded moments and resumed, for the tests and for the command line.

    python tests/killed_fits.py --kills 100 [--seed 0]

Every kill is a SIGKILL, half of them from outside after a random time, half from inside while a checkpoint is being
written: after a random share of its bytes, or before it gets its name. Each fit is killed once, then resumed; its bases
must be, to the bit, those of the fit that nothing stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from problems import paper

from polyadic import ATD, CPD, SALS
from polyadic._util import files, model_files
from polyadic.augment import Jitter
from polyadic.spectral import STFT

WINDOWS = np.random.default_rng(0).normal(size=(90, 3, 96)).astype(np.float32)
VIEWS = {"rank": 4, "tensorize": STFT(32, 8, floor="channel"), "augment": Jitter(0.05), "tol": 0.0}
KINDS: dict[str, Callable[[], CPD]] = {
    "Algorithm 1": lambda: paper(ATD, **VIEWS, batch_size=None, max_sweeps=12),
    "Algorithm 2": lambda: paper(ATD, **VIEWS, batch_size=16, max_sweeps=5),
    "memory": lambda: paper(ATD, **VIEWS, solver="memory", batch_size=16, max_sweeps=5),
    "CPD": lambda: CPD(4, max_sweeps=12, tol=0.0),
    "non-negative mini-batches": lambda: SALS(4, batch_size=16, max_sweeps=4, tol=0.0),
    "restarts": lambda: paper(SALS, 4, solver="memory", batch_size=45, max_sweeps=2, tol=0.0, restarts=4),
    "consensus": lambda: SALS(4, batch_size=16, max_sweeps=3, tol=0.0, restarts=4, consensus=True),
}


def fit(kind: str, checkpoint: Path | None, resume: bool = False) -> CPD:
    """A small fit with a checkpoint after every sweep."""
    model = KINDS[kind]().set_params(device="cpu")
    return model.fit(WINDOWS, checkpoint=checkpoint, resume=resume, checkpoint_every=0.0)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def die_while_writing(number: int, share: float) -> None:
    """From now on, writing checkpoint `number` kills the process after this share of its bytes; at 1, before its name.

    For a child process, which does not go on after it.
    """
    whole, count = model_files.write_atomically, 0

    def write(path: Any, content: bytes) -> None:
        nonlocal count
        count += 1
        if count == number:
            with files.open_atomically(path) as file:
                file.write(content[: int(share * len(content))])
                file.flush()
                die()
        whole(path, content)

    model_files.write_atomically = write


def in_a_child(work: Callable[[], object], after: float | None = None) -> int:
    """Do some work in a child process, kill it after some seconds if it still runs, and return its wait status."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    if after is not None:
        time.sleep(after)
        os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


def kill_and_resume(kind: str, chance: random.Random, writing: bool, seconds: float) -> tuple[bool, CPD, str]:
    """Kill a fit at a random moment and resume it: whether it was killed before its end, the model, the moment."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fit.checkpoint"
        if writing:
            number, share = chance.randint(1, 5), chance.choice((chance.random(), 1.0))
            status = in_a_child(lambda: (die_while_writing(number, share), fit(kind, path)))
            moment = f"{share:.2f} of checkpoint {number}"
        else:
            after = chance.uniform(0.0, seconds)
            status = in_a_child(lambda: fit(kind, path), after)
            moment = f"{after:.4f} s"
        return os.WIFSIGNALED(status), fit(kind, path, resume=True), moment


def survive(kills: int, seed: int) -> dict[str, int]:
    """So many kills, half of them during the writing of a checkpoint, over all kinds of fit in turn."""
    chance, whole, seconds = random.Random(seed), {}, {}
    counts = {"kills": 0, "while writing": 0, "same to the bit": 0, "ended before the kill": 0}
    for kind in KINDS:
        begun = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            whole[kind] = fit(kind, Path(folder) / "fit.checkpoint").factors_
        seconds[kind] = time.perf_counter() - begun
    tries = 0
    while counts["kills"] < kills:
        kind, writing = list(KINDS)[tries % len(KINDS)], tries // len(KINDS) % 2 == 0
        tries += 1
        killed, resumed, moment = kill_and_resume(kind, chance, writing, seconds[kind])
        if not all(np.array_equal(a, b) for a, b in zip(resumed.factors_, whole[kind], strict=True)):
            raise AssertionError(f"{kind}, killed at {moment}, ended with other bases")
        counts["kills"] += killed
        counts["same to the bit"] += killed
        counts["while writing"] += killed and writing
        counts["ended before the kill"] += not killed
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)  # a process that forks must have no threads
    sys.stdout.write(json.dumps({"seed": given.seed, **survive(given.kills, given.seed)}, indent=1) + "\n")


if __name__ == "__main__":
    main()
