"""`python -m paper compression`: loss and accuracy of default fits with compressed and with uncompressed windows.

Only development subjects are used. Features are learned from all of their windows; a classifier is trained on half of
them and scored on the other half, for several splits and random seeds. Compression changes nothing else, so that
differences within a split and seed are those of the compression, and of the local minimum that a fit ends in.
"""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from joblib import delayed
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import balanced_accuracy_score

from paper.labels.people import FILES, Count, drawn, halves, read_set
from paper.results import provenance, publish, run_cells, table
from paper.speed.tables import footer
from polyadic import CPD
from polyadic.core.passes import LARGEST_CORE
from polyadic.evaluate import WindowClassifier
from polyadic.spectral import recommended_stft

_COUNTS: tuple[Count, ...] = (10, "all")

Row = dict[str, Any]


def run(out: Path, data: Path, seeds: int = 3, splits: int = 4, jobs: int = 1, quiet: bool = False) -> None:
    """Compare on the five sets of the label curve, and write `compression.json` and `.md`.

    Parameters
    ----------
    out : folder for the files
    data : folder with the files of the sets
    seeds, splits : number of random seeds of the fits, and of splits of the subjects
    jobs : number of processes, each with one thread
    """
    result: Row = {
        "experiment": "compression",
        "title": "Compression",
        "seeds": seeds,
        "splits": splits,
        "load": os.getloadavg()[0],
        **provenance("cpu"),
        "rows": [],
    }
    out.mkdir(parents=True, exist_ok=True)
    journal = out / "compression.jsonl"
    # The largest tensors first, so that no process is left with one of them at the end.
    tasks = {
        f"{name} {seed} {compressed} {splits}": delayed(_fit_row)(data, name, seed, compressed, splits)
        for compressed in (False, True)
        for name in reversed(FILES)
        for seed in range(seeds)
    }
    result["rows"] = list(run_cells("compression", tasks, journal, jobs, quiet).values())
    publish(out, "compression", result, markdown(result))
    journal.unlink()


def _fit_row(folder: Path, name: str, seed: int, compressed: bool, splits: int) -> Row:
    """Fit the development subjects of one set, and return loss, accuracy and seconds."""
    chosen = read_set(folder, name)
    windows = chosen.unlabelled()
    tensor = recommended_stft(windows.shape[-1], windows.fs).shape(*windows.shape[1:])
    model = CPD(compression="auto" if compressed else _largest(tensor), device="cpu", random_state=seed)
    begun = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(windows)
    seconds = time.perf_counter() - begun
    row = {"set": name, "seed": seed, "compressed": compressed, "seconds": seconds, **_losses(model, windows)}
    row |= {"title": chosen.title, "tensor": list(tensor), "windows": len(windows)}
    return row | {"accuracy": _scores(model, windows, splits, seed)}


def _largest(tensor: Sequence[int]) -> tuple[int, ...] | None:
    """Return None, or for larger tensors the ranks that keep as many frequencies as moments in memory allow."""
    if math.prod(tensor) <= LARGEST_CORE:
        return None
    return (tensor[0], LARGEST_CORE // (tensor[0] * tensor[2]), tensor[2])


def _losses(model: CPD, windows: Any) -> Row:
    """Return the ranks of the modes, the share of the energy that they keep, and the loss relative to the energy."""
    assert model.compression_ is not None
    lost = (1 - model.score(windows)) ** 2  # of the exact residuals
    return {**model.compression_, "loss": lost}


def _scores(model: CPD, windows: Any, splits: int, seed: int) -> dict[str, list[float]]:
    """Return the balanced accuracy in percent for each number of labels per class, one value per split."""
    scores: dict[str, list[float]] = {str(count): [] for count in _COUNTS}
    for number, (train, test) in enumerate(halves(windows.label, windows.subject, splits)):
        for count in _COUNTS:
            rows = drawn(windows.label, train, count, [seed, number])
            classifier = WindowClassifier(model).fit(windows[rows], windows.label[rows])
            guesses = np.asarray(classifier.predict(windows[test]))
            scores[str(count)].append(100 * float(balanced_accuracy_score(windows.label[test], guesses)))
    return scores


def compared(rows: list[Row]) -> list[tuple[Row, dict[str, float]]]:
    """Return for each set a row of a compressed fit, and the means over seeds.

    They are `loss`, in percent of ‖T‖², and `more`, by how much it is higher than with all entries; for each number of
    labels the accuracy with all entries, and its `gain` by compression with the standard `error`; and the seconds.
    """
    found = []
    for name in FILES:
        own = sorted((row for row in rows if row["set"] == name), key=lambda row: int(row["seed"]))
        small, whole = ([row for row in own if row["compressed"] == compressed] for compressed in (True, False))
        if not small or len(small) != len(whole):
            continue
        losses = [100 * np.mean([row["loss"] for row in side]) for side in (small, whole)]
        means = {"loss": losses[0], "more": losses[0] - losses[1]}
        for count in map(str, _COUNTS):
            scores = np.array([[np.mean(row["accuracy"][count]) for row in side] for side in (small, whole)])
            gains = scores[0] - scores[1]
            error = gains.std(ddof=1) / math.sqrt(len(gains)) if len(gains) > 1 else math.nan
            means |= {count: scores[1].mean(), f"gain {count}": gains.mean(), f"error {count}": error}
        for side, what in ((small, "seconds"), (whole, "seconds of all")):
            means[what] = np.mean([row["seconds"] for row in side])
        found.append((small[0], {what: float(value) for what, value in means.items()}))
    return found


HEADS = ["", "tensor", "core", "loss, % of ‖T‖²", "more than with all entries", "10 labels", "gain by compression"]
HEADS += ["all labels", "gain by compression", "fit, s", "with all entries, s"]


def cells(row: Row, means: dict[str, float]) -> list[str]:
    """Return the cells of a set below `HEADS`."""
    line = [row["title"], " × ".join(map(str, row["tensor"])), " × ".join(map(str, row["ranks"]))]
    line += [f"{means['loss']:.2f}", f"{means['more']:+.2f}"]
    for count in map(str, _COUNTS):
        error = means[f"error {count}"]
        spread = "" if math.isnan(error) else f" ± {error:.2f}"
        line += [f"{means[count]:.1f}", f"{means[f'gain {count}']:+.2f}{spread}"]
    return [*line, f"{means['seconds']:.2g}", f"{means['seconds of all']:.2g}"]


def note(result: Row) -> str:
    """Return what the figures are."""
    return (
        "Balanced accuracy in percent on development subjects with all entries, and the gain by compression"
        f"{' with its standard error' * (result['seeds'] > 1)}; seeds: {result['seeds']}, splits: {result['splits']}. "
        "Tensors of more than "
        f"{LARGEST_CORE:,} entries are compared with fits that keep as many. Fits on one thread.\n"
    )


def markdown(result: Row) -> str:
    """Return the table of a result."""
    lines = [cells(*one) for one in compared(result["rows"])]
    return "\n".join(["# Compression\n", table(HEADS, lines), note(result), footer(result)])
