"""Timing of the stages of an ATD batch, compared with the limits of the machine, and of sweeps and whole fits.

Stages are timed one after the other on one batch, in the order of a fit, through the functions that a fit calls. A fit
may fuse or overlap them, so its time, measured through `ATD.fit`, is reported next to their sum.
"""

from __future__ import annotations

import math
import time
import warnings
from functools import partial, reduce
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from paper import reference
from paper.speed.measure import Laps, Peak, ceiling_calls, median_and_range, repeat_in_turn, timed_calls
from paper.timing import seconds_per_sweep
from polyadic import ATD, CPD
from polyadic._util.threads import thread_pool
from polyadic.core import step as als
from polyadic.core.algebra import project
from polyadic.presets import Preset, preset
from polyadic.spectral import recommended_stft

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


class StageCase:
    """Windows of one dataset's shape on one device, ready for a step.

    Parameters
    ----------
    name : name of the preset
    batch : number of windows in a batch; None for the preset's batch size
    """

    def __init__(self, name: str, device: torch.device, batch: int | None = None) -> None:
        self.name, self.device = name, device
        self.settings = preset(name)
        self.batch = batch or int(self.settings.parameters["batch_size"])
        self.windows = random_windows(self.settings, 2 * self.batch, device)
        self.ids = torch.randperm(2 * self.batch, generator=torch.Generator().manual_seed(0))[: self.batch]
        self.tensorize = self.settings.tensorize.calibrated(self._raw())
        self.dims = self.tensorize.shape(*self.settings.shape)
        self.rank = int(self.settings.parameters["rank"])
        self.objective = als.Objective(alpha=1e-3, beta=2.0)
        self.factors = als.initial_factors(self.dims, self.rank, 0, torch.float32, device)
        # As in a fit, reuse the same memory, in the layout of the transform's output.
        channels, frequencies, frames = self.dims
        self.buffer = torch.empty(2 * self.batch, channels, frames, frequencies, device=device).transpose(2, 3)

    def _raw(self) -> Tensor:
        """Read a batch as a fit does: gather, convert to float32, and check that all values are finite."""
        rows = self.ids.to(self.device) if isinstance(self.windows, Tensor) else self.ids.numpy()
        batch = torch.as_tensor(self.windows[rows]).to(self.device, torch.float32)
        assert math.isfinite(batch.sum().item())
        return batch

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

    def amounts(self) -> dict[str, tuple[float, float]]:
        """Return the minimum flops and bytes of each stage, and of the whole batch without redundant transfers.

        A real FFT of n points takes 2.5 n log₂ n flops; per sample, sampling and interpolating noise takes 4, a filter
        9 (a third of the channels pass two), a rotation 6, a logarithm 1. Raw windows are read as stored; tensors and
        statistics are written once and read twice.
        """
        b, R = self.batch, self.rank
        channels, length = self.settings.shape
        n_fft, frames, D = self.tensorize.n_fft, self.dims[2], math.prod(self.dims)
        stored = self.windows.itemsize
        signals, both, Y = b * channels * length, 2 * b * D, R * D
        fft = 2 * b * channels * frames * 2.5 * n_fft * math.log2(n_fft)
        per_sample = 4 + 12 + (6 if channels == 9 else 0)
        amounts = {
            "read": (0.0, signals * (stored + _FLOAT)),
            "augment": (per_sample * signals, 2 * signals * _FLOAT),
            "STFT": (fft + both, (2 * signals + both) * _FLOAT),
            "project": (2.0 * both * R, (both + Y) * _FLOAT),
            "align": (8.0 * b * R * R + R**3, 8 * b * R * _FLOAT),
            "collect": (2.0 * both * R + 4 * b * R * R, (both + Y) * _FLOAT),
            "solve": (4.0 * Y, 2 * Y * _FLOAT),
        }
        flops = sum(amount for amount, _ in amounts.values())
        amounts["batch"] = (flops, signals * stored + (3 * both + 3 * Y) * _FLOAT)
        return {name: (float(flops), float(moved)) for name, (flops, moved) in amounts.items()}


