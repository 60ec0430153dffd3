"""Choice of the fixed settings of `Probe`, its threshold and its solver, on the development subjects only.

Development subjects are those of `polyadic.experiments.labels.people`. Features are learned from all their windows
without labels: centred log amplitude, SALS of rank 64, as coefficients and as an isometric rotation of them with the
channel levels. A third of the subjects is the test set, in three rotations; labels are sampled from the others. Every
setting, and the one selected by validation, is scored by balanced accuracy on the test subjects.

    python benchmarks/probe.py DATA docs/results/defaults/probe.json     # also writes probe.md

An interrupted run resumes with the first missing table, if the commit is the same.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score

from polyadic import SALS
from polyadic._util.provenance import provenance
from polyadic.data.folds import group_folds
from polyadic.evaluate import probe as probes
from polyadic.evaluate.linear import SCALES, decisions, most_probable
from polyadic.evaluate.probe import GRID, Probe, regressions, unthreaded
from polyadic.experiments.labels.people import read_set
from polyadic.spectral import STFT

RANK, SWEEPS, LEVELS, FLOOR = 64, 30, 0.25, 0.1
PARTS, DRAWS = 3, 4
COUNTS = (1, 3, 10, 20, 30, "all")


def development(folder: Path) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray, int]]:
    """Return the windows, classes and subjects of each set, and its frame length."""
    found = {}
    for name, title, n_fft in (("har", "HAR", 64), ("geotec", "GeoTec", 32), ("ptb_xl", "PTB-XL sex", 128)):
        windows = read_set(folder, name).unlabelled()
        found[title] = (windows.X, windows.label, windows.subject.astype(int), n_fft)
    return found


def features(X: np.ndarray, n_fft: int) -> dict[str, tuple[np.ndarray, int]]:
    """Return features by name, and the number of trailing columns that are levels."""
    hop = max(n_fft // 8, -(-(X.shape[-1] - n_fft) // 31))
    floor = FLOOR * float(X.std()) * np.sqrt(n_fft * 3 / 16)  # a Hann window has 3/8 of the power, half of it real
    T = STFT(n_fft, hop, parts="log_amplitude", floor=float(floor))(torch.from_numpy(X))
    T -= T.mean((0, 3), keepdim=True)
    settings = {"tensorize": None, "readout": None, "solver": "blend", "batch_size": 128}
    model = SALS(rank=RANK, max_sweeps=SWEEPS, device="cpu", random_state=0, **settings).fit(T)
    x = np.asarray(model.transform(T), np.float64)
    G = np.prod([np.asarray(factor, np.float64).T @ factor for factor in model.factors_], axis=0)
    values, vectors = np.linalg.eigh(G)
    z = x @ (vectors * np.sqrt(values.clip(0))) @ vectors.T
    z -= z.mean(axis=0)
    z = z @ np.linalg.svd(z, full_matrices=False)[2].T
    z *= np.sqrt(RANK / z.var(axis=0).sum())
    level = X.mean(axis=-1, dtype=np.float64)
    level = (level - level.mean(axis=0)) / level.std(axis=0) / np.sqrt(level.shape[1]) * LEVELS * np.sqrt(RANK)
    return {"isometric": (np.hstack([z, level]), level.shape[1]), "coefficients": (x, 0)}


def drawn(y: np.ndarray, rows: np.ndarray, count: int | str, rng: np.random.Generator) -> np.ndarray:
    """Sample `count` rows of each class, or return all rows."""
    if count == "all":
        return rows
    return np.sort(np.concatenate([rng.permutation(rows[y[rows] == label])[:count] for label in np.unique(y)]))


def people_with_all_classes(y: np.ndarray, who: np.ndarray, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the rows of two subjects, or of as many as are needed to have every class."""
    order = rng.permutation(np.unique(who[rows]))
    for count in range(2, len(order) + 1):
        chosen = rows[np.isin(who[rows], order[:count])]
        if len(np.unique(y[chosen])) == len(np.unique(y)):
            return chosen
    return rows


