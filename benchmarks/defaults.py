"""How the library's defaults were chosen: on people of the HAR training set alone, the test people never seen.

Three times, a third of the 21 training subjects are held out as labelled, in halves for training and testing the
probe; the rest are unlabelled. Each candidate changes little of the base setting.

    python benchmarks/defaults.py har.npz docs/results/defaults/har.json
"""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import torch
from sklearn.model_selection import GroupShuffleSplit, ShuffleSplit

from polyadic import ATD, GRSALS, SALS, spectral
from polyadic.evaluate import PROBES, probe_accuracy
from polyadic.presets import preset
from polyadic.provenance import provenance
from polyadic.spectral import STFT

BASE = {"method": "ATD", "solver": "blend", "learning_rate": 0.05, "window": "hann", "floor": 1e-2}
CANDIDATES = [
    {},
    {"method": "SALS"},
    *({"method": "GRSALS", "graph_weight": weight} for weight in (1e-3, 1.0, 100.0, 1000.0)),
    {"beta": 0.0},
    {"beta": 200.0},
    {"alpha": 1.0},
    {"solver": "memory", "learning_rate": 0.1},
    {"learning_rate": 0.1},
    {"window": "rectangular"},
    {"floor": 3e-3},
    {"floor": 3e-2},
    {"learning_rate": 0.02},
]


def people_folds(subjects: np.ndarray) -> list[np.ndarray]:
    return np.array_split(np.random.default_rng(0).permutation(np.unique(subjects)), 3)


def fit(settings: dict, X: torch.Tensor, fold: int) -> ATD | SALS | GRSALS:
    settings = {**BASE, **settings}
    spectral._RELATIVE_FLOOR = settings.pop("floor")
    har = preset("har")
    kind = {"ATD": ATD, "SALS": SALS, "GRSALS": GRSALS}[settings.pop("method")]
    if kind is ATD:
        settings["augment"] = har.augment
    tensorize = STFT(har.tensorize.n_fft, har.tensorize.hop, window=settings.pop("window"))
    return kind(32, tensorize=tensorize, random_state=fold, **settings).fit(X)


def judge(job: tuple) -> float:
    kind, protocol, seed, Z, y, subject = job
    splitter = ShuffleSplit if protocol == "paper" else GroupShuffleSplit
    train, test = next(splitter(1, test_size=0.5, random_state=seed).split(Z, y, subject))
    return 100 * probe_accuracy(kind, Z[train], y[train], Z[test], y[test])


def main(data: str, out: str) -> None:
    arrays = np.load(data)
    X, y, subject = (arrays[f"{name}_train"] for name in ("X", "y", "subject"))
    place = "cuda" if torch.cuda.is_available() else "cpu"
    rows = []
    with ProcessPoolExecutor() as pool:
        for candidate in CANDIDATES:
            begun, jobs, sweeps = time.perf_counter(), {}, []
            for fold, held_out in enumerate(people_folds(subject)):
                labelled = np.isin(subject, held_out)
                model = fit(dict(candidate), torch.from_numpy(X[~labelled]).to(place), fold)
                Z = model.transform(X[labelled])
                sweeps.append(model.n_sweeps_)
                for kind in PROBES:
                    for protocol in ("paper", "subject"):
                        for seed in range(3):
                            job = (kind, protocol, seed, Z, y[labelled], subject[labelled])
                            jobs.setdefault(f"{kind}, {protocol}", []).append(pool.submit(judge, job))
            accuracy = {name: round(float(np.mean([f.result() for f in part])), 2) for name, part in jobs.items()}
            rows.append({"candidate": candidate, "sweeps": sweeps, **accuracy})
            print(rows[-1], f"{time.perf_counter() - begun:.1f} s", flush=True)
            Path(out).parent.mkdir(parents=True, exist_ok=True)
            Path(out).write_text(json.dumps({**provenance(place), "base": BASE, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    torch.multiprocessing.set_start_method("spawn")
    main(*sys.argv[1:])
