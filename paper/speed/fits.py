"""Whole fits with the default settings: seconds next to the least possible, memory, and how both grow.

All are on random windows. Fits of a part of the paper's windows are scaled up: passes in proportion to the windows,
sweeps not at all, because they do not read the windows.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.decomposition import PCA

from paper import reference
from paper.speed.measure import (
    Peak,
    exponent,
    fit_quietly,
    median_and_range,
    random_windows,
    seconds_of,
    seconds_per_sweep,
)
from polyadic import CPD, SALS
from polyadic.core.tensorizer import tensors
from polyadic.data import Header, StoreWriter, Windows, WindowStore
from polyadic.presets import preset
from polyadic.spectral import STFT, recommended_stft

COUNTS = {
    "cpu": {"har": 7_428, "ptb_xl": 2_000, "sleep_edf": 4_000, "mgh": 2_000},
    "cuda": {"har": 7_428, "ptb_xl": 17_469, "sleep_edf": 331_208, "mgh": 300_000},
}
"""Number of windows that are fitted on each device."""
_HOST_BYTES = 2**32
_STORE = {"windows": 20_000, "channels": 7, "length": 3_000, "fs": 100.0}
_RANK = 32
_CPU = torch.device("cpu")

Row = dict[str, Any]


# ----------------------------------------------------------------- least possible time


def measure_machine(device: torch.device) -> Row:
    """Measure what bounds a fit: memory bandwidth, products in float32 and, for a GPU, copies from host memory."""
    size = 2**28 if device.type == "cuda" else 2**26
    source, target = (torch.ones(size, device=device) for _ in range(2))
    side = 8192 if device.type == "cuda" else 1024
    A = torch.ones(side, side, device=device)
    rows: Row = {}
    works: dict[str, tuple[Callable[[], object], int]] = {
        "bytes_per_second": (lambda: target.copy_(source), 8 * size),
        "flops_per_second": (lambda: A @ A, 2 * side**3),
    }
    for name, (work, amount) in works.items():
        work()
        rows[name] = amount / min(seconds_of(work, device) for _ in range(3))
    if device.type == "cuda":
        host = torch.ones(2**26).pin_memory()
        rows["host_bytes_per_second"] = 4 * 2**26 / min(seconds_of(host.to, device, device) for _ in range(3))
    return rows


def least_seconds(machine: Row, count: int, channels: int, length: int, model: CPD, on_host: bool) -> float:
    """Return the time that a fit's passes take at least on a machine that reaches its peaks.

    Every pass reads the samples as float32 once: for the floors, the axes and the moments. The last two transform
    them (5 n log n operations per frame). The axes need the products of the tensors' unfoldings, the moments the
    projections and the products of compressed windows. Samples in host memory are copied to a GPU once.
    """
    stft = model.tensorize_
    dims, ranks = [len(factor) for factor in model.factors_], model.compression_["ranks"]  # type: ignore[index]
    size = math.prod(dims)
    frames = channels * dims[2]
    fourier = 2 * frames * 5 * stft.n_fft * math.log2(stft.n_fft)  # type: ignore[union-attr]
    scatter = 2 * size * sum(dims)
    project = 2 * dims[0] * dims[1] * dims[2] * ranks[2] + 2 * dims[0] * dims[1] * ranks[2] * ranks[1]
    project += 2 * dims[0] * ranks[0] * ranks[1] * ranks[2]
    width = math.prod(ranks) + channels
    core = 2 * width**2 if count > width else 0  # fewer windows are kept themselves
    work = count * (fourier + scatter + project + core) / machine["flops_per_second"]
    moved = count * channels * length * 4 * 3 / machine["bytes_per_second"]
    copied = count * channels * length * 2 / machine["host_bytes_per_second"] if on_host else 0.0
    return float(max(work, moved) + copied)


# ------------------------------------------------------------------------------- fits


def measure_fits(device: torch.device, quick: bool, machine: Row) -> list[Row]:
    """Measure whole fits at the shapes of the paper's data sets, with windows in host memory and on the GPU."""
    rows = []
    for name in ("har", "ptb_xl", "sleep_edf", "mgh"):
        for on_host in (True, False) if device.type == "cuda" else (True,):
            try:
                rows.append(_fit_row(name, device, on_host, quick, machine))
            except (RuntimeError, MemoryError) as error:  # one size does not fit: the others still count
                rows.append({"dataset": name, "host": on_host, "error": str(error).partition("\n")[0]})
    return rows


