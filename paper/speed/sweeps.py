"""Timing of sweeps with the paper's settings, and of features."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning

from paper import reference
from paper.speed.measure import Peak, median_and_range, repeat_in_turn, seconds_per_sweep, timed_calls
from polyadic import ATD, CPD
from polyadic.presets import Preset, preset

_SWEEPS = 4
_SECONDS = {"cpu": 8.0, "cuda": 4.0}
_FEATURE_WINDOWS = 200_000

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


def build_model(settings: Preset, device: torch.device, sweeps: int, batch: int) -> ATD:
    """Return ATD with a preset's settings, for a fixed number of sweeps."""
    parameters = {**settings.parameters, "tol": 0.0, "max_sweeps": sweeps, "batch_size": batch}
    return ATD(tensorize=settings.tensorize, augment=settings.augment, device=device, **parameters)


def fit_quietly(model: CPD, X: Any) -> CPD:
    """Fit without convergence warnings, which are expected on random windows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(X)


def measure_dataset(name: str, device: torch.device, quick: bool) -> Row:
    """Measure everything about one dataset's shape on one device, on random windows.

    Returns
    -------
    a row of the results: shapes, sweeps, memory and features
    """
    settings = preset(name)
    dims = settings.tensorize.shape(*settings.shape)
    row: Row = {"dataset": name, "window": list(settings.shape), "tensor": list(dims)}
    row |= {"rank": settings.parameters["rank"], "batch": 8 if quick else settings.parameters["batch_size"]}
    row["sweep"] = _measure_sweeps(settings, row["batch"], device, quick)
    return row


def _measure_sweeps(settings: Preset, batch: int, device: torch.device, quick: bool) -> Row:
    """Measure sweeps of `ATD.fit`, of the paper's size if time and memory allow, otherwise of fewer batches."""
    paper_windows = reference.SIZES[settings.name][0]
    window = 2 * math.prod(settings.shape)
    # Raw windows take at most a third of a GPU's free memory, or 2 GiB.
    memory = torch.cuda.mem_get_info(device)[0] // 3 if device.type == "cuda" else 2**31
    fitting = memory // (window * (2 if settings.name == "har" else 1))
    # A first fit of a few batches warms up, and tells how many batches there is time for.
    first = fit_quietly(build_model(settings, device, 2, batch), random_windows(settings, 3 * batch, device))
    affordable = batch * max(3, int(_SECONDS[device.type] / _SWEEPS / (first.history_["seconds"][-1] / 3)))
    count = 3 * batch if quick else min(paper_windows, affordable, fitting)
    X = random_windows(settings, count, device)
    model = build_model(settings, device, 2 if quick else _SWEEPS, batch)
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
        "paper_seconds": reference.SECONDS["ATD"][settings.name],
        "memory_bytes": peak.own,
        "data_bytes": int(X.nbytes),
    }
    if device.type == "cuda":
        host = random_windows(settings, min(count, 2**31 // window), device).cpu().numpy()
        streamed = fit_quietly(build_model(settings, device, 3, batch), host)
        row["streamed_sweep_seconds"] = seconds_per_sweep(streamed.history_["seconds"]) * paper_windows / len(host)
        X = None
        X = random_windows(settings, count if quick else min(_FEATURE_WINDOWS, fitting), device)
    times = repeat_in_turn([timed_calls({"transform": lambda: model.transform(X)}, device)], 3)["transform"]
    rate = len(X) / float(np.median(times))
    row["features"] = {"windows": len(X), "seconds": median_and_range(times), "windows_per_second": rate}
    return row
