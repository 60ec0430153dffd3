"""Time of each step with the default settings on HAR, compared with MiniRocket with the same probe.

Features are learned from the 7,428 windows of the training subjects without labels; the probe is trained on the 3,003
labelled windows of the others. Nothing is scored, because these subjects are reserved for other tables.

    python -m paper.benchmarks.har_default DATA docs/results/speed/har-default-cpu.json
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import clone

from paper.results import provenance, write_result
from paper.scoring import statistic_columns
from polyadic import CPD
from polyadic.baselines import MiniRocket
from polyadic.data import Windows
from polyadic.evaluate import Probe

ROUNDS = 3


def timed(seconds: dict[str, float], name: str, work: Callable[[], Any]) -> Any:
    begun = time.perf_counter()
    value = work()
    seconds[name] = time.perf_counter() - begun
    return value


def run(model: Any, unlabelled: Windows, labelled: Windows, subject: np.ndarray) -> dict[str, float]:
    """Return the seconds of the fit, the readout if there is one, the features, and the probe."""
    seconds: dict[str, float] = {}
    timed(seconds, "fit", lambda: model.fit(unlabelled))
    if isinstance(model, CPD):
        model.set_params(readout="auto")
        timed(seconds, "readout", lambda: model.fit_readout(unlabelled))
    Z = timed(seconds, "features", lambda: np.asarray(model.transform(labelled), np.float64))
    levels = statistic_columns(model)
    timed(seconds, "probe", lambda: Probe().fit(Z, labelled.label, groups=subject, statistic_columns=levels))
    return seconds


def main() -> None:
    data, out = Path(sys.argv[1]), Path(sys.argv[2])
    har = np.load(data / "har.npz")
    unlabelled = Windows(har["X_train"], fs=50.0)
    labelled = Windows(har["X_test"], fs=50.0, label=har["y_test"].astype(int))
    rows = []
    ours = {
        "CPD()": CPD(readout=None, device="cpu"),
        "CPD(nonnegative=False)": CPD(readout=None, nonnegative=False, device="cpu"),
    }
    # Run MiniRocket only once: it is so slow that its spread does not matter.
    for name, model in [*ours.items()] * ROUNDS + [("MiniRocket", MiniRocket(device="cpu"))]:
        parts = run(clone(model), unlabelled, labelled, har["subject_test"])
        rows.append({"method": name, **parts, "total": sum(parts.values())})
        print(rows[-1], flush=True)
    write_result(out, {**provenance("cpu"), "windows": len(unlabelled), "labelled": len(labelled), "rows": rows})


if __name__ == "__main__":
    main()