def _fit_row(name: str, device: torch.device, on_host: bool, quick: bool, machine: Row) -> Row:
    channels, length = preset(name).shape
    count = 64 if quick else COUNTS[device.type][name]
    on_gpu = device.type == "cuda"
    if on_gpu and on_host:
        count = min(count, _HOST_BYTES // (2 * channels * length))
    X = random_windows((count, channels, length), device)
    if on_host and on_gpu:
        X = X.cpu().numpy()
    stft = recommended_stft(length, preset(name).fs)
    model = CPD(_RANK, tensorize=stft, device=device, max_sweeps=3 if quick else 200)
    fit_quietly(model, X[:64])  # the first fit of a process loads libraries
    seconds, spent = [], []
    for _ in range(1 if quick else 3 if name == "har" else 2 if on_gpu else 1):
        with Peak(device) as peak:
            seconds.append(seconds_of(fit_quietly, device, model, X))
        spent.append(sum(model.history_["seconds"]))
    best = int(np.argmin(seconds))
    paper_windows = reference.SIZES[name][0] if name != "har" else count
    reading = seconds[best] - spent[best]
    least = least_seconds(machine, count, channels, length, model, on_host and on_gpu)
    return {
        "dataset": name,
        "host": on_host,
        "windows": count,
        "window": [channels, length],
        "tensor": [len(factor) for factor in model.factors_],
        "core": list(model.compression_["ranks"]),  # type: ignore[index]
        "seconds": median_and_range(seconds),
        "passes": 3,
        "pass_seconds": reading,
        "sweep_seconds": spent[best],
        "sweeps": model.n_sweeps_,
        "least_seconds": least,
        "ratio": reading / least,
        "memory_bytes": peak.own,
        "data_bytes": int(X.nbytes),
        "paper_windows": paper_windows,
        "scaled_seconds": reading * paper_windows / count + spent[best],
    }


def against_pca(quick: bool) -> Row:
    """Measure a default fit of HAR-sized windows next to scikit-learn's PCA of the same spectra, both from windows."""
    channels, length = preset("har").shape
    X = random_windows((200 if quick else 7_428, channels, length), _CPU)
    stft = recommended_stft(length, preset("har").fs).calibrated(torch.from_numpy(X).float())

    def pca() -> None:
        T = tensors(stft, torch.from_numpy(X).float()).reshape(len(X), -1).numpy()
        PCA(_RANK, random_state=0).fit(T)

    times: dict[str, list[float]] = {"polyadic": [], "pca": []}
    for _ in range(1 if quick else 3):
        times["polyadic"].append(seconds_of(fit_quietly, _CPU, CPD(_RANK, device="cpu"), X))
        times["pca"].append(seconds_of(pca, _CPU))
    return {"windows": len(X), "rank": _RANK, **_compared(times, "pca")}


def against_tensorly(quick: bool) -> Row:
    """Measure a sweep of CP-ALS over HAR-sized tensors by `SALS(batch_size=None)` and by TensorLy's `parafac`."""
    from tensorly.decomposition import parafac

    har = preset("har")
    X = torch.from_numpy(random_windows((24 if quick else 2048, *har.shape), _CPU)).float()
    T = tensors(har.tensorize.calibrated(X[:1024]), X).numpy()
    own = SALS(_RANK, tensorize=None, readout=None, batch_size=None, max_sweeps=3, tol=0.0, device="cpu")

    def theirs(sweeps: int) -> float:
        words = {"n_iter_max": sweeps, "init": "random", "tol": 0, "random_state": 0}
        return seconds_of(parafac, _CPU, T, _RANK, **words)

    times: dict[str, list[float]] = {"polyadic": [], "tensorly": []}
    for number in range(2 if quick else 3):  # alternately, and the first round warms up
        ours = seconds_per_sweep(fit_quietly(own, T).history_["seconds"])
        # The initialisation is not part of a sweep.
        other = max((theirs(3) - theirs(1)) / 2, 1e-9)
        if number:
            times["polyadic"].append(ours)
            times["tensorly"].append(other)
    return {"windows": len(T), "tensor": list(T.shape[1:]), **_compared(times, "tensorly")}


def _compared(times: dict[str, list[float]], other: str) -> Row:
    """Return the seconds of two methods, and how many times as long the other one takes, round by round."""
    ratios = [b / a for a, b in zip(times["polyadic"], times[other], strict=True)]
    seconds = {f"{name}_seconds": median_and_range(values) for name, values in times.items()}
    return {**seconds, "ratio": median_and_range(ratios)}


# ------------------------------------------------------------------------------ a store


def measure_store(quick: bool) -> list[Row]:
    """Measure fit and transform of windows in a store, and the peak memory, for numbers of windows apart by four."""
    most = 200 if quick else int(_STORE["windows"])
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "windows.store"
        write_store(path, most)
        for count in (most // 4, most):
            windows = WindowStore(path).windows[:count]
            model = CPD(_RANK, device="cpu", max_sweeps=3 if quick else 200)
            with Peak(_CPU) as peak:
                fit = seconds_of(fit_quietly, _CPU, model, windows)
            transform = seconds_of(model.transform, _CPU, windows, out=Path(folder) / "features.npy")
            rows.append(
                {
                    "windows": count,
                    "fit_seconds": fit,
                    "sweep_seconds": sum(model.history_["seconds"]),
                    "transform_seconds": transform,
                    "ratio": fit / transform,
                    "memory_bytes": peak.own,
                    "data_bytes": count * int(_STORE["channels"]) * int(_STORE["length"]) * 4,
                }
            )
    return rows


def write_store(path: Path, count: int) -> None:
    """Write a store of random windows."""
    channels, length, fs = int(_STORE["channels"]), int(_STORE["length"]), float(_STORE["fs"])
    names = tuple(f"c{number + 1}" for number in range(channels))
    header = Header(fs=fs, channels=names, length=length, units=("",) * channels)
    with StoreWriter(path, header) as writer:
        for first in range(0, count, 1000):
            X = random_windows((min(1000, count - first), channels, length), _CPU, first)
            names_of = [f"r{first}"] * len(X)
            writer.add_windows(Windows(X, fs=fs, channels=names, subject=names_of, recording=names_of))


# ------------------------------------------------------------------------------- growth


@dataclass(frozen=True)
class FitSize:
    """A size of the problem; tensors are channels × frequencies × frames."""

    windows: int = 2048
    channels: int = 6
    frequencies: int = 33
    frames: int = 32
    rank: int = 32

    @property
    def length(self) -> int:
        n_fft = 2 * (self.frequencies - 1)
        return n_fft + (self.frames - 1) * (n_fft // 2)


GROWTH: dict[str, tuple[int, ...]] = {
    "windows": (1024, 2048, 4096, 8192),
    "channels": (3, 6, 12, 24),
    "frequencies": (17, 33, 65, 129),
    "frames": (16, 32, 64, 128),
    "rank": (16, 32, 64, 128),
}


def measure_growth(device: torch.device, quick: bool) -> list[Row]:
    """Measure passes and sweeps of default fits for several sizes of each dimension, and fit exponents."""
    rows = []
    for name, sizes in GROWTH.items():
        chosen = [replace(FitSize(), **{name: size}) for size in (sizes[:2] if quick else sizes)]
        if quick:
            chosen = [replace(size, windows=size.windows // 32) for size in chosen]
        if device.type == "cuda":
            chosen = [replace(size, windows=16 * size.windows) for size in chosen]
        times = [_growth_seconds(size, device) for size in chosen]
        row: Row = {"what": name, "sizes": [getattr(size, name) for size in chosen]}
        for kind, values in zip(("pass", "sweep"), map(list, zip(*times, strict=True)), strict=True):
            row |= {f"{kind}_seconds": values, f"{kind}_exponent": exponent(row["sizes"], values)}
        rows.append(row)
    return rows


def _growth_seconds(size: FitSize, device: torch.device) -> tuple[float, float]:
    """Return the seconds of the passes, and of one sweep."""
    X = random_windows((size.windows, size.channels, size.length), device)
    n_fft = 2 * (size.frequencies - 1)
    stft = STFT(n_fft, n_fft // 2, parts="log_amplitude", mean="auto")
    model = CPD(size.rank, tensorize=stft, device=device, max_sweeps=8, tol=0.0)
    best = (math.inf, math.inf)
    for _ in range(2):
        whole = seconds_of(fit_quietly, device, model, X)
        sweeps = model.history_["seconds"]
        best = (min(best[0], whole - sum(sweeps)), min(best[1], float(np.median(sweeps))))
    return best
