"""`python -m paper labels`: fit each method once per set and seed, then score it on every split; resumable."""

from __future__ import annotations

import hashlib
import json
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from joblib import delayed
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import balanced_accuracy_score

from paper.labels.methods import METHODS, Method, features_of, method
from paper.labels.people import COUNTS, FILES, Count, Half, LabelSet, drawn, halves, read_set
from paper.labels.tables import draw, page
from paper.results import choose_device, provenance, run_cells, show, write_result
from paper.scoring import FEWEST_WINDOWS, recentred, train_probe, unthreaded
from polyadic.core.persist import encode
from polyadic.data import Windows
from polyadic.errors import PolyadicError
from polyadic.evaluate import Probe, make_probe

Row = dict[str, Any]

_DRAWS = 3
_WITH_VIEWS: tuple[Count, ...] = (3, 10, "all")
"""Labels per class at which views are compared."""
_RECENTRED: tuple[Count, ...] = (10, "all")
"""Labels per class at which features are also recentred by subject."""
_MOST_UNLABELLED = 3500
"""Maximum number of unlabelled windows that features were learned from and that the probe uses."""
_CLIP = 6.0
_FEWEST_TO_TRAIN = 4
"""Minimum number of windows to train a network, which holds some out for early stopping."""
_STEM = "labels"
_NOTES = {
    "subjects": "development: subjects whose windows features are learned from; scored: the others",
    "halves": "the scored subjects of each split: labels are drawn from train, test is scored",
    "drawn": "labelled windows of each draw, drawn(label, half.train, labels, [split, draw]) of "
    "paper.labels.people: row numbers, from 0, among the windows of the scored subjects in the order of "
    "the file (LUDB without windows of class -1); with all labels, every window of the training half",
    "rows": "balanced accuracy in percent: score has a mean over draws for each split, score_by_draw each draw; "
    "recentred is with features recentred by subject, 'labelled only' and 'with unlabelled' without and with "
    "unlabelled windows in the probe",
}
"""Description of the parts of the result, written into its file."""
_QUICK_METHODS = ("polyadic", "hand features", "the paper's ATD, plain probe", "CNN, supervised",
                  "whitening: jitter 0.05",
                  "in the probe: jitter 0.05")  # fmt: skip


@dataclass(frozen=True)
class LabelRequest:
    """The options of `python -m paper labels`; see its help."""

    out: Path
    folder: Path | None = None
    sets: tuple[str, ...] = tuple(FILES)
    methods: tuple[str, ...] = ()
    seeds: int = 3
    splits: int | None = None
    epochs: int = 100
    development: bool = False
    device: str = "auto"
    jobs: int = 1
    quick: bool = False


@dataclass(frozen=True)
class _Cell:
    """A method on a set with one seed: fitted once, then scored on every split."""

    folder: Path
    data: str
    method: str
    seed: int
    device: str
    epochs: int
    development: bool
    splits: int

    @property
    def set(self) -> LabelSet:
        return read_set(self.folder, self.data)

    @property
    def one(self) -> Method:
        return method(self.method)

    def build(self) -> Any:
        return self.one.build(self.set, self.seed, self.device, self.epochs)

    def labelled(self) -> Windows:
        return self.set.labelled(self.development)

    def halves(self) -> list[Half]:
        windows = self.labelled()
        return halves(windows.label, windows.subject, self.splits)

    def key(self) -> str:
        """Return a hash of everything that the scores depend on."""
        given = self.build().get_params(deep=False)
        parameters = {name: repr(encode(value)) for name, value in given.items() if name != "device"}
        X = self.set.windows.X
        parts = [self.data, list(X.shape), float(np.abs(X[0]).sum()), self.method, parameters, self.seed]
        parts += [self.development, self.splits, _DRAWS, *(["standardised"] if self.one.standardised else [])]
        return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:20]


def run(request: LabelRequest, quiet: bool = False, as_json: bool = False) -> dict[str, Any]:
    """Run the missing cells, write `labels.json`, `labels.md` and a figure for each set, and show the tables."""
    request.out.mkdir(parents=True, exist_ok=True)
    stem = _STEM + ("-development" if request.development else "")
    cells = {cell.key(): cell for cell in _cells(request)}
    tasks = {key: delayed(_run_cell)(cell) for key, cell in cells.items()}
    done = run_cells(stem, tasks, request.out / f"{stem}.cells.jsonl", request.jobs, quiet or as_json)
    result = _result(request, [(cell, done[key]) for key, cell in cells.items()])
    text = page(result)
    write_result(request.out / f"{stem}.json", result)
    (request.out / f"{stem}.md").write_text(text)
    for name in result["sets"]:
        draw(result, name, request.out / f"{stem}-{name}.png")
    show(result, text, f"{stem}.json, {stem}.md and the figures to {request.out}/", as_json)
    return result


