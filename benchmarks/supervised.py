"""Which ridge of UMLDA and which penalty of STL: chosen on people of the unlabelled part, whose labels no table uses.

    python benchmarks/supervised.py har.npz

Twice five people train (1,500 windows at most) and four others test. Prints accuracy in percent: for UMLDA by the plain
and the standardised probe, for STL its own.
"""

from __future__ import annotations

import sys

import numpy as np

from polyadic.baselines import STL, UMLDA
from polyadic.evaluate import PROBES, probe_accuracy
from polyadic.presets import preset
from polyadic.spectral import STFT

RIDGES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
PENALTIES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)


def main(data: str) -> None:
    file = np.load(data)
    X, y, subject = (file[f"{name}_train"] for name in ("X", "y", "subject"))
    paper = preset("har")
    frames = STFT(paper.tensorize.n_fft, paper.tensorize.hop)
    people = np.random.default_rng(0).permutation(np.unique(subject))
    folds = [(people[:5], people[5:9]), (people[9:14], people[14:18])]
    rows = [(np.flatnonzero(np.isin(subject, a))[:1500], np.flatnonzero(np.isin(subject, b))) for a, b in folds]
    for ridge in RIDGES:
        found = []
        for train, test in rows:
            model = UMLDA(32, tensorize=frames, ridge=ridge, device="cpu").fit(X[train], y[train])
            Z, Z_test = model.transform(X[train]), model.transform(X[test])
            found.append([100 * probe_accuracy(kind, Z, y[train], Z_test, y[test]) for kind in PROBES])
        print("umlda", ridge, np.round(np.mean(found, axis=0), 2).tolist(), flush=True)
    for penalty in PENALTIES:
        found = []
        for train, test in rows:
            model = STL(tensorize=frames, alpha=penalty, device="cpu").fit(X[train], y[train])
            found.append([100 * np.mean(model.predict(X[test]) == y[test])])
        print("stl", penalty, np.round(np.mean(found, axis=0), 2).tolist(), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
