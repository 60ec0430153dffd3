"""Choice of the statistics and of their weight, on development subjects only.

The sets and splits are those of `python -m paper labels --development`: in each split, `CPD` is fitted to one half of
the development subjects, labels are drawn from them, and the other half is scored. `Probe` has fixed settings and uses
no unlabelled windows. One setting is changed at a time: the weight of all statistics, or one statistic left out.

    python -m paper.benchmarks.statistics DATA docs/results/defaults/statistics.json [SPLITS]  # also statistics.md
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import balanced_accuracy_score

from paper.labels.people import FILES, drawn, halves, read_set
from paper.markdown import table
from paper.results import provenance, write_result
from paper.scoring import statistic_columns, unthreaded
from polyadic import CPD
from polyadic.evaluate import Probe
from polyadic.statistics import STATISTICS

COUNTS, DRAWS = (3, 10, 30), 2
WEIGHTS = (0.0, 0.25, 0.5, 1.0, 2.0)


def settings(names: list[str], block: np.ndarray) -> Iterator[tuple[str, np.ndarray, float]]:
    """Yield the name of each setting, the columns it uses and the weight of the statistics."""
    everything = np.arange(len(names))
    for weight in WEIGHTS:
        yield f"weight {weight:g}", everything if weight else np.setdiff1d(everything, block), weight or 1.0
    yield "statistics alone", block, 1.0
    named = bool(len(block)) and names[block[0]] != "s1"  # axes of many statistics have no names of their own
    for left_out in STATISTICS if named else ():
        kept = [column for column in everything if not names[column].startswith(f"{left_out} ")]
        yield f"without {left_out}", np.array(kept), 0.5


def scored(folder: Path, name: str, splits: int) -> dict[str, dict[str, float]]:
    """Return the balanced accuracy in percent of each setting, by labels per class."""
    windows = read_set(folder, name).labelled(of_development=True)
    found: dict[str, dict[str, list[float]]] = {}
    for split, half in enumerate(halves(windows.label, windows.subject, splits)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model = CPD(device="cpu").fit(windows[half.train])
        Z, block = np.asarray(model.transform(windows), np.float64), statistic_columns(model)
        for setting, columns, weight in settings(list(map(str, model.get_feature_names_out())), block):
            probe = Probe(C=1.0, scale="plain", statistics=weight, unlabelled=False)
            for count in COUNTS:
                for draw in range(DRAWS):
                    rows, is_block = drawn(windows.label, half.train, count, [split, draw]), np.isin(columns, block)
                    probe.C = 1.0 / _unit(Z[rows][:, columns], is_block, weight)
                    with unthreaded():
                        probe.fit(Z[rows][:, columns], windows.label[rows], statistic_columns=is_block)
                    guess = probe.predict(Z[half.test][:, columns])
                    score = 100 * balanced_accuracy_score(windows.label[half.test], guess)
                    found.setdefault(setting, {}).setdefault(str(count), []).append(float(score))
    return {setting: {count: float(np.mean(v)) for count, v in each.items()} for setting, each in found.items()}


def _unit(Z: np.ndarray, is_block: np.ndarray, weight: float) -> float:
    """Return the unit of 1 / C, as in `Probe`."""
    scaled = Z if is_block.all() else np.where(is_block, weight * Z, Z)
    return float(scaled.var(axis=0).sum()) / max(int((~is_block).sum()), 1) if not is_block.all() else float(Z.var())


def page(result: dict[str, Any]) -> str:
    """Return the table in Markdown."""
    names = list(dict.fromkeys(setting for each in result["sets"].values() for setting in each))
    rows = []
    for setting in names:
        each = [found.get(setting) for found in result["sets"].values()]
        cells = ["–" if one is None else " / ".join(f"{one[str(count)]:.1f}" for count in COUNTS) for one in each]
        known = [one for one in each if one is not None]
        mean = " / ".join(f"{np.mean([one[str(count)] for one in known]):.1f}" for count in COUNTS)
        rows.append([setting, *cells, mean if len(known) == len(each) else "–"])
    return (
        "# How the statistics and their weight were chosen\n\nBalanced accuracy in percent on held-out development "
        f"subjects at {', '.join(map(str, COUNTS))} labels per class; mean over {result['splits']} splits and {DRAWS} "
        "draws. Fixed settings of the probe, no unlabelled windows; statistics are left out at weight ½.\n\n"
        f"Made by `{result['command']}` on {result['date']}, commit {result['commit']}.\n\n"
        + table(["", *result["sets"], "mean"], rows)
    )


def main(folder: str, out: str, splits: str = "4") -> None:
    """Score all settings and write the results."""
    sets = {}
    for name in FILES:
        sets[name] = scored(Path(folder), name, int(splits))
        print(name, sets[name], flush=True)
    result = {"experiment": "statistics", "splits": int(splits), "sets": sets, **provenance("cpu")}
    write_result(Path(out), result)
    Path(out).with_suffix(".md").write_text(page(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
