"""Fits that are killed at seeded moments and resumed until they are done, for the tests and for the command line.

    python tests/killed_fits.py --kills 100 [--seed 0] [OUT.json]

Every kill is a SIGKILL, half of them from outside after a random time, half from inside while a checkpoint is being
written: after a random number of its bytes, before it gets its name, or before the one before it is removed. Each fit
is killed once, then resumed in a new process; its bases must be, to the bit, those of the fit that nothing stopped.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from problems import paper

from polyadic import ATD, SALS
from polyadic.augment import Jitter
from polyadic.scale import checkpoints
from polyadic.spectral import STFT

WINDOWS = np.random.default_rng(0).normal(size=(90, 3, 96)).astype(np.float32)
FRAMES = STFT(32, 8, floor="channel")
KINDS: dict[str, Callable[[], ATD | SALS]] = {
    "blend": lambda: paper(ATD, 4, tensorize=FRAMES, augment=Jitter(0.05), batch_size=16, max_sweeps=5, tol=0.0),
    "memory": lambda: paper(
        ATD,
        4,
        tensorize=FRAMES,
        augment=Jitter(0.05),
        solver="memory",
        batch_size=16,
        max_sweeps=5,
        tol=0.0,
    ),
    "full batch": lambda: paper(
        ATD, 4, tensorize=FRAMES, augment=Jitter(0.05), batch_size=None, max_sweeps=12, tol=0.0
    ),
    "one view": lambda: paper(SALS, 4, batch_size=8, max_sweeps=4, tol=0.0),
    "default": lambda: ATD(4, max_sweeps=12, tol=0.0),
    "non-negative": lambda: ATD(4, solver="blend", batch_size=16, max_sweeps=4, tol=0.0),
    "restarts": lambda: paper(SALS, 4, solver="memory", batch_size=45, max_sweeps=2, tol=0.0, restarts=4),
    "consensus": lambda: ATD(4, solver="moments", max_sweeps=3, tol=0.0, restarts=4, consensus=True),
}


def fit(kind: str, folder: Path | None, resume: bool = False) -> ATD | SALS:
    """A small fit with a checkpoint after every step."""
    model = KINDS[kind]().set_params(device="cpu")
    return model.fit(WINDOWS, checkpoint=folder, resume=resume, checkpoint_every=0.0)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


@contextmanager
def dying_while_writing(number: int, place: str, share: float) -> Iterator[None]:
    """Within it, writing checkpoint `number` kills the process at that place of the writing."""
    atomically, sync, count = checkpoints.open_atomically, checkpoints.sync_folder, 0

    class Dying:
        def __init__(self, file: Any) -> None:
            self.file = file

        def writelines(self, parts: Sequence[bytes]) -> None:
            content = b"".join(parts)
            self.file.write(content[: int(share * len(content))])
            self.file.flush()
            die()

    @contextmanager
    def opened(path: Path) -> Iterator[Any]:
        nonlocal count
        count += 1
        with atomically(path) as file:
            yield Dying(file) if count == number and place == "bytes" else file
            if count == number and place == "name":
                file.flush()
                die()

    def synced(folder: Path) -> None:
        if count == number and place == "removal":
            die()
        sync(folder)

    checkpoints.open_atomically, checkpoints.sync_folder = opened, synced  # type: ignore[assignment]
    try:
        yield
    finally:
        checkpoints.open_atomically, checkpoints.sync_folder = atomically, sync


def in_a_child(work: Callable[[], None], after: float | None = None) -> int:
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


def duration(kind: str) -> float:
    """Return the seconds that an uninterrupted fit takes, including checkpoints."""
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        in_a_child(lambda: fit(kind, Path(folder)) and None)
        return time.perf_counter() - begun


def kill_and_resume(kind: str, chance: random.Random, writing: bool, seconds: float) -> dict[str, Any]:
    """Kill a fit at a random moment, resume it, and return what happened."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        if writing:
            where = chance.choice(("bytes", "bytes", "name", "removal"))
            number, share = chance.randint(1, 10), chance.random()

            def work() -> None:
                with dying_while_writing(number, where, share):
                    fit(kind, place)

            status = in_a_child(work)
            moment = f"checkpoint {number}, {where} {share:.2f}"
        else:
            after = chance.uniform(0.0, seconds)
            status = in_a_child(lambda: fit(kind, place) and None, after)
            moment = f"{after:.4f} s"
        left = sorted(path.name for path in place.iterdir())
        resumed = fit(kind, place, resume=True)
    factors = [factor.tobytes() for factor in resumed.factors_]
    return {"kind": kind, "moment": moment, "killed": os.WIFSIGNALED(status), "left": left, "factors": factors}


def survive(kills: int, seed: int) -> dict[str, int]:
    """So many kills, half of them during the writing of a checkpoint, over all kinds of fit in turn."""
    chance = random.Random(seed)
    whole = {kind: [factor.tobytes() for factor in fit(kind, None).factors_] for kind in KINDS}
    lasts = {kind: duration(kind) for kind in KINDS}
    counts = {"kills": 0, "while writing": 0, "same to the bit": 0, "ended before the kill": 0}
    tries = 0
    while counts["kills"] < kills:
        kind, writing = list(KINDS)[tries % len(KINDS)], tries // len(KINDS) % 2 == 0
        tries += 1
        outcome = kill_and_resume(kind, chance, writing, lasts[kind])
        same = outcome["factors"] == whole[kind]
        if not same:
            raise AssertionError(f"{kind}, killed at {outcome['moment']}, ended with other bases ({outcome['left']})")
        if not outcome["killed"]:
            counts["ended before the kill"] += 1
            continue
        counts["kills"] += 1
        counts["while writing"] += writing
        counts["same to the bit"] += same
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", type=Path)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)  # a process that forks must have no threads
    counts = survive(given.kills, given.seed)
    text = json.dumps({"seed": given.seed, **counts}, indent=1)
    sys.stdout.write(text + "\n")
    if given.out is not None:
        given.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
