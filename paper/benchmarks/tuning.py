"""Accuracy of `polyadic tune` on unseen subjects: HAR and GeoTec phone, three outer splits each.

`tune` gets the windows of the development subjects without labels, and the windows of a training half of the other
subjects with ten labels per class or all. The classifier that it returns is scored on the other half, and compared with
a classifier with the recommended settings. Sets, halves and labels are the first three splits of `python -m paper
labels`. Measured splits are skipped, and an interrupted split resumes from its journal.

    python -m paper.benchmarks.tuning DATA docs/results/tuning --minutes 10             # also writes tuning.md
    python -m paper.benchmarks.tuning DATA OUT --set har --labels 10 --split 0    # one split, to run several at once

`--development` splits the development subjects instead: five with labels, half of the rest without labels, and the
others as test subjects. These results were used to choose the selection rule of the search.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paper.labels.people import Count, LabelSet, drawn, halves, read_set
from paper.labels.tables import mean_and_error
from paper.markdown import as_code, machine_name, table
from paper.results import provenance, write_result
from polyadic import ATD, tune
from polyadic.data import Windows
from polyadic.evaluate import WindowClassifier, corrected_resampled, labels_of, scores

SPLITS = 3
FEW = 5
COUNTS: tuple[Count, ...] = (10, "all")
TEST_SHARE = 0.5
TRIES = {"har": 25, "geotec": 60}
"""Number of settings that a search can try in ten minutes on two cores, from earlier runs (`docs/measurements.md`)."""
Row = dict[str, Any]
Rows = NDArray[np.intp]


def parts(folder: Path, name: str, count: Count, split: int, development: bool) -> tuple[Windows, Windows]:
    """Return the windows for `tune`, with the known labels, and the test windows."""
    data = read_set(folder, name)
    windows = data.windows
    unlabelled, train, test = _developers(data, split) if development else _new_people(data, split)
    known = np.full(len(windows), -1)
    rows = train[drawn(windows.label[train], np.arange(len(train)), count, [split, 0])]
    known[rows] = windows.label[rows]
    kept = np.sort(np.concatenate([unlabelled, train]))
    own = windows[kept]
    place: dict[str, Any] = {"recording": own.recording, "start": own.start} if (own.start >= 0).any() else {}
    about: dict[str, Any] = {
        "fs": windows.fs,
        "units": windows.units,
        "channels": windows.channels,
        "classes": windows.classes,
    }
    return Windows(own.X, label=known[kept], subject=own.subject, **place, **about), windows[test]


def _new_people(data: LabelSet, split: int) -> tuple[Rows, Rows, Rows]:
    """Return the rows without labels, the rows with labels, and the test rows."""
    others = np.flatnonzero(~data.development)
    half = halves(data.windows.label[others], data.windows.subject[others], split + 1)[split]
    return np.flatnonzero(data.development), others[half.train], others[half.test]


def _developers(data: LabelSet, split: int) -> tuple[Rows, Rows, Rows]:
    """Return the same for development subjects only."""
    own = np.flatnonzero(data.development)
    people = np.random.default_rng([split, 1]).permutation(np.unique(data.windows.subject[own]))
    count = FEW if len(people) < 100 else len(people) // 5
    middle = count + (len(people) - count) // 2
    parts = (people[count:middle], people[:count], people[middle:])
    unlabelled, train, test = (own[np.isin(data.windows.subject[own], names)] for names in parts)
    return unlabelled, train, test


def measured(train: Windows, test: Windows, bound: dict[str, Any], device: str, journal: Path) -> Row:
    """Tune on some windows, and score the result and the recommended settings on others."""
    found = tune(train, device=device, journal=journal, **bound)
    recommended = WindowClassifier(ATD(device=device)).fit(train)
    changes = found.settings.changed_from(found.recommended)
    row: Row = {"recommended": _score(recommended, test), "changes": changes, "reason": found.reason}
    row["tuned"] = _score(found.model, test) if changes else row["recommended"]
    if found.nested:
        row["promised"] = round(100 * (found.nested_score - found.recommended_score), 4)
    return {**row, "seconds": round(found.seconds, 1), "tries": len(found.tries)}


def _score(classifier: WindowClassifier, test: Windows) -> float:
    """Return the balanced accuracy in percent."""
    return round(100 * float(scores(labels_of(test), classifier.predict(test))["balanced_accuracy"]), 4)


# ------------------------------------------------------------------------ files


def page(result: Row) -> str:
    """Return the tables in Markdown."""
    rows, lines, gains = result["rows"], [], []
    for name in dict.fromkeys(row["set"] for row in rows):
        for count in dict.fromkeys(row["labels"] for row in rows if row["set"] == name):
            own = [row for row in rows if (row["set"], row["labels"]) == (name, count)]
            tuned, recommended = (np.array([row[key] for row in own]) for key in ("tuned", "recommended"))
            gain, error = mean_and_error(tuned - recommended, TEST_SHARE)
            gains.append(gain)
            _, p = corrected_resampled(tuned - recommended, TEST_SHARE)
            lines.append([f"{result['titles'][name]}, {count}", _figure(tuned), _figure(recommended),
                          f"{gain:+.1f} ± {error:.1f}", _p(p), str(sum(bool(row["changes"]) for row in own)),
                          f"{np.mean([row['tries'] for row in own]):.0f}"])  # fmt: skip
    heads = ["labels per class", "tuned", "recommended", "difference", "p", "changed", "tries"]
    choices = [
        [
            f"{result['titles'][row['set']]}, {row['labels']}",
            str(row["split"] + 1),
            _changes(row["changes"]),
            f"{row['promised']:+.1f}" if "promised" in row else "–",
            f"{row['tuned'] - row['recommended']:+.1f}",
        ]
        for row in rows
    ]
    return "\n".join(
        [
            f"# Accuracy of `polyadic tune` on {result['people']} subjects",
            "",
            f"Balanced accuracy in percent on subjects that `tune` has not seen: mean of {result['splits']} outer "
            "splits ± its standard error, which accounts for subjects shared between splits; p of the paired test with "
            f"the same correction. Each search had {_bound(result)}, on {result['cores']} core"
            f"{'s' * (result['cores'] != 1)}. *Changed*: in how many splits `tune` did not keep the recommended "
            "settings.",
            "",
            f"Written by {as_code(result['command'])} on {result['date']}, commit {result['commit']}, "
            f"{machine_name(result['machine'])}.",
            "",
            table(heads, lines).rstrip(),
            "",
            f"Mean difference of the {len(lines)} rows: {np.mean(gains):+.1f} points, lowest {min(gains):+.1f}.",
            "",
            "## Settings",
            "",
            "*Nested*: what nested cross-validation on the training subjects promised for the search.",
            "",
            table(["", "split", "changes made", "nested", "new subjects"], choices).rstrip(),
            "",
        ]
    )


def _bound(result: Row) -> str:
    if result["minutes"] is not None:
        return f"a quarter of {result['minutes']:g} minutes"
    return f"{' / '.join(str(count) for count in result['tries'].values())} tries ({' / '.join(result['tries'])})"


def _figure(values: np.ndarray) -> str:
    mean, error = mean_and_error(values, TEST_SHARE)
    return f"{mean:.1f} ± {error:.1f}" if math.isfinite(error) else f"{mean:.1f}"


def _p(value: float) -> str:
    return f"{value:.2g}" if math.isfinite(value) else "–"


def _changes(changes: Row) -> str:
    return ", ".join(f"{name} {value}" for name, value in changes.items()) or "none"


def splits_done(out: Path) -> dict[tuple[str, str, int], Row]:
    """Return earlier measurements, by set, labels and split."""
    found = {}
    for path in sorted(out.glob("tuning-*.split.json")):
        row = json.loads(path.read_text(encoding="utf-8"))
        found[row["set"], row["labels"], row["split"]] = row
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the accuracy of `polyadic tune` on new subjects.")
    parser.add_argument("data", type=Path, help="folder with har.npz and geotec_phone.npz")
    parser.add_argument("out", type=Path, help="folder to write to")
    parser.add_argument("--set", choices=TRIES, action="append", help="data set; may be repeated")
    parser.add_argument("--labels", choices=[str(count) for count in COUNTS], action="append")
    parser.add_argument("--split", type=int, action="append", help="outer split, from 0; may be repeated")
    parser.add_argument("--splits", type=int, default=SPLITS, help="number of outer splits")
    parser.add_argument("--minutes", type=float, help="limit each tune by minutes instead of tries")
    parser.add_argument("--tries", type=int, help="tries per search; by default as many as ten minutes allow")
    parser.add_argument("--cores", type=int, default=2, help="number of cores available to the process, for the page")
    parser.add_argument("--development", action="store_true", help="use only the development subjects")
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    tries = {name: given.tries or count for name, count in TRIES.items()}
    done = splits_done(given.out)
    for name in given.set or TRIES:
        for count in COUNTS:
            for split in given.split or range(given.splits):
                if (given.labels and str(count) not in given.labels) or (name, str(count), split) in done:
                    continue
                train, test = parts(given.data, name, count, split, given.development)
                bound = {"tries": tries[name]} if given.minutes is None else {"minutes": given.minutes}
                stem = f"tuning-{name}-{count}-{split}"
                found = measured(train, test, bound, given.device, given.out / f"{stem}.journal.jsonl")
                row = {"set": name, "labels": str(count), "split": split, **found}
                done[name, str(count), split] = row
                (given.out / f"{stem}.split.json").write_text(json.dumps(row) + "\n")
                print(name, count, split, f"{row['tries']} tries, {row['changes']}", flush=True)
    order = {name: number for number, name in enumerate(TRIES)}
    rows = [done[key] for key in sorted(done, key=lambda key: (order[key[0]], key[1], key[2]))]
    names = list(dict.fromkeys(row["set"] for row in rows))
    result = {
        "experiment": "tuning",
        "titles": {name: read_set(given.data, name).title for name in names},
        "splits": given.splits,
        "people": "development" if given.development else "new",
        "minutes": given.minutes,
        "tries": {name: tries[name] for name in names} if given.minutes is None else None,
        "cores": given.cores,
        **provenance(given.device),
        "rows": rows,
    }
    stem = "tuning-development" if given.development else "tuning"
    write_result(given.out / f"{stem}.json", result)
    (given.out / f"{stem}.md").write_text(page(result))


if __name__ == "__main__":
    main()
