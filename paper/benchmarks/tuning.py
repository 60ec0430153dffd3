"""Accuracy of `polyadic tune` on unseen subjects: HAR and GeoTec phone, three outer splits each.

`tune` gets the windows of the development subjects without labels, and the windows of a training half of the other
subjects with ten labels per class or all. The classifier that it returns is scored on the other half, and compared with
a classifier with the recommended settings. Sets, halves and labels are the first three splits of `python -m paper
labels`. An interrupted run resumes from its journals.

    python -m paper.benchmarks.tuning DATA docs/results/tuning      # writes tuning.json and tuning.md
"""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from paper.labels.people import Count, drawn, halves, read_set
from paper.labels.tables import mean_and_error
from paper.results import machine_name, provenance, publish, table
from paper.significance import corrected_resampled
from polyadic import CPD, tune
from polyadic.data import Windows
from polyadic.evaluate import WindowClassifier, labels_of, scores

SPLITS = 3
LABELS: tuple[Count, ...] = (10, "all")
TEST_SHARE = 0.5
TRIES = {"har": 25, "geotec": 60}
"""Number of settings that a search can try in ten minutes on two cores, from earlier runs (`docs/measurements.md`)."""
Row = dict[str, Any]


def parts(folder: Path, name: str, count: Count, split: int) -> tuple[Windows, Windows]:
    """Return the windows for `tune`, with the known labels, and the test windows."""
    data = read_set(folder, name)
    windows, others = data.windows, np.flatnonzero(~data.development)
    half = halves(windows.label[others], windows.subject[others], split + 1)[split]
    train = others[half.train]
    known = np.full(len(windows), -1)
    rows = train[drawn(windows.label[train], np.arange(len(train)), count, [split, 0])]
    known[rows] = windows.label[rows]
    kept = np.sort(np.concatenate([np.flatnonzero(data.development), train]))
    learned = windows[kept]
    names = ("fs", "units", "channels", "classes")
    place: Row = {"recording": learned.recording, "start": learned.start} if (learned.start >= 0).any() else {}
    about: Row = {name: getattr(windows, name) for name in names}
    return Windows(learned.X, label=known[kept], subject=learned.subject, **place, **about), windows[others[half.test]]


def measured(train: Windows, test: Windows, tries: int, journal: Path) -> Row:
    """Tune on some windows, and score the result and the recommended settings on others."""

    def score(classifier: WindowClassifier) -> float:
        return round(100 * float(scores(labels_of(test), classifier.predict(test))["balanced_accuracy"]), 4)

    tuning = tune(train, device="cpu", journal=journal, tries=tries)
    changes = tuning.settings.changed_from(tuning.recommended)
    recommended = score(WindowClassifier(CPD(device="cpu")).fit(train))
    row: Row = {"recommended": recommended, "tuned": score(tuning.model) if changes else recommended}
    row |= {"changes": changes, "reason": tuning.reason}
    if tuning.nested:
        row["promised"] = round(100 * (tuning.nested_score - tuning.recommended_score), 4)
    return {**row, "seconds": round(tuning.seconds, 1), "tries": len(tuning.tries)}


def page(result: Row) -> str:
    """Return the tables in Markdown."""
    rows, lines, gains = result["rows"], [], []
    for name, count in dict.fromkeys((row["set"], row["labels"]) for row in rows):
        chosen = [row for row in rows if (row["set"], row["labels"]) == (name, count)]
        tuned, recommended = (np.array([row[key] for row in chosen]) for key in ("tuned", "recommended"))
        figures = [mean_and_error(values, TEST_SHARE) for values in (tuned, recommended, tuned - recommended)]
        gains.append(figures[2][0])
        _, p = corrected_resampled(tuned - recommended, TEST_SHARE)
        cells = [f"{mean:.1f} ± {error:.1f}" for mean, error in figures[:2]]
        cells += [f"{figures[2][0]:+.1f} ± {figures[2][1]:.1f}", f"{p:.2g}"]
        cells += [str(sum(bool(row["changes"]) for row in chosen)), f"{np.mean([row['tries'] for row in chosen]):.0f}"]
        lines.append([f"{result['titles'][name]}, {count}", *cells])
    heads = ["labels per class", "tuned", "recommended", "difference", "p", "changed", "tries"]
    choices = [
        [
            f"{result['titles'][row['set']]}, {row['labels']}",
            str(row["split"] + 1),
            ", ".join(f"{name} {value}" for name, value in row["changes"].items()) or "none",
            f"{row['promised']:+.1f}" if "promised" in row else "–",
            f"{row['tuned'] - row['recommended']:+.1f}",
        ]
        for row in rows
    ]
    return f"""# Accuracy of `polyadic tune` on new subjects

Balanced accuracy in percent on subjects that `tune` has not seen: mean of {SPLITS} outer splits ± its standard error, \
which accounts for subjects shared between splits; p of the paired test with the same correction. *Changed*: in how \
many splits `tune` did not keep the recommended settings.

Written by `{result["command"]}` on {result["date"]}, commit {result["commit"]}, \
{machine_name(result["machine"])}.

{table(heads, lines)}
Mean difference of the {len(lines)} rows: {np.mean(gains):+.1f} points, lowest {min(gains):+.1f}.

## Settings

*Nested*: what nested cross-validation on the training subjects promised for the search.

{table(["", "split", "changes made", "nested", "new subjects"], choices)}"""


def main(data: Path, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    result: Row = {"experiment": "tuning", "titles": {name: read_set(data, name).title for name in TRIES}}
    result |= {"splits": SPLITS, "people": "new", "tries": TRIES, **provenance("cpu"), "rows": []}
    for name, count, split in product(TRIES, LABELS, range(SPLITS)):
        row = measured(*parts(data, name, count, split), TRIES[name], out / f"tuning-{name}-{count}-{split}.jsonl")
        result["rows"].append({"set": name, "labels": str(count), "split": split, **row})
        print(result["rows"][-1], flush=True)
    publish(out, "tuning", result, page(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
