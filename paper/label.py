"""`python -m paper label`: simulated annotators.

How many labels does each way of choosing windows need to reach, on subjects left out, the balanced accuracy of 10
random labels per class? On development subjects, in random halves: labels come from one half, which the features were
learned from, and the other half is scored. The annotator knows the true label, or errs in 5 % of the answers.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from joblib import delayed
from numpy.typing import NDArray
from scipy.special import softmax
from sklearn.metrics import balanced_accuracy_score

from paper.labels.people import drawn, halves, read_set
from paper.results import provenance, publish, run_cells, table
from paper.scoring import statistic_columns, unthreaded
from polyadic import CPD
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
from polyadic.label import Questions
from polyadic.label.questions import EVERY, SAMPLE, margin

SETS = ("har", "sisfall", "geotec", "eegmat")
STRATEGIES = ("polyadic", "random", "farthest-first", "uncertainty")
ERRORS = (0.0, 0.05)
_PER_CLASS, _DRAWS = 10, 5
_MOST_PER_CLASS = 30
"""Labels per class after which a run is given up."""
_REFIT_EVERY = 2
_TOLERANCE = 1e-3

_Rows = NDArray[np.intp]


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
        graph = neighbour_graph(self.Z, is_statistic, np.unique(self.subject, return_inverse=True)[1])
        gain = gains(is_statistic, FIXED_WEIGHT)

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


def run(out: Path, folder: Path, sets: tuple[str, ...], runs: int, jobs: int = 1) -> None:
    """Simulate annotators; write and show `simulated.json` and `simulated.md`."""
    out.mkdir(parents=True, exist_ok=True)
    tasks = {f"{name} {number}": delayed(_simulate)(folder, name, number) for name in sets for number in range(runs)}
    done = run_cells("label", tasks, out / "simulated.cells.jsonl", jobs)
    note = "needed: labels at which the target is reached; curve: labels, balanced accuracy on the subjects left out"
    result: dict[str, Any] = {"experiment": "label", "sets": list(sets), "runs": runs, "note": note}
    result |= {**provenance("cpu"), "rows": [row for rows in done.values() for row in rows]}
    publish(out, "simulated", result, page(result))


def _features(folder: Path, name: str, number: int) -> _Half:
    """Learn features from one half of the development subjects, without their labels, for both halves."""
    data = read_set(folder, name).labelled(of_development=True)
    train, test = halves(data.label, data.subject, number + 1)[number]
    train = np.sort(np.random.default_rng([number, 0]).permutation(train)[:SAMPLE])
    model = CPD(device="cpu", random_state=number, verbose=0).fit(data[train])
    Z, Z_test = (np.asarray(model.transform(data[rows]), np.float64) for rows in (train, test))
    label = data.label
    return _Half(Z, label[train], data.subject[train], Z_test, label[test], statistic_columns(model))


def _simulate(folder: Path, name: str, number: int) -> list[dict[str, Any]]:
    """Label one half of a set with every strategy, with and without wrong answers."""
    with unthreaded():
        half = _features(folder, name, number)
        label, classes, learn = half.label, int(half.label.max()) + 1, half.learner()
        draws = [drawn(label, np.arange(len(label)), _PER_CLASS, [number, draw]) for draw in range(_DRAWS)]
        target = round(float(np.mean([half.score(learn(rows, label[rows])) for rows in draws])), 2)
        found = []
        for strategy, error in product(STRATEGIES, ERRORS):
            rng = np.random.default_rng([number, 1])
            # A wrong answer is any of the other classes; the same window always gets the same answer.
            wrong = rng.random(len(label)) < error
            answers = np.where(wrong, (label + rng.integers(1, classes, len(label))) % classes, label)
            questions = Questions(half.Z, half.subject, half.statistics, number)
            needed, curve, seen, probabilities = None, [], list[int](), None
            while len(seen) < min(_MOST_PER_CLASS * classes, len(label)) and needed is None:
                seen.append(_next(strategy, questions, seen, probabilities))
                rows = np.unique(seen)
                if len(seen) % _REFIT_EVERY or len(np.unique(answers[rows])) < 2:
                    continue
                predict = learn(rows, answers[rows])
                probabilities = predict(half.Z)
                curve.append([len(seen), round(half.score(predict), 2)])
                needed = len(seen) if curve[-1][1] >= target else None
            row = {"set": name, "run": number, "strategy": strategy, "wrong": error}
            found.append({**row, "target": target, "needed": needed, "classes": classes, "curve": curve})
    return found


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
    lines = [
        "# Labels needed to reach the accuracy of 10 random labels per class\n",
        f"Median of {result['runs']} runs (random halves of the development subjects), total labels; in brackets the "
        f"runs that did not get there within {_MOST_PER_CLASS} labels per class, which count as that many. The target "
        "is the balanced accuracy of 10 true random labels per class on the subjects left out.\n",
    ]
    for error in ERRORS:
        cells = []
        for name in result["sets"]:
            rows = [row for row in result["rows"] if row["set"] == name and row["wrong"] == error]
            counts, medians = [], {}
            for strategy in STRATEGIES:
                own = [row for row in rows if row["strategy"] == strategy]
                missed = sum(row["needed"] is None for row in own)
                medians[strategy] = float(np.median([row["needed"] or _MOST_PER_CLASS * row["classes"] for row in own]))
                counts.append(f"{medians[strategy]:g}" + (f" ({missed})" if missed else ""))
            target = np.mean([row["target"] for row in rows])
            cells.append([name, f"{target:.1f}", *counts, f"{medians['polyadic'] / medians['random']:.2f}"])
        lines.append(f"## {f'{100 * error:g} % wrong labels' if error else 'True labels'}\n")
        lines.append(table(["set", "target, %", *STRATEGIES, "polyadic / random"], cells))
    return "\n".join(lines)
