"""Split-half replicability of components on HAR and GeoTec.

Models with and without non-negative profiles are fitted from one start, as the best of several starts, and as their
consensus. The development subjects of `paper.labels.people` are split into two halves, `CPD` is fitted to each, and
the components of the two models are matched. The results are the fraction of components with a match above 0.9, and
the mean match. Splits and seeds differ from those used to design the consensus (splits 0 to 3). `nearest` is the match
of a component with the most similar other component of the same model; if it is close to 0.9, a match of 0.9 is not
informative. `noise` replaces HAR's tensors by white noise. Accuracy is measured as in `paper.benchmarks.front_end`, for
features learned from all development subjects.

    python -m paper.benchmarks.replicability DATA docs/results/replicability/cpu.json     # also writes cpu.md
"""

from __future__ import annotations

import sys
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from paper.benchmarks.front_end import development, scored
from paper.markdown import table
from paper.results import provenance, write_result
from polyadic import CPD, match
from polyadic.data import Windows

SPLITS = range(100, 104)
FEW = SPLITS[:2]
RANKS = (8, 16)
RESTARTS = 30
WAYS = ("one start", f"best of {RESTARTS}", f"consensus of {RESTARTS}")
Bases = list[np.ndarray]


def bases_by_way(windows: Any, rank: int, nonnegative: bool, seed: int, **more: Any) -> dict[str, Bases]:
    """Return the components of each way of fitting; one fit provides all three."""
    ends: dict[int, tuple[float, Bases]] = {}

    def note(model: CPD) -> None:
        ends[model.attempt_] = model.history_["loss"][-1], model.factors_

    words = {"readout": None, "device": "cpu", "nonnegative": nonnegative, "random_state": seed, **more}
    model = CPD(rank, restarts=RESTARTS, consensus=True, **words).fit(windows, after_sweep=note)
    ends.pop(RESTARTS + 1)
    return dict(zip(WAYS, (ends[1][1], min(ends.values(), key=lambda end: end[0])[1], model.factors_), strict=True))


def nearest(bases: Bases) -> float:
    """Return the mean match of components with the most similar other component of the same model."""
    unit = [basis / np.maximum(np.linalg.norm(basis, axis=0), 1e-12) for basis in bases]
    alike = np.abs(np.prod([basis.T @ basis for basis in unit], axis=0))
    np.fill_diagonal(alike, 0.0)
    return float(alike.max(axis=0).mean())


def compared(
    name: str, parts: list[Any], rank: int, nonnegative: bool, split: int, **more: Any
) -> list[dict[str, Any]]:
    """Fit both halves of one split, and return its rows."""
    begun = time.perf_counter()
    fits = [bases_by_way(part, rank, nonnegative, 1000 * split + half, **more) for half, part in enumerate(parts)]
    rows = []
    for way in WAYS:
        alike = match(fits[0][way], fits[1][way]).similarity
        rows.append(
            {
                "set": name,
                "rank": rank,
                "profiles": "non-negative" if nonnegative else "of either sign",
                "fit": way,
                "split": split,
                "above": float((alike > 0.9).mean()),
                "match": float(alike.mean()),
                "nearest": float(np.mean([nearest(fit[way]) for fit in fits])),
            }
        )
    print(rows[-1], f"{time.perf_counter() - begun:.0f} s", flush=True)
    return rows


def accuracy(name: str, windows: Windows, who: np.ndarray, rank: int) -> list[dict[str, Any]]:
    """Return the balanced accuracy of features learned from all subjects, for each way of fitting."""
    rows = []
    ways: tuple[dict[str, Any], ...] = ({}, {"restarts": RESTARTS}, {"restarts": RESTARTS, "consensus": True})
    for way, more in zip(WAYS, ways, strict=True):
        model = CPD(rank, device="cpu", **more).fit(windows)
        rows.append({"set": name, "rank": rank, "fit": way, "fitness": model.score(windows)})
        rows[-1] |= scored(model, windows, who)
        print(rows[-1], flush=True)
    return rows


def page(result: dict[str, Any]) -> str:
    """Return the tables in Markdown."""
    names = ("set", "rank", "profiles", "fit")
    lines = []
    for key in dict.fromkeys(tuple(row[name] for name in names) for row in result["rows"]):
        rows = [row for row in result["rows"] if tuple(row[name] for name in names) == key]
        above, alike, near = ([row[name] for row in rows] for name in ("above", "match", "nearest"))
        share = f"{100 * np.mean(above):.0f} % ({100 * min(above):.0f} to {100 * max(above):.0f})"
        match_ = f"{np.mean(alike):.2f} ({min(alike):.2f} to {max(alike):.2f})"
        lines.append([*map(str, key), str(len(rows)), share, match_, f"{np.mean(near):.2f}"])
    scores = [
        [row["set"], str(row["rank"]), row["fit"], f"{row['fitness']:.3f}", f"{row['10']:.1f}", f"{row['all']:.1f}"]
        for row in result["accuracy"]
    ]
    return f"""# Which components replicate in other subjects

CPD with default settings, fitted to both halves of several splits of the development subjects. Mean over the splits \
(minimum to maximum): percentage of components with a match above 0.9 in the other half, and mean match. `nearest`: \
match of a component with the most similar other one of its own model; if that is close to 0.9, a match of 0.9 is not \
informative. `noise`: white noise instead of HAR.

{table([*names, "splits", "above 0.9", "mean match", "nearest"], lines)}
Features learned from all development subjects, non-negative profiles: fitness, and balanced accuracy in percent, \
trained with labels of two thirds of the subjects and tested on the others.

{table(["set", "rank", "fit", "fitness", "10 labels per class", "all labels"], scores)}
Commit {result["commit"]}, {result["date"]}.
"""


def main() -> None:
    data, out = Path(sys.argv[1]), Path(sys.argv[2])
    sets = development(data)
    result = {**provenance("cpu"), "restarts": RESTARTS, "splits": list(SPLITS), "rows": [], "accuracy": []}

    def keep() -> None:
        write_result(out, result)
        out.with_suffix(".md").write_text(page(result))

    plan = [("HAR", True, SPLITS), ("GeoTec phone", True, FEW), ("HAR", False, FEW), ("GeoTec phone", False, FEW)]
    for name, nonnegative, splits in plan:
        windows, who = sets[name]
        for rank, split in product(RANKS, splits):
            halves = np.array_split(np.random.default_rng(split).permutation(np.unique(who)), 2)
            parts = [windows[np.flatnonzero(np.isin(who, half))] for half in halves]
            result["rows"] += compared(name, parts, rank, nonnegative, split)
            keep()
    for rank in RANKS:
        draw = np.random.default_rng(rank)
        noise = [draw.normal(size=(1000, 9, 33, 9)).astype(np.float32) for _ in range(2)]
        result["rows"] += compared("noise", noise, rank, True, SPLITS[0], tensorize=None)
        keep()
    for name, rank in product(sets, RANKS):
        result["accuracy"] += accuracy(name, *sets[name], rank)
        keep()


if __name__ == "__main__":
    main()
