"""`python -m paper label`: simulated annotators, and the latency of the labelling session.

How many labels does each way of choosing windows need to reach, on subjects left out, the balanced accuracy of 10
random labels per class? On development subjects, in random halves: labels come from one half, which the features were
learned from, and the other half is scored. The annotator knows the true label, or errs in 5 % of the answers.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from joblib import Parallel, delayed, parallel_config
from numpy.typing import NDArray
from scipy.special import softmax
from sklearn.metrics import balanced_accuracy_score

from paper.labels.people import drawn, halves, read_set
from paper.results import provenance, publish, run_cells, table
from paper.scoring import statistic_columns, unthreaded
from polyadic import CPD
from polyadic.data import Windows
from polyadic.errors import PolyadicError
from polyadic.evaluate.regression import (
    FIXED_C,
    FIXED_WEIGHT,
    SCALES,
    gains,
    logits,
    regressions,
    settings_of,
)
from polyadic.evaluate.unlabelled import neighbour_graph, trusted_labels
from polyadic.label import Journal, Questions, Session
from polyadic.label.questions import EVERY, SAMPLE, margin
from polyadic.label.session import follow

SETS = ("har", "sisfall", "geotec", "eegmat")
STRATEGIES = ("polyadic", "random", "farthest-first", "uncertainty")
ERRORS = (0.0, 0.05)
SIZES = (1_000, 10_000, 100_000)
_PER_CLASS, _DRAWS = 10, 5
_MOST_PER_CLASS = 30
"""Labels per class after which a run is given up."""
_REFIT_EVERY = 2
_TOLERANCE = 1e-3

_Rows = NDArray[np.intp]


class _Cell(NamedTuple):
    """One run: a set, a split of its development subjects, a strategy, and the share of wrong answers."""

    data: str
    run: int
    strategy: str
    error: float

    def key(self) -> str:
        parts = [*map(str, self), _PER_CLASS, _DRAWS, _MOST_PER_CLASS, _REFIT_EVERY]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:20]


class _Half(NamedTuple):
    """Features (n, F), labels and subjects of the windows to ask about, and features and labels of those to score."""

    Z: NDArray[np.float64]
    label: NDArray[Any]
    subject: NDArray[Any]
    Z_test: NDArray[np.float64]
    test: NDArray[Any]
    statistics: _Rows

    def learner(self) -> Callable[[_Rows, _Rows], Callable[[Any], NDArray[np.float64]]]:
        """Return a function from rows and their answers to a function from features to class probabilities.

        It is the `Probe` of fewer than 100 labels: fixed settings, unlabelled windows included, but no temperature.
        The graph of all windows is computed once, and settings are never validated, which makes a fit some 10 times
        faster.
        """
        is_statistic = np.isin(np.arange(self.Z.shape[1]), self.statistics)
        graph, gain = neighbour_graph(self.Z, is_statistic), gains(is_statistic, FIXED_WEIGHT)

        def learn(rows: _Rows, answers: _Rows) -> Callable[[Any], NDArray[np.float64]]:
            classes, codes = np.unique(answers, return_inverse=True)
            (setting,) = settings_of(self.Z[rows], is_statistic, [FIXED_C], SCALES[:1], [FIXED_WEIGHT])
            words = setting.scale, [setting.C], "balanced", _TOLERANCE, gain

            def predict(Z: Any) -> NDArray[np.float64]:
                probabilities = np.zeros((len(Z), classes.max() + 1))
                probabilities[:, classes] = softmax(logits(Z, *fit), axis=1)
                return probabilities

            (fit,) = regressions(self.Z[rows], codes, *words)
            marks = np.full(len(self.Z), -1)
            marks[rows] = codes
            spread, weight = trusted_labels(graph, marks, predict(self.Z)[:, classes])
            used = weight > 0
            (fit,) = regressions(self.Z[used], spread[used], *words, weight[used])
            return predict

        return learn

    def score(self, predict: Callable[[Any], NDArray[np.float64]]) -> float:
        """Return the balanced accuracy on the subjects left out, in percent."""
        return float(100 * balanced_accuracy_score(self.test, predict(self.Z_test).argmax(axis=1)))


def run(out: Path, folder: Path, sets: tuple[str, ...], runs: int, jobs: int = 1, quiet: bool = False) -> None:
    """Simulate annotators; write and show `simulated.json` and `simulated.md`."""
    out.mkdir(parents=True, exist_ok=True)
    splits = list(product(sets, range(runs)))
    with parallel_config("loky", inner_max_num_threads=1) if jobs > 1 else nullcontext():
        parts = Parallel(jobs)(delayed(_features)(folder, *split) for split in splits)
    halves_of = dict(zip(splits, parts, strict=True))
    cells = [_Cell(*words) for words in product(sets, range(runs), STRATEGIES, ERRORS)]
    tasks = {cell.key(): delayed(_simulate)(cell, halves_of[cell.data, cell.run]) for cell in cells}
    done = run_cells("label", tasks, out / "simulated.cells.jsonl", jobs, quiet)
    rows = [
        {"set": cell.data, "run": cell.run, "strategy": cell.strategy, "wrong": cell.error, **done[cell.key()]}
        for cell in cells
    ]
    notes = {
        "target": f"balanced accuracy in percent of {_PER_CLASS} random labels per class, mean of {_DRAWS} draws",
        "needed": "number of labels at which the target is first reached, scored every "
        f"{_REFIT_EVERY} labels; null: not within {_MOST_PER_CLASS} per class, which counts as that many",
        "curve": "number of labels and balanced accuracy in percent on the subjects left out",
        "probe": "fixed settings of a Probe with fewer than 100 labels, with unlabelled windows; "
        f"refitted every {_REFIT_EVERY} labels",
    }
    result = {
        "experiment": "label",
        "sets": list(sets),
        "runs": runs,
        "seeds": list(range(runs)),
        "notes": notes,
        **provenance("cpu"),
        "rows": rows,
    }
    publish(out, "simulated", result, page(result))


def _features(folder: Path, name: str, number: int) -> _Half:
    """Learn features from one half of the development subjects, without their labels, for both halves."""
    data = read_set(folder, name).labelled(of_development=True)
    train, test = halves(data.label, data.subject, number + 1)[number]
    train = np.sort(np.random.default_rng([number, 0]).permutation(train)[:SAMPLE])
    with unthreaded():
        model = CPD(device="cpu", random_state=number, verbose=0).fit(data[train])
        Z, Z_test = (np.asarray(model.transform(data[rows]), np.float64) for rows in (train, test))
    label = data.label
    return _Half(Z, label[train], data.subject[train], Z_test, label[test], statistic_columns(model))


def _simulate(cell: _Cell, half: _Half) -> dict[str, Any]:
    begun = time.process_time()
    label, classes = half.label, int(half.label.max()) + 1
    rng = np.random.default_rng([cell.run, 1])
    # A wrong answer is any of the other classes; the same window always gets the same answer.
    wrong = rng.random(len(label)) < cell.error
    answers = np.where(wrong, (label + rng.integers(1, classes, len(label))) % classes, label)
    with unthreaded():
        learn = half.learner()
        draws = [drawn(label, np.arange(len(label)), _PER_CLASS, [cell.run, number]) for number in range(_DRAWS)]
        target = round(float(np.mean([half.score(learn(rows, label[rows])) for rows in draws])), 2)
        questions = Questions(half.Z, half.subject, half.statistics, cell.run)
        needed, curve, seen, probabilities = None, [], list[int](), None
        while len(seen) < min(_MOST_PER_CLASS * classes, len(label)) and needed is None:
            seen.append(_next(cell.strategy, questions, seen, probabilities))
            rows = np.unique(seen)
            if len(seen) % _REFIT_EVERY or len(np.unique(answers[rows])) < 2:
                continue
            predict = learn(rows, answers[rows])
            probabilities = predict(half.Z)
            curve.append([len(seen), round(half.score(predict), 2)])
            needed = len(seen) if curve[-1][1] >= target else None
    return {
        "target": target,
        "needed": needed,
        "classes": classes,
        "cpu_seconds": round(time.process_time() - begun),
        "curve": curve,
    }


def _next(strategy: str, questions: Questions, seen: list[int], probabilities: NDArray[np.float64] | None) -> int:
    """Return the next row, among those that questions are about."""
    if strategy == "polyadic":
        return questions.next(seen, len(seen) // EVERY, probabilities).row
    if strategy == "random" or (strategy == "uncertainty" and probabilities is None):
        return int(next(row for row in questions.order if row not in seen))
    distances = questions.distances(seen) if seen else np.ones(len(questions.sample))
    score = distances if strategy == "farthest-first" else margin(probabilities)  # type: ignore[arg-type]
    return int(questions.sample[np.where(np.isin(questions.sample, seen), -np.inf, score).argmax()])


def page(result: dict[str, Any]) -> str:
    """Return the tables: median number of labels needed, and how often the target was not reached."""
    lines = ["# Labels needed to reach the accuracy of 10 random labels per class", ""]
    lines += [
        f"Median of {result['runs']} runs (random halves of the development subjects), total labels; in brackets the "
        f"runs that did not get there within {_MOST_PER_CLASS} labels per class, which count as that many. The target "
        "is the balanced accuracy of 10 true random labels per class on the subjects left out.",
    ]
    for error in ERRORS:
        lines += ["", f"## {'True labels' if not error else f'{100 * error:g} % wrong labels'}", ""]
        table_rows = []
        for name in result["sets"]:
            rows = [row for row in result["rows"] if row["set"] == name and row["wrong"] == error]
            cells, medians = [], {}
            for strategy in STRATEGIES:
                own = [row for row in rows if row["strategy"] == strategy]
                missed = sum(row["needed"] is None for row in own)
                medians[strategy] = float(np.median([row["needed"] or _MOST_PER_CLASS * row["classes"] for row in own]))
                cells.append(f"{medians[strategy]:g}" + (f" ({missed})" if missed else ""))
            ratio = medians["polyadic"] / medians["random"]
            target = np.mean([row["target"] for row in rows])
            table_rows.append([name, f"{target:.1f}", *cells, f"{ratio:.2f}"])
        lines.append(table(["set", "target, %", *STRATEGIES, "polyadic / random"], table_rows).rstrip())
    return "\n".join([*lines, ""])


# -------------------------------------------------------------------------------------------------------- latency


def latency(out: Path, sizes: tuple[int, ...] = SIZES, answers: int = 60) -> None:
    """Measure the seconds from an answer to the next question, and of a refit; write and show `latency.json`."""
    rows = [_measure(size, answers) for size in sizes]
    result = {"experiment": "label latency", **provenance("cpu"), "rows": rows}
    heads = list(rows[0])
    lines = [[f"{row['windows']:,}", *(f"{row[name]:g}" for name in heads[1:])] for row in rows]
    publish(out, "latency", result, f"# Latency per label\n\n{table(heads, lines, text=0)}")


def _measure(size: int, answers: int) -> dict[str, Any]:
    """Measure a session on random features of four classes, as many as those of a 20-channel recording."""
    rng = np.random.default_rng(0)
    truth, subject = rng.integers(0, 4, size), np.arange(size) // 100
    Z = rng.normal(size=(size, 150)) + 3 * np.eye(150)[truth]
    X = np.lib.stride_tricks.as_strided(rng.normal(size=128), (size, 9, 128), (0, 0, 8))  # no memory
    start = np.arange(size) % 100 * 128
    windows = Windows(X, 50.0, subject=subject, recording=subject.astype(str), start=start)
    saved, lags = [], []
    with tempfile.TemporaryDirectory() as folder:
        session = Session(windows, Z, Journal(Path(folder) / "labels.csv"))
        follow(session, print)
        for number in range(answers):
            row = session.question("tab").row
            begun = time.perf_counter()
            session.answer("tab", row, f"class {truth[row]}", session.stamp(row))
            session.question("tab")
            saved.append(time.perf_counter() - begun)
            time.sleep(0.2)  # nobody labels faster
            if number % 10 == 9:
                while session.predictions.version != session.version:
                    time.sleep(0.01)
                lags.append(time.perf_counter() - begun)
        session.journal.close()
    return {
        "windows": size,
        "answer to next question, median ms": round(1000 * float(np.median(saved)), 1),
        "slowest ms": round(1000 * max(saved), 1),
        "answer to refit, median s": round(float(np.median(lags)), 2),
        "slowest s": round(max(lags), 2),
    }


def check_sets(names: list[str] | None) -> tuple[str, ...]:
    """Return the sets to simulate; all four by default."""
    for name in names or ():
        if name not in SETS:
            raise PolyadicError(f"--dataset must be one of {', '.join(SETS)}, but is {name!r}")
    return tuple(names or SETS)
