"""Latency of ONNX graphs for each of the paper's datasets: file size, and time for one window on one thread.

For comparison, the same window is passed through `transform` of the same model on one thread of torch. Neither time
depends on the data, so models are fitted briefly to noise.

    OMP_NUM_THREADS=1 python -m paper.benchmarks.onnx_latency docs/results/onnx/cpu.json
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime  # noqa: F401  imported here so that its import is not timed
import torch

from paper.results import provenance, publish, table
from polyadic import ATD, export
from polyadic.evaluate import make_probe
from polyadic.export import Features
from polyadic.presets import preset

PRESETS = ("sleep_edf", "har", "ptb_xl", "mgh", "ptb_xl_100hz")
N_WINDOWS, N_CLASSES = 64, 5
WARM_UP, REPEATS = 20, 200


def milliseconds(work: Callable[[], object]) -> dict[str, float]:
    """Return the median and the 99th percentile of milliseconds per call."""
    times = []
    for _ in range(WARM_UP + REPEATS):
        begun = time.perf_counter()
        work()
        times.append(1e3 * (time.perf_counter() - begun))
    kept = np.array(times[WARM_UP:])
    return {"median": round(float(np.median(kept)), 3), "p99": round(float(np.quantile(kept, 0.99)), 3)}


def measured(name: str, folder: Path) -> dict[str, Any]:
    paper = preset(name)
    X = np.random.default_rng(0).normal(size=(N_WINDOWS, *paper.shape)).astype(np.float32)
    settings = {**paper.parameters, "max_sweeps": 2, "batch_size": 32}
    model = ATD(tensorize=paper.tensorize, augment=paper.augment, device="cpu", **settings).fit(X)
    expected = model.transform(X)
    probe = make_probe("standardised").fit(expected, np.arange(N_WINDOWS) % N_CLASSES)
    files = {"features": folder / "features.onnx", "probabilities": folder / "probabilities.onnx"}
    export.onnx(model, files["features"])
    export.onnx(model, files["probabilities"], probe=probe)
    begun = time.perf_counter()
    features = Features(files["features"])
    opening = 1e3 * (time.perf_counter() - begun)
    with_probe = Features(files["probabilities"])
    scale = float(np.sqrt(np.mean(np.square(expected))))
    return {
        "preset": name,
        "window": list(paper.shape),
        "seconds_of_signal": paper.shape[1] / float(paper.fs or 1.0),
        "rank": model.rank,
        "parameters": model.n_parameters_,
        "bytes": {kind: path.stat().st_size for kind, path in files.items()},
        "open_ms": round(opening, 1),
        "features_ms": milliseconds(lambda: features(X[0])),
        "probabilities_ms": milliseconds(lambda: with_probe.probabilities(X[0])),
        "transform_ms": milliseconds(lambda: model.transform(X[:1])),
        "largest_difference_to_transform": float(np.abs(features(X) - expected).max()) / scale,
    }


def page(content: dict[str, Any]) -> str:
    """Return the rows in Markdown, for the page on deployment."""
    lines = []
    for row in content["rows"]:
        channels, samples = row["window"]
        times = [f"{row[key]['median']:.2f} ms" for key in ("features_ms", "probabilities_ms", "transform_ms")]
        window = f"{channels} × {samples:,}, {row['seconds_of_signal']:g} s"
        lines.append([row["preset"], window, f"{row['bytes']['features'] / 1e3:,.0f} kB", *times])
    heads = ["dataset", "window", "file", "features", "with a probe", "`transform` in torch"]
    machine, largest = content["machine"], max(row["largest_difference_to_transform"] for row in content["rows"])
    return (
        f"{table(heads, lines)}\nMedian of {REPEATS} single windows on one thread ({machine['processor']}, "
        f"{content['date']}). Features differ from `transform` by at most {largest:.0e} of their root mean square.\n"
    )


def main(out: str) -> None:
    torch.set_num_threads(1)
    rows = []
    for name in PRESETS:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measured(name, Path(folder)))
        print(rows[-1])
    content = provenance("cpu") | {"rows": rows}
    content["versions"] |= {package: version(package) for package in ("onnx", "onnxruntime")}
    publish(Path(out).parent, Path(out).stem, content, page(content))


if __name__ == "__main__":
    main(*sys.argv[1:])
