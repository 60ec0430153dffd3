"""`python -m paper labels`: fit each method once per set and seed, then score it on every split; resumable."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed, parallel_config
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import balanced_accuracy_score

from paper.labels.methods import METHODS, Features, Method, features_of, method
from paper.labels.people import COUNTS, FILES, Count, Half, LabelSet, drawn, halves, read_set
from paper.labels.tables import draw, page
from paper.results import append_line, choose_device, provenance, read_lines, show, stage_bar, write_result
from paper.scoring import FEWEST_WINDOWS, recentred, train_probe, unthreaded
from polyadic.core.persist import encode
from polyadic.data import Windows
from polyadic.errors import PolyadicError
from polyadic.evaluate import Probe
from polyadic.evaluate import make_probe as probe

Row = dict[str, Any]

_DRAWS = 3
_WITH_VIEWS: tuple[Count, ...] = (3, 10, "all")
"""Labels per class at which views are compared."""
_RECENTRED: tuple[Count, ...] = (10, "all")
"""Labels per class at which features are also recentred by subject."""
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
    "recentred is with features recentred by subject",
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

    def key(self, what: str) -> str:
        """Return a hash of everything that the features or scores depend on, so that equal fits are done once."""
        given = self.build().get_params(deep=False)
        parameters = {name: repr(encode(value)) for name, value in given.items() if name != "device"}
        windows = self.set.windows
        parts: list[Any] = [type(self.build()).__name__, parameters, self.one.columns, self.data, list(windows.shape)]
        parts += [float(np.abs(windows.X[0]).sum()), self.development]
        parts += [self.one.probe_view] * bool(self.one.probe_view)
        if what == "scores":
            parts += [self.method, self.one.probe, self.seed, _DRAWS]
        return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:20]


def run(request: LabelRequest, quiet: bool = False, as_json: bool = False) -> dict[str, Any]:
    """Run the missing cells, write `labels.json`, `labels.md` and a figure for each set, and show the tables."""
    request.out.mkdir(parents=True, exist_ok=True)
    stem = _STEM + ("-development" if request.development else "")
    cells = _cells(request)
    journal = request.out / f"{stem}.cells.jsonl"
    done: dict[str, Row] = {str(key): dict(row) for key, row in read_lines(journal)}
    _fit(cells, done, request, journal, quiet or as_json)
    _score(cells, done, request, journal, quiet or as_json)
    result = _result(request, cells, done)
    text = page(result)
    write_result(request.out / f"{stem}.json", result)
    (request.out / f"{stem}.md").write_text(text)
    for name in result["sets"]:
        draw(result, name, request.out / f"{stem}-{name}.png")
    shutil.rmtree(_features_folder(request), ignore_errors=True)
    show(result, text, f"{stem}.json, {stem}.md and the figures to {request.out}/", as_json)
    return result


def _cells(request: LabelRequest) -> list[_Cell]:
    if request.folder is None and not request.quick:
        raise PolyadicError(f"--data is missing: pass the folder with {', '.join(FILES.values())}, or use --quick")
    folder, sets = request.folder or Path(), ("synthetic",) if request.quick else request.sets
    chosen = request.methods or (_QUICK_METHODS if request.quick else tuple(one.name for one in METHODS))
    epochs = 1 if request.quick else request.epochs
    return [
        _Cell(folder, data, method(name).name, seed, request.device, epochs, request.development)
        for data in sets
        for name in chosen
        if method(name).suits(read_set(folder, data))
        for seed in range(min(request.seeds, method(name).most_seeds))
    ]


def _fit(cells: Sequence[_Cell], done: dict[str, Row], request: LabelRequest, journal: Path, quiet: bool) -> None:
    """Fit the methods without stored features, and store the features of the labelled windows next to the results."""
    folder = _features_folder(request)
    folder.mkdir(exist_ok=True)
    work: dict[str, _Cell] = {}
    for cell in cells:
        key = cell.key("features")
        complete = all(f"{cell.key('scores')}:{split}" in done for split in range(_n_splits(cell, request)))
        if not cell.one.is_classifier and not ((folder / f"{key}.npz").exists() and key in done) and not complete:
            work[key] = cell
    # The longest fits first: the paper's methods, and large sets.
    sizes = {key: (cell.one.group == "paper", cell.set.unlabelled().X.size) for key, cell in work.items()}
    order = sorted(work, key=lambda key: sizes[key], reverse=True)
    tasks = (delayed(_fit_one)(work[key], folder / f"{key}.npz", key) for key in order)
    _collect(tasks, len(work), "fits", request.jobs, done, journal, quiet)


def _fit_one(cell: _Cell, path: Path, key: str) -> tuple[str, Row]:
    model, windows = cell.build(), cell.labelled()
    begun = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(cell.set.unlabelled())
    fitted = time.perf_counter()
    found = features_of(cell.one, model, cell.set, windows)
    seconds = {"fit_seconds": fitted - begun, "predict_seconds": time.perf_counter() - fitted}
    np.savez(path, Z=found.Z, levels=found.levels, copies=found.copies)
    classes = len(np.unique(windows.label))
    lines = 1 if classes == 2 else classes
    sizes = {"numbers": int(model.n_parameters_), "probe_numbers": lines * (found.Z.shape[1] + 1)}
    return key, {"device": cell.device, **seconds, **sizes}


def _score(cells: Sequence[_Cell], done: dict[str, Row], request: LabelRequest, journal: Path, quiet: bool) -> None:
    """Score every method on every split that is not scored yet, the slowest ones first."""
    folder = _features_folder(request)
    tasks = [
        delayed(_score_one)(cell, split, folder / f"{cell.key('features')}.npz", key)
        for cell in sorted(cells, key=lambda cell: _score_cost(cell, done), reverse=True)
        for split in range(_n_splits(cell, request))
        if (key := f"{cell.key('scores')}:{split}") not in done
    ]
    _collect(tasks, len(tasks), "splits", request.jobs, done, journal, quiet)


def _score_cost(cell: _Cell, done: dict[str, Row]) -> float:
    """Return the size of the probe's regression; infinity for a network."""
    if cell.one.is_classifier:
        return math.inf
    return float(len(cell.labelled()) * done.get(cell.key("features"), {}).get("probe_numbers", 0))


