"""`python -m paper labels`: learn features once per set and seed, then score a probe on every split; resumable."""

from __future__ import annotations

import hashlib
import json
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from joblib import delayed
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import balanced_accuracy_score

from paper.labels.methods import DEFAULT, FROZEN, RELEASE, Method, features_of, method
from paper.labels.people import COUNTS, FILES, PTB_XL, Half, LabelSet, drawn, halves, read_set
from paper.labels.tables import draw, page
from paper.results import choose_device, provenance, publish, run_cells
from paper.scoring import make_probe, train_probe, unthreaded
from polyadic.core.persist import encode
from polyadic.data import Windows
from polyadic.errors import PolyadicError
from polyadic.evaluate import Probe, calibration

Row = dict[str, Any]

OLD = "polyadic 0.2.0"
"""The name of 0.2.0's default in the tables."""
_FROZEN_FILE = Path(__file__).parents[2] / "docs" / "results" / "labels" / "0.2.0.json"
_DRAWS = 3
_MOST_UNLABELLED = 3500
"""Maximum number of unlabelled windows that features were learned from and that the probe uses."""
_CLIP = 6.0
_DEAD = 6
"""Maximum number of channels that fail in turn, spread evenly over all."""
_ALSO_DEAD = (DEFAULT, "PCA-32", "hand features")
"""Methods that are also scored with a dead sensor; rivals get the mean signal of the windows they learned from."""
_WIDEST, _AXES = 2000, 256
"""Features wider than this (MiniRocket) have a semi-supervised probe on this many principal axes, which is feasible."""
_STEM = "labels"
_NOTES = {
    "subjects": "development: subjects whose windows features are learned from; scored: the others",
    "halves": "the scored subjects of each split: labels are drawn from train, test is scored",
    "drawn": "labelled windows of each draw, drawn(label, half.train, labels, [split, draw]) of "
    "paper.labels.people: row numbers, from 0, among the windows of the scored subjects in the order of "
    "the file (LUDB without windows of class -1); with all labels, every window of the training half",
    "rows": "balanced accuracy in percent: score has a mean over draws for each split, score_by_draw each draw; "
    "'labelled only' and 'with unlabelled' are without and with unlabelled windows in the probe; that of "
    "MiniRocket with unlabelled windows is on 256 principal axes of its features",
    "ece, ece_before": "expected calibration error in points (10 bins, classes of equal weight) with and without the "
    "temperature of the probe",
    "one sensor dead": "mean over up to six channels, each missing in all test windows in turn; polyadic is told NaN, "
    "rivals get the mean signal of the windows that they learned from, as with what PTB-XL lacks",
    "frozen": "methods whose score, with a plain probe, is that of 0.2.0.json",
}
"""Description of the parts of the result, written into its file."""
_QUICK_METHODS = (DEFAULT, "hand features", "the paper's ATD, plain probe")


@dataclass(frozen=True)
class LabelRequest:
    """The options of `python -m paper labels`; see its help."""

    out: Path
    folder: Path | None = None
    sets: tuple[str, ...] = (*FILES, PTB_XL)
    methods: tuple[str, ...] = ()
    seeds: int = 3
    splits: int | None = None
    development: bool = False
    device: str = "auto"
    jobs: int = 1
    quick: bool = False

    @property
    def reuses(self) -> tuple[str, ...]:
        """Methods whose scores with a plain probe are taken from 0.2.0."""
        return () if self.development or self.quick else FROZEN


