"""Timing of sweeps with the paper's settings, and of features."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from paper import reference
from paper.speed.measure import Peak, fit_quietly, median_and_range, random_windows, seconds_of, seconds_per_sweep
from polyadic import ATD
from polyadic.presets import Preset, preset

_SWEEPS = 4
_SECONDS = {"cpu": 8.0, "cuda": 4.0}
_FEATURE_WINDOWS = 200_000

Row = dict[str, Any]


def _build_model(settings: Preset, device: torch.device, sweeps: int, batch: int) -> ATD:
    """Return ATD with a preset's settings, for a fixed number of sweeps."""
    parameters = {**settings.parameters, "tol": 0.0, "max_sweeps": sweeps, "batch_size": batch}
    return ATD(tensorize=settings.tensorize, augment=settings.augment, device=device, **parameters)


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
    fitting = memory // window
    # A first fit of a few batches warms up, and tells how many batches there is time for.
    first = fit_quietly(_build_model(settings, device, 2, batch), random_windows((3 * batch, *settings.shape), device))
    affordable = batch * max(3, int(_SECONDS[device.type] / _SWEEPS / (first.history_["seconds"][-1] / 3)))
    count = 3 * batch if quick else min(paper_windows, affordable, fitting)
    X = random_windows((count, *settings.shape), device)
    model = _build_model(settings, device, 2 if quick else _SWEEPS, batch)
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
        host = random_windows((min(count, 2**31 // window), *settings.shape), device).cpu().numpy()
        streamed = fit_quietly(_build_model(settings, device, 3, batch), host)
        row["streamed_sweep_seconds"] = seconds_per_sweep(streamed.history_["seconds"]) * paper_windows / len(host)
        X = None
        X = random_windows((count if quick else min(_FEATURE_WINDOWS, fitting), *settings.shape), device)
    times = [seconds_of(model.transform, device, X) for _ in range(4)][1:]  # the first warms up
    rate = len(X) / float(np.median(times))
    row["features"] = {"windows": len(X), "seconds": median_and_range(times), "windows_per_second": rate}
    return row
