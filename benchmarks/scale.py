"""Strong and weak scaling of one fit over several processes, the cost of messages, and a model of larger machines.

    python benchmarks/scale.py docs/results/scale [--rounds 5] [--quick]
    python benchmarks/scale.py docs/results/scale --model

The first command takes a few minutes on two idle cores, and writes cpu.json, model.json and the tables measured.md and
model.md of the documentation; the second takes seconds, and writes only the files of the model.

Strong scaling uses the same windows and batches with one process and with two. Weak scaling uses two processes with
twice the windows in batches twice as large. Each process has one thread. Both ways to exchange sums are measured.
Single messages of many sizes are measured too, to find the size above which the sums of each mode are faster than the
block (`polyadic.engine.processes._BLOCK_BYTES`).

In the model, the time of a step is the time of its part of the batch at the speed of one process, a fixed time, and a
latency and transfer time for each message; reading overlaps. cpu.json compares the model with measurements: a sweep
with two processes is predicted from sweeps of one process on batches half as large (which include the fixed time) and
from single messages. model.json has predictions for other machines, with the underlying assumptions.
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

from polyadic import ATD
from polyadic._util.provenance import provenance
from polyadic.augment import Jitter
from polyadic.engine import processes
from polyadic.evaluate.timing import seconds_per_sweep
from polyadic.spectral import STFT

RANK = 32
SHAPES = {
    "three channels": {"window": (3, 96), "n_fft": 32, "hop": 8, "batch": 128, "windows": 4096},
    "HAR": {"window": (9, 128), "n_fft": 64, "hop": 2, "batch": 128, "windows": 1024},
    "Sleep-EDF": {"window": (7, 3000), "n_fft": 256, "hop": 32, "batch": 64, "windows": 256},
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
    """Return the seconds per sweep, and the seconds of its messages (mean over sweeps and processes)."""
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
    for sweeps in (1, 1 + rounds):  # the first run, which includes the start of a fit, is subtracted from the second
        before = getattr(team, "waited", 0.0)
        model.set_params(max_sweeps=sweeps).fit(X, team=team)
        waits.append(getattr(team, "waited", 0.0) - before)
    waited = (waits[1] - waits[0]) / rounds
    everyone = float(team.sum(torch.tensor(waited, dtype=torch.float64))) / team.size
    return {"sweep": seconds_per_sweep(model.history_["seconds"]), "messages": everyone}


def timed_messages(team: Any, repeats: int = 15) -> dict[int, float]:
    """Return the median seconds of an all-reduce by its size in bytes."""
    found = {}
    for size in MESSAGES:
        tensor, times = torch.zeros(size // 8, dtype=torch.float64), []
        for _ in range(repeats):
            begun = time.perf_counter()
            team.sum(tensor)
            times.append(time.perf_counter() - begun)
        found[size] = float(np.median(times[3:]))
    return found


def work(out: Path, part: int, rounds: int) -> None:
    """Do all runs for the current number of processes, with 1/`part` of the windows, and write the results."""
    torch.set_num_threads(1)
    found: dict[str, Any] = {"runs": []}
    team = processes.join()
    for exchange in ("block", "modes") if team.size > 1 else ("none",):
        team = processes.join(exchange) if team.size > 1 else team
        for name, shape in SHAPES.items():
            batch, count = shape["batch"], max(2 * shape["batch"], shape["windows"] // part)
            kinds = {"strong": (batch, count), "weak": (team.size * batch, team.size * count)}
            if team.size == 1:
                kinds = {"half": (batch // 2, count), "strong": (batch, count)}
            for kind, (size, total) in kinds.items():
                row = {"shape": name, "kind": kind, "exchange": exchange, "batch": size, "windows": total}
                found["runs"].append({**row, "processes": team.size, **fitted(name, size, total, rounds, team)})
    if team.size > 1:
        found["messages"] = timed_messages(team)
    if team.index == 0:
        out.write_text(json.dumps(found))


# ------------------------------------------------------------------------- model


def message_sizes(modes: tuple[int, ...], exchange: str) -> list[int]:
    """Return the bytes of each message of an ATD step: two sums of rows, XᵀX and loss terms, and the block or modes."""
    small = [8 * RANK] * 2 + [8 * (RANK**2 + 4 + 2 * RANK)]
    if exchange == "block":
        return [*small, 4 * RANK * math.prod(modes)]
    return small + [8 * RANK * size for size in modes]


def modes_of(name: str) -> tuple[int, ...]:
    shape = SHAPES[name]
    return STFT(shape["n_fft"], shape["hop"]).shape(*shape["window"])


def seconds_of(sizes: Any, messages: dict[int, float]) -> Any:
    """Return the seconds of all-reduces of these sizes, interpolated between measurements."""
    return np.interp(sizes, np.array(list(messages)), np.array(list(messages.values())))


def checked(one: list[dict[str, Any]], two: list[dict[str, Any]], messages: dict[int, float]) -> list[dict[str, Any]]:
    """Predict the seconds of a sweep with two processes, from sweeps of one process and from single messages."""
    alone = {(run["shape"], run["kind"]): run for run in one}
    rows = []
    for run in two:
        # Each of two processes has as many windows per step as one process with a batch half as large.
        base = alone[run["shape"], "half" if run["kind"] == "strong" else "strong"]
        steps = math.ceil(run["windows"] / run["batch"])
        sent = message_sizes(modes_of(run["shape"]), run["exchange"])
        computing = steps * base["sweep"] / math.ceil(base["windows"] / base["batch"])
        sending = steps * float(seconds_of(sent, messages).sum())
        whole = alone[run["shape"], "strong"]
        rows.append(
            {
                **run,
                "communication share": run["messages"] / run["sweep"],
                # Ideal weak scaling handles twice the windows in the same time.
                "speed-up": whole["sweep"] / run["sweep"] * run["windows"] / whole["windows"],
                "predicted sweep": computing + sending,
                "predicted messages": sending,
                "predicted over measured": (computing + sending) / run["sweep"],
            }
        )
    return rows


def better(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return, for each shape and kind of scaling, the faster exchange and the default one."""
    found = []
    for shape, kind in dict.fromkeys((row["shape"], row["kind"]) for row in rows):
        sweeps = {row["exchange"]: row["sweep"] for row in rows if (row["shape"], row["kind"]) == (shape, kind)}
        size = 4 * RANK * math.prod(modes_of(shape))
        taken = "block" if size <= processes._BLOCK_BYTES else "modes"
        faster = min(sweeps, key=sweeps.__getitem__)
        lost = sweeps[taken] / sweeps[faster] - 1
        found.append(
            {"shape": shape, "kind": kind, "block bytes": size, "faster": faster, "taken": taken, "lost": lost}
        )
    return found