def _score_one(cell: _Cell, split: int, path: Path, key: str) -> tuple[str, Row]:
    """Return the balanced accuracy of each draw, in percent, by labels per class."""
    windows = cell.labelled()
    half = halves(windows.label, windows.subject, split + 1)[split]
    row: Row = {}
    predictor = _classifier(cell, windows, row) if cell.one.is_classifier else _probes(cell, path, windows)
    for count in _WITH_VIEWS if cell.one.group == "views" else COUNTS:
        scores: dict[str, list[float]] = {}
        for number in range(1 if count == "all" else _DRAWS):
            rows, begun = drawn(windows.label, half.train, count, [split, number]), time.perf_counter()
            for name, guess in predictor(rows, half, count, number):
                row.setdefault(f"seconds {count}", time.perf_counter() - begun)
                scores.setdefault(name, []).append(100 * balanced_accuracy_score(windows.label[half.test], guess))
        row[str(count)] = scores
    return key, row


_Predictor = Callable[[NDArray[np.intp], Half, Count, int], Iterator[tuple[str, NDArray[Any]]]]


def _probes(cell: _Cell, path: Path, windows: Windows) -> _Predictor:
    """Return a function that trains a method's probe on some rows and predicts the test rows, plain and recentred."""
    one = cell.one
    with np.load(path) as file:
        found = Features(file["Z"], file["levels"], file["copies"])
    Z, label, subject = found.Z.astype(np.float64), windows.label, windows.subject
    _, sizes = np.unique(subject, return_counts=True)
    main = one.group in ("default", "rivals", "paper") and one.probe == "auto" and not cell.development
    centred = recentred(Z, subject) if main and sizes.min() >= FEWEST_WINDOWS else None

    def predict(rows: NDArray[np.intp], half: Half, count: Count, number: int) -> Iterator[tuple[str, NDArray[Any]]]:
        kinds = {"score": Z} | ({"recentred": centred} if centred is not None and count in _RECENTRED else {})
        for name, F in kinds.items():
            with unthreaded():
                classifier = Probe() if one.probe == "auto" else probe(one.probe)
                seen, own = F[rows], rows
                for copy in found.copies:
                    known = rows[np.isfinite(copy[rows]).all(axis=1)]
                    seen, own = np.concatenate([seen, copy[known]]), np.concatenate([own, known])
                fitted = train_probe(classifier, seen, label[own], subject[own], found.levels)
                yield name, np.asarray(fitted.predict(F[half.test]))

    return predict