@dataclass(frozen=True)
class _Cell:
    """A method on one split of a set, with one seed."""

    folder: Path
    data: str
    method: str
    seed: int
    device: str
    development: bool
    split: int
    is_frozen: bool = False

    @property
    def set(self) -> LabelSet:
        return read_set(self.folder, self.data)

    @property
    def one(self) -> Method:
        return method(self.method)

    def build(self) -> Any:
        return self.one.build(self.set, self.seed, self.device)

    def labelled(self) -> Windows:
        return self.set.labelled(self.development)

    def half(self) -> Half:
        windows = self.labelled()
        return halves(windows.label, windows.subject, self.split + 1)[self.split]

    def features_key(self) -> str:
        """Return a hash of everything that the features depend on; on other subjects not on the split."""
        given = self.build().get_params(deep=False)
        parameters = {name: repr(encode(value)) for name, value in given.items() if name != "device"}
        X = self.set.windows.X
        parts = [
            self.data,
            list(X.shape),
            float(np.abs(X[0]).sum()),
            type(self.build()).__name__,
            parameters,
            self.seed,
        ]
        return _hash([*parts, self.one.standardised, self.one.columns, self.split if self.development else None])

    def key(self) -> str:
        """Return a hash of everything that the scores depend on."""
        return _hash([self.features_key(), self.method, self.development, self.split, _DRAWS, self.is_frozen])