def _cells(request: LabelRequest) -> list[_Cell]:
    if request.folder is None and not request.quick:
        raise PolyadicError(f"--data is missing: pass the folder with {', '.join(FILES.values())}, or use --quick")
    folder, sets = request.folder or Path(), ("synthetic",) if request.quick else request.sets
    chosen = request.methods or (_QUICK_METHODS if request.quick else tuple(one.name for one in METHODS))
    epochs = 1 if request.quick else request.epochs
    cells = []
    for data in (read_set(folder, name) for name in sets):
        splits = data.n_splits if request.splits is None else min(request.splits, data.n_splits)
        for one in map(method, chosen):
            seeds = range(min(request.seeds, one.most_seeds)) if one.suits(data) else ()
            about = (request.device, epochs, request.development, splits)
            cells += [_Cell(folder, data.name, one.name, seed, *about) for seed in seeds]
    return cells


def _run_cell(cell: _Cell) -> Row:
    """Fit a method and score it: the seconds and sizes of the fit, and the scores on each split.

    The scores are balanced accuracies of each draw, in percent, by labels per class and name. On development subjects
    everything is nested: in each split, features are learned from the training half alone.
    """
    windows, fit = cell.labelled(), dict[str, Any](device=cell.device)
    predict: _Predictor | None = None
    splits: list[Row] = []
    for split, half in enumerate(cell.halves()):
        row: Row = {}
        if cell.one.is_classifier:
            predict = predict or _classifier(cell, windows, fit)
        elif predict is None or cell.development:
            predict = _probes(cell, windows, half, fit)
        for count in _WITH_VIEWS if cell.one.group == "views" else COUNTS:
            scores: dict[str, list[float]] = {}
            for number in range(1 if count == "all" else _DRAWS):
                rows, begun = drawn(windows.label, half.train, count, [split, number]), time.perf_counter()
                for name, guess in predict(rows, half, count, number):
                    if (split, count, name) == (0, "all", "score") and not cell.one.is_classifier:
                        fit["probe_seconds"] = time.perf_counter() - begun
                    scores.setdefault(name, []).append(100 * balanced_accuracy_score(windows.label[half.test], guess))
            row[str(count)] = scores
        splits.append(row)
    return {"fit": fit, "splits": splits}


_Predictor = Callable[[NDArray[np.intp], Half, Count, int], Iterator[tuple[str, NDArray[Any]]]]


def _probes(cell: _Cell, windows: Windows, half: Half, about: Row) -> _Predictor:
    """Fit a method, and return a function that trains its probe on some rows and predicts the test rows.

    The default uses unlabelled windows: those that features were learned from, and those of the training half that
    are not drawn. It is also scored without them ("labelled only"), and rivals with them ("with unlabelled").
    """
    one, model, begun = cell.one, cell.build(), time.perf_counter()
    learned = windows[half.train] if cell.development else cell.set.unlabelled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(learned)
    fitted = time.perf_counter()
    found = features_of(one, model, cell.set, windows)
    if one.standardised:
        seen = features_of(one, model, cell.set, learned).Z
        mean, scale = seen.mean(axis=0), seen.std(axis=0)
        found = replace(found, Z=np.clip((found.Z - mean) / np.where(scale > 0, scale, 1.0), -_CLIP, _CLIP))
    about |= {"fit_seconds": fitted - begun, "predict_seconds": time.perf_counter() - fitted}
    Z, label, subject = found.Z.astype(np.float64), windows.label, windows.subject
    classes = len(np.unique(label))
    lines = 1 if classes == 2 else classes
    about |= {"numbers": int(model.n_parameters_), "probe_numbers": lines * (Z.shape[1] + 1)}
    _, sizes = np.unique(subject, return_counts=True)
    is_main = one.group in ("default", "rivals") and one.probe == "auto"
    centred = recentred(Z, subject) if is_main and not cell.development and sizes.min() >= FEWEST_WINDOWS else None
    others, who = Z[:0], subject[:0]
    if is_main and not cell.development:
        sample = np.sort(np.random.default_rng(0).permutation(len(learned))[:_MOST_UNLABELLED])
        others = features_of(one, model, cell.set, learned[sample]).Z.astype(np.float64)
        if one.standardised:
            others = np.clip((others - mean) / np.where(scale > 0, scale, 1.0), -_CLIP, _CLIP)
        who = learned.subject[sample]

    def with_unlabelled(F: NDArray[Any], rows: NDArray[np.intp], half: Half) -> Any:
        rest = np.setdiff1d(half.train, rows)
        marks = np.concatenate([label[rows], np.full(len(rest) + len(others), -1)])
        groups = np.concatenate([subject[rows], subject[rest], who])
        return train_probe(Probe(), np.concatenate([F[rows], F[rest], others]), marks, groups, found.statistics)

    def predict(rows: NDArray[np.intp], half: Half, count: Count, number: int) -> Iterator[tuple[str, NDArray[Any]]]:
        kinds = {"score": Z} | ({"recentred": centred} if centred is not None and count in _RECENTRED else {})
        default = one.group == "default"
        with unthreaded():
            for name, F in kinds.items():
                classifier = Probe(unlabelled=False) if one.probe == "auto" else make_probe(one.probe)
                seen, own = F[rows], rows
                for copy in found.copies:
                    known = rows[np.isfinite(copy[rows]).all(axis=1)]
                    seen, own = np.concatenate([seen, copy[known]]), np.concatenate([own, known])
                trained = train_probe(classifier, seen, label[own], subject[own], found.statistics)
                yield (
                    "labelled only" if default and name == "score" else name,
                    np.asarray(trained.predict(F[half.test])),
                )
            if is_main:
                guess = np.asarray(with_unlabelled(Z, rows, half).predict(Z[half.test]))
                yield "score" if default else "with unlabelled", guess

    return predict