def _classifier(cell: _Cell, windows: Windows, about: Row) -> _Predictor:
    """Return a function that trains a classifier on some windows and predicts the test windows.

    The number of the draw is the random seed. `about` receives the seconds and size of the last fit, which has all
    labels, as the fit of a feature extractor would record them.
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
        seconds = {"fit_seconds": fitted - begun, "predict_seconds": time.perf_counter() - fitted}
        about["fit"] = {"device": cell.device, **seconds, "numbers": int(model.n_parameters_)}
        yield "score", guess

    return predict


def _n_splits(cell: _Cell, request: LabelRequest) -> int:
    return cell.set.n_splits if request.splits is None else min(request.splits, cell.set.n_splits)


def _features_folder(request: LabelRequest) -> Path:
    return request.out / f"{_STEM}-features"


def _collect(
    tasks: Iterable[Any], total: int, unit: str, jobs: int, done: dict[str, Row], journal: Path, quiet: bool
) -> None:
    # With several processes, one thread each: joblib would share out the cores, which few tasks can use.
    threads = parallel_config("loky", inner_max_num_threads=1) if jobs > 1 else nullcontext()
    with stage_bar(_STEM, quiet, unit) as update, threads:
        for count, (key, row) in enumerate(Parallel(jobs, return_as="generator_unordered")(tasks), 1):
            append_line(journal, [key, row])
            done[key] = row
            update(count, total, "")


def _result(request: LabelRequest, cells: Sequence[_Cell], done: dict[str, Row]) -> dict[str, Any]:
    """Return the content of the JSON file: settings, provenance, a row for each set, method, seed and label count."""
    rows, fits, sets = [], [], {}
    by_set = {cell.data: cell for cell in reversed(cells)}.values()
    for cell in cells:
        data, count = cell.set, _n_splits(cell, request)
        if data.name not in sets:
            sets[data.name] = _describe(cell, count)
        about = {"set": data.name, "method": cell.method, "group": cell.one.group, "seed": cell.seed}
        scored = [done[f"{cell.key('scores')}:{split}"] for split in range(count)]
        known = scored[0]["fit"] if cell.one.is_classifier else dict(done.get(cell.key("features"), {}))
        if not cell.one.is_classifier:
            known["probe_seconds"] = scored[0]["seconds all"]
        fits.append({**about, **{name: round(v, 4) if isinstance(v, float) else v for name, v in known.items()}})
        for labels in (count for count in map(str, COUNTS) if count in scored[0]):
            columns: Row = {}
            for name in scored[0][labels]:
                by_draw = [row[labels][name] for row in scored]
                columns[name] = [round(float(np.mean(values)), 3) for values in by_draw]
                columns[f"{name}_by_draw"] = [[round(value, 3) for value in values] for values in by_draw]
            rows.append({**about, "labels": labels, **columns})
    return {
        "experiment": _STEM,
        "people": "development" if request.development else "new",
        "sets": sets,
        "draws": _DRAWS,
        "seeds": list(range(request.seeds)),
        "jobs": request.jobs,
        **provenance(str(choose_device(request.device))),
        "notes": _NOTES,
        "subjects": [_subjects(cell) for cell in by_set],
        "halves": [row for cell in by_set for row in _halves_of(cell, request)],
        "drawn": [row for cell in by_set for row in _drawn_rows(cell, request)],
        "fits": fits,
        "rows": rows,
    }


def _subjects(cell: _Cell) -> Row:
    parts = {"development": cell.set.unlabelled(), "scored": cell.labelled()}
    return {"set": cell.data, **{name: np.unique(part.subject).tolist() for name, part in parts.items()}}


def _halves_of(cell: _Cell, request: LabelRequest) -> Iterator[Row]:
    """Yield the subjects of both halves of each split."""
    windows = cell.labelled()
    for split, half in enumerate(halves(windows.label, windows.subject, _n_splits(cell, request))):
        names = {name: np.unique(windows.subject[rows]).tolist() for name, rows in half._asdict().items()}
        yield {"set": cell.data, "split": split, **names}


def _drawn_rows(cell: _Cell, request: LabelRequest) -> Iterator[Row]:
    """Yield the rows of each draw of labels."""
    windows = cell.labelled()
    for split, half in enumerate(halves(windows.label, windows.subject, _n_splits(cell, request))):
        for count in (count for count in COUNTS if count != "all"):
            for number in range(_DRAWS):
                rows = drawn(windows.label, half.train, count, [split, number]).tolist()
                yield {"set": cell.data, "split": split, "labels": str(count), "draw": number, "rows": rows}


def _describe(cell: _Cell, count: int) -> Row:
    labelled, first = cell.labelled(), cell.set.unlabelled()
    parts = halves(labelled.label, labelled.subject, count)
    tested = [len(half.test) / len(labelled) for half in parts]
    return {
        "title": cell.set.title,
        "splits": count,
        "classes": len(np.unique(labelled.label)),
        "unlabelled_people": len(np.unique(first.subject)),
        "unlabelled_windows": len(first),
        "people": len(np.unique(labelled.subject)),
        "windows": len(labelled),
        "test_share": float(np.mean(tested)),
    }