def crossover(messages: dict[int, float]) -> float:
    """Return the size of the block in bytes above which three messages (of 100 rows each) are faster."""
    sizes = np.geomspace(min(messages), max(messages), 400)
    slower = seconds_of(sizes, messages) > 3 * seconds_of(8 * RANK * 100, messages)
    return float(sizes[np.argmax(slower)]) if slower.any() else math.inf


def predicted(windows: int, batch: int, machines: int, gpus: int) -> dict[str, Any]:
    """Predict the seconds of a sweep over MGH's windows on other machines."""
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
    parser.add_argument("--model", action="store_true", help="write only the model of larger machines")
    parser.add_argument("--quick", action="store_true", help="use an eighth of the windows and one round, as a check")
    parser.add_argument("--rounds", type=int, default=5, help="number of measured sweeps, after the first")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        work(given.out, 8 if given.quick else 1, 1 if given.quick else given.rounds)
        return
    given.out.mkdir(parents=True, exist_ok=True)
    sweeps = larger_machines()
    write(given.out / "model.json", {"assumed": ASSUMED, "MGH": MGH, "rank": RANK, "sweeps": sweeps})
    (given.out / "model.md").write_text(model_table(sweeps))
    if given.model:
        return
    before = os.getloadavg()[0]
    one, two = (runs_of(processes, given.quick, given.rounds) for processes in (1, 2))
    messages = {int(size): seconds for size, seconds in two["messages"].items()}
    rows = checked(one["runs"], two["runs"], messages)
    errors = [abs(row["predicted over measured"] - 1) for row in rows]
    result = {
        "load of the machine before": before,
        "quick": given.quick,
        "one process": one["runs"],
        "two processes": rows,
        "which exchange": better(rows),
        "error of the model": {"median": float(np.median(errors)), "largest": max(errors)},
        "seconds of an all-reduce by bytes": messages,
        "block bytes from which on modes are faster": crossover(messages),
    }
    write(given.out / "cpu.json", result)
    (given.out / "measured.md").write_text(measured_table(result))
    sys.stdout.write((given.out / "measured.md").read_text())


