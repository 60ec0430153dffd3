"""`python -m paper speed`: seconds of sweeps and fits, how they grow, PCA and TensorLy on the same windows."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from paper import reference
from paper.results import choose_device, provenance, publish, stage_bar, write_result
from paper.speed import fits, sweeps, tables

Result = dict[str, Any]


def run(out: Path, device: str = "auto", quick: bool = False, quiet: bool = False) -> list[Result]:
    """Measure speed, and write `speed-cpu.json` and `.md`, and the same for `cuda` if there is a GPU.

    Parameters
    ----------
    out : folder for the files
    device : "auto" for the CPU and, if there is one, the GPU; or one of them
    quick : small sizes, to check that everything runs; the results are not representative

    Returns
    -------
    one result for each device
    """
    cuda = device == "auto" and torch.cuda.is_available()
    places = [torch.device("cpu"), *[torch.device("cuda")] * cuda] if device == "auto" else [choose_device(device)]
    results = [_measure(place, out, quick, quiet) for place in places]
    for result in results:
        publish(out, f"speed-{result['device']}", result, tables.markdown(result))
    return results


def _measure(device: torch.device, out: Path, quick: bool, quiet: bool) -> Result:
    """Measure all parts on one device, and write the result after each."""
    result: Result = {
        "experiment": "speed",
        "title": "Speed",
        "device": device.type,
        "quick": quick,
        # Record the load before the run, because results from a busy machine are not reliable.
        "load": os.getloadavg()[0],
        **provenance(str(device)),
        "part_seconds": {},
        "failed": {},
        "rows": [],
    }
    parts: dict[str, Callable[[], Any]] = {
        "limits": partial(fits.measure_machine, device),
        "fits": lambda: fits.measure_fits(device, quick, result["limits"]),
        "growth": partial(fits.measure_growth, device, quick),
    }
    for name in ("har",) if quick else reference.DATASETS:
        parts[name] = partial(sweeps.measure_dataset, name, device, quick)
    if device.type == "cpu":
        parts["store"] = partial(fits.measure_store, quick)
        parts["pca"] = partial(fits.against_pca, quick)
        parts["tensorly"] = partial(fits.against_tensorly, quick)
    with stage_bar(f"speed of {device.type}", quiet, "parts") as update:
        for count, (name, part) in enumerate(parts.items()):
            update(count, len(parts), name)
            begun = time.perf_counter()
            try:
                found = part()
            except Exception as error:
                if quick:
                    raise
                # The other parts still count: a GPU may be at hand for minutes only.
                result["failed"][name] = f"{type(error).__name__}: {error}"
                continue
            if name in reference.DATASETS:
                result["rows"].append(found)
            else:
                result[name] = found
            result["part_seconds"][name] = time.perf_counter() - begun
            result["load_after"] = os.getloadavg()[0]
            # Write the file after every part, so that an interrupted run keeps its results.
            write_result(out / f"speed-{device.type}.json", result)
    return result
