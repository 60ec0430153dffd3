"""One fit by several processes: strong and weak scaling, what goes into messages, and a model of larger machines.

    python benchmarks/scale.py docs/results/scale [--windows 1024] [--rounds 3]
    python benchmarks/scale.py docs/results/scale --model

The first writes cpu.json and model.json, the second model.json alone.

Strong: the same windows in the same batches by one process and by two. Weak: two processes with twice the windows in
batches twice as large. Each process has one thread, so two need two idle cores. Both ways to exchange sums are
measured, and messages by themselves at many sizes, from which the size follows beyond which the sums of each mode are
faster than the block (`polyadic.distributed._BLOCK_BYTES`).

The model: a step takes its part of the batch at the speed of one process, a fixed time, and a latency and a share of
the bandwidth for each message; reading goes on beside it. cpu.json checks it against the runs here; model.json asks it
about machines that are not here, with figures for them that are assumptions and stand beside what follows from them.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polyadic import ATD, distributed
from polyadic.augment import Jitter
from polyadic.experiments.provenance import provenance
from polyadic.spectral import STFT

RANK = 32
SHAPES = {
    "HAR": {"window": (9, 128), "n_fft": 64, "hop": 2, "batch": 128},
    "Sleep-EDF": {"window": (7, 3000), "n_fft": 256, "hop": 32, "batch": 64},
}
MESSAGES = [2**power for power in range(3, 25)]
MGH = {"windows": 4_377_170, "modes": (12, 257, 43), "window bytes": 6 * 6000 * 2}
ASSUMED = {
    "windows a second on one GPU (a plain sketch on one H200, windows of the Sleep-EDF size)": 97_000,
    "seconds of a step that do not shrink with the batch (small solves, launches)": 1e-3,
    "bytes a second from a machine's disks": 5e9,
    "within a machine": {"latency for each doubling of processes": 8e-6, "bytes a second": 2e11},
    "between machines": {"latency for each doubling of processes": 1e-5, "bytes a second": 2.5e10},
}


# --------------------------------------------------------------- in each process


def fitted(name: str, batch: int, windows: int, rounds: int, team: Any) -> dict[str, float]:
    """Seconds of a sweep (median), and of the messages in it (mean over sweeps and processes)."""
    shape = SHAPES[name]
    X = np.random.default_rng(0).normal(size=(windows, *shape["window"])).astype(np.float32)
    model = ATD(
        RANK,
        tensorize=STFT(shape["n_fft"], shape["hop"]),
        augment=Jitter(0.01),
        batch_size=batch,
        tol=0.0,
        device="cpu",
    )
    waits = []
    for sweeps in (1, 1 + rounds):  # what the first has, the start of a fit among it, is taken off the second
        before = getattr(team, "waited", 0.0)
        model.set_params(max_sweeps=sweeps).fit(X, team=team)
        waits.append(getattr(team, "waited", 0.0) - before)
    waited = (waits[1] - waits[0]) / rounds
    everyone = float(team.sum(torch.tensor(waited, dtype=torch.float64))) / team.size
    return {"sweep": float(np.median(model.history_["seconds"][1:])), "messages": everyone}


def timed_messages(team: Any, repeats: int = 15) -> dict[int, float]:
    """Median seconds of an all-reduce of so many bytes."""
    found = {}
    for size in MESSAGES:
        tensor, times = torch.zeros(size // 8, dtype=torch.float64), []
        for _ in range(repeats):
            begun = time.perf_counter()
            team.sum(tensor)
            times.append(time.perf_counter() - begun)
        found[size] = float(np.median(times[3:]))
    return found


def work(out: Path, windows: int, rounds: int) -> None:
    """All runs that this number of processes is for."""
    torch.set_num_threads(1)
    found: dict[str, Any] = {"runs": []}
    for exchange in ("block", "modes"):
        team = distributed.join(exchange)
        for name, shape in SHAPES.items():
            count = max(shape["batch"] * 2, windows // (1 if name == "HAR" else 8))
            for kind, batch, total in (
                ("half", shape["batch"] // 2, count),
                ("strong", shape["batch"], count),
                ("weak", shape["batch"] * team.size, count * team.size),
            ):
                times = fitted(name, batch, total, rounds, team)
                row = {"shape": name, "kind": kind, "exchange": exchange, "batch": batch, "windows": total}
                found["runs"].append({**row, "processes": team.size, **times})
    if team.size > 1:
        found["messages"] = timed_messages(team)
    if team.rank == 0:
        out.write_text(json.dumps(found))


# ------------------------------------------------------------------------- model


def message_sizes(modes: tuple[int, ...], exchange: str) -> list[int]:
    """Bytes of each message of a step of ATD: three sums of rows, XᵀX with the terms, and the block or the modes."""
    small = [8 * RANK] * 3 + [8 * (RANK**2 + 5)]
    if exchange == "block":
        return [*small, 4 * RANK * math.prod(modes)]
    return small + [8 * RANK * size for size in modes]


def modes_of(name: str) -> tuple[int, ...]:
    shape = SHAPES[name]
    return STFT(shape["n_fft"], shape["hop"]).shape(*shape["window"])


def checked(one: list[dict[str, Any]], two: list[dict[str, Any]], messages: dict[int, float]) -> list[dict[str, Any]]:
    """The model's seconds of a sweep by two processes, from those of one process and of single messages."""
    sizes, times = np.array(list(messages)), np.array(list(messages.values()))
    rows = []
    for run in two:
        if run["kind"] == "half":
            continue
        like = "half" if run["kind"] == "strong" else "strong"
        base = next(row for row in one if (row["shape"], row["kind"]) == (run["shape"], like))
        steps = math.ceil(run["windows"] / run["batch"])
        alone = base["sweep"] / math.ceil(base["windows"] / base["batch"])
        sent = message_sizes(modes_of(run["shape"]), run["exchange"])
        predicted = steps * (alone + float(np.interp(sent, sizes, times).sum()))
        whole = next(row for row in one if (row["shape"], row["kind"]) == (run["shape"], run["kind"]))
        rows.append(
            {
                **run,
                "communication share": run["messages"] / run["sweep"],
                # Twice the windows in the same time is what weak scaling would be at its best.
                "speed-up": whole["sweep"] / run["sweep"] * run["windows"] / whole["windows"],
                "predicted sweep": predicted,
                "predicted over measured": predicted / run["sweep"],
            }
        )
    return rows