def _classifier(cell: _Cell, windows: Windows, about: Row) -> _Predictor:
    """Return a function that trains a classifier on some windows and predicts the test windows.

    The number of the draw is the random seed. `about` receives the seconds and size of the last fit, with all labels.
    """

    def predict(rows: NDArray[np.intp], half: Half, count: Count, number: int) -> Iterator[tuple[str, NDArray[Any]]]:
        if len(rows) < _FEWEST_TO_TRAIN:
            return
        model = cell.one.build(cell.set, number, cell.device, cell.epochs)
        with warnings.catch_warnings(), unthreaded():
            warnings.simplefilter("ignore", ConvergenceWarning)
            train, begun = windows[rows], time.perf_counter()
            model.fit(train, train.label)
            fitted = time.perf_counter()
            guess = np.asarray(model.predict(windows[half.test]))
        about.update(fit_seconds=fitted - begun, predict_seconds=time.perf_counter() - fitted)
        about["numbers"] = int(model.n_parameters_)
        yield "score", guess

    return predict


def _result(request: LabelRequest, cells: Sequence[tuple[_Cell, Row]]) -> dict[str, Any]:
    """Return the content of the JSON file: settings, provenance, a row for each set, method, seed and label count."""
    rows, fits, by_set = [], [], {cell.data: cell for cell, _ in cells}
    for cell, found in cells:
        about = {"set": cell.data, "method": cell.method, "group": cell.one.group, "seed": cell.seed}
        fits.append(about | {name: round(v, 4) if isinstance(v, float) else v for name, v in found["fit"].items()})
        scored = found["splits"]
        for labels in (count for count in map(str, COUNTS) if count in scored[0]):
            columns: Row = {}
            for name in scored[0][labels]:
                by_draw = [row[labels][name] for row in scored]
                columns[name] = [round(float(np.mean(values)), 3) for values in by_draw]
                columns[f"{name}_by_draw"] = [[round(value, 3) for value in values] for values in by_draw]
            rows.append({**about, "labels": labels, **columns})
    subjects, divided, labelled = [], [], []
    for data, cell in by_set.items():
        windows, first = cell.labelled(), cell.set.unlabelled()
        subjects.append({"set": data, "development": _names(first), "scored": _names(windows)})
        for split, half in enumerate(cell.halves()):
            names = {name: _names(windows[part]) for name, part in half._asdict().items()}
            divided.append({"set": data, "split": split, **names})
            for count, number in product((count for count in COUNTS if count != "all"), range(_DRAWS)):
                some = drawn(windows.label, half.train, count, [split, number]).tolist()
                labelled.append({"set": data, "split": split, "labels": str(count), "draw": number, "rows": some})
    return {
        "experiment": _STEM,
        "people": "development" if request.development else "new",
        "sets": {data: _describe(cell) for data, cell in by_set.items()},
        "draws": _DRAWS,
        "seeds": list(range(request.seeds)),
        "jobs": request.jobs,
        **provenance(str(choose_device(request.device))),
        "notes": _NOTES,
        "subjects": subjects,
        "halves": divided,
        "drawn": labelled,
        "fits": fits,
        "rows": rows,
    }


def _names(windows: Windows) -> list[str]:
    names: list[str] = np.unique(windows.subject).tolist()
    return names


def _describe(cell: _Cell) -> Row:
    labelled, first = cell.labelled(), cell.set.unlabelled()
    return {
        "title": cell.set.title,
        "splits": cell.splits,
        "classes": len(np.unique(labelled.label)),
        "unlabelled_people": len(np.unique(first.subject)),
        "unlabelled_windows": len(first),
        "people": len(np.unique(labelled.subject)),
        "windows": len(labelled),
        "test_share": float(np.mean([len(half.test) / len(labelled) for half in cell.halves()])),
    }