def runs_of(processes: int, quick: bool, rounds: int) -> dict[str, Any]:
    """Measure with this many processes; a single process is started without a process group."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        team = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
        words = [__file__, str(out), "--work", "--rounds", str(rounds), *["--quick"] * quick]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        subprocess.run([sys.executable, *team * (processes > 1), *words], check=True, env=environment)
        found: dict[str, Any] = json.loads(out.read_text())
    return found


def write(path: Path, result: dict[str, Any]) -> None:
    path.write_text(json.dumps({**provenance("cpu"), **result}, indent=1) + "\n")


# ------------------------------------------------------------------------ tables


def measured_table(result: dict[str, Any]) -> str:
    """Return the measured sweeps of one and two processes in Markdown."""
    alone = {run["shape"]: run for run in result["one process"] if run["kind"] == "strong"}
    lines = [
        "| windows | scaling | exchange | one process | two processes | speed-up | share of messages | predicted |",
        "|---|---|---|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {row['shape']} | {row['kind']} | {row['exchange']} | {1e3 * alone[row['shape']]['sweep']:.0f} ms | "
        f"{1e3 * row['sweep']:.0f} ms | {row['speed-up']:.2f} | {row['communication share']:.0%} | "
        f"{1e3 * row['predicted sweep']:.0f} ms ({row['predicted over measured'] - 1:+.0%}) |"
        for row in result["two processes"]
    ]
    error, worst = result["error of the model"], max(found["lost"] for found in result["which exchange"])
    crossing = result["block bytes from which on modes are faster"]
    beyond = f"from {crossing / 1024:.0f} KiB on" if math.isfinite(crossing) else "at no size measured"
    text = f"""
Milliseconds per sweep; weak scaling has twice the windows. The prediction is off by {error["median"]:.0%} (median) and
{error["largest"]:.0%} (worst). Three messages of 100 rows are faster than the block {beyond}; choosing the exchange
by size costs at most {worst:.0%} over the better of the two ([`cpu.json`](cpu.json)).
"""
    return "\n".join(lines) + "\n" + text


def model_table(sweeps: list[dict[str, Any]]) -> str:
    """Return the predictions for larger machines in Markdown."""
    names = {MGH["windows"]: "MGH", 100 * MGH["windows"]: "a hundred times MGH"}
    machines = list(dict.fromkeys((row["machines"], row["GPUs in each"]) for row in sweeps))
    heads = [f"{count} × {gpus} GPUs" if count > 1 else f"{gpus} GPU{'s' * (gpus > 1)}" for count, gpus in machines]
    lines = ["| | batch | " + " | ".join(heads) + " |", "|---|---:|" + "---:|" * len(heads)]
    for windows, batch in dict.fromkeys((row["windows"], row["batch"]) for row in sweeps):
        cells = [cell(row) for row in sweeps if (row["windows"], row["batch"]) == (windows, batch)]
        lines.append(f"| {names[windows]}, {windows:,} windows | {batch:,} | " + " | ".join(cells) + " |")
    rate, fixed, disk, *links = ASSUMED.values()
    within, between = (link["bytes a second"] / 1e9 for link in links)
    text = f"""
Assumptions: {rate:,} windows per second on one GPU, {1e3 * fixed:g} ms per step that do not shrink, {disk / 1e9:g} GB/s
from the disks of each machine, {within:g} GB/s within a machine and {between:g} GB/s between machines. To keep eight
GPUs busy, the disks would have to deliver {8 * rate * MGH["window bytes"] / 1e9:.0f} GB/s, or windows to stay in memory
(all of MGH as int16: {MGH["windows"] * MGH["window bytes"] / 1e9:.0f} GB).
"""
    return "\n".join(lines) + "\n" + text


def cell(row: dict[str, Any]) -> str:
    """Format the time of a sweep and what dominates it."""
    working = row["computing"] + row["messages"]
    if row["reading, beside it"] >= working:
        return f"{lasting(row['seconds a sweep'])} (disk-bound; {lasting(working)} of computation)"
    return f"{lasting(row['seconds a sweep'])} ({row['messages'] / working:.0%} messages)"


def lasting(seconds: float) -> str:
    """Format a duration in seconds, minutes or hours."""
    for limit, unit, name in ((120, 1, "s"), (7200, 60, "min"), (math.inf, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.2g} {name}" if seconds / unit < 10 else f"{seconds / unit:.0f} {name}"
    raise AssertionError(seconds)


if __name__ == "__main__":
    main()