def every_setting(Z: np.ndarray, levels: int, y: np.ndarray, test: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    """Return the balanced accuracy on the test subjects for each setting; C refers to features of mean variance 1."""
    scores = {}
    for used in (True, False) if levels else (True,):
        width = Z.shape[1] - (0 if used else levels)
        for scale in SCALES:
            unit = 1.0 if scale == "standardised" else Z[:, :width].var(axis=0).mean()
            lines = regressions(Z[:, :width], y, scale, [C / unit for C in GRID], "balanced", 1e-4)
            for C, line in zip(GRID, lines, strict=True):
                guess = most_probable(decisions(test[:, :width], *line), np.unique(y))
                scores[f"{scale}, {'levels' if used else 'no levels'}, C={C:g}"] = balanced(truth, guess)
    return scores


def balanced(truth: np.ndarray, guess: np.ndarray) -> float:
    return 100 * float(balanced_accuracy_score(truth, guess))


def run(Z: np.ndarray, levels: int, y: np.ndarray, who: np.ndarray, rows: np.ndarray, test: np.ndarray) -> dict:
    """Return the scores of every setting for one draw of labels, and of validation by groups and by blocks."""
    block = np.arange(Z.shape[1] - levels, Z.shape[1])
    scores = every_setting(Z[rows], levels, y[rows], Z[test], y[test])
    found = {"labels": len(rows), "people": len(np.unique(who[rows])), "best setting": max(scores.values())}
    for name, groups in (("by groups", who[rows]), ("by blocks", None)):
        begun = time.process_time()
        probe = Probe().fit(Z[rows], y[rows], groups=groups, level_columns=block)
        found[f"seconds {name}"] = time.process_time() - begun
        found[name] = balanced(y[test], probe.predict(Z[test]))
    return {**found, "settings": scores}


def judged(Z: np.ndarray, levels: int, y: np.ndarray, who: np.ndarray, few_people: bool) -> list[dict]:
    rows = []
    for part, held_out in enumerate(np.array_split(np.random.default_rng(0).permutation(np.unique(who)), PARTS)):
        test = np.isin(who, held_out)
        for count in COUNTS:
            runs = []
            for draw in range(DRAWS if count != "all" or few_people else 1):
                rng = np.random.default_rng([part, draw])
                pool = np.flatnonzero(~test)
                pool = people_with_all_classes(y, who, pool, rng) if few_people else pool
                with unthreaded():
                    runs.append(run(Z, levels, y, who, drawn(y, pool, count, rng), test))
            rows.append({"part": part, "labels per class": count, "runs": runs})
    return rows


def summary(rows: list[dict], fixed: str) -> list[dict]:
    """Return means over parts and draws for each number of labels."""
    table = []
    for count in COUNTS:
        runs = [run for row in rows if row["labels per class"] == count for run in row["runs"]]
        names = ("labels", "people", "by groups", "by blocks", "best setting", "seconds by groups")
        means = {name: round(float(np.mean([run[name] for run in runs])), 2) for name in names}
        settings = {
            name: round(float(np.mean([run["settings"][name] for run in runs])), 2) for name in runs[0]["settings"]
        }
        gain = [run["by groups"] - run["settings"][fixed] for run in runs]
        spread = float(np.std(gain, ddof=1) / np.sqrt(len(gain)))
        gains = {"gain over fixed": round(float(np.mean(gain)), 2), "standard error": round(spread, 2)}
        table.append({"labels per class": count, "fixed": settings[fixed], **means, **gains, "settings": settings})
    return table


def solvers(Z: np.ndarray, y: np.ndarray, who: np.ndarray) -> list[dict]:
    """Measure CPU seconds of all regressions of one search (plain and standardised, five folds) with each solver."""
    chosen = np.isin(who, np.unique(who)[:9])
    Z, y, fold, table = Z[chosen], y[chosen], group_folds(y[chosen], who[chosen], 5), []
    for solver, tolerance in (("lbfgs", 1e-4), ("lbfgs", 1e-3), ("lbfgs", 1e-2), ("newton-cholesky", 1e-4)):
        begun, guess = time.process_time(), np.empty((len(SCALES), len(GRID), len(y)), int)
        with unthreaded():
            for number, scale in enumerate(SCALES):
                for left_out in range(5):
                    train, test = fold != left_out, fold == left_out
                    spread = Z[train].std(axis=0) if scale == "standardised" else np.sqrt(Z[train].var(axis=0).mean())
                    F = (Z - Z[train].mean(axis=0)) / spread
                    kind = LogisticRegression(
                        solver=solver, tol=tolerance, warm_start=True, max_iter=1000, class_weight="balanced"
                    )
                    for place, C in enumerate(GRID):
                        guess[number, place, test] = kind.set_params(C=C).fit(F[train], y[train]).predict(F[test])
        seconds = round(time.process_time() - begun, 2)
        scores = {
            scale: [round(balanced(y, row), 2) for row in part] for scale, part in zip(SCALES, guess, strict=True)
        }
        table.append({"solver": solver, "tolerance": tolerance, "windows": len(y), "seconds": seconds, **scores})
        print(table[-1], flush=True)
    return table


def page(result: dict) -> str:
    """Return the tables in Markdown."""
    lines = [
        "# How the fixed settings of the probe were chosen",
        "",
        f"Balanced accuracy in percent on held-out development subjects; means over {PARTS} parts of the subjects and "
        f"{DRAWS} draws of labels (one for all). *fixed* is {result['fixed']}; *validated* is what `Probe` chooses by "
        "leaving subjects out, for any number of labels, *blocks* by contiguous blocks without known subjects; "
        "*best* is the best setting for the test subjects, which is unknown in practice. *gain* is validated − fixed, "
        "± its standard error.",
        "",
        f"Made by `{result['command']}` on {result['date']}, commit {result['commit']}, "
        f"{result['machine']['processor']}.",
    ]
    for name, table in result["tables"].items():
        lines += ["", f"## {name}", ""]
        lines += ["| labels per class | labels | subjects | fixed | validated | blocks | best | gain | CPU seconds |"]
        lines += ["|---|---:|---:|---:|---:|---:|---:|---:|---:|"]
        for row in table:
            lines += [
                f"| {row['labels per class']} | {row['labels']:.0f} | {row['people']:.0f} | {row['fixed']:.1f} "
                f"| {row['by groups']:.1f} | {row['by blocks']:.1f} | {row['best setting']:.1f} "
                f"| {row['gain over fixed']:+.1f} ± {row['standard error']:.1f} | {row['seconds by groups']:.1f} |"
            ]
    lines += ["", "## Fixed settings", "", "Mean over all sets of isometric features, by labels per class.", ""]
    isometric = [table for name, table in result["tables"].items() if "isometric" in name]
    lines += ["| setting | " + " | ".join(map(str, COUNTS)) + " |", "|---|" + "---:|" * len(COUNTS)]
    for setting in isometric[0][0]["settings"]:
        means = [np.mean([table[place]["settings"][setting] for table in isometric]) for place in range(len(COUNTS))]
        lines += [f"| {setting} | " + " | ".join(f"{mean:.1f}" for mean in means) + " |"]
    lines += ["", "## Solvers", ""]
    lines += [f"CPU seconds for {len(SCALES)} scalings × {len(GRID)} values of C × 5 folds on 9 subjects of HAR.", ""]
    lines += [
        "| solver | tolerance | windows | seconds | best plain | best standardised |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for row in result["solvers"]:
        best = " | ".join(f"{max(row[scale]):.2f}" for scale in SCALES)
        lines += [f"| {row['solver']} | {row['tolerance']:g} | {row['windows']} | {row['seconds']} | {best} |"]
    return "\n".join(lines) + "\n"


def main(folder: str, out: str) -> None:
    probes.FEWEST_LABELS = 0  # always use validation, for any number of labels
    path = Path(out)
    fixed = f"{SCALES[0]}, levels, C={probes.FIXED_C:g}"
    result = {
        **provenance("cpu"),
        "rank": RANK,
        "floor": FLOOR,
        "seeds": "0, draws by part and number",
        "fixed": fixed,
        "tables": {},
    }
    before = json.loads(path.read_text()) if path.exists() else {}
    if before.get("commit") == result["commit"]:
        result = before
    for name, (X, y, who, n_fft) in development(Path(folder)).items():
        made = features(X, n_fft)
        if name == "HAR" and "solvers" not in result:
            result["solvers"] = solvers(made["isometric"][0], y, who)
        for kind, (Z, levels) in made.items():
            regimes = (False, True) if kind == "isometric" and name != "PTB-XL sex" else (False,)
            for few_people in regimes:
                label = f"{name}, {kind}" + (", labels from two people" if few_people else "")
                if label in result["tables"]:
                    continue
                result["tables"][label] = summary(judged(Z, levels, y, who, few_people), fixed)
                for row in result["tables"][label]:
                    print(label, {key: value for key, value in row.items() if key != "settings"}, flush=True)
                path.write_text(json.dumps(result, indent=1) + "\n")
                path.with_suffix(".md").write_text(page(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
