"""Timing of the stages of an ATD batch, compared with the limits of the machine, and of whole sweeps.

Stages are timed one after the other on one batch, in the order of a fit, through the functions that a fit calls. A fit
may fuse or overlap them, so its time, measured through `ATD.fit`, is reported next to their sum.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np
import torch
from scipy import signal
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from paper import reference
from paper.speed.measure import (
    Laps,
    Peak,
    ceiling_calls,
    median_and_range,
    repeat_in_turn,
    timed_calls,
)
from paper.timing import seconds_per_sweep
from polyadic import ATD, CPD
from polyadic._util.threads import thread_pool
from polyadic.augment import Bandpass, Compose
from polyadic.core import step as als
from polyadic.core.algebra import khatri_rao, project
from polyadic.core.tensorizer import tensors
from polyadic.presets import Preset, preset
from polyadic.spectral import STFT, recommended_stft

STAGES = ("read", "augment", "STFT", "project", "align", "collect", "solve")

_FLOAT = 4
_PAUSE = 0.05
_REPEATS, _SWEEPS = 7, 4
_SECONDS = {"cpu": 20.0, "cuda": 100.0}
_WARM_UP = {"cpu": 1, "cuda": 3}
_FEATURE_WINDOWS = 1_000_000

Row = dict[str, Any]


def random_windows(settings: Preset, count: int, device: torch.device) -> Any:
    """Return random windows of a dataset's shape as they would be stored: 16-bit integers, floats for HAR.

    Returns
    -------
    (count, channels, time), a numpy array, or a tensor on a GPU
    """
    shape = (count, *settings.shape)
    if device.type == "cuda":
        generator = torch.Generator(device).manual_seed(0)
        if settings.name == "har":
            return torch.randn(shape, generator=generator, device=device)
        return torch.randint(-2000, 2000, shape, generator=generator, device=device, dtype=torch.int16)
    rng = np.random.default_rng(0)
    if settings.name == "har":
        return rng.standard_normal(shape, np.float32)
    return rng.integers(-2000, 2000, shape, np.int16)


@dataclass
class StageCase:
    """Windows of one dataset's shape on one device, ready for a step.

    name : name of the preset
    batch : number of windows in a batch; None for the preset's batch size
    """

    name: str
    device: torch.device
    batch: int | None = None
    settings: Preset = field(init=False)
    tensorize: STFT = field(init=False)

    def __post_init__(self) -> None:
        self.settings = preset(self.name)
        self.batch = self.batch or int(self.settings.parameters["batch_size"])
        self.windows = random_windows(self.settings, 2 * self.batch, self.device)
        self.ids = torch.randperm(2 * self.batch, generator=torch.Generator().manual_seed(0))[: self.batch]
        self.tensorize = self.settings.tensorize.calibrated(self._raw())
        self.dims = self.tensorize.shape(*self.settings.shape)
        self.rank = int(self.settings.parameters["rank"])
        self.objective = als.Objective(alpha=1e-3, beta=2.0)
        self.factors = als.initial_factors(self.dims, self.rank, 0, torch.float32, self.device)
        # As in a fit, reuse the same memory, in the layout of the transform's output.
        channels, frequencies, frames = self.dims
        self.buffer = torch.empty(2 * self.batch, channels, frames, frequencies, device=self.device).transpose(2, 3)

    def _raw(self) -> Tensor:
        """Read a batch as a fit does: gather, convert to float32, and check that all values are finite."""
        batch = torch.as_tensor(self.windows[self._rows]).to(self.device, torch.float32)
        assert math.isfinite(batch.sum().item())
        return batch

    @property
    def _rows(self) -> Any:
        return self.ids.to(self.device) if isinstance(self.windows, Tensor) else self.ids.numpy()

    def views(self) -> Tensor:
        """Return a batch and its augmentation: (2b, channels, time)."""
        raw = self._raw()
        return torch.cat([raw, self.settings.augment(raw, self.ids)])

    def stages(self) -> dict[str, float]:
        """Take one batch through all stages, and return the seconds of each."""
        laps = Laps(self.device)
        raw = self._raw()
        laps.mark("read")
        view = self.settings.augment(raw, self.ids)
        laps.mark("augment")
        T = self.buffer
        self.tensorize.into(torch.cat([raw, view]), T)
        laps.mark("STFT")
        M = project(T, self.factors)
        laps.mark("project")
        grams = als.grams_of(self.factors)
        X = als.solve_coefficients(M, reduce(torch.mul, grams), self.objective, 2)
        laps.mark("align")
        statistics = als.Statistics.of(X, T)
        laps.mark("collect")
        als.update_bases(self.factors, statistics, self.objective.alpha, 0.05, grams=grams)
        laps.mark("solve")
        return laps.seconds()

    def stages_as_in_fit(self) -> dict[str, float]:
        """Run the stages as in a fit: after another batch, and on a CPU in the thread pool of a fit.

        Torch's own threads, which keep spinning for a while after a call, are idle by then.
        """
        if self.device.type != "cpu":
            return self.stages()
        with thread_pool():
            time.sleep(_PAUSE)
            self.stages()
            return self.stages()

    def bare_calls(self) -> dict[str, Callable[[], object]]:
        """Return the minimal calls of torch and scipy for each stage, on arrays of the same sizes.

        The time of small stages is bound by the overhead of calls rather than by arithmetic or memory, and these calls
        measure the overhead. They are in the order of the stages, because a call costs more after one that has filled
        the caches.
        """
        views = self.views()
        rows, stft = views.reshape(-1, views.shape[2]), self.tensorize
        window = torch.ones(stft.n_fft, device=self.device)
        T = tensors(self.tensorize, views)
        flat, K, positive = T.flatten(1), khatri_rao(self.factors), T.abs().add_(1e-3)
        X = flat @ K
        Y, G = X.T @ flat, torch.eye(self.rank, dtype=torch.float64, device=self.device)
        V, rows_read = G.to(X.dtype), self._rows
        exact, wide = [factor.double() for factor in self.factors], X.double()
        ends = [torch.ones(self.rank, 1, self.dims[mode], device=self.device) for mode in (0, -1)]

        def inverse() -> Tensor:
            return torch.cholesky_inverse(torch.linalg.cholesky(G))

        def align() -> None:
            """Compute Gram matrices, an inverse, least squares, and a direction and correction for each view."""
            inverse(), wide @ G, [factor.T @ factor for factor in exact]
            for view in X.chunk(2):
                direction = view / torch.linalg.vector_norm(view, dim=1, keepdim=True)
                along = torch.linalg.vecdot(view, direction)[:, None]
                torch.addcmul(view, along, direction, value=-1) @ V

        def solve() -> None:
            """Contract the statistics twice, and compute an inverse, least squares and a Gram matrix for each basis."""
            for end, shape in zip(ends, ((self.dims[0], -1), (-1, self.dims[-1])), strict=True):
                slices = Y.reshape(self.rank, *shape)
                torch.bmm(end, slices if shape[0] > 0 else slices.mT)
            for factor in exact:
                inverse(), factor @ G, factor.T @ factor

        return {
            "bare read": lambda: torch.as_tensor(self.windows[rows_read]).float(),
            "bare augment": self._bare_filter(views[: self.batch]),
            "bare STFT": lambda: torch.stft(
                rows, stft.n_fft, stft.hop, window=window, center=False, return_complex=True
            ),
            "bare log": lambda: torch.log(positive),
            "bare project": lambda: flat @ K,
            "bare align": align,
            "bare collect": lambda: flat.T @ X,
            "bare solve": solve,
        }

    def _bare_filter(self, raw: Tensor) -> Callable[[], object]:
        """Return a function that filters every channel once, and draws one random number per sample."""
        steps = self.settings.augment.steps if isinstance(self.settings.augment, Compose) else ()
        bandpass = next(one for one in steps if isinstance(one, Bandpass))
        b, a = (c.astype(np.float32) for c in signal.butter(1, bandpass.bands[0], btype="bandpass", fs=bandpass.fs))
        size = 2 * raw.shape[2]
        response = torch.fft.rfft(torch.ones(size, device=self.device))

        def filter_once() -> None:
            torch.rand(raw.shape, device=raw.device)
            if raw.is_cuda:
                torch.fft.irfft(torch.fft.rfft(raw, n=size) * response, n=size)
            else:
                signal.lfilter(b, a, raw.numpy())

        return filter_once

    def amounts(self) -> dict[str, tuple[float, float]]:
        """Return the minimum flops and bytes of each stage, and of the whole batch without redundant transfers.

        A real FFT of n points takes 2.5 n log₂ n flops; per sample, sampling and interpolating noise takes 4, a filter
        9 (a third of the channels pass two), a rotation 6, a logarithm 1. Raw windows are read as stored; tensors and
        statistics are written once and read twice.
        """
        b, R = int(self.batch or 0), self.rank
        channels, length = self.settings.shape
        n_fft, frames, D = self.tensorize.n_fft, self.dims[2], math.prod(self.dims)
        stored = self.windows.itemsize
        signals, both, Y = b * channels * length, 2 * b * D, R * D
        fft = 2 * b * channels * frames * 2.5 * n_fft * math.log2(n_fft)
        per_sample = 4 + 12 + (6 if channels == 9 else 0)
        found = {
            "read": (0.0, signals * (stored + _FLOAT)),
            "augment": (per_sample * signals, 2 * signals * _FLOAT),
            "STFT": (fft + both, (2 * signals + both) * _FLOAT),
            "project": (2.0 * both * R, (both + Y) * _FLOAT),
            "align": (8.0 * b * R * R + R**3, 8 * b * R * _FLOAT),
            "collect": (2.0 * both * R + 4 * b * R * R, (both + Y) * _FLOAT),
            "solve": (4.0 * Y, 2 * Y * _FLOAT),
        }
        flops = sum(amount for amount, _ in found.values())
        found["batch"] = (flops, signals * stored + (3 * both + 3 * Y) * _FLOAT)
        return {name: (float(flops), float(moved)) for name, (flops, moved) in found.items()}


def measure_dataset(name: str, device: torch.device, quick: bool) -> Row:
    """Measure everything about one dataset's shape on one device.

    Returns
    -------
    a row of the results: shapes, ceilings, stages, whole sweeps, features, memory
    """
    case = StageCase(name, device, batch=8 if quick else None)
    times, totals = _measure_in_turn(case, quick)
    # For ceilings, use the best repeat; for stages, the median.
    rates = {one: totals[one] / min(times[one]) for one in totals}
    ceilings = {f"{one}_{'gbs' if one == 'copy' else 'gflops'}": rate / 1e9 for one, rate in rates.items()}
    amounts = case.amounts()
    # The products of a step have a tall and a narrow factor; no library reaches the rate of square matrices for these.
    for one in ("project", "collect"):
        ceilings[f"bare_{one}_gflops"] = amounts[one][0] / min(times[f"bare {one}"]) / 1e9
    bounds = {one: max(flops / rates["matmul"], moved / rates["copy"]) for one, (flops, moved) in amounts.items()}
    stages = [_stage_row(one, times, amounts[one], bounds[one]) for one in STAGES]
    batches = math.ceil(reference.SIZES[name][0] / int(case.batch or 1))
    stages = [row | {"sweep_seconds": batches * row["seconds"]["median"]} for row in stages]
    total = sum(row["seconds"]["median"] for row in stages)
    channels, length = case.settings.shape
    row: Row = {
        "dataset": name,
        "window": [channels, length],
        "stored": str(case.windows.dtype).removeprefix("torch."),
        "tensor": list(case.dims),
        "rank": case.rank,
        "batch": case.batch,
        "ceilings": ceilings,
        "stages": stages,
        "sum_of_stages_seconds": total,
    }
    row["sweep"] = _measure_sweeps(case, total, quick)
    flops, moved = amounts["batch"]
    seconds = row["sweep"]["batch_seconds"]
    row["whole_batch"] = {
        "seconds": seconds,
        "gflops": flops / seconds / 1e9,
        "gbs": moved / seconds / 1e9,
        "bound_seconds": bounds["batch"],
        "ratio": seconds / bounds["batch"],
    }
    return row


def _measure_in_turn(case: StageCase, quick: bool) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Return seconds of stages, bare calls and ceilings by name, and the flops or bytes of the ceilings."""
    ceilings, totals = ceiling_calls(case.device, quick)
    bare = timed_calls(case.bare_calls(), case.device)
    measurements = [case.stages_as_in_fit, bare, timed_calls(ceilings, case.device)]
    return repeat_in_turn(measurements, 2 if quick else _REPEATS, _WARM_UP[case.device.type]), totals


