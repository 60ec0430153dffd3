"""Predictions along the recording against each window by itself, on development subjects: HAR and GeoTec.

Nested: in every split the features are learned from the training half, and the probe and its chain from labels of the
training half alone. Balanced accuracy and the recall of each class are those of the other half.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import recall_score

from paper.labels.people import Count, drawn, halves, read_set
from paper.results import mean_and_std, provenance, publish, stage_bar, table
from polyadic import CPD
from polyadic.data import Windows
from polyadic.evaluate import WindowClassifier, labels_of

SETS = ("har", "geotec")
_COUNTS: tuple[Count, ...] = (3, 10, "all")
_NIGHT = 960
"""Epochs of 30 s in a night of eight hours."""
_STEM = "development"


def run(folder: Path, out: Path, splits: int, draws: int) -> None:
    """Score all splits and draws, and write `development.json` and `development.md`."""
    rows: list[dict[str, Any]] = []
    with stage_bar("along", unit="splits") as update:
        for done, (name, split) in enumerate((name, split) for name in SETS for split in range(splits)):
            update(done, len(SETS) * splits, name)
            rows += _score(folder, name, split, draws)
    result = {
        "experiment": "along",
        "people": "development",
        "splits": splits,
        "draws": draws,
        **provenance("cpu"),
        "notes": {
            "window, along": "balanced accuracy in percent on the test half: each window by itself, and the path",
            "predict": "balanced accuracy of what polyadic predict writes: the path if used, else each window by "
            "itself",
            "recall_window, recall_along": "recall of each class in percent, in the order of the classes",
            "fit_seconds, along_seconds": "training of probe and chain; path and probabilities of the test half",
            "night_seconds": f"path and probabilities of {_NIGHT} epochs, without features",
        },
        "rows": rows,
    }
    publish(out, _STEM, result, _page(result))


def _score(folder: Path, name: str, split: int, draws: int) -> list[dict[str, Any]]:
    """Return one row for each number of labels and each draw of a split."""
    windows = read_set(folder, name).labelled(of_development=True)
    half = halves(windows.label, windows.subject, split + 1)[split]
    train, test = windows[half.train], windows[half.test]
    model, truth = CPD().fit(train), labels_of(test)
    rows = []
    for count in _COUNTS:
        for draw in range(1 if count == "all" else draws):
            known = np.isin(half.train, drawn(windows.label, half.train, count, [split, draw]))
            begun = time.perf_counter()
            classifier = WindowClassifier(model).fit(train, np.where(known, labels_of(train), ""))
            fitted = time.perf_counter()
            probabilities = classifier.predict_proba(test)
            predicted = time.perf_counter()
            path, _ = classifier.label_sequence(probabilities, test)
            along_seconds = time.perf_counter() - predicted
            chain = classifier.chain_
            assert chain is not None
            alone = classifier.classes_[probabilities.argmax(axis=1)]
            recalls = [_recalls(truth, guess, classifier.classes_) for guess in (alone, path)]
            scores = [float(np.mean(values)) for values in recalls]
            rows.append(
                {
                    "set": name,
                    "split": split,
                    "labels": str(count),
                    "draw": draw,
                    "window": round(scores[0], 3),
                    "along": round(scores[1], 3),
                    "predict": round(scores[int(chain.is_default)], 3),
                    "used": chain.is_default,
                    "kappa": chain.kappa,
                    "recall_window": [round(value, 2) for value in recalls[0]],
                    "recall_along": [round(value, 2) for value in recalls[1]],
                    "classes": classifier.classes_.tolist(),
                    "fit_seconds": round(fitted - begun, 3),
                    "along_seconds": round(along_seconds, 4),
                    "night_seconds": round(_night(classifier), 4),
                    "reason": chain.reason,
                }
            )
    return rows


def _recalls(truth: NDArray[Any], guess: NDArray[Any], classes: NDArray[Any]) -> list[float]:
    return [100 * float(value) for value in recall_score(truth, guess, labels=classes, average=None)]


def _night(classifier: WindowClassifier) -> float:
    """Return the seconds for the path and the probabilities of a night."""
    chain = classifier.chain_
    assert chain is not None
    start = np.arange(_NIGHT) * chain.step
    night = Windows(np.zeros((_NIGHT, 1, 1), np.float32), recording=["night"] * _NIGHT, start=start)
    probabilities = np.random.default_rng(0).dirichlet(np.ones(len(classifier.classes_)), _NIGHT)
    begun = time.perf_counter()
    classifier.label_sequence(probabilities, night)
    return time.perf_counter() - begun


def _page(result: dict[str, Any]) -> str:
    """Return the tables: balanced accuracy by number of labels, and the recall of each class."""
    lines, classes = [], []
    for name in SETS:
        for count in map(str, _COUNTS):
            rows = [row for row in result["rows"] if (row["set"], row["labels"]) == (name, count)]
            if not rows:
                continue
            cells = [mean_and_std([row[kind] for row in rows]) for kind in ("window", "along", "predict")]
            worst = min(row["predict"] - row["window"] for row in rows)
            used = f"{sum(row['used'] for row in rows)} of {len(rows)}"
            lines.append([f"{name}, {count}", *cells, used, f"{worst:+.1f}"])
            for place, label in enumerate(rows[0]["classes"]):
                recalls = [np.mean([row[kind][place] for row in rows]) for kind in ("recall_window", "recall_along")]
                classes.append([f"{name}, {count}, class {label}", *(f"{recall:.1f}" for recall in recalls)])
    heads = ["set, labels per class", "window by itself", "along the recording", "as predict does", "used", "worst"]
    seconds = 1000 * float(np.median([row["night_seconds"] for row in result["rows"]]))
    return (
        "# Along the recording, on development subjects\n\n"
        f"Balanced accuracy in percent on the test half, mean ± SD over {result['splits']} splits × {result['draws']} "
        "draws (one draw of all labels). Features, probe and chain are learned from the training half. Worst: the "
        "largest loss of predict against each window by itself, in points. Equal class frequencies, the values of "
        "kappa and the rule for few labels were chosen on these very splits, so the gains are optimistic.\n\n"
        f"{table(heads, lines)}\n"
        f"Path and probabilities of a night of {_NIGHT} epochs take {seconds:.0f} ms.\n\n"
        "## Recall of each class, percent\n\n"
        f"{table(['', 'window by itself', 'along the recording'], classes)}\n"
        "Remake: `python -m paper along --data FOLDER --out docs/results/along`.\n"
    )
