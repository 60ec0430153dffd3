"""Accuracy of `polyadic tune` on unseen subjects: HAR, GeoTec phone and PTB-XL sex, three outer splits each.

Features are learned from the windows of the development subjects and of a training half of the others; labels are those
of the training half, ten per class or all. One search chooses settings on them, as `tune` does within each outer fold,
and both its choice and the recommended settings are scored on the other half. Sets, halves and labels are the first
three splits of `polyadic bench labels`. Cells that have been measured are skipped.

    python benchmarks/tuning.py DATA docs/results/tuning --minutes 10     # also writes tuning.md
    python benchmarks/tuning.py DATA OUT --set har --labels 10            # one cell, to run several at once

`--development` splits the development subjects instead: five with labels, half of the rest without labels, and the
others as test subjects. These results were used to choose the selection rule of the search
(`polyadic.tuning.search.worth`).
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyadic.data import Windows
from polyadic.evaluate import WindowClassifier, labels_of
from polyadic.evaluate.metrics import scores
from polyadic.evaluate.significance import corrected_resampled
from polyadic.experiments.labels.people import FILES, Count, LabelSet, drawn, halves, read_set
from polyadic.experiments.labels.tables import mean_and_error
from polyadic.experiments.markdown import as_code, machine_name, table
from polyadic.experiments.result_files import write_result
from polyadic.files import write_atomically
from polyadic.provenance import provenance
from polyadic.tuning.judging import difference
from polyadic.tuning.search import Budget, Search, worth
from polyadic.tuning.space import Settings, Space

SPLITS = 3
FEW = 5
COUNTS: tuple[Count, ...] = (10, "all")
TEST_SHARE = 0.5
Row = dict[str, Any]
Rows = NDArray[np.intp]


def parts(folder: Path, name: str, count: Count, split: int, development: bool) -> tuple[Windows, Windows]:
    """The windows to learn from and choose on, with the known labels, and the test windows."""
    data = read_set(folder, name)
    windows = data.windows
    unlabelled, train, test = _developers(data, split) if development else _new_people(data, split)
    known = np.full(len(windows), -1)
    rows = train[drawn(windows.label[train], np.arange(len(train)), count, [split, 0])]
    known[rows] = windows.label[rows]
    kept = np.sort(np.concatenate([unlabelled, train]))
    own = windows[kept]
    place = {"recording": own.recording, "start": own.start} if (own.start >= 0).any() else {}
    about = {"fs": windows.fs, "units": windows.units, "channels": windows.channels, "classes": windows.classes}
    return Windows(own.X, label=known[kept], subject=own.subject, **place, **about), windows[test]


def _new_people(data: LabelSet, split: int) -> tuple[Rows, Rows, Rows]:
    """Rows without labels, rows with labels, and test rows."""
    others = np.flatnonzero(~data.development)
    half = halves(data.windows.label[others], data.windows.subject[others], split + 1)[split]
    return np.flatnonzero(data.development), others[half.train], others[half.test]


def _developers(data: LabelSet, split: int) -> tuple[Rows, Rows, Rows]:
    """The same for development subjects only."""
    own = np.flatnonzero(data.development)
    people = np.random.default_rng([split, 1]).permutation(np.unique(data.windows.subject[own]))
    count = FEW if len(people) < 100 else len(people) // 5
    middle = count + (len(people) - count) // 2
    parts = (people[count:middle], people[:count], people[middle:])
    unlabelled, train, test = (own[np.isin(data.windows.subject[own], names)] for names in parts)
    return unlabelled, train, test


def measured(train: Windows, test: Windows, budget: Budget, device: str) -> Row:
    """Search on some windows, and score the complete trials on others; the first has the recommended settings."""
    space = Space.of(train)
    search = Search(train, space, 0, device, budget)
    begun = time.perf_counter()
    search.run()
    spent = time.perf_counter() - begun
    truth, first = labels_of(test), search.tries[0].judged
    candidates = []
    for one in search.tries:
        if one.full:
            gap, error = difference(one.judged, first)
            figures = {"inner": 100 * one.judged.score, "score": score(search, one.settings, test, truth)}
            figures |= {"gap": gap, "error": error}
            changes = one.settings.changed_from(space.recommended)
            candidates.append({"changes": changes} | {name: round(value, 4) for name, value in figures.items()})
    return {"candidates": candidates, "seconds": round(spent, 1), **sharing(search)}


def chosen(row: Row) -> Row:
    """The candidate chosen by a search."""
    return max(
        row["candidates"], key=lambda one: -math.inf if one["error"] is None else worth(one["gap"], one["error"])
    )


def score(search: Search, settings: Settings, test: Windows, truth: np.ndarray) -> float:
    """Balanced accuracy in percent on windows of unseen subjects."""
    classifier = WindowClassifier(search.model(settings), recenter=settings.recenter).fit(search.windows)
    return 100 * float(scores(truth, classifier.predict(test))["balanced_accuracy"])


def sharing(search: Search) -> Row:
    """The number of trials and of fits, and how long the trials would have taken with a fit for each.

    The cost of a fit is the time of a trial with a fit minus that of a trial without; fits that share second moments
    are even cheaper, so this is an underestimate.
    """
    judging = {
        full: float(np.median([one.seconds for one in search.tries if one.full == full and not one.fitted] or [0.0]))
        for full in (False, True)
    }
    cost = {one.settings.fitted: max(one.seconds - judging[one.full], 0.0) for one in search.tries if one.fitted}
    apart = sum(one.seconds + (0.0 if one.fitted else cost[one.settings.fitted]) for one in search.tries)
    return {
        "tries": len(search.tries),
        "fits": sum(one.fitted for one in search.tries),
        "seconds_without_sharing": round(apart, 1),
    }


# ------------------------------------------------------------------------ files


def page(result: Row) -> str:
    """The tables in Markdown."""
    rows, lines, gaps = result["rows"], [], []
    for name in dict.fromkeys(row["set"] for row in rows):
        for count in dict.fromkeys(row["labels"] for row in rows if row["set"] == name):
            own = [row for row in rows if (row["set"], row["labels"]) == (name, count)]
            tuned = np.array([chosen(row)["score"] for row in own])
            kept = np.array([row["candidates"][0]["score"] for row in own])
            gap, error = mean_and_error(tuned - kept, TEST_SHARE)
            _, p = corrected_resampled(tuned - kept, TEST_SHARE)
            gaps.append(gap)
            minutes = sum(row["seconds"] for row in own) / 60
            tries, fits = (sum(row[key] for row in own) for key in ("tries", "fits"))
            saved = sum(row["seconds_without_sharing"] for row in own) / sum(row["seconds"] for row in own)
            figures = [_figure(values) for values in (tuned, kept)]
            inner = np.mean([chosen(row)["inner"] for row in own])
            lines.append([f"{result['titles'][name]}, {count}", *figures, f"{gap:+.1f} ± {error:.1f}", f"{p:.2g}",
                          f"{inner:.1f}", f"{tries / minutes:.0f}", f"{fits / tries:.0%}", f"{saved:.1f}"])  # fmt: skip
    heads = ["labels per class", "tuned", "recommended", "difference", "p", "inner", "tries per minute",
             "tries with a fit", "speed-up by sharing"]  # fmt: skip
    choices = [
        [f"{result['titles'][row['set']]}, {row['labels']}", str(row["split"] + 1), _changes(chosen(row)["changes"])]
        for row in rows
    ]
    return "\n".join(
        [
            f"# Accuracy of `polyadic tune` on {result['people']} subjects",
            "",
            f"Balanced accuracy in percent on subjects that were not used in the search: mean of {result['splits']} "
            "outer splits ± its standard error, which accounts for subjects shared between splits; p of the paired "
            "test with the same correction. *Inner* is the score of the chosen settings within the search, which is "
            f"optimistic. Each split had {_bound(result)} on {result['cores']} cores. *Speed-up by sharing*: how many "
            "times longer the same tries would have taken with a fit for each.",
            "",
            f"Written by {as_code(result['command'])} on {result['date']}, commit {result['commit']}, "
            f"{machine_name(result['machine'])}.",
            "",
            table(heads, lines).rstrip(),
            "",
            f"Mean difference of the {len(gaps)} cells: {np.mean(gaps):+.1f} points; lowest {min(gaps):+.1f}.",
            "",
            "## Chosen settings",
            "",
            table(["", "split", "changes to the recommended settings"], choices).rstrip(),
            "",
        ]
    )


def _bound(result: Row) -> str:
    return f"{result['tries']} tries" if result["tries"] else f"{60 * result['minutes'] / result['splits']:.0f} seconds"


def _figure(values: np.ndarray) -> str:
    mean, error = mean_and_error(values, TEST_SHARE)
    return f"{mean:.1f} ± {error:.1f}" if math.isfinite(error) else f"{mean:.1f}"


def _changes(changes: Row) -> str:
    return ", ".join(f"{name} {value}" for name, value in changes.items()) or "none"


def cells(out: Path) -> dict[tuple[str, str, int], Row]:
    """Earlier measurements, by set, labels and split."""
    found = {}
    for path in sorted(out.glob("tuning-*.cells.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            found[row["set"], row["labels"], row["split"]] = row
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the accuracy of `polyadic tune` on new subjects.")
    parser.add_argument("data", type=Path, help="folder with har.npz, geotec_phone.npz and ptbxl100.npz")
    parser.add_argument("out", type=Path, help="folder to write to")
    parser.add_argument("--set", choices=FILES, action="append", help="data set; may be repeated")
    parser.add_argument("--labels", choices=[str(count) for count in COUNTS], action="append")
    parser.add_argument("--minutes", type=float, default=10.0, help="total minutes for the three splits of a cell")
    parser.add_argument("--cores", type=int, default=2, help="number of cores available to the process, for the page")
    parser.add_argument("--tries", type=int, help="limit each search by tries instead of minutes")
    parser.add_argument("--splits", type=int, default=SPLITS)
    parser.add_argument("--development", action="store_true", help="use only the development subjects")
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    done = cells(given.out)
    for name in given.set or FILES:
        for count in COUNTS:
            if given.labels and str(count) not in given.labels:
                continue
            for split in range(given.splits):
                if (name, str(count), split) in done:
                    continue
                budget = Budget(tries=given.tries)
                if given.tries is None:
                    budget.until = time.monotonic() + 60 * given.minutes / given.splits
                found = measured(*parts(given.data, name, count, split, given.development), budget, given.device)
                row = {"set": name, "labels": str(count), "split": split, **found}
                done[name, str(count), split] = row
                with (given.out / f"tuning-{name}-{count}.cells.jsonl").open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
                print(name, count, split, f"{row['tries']} tries, {chosen(row)['changes']}", flush=True)
    order = {name: number for number, name in enumerate(FILES)}
    rows = [done[key] for key in sorted(done, key=lambda key: (order[key[0]], key[1], key[2]))]
    result = {
        "experiment": "tuning",
        "titles": {name: read_set(given.data, name).title for name in dict.fromkeys(row["set"] for row in rows)},
        "splits": given.splits,
        "people": "development" if given.development else "new",
        "minutes": given.minutes,
        "tries": given.tries,
        "cores": given.cores,
        **provenance(given.device),
        "rows": rows,
    }
    stem = "tuning-development" if given.development else "tuning"
    write_result(given.out / f"{stem}.json", result)
    write_atomically(given.out / f"{stem}.md", page(result).encode())


if __name__ == "__main__":
    main()
