"""Total time of a fit on HAR and its probe, from windows in memory to an accuracy.

For each seed of an earlier race (`python -m paper race`), the default candidate is refitted to the same subjects, for
as many sweeps as it needed in the race to reach 99 % of its converged accuracy; then features, scaling and a logistic
regression are computed. The first fit of a process also initialises the GPU and loads its kernels, or compiles them if
Triton has not cached them.

    python -m paper.benchmarks.complete har.npz docs/results/speed/race-har-cuda.json complete-cuda.json
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from paper.results import provenance, write_result
from paper.scoring import probe_accuracy
from paper.speed import race
from polyadic import ATD

CANDIDATE = "blend 0.05"


def sweeps_needed(accuracy: list[float]) -> int:
    """Return the number of sweeps until two consecutive ones reach 99 % of the mean of the last three."""
    target = 0.99 * float(np.mean(accuracy[-3:]))
    return 2 + next(number for number in range(len(accuracy)) if min(accuracy[number : number + 2]) >= target)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("store", type=Path)
    parser.add_argument("race", type=Path)
    parser.add_argument("out", type=Path)
    asked = parser.parse_args()
    before = json.loads(asked.race.read_text())
    windows, tensorize, augment = race.open_training_people(asked.store, before["dataset"])
    device, rows = before["device"], []
    warnings.simplefilter("ignore", ConvergenceWarning)
    for row in (row for row in before["rows"] if row["candidate"] == CANDIDATE):
        parts = race.split_people(windows, row["seed"])
        assert parts.hash == row["split"]
        unlabelled, first, second = parts
        sweeps = sweeps_needed(row["accuracy"])
        settings = {**race.CANDIDATES[CANDIDATE][0], "max_sweeps": sweeps, "tol": 0.0, "random_state": row["seed"]}
        begun = time.perf_counter()
        model = ATD(tensorize=tensorize, augment=augment, rank=32, device=device, **settings).fit(unlabelled.X)
        fitted = time.perf_counter()
        features = [model.transform(part.X) for part in (first, second)]
        accuracy = 100 * probe_accuracy("standardised", features[0], first.label, features[1], second.label)
        ended = time.perf_counter()
        rows.append(
            {
                "seed": row["seed"], "windows": len(unlabelled.X), "sweeps": sweeps, "accuracy": round(accuracy, 2),
                "fit_seconds": round(fitted - begun, 3), "probe_seconds": round(ended - fitted, 3),
                "seconds": round(ended - begun, 3),
            }
        )  # fmt: skip
        print(rows[-1], flush=True)
    result = {"candidate": CANDIDATE, **provenance(device), "rows": rows}
    write_result(asked.out, result)


if __name__ == "__main__":
    main()