def _stage_row(name: str, times: dict[str, list[float]], amount: tuple[float, float], bound: float) -> Row:
    """Return the seconds of a stage per batch, its rates, and its ratio to the bound."""
    seconds = median_and_range(times[name])
    row: Row = {
        "stage": name,
        "seconds": seconds,
        "gflops": amount[0] / seconds["median"] / 1e9,
        "gbs": amount[1] / seconds["median"] / 1e9,
        "bound_seconds": bound,
    }
    parts = ["bare STFT", "bare log"] if name == "STFT" else [f"bare {name}"]
    bare = sum(float(np.median(times[part])) for part in parts)
    return row | {"ratio": seconds["median"] / bound, "bare_seconds": bare, "bare_ratio": seconds["median"] / bare}


def build_model(settings: Preset, device: torch.device, **changes: Any) -> ATD:
    """Return ATD with a preset's settings."""
    parameters = {**settings.parameters, "tol": 0.0, **changes}
    return ATD(tensorize=settings.tensorize, augment=settings.augment, device=device, **parameters)


def fit_quietly(model: CPD, X: Any) -> CPD:
    """Fit without convergence warnings, which are expected on random windows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(X)


def _measure_sweeps(case: StageCase, batch_seconds: float, quick: bool) -> Row:
    """Measure sweeps of `ATD.fit`, of the paper's size if time and memory allow, otherwise of fewer batches."""
    settings, device, batch = case.settings, case.device, int(case.batch or 0)
    theirs = reference.SIZES[case.name][0]
    window = 2 * math.prod(settings.shape)
    fitting = _memory_for_windows(device) // (window * (2 if case.name == "har" else 1))
    affordable = batch * max(3, int(_SECONDS[device.type] / _SWEEPS / batch_seconds))
    count = 3 * batch if quick else min(theirs, affordable, fitting)
    X = random_windows(settings, count, device)
    model = build_model(settings, device, max_sweeps=2 if quick else _SWEEPS, batch_size=batch)
    with Peak(device) as peak:
        fit_quietly(model, X)
    seconds = seconds_per_sweep(model.history_["seconds"])
    row: Row = {
        "windows": count,
        "seconds": median_and_range(model.history_["seconds"][1:]),
        "batch_seconds": seconds / math.ceil(count / batch),
        "paper_windows": theirs,
        "measured": count == theirs,
        "sweep_seconds": seconds * theirs / count,
        "paper_seconds": reference.SECONDS["ATD"][case.name],
        "memory_bytes": peak.own,
        "data_bytes": int(X.nbytes),
    }
    row["defaults"] = _measure_defaults(settings, X)
    if device.type == "cuda":
        host = random_windows(settings, min(count, 2**31 // window), torch.device("cpu"))
        streamed = fit_quietly(build_model(settings, device, max_sweeps=3, batch_size=batch), host)
        row["streamed_sweep_seconds"] = seconds_per_sweep(streamed.history_["seconds"]) * theirs / len(host)
        X = None
        X = random_windows(settings, count if quick else min(_FEATURE_WINDOWS, fitting), device)
    row["features"] = _measure_transform(model, X, device)
    return row


def _measure_defaults(settings: Preset, X: Any) -> Row:
    """Measure the parts of a fit with the library's default settings, on the windows of the paper's sweeps."""
    stft = recommended_stft(settings.shape[1], settings.fs)
    model = fit_quietly(CPD(tensorize=stft, max_sweeps=3, tol=0.0, device=X.device), X)
    seconds = model.history_["seconds"]
    begun = time.perf_counter()
    model.fit_readout(X)
    readout = time.perf_counter() - begun
    sweep = seconds_per_sweep(seconds)
    return {
        "windows": len(X),
        "tensor": [len(factor) for factor in model.factors_],
        "solver": model.solver_,
        "pass_seconds": seconds[0] - sweep if model.solver_ == "moments" else 0.0,
        "sweep_seconds": sweep,
        "readout_seconds": readout,
        "parameters": model.n_parameters_,
    }


def _measure_transform(model: CPD, X: Any, device: torch.device) -> Row:
    """Measure how many windows per second `transform` handles."""
    times = repeat_in_turn([timed_calls({"transform": lambda: model.transform(X)}, device)], 3)["transform"]
    return {
        "windows": len(X),
        "seconds": median_and_range(times),
        "windows_per_second": len(X) / float(np.median(times)),
    }


def _memory_for_windows(device: torch.device) -> int:
    """Return the maximum size of raw windows in bytes: a third of a GPU's free memory, or 2 GiB."""
    return torch.cuda.mem_get_info(device)[0] // 3 if device.type == "cuda" else 2**31
