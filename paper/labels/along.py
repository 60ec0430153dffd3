"""Predictions along the recording against each window by itself: HAR and GeoTec, whose windows are consecutive.

On development subjects everything is nested: in every split the features are learned from the training half. For the
subjects that no setting was chosen on, features are learned from the development subjects. The probe and its chain
learn from labels of the training half; balanced accuracy and the recall of each class are those of the other half.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from joblib import delayed
from numpy.typing import NDArray
from sklearn.metrics import recall_score

from paper.labels.people import Count, drawn, halves, read_set
from paper.results import mean_and_std, provenance, publish, run_cells, table
from polyadic import CPD
from polyadic.data import Windows
from polyadic.evaluate import WindowClassifier, labels_of

SETS = ("har", "geotec")
_COUNTS: tuple[Count, ...] = (1, 3, 10, 30, "all")
_NIGHT = 960
"""Epochs of 30 s in a night of eight hours."""


def run(folder: Path, out: Path, splits: int, draws: int, final: bool, jobs: int) -> None:
    """Score all splits and draws, and write `development` or `final`, as JSON and as a page."""
    out.mkdir(parents=True, exist_ok=True)
    stem = "final" if final else "development"
    tasks = {
        f"{stem} {name} {split} {draws}": delayed(_score)(folder, name, split, draws, final)
        for name in SETS
        for split in range(splits)
    }
    rows = [row for part in run_cells("along", tasks, out / "along.journal", jobs).values() for row in part]
    result = {
        "experiment": "along",
        "people": stem,
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
    publish(out, stem, result, _page(result))


def _score(folder: Path, name: str, split: int, draws: int, final: bool) -> list[dict[str, Any]]:
    """Return one row for each number of labels and each draw of a split."""
    data = read_set(folder, name)
    windows = data.labelled(of_development=not final)
    half = halves(windows.label, windows.subject, split + 1)[split]
    train, test = windows[half.train], windows[half.test]
    model, truth = CPD(device="cpu").fit(data.unlabelled() if final else train), labels_of(test)
    rows = []
    for count in _COUNTS:
        for draw in range(1 if count == "all" else draws):
            known = np.isin(half.train, drawn(windows.label, half.train, count, [split, draw]))
            begun = time.perf_counter()
            classifier = WindowClassifier(model).fit(train, np.where(known, labels_of(train), ""))
            fitted = time.perf_counter()
            probabilities = classifier.predict_proba(test)
            predicted = time.perf_counter()
            path, _ = classifier.predict_sequence(test, probabilities)
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
    classifier.predict_sequence(night, probabilities)
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
    who = "unseen subjects" if result["people"] == "final" else "development subjects"
    source = "other subjects" if result["people"] == "final" else "the training half"
    chosen = (
        ""
        if result["people"] == "final"
        else " Equal class frequencies, the values of kappa and the rule for few labels "
        "were chosen on these very splits, so the gains are optimistic."
    )
    return (
        f"# Along the recording, on {who}\n\n"
        f"Balanced accuracy in percent on the test half, mean ± SD over {result['splits']} splits × {result['draws']} "
        f"draws (one draw of all labels). Features are learned from {source}, probe and chain from the training half. "
        f"Worst: the largest loss of predict against each window by itself, in points.{chosen}\n\n"
        f"{table(heads, lines)}\n"
        f"Path and probabilities of a night of {_NIGHT} epochs take {seconds:.0f} ms.\n\n"
        "## Recall of each class, percent\n\n"
        f"{table(['', 'window by itself', 'along the recording'], classes)}\n"
        f"Written by `{result['command']}`, commit {result['commit']}, {result['date']}.\n"
    )
