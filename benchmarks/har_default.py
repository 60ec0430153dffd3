"""Time of each step with the default settings on HAR, compared with MiniRocket with the same probe.

Features are learned from the 7,428 windows of the training subjects without labels; the probe is trained on the 3,003
labelled windows of the others. Nothing is scored, because these subjects are reserved for other tables.

    python benchmarks/har_default.py DATA docs/results/speed/har-default-cpu.json
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from polyadic import ATD
from polyadic._util.files import write_atomically
from polyadic._util.provenance import provenance
from polyadic.baselines import MiniRocket
from polyadic.data import Windows
from polyadic.evaluate.probe import Probe, level_columns

ROUNDS = 3


def timed(seconds: dict[str, float], name: str, work: Callable[[], Any]) -> Any:
    begun = time.perf_counter()
    found = work()
    seconds[name] = time.perf_counter() - begun
    return found


def ours(
    unlabelled: Windows, labelled: Windows, people: np.ndarray, nonnegative: bool | Literal["auto"] = "auto"
) -> dict[str, float]:
    seconds: dict[str, float] = {}
    model = timed(seconds, "fit", lambda: ATD(readout=None, nonnegative=nonnegative, device="cpu").fit(unlabelled))
    model.set_params(readout="auto")
    timed(seconds, "readout", lambda: model.fit_readout(unlabelled))
    Z = timed(seconds, "features", lambda: np.asarray(model.transform(labelled), np.float64))
    words = {"groups": people, "level_columns": level_columns(model)}
    timed(seconds, "probe", lambda: Probe().fit(Z, labelled.label, **words))
    return seconds


def rocket(unlabelled: Windows, labelled: Windows, people: np.ndarray) -> dict[str, float]:
    seconds: dict[str, float] = {}
    model = timed(seconds, "fit", lambda: MiniRocket(device="cpu").fit(unlabelled))
    Z = timed(seconds, "features", lambda: np.asarray(model.transform(labelled), np.float64))
    timed(seconds, "probe", lambda: Probe().fit(Z, labelled.label, groups=people))
    return seconds


def main() -> None:
    data, out = Path(sys.argv[1]), Path(sys.argv[2])
    har = np.load(data / "har.npz")
    unlabelled = Windows(har["X_train"], fs=50.0)
    labelled = Windows(har["X_test"], fs=50.0, label=har["y_test"].astype(int))
    rows = []
    signed = partial(ours, nonnegative=False)
    # Run MiniRocket only once: it is so slow that its spread does not matter.
    for name, run in [("ATD()", ours), ("ATD(nonnegative=False)", signed)] * ROUNDS + [("MiniRocket", rocket)]:
        parts = run(unlabelled, labelled, har["subject_test"])
        rows.append({"method": name, **parts, "total": sum(parts.values())})
        print(rows[-1], flush=True)
    result = {**provenance("cpu"), "windows": len(unlabelled), "labelled": len(labelled), "rows": rows}
    write_atomically(out, (json.dumps(result, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