def _hash(parts: list[Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:20]


def run(request: LabelRequest, quiet: bool = False) -> dict[str, Any]:
    """Run the missing cells, write `labels.json`, `labels.md` and a figure for each set, and show the tables.

    Features of each method, set and seed are computed first and kept in a folder `features`; then every split is scored
    by itself, so that `--jobs` has many small tasks.
    """
    request.out.mkdir(parents=True, exist_ok=True)
    stem = _STEM + ("-development" if request.development else "")
    cells, folder = {cell.key(): cell for cell in _cells(request)}, request.out / "features"
    frozen = _frozen(request, cells.values()) if request.reuses else {}
    folder.mkdir(exist_ok=True)
    learned = {cell.features_key(): cell for cell in cells.values()}
    tasks = {key: delayed(_learn)(cell, folder / f"{key}.npz") for key, cell in learned.items()}
    fits = run_cells(f"{stem}: features", tasks, folder / "fits.jsonl", request.jobs, quiet)
    tasks = {key: delayed(_score)(cell, folder / f"{cell.features_key()}.npz") for key, cell in cells.items()}
    done = run_cells(stem, tasks, request.out / f"{stem}.cells.jsonl", request.jobs, quiet)
    found = [(cell, {**fits.get(cell.features_key(), {}), **done[key]["fit"]}, done[key]["scores"])
             for key, cell in cells.items()]  # fmt: skip
    result = _result(request, found, frozen)
    publish(request.out, stem, result, page(result))
    for name in result["sets"] if find_spec("matplotlib") else ():
        draw(result, name, request.out / f"{stem}-{name}.png")
    return result


def _cells(request: LabelRequest) -> list[_Cell]:
    if request.folder is None and not request.quick:
        raise PolyadicError(f"--data is missing: pass the folder with {', '.join(FILES.values())}, or use --quick")
    folder, sets = request.folder or Path(), ("synthetic",) if request.quick else request.sets
    chosen = [method(name) for name in request.methods or (_QUICK_METHODS if request.quick else RELEASE)]
    cells = []
    for data in (read_set(folder, name) for name in sets):
        splits = data.n_splits if request.splits is None else min(request.splits, data.n_splits)
        for one in chosen:
            frozen = one.name in request.reuses and data.name in FILES
            # Nothing is left to compute for a frozen method with a fixed probe.
            seeds = range(min(request.seeds, one.most_seeds)) if one.is_available and not _is_done(one, frozen) else ()
            about = (str(choose_device(request.device)), request.development)
            cells += [
                _Cell(folder, data.name, one.name, seed, *about, split, frozen)
                for seed, split in product(seeds, range(splits))
            ]
    return cells


def _is_done(one: Method, frozen: bool) -> bool:
    return frozen and one.probe != "auto"


def _learn(cell: _Cell, path: Path) -> Row:
    """Learn features, write those of all labelled windows and of unlabelled ones, and return seconds and size.

    On development subjects everything is nested: features are learned from the training half of the split alone.
    """
    one, model, windows, begun = cell.one, cell.build(), cell.labelled(), time.perf_counter()
    learned = windows[cell.half().train] if cell.development else cell.set.unlabelled()
    typical = None if one.name == DEFAULT else _typical(learned)
    learned, windows = (_filled(part, typical) for part in (learned, windows))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(learned)
    fitted = time.perf_counter()
    found = features_of(one, model, windows)
    predicted = time.perf_counter()
    sample = np.sort(np.random.default_rng(0).permutation(len(learned))[:_MOST_UNLABELLED])
    others = features_of(one, model, learned[sample]).Z
    dead = []
    if one.name in _ALSO_DEAD and cell.data in FILES:
        for channel in np.unique(np.linspace(0, windows.shape[1] - 1, _DEAD).round().astype(int)):
            X = np.array(windows.X, np.float32)
            X[:, channel] = np.nan
            dead.append(features_of(one, model, _filled(_with_samples(windows, X), typical)).Z)
    if one.standardised:
        mean, scale = others.mean(axis=0), others.std(axis=0)
        scale[scale == 0] = 1.0
        others, Z, *dead = (np.clip((F - mean) / scale, -_CLIP, _CLIP) for F in (others, found.Z, *dead))
        found = replace(found, Z=Z)
    narrow = found.Z
    if narrow.shape[1] > _WIDEST:
        axes = PCA(min(_AXES, len(others)), svd_solver="randomized", random_state=0).fit(others)
        narrow, others = axes.transform(found.Z), axes.transform(others)
    # The windows of the training half are the others already.
    kept = sample[:0] if cell.development else sample
    unlabelled: Row = {"narrow": narrow, "others": others[: len(kept)], "who": learned.subject[kept]}
    np.savez(path, Z=found.Z, statistics=found.statistics, dead=np.array(dead, np.float32), **unlabelled)
    classes = len(np.unique(windows.label))
    return {
        "device": cell.device,
        "fit_seconds": fitted - begun,
        "predict_seconds": predicted - fitted,
        "numbers": int(model.n_parameters_),
        "probe_numbers": (1 if classes == 2 else classes) * (found.Z.shape[1] + 1),
    }


def _typical(windows: Windows) -> NDArray[Any]:
    """Return the mean signal (channels, time); 0 where every window lacks a value, as in the layout of PTB-XL."""
    known = ~np.isnan(windows.X)
    mean: NDArray[Any] = np.nansum(windows.X, axis=0) / np.maximum(known.sum(axis=0), 1)
    return mean


def _filled(windows: Windows, typical: NDArray[Any] | None) -> Windows:
    """Return windows whose missing values are those of a typical window (channels, time), if there is one."""
    if typical is None or not np.isnan(windows.X).any():
        return windows
    return _with_samples(windows, np.where(np.isnan(windows.X), typical, windows.X).astype(np.float32))


def _with_samples(windows: Windows, X: NDArray[Any]) -> Windows:
    """Return other samples of the same windows, with labels and subjects."""
    names: Any = {"units": windows.units, "channels": windows.channels, "recording": windows.recording}
    return Windows(X, windows.fs, label=windows.label, subject=windows.subject, **names)


def _score(cell: _Cell, path: Path) -> Row:
    """Score a method on a split: numbers of each draw, by labels per class and name, and seconds of the probe."""
    windows, half, fit = cell.labelled(), cell.half(), dict[str, Any]()
    features = dict(np.load(path))
    result: Row = {}
    for count in COUNTS:
        values: dict[str, list[float]] = {}
        for number in range(1 if count == "all" else _DRAWS):
            rows, begun = drawn(windows.label, half.train, count, [cell.split, number]), time.perf_counter()
            for name, value in _probes(cell, features, windows, rows, half):
                if name == "score" and count == "all":
                    fit["probe_seconds"] = time.perf_counter() - begun
                values.setdefault(name, []).append(value)
        result[str(count)] = values
    return {"fit": fit, "scores": result}


def _probes(
    cell: _Cell, features: Row, windows: Windows, rows: NDArray[np.intp], half: Half
) -> Iterator[tuple[str, float]]:
    """Train probes on some rows, and yield their scores on the test rows by name.

    The default uses unlabelled windows: those that features were learned from, and those of the training half that
    are not drawn. It is also scored without them ("labelled only"), and rivals with them ("with unlabelled").
    """
    one, is_default = cell.one, cell.method == DEFAULT
    Z, columns = features["Z"].astype(np.float64), features["statistics"]
    label, subject, truth = windows.label, windows.subject, windows.label[half.test]

    def score(trained: Any, F: NDArray[np.float64]) -> float:
        return 100 * float(balanced_accuracy_score(truth, trained.predict(F[half.test])))

    with unthreaded():
        if not cell.is_frozen:
            classifier = Probe(unlabelled=False) if one.probe == "auto" else make_probe(one.probe)
            plain = train_probe(classifier, Z[rows], label[rows], subject[rows], columns)
            yield "labelled only" if is_default else "score", score(plain, Z)
            if len(features["dead"]) and not is_default:
                yield "one sensor dead", _mean_score(score, plain, features["dead"])
        if one.probe != "auto" or one.group == "less":
            return
        rest = np.setdiff1d(half.train, rows)
        marks = np.concatenate([label[rows], np.full(len(rest) + len(features["who"]), -1)])
        groups = np.concatenate([subject[rows], subject[rest], features["who"]])
        F = features["narrow"].astype(np.float64)
        whole = np.concatenate([F[rows], F[rest], features["others"]])
        trained = train_probe(Probe(), whole, marks, groups, columns)
        yield "score" if is_default else "with unlabelled", score(trained, F)
        if is_default:
            if len(features["dead"]):
                yield "one sensor dead", _mean_score(score, trained, features["dead"])
            yield from _calibration_errors(trained, Z[half.test], truth)


def _mean_score(score: Any, probe: Any, features: NDArray[np.float32]) -> float:
    """Return the mean score over features with one channel or another dead."""
    return float(np.mean([score(probe, Z.astype(np.float64)) for Z in features]))


def _calibration_errors(probe: Probe, Z: NDArray[np.float64], truth: NDArray[Any]) -> Iterator[tuple[str, float]]:
    """Yield the expected calibration error with the probe's temperature and with a temperature of 1, in points."""
    scores = np.log(np.maximum(probe.predict_proba(Z), 1e-300))
    weight = 1 / np.unique(truth, return_counts=True)[1][np.unique(truth, return_inverse=True)[1]]
    for name, factor in (("ece", 1.0), ("ece_before", probe.temperature_)):
        powers = np.exp(factor * (scores - scores.max(axis=1, keepdims=True)))
        confidence = (powers / powers.sum(axis=1, keepdims=True)).max(axis=1)
        correct = probe.classes_[scores.argmax(axis=1)] == truth
        yield name, 100 * calibration(confidence, correct, weight=weight).error


# ---------------------------------------------------------------- the result


def _frozen(request: LabelRequest, cells: Any) -> Row:
    """Return the scores of 0.2.0, after a check that subjects, splits and draws are the same."""
    frozen: Row = json.loads(_FROZEN_FILE.read_text())
    rows = {(row["set"], row["split"], row["labels"], row["draw"]): row["rows"] for row in frozen["drawn"]}
    for cell in {(cell.data, cell.split): cell for cell in cells if cell.data in FILES}.values():
        label, half = cell.labelled().label, cell.half()
        for count, number in product(COUNTS[:-1], range(_DRAWS)):
            if (
                drawn(label, half.train, count, [cell.split, number]).tolist()
                != rows[cell.data, cell.split, str(count), number]
            ):
                raise PolyadicError(f"the draws of {cell.data} are not those of {_FROZEN_FILE.name}: the data differ")
    return frozen


def _result(request: LabelRequest, found: Sequence[tuple[_Cell, Row, Row]], frozen: Row) -> dict[str, Any]:
    """Return the content of the JSON file: settings, provenance, a row for each set, method, seed and label count."""
    by_set: dict[str, list[_Cell]] = {}
    by_method: dict[tuple[str, str, int], list[tuple[_Cell, Row, Row]]] = {}
    for cell, fit, scores in found:
        by_set.setdefault(cell.data, []).append(cell)
        by_method.setdefault((cell.data, cell.method, cell.seed), []).append((cell, fit, scores))
    rows, fits = [], []
    for (data, name, seed), members in by_method.items():
        about = {"set": data, "method": name, "group": method(name).group, "seed": seed}
        fits.append(about | {key: round(v, 4) if isinstance(v, float) else v for key, v in members[0][1].items()})
        rows += [{**about, "labels": str(count), **_columns([scores[str(count)] for *_, scores in members])}
                 for count in COUNTS]  # fmt: skip
    cells_of = {data: sorted({cell.split: cell for cell in cells}.items()) for data, cells in by_set.items()}
    rows = _with_frozen(request, rows, frozen, {data: len(cells) for data, cells in cells_of.items()})
    subjects, divided, labelled = [], [], []
    for data, cells in cells_of.items():
        windows, first = cells[0][1].labelled(), cells[0][1].set.unlabelled()
        subjects.append({"set": data, "development": _names(first), "scored": _names(windows)})
        for split, half in ((split, cell.half()) for split, cell in cells):
            names = {name: _names(windows[part]) for name, part in half._asdict().items()}
            divided.append({"set": data, "split": split, **names})
            for count, number in product((count for count in COUNTS if count != "all"), range(_DRAWS)):
                some = drawn(windows.label, half.train, count, [split, number]).tolist()
                labelled.append({"set": data, "split": split, "labels": str(count), "draw": number, "rows": some})
    return {
        "experiment": _STEM,
        "people": "development" if request.development else "new",
        "frozen": list(request.reuses),
        "sets": {data: _describe([cell for _, cell in cells]) for data, cells in cells_of.items()},
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


def _columns(splits: Sequence[Row]) -> Row:
    """Return for each name the mean over draws on each split, and under NAME_by_draw every draw."""
    columns: Row = {}
    for name in splits[0]:
        by_draw = [split[name] for split in splits]
        columns[name] = [round(float(np.mean(values)), 3) for values in by_draw]
        columns[f"{name}_by_draw"] = [[round(value, 3) for value in values] for values in by_draw]
    return columns


def _with_frozen(request: LabelRequest, rows: list[Row], frozen: Row, splits: dict[str, int]) -> list[Row]:
    """Add the scores of 0.2.0: its default as another method, and those of frozen methods, which cost nothing."""
    known = {(row["set"], row["method"], row["labels"]): row for row in rows}
    for old in frozen.get("rows", ()):
        name, count = OLD if old["method"] == DEFAULT else old["method"], splits.get(old["set"], 0)
        if not count or (name != OLD and name not in request.reuses):
            continue
        scores = {key: old[key][:count] for key in ("score", "score_by_draw")}
        row = known.get((old["set"], name, old["labels"]))
        if row is None:
            group = "paper" if name == OLD else old["group"]
            rows.append(
                {**{key: old[key] for key in ("set", "seed", "labels")}, "method": name, "group": group, **scores}
            )
        else:
            row |= scores
    return rows


def _describe(cells: Sequence[_Cell]) -> Row:
    cell = cells[0]
    labelled, first = cell.labelled(), cell.set.unlabelled()
    return {
        "title": cell.set.title,
        "splits": len(cells),
        "classes": len(np.unique(labelled.label)),
        "unlabelled_people": len(np.unique(first.subject)),
        "unlabelled_windows": len(first),
        "people": len(np.unique(labelled.subject)),
        "windows": len(labelled),
        "test_share": float(np.mean([len(half.test) / len(labelled) for half in (cell.half() for cell in cells)])),
    }