def crossover(messages: dict[int, float]) -> float:
    """Bytes of the block from which on three small messages (of 100 rows each) are faster."""
    latency, largest = min(messages.values()), max(messages)
    bandwidth = largest / (messages[largest] - latency)
    return 2 * latency * bandwidth + 3 * 8 * RANK * 100


def predicted(windows: int, batch: int, machines: int, gpus: int) -> dict[str, Any]:
    """Seconds of a sweep of MGH's windows on machines that are not here."""
    rate, fixed, disk = list(ASSUMED.values())[:3]
    processes = machines * gpus
    link = ASSUMED["between machines" if machines > 1 else "within a machine"]
    latency, bandwidth = link.values()

    def seconds(sizes: list[int]) -> float:
        hops = math.log2(processes)
        return sum(latency * hops + 2 * (processes - 1) / processes * size / bandwidth for size in sizes)

    sending = {exchange: seconds(message_sizes(MGH["modes"], exchange)) for exchange in ("block", "modes")}
    steps = math.ceil(windows / batch)
    computing = steps * (math.ceil(batch / processes) / rate + fixed)
    talking = steps * min(sending.values())
    reading = windows * MGH["window bytes"] / (disk * machines)
    return {
        "windows": windows,
        "batch": batch,
        "machines": machines,
        "GPUs in each": gpus,
        "exchange": min(sending, key=sending.__getitem__),
        "seconds a sweep": max(computing + talking, reading),
        "computing": computing,
        "messages": talking,
        "reading, beside it": reading,
    }


def larger_machines() -> list[dict[str, Any]]:
    setups = [(1, 1), (1, 8), (64, 8)]
    return [
        predicted(scale * MGH["windows"], batch, machines, gpus)
        for scale in (1, 100)
        for batch in (512, 65_536)
        for machines, gpus in setups
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", action="store_true", help="only the model of larger machines")
    parser.add_argument("--windows", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        work(given.out, given.windows, given.rounds)
        return
    given.out.mkdir(parents=True, exist_ok=True)
    write(given.out / "model.json", {"assumed": ASSUMED, "MGH": MGH, "rank": RANK, "sweeps": larger_machines()})
    if given.model:
        return
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for processes in (1, 2):
            part = Path(folder) / f"{processes}.json"
            options = ["--standalone", "--nproc-per-node", str(processes), __file__, str(part), "--work"]
            options += ["--windows", str(given.windows), "--rounds", str(given.rounds)]
            environment = os.environ | {"OMP_NUM_THREADS": "1"}
            subprocess.run([sys.executable, "-m", "torch.distributed.run", *options], check=True, env=environment)
            found[processes] = json.loads(part.read_text())
    messages = {int(size): seconds for size, seconds in found[2]["messages"].items()}
    rows = checked(found[1]["runs"], found[2]["runs"], messages)
    result = {
        "load of the machine": os.getloadavg()[0],
        "one process": [run for run in found[1]["runs"] if run["exchange"] == "block"],
        "two processes": rows,
        "seconds of an all-reduce by bytes": messages,
        "block bytes from which on modes are faster": crossover(messages),
    }
    write(given.out / "cpu.json", result)
    for row in rows:
        print(
            f"{row['shape']:>10} {row['kind']:>6} {row['exchange']:>5}: {row['speed-up']:.2f} times as fast, "
            f"{row['communication share']:.0%} in messages, model/measured {row['predicted over measured']:.2f}"
        )


def write(path: Path, result: dict[str, Any]) -> None:
    path.write_text(json.dumps({**provenance("cpu"), **result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
