"""`python -m paper compression`: loss and accuracy of default fits with compressed and with uncompressed windows.

Only development subjects are used. Features are learned from all of their windows; a classifier is trained on half of
them and scored on the other half, for several splits and random seeds. Compression changes nothing else, so that
differences within a split and seed are those of the compression, and of the local minimum that a fit ends in.
"""

from __future__ import annotations

import math
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from joblib import delayed
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import balanced_accuracy_score

from paper.labels.people import FILES, Count, drawn, halves, read_set
from paper.markdown import table
from paper.results import provenance, run_cells, show, write_result
from paper.speed.tables import footer
from polyadic import CPD
from polyadic.core.passes import LARGEST_CORE
from polyadic.evaluate import WindowClassifier

_COUNTS: tuple[Count, ...] = (10, "all")

Row = dict[str, Any]


def run(out: Path, data: Path, seeds: int = 3, splits: int = 4, quiet: bool = False, as_json: bool = False) -> Row:
    """Compare on the five sets of the label curve, and write `compression.json` and `.md`.

    Parameters
    ----------
    out : folder for the files
    data : folder with the files of the sets
    seeds, splits : number of random seeds of the fits, and of splits of the subjects
    """
    result: Row = {
        "experiment": "compression",
        "title": "Compression",
        "seeds": seeds,
        "splits": splits,
        **provenance("cpu"),
        "rows": [],
    }
    out.mkdir(parents=True, exist_ok=True)
    tasks = {
        f"{name} {seed} {splits}": delayed(_compare)(data, name, seed, splits)
        for name in FILES
        for seed in range(seeds)
    }
    cells = run_cells("compression", tasks, out / "compression.jsonl", hidden=quiet or as_json)
    result["rows"] = [row for rows in cells.values() for row in rows]
    write_result(out / "compression.json", result)
    (out / "compression.md").write_text(markdown(result))
    show(result, markdown(result), f"compression.json and compression.md to {out}/", as_json)
    return result


def _compare(folder: Path, name: str, seed: int, splits: int) -> list[Row]:
    """Return a row for the compressed and one for the uncompressed fit."""
    windows = read_set(folder, name).unlabelled()
    rows: list[Row] = []
    for setting in ("auto", None):
        model = CPD(compression=setting, device="cpu", random_state=seed)
        begun = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            if setting is None:
                model.set_params(compression=_largest(rows[0]["tensor"]))
            model.fit(windows)
        seconds = time.perf_counter() - begun
        shares = _losses(model, windows)
        row = {"set": name, "seed": seed, "compressed": setting == "auto", "seconds": seconds, **shares}
        row |= {"tensor": [len(factor) for factor in model.factors_], "windows": len(windows)}
        rows.append(row | {"accuracy": _scores(model, windows, splits, seed)})
    return rows


def _largest(tensor: list[int]) -> tuple[int, ...] | None:
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


def markdown(result: Row) -> str:
    """Return the tables of a result."""
    lines = []
    for name in FILES:
        pairs = _pairs(result["rows"], name)
        if not pairs:
            continue
        first = pairs[0][0]
        cells = [name, " × ".join(map(str, first["tensor"])), " × ".join(map(str, first["ranks"]))]
        losses = np.array([[100 * row["loss"] for row in pair] for pair in pairs]).mean(axis=0)
        cells.append(f"{losses[0]:.2f} ({losses[0] - losses[1]:+.2f})")
        for count in map(str, _COUNTS):
            gains = np.array([np.subtract(a["accuracy"][count], b["accuracy"][count]).mean() for a, b in pairs])
            error = gains.std(ddof=1) / math.sqrt(len(gains)) if len(gains) > 1 else math.nan
            level = np.mean([b["accuracy"][count] for _, b in pairs])
            cells += [f"{level:.1f}", f"{gains.mean():+.2f} ± {error:.2f}"]
        lines.append(
            [*cells, *(f"{np.mean([row['seconds'] for row in side]):.2g}" for side in zip(*pairs, strict=True))]
        )
    heads = [
        "",
        "tensor",
        "core",
        "loss, % of ‖T‖² (more than with all entries)",
        "10 labels, all entries",
        "compressed",
        "all labels, all entries",
    ]
    text = table([*heads, "compressed", "fit, s", "with all entries, s"], lines)
    note = (
        "Balanced accuracy in percent on development subjects, and the gain by compression with its standard error "
        f"over {result['seeds']} seeds (means of {result['splits']} splits). Tensors of more than {LARGEST_CORE:,} "
        "entries are compared with fits that keep as many.\n"
    )
    return "\n".join(["# Compression\n", text, note, footer(result)])


def _pairs(rows: list[Row], name: str) -> list[tuple[Row, Row]]:
    """Return the compressed and the uncompressed fit of each seed."""
    own = [row for row in rows if row["set"] == name]
    return [(row, other) for row, other in zip(own[::2], own[1::2], strict=False)]
