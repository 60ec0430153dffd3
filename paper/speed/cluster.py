"""`python -m paper cluster`: default fits of a store on Dask clusters of 1, 2 and 4 processes of this machine.

Seconds, bytes that travel and memory of the workers are measured; a cluster of 64 processes is computed from them.
"""

from __future__ import annotations

import os
import pickle
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from paper import reference
from paper.results import provenance, publish, table
from paper.speed.fits import write_store
from paper.speed.measure import fit_quietly
from paper.speed.tables import footer
from polyadic import CPD
from polyadic.data import WindowStore
from polyadic.scale import cluster

_WINDOWS = 4_000
_CHUNK_BYTES = 2**24
"""Size of a chunk, smaller than by default, so that there are several for each worker."""
_WORKERS = (1, 2, 4)
_CLUSTER = 64
_NETWORK = 1.25e9
"""Bytes per second of 10 Gbit Ethernet, in the computed cluster."""

Row = dict[str, Any]


def run(out: Path, quick: bool = False) -> None:
    """Measure, and write `cluster.json` and `.md`."""
    from distributed import Client, LocalCluster

    count = 64 if quick else _WINDOWS
    result: Row = {"experiment": "cluster", "title": "Dask", "quick": quick, "load": os.getloadavg()[0]}
    result |= {**provenance("cpu"), "windows": count, "rows": []}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "windows.store"
        write_store(path, count)
        whole = CPD(device="cpu")
        begun = time.perf_counter()
        fit_quietly(whole, WindowStore(path).windows)
        result["one_process_seconds"] = time.perf_counter() - begun
        for workers in _WORKERS[:1] if quick else _WORKERS:
            with (
                LocalCluster(workers, threads_per_worker=1, dashboard_address=None, silence_logs=50) as local,
                Client(local) as client,
            ):
                result["rows"].append(_measure(client, path, workers, whole))
    result["load_after"] = os.getloadavg()[0]
    result["model"] = _model(result)
    publish(out, "cluster", result, f"# Dask on one machine\n\n{summary(result)}\n{footer(result)}")


def _measure(client: Any, path: Path, workers: int, whole: CPD) -> Row:
    # Workers import torch with their first chunk.
    client.run(_import)
    before = client.run(_reset_peak)
    travelled: list[int] = []
    real, size = cluster._computed, cluster._CHUNK_BYTES

    def counted(tasks: Sequence[Any]) -> Iterator[Any]:
        for sums in real(tasks):
            travelled.append(len(pickle.dumps(sums)))
            yield sums

    model = CPD(device="cpu")
    begun = time.perf_counter()
    cluster._computed, cluster._CHUNK_BYTES = counted, _CHUNK_BYTES
    try:
        fit_quietly(model, [str(path)])
    finally:
        cluster._computed, cluster._CHUNK_BYTES = real, size
    seconds = time.perf_counter() - begun
    after = client.run(_peak)
    losses = [one.history_["loss"][-1] for one in (model, whole)]
    sweeps = sum(model.history_["seconds"])
    return {
        "workers": workers,
        "seconds": seconds,
        "sweep_seconds": sweeps,
        "pass_seconds": seconds - sweeps,
        "travelled_bytes": sum(travelled),
        "largest_bytes": max(travelled),
        "worker_bytes": max(after[name] - before[name] for name in after),
        "loss_difference": abs(losses[0] / losses[1] - 1),
    }


def _import() -> None:
    import polyadic.estimators  # noqa: F401


def _reset_peak() -> int:
    """Forget the peak memory of this process so far, and return its memory now, in bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return _of_status("VmRSS")


def _peak() -> int:
    return _of_status("VmHWM")


def _of_status(name: str) -> int:
    return 1024 * int(re.findall(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)[0])


def _model(result: Row) -> Row:
    """Compute a cluster of 64 processes, with the measured seconds per window of one, for windows as many as MGH's.

    The windows are those of the measurement. Passes are divided among the processes; sums of each group of chunks
    travel to the client one after the other; sweeps run there.
    """
    one = result["rows"][0]
    windows = reference.SIZES["mgh"][0]
    share = windows / result["windows"]
    passes = one["pass_seconds"] * share / _CLUSTER
    travel = one["travelled_bytes"] * share / _NETWORK
    seconds = passes + travel + one["sweep_seconds"]
    alone = one["pass_seconds"] * share + one["sweep_seconds"]
    return {"workers": _CLUSTER, "windows": windows, "seconds": seconds, "one_process_seconds": alone} | {
        "travel_seconds": travel,
        "speed_up": alone / seconds,
    }


def summary(result: Row) -> str:
    """Return the table of a result, and what one process and a large cluster take."""
    first = result["rows"][0]["seconds"]
    lines = [
        [
            str(row["workers"]),
            f"{row['seconds']:.1f}",
            f"{first / row['seconds']:.2f}",
            f"{row['sweep_seconds']:.1f}",
            f"{row['travelled_bytes'] / 2**20:.1f}",
            f"{row['worker_bytes'] / 2**20:.0f}" if row["worker_bytes"] else "–",
            f"{row['loss_difference']:.0e}",
        ]
        for row in result["rows"]
    ]
    heads = ["workers", "fit, s", "speed-up", "its sweeps, s", "travelled, MiB", "memory of a worker, MiB"]
    model = result["model"]
    text = (
        f"{result['windows']:,} windows of 7 × 3000 in a store, in chunks of 16 MiB; memory beyond the imports. One "
        f"process without Dask, with all threads of torch: {result['one_process_seconds']:.1f} s. Computed from the "
        f"first row, for {model['windows']:,} such windows: {model['workers']} workers {model['seconds']:,.0f} s, of "
        f"which {model['travel_seconds']:,.0f} s for sums on a network of 10 Gbit/s; one worker "
        f"{model['one_process_seconds']:,.0f} s.\n"
    )
    return "\n".join([table([*heads, "difference of the loss"], lines), text])