def measure_dataset(name: str, device: torch.device, quick: bool) -> Row:
    """Measure everything about one dataset's shape on one device.

    Returns
    -------
    a row of the results: shapes, ceilings, stages, sweeps, features, memory, and for HAR whole fits
    """
    case = StageCase(name, device, batch=8 if quick else None)
    ceilings, totals = ceiling_calls(device, quick)
    measurements = [case.stages_as_in_fit, timed_calls(ceilings, device)]
    times = repeat_in_turn(measurements, 2 if quick else _REPEATS, _WARM_UP[device.type])
    # For ceilings, use the best repeat; for stages, the median.
    rates = {ceiling: totals[ceiling] / min(times[ceiling]) for ceiling in totals}
    amounts = case.amounts()
    bounds = {part: max(flops / rates["matmul"], moved / rates["copy"]) for part, (flops, moved) in amounts.items()}
    batches = math.ceil(reference.SIZES[name][0] / case.batch)
    stages = []
    for stage in STAGES:
        seconds = median_and_range(times[stage])
        stages.append(
            {
                "stage": stage,
                "seconds": seconds,
                **_rates(amounts[stage], seconds["median"], bounds[stage]),
                "sweep_seconds": batches * seconds["median"],
            }
        )
    total = sum(row["seconds"]["median"] for row in stages)
    sweep = _measure_sweeps(case, total, quick)
    row: Row = {
        "dataset": name,
        "window": list(case.settings.shape),
        "stored": str(case.windows.dtype).removeprefix("torch."),
        "tensor": list(case.dims),
        "rank": case.rank,
        "batch": case.batch,
        "ceilings": {"matmul_gflops": rates["matmul"] / 1e9, "copy_gbs": rates["copy"] / 1e9},
        "stages": stages,
        "sum_of_stages_seconds": total,
        "sweep": sweep,
        "whole_batch": {
            "seconds": sweep["batch_seconds"],
            **_rates(amounts["batch"], sweep["batch_seconds"], bounds["batch"]),
        },
    }
    if name == "har":
        row["fits"] = _measure_fits(case.settings, device, quick)
    return row


def _rates(amount: tuple[float, float], seconds: float, bound: float) -> Row:
    """Return the rates of a stage, and the ratio of its time to the bound."""
    rates = {"gflops": amount[0] / seconds / 1e9, "gbs": amount[1] / seconds / 1e9}
    return rates | {"bound_seconds": bound, "ratio": seconds / bound}


def build_model(settings: Preset, device: torch.device, **changes: Any) -> ATD:
    """Return ATD with a preset's settings."""
    parameters = {**settings.parameters, "tol": 0.0, **changes}
    return ATD(tensorize=settings.tensorize, augment=settings.augment, device=device, **parameters)


def fit_quietly(model: CPD, X: Any) -> CPD:
    """Fit without convergence warnings, which are expected on random windows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(X)


def _measure_fits(settings: Preset, device: torch.device, quick: bool) -> list[Row]:
    """Measure whole fits with default settings, from windows in memory to a model with its readout."""
    X = random_windows(settings, 24 if quick else reference.SIZES[settings.name][0], device)
    stft = recommended_stft(settings.shape[1], settings.fs)
    few: Row = {"max_sweeps": 3} if quick else {}
    models = {kind.__name__: kind(tensorize=stft, device=device, **few) for kind in (CPD, ATD)}
    fits = {name: partial(fit_quietly, model, X) for name, model in models.items()}
    times = repeat_in_turn([timed_calls(fits, device)], 1 if quick else 3)
    return [
        {
            "method": f"{name}()",
            "windows": len(X),
            "solver": model.solver_,
            "sweeps": model.n_sweeps_,
            "seconds": median_and_range(times[name]),
        }
        for name, model in models.items()
    ]


def _measure_sweeps(case: StageCase, batch_seconds: float, quick: bool) -> Row:
    """Measure sweeps of `ATD.fit`, of the paper's size if time and memory allow, otherwise of fewer batches."""
    settings, device, batch = case.settings, case.device, case.batch
    paper_windows = reference.SIZES[case.name][0]
    window = 2 * math.prod(settings.shape)
    # Raw windows take at most a third of a GPU's free memory, or 2 GiB.
    memory = torch.cuda.mem_get_info(device)[0] // 3 if device.type == "cuda" else 2**31
    fitting = memory // (window * (2 if case.name == "har" else 1))
    affordable = batch * max(3, int(_SECONDS[device.type] / _SWEEPS / batch_seconds))
    count = 3 * batch if quick else min(paper_windows, affordable, fitting)
    X = random_windows(settings, count, device)
    model = build_model(settings, device, max_sweeps=2 if quick else _SWEEPS, batch_size=batch)
    with Peak(device) as peak:
        fit_quietly(model, X)
    seconds = seconds_per_sweep(model.history_["seconds"])
    row: Row = {
        "windows": count,
        "seconds": median_and_range(model.history_["seconds"][1:]),
        "batch_seconds": seconds / math.ceil(count / batch),
        "paper_windows": paper_windows,
        "measured": count == paper_windows,
        "sweep_seconds": seconds * paper_windows / count,
        "paper_seconds": reference.SECONDS["ATD"][case.name],
        "memory_bytes": peak.own,
        "data_bytes": int(X.nbytes),
        "defaults": _measure_defaults(settings, X),
    }
    if device.type == "cuda":
        host = random_windows(settings, min(count, 2**31 // window), torch.device("cpu"))
        streamed = fit_quietly(build_model(settings, device, max_sweeps=3, batch_size=batch), host)
        row["streamed_sweep_seconds"] = seconds_per_sweep(streamed.history_["seconds"]) * paper_windows / len(host)
        X = None
        X = random_windows(settings, count if quick else min(_FEATURE_WINDOWS, fitting), device)
    times = repeat_in_turn([timed_calls({"transform": lambda: model.transform(X)}, device)], 3)["transform"]
    rate = len(X) / float(np.median(times))
    row["features"] = {"windows": len(X), "seconds": median_and_range(times), "windows_per_second": rate}
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
